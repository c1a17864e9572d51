"""Repair: from a loss noticed to a copy made, and from a surplus to an erasure."""
