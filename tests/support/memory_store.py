"""The memory twin: a store in a dictionary, and an executor that runs work at once.

For tests and the simulator. `reopened` models a crash: only commits that had returned are there, and the crashed store
refuses everything from then on.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from chelonia.ahash.store.port import NeverLate, StoredState
from chelonia.core.errors import CheloniaError, Kind

T = TypeVar("T")


class SortedRecords:
    """Records in memory, in the order of their keys."""

    def __init__(self, values: Mapping[bytes, bytes] | None = None) -> None:
        self.values = dict(values or {})
        self._keys = sorted(self.values)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` (key, value) with start <= key < end, in order."""
        first = bisect_left(self._keys, start)
        last = min(bisect_left(self._keys, end), first + limit)
        return [(key, self.values[key]) for key in self._keys[first:last]]

    def write(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        """Put and delete; deleting an absent key is no error."""
        for key, value in puts.items():
            if key not in self.values:
                insort(self._keys, key)
            self.values[key] = value
        for key in deletes:
            if self.values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]


class MemoryStore(NeverLate):
    """A `Store` in memory, its own `StoredState`. `free`: the result of `free_bytes`; assign it for a full disk."""

    def __init__(self, contents: Mapping[bytes, bytes] | None = None) -> None:
        self._contents = SortedRecords(contents)
        self._open = True
        self.number = 0
        self.free = 1 << 40

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, or None."""
        self._check_open()
        return self._contents.values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values in the order of `keys`."""
        self._check_open()
        return [self._contents.values.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` (key, value) with start <= key < end, in order."""
        self._check_open()
        return self._contents.scan(start, end, limit)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold one state: nothing else runs here meanwhile."""
        yield

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:
        return work(self)

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Apply all."""
        self._check_open()
        self.number += 1
        self._contents.write(puts, deletes)

    def upkeep_due(self) -> bool:
        return False

    def upkeep(self) -> None:
        """Nothing to do."""

    def backup(self, target: str) -> None:
        """Refuse: memory has no directory. Raises: NOT_SUPPORTED."""
        raise CheloniaError(Kind.NOT_SUPPORTED, "backup", target, "a store in memory has no files to copy")

    def free_bytes(self) -> int:
        """The value of `free`."""
        return self.free

    def close(self) -> None:
        self._open = False

    def reopened(self) -> MemoryStore:
        """Crash, and come back with the committed records."""
        self.close()
        return MemoryStore(self._contents.values)

    def _check_open(self) -> None:
        if not self._open:
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", "the store is closed: retry elsewhere or later")


class InlineExecutor:
    """An `Executor` that runs work at once on the calling thread: for stores that never block."""

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return done_at_once(work)

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return done_at_once(work)

    def run_apart(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return done_at_once(work)

    def hand_back(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        del at_once
        work()

    def catch_up(self) -> None:
        """Nothing waits."""

    def waited(self) -> bool:
        return False

    async def close(self) -> None:
        """Nothing to stop."""


def done_at_once(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do work on the calling thread; its error becomes the future's."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(work())
    except CheloniaError as error:
        future.set_exception(error)
    return future
