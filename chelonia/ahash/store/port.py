"""Ports of the A-Hash: where bytes are kept, which threads touch them, and when an answer may leave.

A `Store` is an ordered map of bytes with atomic durable commits. It is synchronous: callers reach it through an
`Executor`, one writer at a time, but for its `..._at_once`. Every answer passes the gate `Durability`, which may wait
for a majority; the store knows nothing of that. One contract suite runs on every `Store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from chelonia.core.cluster.position import Horizon, Position

T = TypeVar("T")


class Reader(Protocol):
    """Read access to an ordered map of bytes; the engine evaluates over one."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` (key, value) with start <= key < end, in byte order of key."""


class StoredState(Reader, Protocol):
    """The contents of a store at one moment, for as long as somebody holds them."""

    @property
    def number(self) -> int:
        """Number of this state in its store; states of the same number have the same contents."""


class Store(Reader, Protocol):
    """An ordered map of bytes with atomic, durable commits.

    Every method may raise UNAVAILABLE (closed, or the engine panicked: the process has to restart). Every method may
    raise INTERNAL (an engine error that left the contents as they were).
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of `keys`."""

    def reading(self) -> AbstractContextManager[None]:
        """Keep commits invisible while held: reads inside see one state. Hold it briefly, and do not nest it."""

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:
        """Run a brief read of one state, as within `reading`, unless it had to wait for a lock; None: not run.

        May be called on the event loop: it waits only for pages that are in no cache. `work` reads only its argument,
        nothing else of this store, and may run again.
        """

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Apply all or nothing, durable when it returns; deleting an absent key is no error.

        Args: `term`: for a store in a group, see `ReplicatedEngine.commit`.
        Raises: READ_ONLY (no space; nothing changed), OUTCOME_UNKNOWN (failed while syncing).
        """

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        """Run `work`, which may read and `commit`, on the event loop unless it had to wait for a lock; None: not run.

        Its commits are visible, no more: `sync_at_once` or `sync` syncs and reports them, before any other commit.
        Stores whose answers wait for no other replica never run it.
        """

    def sync_at_once(self) -> bool:
        """Sync the commits of `write_at_once` on the event loop if likely to be brief. Return whether it did."""

    def sync(self) -> None:
        """Sync the commits of `write_at_once`. Raises: OUTCOME_UNKNOWN."""

    def upkeep_due(self) -> bool:
        """Whether `upkeep` has something to do."""

    def upkeep(self) -> None:
        """Do what the engine needs now and then (a checkpoint, removal of old logs); on the writer's thread."""

    def backup(self, target: str) -> None:
        """Write a complete copy into the new directory `target`, while commits go on.

        The copy holds at least everything committed before the call. Raises: NOT_SUPPORTED, EXISTS, NO_SPACE.
        """

    def free_bytes(self) -> int:
        """Return the bytes left for growth."""

    def close(self) -> None:
        """Release everything; safe to call twice."""


class NeverLate:
    """The late-sync methods of a `Store` that syncs every commit before it is visible: they do nothing."""

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        """Run nothing; return None."""
        del work
        return None

    def sync_at_once(self) -> bool:
        """Return True: every commit is synced."""
        return True

    def sync(self) -> None:
        """Do nothing: every commit is synced."""


class Executor(Protocol):
    """Runs store work off the event loop. Work starts without being awaited; its exceptions arrive in the future."""

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the one writer, after all write work handed over before."""

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` beside the writer; order against other work is not promised."""

    def run_apart(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run `work`, which takes long, on a thread of its own: no reader or writer waits for it."""

    def hand_back(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """Have `work` called on the event loop, in one order with results and all else handed back. On any thread.

        Args: `at_once`: False lets it come with the result of the work that the writer is running.
        """

    def catch_up(self) -> None:
        """Call all work handed back so far. On the event loop, but not inside such work."""

    def waited(self) -> bool:
        """Return whether the calling thread, the event loop's, waited for a disk since the last call."""

    async def close(self) -> None:
        """Finish the work handed over, then stop."""


class Durability(Protocol):
    """Decides when the answer at a position may leave, and notes that position in the process's horizon."""

    @property
    def term(self) -> int | None:
        """The only term in which to commit; None for a store alone."""

    async def wait(self, position: Position) -> None:
        """Return once everything up to `position` is durable.

        Raises: OUTCOME_UNKNOWN when that can no longer be known.
        """

    def holds(self, position: Position) -> bool:
        """Return whether `wait` would return at once; if so, note the position as it does. Raises: OUTCOME_UNKNOWN."""


class LocalDurability:
    """Durable means synced by this one store: a commit that has returned is durable already."""

    term = None

    def __init__(self, horizon: Horizon | None = None) -> None:
        """Args: `horizon`: notes every position answered."""
        self._horizon = horizon or Horizon()

    async def wait(self, position: Position) -> None:
        """Return at once."""
        self._horizon.saw(position)

    def holds(self, position: Position) -> bool:
        """Return True."""
        self._horizon.saw(position)
        return True
