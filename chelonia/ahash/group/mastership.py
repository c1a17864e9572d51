"""One replica at work: carries the protocol's effects out on the engine and the links, and lets answers wait for it.

`protocol.GroupPeer` decides; this does only what it says, in its order. All of it runs on the event loop; the
engine's own threads reach it through `Executor.hand_back`.
Invariants:
- Only `GroupPeer.covers`, called anew after every wait, decides that something is durable.
- A batch reaches the engine only in the term it was decided in.
- An unexpected error ends the process; it never becomes an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, Protocol, TypeVar, assert_never

from msgspec.structs import astuple

from chelonia.ahash.group import effects, log_vouching, membership, peer_messages
from chelonia.ahash.group.effects import Effects, PeerRole
from chelonia.ahash.group.following import Standstill
from chelonia.ahash.group.histories import Remembers
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.log_vouching import NOWHERE, LogEnd, VouchedCommit
from chelonia.ahash.group.membership import Membership
from chelonia.ahash.group.peer_messages import AnswerFrame, CallFrame, EngineFrame, Message
from chelonia.ahash.group.protocol import GroupPeer
from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.port import Executor
from chelonia.ahash.store.replicated_port import (
    Demoted,
    Event,
    Failed,
    Flushed,
    MasterHere,
    Ready,
    ReplicatedEngine,
    SyncedCommit,
    frame_of_master,
    frame_term,
)
from chelonia.core import bounds
from chelonia.core.cluster.position import Horizon, Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.timing.clock import Clock, done_within
from chelonia.core.timing.jobs import wake_or_sleep

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

EVENT_MS: Final = 20
"""Longest pause between two looks of a wait for the engine; events wake it before."""
ANSWERED_MS: Final = 500
"""How long to wait for answers of the voters that a change would leave: some beats, of a new master too."""
HAND_OVER_MS: Final = 500
"""How long a master that hands over waits for others to hold all it has: with less they lose the election to it."""


class PeerLinks(Protocol):
    """Authenticated connections to the other replicas."""

    def send(self, peer: int, data: bytes) -> bool:
        """Send a message. Return False when there is no connection."""

    def set_membership(self, membership: Membership) -> None:
        """Connect to these members from now on, and to nobody else."""

    def round_trip_ms(self, peer: int) -> int | None:
        """Return the round trip to a peer; None: unknown."""


class MastershipListener(Protocol):
    """The user of a mastership, which notifies it of terms and of other replicas' calls, on the event loop."""

    def term_opened(self, term: int) -> None:
        """Take requests from now on: our term is open."""

    def term_ended(self, term: int) -> None:
        """Take no more requests: our term is over."""

    def called(self, peer: int, number: int, body: bytes) -> None:
        """Carry out a call that another replica forwarded."""

    def answered(self, peer: int, number: int, body: bytes) -> None:
        """Take the answer to a call of ours."""

    def lost(self, peer: int) -> None:
        """Expect no more answers of a replica: its connection is gone, or it is no longer our master."""


class TermDurability:
    """A `Durability` for answers from one term: they may leave once the group has it, see `Mastership.covered`."""

    def __init__(self, mastership: Mastership, term: int, horizon: Horizon, patience_ms: int = 0) -> None:
        self.term = term
        self._mastership = mastership
        self._horizon = horizon
        self._patience_ms = patience_ms

    async def wait(self, position: Position) -> None:
        await self._mastership.covered(self.term, position.sequence, self._patience_ms)
        self._horizon.saw(position)

    def holds(self, position: Position) -> bool:
        if not self._mastership.covers(self.term, position.sequence):
            return False
        self._horizon.saw(position)
        return True


@dataclass(slots=True)
class _DurabilityWait:
    """A wait for a sequence of a term. `until_ms` 0: as long as the term lasts."""

    term: int
    sequence: int
    until_ms: int
    future: asyncio.Future[None]


