"""Healing as a whole: the Librarian, fake Shepherds, virtual time. Nothing here waits in real time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import HealStatus, is_whole
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    CLUSTER_OBJECT,
    BlobId,
    Ms,
    ObjectId,
    ReferenceId,
    RequestKey,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.ahash import AHash, AHashStatus, Element, Page, TransactOutcome
from chelonia.core.ports.librarian import Delete, Heartbeat, SetWanted
from chelonia.core.ports.shepherd import DeleteOutcome
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import drop, erase, outbox_record, put
from chelonia.librarian.metadata.records import LibrarianIdentity, Records
from chelonia.librarian.repair.erase import sorted_out
from chelonia.librarian.repair.plan.decide import EXPIRED, SURPLUS
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from tests.sim.virtual_loop import this_loop, virtual
from tests.support.ahash import LIBRARIAN
from tests.support.clocks import VirtualClock
from tests.support.librarian import ADMIN, BARTENDER, PaperVerifier, SequentialIds, shepherd_call
from tests.support.paper import Paper, paper

pytestmark = pytest.mark.expect_log("is lost, no verified copy is left", optional=True)

S = ReplicaState


def extra(n: int) -> str:
    """The reference of a surplus copy."""
    return f"eeeeeeee-0000-4000-8000-{n:012d}"


@virtual
async def test_a_dead_node_is_noticed_and_its_blobs_are_copied_then_the_surplus_goes() -> None:
    """The paper's experiment: 4 copies, kill one node, 4 again; start it again, 5, and 4 in the end."""

    async with paper() as p:
        blobs = [(await p.upload(f"f{n}", copies=4))[1] for n in range(10)]
        dead = p.shepherds[p.b.shepherds[0]]
        dead.up = False

        async def four_elsewhere() -> bool:
            found = [await p.b.locations(blob) for blob in blobs]
            return all(sum(v == "alive" for s, v in at.items() if s != dead.id) == 4 for at in found)

        assert await p.until(four_elsewhere) < 3_000
        assert all(len(p.holding(blob)) == 4 for blob in blobs)
        node = (await p.b.service.nodes(BARTENDER))[0]
        assert node.state == "offline"
        dead.up = True
        seen: set[int] = set()

        async def back_to_four() -> bool:
            states = [await p.states(blob) for blob in blobs]
            wheels = [at.count("thirdwheel") for at in states]
            assert max(wheels) <= 1
            seen.update(wheels)
            return all(at == ["alive"] * 4 for at in states)

        assert 3_000 <= await p.until(back_to_four) < 8_000
        assert seen == {0, 1}
        await p.until(lambda: drained(p))
        assert all(len(p.holding(blob)) == 4 for blob in blobs)
        assert max(s.most_in_flight for s in p.shepherds.values()) <= 4


async def drained(p: Paper) -> bool:
    return not any([await p.b.outbox(shepherd) for shepherd in p.b.shepherds])


@virtual
async def test_a_commit_with_too_few_copies_is_completed_at_once() -> None:
    async with paper() as p:
        _, blob = await p.upload("f", copies=2, wanted=4)
        assert await p.until(lambda: p.settled(blob, copies=4)) < 500
        assert len(set(p.holding(blob))) == 4


@virtual
async def test_a_damaged_replica_is_replaced_first_and_erased_after() -> None:
    async with paper(shepherds=3) as p:
        _, blob = await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        await p.b.report(one, (blob, f"{blob}@{one}", S.INVALID))
        await p.until(lambda: p.settled(blob, copies=2))
        await p.until(lambda: drained(p))
        assert p.holding(blob) == list(p.b.shepherds[1:])
        assert p.shepherds[one].erased == [f"{blob}@{one}"]


