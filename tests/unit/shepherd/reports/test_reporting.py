"""Messages to Librarians: heartbeats, numbered reports neither lost nor doubled, the inventory's differences."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest

from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.ports.librarian import InventoryItem, InventoryPage
from chelonia.core.ports.shepherd import Authority, GetRequest, Purpose, SmallBlob, Upload
from chelonia.core.values import replace
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.shepherd import ADMINISTRATOR, BARTENDER, CLUSTER, JOE, LIBRARIAN, World, numbered, request, running

DATA = b"data"


def item(reference: ReferenceId, state: ReplicaState | None, number: int = 1) -> InventoryItem:
    return InventoryItem(reference, BlobId(numbered("b", number)), state)


@virtual
async def test_heartbeats_say_what_placement_needs() -> None:
    world = await World(domain="oslo").start(run=True)
    await world.store(DATA)
    await world.pass_ms(1900)
    beat = world.librarian.beats[-1]
    assert (beat.shepherd, beat.domain, beat.verify_key) == (world.settings.service_id, "oslo", "key of s1")
    assert (beat.replicas, beat.accepting, beat.reported) == (1, True, 3)
    assert beat.free_bytes == world.blobs.capacity - len(DATA)
    assert len(world.librarian.beats) == 8


@running
async def test_a_lost_answer_repeats_the_same_report_and_later_changes_follow_in_order(world: World) -> None:
    await world.pass_ms(1100)
    first = await world.store(DATA, 1)
    await world.pass_ms(100)
    world.librarian.lose_answers["report"] = 2
    await world.pass_ms(910)
    second = await world.store(DATA, 2)
    await world.pass_ms(3000)
    sent = world.librarian.sent
    assert sent[3] == sent[4] == sent[5]
    assert [report.number for report in world.librarian.applied] == [1, 2, 3, 4, 5, 6]
    # The answer that arrived was to a repeat and could not name the unknown ones, so the first is reported once more.
    assert world.librarian.states() == [(first, "alive"), (first, "alive"), (second, "alive")]


@virtual
async def test_reports_that_are_refused_for_long_are_one_line_and_one_when_they_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Heartbeats get answers meanwhile, as while the namespace is rebuilt."""
    caplog.set_level("INFO", "chelonia.shepherd.reports")
    world = await World().start(run=True)
    await world.pass_ms(1100)
    caplog.clear()
    world.librarian.failures = {"report": [Kind.UNAVAILABLE] * 10_000}
    await world.store(DATA)
    await world.pass_ms(600_000)
    assert len(world.librarian.failures["report"]) < 9_900, "it is tried all the time"
    world.librarian.failures["report"][1:] = [Kind.CONFLICT]
    await world.pass_ms(5_000)
    told = [record.message.partition(", it will")[0] for record in caplog.records if "report" in record.message]
    assert told == ["report failed", "report failed", "reports are answered again"]


@running
async def test_reports_wait_out_a_librarian_that_cannot_be_reached(world: World) -> None:
    await world.pass_ms(100)
    world.librarian.failures = {"report": [Kind.NETWORK] * 5, "heartbeat": [Kind.TIMEOUT] * 5}
    reference = await world.store(DATA)
    await world.pass_ms(10_000)
    assert set(world.librarian.states()) == {(reference, "alive")}
    assert [report.number for report in world.librarian.applied] == [1, 2, 3, 4]


@pytest.mark.expect_log("WARNING .* no Librarian has answered a heartbeat for 60 s.* error=heartbeat: network")
@virtual
async def test_heartbeats_that_fail_for_long_are_one_warning_and_one_line_when_they_are_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "chelonia.shepherd.reports")
    world = await World().start(run=True)
    for failing_ms in (59_000, 600_000):
        failing = [Kind.TIMEOUT] + [Kind.NETWORK] * 10_000
        world.librarian.failures = {"heartbeat": failing, "report": list(failing)}
        await world.store(DATA, failing_ms)
        await world.pass_ms(failing_ms)
        world.librarian.failures = {}
        await world.pass_ms(1_000)
    told = [record for record in caplog.records if record.levelname != "DEBUG"]
    assert sum("report failed" in record.message for record in told) <= 4, "that of heartbeats tells it"
    words = [" ".join(record.message.split()[:4]) for record in told if record.name.endswith("heartbeats")]
    reasons, again = (
        ["heartbeat failed error=heartbeat: timeout", "heartbeat failed error=heartbeat: network"],
        "heartbeats are answered again",
    )
    assert words == [*reasons, again, *reasons, "no Librarian has answered", again]


