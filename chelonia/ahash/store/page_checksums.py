"""Whether a page of a Berkeley DB file is as it was written: by its checksum, and by the number that it bears. Pure.

A page is what is written at once; page 0 describes the file. An empty page was never written, which is no flaw: the
file grows before its pages come. So a page that was zeroed passes here: see `bdb/environment.py`.
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
"""In page 0: how large all pages are."""
CHECKSUM_AT: Final = 28
DESCRIPTION_BYTES: Final = 512
"""So much of page 0 has a checksum."""
DESCRIPTION_CHECKSUM_AT: Final = 492
WORD: Final = 4
PIECE_BYTES: Final = 8192
"""Of what has a checksum, so much is multiplied at once."""


def page_size(first: bytes) -> int:
    """How large pages are, by the beginning of page 0; 0: that does not tell."""
    size = _number(first, SIZE_AT)
    return size if size in (1 << shift for shift in range(9, 17)) else 0


def flaw(page: bytes, number: int) -> str:
    """What is wrong with the page at place `number` of its file; empty: nothing."""
    if number and page.count(0) == len(page):
        return ""
    at, end = (CHECKSUM_AT, len(page)) if number else (DESCRIPTION_CHECKSUM_AT, DESCRIPTION_BYTES)
    content = page[:at] + bytes(WORD) + page[at + WORD : end]
    if checksum(content) != _number(page, at):
        return "its checksum does not fit its contents"
    bears = _number(page, NUMBER_AT)
    return "" if bears == number else f"it is page {bears}, written to the wrong place"


def checksum(content: bytes) -> int:
    """Berkeley DB's checksum: the bytes as the digits of a number to the base 33, modulo 2 to the 32."""
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