@virtual
async def test_the_last_good_copy_stays_when_nothing_else_can_be_done() -> None:
    async with paper(shepherds=2) as p:
        _, blob = await p.upload("f", copies=2)
        one, two = p.b.shepherds
        p.shepherds[two].broken = "put"
        await p.b.report(two, (blob, f"{blob}@{two}", S.INVALID))
        await asyncio.sleep(30)
        assert p.shepherds[one].erased == []
        assert (await p.b.locations(blob))[one] == "alive"
        assert f"{blob}@{two}" not in p.shepherds[two].erased
        p.shepherds[two].broken = ""
        await p.until(lambda: p.settled(blob, copies=2))
        assert sorted(p.holding(blob)) == [one, two]

        async def damaged_one_erased() -> bool:
            return f"{blob}@{two}" in p.shepherds[two].erased

        await p.until(damaged_one_erased)


@virtual
async def test_deleted_files_are_erased_also_on_a_node_that_comes_back_late() -> None:
    async with paper(shepherds=2) as p:
        guid, blob = await p.upload("f", copies=2)
        kept, other = await p.upload("kept", copies=2)
        one, two = p.b.shepherds
        p.shepherds[two].up = False
        await asyncio.sleep(2)
        await p.b.service.delete(BARTENDER, Delete(guid))
        await asyncio.sleep(5)
        assert p.shepherds[one].erased == [f"{blob}@{one}"]
        assert await p.b.outbox(two) == {f"{blob}@{two}": "deleted"}
        p.shepherds[two].up = True
        await p.until(lambda: drained(p))
        assert p.shepherds[two].erased == [f"{blob}@{two}"]
        assert (await p.b.everything())[f"{two} file"] == {f"{other}@{two}": other}
        positions = p.shepherds[two].authorities
        assert positions == sorted(positions)
        assert len(p.holding(other)) == 2
        assert (await p.b.service.get(BARTENDER, (kept,)))[0].exists


@virtual
async def test_a_refused_erasure_stays_in_the_outbox() -> None:
    async with paper(shepherds=2) as p:
        guid, blob = await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        p.shepherds[one].broken = "delete"
        await p.b.service.delete(BARTENDER, Delete(guid))
        await asyncio.sleep(5)
        assert await p.b.outbox(one) == {f"{blob}@{one}": "deleted"}
        p.shepherds[one].broken = ""
        await p.until(lambda: drained(p))


@virtual
async def test_an_order_that_nobody_can_ever_carry_out_is_void(expect_log: Callable[..., None]) -> None:
    """One for `not-a-uuid` was repeated 2 497 times in 57 minutes."""
    expect_log("is void")

    async with paper() as p:
        guid, _ = await p.upload("f", copies=2)
        p.shepherds[p.b.shepherds[0]].broken = "void"
        await p.b.service.delete(BARTENDER, Delete(guid))
        await p.until(lambda: drained(p))
        assert p.b.limits.reached == {"erasures_void": 1}


@virtual
async def test_what_was_erased_before_a_start_that_has_reported_is_erased_again() -> None:
    """Its disk was put back from an old image while the answer was under way: nobody would miss the bytes there."""

    async with paper(shepherds=2) as p:
        guid, blob = await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        reference = ReferenceId(f"{blob}@{one}")
        erase, answers = p.shepherds[one].delete, []

        async def put_back(*order: Any) -> tuple[DeleteOutcome, ...]:
            answers.append(await erase(*order))
            if len(answers) == 1:
                p.shepherds[one].replicas[reference] = blob
                await p.b.report(one, boot=2, number=1)
            return answers[-1]

        p.shepherds[one].delete = put_back  # type: ignore[method-assign]
        await p.b.service.delete(BARTENDER, Delete(guid))
        await p.until(lambda: drained(p))
        assert p.shepherds[one].erased == [reference, reference]
        assert p.shepherds[one].replicas == {}