@running
async def test_a_new_boot_numbers_from_one(world: World) -> None:
    await world.store(DATA, 1)
    await world.pass_ms(2000)
    old = world.librarian.applied[-1]
    await world.restart(run=True)
    await world.store(DATA, 2)
    await world.pass_ms(2000)
    new = world.librarian.applied[-1]
    assert new.boot > old.boot
    assert next(r.number for r in world.librarian.applied if r.boot == new.boot) == 1


@running
async def test_nothing_is_reported_while_reporting_is_switched_off(world: World) -> None:
    await world.pass_ms(100)
    assert await world.service.toggle_report(ADMINISTRATOR, False) is False
    beats = len(world.librarian.beats)
    reference = await world.store(DATA)
    await world.pass_ms(5000)
    assert len(world.librarian.beats) == beats
    assert world.librarian.states() == []
    assert await world.service.toggle_report(ADMINISTRATOR, True) is True
    await world.pass_ms(1000)
    assert world.librarian.states() == [(reference, "alive")]


@virtual
async def test_nothing_is_reported_before_the_shepherd_is_approved() -> None:
    world = World()
    world.librarian.approved = False
    await world.start(run=True)
    reference = await world.store(DATA)
    await world.pass_ms(3000)
    assert (world.librarian.sent, world.librarian.pages) == ([], [])
    world.librarian.approved = True
    await world.pass_ms(3000)
    assert (reference, "alive") in world.librarian.states()


@pytest.mark.expect_log("another cluster")
@running
async def test_a_librarian_of_another_cluster_hears_nothing(world: World) -> None:
    reference = await world.store(DATA)
    await world.pass_ms(2000)
    world.librarian.position = Position("cluster-2", 9, 9)
    world.librarian.known.clear()
    world.librarian.sent.clear()
    await world.restart(run=True)
    await world.pass_ms(200_000)
    assert world.librarian.sent == []
    assert await world.state_of(reference) == "alive"


LATER = 1 << 50
"""A boot that no clock of a test reaches."""


@pytest.mark.expect_log("an older state file was put back")
@running
async def test_a_start_follows_a_later_one_that_has_ended(world: World) -> None:
    """An image of the disk was put back, and the clock was ahead before, or is behind: else it never reports again."""
    reference = await world.store(DATA)
    await world.pass_ms(2_000)
    await world.stop()
    world.librarian.boot, world.librarian.number, world.librarian.before = LATER, 5, (LATER, 5)
    await world.restart(run=True)
    await world.pass_ms(60_000)
    first = next(report for report in world.librarian.applied if report.boot > LATER)
    assert (first.number, first.replicas) == (1, ())
    assert world.librarian.pages, "it has compared all, for that one has told something"
    last = world.librarian.beats[-1]
    assert (last.boot, last.compared) == (first.boot, 1), "heartbeats of an earlier start count for nothing"
    assert await world.state_of(reference) == "alive"
    await world.restart(run=True)
    await world.pass_ms(2_000)
    assert world.librarian.sent[-1].boot > first.boot, "no number comes again"


@pytest.mark.expect_log("an older state file was put back")
@running
async def test_one_that_was_believed_once_gives_in_and_ends_so_that_its_next_start_is_heard(world: World) -> None:
    """A clone of its disk ran, and has ended: this start's reports no longer count, and it would look ready for
    ever."""
    await world.pass_ms(2_000)
    world.librarian.boot, taken = LATER, len(world.librarian.applied)
    await world.store(DATA)
    await world.pass_ms(60_000)
    assert len(world.librarian.applied) == taken
    assert world.loops is not None
    with fails(Kind.BAD_CONFIG, match="start it again"):
        await world.loops
    await world.restart(run=True)
    await world.pass_ms(60_000)
    assert world.librarian.applied[-1].boot > LATER


