"""Progress of healing: `decide` has the rounds, `act` keeps and shows them."""
