"""How a master commits to Berkeley DB: what one commit writes to the log travels together, and what is not synced yet.

A commit is made on the writer's thread, synced when it returns, or on the event loop, and synced after its records have
left: the followers sync meanwhile. One is made after the other, and all are synced before any is told.
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
"""The library asks for haste where a delay would matter."""


class Commits:
    """The commits of one environment. `send` passes a frame (control, record) to all; `panic` is told what is fatal."""

    def __init__(self, send: Callable[[bytes, bytes], None], panic: Callable[[str], None]) -> None:
        self._send = send
        self._panic = panic
        self._mark = TokenMark()
        self._unsynced: deque[tuple[int, LogPosition]] = deque()
        self.brief = Briefness(of_master=True)
        """How long syncs take, on the event loop or the writer's thread."""

    @property
    def late(self) -> bool:
        """Whether what this thread commits is synced later."""
        return self._mark.late

    def synced_later(self, work: Callable[[], T]) -> T:
        """Do `work`: what it commits is not synced."""
        self._mark.late = True
        try:
            return work()
        finally:
            self._mark.late = False

    def make(self, env: Any, tree: Any, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> LogPosition | None:
        """Make one commit and send it; None: it changed nothing. Raises: as `Store.commit`; DBError: none was made."""
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
        """The log was synced just now."""
        self.brief.note(began_s, time.monotonic())

    def gather(self, control: bytes, record: bytes, lsn: tuple[int, int], peer: int, flags: int) -> bool:
        """A frame leaves the library: whether it is part of a commit that this thread makes, and goes with the rest."""
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
        """Send what this thread has gathered."""
        gathered = self._mark.gathered
        frame = gathered.take() if gathered is not None else None
        if frame is not None:
            self._send(*frame)

    def made(self, sequence: int, token: LogPosition) -> None:
        """Remember a commit until it is told."""
        self._unsynced.append((sequence, token))

    def synced(self, term: int) -> Iterator[tuple[int, LogPosition]]:
        """All that was made is synced: what is to be told as `Committed`. Not what a term before this one made."""
        while self._unsynced:
            sequence, token = self._unsynced.popleft()
            if token.term == term:
                yield sequence, token

    @property
    def untold(self) -> bool:
        """Whether something that was made is not told yet."""
        return bool(self._unsynced)
