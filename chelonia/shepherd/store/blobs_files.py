"""Replicas as files on a local disk: temporary, fsync, rename, fsync directory.

Layout, record and crash rules: docs/formats/replica-store.md. `incoming/` holds uploads (`.writing` while they run,
`.kept` when suspended), `replicas/<2 hex>/` the replicas with a record beside each, `quarantine/` those set aside.
The record's suffix says whether the replica is committed: `.record`, or `.uncommitted` before.
All blocking calls run in threads of this adapter. Invariants:
- A replica is never visible before its bytes and record are on stable storage.
- A start discards uploads: their tickets are of another boot, and their bytes may have holes.
- Every path is made of a checked UUID.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import stat
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar, cast

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, is_uuid, parse_reference
from chelonia.core.ports.shepherd import (
    NO_NOTES,
    PREFIXES,
    Check,
    Notes,
    Scanned,
    SmallReplica,
    StoredReplica,
    StoreIdentity,
    unchecked,
)
from chelonia.core.values import replace
from chelonia.durable_files import sync_path
from chelonia.shepherd.store import blobs_notes, store_state
from chelonia.shepherd.store.blobs_threads import DiskThreads
from chelonia.wire import records

T = TypeVar("T")
log = logging.getLogger(__name__)

COMMITTED: Final = ".record"
UNCOMMITTED: Final = ".uncommitted"
ERASING: Final = ".erasing"
"""Suffix of a record while its replica is erased: a start finishes an erasure that a crash interrupted."""
UUID_CHARS: Final = 36
RECORD_READ_BYTES: Final = 64 * 1024
"""More bytes than any record has."""
SYNC_EVERY_BYTES: Final = 16 * 1024 * 1024
"""Written bytes between two syncs in the background, which keep the last fsync short."""
DRAFTS_OPEN_MAX: Final = 64
"""Files of small replicas written and synced together, and so descriptors open at once."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAMAGE = (errno.ENOENT, errno.EIO, errno.EUCLEAN, errno.ENODATA, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
"""Errors that mean bytes are gone or rotten; any other (no descriptors, no rights) says nothing about them."""
FOREIGN: Final = ".foreign"
"""Suffix in quarantine of a directory found in a file's place: nobody has ordered its content to be erased."""
_IN_THE_WAY = (errno.EPERM, errno.EACCES, errno.EBUSY, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EXDEV)
"""Errors that mean a name cannot be removed; they say nothing about the disk."""