@pytest.mark.expect_log("replica missing")
@running
async def test_heartbeats_say_when_every_difference_has_been_taken(world: World) -> None:
    """A disk that came back empty must not be relied on before the namespace has learned of it."""
    lost = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
    world.librarian.items[lost] = InventoryItem(lost, BlobId("b"), ReplicaState.ALIVE)
    world.librarian.failures["report"] = [Kind.UNAVAILABLE] * 12
    await world.pass_ms(2_000)
    assert {beat.compared for beat in world.librarian.beats} == {0}
    await world.pass_ms(3_000)
    assert (lost, "deleted") in world.librarian.states()
    assert world.librarian.beats[-1].compared == world.librarian.position.generation
    beats = len(world.librarian.beats)
    world.librarian.failures["report"] = [Kind.UNAVAILABLE] * 4
    await world.store(DATA)
    await world.pass_ms(3_000)
    assert {beat.compared for beat in world.librarian.beats[beats:]} == {1}, "what changes later is another matter"
    world.librarian.position = Position(CLUSTER, 2, 1)
    world.librarian.failures["inventory"] = [Kind.UNAVAILABLE] * 8
    await world.pass_ms(1_000)
    assert world.librarian.beats[-1].compared == 0, "restored metadata are compared anew"
    await world.pass_ms(3_000)
    assert world.librarian.beats[-1].compared == 2


@virtual
async def test_set_aside_bytes_that_the_namespace_names_after_all_are_brought_back() -> None:
    """They were committed later than the Shepherd waited, or unknown to metadata since replaced by the right ones."""
    world = await World(unknown_grace_ms=2_000).start(run=True)
    await world.send(await world.ticket(request(DATA, lifetime_ms=1_000)), DATA)
    (reference,) = world.blobs.references()
    await world.pass_ms(30_000)
    assert await world.quarantined() == 1
    world.librarian.known[BlobId(numbered("b", 1))] = None
    world.librarian.items[reference] = item(reference, ReplicaState.ALIVE)
    await world.service.get(BARTENDER, (GetRequest("r", reference, ("http",)),))
    await world.pass_ms(2_000)
    assert await world.state_of(reference) == "alive"
    assert await world.quarantined() == 0
    assert (reference, "deleted") not in world.librarian.states()
    assert world.blobs.data(reference) == DATA


@pytest.mark.expect_log("replica missing")
@running
async def test_asked_for_a_replica_that_is_not_here_the_inventory_is_compared(world: World) -> None:
    await world.pass_ms(2_000)
    lost = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
    world.librarian.items[lost] = InventoryItem(lost, BlobId("b"), ReplicaState.ALIVE)
    for _ in range(3):
        await world.service.get(BARTENDER, (GetRequest("r", lost, ("http",)),))
    await world.pass_ms(2_000)
    assert world.librarian.states() == [(lost, "deleted")]
    assert len(world.librarian.pages) == 2


@pytest.mark.expect_log("replica missing")
@running
async def test_a_stat_of_a_replica_that_is_not_here_has_the_inventory_compared(world: World) -> None:
    """A receipt of the former start named it after this start had compared: nobody else would miss the copy for a
    day."""
    await world.pass_ms(2_000)
    lost = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
    world.librarian.items[lost] = InventoryItem(lost, BlobId("b"), ReplicaState.ALIVE)
    await world.service.stat(LIBRARIAN, (("r", lost),))
    await world.service.beat()
    assert world.librarian.beats[-1].compared == 0, "nothing is to be given up for what is in doubt"
    await world.pass_ms(2_000)
    assert world.librarian.states() == [(lost, "deleted")]
    assert len(world.librarian.pages) == 2
    assert world.librarian.beats[-1].compared == 1


