"""A Shepherd that comes back reports differences from its notes, and compares the whole inventory where they may be
wrong."""

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.ports.librarian import InventoryItem
from chelonia.core.ports.shepherd import MARK, Authority, GetRequest, ShepherdState
from chelonia.core.values import replace
from chelonia.shepherd.reports import stock
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store import note_mark as mark
from chelonia.shepherd.store.note_mark import AcceptedReport, Believed, NoteMark, why_whole
from tests.sim.virtual_loop import virtual
from tests.support.shepherd import BARTENDER, CLUSTER, LIBRARIAN, World, numbered, request, running

DATA = b"data"
KNOWN = NoteMark("store", 3, AcceptedReport(100, 7), AcceptedReport(90, 4), settled=True, compared_ms=50)
FRESH = replace(KNOWN, sent=AcceptedReport(100, 2))
STATE = ShepherdState(boot=130, ticket_secret=b"", cluster="c", generation=3, sequence=40)


# --- the decision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "told", "obeyed"),
    [
        (KNOWN, AcceptedReport(100, 7), 40),
        (KNOWN, AcceptedReport(100, 6), 39),
        (FRESH, AcceptedReport(100, 2), 0),
        (FRESH, AcceptedReport(90, 4), 0),
    ],
    ids=["the last", "the one before it, for the last was on its way", "a start's second", "the one of boots before"],
)
def test_differences_are_enough_where_the_notes_go_as_far_as_the_namespace(
    found: NoteMark, told: AcceptedReport, obeyed: int
) -> None:
    assert why_whole(found, Believed(told, obeyed, 3), "store", STATE) == ""


@pytest.mark.parametrize(
    ("found", "believed", "state", "why"),
    [
        (None, Believed(AcceptedReport(100, 7), 0, 3), STATE, "no mark"),
        (replace(KNOWN, store="other"), Believed(AcceptedReport(100, 7), 0, 3), STATE, "another store"),
        (replace(KNOWN, settled=False), Believed(AcceptedReport(100, 7), 0, 3), STATE, "did not come to its end"),
        (KNOWN, Believed(AcceptedReport(100, 7), 0, 4), STATE, "other metadata"),
        (KNOWN, Believed(AcceptedReport(100, 7), 41, 3), STATE, "erasures"),
        (KNOWN, Believed(AcceptedReport(100, 7), 1, 3), replace(STATE, generation=2), "erasures"),
        (
            KNOWN,
            Believed(AcceptedReport(100, 8), 0, 3),
            STATE,
            "up to report 7 of boot 100, the cluster has taken report 8",
        ),
        (KNOWN, Believed(AcceptedReport(100, 5), 0, 3), STATE, "report 5 of boot 100"),
        (KNOWN, Believed(AcceptedReport(90, 4), 0, 3), STATE, "report 4 of boot 90"),
        (FRESH, Believed(AcceptedReport(90, 3), 0, 3), STATE, "report 3 of boot 90"),
        (FRESH, Believed(AcceptedReport(110, 2), 0, 3), STATE, "report 2 of boot 110"),
        (replace(FRESH, earlier=AcceptedReport()), Believed(AcceptedReport(), 0, 3), STATE, "report 0 of boot 0"),
    ],
)
def test_in_every_other_case_the_whole_inventory_is_compared(
    found: NoteMark | None, believed: Believed, state: ShepherdState, why: str
) -> None:
    assert why in why_whole(found, believed, "store", state)


def test_a_mark_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    assert mark.decode(mark.encode(KNOWN)) == KNOWN
    assert [mark.decode(raw) for raw in (b"", b"\x01", b"\x02" + mark.encode(KNOWN)[1:], b"+")] == [None] * 4


@pytest.mark.parametrize(("now_ms", "age_ms"), [(50, 0), (80, 30), (49, -1)])
def test_nobody_knows_how_old_a_comparison_is_that_lies_in_the_future(now_ms: int, age_ms: int) -> None:
    assert mark.age_ms(KNOWN, now_ms) == age_ms
    assert mark.age_ms(replace(KNOWN, compared_ms=0), now_ms) == mark.age_ms(None, now_ms) == -1


