"""Checks the records of a Berkeley DB log file, by their checksums and by their order. Pure.

A record begins with three numbers: offset of the record before, own length, checksum of the rest. The checksum has the
first two mixed in. Records follow without gaps from the first byte of a file. The first one gives the offset of the
last one in the file before, and so the end of that; bytes after it mean nothing.
Source: Berkeley DB 5.3, `src/dbinc/log.h` (`HDR`), `src/log/log_put.c`. Numbers are in the host's byte order.
"""

from __future__ import annotations

import struct
from typing import Final

from chelonia.ahash.store.page_checksums import checksum

HEADER: Final = struct.Struct("=III")


def last_of_file_before(data: bytes) -> int | None:
    """Return the offset of the last record in the file before, from the beginning of a file; None: it does not say."""
    first, wrong = _record(data, 0)
    return None if wrong or not first else HEADER.unpack_from(data)[0]


def walk(data: bytes, at: int, last: int) -> tuple[int, str]:
    """Check the whole records in `data`, which is at offset `at` of a file whose last record begins at `last`.

    Returns: offset of the first unchecked record, and its flaw; empty: none, or it is not whole.
    """
    begin = 0
    while at + begin <= last:
        length, wrong = _record(data, begin)
        if wrong or not length:
            return at + begin, wrong
        if at + begin < last < at + begin + length:
            return at + begin, f"the next file says that the last record begins at {last}"
        begin += length
    return at + begin, ""


def _record(data: bytes, begin: int) -> tuple[int, str]:
    """The length of a record (0: it is not whole here), and its flaw."""
    header = data[begin : begin + HEADER.size]
    if len(header) < HEADER.size:
        return 0, ""
    before, length, summed = HEADER.unpack(header)
    if length <= HEADER.size:
        return 0, "there is no record"
    if begin + length > len(data):
        return 0, ""
    sound = checksum(data[begin + HEADER.size : begin + length]) ^ before ^ length == summed
    return length, "" if sound else "its checksum does not fit its contents"