class Mastership:
    """Drives one `GroupPeer`. `start` before use, `run` beside it; it ends when the process has to."""

    replica: GroupPeer
    """The protocol's state, from `start` on."""

    def __init__(
        self, own: int, engine: ReplicatedEngine, executor: Executor, clock: Clock, pace: ProtocolPeriods
    ) -> None:
        self.own = own
        """Our id."""
        self._engine = engine
        self._executor = executor
        self._clock = clock
        self._pace = pace
        self._links: PeerLinks | None = None
        self._listener: MastershipListener | None = None
        self._frames: deque[tuple[int | None, bytes]] = deque()
        self._sending = False
        self._waits: list[_DurabilityWait] = []
        self._in_log: bytes | None = None
        self._objects = 0
        self._changed = asyncio.Event()
        self._followed: int | None = None
        self._noted = NOWHERE
        self._parted: dict[int, VouchedCommit] = {}
        self._woken = asyncio.Event()
        self._wake_ms = 0
        self._lag_target, self._lagging_since_ms = 0, Ms(0)
        self._standstill = Standstill()
        self._failure = ""
        self._stopping = self._handing_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.elected_ms = Ms(0)
        """Wall-clock time when a term of ours last opened, for people."""
        self.recorded = False
        """Whether our log holds a membership record."""
        self.regrouping = asyncio.Lock()
        """Held during a change of the membership: one at a time, wholly."""
        self.members_at = 0
        """As master: the sequence of the record in force, or that of our first commit."""

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self, links: PeerLinks, listener: MastershipListener, members: Membership) -> None:
        """Read the end of the log and begin as a follower.

        Args: `members`: the group as configured, which counts until the store holds a record of its own. A store with
        contents and without a group founds one; an empty one never does, as its contents may be lost.
        Raises: BAD_CONFIG, INTERNAL (damaged).
        """
        self._links, self._listener = links, listener
        end, stored, found = await self._executor.run_read(self._look)
        self.recorded = stored is not None
        record = stored or members
        if found and self.own not in record.voters:
            first = ", ".join(map(str, record.voters))
            cause = (
                f"its store belongs to no group, and only replica {first} begins one: to go on with this store, name "
                "nobody but this replica in `replicas`; to join the others, move its directory away and keep it"
            )
            raise CheloniaError(Kind.BAD_CONFIG, "ahash", f"replica {self.own}", cause)
        now = self._clock.monotonic_ms()
        trusted = found or self._engine.trusted()
        notes = self._engine.notes
        known = VouchedCommit(*notes.known)
        remembers = Remembers(trusted, notes.run, known, self._engine.newest_term, notes.promised_ms)
        self.replica = GroupPeer(self.own, record, self._pace, now, end=end, remembers=remembers)
        self.go_by(record)
        self._engine.start(self._engine_reports, self._engine_sends)
        if found:
            self._engine.found()

    def _look(self) -> tuple[LogEnd, Membership | None, bool]:
        """The end of the log, the newest membership record in it, and whether it may found a group."""
        engine = self._engine
        try:
            members, prepared = engine.get(layout.META_MEMBERS), meta.is_prepared(engine)
            end = _log_end(engine.get(layout.META_TERM), meta.read_state(engine).sequence)
            if prepared:
                meta.check_format(engine)
            anothers = end.mark is not None and end.mark.replica != self.own  # a copy of what another founded
            founds = members is None and prepared and not anothers
            return end, None if members is None else membership.decode(members), founds
        except CheloniaError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            return LogEnd(None, 0), None, False  # nothing is here yet

    async def run(self) -> None:
        """Keep time until stopped. Raises: UNAVAILABLE, with the reason, when the process has to end."""
        while not self._failure:
            now = self._clock.monotonic_ms()
            self._do(self.replica.tick, now)
            self._expire(now)
            if now >= self._standstill.look_ms and (still_ms := self._standstill.look(self.replica.status(now), now)):
                self._engine.rouse(still_ms)
            self._wake_ms = max(now + 1, min(self.replica.next_wake(now), now + self._pace.beat_ms))
            self.replica.attention.look_ms = self._wake_ms
            self._woken.clear()
            await wake_or_sleep(self._clock, self._woken, self._wake_ms - now)
        if self._stopping:
            return
        raise CheloniaError(Kind.UNAVAILABLE, "ahash", f"replica {self.own}", self._failure)

    def resign(self, reason: str) -> None:
        """Give up our term, if we have one."""
        self._do(self.replica.resign, reason, self._clock.monotonic_ms())

    async def is_answered_by(self, record: Membership) -> bool:
        """Return whether a quorum under `record` answers us within `ANSWERED_MS`.

        Raises: UNAVAILABLE, when we are not, or no longer, master of an open term.
        """
        give_up = self._clock.monotonic_ms() + ANSWERED_MS
        while not self.replica.would_answer(record, self._clock.monotonic_ms()):
            if self._clock.monotonic_ms() >= give_up:
                return False
            await self.changed(EVENT_MS)
        return True

    async def hand_over(self, reason: str) -> None:
        """Give up our term when the others hold all of it, or after `HAND_OVER_MS`; take no changes meanwhile."""
        assert self.regrouping.locked(), "nobody hands over in the middle of a change of members"
        give_up = self._clock.monotonic_ms() + HAND_OVER_MS
        self._handing_over = True
        try:
            while not self._others_hold_all() and self._clock.monotonic_ms() < give_up:
                await self.changed(EVENT_MS)
            self.resign(reason)
        finally:
            self._handing_over = False

    def _others_hold_all(self) -> bool:
        status = self.replica.status(self._clock.monotonic_ms())
        return all(peer.acked >= status.head for peer in status.peers)

    def stop(self) -> None:
        """Give up our term, if we have one, and end `run`."""
        if hasattr(self, "replica"):  # it was started
            self.resign("it is stopping")
        self._stopping = True
        self.fail("it is stopping")
        for task in tuple(self._tasks):
            task.cancel()

    def fail(self, reason: str) -> None:
        """Have the process end, and answer nothing more."""
        self._failure = self._failure or reason
        self._woken.set()
        self._wake_all()

    # --- questions --------------------------------------------------------------------------------------------------

    def master(self) -> int | None:
        """Return the master of an open term, if it is connected or ourselves."""
        master = self.replica.master
        return master if master == self.own or master in self.replica.linked else None

    def may_answer(self) -> bool:
        """Return whether an answer read here, and covered, may count as the newest."""
        return not self._failure and self.replica.may_answer_strong(self._clock.monotonic_ms())

    def may_write(self) -> bool:
        """Return whether this replica takes changes now."""
        return not (self._failure or self._handing_over) and self.replica.may_write(self._clock.monotonic_ms())

    def may_read(self) -> bool:
        """Return whether the copy may answer reads: the master sent a recent beat, and the copy is not long behind."""
        now = self._clock.monotonic_ms()
        return not self._failure and self.replica.may_read_here(now) and not self._is_behind(now)

    def _is_behind(self, now: Ms) -> bool:
        if self.replica.role is PeerRole.MASTER or self._engine.applied() >= self._lag_target:
            return False
        return now - self._lagging_since_ms >= self._pace.stale_ms

    def _note_lag(self, sequence: int) -> None:
        """Note the sequence that others hold, and since when our copy lacks some of theirs."""
        if self._engine.applied() >= self._lag_target:
            self._lag_target, self._lagging_since_ms = sequence, self._clock.monotonic_ms()

    def holds_all(self, peer: int) -> bool:
        """Return whether a replica has acknowledged, in our term, all that the group had when the term began."""
        status = self.replica.status(self._clock.monotonic_ms())
        return any(each.replica == peer and each.acked for each in status.peers)

    async def covered(self, term: int, sequence: int, patience_ms: int = 0) -> None:
        """Return once `sequence`, read or committed here in `term`, is durable. A read may precede its report.

        Raises: OUTCOME_UNKNOWN when that can no longer be known; TIMEOUT after `patience_ms` (0: never).
        """
        until = self._clock.monotonic_ms() + patience_ms if patience_ms else 0
        while not self.covers(term, sequence):
            future: asyncio.Future[None] = self._loop.create_future()
            self._waits.append(_DurabilityWait(term, sequence, until, future))
            await future

    def covers(self, term: int, sequence: int) -> bool:
        """Return whether `covered` would return at once. Raises: OUTCOME_UNKNOWN."""
        if self._failure:
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", str(sequence), f"this replica ends: {self._failure}")
        return self.replica.covers(term, sequence)

    async def applied(self, term: int, sequence: int, patience_ms: int) -> None:
        """Return once our copy holds `sequence` of the term we follow.

        Raises: OUTCOME_UNKNOWN when we no longer follow it; TIMEOUT after `patience_ms`.
        """
        give_up = self._clock.monotonic_ms() + patience_ms
        while self._engine.applied() < sequence:
            await self.covered(term, sequence, patience_ms)
            if self._clock.monotonic_ms() >= give_up:
                raise CheloniaError(Kind.TIMEOUT, "ahash", str(sequence), "this replica is behind: ask the master")
            if self._engine.applied() < sequence:
                await self.changed(EVENT_MS)

    async def changed(self, patience_ms: int) -> None:
        """Return when a term or master may have come or gone, at the latest after `patience_ms`."""
        waiting = asyncio.create_task(self._changed.wait())
        try:
            await done_within(self._clock, waiting, patience_ms)
        finally:
            waiting.cancel()

    # --- the links --------------------------------------------------------------------------------------------------

    def round_trip_ms(self, peer: int) -> int | None:
        assert self._links is not None
        return self._links.round_trip_ms(peer)

    def up(self, peer: int) -> None:
        self._do(self.replica.connected, peer, self._clock.monotonic_ms())
        self.pulse()

    def down(self, peer: int) -> None:
        self._do(self.replica.disconnected, peer, self._clock.monotonic_ms())
        assert self._listener is not None
        self._listener.lost(peer)
        self.pulse()

    def message(self, peer: int, data: bytes) -> None:
        """Take a message of `peer`. Raises: BAD_REQUEST, TOO_LARGE when it is none: close the connection."""
        assert self._listener is not None
        message = peer_messages.decode(data)
        match message:
            case CallFrame(number, body):
                self._listener.called(peer, number, body)
            case AnswerFrame(number, body):
                self._listener.answered(peer, number, body)
            case _:
                self._do(self.replica.received, peer, message, self._clock.monotonic_ms())

    def send(self, peer: int, message: Message) -> bool:
        """Send a message. Return False when there is no connection."""
        assert self._links is not None
        return self._links.send(peer, peer_messages.encode(message))

    def _engine_sends(self, peer: int | None, control: bytes, record: bytes) -> None:
        """Pass a frame on, together with those that come before the loop turns. On any thread."""
        frame = EngineFrame(frame_of_master(control), frame_term(control), control, record)
        self._frames.append((peer, peer_messages.encode(frame)))
        if not self._sending:  # read after the append, cleared before the frames are taken: none is left behind
            self._sending = True
            self._executor.hand_back(self._send_frames)

    def _send_frames(self) -> None:
        assert self._links is not None
        self._sending = False
        now = self._clock.monotonic_ms()
        if self.replica.may_announce(now):
            self._do(self.replica.announce_durable, now)
        for _ in range(bounds.REPLICA_FRAMES_PER_TURN_MAX):
            if not self._frames:
                return
            peer, data = self._frames.popleft()
            for each in sorted(self.replica.linked) if peer is None else (peer,):
                self._links.send(each, data)
        if self._frames:  # beats and answers have their turn first
            self._sending = True
            self._loop.call_soon(self._send_frames)

    # --- the engine -------------------------------------------------------------------------------------------------

    def _engine_reports(self, event: Event) -> None:
        """Take an event, on any thread; a `SyncedCommit` may come with the committer's result, just after."""
        self._executor.hand_back(partial(self._event, event), at_once=not isinstance(event, SyncedCommit))

    def _event(self, event: Event) -> None:
        if self._failure:
            return
        now = self._clock.monotonic_ms()
        if isinstance(event, Flushed | Ready | MasterHere):  # before it counts: the commit that we vouch for and our
            self._go_by_log(event.members, now)  # right to vote come from one log
        self._do(self._decide, event, now)
        if isinstance(event, Demoted):  # the record that we went by as master may never have been written
            self._go_by_log(event.members, now)
        if isinstance(event, Failed):
            self.fail(event.reason)
        if not isinstance(event, SyncedCommit | Flushed):
            self.pulse()

    def _decide(self, event: Event, now: Ms) -> Effects:
        if isinstance(event, MasterHere):
            self._objects = event.state.objects
            return self.replica.mastered(event.term, _log_end(event.mark, event.state.sequence), now)
        return self.replica.event(event, now)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _do(self, decide: Callable[P, Effects], *args: P.args, **kwargs: P.kwargs) -> None:
        """Let the protocol decide, and carry its effects out. A failure in either is a bug: the process ends."""
        if self._stopping:  # a node closes its store before its links
            return
        try:
            for effect in decide(*args, **kwargs):
                self._carry_out(effect)
            replica = self.replica
            if replica.master != self._followed:
                self._look_at_master()
            if replica.histories.known is not self._noted:
                self._noted = replica.histories.known
                self._engine.notes.note_known(astuple(self._noted))
            if replica.histories.parted != self._parted:
                self._look_at_histories()
            if replica.attention.due_ms < self._wake_ms:
                self._woken.set()
        except Exception as error:
            _LOG.exception("replica %d cannot go on", self.own)
            self.fail(f"an internal failure: {error!r}")
            raise

    def _look_at_master(self) -> None:
        """End our calls to a master that we no longer follow: it may be frozen."""
        master, self._followed = self._followed, self.replica.master
        if master not in (None, self.own, self._followed):
            assert self._listener is not None
            self._listener.lost(master)

    def _look_at_histories(self) -> None:
        """Log each `parted` replica once: a person has to choose."""
        found, known = self.replica.histories.parted, self.replica.histories.known
        for peer, lacking in sorted(found.items()):
            if peer not in self._parted:
                _LOG.error(
                    "replicas %d and %d have two histories: what was acknowledged here (to commit %d of term %d) is "
                    "not there, what was there (to commit %d of term %d) not here: the disks of one were put back from "
                    "old copies. Neither follows the other, nothing of either is lost: choose one "
                    "(docs/operate/ahash-replicas.md, Two histories)",
                    self.own, peer, known.sequence, known.term, lacking.sequence, lacking.term,
                )  # fmt: skip
        for peer in self._parted.keys() - found.keys():
            _LOG.info("replicas %d and %d are of one history again", self.own, peer)
        self._parted = dict(found)

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(peer, message):
                self.send(peer, message)
            case effects.Process(peer, control, record):
                self._engine.process(peer, control, record)
            case effects.Durable():
                self._wake(effect.term, effect.sequence)
            case effects.FollowerSees():
                self._note_lag(effect.sequence)
                self._wake(effect.term, effect.sequence)
            case effects.Announce(peer):
                self._engine.peer_up(peer)
            case effects.AskElection(sites, votes, valid_ms, wait_ms):
                self._engine.elect(sites, votes, valid_ms, wait_ms)
            case effects.StepDown(reason):
                _LOG.info("replica %d steps down: %s", self.own, reason)
                self._engine.step_down()
            case effects.OpenTerm(mark):
                self.members_at = mark.first
                self._spawn(self._begin(mark.term, mark.first, {layout.META_TERM: log_vouching.encode_mark(mark)}))
            case effects.ProveTerm(term, sequence):
                self._spawn(self._begin(term, sequence, {}))
            case effects.TermOpened(term):
                _LOG.info("replica %d is master: term %d is open", self.own, term)
                self._opened(term)
            case effects.TermEnded(term, reason):
                _LOG.info("replica %d: term %d ended: %s", self.own, term, reason)
                self._ended(term)
            case effects.WritePages():
                self._engine.write_pages()
            case effects.Promises(lease_ms):
                self._engine.notes.promise(lease_ms)
            case effects.Trusted():
                _LOG.info("replica %d holds again what it may have acknowledged", self.own)
            case _:
                assert_never(effect)

    async def _begin(self, term: int, sequence: int, puts: dict[bytes, bytes]) -> None:
        """Make one of the two commits that open our term, in which there is no other commit yet."""
        state = {layout.META_STATE: layout.encode_state(StoreState(sequence, self._objects))}
        try:
            await self._executor.run_write(lambda: self._engine.commit(puts | state, (), term))
        except CheloniaError as error:
            _LOG.info("replica %d cannot open term %d: %s", self.own, term, error)
            if self.replica.term == term:
                self._do(self.replica.resign, str(error), self._clock.monotonic_ms())

    def _opened(self, term: int) -> None:
        assert self._listener is not None
        self.elected_ms = self._clock.now_ms()
        self._listener.term_opened(term)
        self.pulse()

    def _ended(self, term: int) -> None:
        assert self._listener is not None
        self._listener.term_ended(term)
        self._wake_all()
        self.pulse()

    # --- membership -------------------------------------------------------------------------------------------------

    def _go_by_log(self, data: bytes | None, now: Ms) -> None:
        """Go by the membership record in our log, as all but a master do; None: unknown."""
        if data not in (None, self._in_log):
            self._do(self._adopt, data, now)
            self.go_by(self.replica.membership)
            self._in_log, self.recorded = data, True

    def _adopt(self, data: bytes, now: Ms) -> Effects:
        record = membership.decode(data)
        if record == self.replica.membership:
            return ()
        _LOG.info("replica %d goes by membership record %d", self.own, record.number)
        return self.replica.adopt(record, now)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wake(self, term: int, sequence: int) -> None:
        self._release(lambda wait: wait.sequence <= sequence or wait.term != term)

    def _wake_all(self) -> None:
        self._release(lambda wait: True)

    def _expire(self, now: int) -> None:
        """End the waits that have timed out, and those in past terms."""
        for wait in self._waits:
            if wait.until_ms and now >= wait.until_ms and not wait.future.done():
                cause = "this replica is behind: ask the master"
                wait.future.set_exception(CheloniaError(Kind.TIMEOUT, "ahash", str(wait.sequence), cause))
        present = self.replica.term
        self._release(lambda wait: wait.future.done() or wait.term != present)

    def _release(self, ended: Callable[[_DurabilityWait], bool]) -> None:
        """Wake the waits that have `ended`: they check again."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if not ended(wait):
                self._waits.append(wait)
            elif not wait.future.done():
                wait.future.set_result(None)

    def go_by(self, record: Membership) -> None:
        """Give engine and links the record that is in force from now on."""
        assert self._links is not None
        self._in_log = None
        self._engine.set_voter(self.own in record.voters)
        self._links.set_membership(record)

    def pulse(self) -> None:
        """Wake everybody who waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._woken.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that the protocol asked for; an unexpected error ends the process."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("replica %d cannot go on", self.own, exc_info=error)
            self.fail(f"an internal failure: {error!r}")


def _log_end(mark: bytes | None, sequence: int) -> LogEnd:
    return LogEnd(None if mark is None else log_vouching.decode_mark(mark), sequence)
