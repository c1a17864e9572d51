"""The local copy of a file's bytes and its state: a sparse file in the cache directory, or a few bytes in memory.

One copy serves all programs that have the file open, so they see each other's writes at once. Copies that are not open
and have nothing uncommitted are dropped, the longest unused first.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from chelonia.core import bounds
from chelonia.core.ids import BlobId, Guid
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import LEAVE, Looked, Setting
from chelonia.core.values import replace
from chelonia.durable_files import sync_path, write_file
from chelonia_fuse.inodes import Inode
from chelonia_fuse.staging import Range, Ranges, Staged

FILES_OPEN_MAX: Final = 512
"""Copies whose file is kept open: half of a process's default limit."""
HELD_BYTES_MAX: Final = 16 * 1024
"""Bytes of a copy without a file: making and removing one costs a fifth of the mount's work for a new small file. For
`FILES_OPEN_MAX` copies that is 8 MiB."""

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Most bytes fetched ahead of a sequential reader; otherwise four times the bytes it has read in one go."""
BEHIND_BYTES: Final = 1024 * 1024
"""Bytes kept behind a reader when room is needed: the kernel's own reads ahead overtake one another."""
EARLIER_MAX: Final = 16
"""Earlier states kept besides the first: of the tries of an outage its first and last ones may have applied."""
MOVED: Final = ".moved"
"""Suffix of every other file of a copy whose bytes are moved while a record promises them."""
SHED_PARTS: Final = 4
"""Dropping bytes pays if they are at least a quarter of those that stay, which are written anew."""
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class SentState:
    """An earlier state of a copy, sent as `commit`: it is not known whether that has applied. `staged`: the copy's
    state now if it has. `bare`: a size was sent, without bytes."""

    commit: str
    staged: Staged
    bare: bool = False


@dataclass(slots=True, eq=False)
class Fetch:
    """Bytes on their way here, in order."""

    start: int
    end: int
    task: asyncio.Task[None] = field(init=False)
    _waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    async def reached(self, end: int) -> None:
        """Return once its bytes before `end` are here, or it has ended, well or not."""
        self._waiting.append((end, asyncio.get_running_loop().create_future()))
        await self._waiting[-1][1]

    def came(self, at: int) -> None:
        """Note that its bytes before `at` are here."""
        for end, waiter in self._waiting:
            if end <= at and not waiter.done():
                waiter.set_result(None)
        self._waiting = [each for each in self._waiting if each[0] > at]


