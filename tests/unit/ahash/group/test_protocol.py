"""The protocol of one replica, message by message: the masters it follows, the terms it opens, its answers and
refusals."""

from __future__ import annotations

from typing import TypeVar

import pytest

from chelonia.ahash.group import membership as records
from chelonia.ahash.group.candidacy import LOST_WAITS, ElectionTurn
from chelonia.ahash.group.effects import (
    Admission,
    AskElection,
    Durable,
    Effects,
    FollowerSees,
    OpenTerm,
    PeerRole,
    Process,
    ProveTerm,
    Send,
    StepDown,
    TermEnded,
    TermOpened,
    Trusted,
    WritePages,
)
from chelonia.ahash.group.histories import Remembers
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.log_vouching import LogEnd, TermMark, Vouched
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.peer_messages import Ack, Beat, CheckpointNear, Echo, EngineFrame, Message, Resign, Stand
from chelonia.ahash.group.protocol import GroupPeer
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import (
    CheckpointDue,
    Demoted,
    ElectionFailed,
    Flushed,
    LogPosition,
    MasterHere,
    MasterThere,
    Ready,
    Refilling,
    SyncedCommit,
    WantElection,
)
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn
from chelonia.core.values import replace

PACE = ProtocolPeriods()
GROUP = Membership(9, tuple(Member(i, Dn(f"/CN={i}"), f"h{i}:1", i != 4) for i in (1, 2, 3, 4)), 5)
"""Three voters and a learner, 4."""
END = LogEnd(TermMark(3, 2, 30, Vouched(2, 1, 29)), 40)
"""A log that acknowledges commit 40 of term 3."""
OPEN = PACE.lease_ms
"""The time when the grant of a start has run out."""
LATE = PACE.longest_ms
"""The time when any grant that a lost disk had has run out."""
DEAD = PACE.dead_ms
E = TypeVar("E")


def replica(
    own: int = 1,
    *,
    end: LogEnd = END,
    trusted: bool = True,
    group: Membership = GROUP,
    beside: Remembers = Remembers(True, run=7),  # noqa: B008 - it is frozen
) -> GroupPeer:
    one = GroupPeer(own, group, PACE, 0, end=end, remembers=replace(beside, trusted=trusted))
    for peer in group.replicas:
        if peer != own:
            one.connected(peer, 0)
    return one


def keep_time(one: GroupPeer, since_ms: int, until_ms: int) -> None:
    """Pass time without events, with looks at the clock as often as in a process that has the processor."""
    for now_ms in range(since_ms, until_ms, PACE.beat_ms):
        one.tick(now_ms)


def beat(term: int = 5, *, base: Vouched = END.vouched, durable: int = 0, sent_ms: int = 7, head: int = 0) -> Beat:
    return Beat(sent_ms, term, 41, base, durable, head)


def of(kind: type[E], effects: Effects) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(kind: type[E], effects: Effects, peer: int | None = None) -> list[E]:
    messages = [effect.message for effect in of(Send, effects) if peer in (None, effect.peer)]
    return [message for message in messages if isinstance(message, kind)]


def master(now_ms: int = OPEN) -> GroupPeer:
    """Replica 1, master of term 5 since `now_ms`, its first commit synced here, joined by nobody."""
    one = replica()
    one.mastered(5, END, now_ms)
    one.event(SyncedCommit(41, LogPosition(5, 1, 100)), now_ms)
    return one


def ack(offset: int, sequence: int, term: int = 5) -> Ack:
    return Ack(LogPosition(term, 1, offset), sequence)


def joined(now_ms: int = OPEN) -> GroupPeer:
    """The same, joined by 2, its second commit synced here."""
    one = master(now_ms)
    effects = one.received(2, Echo(now_ms, 5, True, ack(100, 41)), now_ms)
    assert of(ProveTerm, effects) == [ProveTerm(5, 42)]
    one.event(SyncedCommit(42, LogPosition(5, 1, 150)), now_ms)
    return one


def opened(now_ms: int = OPEN) -> GroupPeer:
    one = joined(now_ms)
    assert of(TermOpened, one.received(2, ack(150, 42), now_ms)) == [TermOpened(5)]
    return one


def follower(*, durable: int = 41) -> GroupPeer:
    """Replica 1, synchronised with 2, the master of term 5."""
    one = replica()
    one.received(2, beat(durable=durable, head=41), OPEN)
    one.event(MasterThere(2, 5), OPEN)
    one.event(Ready(), OPEN)
    return one


# --------------------------------------------------------------------------------------------------- opening a term


def test_a_term_begins_with_its_mark_and_answers_nothing_until_a_majority_has_joined() -> None:
    one = replica()
    effects = one.mastered(5, END, OPEN)
    assert of(OpenTerm, effects) == [OpenTerm(TermMark(5, 1, 41, Vouched(3, 2, 40), 7, END.history))]
    assert sent(Beat, effects, 2) == [Beat(OPEN, 5, 41, Vouched(3, 2, 40), 0, 40)]
    one.event(SyncedCommit(41, LogPosition(5, 1, 100)), OPEN)
    assert one.role is PeerRole.OPENING
    assert not one.may_answer_strong(OPEN)
    assert not one.may_write(OPEN)
    assert not one.covers(5, 41)