@pytest.mark.expect_log("replica missing")
@running
async def test_a_doubt_outlives_a_comparison_that_fails(world: World) -> None:
    await world.pass_ms(2_000)
    lost = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
    world.librarian.items[lost] = InventoryItem(lost, BlobId("b"), ReplicaState.ALIVE)
    world.librarian.failures["inventory"] = [Kind.NETWORK]
    await world.service.stat(LIBRARIAN, (("r", lost),))
    await world.pass_ms(4_000)
    assert not world.librarian.failures["inventory"], "it has failed once"
    assert world.librarian.states() == [(lost, "deleted")]


@pytest.mark.expect_log("replica missing")
@running
async def test_while_a_doubt_is_compared_nothing_counts_as_compared(world: World) -> None:
    await world.pass_ms(2_000)
    lost = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
    world.librarian.items[lost] = InventoryItem(lost, BlobId("b"), ReplicaState.ALIVE)
    during = []
    ask = world.librarian.inventory

    async def inventory(*asked: Any) -> InventoryPage:
        await world.clock.sleep(2 * world.settings.heartbeat_ms)
        during.append(world.librarian.beats[-1].compared)
        return await ask(*asked)

    with patch.object(world.librarian, "inventory", inventory):
        await world.service.stat(LIBRARIAN, (("r", lost),))
        await world.pass_ms(2_000)
    assert during == [0]
    assert world.librarian.beats[-1].compared == 1


@pytest.mark.expect_log("replica is invalid")
@running
async def test_a_stat_of_a_damaged_replica_has_it_reported_again(world: World) -> None:
    reference = await world.store(DATA)
    world.blobs.flip(reference)
    await world.service.scrub(LIBRARIAN, (reference,))
    await world.pass_ms(2_000)
    told = world.librarian.states().count((reference, "invalid"))
    await world.service.stat(LIBRARIAN, (("r", reference),))
    await world.pass_ms(2_000)
    assert world.librarian.states().count((reference, "invalid")) == told + 1


@virtual
async def test_the_inventory_is_compared_once_in_a_while() -> None:
    world = await World(compare_ms=60_000).start(run=True)
    await world.pass_ms(200_000)
    assert len(world.librarian.pages) == 4


@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
@virtual
async def test_a_clock_that_steps_neither_shortens_nor_prolongs_custody(step_ms: int) -> None:
    """Its owner has their receipts, and commits within the hour that another clock gave him."""
    world = await World(unknown_grace_ms=20_000).start(run=True)
    ticket = await world.ticket(request(DATA, purpose=Purpose.RECEIPT, lifetime_ms=60_000))
    other = await world.put(request(DATA, 2, lifetime_ms=60_000))
    await world.send(ticket, DATA)
    world.clock.step_ms = step_ms
    third = await world.ticket(request(DATA, 3, lifetime_ms=60_000))
    await world.send(third, DATA)
    world.clock.step_ms = 0
    await world.pass_ms(70_000)
    assert len(world.blobs.references()) == 2
    assert (await world.service.stat(LIBRARIAN, (("r", other.reference),)))[0].found is False
    await world.pass_ms(30_000)
    assert world.blobs.references() == ()
    assert await world.quarantined() == 2


# --- uncommitted ---------------------------------------------------------------------------------------------------


@virtual
async def test_uncommitted_bytes_are_asked_for_until_their_grace_is_over_then_set_aside_and_erased_by_age() -> None:
    world = await World(unknown_grace_ms=20_000, quarantine_keep_ms=50_000).start(run=True)
    ticket = await world.ticket(request(DATA, lifetime_ms=10_000))
    await world.send(ticket, DATA)
    (reference,) = world.blobs.references()
    await world.pass_ms(29_000)
    assert await world.state_of(reference) == "alive"
    assert 3 < len(world.librarian.states()) < 12, "ever more rarely"
    await world.pass_ms(3_000)
    assert await world.state_of(reference) == "none"
    assert await world.quarantined() == 1
    await world.pass_ms(60_000)
    assert world.blobs.used_bytes() == 0


