"""Uploads: decided in `decide`, carried out in `act`."""