def test_neither_an_ack_nor_an_echo_alone_opens_a_term() -> None:
    one = master()
    assert not of(ProveTerm, one.received(2, ack(100, 41), OPEN)), "nobody is bound to us"
    two = master()
    assert not of(ProveTerm, two.received(2, Echo(OPEN, 5, True, None), OPEN)), "nobody holds the first commit"
    assert of(ProveTerm, two.received(2, ack(100, 41), OPEN + 5)) == [ProveTerm(5, 42)]


def test_a_term_is_open_when_a_majority_can_prove_that_it_was_joined() -> None:
    """Before, others may still follow an older log: an answer from here would not bind it."""
    one = joined()
    assert one.role is PeerRole.OPENING
    assert not one.may_answer_strong(OPEN)
    assert not one.covers(5, 41)
    assert [each.durable for each in sent(Beat, one.tick(OPEN + PACE.beat_ms), 2)] == [0]
    effects = one.received(2, ack(150, 42), OPEN + 60)
    assert of(TermOpened, effects) == [TermOpened(5)]
    assert of(Durable, effects) == [Durable(5, 42)]
    assert one.may_answer_strong(OPEN + 60)
    assert one.covers(5, 42)


def test_a_learner_and_an_untrusted_replica_open_nothing() -> None:
    one = master()
    assert not of(ProveTerm, one.received(4, Echo(OPEN, 5, True, ack(100, 41)), OPEN))
    assert not of(ProveTerm, one.received(3, Echo(OPEN, 5, False, ack(100, 41)), OPEN))
    two = joined()
    two.received(4, ack(150, 42), OPEN)
    two.received(3, Echo(OPEN, 5, False, ack(150, 42)), OPEN)
    assert two.role is PeerRole.OPENING


def test_a_new_master_whom_nobody_joins_steps_down() -> None:
    one = master()
    keep_time(one, OPEN, OPEN + DEAD)
    assert not of(StepDown, one.tick(OPEN + DEAD - 1))
    effects = one.tick(OPEN + DEAD)
    assert of(StepDown, effects) == [StepDown("no majority answers")]
    assert of(TermEnded, effects) == [TermEnded(5, "no majority answers")]
    assert sent(Resign, effects, 3) == [Resign(5)]


def test_a_new_master_gives_up_at_once_when_those_who_hold_more_are_too_many() -> None:
    one = master()
    word = Stand(Vouched(4, 2, 41), (4, 2), False, True)
    assert not of(StepDown, one.received(2, word, OPEN + 1))
    assert of(StepDown, one.received(3, word, OPEN + 2))


def test_a_mandate_that_comes_while_we_are_bound_to_another_master_is_not_used() -> None:
    """The process was frozen exactly between election and start."""
    one = follower()
    effects = one.mastered(7, END, OPEN + 100)
    assert of(StepDown, effects) == [StepDown("the election is older than our grant to another master")]
    assert not of(OpenTerm, effects)
    assert one.role is PeerRole.ALONE, "of term 5 its engine takes nothing any more"
    assert not one.may_read_here(OPEN + 100)


def test_who_starts_is_bound_for_a_lease() -> None:
    assert of(StepDown, replica().mastered(5, END, OPEN - 1))
    one = replica()
    one.received(2, beat(), OPEN - 1)
    assert one.role is PeerRole.ALONE
    one.received(2, beat(), OPEN)
    assert one.role is PeerRole.FOLLOWER


def test_a_group_of_one_starts_at_once() -> None:
    alone = Membership(1, GROUP.members[:1], 2)
    one = GroupPeer(1, alone, PACE, 0, end=END, remembers=Remembers(True))
    assert of(AskElection, one.tick(0)) == [AskElection(1, 1, PACE.mandate_ms, PACE.vote_ms)]
    one.mastered(5, END, 1)
    assert of(ProveTerm, one.event(SyncedCommit(41, LogPosition(5, 1, 100)), 2)) == [ProveTerm(5, 42)]
    assert of(TermOpened, one.event(SyncedCommit(42, LogPosition(5, 1, 150)), 3)) == [TermOpened(5)]


def test_the_engine_s_word_that_we_are_master_needs_the_end_of_the_log() -> None:
    with pytest.raises(AssertionError):
        replica().event(MasterHere(5, StoreState(41, 0)), OPEN)


def test_a_commit_before_the_term_is_open_is_a_bug() -> None:
    for one, sequence in ((master(), 42), (joined(), 43)):
        with pytest.raises(AssertionError):
            one.event(SyncedCommit(sequence, LogPosition(5, 1, 200)), OPEN)


# ------------------------------------------------------------------------------------------------------ as the master


