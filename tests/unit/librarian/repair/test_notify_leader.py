"""Notifications of one Librarian to the repair leader, and their effects."""

import asyncio

from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.clocks import VirtualClock
from tests.support.librarian import ADMIN, PaperVerifier, SequentialIds, shepherd_call
from tests.support.paper import paper
from tests.unit.librarian.test_healing import Beside, heartbeat

S = ReplicaState


@virtual
async def test_the_leader_is_told_of_damage_that_only_another_librarian_has_heard_of() -> None:
    settings = replace(LibrarianSettings.dev(ADMIN.dn), survey_interval_ms=10**9)
    async with paper(3, settings) as p:
        _, blob = await p.upload("f", copies=2)
        world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), p.b.settings, Beside(p.b.service))  # type: ignore[arg-type]
        other = LibrarianService(p.b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world)
        await other.start()
        running = asyncio.create_task(other.run())
        await asyncio.sleep(3)
        damaged = (blob, f"{blob}@{p.b.shepherds[0]}", S.INVALID)
        await replace(p.b, service=other).report(p.b.shepherds[0], damaged)
        assert await p.until(lambda: p.settled(blob, copies=2)) < 5_000
        await other.stop()
        running.cancel()


@virtual
async def test_the_leader_is_told_of_a_copy_for_which_another_librarian_knows_no_place() -> None:
    """A Shepherd that joined does not report to every Librarian, so one of them knows only the earlier ones."""

    settings = replace(LibrarianSettings.dev(ADMIN.dn), survey_interval_ms=10**9)
    async with paper(3, settings) as p:
        world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), p.b.settings, Beside(p.b.service))  # type: ignore[arg-type]
        other = LibrarianService(p.b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world)
        await other.start()
        running = asyncio.create_task(other.run())
        await asyncio.sleep(3)
        known = p.b.shepherds[:2]
        for shepherd in known:
            await other.heartbeat(shepherd_call(shepherd), heartbeat(shepherd))
        _, blob = await replace(p.b, service=other, shepherds=known).file("f", copies=2, wanted=3)
        for shepherd in known:
            p.shepherds[shepherd].replicas[ReferenceId(f"{blob}@{shepherd}")] = blob
        assert await p.until(lambda: p.settled(blob, copies=3)) < 5_000
        await other.stop()
        running.cancel()
