"""Healing that can be watched and ordered: status, forecast, pause, limits, and cursors that outlive a leader."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import HealAction, HealOrder, HealStatus
from chelonia.core.errors import Kind
from chelonia.core.ids import Ms, ObjectId, ServiceId
from chelonia.core.ports.ahash import AHash, Page
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.repair.worklist import Worklist
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from tests.sim.virtual_loop import run_virtual, virtual
from tests.support.ahash import LIBRARIAN
from tests.support.clocks import VirtualClock
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, PaperVerifier, SequentialIds, approved, shepherd_call
from tests.unit.librarian.test_healing import Beside, Paper, heartbeat, paper

QUICK = LibrarianSettings.dev(ADMIN.dn)


async def exposed(p: Paper) -> dict[int, int]:
    return shown(await p.b.service.heal_status(ADMIN))


def shown(status: HealStatus) -> dict[int, int]:
    return {found.live: found.blobs for found in status.exposed}


async def whole(p: Paper) -> bool:
    return not await exposed(p)


async def noticed(p: Paper) -> bool:
    return bool(await exposed(p))


@virtual
async def test_the_status_tells_what_is_to_be_done_and_the_forecast_comes_true() -> None:
    async with paper(shepherds=5) as p:
        await asyncio.sleep(1)
        for number in range(150):
            await p.upload(f"two{number}", copies=2)
        for number in range(10):
            await p.upload(f"three{number}", copies=3)
        await asyncio.sleep(5)
        before = await p.b.service.heal_status(ADMIN)
        assert (before.exposed, before.copies_to_go, before.bytes_to_go, before.forecast_ms) == ((), 0, 0, 0)
        p.shepherds[p.b.shepherds[0]].up = False
        await p.until(lambda: noticed(p))
        await asyncio.sleep(1)
        early = await p.b.service.heal_status(ADMIN)
        assert early.is_leader
        assert early.copies_to_go == sum(shown(early).values())
        assert early.bytes_to_go == 7 * early.copies_to_go
        assert early.copies_done + early.copies_to_go == 160
        assert early.copying > 0
        lives = [found.live for found in early.queue]
        assert lives == sorted(lives)
        assert early.queue[0].name.startswith("/two")
        took = await p.until(lambda: whole(p))
        assert early.forecast_ms == pytest.approx(took, rel=0.5)
        late = await p.b.service.heal_status(ADMIN)
        assert (late.copies_done, late.bytes_done, late.queue) == (160, 7 * 160, ())
        assert late.copies_per_min > 0


@pytest.mark.expect_log("healing is paused by /CN=admin")
@virtual
async def test_a_pause_stops_copies_and_trims_says_who_and_ends_with_resume() -> None:
    async with paper(shepherds=4) as p:
        await asyncio.sleep(1)
        blobs = [(await p.upload(f"f{n}", copies=3))[1] for n in range(10)]
        told = await p.b.service.heal_order(ADMIN, HealOrder(HealAction.PAUSE))
        assert (told.control.paused_by, told.forecast_ms) == ("/CN=admin", 0)
        p.shepherds[p.b.shepherds[0]].up = False
        await p.until(lambda: noticed(p))
        await asyncio.sleep(20)
        status = await p.b.service.heal_status(ADMIN)
        assert (shown(status), status.copying, status.forecast_ms) == ({2: 10}, 0, -1)
        assert [len(p.holding(blob)) for blob in blobs] == [2] * 10
        health = await p.b.service.health(ADMIN)
        assert (health.paused_by, health.paused_ms) == ("/CN=admin", told.control.paused_ms)
        again = await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RESUME))
        assert not again.control.paused
        assert await p.until(lambda: whole(p)) < 3_000
        p.shepherds[p.b.shepherds[0]].up = True
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.PAUSE))
        await asyncio.sleep(20)
        assert all(len(p.holding(blob)) == 4 for blob in blobs), "surplus stays while paused"
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RESUME))
        await p.until(lambda: p.settled(*blobs, copies=3))


@virtual
async def test_limits_hold_for_each_shepherd_and_are_lifted_while_it_runs() -> None:
    async with paper(shepherds=3) as p:
        await asyncio.sleep(1)
        for number in range(40):
            await p.upload(f"f{number}", copies=2)
        told = await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RATE, 7, 1))
        assert (told.control.bytes_per_s, told.control.copies_per_node) == (7, 1)
        answer = await p.b.service.heartbeat(shepherd_call(p.b.shepherds[1]), heartbeat(p.b.shepherds[1]))
        assert (answer.copy_bytes_per_s_max, answer.copies_at_once_max) == (7, 1)
        p.shepherds[p.b.shepherds[0]].up = False
        await p.until(lambda: noticed(p))
        await asyncio.sleep(10)
        status = await p.b.service.heal_status(ADMIN)
        assert 8 <= status.copies_done <= 12, "a copy of 7 bytes a second"
        assert status.forecast_ms == pytest.approx(1_000 * status.copies_to_go, rel=0.2), "as slow as it is told"
        assert max(s.most_in_flight for s in p.shepherds.values()) == 1
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RATE, 0, 4))
        answer = await p.b.service.heartbeat(shepherd_call(p.b.shepherds[1]), heartbeat(p.b.shepherds[1]))
        assert (answer.copy_bytes_per_s_max, answer.copies_at_once_max) == (0, 4)
        assert await p.until(lambda: whole(p)) < 5_000


@virtual
async def test_who_orders_at_another_than_the_leader_is_told_what_holds_now() -> None:
    async with paper(shepherds=2) as p:
        await p.until(lambda: leads(p.b.service))
        other = successor(p, p.b.settings, lambda ahash: ahash, p.b.service)
        await other.start()
        running = asyncio.create_task(other.run())
        await asyncio.sleep(1)
        told = await other.heal_order(ADMIN, HealOrder(HealAction.RATE, 7, 1))
        assert told.is_leader
        assert (told.control.bytes_per_s, told.control.copies_per_node) == (7, 1)
        await other.stop()
        await running


@virtual
async def test_only_administrators_steer_and_nonsense_is_refused() -> None:
    async with paper(shepherds=1) as p:
        for call, order, kind in (
            (BARTENDER, HealOrder(HealAction.PAUSE), Kind.DENIED),
            (ADMIN, HealOrder(HealAction.RATE), Kind.BAD_REQUEST),
        ):
            with fails(kind):
                await p.b.service.heal_order(call, order)


@dataclass
class Watched:
    """An A-Hash in front of another: remembers the cursors of reads of Shepherds' replicas."""

    inner: Any
    read: list[tuple[ObjectId, str]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def scan(self, call: Call, object_id: ObjectId, section: str, after: str = "", limit: int = 1000) -> Page:
        if section == "file":
            self.read.append((object_id, after))
        page: Page = await self.inner.scan(call, object_id, section, after, limit)
        return page


@virtual
async def test_a_new_leader_goes_on_where_the_old_one_was() -> None:
    read: list[tuple[ObjectId, str]] = []

    def watch(ahash: AHash) -> AHash:
        return Watched(ahash, read)  # type: ignore[return-value]

    settings = replace(QUICK, survey_page_ms=10**7)  # the survey stays at the first Shepherd's first page
    async with paper(shepherds=3, settings=settings, wrap=watch) as p:
        await asyncio.sleep(1)
        for number in range(1_200):
            await p.upload(f"f{number}", copies=2)
        lost = p.b.shepherds[1]
        p.shepherds[lost].up = False

        async def half() -> bool:
            return (await p.b.service.heal_status(ADMIN)).copies_done > 700

        await p.until(half, 60_000)
        await asyncio.sleep(settings.leader_lease_ms / 1000)
        stored = (await p.b.stored("sys:repair")).value("cursors", lost)
        await p.b.service.stop()
        read.clear()
        other = successor(p, settings, watch)
        await other.start()
        p.b.service = other
        running = asyncio.create_task(other.run())
        await p.until(lambda: leads(other))
        await p.until(lambda: whole(p), 60_000)
        assert min(after for shepherd, after in read if shepherd == f"sys:shepherd:{lost}") == stored.split(" ")[1]
        assert stored.split(" ")[1] > ""
        await asyncio.sleep(settings.leader_lease_ms / 1000 + 1)
        assert (await p.b.stored("sys:repair")).value("cursors", lost).endswith(" ~")
        assert sum(len(p.shepherds[s].replicas) for s in p.b.shepherds if s != lost) == 2_400
        await other.stop()
        await asyncio.gather(running, return_exceptions=True)


@virtual
async def test_while_enough_waits_a_shepherd_is_gone_through_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.core.bounds.REFERENCES_PAGE", 8)
    monkeypatch.setattr("chelonia.librarian.healer.Worklist", partial(Worklist, 120))
    read: list[tuple[ObjectId, str]] = []

    settings = replace(QUICK, survey_page_ms=10**7)
    async with paper(shepherds=3, settings=settings, wrap=lambda a: Watched(a, read)) as p:  # type: ignore[arg-type,return-value]
        await asyncio.sleep(1)
        for number in range(400):
            await p.upload(f"f{number}", copies=2)
        for shepherd in p.shepherds.values():
            shepherd.copy_s = 0.8
        p.shepherds[p.b.shepherds[0]].up = False
        await p.until(lambda: noticed(p))
        await asyncio.sleep(9)
        read.clear()
        done = (await p.b.service.heal_status(ADMIN)).copies_done
        await p.b.service.maintenance(ADMIN, p.b.shepherds[1], Ms(0))
        await asyncio.sleep(3)
        assert (await p.b.service.heal_status(ADMIN)).copies_done >= done + 12
        assert 10 <= len(read) <= 3_000 / settings.tick_ms + 4, "a page a tick, not one for each copy"


def test_a_survey_while_a_shepherd_is_healed_does_not_put_all_that_is_lost_in_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most, lost = 20, 160
    monkeypatch.setattr("chelonia.core.bounds.REFERENCES_PAGE", 8)
    monkeypatch.setattr("chelonia.librarian.healer.Worklist", partial(Worklist, most))
    queued: list[int] = []

    async def scenario() -> None:
        settings = replace(QUICK, survey_page_ms=0, survey_interval_ms=2_000)
        async with paper(shepherds=3, settings=settings) as p:
            await asyncio.sleep(1)
            for number in range(lost):
                await p.upload(f"f{number}", copies=2)
            for shepherd in p.shepherds.values():
                shepherd.copy_s = 0.8
            p.shepherds[p.b.shepherds[0]].up = False
            await p.until(lambda: noticed(p))

            async def done() -> bool:
                queued.append((await p.b.service.health(ADMIN)).queued)
                return await whole(p)

            await p.until(done, 120_000)

    run_virtual(scenario())
    assert most <= max(queued) <= 2 * most


def successor(
    p: Paper, settings: LibrarianSettings, watch: Any, beside: LibrarianService | None = None
) -> LibrarianService:
    """Another Librarian on the same metadata; `beside`: one that it can reach."""
    chosen = replace(settings, bootstrap=approved(*p.b.shepherds))
    world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), chosen, Beside(beside) if beside else None)
    return LibrarianService(watch(p.b.ahash), LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world)


async def leads(service: LibrarianService) -> bool:
    return (await service.heal_status(ADMIN)).is_leader
