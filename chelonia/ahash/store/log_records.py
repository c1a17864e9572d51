"""Whether the records of a Berkeley DB log file are as they were written: by their checksums, and by how they follow on
each other. Pure.

A record begins with three numbers: where the record before begins, how long it is, and the checksum of the rest, which
has the first two mixed in. Records follow without gaps from the first byte of a file on. The first one of a file says
where the last one of the file before begins, and so where that file ends: what stands behind it means nothing.
Source: Berkeley DB 5.3, `src/dbinc/log.h` (`HDR`), `src/log/log_put.c`; numbers as `ahash/pages.py` has them.
"""

from __future__ import annotations

import struct
from typing import Final

from chelonia.ahash.store.page_checksums import checksum

HEADER: Final = struct.Struct("=III")


def last_of_file_before(data: bytes) -> int | None:
    """Where the last record of the file before begins, by the beginning of a file; None: it does not say."""
    first, wrong = _record(data, 0)
    return None if wrong or not first else HEADER.unpack_from(data)[0]


def walk(data: bytes, at: int, last: int) -> tuple[int, str]:
    """Check the records that are whole in `data`, which stands at `at` in a file whose last record begins at `last`.

    Returns: where the first one that was not checked begins, and what is wrong with it; empty: nothing, or not whole.
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
    """How long a record is (0: it is not whole here), and what is wrong with it."""
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