async def goes_after_33_s_and_three_starts(world: World, reference: ReferenceId) -> None:
    """Bytes that nobody commits are kept for 27 s, starts or not, and are set aside 6 s later."""
    for _ in range(3):
        await world.pass_ms(9_000)
        await world.restart(run=True)
    assert await world.state_of(reference) == "alive"
    await world.pass_ms(6_000)
    assert await world.state_of(reference) == "none"
    assert await world.quarantined() == 1
    await world.stop()


@virtual
async def test_bytes_that_came_for_longer_than_their_ticket_lasts_have_its_time_from_then_on() -> None:
    """They were set aside at once, and a commit of them named nothing."""
    world = await World(unknown_grace_ms=20_000).start(run=True)

    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:1]
        await world.clock.sleep(60_000)
        yield DATA[1:]

    ticket = await world.ticket(request(DATA, lifetime_ms=10_000))
    sending = asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, slow(), len(DATA))))
    await world.pass_ms(62_000)
    assert (await sending).complete
    (reference,) = world.blobs.references()
    await goes_after_33_s_and_three_starts(world, reference)


@virtual
async def test_many_bytes_that_nobody_commits_cost_few_reports() -> None:
    """Each was reported each second for an hour: 42 commits a second of an idle cluster."""
    world = await World(unknown_grace_ms=600_000).start(run=True)
    for number in range(1, 21):
        await world.send(await world.ticket(request(DATA, number, lifetime_ms=600_000)), DATA)
        await world.pass_ms(700)
    await world.pass_ms(120_000)
    before = len(world.librarian.applied)
    await world.pass_ms(300_000)
    assert 0 < len(world.librarian.applied) - before < 20
    assert len(world.blobs.references()) == 20


@pytest.mark.parametrize("in_a_message", [False, True])
@virtual
async def test_no_start_prolongs_the_time_of_bytes_that_nobody_committed(in_a_message: bool) -> None:
    world = await World(unknown_grace_ms=20_000).start(run=True)
    if in_a_message:
        small = SmallBlob(replace(request(DATA).facts, commit_within_ms=10_000), DATA)
        await world.service.store(BARTENDER, (small,))
    else:
        await world.send(await world.ticket(request(DATA, lifetime_ms=10_000)), DATA)
    (reference,) = world.blobs.references()
    await goes_after_33_s_and_three_starts(world, reference)


@virtual
async def test_a_start_with_the_clock_set_back_keeps_such_bytes_no_longer_than_the_longest_ticket() -> None:
    settings = {"unknown_grace_ms": 20_000, "ticket_lifetime_max_ms": 50_000}
    world = await World(**settings).start(run=True)
    await world.send(await world.ticket(request(DATA, lifetime_ms=10_000)), DATA)
    world.clock.step_ms = -1_000_000_000
    await world.restart(run=True)
    await world.pass_ms(60_000)
    assert await world.quarantined() == 0
    await world.pass_ms(20_000)
    assert await world.quarantined() == 1


@virtual
async def test_bytes_that_nobody_committed_in_time_count_as_reclaimable() -> None:
    world = await World(unknown_grace_ms=20_000).start(run=True)
    world.librarian.failures = {"report": [Kind.NETWORK] * 1_000}  # nobody says that they are unknown
    for number in (1, 2):
        await world.send(await world.ticket(request(DATA, number, lifetime_ms=number * 20_000)), DATA)
    counted = list[int]()
    for _ in range(3):
        await world.pass_ms(18_000)
        await world.service.tidy()
        await world.service.beat()
        counted.append(world.librarian.beats[-1].reclaimable_bytes)
    assert counted == [0, len(DATA), 2 * len(DATA)]
    world.librarian.failures = {}
    await world.pass_ms(60_000)
    assert (await world.service.status(ADMINISTRATOR)).unfinished_bytes == 0
    assert world.librarian.beats[-1].reclaimable_bytes == 2 * len(DATA), "they lie in quarantine now"