def test_strong_answers_end_with_the_lease_though_the_term_goes_on() -> None:
    one = opened()
    last = OPEN + PACE.held_ms
    assert one.may_answer_strong(last - 1)
    assert not one.may_answer_strong(last)
    keep_time(one, OPEN, last + DEAD)
    assert one.role is PeerRole.MASTER
    assert of(StepDown, one.tick(last + DEAD))


def test_a_lease_counts_from_when_the_beat_was_sent() -> None:
    one = opened()
    one.tick(OPEN + 300)
    one.received(2, Echo(OPEN + 10, 5, True, None), OPEN + 350)
    assert one.may_answer_strong(OPEN + 10 + PACE.held_ms - 1)
    assert not one.may_answer_strong(OPEN + 10 + PACE.held_ms)


def test_what_arrives_after_a_freeze_does_not_revive_a_term() -> None:
    """Echo and ack were in time, but the process was frozen: the clock comes first, then the message."""
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    effects = one.received(2, Echo(OPEN + 10, 5, True, ack(200, 43)), OPEN + 3000)
    assert of(TermEnded, effects)
    assert not of(Durable, effects)
    with pytest.raises(CheloniaError, match="outcome-unknown"):
        one.covers(5, 43)


def test_a_master_that_had_no_time_reads_what_waits_before_it_gives_up() -> None:
    one = opened()
    late = OPEN + PACE.held_ms + DEAD + 100
    assert not of(StepDown, one.tick(late))
    assert not one.may_answer_strong(late)
    one.received(2, Echo(OPEN + 350, 5, True, None), late + 1)
    keep_time(one, late + 1, OPEN + 350 + PACE.held_ms + DEAD)
    assert not of(StepDown, one.tick(OPEN + 350 + PACE.held_ms + DEAD - 1))
    two = opened()
    two.tick(late)
    assert of(StepDown, two.tick(late + PACE.beat_ms)) == [StepDown("no majority answers")]


def test_acks_and_echoes_of_another_term_change_nothing() -> None:
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    one.received(3, ack(900, 43, term=4), OPEN + 2)
    one.received(3, Echo(OPEN + 300, 4, True, ack(900, 43, term=4)), OPEN + 300)
    one.received(3, Echo(OPEN + 300, 5, True, ack(900, 43, term=6)), OPEN + 1)
    assert not one.covers(5, 43)


def test_a_new_connection_asks_for_acks_again() -> None:
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    assert sent(Beat, one.connected(2, OPEN + 2), 2), "at once, so that the echo repeats the ack"
    one.received(2, Echo(OPEN + 2, 5, True, ack(200, 43)), OPEN + 3)
    assert one.covers(5, 43)


def test_changes_are_refused_while_the_oldest_waits_for_longer_than_a_lease() -> None:
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    for now_ms in range(OPEN + 2, OPEN + 2 * PACE.lease_ms, 50):
        one.received(2, Echo(now_ms, 5, True, None), now_ms)
        assert one.may_write(now_ms) == (now_ms - (OPEN + 1) < PACE.lease_ms)


def test_a_master_with_a_lease_holds_a_rival_off_and_gives_way_to_one_whom_a_majority_joined() -> None:
    one = opened()
    rival = EngineFrame(True, 8, b"new master", b"")
    assert one.admits(3, rival, OPEN + 1) is Admission.HOLD
    assert not of(StepDown, one.received(3, beat(8), OPEN + 1))
    assert of(StepDown, one.received(3, beat(8, durable=50), OPEN + 2)) == [StepDown("replica 3 has opened term 8")]


def test_who_has_seen_a_newer_term_is_brought_back_by_a_term_above_it() -> None:
    one = opened()
    word = Stand(Vouched(3, 2, 40), (8, 3), True, True)
    assert not of(StepDown, one.received(3, word, OPEN + 10)), "a young term is not given up for it"
    for now_ms in range(OPEN, OPEN + PACE.lease_ms + 1, 50):
        one.received(2, Echo(now_ms, 5, True, None), now_ms)
    assert of(StepDown, one.received(3, word, OPEN + PACE.lease_ms))


def test_covers_says_yes_to_nothing_of_another_term() -> None:
    one = opened()
    for term, sequence in ((4, 41), (6, 41), (5, 40)):
        with pytest.raises(CheloniaError, match="outcome-unknown"):
            one.covers(term, sequence)
    assert not one.covers(5, 43), "its commit is not told yet"
    one.event(Demoted(), OPEN + 1)
    with pytest.raises(CheloniaError, match="outcome-unknown"):
        one.covers(5, 41)


# ----------------------------------------------------------------------------------------------------------- following


def test_a_master_that_began_with_less_is_told_so_and_not_followed() -> None:
    one = replica()
    one.tick(OPEN)
    effects = one.received(2, beat(base=Vouched(3, 2, 39)), OPEN)
    assert sent(Stand, effects, 2) == [Stand(Vouched(3, 2, 40), (3, 2), False, True)]
    assert one.role is PeerRole.ALONE
    assert not sent(Echo, effects)


