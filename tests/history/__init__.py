"""Histories of concurrent clients of an A-Hash, and the promises they must keep: see docs/design/010-histories.md."""