@pytest.mark.parametrize("broken", ["inventory", "heartbeat"])
@virtual
async def test_what_lies_aside_is_not_erased_by_age_before_it_is_asked_whether_it_is_named_now(
    broken: str, expect_log: Any
) -> None:
    """A rebuild may have named it: it finds replicas in quarantine, too."""
    if broken == "heartbeat":
        expect_log("no Librarian has answered a heartbeat")
    world = await World(unknown_grace_ms=20_000, quarantine_keep_ms=50_000).start(run=True)
    await world.send(await world.ticket(request(DATA, lifetime_ms=10_000)), DATA)
    (reference,) = world.blobs.references()
    await world.pass_ms(34_000)
    assert await world.quarantined() == 1
    world.librarian.position = Position(CLUSTER, 2, 1)
    world.librarian.failures = {broken: [Kind.UNAVAILABLE] * 1000}
    await world.pass_ms(100_000)
    assert await world.quarantined() == 1
    world.librarian.known[BlobId(numbered("b", 1))] = None
    world.librarian.items = {reference: InventoryItem(reference, BlobId(numbered("b", 1)), ReplicaState.ALIVE)}
    world.librarian.failures = {}
    await world.pass_ms(100_000)
    assert await world.state_of(reference) == "alive"


@virtual
async def test_an_unreachable_librarian_sets_nothing_aside() -> None:
    world = await World(unknown_grace_ms=1000).start(run=True)
    ticket = await world.ticket(request(DATA, lifetime_ms=1000))
    await world.send(ticket, DATA)
    (reference,) = world.blobs.references()
    world.librarian.failures = {"report": [Kind.NETWORK] * 10_000}
    await world.pass_ms(600_000)
    assert await world.state_of(reference) == "alive"


@running
async def test_a_blob_named_later_becomes_committed_durably(world: World) -> None:
    await world.send(await world.ticket(request(DATA)), DATA)
    await world.pass_ms(1500)
    world.librarian.known[BlobId(numbered("b", 1))] = None
    await world.pass_ms(5000)
    assert [s.committed async for page in world.blobs.scan() for s in page.read] == [True]
    reports = len(world.librarian.applied)
    await world.pass_ms(60_000)
    assert len(world.librarian.applied) == reports


@pytest.mark.expect_log("the namespace does not know 103 of 103 replicas")
@virtual
async def test_an_empty_namespace_sets_nothing_aside() -> None:
    """With a blank A-Hash by mistake, everything stays readable for when the right one is back."""
    world = await World(unknown_grace_ms=2_000).start(run=True)
    for number in range(103):
        await world.store(DATA, number)
    await world.pass_ms(2_000)
    world.librarian.known.clear()
    world.librarian.forget()
    await world.restart(run=True)
    await world.pass_ms(30_000)
    assert await world.quarantined() == 0
    assert len(world.blobs.references()) == 103


@pytest.mark.expect_log("the namespace does not know 103 of 103 replicas")
@pytest.mark.expect_log("replica set aside")
@virtual
async def test_what_was_unknown_and_is_erased_is_no_sign_that_metadata_were_lost() -> None:
    """Once an administrator has erased the unknown ones, each further one is set aside as ever."""
    world = await World(unknown_grace_ms=2_000).start(run=True)
    for number in range(103):
        await world.store(DATA, number)
    await world.pass_ms(2_000)
    world.librarian.known.clear()
    world.librarian.forget()
    await world.restart(run=True)
    await world.pass_ms(30_000)
    erased = tuple((str(reference), reference) for reference in world.blobs.references())
    await world.service.delete(LIBRARIAN, erased, Authority(world.librarian.position))
    reference = await world.store(DATA, 200)
    await world.pass_ms(2_000)
    world.librarian.known.clear()
    world.librarian.next_report_ms = -1  # it asks for the inventory
    await world.store(DATA, 201)
    await world.pass_ms(60_000)
    assert reference not in world.blobs.references()
    assert await world.quarantined() == 1