def test_frames_of_a_master_wait_until_it_is_followed() -> None:
    one = replica()
    frame = EngineFrame(True, 5, b"claim", b"")
    assert one.received(2, frame, OPEN - 1) == ()
    effects = one.received(2, beat(), OPEN)
    assert of(Process, effects) == [Process(2, b"claim", b"")]
    assert one.admits(2, frame, OPEN) is Admission.PASS
    assert one.admits(3, frame, OPEN) is Admission.HOLD
    assert one.admits(2, EngineFrame(True, 6, b"", b""), OPEN) is Admission.HOLD
    assert one.admits(9, frame, OPEN) is Admission.DROP


def test_who_is_bound_hears_no_votes_and_joins_nobody_but_an_open_term() -> None:
    one = follower()
    vote = EngineFrame(False, 6, b"vote", b"")
    assert one.admits(3, vote, OPEN + 1) is Admission.DROP
    assert not sent(Echo, one.received(3, beat(8), OPEN + 1))
    assert one.term == 5
    effects = one.received(3, beat(8, base=Vouched(0, 0, 0), durable=50), OPEN + 2)
    assert sent(Echo, effects, 3)
    assert of(FollowerSees, effects) == [FollowerSees(8, 50)]
    assert one.term == 8
    assert not sent(Echo, one.received(2, beat(5, durable=60), OPEN + 900)), "an older term never again"


def test_acks_are_given_in_the_term_followed_only() -> None:
    one = follower()
    assert sent(Ack, one.event(Flushed(LogPosition(5, 1, 100), 41), OPEN), 2) == [ack(100, 41)]
    assert not sent(Ack, one.event(Flushed(LogPosition(4, 1, 900), 60), OPEN))
    one.received(3, beat(8, durable=50), OPEN + 2)
    assert not sent(Ack, one.event(Flushed(LogPosition(5, 1, 200), 42), OPEN + 3)), (
        "the old master's, still in the queue"
    )
    assert not sent(Ack, one.event(Flushed(LogPosition(8, 1, 200), 42), OPEN + 3)), "the engine does not follow yet"


def test_what_was_synced_while_no_master_was_followed_is_acknowledged_to_the_same_one() -> None:
    """A starved follower leaves its master, and its engine then reports commits from just before, once only. A learner
    became a voter only after its engine was opened again, 20 s later."""
    one, late = follower(), OPEN + PACE.lease_ms
    keep_time(one, OPEN, late)
    assert not sent(Ack, one.event(Flushed(LogPosition(5, 1, 200), 42), late))
    assert sent(Ack, one.received(2, beat(durable=41, head=42), late + 1), 2) == [ack(200, 42)]
    one = follower()
    keep_time(one, OPEN, late)
    one.event(Flushed(LogPosition(5, 1, 200), 42), late)
    one.event(MasterThere(3, 5), late)
    assert not sent(Ack, one.received(3, beat(durable=41, head=42), late + 1)), "that was another master's"


def test_what_is_durable_goes_along_with_frames_and_asks_for_no_echo() -> None:
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    assert not sent(Beat, one.received(2, ack(200, 43), OPEN + 2)), "told a moment ago"
    told = Beat(0, 5, 41, END.vouched, 43, 43)
    assert sent(Beat, one.announce_durable(OPEN + 3), 3) == [told]
    assert not sent(Beat, one.announce_durable(OPEN + 3)), "they know"
    assert not sent(Beat, one.tick(OPEN + PACE.tell_ms + 3)), "and need not be told again"
    two = follower()
    effects = two.received(2, Beat(0, 5, 41, END.vouched, 42, 42), OPEN + 1)
    assert of(FollowerSees, effects) == [FollowerSees(5, 42)]
    assert not sent(Echo, effects)


def test_frames_in_quick_succession_take_it_along_now_and_then_and_wake_nobody_else() -> None:
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    one.received(2, ack(200, 43), OPEN + 2)
    assert not sent(Beat, one.announce_durable(OPEN + 2), 3), "told a moment ago"
    assert sent(Beat, one.announce_durable(OPEN + 3), 3)
    looked = one.next_wake(OPEN + 3)
    assert looked == OPEN + 3 + PACE.tell_ms, "looked at once more, as frames rarely come alone"
    one.event(SyncedCommit(44, LogPosition(5, 1, 300)), OPEN + 4)
    one.received(2, ack(300, 44), OPEN + 4)
    assert one.next_wake(OPEN + 4) == looked, "nobody is woken for the next one"
    assert sent(Beat, one.tick(looked), 2) == [Beat(0, 5, 41, END.vouched, 44, 44)]
    assert one.next_wake(looked) == OPEN + PACE.beat_ms


