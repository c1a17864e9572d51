"""The replication protocol of one replica: whom it follows, what is durable, who may answer. Pure; time is passed in.

A `GroupPeer` takes messages of its peers, events of its engine and the passing of time. It returns effects: messages
to send, commands to the engine, begin and end of terms. It never reads a clock, a socket or the store. `now_ms` is
always the process's monotonic clock. Invariants (why they suffice: docs/design/009-replication.md):
- A term is open only when a majority has its first two commits on stable storage; it answers nothing before.
- A replica follows only a master allowed by `log_vouching.may_join` and by its own grant, and acknowledges only to it.
- Leases of two open terms never overlap.
- A replica that lost its disk does not count until it is synchronised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from chelonia.ahash.group import membership as records
from chelonia.ahash.group.attention import Attention, MasterWord
from chelonia.ahash.group.candidacy import CandidacyNotices, ElectionTurn, ballot
from chelonia.ahash.group.effects import (
    Admission,
    Announce,
    Durable,
    Effect,
    Effects,
    FollowerSees,
    GroupStatus,
    OpenTerm,
    PeerRole,
    PeerStatus,
    Process,
    Promises,
    ProveTerm,
    Send,
    StepDown,
    TermEnded,
    TermOpened,
    Trusted,
    WritePages,
)
from chelonia.ahash.group.following import Following, HeldFrames
from chelonia.ahash.group.grant import TermGrant
from chelonia.ahash.group.histories import Histories, Remembers
from chelonia.ahash.group.lateness import PeerLateness
from chelonia.ahash.group.lease import NEVER_MS, Lease, ProtocolPeriods
from chelonia.ahash.group.log_vouching import LogEnd, TermMark, Vouched, may_join
from chelonia.ahash.group.membership import Membership, Quorum
from chelonia.ahash.group.peer_messages import (
    Ack,
    Beat,
    CheckpointNear,
    Echo,
    EngineFrame,
    Message,
    Past,
    Resign,
    Stand,
)
from chelonia.ahash.group.reign import Reign
from chelonia.ahash.group.watermark import Watermark
from chelonia.ahash.store.replicated_port import (
    CheckpointDue,
    Demoted,
    ElectionFailed,
    Event,
    Failed,
    Flushed,
    MasterHere,
    MasterThere,
    Ready,
    Refilling,
    SyncedCommit,
    WantElection,
)
from chelonia.core.errors import CheloniaError, Kind


class GroupPeer:
    """One replica of a group. The methods that return `Effects` may change it; carry the effects out in order.

    Args:
        own: our id.
        membership: the newest record in our log (or, for a log without one, the configured one).
        pace: the periods.
        end: the end of our log, read from the store after recovery.
        remembers: the facts that outlive processes beside the log.
    """

    def __init__(
        self, own: int, membership: Membership, pace: ProtocolPeriods, now_ms: int, *, end: LogEnd, remembers: Remembers
    ) -> None:
        self._own = own
        self._set_membership(membership)
        self._pace = pace
        self._trusted = remembers.trusted
        self._vouched = end.vouched
        self._unproven = end.unproven
        self._newest = end.newest
        self.histories = Histories(own, remembers.run, end, remembers.known)
        self.linked: set[int] = set()
        """The connected replicas, members or not."""
        self._reign: Reign | None = None
        self._engine_master = False
        self._engine_term = remembers.engine_term
        self._engine_follows: tuple[int, int] | None = None
        self._engine_ready = False
        self._following: Following | None = None
        self._flushed: Ack | None = None
        self._early_flush: Flushed | None = None  # it came while we followed nobody: no frame will bring it again
        alone = membership.number == 1 and membership.replicas == (own,)  # nobody can be master elsewhere
        self._grant = TermGrant(pace, remembers.promised_ms, now_ms, alone=alone)
        # Our grants were written down on the disk that is lost.
        self._trust_after_ms = now_ms if remembers.trusted else now_ms + pace.longest_ms
        self._notices = CandidacyNotices(pace.beat_ms)
        self._candidacy_due_ms = now_ms
        self._turn = ElectionTurn(own, pace, now_ms, remembers.run)
        self._lateness = PeerLateness(pace)
        self._terms_begun = 0
        self._wanted_until_ms = now_ms
        self.attention = Attention(pace.beat_ms, now_ms, now_ms)
        self._master_word = MasterWord(now_ms)
        self._held = HeldFrames()
        self._effects: list[Effect] = []

    # ------------------------------------------------------------------------------------------------------ questions

    @property
    def role(self) -> PeerRole:
        """Our role."""
        if self._reign is not None:
            return PeerRole.OPENING if self._reign.opened_ms is None else PeerRole.MASTER
        return PeerRole.ALONE if self._following is None else PeerRole.FOLLOWER

    @property
    def master(self) -> int | None:
        """The master of an open term that we know of: ourselves, or the one we follow."""
        if self._reign is not None and self._reign.opened_ms is not None:
            return self._own
        return self._following.master if self._following is not None and self._following.durable else None

    @property
    def term(self) -> int:
        """The term we hold or follow; 0: none."""
        held = self._reign or self._following
        return held.term if held is not None else 0

    @property
    def trusted(self) -> bool:
        """Whether we count: for votes, acknowledgements and leases."""
        return self._trusted

    @property
    def membership(self) -> Membership:
        """The record in force."""
        return self._membership

    @property
    def durable_sequence(self) -> int:
        """Sequence up to which the present term is known to be durable; 0: unknown."""
        if self._reign is not None:
            return self._reign.reported
        return self._following.durable if self._following is not None else 0

    def covers(self, term: int, sequence: int) -> bool:
        """Return whether `sequence`, read or committed here in `term`, is durable. Every answer depends on this.

        Raises: OUTCOME_UNKNOWN when `term` is not the present one, or at the master when the sequence is older than it.
        """
        # A master goes by its `Durable` effects: the watermark also rises without one when a change of members ends.
        if self._reign is not None and self._reign.term == term:
            return self._reign.watermark.covers(sequence) and sequence <= self._reign.reported
        if self._following is not None and self._following.term == term:
            return sequence <= self._following.durable
        raise CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", str(sequence), f"term {term} has ended here: ask again")

    def may_answer_strong(self, now_ms: int) -> bool:
        """Return whether a value read here before this call, and covered, may count as the newest there is."""
        return self._reign is not None and self._reign.opened_ms is not None and now_ms < self._lease_until(now_ms)

    def may_write(self, now_ms: int) -> bool:
        """Return whether we take changes: not while the oldest one has waited for longer than a lease."""
        if self._reign is None or self._reign.opened_ms is None:
            return False
        since = self._reign.watermark.waiting_since()
        return since is None or now_ms - since < self._pace.lease_ms + self._lateness.extra_ms(now_ms)

    def may_read_here(self, now_ms: int) -> bool:
        """Return whether we answer reads that need not be newest; their answers still wait for `covers`."""
        if self._reign is not None:
            return self.may_answer_strong(now_ms)
        found = self._following
        holds = found is not None and self._trusted and self._ready and found.durable > 0
        return holds and now_ms - self._master_word.left_ms < self._pace.stale_ms

    def admits(self, peer: int, frame: EngineFrame, now_ms: int) -> Admission:
        """Return what `received` will do with an engine frame of `peer` now."""
        if peer not in self._members or peer in self.histories.parted:
            return Admission.DROP
        if self._engine_master:
            if frame.master:
                return Admission.HOLD
            return Admission.PASS if self._reign and frame.term <= self._reign.term else Admission.DROP
        found = self._following
        if frame.master:
            return Admission.PASS if self._follows(frame.term, peer) else Admission.HOLD
        if now_ms < self._grant.until_ms and (found is None or found.master != peer):
            return Admission.DROP
        return Admission.PASS

    def next_wake(self, now_ms: int) -> int:
        """Return the latest time for the next `tick`; never in the past."""
        return max(now_ms, self.attention.due_ms)

    def status(self, now_ms: int) -> GroupStatus:
        """Return our state at a glance."""
        reign, found = self._reign, self._following
        acked = reign.acked if reign else {}
        return GroupStatus(
            role=self.role,
            master=self.master,
            term=self.term,
            trusted=self._trusted,
            ready=self._trusted if reign else self._ready,
            durable=self.durable_sequence,
            head=reign.watermark.last if reign else found.head if found else 0,
            lease_ms=max(0, self._lease_until(now_ms) - now_ms) if reign else 0,
            membership=self._membership.number,
            vouched=self._vouched,
            peers=tuple(PeerStatus(each, acked.get(each, 0)) for each in self._others()),
            parted=tuple(sorted(self.histories.parted)),
            terms_begun=self._terms_begun,
            stretch=self._lateness.stretch(now_ms),
            acked=self._flushed.sequence if self._flushed is not None and self._trusted else 0,
        )

    # ------------------------------------------------------------------------------------------------- what happens

    def connected(self, peer: int, now_ms: int) -> Effects:
        """Take a new connection to `peer`, its HELLO checked. Acknowledgements over an earlier one count no more."""
        self._lapse(now_ms)
        self.linked.add(peer)
        self._held.drop(peer)
        self._effects.append(Announce(peer))
        self.histories.connected(peer)
        self._send_past((peer,))
        if self._reign is not None:
            self._reign.watermark.forget(peer)
            self._reign.acked.pop(peer, None)
            self._send(peer, self._reign.beat(now_ms, self._lateness.lease_ms(now_ms)))
        elif self._may_elect(now_ms):
            self._send_candidacy(peer)
        return self._done(now_ms)

    def disconnected(self, peer: int, now_ms: int) -> Effects:
        """Drop the connection to `peer`."""
        self._lapse(now_ms)
        self.linked.discard(peer)
        self._notices.drop(peer)
        self._held.drop(peer)
        return self._done(now_ms)

    def received(self, peer: int, message: Message, now_ms: int) -> Effects:
        """Take a message of `peer`; ignore it unless that is a member. The shell takes HELLO, calls and goodbyes."""
        self._lapse(now_ms)
        if peer in self._members and (peer not in self.histories.parted or isinstance(message, Past)):
            match message:
                case Past():
                    self.histories.received(peer, message, counts=self._trusted)
                case EngineFrame():
                    self._engine_frame(peer, message, now_ms)
                case Beat():
                    self._on_beat(peer, message, now_ms)
                case Ack():
                    self._acked(peer, message)
                case Echo():
                    self._echoed(peer, message, now_ms)
                case Stand():
                    self._on_stand(peer, message, now_ms)
                case Resign(term) if self._follows(term, peer):
                    self._following, self._grant.until_ms, self._candidacy_due_ms = None, now_ms, now_ms
                case CheckpointNear(term) if self._follows(term, peer):
                    self._effects.append(WritePages())
                case _:
                    pass
        return self._done(now_ms)

    def event(self, event: Event, now_ms: int) -> Effects:
        """Take an event of the engine; `mastered` takes `MasterHere` instead."""
        self._lapse(now_ms)
        match event:
            case SyncedCommit():
                self._committed(event, now_ms)
            case Flushed():
                self._on_flushed(event, now_ms)
            case MasterHere():
                raise AssertionError("the end of the log has to be read first: call mastered")
            case MasterThere(replica, term):
                assert not self._engine_master, "who leaves his office says so before he follows another"
                self._turn.over()
                if self._engine_follows != (term, replica):
                    self._engine_follows, self._engine_ready, self._early_flush = (term, replica), False, None
            case Ready():
                self._engine_ready = True
            case Refilling():
                self._distrust()
            case CheckpointDue():
                if self._reign is not None:
                    for peer in self._others():
                        self._send(peer, CheckpointNear(self._reign.term))
            case Demoted():
                self._engine_master = False
                self._turn.failed(now_ms)
                self._end_reign("the engine was demoted", step_down=False)
            case WantElection():
                self._wanted_until_ms = now_ms + self._pace.beat_ms
                self._candidacy_due_ms = max(now_ms, self._turn.after_ms)
            case ElectionFailed(_, newer):
                self._turn.failed(now_ms, newer=newer)
            case Failed(reason):
                self._end_reign(reason, step_down=False)
            case _:
                assert_never(event)
        return self._done(now_ms)

    def mastered(self, term: int, end: LogEnd, now_ms: int) -> Effects:
        """Begin our term after `MasterHere(term)`; the log, to which nobody else writes now, ends at `end`.

        Step down at once if the mandate came too late, or to a replica that must not use it.
        """
        self._lapse(now_ms)
        assert not self._engine_master, "no mastership begins before the one before has ended"
        self._engine_master = True
        self._engine_follows = None
        self._turn.over()
        # The engine's own record of the term stands in our log before any commit, and would win elections by itself.
        self._vouched, self._unproven, self.histories.end = end.vouched, True, end
        reason = self._why_not_master(term, now_ms)
        self._newest = max(self._newest, (term, self._own))
        self._engine_term = max(self._engine_term, term)
        self._following = None
        if reason:
            self._effects.append(StepDown(reason))
            return self._done(now_ms)
        self._terms_begun += 1
        mark = self.histories.began(term, end)
        self._send_past(self._others())
        watermark = Watermark(self._own, term, mark.first, self._quorum)
        self._reign = Reign(mark, watermark, Lease(self._own, self._pace, self._quorum), now_ms, beat_due_ms=now_ms)
        self._effects.append(OpenTerm(mark))
        return self._done(now_ms)

    def tick(self, now_ms: int) -> Effects:
        """Note that time has passed."""
        self._lapse(now_ms)
        return self._done(now_ms)

    def may_announce(self, now_ms: int) -> bool:
        """Return whether to announce: something became durable, and a message of its own about it is half due."""
        return self._reign is not None and self._reign.may_announce(now_ms, self._pace.tell_ms)

    def announce_durable(self, now_ms: int) -> Effects:
        """Announce what is durable along with engine frames that leave for all, if it `may_announce`."""
        self._lapse(now_ms)
        if (reign := self._reign) is not None and self.may_announce(now_ms):
            self._send_heartbeats(reign, now_ms, sent_ms=0)
            reign.with_frames = True
        return self._done(now_ms)

    def resign(self, reason: str, now_ms: int) -> Effects:
        """Give up our term, if we have one, in a planned hand-over. The caller has stopped taking changes before."""
        self._lapse(now_ms)
        self._end_reign(reason, step_down=True)
        return self._done(now_ms)

    # ----------------------------------------------------------------------------------------------- membership

    def adopt(self, membership: Membership, now_ms: int) -> Effects:
        """Go by this record, which our log now holds: as a follower, after a commit or a rollback."""
        self._lapse(now_ms)
        assert self._reign is None, "a master changes the record by propose and finish"
        self._set_membership(membership)
        return self._done(now_ms)

    def propose(self, membership: Membership) -> None:
        """Go by this record as master from now on; the caller commits it next, or resigns when that fails.

        Raises: UNAVAILABLE (no open term here), CONFLICT (not a valid next step).
        """
        reign = self._need_open_term()
        records.check_successor(self._membership, membership)
        if self._membership.former:
            raise CheloniaError(Kind.CONFLICT, "membership", "", "a change under way is ended by finish")
        self._decide_by(membership, reign)

    def finish(self, sequence: int) -> Membership:
        """End, as master, the change whose record was committed at `sequence` (before our term: give its first commit).

        Returns: the record in force from now on; the caller commits it next.
        Raises: UNAVAILABLE, CONFLICT (none under way, or its record is not durable yet), OUTCOME_UNKNOWN.
        """
        reign = self._need_open_term()
        if not self._membership.former or not reign.watermark.covers(sequence):
            raise CheloniaError(Kind.CONFLICT, "membership", "", "the change before is not durable yet")
        self._decide_by(records.finish(self._membership), reign)
        return self._membership

    def would_answer(self, membership: Membership, now_ms: int) -> bool:
        """Return whether a quorum under `membership` answers us. Raises: UNAVAILABLE (no open term here)."""
        reachable = {self._own, *self.linked}
        return self._need_open_term().lease.would_hold(membership.quorum, reachable, now_ms)

    def _set_membership(self, membership: Membership) -> None:
        self._membership = membership
        self._members = frozenset(membership.replicas)
        self._quorum: Quorum = membership.quorum
        self._votes = self._own in self._quorum.voters()

    def _need_open_term(self) -> Reign:
        if self._reign is None or self._reign.opened_ms is None:
            raise CheloniaError(Kind.UNAVAILABLE, "membership", "", "this replica is not the master: ask the master")
        return self._reign

    def _decide_by(self, membership: Membership, reign: Reign) -> None:
        self._set_membership(membership)
        reign.watermark.decide_by(self._quorum)
        reign.lease.decide_by(self._quorum)
        assert reign.reported <= reign.watermark.durable, "what is durable stays so, whoever decides"

    # ------------------------------------------------------------------------------------------------------ as master

    def _why_not_master(self, term: int, now_ms: int) -> str:
        if not self._trusted:
            return "this replica lost what it had acknowledged and is not synchronised"
        if not self._votes:
            return "this replica has no vote"
        if now_ms < self._grant.until_ms:
            return "the election is older than our grant to another master"
        if (term, self._own) <= self._newest:
            return f"term {term} is not newer than term {self._newest[0]} of replica {self._newest[1]}"
        return self.histories.why_behind(self._others())

    def _lease_until(self, now_ms: int) -> int:
        """The end of our lease; without one, a time before all others."""
        until = self._reign.lease.until(now_ms) if self._reign is not None else None
        return until if until is not None else -NEVER_MS

    def _committed(self, event: SyncedCommit, now_ms: int) -> None:
        reign = self._reign
        if reign is None or reign.term != event.token.term:
            return
        due = reign.mark.first + reign.joined
        assert event.sequence <= due or reign.opened_ms is not None, "a commit before the term is open"
        reign.watermark.committed(event.sequence, event.token, now_ms)
        self._remember(reign.mark, event.sequence)

    def _acked(self, peer: int, ack: Ack) -> None:
        reign = self._reign
        if reign is not None and ack.token.term == reign.term:
            reign.watermark.acked(peer, ack.token)
            reign.acked[peer] = max(ack.sequence, reign.acked.get(peer, 0))

    def _echoed(self, peer: int, echo: Echo, now_ms: int) -> None:
        reign = self._reign
        if reign is None or echo.term != reign.term or not echo.trusted:
            return
        reign.refused.discard(peer)
        if reign.lease.echoed(peer, echo.sent_ms, echo.lease_ms):
            self._lateness.late(now_ms - echo.sent_ms - self._pace.round_trip_ms, now_ms)
        if echo.ack is not None:
            self._acked(peer, echo.ack)

    def _reigning(self, reign: Reign, now_ms: int) -> None:
        """Do a master's due work: open its term, announce the watermark, beat, or give up."""
        if reign.opened_ms is None and (reason := self._why_not_joined(reign)):
            self._end_reign(reason, step_down=True)
            return
        durable = reign.watermark.durable
        if reign.opened_ms is None and durable and now_ms < self._lease_until(now_ms):
            self._open(reign, durable, now_ms)
        if reign.opened_ms is not None and reign.reported < durable:
            reign.reported = durable
            self._effects.append(Durable(reign.term, durable))
            self._know(reign.mark, durable)
        if now_ms >= reign.beat_due_ms:
            reign.beat_due_ms = now_ms + self._pace.beat_ms
            self._send_heartbeats(reign, now_ms, sent_ms=now_ms)
        elif reign.announced < reign.reported and now_ms >= reign.announce_after_ms:
            self._send_heartbeats(reign, now_ms, sent_ms=0)

    def _open(self, reign: Reign, durable: int, now_ms: int) -> None:
        """Open the term once a majority holds its second commit; have that made when it holds the first."""
        # The second proves the first. Before, the others might still follow an older log, and commits that it alone has
        # would come back after we answered without them.
        if not reign.joined:
            reign.joined = True
            self._effects.append(ProveTerm(reign.term, reign.mark.first + 1))
        elif durable > reign.mark.first:
            assert durable == reign.mark.first + 1, "before a term is open nothing but its two records is committed"
            reign.opened_ms = now_ms
            self._turn.failures = 0
            self._effects.append(TermOpened(reign.term))

    def _why_not_joined(self, reign: Reign) -> str:
        if reign.refused and not self._quorum.reached(set(self._quorum.voters()) - reign.refused):
            return f"replicas {sorted(reign.refused)} may not join"
        return self.histories.why_behind(self._others())

    def _send_heartbeats(self, reign: Reign, now_ms: int, *, sent_ms: int) -> None:
        reign.announced, reign.with_frames, reign.announce_after_ms = reign.reported, False, now_ms + self._pace.tell_ms
        beat = reign.beat(sent_ms, self._lateness.lease_ms(now_ms) if sent_ms else 0)
        for peer in self._others():
            self._send(peer, beat)

    def _end_reign(self, reason: str, *, step_down: bool) -> None:
        reign = self._reign
        if reign is None:
            return
        self._reign = None
        self.histories.ended(reign.watermark.last)
        self._effects.append(TermEnded(reign.term, reason))
        for peer in self._others():
            self._send(peer, Resign(reign.term))
        if step_down:
            self._effects.append(StepDown(reason))

    # ---------------------------------------------------------------------------------------------------- as follower

    def _on_beat(self, peer: int, beat: Beat, now_ms: int) -> None:
        """Take a master's beat: follow it, go on following it, refuse it, or ignore it."""
        found = self._following
        if found is None or found.key != (beat.term, peer):
            if not self._may_follow(peer, beat, now_ms):
                return self._refuse(peer, beat, now_ms)
            found = self._follow(peer, beat, now_ms)
        found.head = max(found.head, beat.head)
        if beat.durable > found.durable:
            found.durable, self._turn.failures = beat.durable, 0
            self._effects.append(FollowerSees(beat.term, beat.durable))
            self._learn(found)
        if (early := self._early_flush) is not None:
            self._early_flush = None
            self._on_flushed(early, now_ms)
        self._regain(found, now_ms)
        if beat.sent_ms:
            self._master_word.observe(beat.sent_ms, now_ms)
            self._echo(peer, beat, now_ms)

    def _echo(self, peer: int, beat: Beat, now_ms: int) -> None:
        """Bind ourselves for the requested time, but never for less than usual, nor less than we are bound."""
        lease_ms, promise_ms = self._grant.extend(beat.lease_ms, now_ms)
        if promise_ms:
            self._effects.append(Promises(promise_ms))
        ack = self._flushed if self._trusted else None
        assert ack is None or ack.token.term == beat.term, "what was flushed in an earlier term says nothing here"
        assert self._grant.until_ms >= now_ms + lease_ms, "a master's lease counts on it"
        self._send(peer, Echo(beat.sent_ms, beat.term, self._trusted, ack, lease_ms if beat.lease_ms else 0))

    def _may_follow(self, peer: int, beat: Beat, now_ms: int) -> bool:
        newer = (beat.term, peer)
        if self._engine_master or newer < self._seen or peer == self._own:
            return False
        if not self.histories.goes_on(self.histories.mark_of(peer, beat), beat.durable):
            self._send_past((peer,))
            return False
        if beat.durable:
            return True  # a majority joined it, so no lease and no grant of ours stands against it
        if now_ms < self._grant.until_ms or not self._trusted:
            return False
        return newer == self._newest or may_join(self._vouched, beat.base)

    def _follow(self, peer: int, beat: Beat, now_ms: int) -> Following:
        found = Following(self.histories.mark_of(peer, beat), announce_ms=now_ms + self._pace.announce_ms)
        self._following = found
        self._grant.bind(self._pace.lease_ms, now_ms)
        if self._newest != found.key:
            self._newest, self._flushed = found.key, None
            self._master_word = MasterWord(self.attention.grace_until_ms)
        assert self._seen == found.key, "nobody older is followed than who was seen"
        self._turn.over()
        if not beat.durable:
            self._effects.append(FollowerSees(beat.term, 0))
        self._effects += [Process(peer, each.control, each.record) for each in self._held.release(peer, beat.term)]
        return found

    def _refuse(self, peer: int, beat: Beat, now_ms: int) -> None:
        """Send a master that we do not follow our `Stand`; give way to one that a majority has joined."""
        reign = self._reign
        if reign is not None:
            if beat.durable and (beat.term, peer) > reign.key:
                self._end_reign(f"replica {peer} has opened term {beat.term}", step_down=True)
        elif self._following is None and now_ms >= self._grant.until_ms and not self._engine_master:
            self._send_candidacy(peer)

    def _follows(self, term: int, peer: int) -> bool:
        return self._following is not None and self._following.key == (term, peer)

    @property
    def _ready(self) -> bool:
        """Whether our engine is synchronised with the master that we follow."""
        found = self._following
        return self._engine_ready and found is not None and self._engine_follows == found.key

    def _on_flushed(self, event: Flushed, now_ms: int) -> None:
        """Acknowledge what our master sent and we hold, in the term we follow and no other."""
        found, token = self._following, event.token
        if found is None or token.term != found.term or self._engine_follows != found.key:
            self._early_flush = event if found is None else None
            return
        before, self._flushed = self._flushed, Ack(token, event.sequence)
        assert before is None or before.sequence <= event.sequence, "what was acknowledged is held for the whole term"
        if self._trusted:
            self._acknowledge(found, self._flushed)
        else:
            self._regain(found, now_ms)

    def _acknowledge(self, found: Following, ack: Ack) -> None:
        assert ack.token.term == found.term, "nothing is acknowledged in another term than the one followed"
        assert self._trusted, "who has lost what he acknowledged acknowledges nothing"
        if ack.sequence >= found.first:
            self._remember(found.mark, ack.sequence)
            self._learn(found)
        self._send(found.master, ack)

    def _learn(self, found: Following) -> None:
        """Note as acknowledged what we hold of the commits that our master announced as durable."""
        if self._trusted and self._flushed is not None:
            self._know(found.mark, min(found.durable, self._flushed.sequence))

    def _know(self, mark: TermMark, sequence: int) -> None:
        assert self._trusted, "who has lost what he held knows nothing"
        if self.histories.knows(mark, sequence):
            self._send_past(self._others())

    def _remember(self, mark: TermMark, sequence: int) -> None:
        """Note that our log reaches `sequence` in this term: never follow a master that began with less."""
        end = LogEnd(mark, sequence)
        assert end.newest <= self._seen, "the log holds no term that is newer than what was followed or led"
        if self._reign is None:
            self.histories.end = end
        self._vouched = max(self._vouched, end.vouched)
        self._unproven = end.unproven

    def _distrust(self) -> None:
        """Count no more while the engine replaces our log by a copy of the master's: until then we hold nothing."""
        self._trusted = self._engine_ready = False
        self._flushed = self._early_flush = None
        if self._following is not None:
            self._following.need = None

    def _regain(self, found: Following, now_ms: int) -> None:
        """Count again once we hold all that the master had, by its last beat, after we were synchronised.

        That has all we ever acknowledged: its term is open, or it began with all that we vouched for when we joined.
        Wait for the longest lease since our start, too: then our promises before the loss of our disk have lapsed.
        """
        if not self._trusted and self._ready and found.need is None:
            found.need = found.head
        if self._trusted or found.need is None or now_ms < self._trust_after_ms:
            return
        if self._flushed is not None and self._flushed.sequence >= max(found.need, found.first):
            self._trusted = True
            self._vouched = Vouched(0, 0, 0)
            self._effects.append(Trusted())
            self._acknowledge(found, self._flushed)

    def _obeying(self, found: Following, now_ms: int) -> None:
        """Do a follower's due work: announce itself while it is not synchronised."""
        if not self._ready and now_ms >= found.announce_ms:
            found.announce_ms = now_ms + self._pace.announce_ms
            self._effects.append(Announce(found.master))

    # ------------------------------------------------------------------------------------------------------- elections

    def _may_elect(self, now_ms: int) -> bool:
        """Whether we may help to elect a master: trusted, and bound to nobody. We may even without a vote: the others'
        record may be newer than ours."""
        free = self._reign is None and not self._engine_master and self._following is None
        return free and self._trusted and now_ms >= self._grant.until_ms

    def _send_past(self, peers: Iterable[int]) -> None:
        for peer in peers:
            if (past := self.histories.to_send(peer, counts=self._trusted)) is not None:
                self._send(peer, past)

    def _send_candidacy(self, peer: int) -> None:
        self._send_past((peer,))
        self._send(peer, self._word())

    def _word(self) -> Stand:
        return Stand(self._vouched, self._seen, self._unproven, self._votes)

    @property
    def _seen(self) -> tuple[int, int]:
        """The newest (term, replica) seen by us, or by our engine, which may know a newer term from a vote.

        Neither can follow anybody older.
        """
        return max(self._newest, (self._engine_term, 0))

    def _on_stand(self, peer: int, word: Stand, now_ms: int) -> None:
        reign = self._reign
        if word.vouched.goes_on_from(self._vouched) and records.shows_end(self._membership, peer, votes=word.voter):
            self._quorum = Quorum((self._membership.voters,))
        if self._notices.note(peer, word, now_ms) and self._following is None:
            self._candidacy_due_ms = now_ms
        if reign is not None:
            if reign.opened_ms is None and (word.vouched > reign.mark.base or word.seen > reign.key):
                reign.refused.add(peer)
            elif word.seen > reign.key:
                self._overtaken(reign, peer, word.seen[0], now_ms)

    def _seek_election(self, now_ms: int) -> None:
        """Send the others our `Stand`, and ask for an election when enough of them stand."""
        if now_ms >= self._candidacy_due_ms:
            self._candidacy_due_ms = now_ms + self._pace.beat_ms
            for peer in self._others():
                self._send_candidacy(peer)
        if self._turn.has_come(now_ms):
            joining = now_ms < self._wanted_until_ms and not self.histories.parted
            among = set(self._quorum.voters()) - self.histories.parted.keys()
            words = {**self._notices.words(among, now_ms), self._own: self._word()}
            found = ballot(self._own, words, self._quorum, joining=joining)
            if found is not None:
                self._effects.append(self._turn.take(*found, now_ms, self._lateness.extra_ms(now_ms)))

    # --------------------------------------------------------------------------------------------------- engine frames

    def _engine_frame(self, peer: int, frame: EngineFrame, now_ms: int) -> None:
        match self.admits(peer, frame, now_ms):
            case Admission.PASS:
                self._engine_term = max(self._engine_term, frame.term)
                if self._following is not None and self._following.term < self._engine_term:
                    self._following, self._candidacy_due_ms = None, now_ms  # the engine takes nothing more of its term
                self._effects.append(Process(peer, frame.control, frame.record))
            case Admission.HOLD:
                self._held.hold(peer, frame)
            case Admission.DROP:
                if self._reign is not None and frame.term > self._reign.term:
                    self._overtaken(self._reign, peer, frame.term, now_ms)

    def _overtaken(self, reign: Reign, peer: int, term: int, now_ms: int) -> None:
        """Give up our term: a follower has seen a newer one and cannot follow us. A term above that brings it back."""
        if reign.opened_ms is not None and now_ms - reign.opened_ms >= self._pace.lease_ms:
            self._end_reign(f"replica {peer} has seen term {term}: a term above it is needed", step_down=True)

    # ------------------------------------------------------------------------------------------------------------ ends

    def _others(self) -> tuple[int, ...]:
        """The other members that we are connected to, in order."""
        return tuple(sorted(self._members & self.linked))

    def _send(self, peer: int, message: Message) -> None:
        if peer in self.linked:
            self._effects.append(Send(peer, message))

    def _due_ms(self, now_ms: int) -> int:
        """The time of our next timer."""
        if self._reign is not None:
            return min(self._reign.beat_due_ms, self._reign.look_due_ms(now_ms))
        if self._following is not None:
            lapse_ms = max(self._grant.until_ms, self.attention.grace_until_ms)
            return lapse_ms if self._ready else min(lapse_ms, self._following.announce_ms)
        if not self._trusted or self._engine_master:
            return NEVER_MS
        return max(self._grant.until_ms, self._candidacy_due_ms)

    def _lapse(self, now_ms: int) -> None:
        """Let leases and grants end in time, before anything that arrives late can prolong them."""
        reign = self._reign
        self._lateness.late(self.attention.comes(now_ms), now_ms)
        if reign is not None:
            waits_ms = reign.waits_ms(now_ms)
            if self._is_deserted(reign, now_ms):
                self._end_reign("no majority answers", step_down=True)
            elif waits_ms and waits_ms >= self._lateness.stuck_ms(now_ms, self._turn.failures):
                self._end_reign("a majority answers but does not acknowledge", step_down=True)
        elif self._following is not None and now_ms >= max(self._grant.until_ms, self.attention.grace_until_ms):
            self._following = None
            self._candidacy_due_ms = now_ms

    def _is_deserted(self, reign: Reign, now_ms: int) -> bool:
        """Whether a majority is silent. A replica that had no time to listen listens first, up to `stale_ms`."""
        silent_ms = now_ms - max(reign.began_ms, self._lease_until(now_ms)) - self._lateness.dead_ms(now_ms)
        return silent_ms >= 0 and (now_ms >= self.attention.grace_until_ms or silent_ms >= self._pace.stale_ms)

    def _done(self, now_ms: int) -> Effects:
        """Do the work that is due in the new state, and return the effects."""
        assert self._reign is None or self._following is None, "nobody leads a term and follows another's"
        assert self._reign is None or self._engine_master, "a term of ours ends with the engine's mastership"
        if self._reign is not None:
            self._reigning(self._reign, now_ms)
        elif self._following is not None:
            self._obeying(self._following, now_ms)
        elif self._may_elect(now_ms):
            self._seek_election(now_ms)
        self.attention.due_ms = self._due_ms(now_ms)
        assert self.attention.due_ms > now_ms, "what was due now is done"
        effects = tuple(self._effects)
        self._effects.clear()
        return effects
