"""The Berkeley DB engine: one B-tree in one transactional environment, opened by one process.

Directory: `lock` (held while open), `commits` (the counter), `db/` (the environment: `store.db`, logs, regions),
`restored` (only in a copy made by `backup`, until it is first opened). Settings and reasons: `docs/design/003`.
Invariants: `commit` returns only after the log is synced; no commit becomes visible while `reading` is held; the
counter never runs ahead of the log, so a log that recovers to less than the counter has lost acknowledged commits and
the store refuses to open. A panic is told once to `on_panic`, whose duty is to end the process: recovery needs a new
one. Only the writer's thread may call `commit` and `upkeep`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from berkeleydb import db as bdb

from chelonia.ahash import layout, meta
from chelonia.core.errors import CheloniaError, Kind

_LOG = logging.getLogger(__name__)

PAGE_BYTES: Final = 8192
"""Two disk blocks: about fifty entries of a collection."""
LOCKS_MAX: Final = 50_000
"""Locks, lockers and locked pages: a full batch (5 000 elements) touches far fewer pages."""


@dataclass(frozen=True, slots=True)
class BdbSettings:
    """Args:
    cache_bytes: page cache; a quarter of the memory of a dedicated host.
    log_file_bytes, log_buffer_bytes: size of one log file and of the buffer before it.
    checkpoint_log_bytes, checkpoint_interval_ms: a checkpoint follows so much log, or so long after a change.
    """

    cache_bytes: int = 256 * 1024 * 1024
    log_file_bytes: int = 16 * 1024 * 1024
    log_buffer_bytes: int = 2 * 1024 * 1024
    checkpoint_log_bytes: int = 4 * 1024 * 1024
    checkpoint_interval_ms: int = 30_000


class BdbStore:
    """A `Store` on Berkeley DB. Opening recovers, and takes the directory for this process alone.

    Args: `on_panic` is called with a reason, from any thread, when only a new process can go on.
    Raises: UNAVAILABLE (another process has the directory), BAD_CONFIG (acknowledged commits are missing),
    INTERNAL (recovery failed).
    """

    def __init__(self, directory: Path, settings: BdbSettings, on_panic: Callable[[str], None]) -> None:
        self._directory = directory
        self._settings = settings
        self._on_panic: Callable[[str], None] = _LOG.info  # until it is open, whoever opens it is told by exception
        self._panicked = False
        self._state = threading.Lock()
        self._turnstile = threading.Lock()
        self._logs_kept = threading.Lock()
        self._log_bytes = 0
        self._checkpoint_s = time.monotonic()
        _make_private(directory)
        _make_private(directory / "db")
        self._lock = _take_lock(directory / "lock")
        self._env: Any = None
        self._db: Any = None
        try:
            self._counter = CommitCounter(directory / "commits")
            self._open_environment()
            self._check_counter()
        except BaseException as error:
            self._release()
            if self._panicked:
                cause = (
                    f"recovery failed, a file in {directory / 'db'} is damaged: restore a backup ({error.__cause__})"
                )
                raise CheloniaError(Kind.INTERNAL, "ahash", str(directory), cause) from error
            raise
        self._on_panic = on_panic

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, or None."""
        try:  # the hot path of every walk: no context manager
            value: bytes | None = self._handle().get(key)
        except (bdb.DBError, MemoryError) as error:
            raise self.translate(error, Kind.INTERNAL, Kind.READ_ONLY) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of `keys`."""
        with self._errors():
            handle = self._handle()
            return [handle.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` (key, value) with start <= key < end, in order."""
        found: list[tuple[bytes, bytes]] = []
        with self._errors():
            cursor = self._handle().cursor()
            try:
                row = cursor.set_range(start) if limit else None
                while row is not None and row[0] < end:
                    found.append(row)
                    row = cursor.next() if len(found) < limit else None
            finally:
                cursor.close()
        return found

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold one state."""
        with self._turnstile:  # a waiting commit holds it, so that readers in turn cannot starve it
            pass
        with self._state:
            yield

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        """Apply all or nothing, synced when it returns. See `Store.commit`."""
        with self._turnstile:
            self._state.acquire()
        try:
            self._commit(puts, sorted(deletes))
        finally:
            self._state.release()
        self._log_bytes += sum(map(len, puts)) + sum(map(len, puts.values()))
        self._count(puts)

    def upkeep_due(self) -> bool:
        """Whether a checkpoint is due."""
        if not self._log_bytes or self._db is None:
            return False
        idle_ms = (time.monotonic() - self._checkpoint_s) * 1000
        return (
            self._log_bytes >= self._settings.checkpoint_log_bytes or idle_ms >= self._settings.checkpoint_interval_ms
        )

    def upkeep(self) -> None:
        """Write a checkpoint, remove the logs it makes superfluous, sync the counter."""
        self._checkpoint_s = time.monotonic()
        self._log_bytes = 0
        with self._errors():
            self._handle()
            self._env.txn_checkpoint()
            if self._logs_kept.acquire(blocking=False):  # a backup in progress still needs them
                try:
                    self._env.log_archive(bdb.DB_ARCH_REMOVE)
                finally:
                    self._logs_kept.release()
        self._counter.sync()

    def backup(self, target: str) -> None:
        """Write a complete copy into the new directory `target`. See `Store.backup`.

        Opened in its place, the copy recovers and begins a new generation.
        """
        final = Path(target)
        partial = final.with_name(final.name + ".partial")
        if final.exists() or partial.exists():
            cause = "it exists: name a new directory, and remove what an interrupted backup left (.partial)"
            raise CheloniaError(Kind.EXISTS, "backup", target, cause)
        try:
            self._copy(partial)
            partial.rename(final)
            _sync_path(final.parent)
        except (CheloniaError, OSError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, CheloniaError):
                raise
            kind = Kind.NO_SPACE if error.errno == errno.ENOSPC else Kind.INTERNAL
            raise CheloniaError(kind, "backup", target, f"cannot write the copy: {error}") from error

    def _copy(self, partial: Path) -> None:
        _make_private(partial)
        with self._logs_kept, self._errors(full=Kind.NO_SPACE):
            self._handle()
            self._env.backup(str(partial / "db"), bdb.DB_CREATE | bdb.DB_EXCL)
        (partial / "restored").touch(mode=0o600)
        for path in (*sorted((partial / "db").iterdir()), partial / "db", partial):
            _sync_path(path)

    def free_bytes(self) -> int:
        """Free space of the file system, for whoever is not root."""
        space = os.statvfs(self._directory)
        return space.f_bavail * space.f_frsize

    def close(self) -> None:
        """Write a checkpoint and release everything; safe to call twice."""
        with self._state:
            if self._db is not None and not self._panicked:
                try:
                    self._env.txn_checkpoint()
                    self._counter.sync()
                except (bdb.DBError, OSError) as error:
                    _LOG.warning("last checkpoint failed, the next start recovers from the log: %s", error)
            self._release()

    def _open_environment(self) -> None:
        restored = (self._directory / "restored").exists()
        env = self._env = bdb.DBEnv()
        env.set_get_returns_none(2)
        env.set_event_notify(self._on_event)
        size = self._settings.cache_bytes
        env.set_cachesize(size >> 30, size & ((1 << 30) - 1), 1)
        env.set_lg_bsize(self._settings.log_buffer_bytes)
        env.set_lg_max(self._settings.log_file_bytes)
        env.set_lk_detect(bdb.DB_LOCK_MINWRITE)
        env.set_lk_max_locks(LOCKS_MAX)
        env.set_lk_max_objects(LOCKS_MAX)
        env.set_lk_max_lockers(LOCKS_MAX)
        flags = bdb.DB_CREATE | bdb.DB_INIT_TXN | bdb.DB_INIT_LOG | bdb.DB_INIT_MPOOL | bdb.DB_INIT_LOCK | bdb.DB_THREAD
        flags |= bdb.DB_PRIVATE | (bdb.DB_RECOVER_FATAL if restored else bdb.DB_RECOVER)
        with self._errors():
            env.open(str(self._directory / "db"), flags, 0o600)
            self._open_tree(env)
        if restored:
            meta.raise_generation(self)
            (self._directory / "restored").unlink()
            _sync_path(self._directory)
            _LOG.info("opened a restored backup: generation %d", meta.read_number(self, layout.META_GENERATION))

    def _open_tree(self, env: Any) -> None:
        tree = bdb.DB(env)
        tree.set_get_returns_none(2)
        tree.set_pagesize(PAGE_BYTES)
        tree.set_flags(bdb.DB_CHKSUM)
        txn = env.txn_begin()
        try:
            tree.open("store.db", dbtype=bdb.DB_BTREE, flags=bdb.DB_CREATE | bdb.DB_THREAD, mode=0o600, txn=txn)
        except BaseException:
            txn.abort()
            tree.close()
            raise
        txn.commit()
        self._db = tree

    def _check_counter(self) -> None:
        if self.get(layout.META_GENERATION) is None:
            here = (0, 0)
        else:
            here = (meta.read_number(self, layout.META_GENERATION), meta.read_state(self).sequence)
        if here < self._counter.value:
            cause = (
                f"commit {self._counter.value} was acknowledged, but the log recovers only to {here}: it is damaged."
                f" Restore a backup, or remove {self._counter.path} to accept the loss"
            )
            raise CheloniaError(Kind.BAD_CONFIG, "ahash", str(self._directory), cause)
        self._counter.note(*here)

    def _commit(self, puts: Mapping[bytes, bytes], deletes: list[bytes]) -> None:
        with self._errors():
            tree = self._handle()
            txn = self._env.txn_begin()
            try:
                for key in sorted(puts):
                    tree.put(key, puts[key], txn=txn)
                for key in deletes:
                    _delete(tree, key, txn)
            except BaseException:
                txn.abort()
                raise
        with self._errors(Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_UNKNOWN):
            txn.commit(bdb.DB_TXN_SYNC)

    def _count(self, puts: Mapping[bytes, bytes]) -> None:
        """Tell the counter; it is only a witness, so a failure here must not fail what is committed."""
        state, generation = puts.get(layout.META_STATE), puts.get(layout.META_GENERATION)
        known = self._counter.value
        sequence = known[1] if state is None else layout.decode_state(state).sequence
        try:
            self._counter.note(known[0] if generation is None else int(layout.decode_value(generation)), sequence)
        except OSError as error:
            _LOG.warning("the commit counter could not be written: %s", error)

    def _handle(self) -> Any:
        if self._db is None or self._panicked:
            cause = "the store is closed or its engine panicked; the process restarts: retry"
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", cause)
        return self._db

    def _errors(self, failed: Kind = Kind.INTERNAL, full: Kind = Kind.READ_ONLY) -> _Errors:
        return _Errors(self, failed, full)

    def translate(self, error: BaseException, failed: Kind, full: Kind) -> CheloniaError:
        """Turn an exception of Berkeley DB into ours: `full` when there is no space, else `failed`; a panic is told."""
        if isinstance(error, bdb.DBRunRecoveryError):
            self.panic(f"Berkeley DB: {error}")
            kind = Kind.OUTCOME_UNKNOWN if failed is Kind.OUTCOME_UNKNOWN else Kind.UNAVAILABLE
            cause = "the engine panicked; the process restarts: retry with the same request key"
            return CheloniaError(kind, "ahash", "store", cause)
        if isinstance(error, bdb.DBNoSpaceError):
            cause = "no space left on the metadata disk: free space or enlarge it; reading goes on"
            return CheloniaError(full, "ahash", "store", cause)
        return CheloniaError(failed, "ahash", "store", f"Berkeley DB: {error}")

    def panic(self, reason: str) -> None:
        """Refuse everything from now on and tell `on_panic`, once."""
        if not self._panicked:
            self._panicked = True
            self._on_panic(reason)

    def _on_event(self, env: Any, event: int, info: Any) -> None:
        del env, info
        if event == bdb.DB_EVENT_PANIC:
            self.panic("Berkeley DB panicked: restart, recovery runs at start")

    def _release(self) -> None:
        for handle in (self._db, self._env):
            try:
                if handle is not None:
                    handle.close()
            except bdb.DBError as error:
                level = logging.INFO if self._panicked else logging.WARNING
                _LOG.log(level, "closing Berkeley DB: %s", error)
        self._db = self._env = None
        if hasattr(self, "_counter"):
            self._counter.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _Errors:
    """Turns Berkeley DB's exceptions into ours: `failed` for most, `full` when there is no space."""

    __slots__ = ("_failed", "_full", "_store")

    def __init__(self, store: BdbStore, failed: Kind, full: Kind) -> None:
        self._store = store
        self._failed = failed
        self._full = full

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (bdb.DBError, MemoryError)):
            raise self._store.translate(error, self._failed, self._full) from error