# --- the reports of a start ----------------------------------------------------------------------------------------


async def settled(count: int = 4, **settings: Any) -> tuple[World, list[ReferenceId]]:
    """A Shepherd that has compared its inventory, and knows that its replicas are listed."""
    world = await World(**settings).start(run=True)
    await world.pass_ms(1_500)
    references = [await world.store(DATA, number) for number in range(1, count + 1)]
    await world.pass_ms(3_000)
    for number, reference in enumerate(references, 1):
        listing = InventoryItem(reference, BlobId(numbered("b", number)), ReplicaState.ALIVE)
        world.librarian.items[reference] = listing
    return world, references


def image(world: World) -> Callable[[], None]:
    """Take an image of the disk; calling the result puts it back."""
    blobs, state = copy.deepcopy(world.blobs), world.state.state

    def put_back() -> None:
        world.blobs, world.state.state = blobs, state

    return put_back


async def returned(world: World, *, forgotten: bool = False) -> None:
    """Bring it back, with time for all its reports."""
    if forgotten:
        world.librarian.forget()
    world.librarian.pages.clear()
    world.librarian.applied.clear()
    world.librarian.beats.clear()
    await world.restart(run=True)
    await world.pass_ms(3_000)


def compared(world: World) -> int:
    return world.librarian.beats[-1].compared


@virtual
async def test_where_nothing_differs_nothing_is_told_and_no_page_is_asked_for() -> None:
    world, _ = await settled()
    for _ in range(3):
        await returned(world)
        assert (world.librarian.states(), world.librarian.pages) == ([], [])
        assert compared(world) == 1
    assert world.service.inventory_pages == 0


@pytest.mark.expect_log("replica missing")
@pytest.mark.expect_log("replica damaged|replica is invalid")
@virtual
async def test_what_differs_is_told_and_nothing_else() -> None:
    world, (kept, gone, cut, rotten) = await settled()
    world.blobs.flip(rotten)
    await world.service.scrub(LIBRARIAN, (rotten,))
    await world.pass_ms(1_000)
    world.librarian.failures["report"] = [Kind.NETWORK] * 50
    late = await world.store(b"late", 9)
    await world.pass_ms(2_000)
    await world.stop_hard()  # else the scrub may find out before
    await world.blobs.erase(gone)
    world.blobs.truncate(cut, 1)
    world.librarian.failures.clear()
    await returned(world)
    states = {(rotten, "invalid"), (late, "alive"), (gone, "deleted"), (cut, "invalid")}
    assert set(world.librarian.states()) == states
    assert world.librarian.pages == []
    assert compared(world) == 1
    assert kept in world.blobs.references()
    await returned(world)
    assert set(world.librarian.states()) == {(rotten, "invalid"), (cut, "invalid")}, "the others are settled"


@virtual
async def test_what_was_erased_by_order_just_before_a_kill_is_told_and_alarms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world, (erased, *_) = await settled()
    noting, world.blobs.note = world.blobs.note, no_room  # type: ignore[method-assign]
    await world.service.delete(LIBRARIAN, (("r", erased),), Authority(Position(CLUSTER, 1, 5)))
    world.blobs.note = noting  # type: ignore[method-assign]
    del world.librarian.items[erased]
    await world.stop_hard()
    await returned(world)
    assert (world.librarian.states(), world.librarian.pages) == ([(erased, "deleted")], [])
    assert f"replica missing reference={erased}; reported as deleted: it may have been erased by order" in caplog.text