class Restored:
    """An A-Hash in front of another: when orders to erase have been read, an earlier backup replaces it."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self._generation = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def scan(self, call: Call, object_id: ObjectId, section: str, after: str, limit: int) -> Page:
        page = await self._inner.scan(call, object_id, section, after, limit)
        for key, _ in page.items if section == "erase" else ():
            self._generation = 2
            await self._inner.transact(call, RequestKey(""), (drop(object_id, "erase", key),))
        return page

    async def status(self, call: Call) -> AHashStatus:
        status = await self._inner.status(call)
        return replace(status, position=replace(status.position, generation=self._generation))


@virtual
async def test_what_is_erased_was_ordered_by_the_metadata_of_now() -> None:
    """An order read before a backup was put back must not pass for one of the restored metadata."""

    async with paper(2, wrap=Restored) as p:
        guid, blob = await p.upload("f", copies=1)
        await p.b.service.delete(BARTENDER, Delete(guid))
        await p.until(lambda: drained(p))
        await asyncio.sleep(3)
        assert p.holding(blob) == [p.b.shepherds[0]]


@pytest.mark.parametrize("reason", [SURPLUS, EXPIRED, "stalled"])
@pytest.mark.expect_log("the last copy of .* stays")
@virtual
async def test_an_order_for_the_last_copy_that_is_left_is_taken_back(reason: str) -> None:
    """The copy was given up for one that is gone since. Newer metadata had it erased before a backup was put back. Or
    it was lost while a Shepherd was away that had completed a copy and not reported it."""

    async with paper(2) as p:
        _, blob = await p.upload("f", copies=1)
        one, two = (p.shepherds[shepherd] for shepherd in p.b.shepherds)
        gone, spare = Location(one.id, ReferenceId(f"{blob}@{one.id}")), Location(two.id, ReferenceId("spare"))
        one.replicas.clear()
        two.replicas[spare.reference] = blob
        elements = (
            outbox_record(spare, blob, reason, p.b.clock.now_ms()),
            drop(blob_object(blob), "locations", str(gone)),
            drop(shepherd_object(one.id), "file", gone.reference),
        )
        await p.b.ahash.transact(LIBRARIAN, RequestKey(""), elements)
        await p.until(lambda: drained(p))
        assert await p.b.locations(blob) == {two.id: "alive"}
        assert (two.erased, p.holding(blob)) == ([], [two.id])


@virtual
async def test_an_order_for_the_last_copy_is_void_when_its_shepherd_does_not_have_it() -> None:
    """Newer metadata erased it before a backup was put back. It may lie in quarantine, so nothing is ordered."""

    async with paper(1) as p:
        _, blob = await p.upload("f", copies=1)
        [one] = p.shepherds.values()
        gone = Location(one.id, ReferenceId(f"{blob}@{one.id}"))
        one.replicas.clear()
        order = outbox_record(gone, blob, SURPLUS, p.b.clock.now_ms())
        unlisted = drop(blob_object(blob), "locations", str(gone))
        await p.b.ahash.transact(LIBRARIAN, RequestKey(""), (order, unlisted))
        await p.until(lambda: drained(p))
        everything = await p.b.everything()
        assert (one.erased, everything.get(f"{one.id} file", {})) == ([], {})


@pytest.mark.parametrize(
    ("reason", "listed", "compared", "becomes"),
    [
        (SURPLUS, True, True, "out"),
        (SURPLUS, True, False, "waits"),
        (SURPLUS, False, False, "back"),
        (EXPIRED, True, True, "out"),
        (EXPIRED, False, False, "back"),
        ("invalid", False, False, "out"),
    ],
)
def test_a_surplus_copy_goes_for_one_that_can_be_relied_on(
    reason: str, listed: bool, compared: bool, becomes: str
) -> None:
    blob = StoredObject(ObjectId("blob:b"), 3, {"locations": {"https://s1/Shepherd r1": "alive"} if listed else {}})
    orders = (("1700000000000 r2", f"b {reason}"), ("1700000000001 r3", "b invalid"), ("1700000000002 r4", "c deleted"))
    out, back = sorted_out(orders, {BlobId("b"): blob}, lambda shepherd: compared)
    assert orders[1][0] in out, "each by its own reason"
    assert orders[2][0] in out
    assert (orders[0][0] in out, orders[0][0] in back) == (becomes == "out", becomes == "back")


@virtual
async def test_an_erasure_that_no_longer_stands_is_not_struck_off() -> None:
    """Metadata put back from before the order list the copy: its record stays."""

    async with paper(2) as p:
        guid, blob = await p.upload("f", copies=1)
        one = p.b.shepherds[0]
        erase = p.shepherds[one].delete

        async def restored(call: Call, orders: tuple[tuple[str, ReferenceId], ...], at: Any) -> Any:
            for key, _ in orders:
                await p.b.ahash.transact(LIBRARIAN, RequestKey(""), (drop(shepherd_object(one), "erase", key),))
            return await erase(call, orders, at)

        p.shepherds[one].delete = restored  # type: ignore[method-assign]
        await p.b.service.delete(BARTENDER, Delete(guid))
        await p.until(lambda: drained(p))
        await asyncio.sleep(3)
        assert (await p.b.everything())[f"{one} file"] == {f"{blob}@{one}": blob}


class Later:
    """An A-Hash in front of another, which states any generation."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self.generation = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def status(self, call: Call) -> AHashStatus:
        status = await self._inner.status(call)
        return replace(status, position=replace(status.position, generation=self.generation))


