"""The database file of a store, read beside the engine that writes it: no lock, no page cache, no handle of its own.

What is read is what the disk has, as far as the system lets us: its cache is told to forget these pages before. A page
that is being written meanwhile may be read half, so a flaw counts only when it stays (`page_scrub.py`).
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from chelonia.ahash.pages import flaw
from chelonia.ahash.store_bdb_environment import PAGE_BYTES, TREE

_UNREADABLE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)


@dataclass(frozen=True, slots=True)
class Look:
    """What was found on some pages: of how many in the file, and what is wrong with which of them."""

    pages: int
    flaws: dict[int, str]


class PageFile:
    """The pages of a store in `directory`."""

    page_bytes = PAGE_BYTES

    def __init__(self, directory: Path) -> None:
        self.path = directory / "db" / TREE

    def look(self, first: int, count: int) -> Look:
        """Check `count` pages from `first` on. Raises: OSError when there is no such file, or not for us."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pages = os.fstat(file).st_size // PAGE_BYTES
            count = max(0, min(count, pages - first))
            os.posix_fadvise(file, first * PAGE_BYTES, count * PAGE_BYTES, os.POSIX_FADV_DONTNEED)
            found = ((number, _flaw_at(file, number)) for number in range(first, first + count))
            return Look(pages, {number: wrong for number, wrong in found if wrong})
        finally:
            os.close(file)


def _flaw_at(file: int, number: int) -> str:
    try:
        page = os.pread(file, PAGE_BYTES, number * PAGE_BYTES)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return f"the disk cannot read it ({error.strerror})"
    return flaw(page, number) if len(page) == PAGE_BYTES else ""  # the file has just been cut
