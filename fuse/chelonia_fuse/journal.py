"""Changes of closed files that are not committed yet, on this machine's disk.

A record stands beside the bytes of each; for small files records and bytes are packed one behind another. A record is
written whole or not at all. A change with a record survives the end of the mount and of the machine: the next mount of
the same place commits it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Guid
from chelonia.core.ports.files import Setting
from chelonia.durable_files import sync_path, write_file
from chelonia_fuse.copies import CachedCopy, SentState
from chelonia_fuse.staging import Range, Ranges, Staged

FORMAT: Final = "1"
"""Format of the cache directory (docs/formats/mount-journal.md)."""
TURN_BYTES: Final = 16 << 20
"""Size of a file of packed records from which the other one is used."""
_HEAD: Final = struct.Struct("<III")
"""Length of the record and of the bytes behind it, and a CRC-32 of both."""
_LOG = logging.getLogger(__name__)


class SentRecord(msgspec.Struct, frozen=True):
    """An earlier state of the bytes, as in `copies.SentState`."""

    commit: str
    base: int
    kept: int
    appended: bool
    dirty: tuple[Range, ...]
    bare: bool = False


class JournalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change. `path`: the file's place then. `commit`: the etag chosen for its bytes, "" for none yet. `file`: the
    name of the file with its bytes, "" for its GUID. The rest is as in `Staged` and `CachedCopy`."""

    guid: str
    path: str
    etag: str
    base: int
    size: int
    kept: int
    appended: bool
    valid: tuple[Range, ...]
    dirty: tuple[Range, ...]
    attributes: dict[str, int]
    commit: str = ""
    earlier: tuple[SentRecord, ...] = ()
    file: str = ""

    @property
    def data(self) -> str:
        """The name of the file with its bytes."""
        return self.file or self.guid

    def staged(self) -> Staged:
        valid, dirty = Ranges(self.valid), Ranges(self.dirty)
        return Staged(self.etag, self.base, self.size, self.kept, appended=self.appended, valid=valid, dirty=dirty)

    def setting(self) -> Setting:
        """Return the attributes to commit with it."""
        return Setting(**self.attributes)

    def sent(self, staged: Staged) -> list[SentState]:
        """Return the earlier states of a staged file."""
        return [
            SentState(
                each.commit,
                Staged("", each.base, self.size, each.kept, appended=each.appended, valid=staged.valid,
                       dirty=Ranges(each.dirty)),
                each.bare,
            )
            for each in self.earlier
        ]  # fmt: skip


def record_of(guid: Guid, path: str, copy: CachedCopy) -> JournalRecord:
    """Return the record of a change."""
    staged, values = copy.staged, structs.asdict(copy.settled())
    sent = ((each.commit, each.staged, each.bare) for each in copy.earlier)
    return JournalRecord(
        guid, path, staged.etag, staged.base, staged.size, staged.kept, staged.appended,
        tuple(staged.valid), tuple(staged.dirty), {name: value for name, value in values.items() if value is not None},
        copy.commit,
        tuple(SentRecord(commit, s.base, s.kept, s.appended, tuple(s.dirty), bare) for commit, s, bare in sent),
        copy.path.name if copy.path.name != guid else "",
    )  # fmt: skip