@virtual
async def test_metadata_that_were_put_back_are_gone_through_anew_by_the_leader_that_ran_on() -> None:
    ahash: list[Later] = []

    def wrap(inner: AHash) -> AHash:
        ahash.append(Later(inner))
        return ahash[0]

    settings = replace(LibrarianSettings.dev(ADMIN.dn), survey_interval_ms=10**9)
    async with paper(3, settings, wrap=wrap) as p:
        _, blob = await p.upload("f", copies=2)
        await p.until(lambda: p.settled(blob, copies=2))
        await asyncio.sleep(3)
        one = p.b.shepherds[0]
        reference = ReferenceId(f"{blob}@{one}")
        lost = (
            drop(blob_object(blob), "locations", str(Location(one, reference))),
            drop(shepherd_object(one), "file", reference),
        )
        await p.b.ahash.transact(LIBRARIAN, RequestKey(""), lost)  # as if it had been copied after the backup
        ahash[0].generation = 2
        assert await p.until(lambda: p.settled(blob, copies=2)) < 10_000
        health = await p.b.service.health(ADMIN)
        assert (health.is_leader, health.position.generation) == (True, 2)


@pytest.mark.parametrize("before", [0, 1])
async def test_a_replica_that_was_empty_at_first_has_not_been_restored(before: int) -> None:
    """Each node of a new group said that it was, when its replica was filled: until then it states generation 0."""

    class Filled:
        generation = before

        async def status(self, _: Call) -> AHashStatus:
            return AHashStatus(Position("c", self.generation, 0), "client", False, 0, 0)

    ahash = Filled()
    records = Records(ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("l")))  # type: ignore[arg-type]
    await records.refresh_position(Call())
    ahash.generation += 1
    await records.refresh_position(Call())
    assert records.restored.is_set() is (before > 0)


@virtual
async def test_an_empty_store_of_the_next_generation_gets_the_key_that_a_librarian_ran_on_with() -> None:
    """Records on disks are sealed with it: a later rebuild would accept none."""

    ahash: list[Later] = []

    def wrap(inner: AHash) -> AHash:
        ahash.append(Later(inner))
        return ahash[0]

    async with paper(1, wrap=wrap) as p:
        key = p.b.service.record_key
        await p.b.ahash.transact(LIBRARIAN, RequestKey(""), (erase(CLUSTER_OBJECT),))
        ahash[0].generation = 2

        async def made() -> bool:
            return (await p.b.stored(CLUSTER_OBJECT)).exists

        await p.until(made)
        assert (await p.b.stored(CLUSTER_OBJECT)).value("cluster", "record_key") == key