@virtual
async def test_one_that_was_not_settled_and_is_missing_is_told_as_that_and_not_as_erased_by_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world, _ = await settled()
    world.librarian.failures["report"] = [Kind.NETWORK] * 50
    open_one = await world.store(b"late", 9)
    await world.pass_ms(3_000)
    await world.service.tidy()
    await world.blobs.erase(open_one)
    world.librarian.failures.clear()
    await returned(world)
    assert world.librarian.states() == [(open_one, "deleted")]
    [told] = [record for record in caplog.records if "replica missing" in record.getMessage()]
    assert told.levelno == logging.INFO
    assert f"reference={open_one}; reported as deleted: it was damaged, or it was not settled" in told.getMessage()


async def no_room(notes: Mapping[ReferenceId, bytes]) -> None:
    raise CheloniaError(Kind.NO_SPACE, "note")


@pytest.mark.parametrize("power_cut", [False, True])
@virtual
async def test_an_erasure_that_is_confirmed_is_noted_and_not_told_again(power_cut: bool) -> None:
    """The next start could not distinguish it from a loss. The bytes were durably gone before the confirmation."""
    world, (erased, *_) = await settled()
    await world.service.delete(LIBRARIAN, (("r", erased),), Authority(Position(CLUSTER, 1, 5)))
    del world.librarian.items[erased]
    world.librarian.obeyed = 5
    await world.stop_hard()
    if power_cut:
        world.blobs.lose_notes(world.blobs.unsynced_notes)
    await returned(world)
    assert (world.librarian.states(), world.librarian.pages) == ([], [])


@pytest.mark.expect_log("replica missing")
@pytest.mark.parametrize("obeyed", [0, 5])
@virtual
async def test_what_nobody_ordered_to_be_erased_is_lost_and_that_is_told_aloud(
    obeyed: int, caplog: pytest.LogCaptureFixture
) -> None:
    world, (lost, ordered, *_) = await settled()
    if obeyed:
        await world.service.delete(LIBRARIAN, (("r", ordered),), Authority(Position(CLUSTER, 1, obeyed)))
        del world.librarian.items[ordered]
        world.librarian.obeyed = obeyed
    await world.pass_ms(2_000)
    await world.blobs.erase(lost)
    await returned(world)
    assert world.librarian.states() == [(lost, "deleted")]
    [told] = [record for record in caplog.records if "replica missing" in record.getMessage()]
    assert told.levelno == logging.WARNING
    assert f"reference={lost} blob={numbered('b', 1)}" in told.getMessage()
    assert "repair copies it" in told.getMessage()


@pytest.mark.expect_log("replica missing")
@virtual
async def test_what_is_missing_is_told_until_that_is_taken() -> None:
    """A crash in between must not forget that the namespace lists an absent replica."""
    world, (gone, *_) = await settled()
    await world.blobs.erase(gone)
    inner = world.librarian.report

    async def only_the_first(call: Any, report: Any) -> Any:
        if report.replicas:
            raise CheloniaError(Kind.NETWORK, "report")
        return await inner(call, report)

    world.librarian.report = only_the_first  # type: ignore[method-assign]
    for _ in range(2):
        await returned(world)
        assert world.librarian.applied
        assert compared(world) == 0, "not everything has been taken"
    world.librarian.report = inner  # type: ignore[method-assign]
    await returned(world)
    assert world.librarian.states() == [(gone, "deleted")]
    assert (world.librarian.pages, compared(world)) == ([], 1)


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_what_was_told_to_be_damaged_is_not_claimed_before_it_was_read() -> None:
    world, (bad, *_) = await settled(scrub_bytes_per_s_max=1 << 40)
    world.blobs.flip(bad)
    await world.service.scrub(LIBRARIAN, (bad,))
    await world.pass_ms(1_000)
    assert world.librarian.states()[-1] == (bad, "invalid")
    await world.restart()
    assert await world.state_of(bad) == "invalid"
    await returned(world)
    assert set(world.librarian.states()) == {(bad, "invalid")}
    world.blobs.flip(bad)  # another cable
    await returned(world)
    assert world.librarian.states()[-1] == (bad, "alive")
    assert await world.state_of(bad) == "alive"
    await returned(world)
    assert (world.librarian.states(), world.librarian.pages) == ([], [])


