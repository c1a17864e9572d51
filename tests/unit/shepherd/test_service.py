"""Start, erasure under authority, copies, scrub, stat and status of one Shepherd."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from chelonia.core.bounds import CHUNK_BYTES, COPIES_IN_FLIGHT_PER_NODE_MAX
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.ports.librarian import InventoryItem
from chelonia.core.ports.shepherd import Authority, CopyOrder, Notes, ShepherdState, Upload
from chelonia.core.timing.clock import within as within_ms
from chelonia.shepherd.reports import stock
from chelonia.shepherd.service import ERASED_TOGETHER
from chelonia.shepherd.store.index import Index
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails, kind_of
from tests.support.memory_blobs import MemoryWriter
from tests.support.shepherd import (
    ADMINISTRATOR,
    CLUSTER,
    JOE,
    LIBRARIAN,
    World,
    broken_body,
    checksums,
    numbered,
    request,
    restored_within,
    running,
    served,
    two,
    within,
)

DATA = b"0123456789" * 100
LARGE = b"0123456789abcdef" * (CHUNK_BYTES * 3 // 16)
UNKNOWN = ReferenceId(numbered("e", 7))


async def order(world: World, reference: ReferenceId, position: Position | None) -> str:
    authority = Authority(position) if position else None
    (outcome,) = await world.service.delete(LIBRARIAN, (("r", reference),), authority)
    return outcome.status


# --- erasure -------------------------------------------------------------------------------------------------------


@served
async def test_an_order_with_authority_erases(world: World) -> None:
    reference = await world.store(DATA)
    assert await order(world, reference, Position(CLUSTER, 1, 5)) == "deleted"
    assert world.blobs.used_bytes() == 0
    assert await world.state_of(reference) == "none"
    assert await order(world, reference, Position(CLUSTER, 1, 5)) == "deleted"
    assert await order(world, UNKNOWN, Position(CLUSTER, 1, 5)) == "deleted"


@pytest.mark.expect_log("erasure failed")
@running
async def test_what_could_not_be_erased_is_here_still(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup of the metadata, put back then, named bytes reported as missing."""
    reference = await world.store(DATA)
    await world.pass_ms(1100)

    async def fails(_: ReferenceId) -> bool:
        raise CheloniaError(Kind.UNAVAILABLE, "disk", "", "a sync failed")

    with monkeypatch.context() as broken:
        broken.setattr(world.blobs, "erase", fails)
        assert (await order(world, reference, Position(CLUSTER, 1, 5))).startswith("nosuchfile")
    await world.pass_ms(3000)
    assert await world.state_of(reference) == "alive"
    assert "deleted" not in [state for _, state in world.librarian.states()]
    assert await order(world, reference, Position(CLUSTER, 1, 5)) == "deleted"
    assert (world.blobs.used_bytes(), await world.state_of(reference)) == (0, "none")


