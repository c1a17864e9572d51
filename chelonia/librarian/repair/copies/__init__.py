"""Repair copies: which may begin is decided in `decide`, one is made in `act`."""
