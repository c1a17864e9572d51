"""Repair: from a noticed loss to a copy, and from a surplus to an erasure."""
