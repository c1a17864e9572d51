"""The rules of decisions, each by itself: quorums, membership records and their steps, the watermark, the lease,
joining."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.ahash.group import membership as records
from chelonia.ahash.group.lease import Lease, ProtocolPeriods
from chelonia.ahash.group.log_vouching import LogEnd, TermMark, Vouched, may_join
from chelonia.ahash.group.membership import Membership, Quorum
from chelonia.ahash.group.watermark import Watermark
from chelonia.ahash.store.replicated_port import LogPosition
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn

THREE = Quorum(((1, 2, 3),))
BASE = Vouched(3, 1, 40)
MARK = TermMark(5, 2, 41, BASE)


def group(voters: int) -> Membership:
    record = records.found(tuple((Dn(f"/CN={i}"), f"h{i}:1") for i in range(1, voters + 1)))
    for replica in range(2, voters + 1):
        record = records.finish(records.promote(record, replica))
    return record


def at(offset: int, term: int = 5) -> LogPosition:
    return LogPosition(term, 1, offset)


# ------------------------------------------------------------------------------------------------------------- quorums


@given(st.dictionaries(st.integers(1, 9), st.integers(0, 50)), st.sets(st.integers(1, 9), min_size=1))
def test_agreed_is_the_highest_value_a_majority_has_reached(values: dict[int, int], voters: set[int]) -> None:
    quorum = Quorum((tuple(sorted(voters)),))
    agreed = quorum.agreed(values)
    reached = [value for value in values.values() if quorum.reached({v for v in values if values[v] >= value})]
    assert agreed == max(reached, default=None)


@given(st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)))
def test_two_quorums_of_one_joint_record_always_meet_in_both_sets(one: set[int], other: set[int]) -> None:
    joint = Quorum(((1, 2, 3), (1, 2, 3, 4)))
    if joint.reached(one) and joint.reached(other):
        assert all(one & other & set(voters) for voters in joint.sets)


def test_a_joint_quorum_is_not_a_majority_of_the_union() -> None:
    joint = Quorum(((1, 2), (1, 2, 3, 4)))
    assert not joint.reached({1, 3, 4}), "a majority of both together, and one of the two that decide"
    assert joint.agreed({1: 9, 3: 9, 4: 9}) is None
    assert joint.agreed({1: 9, 2: 5, 3: 9}) == 5


def test_our_own_word_counts_once_in_each_set() -> None:
    joint = Quorum(((1, 2, 3), (1, 2)))
    assert joint.agreed({1: 9}) is None
    assert not joint.reached({1})


def test_learners_and_strangers_do_not_count() -> None:
    assert THREE.agreed({1: 9, 4: 9, 5: 9}) is None
    assert not THREE.reached({3, 4, 5})


# ---------------------------------------------------------------------------------------------------------- membership


def test_a_group_is_founded_with_one_voter() -> None:
    record = records.found(((Dn("/CN=a"), "a:1"), (Dn("/CN=b"), "b:1")))
    assert record.voters == (1,)
    assert record.replicas == (1, 2)
    assert record.next_replica == 3


def test_a_change_of_voters_needs_both_majorities_until_it_is_finished() -> None:
    grown = records.promote(records.add(group(3), Dn("/CN=x"), "x:1"), 4)
    assert grown.quorum == Quorum(((1, 2, 3, 4), (1, 2, 3)))
    assert records.finish(grown).quorum == Quorum(((1, 2, 3, 4),))
    with pytest.raises(CheloniaError, match="not finished"):
        records.demote(grown, 1)


def test_a_voter_is_demoted_before_it_is_removed_and_its_id_never_comes_back() -> None:
    with pytest.raises(CheloniaError, match="demote it first"):
        records.remove(group(3), 3)
    smaller = records.remove(records.finish(records.demote(group(3), 3)), 3)
    assert smaller.replicas == (1, 2)
    assert records.add(smaller, Dn("/CN=y"), "y:1").replicas == (1, 2, 4)


def test_the_last_voter_stays() -> None:
    with pytest.raises(CheloniaError, match="at least one voter"):
        records.demote(group(1), 1)


def test_nobody_takes_the_name_or_the_place_of_another() -> None:
    for dn, address in ((Dn("/CN=1"), "x:1"), (Dn("/CN=x"), "h1:1")):
        with pytest.raises(CheloniaError, match="exists"):
            records.add(group(3), dn, address)


def test_what_follows_a_record() -> None:
    old = group(3)
    for new in (records.add(old, Dn("/CN=x"), "x:1"), records.demote(old, 2)):
        records.check_successor(old, new)
    joint = records.demote(old, 2)
    records.check_successor(joint, records.finish(joint))
    sneaky = records.finish(records.demote(records.finish(joint), 3))
    forged = (
        Membership(old.number + 1, records.finish(joint).members, 4),  # voters changed, and the former not named
        Membership(old.number + 1, sneaky.members, 4, old.voters),  # two at once
        records.finish(joint),  # a number left out
        Membership(old.number + 1, old.members[:2], 3),  # the next id went back
    )
    for new in forged:
        with pytest.raises(CheloniaError, match="conflict"):
            records.check_successor(old, new)
    with pytest.raises(CheloniaError, match="conflict"):
        records.check_successor(joint, Membership(joint.number + 1, old.members, 4, old.voters))


@given(st.lists(st.tuples(st.sampled_from(("add", "promote", "demote", "remove")), st.integers(1, 6)), max_size=12))
def test_every_step_is_a_valid_successor_and_reads_back(steps: list[tuple[str, int]]) -> None:
    record = group(1)
    for number, (step, replica) in enumerate(steps):
        try:
            if step == "add":
                new = records.add(record, Dn(f"/CN=n{number}"), f"n{number}:1")
            else:
                new = {"promote": records.promote, "demote": records.demote, "remove": records.remove}[step](
                    record, replica
                )
        except CheloniaError:
            continue
        records.check_successor(record, new)
        assert records.decode(records.encode(new)) == new
        if new.former:
            records.check_successor(new, records.finish(new))
            new = records.finish(new)
        record = new


# ----------------------------------------------------------------------------------------------------------- watermark


def test_a_commit_is_durable_when_a_majority_holds_it() -> None:
    mark = Watermark(1, 5, 41, THREE)
    mark.committed(41, at(10), 0)
    assert not mark.covers(41), "our own disk is one of three"
    mark.acked(2, at(9))
    assert not mark.covers(41)
    mark.acked(2, at(10))
    assert mark.covers(41)
    assert mark.durable == 41


def test_what_stood_before_the_term_is_never_answered_for() -> None:
    mark = Watermark(1, 5, 41, Quorum(((1,),)))
    for sequence in (0, 40):
        with pytest.raises(CheloniaError, match="outcome-unknown"):
            mark.covers(sequence)
    assert not mark.covers(41), "it may have been read before it is told"
    assert mark.durable == 0, "nothing is durable at the start of a term"
    mark.committed(41, at(10), 0)
    assert (mark.covers(41), mark.covers(42)) == (True, False)


def test_an_ack_of_another_term_releases_nobody() -> None:
    mark = Watermark(1, 5, 41, THREE)
    mark.committed(41, at(10), 0)
    for term in (4, 6):
        mark.acked(2, at(99, term))
    assert not mark.covers(41)


def test_an_ack_in_our_own_name_counts_for_nothing() -> None:
    mark = Watermark(1, 5, 41, THREE)
    mark.committed(41, at(10), 0)
    mark.acked(1, at(99))
    mark.committed(42, at(20), 0)
    mark.acked(2, at(10))
    assert (mark.covers(41), mark.covers(42)) == (True, False)


def test_acks_of_an_earlier_connection_are_forgotten_but_the_watermark_stays() -> None:
    mark = Watermark(1, 5, 41, Quorum(((1, 2, 3, 4, 5),)))
    mark.committed(41, at(10), 0)
    mark.acked(2, at(10))
    mark.forget(2)
    mark.acked(3, at(10))
    assert not mark.covers(41)
    mark.acked(2, at(10))
    mark.forget(2)
    assert mark.covers(41)


def test_a_joint_quorum_needs_both() -> None:
    mark = Watermark(1, 5, 41, THREE)
    mark.decide_by(Quorum(((1, 2, 3, 4), (1, 2, 3))))
    mark.committed(41, at(10), 0)
    mark.acked(2, at(10))
    assert not mark.covers(41), "two of four"
    mark.acked(4, at(10))
    assert mark.covers(41)


def test_commits_come_in_their_term_and_without_gaps() -> None:
    mark = Watermark(1, 5, 41, THREE)
    for sequence, token in ((42, at(10)), (40, at(10)), (41, at(10, 4))):
        with pytest.raises(AssertionError):
            mark.committed(sequence, token, 0)


def test_who_waits_longest() -> None:
    mark = Watermark(1, 5, 41, THREE)
    assert mark.waiting_since() is None
    mark.committed(41, at(10), 100)
    mark.committed(42, at(20), 200)
    assert mark.waiting_since() == 100
    mark.acked(3, at(10))
    assert mark.waiting_since() == 200


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), max_size=60), st.integers(1, 30))
def test_durable_is_what_a_majority_told_and_only_rises(acks: list[tuple[int, int]], commits: int) -> None:
    five = (1, 2, 3, 4, 5)
    mark = Watermark(1, 5, 1, Quorum((five,)))
    held = dict.fromkeys(five, 0)
    for sequence in range(1, commits + 1):
        mark.committed(sequence, at(sequence), 0)
    held[1], before = commits, 0
    for replica, offset in acks:
        mark.acked(replica, at(offset))
        if replica != 1:
            held[replica] = max(held[replica], offset)
        assert mark.durable == min(commits, sorted(held.values())[2])
        assert mark.durable >= before
        before = mark.durable


# --------------------------------------------------------------------------------------------------- lease and joining


def test_a_lease_runs_from_the_stamps_of_a_majority() -> None:
    lease = Lease(1, ProtocolPeriods(), THREE)
    assert lease.until(1000) is None
    lease.echoed(4, 1000)
    assert lease.until(1000) is None, "a learner's echo"
    lease.echoed(2, 1000)
    lease.echoed(2, 900)
    assert lease.until(1200) == 1000 + ProtocolPeriods().held_ms
    lease.echoed(3, 1100)
    assert lease.until(1200) == 1100 + ProtocolPeriods().held_ms
    lease.decide_by(Quorum(((1, 2, 3, 4, 5),)))
    assert lease.until(1200) == 1000 + ProtocolPeriods().held_ms
    assert Lease(1, ProtocolPeriods(), Quorum(((1,),))).until(500) == 500 + ProtocolPeriods().held_ms


def test_a_lease_ends_before_the_grants_whatever_the_rates() -> None:
    for round_trip_ms in range(bounds.ROUND_TRIP_MS, bounds.ROUND_TRIP_MS_MAX + 1):
        pace = ProtocolPeriods.over(round_trip_ms)
        assert pace.held_ms * 1.025 < pace.lease_ms * 0.975


def test_what_is_waited_for_has_the_time_to_come() -> None:
    """A group made for a distance waits as much longer for echoes of a master's heartbeats, of the first one too, and
    for votes."""
    assert ProtocolPeriods.over(bounds.ROUND_TRIP_MS) == ProtocolPeriods()
    for round_trip_ms in range(150, bounds.ROUND_TRIP_MS_MAX + 1):
        pace = ProtocolPeriods.over(round_trip_ms)
        assert pace.held_ms > round_trip_ms + 2 * pace.beat_ms, "the next echo comes before the lease of this one ends"
        assert pace.dead_ms > round_trip_ms + pace.beat_ms, "the first one before a term without any is given up"
        assert pace.vote_ms > round_trip_ms
        assert pace.lease_ms > round_trip_ms + 200 + pace.beat_ms, "a beat that was lost is sent again by TCP in time"


def test_a_log_vouches_for_its_newest_proven_commit() -> None:
    assert LogEnd(None, 7).vouched == Vouched(0, 0, 7)
    first, second = LogEnd(MARK, 41), LogEnd(MARK, 42)
    assert (first.vouched, first.unproven) == (BASE, True)
    assert (second.vouched, second.unproven) == (Vouched(5, 2, 42), False)


def test_who_holds_more_than_a_master_began_with_waits_until_others_have_joined() -> None:
    assert may_join(BASE, BASE)
    assert may_join(BASE, Vouched(4, 1, 1))
    assert not may_join(Vouched(3, 1, 41), BASE)
    assert not may_join(Vouched(4, 1, 1), BASE)
