"""Drills: decided in `decide`, run in `act`."""
