"""Transfers of bytes in and out of a Shepherd."""
