"""The layout of small replicas in a segment. Pure. Document: docs/formats/replica-store.md.

A segment begins with a block of its own. Entries follow, each in blocks of its own: header, record, bytes, zeros up to
the next block. So an entry is found behind a damaged one, adding one overwrites no other, and erasing one gives its
blocks back. Headers carry the segment's key: bytes that a user makes are never taken for a header.

- Segment: `CHLS`, version (1), 3 zeros, key (8), BLAKE2b-64 of the preceding bytes.
- Header, first part: `CHLE`, version (1), 3 zeros, key (8), reference (16).
- Header, lengths: bytes of the record, bytes of the data, CRC-32 of both (4 each, little endian).
- Header, end: BLAKE2b-128 of the preceding bytes (16), state (1), 3 zeros. The state alone changes, in place.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId

BLOCK_BYTES: Final = 4096
"""Unit in which file systems take space back, and which a disk writes whole or not at all."""
KEY_BYTES: Final = 8
VERSION: Final = 1
UNCOMMITTED: Final = 0x0F
COMMITTED: Final = 0x33
"""States, far apart: a flipped bit makes neither of them the other. Any other value counts as committed."""
_SEGMENT: Final = struct.Struct(f"<4sB3x{KEY_BYTES}s")
_HEADER: Final = struct.Struct(f"<4sB3x{KEY_BYTES}s16sIII")
_SEGMENT_DIGEST: Final = 8
_DIGEST: Final = 16
STATE_AT: Final = _HEADER.size + _DIGEST
HEADER_BYTES: Final = STATE_AT + 4
_RECORD_BITS, _DATA_BITS, _BLOCK_BITS = 17, 17, 20
RECORD_BYTES_MAX: Final = (1 << _RECORD_BITS) - 1
DATA_BYTES_MAX: Final = (1 << _DATA_BITS) - 1


class Place(NamedTuple):
    """The place of an entry: its segment, its first block, and the bytes of its record and data."""

    segment: int
    block: int
    record_bytes: int
    data_bytes: int
    committed: bool

    @property
    def at(self) -> int:
        """Offset of the entry in the segment, bytes."""
        return self.block * BLOCK_BYTES

    @property
    def data_at(self) -> int:
        """Offset of its data in the segment, bytes."""
        return self.at + HEADER_BYTES + self.record_bytes

    @property
    def size(self) -> int:
        """Bytes of header, record and data."""
        return HEADER_BYTES + self.record_bytes + self.data_bytes

    @property
    def blocks(self) -> int:
        """Blocks that it takes."""
        return -(-self.size // BLOCK_BYTES)

    @property
    def end(self) -> int:
        """Offset at which the next entry may begin, bytes."""
        return (self.block + self.blocks) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The content of a header."""

    reference: ReferenceId
    record_bytes: int
    data_bytes: int
    crc: int
    committed: bool

    def place(self, segment: int, block: int) -> Place:
        """Return the place of its entry, given the header's."""
        return Place(segment, block, self.record_bytes, self.data_bytes, self.committed)


def pack(place: Place) -> int:
    """Pack a place into one number: there may be a million of them."""
    front = place.segment << _BLOCK_BITS | place.block
    return ((front << _RECORD_BITS | place.record_bytes) << _DATA_BITS | place.data_bytes) << 1 | place.committed


def unpack(packed: int) -> Place:
    """Return the place that `pack` packed."""
    rest, committed = packed >> 1, bool(packed & 1)
    rest, data_bytes = rest >> _DATA_BITS, rest & DATA_BYTES_MAX
    rest, record_bytes = rest >> _RECORD_BITS, rest & RECORD_BYTES_MAX
    return Place(rest >> _BLOCK_BITS, rest & ((1 << _BLOCK_BITS) - 1), record_bytes, data_bytes, committed)


def encode_segment(key: bytes) -> bytes:
    """Return the first block of a segment."""
    head = _SEGMENT.pack(b"CHLS", VERSION, key)
    return (head + _digest(head, _SEGMENT_DIGEST)).ljust(BLOCK_BYTES, b"\0")


def decode_segment(block: bytes) -> bytes | None:
    """Return the key of a segment, None when its first block is damaged. Raises: NOT_SUPPORTED for a newer version."""
    head = block[: _SEGMENT.size]
    if len(head) < _SEGMENT.size or block[_SEGMENT.size :][:_SEGMENT_DIGEST] != _digest(head, _SEGMENT_DIGEST):
        return None
    magic, version, key = _SEGMENT.unpack(head)
    if magic != b"CHLS":
        return None
    _check_version(version)
    return bytes(key)


def header_of(reference: ReferenceId, record: bytes, data: bytes, *, committed: bool = False) -> EntryHeader:
    """Return the header of an entry of these bytes."""
    assert len(record) <= RECORD_BYTES_MAX, "a record has some hundreds of bytes"
    assert len(data) <= DATA_BYTES_MAX, "what is larger is a file"
    return EntryHeader(reference, len(record), len(data), zlib.crc32(data, zlib.crc32(record)), committed)


def encode(key: bytes, header: EntryHeader, body: bytes) -> bytes:
    """Return an entry of record and data, padded to the next block."""
    assert len(body) == header.record_bytes + header.data_bytes, "the header is of these bytes"
    entry = encode_header(key, header) + body
    return entry + bytes(-len(entry) % BLOCK_BYTES)


def encode_header(key: bytes, header: EntryHeader) -> bytes:
    """Return the header of an entry as bytes."""
    lengths = (header.record_bytes, header.data_bytes, header.crc)
    head = _HEADER.pack(b"CHLE", VERSION, key, bytes.fromhex(header.reference.replace("-", "")), *lengths)
    return head + _digest(head, _DIGEST) + bytes((COMMITTED if header.committed else UNCOMMITTED, 0, 0, 0))


def decode_header(block: bytes, key: bytes | None) -> EntryHeader | None:
    """Decode the header at the front of a block, None when it is no header of this segment.

    Args:
        key: the segment's; None when it is not known: then a header with any key counts.

    Raises: NOT_SUPPORTED for a newer version.
    """
    if block[:4] != b"CHLE" or len(block) < HEADER_BYTES:
        return None
    head = block[: _HEADER.size]
    if block[_HEADER.size : STATE_AT] != _digest(head, _DIGEST):
        return None
    _, version, own, reference, record_bytes, data_bytes, crc = _HEADER.unpack(head)
    if key is not None and own != key:
        return None
    _check_version(version)
    if record_bytes > RECORD_BYTES_MAX or data_bytes > DATA_BYTES_MAX:
        return None
    digits = reference.hex()
    name = ReferenceId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")
    return EntryHeader(name, record_bytes, data_bytes, crc, block[STATE_AT] != UNCOMMITTED)


def key_of(block: bytes) -> bytes:
    """Return the key that a header carries."""
    return block[8 : 8 + KEY_BYTES]


def is_whole(header: EntryHeader, body: bytes) -> bool:
    """Whether `body`, record and data, is what the header was written for."""
    return len(body) == header.record_bytes + header.data_bytes and zlib.crc32(body) == header.crc


def _digest(head: bytes, size: int) -> bytes:
    return hashlib.blake2b(head, digest_size=size).digest()


def _check_version(version: int) -> None:
    if version != VERSION:
        cause = f"written as version {version}, this software reads {VERSION}: upgrade it"
        raise CheloniaError(Kind.NOT_SUPPORTED, "", "segment", cause)