@virtual
async def test_a_power_cut_costs_only_what_has_to_be_told_again() -> None:
    world, references = await settled()
    last = await world.store(b"last", 9)
    await world.pass_ms(2_000)
    assert world.blobs.unsynced_notes
    world.blobs.lose_notes(world.blobs.unsynced_notes)
    await returned(world)
    assert {reference for reference, _ in world.librarian.states()} <= {last, *references}
    assert {state for _, state in world.librarian.states()} <= {"alive"}
    assert (world.librarian.pages, compared(world)) == ([], 1)


@running
async def test_a_replica_is_noted_as_listed_only_when_its_report_was_taken(world: World) -> None:
    await world.pass_ms(1_500)
    world.librarian.failures["report"] = [Kind.NETWORK] * 50
    reference = await world.store(DATA)
    await world.pass_ms(3_000)
    await world.service.tidy()
    assert (await world.blobs.notes()).parts[reference[:2]] == {reference: rows.OPEN}
    world.librarian.failures.clear()
    await world.pass_ms(3_000)
    await world.service.tidy()
    assert len((await world.blobs.notes()).parts[reference[:2]][reference]) > len(rows.OPEN)


@virtual
async def test_the_mark_is_durable_before_its_report_goes_out() -> None:
    world, _ = await settled()
    seen, inner = list[tuple[AcceptedReport, AcceptedReport]](), world.librarian.report

    async def look(call: Any, report: Any) -> Any:
        disk = copy.deepcopy(world.blobs)
        disk.lose_notes(disk.unsynced_notes)
        found = mark.decode((await disk.notes()).mark)
        assert found is not None
        seen.append((AcceptedReport(report.boot, report.number), found.sent))
        return await inner(call, report)

    world.librarian.report = look  # type: ignore[method-assign]
    await world.store(b"more", 9)
    await world.pass_ms(3_000)
    assert len(seen) >= 2
    assert all(sent == marked for sent, marked in seen)
    last = seen[-1]
    seen.clear()
    await returned(world)
    (first, marked), second, *_ = seen
    assert (first.number, marked) == (1, last[0]), "what it found stays until it knows what to do"
    assert second == (AcceptedReport(first.boot, 2), AcceptedReport(first.boot, 2))


# --- when the notes may lie ----------------------------------------------------------------------------------------


@pytest.mark.expect_log("replica missing")
@virtual
async def test_an_old_image_of_the_disk_is_compared_whole() -> None:
    world, references = await settled(2)
    put_back = image(world)
    later = await world.store(b"later", 9)
    await world.pass_ms(3_000)
    listing = InventoryItem(later, BlobId(numbered("b", 9)), ReplicaState.ALIVE)
    world.librarian.items[later] = listing
    await world.stop()
    put_back()
    await returned(world)
    assert world.librarian.states() == [(later, "deleted")]
    assert (world.librarian.pages, compared(world)) == ([""], 1)
    assert set(references) == set(world.blobs.references())
    del world.librarian.items[later]
    await returned(world)
    assert (world.librarian.states(), world.librarian.pages) == ([], [])


@pytest.mark.expect_log("replica missing")
@virtual
async def test_an_image_from_just_before_a_receipt_shows_when_it_is_put_back() -> None:
    """A Shepherd reports no copy that it commits itself, but the numbers go on."""
    world, _ = await settled(2)
    put_back = image(world)
    late = await world.store(b"late", 9)
    await world.pass_ms(100)
    world.librarian.items[late] = InventoryItem(late, BlobId(numbered("b", 9)), ReplicaState.ALIVE)
    assert (late, "alive") not in world.librarian.states(), "only an empty report was sent"
    await world.stop()
    put_back()
    await returned(world)
    assert world.librarian.states() == [(late, "deleted")]