def test_what_is_durable_is_told_soon_and_beats_keep_their_time() -> None:
    one = opened()
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    one.received(2, ack(200, 43), OPEN + 2)
    assert one.next_wake(OPEN + 2) == OPEN + PACE.tell_ms
    assert sent(Beat, one.tick(OPEN + PACE.tell_ms), 2) == [Beat(0, 5, 41, END.vouched, 43, 43)]
    assert one.next_wake(OPEN + PACE.tell_ms) == OPEN + PACE.beat_ms, "the lease lives by echoes"
    assert sent(Beat, one.tick(OPEN + PACE.beat_ms), 2) == [Beat(OPEN + PACE.beat_ms, 5, 41, END.vouched, 43, 43)]


def test_what_is_not_echoed_does_not_bind() -> None:
    one = follower()
    one.received(2, beat(durable=42), OPEN + 50)
    one.received(2, Beat(0, 5, 41, END.vouched, 43, 43), OPEN + 90)
    one.tick(OPEN + 50 + PACE.lease_ms - 1)
    assert one.term == 5
    one.tick(OPEN + 50 + PACE.lease_ms)
    assert one.term == 0, "the master's lease does not live by it either"
    two = replica()
    two.received(2, Beat(0, 5, 41, END.vouched, 41, 41), OPEN)
    two.tick(OPEN + 1)
    assert two.term == 5, "who begins to follow stays for as long as a beat takes"


def test_an_echo_repeats_the_last_ack() -> None:
    one = follower()
    one.event(Flushed(LogPosition(5, 1, 100), 41), OPEN)
    assert sent(Echo, one.received(2, beat(sent_ms=9), OPEN + 50), 2) == [Echo(9, 5, True, ack(100, 41))]


def test_what_was_acknowledged_is_vouched_for() -> None:
    one = follower()
    one.event(Flushed(LogPosition(5, 1, 200), 42), OPEN)
    one.tick(OPEN + PACE.lease_ms)
    effects = one.received(3, beat(8, base=Vouched(5, 2, 41)), OPEN + PACE.lease_ms)
    assert sent(Stand, effects, 3) == [Stand(Vouched(5, 2, 42), (5, 2), False, True)]
    assert sent(Echo, one.received(3, beat(8, base=Vouched(5, 2, 42)), OPEN + PACE.lease_ms), 3)


def test_reads_here_need_word_from_the_master_and_what_they_show_must_be_durable() -> None:
    one = follower()
    assert one.may_read_here(OPEN)
    assert one.covers(5, 41)
    assert not one.covers(5, 42)
    assert not replica().may_read_here(OPEN)
    assert not follower(durable=0).may_read_here(OPEN)
    late = follower()
    assert late.may_read_here(OPEN + PACE.stale_ms - 1)
    assert not late.may_read_here(OPEN + PACE.stale_ms)


def test_a_word_that_waited_counts_from_when_it_left() -> None:
    """A frozen process or a network may delay it: reads by it would show a state of seconds ago."""
    one, late = follower(), OPEN + 6000
    assert sent(Echo, one.received(2, beat(durable=41, sent_ms=7 + 50), late), 2), "it is still followed"
    assert not one.may_read_here(late)
    one.received(2, beat(durable=41, sent_ms=7 + 6000), late)
    assert one.may_read_here(late)
    two = follower()
    keep_time(two, OPEN, late)
    assert two.role is PeerRole.ALONE
    two.received(2, beat(durable=41, sent_ms=7 + 50), late)
    assert two.role is PeerRole.FOLLOWER
    assert not two.may_read_here(late)


def test_a_master_that_is_first_heard_of_when_all_waited_is_waited_for() -> None:
    one = replica()
    one.event(MasterThere(2, 5), OPEN)
    one.event(Ready(), OPEN)
    late = OPEN + 6000
    for stamp_ms in (7, 57, 107):
        one.received(2, beat(durable=41, sent_ms=stamp_ms, head=41), late)
    assert one.role is PeerRole.FOLLOWER
    assert not one.may_read_here(late)
    one.received(2, beat(durable=41, sent_ms=6107), late + PACE.beat_ms)
    assert one.may_read_here(late + PACE.beat_ms)


