"""The Berkeley DB engine: one B-tree in one transactional environment, opened by one process.

Directory: `lock` (held while open), `commits` (the counter), `db/` (the environment: `store.db`, logs, regions), and
`restored` until the first opening. `restored` is empty in a copy made by `backup`; with a cluster's name and generation
it has that cluster begin again from nothing. Settings and reasons: `docs/design/003`.
Invariants:
- `commit` returns only after the log is synced; no commit becomes visible while `reading` is held.
- The counter never runs ahead of the log. The store refuses to open a log that recovers to less.
- It reports a panic once to `on_panic`, which has to end the process: recovery needs a new one.
- Only the writer's thread calls `commit` and `upkeep`.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from berkeleydb import db as bdb

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.checkpoints import Checkpoints, PageWriter
from chelonia.ahash.store.bdb.environment import BdbSettings, Errors, TreeState
from chelonia.ahash.store.bdb.files import CommitCounter, make_private, take_lock
from chelonia.ahash.store.bdb.gate import OneState
from chelonia.ahash.store.port import NeverLate, StoredState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import sync_path

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class BdbStore(NeverLate):
    """A `Store` on Berkeley DB. Opening recovers, and takes the directory for this process alone.

    Args: `on_panic` is called with a reason, from any thread, when only a new process can go on.
    Raises: UNAVAILABLE (another process has the directory), BAD_CONFIG (acknowledged commits are missing),
    INTERNAL (recovery failed).
    """

    def __init__(self, directory: Path, settings: BdbSettings, on_panic: Callable[[str], None]) -> None:
        self._directory = directory
        self._settings = settings
        self._on_panic: Callable[[str], None] = _LOG.info  # until it is open, the opener gets an exception
        self._panicked = False
        self._state = OneState()
        self._logs_kept = threading.Lock()
        self._pages = PageWriter(directory / "db" / environment.TREE, nullcontext(), lambda: self._env)
        self._checkpoints = Checkpoints(settings, self._pages)
        make_private(directory)
        make_private(directory / "db")
        self._lock = take_lock(directory / "lock")
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
        try:  # the hot path of every walk: no context manager
            value: bytes | None = self._handle().get(key)
        except (bdb.DBError, MemoryError) as error:
            raise environment.translate(error, self.panic) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._errors():
            handle = self._handle()
            return [handle.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        with self._errors():
            return environment.scan(self._handle(), start, end, limit)

    def reading(self) -> AbstractContextManager[None]:
        return self._state.reading()

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:

        def read(number: int) -> T:
            with self._errors():
                return work(TreeState(self._handle(), number))

        return self._state.at_once(read)

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        del term
        with self._state.changing():
            self._commit(puts, deletes)
        self._checkpoints.changed(puts)
        self._count(puts)

    def upkeep_due(self) -> bool:
        return self._db is not None and self._checkpoints.is_due()

    def upkeep(self) -> None:
        """Write a checkpoint, remove the logs that it makes superfluous, sync the counter."""
        self._checkpoints.made()
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
        environment.write_backup(target, self._copy)

    def _copy(self, partial: Path) -> None:
        with self._logs_kept, self._errors(full=Kind.NO_SPACE):
            self._handle()
            environment.copy_environment(self._env, partial)

    def free_bytes(self) -> int:
        """Return the bytes of the file system that are free for users other than root."""
        return shutil.disk_usage(self._directory).free

    def close(self) -> None:
        """Wait for a running backup, write a checkpoint and release everything; safe to call twice."""
        self._pages.close()
        with self._logs_kept, self._state.changing():
            if self._db is not None and not self._panicked:
                try:
                    self._env.txn_checkpoint()
                    self._counter.sync()
                except (bdb.DBError, OSError) as error:
                    _LOG.warning("last checkpoint failed, the next start recovers from the log: %s", error)
            self._release()

    def _open_environment(self) -> None:
        restored = (self._directory / "restored").exists()
        env = self._env = environment.make_environment(self._settings, self._on_event)
        recovery = bdb.DB_RECOVER_FATAL if restored else bdb.DB_RECOVER
        with self._errors():
            environment.open_environment(env, self._directory / "db", recovery)
            self._open_tree(env)
            # in any case, not only after a kill: no other replica would fill it
            environment.clear_suspicion(self._directory, self._db, killed=True)
        if restored:
            mark = self._directory / "restored"
            word = mark.read_text("utf-8")
            if word.strip():
                meta.found_again(self, word)
            else:  # generations that began since the backup it does not know: the time of its mark is above them
                meta.raise_generation(self, int(mark.stat().st_mtime))
            (self._directory / "restored").unlink()
            sync_path(self._directory)
            _LOG.info("opened a restored backup: generation %d", meta.read_number(self, layout.META_GENERATION))

    def _open_tree(self, env: Any) -> None:
        tree = environment.new_tree(env)
        txn = env.txn_begin()
        try:
            tree.open(environment.TREE, dbtype=bdb.DB_BTREE, flags=bdb.DB_CREATE | bdb.DB_THREAD, mode=0o600, txn=txn)
        except BaseException:
            txn.abort()
            tree.close()
            raise
        txn.commit()
        self._db = tree

    def _check_counter(self) -> None:
        if self.get(layout.META_GENERATION) is None:
            reached = (0, 0)
        else:
            reached = (meta.read_number(self, layout.META_GENERATION), meta.read_state(self).sequence)
        if reached < self._counter.value:
            cause = (
                f"commit {self._counter.value} was acknowledged, but the log recovers only to {reached}: it is damaged."
                f" Restore a backup, or remove {self._counter.path} to accept the loss"
            )
            raise CheloniaError(Kind.BAD_CONFIG, "ahash", str(self._directory), cause)
        self._counter.note(*reached)

    def _commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        with self._errors():
            tree = self._handle()
            txn = self._env.txn_begin()
            try:
                environment.write(tree, txn, puts, deletes)
            except BaseException:
                txn.abort()
                raise
        with self._errors(Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_UNKNOWN):
            txn.commit(bdb.DB_TXN_SYNC)

    def _count(self, puts: Mapping[bytes, bytes]) -> None:
        """Note a commit in the counter; it is only a witness, so a failure here must not fail the commit."""
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

    def _errors(self, failed: Kind = Kind.INTERNAL, full: Kind = Kind.READ_ONLY) -> Errors:
        return Errors(self.panic, failed, full)

    def panic(self, reason: str) -> None:
        """Refuse everything from now on and call `on_panic`, once."""
        if not self._panicked:
            self._panicked = True
            self._on_panic(reason)

    def _on_event(self, env: Any, event: int, info: Any) -> None:
        del env, info
        if event == bdb.DB_EVENT_PANIC:
            damaged = f"a file in {self._directory / 'db'} is damaged, restore a backup"
            self.panic(f"Berkeley DB panicked: recovery runs at the next start; if it panics again, {damaged}")

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