class StagingJournal:
    """The records, one file each. `packed`: those of small files, with their bytes. `unreadable`: GUIDs of bad ones."""

    def __init__(self, directory: Path) -> None:
        """Raises: BAD_CONFIG when it is of another format."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _claim_format(directory.with_name("format"))
        self._directory = directory
        self.unreadable = set[str]()
        self._unsynced = False
        self._settling = asyncio.Lock()
        self.packed = PackedJournal(directory.with_name("packed"))

    def claim(self, cluster: str, *, is_free: bool) -> None:
        """Note whose changes it has; "": unknown. Raises: BAD_CONFIG when it has some of another (not `is_free`)."""
        path = self._directory.with_name("cluster")
        known = path.read_text() if path.exists() else ""
        if cluster and not is_free and known not in ("", cluster):
            cause = (
                "files closed on a mount of another cluster wait here: mount that one to commit them, or give "
                f"-o cache=DIR (if it is the same one, rebuilt: remove {path})"
            )
            raise CheloniaError(Kind.BAD_CONFIG, "mount", str(path.parent), cause)
        if cluster not in ("", known):
            write_file(path, cluster.encode(), 0o600)

    def begin(self) -> None:
        """Make durable what the cache directory has, before a record promises it. Raises: OSError."""
        for name in ("data", "packed", ""):
            sync_path(self._directory.parent / name)

    def write(self, record: JournalRecord) -> None:
        """Write a record durably, in place of an earlier one of the same file. Raises: OSError."""
        write_file(self._path(record.guid), msgspec.json.encode(record), 0o600)

    def remove(self, guid: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(guid).unlink()
            self._unsynced = True

    async def settled(self) -> None:
        """Return once removals are durable: after a power cut they are not committed again."""
        try:
            await self.packed.settled()  # first: without its later record a packed change would count again
            async with self._settling:  # a sync under way may be of this caller's removals
                if self._unsynced:
                    self._unsynced = False
                    await asyncio.to_thread(self._sync)
        except OSError as error:
            _LOG.error("journal %s: %s: after a power cut what is committed may be tried again", self._directory, error)

    def records(self) -> list[JournalRecord]:
        """Return all records. One that cannot be read, or whose bytes are gone, becomes .bad, and is logged."""
        out = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=JournalRecord)
                self._directory.with_name("data").joinpath(record.data).stat()  # else zeros would be committed
                out.append(record)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
                _LOG.error("journal %s: it cannot be read (%s); it stays there as .bad with its bytes", path, error)
                path.replace(path.with_suffix(".bad"))
                self.unreadable.add(path.stem)
        return out

    def _path(self, guid: str) -> Path:
        return self._directory / f"{guid}.json"

    def _sync(self) -> None:
        sync_path(self._directory)


class PackedJournal:
    """Records of small files with their bytes, in two files in turn; one without pending changes is emptied.

    A frame is a head, a record and bytes; one with a GUID in place of a record ends that change. A torn frame at the
    end was never promised. All frames of one file that count are in one of the two.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._paths = [directory / "0", directory / "1"]
        self._fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600) for path in self._paths]
        self._held: list[set[str]] = [set(), set()]
        self._over = set[str]()  # of these the changes that are over, without a frame that says so yet
        self._at = self._size = 0
        self._syncs: list[asyncio.Task[None]] = []
        self._unsynced = set[int]()

    def records(self) -> Iterator[tuple[JournalRecord, bytes]]:
        """Yield the records and bytes that an earlier mount has left."""
        yield from _pending(self._paths).values()

    def clear(self) -> None:
        for fd in self._fds:
            os.ftruncate(fd, 0)
            os.fdatasync(fd)

    async def keep(self, record: JournalRecord, data: bytes) -> None:
        """Return once a record and its bytes are on the disk; concurrent calls share a sync.

        Raises: OSError when they are not; until `done` this record may be there, or the one before.
        """
        if self._size > TURN_BYTES and not self._held[1 - self._at]:
            self._at, self._size = 1 - self._at, 0
        at = 1 - self._at if record.guid in self._held[1 - self._at] else self._at
        self._write(at, msgspec.json.encode(record), data)
        self._held[at].add(record.guid)
        self._over.discard(record.guid)
        await self._synced()

    async def settled(self) -> None:
        """Return once ended changes are durable. Raises: OSError."""
        for at, held in enumerate(self._held):
            if held & self._over:
                self._write_ended(at)
        if self._unsynced or self._syncs:
            await self._synced()

    async def _synced(self) -> None:
        if len(self._syncs) < 2:
            self._syncs.append(asyncio.create_task(self._sync(self._syncs[-1] if self._syncs else None)))
        await asyncio.shield(self._syncs[-1])

    async def _sync(self, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await before  # raises when it failed: then it is not known which bytes are on the disk
            for at in sorted(self._unsynced):  # only these: a sync takes as long where nothing was written
                self._unsynced.remove(at)
                await asyncio.to_thread(os.fdatasync, self._fds[at])
        finally:
            del self._syncs[0]

    def done(self, guid: str) -> None:
        """End a change: it is committed, or no more. On a full disk its frame is written later; until then it stays."""
        for at, held in enumerate(self._held):
            if guid in held:
                self._over.add(guid)
                with contextlib.suppress(OSError):
                    self._write_ended(at)

    def __contains__(self, guid: str) -> bool:
        return any(guid in held for held in self._held) and guid not in self._over

    def _write_ended(self, at: int) -> None:
        held = self._held[at]
        over = held & self._over
        if over == held:
            os.ftruncate(self._fds[at], 0)
            self._unsynced.add(at)
            self._size = 0 if at == self._at else self._size
            held.clear()
        for guid in sorted(over):
            if held:
                self._write(at, guid.encode(), b"")
            held.discard(guid)
            self._over.discard(guid)

    def _write(self, at: int, head: bytes, data: bytes) -> None:
        body, fd = head + data, self._fds[at]
        frame, end = _HEAD.pack(len(head), len(data), zlib.crc32(body)) + body, os.lseek(fd, 0, os.SEEK_END)
        try:
            while frame:
                frame = frame[os.write(fd, frame) :]
        except OSError:
            os.ftruncate(fd, end)  # else later frames could not be read
            raise
        self._unsynced.add(at)
        self._size += len(body) if at == self._at else 0


def _claim_format(path: Path) -> None:
    known = path.read_text() if path.exists() else ""
    if known not in ("", FORMAT):
        cause = (
            f"the files that wait here are of format {known[:20]!r}, and this version knows {FORMAT}: "
            "mount by the newer one, or give -o cache=DIR"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "mount", str(path.parent), cause)
    if not known:
        write_file(path, FORMAT.encode(), 0o600)


def count_waiting(directory: Path) -> int:
    """Return how many changes an ended mount has left in its cache directory, which stays as it is. Raises: OSError."""
    journal, packed = directory / "journal", directory / "packed"
    guids = {name.removesuffix(".json") for name in os.listdir(journal) if name.endswith(".json")}
    return len(guids | _pending(packed / name for name in sorted(os.listdir(packed))).keys())


def _pending(paths: Iterable[Path]) -> dict[str, tuple[JournalRecord, bytes]]:
    """The packed changes that are not ended, by GUID."""
    found = dict[str, tuple[JournalRecord, bytes]]()
    for path in paths:
        here = dict[str, tuple[JournalRecord, bytes]]()
        for head, data in _frames(path.read_bytes()):
            if head.startswith(b"{"):
                record = msgspec.json.decode(head, type=JournalRecord)
                here[record.guid] = record, data
            else:  # in this file alone: the other one may have a later change
                here.pop(head.decode(), None)
        found |= here
    return found


def _frames(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + _HEAD.size <= len(text):
        head, data, crc = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        body = text[at : at + head + data]
        if len(body) < head + data or zlib.crc32(body) != crc:
            return
        yield body[:head], body[head:]
        at += len(body)
