"""Presence and leadership: state machines with time passed in."""

import pytest

from chelonia.core.cluster.healing import HealingWord
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import Heartbeat
from chelonia.core.values import replace
from chelonia.librarian.leadership.lease.decide import LeaderLease, Leadership
from chelonia.librarian.presence.health import (
    FlapRule,
    HealthTable,
    RecordedHealth,
    StoredNode,
    Transition,
    steady_from,
    unsteady,
)

A, B = ServiceId("https://h/Shepherd"), ServiceId("https://h/Shepherd2")
LEASE = 1_000


def beat(shepherd: ServiceId = A, boot: int = 1) -> Heartbeat:
    return Heartbeat(shepherd, boot, 0, 100, 200, 3, True, "d", "k")


def table(state: str = "alive", *, leading: bool = True) -> HealthTable:
    made = HealthTable(LEASE, Ms(0))
    stored = StoredNode(Dn("/CN=a"), state, Ms(5), domain="d", verify_key="k")
    made.load({A: stored, B: stored})
    if leading:
        made.lead(Ms(0))
    return made


def seen(made: HealthTable, now: int) -> dict[str, str]:
    return {t.shepherd: t.state for t in made.transitions(Ms(now))}


def test_who_is_heard_for_the_first_time_comes_back_though_it_counts_as_present() -> None:
    made = table()
    assert made.present(A, Ms(10))
    assert made.comes_back(beat(), Ms(10)), "the registry was read before: it may have been forgotten since"
    made.beat(beat(), Ms(10))
    assert not made.comes_back(beat(), Ms(20))
    assert made.comes_back(beat(boot=2), Ms(20))
    assert made.comes_back(beat(), Ms(10 + LEASE))


def test_who_is_stored_as_alive_and_not_heard_has_still_to_be_listened_for() -> None:
    made = table()
    made.beat(beat(), Ms(10))
    assert made.unsure(Ms(20)) == (B,)
    assert made.unsure(Ms(10 + LEASE)) == (A, B)
    assert table("offline").unsure(Ms(20)) == ()
    made.load({A: StoredNode(Dn("/CN=a"), "alive", approved=False)})
    assert made.unsure(Ms(10 + LEASE)) == (), "who waits for approval has nothing that could be missed"


def test_only_who_was_heard_and_has_compared_its_disk_is_proven() -> None:
    made = table()
    assert made.present(A, Ms(10))
    assert not made.proven(A, Ms(10), 3), "stored as alive, not heard since this Librarian started"
    heard = made.beat(beat(), Ms(20))
    assert heard is not None
    assert not heard.compared
    assert not made.proven(A, Ms(20), 3)
    heard = made.beat(replace(beat(), compared=3), Ms(30))
    assert heard is not None
    assert heard.compared
    assert made.proven(A, Ms(30), 3)
    assert not made.proven(A, Ms(30), 4), "the metadata were restored since"
    assert not made.proven(A, Ms(30 + LEASE), 3)
    again = made.beat(replace(beat(), compared=3), Ms(40))
    assert again is not None
    assert not again.compared, "nothing new"
    made.beat(beat(boot=2), Ms(50))
    assert not made.proven(A, Ms(50), 3), "a new boot compares anew"


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "heard_at", "now", "leading", "present", "written"),
    [
        ("alive", None, 999, True, True, ""),
        ("alive", None, 1000, True, False, "offline"),
        ("alive", None, 5000, False, True, "offline"),
        ("alive", 500, 1499, True, True, ""),
        ("alive", 500, 1500, True, False, "offline"),
        ("alive", 500, 1500, False, True, "offline"),
        ("offline", None, 10, True, False, ""),
        ("offline", None, 5000, True, False, ""),
        ("offline", 10, 20, True, True, "alive"),
        ("offline", 10, 20, False, True, "alive"),
        ("", None, 5000, True, False, ""),
        ("", 10, 20, True, True, "alive"),
    ],
)
def test_presence_and_what_a_leader_writes(
    stored: str, heard_at: int | None, now: int, leading: bool, present: bool, written: str
) -> None:
    made = table(stored, leading=leading)
    if heard_at is not None:
        made.beat(beat(), Ms(heard_at))
    assert made.present(A, Ms(now)) is present
    assert seen(made, now).get(A, "") == written


def test_a_new_leader_waits_a_whole_lease_first() -> None:
    made = table(leading=False)
    made.beat(beat(), Ms(100))
    made.lead(Ms(5_000))
    assert made.present(A, Ms(5_999))
    assert seen(made, 5_999) == {}
    assert not made.present(A, Ms(6_000))
    assert seen(made, 6_000) == {A: "offline", B: "offline"}