@virtual
async def test_a_failing_source_or_target_is_gone_round() -> None:
    async with paper(shepherds=4) as p:
        one, two, three, four = p.b.shepherds
        p.shepherds[one].broken, p.shepherds[three].broken = "copy", "put"
        _, blob = await p.upload("f", copies=2, wanted=3)
        await p.until(lambda: p.settled(blob, copies=3))
        assert p.holding(blob) == [one, two, four]
        await p.until(lambda: drained(p))


class Meddler:
    """An A-Hash in front of another: right after a blob with a count of 4 is read, the count drops to 2."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self.meddled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        found = await self._inner.get(call, ids, needed)
        for blob in found:
            if not needed and blob.value("blob", "wanted") == "4":
                self.meddled += 1
                await self._inner.transact(call, RequestKey(""), (put(blob.id, "blob", "wanted", "2"),))
        return found


@virtual
async def test_a_plan_made_on_what_has_changed_since_is_not_carried_out() -> None:
    meddlers: list[Meddler] = []

    def wrap(ahash: AHash) -> AHash:
        meddlers.append(Meddler(ahash))
        return meddlers[0]

    async with paper(5, wrap=wrap) as p:
        _, blob = await p.upload("f", copies=2, wanted=4)
        await asyncio.sleep(3)
        assert meddlers[0].meddled
        assert len(p.holding(blob)) == 2
        assert all(s.put_calls == 0 for s in p.shepherds.values())


class Laggard:
    """An A-Hash in front of another: blobs that are not read strongly are as they were when first read so."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self._past: dict[ObjectId, StoredObject] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        found = await self._inner.get(call, ids, needed)
        if call.strong or needed:
            return found
        return tuple(self._past.setdefault(stored.id, stored) for stored in found)


@virtual
async def test_what_goes_is_decided_on_what_is_and_not_on_what_was() -> None:
    async with paper(3, wrap=Laggard) as p:
        _, blob = await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        await p.b.report(one, (blob, f"{blob}@{one}", S.INVALID))
        assert await p.until(lambda: p.settled(blob, copies=2)) < 5_000


class Vague:
    """An A-Hash in front of another: it applies reports of damage, and answers that the outcome is unknown."""

    def __init__(self, inner: AHash) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        outcome = await self._inner.transact(call, key, elements, memo)
        if any(element.value == S.INVALID.value for element in elements):
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "transact")
        return outcome


@virtual
async def test_what_may_have_been_written_is_planned_like_what_was() -> None:
    async with paper(3, replace(LibrarianSettings.dev(ADMIN.dn), survey_interval_ms=10**9), wrap=Vague) as p:
        _, blob = await p.upload("f", copies=2)
        await asyncio.sleep(3)
        one = p.b.shepherds[0]
        with pytest.raises(CheloniaError):
            await p.b.report(one, (blob, f"{blob}@{one}", S.INVALID))
        assert await p.until(lambda: p.settled(blob, copies=2)) < 5_000


@virtual
async def test_more_copies_wanted_and_fewer_again() -> None:
    async with paper() as p:
        guid, blob = await p.upload("f", copies=2)
        await p.b.service.set_wanted(BARTENDER, SetWanted(guid, 5))
        await p.until(lambda: p.settled(blob, copies=5))
        await p.b.service.set_wanted(BARTENDER, SetWanted(guid, 1))
        await p.until(lambda: p.settled(blob, copies=1))
        await p.until(lambda: drained(p))
        assert len(p.holding(blob)) == 1


