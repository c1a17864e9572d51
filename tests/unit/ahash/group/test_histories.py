"""Acknowledged commits that a replica knows keep it from masters without them; and how long it is bound under
lateness."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
from msgspec.structs import replace as replace_struct

from chelonia.ahash.group.effects import Admission, AskElection, PeerRole, Promises, Send, StepDown
from chelonia.ahash.group.histories import Remembers
from chelonia.ahash.group.lateness import LATENESS_KEPT_MS, LATENESSES_BORNE, PeerLateness
from chelonia.ahash.group.lease import held_for
from chelonia.ahash.group.log_vouching import NOWHERE, OPEN_END, LogEnd, Vouched, VouchedCommit
from chelonia.ahash.group.peer_messages import Ack, Beat, Echo, EngineFrame, Past, Stand
from chelonia.ahash.group.protocol import GroupPeer
from chelonia.ahash.store.replicated_port import (
    ElectionFailed,
    Flushed,
    LogPosition,
    MasterThere,
    SyncedCommit,
    WantElection,
)
from chelonia.core import bounds
from tests.unit.ahash.group.test_protocol import (
    END,
    LATE,
    OPEN,
    PACE,
    beat,
    follower,
    keep_time,
    master,
    of,
    opened,
    replica,
    sent,
    stand,
)

# ---------------------------------------------------------------------------------------------------------- histories

OTHERS = VouchedCommit(4, 2, 99, 45)
"""The end of another history, in a term unknown here."""


def past(*held: VouchedCommit, known: VouchedCommit = NOWHERE, number: int = 1) -> Past:
    return Past(number, known, held)


def knowing() -> GroupPeer:
    """Replica 1, whose log ends in term 3 of replica 2, and which knows that its commit 38 is acknowledged."""
    return replica(beside=Remembers(True, run=7, known=VouchedCommit(3, 2, 0, 38)))


def test_who_knows_more_than_an_open_term_has_is_not_cut_back() -> None:
    one = knowing()
    one.received(2, past(VouchedCommit(3, 2, 0, 37), VouchedCommit(5, 2, 99, OPEN_END)), OPEN)
    effects = one.received(2, beat(durable=42, base=Vouched(3, 2, 60)), OPEN)
    assert one.role is PeerRole.ALONE
    assert one.status(OPEN).parted == (2,)
    assert sent(Stand, effects, 2)
    assert one.admits(2, EngineFrame(True, 5, b"c", b"r"), OPEN) is Admission.DROP
    assert not sent(Stand, one.received(2, beat(durable=43, base=Vouched(3, 2, 60)), OPEN + 1)), "nor disturbed"


def test_a_term_that_has_what_is_known_is_followed_whatever_passed_between() -> None:
    one = knowing()
    one.received(
        2, past(VouchedCommit(3, 2, 0, 39), VouchedCommit(4, 3, 98, 60), VouchedCommit(5, 2, 99, OPEN_END)), OPEN
    )
    one.received(2, beat(durable=42, base=Vouched(4, 3, 60)), OPEN)
    assert one.role is PeerRole.FOLLOWER
    assert one.status(OPEN).parted == ()


def test_the_same_numbers_of_another_run_are_another_history() -> None:
    one = replica(beside=Remembers(True, run=7, known=VouchedCommit(3, 2, 11, 38)))
    one.received(2, past(VouchedCommit(3, 2, 12, 60), VouchedCommit(5, 2, 99, OPEN_END)), OPEN)
    one.received(2, beat(durable=42, base=Vouched(3, 2, 60)), OPEN)
    assert one.status(OPEN).parted == (2,)


def test_who_has_nothing_left_follows_an_open_term_of_any_history() -> None:
    one = replica(end=LogEnd(None, 0), trusted=False, beside=Remembers(False, run=7, known=VouchedCommit(3, 2, 0, 38)))
    one.received(2, past(OTHERS, VouchedCommit(5, 2, 99, OPEN_END)), OPEN)
    one.received(2, beat(durable=42), OPEN)
    assert one.role is PeerRole.FOLLOWER


def test_two_histories_elect_nobody_together_until_one_is_emptied() -> None:
    one = knowing()
    one.received(2, past(OTHERS, known=OTHERS), OPEN)
    assert one.status(OPEN).parted == (2,)
    assert not of(AskElection, stand(one, 2, OPEN, Vouched(4, 2, 45)))
    one.event(WantElection(), OPEN)
    assert not of(AskElection, one.tick(OPEN + 1))
    assert of(AskElection, stand(one, 3, OPEN + 2)), "the third may be of ours"
    one.disconnected(2, OPEN + 3)
    assert one.status(OPEN + 3).parted == (2,), "told until it is known to be over"
    one.connected(2, OPEN + 4)
    one.received(2, past(), OPEN + 4)
    assert one.status(OPEN + 4).parted == ()


def test_who_lacks_what_another_knows_gives_its_term_up_before_it_is_open() -> None:
    one = master()
    effects = one.received(3, past(END.history[0], OTHERS, known=OTHERS), OPEN)
    assert "[3] know of acknowledged changes" in of(StepDown, effects)[0].reason
    assert not one.status(OPEN).parted, "it has not acknowledged anything that they lack"


def test_a_replica_tells_of_its_past_before_the_first_beat_of_a_term_and_before_it_stands() -> None:
    one = knowing()
    [first] = sent(Past, one.connected(2, OPEN))
    assert first.held == END.history
    assert first.known == VouchedCommit(3, 2, 0, 38)
    assert not sent(Past, stand(one, 3, OPEN), 2), "it has been told"
    messages = [effect.message for effect in of(Send, one.mastered(5, END, OPEN)) if effect.peer == 2]
    assert isinstance(messages[0], Past)
    assert messages[0].held == (*END.history, VouchedCommit(5, 1, 7, OPEN_END))
    assert isinstance(messages[1], Beat)


def test_what_is_durable_and_held_is_known() -> None:
    one = follower(durable=0)
    one.event(MasterThere(2, 5), OPEN)
    one.event(Flushed(LogPosition(5, 1, 300), 44), OPEN)
    one.received(2, beat(durable=43), OPEN + 1)
    assert one.histories.known == VouchedCommit(5, 2, 0, 43)
    one.received(2, beat(durable=50), OPEN + 2)
    assert one.histories.known == VouchedCommit(5, 2, 0, 44), "what we lack is no history of ours"


def test_a_term_that_the_engine_takes_nothing_of_is_not_followed() -> None:
    """A vote made the engine expect a newer term. The replica informs its master, and a term above it comes."""
    one = replica()
    one.received(3, EngineFrame(False, 6, b"vote", b""), OPEN)
    effects = one.received(2, beat(durable=42), OPEN)
    assert one.role is PeerRole.ALONE
    assert [word.seen for word in sent(Stand, effects, 2)] == [(6, 0)]
    again = replica(beside=Remembers(True, engine_term=6))
    again.received(2, beat(durable=42), OPEN)
    assert again.role is PeerRole.ALONE


# ------------------------------------------------------------------------------------------------------------- lateness


def strained(one: GroupPeer, now_ms: int, late_ms: int = 300) -> int:
    """Make it late three times, a lease apart. Returns: the time after."""
    for _ in range(LATENESSES_BORNE):
        keep_time(one, now_ms, now_ms := now_ms + 2 * PACE.lease_ms)
        now_ms += late_ms + PACE.beat_ms
        one.tick(now_ms)
    return now_ms


def test_who_is_late_again_and_again_asks_for_longer_leases_within_a_bound() -> None:
    one = replica()
    assert one.status(OPEN).stretch == 1
    keep_time(one, OPEN, 10 * PACE.lease_ms)
    one.tick(10 * PACE.lease_ms + 5000)
    assert one.status(10 * PACE.lease_ms + 5000).stretch == 1, "it stood still once"
    now_ms = strained(one, 10 * PACE.lease_ms + 5000, 5000)
    assert one.status(now_ms).stretch == bounds.LEASE_STRETCH_MAX
    [first, *_] = sent(Beat, one.mastered(5, END, now_ms))
    assert first.lease_ms == PACE.longest_ms
    assert one.status(now_ms + LATENESS_KEPT_MS).stretch == 1


@pytest.mark.parametrize(
    ("late_ms", "lease_ms"),
    [((300, 300), 0), ((51, 60, 70), 510), ((9_000, 60, 9_000), 595), ((120, 130, 140), 765), ((400, 400, 400), 1360)],
)
def test_leases_last_as_much_longer_as_the_third_worst_lateness_takes(late_ms: tuple[int, ...], lease_ms: int) -> None:
    """They last not much longer: a frozen master is not missed for so long."""
    lateness = PeerLateness(PACE)
    for number, late in enumerate(late_ms):
        lateness.late(late, number * PACE.lease_ms)
    now_ms = len(late_ms) * PACE.lease_ms
    assert lateness.lease_ms(now_ms) == lease_ms
    assert lateness.extra_ms(now_ms) == max(0, lease_ms - PACE.lease_ms)


@pytest.mark.parametrize(
    ("late_ms", "failures", "role"),
    [
        (300, 0, PeerRole.ALONE),
        (300, 4, PeerRole.OPENING),
        (0, 0, PeerRole.ALONE),
        (0, 4, PeerRole.OPENING),
    ],
)
def test_a_term_may_take_longer_to_open_where_attempts_came_to_nothing(
    late_ms: int, failures: int, role: PeerRole
) -> None:
    """No such term would ever open otherwise. Followers slower than the wait for a term begin anew in the next one. A
    disk that takes two seconds to sync, with no late process, syncs its first commits again."""
    one = replica()
    began_ms = strained(one, 10 * PACE.lease_ms, late_ms)
    for _ in range(failures):
        one.event(ElectionFailed("not enough votes"), began_ms)
    one.mastered(5, END, began_ms)
    one.event(SyncedCommit(41, LogPosition(5, 1, 100)), began_ms)
    extra_ms = one.status(began_ms).stretch * PACE.lease_ms
    for now_ms in range(began_ms, began_ms + PACE.stuck_ms + 5 * extra_ms, PACE.beat_ms):
        one.tick(now_ms)
        one.received(2, Echo(now_ms, 5, True, None), now_ms)
    assert one.role is role


def opened_after(opening_ms: int) -> tuple[GroupPeer, int]:
    """A master whose term opened so much later, when the others had its first two commits. Returns: the time after,
    too."""
    one, began_ms = replica(), OPEN
    for _ in range(3):
        one.event(ElectionFailed("not enough votes"), began_ms)
    one.mastered(5, END, began_ms)
    for sequence, synced_ms in ((41, began_ms + opening_ms // 2), (42, began_ms + opening_ms)):
        one.event(SyncedCommit(sequence, LogPosition(5, 1, 100 * sequence)), began_ms)
        listens(one, began_ms, synced_ms)
        one.received(2, Echo(synced_ms, 5, True, Ack(LogPosition(5, 1, 100 * sequence), sequence)), synced_ms)
        began_ms = synced_ms
    assert one.status(began_ms).role is PeerRole.MASTER
    return one, began_ms


def listens(one: GroupPeer, since_ms: int, until_ms: int) -> None:
    for now_ms in range(since_ms, until_ms, PACE.beat_ms):
        one.tick(now_ms)
        one.received(2, Echo(now_ms, 5, True, None), now_ms)


@pytest.mark.parametrize("opening_ms", [100, 7_000])
def test_a_commit_may_wait_for_longer_where_those_that_opened_the_term_did(opening_ms: int) -> None:
    """With syncs of 3.5 s a term opened in the end, and ended with its first change, over and over."""
    one, now_ms = opened_after(opening_ms)
    one.event(SyncedCommit(43, LogPosition(5, 1, 4_300)), now_ms)
    ends_ms = now_ms + max(PACE.stuck_ms, 2 * opening_ms)
    listens(one, now_ms, ends_ms)
    assert one.role is PeerRole.MASTER
    one.tick(ends_ms)
    assert one.role is PeerRole.ALONE


def test_no_term_is_waited_for_longer_and_longer() -> None:
    lateness = PeerLateness(PACE)
    for number in range(LATENESSES_BORNE):
        lateness.late(PACE.lease_ms, number * PACE.lease_ms)
    waits = [lateness.stuck_ms(LATENESSES_BORNE * PACE.lease_ms, failures) for failures in (0, 1, 3, 4, 100)]
    assert [each / waits[0] for each in waits] == [1, 2, 8, 8, 8]


def test_how_long_leases_are_to_last_may_be_asked_while_lateness_is_noted() -> None:
    """A writer's thread asks while another notes lateness: the question changes nothing and does not fail."""
    lateness = PeerLateness(PACE)
    for number in range(bounds.LATENESSES_KEPT):
        lateness.late(PACE.lease_ms, number * PACE.lease_ms)
    now_ms = bounds.LATENESSES_KEPT * PACE.lease_ms
    assert lateness.stretch(now_ms + LATENESS_KEPT_MS) == 1
    assert lateness.stretch(now_ms) == bounds.LEASE_STRETCH_MAX, "who asked about later took nothing away"
    stop = threading.Event()

    def note() -> None:
        for number in itertools.count():
            lateness.late(PACE.lease_ms, now_ms + number * PACE.lease_ms)
            if stop.is_set():
                return

    interval = sys.getswitchinterval()
    noting = threading.Thread(target=note)
    try:
        sys.setswitchinterval(1e-6)
        noting.start()
        for _ in range(500):
            lateness.stretch(now_ms)
    finally:
        stop.set()
        noting.join()
        sys.setswitchinterval(interval)