class CommitCounter:
    """The number of the last commit, kept outside the environment, to notice a log that lost its end.

    Two slots of 64 bytes, written in turn and in place, each one line: `chelonia-commits 1 <generation> <sequence>
    <CRC-32 of what stands before it>`. The larger valid one counts. Written after every commit, synced at checkpoints:
    after a power loss it may be behind, never ahead.
    """

    SLOT_BYTES: Final = 64
    SECTOR_BYTES: Final = 512

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._next = 0
        self.value = (0, 0)
        found = [parse_slot(os.pread(self._file, self.SLOT_BYTES, n * self.SECTOR_BYTES)) for n in (0, 1)]
        if os.fstat(self._file).st_size == 0:
            os.pwrite(self._file, b"\0" * 2 * self.SECTOR_BYTES, 0)
            self.sync()
        for slot, value in enumerate(found):
            if value is not None and value >= self.value:
                self.value, self._next = value, 1 - slot

    def note(self, generation: int, sequence: int) -> None:
        """Write the number of a commit that is synced."""
        if (generation, sequence) != self.value:
            os.pwrite(self._file, format_slot(generation, sequence), self._next * self.SECTOR_BYTES)
            self.value, self._next = (generation, sequence), 1 - self._next

    def sync(self) -> None:
        """Put the counter on stable storage."""
        if self._file >= 0:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Release the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def format_slot(generation: int, sequence: int) -> bytes:
    """One slot of the counter, padded with blanks to 64 bytes."""
    text = f"chelonia-commits 1 {generation} {sequence} "
    return f"{text}{zlib.crc32(text.encode()):08x}\n".encode().ljust(CommitCounter.SLOT_BYTES)


def parse_slot(data: bytes) -> tuple[int, int] | None:
    """The (generation, sequence) of a slot, None when it is empty or damaged."""
    words = data.split()
    if len(words) != 5 or not (words[2].isdigit() and words[3].isdigit()):
        return None
    generation, sequence = int(words[2]), int(words[3])
    return (generation, sequence) if format_slot(generation, sequence) == data else None


def _delete(tree: Any, key: bytes, txn: Any) -> None:
    try:
        tree.delete(key, txn=txn)
    except bdb.DBNotFoundError:
        return


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)


def _take_lock(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        cause = f"process {owner} has this directory open: stop it, or give each A-Hash its own directory"
        raise CheloniaError(Kind.UNAVAILABLE, "ahash", str(path.parent), cause) from error
    os.pwrite(lock, f"{os.getpid():<31}\n".encode(), 0)
    return lock


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
