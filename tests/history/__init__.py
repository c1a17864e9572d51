"""Histories of concurrent clients of an A-Hash, and what must hold of them: see docs/design/010-histories.md."""