@pytest.mark.expect_log("is not healed, it cannot be read")
@pytest.mark.parametrize(("section", "key", "value"), [("locations", "nowhere", "alive"), ("blob", "wanted", "many")])
@virtual
async def test_a_record_that_makes_no_sense_holds_up_no_other(section: str, key: str, value: str) -> None:
    async with paper(4) as p:
        _, broken = await p.upload("broken", copies=2)
        await p.b.ahash.transact(LIBRARIAN, RequestKey(""), (put(blob_object(broken), section, key, value),))
        blobs = [(await p.upload(f"f{n}", copies=2, wanted=3))[1] for n in range(5)]
        await p.until(lambda: p.settled(*blobs, copies=3))
        p.shepherds[p.b.shepherds[0]].up = False
        await asyncio.sleep(30)
        assert await p.settled(*blobs, copies=4)
        health = await p.b.service.health(ADMIN)
        assert (health.replicas["alive"], health.exposed) == (15, 0)


@virtual
async def test_maintenance_is_waited_for_and_ends() -> None:
    async with paper(shepherds=3) as p:
        _, blob = await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        until = Ms(p.b.clock.now_ms() + 60_000)
        await p.b.service.maintenance(ADMIN, one, until)
        p.shepherds[one].up = False
        await asyncio.sleep(50)
        assert len(await p.b.locations(blob)) == 2
        await asyncio.sleep(12)
        assert len(p.holding(blob)) == 2


@virtual
async def test_an_absence_is_waited_for_until_the_delay_is_over() -> None:
    settings = replace(LibrarianSettings.dev(ADMIN.dn), repair_delay_ms=10_000, survey_interval_ms=10**9)
    async with paper(4, settings) as p:
        _, calm = await p.upload("calm", copies=3)
        _, tight = await p.upload("tight", copies=2)
        p.shepherds[p.b.shepherds[0]].up = False
        await asyncio.sleep(5)
        assert len(p.holding(calm)) == 2
        assert len(p.holding(tight)) == 2
        await asyncio.sleep(8)
        assert len(p.holding(calm)) == 3


@virtual
async def test_one_of_two_librarians_leads_and_the_other_takes_over() -> None:
    async with paper(shepherds=3) as p:
        world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), p.b.settings)  # type: ignore[arg-type]
        other = LibrarianService(p.b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world)
        await other.start()
        running = asyncio.create_task(other.run())
        await asyncio.sleep(3)
        first, second = await p.b.service.health(ADMIN), await other.health(ADMIN)
        assert (first.is_leader, second.is_leader) == (True, False)
        assert first.leader == second.leader
        await p.b.service.stop()
        for _ in range(20):
            for shepherd in p.b.shepherds:
                call, beat = shepherd_call(shepherd), heartbeat(shepherd)
                await other.heartbeat(call, beat)
            await asyncio.sleep(0.3)
        assert (await other.health(ADMIN)).is_leader
        assert not (await p.b.service.health(ADMIN)).is_leader
        assert all(node.state == "alive" for node in await other.nodes(BARTENDER))
        await other.stop()
        await running


