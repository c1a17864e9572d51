"""The removal of a Shepherd: `decide` judges losses, `act` drains and forgets."""
