"""One segment as an open file: entries added and wiped, and syncs that its writers share. Calls block.

A sync that fails may lose data, even if a later one succeeds. So after a failed sync a file vouches for no addition.
Wiped blocks are given back to the file system, or filled with zeros where it takes none back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chelonia.durable_files import sync_path
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.segment_format import BLOCK_BYTES, EntryHeader

_KEEP_SIZE_PUNCH_HOLE: Final = 1 | 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NO_HOLES: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
UNREADABLE: Final = (errno.EIO, errno.EUCLEAN, errno.ENODATA)
"""Errors that mean some bytes of a file are rotten."""


class SegmentFile:
    """An open segment, closed when the last reference goes: do not keep `fd` alone. All calls raise OSError."""

    def __init__(self, path: Path, *, make: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if make else 0)
        self.fd = -1
        self.fd = os.open(path, flags, 0o600)
        self.path = path
        self.broken = False
        """Whether a sync of it has failed."""
        self.unreadable = False
        """Whether `look` has met bytes that cannot be read."""
        self._counting, self._syncing = threading.Lock(), threading.Lock()
        self._changes = self._safe = 0

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def key(self) -> bytes | None:
        """Return the segment's key, that of most headers when its first block is damaged, None when there are none.
        Raises: NOT_SUPPORTED for a newer version."""
        key = layout.decode_segment(self.look(BLOCK_BYTES, 0))
        if key is None:
            blocks = [block for block, header in self.walk(None) if header is not None]
            keys = Counter(layout.key_of(self.look(layout.HEADER_BYTES, block * BLOCK_BYTES)) for block in blocks)
            key = next((each for each, _ in keys.most_common(1)), None)
        return key

    def is_sound(self) -> bool:
        """Whether its first block is as it was written."""
        return layout.decode_segment(self.look(BLOCK_BYTES, 0)) is not None

    def read(self, length: int, at: int) -> bytes:
        """Read `length` bytes at `at`, fewer at the end of the file."""
        data = os.pread(self.fd, length, at)
        while len(data) < length and (more := os.pread(self.fd, length - len(data), at + len(data))):
            data += more
        return data

    def in_memory(self, length: int, at: int) -> bytes | None:
        """As `read`, if all bytes are in the page cache; None when they are not, or the file system cannot say."""
        data = bytearray(length)
        try:
            count = os.preadv(self.fd, [data], at, os.RWF_NOWAIT)
        except OSError:
            return None
        return bytes(data) if count == length else None

    def look(self, length: int, at: int) -> bytes:
        """As `read`, but b"" where some bytes cannot be read."""
        try:
            return self.read(length, at)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            self.unreadable = True
            return b""

    def size(self) -> int:
        """Return its length, bytes."""
        return os.fstat(self.fd).st_size

    def is_named(self) -> bool:
        """Whether its name still leads to this file."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        own = os.fstat(self.fd)
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def add(self, data: bytes, at: int) -> int:
        """Write at the end; returns the change to `sync`. When it fails nothing is added."""
        try:
            _write_at(self.fd, data, at)
        except OSError:
            os.ftruncate(self.fd, at)
            raise
        return self._changed()

    def wipe(self, at: int, end: int) -> int:
        """Leave nothing of the bytes from `at` to `end`; returns the change to `sync`."""
        end = min(end, self.size())
        if at < end and not _punch_hole(self.fd, at, end - at):
            _write_at(self.fd, bytes(end - at), at)
        return self._changed()

    def sync(self, change: int = 0, *, added: bool) -> None:
        """Wait until a change (0: all until now) is on stable storage; concurrent callers share a sync.

        Args:
            added: the change is an addition, which fails once any sync of the file has failed; others may try again.
        """
        with self._syncing:
            if added and self.broken:
                raise OSError(errno.EIO, "an earlier sync failed", str(self.path))
            covers = self._changes
            if change and self._safe >= change:
                return
            try:
                os.fdatasync(self.fd)
            except OSError:
                self.broken = True
                raise
            self._safe = covers

    def walk(self, key: bytes | None) -> Iterator[tuple[int, EntryHeader | None]]:
        """Yield (block, header) of every entry in order; the header is None of a block that is damaged."""
        at, size = BLOCK_BYTES, self.size()
        while at < size:
            front = self.look(layout.HEADER_BYTES, at)
            if front and not any(front):
                at = self._next_data(at)
                continue
            header = layout.decode_header(front, key)
            yield at // BLOCK_BYTES, header
            at = header.place(0, at // BLOCK_BYTES).end if header else at + BLOCK_BYTES

    def _next_data(self, at: int) -> int:
        try:
            found = os.lseek(self.fd, at, os.SEEK_DATA) // BLOCK_BYTES * BLOCK_BYTES
        except OSError as error:
            found = self.size() if error.errno == errno.ENXIO else at
        return max(found, at + BLOCK_BYTES)

    def _changed(self) -> int:
        with self._counting:
            self._changes += 1
            return self._changes


def make_segment(path: Path, key: bytes) -> SegmentFile:
    """Make a new segment, durable with its name. Raises: OSError."""
    file = SegmentFile(path, make=True)
    try:
        _write_at(file.fd, layout.encode_segment(key), 0)
        os.fsync(file.fd)
        sync_path(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return file


def _write_at(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _punch_hole(fd: int, at: int, length: int) -> bool:
    """Give blocks back to the file system; returns whether it took them. Raises: OSError."""
    fallocate = getattr(_LIBC, "fallocate64", None)
    if fallocate is None:
        return False
    if fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(length)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_HOLES:
        return False
    raise OSError(code, os.strerror(code))