@virtual
async def test_a_new_leader_does_not_call_whole_what_it_has_not_heard_of() -> None:
    """The leader and a Shepherd are lost together: until the next leader has listened for a lease, the Shepherd counts
    as there."""
    async with paper(shepherds=3) as p:
        await p.upload("f", copies=3)
        world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), p.b.settings)  # type: ignore[arg-type]
        other = LibrarianService(p.b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world)
        await other.start()
        running = asyncio.create_task(other.run())

        async def looks(count: int, *shepherds: ServiceId) -> list[HealStatus]:
            told = []
            for _ in range(count):
                for shepherd in shepherds:
                    await other.heartbeat(shepherd_call(shepherd), heartbeat(shepherd))
                await asyncio.sleep(0.2)
                told.append(await other.heal_status(ADMIN))
            return told

        await looks(10, *p.b.shepherds)
        await p.b.service.stop()
        told = await looks(40, *p.b.shepherds[1:])
        assert told[-1].exposed, "it is away"
        assert not any(is_whole(each) for each in told[p.b.settings.lease_ms // 200 :])
        await other.stop()
        await running


@dataclass
class Beside:
    """The neighbours of a Librarian that knows one other."""

    one: LibrarianService

    def librarian(self, service: ServiceId) -> LibrarianService:
        return self.one

    async def refused(self, service: ServiceId) -> bool:
        return False


def heartbeat(shepherd: ServiceId) -> Heartbeat:
    return Heartbeat(shepherd, 1, 0, 1 << 40, 1 << 41, 0, True, "", f"key of {shepherd}", compared=1)


@virtual
async def test_a_restarted_librarian_calls_nobody_away_before_a_lease_has_passed() -> None:
    async with paper(shepherds=2) as p:
        await p.upload("f", copies=2)
        await asyncio.sleep(2)
        await p.b.service.stop()
        world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), p.b.settings)  # type: ignore[arg-type]
        fresh = LibrarianService(p.b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l/Librarian")), world)
        await fresh.start()
        running = asyncio.create_task(fresh.run())
        await asyncio.sleep(0.9)
        assert [node.state for node in await fresh.nodes(BARTENDER)] == ["alive", "alive"]
        await asyncio.sleep(0.6)
        assert [node.state for node in await fresh.nodes(BARTENDER)] == ["offline", "offline"]
        await fresh.stop()
        await running


@asynccontextmanager
async def started_again(p: Paper, settings: LibrarianSettings) -> AsyncIterator[LibrarianService]:
    await p.b.service.stop()
    world = World(p, PaperVerifier(), VirtualClock(), SequentialIds(9), settings)  # type: ignore[arg-type]
    fresh = LibrarianService(p.b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l/Librarian")), world)
    await fresh.start()
    running = asyncio.create_task(fresh.run())
    p.b = replace(p.b, service=fresh)
    yield fresh
    await fresh.stop()
    await running


@pytest.mark.parametrize("repair_delay_ms", [0, 70_000])
@virtual
async def test_after_everything_was_off_for_long_slow_starters_are_waited_for(repair_delay_ms: int) -> None:
    """All counted as away, or were never recorded; the first heartbeats are no reason to copy for the others."""

    quick = LibrarianSettings.dev(ADMIN.dn)
    settings = replace(quick, start_grace_ms=30_000, survey_interval_ms=10**9, repair_delay_ms=repair_delay_ms)
    async with paper(3, settings) as p:
        _, blob = await p.upload("f", copies=2)
        slow = p.b.shepherds[0]
        for shepherd in p.shepherds.values():
            shepherd.up = False
        await asyncio.sleep(60)
        assert {node.state for node in await p.b.service.nodes(BARTENDER)} == {"offline"}
        async with started_again(p, settings) as fresh:
            for shepherd in p.shepherds.values():
                shepherd.up = shepherd.id != slow
            await asyncio.sleep(28)
            assert len(await p.b.locations(blob)) == 2, "it may still be starting"
            assert (await fresh.heal_status(ADMIN)).delayed == 1
            await p.until(lambda: p.settled(blob, copies=3))
            assert slow not in p.holding(blob), "it was waited for, but not for ever"


@virtual
async def test_who_is_waited_for_for_several_reasons_is_waited_for_until_the_last_is_over() -> None:
    """A maintenance outlasts the repair delay, under a leader that learned of neither."""

    settings = replace(LibrarianSettings.dev(ADMIN.dn), repair_delay_ms=5_000, survey_interval_ms=10**9)
    async with paper(3, settings) as p:
        _, blob = await p.upload("f", copies=2)
        one = p.b.shepherds[0]
        await p.b.service.maintenance(ADMIN, one, Ms(p.b.clock.now_ms() + 20_000))
        p.shepherds[one].up = False
        await asyncio.sleep(2)
        async with started_again(p, settings):
            await asyncio.sleep(17)
            assert len(await p.b.locations(blob)) == 2
            await p.until(lambda: p.settled(blob, copies=3), 5_000)


@virtual
async def test_a_leader_that_was_frozen_listens_for_a_lease_before_it_calls_anybody_away() -> None:
    """A frozen process has received no heartbeats: that says nothing about the others."""

    async with paper(shepherds=2) as p:
        await p.upload("f", copies=2)
        await asyncio.sleep(4)
        for shepherd in p.shepherds.values():
            shepherd.up = False
        this_loop().jump(this_loop().now_s + 60)
        await asyncio.sleep(0.7)
        assert [node.state for node in await p.b.service.nodes(BARTENDER)] == ["alive", "alive"]
        await asyncio.sleep(1)
        assert [node.state for node in await p.b.service.nodes(BARTENDER)] == ["offline", "offline"]


@virtual
async def test_the_survey_counts_replicas_and_finds_what_no_event_told() -> None:
    async with paper(shepherds=3) as p:
        for n in range(4):
            await p.upload(f"f{n}", copies=2)
        await asyncio.sleep(12)
        health = await p.b.service.health(ADMIN)
        assert (health.replicas, health.exposed, health.copying) == ({"alive": 8}, 0, 0)
        p.shepherds[p.b.shepherds[2]].up = False
        await asyncio.sleep(2)
        p.shepherds[p.b.shepherds[0]].up = False
        await asyncio.sleep(12)
        health = await p.b.service.health(ADMIN)
        assert health.replicas == {"alive": 4, "offline": 4}
        assert health.exposed == 4


@pytest.mark.parametrize("trouble", ["down", "frozen", "rot", "lost"])
@virtual
async def test_a_surplus_copy_stays_while_another_does_not_answer_for_itself(trouble: str) -> None:
    """A Shepherd that died within its lease still counts as alive; its copy must not let a living one go."""

    settings = LibrarianSettings.dev(ADMIN.dn)
    if trouble == "down":
        settings = replace(settings, lease_ms=3_600_000)
    async with paper(3, settings) as p:
        _, blob = await p.upload("f", copies=2)
        three = p.shepherds[p.b.shepherds[2]]
        three.replicas[ReferenceId(extra(0))] = blob
        await p.b.report(three.id, (blob, extra(0), S.ALIVE))

        async def marked() -> bool:
            return await p.states(blob) == ["alive", "alive", "thirdwheel"]

        await p.until(marked)
        at = await p.b.locations(blob)
        left = next(s for s in p.shepherds.values() if at[s.id] == "alive")
        if trouble == "down":
            left.up = False
        elif trouble == "lost":
            left.replicas.clear()
        else:
            left.broken = trouble
        await asyncio.sleep(60)
        assert await marked()
        assert all(s.erased == [] for s in p.shepherds.values())


@pytest.mark.expect_log("more than .* replicas would be erased")
@virtual
async def test_mass_trimming_is_stopped_and_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.core.bounds.ERASURES_UNASKED_PER_MIN_MAX", 3)

    async with paper(shepherds=3) as p:
        for n in range(10):
            _, blob = await p.upload(f"f{n}", copies=2)
            three = p.b.shepherds[2]
            await p.b.report(three, (blob, extra(n), S.ALIVE))
            p.shepherds[three].replicas[ReferenceId(extra(n))] = blob
        await asyncio.sleep(30)
        assert sum(len(s.erased) for s in p.shepherds.values()) == 3
        assert (await p.b.service.health(ADMIN)).held_back == 7
        await asyncio.sleep(60)
        assert sum(len(s.erased) for s in p.shepherds.values()) in (6, 9)
        await asyncio.sleep(240)
        assert sum(len(s.erased) for s in p.shepherds.values()) == 10
        assert (await p.b.service.health(ADMIN)).held_back == 0
        assert sum(s.asked_for for s in p.shepherds.values()) <= 25, "two witnesses each, asked when it is their turn"
