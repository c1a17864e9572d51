"""Bytes in and out of a Shepherd."""