@pytest.mark.expect_log("replica missing")
@virtual
async def test_a_start_that_dies_before_it_knows_leaves_an_old_image_as_doubtful_as_it_was() -> None:
    """Its first report was accepted, and it never learned so: nothing is trusted by that."""
    world, _ = await settled(2)
    put_back = image(world)
    later = await world.store(b"later", 9)
    await world.pass_ms(3_000)
    world.librarian.items[later] = InventoryItem(later, BlobId(numbered("b", 9)), ReplicaState.ALIVE)
    await world.stop()
    put_back()
    world.librarian.lose_answers["report"] = 1_000
    for _ in range(3):
        await returned(world)
        assert [report.number for report in world.librarian.applied] == [1]
    world.librarian.lose_answers.clear()
    await returned(world)
    assert world.librarian.states() == [(later, "deleted")]
    assert world.librarian.pages == [""]


@virtual
async def test_a_start_that_has_decided_is_believed_though_its_second_report_was_not_taken() -> None:
    world, references = await settled()
    inner = world.librarian.report

    async def only_the_first(call: Any, report: Any) -> Any:
        if report.number > 1:
            raise CheloniaError(Kind.NETWORK, "report")
        return await inner(call, report)

    world.librarian.report = only_the_first  # type: ignore[method-assign]
    for _ in range(2):
        await returned(world)
        assert [report.number for report in world.librarian.applied] == [1]
    found = mark.decode((await world.blobs.notes()).mark)
    assert found is not None
    assert (found.sent.number, found.settled) == (2, True)
    world.librarian.report = inner  # type: ignore[method-assign]
    await returned(world)
    assert (world.librarian.pages, world.librarian.states(), compared(world)) == ([], [], 1)
    assert set(references) == set(world.blobs.references())


@virtual
async def test_a_start_moves_what_is_believed_before_it_compares() -> None:
    """The reason of a comparison must not vanish when an older disk takes the place of the compared one."""
    world, _ = await settled(2)
    put_back = image(world)
    world.blobs.drop_notes()
    world.librarian.failures["inventory"] = [Kind.UNAVAILABLE] * 1_000
    await returned(world)
    assert [report.number for report in world.librarian.applied] == [1, 2]
    await world.stop()
    put_back()
    world.librarian.failures.clear()
    await returned(world)
    assert world.librarian.pages == [""]


@virtual
async def test_an_order_of_metadata_put_back_does_not_make_a_start_believed_under_them() -> None:
    """The order came from the other metadata, and all bytes were looked at only after it."""
    world, references = await settled()
    world.librarian.pages.clear()
    world.librarian.beats.clear()
    await world.restart()
    reporting = world.service._reporting
    await reporting.beat()
    assert await reporting.report_once()
    world.librarian.position = Position(CLUSTER, 2, 1)
    del world.librarian.items[references[0]]
    await world.service.delete(LIBRARIAN, (("r", references[0]),), Authority(Position(CLUSTER, 2, 1)))
    await world.service.tidy()
    await reporting.report_once()
    await reporting.beat()
    assert compared(world) == 0
    found = mark.decode((await world.blobs.notes()).mark)
    assert found is not None
    assert not found.settled
    for _ in range(5):
        await reporting.report_once()
    await reporting.beat()
    assert (compared(world), world.librarian.pages) == (2, [""])


@virtual
async def test_an_image_from_before_an_erasure_shows_though_the_next_order_comes_before_its_first_report() -> None:
    world, (erased, other, *_) = await settled()
    put_back = image(world)
    await world.service.delete(LIBRARIAN, (("r", erased),), Authority(Position(CLUSTER, 1, 5)))
    world.librarian.obeyed = 5
    await world.stop()
    put_back()
    world.librarian.pages.clear()
    del world.librarian.items[erased], world.librarian.items[other]
    await world.restart()
    await world.service.delete(LIBRARIAN, (("r", other),), Authority(Position(CLUSTER, 1, 9)))
    world.loops = asyncio.ensure_future(world.service.run())
    await world.pass_ms(3_000)
    assert world.librarian.pages == [""]