@running
async def test_what_was_not_erased_before_its_order_was_given_up_is_here_still(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Librarian of the same process waits for a slow disk no longer, and may then call the order off."""
    reference = await world.store(DATA)
    await world.pass_ms(1100)

    async def hangs(_: ReferenceId) -> bool:
        await asyncio.Event().wait()
        return False

    with monkeypatch.context() as broken:
        broken.setattr(world.blobs, "erase", hangs)
        ordered = order(world, reference, Position(CLUSTER, 1, 5))
        assert await kind_of(within_ms(world.clock, 1000, ordered)) is Kind.TIMEOUT
    await world.pass_ms(3000)
    assert world.blobs.data(reference) == DATA
    assert await world.state_of(reference) == "alive"
    assert await order(world, reference, Position(CLUSTER, 1, 5)) == "deleted"
    assert (world.blobs.used_bytes(), await world.state_of(reference)) == (0, "none")


@pytest.mark.parametrize(
    ("position", "why"),
    [
        (None, "names no metadata position"),
        (Position("", 1, 9), "names no metadata position"),
        (Position("cluster-2", 9, 9), "comes from cluster cluster-2"),
        (Position(CLUSTER, 1, 99), "generation 1 is older than 2"),
        (Position(CLUSTER, 2, 4), "sequence 4 is older than 5"),
    ],
)
@pytest.mark.expect_log("erasure refused")
@served
async def test_an_order_without_or_with_stale_authority_is_refused_also_after_a_restart(
    world: World, position: Position | None, why: str
) -> None:
    assert await order(world, UNKNOWN, Position(CLUSTER, 2, 5)) == "deleted"
    reference = await world.store(DATA)
    status = await order(world, reference, position)
    assert status.startswith("nosuchfile: ")
    assert why in status
    await world.restart()
    assert why in await order(world, reference, position)
    assert world.blobs.data(reference) == DATA
    assert await order(world, reference, Position(CLUSTER, 2, 5)) == "deleted"


@pytest.mark.expect_log("erasure refused")
@served
async def test_the_first_heartbeat_teaches_the_cluster(world: World) -> None:
    world.librarian.position = Position(CLUSTER, 3, 1)
    await world.service.beat()
    reference = await world.store(DATA)
    assert "cluster-2" in await order(world, reference, Position("cluster-2", 9, 9))
    assert "generation" in await order(world, reference, Position(CLUSTER, 2, 9))
    assert await order(world, reference, Position(CLUSTER, 3, 1)) == "deleted"


def generation_of(world: World) -> int:
    """The generation of the metadata that a Shepherd durably knows."""
    assert world.state.state is not None
    return world.state.state.generation


@pytest.mark.expect_log("erasure refused")
@served
async def test_an_order_of_older_metadata_is_not_begun_once_newer_are_heard_of(world: World) -> None:
    await world.service.beat()
    reference = await world.store(DATA)
    restored_within(world, "identity")
    assert "generation 1 is older than 2" in await order(world, reference, Position(CLUSTER, 1, 99))
    assert world.blobs.data(reference) == DATA
    assert generation_of(world) == 2


@pytest.mark.expect_log("erasure refused")
@served
async def test_an_order_of_older_metadata_does_not_go_on_once_newer_are_heard_of(world: World) -> None:
    await world.service.beat()
    references = [await world.store(DATA, number) for number in range(ERASED_TOGETHER + 2)]
    asked = tuple((str(number), reference) for number, reference in enumerate(references))
    restored_within(world, "erase")
    outcomes = await world.service.delete(LIBRARIAN, asked, Authority(Position(CLUSTER, 1, 99)))
    begun, rest = outcomes[:ERASED_TOGETHER], outcomes[ERASED_TOGETHER:]
    assert {outcome.status for outcome in begun} == {"deleted"}  # they were on their way to the disk
    assert all("generation 1 is older than 2" in outcome.status for outcome in rest)
    assert world.blobs.references() == tuple(sorted(references[ERASED_TOGETHER:]))


@served
async def test_what_else_is_saved_meanwhile_does_not_take_back_that_newer_metadata_were_heard_of(world: World) -> None:
    await world.service.beat()
    restored_within(world, "identity", after=1)  # it looks whether the disk is there, then before it saves
    await world.service.tidy()
    assert generation_of(world) == 2


@pytest.mark.parametrize("learns", ["an order", "a heartbeat"])
@served
async def test_how_new_the_metadata_are_is_written_down_though_the_disk_failed_at_first(
    world: World, learns: str
) -> None:
    """Else the next start would obey older metadata than this one has seen."""
    reference = await world.store(DATA)
    newer = Position(CLUSTER, 2, 7)

    async def learn() -> None:
        if learns == "a heartbeat":
            world.librarian.position = newer
            await world.service.beat()
        else:
            await world.service.delete(LIBRARIAN, (("r", reference),), Authority(newer))

    save, failures = world.state.save, [CheloniaError(Kind.UNAVAILABLE, "save state", cause="its disk is full")]

    def saved(state: ShepherdState) -> None:
        if failures:
            raise failures.pop()
        save(state)

    world.state.save = saved  # type: ignore[method-assign]
    with contextlib.suppress(CheloniaError):
        await learn()
    assert not failures
    await learn()
    assert world.state.state is not None
    assert world.state.state.generation == 2


@served
async def test_only_librarians_may_erase(world: World) -> None:
    reference = await world.store(DATA)
    for call in (JOE, ADMINISTRATOR, Call(roles=(Role.BARTENDER, Role.SHEPHERD))):
        work = world.service.delete(call, (("r", reference),), Authority(Position(CLUSTER, 1, 1)))
        assert await kind_of(work) is Kind.DENIED
    assert world.blobs.data(reference) == DATA


@running
async def test_a_report_in_flight_cannot_bring_an_erased_replica_back(world: World) -> None:
    await world.pass_ms(1100)
    reference = await world.store(DATA)
    await world.pass_ms(100)
    world.librarian.failures["report"] = [Kind.NETWORK] * 3
    await world.pass_ms(1100)
    assert await order(world, reference, Position(CLUSTER, 1, 5)) == "deleted"
    await world.pass_ms(3000)
    assert world.librarian.states() == [(reference, "alive"), (reference, "deleted")]


@virtual
async def test_an_erasure_reaches_what_was_set_aside() -> None:
    world = await World(unknown_grace_ms=0).start(run=True)
    await world.send(await world.ticket(request(DATA, lifetime_ms=1)), DATA)
    await world.pass_ms(5000)
    ((reference, _),) = [(s.reference, s.size) for s in await world.blobs.quarantined()]
    assert await order(world, reference, Position(CLUSTER, 1, 5)) == "deleted"
    assert world.blobs.used_bytes() == 0


# --- start ---------------------------------------------------------------------------------------------------------


@served
async def test_the_boot_number_rises_and_the_index_is_rebuilt_from_the_records(world: World) -> None:
    reference = await world.store(DATA)
    before = await world.service.status(ADMINISTRATOR)
    await world.restart()
    after = await world.service.status(ADMINISTRATOR)
    assert after.boot > before.boot
    assert after.replicas == 1
    (outcome,) = await world.service.stat(LIBRARIAN, (("r", reference),))
    assert (outcome.state, outcome.size, outcome.checksum) == ("alive", len(DATA), checksums(DATA).md5)
    assert (outcome.guid, outcome.checksum_type, outcome.local_id) == (numbered("f", 1), "md5", reference)


@virtual
async def test_a_replaced_disk_is_not_taken_for_the_past_self() -> None:
    old, new = await World().start(), World()
    await old.restart()
    boot = (await old.service.status(ADMINISTRATOR)).boot
    new.clock.step_ms = 10_000
    await new.start()
    assert (await new.service.status(ADMINISTRATOR)).boot > boot


@virtual
async def test_two_disks_of_one_second_have_different_boots() -> None:
    one, other = World(), World()
    other.clock.step_ms = 1
    await one.start()
    await other.start()
    first, second = [(await world.service.status(ADMINISTRATOR)).boot for world in (one, other)]
    assert first < second


@pytest.mark.parametrize("fault", ["truncate", "lose", "damage_record"])
@virtual
async def test_damage_found_at_the_start_is_reported_as_invalid(fault: str, expect_log: Any) -> None:
    expect_log("replica damaged")
    world = await World().start(run=True)
    reference = await world.store(DATA)
    await world.pass_ms(2000)
    world.librarian.items[reference] = InventoryItem(reference, BlobId(numbered("b", 1)), ReplicaState.ALIVE)
    world.librarian.applied.clear()
    {"truncate": lambda r: world.blobs.truncate(r, 3)}.get(fault, getattr(world.blobs, fault))(reference)
    if fault == "damage_record":
        await world.blobs.note({reference: b""})  # else it is not read at the start
    await world.restart(run=True)
    await world.pass_ms(2000)
    assert set(world.librarian.states()) == {(reference, "invalid")}


@served
async def test_a_start_reads_only_records_that_were_not_noted(world: World, expect_log: Any) -> None:
    noted, gone = await world.store(DATA), await world.store(b"gone", 2)
    world.listed(noted, gone)
    await world.service.tidy()
    late = await world.store(b"late", 3)
    await world.blobs.erase(gone)
    for reference in (noted, late):
        world.blobs.damage_record(reference)
    before = await world.service.stat(LIBRARIAN, (("r", noted),))
    expect_log("replica damaged")
    await world.restart()
    assert await world.service.stat(LIBRARIAN, (("r", noted),)) == before
    assert [await world.state_of(reference) for reference in (noted, late, gone)] == ["alive", "invalid", "none"]
    assert (await world.service.status(ADMINISTRATOR)).replicas == 2


@virtual
async def test_notes_are_written_anew_in_order_when_many_are_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "BEHIND_MIN", 2)
    world, asked = await World().start(), list[tuple[str, ReferenceId]]()
    for number in range(1, 13):
        asked.append(("r", await world.store(b"%d" % number, number)))
        world.listed(asked[-1][1])
        await world.service.tidy()
        assert (await world.blobs.notes()).behind <= len(asked) // 2 + 2
    before = await world.service.stat(LIBRARIAN, tuple(asked))
    for _, reference in asked:
        world.blobs.damage_record(reference)
    await world.restart()
    assert await world.service.stat(LIBRARIAN, tuple(asked)) == before
    for _, reference in asked[4:]:
        await world.blobs.erase(reference)
    await world.restart(run=True)
    await world.pass_ms(2 * world.settings.tidy_ms)
    await world.stop()
    parts = (await world.blobs.notes()).parts
    assert sorted(reference for part in parts.values() for reference in part) == sorted(r for _, r in asked[:4])


@served
async def test_what_comes_and_goes_while_notes_are_written_anew_is_noted_after_it(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = sorted([await world.store(b"data %d" % number, number) for number in range(1, 9)])
    world.listed(*kept)
    await world.service.tidy()
    monkeypatch.setattr(stock, "BEHIND_MIN", -1)
    monkeypatch.setattr(stock, "PAGE", 1)
    anew, come = world.blobs.note_anew, list[ReferenceId]()

    async def between(pages: AsyncIterator[Mapping[ReferenceId, bytes]]) -> AsyncIterator[Mapping[ReferenceId, bytes]]:
        async for page in pages:
            yield page
            if kept[3] in page and not come:
                for reference in (kept[1], kept[5]):
                    assert await order(world, reference, Position(CLUSTER, 1, 1)) == "deleted"
                come.extend([await world.store(b"new %d" % number, number) for number in range(21, 29)])
                world.listed(*come)

    monkeypatch.setattr(world.blobs, "note_anew", lambda pages: anew(between(pages)))
    world.listed(await world.store(b"one more", 9))
    await world.service.tidy()
    assert come
    await world.service.tidy()
    here = world.blobs.references()
    noted = (await world.blobs.notes()).parts
    told = {kept[1], kept[5]}  # erased before a first report: their absence is still to be reported
    assert sorted(reference for part in noted.values() for reference in part) == sorted({*here} | told)
    assert not told & {*here}
    for reference in here:
        world.blobs.damage_record(reference)
    await world.restart()
    stats = await world.service.stat(LIBRARIAN, tuple(("r", reference) for reference in here))
    assert [outcome.state for outcome in stats] == ["alive"] * len(here)


@virtual
async def test_a_disk_that_goes_while_notes_are_written_anew_keeps_its_notes(
    monkeypatch: pytest.MonkeyPatch, expect_log: Any
) -> None:
    expect_log("the store is not there any more")
    world = await World().start()
    reference = await world.store(DATA)
    await world.service.tidy()
    monkeypatch.setattr(stock, "BEHIND_MIN", -1)
    notes_after = Index.notes_after

    def unmounted(index: Index, after: str, limit: int) -> dict[ReferenceId, bytes]:
        world.blobs.vanish()
        return notes_after(index, after, limit)

    monkeypatch.setattr(Index, "notes_after", unmounted)
    await world.store(b"more", 2)
    await world.service.tidy()  # its absence is reported once
    assert (await world.blobs.notes()).parts == {}
    world.blobs.come_back()
    assert reference in (await world.blobs.notes()).parts[reference[:2]]


@virtual
async def test_a_disk_too_full_for_notes_is_tidied_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World(unknown_grace_ms=1000).start()
    ticket = await world.ticket(request(DATA, lifetime_ms=1000))
    with pytest.raises(CheloniaError):
        await world.service.receive(JOE, Upload(ticket, broken_body(DATA[:10]), len(DATA)))
    assert world.blobs.used_bytes() == 10

    async def full(notes: object) -> None:
        raise CheloniaError(Kind.NO_SPACE, "write")

    monkeypatch.setattr(world.blobs, "note", full)
    await world.store(b"more", 2)
    await world.pass_ms(2000)
    assert await kind_of(world.service.tidy()) is Kind.NO_SPACE
    assert world.blobs.used_bytes() == 4


@virtual
async def test_replicas_that_cannot_be_settled_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world, done = await World().start(), list[str]()

    async def fail(references: object) -> None:
        raise CheloniaError(Kind.UNAVAILABLE, "settle")

    async def save_cursor() -> None:
        done.append("cursor")

    async def note(notes: object) -> None:
        done.append("notes")

    reference = await world.store(DATA)
    world.service._node.known(reference, None)
    monkeypatch.setattr(world.blobs, "settle", fail)
    monkeypatch.setattr(world.blobs, "note", note)
    monkeypatch.setattr(world.service._scrubber, "save_cursor", save_cursor)
    assert await kind_of(world.service.tidy()) is Kind.UNAVAILABLE
    assert done == ["cursor"], "notes would say what the records do not"
    assert await kind_of(world.service.stop()) is Kind.UNAVAILABLE
    assert done == ["cursor", "cursor"]


@running
async def test_a_start_that_takes_long_gives_signs_of_life_and_takes_nothing(world: World) -> None:
    reference = await world.store(DATA)
    await world.stop()
    held, notes = asyncio.Event(), world.blobs.notes

    async def slowly(head: bytes = b"") -> Notes:
        await held.wait()
        return await notes(head)

    world.blobs.notes = slowly  # type: ignore[method-assign]
    world.librarian.beats.clear()
    starting = asyncio.ensure_future(world.restart(run=True))
    await world.pass_ms(5000)
    assert len(world.librarian.beats) > 10
    assert {(beat.accepting, beat.compared, beat.replicas) for beat in world.librarian.beats} == {(False, 0, 0)}
    assert not starting.done()
    held.set()
    await starting
    await world.pass_ms(5000)
    assert world.librarian.beats[-1].accepting
    assert await world.state_of(reference) == "alive"


@virtual
async def test_a_record_damaged_after_it_was_noted_is_found_by_the_scrub(expect_log: Any) -> None:
    world = await World(scrub_period_ms=60_000).start(run=True)
    reference = await world.store(DATA)
    await world.pass_ms(15_000)
    world.librarian.items[reference] = InventoryItem(reference, BlobId(numbered("b", 1)), ReplicaState.ALIVE)
    world.blobs.damage_record(reference)
    await world.restart(run=True)
    expect_log("replica is invalid")
    await world.pass_ms(130_000)
    assert (reference, "invalid") in set(world.librarian.states())


@running
async def test_nothing_is_claimed_of_a_store_before_its_bytes_were_looked_at(world: World) -> None:
    reference = await world.store(DATA)
    await world.pass_ms(15_000)
    world.librarian.items[reference] = InventoryItem(reference, BlobId(numbered("b", 1)), ReplicaState.ALIVE)
    await world.stop()
    held = asyncio.Event()
    sizes = world.blobs.sizes

    async def slowly(references: Sequence[ReferenceId]) -> tuple[int, ...]:
        await held.wait()
        return await sizes(references)

    world.blobs.sizes = slowly  # type: ignore[method-assign]
    await world.restart(run=True)
    await world.pass_ms(20_000)
    assert world.librarian.beats[-1].compared == 0
    assert await world.state_of(reference) == "alive"
    held.set()
    await world.pass_ms(20_000)
    assert world.librarian.beats[-1].compared > 0


@virtual
async def test_kept_uploads_of_an_earlier_start_are_gone() -> None:
    world = await World(unknown_grace_ms=5000).start()
    ticket = await world.ticket(request(DATA, lifetime_ms=1000))
    with pytest.raises(CheloniaError):
        await world.send(ticket, DATA[:10], length=len(DATA))
    assert world.blobs.used_bytes() == 10
    await world.restart(run=True)
    assert world.blobs.used_bytes() == 0
    with fails(Kind.BAD_TICKET):
        await world.send(ticket, DATA[10:], offset=10)


@served
async def test_kept_bytes_go_with_their_ticket(world: World) -> None:
    ticket = await world.ticket(request(DATA, lifetime_ms=1000))
    with pytest.raises(CheloniaError):
        await world.service.receive(JOE, Upload(ticket, broken_body(DATA[:10]), len(DATA)))
    await world.service.tidy()
    assert world.blobs.used_bytes() == 10
    await world.pass_ms(1000)
    await world.service.tidy()
    assert world.blobs.used_bytes() == 0


@virtual
async def test_an_upload_withdrawn_while_it_is_kept_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world, reference = await World().start(), ReferenceId(numbered("c", 1))
    ticket = await world.ticket(request(DATA, reference=reference))
    suspend = MemoryWriter.suspend

    async def late(writer: MemoryWriter) -> None:
        await world.service.delete(LIBRARIAN, (("r", reference),), Authority(world.librarian.position))
        await suspend(writer)

    monkeypatch.setattr(MemoryWriter, "suspend", late)
    broken = Upload(ticket, broken_body(DATA[:10]), len(DATA))
    assert await kind_of(world.service.receive(JOE, broken)) is Kind.NETWORK
    assert world.blobs.used_bytes() == 0


# --- copies --------------------------------------------------------------------------------------------------------


@virtual
async def test_a_copy_resumes_where_it_was_interrupted_and_returns_the_others_receipt() -> None:
    first, second = await two()
    reference = await first.store(LARGE)
    target = await second.put(request(LARGE, reference=ReferenceId(numbered("c", 1))))
    first.transfers.cut_after[second.base] = CHUNK_BYTES + 5
    receipt = await first.service.copy(LIBRARIAN, CopyOrder(reference, target.turl))
    assert receipt.location.shepherd == second.settings.service_id
    assert first.transfers.pushes == [(second.base, 0), (second.base, CHUNK_BYTES + 5)]
    assert second.blobs.data(target.reference) == LARGE


@virtual
async def test_a_copy_whose_answer_was_lost_asks_again_without_sending_again() -> None:
    first, second = await two()
    reference = await first.store(LARGE)
    target = await second.put(request(LARGE))
    first.transfers.lose_answer.append(second.base)
    receipt = await first.service.copy(LIBRARIAN, CopyOrder(reference, target.turl))
    assert receipt.location.reference == target.reference
    assert first.transfers.pushes == [(second.base, 0), (second.base, len(LARGE))]


RATE = 100_000


async def copied(first: World, second: World, *numbers: int) -> float:
    """Copy these replicas beside one another; returns the seconds that it took."""
    orders = []
    for number in numbers:
        reference = await first.store(LARGE, number)
        orders.append(CopyOrder(reference, (await second.put(request(LARGE, number))).turl))
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(first.service.copy(LIBRARIAN, order) for order in orders))
    return asyncio.get_running_loop().time() - began


@virtual
async def test_large_copies_together_keep_within_the_rate_and_never_stand_still() -> None:
    first, second = await two()
    first.librarian.copy_bytes_per_s_max = RATE
    await first.service.beat()
    took = await copied(first, second, 1, 2)
    assert took == pytest.approx(2 * len(LARGE) / RATE, rel=0.05)
    carried = first.transfers.carried
    for start, _ in carried:
        assert sum(size for at, size in carried if start <= at < start + 1) <= 1.5 * RATE
    assert max(after - before for (before, _), (after, _) in itertools.pairwise(carried)) <= 0.5


@virtual
async def test_a_rate_that_is_lifted_is_lifted_for_a_copy_under_way() -> None:
    first, second = await two()
    first.librarian.copy_bytes_per_s_max = RATE
    await first.service.beat()
    copying = asyncio.ensure_future(copied(first, second, 1))
    await first.pass_ms(2_000)
    first.librarian.copy_bytes_per_s_max = 0
    await first.service.beat()
    assert await copying == pytest.approx(2, abs=0.5)
    assert len(LARGE) > 10 * RATE


@virtual
async def test_a_copy_for_which_there_is_no_place_is_refused_soon() -> None:
    """A copy that waited for the others here would be given up by then."""
    first, second = await two()
    first.librarian.copy_bytes_per_s_max = 10 * RATE
    await first.service.beat()
    places = range(1, COPIES_IN_FLIGHT_PER_NODE_MAX + 1)
    under_way = asyncio.ensure_future(copied(first, second, *places))
    await first.pass_ms(1_000)
    order = CopyOrder(await first.store(DATA, 100), (await second.put(request(DATA, 100))).turl)
    assert await kind_of(asyncio.wait_for(first.service.copy(LIBRARIAN, order), 2)) is Kind.BUSY
    assert not under_way.done()
    await under_way
    assert (await first.service.copy(LIBRARIAN, order)).location.shepherd == second.settings.service_id


@virtual
async def test_a_copy_to_a_dead_peer_fails_after_its_tries() -> None:
    first, second = await two()
    reference = await first.store(DATA)
    target = await second.put(request(DATA))
    first.transfers.down.append(second.base)
    assert await kind_of(first.service.copy(LIBRARIAN, CopyOrder(reference, target.turl))) is Kind.NETWORK
    assert await kind_of(first.service.copy(LIBRARIAN, CopyOrder(UNKNOWN, target.turl))) is Kind.NOT_ALIVE
    assert await kind_of(first.service.copy(JOE, CopyOrder(reference, target.turl))) is Kind.DENIED


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_a_rotten_source_is_refused_by_the_target_and_found_out() -> None:
    first, second = await two()
    first.loops = asyncio.ensure_future(first.service.run())
    reference = await first.store(DATA)
    target = await second.put(request(DATA))
    first.blobs.flip(reference, 5)
    assert await kind_of(first.service.copy(LIBRARIAN, CopyOrder(reference, target.turl))) is Kind.CHECKSUM
    assert second.blobs.references() == ()
    await first.pass_ms(100)
    assert await first.state_of(reference) == "invalid"
    await first.stop()


# --- scrub ---------------------------------------------------------------------------------------------------------


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_the_scrub_finds_rot_within_its_period_and_reports_it() -> None:
    world = await World(scrub_period_ms=60_000).start(run=True)
    references = [await world.store(DATA, number) for number in range(1, 11)]
    await world.pass_ms(2000)
    world.librarian.applied.clear()
    world.blobs.flip(references[3])
    world.blobs.lose(references[7])
    await world.pass_ms(66_000)
    expected = sorted([(references[3], "invalid"), (references[7], "invalid")])
    assert sorted(set(world.librarian.states())) == expected
    status = await world.service.status(ADMINISTRATOR)
    assert status.scrubbed >= 10


@pytest.mark.expect_log("replica is invalid")
@served
async def test_a_check_on_request_counts_damage_and_a_later_match_is_alive_again(world: World) -> None:
    good, bad = await world.store(DATA, 1), await world.store(DATA, 2)
    world.blobs.flip(bad)
    assert await world.service.scrub(LIBRARIAN, (good, UNKNOWN)) == 0
    assert await world.service.scrub(LIBRARIAN, ()) == 1
    assert (await world.state_of(good), await world.state_of(bad)) == ("alive", "invalid")
    world.blobs.flip(bad)
    assert await world.service.scrub(ADMINISTRATOR, (bad,)) == 0
    assert await world.state_of(bad) == "alive"
    assert await kind_of(world.service.scrub(JOE, ())) is Kind.DENIED


@virtual
async def test_the_scrubs_round_goes_on_after_a_restart() -> None:
    world = await World(scrub_period_ms=100_000).start(run=True)
    for number in range(1, 11):
        await world.store(DATA, number)
    await world.pass_ms(55_000)
    done = (await world.service.status(ADMINISTRATOR)).scrubbed
    await world.restart(run=True, crash=False)
    assert world.state.state is not None
    assert world.state.state.extra["scrub_cursor"] == world.blobs.references()[done - 1]


@virtual
async def test_the_scrubs_round_goes_on_after_a_crash_where_it_was_a_moment_ago() -> None:
    world = await World(scrub_period_ms=100_000).start(run=True)
    for number in range(1, 11):
        await world.store(DATA, number)
    await world.pass_ms(55_000 + 2 * world.settings.tidy_ms)
    done = (await world.service.status(ADMINISTRATOR)).scrubbed
    assert world.loops is not None
    world.loops.cancel()  # nothing is saved on the way out
    await asyncio.wait((world.loops,))
    world.loops = None
    assert world.state.state is not None
    assert world.state.state.extra["scrub_cursor"] == world.blobs.references()[done - 1]
    await world.restart(run=True)
    await world.pass_ms(60_000)
    assert done + (await world.service.status(ADMINISTRATOR)).scrubbed >= 10


# --- stat, status --------------------------------------------------------------------------------------------------


@served
async def test_stat_tells_of_uploads_and_of_nothing(world: World) -> None:
    upload = await world.put(request(DATA))
    waiting, nothing = await world.service.stat(LIBRARIAN, (("a", upload.reference), ("b", UNKNOWN)))
    assert (waiting.found, waiting.state, waiting.size) == (True, "creating", len(DATA))
    assert not nothing.found


@served
async def test_control_operations_are_refused_to_users(world: World) -> None:
    for work in (world.service.stat(JOE, ()), world.service.status(JOE), world.service.toggle_report(LIBRARIAN, False)):
        assert await kind_of(work) is Kind.DENIED


@served
async def test_a_page_of_records_waits_for_no_look_at_all_replicas(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild waits a minute for a page, and a million sizes can take longer."""
    kept = [await world.store(b"data %d" % number, number) for number in range(1, 6)]
    world.listed(*kept)
    await world.service.tidy()
    world.blobs.truncate(kept[1], 2)
    await world.restart()
    sizes, looked = world.blobs.sizes, list[ReferenceId]()

    async def seen(references: Sequence[ReferenceId]) -> tuple[int, ...]:
        looked.extend(references)
        return await sizes(references)

    monkeypatch.setattr(world.blobs, "sizes", seen)
    page = await world.service.records(LIBRARIAN, "", 2)
    assert [item.reference for item in page.items] == looked == sorted(kept)[:2]
    after = await world.service.records(LIBRARIAN, page.after, 5)
    states = {item.reference: item.state for item in (*page.items, *after.items)}
    assert [reference for reference, state in states.items() if state is not ReplicaState.ALIVE] == [kept[1]]


@served
async def test_what_is_erased_while_its_size_is_looked_at_is_not_there_again(world: World) -> None:
    kept = [await world.store(b"data %d" % number, number) for number in range(1, 3)]
    world.listed(*kept)
    await world.service.tidy()
    world.blobs.truncate(kept[0], 2)
    await world.restart()
    order = (("r", kept[0]),), Authority(world.librarian.position)
    within(world, "identity", lambda: world.service.delete(LIBRARIAN, *order), after=1)
    await world.service.tidy()
    assert world.blobs.references() == (kept[1],)
    assert (await world.service.status(ADMINISTRATOR)).replicas == 1


@running
async def test_records_are_told_page_by_page_with_what_is_damaged_and_what_lies_aside(world: World) -> None:
    kept = [await world.store(b"data %d" % number, number) for number in range(1, 6)]
    aside = await world.store(b"aside", 9)
    await world.pass_ms(2000)
    await world.blobs.quarantine(aside)
    world.blobs.damage_record(kept[0])
    world.blobs.truncate(kept[1], 2)
    await world.restart()
    found, after = [], ""
    while True:
        page = await world.service.records(LIBRARIAN, after, 2)
        found += page.items
        after = page.after
        if not after:
            break
    by_reference = {item.reference: item for item in found}
    assert len(found) == len(by_reference) == 6
    assert by_reference[kept[0]].facts is None
    assert by_reference[kept[1]].state.value == "invalid"
    whole = by_reference[kept[2]]
    assert (whole.state.value, whole.committed, whole.aside) == ("alive", True, False)
    assert whole.facts is not None
    assert (whole.facts.blob, whole.facts.seal) == (numbered("b", 3), "seal")
    assert by_reference[aside].aside
    with pytest.raises(CheloniaError, match="page of records"):
        await world.service.records(LIBRARIAN, "nowhere", 2)