@pytest.mark.parametrize("rate", [951, 1000, 1049])
def test_reads_here_bear_clocks_that_differ_in_rate(rate: int) -> None:
    one = follower()
    for turn in range(1, 5000):
        now_ms = OPEN + turn * PACE.beat_ms
        one.received(2, beat(durable=41, sent_ms=7 + turn * PACE.beat_ms * rate // 1000), now_ms)
        assert one.may_read_here(now_ms + 2 * PACE.beat_ms)


def test_a_follower_that_had_no_time_reads_what_waits_before_it_gives_its_master_up() -> None:
    one, late = follower(), OPEN + PACE.lease_ms + 100
    one.tick(late)
    assert one.role is PeerRole.FOLLOWER
    assert one.admits(3, EngineFrame(False, 6, b"vote", b""), late) is Admission.PASS, "bound it is no more"
    assert sent(Echo, one.received(2, beat(durable=41), late + 1), 2)
    assert one.admits(3, EngineFrame(False, 6, b"vote", b""), late + 1) is Admission.DROP
    two = follower()
    two.tick(late)
    assert two.next_wake(late) == late + PACE.beat_ms
    two.tick(late + PACE.beat_ms)
    assert two.role is PeerRole.ALONE
    three = follower()
    keep_time(three, OPEN, OPEN + PACE.lease_ms)
    three.tick(OPEN + PACE.lease_ms)
    assert three.role is PeerRole.ALONE, "who listened all the time waits no longer"


@pytest.mark.parametrize("stalled_ms", [PACE.lease_ms - 1, PACE.lease_ms, PACE.lease_ms + PACE.beat_ms + 1])
def test_who_meant_to_look_each_beat_and_could_not_listens_first(stalled_ms: int) -> None:
    one = follower()
    one.attention.look_ms = OPEN + PACE.beat_ms
    one.tick(OPEN + stalled_ms)
    assert one.role is PeerRole.FOLLOWER
    one.attention.look_ms = OPEN + stalled_ms + PACE.beat_ms
    one.tick(OPEN + stalled_ms + PACE.beat_ms)
    assert one.role is PeerRole.ALONE


def test_a_master_that_resigns_frees_its_followers() -> None:
    one = follower()
    effects = one.received(2, Resign(5), OPEN + 1)
    assert sent(Stand, effects, 3)
    assert one.role is PeerRole.ALONE
    assert not sent(Stand, follower().received(2, Resign(4), OPEN + 1)), "an earlier term's"


# ----------------------------------------------------------------------------------------------------------- elections


def stand(one: GroupPeer, peer: int, now_ms: int, vouched: Vouched = END.vouched, *, unproven: bool = False) -> Effects:
    return one.received(peer, Stand(vouched, (3, 2), unproven, peer != 4), now_ms)


def test_an_election_is_asked_for_when_a_majority_stands() -> None:
    one = replica()
    assert not of(AskElection, one.tick(OPEN))
    assert not of(AskElection, stand(one, 4, OPEN + 1)), "a learner"
    assert of(AskElection, stand(one, 2, OPEN + 2)) == [AskElection(2, 2, PACE.mandate_ms, PACE.vote_ms)]
    assert not of(AskElection, stand(replica(), 2, OPEN - 1)), "bound by our start"


def test_anothers_election_is_joined_as_soon_as_our_own_has_been_rested_from() -> None:
    one = replica()
    one.tick(OPEN)
    assert of(AskElection, stand(one, 2, OPEN))
    for _ in range(3):
        one.event(ElectionFailed("too few votes"), OPEN)
    one.event(ElectionFailed("another holds a later one", newer=True), OPEN + 1)
    assert not of(AskElection, one.event(WantElection(), OPEN + 1))
    due_ms = one.next_wake(OPEN + 1)
    assert due_ms < OPEN + PACE.beat_ms, "at the next beat two replicas would miss each other for ever"
    assert of(AskElection, one.tick(due_ms))


def test_elections_that_come_to_nothing_wait_longer_until_a_term_is_open() -> None:
    one, now_ms, waits = replica(), OPEN, []
    for _ in range(6):
        one.disconnected(2, now_ms)
        keep_time(one, now_ms, now_ms := now_ms + bounds.ELECTION_REST_MS_MAX + PACE.lease_ms)
        one.connected(2, now_ms)
        [asked] = of(AskElection, stand(one, 2, now_ms))
        waits.append(asked.wait_ms // PACE.vote_ms)
        one.event(ElectionFailed("too few votes"), now_ms)
    assert waits == [1, 1, 2, 4, 4, 4]
    one.received(2, beat(durable=41), now_ms)
    one.received(2, Resign(5), now_ms)
    [asked] = of(AskElection, stand(one, 3, now_ms + PACE.lease_ms))
    assert asked.wait_ms == PACE.vote_ms


def test_candidates_that_come_to_nothing_together_do_not_begin_again_together() -> None:
    turns = [ElectionTurn(own, PACE, OPEN, run=own) for own in (1, 2, 3)]
    for _ in range(4):
        for turn in turns:
            turn.failed(OPEN)
    rests = [turn.after_ms - OPEN - PACE.backoff_ms * (1 + turn.own) for turn in turns]
    assert len(set(rests)) == 3
    assert all(0 < rest < bounds.ELECTION_REST_MS_MAX for rest in rests)


def test_an_election_that_nothing_is_heard_of_is_lost_after_a_while_and_counts_as_failed() -> None:
    one = replica()
    [first] = of(AskElection, stand(one, 2, OPEN))
    lost_ms = OPEN + LOST_WAITS * first.wait_ms
    assert not of(AskElection, stand(one, 2, lost_ms - 1))
    assert of(AskElection, stand(one, 2, lost_ms)) == [first]
    [third] = of(AskElection, stand(one, 2, lost_ms + LOST_WAITS * first.wait_ms))
    assert third.wait_ms == 2 * first.wait_ms


def test_an_unproven_replica_that_vouches_for_less_stays_away_and_its_vote_is_not_needed() -> None:
    unproven = replica(end=LogEnd(TermMark(4, 1, 41, Vouched(3, 2, 40)), 41))
    assert not of(AskElection, stand(unproven, 2, OPEN, Vouched(3, 2, 41)))
    other = replica(end=LogEnd(END.mark, 41))
    assert of(AskElection, stand(other, 2, OPEN, Vouched(3, 2, 40), unproven=True)) == [
        AskElection(1, 1, PACE.mandate_ms, PACE.vote_ms)
    ]


# --------------------------------------------------------------------------------------------------------- lost disks


def test_a_replica_that_lost_its_disk_does_nothing_until_it_is_synchronised() -> None:
    one = replica(end=LogEnd(None, 0), trusted=False)
    assert not of(AskElection, stand(one, 2, LATE))
    assert of(StepDown, one.mastered(5, LogEnd(None, 0), LATE))
    one.event(Demoted(), LATE)
    assert not sent(Echo, one.received(2, beat(), LATE)), "nor does it help a term to open"
    effects = one.received(2, beat(durable=41, head=45), LATE)
    assert sent(Echo, effects) == [Echo(7, 5, False, None)]
    one.event(MasterThere(2, 5), LATE)
    one.event(Ready(), LATE)
    later = LATE + 2 * PACE.lease_ms
    keep_time(one, LATE, later)
    assert not sent(Ack, one.event(Flushed(LogPosition(5, 1, 100), 44), later))
    assert not of(Trusted, one.received(2, beat(durable=41, head=45), later)), "that is not all that its master has"
    assert not one.may_read_here(later)
    effects = one.event(Flushed(LogPosition(5, 1, 200), 45), later)
    assert of(Trusted, effects)
    assert sent(Ack, effects, 2) == [ack(200, 45)]
    assert one.may_read_here(later)


def test_trust_does_not_return_before_old_promises_have_lapsed() -> None:
    one = replica(end=LogEnd(None, 0), trusted=False)
    one.received(2, beat(durable=41, head=45), 10)
    for event in (MasterThere(2, 5), Ready(), Flushed(LogPosition(5, 1, 200), 45)):
        assert not of(Trusted, one.event(event, 11))
    assert not of(Trusted, one.received(2, beat(durable=45, head=45), LATE - 1))
    assert of(Trusted, one.received(2, beat(durable=45, head=45), LATE))


def test_a_log_that_is_being_replaced_counts_for_nothing() -> None:
    one = follower()
    one.event(Flushed(LogPosition(5, 1, 100), 41), OPEN)
    one.event(Refilling(), OPEN)
    assert not one.may_read_here(OPEN)
    assert sent(Echo, one.received(2, beat(durable=41, head=50), OPEN + 1)) == [Echo(7, 5, False, None)]
    one.event(Ready(), OPEN + 2)
    assert not of(Trusted, one.event(Flushed(LogPosition(5, 1, 100), 41), OPEN + 3))
    assert of(Trusted, one.event(Flushed(LogPosition(5, 1, 300), 50), OPEN + 4))


def test_a_log_that_was_replaced_in_a_term_not_yet_open_counts_once_it_is_whole() -> None:
    """It was joined because it began with all commits that this replica acknowledged; it may have no majority without
    it."""
    one = follower(durable=0)
    one.event(Refilling(), OPEN)
    assert sent(Echo, one.received(2, beat(head=41), OPEN + 1)) == [Echo(7, 5, False, None)]
    one.event(Ready(), OPEN + 2)
    assert not of(Trusted, one.event(Flushed(LogPosition(5, 1, 90), 40), OPEN + 3))
    effects = one.event(Flushed(LogPosition(5, 1, 100), 41), OPEN + 4)
    assert of(Trusted, effects)
    assert sent(Ack, effects, 2) == [ack(100, 41)]


# --------------------------------------------------------------------------------------------------------- membership


def test_a_change_of_members_counts_by_both_at_once_and_is_finished_when_durable() -> None:

    one = opened()
    with pytest.raises(CheloniaError, match="not the master"):
        master().propose(records.promote(GROUP, 4))
    one.propose(records.promote(GROUP, 4))
    with pytest.raises(CheloniaError, match="conflict"):
        one.propose(records.finish(one.membership))
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    one.received(2, ack(200, 43), OPEN + 2)
    with pytest.raises(CheloniaError, match="not durable yet"):
        one.finish(43)
    one.received(4, ack(200, 43), OPEN + 3)
    assert one.finish(43).former == ()
    assert one.membership.voters == (1, 2, 3, 4)


def test_what_the_end_of_a_change_makes_durable_is_answered_when_it_is_told() -> None:
    """The remaining members hold a commit behind the record, but too few of the earlier ones did. It counted silently,
    and was answered while status, followers and its waiters still had it as not durable."""
    one = opened()
    one.propose(records.promote(GROUP, 4))
    one.event(SyncedCommit(43, LogPosition(5, 1, 200)), OPEN + 1)
    for peer in (2, 4):
        one.received(peer, ack(200, 43), OPEN + 2)
    one.finish(43)
    one.event(SyncedCommit(44, LogPosition(5, 1, 250)), OPEN + 3)
    for peer in (2, 4):
        one.received(peer, ack(250, 44), OPEN + 4)
    one.propose(records.demote(one.membership, 3))
    one.event(SyncedCommit(45, LogPosition(5, 1, 300)), OPEN + 5)
    one.event(SyncedCommit(46, LogPosition(5, 1, 350)), OPEN + 6)
    one.received(2, ack(350, 46), OPEN + 7)
    assert of(Durable, one.received(4, ack(300, 45), OPEN + 8)) == [Durable(5, 45)]
    one.finish(45)
    assert (one.covers(5, 46), one.durable_sequence) == (False, 45), "two of four hold it, so far"
    assert of(Durable, one.event(SyncedCommit(47, LogPosition(5, 1, 400)), OPEN + 9)) == [Durable(5, 46)]
    assert (one.covers(5, 46), one.durable_sequence) == (True, 46), "and two of three"
    assert not one.covers(5, 47)


@pytest.mark.parametrize(
    ("vouched", "votes", "over"),
    [
        (Vouched(3, 2, 42), False, True),
        (Vouched(3, 2, 42), True, False),
        (Vouched(3, 2, 40), False, False),  # an older record may stand there
        (Vouched(4, 3, 50), False, False),  # so may another history
    ],
)
def test_a_change_whose_end_stands_only_with_who_lost_his_vote_by_it_is_over(
    vouched: Vouched, votes: bool, over: bool
) -> None:
    """2 was demoted, so that 1 alone votes, and only 2 has the record that ends the change. 2 follows no replica with
    less, and is no candidate."""
    members = tuple(Member(i, Dn(f"/CN={i}"), f"h{i}:1", i == 1) for i in (1, 2))
    one = replica(group=Membership(9, members, 3, former=(1, 2)))
    one.tick(OPEN)
    effects = one.received(2, Stand(vouched, (3, 2), False, votes), OPEN)
    assert of(AskElection, effects)
    one.mastered(5, END, OPEN)
    assert bool(of(ProveTerm, one.event(SyncedCommit(41, LogPosition(5, 1, 100)), OPEN))) == over, (
        "its own word is enough"
    )


def test_who_would_be_left_has_to_answer() -> None:
    """A silent one with a link may be frozen."""
    one, now_ms = opened(), OPEN + PACE.lease_ms
    three, two = records.demote(GROUP, 1), records.demote(GROUP, 3)
    one.received(2, Echo(now_ms, 5, True, None), now_ms)
    assert one.would_answer(two, now_ms), "1 and 2"
    assert not one.would_answer(three, now_ms), "of 2 and 3 only 2"
    one.received(3, Echo(now_ms, 5, True, None), now_ms)
    assert one.would_answer(three, now_ms)
    assert not one.would_answer(three, now_ms + PACE.lease_ms)
    one.disconnected(2, now_ms)
    assert not one.would_answer(two, now_ms)
    one.resign("no reason", now_ms)
    with pytest.raises(CheloniaError, match="not the master"):
        one.would_answer(two, now_ms)


def test_followers_are_told_of_a_checkpoint_and_heed_their_master_alone() -> None:
    one = opened()
    one.disconnected(3, OPEN)
    effects = one.event(CheckpointDue(), OPEN)
    assert [each.peer for each in of(Send, effects) if isinstance(each.message, CheckpointNear)] == [2, 4]
    assert set(sent(CheckpointNear, effects)) == {CheckpointNear(5)}
    two = follower()
    assert two.received(2, CheckpointNear(5), OPEN) == (WritePages(),)
    assert not of(WritePages, two.received(2, CheckpointNear(4), OPEN)), "another term"
    assert not of(WritePages, two.received(3, CheckpointNear(5), OPEN)), "not its master"
    assert not sent(CheckpointNear, two.event(CheckpointDue(), OPEN)), "it is master no longer"


def test_only_members_are_heard() -> None:
    one = master()
    messages: tuple[Message, ...] = (ack(100, 41), Echo(OPEN, 5, True, ack(100, 41)), beat(9, durable=99))
    for message in messages:
        assert one.received(7, message, OPEN) == ()
    assert one.role is PeerRole.OPENING


def test_status_tells_what_an_operator_asks() -> None:
    status = opened().status(OPEN + 100)
    assert (status.role, status.master, status.term, status.durable, status.head) == (PeerRole.MASTER, 1, 5, 42, 42)
    assert status.lease_ms == PACE.held_ms - 100
    assert [(peer.replica, peer.acked) for peer in status.peers] == [(2, 42), (3, 0), (4, 0)]