@pytest.mark.expect_log("replica set aside")
@virtual
async def test_a_committed_replica_the_namespace_forgot_is_set_aside_and_never_erased() -> None:
    world = await World(unknown_grace_ms=5_000, quarantine_keep_ms=1000).start(run=True)
    reference = await world.store(DATA)
    await world.pass_ms(5000)
    world.librarian.known.clear()
    world.librarian.forget()
    await world.restart(run=True)  # the comparison at its start finds that the inventory lacks it
    await world.pass_ms(4000)
    assert await world.state_of(reference) == "alive"
    await world.pass_ms(600_000)
    assert await world.state_of(reference) == "none"
    assert [(s.reference, s.committed) for s in await world.blobs.quarantined()] == [(reference, True)]


@pytest.mark.expect_log("replica set aside")
@pytest.mark.expect_log("tidy is tried again")
@virtual
async def test_a_committed_replica_is_never_erased_though_the_disk_failed_when_that_was_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World(unknown_grace_ms=5_000, quarantine_keep_ms=1000, compare_ms=60_000).start(run=True)
    settle, failures = world.blobs.settle, [CheloniaError(Kind.UNAVAILABLE, "disk", cause="a sync failed")]

    async def fails_once(references: tuple[ReferenceId, ...]) -> None:
        if failures:
            raise failures.pop()
        await settle(references)

    monkeypatch.setattr(world.blobs, "settle", fails_once)
    reference = await world.store(DATA)
    await world.pass_ms(20_000)
    assert not failures
    world.librarian.known.clear()
    await world.pass_ms(600_000)
    assert await world.state_of(reference) == "none"
    assert [(s.reference, s.committed) for s in await world.blobs.quarantined()] == [(reference, True)]


@pytest.mark.expect_log("replica set aside")
@virtual
async def test_a_lost_answer_does_not_hide_that_a_committed_replica_is_unknown() -> None:
    """It is as after an old disk image was put back: nobody would look again before the next comparison, in a day."""
    world = await World(unknown_grace_ms=5_000, quarantine_keep_ms=1000).start(run=True)
    reference = await world.store(DATA)
    await world.pass_ms(5000)
    world.librarian.known.clear()
    world.librarian.lose_answers["report"] = 1
    world.librarian.forget()
    await world.restart(run=True)
    await world.pass_ms(60_000)
    assert await world.state_of(reference) == "none"
    assert await world.quarantined() == 1


# --- inventory -----------------------------------------------------------------------------------------------------


@pytest.mark.expect_log("replica missing")
@running
async def test_each_start_reports_the_differences_page_by_page(world: World) -> None:
    world.librarian.page_size = 2
    await world.pass_ms(100)
    held = sorted([await world.store(DATA, number) for number in range(1, 6)])
    await world.pass_ms(2000)
    numbers = {ReferenceId(r.reference): r.blob for report in world.librarian.applied for r in report.replicas}
    world.librarian.items = {
        held[0]: InventoryItem(held[0], numbers[held[0]], ReplicaState.ALIVE),
        held[1]: InventoryItem(held[1], numbers[held[1]], ReplicaState.CREATING),
        held[2]: InventoryItem(held[2], numbers[held[2]], ReplicaState.THIRDWHEEL),
        held[3]: InventoryItem(held[3], numbers[held[3]], None),
    }
    gone, claimed = ReferenceId(numbered("e", 1)), ReferenceId(numbered("e", 2))
    world.librarian.items[gone] = item(gone, ReplicaState.ALIVE, 8)
    world.librarian.items[claimed] = item(claimed, ReplicaState.CREATING, 9)
    world.librarian.applied.clear()
    world.librarian.pages.clear()
    world.librarian.forget()
    await world.restart(run=True)
    await world.pass_ms(2000)
    assert sorted(world.librarian.states()) == sorted([(held[1], "alive"), (held[4], "alive"), (gone, "deleted")])
    assert len(world.librarian.pages) == 3


@running
async def test_a_start_compares_once_its_first_report_is_taken(world: World) -> None:
    """Until then a report of the former start, or its ordered erasures, may still be recorded."""
    await world.pass_ms(2000)
    world.librarian.pages.clear()
    world.librarian.failures["report"] = [Kind.UNAVAILABLE] * 8
    world.librarian.forget()
    await world.restart(run=True)
    await world.pass_ms(1000)
    assert world.librarian.failures["report"]
    assert world.librarian.pages == []
    await world.pass_ms(3000)
    assert world.librarian.pages == [""]