def watched(*, until: int) -> HealthTable:
    """A leader's table whose lease lasts until then, with a heartbeat of A just now."""
    made = table()
    for now in range(0, until + 1, LEASE // 4):
        made.listening.watch(Ms(now))
    made.beat(beat(), Ms(until))
    return made


@pytest.mark.parametrize("still", [LEASE // 2, 2 * LEASE])
def test_who_stood_still_calls_nobody_away_before_it_has_listened_for_a_lease(still: int) -> None:
    made, wakes = watched(until=LEASE), LEASE + still
    for step in range(4):
        now = wakes + step * LEASE // 4
        assert seen(made, now) == {}, "also before it is told that it runs again"
        assert made.present(A, Ms(now))
        assert (made.missed(Ms(now), LEASE // 4 - 1), made.word(B, Ms(now))) == ((), HealingWord.UNKNOWN)
        made.listening.watch(Ms(now))
    made.beat(beat(), Ms(wakes + 10))
    assert made.missed(Ms(wakes + LEASE - 1), 1) == (B,), "others are asked in time"
    assert seen(made, wakes + LEASE - 1) == {}
    assert seen(made, wakes + LEASE) == {B: "offline"}


@pytest.mark.parametrize("still", [LEASE // 2, 6 * LEASE // 10, 9 * LEASE // 10, 3 * LEASE])
def test_who_stands_still_again_and_again_calls_away_who_is_silent_in_between_and_nobody_else(still: int) -> None:
    made, now, runs, called = watched(until=LEASE), LEASE, 4 * LEASE // 10, dict[str, int]()
    made.beat(beat(B), Ms(now))
    for stalls in range(1, 20):
        now += still
        for _ in range(4):
            for shepherd in seen(made, now):
                called.setdefault(shepherd, stalls)
            made.listening.watch(Ms(now))
            made.beat(beat(), Ms(now))
            now += runs // 4
    assert called == {B: 3}, "it listened anew after the first, and then for a lease in all"


def test_who_hardly_runs_calls_away_who_is_silent_all_the_same() -> None:
    made, away = watched(until=LEASE), list[int]()
    for now in range(2 * LEASE, 10 * LEASE, LEASE):
        made.listening.watch(Ms(now))
        made.beat(beat(), Ms(now + 1))
        assert A not in seen(made, now + 2)
        away += [now] * (B in seen(made, now + 2))
    assert away == list(range(6 * LEASE, 10 * LEASE, LEASE))


def test_who_stands_still_once_in_a_while_has_time_between_to_call_away_who_is_silent() -> None:
    made, now, away = watched(until=LEASE), LEASE, 0
    for _ in range(5):
        now += 2 * LEASE
        for _ in range(4 * 2 + 1):
            away += B in seen(made, now)
            made.listening.watch(Ms(now))
            made.beat(beat(), Ms(now))
            now += LEASE // 4
    assert away == 5 * 5, "from a lease on after each"


def test_what_is_heard_while_it_has_just_stood_still_counts_from_then_on() -> None:
    made = watched(until=LEASE)
    made.listening.watch(Ms(1_600))
    made.beat(beat(), Ms(100_000))
    for now in range(100_000, 101_000, LEASE // 4):
        made.listening.watch(Ms(now))
        assert A not in seen(made, now)
    assert A in seen(made, 101_000)


def test_who_runs_late_but_for_less_than_half_a_lease_calls_away_when_the_lease_is_over() -> None:
    made = watched(until=LEASE)
    for now in range(LEASE, 2 * LEASE, LEASE // 2 - 1):
        made.listening.watch(Ms(now))
        assert made.missed(Ms(now), 2 * LEASE - now) == (A, B), "others are asked before, however far ahead"
    assert seen(made, 2 * LEASE) == {A: "offline", B: "offline"}


def test_after_a_start_of_everything_slow_starters_are_waited_for() -> None:
    made = HealthTable(LEASE, Ms(0), start_grace_ms=10 * LEASE)
    stored = StoredNode(Dn("/CN=a"), "alive", Ms(5), domain="d", verify_key="k")
    made.load({A: stored, B: replace(stored, state="offline")})
    made.lead(Ms(0))
    assert seen(made, 10 * LEASE - 1) == {}
    assert made.present(A, Ms(10 * LEASE - 1))
    assert not made.present(B, Ms(10 * LEASE - 1)), "it was away before"
    assert [made.awaited_ms(s) for s in (A, B)] == [10 * LEASE] * 2, "all may have been off"
    assert seen(made, 10 * LEASE) == {A: "offline"}
    made.beat(beat(), Ms(2 * LEASE))
    assert seen(made, 3 * LEASE) == {A: "offline"}, "heard since, and then not for a lease"
    assert [made.awaited_ms(s) for s in (A, B)] == [0, 10 * LEASE]


def test_heartbeats_tell_returns_and_new_boots_and_old_ones_are_ignored() -> None:
    made = table("offline")
    first = made.beat(beat(), Ms(10))
    assert first is not None
    assert (first.returned, first.new_boot, first.changed) == (True, False, False)
    again = made.beat(beat(), Ms(20))
    assert again is not None
    assert (again.returned, again.new_boot) == (False, False)
    newer = made.beat(beat(boot=2), Ms(30))
    assert newer is not None
    assert (newer.returned, newer.new_boot) == (False, True)
    assert made.beat(beat(boot=1), Ms(900)) is None
    assert not made.present(A, Ms(1_030))
    assert made.beat(replace(beat(boot=2), domain="other"), Ms(40)).changed  # type: ignore[union-attr]
    assert not made.present(B, Ms(40))


def test_unapproved_and_unknown_shepherds_are_nobody() -> None:
    made = table()
    made.load({A: StoredNode(Dn("/CN=a"), "alive", approved=False, verify_key="k")})
    assert made.beat(beat(), Ms(1)) is None
    assert made.beat(beat(B), Ms(1)) is None
    assert (made.present(A, Ms(1)), made.present(B, Ms(1))) == (False, False)
    assert (made.verify_key(A), made.shepherds(), made.transitions(Ms(9_999))) == ("", (), ())
    assert [view.state for view in made.views(Ms(1), Ms(1))] == ["waiting"]


def test_maintenance_is_shown_until_its_end_and_hides_no_data() -> None:
    made = table()
    made.note(A, maintenance_until_ms=Ms(500))
    made.beat(beat(), Ms(10))
    assert [view.state for view in made.views(Ms(10), Ms(499))] == ["maintenance", "alive"]
    assert [view.state for view in made.views(Ms(10), Ms(500))] == ["alive", "alive"]
    assert made.present(A, Ms(10))


RULE = FlapRule(returns_max=3, window_ms=600)


@pytest.mark.parametrize(
    ("returns", "steady_at"),
    [
        ([], 0),
        ([10], 0),
        ([10, 20], 0),
        ([10, 20, 30], 610),
        ([10, 500, 609], 610),
        ([10, 500, 900, 901], 1100),
        ([10, 20, 30, 40, 50], 630),
    ],
)
def test_a_shepherd_is_steady_when_it_has_not_come_back_too_often(returns: list[int], steady_at: int) -> None:
    times = [Ms(at) for at in returns]
    assert steady_from(times, RULE) == steady_at
    for now in range(0, 1200, 10):
        judged = unsteady({A: times, B: [], ServiceId("c"): []}, RULE, Ms(now))
        assert (A in judged) == (now < steady_at)


@pytest.mark.parametrize(
    ("shaky", "steady", "judged"), [(1, 1, 1), (1, 2, 1), (2, 2, 2), (2, 1, 0), (1, 0, 0), (3, 2, 0)]
)
def test_when_most_come_and_go_it_is_not_they(shaky: int, steady: int, judged: int) -> None:
    returns = {ServiceId(f"x{n}"): [Ms(1), Ms(2), Ms(3)] for n in range(shaky)}
    returns |= {ServiceId(f"y{n}"): [Ms(1)] for n in range(steady)}
    assert len(unsteady(returns, RULE, Ms(4))) == judged


def test_who_was_never_there_before_has_not_come_back() -> None:
    made = table("")
    made.beat(beat(), Ms(10))
    made.beat(beat(B), Ms(10))
    made.load({A: StoredNode(Dn("/CN=a"), "alive"), B: StoredNode(Dn("/CN=a"), "alive")})
    for boot in (2, 3):
        made.beat(beat(boot=boot), Ms(10 * boot))
    assert made.unsteady(Ms(50)) == frozenset(), "two returns"
    made.beat(beat(boot=4), Ms(40))
    assert made.unsteady(Ms(50)) == {A}


def test_a_shepherd_that_comes_and_goes_takes_nothing_new_until_it_is_steady() -> None:
    made = table()
    for boot in (1, 2, 3, 4):
        made.beat(beat(boot=boot), Ms(10 * boot))
        made.beat(beat(B), Ms(10 * boot))
    assert made.unsteady(Ms(50)) == {A}, "three new boots after the first contact"
    assert [view.accepting for view in made.views(Ms(50), Ms(50))] == [False, True]
    assert ["comes and goes" in view.trouble for view in made.views(Ms(50), Ms(50))] == [True, False]
    worse = made.views(
        Ms(50), Ms(50), lambda shepherd: RecordedHealth("store", "its disk is gone" if shepherd == A else "")
    )
    assert [(view.store, view.trouble, view.accepting) for view in worse] == [
        ("store", "its disk is gone", False),
        ("store", "", True),
    ]
    assert made.present(A, Ms(50)), "it is read from"
    steady = made.steady_from(A)
    assert steady == 20 + FlapRule().window_ms
    made.beat(beat(boot=4), Ms(steady - 1))
    assert made.unsteady(Ms(steady - 1)) == {A}
    assert made.unsteady(steady) == {A}, "it came back once more"
    assert made.unsteady(Ms(30 + FlapRule().window_ms)) == frozenset()
    made.load({A: StoredNode(Dn("/CN=a"), "alive"), B: StoredNode(Dn("/CN=a"), "alive")})
    assert made.unsteady(Ms(50)) == {A}, "the registry read again forgets nothing"


def test_planned_restarts_are_no_coming_and_going() -> None:
    made = table()
    for boot in range(1, 8):
        made.beat(beat(boot=boot), Ms(10 * boot))
        made.beat(replace(beat(boot=boot), leaving=True), Ms(10 * boot + 5))
        made.beat(beat(B), Ms(10 * boot))
    assert made.unsteady(Ms(90)) == frozenset()


def test_transitions_are_ordered_and_written_once() -> None:
    made = table()
    both = made.transitions(Ms(2_000))
    assert both == (Transition(A, "offline", "alive"), Transition(B, "offline", "alive"))
    made.note(A, state="offline", since_ms=Ms(7))
    assert [t.shepherd for t in made.transitions(Ms(2_000))] == [B]
    assert [v.since_ms for v in made.views(Ms(2_000), Ms(99))] == [7, 99]


# --- leading ----------------------------------------------------------------------------------------------------------


def test_a_free_lease_is_taken_and_renewed_and_lapses_without_renewal() -> None:
    me = Leadership(A, 900)
    assert me.bid(Ms(0), Ms(0)) is None
    me.observe(LeaderLease(), Ms(0))
    bid = me.bid(Ms(0), Ms(50))
    assert bid is not None
    assert bid.wanted == LeaderLease(A, "950", "1")
    assert not me.leading(Ms(0))
    me.won(bid)
    assert me.leading(Ms(899))
    assert me.bid(Ms(299), Ms(0)) is None
    renewal = me.bid(Ms(300), Ms(350))
    assert renewal is not None
    assert renewal.wanted == LeaderLease(A, "1250", "1")
    me.won(renewal)
    assert me.leading(Ms(1_199))
    assert not me.leading(Ms(1_200))


def test_a_bid_that_is_heard_of_after_a_later_one_says_nothing_new() -> None:
    me = Leadership(A, 900)
    me.observe(LeaderLease(), Ms(0))
    slow = me.bid(Ms(0), Ms(50_000))
    assert slow is not None
    me.observe(slow.wanted, Ms(500))  # it was written, and the answer is on its way
    quick = me.bid(Ms(500), Ms(50_500))
    assert quick is not None
    me.won(quick)
    me.won(slow)
    assert me.term == quick.wanted.term
    assert me.leading(Ms(1_300))


def test_anothers_lease_is_taken_only_when_it_has_not_moved_for_a_whole_lease() -> None:
    me = Leadership(A, 900)
    me.observe(LeaderLease(B, "1", "4"), Ms(0))
    assert me.bid(Ms(899), Ms(10**9)) is None
    me.observe(LeaderLease(B, "2", "4"), Ms(899))
    me.observe(LeaderLease(B, "2", "4"), Ms(1_798))
    assert me.bid(Ms(1_798), Ms(10**9)) is None
    bid = me.bid(Ms(1_799), Ms(0))
    assert bid is not None
    assert (bid.wanted.holder, bid.wanted.term) == (A, "5")
    assert all(element.object == "sys:repair" for element in bid.elements())
    assert len(bid.elements()[0].conditions) == 3


def test_a_restarted_leader_takes_its_own_lease_with_a_new_term() -> None:
    me = Leadership(A, 900)
    me.observe(LeaderLease(A, "1", "4"), Ms(0))
    bid = me.bid(Ms(0), Ms(0))
    assert bid is not None
    assert bid.wanted.term == "5"


def test_seeing_another_holder_or_term_ends_leading_at_once() -> None:
    for other in (LeaderLease(B, "9", "2"), LeaderLease(A, "9", "2"), LeaderLease()):
        me = Leadership(A, 900)
        me.observe(LeaderLease(), Ms(0))
        bid = me.bid(Ms(0), Ms(0))
        assert bid is not None
        me.won(bid)
        me.observe(other, Ms(1))
        assert not me.leading(Ms(1))
