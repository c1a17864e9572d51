"""An A-Hash in memory on virtual time, with crashes and lost answers, and ways of breaking its promises.

Unbroken, it is the production service over the memory twin. Each way of breaking it is a plausible mistake: answers
before the commit is durable, reads from a cache, forgotten request keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from chelonia.ahash.service import AHashService
from chelonia.ahash.settings import AHashSettings
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.ahash import Element, TransactOutcome
from tests.history.recorder import Plan, Ports, Recorder, Registers, Times
from tests.history.records import Fault, History
from tests.sim.virtual_loop import run_virtual
from tests.support.ahash import LIBRARIAN
from tests.support.clocks import VirtualClock
from tests.support.memory_store import InlineExecutor, MemoryStore

T = TypeVar("T")

DELAY_MS = (0.2, 5.0)
CRASH_EVERY_MS = (100.0, 300.0)
DOWN_MS = 50


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Mistakes of the A-Hash.

    Args:
        behind: so many commits are answered before they are durable.
        stale_reads: for so many reads of a key the first one's answer is given again.
        forgets_keys: a repeated request is carried out again.
    """

    behind: int = 0
    stale_reads: int = 0
    forgets_keys: bool = False


class WriteBehindStore:
    """A `Store` whose last `behind` commits are seen by everybody and lost in a crash."""

    def __init__(self, behind: int, durable: MemoryStore) -> None:
        self._durable = durable
        self._seen = MemoryStore(dict(durable.scan(b"", b"\xff" * 9, 1 << 30))) if behind else durable
        self._behind = behind
        self._waiting: deque[tuple[dict[bytes, bytes], list[bytes]]] = deque()
        self.get = self._seen.get
        self.get_many = self._seen.get_many
        self.scan = self._seen.scan
        self.reading = self._seen.reading
        self.at_once = self._seen.at_once
        self.write_at_once = self._seen.write_at_once
        self.upkeep_due = self._seen.upkeep_due
        self.upkeep = self._seen.upkeep
        self.backup = self._seen.backup
        self.free_bytes = self._seen.free_bytes
        self.close = self._seen.close

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Show the change; make an older one durable."""
        gone = list(deletes)
        self._seen.commit(puts, gone)
        if self._behind:
            self._waiting.append((dict(puts), gone))
            if len(self._waiting) > self._behind:
                self._durable.commit(*self._waiting.popleft())

    def crash(self) -> MemoryStore:
        """Refuse everything from now on; returns the durable store."""
        self._seen.close()
        return self._durable.reopened()


class FragileAHash:
    """An A-Hash whose process can crash: calls under way break off, and it comes back with its durable data."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._store = WriteBehindStore(mistakes.behind, MemoryStore())
        self._service: AHashService | None = None
        self._under_way: dict[int, asyncio.Task[object]] = {}
        self._numbers = itertools.count()

    async def start(self) -> None:
        settings = AHashSettings(cluster="broken")
        self._service = AHashService(self._store, InlineExecutor(), VirtualClock(), settings)
        await self._service.start()

    async def crash(self) -> None:
        """Kill it in the midst of its calls."""
        service, self._service = self._service, None
        assert service is not None
        for task in list(self._under_way.values()):
            task.cancel()
        durable = self._store.crash()
        await service.close()
        self._store = WriteBehindStore(self._mistakes.behind, durable)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        return await self._run(self._serving().get(_librarian(call), ids, needed))

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        own = RequestKey("") if self._mistakes.forgets_keys else key
        return await self._run(self._serving().transact(_librarian(call), own, elements, memo))

    async def recall(self, call: Call, key: RequestKey) -> TransactOutcome | None:
        return await self._run(self._serving().recall(_librarian(call), key))

    def _serving(self) -> AHashService:
        if self._service is None:
            raise CheloniaError(Kind.NETWORK, cause="connection refused")
        return self._service

    async def _run(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        number = next(self._numbers)
        self._under_way[number] = task
        try:
            await asyncio.wait((task,))
        finally:
            del self._under_way[number]
        if task.cancelled():
            raise CheloniaError(Kind.NETWORK, cause="connection reset")
        return task.result()


class Line:
    """The way to an A-Hash: takes time both ways, and loses some answers."""

    def __init__(self, port: Registers, chance: random.Random, lost: float = 0.05) -> None:
        self._port = port
        self._chance = chance
        self._lost = lost

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        await self._delay()
        return await self._back(await self._port.get(call, ids, needed))

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        await self._delay()
        return await self._back(await self._port.transact(call, key, elements, memo))

    async def recall(self, call: Call, key: RequestKey) -> TransactOutcome | None:
        await self._delay()
        return await self._back(await self._port.recall(call, key))

    async def _delay(self) -> None:
        await asyncio.sleep(self._chance.uniform(*DELAY_MS) / 1000)

    async def _back(self, answer: T) -> T:
        await self._delay()
        if self._chance.random() < self._lost:
            raise CheloniaError(Kind.TIMEOUT, cause="no answer")
        return answer


class CachingPort:
    """A port that repeats the answer to a read so many times, whatever has been written meanwhile."""

    def __init__(self, port: Registers, times: int) -> None:
        self._port = port
        self._times = times
        self._kept: dict[ObjectId, tuple[int, tuple[StoredObject, ...]]] = {}
        self.transact = port.transact
        self.recall = port.recall

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        [asked] = ids
        left, answer = self._kept.get(asked, (0, ()))
        if left == 0:
            left, answer = self._times, await self._port.get(call, ids, needed)
        self._kept[asked] = (left - 1, answer)
        return answer


def record(mistakes: Mistakes, seed: int = 1, operations: int = 1200) -> History:
    """Record so many operations of eight clients on it, under crashes and with lost answers, on virtual time."""
    return run_virtual(_record(mistakes, seed, operations))


async def _record(mistakes: Mistakes, seed: int, operations: int) -> History:
    ahash, chance, stamps = FragileAHash(mistakes), random.Random(seed), itertools.count(1)
    await ahash.start()
    lines: list[Registers] = [Line(ahash, random.Random(f"{seed}/{number}")) for number in range(2)]
    if mistakes.stale_reads:
        lines = [CachingPort(line, mistakes.stale_reads) for line in lines]
    plan = Plan("memory", seed, patience_ms=(10_000, 30), pause_ms=5)
    recorder = Recorder(Ports(lines), plan, Times(VirtualClock(), lambda: next(stamps)))
    faults: list[Fault] = []
    crashing = asyncio.create_task(_crash_often(ahash, chance, faults, stamps))
    try:
        await recorder.run(lambda: len(recorder.operations) < operations)
    finally:
        crashing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await crashing
    return History(tuple(recorder.operations), tuple(faults))


async def _crash_often(
    ahash: FragileAHash, chance: random.Random, faults: list[Fault], stamps: itertools.count[int]
) -> None:
    while True:
        await asyncio.sleep(chance.uniform(*CRASH_EVERY_MS) / 1000)
        begin = next(stamps)
        await ahash.crash()
        await asyncio.sleep(DOWN_MS / 1000)
        await ahash.start()
        faults.append(Fault("crashed the A-Hash", begin, next(stamps)))


def _librarian(call: Call) -> Call:
    return Call(LIBRARIAN.dn, LIBRARIAN.roles, request_id=call.request_id)
