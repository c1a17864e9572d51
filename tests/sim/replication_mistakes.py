"""Mistakes planted into the replication protocol: each must be caught, or the tests prove nothing.

Every entry of `MISTAKES` breaks one rule, as a developer might in good faith, by replacing one function. It names seeds
of the simulator or unit tests that show it. A rule that another one backs up may take more luck than a simulation has:
such mistakes are the unit tests' alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chelonia.ahash.group import lease, membership, protocol
from chelonia.ahash.group.attention import MasterWord
from chelonia.ahash.group.histories import Remembers
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.membership import Membership, Quorum
from chelonia.ahash.group.protocol import GroupPeer
from chelonia.ahash.group.watermark import Watermark
from chelonia.core.values import replace
from tests.sim.replication_engine import Engine
from tests.unit.ahash import test_quorums as quorums
from tests.unit.ahash.group import test_protocol as rules

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledged_before_the_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watermark, "covers", lambda self, sequence: self._first <= sequence <= self._last)
    true_one = GroupPeer.covers

    def covers(self: GroupPeer, term: int, sequence: int) -> bool:
        reign = self._reign
        if reign is None or reign.term != term or reign.opened_ms is None:
            return true_one(self, term, sequence)
        return reign.watermark.covers(sequence)

    patch.setattr(GroupPeer, "covers", covers)


def acks_of_other_terms_count(patch: pytest.MonkeyPatch) -> None:
    def acked(self: GroupPeer, peer: int, ack: Any) -> None:
        reign = self._reign
        if reign is not None:
            reign.watermark.acked(peer, replace(ack.token, term=reign.term))

    patch.setattr(GroupPeer, "_acked", acked)


def a_stale_token_releases_waiters(patch: pytest.MonkeyPatch) -> None:
    """A follower of this term passes on acknowledgements of an earlier one."""
    true_one = GroupPeer._on_flushed

    def on_flushed(self: GroupPeer, event: Any, now_ms: int) -> None:
        found = self._following
        if found is None or not self._trusted:
            true_one(self, event, now_ms)
        else:
            token = replace(event.token, term=found.term)
            self._send(found.master, protocol.Ack(token, event.sequence))

    patch.setattr(GroupPeer, "_on_flushed", on_flushed)


def no_grant_at_start(patch: pytest.MonkeyPatch) -> None:
    init = GroupPeer.__init__

    def started(self: GroupPeer, own: int, record: Membership, pace: ProtocolPeriods, now_ms: int, **rest: Any) -> None:
        init(self, own, record, pace, now_ms, **rest)
        self._grant.until_ms = now_ms

    patch.setattr(GroupPeer, "__init__", started)


def whoever_is_elected_is_followed(patch: pytest.MonkeyPatch) -> None:
    """The age of a mandate bounds nothing in the model: without joining, a late winner rolls the group back."""
    patch.setattr(protocol, "may_join", lambda own, base: True)


def a_wiped_replica_votes(patch: pytest.MonkeyPatch) -> None:
    init = GroupPeer.__init__

    def started(self: GroupPeer, *arguments: Any, remembers: Remembers, **rest: Any) -> None:
        init(self, *arguments, remembers=replace(remembers, trusted=True), **rest)

    patch.setattr(GroupPeer, "__init__", started)


def a_refilled_replica_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupPeer, "_distrust", lambda self: None)


def open_as_soon_as_committed(patch: pytest.MonkeyPatch) -> None:
    """The first commit of a term is taken for durable."""
    advance = Watermark._advance

    def advanced(self: Watermark) -> None:
        advance(self)
        if not self._durable and self._last >= self._first:
            self._durable = self._pending.popleft()[0]

    patch.setattr(Watermark, "_advance", advanced)


def open_before_it_is_proven(patch: pytest.MonkeyPatch) -> None:
    """A term opens as soon as a majority holds its first commit, which proves nothing."""

    def hasty(self: GroupPeer, reign: Any, durable: int, now_ms: int) -> None:
        reign.joined, reign.opened_ms = True, now_ms
        self._effects.append(protocol.TermOpened(reign.term))

    patch.setattr(GroupPeer, "_open", hasty)


def the_past_counts_as_durable(patch: pytest.MonkeyPatch) -> None:
    """The log from before the term counts as durable."""
    covers = Watermark.covers

    def covered(self: Watermark, sequence: int) -> bool:
        return sequence < self._first or covers(self, sequence)

    patch.setattr(Watermark, "covers", covered)


def one_majority_of_a_joint_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "quorum", property(lambda self: Quorum((self.voters,))))


def a_joint_quorum_counted_over_the_union(patch: pytest.MonkeyPatch) -> None:
    def union(self: Membership) -> Quorum:
        return Quorum((tuple(sorted({*self.voters, *self.former})),))

    patch.setattr(Membership, "quorum", property(union))


def our_own_commit_counts_in_each_set_for_both(patch: pytest.MonkeyPatch) -> None:
    def agreed(self: Quorum, values: Any) -> Any:
        told = sorted((values[voter] for voters in self.sets for voter in voters if voter in values), reverse=True)
        need = max(membership.majority(len(voters)) for voters in self.sets)
        return told[need - 1] if len(told) >= need else None

    patch.setattr(Quorum, "agreed", agreed)


def learners_count(patch: pytest.MonkeyPatch) -> None:
    def agreed(self: Quorum, values: Any) -> Any:
        told = sorted(values.values(), reverse=True)
        need = max(membership.majority(len(voters)) for voters in self.sets)
        return told[need - 1] if len(told) >= need else None

    patch.setattr(Quorum, "agreed", agreed)


def a_mandate_outlives_a_grant(patch: pytest.MonkeyPatch) -> None:
    """A replica that the engine makes master is master, however late."""
    patch.setattr(GroupPeer, "_why_not_master", lambda self, term, now_ms: "")


def echoes_of_the_untrusted_count(patch: pytest.MonkeyPatch) -> None:
    echoed = GroupPeer._echoed

    def all_trusted(self: GroupPeer, peer: int, echo: Any, now_ms: int) -> None:
        echoed(self, peer, replace(echo, trusted=True), now_ms)

    patch.setattr(GroupPeer, "_echoed", all_trusted)


def what_arrives_late_comes_before_the_clock(patch: pytest.MonkeyPatch) -> None:
    """A message is processed before timers that are due."""
    received = GroupPeer.received

    def hasty(self: GroupPeer, peer: int, message: Any, now_ms: int) -> Any:
        with pytest.MonkeyPatch.context() as still:
            still.setattr(GroupPeer, "_lapse", lambda self, now_ms: None)
            return received(self, peer, message, now_ms)

    patch.setattr(GroupPeer, "received", hasty)


def a_master_never_gives_up(patch: pytest.MonkeyPatch) -> None:
    """It keeps its office even when its lease is long gone."""
    patch.setattr(ProtocolPeriods, "dead_ms", property(lambda self: 1 << 40))
    patch.setattr(ProtocolPeriods, "__post_init__", lambda self: None)


def a_lease_longer_than_its_grants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "held_for", lambda lease_ms: lease_ms * 3 // 2)


def a_lease_counted_from_the_echo(patch: pytest.MonkeyPatch) -> None:
    """The lease counts from the arrival of the echo, not from the sending of the heartbeat."""

    def echoed(self: GroupPeer, peer: int, echo: Any, now_ms: int) -> None:
        reign = self._reign
        if reign is not None and echo.term == reign.term and echo.trusted:
            reign.lease.echoed(peer, reign.beat_due_ms - self._pace.beat_ms)
            if echo.ack is not None:
                self._acked(peer, echo.ack)

    patch.setattr(GroupPeer, "_echoed", echoed)


def echoes_of_another_term_count(patch: pytest.MonkeyPatch) -> None:
    def echoed(self: GroupPeer, peer: int, echo: Any, now_ms: int) -> None:
        if self._reign is not None:
            self._reign.lease.echoed(peer, echo.sent_ms)

    patch.setattr(GroupPeer, "_echoed", echoed)


def a_bound_replica_joins_another(patch: pytest.MonkeyPatch) -> None:
    may_follow = GroupPeer._may_follow

    def unbound(self: GroupPeer, peer: int, beat: Any, now_ms: int) -> bool:
        return may_follow(self, peer, beat, max(now_ms, self._grant.until_ms))

    patch.setattr(GroupPeer, "_may_follow", unbound)


def an_older_term_is_followed_again(patch: pytest.MonkeyPatch) -> None:
    may_follow = GroupPeer._may_follow

    def forgetful(self: GroupPeer, peer: int, beat: Any, now_ms: int) -> bool:
        self._newest = (0, 0)
        return may_follow(self, peer, beat, now_ms)

    patch.setattr(GroupPeer, "_may_follow", forgetful)


def strong_reads_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupPeer, "may_answer_strong", lambda self, now_ms: self._reign is not None)


def local_reads_that_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A follower shows writes that have not been reported to it as durable."""
    covers = GroupPeer.covers

    def hasty(self: GroupPeer, term: int, sequence: int) -> bool:
        return True if self._following is not None else covers(self, term, sequence)

    patch.setattr(GroupPeer, "covers", hasty)


