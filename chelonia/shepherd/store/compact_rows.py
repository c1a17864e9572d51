"""A replica as one short row of bytes, as the index keeps it; notes save a start from reading its facts again.

A row is a condition, which changes, and facts, which never do. A million objects with their strings take a gigabyte,
and seconds to make. A million rows take a fifth of it, and are read from a file as they are. Pure.

- Condition, little endian: flags (1: bit 0 alive, 1 committed, 2 listed), keep_until_ms, unknown_since_ms,
  checked_ms (8 each).
- Facts: size, created_ms (8 each), then blob, guid, SHA-256, MD5, Adler-32, each a length (2) and a short form.
- Short form: `u` and the 16 bytes of a UUID, `x` and the bytes of even lower-case hex digits, or `t` and UTF-8.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from chelonia.core.cluster.replicas import Checksums, ReplicaState
from chelonia.core.ids import BlobId, Guid, Ms, ReferenceId, is_uuid
from chelonia.shepherd.store.lifecycle import KeptReplica

_CONDITION: Final = struct.Struct("<Bqqq")
_NUMBERS: Final = struct.Struct("<qq")
_LENGTH: Final = struct.Struct("<H")
_FRONT: Final = struct.Struct(f"<{_CONDITION.size}xq")
_ALIVE, _COMMITTED, _LISTED = 1, 2, 4
OPEN: Final = b"+"
"""Note of a replica whose state in the namespace is not known: a start reports it again."""
DAMAGED: Final = b"?"
"""Note of a replica that was found damaged: as `OPEN`, and not alive before it is checked."""
_BLOB_AT: Final = _CONDITION.size + _NUMBERS.size + _LENGTH.size
_UUID_SHORT: Final = _LENGTH.pack(17)
_SHORT_SPAN: Final = slice(_BLOB_AT - _LENGTH.size, _BLOB_AT)
_UUID_SPAN: Final = slice(_BLOB_AT, _BLOB_AT + 17)
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})+")


def pack(held: KeptReplica) -> bytes:
    """Encode a replica as a row."""
    flags = _ALIVE * held.alive | _COMMITTED * held.committed | _LISTED * held.listed
    texts = (held.blob, held.guid, held.checksums.sha256, held.checksums.md5, held.checksums.adler32)
    parts = [
        _CONDITION.pack(flags, held.keep_until_ms, held.unknown_since_ms, held.checked_ms),
        _NUMBERS.pack(held.size, held.created_ms),
    ]
    for short in map(shorten, texts):
        parts += _LENGTH.pack(len(short)), short
    return b"".join(parts)


def unpack(reference: ReferenceId, row: bytes) -> KeptReplica:
    """Decode the replica of a row. Raises: ValueError, struct.error, IndexError when it is none."""
    flags, keep_until_ms, unknown_since_ms, checked_ms = _CONDITION.unpack_from(row)
    size, created_ms = _NUMBERS.unpack_from(row, _CONDITION.size)
    blob, guid, sha256, md5, adler32 = map(_lengthen, _shorts(row))
    return KeptReplica(
        reference, BlobId(blob), Guid(guid), size, Checksums(sha256, md5, adler32), Ms(created_ms),
        ReplicaState.ALIVE if flags & _ALIVE else ReplicaState.INVALID, bool(flags & _COMMITTED),
        keep_until_ms, unknown_since_ms, Ms(checked_ms), bool(flags & _LISTED),
    )  # fmt: skip


def size_of(row: bytes) -> int:
    """Return the size in a row, bytes."""
    (size,) = _FRONT.unpack_from(row)
    return int(size)


def blob_of(row: bytes) -> bytes:
    """Return the blob in a row, in its short form."""
    return row[_BLOB_AT : _BLOB_AT + row[_BLOB_AT - 2] + (row[_BLOB_AT - 1] << 8)]


def blob_id_of(row: bytes) -> BlobId:
    """Return the blob in a row."""
    return BlobId(_lengthen(blob_of(row)))


def sizes_together(several: Iterable[bytes]) -> int:
    """Return the sum of the sizes in these rows, bytes."""
    return sum(chain.from_iterable(map(_FRONT.unpack_from, several)))


def blobs_of(several: Iterable[bytes]) -> list[bytes]:
    """Return the blob in each of these rows, in its short form and their order."""
    # A start does this for a million rows, and nearly all blobs are UUIDs of one length.
    return [row[_UUID_SPAN] if row[_SHORT_SPAN] == _UUID_SHORT else blob_of(row) for row in several]


def facts_of(row: bytes) -> bytes:
    """Return the part of a row that never changes; b"" when the record was unreadable, or there is no row."""
    return row[_CONDITION.size :] if row and len(blob_of(row)) > 1 else b""


def note_of(row: bytes) -> bytes:
    """Return the note of a replica with this row: its facts while it is alive and listed, else `OPEN` or `DAMAGED`."""
    if not row[0] & _ALIVE:
        return DAMAGED
    return (facts_of(row) if row[0] & _LISTED else b"") or OPEN


def at_rest(keep_until_ms: int) -> bytes:
    """Return the condition of a whole, committed, listed replica at a start; noted facts behind it make its row."""
    return _CONDITION.pack(_ALIVE | _COMMITTED | _LISTED, keep_until_ms, -1, 0)


def uncommitted(row: bytes) -> bytes:
    """Return the row without its committed flag."""
    return bytes((row[0] & ~_COMMITTED,)) + row[1:]


def shorten(text: str) -> bytes:
    """Return the short form of an id or a checksum."""
    if is_uuid(text):
        return b"u" + bytes.fromhex(text.replace("-", ""))
    return b"x" + bytes.fromhex(text) if _HEX.fullmatch(text) else b"t" + text.encode()


def _lengthen(short: bytes) -> str:
    if short[:1] == b"t":
        return short[1:].decode()
    digits = short[1:].hex()
    if short[:1] == b"x":
        return digits
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _shorts(row: bytes) -> Iterator[bytes]:
    at = _CONDITION.size + _NUMBERS.size
    for _ in range(5):
        (length,) = _LENGTH.unpack_from(row, at)
        at += _LENGTH.size + length
        yield row[at - length : at]