class FileBlobs:
    """The files engine of a `BlobStore`.

    Args:
        root: its directory, made if missing; one process at a time.
        min_free_bytes: reserve of free space that is never used.
        threads: concurrent blocking calls; still_ms: as of `DiskThreads`.

    Raises: BAD_CONFIG when another process uses the directory, or its replicas are gone.
    """

    def __init__(
        self, root: Path, *, min_free_bytes: int = 0, threads: int = 8, still_ms: int = bounds.DISK_STILL_MS
    ) -> None:
        self._root = root
        self._min_free_bytes = min_free_bytes
        root.mkdir(parents=True, exist_ok=True)
        self._lock = store_state.lock_directory(root)
        try:
            _prepare(root)
        except BaseException:
            os.close(self._lock)
            raise
        self.threads = DiskThreads(threads, still_ms)
        self.moving = threading.Lock()
        """Lock of calls that move a replica between folders, or remove it."""

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Wait for running calls, call `last`, and let another process have the directory."""
        self.threads.close()
        last()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def identity(self) -> StoreIdentity | None:
        return await self.answered(lambda: _read_identity(self._root))

    async def identify(self, identity: StoreIdentity) -> None:
        await self.run(lambda: store_state.write_identity(self._root, identity))

    async def probe(self) -> None:
        def write() -> None:
            with store_state.held(self._root) as root:
                _write_durably((root / "probe", b"probe\n"))

        try:
            await self.answered(write)
        except CheloniaError as error:
            if error.kind is not Kind.NO_SPACE:
                raise

    async def create(self, reference: ReferenceId, *, resume: bool = False) -> FileWriter:
        """Open a writer; with `resume` continue a kept upload. Raises: UNAVAILABLE, NO_SPACE on a failing disk."""
        path = self.incoming(reference, ".writing")
        kept = self.incoming(reference, ".kept")
        try:
            fd, offset = await self._acquire(lambda: _open_upload(path, kept, resume))
        except OSError as error:
            raise _disk_error(error) from error
        return FileWriter(self, reference, fd, offset)

    async def forget_kept(self, reference: ReferenceId) -> None:
        """Remove the kept bytes of an upload: it begins anew."""
        kept = self.incoming(reference, ".kept")
        await self.run(lambda: kept.unlink(missing_ok=True))

    async def store_whole(self, replicas: Sequence[SmallReplica]) -> None:
        writing = [
            _ReplicaWriting(
                self.incoming(each.reference, ".writing"),
                self.incoming(each.reference, COMMITTED),
                self.replica(each.reference),
            )
            for each in replicas
        ]

        def work() -> None:
            if self.free_bytes() < sum(len(each.data) for each in replicas):
                raise OSError(errno.ENOSPC, "the reserve of free space is reached")
            _store(writing, replicas)

        await self.run(work)

    def read(self, reference: ReferenceId, span: ByteRange, check: Check = unchecked) -> AsyncIterator[bytes]:
        return self._read(self.replica(reference), span, check)

    def at_hand(self, reference: ReferenceId, size: int) -> bytes | None:
        """Return None: a file has to be opened first."""
        return None

    async def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        return await self.run(lambda: _read_record(self.replica(reference), records.decode_facts)[0])

    async def blocks(self, reference: ReferenceId) -> bytes:
        return await self.run(lambda: _read_record(self.replica(reference), records.decode_blocks)[0] or b"")

    async def spoil(self, reference: ReferenceId) -> bool:
        return await self._move(lambda: _spoil(self.replica(reference)))

    async def trim(self, reference: ReferenceId, size: int) -> None:
        await self.run(lambda: _trim(self.replica(reference), size))

    async def settle(self, references: tuple[ReferenceId, ...]) -> None:
        paths = [str(self.replica(reference)) for reference in references]
        await self.run(lambda: _settle(paths))

    async def erase(self, reference: ReferenceId) -> bool:
        kept = self.incoming(reference, ".kept")
        places = (self.replica(reference), self.aside(reference))
        return await self._move(lambda: _erase(places, kept))

    async def quarantine(self, reference: ReferenceId) -> None:
        source, target = self.replica(reference), self.aside(reference)
        await self._move(lambda: _move_aside(source, target))

    def put_aside(self, reference: ReferenceId, record: bytes, data: bytes, *, committed: bool) -> None:
        """Put bytes and record durably into quarantine. Blocks."""
        place = self.aside(reference)
        _write_durably((place, data), (_with(place, COMMITTED if committed else UNCOMMITTED), record))
        sync_path(place.parent)

    def committed_files(self, prefix: str, bytes_max: int) -> list[ReferenceId]:
        """Return the committed replicas of a folder that have at most `bytes_max` bytes. Blocks."""
        with os.scandir(self._root / "replicas" / prefix) as listed:
            seen = {entry.name: entry for entry in listed}
        names = [name for name in seen if is_uuid(name) and name + COMMITTED in seen]
        return [ReferenceId(name) for name in names if 0 <= _size(seen[name].path) <= bytes_max]

    def whole(self, reference: ReferenceId) -> tuple[bytes, bytes] | None:
        """Return (record, bytes) of a small replica; None when it is not committed, gone or unreadable. Blocks."""
        path = f"{self.replica(reference)}"
        try:
            return _read_whole(path + COMMITTED), _read_whole(path)
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            return None

    def take_away(self, references: Sequence[ReferenceId]) -> None:
        """Remove replicas that are elsewhere too, durably; names that cannot be removed are logged. Blocks."""
        for reference in references:
            try:
                _unname(self.replica(reference))
            except OSError as error:
                if error.errno not in _IN_THE_WAY:
                    raise
                log.warning("the file of %s stays: it cannot be removed: %s", reference, error.strerror)
        for folder in {self.replica(reference).parent for reference in references}:
            sync_path(folder)

    async def discard(self, reference: ReferenceId) -> bool:
        places = (self.aside(reference),)
        return await self._move(lambda: _erase(places))

    async def reinstate(self, reference: ReferenceId) -> StoredReplica | None:
        source, target = self.aside(reference), self.replica(reference)
        return await self._move(lambda: _bring_back(source, target))

    async def quarantined(self, after: str = "", limit: int = 0) -> tuple[StoredReplica, ...]:
        folder = self._root / "quarantine"

        def look() -> tuple[StoredReplica, ...]:
            names = (name for name in os.listdir(folder) if name[:UUID_CHARS] > after)
            return tuple(islice(_scan_names(folder, names), limit or None))

        return await self.run(look, long=True)

    async def count_quarantined(self) -> int:
        folder = self._root / "quarantine"
        return await self.run(lambda: sum(map(is_uuid, {n[:UUID_CHARS] for n in os.listdir(folder)})), long=True)

    async def scan(self, notes: Notes = NO_NOTES) -> AsyncIterator[Scanned]:
        """Yield every replica on disk, a page for each folder; finish erasures and moves that a crash interrupted."""
        for prefix in PREFIXES:
            folder = self._root / "replicas" / prefix
            noted = notes.parts.get(prefix, {})
            page = await self.run(lambda folder=folder, noted=noted: _scan_page(folder, noted), long=True)  # type: ignore[misc]
            alone = [stored.reference for stored in page.read if stored.size < 0]
            moved = {reference for reference in alone if await self._follows_aside(reference)}
            yield replace(page, read=[stored for stored in page.read if stored.reference not in moved])

    async def sizes(self, references: Sequence[ReferenceId]) -> tuple[int, ...]:
        paths = [f"{self._root}/replicas/{reference[:2]}/{reference}" for reference in references]
        return await self.run(lambda: tuple(map(_size, paths)), long=True)

    async def notes(self, head: bytes = b"") -> Notes:
        return await self.run(lambda: blobs_notes.read(self._root, head), long=True)

    async def note(self, notes: Mapping[ReferenceId, bytes]) -> None:
        await self._in_root(lambda root: blobs_notes.append(root / blobs_notes.NAME, notes))

    async def note_anew(self, pages: AsyncIterable[Mapping[ReferenceId, bytes]]) -> None:
        draft = blobs_notes.DRAFT
        try:
            await self._in_root(lambda root: blobs_notes.append(root / draft, {}))
            async for page in pages:
                await self._in_root(lambda root, page=page: blobs_notes.append(root / draft, page))  # type: ignore[misc]
            await self._in_root(lambda root: _replace_durably(root / draft, root / blobs_notes.NAME))
        finally:
            await self.run(lambda: (self._root / draft).unlink(missing_ok=True))

    async def _in_root(self, work: Callable[[Path], None]) -> None:
        """Make files beside the folders of the store. Raises: as `run`; UNAVAILABLE when the store is not there."""

        def held() -> None:
            with store_state.held(self._root) as root:
                work(root)

        await self.run(held)

    async def _follows_aside(self, reference: ReferenceId) -> bool:
        """Move a record without bytes to quarantine if its bytes are there; returns whether they were."""
        source, target = self.replica(reference), self.aside(reference)
        if not await self.run(target.exists):
            return False
        await self.run(lambda: _move_aside(source, target))
        return True

    async def space(self) -> tuple[int, int]:
        """Return (free, total) bytes usable for replicas; the reserve is not free."""
        return await self.answered(lambda: (max(self.free_bytes(), 0), shutil.disk_usage(self._root).total))

    # --- for the writer -------------------------------------------------------------------------------------------

    async def run(self, fn: Callable[[], T], *, long: bool = False) -> T:
        """Run a blocking call in this adapter's threads; an OSError becomes a CheloniaError. `long`: as there."""
        try:
            return await self.threads.run(fn, long=long)
        except OSError as error:
            raise _disk_error(error) from error

    async def answered(self, fn: Callable[[], T]) -> T:
        """As `run`, but wait only while the disk answers. Raises: UNAVAILABLE when it does not."""
        try:
            return await self.threads.answered(fn)
        except OSError as error:
            raise _disk_error(error) from error

    async def _move(self, fn: Callable[[], T]) -> T:
        def alone() -> T:
            with self.moving:
                return fn()

        return await self.run(alone)

    def incoming(self, reference: ReferenceId, suffix: str) -> Path:
        """Return the path of an upload. Raises: BAD_REQUEST unless `reference` is a UUID."""
        return self._root / "incoming" / (parse_reference(reference) + suffix)

    def replica(self, reference: ReferenceId) -> Path:
        """Return the path of a replica. Raises: BAD_REQUEST unless `reference` is a UUID."""
        return self._root / "replicas" / parse_reference(reference)[:2] / reference

    def aside(self, reference: ReferenceId) -> Path:
        """Return the path of a replica in quarantine. Raises: BAD_REQUEST unless `reference` is a UUID."""
        return self._root / "quarantine" / parse_reference(reference)

    def free_bytes(self) -> int:
        """Return the free bytes above the reserve; negative below it. Blocks."""
        return shutil.disk_usage(self._root).free - self._min_free_bytes

    async def _read(self, path: Path, span: ByteRange, check: Check) -> AsyncIterator[bytes]:
        """Open with the first chunk, so that a small file costs one thread hop; read one chunk ahead of the caller."""
        offset, end, fd = span.offset, span.offset + span.length, -1
        ahead: asyncio.Future[tuple[int, bytes]] | None = None
        try:
            while offset < end:
                ahead = ahead or self._begin_read(path, fd, offset, end, check)
                want = min(bounds.CHUNK_BYTES, end - offset)
                fd, chunk = await asyncio.shield(ahead)
                ahead = None
                if len(chunk) != want:
                    raise CheloniaError(Kind.NOT_ALIVE, "read", path.name, f"bytes missing after {offset + len(chunk)}")
                offset += want
                if offset < end:
                    ahead = self._begin_read(path, fd, offset, end, check)
                yield chunk
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise _disk_error(error) from error
            raise CheloniaError(Kind.NOT_ALIVE, "read", path.name, f"unreadable: {error.strerror}") from error
        finally:
            if ahead is not None:  # its thread may still use the descriptor, and closes it
                ahead.add_done_callback(_close_unwanted)
            elif fd >= 0:
                os.close(fd)

    def _begin_read(
        self, path: Path, fd: int, offset: int, end: int, check: Check
    ) -> asyncio.Future[tuple[int, bytes]]:
        extent = (offset, min(bounds.CHUNK_BYTES, end - offset))
        return self.threads.run(lambda: _read_at(path, fd, extent, check))

    async def _acquire(self, fn: Callable[[], tuple[int, T]]) -> tuple[int, T]:
        """Run a blocking call whose result begins with an open descriptor; a cancelled caller leaks none."""
        work = self.threads.run(fn)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_unwanted)
            raise