@virtual
async def test_restored_metadata_lost_notes_and_an_older_librarian_lead_to_a_comparison() -> None:
    world, _ = await settled()
    world.librarian.position = Position(CLUSTER, 2, 1)
    await returned(world)
    assert (world.librarian.pages, compared(world)) == ([""], 2)
    world.blobs.drop_notes()
    await returned(world)
    assert (world.librarian.pages, compared(world)) == ([""], 2)
    await returned(world, forgotten=True)  # as an older one, which does not report it
    assert (world.librarian.pages, compared(world)) == ([""], 2)
    await returned(world)
    assert (world.librarian.pages, compared(world)) == ([], 2)


@virtual
async def test_notes_of_older_software_are_read_and_lead_to_one_comparison() -> None:
    world, references = await settled()
    world.blobs._notes = [{ref: note for ref, note in block.items() if ref != MARK} for block in world.blobs._notes]
    world.blobs.damage_record(references[0])
    await returned(world)
    assert world.librarian.pages == [""]
    assert await world.state_of(references[0]) == "alive", "its record was not read"
    await returned(world)
    assert (world.librarian.pages, world.librarian.states()) == ([], [])


@virtual
async def test_what_older_software_noted_uncommitted_stays_so_until_a_comparison_lists_it() -> None:
    world, _ = await settled()
    for number in (8, 9):
        await world.send(await world.ticket(request(DATA, number)), DATA)
    await world.stop()
    uncommitted = [each for each in world.blobs.references() if not world.blobs._replicas[each].committed]
    noted = {each: rows.facts_of(world.service._node.index._row(each) or b"") for each in uncommitted}
    world.blobs._notes = [{ref: note for ref, note in block.items() if ref != MARK} for block in world.blobs._notes]
    world.blobs._notes.append(noted)
    world.librarian.failures["inventory"] = [Kind.UNAVAILABLE] * 1_000
    for _ in range(2):
        await returned(world)
        await world.service.tidy()
        assert [world.blobs._replicas[each].committed for each in uncommitted] == [False, False]
    assert mark.decode((await world.blobs.notes()).mark) is not None, "the second start had none either"
    world.librarian.failures.clear()
    listed = uncommitted[0]
    facts = world.blobs.record(listed)
    assert facts is not None
    world.librarian.items[listed] = InventoryItem(listed, facts.blob, ReplicaState.ALIVE)
    await returned(world)
    await world.service.tidy()
    assert [world.blobs._replicas[each].committed for each in uncommitted] == [True, False]


@virtual
async def test_a_comparison_that_a_crash_ended_is_made_again() -> None:
    world, _ = await settled()
    for _ in range(2):
        world.librarian.failures["inventory"] = [Kind.UNAVAILABLE] * 50
        await returned(world, forgotten=True)
        assert compared(world) == 0
    world.librarian.failures.clear()
    await returned(world)
    assert (world.librarian.pages, compared(world)) == ([""], 1)
    await returned(world)
    assert world.librarian.pages == []


@virtual
async def test_a_doubt_outlives_a_crash() -> None:
    world, _ = await settled(unknown_retry_ms=600_000)
    lost = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
    await world.service.get(BARTENDER, (GetRequest("r", lost, ("http",)),))
    await world.pass_ms(500)
    assert (compared(world), world.librarian.pages) == (0, [""]), "it waits its turn"
    await returned(world)
    assert (compared(world), world.librarian.pages) == (1, [""])


