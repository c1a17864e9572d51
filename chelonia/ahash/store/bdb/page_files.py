"""The files of a store, read beside the engine that writes them: no lock, no page cache, no handle of its own.

It reads from the disk as far as the system allows: before each read it has the system's cache drop those bytes. It may
read a page half written, so a flaw counts only when it stays (`page_scrub.py`). It reads all log files but the newest,
which the engine still writes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from chelonia.ahash.store.bdb.environment import PAGE_BYTES, TREE, UNREADABLE
from chelonia.ahash.store.log_records import last_of_file_before, walk
from chelonia.ahash.store.page_checksums import DESCRIPTION_BYTES, flaw, page_size
from chelonia.ahash.store.page_scrub import LogLook, PageCheck

LOG_STEP_BYTES: Final = 64 * 1024
"""Bytes of a log file read and checked together, unless a record is longer."""
FIRST_RECORD_BYTES: Final = 512
"""Enough for the first record of a log file, which describes it."""


class PageFile:
    """The pages of a store in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.page_bytes = PAGE_BYTES
        self.path = directory / "db" / TREE

    def look(self, first: int, count: int) -> PageCheck:
        """Check `count` pages from `first` on. Raises: OSError when there is no such file, or no right to read it."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = self.page_bytes = _page_size(file) or self.page_bytes
            pages = os.fstat(file).st_size // size
            count = max(0, min(count, pages - first))
            os.posix_fadvise(file, first * size, count * size, os.POSIX_FADV_DONTNEED)
            found = ((number, _flaw_at(file, number, size)) for number in range(first, first + count))
            return PageCheck(pages, {number: wrong for number, wrong in found if wrong})
        finally:
            os.close(file)


class LogFiles:
    """The log files of a store in `directory`."""

    step_bytes = LOG_STEP_BYTES

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "db"

    def names(self) -> tuple[str, ...]:
        """Return the names of the log files, oldest first. Raises: OSError."""
        return tuple(sorted(path.name for path in self._directory.glob("log.*")))

    def look(self, name: str, at: int) -> LogLook:
        """Check some records of a log file from `at` on; none if it is gone or may still be written.

        Raises: OSError when there is no right to read it.
        """
        try:
            return self._look(name, at)
        except FileNotFoundError:
            return LogLook(None, "")
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return LogLook(None, f"the disk cannot read it ({error.strerror})")

    def _look(self, name: str, at: int) -> LogLook:
        last = self._last_record(name)
        if last is None:
            return LogLook(None, "")
        size = LOG_STEP_BYTES
        while True:
            data = _read(self._directory / name, at, size)
            then, wrong = walk(data, at, last)
            if wrong or then > last:
                return LogLook(None, f"at {then} {wrong}" if wrong else "")
            if then > at:
                return LogLook(then, "")
            if len(data) < size:
                return LogLook(None, f"at {at} it ends in the middle of a record")
            size *= 2

    def _last_record(self, name: str) -> int | None:
        """Offset of the last record of a file; None: it may still be written."""
        later = [each for each in self.names() if each > name]
        if not later or name not in self.names():
            return None
        return last_of_file_before(_read(self._directory / later[0], 0, FIRST_RECORD_BYTES))


def _read(path: Path, at: int, size: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(file, at, size, os.POSIX_FADV_DONTNEED)
        return os.pread(file, size, at)
    finally:
        os.close(file)


def _page_size(file: int) -> int:
    """The page size in page 0; 0: it has none, or cannot be read, which `_flaw_at` reports."""
    try:
        return page_size(os.pread(file, DESCRIPTION_BYTES, 0))
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return 0


def _flaw_at(file: int, number: int, size: int) -> str:
    try:
        page = os.pread(file, size, number * size)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return f"the disk cannot read it ({error.strerror})"
    return flaw(page, number) if len(page) == size else ""  # the file has just been cut
