"""The removal of a Shepherd: losses judged in `decide`, drained and forgotten in `act`."""