@virtual
async def test_what_lies_aside_and_was_named_by_a_rebuild_is_brought_back_when_the_first_answer_asks_for_it() -> None:
    """Until then its age must not erase it: a start is then reconciled only by a comparison."""
    world, listed = await settled(unknown_grace_ms=20_000, quarantine_keep_ms=15_000)
    await world.send(await world.ticket(request(DATA, 9, lifetime_ms=10_000)), DATA)
    (aside,) = set(world.blobs.references()) - set(listed)
    await world.pass_ms(34_000)
    assert await world.quarantined() == 1
    await world.stop()
    world.librarian.known[BlobId(numbered("b", 9))] = None
    world.librarian.items[aside] = InventoryItem(aside, BlobId(numbered("b", 9)), ReplicaState.ALIVE)
    world.librarian.next_report_ms = -1
    world.librarian.failures["inventory"] = [Kind.UNAVAILABLE] * 1_000
    await returned(world)
    world.librarian.next_report_ms = 1_000
    await world.pass_ms(20_000)
    assert (compared(world), await world.quarantined()) == (0, 1)
    world.librarian.failures.clear()
    await world.pass_ms(5_000)
    assert (compared(world), await world.state_of(aside)) == (1, "alive")


@virtual
async def test_the_answer_to_a_repeated_first_report_tells_as_much() -> None:
    world, _ = await settled()
    world.librarian.lose_answers["report"] = 2
    await returned(world)
    assert [report.number for report in world.librarian.sent[-4:]] == [1, 1, 1, 2]
    assert (world.librarian.pages, compared(world)) == ([], 1)


@virtual
async def test_starts_that_nobody_answers_change_nothing() -> None:
    world, _ = await settled()
    world.librarian.failures["report"] = [Kind.NETWORK] * 1000
    for _ in range(3):
        await returned(world)
        assert world.librarian.applied == []
    world.librarian.failures.clear()
    world.librarian.lose_answers["report"] = 1000
    await returned(world)
    assert world.librarian.applied
    assert compared(world) == 0
    world.librarian.lose_answers.clear()
    await returned(world)
    assert (world.librarian.pages, compared(world)) == ([], 1)


@pytest.mark.expect_log("tidy is tried again")
@virtual
async def test_a_disk_too_full_for_a_mark_reports_and_compares_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await settled()
    note = world.blobs.note

    async def full(notes: Any) -> None:
        raise CheloniaError(Kind.NO_SPACE, "write")

    monkeypatch.setattr(world.blobs, "note", full)
    late = await world.store(b"late", 9)
    await world.pass_ms(3_000)
    assert (late, "alive") in world.librarian.states()
    world.librarian.items[late] = InventoryItem(late, BlobId(numbered("b", 9)), ReplicaState.ALIVE)
    await world.stop_hard()
    monkeypatch.setattr(world.blobs, "note", note)
    await returned(world)
    assert (world.librarian.pages, compared(world)) == ([""], 1)


@pytest.mark.parametrize(("step_ms", "pages"), [(0, 0), (3_600_000, 1), (-3_600_000, 1)])
def test_the_whole_inventory_is_compared_once_a_day_however_often_it_starts(step_ms: int, pages: int) -> None:
    @virtual
    async def scenario() -> None:
        world, _ = await settled(compare_ms=600_000)
        world.clock.step_ms = step_ms
        await returned(world)
        assert len(world.librarian.pages) == pages
        assert compared(world) == 1
        await world.pass_ms(300_000)
        await returned(world)
        assert world.librarian.pages == []
        await world.pass_ms(297_000)
        assert world.librarian.pages == [""], "a start does not put it off"
        await world.stop()

    scenario()


@virtual
async def test_notes_written_anew_keep_the_mark_and_what_is_still_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world, references = await settled()
    monkeypatch.setattr(stock, "BEHIND_MIN", -10_000)
    world.service._node.index.miss(lost := ReferenceId("aaaaaaaa-0000-4000-8000-000000000001"))
    before = (await world.blobs.notes()).mark
    await world.service.tidy()
    after = await world.blobs.notes()
    assert mark.decode(after.mark) == mark.decode(before)
    assert after.parts[lost[:2]][lost] == rows.OPEN
    assert world.blobs.unsynced_notes == 0
    monkeypatch.undo()
    world.service._node.index.confirm_missing(lost)
    await returned(world)
    assert (world.librarian.states(), world.librarian.pages) == ([], [])
    assert set(references) == set(world.blobs.references())
