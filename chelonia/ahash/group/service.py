"""The replicated A-Hash: `core.ports.ahash.AHash` on every replica of a group, whoever is master.

A master serves each term with a fresh `AHashService`, whose committer knows nothing of earlier ones. The others answer
reads from their copies while those are fresh enough for the caller, and forward the rest to the master, one hop away.
Without a master they hold requests for a while before they refuse them.
Invariants:
- An answer from the copy is durable, and at or after the caller's position.
- A strong answer was read under the master's lease, which was checked after the read.
- A change that may have been carried out is never reported as failed.
- A change is tried again here only with a request key, or if it was certainly not carried out.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from chelonia.ahash.group import forwarding, membership_steps
from chelonia.ahash.group.effects import GroupStatus, PeerRole
from chelonia.ahash.group.forwarding import ForwardedCall, Forwarder, NotCarriedOut
from chelonia.ahash.group.mastership import Mastership, PeerLinks, TermDurability
from chelonia.ahash.group.membership import Membership
from chelonia.ahash.group.peer_messages import AnswerFrame, CallFrame
from chelonia.ahash.service import BRIEF, AHashService, backup_path
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import meta
from chelonia.ahash.store.port import Executor
from chelonia.ahash.store.replicated_port import ReplicatedEngine
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon, Position, later
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.limits import LimitCounts
from chelonia.core.operations.ahash import AHASH
from chelonia.core.operations.rows import Retry
from chelonia.core.ports.ahash import AHash, AHashStatus, PagesSeen, PeerView, TransactOutcome
from chelonia.core.rights.access import check_access, guarded
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.eager import begin
from chelonia.core.timing.jobs import Jobs
from chelonia.core.values import replace

P = ParamSpec("P")
T = TypeVar("T")
_LOG = logging.getLogger(__name__)

MASTER_WAIT_MS: Final = 2000
"""How long to hold a request without a master: an election takes less, and a client waits longer."""
RETRY_MS: Final = 50
"""Pause before another try of a request that found no master, unless something changes before."""
ANSWER_MS: Final = 5000
"""Longest time of a forwarded call: less than a client waits, more than any batch takes."""
REFUSED_MS: Final = 10_000
"""Between two lines in the log about refused calls of one replica."""
BEHIND_MS: Final = 300
"""How long a read waits for this copy to reach the caller's position before it goes to the master."""

_ROLES: Final = {
    PeerRole.MASTER: "master",
    PeerRole.FOLLOWER: "client",
    PeerRole.OPENING: "opening",
    PeerRole.ALONE: "alone",
}
_AGAIN: Final = frozenset({Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN})