class FileWriter:
    """A `BlobWriter` into a temporary file."""

    def __init__(self, store: FileBlobs, reference: ReferenceId, fd: int, offset: int) -> None:
        self._store = store
        self._reference = reference
        self._fd = fd
        self._offset = offset
        self._synced = offset
        self._sync: asyncio.Future[None] | None = None

    @property
    def offset(self) -> int:
        return self._offset

    async def write(self, chunk: bytes) -> None:
        """Append. Raises: NO_SPACE (the partial file is removed), UNAVAILABLE."""
        try:
            await self._store.run(lambda: self._append(chunk))
        except CheloniaError:
            await self.abort()
            raise
        self._offset += len(chunk)
        if self._offset - self._synced >= SYNC_EVERY_BYTES and (self._sync is None or self._sync.done()):
            await self._synchronised()
            self._synced, fd = self._offset, self._fd
            self._sync = self._store.threads.run(lambda: os.fdatasync(fd))

    async def commit(self, facts: ReplicaFacts, blocks: bytes = b"") -> None:
        """Put bytes and record on stable storage under their final name. Raises: NO_SPACE, UNAVAILABLE."""
        assert facts.size == self._offset, f"record says {facts.size} bytes, {self._offset} were written"
        record = records.encode_facts(facts, blocks)
        try:
            await self._synchronised()
            await self._store.run(lambda: self._publish(record))
        except CheloniaError:
            await self.abort()
            raise

    async def suspend(self) -> None:
        """Keep the written bytes for a later resume. Raises: UNAVAILABLE, as the sync of a commit does."""
        await self._synchronised()
        writing = self._store.incoming(self._reference, ".writing")
        await self._store.run(lambda: self._keep(writing))

    async def abort(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        writing = self._store.incoming(self._reference, ".writing")
        try:
            with contextlib.suppress(CheloniaError):
                await self._synchronised()
        finally:
            await self._store.run(lambda: _discard(fd, writing))

    def _append(self, chunk: bytes) -> None:
        if self._store.free_bytes() < len(chunk):
            raise OSError(errno.ENOSPC, "the reserve of free space is reached")
        blobs_notes.write_all(self._fd, chunk)

    async def _synchronised(self) -> None:
        sync, self._sync = self._sync, None
        if sync is not None:
            try:
                await sync
            except OSError as error:
                raise _disk_error(error) from error

    def _publish(self, record: bytes) -> None:
        os.fsync(self._fd)
        final = self._store.replica(self._reference)
        draft = self._store.incoming(self._reference, COMMITTED)
        _write_durably((draft, record))
        try:  # in this order: a start understands a record without bytes, but not bytes without a record
            os.replace(draft, _with(final, UNCOMMITTED))
            os.replace(self._store.incoming(self._reference, ".writing"), final)
            sync_path(final.parent)
        except OSError:
            _erase_at(final)  # no report will name it
            raise
        self._close()

    def _keep(self, writing: Path) -> None:
        os.fsync(self._fd)  # a write error of these bytes may not be reported to the next descriptor
        os.replace(writing, writing.with_suffix(".kept"))  # where it fails, `abort` removes the file
        with contextlib.suppress(OSError):  # the bytes are synced
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1  # a number whose closing fails is free all the same, and soon another's
        os.close(fd)


# --- blocking pieces, run in threads -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ReplicaWriting:
    """Paths where a new replica is written, and its final one."""

    bytes: Path
    record: Path
    final: Path


def _store(writing: Sequence[_ReplicaWriting], replicas: Sequence[SmallReplica]) -> None:
    """Write whole replicas, in the order of `FileWriter`: first bytes and records, then their names."""
    drafts = [
        draft
        for paths, each in zip(writing, replicas, strict=True)
        for draft in ((paths.bytes, each.data), (paths.record, records.record_of(each.facts, each.data)))
    ]
    try:
        for start in range(0, len(drafts), DRAFTS_OPEN_MAX):
            _write_durably(*drafts[start : start + DRAFTS_OPEN_MAX])
        for paths in writing:
            os.replace(paths.record, _with(paths.final, UNCOMMITTED))
            os.replace(paths.bytes, paths.final)
        for folder in dict.fromkeys(paths.final.parent for paths in writing):
            sync_path(folder)
    except OSError:
        for paths in writing:  # no report will name them
            for undo in (paths.bytes.unlink, paths.record.unlink, partial(_erase_at, paths.final)):
                with contextlib.suppress(OSError, CheloniaError):
                    undo()
        raise


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _prepare(root: Path) -> None:
    fresh = not _is_laid_out(root)
    if fresh and (root / store_state.IDENTITY).exists():
        raise CheloniaError(Kind.BAD_CONFIG, "open store", str(root), f"{_GONE}: {store_state.PUT_BACK}")
    lay_out(root)
    if fresh:
        for folder in (root / "replicas", root, root.parent):
            sync_path(folder)
    for path in (root / "incoming").iterdir():
        path.unlink()
    (root / blobs_notes.DRAFT).unlink(missing_ok=True)


_GONE: Final = "its replicas/ is gone"


def lay_out(root: Path) -> None:
    """Make the folders of a store; those of replicas come before its identity."""
    for name in ("incoming", "quarantine", *(f"replicas/{prefix}" for prefix in PREFIXES)):
        (root / name).mkdir(parents=True, exist_ok=True)


def _is_laid_out(root: Path) -> bool:
    """Whether replicas/ is the store's: below a disk that is not mounted there it is missing or empty."""
    return (root / "replicas/00").is_dir() or (root / "replicas/ff").is_dir()


def _read_identity(root: Path) -> StoreIdentity | None:
    found = store_state.read_identity(root)
    if found is not None and not _is_laid_out(root):
        raise CheloniaError(Kind.BAD_CONFIG, "open store", str(root), _GONE)
    return found


def _open_upload(path: Path, kept: Path, resume: bool) -> tuple[int, int]:
    if resume and kept.exists():
        os.replace(kept, path)
    else:
        kept.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return fd, os.fstat(fd).st_size


def _discard(fd: int, path: Path) -> None:
    os.close(fd)
    path.unlink(missing_ok=True)
    path.with_suffix(COMMITTED).unlink(missing_ok=True)


def _close_unwanted(work: asyncio.Future[tuple[int, T]]) -> None:
    if not work.cancelled() and work.exception() is None:
        os.close(work.result()[0])


def _read_at(path: Path, fd: int, extent: tuple[int, int], check: Check) -> tuple[int, bytes]:
    if fd < 0:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunk = os.pread(fd, extent[1], extent[0])
        if len(chunk) == extent[1]:  # else the reader reports that bytes are missing
            check(extent[0], chunk)
        return fd, chunk
    except BaseException:
        os.close(fd)
        raise


def _read_record(path: Path, decode: Callable[[bytes], T]) -> tuple[T | None, bool]:
    """(decoded content or None, committed) of the record at `path`; one that cannot be read counts as committed."""
    for suffix in (COMMITTED, UNCOMMITTED, COMMITTED):  # it may be settled between two looks
        try:
            raw = _read_whole(f"{path}{suffix}")
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            return None, True
        try:
            return decode(raw), suffix == COMMITTED
        except CheloniaError as damage:
            if damage.kind is Kind.NOT_SUPPORTED:
                raise  # written by newer software: nothing is wrong with it
            return None, True
    return None, True


def _read_whole(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []  # read in few calls: each releases and takes the interpreter's lock
        while part := os.read(fd, RECORD_READ_BYTES):
            parts.append(part)
            if len(part) < RECORD_READ_BYTES:
                break
        return b"".join(parts)
    finally:
        os.close(fd)


def _scan_page(folder: Path, noted: dict[ReferenceId, bytes]) -> Scanned:
    """A page of a folder: noted replicas that have bytes and a record, and all others as read from their records."""
    listed = os.listdir(folder)  # looked up as sets: a start passes a million through here
    bare = {name for name in listed if len(name) == UUID_CHARS}
    committed = _with_suffix(listed, COMMITTED) & bare & noted.keys()
    if 2 * len(committed) == len(listed):  # nothing else is there
        return Scanned(folder.name, _of(committed, noted), frozenset(), [])
    bare -= _with_suffix(listed, ERASING)
    uncommitted = _with_suffix(listed, UNCOMMITTED) & bare & noted.keys()
    seen = committed & bare | uncommitted
    rest = [name for name in listed if name[:UUID_CHARS] not in seen]
    return Scanned(folder.name, _of(seen, noted), frozenset(uncommitted), list(_scan_names(folder, rest)))


def _of(seen: Set[ReferenceId], noted: dict[ReferenceId, bytes]) -> dict[ReferenceId, bytes]:
    return noted if len(seen) == len(noted) else {each: note for each, note in noted.items() if each in seen}


def _with_suffix(listed: list[str], suffix: str) -> set[ReferenceId]:
    chars = UUID_CHARS + len(suffix)
    found = {name[:UUID_CHARS] for name in listed if len(name) == chars and name.endswith(suffix)}
    return cast(set[ReferenceId], found)


def _size(path: str) -> int:
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _scan_names(folder: Path, listed: Iterable[str]) -> Iterator[StoredReplica]:
    names = dict.fromkeys(sorted(listed))
    references = {name.removesuffix(COMMITTED).removesuffix(UNCOMMITTED).removesuffix(ERASING): None for name in names}
    for reference in sorted(references):
        if not is_uuid(reference):
            continue
        path = folder / reference
        if reference + ERASING in names:
            with contextlib.suppress(CheloniaError):  # a name in the way is reported when the order comes again
                _erase_at(path)
            continue
        facts, committed = _read_record(path, records.decode_facts)
        yield StoredReplica(ReferenceId(reference), facts, _size(str(path)), committed)


def _spoil(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        middle = os.fstat(fd).st_size // 2
        found = os.pread(fd, 1, middle)
        if found:
            os.pwrite(fd, bytes((found[0] ^ 0xFF,)), middle)
            os.fsync(fd)
        return bool(found)
    finally:
        os.close(fd)


def _trim(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        assert os.fstat(fd).st_size >= size, "a replica is cut off behind its end, never made longer"
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def _settle(paths: list[str]) -> None:
    """Settle all that can be. Raises: OSError for one that cannot."""
    failure = None
    for path in paths:
        try:
            os.replace(path + UNCOMMITTED, path + COMMITTED)
        except FileNotFoundError:  # it was settled before, or is gone
            pass
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure


def _erase(places: tuple[Path, ...], *kept: Path) -> bool:
    found = any(path.exists() for path in kept)
    for path in kept:
        path.unlink(missing_ok=True)
    for place in places:
        found = _erase_at(place) or found
    for place in () if found else places:  # the sync after an earlier erasure may have failed
        sync_path(place.parent)
    return found


def _erase_at(place: Path) -> bool:
    """Erase a replica durably; returns whether there was anything. Raises: CONFLICT, naming a path in the way."""
    try:
        return _take_away(place)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        cause = f"{error.filename} cannot be removed: {error.strerror}; look what is there and move it away"
        raise CheloniaError(Kind.CONFLICT, "erase", place.name, cause) from error


def _take_away(place: Path) -> bool:
    found = _unname(place)
    if found:
        sync_path(place.parent)
    return found


def _unname(place: Path) -> bool:
    intent = _with(place, ERASING)  # the record is renamed first: after a crash a start finishes the erasure
    for record in (_with(place, UNCOMMITTED), _with(place, COMMITTED)):
        with contextlib.suppress(FileNotFoundError):  # in this order: it may be settled meanwhile
            os.replace(record, intent)
    parts = [part for part in (place, intent) if os.path.lexists(part)]
    for part in parts:
        _remove(part)
    return bool(parts)


def _remove(part: Path) -> None:
    """Remove a file; a directory in its place goes to quarantine."""
    if stat.S_ISDIR(os.lstat(part).st_mode):
        quarantine = part.parent if part.parent.name == "quarantine" else part.parents[2] / "quarantine"
        os.replace(part, quarantine / f"{part.name}{FOREIGN}")
        sync_path(quarantine)
    else:
        part.unlink(missing_ok=True)


def _move_aside(source: Path, target: Path) -> None:
    for suffix in ("", UNCOMMITTED, COMMITTED):  # in this order: it may be settled meanwhile
        with contextlib.suppress(FileNotFoundError):
            os.replace(_with(source, suffix), _with(target, suffix))
    sync_path(target.parent)
    sync_path(source.parent)


def _bring_back(source: Path, target: Path) -> StoredReplica | None:
    if not source.exists():
        return None
    for suffix in (UNCOMMITTED, COMMITTED):  # the record first: after a crash the bytes in quarantine can follow it
        if _with(source, suffix).exists():
            os.replace(_with(source, suffix), _with(target, COMMITTED))
            sync_path(target.parent)
    os.replace(source, target)
    sync_path(target.parent)
    sync_path(source.parent)
    facts, committed = _read_record(target, records.decode_facts)
    return StoredReplica(ReferenceId(target.name), facts, target.stat().st_size, committed)


def _write_durably(*drafts: tuple[Path, bytes]) -> None:
    """Write and sync files; all are written before the first sync, so that the syncs share their work."""
    opened: list[int] = []
    try:
        for path, data in drafts:
            opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
            blobs_notes.write_all(opened[-1], data)
        for fd in opened:
            os.fsync(fd)
    finally:
        for fd in opened:
            os.close(fd)


def _replace_durably(draft: Path, path: Path) -> None:
    sync_path(draft)
    os.replace(draft, path)
    sync_path(path.parent)


def _disk_error(error: OSError) -> CheloniaError:
    name = os.path.basename(str(error.filename or ""))
    if error.errno in _FULL:
        return CheloniaError(Kind.NO_SPACE, "write", name, "the disk of this Shepherd is full; free space or add disks")
    if error.errno == errno.EROFS:
        return CheloniaError(Kind.READ_ONLY, "write", name, "the disk of this Shepherd is mounted read-only")
    return CheloniaError(Kind.UNAVAILABLE, "disk", name, f"the disk of this Shepherd failed: {error.strerror}")