@dataclass(slots=True, eq=False)
class CachedCopy:
    """The local copy of a file. `lock`: held while its staged bytes are committed or changed.

    Args:
        modified_ns: when it was last written here, or the time that a program set; None: neither.
        written_ns: when it was last written here.
        setting: mode and owner that a program set since it was written; committed with the bytes.
        source: the look by which to read the base, made at `source_ms`.
        queued: its change is in the journal, as it is now (`kept`) or was before; `place`: its place then.
        commit: the etag chosen for its bytes, "" for none yet; another one once they were sent and changed.
        sent: whether they may have been sent as that; `tried`: blobs they were sent as.
        earlier: states before the last change that were sent, the first and the last `EARLIER_MAX`.
        due_s: monotonic time of the next try of a refused commit; 0: it was not refused.
        held: the bytes while they are few and have no file; None: they are in the file.
        saving: done once it is known whether a commit under way has applied; None: there is none.
        read_at: offset of the last read.
        pinned: all bytes must stay here: its last name is about to go, or has gone.
        left: the file that had the bytes before, which a record may still promise; None: there is none.
        named: the name of its file that survives a power cut; "": none is known to.
    """

    path: Path
    staged: Staged
    modified_ns: int | None = None
    written_ns: int = 0
    setting: Setting = LEAVE
    source: Looked | None = None
    source_ms: int = 0
    queued: bool = False
    kept: bool = False
    commit: str = ""
    sent: bool = False
    tried: list[BlobId] = field(default_factory=list)
    earlier: list[SentState] = field(default_factory=list)
    place: LogicalName | None = None
    due_s: float = 0.0
    saving: asyncio.Future[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    fetching: list[Fetch] = field(default_factory=list)
    fd: int = -1
    held: bytearray | None = None
    read_at: int = 0
    pinned: bool = False
    left: Path | None = None
    named: str = ""

    @property
    def changed(self) -> bool:
        """Whether a commit is due. It is, too, where what was sent is undone here: the cluster may have it. And where
        what the journal has is undone: the commit carries the attributes."""
        return self.staged.changed or bool(self.earlier) or (self.queued and self.modified_ns is not None)

    @property
    def owned(self) -> bool:
        """Whether the cluster does not have all its bytes as they are, or a task works on them."""
        return self.changed or self.queued or self.lock.locked()

    @property
    def busy(self) -> bool:
        """Whether it must not be dropped."""
        return self.owned or bool(self.fetching)

    @property
    def is_gone(self) -> bool:
        """Whether somebody has removed its file, as cleaners of `/var/tmp` do."""
        return self.held is None and self.fd < 0 and not self.path.exists()

    def file(self) -> int:
        """Return the descriptor of its file, which has the bytes. Raises: OSError."""
        if self.fd < 0:
            made = os.O_CREAT if self.held is not None or not self.staged.valid else 0  # else zeros would be its bytes
            try:
                self.fd = os.open(self.path, os.O_RDWR | made | os.O_CLOEXEC, 0o600)
            except FileNotFoundError as error:
                raise OSError(errno.EIO, "somebody has removed it", str(self.path)) from error
        if self.held is not None:
            os.ftruncate(self.fd, 0)  # an earlier try may have left more there
            _put_all(self.fd, self.held)
            self.held = None
        return self.fd

    def _bytes(self, offset: int, size: int) -> bytes:
        if self.held is not None:
            return bytes(self.held[offset : offset + size])
        return os.pread(self.file(), size, offset)

    def _put(self, offset: int, data: bytes | memoryview) -> int:
        end = offset + len(data)
        if self.held is None or end > HELD_BYTES_MAX:
            return os.pwrite(self.file(), data, offset)
        self.held.extend(bytes(max(0, offset - len(self.held))))
        self.held[offset:end] = data
        return len(data)

    def cut(self, size: int) -> None:
        """Drop the bytes from `size` on out of its file, which may be shorter: a sparse one may be too long for it."""
        if self.held is not None:
            del self.held[size:]
        elif os.fstat(self.file()).st_size > size:
            os.ftruncate(self.file(), size)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes that are here, with zeros beyond the end of its file, up to the staged size."""
        size = max(0, min(size, self.staged.size - offset))
        data = self._bytes(offset, size) if size else b""
        return data if len(data) == size else data + bytes(size - len(data))

    def store(self, offset: int, data: bytes | memoryview) -> None:
        while data:
            done = self._put(offset, data)
            data, offset = data[done:], offset + done

    def write(self, offset: int, data: bytes | memoryview, *, append: bool) -> int:
        """Change bytes. Returns: how many; fewer where the disk is full. Raises: OSError if it takes none."""
        self.modified_ns = self._changed()
        done = self._put(offset, data)
        for staged in self._states():
            staged.wrote(offset, offset + done, append=append)
        return done

    def resize(self, size: int, cutting: Callable[[], None] | None = None) -> None:
        """Truncate, or lengthen by zeros. `cutting` is called before bytes go."""
        self.modified_ns = self._changed()
        is_cut = size < self.staged.size
        for staged in self._states():
            staged.resize(size)
        if is_cut:
            if cutting is not None:
                cutting()
            self.cut(size)

    def _states(self) -> Iterator[Staged]:
        yield self.staged
        yield from (each.staged for each in self.earlier)

    def set(self, setting: Setting) -> None:
        """Keep attributes for the commit."""
        kept = {
            name: getattr(setting, name) for name in Setting.__struct_fields__ if getattr(setting, name) is not None
        }
        self.modified_ns = kept.pop("modified_ns", self.modified_ns)
        self.setting = replace(self.setting, **kept)
        self._changed()

    def _changed(self) -> int:
        if self.sent:
            self.earlier.append(SentState(self.commit, self.staged.sent(), bare=not self.staged.plan().ranges))
            del self.earlier[1:-EARLIER_MAX]
            self.commit, self.sent, self.tried = "", False, []
        # Else the etag stays: by it the next mount knows that this was committed, if a full disk refuses a new record.
        self.kept, self.due_s, self.written_ns = False, 0.0, time.time_ns()
        return self.written_ns

    def settled(self) -> Setting:
        """Return the attributes to commit."""
        return replace(self.setting, modified_ns=self.modified_ns)

    def restart(self, staged: Staged) -> None:
        """Drop all bytes and changes, for another version."""
        self.staged = staged
        self.cut(0)
        self.settle()

    def settle(self) -> None:
        """Note that its changes are committed, or dropped."""
        self.source, self.modified_ns, self.setting = None, None, LEAVE
        self.commit, self.sent, self.tried, self.earlier = "", False, [], []

    def shed(self) -> None:
        """Drop bytes that are neither near the last read nor on their way, if they are many (`SHED_PARTS`)."""
        # The others are written anew: a hole takes no less room than the bytes that were there.
        near = Ranges((each.start, each.end) for each in self.fetching)
        near.add(max(0, self.read_at - BEHIND_BYTES), self.read_at + AHEAD_BYTES)
        kept = [part for start, end in near for part in self.staged.valid.within(start, end)]
        size = sum(end - start for start, end in kept)
        if SHED_PARTS * (self.staged.valid.total - size) < size:
            return
        parts = [(start, self.read(start, end - start)) for start, end in kept]
        self.cut(0)
        self.staged.valid.clear()
        for start, data in parts:
            self.store(start, data)
            self.staged.valid.add(start, start + len(data))

    def move_on(self, etag: str, size: int) -> None:
        """Move appended bytes behind another version, which another writer has committed. Raises: OSError, and
        then nothing has moved."""
        moved, at, end = self.staged.moved_on(etag, size), self.staged.base, self.staged.size
        if self.queued and self.held is None and self.left is None:
            self._leave(at, end, moved.size - end)
        else:
            if self.held is None or moved.size > HELD_BYTES_MAX:  # else a full disk would leave bytes half moved
                os.posix_fallocate(self.file(), size, end - at)
            self._shift(at, end, moved.size - end)
            if moved.size < end:
                self.cut(moved.size)
        self.staged, self.source, self.earlier, self.kept = moved, None, [], False

    def _leave(self, start: int, end: int, by: int) -> None:
        """Move bytes into another file: the record promises them in this one, where they are."""
        path = self.path.with_suffix("" if self.path.suffix else MOVED)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            for at in range(start, end, bounds.CHUNK_BYTES):
                size = min(bounds.CHUNK_BYTES, end - at)
                _put_all(fd, self._bytes(at, size).ljust(size, b"\0"), at + by)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        self._close()
        self.fd, self.path, self.left, self.named = fd, path, self.path, ""

    def renewed(self) -> None:
        """Note that the record is of this state, or gone: the file that had the bytes before can go."""
        if self.left is not None:
            self.left.unlink(missing_ok=True)
            self.left = None

    def _shift(self, at: int, end: int, by: int) -> None:
        starts = range(at, end, bounds.CHUNK_BYTES)
        for start in reversed(starts) if by > 0 else starts:
            size = min(bounds.CHUNK_BYTES, end - start)
            self.store(start + by, self._bytes(start, size).ljust(size, b"\0"))

    async def chunks(self, ranges: tuple[Range, ...]) -> AsyncIterator[bytes]:
        """Yield the bytes of ranges, one after another."""
        for start, end in ranges:
            for at in range(start, end, bounds.CHUNK_BYTES):
                yield self.read(at, min(bounds.CHUNK_BYTES, end - at))

    async def sync(self) -> None:
        """Sync its bytes to this machine's disk, and the name of a new file. Raises: OSError."""
        await asyncio.to_thread(self._sync, self.file(), self.path)

    def sync_now(self) -> None:
        """Sync as `sync`."""
        self._sync(self.file(), self.path)

    def _sync(self, fd: int, path: Path) -> None:
        os.fdatasync(fd)
        if self.named != path.name:
            sync_path(path.parent)
            self.named = path.name

    def close(self) -> None:
        """Close its file; bytes in memory are written to it first. Raises: OSError."""
        if self.held:
            self.file()
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def remove(self) -> None:
        self.staged = Staged.of("", 0)  # so bytes on their way here are not stored
        made = self.held is None or self.fd >= 0
        self._close()
        if made:
            self.path.unlink(missing_ok=True)
        self.renewed()


class Cache:
    """The cache of all copies, the longest unused first."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        """`directory`: the files of copies; `clear` empties it before use."""
        self._directory = directory
        self._bytes_max = bytes_max
        self._inodes: dict[Guid, Inode] = {}
        self._open: dict[Guid, Inode] = {}
        self.bytes = 0

    def clear(self, keep: set[str], aside: set[str]) -> None:
        """Make the directory, and remove files of an earlier mount other than `keep`; those in `aside` become .bad."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._directory.iterdir():
            if path.suffix == ".bad":
                continue
            if path.stem in aside:
                path.replace(path.with_name(f"{path.name}.bad"))
            elif path.name not in keep:
                path.unlink()

    def path(self, name: str) -> Path:
        return self._directory / name

    def scratch(self) -> int:
        """Return the descriptor of an empty file, which goes when it is closed. Raises: OSError."""
        fd, path = tempfile.mkstemp(dir=self._directory)
        os.unlink(path)
        return fd

    def keep(self, guid: str, data: bytes) -> None:
        """Write bytes from the journal durably to the file of a copy."""
        write_file(self.path(guid), data, 0o600)

    def of(self, inode: Inode) -> CachedCopy:
        """Return the copy of a file, begun when there is none."""
        if inode.copy is None:
            attributes = inode.attributes
            inode.copy = CachedCopy(
                self.path(inode.guid), Staged.of(attributes.etag, attributes.size), held=bytearray()
            )
        elif inode.copy.is_gone and not (inode.copy.busy or inode.copy.pinned):
            inode.copy.restart(Staged.of(inode.copy.staged.etag, inode.copy.staged.base))
        for order in (self._inodes, self._open):
            order.pop(inode.guid, None)
            order[inode.guid] = inode
        self._close_idle()
        return inode.copy

    def _close_idle(self) -> None:
        """Close the files of copies beyond the limit, the longest unused first."""
        while len(self._open) > FILES_OPEN_MAX:
            idle = (each for each in self._open.values() if each.copy is None or not each.copy.lock.locked())
            if (each := next(idle, None)) is None:
                break  # the bytes of a locked one may be on their way to the disk
            try:
                if each.copy is not None:
                    each.copy.close()
            except OSError:
                break  # a full disk: its bytes stay in memory
            del self._open[each.guid]

    def took(self, count: int) -> None:
        """Count fetched or written bytes, and drop copies beyond the limit."""
        self.bytes += count
        if self.bytes > self._bytes_max:
            self.trim(self._bytes_max)

    def with_room(self, act: Callable[[], A]) -> A:
        """Write to the disk by `act`; when it is full, drop bytes that can be read again, and try once more."""
        try:
            return act()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.trim(0)
            return act()

    def trim(self, bytes_max: int) -> None:
        """Drop copies until the rest has at most `bytes_max`."""
        left = {guid: i.copy.staged.valid.total for guid, i in self._inodes.items() if i.copy is not None}
        self.bytes = sum(left.values())
        idle = [inode for inode in self._inodes.values() if _is_idle(inode)]
        for inode in idle:
            if self.bytes <= bytes_max:
                return
            self.bytes -= left[inode.guid]
            self.drop(inode)
        for inode in self._inodes.values():  # for files larger than the cache: drop bytes that were read
            copy = inode.copy
            if self.bytes <= bytes_max or copy is None or copy.owned or copy.pinned:
                continue
            if copy.fetching:
                copy.shed()
            else:
                copy.restart(Staged.of(copy.staged.etag, copy.staged.base))
            self.bytes += copy.staged.valid.total - left.get(inode.guid, 0)

    def drop(self, inode: Inode) -> None:
        for order in (self._inodes, self._open):
            order.pop(inode.guid, None)
        if inode.copy is not None:
            inode.copy.remove()
            inode.copy = None

    def __len__(self) -> int:
        return len(self._inodes)

    def inodes(self) -> list[Inode]:
        """Return all inodes that have a copy."""
        return list(self._inodes.values())


def make_directory(path: Path) -> None:
    """Make a directory and those above it, all durable where this user may sync that. Raises: OSError."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)
    with contextlib.suppress(PermissionError):  # one of all users, as `/home`, may be theirs to pass only
        sync_path(path.parent)


def _is_idle(inode: Inode) -> bool:
    return inode.opens == 0 and inode.copy is not None and not inode.copy.busy


def _put_all(fd: int, data: bytes | bytearray, offset: int = 0) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(fd, memoryview(data)[at:], offset + at)
