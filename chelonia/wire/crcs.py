"""CRCs of bytes as they pass, and of pieces one after the other, without reading them again. Pure.

Source: CRC-32 RFC 1952, CRC-32C RFC 3720, CRC-64/NVME NVM Express base specification; big-endian bytes, as S3 has them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import reduce
from typing import Final, Protocol, Self

from awscrt import checksums as crt

from chelonia.core.combining import combined_adler32

_STEPS: Final[Mapping[str, tuple[Callable[[bytes, int], int], Callable[[int, int, int], int], int]]] = {
    "crc32": (zlib.crc32, crt.combine_crc32, 4),
    "crc32c": (crt.crc32c, crt.combine_crc32c, 4),
    "crc64nvme": (crt.crc64nvme, crt.combine_crc64nvme, 8),
}
"""Of each: (bytes, value before) -> value; (of the first, of those behind, how many) -> of all; its size."""
NAMES: Final = frozenset(_STEPS)


class Hash(Protocol):
    """What `hashlib` has, as far as it is used."""

    def update(self, data: bytes, /) -> object:
        """Take bytes."""
        ...

    def digest(self) -> bytes:
        """The sum of all that was taken."""
        ...

    def copy(self) -> Self:
        """One that has taken the same."""
        ...


class Crc:
    """A CRC as `hashlib` has its hashes."""

    def __init__(self, name: str) -> None:
        self._step, _, self._size = _STEPS[name]
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")

    def copy(self) -> Self:
        return copy(self)


def hash_named(name: str) -> Hash:
    """A CRC, or what `hashlib` has under this name."""
    return Crc(name) if name in NAMES else hashlib.new(name, usedforsecurity=False)


def combined(name: str, pieces: Iterable[tuple[str, int]]) -> str:
    """A CRC, or Adler-32, of pieces one after the other.

    Args: `pieces`: of each its value (hex, "" where not known) and its length in bytes.
    Returns: hex; "" unless that of each piece is known.
    """
    if name == "adler32":
        return combined_adler32(pieces)
    known = [(value, length) for value, length in pieces]
    if not all(value for value, _ in known):
        return ""
    _, both, size = _STEPS[name]
    total = reduce(lambda one, piece: both(one, int(piece[0], 16), piece[1]), known, 0)
    return f"{total:0{2 * size}x}"
