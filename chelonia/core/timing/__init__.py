"""Ports to time, and pure helpers that wait, pace and race on it."""
