"""A-Hash services for tests: the same service on the memory twin and on Berkeley DB, with a clock held by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chelonia.ahash.service import AHashService
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.port import Store
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.core.caller import Call, Role
from chelonia.core.ids import Dn, Ms, ObjectId
from chelonia.core.ports.ahash import ChangeType, Condition, ConditionType, Element
from tests.support.memory_store import InlineExecutor, MemoryStore
from tests.support.replicas import GroupOfOne

ENGINES = ("memory", "bdb", "replicated")
SMALL = BdbSettings(cache_bytes=8 << 20, log_file_bytes=4 << 20, log_buffer_bytes=1 << 20)
LIBRARIAN = Call(Dn("/O=Grid/CN=librarian"), (Role.LIBRARIAN,))
OTHER_LIBRARIAN = Call(Dn("/O=Grid/CN=librarian two"), (Role.LIBRARIAN,))


@dataclass
class HandClock:
    """A clock that moves only when a test sets it; a sleep lasts until the clock has passed its end."""

    now: int = 1_700_000_000_000
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def now_ms(self) -> Ms:
        return Ms(self.now)

    def monotonic_ms(self) -> Ms:
        return Ms(self.now)

    async def sleep(self, duration_ms: int) -> None:
        await self._until(self.now + duration_ms)

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> asyncio.Task[None]:
        async def call(end: int) -> None:
            await self._until(end)
            callback()

        return asyncio.create_task(call(self.now + duration_ms))

    async def _until(self, end: int) -> None:
        while self.now < end:
            await self.moved.wait()

    def advance(self, duration_ms: int) -> None:
        self.now += duration_ms
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()


def no_panic(reason: str) -> None:
    raise AssertionError(f"the engine panicked: {reason}")


def open_store(engine: str, directory: Path) -> Store:
    """A store of this engine; a Berkeley DB's files are in `directory`."""
    match engine:
        case "memory":
            return MemoryStore()
        case "replicated":
            return GroupOfOne(directory / "ahash", SMALL)
    return BdbStore(directory / "ahash", SMALL, no_panic)


@asynccontextmanager
async def serving(
    store: Store, clock: HandClock | None = None, settings: AHashSettings | None = None
) -> AsyncIterator[AHashService]:
    """A started service on the store, closed at the end."""
    executor = InlineExecutor() if isinstance(store, MemoryStore) else ThreadExecutor()
    service = AHashService(store, executor, clock or HandClock(), settings or AHashSettings(cluster="test"))
    await service.start()
    try:
        yield service
    finally:
        await service.close()


def put(object_id: str, section: str, prop: str, value: str, *conditions: Condition) -> Element:
    return Element(ObjectId(object_id), ChangeType.SET, section, prop, value, conditions)


def unset(object_id: str, section: str, prop: str, *conditions: Condition) -> Element:
    return Element(ObjectId(object_id), ChangeType.UNSET, section, prop, "", conditions)


def add(object_id: str, section: str, prop: str, amount: int) -> Element:
    return Element(ObjectId(object_id), ChangeType.ADD, section, prop, str(amount))


def delete(object_id: str, *conditions: Condition) -> Element:
    return Element(ObjectId(object_id), ChangeType.DELETE, conditions=conditions)


def check(object_id: str, *conditions: Condition) -> Element:
    return Element(ObjectId(object_id), ChangeType.CHECK, conditions=conditions)


def version_is(version: int) -> Condition:
    return Condition(ConditionType.VERSION, value=str(version), id="version")


def empty(section: str) -> Condition:
    return Condition(ConditionType.EMPTY, section, id="empty")


def is_value(section: str, prop: str, value: str) -> Condition:
    return Condition(ConditionType.IS, section, prop, value, "is")


def isnot_value(section: str, prop: str, value: str) -> Condition:
    return Condition(ConditionType.ISNOT, section, prop, value, "isnot")


def is_set(section: str, prop: str) -> Condition:
    return Condition(ConditionType.ISSET, section, prop, id="isset")


def is_unset(section: str, prop: str) -> Condition:
    return Condition(ConditionType.UNSET, section, prop, id="unset")
