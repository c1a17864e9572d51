"""Proofs of copies before another is given up: judged in `decide`, asked for in `act`."""