def frames_of_any_master_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupPeer, "admits", lambda self, peer, frame, now_ms: protocol.Admission.PASS)


def a_word_counts_from_when_it_is_heard(patch: pytest.MonkeyPatch) -> None:
    """The time of a message counts from its arrival, however long it waited."""
    patch.setattr(MasterWord, "observe", lambda self, stamp_ms, now_ms: setattr(self, "left_ms", now_ms))


def a_retry_is_another_request(patch: pytest.MonkeyPatch) -> None:
    """Request keys are not looked up."""
    patch.setattr(Engine, "_applied", lambda self, request: False)


def of_two_masters_of_one_generation_one_is_heard(patch: pytest.MonkeyPatch) -> None:
    """The follower does not check with the library which master it follows."""
    patch.setattr(Engine, "_check_claim", lambda self, sender: None)


MISTAKES: tuple[tuple[Plant, tuple[int, ...], tuple[Callable[[], None], ...]], ...] = (
    (acknowledged_before_the_watermark, (2, 14), (quorums.test_a_commit_is_durable_when_a_majority_holds_it,)),
    (the_past_counts_as_durable, (), (quorums.test_what_stood_before_the_term_is_never_answered_for,)),
    (acks_of_other_terms_count, (), (rules.test_acks_and_echoes_of_another_term_change_nothing,)),
    (a_stale_token_releases_waiters, (), (rules.test_acks_are_given_in_the_term_followed_only,)),
    (no_grant_at_start, (), (rules.test_who_starts_is_bound_for_a_lease,)),
    (whoever_is_elected_is_followed, (), (rules.test_a_master_that_began_with_less_is_told_so_and_not_followed,)),
    (
        a_mandate_outlives_a_grant,
        (),
        (rules.test_a_mandate_that_comes_while_we_are_bound_to_another_master_is_not_used,),
    ),
    (a_wiped_replica_votes, (10, 35), (rules.test_a_replica_that_lost_its_disk_does_nothing_until_it_is_synchronised,)),
    (a_refilled_replica_counts, (), (rules.test_a_log_that_is_being_replaced_counts_for_nothing,)),
    (open_as_soon_as_committed, (), (rules.test_neither_an_ack_nor_an_echo_alone_opens_a_term,)),
    (open_before_it_is_proven, (66, 177), (rules.test_a_term_is_open_when_a_majority_can_prove_that_it_was_joined,)),
    (one_majority_of_a_joint_quorum, (), (quorums.test_a_change_of_voters_needs_both_majorities_until_it_is_finished,)),
    (
        a_joint_quorum_counted_over_the_union,
        (),
        (quorums.test_a_change_of_voters_needs_both_majorities_until_it_is_finished,),
    ),
    (our_own_commit_counts_in_each_set_for_both, (), (quorums.test_our_own_word_counts_once_in_each_set,)),
    (learners_count, (42, 77), (quorums.test_learners_and_strangers_do_not_count,)),
    (echoes_of_the_untrusted_count, (), (rules.test_a_learner_and_an_untrusted_replica_open_nothing,)),
    (what_arrives_late_comes_before_the_clock, (), (rules.test_what_arrives_after_a_freeze_does_not_revive_a_term,)),
    (a_master_never_gives_up, (), (rules.test_a_new_master_whom_nobody_joins_steps_down,)),
    (a_lease_longer_than_its_grants, (17, 11), (quorums.test_a_lease_ends_before_the_grants_whatever_the_rates,)),
    (a_lease_counted_from_the_echo, (), (rules.test_a_lease_counts_from_when_the_beat_was_sent,)),
    (echoes_of_another_term_count, (), (rules.test_acks_and_echoes_of_another_term_change_nothing,)),
    (a_bound_replica_joins_another, (), (rules.test_who_is_bound_hears_no_votes_and_joins_nobody_but_an_open_term,)),
    (an_older_term_is_followed_again, (), (rules.test_who_is_bound_hears_no_votes_and_joins_nobody_but_an_open_term,)),
    (strong_reads_without_the_lease, (17, 11), (rules.test_strong_answers_end_with_the_lease_though_the_term_goes_on,)),
    (
        local_reads_that_do_not_wait,
        (),
        (rules.test_reads_here_need_word_from_the_master_and_what_they_show_must_be_durable,),
    ),
    (a_word_counts_from_when_it_is_heard, (), (rules.test_a_word_that_waited_counts_from_when_it_left,)),
    (frames_of_any_master_pass, (), (rules.test_frames_of_a_master_wait_until_it_is_followed,)),
    (a_retry_is_another_request, (1, 5), ()),
    (of_two_masters_of_one_generation_one_is_heard, (444, 1149), ()),
)
"""The mistakes, the seeds that show each, and the unit tests that do."""
