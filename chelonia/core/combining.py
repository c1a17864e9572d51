"""Checksums of bytes, combined from those of their pieces without reading any. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final

_BASE: Final = 65521
"""The largest prime below 2**16 (RFC 1950, section 8)."""


def combined_adler32(pieces: Iterable[tuple[str, int]]) -> str:
    """Return the Adler-32 of pieces that follow each other.

    Args: `pieces`: Adler-32 (8 hex digits, "" where unknown) and length in bytes of each, in order.
    Returns: 8 hex digits, or "" when that of any piece is unknown.
    Source: RFC 1950, section 2.2.
    """
    pairs = list(pieces)
    if not all(adler for adler, _ in pairs):
        return ""
    return f"{reduce(_both, ((int(adler, 16), length) for adler, length in pairs), (1, 0))[0]:08x}"


def _both(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """Return the Adler-32 and the length of two pieces together."""
    (one, before), (other, length) = first, second
    assert length >= 0, length
    low, high = one & 0xFFFF, one >> 16
    total = (low + (other & 0xFFFF) - 1) % _BASE
    weighted = (high + (other >> 16) + length * (low - 1)) % _BASE
    return weighted << 16 | total, before + length
