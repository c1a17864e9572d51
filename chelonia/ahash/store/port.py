"""Ports of the A-Hash: where bytes are kept, which threads touch them, and when an answer may be given.

A `Store` is an ordered map of bytes with atomic durable commits. It is synchronous: it is called only through an
`Executor`, one writer at a time. `Durability` is the gate every answer passes: commit and acknowledgement are two
things, so that an answer can wait for a majority without the store knowing. One contract suite runs on every `Store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from chelonia.core.cluster.position import Horizon, Position

T = TypeVar("T")


class Reader(Protocol):
    """Read access to an ordered map of bytes; what the engine evaluates over."""

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, or None."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` (key, value) with start <= key < end, in byte order of key."""


class StoredState(Reader, Protocol):
    """What is stored at one moment, for as long as it is held."""

    @property
    def number(self) -> int:
        """Which state of this store it is: what two of the same number hold is the same."""


class Store(Protocol):
    """An ordered map of bytes with atomic, durable commits.

    Every method may raise UNAVAILABLE (closed, or the engine panicked: the process has to restart) and INTERNAL (an
    engine error that left the contents as they were).
    """

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of `keys`."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` (key, value) with start <= key < end, in byte order of key."""

    def reading(self) -> AbstractContextManager[None]:
        """While held, no commit becomes visible: reads inside see one state. Held briefly, not nested."""

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:
        """Run a brief read of one state, as within `reading`, if nobody has to be waited for; None: it was not run.

        May be called on the event loop: it waits for no lock, only for pages that are in no cache. `work` reads what
        it is given, nothing else of this store, and may be run again.
        """

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Apply all or nothing, durable when it returns; deleting an absent key is no error.

        Args: `term`: of a store that is one of a group: see `ReplicatedEngine.commit`.
        Raises: READ_ONLY (no space; nothing changed), OUTCOME_UNKNOWN (failed while syncing).
        """

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        """Run `work`, which may read and `commit`, on the event loop if nobody is waited for; None: it was not run.

        What it commits is visible, and no more: it is synced, and in a group told, by `sync_at_once` or `sync`. Nothing
        else is committed until then. Stores whose answers wait for no other replica never run it.
        """

    def sync_at_once(self) -> bool:
        """Sync what `write_at_once` committed, on the event loop, where that is expected to be brief; else False."""

    def sync(self) -> None:
        """Sync what `write_at_once` committed. Raises: OUTCOME_UNKNOWN."""

    def upkeep_due(self) -> bool:
        """Whether `upkeep` has something to do."""

    def upkeep(self) -> None:
        """Do what the engine needs now and then (a checkpoint, removal of old logs); on the writer's thread."""

    def backup(self, target: str) -> None:
        """Write a complete copy into the new directory `target`, while commits go on.

        The copy holds at least everything committed before the call. Raises: NOT_SUPPORTED, EXISTS, NO_SPACE.
        """

    def free_bytes(self) -> int:
        """Space left for growth."""

    def close(self) -> None:
        """Release everything; safe to call twice."""


class NeverLate:
    """That half of a `Store` which syncs before anything is seen, so that nothing is left to sync later."""

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        """Nothing is run."""
        del work
        return None

    def sync_at_once(self) -> bool:
        """Nothing was left unsynced."""
        return True

    def sync(self) -> None:
        """Nothing was left unsynced."""


class Executor(Protocol):
    """Runs store work off the event loop. Work starts without being awaited; its exceptions arrive in the future."""

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the one writer, after all write work handed over before."""

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` beside the writer; order against other work is not promised."""

    def hand_back(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """On any thread: have `work` called on the event loop, in one order with all that is handed back, results too.

        Args: `at_once` False: what is run on the writer just now has something to tell; with its result is soon enough.
        """

    def catch_up(self) -> None:
        """On the event loop, in nothing that was handed back: have what was handed back called now."""

    def waited(self) -> bool:
        """Whether anything on the calling thread, the event loop's, waited for a disk since this was asked last."""

    async def close(self) -> None:
        """Finish what was handed over, then stop."""


class Durability(Protocol):
    """Decides when what stands at a position may be told to a caller, and tells the process's horizon that it was."""

    @property
    def term(self) -> int | None:
        """The mastership in which alone is committed; None: of a store alone."""

    async def wait(self, position: Position) -> None:
        """Return once everything up to `position` is durable.

        Raises: OUTCOME_UNKNOWN when that can no longer be said.
        """

    def holds(self, position: Position) -> bool:
        """Whether `wait` would return at once; if so it is told what `wait` tells. Raises: OUTCOME_UNKNOWN."""


class LocalDurability:
    """Durable means synced by this one store: a commit that has returned is durable already."""

    term = None

    def __init__(self, horizon: Horizon | None = None) -> None:
        """`horizon`: told of every position answered."""
        self._horizon = horizon or Horizon()

    async def wait(self, position: Position) -> None:
        """Return at once."""
        self._horizon.saw(position)

    def holds(self, position: Position) -> bool:
        """Always."""
        self._horizon.saw(position)
        return True
