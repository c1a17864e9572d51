"""Two Librarians that rebuild: one got the command during the other's run. The one begun last goes on alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import REBUILD_OBJECT, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import Delete
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.recovery.rebuild.act import Rebuilding
from chelonia.librarian.recovery.rebuild.decide import Basis
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.world import World
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, PaperVerifier, shepherd_id
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot

pytestmark = pytest.mark.expect_log("rebuild", optional=True)
NO_TRASH = replace(BEFORE, trash_keep_ms=0)


@asynccontextmanager
async def second(k: Keepers) -> AsyncIterator[LibrarianService]:
    """Another Librarian beside the first; it starts now."""
    world = World(k, PaperVerifier(), k.clock, k.ids, k.bench.settings, carrier=k)  # type: ignore[arg-type]
    service = LibrarianService(k.bench.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world)
    await service.start()
    tasks = [asyncio.create_task(service.run()), asyncio.create_task(hearts(k, service))]
    try:
        yield service
    finally:
        await service.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def hearts(k: Keepers, service: LibrarianService) -> None:
    bench = replace(k.bench, service=service)
    while True:
        for shepherd in k.shepherds:
            await bench.beat(shepherd, compared=9)
        await asyncio.sleep(0.3)


async def over(service: LibrarianService) -> bool:
    return (await service.rebuild(ADMIN, False)).stage in ("done", "failed")


@virtual
async def test_what_was_deleted_since_a_second_rebuild_was_through_is_not_brought_back_by_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    k, held = keepers(), asyncio.Event()
    async with k.running(NO_TRASH):
        await k.upload("/f")
        await next_snapshot(k)
        since, _ = await k.upload("/since")
        disk = k.shepherds[shepherd_id(1)].disk
        kept = dict(disk)
    async with k.running(NO_TRASH, generation=2):
        first, read = k.bench.service, Rebuilding._read_records

        async def wait(self: Rebuilding, basis: Basis) -> None:
            if self is first._parts.rebuilding:
                await held.wait()
            await read(self, basis)

        monkeypatch.setattr(Rebuilding, "_read_records", wait)
        await asyncio.sleep(20)
        await first.rebuild(ADMIN, True)
        await asyncio.sleep(5)
        async with second(k) as other:
            await other.rebuild(ADMIN, True)
            await k.until(lambda: over(other), 200_000)
            assert set(await k.paths()) == {"/f", "/since"}
            await asyncio.sleep(2)
            await other.delete(BARTENDER, Delete(since))
            await k.until(lambda: nothing_of(k, since))
            disk.update(kept)  # a Shepherd that was away
            held.set()
            await k.until(lambda: over(first), 200_000)
            assert set(await k.paths()) == {"/f"}
            status = await first.rebuild(ADMIN, False)
            assert (status.stage, "begun anew" in status.cause) == ("failed", True)
            assert (await other.rebuild(ADMIN, False)).cause == ""
            with fails(Kind.NOT_EMPTY):
                await first.rebuild(ADMIN, True)


async def through(k: Keepers, first: LibrarianService) -> None:
    await k.until(lambda: over(first), 200_000)


async def begun_again(k: Keepers, first: LibrarianService) -> None:
    assert first._parts.rebuilding is not None
    await first._parts.rebuilding.stop()
    await first.rebuild(ADMIN, True)


@pytest.mark.parametrize("meanwhile", [through, begun_again])
@virtual
async def test_who_begins_by_what_the_record_was_is_refused(
    meanwhile: Callable[[Keepers, LibrarianService], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    k, enter = keepers(), Rebuilding._enter
    async with k.running(NO_TRASH):
        await k.upload("/f")
        await next_snapshot(k)
    async with k.running(NO_TRASH, generation=2):
        first = k.bench.service
        await asyncio.sleep(20)
        await first.rebuild(ADMIN, True)
        async with second(k) as other:

            async def late(self: Rebuilding, marker: StoredObject, *elements: Element) -> None:
                if self is other._parts.rebuilding:
                    await meanwhile(k, first)
                await enter(self, marker, *elements)

            monkeypatch.setattr(Rebuilding, "_enter", late)
            with fails(Kind.CONFLICT):
                await other.rebuild(ADMIN, True)
            await through(k, first)
            assert (await first.rebuild(ADMIN, False)).stage == "done"


@virtual
async def test_who_stops_for_another_that_was_begun_since_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    k, go_on = keepers(), dict[Rebuilding | None, asyncio.Event]()
    async with k.running(NO_TRASH):
        await k.upload("/f")
        await next_snapshot(k)
    async with k.running(NO_TRASH, generation=2):
        first = k.bench.service
        failing = CheloniaError(Kind.TIMEOUT, "get", cause="no answer")

        async def wait(self: Rebuilding, basis: Basis) -> None:
            if self not in go_on:
                raise failing
            await go_on[self].wait()

        async def told() -> str:
            return (await k.bench.stored(REBUILD_OBJECT)).value("rebuild", "cause")

        monkeypatch.setattr(Rebuilding, "_read_records", wait)
        await asyncio.sleep(20)
        await first.rebuild(ADMIN, True)
        await through(k, first)
        assert "no answer" in await told()
        async with second(k) as other:
            for service in (first, other):
                go_on[service._parts.rebuilding] = asyncio.Event()
                await service.rebuild(ADMIN, True)
                assert await told() == ""
            go_on[first._parts.rebuilding].set()
            await through(k, first)
            assert (await first.rebuild(ADMIN, False)).stage == "failed"
            assert await told() == ""


async def nothing_of(k: Keepers, guid: str) -> bool:
    return not any(kept.facts.guid == guid for keeper in k.shepherds.values() for kept in keeper.disk.values())
