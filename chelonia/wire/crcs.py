"""CRCs and Adler-32 of bytes as they pass, and of joined pieces without reading them again. Pure.

Source: CRC-32 RFC 1952, CRC-32C RFC 3720, CRC-64/NVME NVM Express base specification, Adler-32 RFC 1950; big-endian
bytes, as S3 has them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import reduce
from typing import Final, Protocol, Self

from awscrt import checksums as crt
from zlib_ng import zlib_ng

from chelonia.core import bounds
from chelonia.core.combining import combined_adler32
from chelonia.core.contents.extents import ByteRange

_STEPS: Final[Mapping[str, tuple[Callable[[bytes, int], int], int, int]]] = {
    "crc32": (zlib.crc32, 0, 4),
    "crc32c": (crt.crc32c, 0, 4),
    "crc64nvme": (crt.crc64nvme, 0, 8),
    "adler32": (zlib_ng.adler32, 1, 4),
}
"""By name: the function (bytes, value before) -> value, the initial value, the size in bytes."""
_BOTH: Final[Mapping[str, Callable[[int, int, int], int]]] = {
    "crc32": crt.combine_crc32,
    "crc32c": crt.combine_crc32c,
    "crc64nvme": crt.combine_crc64nvme,
}
"""By name: the function (value of the first bytes, value of those behind, number of those behind) -> value of all."""
NAMES: Final = frozenset(_BOTH)
BLOCK_CRC_BYTES: Final = 4
"""Bytes of a CRC-32C, big-endian. Each block of `bounds.CHECKED_BLOCK_BYTES` has one; the last may be shorter."""


class Hash(Protocol):
    """A hash, with the methods of `hashlib` that we use."""

    def update(self, data: bytes, /) -> object:
        """Take bytes."""

    def digest(self) -> bytes:
        """Return the sum of all bytes taken."""

    def hexdigest(self) -> str:
        """Return the sum in hexadecimal digits."""

    def copy(self) -> Self:
        """Return another hash that has taken the same bytes."""


class Crc:
    """A CRC, or Adler-32, with the methods of a `hashlib` hash."""

    def __init__(self, name: str) -> None:
        self._step, self._value, self._size = _STEPS[name]

    def update(self, data: bytes, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")

    def hexdigest(self) -> str:
        return self.digest().hex()

    def copy(self) -> Self:
        return copy(self)


class BlockCrcs:
    """The CRC-32C of each block of a stream, and of the whole stream."""

    def __init__(self) -> None:
        self._closed = bytearray()
        self._before = self._open = self._filled = 0

    def update(self, data: bytes, /) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            taken = min(bounds.CHECKED_BLOCK_BYTES - self._filled, len(view) - at)
            self._open = crt.crc32c(view[at : at + taken], self._open)
            self._filled += taken
            at += taken
            if self._filled == bounds.CHECKED_BLOCK_BYTES:
                self._closed += _block_crc(self._open)
                self._before = crt.combine_crc32c(self._before, self._open, self._filled)
                self._open = self._filled = 0

    def digest(self) -> bytes:
        """Return the CRC of all bytes taken."""
        return _block_crc(crt.combine_crc32c(self._before, self._open, self._filled))

    def blocks(self) -> bytes:
        """Return the CRCs of the blocks, one after the other."""
        return bytes(self._closed) + (_block_crc(self._open) if self._filled else b"")


def _block_crc(value: int) -> bytes:
    return value.to_bytes(BLOCK_CRC_BYTES, "big")


def block_count(size: int) -> int:
    """Return the number of blocks in `size` bytes."""
    return -(-size // bounds.CHECKED_BLOCK_BYTES)


def whole_blocks(span: ByteRange, size: int) -> ByteRange:
    """Return the span of whole blocks that a span touches; `size`: bytes of the whole."""
    assert 0 <= span.offset <= span.offset + span.length <= size, "a span lies within what is there"
    start = span.offset - span.offset % bounds.CHECKED_BLOCK_BYTES
    end = min(block_count(span.offset + span.length) * bounds.CHECKED_BLOCK_BYTES, size)
    return ByteRange(start, end - start)


def wrong_block(data: bytes, first: int, crcs: bytes) -> int:
    """Return the number of the first damaged block, -1: none.

    Args:
        data: whole blocks, of which the last may be a shorter one at the end; `first`: the number of the first one.
        crcs: of all blocks, as by `BlockCrcs.blocks`.
    """
    view = memoryview(data)
    for number in range(first, first + block_count(len(data))):
        start = (number - first) * bounds.CHECKED_BLOCK_BYTES
        found = _block_crc(crt.crc32c(view[start : start + bounds.CHECKED_BLOCK_BYTES], 0))
        if found != crcs[number * BLOCK_CRC_BYTES : (number + 1) * BLOCK_CRC_BYTES]:
            return number
    return -1


def hash_named(name: str) -> Hash:
    """Return a CRC, Adler-32, or `hashlib`'s hash of this name. Raises: ValueError."""
    return Crc(name) if name in _STEPS else hashlib.new(name, usedforsecurity=False)


def combined(name: str, pieces: Iterable[tuple[str, int]]) -> str:
    """Return the CRC, or Adler-32, of joined pieces.

    Args: `pieces`: of each its value (hex, "" if unknown) and its length in bytes.
    Returns: hex; "" unless the value of each piece is known.
    """
    if name == "adler32":
        return combined_adler32(pieces)
    known = [(value, length) for value, length in pieces]
    if not all(value for value, _ in known):
        return ""
    total = reduce(lambda one, piece: _BOTH[name](one, int(piece[0], 16), piece[1]), known, 0)
    return f"{total:0{2 * _STEPS[name][2]}x}"
