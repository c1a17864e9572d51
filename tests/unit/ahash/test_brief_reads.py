"""Reads in the event loop of an A-Hash: what may take long is left to the readers, whatever a user has stored."""

from __future__ import annotations

import pytest

from chelonia.ahash.service import BRIEF_OBJECTS, BRIEF_READ_MS, AHashService
from chelonia.ahash.store import layout
from chelonia.core.ids import BLOB_PREFIX, ObjectId
from chelonia.core.metadata import Filter, Needed
from chelonia.core.ports.ahash import Walk
from tests.support.ahash import LIBRARIAN, HandClock
from tests.support.memory_store import MemoryStore
from tests.unit.ahash.test_service import SETTINGS, CountingExecutor

US_OF_RECORD, BYTES_OF_US = 5, 60
"""Microseconds to find a record, and bytes that one decodes meanwhile, as measured."""
DEEP = tuple(Walk(ObjectId(f"o{n}-0"), (("a", "a/"),) * 250) for n in range(40))


class CostlyStore(MemoryStore):
    """A store whose reads take time on `clock`."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self._clock, self._us = clock, 0

    def get(self, key: bytes) -> bytes | None:
        data = super().get(key)
        self._spend(1, len(data or b""))
        return data

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows = super().scan(start, end, limit)
        self._spend(1 + len(rows) // 2, sum(len(value) for _, value in rows))
        return rows

    def _spend(self, records: int, size: int) -> None:
        self._us += records * US_OF_RECORD + size // BYTES_OF_US
        self._clock.now, self._us = self._clock.now + self._us // 1000, self._us % 1000


def named(name: str, count: int) -> tuple[Walk, ...]:
    return tuple(Walk(ObjectId(f"{name}{n}"), ()) for n in range(count))


@pytest.mark.parametrize(
    ("walks", "needed", "brief"),
    [
        (named("wide", 1), (), True),
        (named("wide", BRIEF_OBJECTS), (Needed("entry"), Needed("entries", "a")), True),
        (named("wide", 20), (), False),
        (named("user", 20), (Needed("entry"),), False),
        (DEEP[:1], (), True),
        (DEEP, (Needed("entry"),), False),
        (named(BLOB_PREFIX, BRIEF_OBJECTS), (), True),
        (named("wide", BRIEF_OBJECTS + 1), (Needed("entry"),), False),
    ],
    ids=["one", "named", "wide", "metadata", "a path", "paths", "blobs", "many"],
)
async def test_what_takes_long_to_read_is_the_readers(walks: tuple[Walk, ...], needed: Filter, *, brief: bool) -> None:
    """One `stat` of 200 collections, or deep paths, by any user stopped a master's loop for as long as its lease."""
    executor, clock = CountingExecutor(), HandClock()
    store = CostlyStore(clock)
    service = AHashService(store, executor, clock, SETTINGS)
    await service.start()
    store.commit(_large_contents(), ())
    ids = tuple(walk.start for walk in walks)
    asked = [("walk", walks), *([("get", ids)] if walks[0] is not DEEP[0] else ())]
    for method, items in asked:
        before, began_ms = executor.reads, clock.now
        found = service.at_once(LIBRARIAN, method, (items, needed))
        assert (found is not None) is brief
        assert clock.now - began_ms <= BRIEF_READ_MS + 10
        assert len(await getattr(service, method)(LIBRARIAN, items, needed)) == len(items)
        assert (executor.reads == before) is brief
    await service.close()


async def test_reads_that_take_long_do_not_follow_each_other_in_the_loop() -> None:
    """Each call is tried there up to three times, and many may come in one turn: beats waited for all of them."""
    clock = HandClock()
    store = CostlyStore(clock)
    service = AHashService(store, CountingExecutor(), clock, SETTINGS)
    await service.start()
    store.commit(_large_contents(), ())
    began_ms, asked = clock.now, (DEEP, (Needed("entry"),))
    assert [service.at_once(LIBRARIAN, "walk", asked) for _ in range(10)] == [None] * 10
    assert clock.now - began_ms <= BRIEF_READ_MS + 10
    clock.advance(BRIEF_READ_MS)
    assert service.at_once(LIBRARIAN, "walk", (DEEP[:1], (Needed("entry"),))), "soon the next one is done there again"
    await service.close()


def _large_contents() -> dict[bytes, bytes]:
    """Collections of a thousand names, entries with as much metadata as a user may give, and deep paths."""
    puts = dict[bytes, bytes]()
    for name in (f"wide{n}" for n in range(20)):
        puts[layout.header_key(ObjectId(name))] = layout.encode_header(1, {"entry": {"type": "collection"}})
        for n in range(900):
            puts[layout.wide_key(ObjectId(name), "entries", f"{n:03}")] = layout.encode_value("x")
    for n in range(20):
        user = {f"{m:03}": "v" * 100 for m in range(1000)}
        puts[layout.header_key(ObjectId(f"user{n}"))] = layout.encode_header(1, {"metadata": user})
    for n in range(40):
        for level in range(250):
            key = layout.wide_key(ObjectId(f"o{n}-{level}"), "entries", "a/")
            puts[key] = layout.encode_value(f"o{n}-{level + 1}")
    return puts
