"""How a master commits to Berkeley DB: it sends the log records of one commit together, and remembers unsynced ones.

On the writer's thread a commit is synced when it returns. On the event loop it is synced after its records have left,
while the followers sync. Commits are made one after the other, and reported only when all of them are synced.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from berkeleydb import db as bdb

from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.environment import Errors
from chelonia.ahash.store.bdb.frames import LOG, Bundle, TokenMark
from chelonia.ahash.store.bdb.work import Briefness
from chelonia.ahash.store.replicated_port import LogPosition, frame_term
from chelonia.core import bounds
from chelonia.core.errors import Kind

T = TypeVar("T")
_ALL: Final = bdb.DB_EID_BROADCAST
_PERMANENT: Final = bdb.DB_REP_PERMANENT
_HASTE: Final = bdb.DB_REP_PERMANENT | bdb.DB_REP_NOBUFFER
"""Flags of a frame that the library wants sent without delay."""


class Commits:
    """The commits of one environment. `send` passes a frame (control, record) to all; `panic` takes a fatal reason."""

    def __init__(self, send: Callable[[bytes, bytes], None], panic: Callable[[str], None]) -> None:
        self._send = send
        self._panic = panic
        self._mark = TokenMark()
        self._unsynced: deque[tuple[int, LogPosition]] = deque()
        self.brief = Briefness(of_master=True)
        """Whether the next sync is likely to be brief, on the event loop or the writer's thread."""

    @property
    def late(self) -> bool:
        """Whether commits of this thread are synced later."""
        return self._mark.late

    def synced_later(self, work: Callable[[], T]) -> T:
        """Run `work` without syncing its commits."""
        self._mark.late = True
        try:
            return work()
        finally:
            self._mark.late = False

    def make(self, env: Any, tree: Any, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> LogPosition | None:
        """Make one commit and send it; None: it changed nothing. Raises: as `Store.commit`; DBError: not committed."""
        mark = self._mark
        mark.gathered = Bundle()
        try:
            txn = env.txn_begin()
            try:
                environment.write(tree, txn, puts, deletes)
            except BaseException:
                txn.abort()
                raise
            mark.take()
            began_s = time.monotonic()
            with Errors(self._panic, Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_UNKNOWN):
                txn.commit(bdb.DB_TXN_NOSYNC if mark.late else bdb.DB_TXN_SYNC)
            if not mark.late:
                self.note_sync(began_s)
            return mark.take()
        finally:
            self.send_gathered()
            mark.gathered = None

    def note_sync(self, began_s: float) -> None:
        """Note the duration of a sync that has just ended."""
        self.brief.note(began_s, time.monotonic())

    def gather(self, control: bytes, record: bytes, lsn: tuple[int, int], peer: int, flags: int) -> bool:
        """Gather a frame that leaves the library if it belongs to this thread's commit; return whether it does."""
        if flags & _PERMANENT:
            self._mark.token = LogPosition(frame_term(control), lsn[0], lsn[1])
        gathered = self._mark.gathered
        if gathered is None or control[16:20] != LOG or peer != _ALL:
            return False
        gathered.add(control, record)
        if flags & _HASTE or gathered.size >= bounds.REPLICA_BUNDLE_BYTES:
            self.send_gathered()
        return True

    def send_gathered(self) -> None:
        """Send the frames that this thread has gathered."""
        gathered = self._mark.gathered
        frame = gathered.take() if gathered is not None else None
        if frame is not None:
            self._send(*frame)

    def made(self, sequence: int, token: LogPosition) -> None:
        """Remember a commit until `synced` reports it."""
        self._unsynced.append((sequence, token))

    def synced(self, term: int) -> Iterator[tuple[int, LogPosition]]:
        """Forget all commits made, now synced; yield those of `term`, to report as `SyncedCommit`."""
        while self._unsynced:
            sequence, token = self._unsynced.popleft()
            if token.term == term:
                yield sequence, token

    @property
    def untold(self) -> bool:
        """Whether a commit waits to be reported."""
        return bool(self._unsynced)
