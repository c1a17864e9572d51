"""Asks the system for the pages of a long scan together, before the engine reads them one after the other.

It decides which leaves of the tree a scan will go through, by the tree's inner pages as the file has them. It never
takes a lock, changes a byte or returns data. It may miss a leaf that a commit has just moved, or ask for it in vain.
Source: Berkeley DB 5.3, `src/dbinc/db_page.h` (`PAGE`, `BINTERNAL`). Numbers are in the host's byte order.
"""

from __future__ import annotations

import os
import resource
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

FIRST_ROWS: Final = 24
"""Rows after which a scan has reached another leaf, and knows whether it waited for the disk."""
LEAVES_MAX: Final = 512
"""Leaves asked for at once: twice as many as a page of a listing goes through."""
ROOT: Final = 1
"""The page where the one tree of a file begins, however high it grows."""
LEVELS_MAX: Final = 16
"""More levels than any tree has."""
_HEAD: Final = struct.Struct("=20xH2xBB")
"""Of a page: entries, level (a leaf's is 1), type."""
_ITEMS_AT: Final = 32
_ITEM: Final = struct.Struct("=HBxI4x")
"""Of an inner page: length of the key that follows, type, the page below."""
_INNER, _KEY, _LEAF_LEVEL = 3, 1, 1


def blocks_read() -> int:
    """Return the blocks that the disk has read for this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def read_ahead(tree: Any, start: bytes, end: bytes, rows: int) -> None:
    """Ask for the leaves of at most `rows` rows with start <= key < end. Raises: DBError, as any use of the tree."""
    file, size = tree.fd(), tree.get_pagesize()
    with suppress(OSError, struct.error):  # a page that is being written just now: then ask for nothing
        for first, count in _runs(sorted(_leaves_of(file, size, start, end, rows))):
            os.posix_fadvise(file, first * size, count * size, os.POSIX_FADV_WILLNEED)


def _leaves_of(file: int, size: int, start: bytes, end: bytes, rows: int) -> list[int]:

    def read(number: int) -> bytes:
        return os.pread(file, size, number * size)

    leaves = below(read, ROOT, start, end)
    found = list(islice(leaves, 1))
    if found:  # the engine reads it next; from its entries follows how many more leaves there are
        entries, _, _ = _HEAD.unpack_from(read(found[0]))
        found += islice(leaves, min(LEAVES_MAX, 2 * rows // max(entries, 2) + 1))
    return found


def below(
    read: Callable[[int], bytes], number: int, start: bytes, end: bytes, above: int = LEVELS_MAX
) -> Iterator[int]:
    """Yield the leaves below page `number` that may hold keys from `start` to `end`, in order. Raises: struct.error.

    Args: `above`: the level of the page that named this one.
    """
    page = read(number)
    entries, level, kind = _HEAD.unpack_from(page)
    if kind != _INNER or not _LEAF_LEVEL < level < above:
        return
    places = struct.unpack_from(f"={entries}H", page, _ITEMS_AT)

    def key(at: int) -> bytes:
        length, type_, _ = _ITEM.unpack_from(page, at)
        return page[at + _ITEM.size : at + _ITEM.size + length] if type_ == _KEY else b""

    first = max(bisect_right(places, start, min(1, entries), key=key) - 1, 0)  # the first key stands for all before it
    after = bisect_left(places, end, first + 1, key=key)
    for at in places[first:after]:
        child = _ITEM.unpack_from(page, at)[2]
        if level == _LEAF_LEVEL + 1:
            yield child
        else:
            yield from below(read, child, start, end, level)


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of each run of consecutive numbers."""
    first = count = 0
    for number in numbers:
        if count and number == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count