@running
async def test_a_librarian_may_ask_for_the_comparison(world: World) -> None:
    await world.pass_ms(100)
    compared = len(world.librarian.pages)
    world.librarian.next_report_ms = -1
    reference = await world.store(DATA)
    await world.pass_ms(1100)
    world.librarian.next_report_ms = 1000
    world.librarian.items = {reference: item(reference, ReplicaState.ALIVE)}
    await world.pass_ms(2000)
    assert len(world.librarian.pages) > compared


@running
async def test_an_erasure_by_restored_metadata_does_not_hide_from_it_that_they_were_restored(world: World) -> None:
    """The order came before the heartbeat whose answer would have stated the new generation."""
    await world.pass_ms(100)
    reference = await world.store(DATA)
    await world.pass_ms(3000)
    compared = len(world.librarian.pages)
    world.librarian.position = Position(CLUSTER, 2, 1)
    outcomes = await world.service.delete(LIBRARIAN, (("r", reference),), Authority(Position(CLUSTER, 2, 1)))
    assert [outcome.status for outcome in outcomes] == ["deleted"]
    await world.pass_ms(3000)
    assert len(world.librarian.pages) > compared
    assert world.librarian.beats[-1].compared == 2


@running
async def test_metadata_restored_from_a_backup_is_told_everything_again(world: World) -> None:
    await world.pass_ms(100)
    first = await world.store(DATA, 1)
    await world.pass_ms(2000)
    world.librarian.number, world.librarian.items = 0, {}
    world.librarian.applied.clear()
    world.librarian.position = Position(world.librarian.position.cluster, 2, 1)
    second = await world.store(DATA, 2)
    await world.pass_ms(3000)
    assert {first, second} <= {ReferenceId(reference) for reference, _ in world.librarian.states()}
    assert world.state.state is not None
    assert world.state.state.generation == 2


@running
async def test_no_number_of_a_report_comes_again_when_older_metadata_were_put_back(world: World) -> None:
    """They go on from an older number: a late or doubled report would count as the next one."""
    for number in range(1, 4):
        await world.store(DATA, number)
        await world.pass_ms(2000)
    before = list(world.librarian.sent)
    world.librarian.number, world.librarian.items = 1, {}
    world.librarian.position = Position(CLUSTER, 2, 1)
    await world.store(DATA, 4)
    await world.pass_ms(3000)
    after = [report for report in world.librarian.applied if report.boot > before[-1].boot]
    assert [report.number for report in after] == list(range(1, len(after) + 1))
    assert world.librarian.beats[-1].compared == 2
    assert world.librarian.beats[-1].boot == before[-1].boot, "it has not started anew: its tickets count"
    for report in before:
        await world.librarian.report(BARTENDER, report)
    assert world.librarian.applied[-1] is after[-1]
    await world.restart(run=True)
    await world.pass_ms(1000)
    assert world.librarian.sent[-1].boot > after[-1].boot


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.expect_log("replica is invalid")
@running
async def test_damage_found_before_a_late_commit_is_told_after_it(world: World, *, told: bool) -> None:
    await world.pass_ms(2_000)
    commit_put = world.librarian.commit_put

    async def late(*args: Any) -> Any:
        (reference,) = world.blobs.references()
        await world.service.toggle_report(ADMINISTRATOR, told)
        world.blobs.flip(reference)
        await world.service.scrub(LIBRARIAN, (reference,))
        await world.pass_ms(2_000)
        world.librarian.applied.clear()
        return await commit_put(*args)

    world.librarian.commit_put = late  # type: ignore[method-assign]
    await world.send(await world.ticket(request(DATA, purpose=Purpose.PENDING)), DATA)
    await world.service.toggle_report(ADMINISTRATOR, on=True)
    await world.pass_ms(2_000)
    assert [state for _, state in world.librarian.states()] == ["invalid"]
