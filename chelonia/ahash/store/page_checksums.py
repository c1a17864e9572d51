"""Checks a page of a Berkeley DB file, by its checksum and by the number in it. Pure.

The library writes a file page by page; page 0 describes the file. An empty page passes, as the file grows before its
pages are written; so a page that was zeroed passes too: see `bdb/environment.py`.
Source: Berkeley DB 5.3, `src/dbinc/db_page.h` (`PG_CHKSUM`, `DBMETA`), `src/hash/hash_func.c` (`__ham_func4`). Numbers
are in the byte order of the host that writes them.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import Final

NUMBER_AT: Final = 8
SIZE_AT: Final = 20
"""Place in page 0 of the size of all pages."""
CHECKSUM_AT: Final = 28
DESCRIPTION_BYTES: Final = 512
"""Bytes of page 0 that its checksum covers."""
DESCRIPTION_CHECKSUM_AT: Final = 492
WORD: Final = 4
PIECE_BYTES: Final = 8192
"""Bytes that `checksum` multiplies at once."""


def page_size(first: bytes) -> int:
    """Return the page size stated in the beginning of page 0; 0: it states none."""
    size = _number(first, SIZE_AT)
    return size if size in (1 << shift for shift in range(9, 17)) else 0


def flaw(page: bytes, number: int) -> str:
    """Return the flaw of the page at place `number` of its file; empty: none."""
    if number and page.count(0) == len(page):
        return ""
    at, end = (CHECKSUM_AT, len(page)) if number else (DESCRIPTION_CHECKSUM_AT, DESCRIPTION_BYTES)
    content = page[:at] + bytes(WORD) + page[at + WORD : end]
    if checksum(content) != _number(page, at):
        return "its checksum does not fit its contents"
    bears = _number(page, NUMBER_AT)
    return "" if bears == number else f"it is page {bears}, written to the wrong place"


def checksum(content: bytes) -> int:
    """Return Berkeley DB's checksum: the bytes as digits of a number to the base 33, modulo 2 to the 32."""
    total = 0
    for start in range(0, len(content), PIECE_BYTES):
        piece = content[start : start + PIECE_BYTES]
        total = total * pow(33, len(piece), 1 << 32) + sum(map(operator.mul, reversed(piece), _powers()))
    return total & 0xFFFF_FFFF


@functools.cache
def _powers() -> tuple[int, ...]:
    powers = [1]
    for _ in range(1, PIECE_BYTES):
        powers.append(powers[-1] * 33 & 0xFFFF_FFFF)
    return tuple(powers)


def _number(page: bytes, at: int) -> int:
    return int.from_bytes(page[at : at + WORD], sys.byteorder)
