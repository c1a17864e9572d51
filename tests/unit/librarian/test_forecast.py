"""How long healing takes, what it has to do, and what it was told: numbers, limits and records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.ahash import ChangeType
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.healing import HealAction, HealControl, HealOrder, NodeCursor
from chelonia.core.ids import REPAIR_OBJECT, BlobId, Ms, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.librarian import steering
from chelonia.librarian.forecast import UNKNOWN, Cost, Rate, Seen, forecast_ms, outlook
from chelonia.librarian.guard import Flow
from chelonia.librarian.repair import BlobPlan
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.tally import Tally

A, B = ServiceId("https://h/Shepherd"), ServiceId("https://h/Shepherd2")
MIB = 1024 * 1024


# --- the forecast -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "size", "cost", "expected"),
    [
        (0, 0, None, 0),
        (1, 1, None, UNKNOWN),
        (100, 0, Cost(10, 0), 1_000),
        (2, 3 * MIB, Cost(5, 1 / MIB), 13),
    ],
)
def test_a_forecast_is_so_much_a_copy_and_so_much_a_byte(
    copies: int, size: int, cost: Cost | None, expected: int
) -> None:
    assert forecast_ms(copies, size, cost) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (Seen(0, 0, 0, 0, unplanned=0, share=1.0), (0, 0)),
        (Seen(40, 40 * MIB, 0, 0, unplanned=0, share=1.0), (40, 40 * MIB)),
        (Seen(0, 0, 0, 0, unplanned=40, share=1.0), None),
        (Seen(30, 30 * MIB, 0, 0, unplanned=10, share=1.0), (40, 40 * MIB)),
        (Seen(20, 20 * MIB, 5, 5 * MIB, unplanned=0, share=0.25), (95, 95 * MIB)),
        (Seen(500, 500, 0, 0, unplanned=0, share=0.01), None),
    ],
)
def test_what_has_not_been_read_of_a_loss_is_taken_to_be_as_what_has(
    known: Seen, expected: tuple[int, int] | None
) -> None:
    assert outlook(known) == expected


def seen(*slices: tuple[int, int, int]) -> Rate:
    """A rate that has seen slices of (copies, bytes in all, milliseconds)."""
    rate, now = Rate(), 0
    for copies, size, took in slices:
        for number in range(copies):
            rate.copied(size // copies + (size % copies if number == 0 else 0))
        now += took
        rate.tick(Ms(now), took)
    return rate


@given(
    copy_ms=st.integers(1, 200),
    ms_per_mib=st.integers(1, 200),
    mixes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 500)), min_size=3, max_size=12),
    wanted=st.tuples(st.integers(1, 1000), st.integers(0, 10_000)),
)
def test_what_copies_and_bytes_cost_is_told_apart_when_it_can_be(
    copy_ms: int, ms_per_mib: int, mixes: list[tuple[int, int]], wanted: tuple[int, int]
) -> None:
    rate = seen(*((n, mib * MIB, n * copy_ms + mib * ms_per_mib) for n, mib in mixes))
    alike = len({mib / n for n, mib in mixes}) == 1
    copies, size = wanted if not alike else (mixes[0][0] * 7, mixes[0][1] * 7)
    expected = copies * copy_ms + size * ms_per_mib
    assert forecast_ms(copies, size * MIB, rate.cost) == pytest.approx(expected, rel=0.05, abs=5)


@pytest.mark.parametrize("learned_kib", [1, 1024, 16 * 1024])
@pytest.mark.parametrize(("copy_ms", "ms_per_mib"), [(9, 3), (9, 4.5), (90, 60)])
def test_what_copies_of_one_size_cost_foretells_those_of_others(
    learned_kib: int, copy_ms: float, ms_per_mib: float
) -> None:
    def takes(copies: int, kib: int) -> int:
        return round(copies * copy_ms + kib / 1024 * ms_per_mib)

    rate = seen(*[(n, n * learned_kib * 1024, takes(n, n * learned_kib)) for n in (1, 2, 1, 3)])
    for small, large in ((250, 8), (250, 0), (0, 8)):
        size = small + large * 16 * 1024
        foretold, takes_ms = forecast_ms(small + large, size * 1024, rate.cost), takes(small + large, size)
        assert takes_ms / 2 <= foretold <= takes_ms * 2, (small, large)


def test_the_latest_weighs_most_and_idle_time_does_not_count() -> None:
    rate = seen(*[(10, 10 * MIB, 100)] * 20, *[(10, 10 * MIB, 1_000)] * 30)
    assert forecast_ms(10, 10 * MIB, rate.cost) == pytest.approx(1_000, rel=0.1)
    for _ in range(50):
        rate.tick(Ms(10**9), 0)
    assert forecast_ms(10, 10 * MIB, rate.cost) == pytest.approx(1_000, rel=0.1)


def test_a_copy_that_takes_many_slices_is_charged_for_all_of_them() -> None:
    rate = Rate()
    for number in range(1, 10):
        rate.tick(Ms(number * 100), 100)
    rate.copied(64 * MIB)
    rate.tick(Ms(1_000), 100)
    assert forecast_ms(1, 64 * MIB, rate.cost) == pytest.approx(1_000, rel=0.01)


def test_the_first_to_end_of_many_that_began_together_is_not_all_that_was_made() -> None:
    rate = Rate()
    rate.copied(1_000)
    rate.tick(Ms(250), 250, (15, 15 * MIB))
    assert forecast_ms(200, 200 * MIB, rate.cost) == pytest.approx(200 / 8.5 * 250, rel=0.3), "not 200 times 250"


def test_what_was_half_made_before_is_not_counted_again_and_what_failed_was_not_made() -> None:
    rate = Rate()
    for running in ((16, 16 * MIB), (16, 16 * MIB), (0, 0)):
        for _ in range(16):
            rate.copied(MIB)
        rate.tick(Ms(1_000), 1_000, running)
    assert forecast_ms(16, 16 * MIB, rate.cost) == pytest.approx(1_000, rel=0.2)
    rate.tick(Ms(2_000), 0, (16, 16 * MIB))
    rate.copied(MIB)
    rate.tick(Ms(3_000), 100, (0, 0))
    assert rate.cost is not None
    assert rate.cost.copy_ms >= 0
    assert rate.cost.byte_ms >= 0


def test_the_recent_rate_forgets_after_ten_seconds() -> None:
    rate = seen((30, 30 * MIB, 1_000))
    assert rate.recent(Ms(2_000)) == (180, 3 * MIB)
    assert rate.recent(Ms(11_001)) == (0, 0)


# --- what is to be done -----------------------------------------------------------------------------------------------


def plan(blob: str, live: int, **facts: int) -> BlobPlan:
    return BlobPlan(BlobId(blob), 1, live, 3, Ms(0), **{"size": 100, **facts})


def test_the_work_is_counted_exactly_however_often_a_blob_is_looked_at() -> None:
    tally = Tally()
    for _ in range(2):
        tally.note(plan("a", 1))
        tally.note(plan("b", 2, short=1))
        tally.note(plan("c", 2, waited=1))
        tally.note(plan("whole", 3))
    work = tally.work
    assert (work.by_live, work.delayed, work.stuck, work.copies, work.bytes) == ({1: 1, 2: 2}, 1, 1, 4, 400)
    assert tally.exposed == 3
    tally.note(plan("a", 2))
    assert tally.work.by_live == {2: 3}
    for blob in "abc":
        tally.note(plan(blob, 3))
    tally.gone(BlobId("whole"))
    work = tally.work
    assert (work.by_live, work.delayed, work.stuck, work.copies, work.bytes) == ({}, 0, 0, 0, 0)


def test_what_was_done_counts_from_when_the_first_of_these_was_exposed() -> None:
    tally = Tally()
    tally.note(plan("a", 2))
    tally.copied(100)
    tally.note(plan("a", 3))
    assert tally.done == (1, 100)
    tally.note(plan("b", 2))
    assert tally.done == (0, 0)


# --- limits and orders ------------------------------------------------------------------------------------------------


def test_a_flow_lets_large_things_through_and_is_paid_off_before_the_next() -> None:
    flow = Flow(1_000)
    assert flow.free(A, Ms(0))
    flow.spend(A, 5_000, Ms(0))
    assert not flow.free(A, Ms(4_999))
    assert flow.free(A, Ms(5_000))
    assert flow.free(B, Ms(0)), "each for itself"
    for now in range(10):
        flow.spend(B, 1, Ms(now))
    assert not flow.free(B, Ms(9)), "small things add up"
    flow.bytes_per_s_max = 0
    assert flow.free(A, Ms(0))


def stored(**sections: dict[str, str]) -> StoredObject:
    return StoredObject(REPAIR_OBJECT, 1, sections)


def test_what_was_ordered_goes_before_what_is_configured() -> None:
    settings = LibrarianSettings(copies_per_node_max=3, copy_bytes_per_s_max=7)
    assert steering.control_of(stored(), settings) == HealControl(7, 3)
    ordered = stored(control={"bytes_per_s": "0", "copies_per_node": "9", "paused_by": "/CN=a", "paused_ms": "5"})
    control = steering.control_of(ordered, settings)
    assert control == HealControl(0, 9, "/CN=a", Ms(5))
    assert control.paused


@pytest.mark.parametrize(
    ("order", "written"),
    [
        (HealOrder(HealAction.PAUSE), [("paused_by", "/CN=a"), ("paused_ms", "12")]),
        (HealOrder(HealAction.RESUME), [("paused_by", ""), ("paused_ms", "")]),
        (HealOrder(HealAction.RATE, 5, 2), [("bytes_per_s", "5"), ("copies_per_node", "2")]),
        (HealOrder(HealAction.RATE, copies_per_node=16), [("copies_per_node", "16")]),
        (HealOrder(HealAction.RATE, bytes_per_s=0), [("bytes_per_s", "0")]),
    ],
)
def test_orders_are_written_beside_the_lease(order: HealOrder, written: list[tuple[str, str]]) -> None:
    elements = steering.ordered(order, "/CN=a", Ms(12))
    assert [(e.property, e.value) for e in elements] == written
    assert {(e.object, e.section) for e in elements} == {(REPAIR_OBJECT, "control")}


@pytest.mark.parametrize(
    "order",
    [
        HealOrder(HealAction.RATE),
        HealOrder(HealAction.RATE, bytes_per_s=-2),
        HealOrder(HealAction.RATE, copies_per_node=0),
        HealOrder(HealAction.RATE, copies_per_node=17),
    ],
)
def test_limits_that_cannot_be_are_refused(order: HealOrder) -> None:
    with pytest.raises(CheloniaError) as refused:
        steering.ordered(order, "/CN=a", Ms(12))
    assert refused.value.kind is Kind.BAD_REQUEST


def test_cursors_are_written_when_they_move_and_dropped_when_their_loss_is_over() -> None:
    before = steering.cursors_of(stored(cursors={A: "7 r5", B: "9 r1", "https://odd/Shepherd": "no"}))
    assert before == {A: (Ms(7), "r5"), B: (Ms(9), "r1")}
    now = {A: (Ms(7), NodeCursor(A, "r8", False))}
    moved = steering.moved(before, now)
    assert [(e.change, e.property, e.value) for e in moved] == [
        (ChangeType.SET, A, "7 r8"),
        (ChangeType.UNSET, B, ""),
    ]
    assert steering.moved({A: (Ms(7), "r8")}, now) == []
