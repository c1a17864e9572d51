"""The brakes of repair and the other small state machines of its loops: none fails whatever sizes come, 0 as well."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.healing import Endangered
from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import Arriving
from chelonia.core.timing.pacing import Pace
from chelonia.librarian.repair.claims.decide import Arrivals
from chelonia.librarian.repair.guard import MINUTE_MS, Backoffs, Flow, RateGuard, Relief, Slots, Throttle
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.tally import RepairTally
from chelonia.librarian.repair.worklist import QueuedBlob, Worklist

SHEPHERDS = [ServiceId(f"https://h{number}/Shepherd") for number in range(3)]
A, B, _ = SHEPHERDS
SHEPHERD = st.sampled_from(SHEPHERDS)
SIZE = st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 1 << 40))
PAUSE = st.one_of(st.just(0), st.integers(0, 2 * MINUTE_MS))
MOVES = st.lists(st.tuples(SHEPHERD, SIZE, PAUSE), max_size=40)
BLOB = st.sampled_from([BlobId(name) for name in "abcde"])
COUNT = st.integers(0, 70)


def test_an_empty_file_that_leaves_a_shepherd_is_forgotten_like_any_other() -> None:
    relief = Relief(10)
    relief.add(SHEPHERDS[0], 100, Ms(0))
    relief.add(SHEPHERDS[0], 0, Ms(1))
    assert relief.bytes(Ms(5)) == {SHEPHERDS[0]: 100}
    assert relief.bytes(Ms(100)) == {}


@given(MOVES, st.integers(1, MINUTE_MS))
def test_relief_is_the_sum_of_the_moves_that_are_young(moves: Sequence[tuple[ServiceId, int, int]], keep: int) -> None:
    relief, now, made = Relief(keep), 0, list[tuple[int, ServiceId, int]]()
    for shepherd, size, pause in moves:
        relief.add(shepherd, size, Ms(now))
        made.append((now, shepherd, size))
        now += pause
        young = [(who, much) for at, who, much in made if now - at < keep]
        sums = {who: sum(much for other, much in young if other == who) for who, _ in young}
        assert relief.bytes(Ms(now)) == {who: much for who, much in sums.items() if much}


@given(st.lists(st.tuples(st.integers(0, 9), PAUSE), max_size=40), st.integers(0, 9))
def test_no_minute_sees_more_events_than_the_guard_lets_through(events: Sequence[tuple[int, int]], most: int) -> None:
    guard, now, taken = RateGuard(most), 0, list[tuple[int, int]]()
    for count, pause in events:
        now += pause
        lately = sum(many for at, many in taken if now - at < MINUTE_MS)
        assert guard.room(Ms(now)) == most - lately
        if guard.take(count, Ms(now)):
            taken.append((now, count))
        assert sum(many for at, many in taken if now - at < MINUTE_MS) <= most


@given(MOVES, SIZE)
def test_a_shepherd_owes_bytes_until_its_rate_has_paid_them(
    moves: Sequence[tuple[ServiceId, int, int]], rate: int
) -> None:
    flow, now = Flow(rate), 0
    for shepherd, size, pause in moves:
        now += pause
        before = flow.free(shepherd, Ms(now))
        flow.spend(shepherd, size, Ms(now))
        assert flow.free(shepherd, Ms(now)) == (before and not (size and rate))
    assert all(flow.free(shepherd, Ms(now + (1 << 60))) for shepherd in SHEPHERDS)


@given(st.lists(st.tuples(SHEPHERD, SHEPHERD), max_size=12), st.integers(0, 3))
def test_slots_are_all_free_again_when_all_copies_have_ended(
    copies: Sequence[tuple[ServiceId, ServiceId]], most: int
) -> None:
    slots = Slots(most, 2 * most)
    for copy in copies:
        slots.take(copy)
    trial = slots.copy()
    for copy in copies:
        trial.release(copy)
    assert (trial.total, trial.used()) == (0, {})
    assert slots.total == len(copies), "a trial changes nothing"


@given(st.lists(st.tuples(st.floats(0, 100), PAUSE), max_size=40), st.integers(0, 4), st.integers(0, 32))
def test_a_throttle_keeps_between_its_ends(looks: Sequence[tuple[float, int]], least: int, most: int) -> None:
    throttle, now = Throttle(least, most), 0
    for late, pause in looks:
        now += pause
        throttle.look(late, Ms(now))
        assert min(least, most) <= throttle.allowed <= most


@given(st.lists(st.tuples(SIZE, PAUSE), max_size=40), st.one_of(st.just(0), st.integers(1, 1 << 30)))
def test_a_pace_never_goes_faster_than_it_may(spent: Sequence[tuple[int, int]], rate: int) -> None:
    pace, now, total = Pace(rate), 0, 0
    for size, pause in spent:
        now += pause
        now += pace.wait_ms(Ms(now))
        assert pace.wait_ms(Ms(now)) == 0
        assert total * 1000 <= now * max(rate, 1) * (1 + 1e-9), "small things add up"
        pace.spend(size, Ms(now))
        total += size


@given(st.lists(st.tuples(BLOB, COUNT, COUNT, SIZE, st.booleans()), max_size=40))
def test_a_tally_ends_with_nothing_when_all_is_whole(plans: Sequence[tuple[BlobId, int, int, int, bool]]) -> None:
    tally = RepairTally()
    for blob, live, wanted, size, survey in plans:
        if survey:
            tally.begin()
        tally.note(BlobPlan(blob, version=1, live=live, wanted=wanted, created_ms=Ms(0), size=size))
        work = tally.work
        assert sum(work.by_live.values()) == tally.exposed
        assert min(work.copies, work.bytes, work.delayed, work.stuck) >= 0
        if survey:
            tally.end()
    for blob, *_ in plans:
        tally.gone(blob)
    assert (tally.exposed, tally.work.by_live, tally.work.copies, tally.work.bytes) == (0, {}, 0, 0)


@given(st.lists(st.tuples(BLOB, st.integers(0, 3), SIZE, st.sampled_from("mtpusk")), max_size=40), st.integers(0, 3))
def test_a_worklist_holds_each_blob_once_and_gives_all_away(
    events: Sequence[tuple[BlobId, int, int, str]], limit: int
) -> None:
    work = Worklist(queue_max=3)
    for blob, live, size, event in events:
        match event:
            case "m":
                work.mark((blob,))
            case "t":
                assert len(work.take(limit)) <= limit
            case "p":
                work.park(QueuedBlob(Endangered(blob, "/f", live, 3, size, Ms(0)), ((SHEPHERDS[0], (SHEPHERDS[1],)),)))
            case "u":
                work.unpark(limit, lambda _: True)
            case "s":
                work.settle(blob)
            case _:
                work.stick(blob)
        work.refill()
        queued = [found.blob for found in work.endangered(100)]
        assert len(queued) == len(set(queued)) == work.queued
    for blob in {blob for blob, *_ in events}:
        work.settle(blob)
    work.unstick()
    work.take(100)
    assert (len(work), work.queued, work.stuck) == (0, 0, 0)


@given(st.lists(st.tuples(SHEPHERD, SIZE, PAUSE, st.booleans()), max_size=40), SIZE)
def test_a_claim_is_renewed_only_for_bytes_that_have_arrived(
    told: Sequence[tuple[ServiceId, int, int, bool]], rate: int
) -> None:
    arrivals, now, most = Arrivals(MINUTE_MS), 0, dict[Location, int]()
    for shepherd, here, pause, written in told:
        now += pause
        place = Location(shepherd, ReferenceId("r"))
        most[place] = max(here, most.get(place, 0))
        due = arrivals.due({place: Arriving(ReferenceId("r"), BlobId("b"), here)}, rate, Ms(now))
        assert not due or most[place] > 0, "an empty copy has nothing that could arrive"
        if due and written:
            arrivals.written(place)


def test_the_rate_guard_lets_so_many_through_in_any_minute() -> None:
    guard = RateGuard(10)
    assert guard.take(6, Ms(0))
    assert not guard.take(5, Ms(59_999))
    assert guard.take(4, Ms(59_999))
    assert guard.take(6, Ms(60_000))
    assert not guard.take(1, Ms(60_000))


def test_slots_are_bounded_per_shepherd_and_in_all() -> None:
    slots = Slots(2, 3)
    slots.take((A, B))
    slots.take((A,))
    assert (slots.free(A), slots.free(B)) == (False, True)
    slots.take((B,))
    assert not slots.free(ServiceId("x"))
    slots.release((A,))
    assert slots.free(A)
    assert slots.used() == {A: 1, B: 2}


def test_slots_keep_to_what_a_shepherd_bears_itself() -> None:
    own = {A: 1, B: 9}
    slots = Slots(2, 8, lambda shepherd: own.get(shepherd, 0))
    assert [slots.most(shepherd) for shepherd in (A, B, ServiceId("x"))] == [1, 2, 2]
    slots.take((A, B))
    assert (slots.free(A), slots.free(B), slots.copy().free(A)) == (False, True, False)
    slots.per_node_max = 1
    assert not slots.free(B)


def test_backoff_doubles_to_its_limit_and_forgets_on_success() -> None:
    backoff = Backoffs(100, 350)
    now, pauses = Ms(0), []
    for _ in range(4):
        until = backoff.failed(A, now)
        pauses.append(until - now)
        assert backoff.active(A, Ms(until - 1))
        assert not backoff.active(A, until)
        now = until
    assert pauses == [100, 200, 350, 350]
    assert not backoff.active(B, now)
    backoff.worked(A)
    assert backoff.failed(A, now) - now == 100


def test_a_throttle_halves_when_the_process_runs_late_and_never_stops_healing() -> None:
    throttle, now = Throttle(2, 16), 0
    seen = []
    for late in (0, 50, 50, 50, 50, 50, 3, 0, 0, 0):
        now += 100
        throttle.look(late, Ms(now))
        seen.append(throttle.allowed)
    assert seen == [16, 8, 4, 2, 2, 2, 2, 3, 4, 5]
    throttle.look(50, Ms(now + 50))
    assert throttle.allowed == 5, "the last change has not shown its effect yet"