def test_a_longer_grant_is_written_down_first_and_never_shortened() -> None:
    one = follower()
    asked = replace_struct(beat(durable=42), lease_ms=2 * PACE.lease_ms)
    effects = one.received(2, asked, OPEN + 10)
    kinds = [type(effect) for effect in effects]
    assert of(Promises, effects) == [Promises(PACE.longest_ms)], "it may be asked for another soon"
    assert kinds.index(Promises) < kinds.index(Send)
    assert [echo.lease_ms for echo in sent(Echo, effects)] == [2 * PACE.lease_ms]
    bound_ms = OPEN + 10 + 2 * PACE.lease_ms
    assert not of(Promises, one.received(2, beat(durable=42), OPEN + 20))
    keep_time(one, OPEN + 20, bound_ms)
    assert one.role is PeerRole.FOLLOWER
    assert one.admits(3, EngineFrame(False, 6, b"vote", b""), bound_ms - 1) is Admission.DROP
    one.received(2, beat(durable=42), bound_ms - 1)
    assert of(Promises, one.received(2, beat(durable=42), bound_ms)) == [Promises(PACE.lease_ms)]
    assert of(Promises, one.received(2, asked, bound_ms + 1)) == [Promises(PACE.longest_ms)]
    beyond = replace_struct(beat(durable=42), lease_ms=60_000)
    assert not of(Promises, one.received(2, beyond, bound_ms + 1))
    assert sent(Echo, one.received(2, beyond, bound_ms + 1))[0].lease_ms == PACE.longest_ms


def test_who_starts_is_bound_for_as_long_as_was_written_down() -> None:
    one = replica(beside=Remembers(True, promised_ms=PACE.longest_ms))
    keep_time(one, 0, LATE)
    one.received(2, beat(), LATE - 1)
    assert one.role is PeerRole.ALONE
    one.received(2, beat(), LATE)
    assert one.role is PeerRole.FOLLOWER


def test_a_master_counts_on_each_echo_for_as_long_as_it_binds() -> None:
    one = opened()
    one.received(2, Echo(OPEN + 10, 5, True, None, 2 * PACE.lease_ms), OPEN + 20)
    until_ms = OPEN + 10 + held_for(2 * PACE.lease_ms)
    assert one.may_answer_strong(until_ms - 1)
    assert not one.may_answer_strong(until_ms)
    one.received(3, Echo(OPEN + 15, 5, True, None), OPEN + 20)
    assert one.may_answer_strong(until_ms - 1), "a shorter one of another takes nothing away"
