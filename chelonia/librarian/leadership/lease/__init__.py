"""The leader's lease: decided in `decide`, kept in `act`."""