@dataclass(frozen=True, slots=True)
class PeerParts:
    """The parts of a replica. `horizon`: of the process, notes every position answered here. `pages_seen`: returns the
    report of the page scrub."""

    engine: ReplicatedEngine
    executor: Executor
    clock: Clock
    settings: AHashSettings
    horizon: Horizon
    pages_seen: Callable[[], PagesSeen | None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Serving:
    """A term, and the service that answers in it, as its master or from the copy."""

    term: int
    service: AHashService


class _Elsewhere(Exception):
    """This copy cannot answer: forward the call to the master."""


def _asked(
    method: Callable[Concatenate[AHash, Call, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ReplicatedAHash, Call, P], Coroutine[Any, Any, T]]:
    """A method of the port: brief ones read here, if this copy may answer, all others are the master's."""
    row = AHASH.by_method[method.__name__]

    @functools.wraps(method)
    async def ask(self: ReplicatedAHash, call: Call, /, *args: P.args, **named: P.kwargs) -> T:
        arguments = row.filled(args, named)
        found = self.at_once(call, row.method, arguments) if row.method in BRIEF else None
        if found is not None:
            return cast(T, found)
        request = ForwardedCall(row.method, call, arguments)
        if row.brief:
            return cast(T, await self._read(request))
        # A change without a key that may have applied is not tried again.
        keyed = row.retry is Retry.KEY_ARGUMENT and bool(arguments[0])
        return cast(T, await self._at_master(request, repeatable=keyed or row.retry is Retry.IDEMPOTENT))

    return ask


@guarded(AHASH)
class ReplicatedAHash:
    """One replica of the A-Hash. `start` before use, `run` beside it, `close` at the end."""

    def __init__(self, mastership: Mastership, parts: PeerParts) -> None:
        self._mastership = mastership
        self._parts = parts
        self.limits = LimitCounts(parts.clock.monotonic_ms)
        self._forwarder = Forwarder(self._send_call, parts.clock, self.limits, run=parts.engine.notes.run)
        self._reign: _Serving | None = None
        self._copy: _Serving | None = None
        self._opening: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._retiring: list[asyncio.Future[None]] = []
        self._carrying_out = 0
        self._quiet_until_ms: dict[int, Ms] = {}

    async def start(self, links: PeerLinks, members: Membership) -> None:
        """Begin as a follower. Raises: BAD_CONFIG, INTERNAL."""
        await self._mastership.start(links, self, members)

    async def run(self) -> None:
        """Keep time until closed. Raises: UNAVAILABLE, with the reason, when the process has to end."""
        self._spawn(membership_steps.keep(self._mastership, self, self._parts.clock))
        await self._mastership.run()

    async def close(self) -> None:
        """Hand over, end all work, close the store. Call it once."""
        self._mastership.stop()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._retiring, return_exceptions=True)
        await self._parts.executor.run_write(self._parts.engine.close)
        await self._parts.executor.close()

    # --- the port ---------------------------------------------------------------------------------------------------

    get = _asked(AHash.get)
    walk = _asked(AHash.walk)
    scan = _asked(AHash.scan)
    below = _asked(AHash.below)
    objects = _asked(AHash.objects)
    recall = _asked(AHash.recall)
    transact = _asked(AHash.transact)
    change = _asked(AHash.change)
    regroup = _asked(AHash.regroup)

    async def backup(self, call: Call, name: str) -> str:
        """Back up this replica, if it may be read: see `core.ports.ahash.AHash.backup`."""
        target = backup_path(self._parts.settings.backup_dir, name)
        if not self._mastership.may_read():
            cause = "this replica does not hold what the group has: ask another, or wait"
            raise CheloniaError(Kind.UNAVAILABLE, "backup", name, cause)
        await self._parts.executor.run_apart(lambda: self._parts.engine.backup(target))
        return target

    async def status(self, call: Call) -> AHashStatus:
        if call.strong:
            status: AHashStatus = await self._at_master(ForwardedCall("status", call, ()), repeatable=True)
            return status
        return await self._parts.executor.run_read(self._status)

    def _status(self) -> AHashStatus:
        mastership, parts = self._mastership, self._parts
        found = mastership.replica.status(parts.clock.monotonic_ms())
        free = parts.engine.free_bytes()
        try:
            with parts.engine.reading():
                position, objects = meta.read_position(parts.engine), meta.read_state(parts.engine).objects
        except CheloniaError:  # nothing is here yet, or it is being replaced
            position, objects = Position(parts.settings.cluster, 0, 0), 0
        return AHashStatus(
            position=replace(position, sequence=min(position.sequence, found.durable)),
            role=_ROLES[found.role],
            writable=mastership.may_write() and free >= parts.settings.min_free_bytes,
            objects_estimate=objects,
            free_bytes=free,
            replica=mastership.own,
            term=found.term,
            lease_ms=found.lease_ms,
            elected_ms=mastership.elected_ms,
            membership=found.membership,
            replicas=self._views(found),
            pages=parts.pages_seen(),
            round_trip_ms=parts.settings.round_trip_ms,
            vouched_term=found.vouched.term,
            vouched_sequence=found.vouched.sequence,
            terms_begun=found.terms_begun,
            lease_stretch=found.stretch,
        )

    def _views(self, found: GroupStatus) -> tuple[PeerView, ...]:
        peers = {peer.replica: peer for peer in found.peers}
        own, is_master = self._mastership.own, found.role is PeerRole.MASTER
        views = []
        for member in self._mastership.replica.membership.members:
            peer = peers.get(member.replica)
            role, lag = "follower" if member.voter else "learner", -1
            if member.replica in found.parted:
                role = "parted"
            elif member.replica == found.master:
                role, lag = "master", 0
            elif member.replica == own:
                lag = max(0, found.head - found.durable) if found.master else -1
            elif peer is None:
                role = "away"
            elif is_master and peer.acked:
                lag = max(0, found.head - peer.acked)
            trip = self._mastership.round_trip_ms(member.replica)
            distance = -1 if trip is None else trip
            views.append(PeerView(member.replica, member.dn, member.address, role, lag, distance))
        return tuple(views)

    @property
    def serving(self) -> bool:
        return self._reign is not None

    @property
    def jobs(self) -> Jobs:
        """Background jobs on the store, which only a master has."""
        return self._reign.service.jobs if self._reign is not None else Jobs(self._parts.clock)

    @property
    def committing_ms(self) -> int:
        """Milliseconds that a master's batch with the committer has taken so far; 0 without one."""
        return self._reign.service.committing_ms if self._reign is not None else 0

    @property
    def upkeep_ms(self) -> int:
        """Milliseconds that a master's upkeep of its store has taken so far; 0 without one."""
        return self._reign.service.upkeep_ms if self._reign is not None else 0

    @property
    def has_room(self) -> bool:
        """Whether the disk takes changes, as of the last commit here."""
        return self._reign is None or self._reign.service.takes_changes

    async def put_record(self, key: bytes, value: bytes) -> Position:
        """Write a record of the store's own, as master. Raises: UNAVAILABLE elsewhere, OUTCOME_UNKNOWN."""
        if self._reign is None:
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", cause="this replica is not the master")
        return await self._reign.service.put_record(key, value)

    # --- reads from the copy ----------------------------------------------------------------------------------------

    def at_once(self, call: Call, method: str, arguments: tuple[Any, ...]) -> Any:
        """Answer one of `service.BRIEF` here without waiting, by the rules of `_execute` and `_from_copy`.

        Returns: None if that cannot be, or the call is refused: `_read` then waits, forwards or raises.
        """
        serving = self._reign or (None if call.strong else self._copy)
        if serving is None:
            return None
        as_master = serving is self._reign
        if not as_master and not self._has_reached(serving, later(call.read_after, self._parts.horizon.newest)):
            return None
        try:
            found = serving.service.at_once(call, method, arguments)
        except CheloniaError:
            return None
        sure = self._mastership.may_answer() if as_master else self._is_fresh(serving.term)
        return found if sure else None

    async def _read(self, request: ForwardedCall) -> Any:
        if not request.call.strong and self._reign is None:
            try:
                return await self._from_copy(request)
            except _Elsewhere:
                pass
        return await self._at_master(request, repeatable=True)

    async def _from_copy(self, request: ForwardedCall) -> Any:
        """Answer from this copy. Raises: _Elsewhere unless it was fresh enough throughout."""
        copy = await self._fresh_copy()
        await self._reach(copy, later(request.call.read_after, self._parts.horizon.newest))
        answer, refusal = None, None
        try:
            answer = await getattr(copy.service, request.method)(request.call, *request.arguments)
        except CheloniaError as error:
            if error.kind in (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN, Kind.TIMEOUT):
                raise _Elsewhere from error
            refusal = error
        if not self._is_fresh(copy.term):  # a refusal too may rest on old contents
            raise _Elsewhere
        if refusal is not None:
            raise refusal
        return answer

    def _is_fresh(self, term: int) -> bool:
        return self._mastership.replica.term == term and self._mastership.may_read()

    async def _fresh_copy(self) -> _Serving:
        """The service over our copy in the term that we follow, made anew for each term."""
        term = self._mastership.replica.term
        if not self._is_fresh(term):
            raise _Elsewhere
        if self._copy is None or self._copy.term != term:
            parts = self._parts
            durability = TermDurability(self._mastership, term, parts.horizon, BEHIND_MS)
            service = AHashService(parts.engine, parts.executor, parts.clock, parts.settings, durability)
            service.limits = self.limits
            try:
                await service.follow()
            except CheloniaError as error:
                raise _Elsewhere from error
            self._copy = _Serving(term, service)
        return self._copy

    def _has_reached(self, copy: _Serving, wanted: Position | None) -> bool:
        """Whether our copy holds `wanted`. A position of another cluster, or before a restore, demands nothing."""
        if wanted is None:
            return True
        position = copy.service.position
        if wanted.cluster != position.cluster or wanted.generation != position.generation:
            return wanted.cluster != position.cluster or wanted.generation < position.generation
        return self._parts.engine.applied() >= wanted.sequence

    async def _reach(self, copy: _Serving, wanted: Position | None) -> None:
        if wanted is None or self._has_reached(copy, wanted):
            return
        if wanted.generation > copy.service.position.generation:
            raise _Elsewhere
        try:
            await self._mastership.applied(copy.term, wanted.sequence, BEHIND_MS)
        except CheloniaError as error:
            raise _Elsewhere from error

    # --- the master -------------------------------------------------------------------------------------------------

    async def _at_master(self, request: ForwardedCall, *, repeatable: bool = False) -> Any:
        """Have the master, here or elsewhere, carry out a call; hold it for `MASTER_WAIT_MS` while there is none.

        Args: `repeatable`: doing it twice does no harm (a read, or a change with a key).
        Raises: the call's error, UNAVAILABLE (no master), OUTCOME_UNKNOWN.
        """
        give_up = self._parts.clock.monotonic_ms() + MASTER_WAIT_MS
        while True:
            try:
                return await self._once(request)
            except CheloniaError as error:
                again = isinstance(error, NotCarriedOut) or (repeatable and error.kind in _AGAIN)
                if not again or self._parts.clock.monotonic_ms() >= give_up:
                    raise
            await self._mastership.changed(RETRY_MS)

    async def _once(self, request: ForwardedCall) -> Any:
        if self._reign is not None:
            return await self._execute(self._reign, request)
        master = self._mastership.master()
        if master is None or master == self._mastership.own:
            cause = (
                "there is no master now: retry in a moment; if it stays so, too few replicas are up (`chelonia admin "
                "ahash status` shows them)"
            )
            raise NotCarriedOut(Kind.UNAVAILABLE, request.method, cause=cause)
        answer, position = await self._forwarder.forward(master, request, ANSWER_MS)
        if position is not None:
            self._parts.horizon.saw(position)
        return answer

    async def _execute(self, reign: _Serving, request: ForwardedCall) -> Any:
        """Carry out a call as master. Any answer but an applied transact counts only under the lease."""
        if request.method in ("transact", "change") and not self._mastership.may_write():
            raise NotCarriedOut(
                Kind.UNAVAILABLE, request.method, cause="this master is not sure of its majority: retry"
            )
        try:
            answer = await self._answer_of(reign, request)
        except CheloniaError as error:
            if error.kind not in _AGAIN:
                self._check_lease(request)
            raise
        if not (isinstance(answer, TransactOutcome) and answer.applied):
            self._check_lease(request)
        return answer

    async def _answer_of(self, reign: _Serving, request: ForwardedCall) -> Any:
        if request.method in ("status", "regroup"):
            check_access(request.call, "ahash", request.method)
            if request.method == "regroup":
                await membership_steps.regroup(self._mastership, self, *request.arguments)
            return await self._parts.executor.run_read(self._status)
        return await getattr(reign.service, request.method)(request.call, *request.arguments)

    def _check_lease(self, request: ForwardedCall) -> None:
        """Raises: OUTCOME_UNKNOWN when another may be master by now, and our answer old."""
        if not self._mastership.may_answer():
            cause = "this master has lost touch with its majority: retry with the same request key"
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, request.method, cause=cause)

    # --- notifications of the mastership ----------------------------------------------------------------------------

    def term_opened(self, term: int) -> None:
        assert self._opening is None, "no term opens before the one before has ended"
        self._opening = term
        self._spawn(self._begin(term))

    async def _begin(self, term: int) -> None:
        parts = self._parts
        durability = TermDurability(self._mastership, term, parts.horizon)
        service = AHashService(parts.engine, parts.executor, parts.clock, parts.settings, durability)
        service.limits = self.limits
        try:
            await parts.executor.run_read(lambda: meta.check_format(parts.engine))
            await service.start()
        except CheloniaError as error:
            _LOG.warning("term %d cannot be served: %s", term, error)
            self._mastership.resign(str(error))
            return
        if self._opening != term:
            await service.retire()
            return
        assert self._reign is None, "one term is served"
        self._reign = _Serving(term, service)
        self._mastership.pulse()
        await service.watch()

    def term_ended(self, term: int) -> None:
        """Stop serving this term: waiting requests get OUTCOME_UNKNOWN."""
        if self._opening == term:
            self._opening = None
        reign, self._reign = self._reign, None
        self._retiring = [work for work in self._retiring if not work.done()]
        if reign is not None:
            self._retiring.append(asyncio.ensure_future(reign.service.retire()))

    def called(self, peer: int, number: int, body: bytes) -> None:
        """Carry out another replica's call, if we are master."""
        if self._reign is None or self._carrying_out >= bounds.FORWARDED_MAX:
            if self._reign is not None:
                self.limits.met("calls_forwarded", f"replica {peer}", "a call of it was refused")
                self._refuse(peer, f"it asks for more than {bounds.FORWARDED_MAX} calls at once")
            self._mastership.send(peer, AnswerFrame(number, forwarding.NOT_MASTER))
        else:
            try:
                self._watch(begin(self._carry_out(self._reign, peer, number, body)))
            except Exception as error:  # noqa: BLE001 - it failed before its first wait: no task has it
                self._fail(error)

    async def _carry_out(self, reign: _Serving, peer: int, number: int, body: bytes) -> None:
        self._carrying_out += 1
        assert self._carrying_out <= bounds.FORWARDED_MAX, "others are told that it was not carried out"
        try:
            result = await self._execute(reign, self._decode_call(peer, body))
            answer = forwarding.encode_result(result, self._parts.horizon.newest)
        except NotCarriedOut:
            answer = forwarding.NOT_MASTER
        except CheloniaError as error:
            answer = forwarding.encode_error(error, self._parts.horizon.newest)
        finally:
            self._carrying_out -= 1
        self._mastership.send(peer, AnswerFrame(number, answer))

    def _decode_call(self, peer: int, body: bytes) -> ForwardedCall:
        """Decode another replica's call. Raises: BAD_REQUEST, which it logs; TOO_LARGE, which its caller causes."""
        try:
            return forwarding.decode_request(body)
        except CheloniaError as error:
            if error.kind is not Kind.TOO_LARGE:
                self._refuse(peer, f"it asks what cannot be read: {error}")
            raise

    def _refuse(self, peer: int, reason: str) -> None:
        """Log the refusal of another replica's call; for each replica at most once in `REFUSED_MS`."""
        now = self._parts.clock.monotonic_ms()
        if now >= self._quiet_until_ms.get(peer, now):
            self._quiet_until_ms[peer] = Ms(now + REFUSED_MS)
            _LOG.warning("a call of replica %d is refused: %s", peer, reason)

    def answered(self, peer: int, number: int, body: bytes) -> None:
        self._forwarder.answered(peer, number, body)

    def lost(self, peer: int) -> None:
        """End the calls to `peer`: its connection is gone, or it is no longer our master."""
        self._forwarder.lost(peer)

    def _send_call(self, peer: int, number: int, body: bytes) -> bool:
        return self._mastership.send(peer, CallFrame(number, body))

    def _spawn(self, work: Any) -> None:
        self._watch(asyncio.get_running_loop().create_task(work))

    def _watch(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        _LOG.error("work of the replicated A-Hash failed", exc_info=error)
        self._mastership.fail(f"an internal failure: {error!r}")
