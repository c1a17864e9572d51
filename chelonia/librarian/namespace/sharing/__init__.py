"""Copies by reference: decided in `decide`, carried out in `act`."""
