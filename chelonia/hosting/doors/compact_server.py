"""Serves the compact encoding (`wire.compact`) on connections that agreed on it: many calls at once on each.

The listener, its TLS and its certificates are those of HTTP; ALPN tells the two apart. The server identifies a peer
before it reads from it: services, users and strangers each have their own `CallLimits`. Frames, calls in flight and
unread answers are bounded for each connection. Beyond a bound the server stops reading, so a flood waits for itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.limits import LimitCounts
from chelonia.core.operations.rows import EVERYONE, PortTable
from chelonia.core.rights.access import admit
from chelonia.core.timing.eager import begin
from chelonia.core.timing.jobs import CAUSE
from chelonia.hosting.doors.calls import caller, note_fault
from chelonia.hosting.doors.grants import RoleGrant, RoleRegistry
from chelonia.hosting.doors.reading import is_reading
from chelonia.hosting.net.http_messages import Peer
from chelonia.hosting.net.identity import Identity, TlsObject
from chelonia.wire import compact

log = logging.getLogger("chelonia.compact")

IDLE_MS: Final = 600_000
"""Longest silence of a connection with no call in flight: a host that lost its power never closes one."""
ANSWERS_AT_ONCE: Final = 32
"""Answers in one write: fewer wake the peer more often than an earlier start is worth."""
STARTING: Final = "it is starting: it waits for what it needs; `chelonia admin ahash status` tells of the A-Hash"
LOOK_MS: Final = 5_000
"""Pause between two looks at a connection for slow frames and idleness."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of a call's bytes, and of calls in flight on one connection. A longer call of up to `passed_max` bytes is
    skipped and gets a refusal; beyond, the connection is cut."""

    bytes_max: int
    calls_max: int
    passed_max: int = 0


SERVICES: Final = CallLimits(compact.CALL_BYTES_MAX, bounds.COMPACT_CALLS_MAX)
USERS: Final = CallLimits(bounds.COMPACT_USER_BYTES_MAX, bounds.COMPACT_USER_CALLS_MAX, compact.CALL_BYTES_MAX)
STRANGERS: Final = CallLimits(bounds.COMPACT_STRANGER_BYTES_MAX, bounds.COMPACT_USER_CALLS_MAX)

Observe = Callable[[str, str, str, float], None]
"""Called after each call, with service, method, kind of the failure ("" for none), seconds."""


AtOnce = Callable[[Call, str, tuple[Any, ...]], Any]
"""Answers a call, by the name of its method, if that needs no wait; None, or an error: the method itself must run."""


@dataclass(frozen=True, slots=True, eq=False)
class Offered:
    """One service offered: its port, and its methods in the compact encoding; `brief` ones are tried `at_once`."""

    port: object
    methods: Mapping[str, compact.Method]
    brief: frozenset[str]
    at_once: AtOnce


def offer(
    table: PortTable, port: object, brief: frozenset[str] = frozenset(), at_once: AtOnce | None = None
) -> dict[str, Offered]:
    """Return the offer of one service, by its name; `at_once` answers its `brief` methods without a wait."""
    return {table.name: Offered(port, compact.methods(table), brief, at_once or _never)}


def _never(call: Call, method: str, arguments: tuple[Any, ...]) -> None:
    """Leave the call to its method."""


@dataclass(frozen=True, slots=True)
class CompactParts:
    """Parts of the node: roles, the newest position that answers may carry, the observer of calls, counts of limits."""

    registry: RoleRegistry
    horizon: Horizon
    observe: Observe = lambda service, method, kind, seconds: None
    notes: LimitCounts = field(default_factory=LimitCounts)


class CompactDoor:
    """Answers calls to the services `offered`, and refuses those to `awaited` ones, which have not started yet."""

    def __init__(
        self, offered: Mapping[str, Offered], parts: CompactParts, awaited: frozenset[str] = frozenset()
    ) -> None:
        self._offered = offered
        self._parts = parts
        self._awaited = awaited
        self.notes = parts.notes

    def answer_at_once(self, peer: Peer, request: compact.IncomingCall) -> bytes | None:
        """Return the answer of a brief call that succeeds without a wait; None: `answer` must serve the call."""
        offered = self._offered.get(request.service)
        if offered is None or request.method not in offered.brief:
            return None
        started = time.perf_counter()
        try:
            grant = self._parts.registry.known(peer.dn, request.service_id, peer.issuer)
            if grant is None or not grant.roles:
                return None
            arguments = compact.decode_args(offered.methods[request.method], request.args)
            result = offered.at_once(_call(peer, request, grant), request.method, arguments)
            if result is None:
                return None
            frame = compact.encode_result(request.number, result, self._parts.horizon.newest)
        except Exception:
            return None
        self._parts.observe(request.service, request.method, "", time.perf_counter() - started)
        return frame

    async def answer(self, peer: Peer, request: compact.IncomingCall) -> bytes:
        """Carry out one call; return the frame of its answer or failure."""
        started, kind, method = time.perf_counter(), "", None
        try:
            grant = self._parts.registry.known(peer.dn, request.service_id, peer.issuer)
            if grant is None:
                grant = await self._parts.registry.grant(peer.dn, request.service_id, peer.issuer)
            port, method = self._find(request)
            CAUSE.set(method.name)
            call = _call(peer, request, grant)
            admit(call, method.row)  # before the arguments are decoded; the port checks the same after
            result = await getattr(port, method.name)(call, *compact.decode_args(method, request.args))
            return compact.encode_result(request.number, method.packed_result(result), self._parts.horizon.newest)
        except CheloniaError as error:
            kind = error.kind.value
            note_fault(*_names(request), peer, error)
            return compact.encode_failure(request.number, error, self._parts.horizon.newest)
        except Exception:
            kind = Kind.INTERNAL.value
            log.exception("failed service=%s op=%s request=%s", *_names(request))
            cause = f"an internal failure; the log has it under request {request.request_id[:64]}"
            return compact.encode_failure(
                request.number, CheloniaError(Kind.INTERNAL, request.method, cause=cause), None
            )
        finally:
            offered = self._offered.get(request.service)
            is_offered = method is not None or (offered is not None and request.method in offered.methods)
            names = (request.service, request.method) if is_offered else ("compact", "unreadable")
            self._parts.observe(*names, kind, time.perf_counter() - started)

    async def room(self, peer: Peer) -> CallLimits:
        """Return the limits of a peer's calls."""
        if (await self._parts.registry.grant(peer.dn, issuer=peer.issuer)).roles:
            return SERVICES
        if peer.dn == ANONYMOUS:
            return STRANGERS
        methods = (method for each in self._offered.values() for method in each.methods.values())
        return USERS if any(method.row.roles is EVERYONE for method in methods) else STRANGERS

    def _find(self, request: compact.IncomingCall) -> tuple[object, compact.Method]:
        """Return the port and the method of a call. Raises: NOT_SUPPORTED, UNAVAILABLE."""
        offered = self._offered.get(request.service)
        if offered is None and request.service in self._awaited:
            raise CheloniaError(Kind.UNAVAILABLE, "compact", request.service, STARTING)
        method = offered.methods.get(request.method) if offered is not None else None
        if offered is None or method is None:
            wanted, served = f"{request.service[:64]!r} with {request.method[:64]!r}", ", ".join(self._offered)
            cause = f"no service {wanted} at this port, which serves {served or 'none'}: is it the right port?"
            raise CheloniaError(Kind.NOT_SUPPORTED, "connect", cause=cause)
        return offered.port, method


class CompactConnection(asyncio.Protocol):
    """One connection. `identify` returns the peer's identity, and raises when it no longer holds. `lost` is called
    once, when the connection has ended."""

    def __init__(
        self,
        door: CompactDoor,
        identify: Callable[[TlsObject | None], Identity],
        lost: Callable[[CompactConnection], None],
    ) -> None:
        self._door = door
        self._identify = identify
        self._lost = lost
        self.silent = True
        """Whether no call has come yet."""
        self.identity_ms = 1_000
        """Time for which its identity counts before expiry and revocation are checked again."""
        self.owner = ""
        """The owner in whose share of connections it counts."""
        self.at_work: Callable[[bool], None] = lambda on: None
        """Called when calls begin to be in flight, and when none is any more."""
        self._room = STRANGERS
        self._splitter = compact.Splitter(STRANGERS.bytes_max)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._arrived: deque[bytes] = deque()
        self._working: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[None]] = set()
        self._write_paused = False
        self._paused = False
        self._receiving = False
        self._scheduled = False
        self._peer = Peer()
        self._identified_s = -1.0
        """When the peer was last identified; nothing is read before."""
        self._finishing = False
        self._received_s = self._started_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the peer, then read."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio
        self._check_silence()
        self._start(self._welcome(self._transport))
        self._adjust_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End calls that only read, as nobody waits for their answers; finish changes, for their effects."""
        del exc
        if self._reading:
            self._door.notes.met("readers_gone", self._peer.dn, f"{len(self._reading)} reads were ended")
        for task in tuple(self._reading):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._out.clear()
        self._arrived.clear()
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        """Begin the calls that have arrived whole."""
        self._received_s = time.monotonic()
        arrived = self._arrived
        waiting = len(arrived)
        if not self._splitter.amid:
            self._started_s = self._received_s
        try:
            arrived.extend(self._splitter.feed(data))
        except CheloniaError as error:
            self._door.notes.met("bytes of one call", self._peer.dn, "the connection was cut")
            self._cut(str(error))
        while self._splitter.passed:
            self._door.notes.met("bytes of one call", self._peer.dn, "it was refused")
            cause = f"one call has at most {self._room.bytes_max} bytes; send less in each"
            refusal = CheloniaError(Kind.TOO_LARGE, "compact", cause=cause)
            self._send(compact.encode_failure(self._splitter.passed.pop(), refusal, None))
        if len(arrived) > waiting:
            self._started_s = self._received_s
        if not waiting:
            self._begin_arrived()

    def _begin_arrived(self) -> None:
        """Begin calls until one write is full of answers; go on in the next turn of the event loop."""
        # So the peer reads the first answers while others are made, and no connection holds up the loop. One read may
        # bring thousands of small calls: those beyond the room wait until others are answered.
        arrived, self._receiving = self._arrived, True
        try:
            while arrived and len(self._out) < ANSWERS_AT_ONCE and len(self._working) < self._room.calls_max:
                self._begin(compact.decode_asked(arrived.popleft()))
        except CheloniaError as error:
            self._cut(str(error))
        finally:
            self._receiving = False
        self._flush()
        self._adjust_reading()
        self._scheduled = False
        self._schedule()

    def _schedule(self) -> None:
        """Begin more of the arrived calls, in the next turn of the event loop."""
        if self._arrived and not self._scheduled and len(self._working) < self._room.calls_max:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_arrived)

    def pause_writing(self) -> None:
        """Read no more calls while the peer does not read its answers."""
        self._write_paused = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._adjust_reading()

    def finish(self) -> None:
        """Take no more calls, and close when those in flight are answered."""
        if self._transport is not None:
            self._transport.pause_reading()
        self._paused = True
        self._finishing = True
        self._close_when_done()

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _check_silence(self) -> None:
        """Cut a connection that does not finish a frame in time, or is silent for too long."""
        now_s = time.monotonic()
        slow = self._splitter.amid and not self._paused and (now_s - self._started_s) * 1000 > bounds.SOAP_BODY_MS
        idle = not self._working and (now_s - self._received_s) * 1000 > IDLE_MS
        if slow:
            self._door.notes.met("time of a message", self.owner, "the connection was cut")
        if slow or idle:
            self._cut("a call did not arrive in time" if slow else "nothing was asked for a long time")
            return
        self._timer = asyncio.get_running_loop().call_later(LOOK_MS / 1000, self._check_silence)

    def _begin(self, request: compact.IncomingCall) -> None:
        self.silent = False
        identified = (self._received_s - self._identified_s) * 1000 <= self.identity_ms
        answer = self._door.answer_at_once(self._peer, request) if identified else None
        if answer is None:
            task = self._start(self._serve(request))
            if task is not None and is_reading(request.service, request.method):
                self._reading.add(task)
        else:
            self._out.append(answer)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        task = begin(work)
        if task is not None:
            if not self._working:
                self.at_work(True)
            self._working.add(task)
            task.add_done_callback(self._done)
        return task

    async def _identify_peer(self, transport: asyncio.Transport) -> CheloniaError | None:
        """Identify the peer and set its limits. Returns: the error, if its identity does not hold (any more)."""
        now_s = time.monotonic()
        try:
            identity = self._identify(transport.get_extra_info("ssl_object"))
            address = (transport.get_extra_info("peername") or ("",))[0]
            names = (identity.issuer, identity.serial, identity.attributes)
            self._peer = Peer(identity.dn, address, *names, identity.host)
            self._room = await self._door.room(self._peer)
        except CheloniaError as error:
            return error
        self._splitter.bytes_max, self._splitter.passed_max = self._room.bytes_max, self._room.passed_max
        self._identified_s = now_s
        return None

    async def _welcome(self, transport: asyncio.Transport) -> None:
        refusal = await self._identify_peer(transport)
        if refusal is not None:
            self._refuse(refusal, compact.EVERY_CALL)

    async def _serve(self, request: compact.IncomingCall) -> None:
        refusal = None
        if self._transport is not None and (self._received_s - self._identified_s) * 1000 > self.identity_ms:
            refusal = await self._identify_peer(self._transport)
        if refusal is not None:
            self._refuse(refusal, request.number)
        elif self._transport is not None and not self._transport.is_closing():
            self._send(await self._door.answer(self._peer, request))

    def _refuse(self, error: CheloniaError, number: int) -> None:
        """Send the reason, then end the connection; calls in flight have `LOOK_MS` to be answered."""
        if self._transport is not None and not self._transport.is_closing():
            log.info("connection refused who=%r reason=%s", self._peer.dn, error)
            self._send(compact.encode_failure(number, error, None))
            self.finish()
            asyncio.get_running_loop().call_later(LOOK_MS / 1000, self.cut)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        self._reading.discard(task)
        if not self._working:
            self.at_work(False)
        self._schedule()
        if not task.cancelled() and task.exception() is not None:
            log.error("a call ended without an answer", exc_info=task.exception())
        self._adjust_reading()
        self._close_when_done()

    def _send(self, frame: bytes) -> None:
        """Queue an answer; answers that are ready together leave in one write."""
        self._out.append(frame)
        if self._receiving:
            return
        if len(self._working) == 1:
            self._flush()
        elif len(self._out) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        out = self._out
        if self._transport is not None and not self._transport.is_closing() and out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()
        if self._finishing:
            self._close_when_done()

    def _close_when_done(self) -> None:
        done = not (self._arrived or self._working or self._out)
        if self._finishing and done and self._transport is not None:
            self._transport.close()

    def _adjust_reading(self) -> None:
        """Read only while there is room for more calls and the answers are read."""
        calls = len(self._working) + len(self._arrived)
        full = self._write_paused or self._identified_s < 0 or calls >= self._room.calls_max
        if full is self._paused:
            return
        if self._transport is None or self._finishing or self._transport.is_closing():
            return
        if full and not self._paused:
            if calls >= self._room.calls_max:
                self._door.notes.met("calls in flight on one connection", self._peer.dn, "no more of it was read")
            self._transport.pause_reading()
        elif not full and self._paused:
            self._transport.resume_reading()
        self._paused = full

    def _cut(self, reason: str) -> None:
        log.info("connection cut who=%r reason=%s", self._peer.dn, reason)
        self._arrived.clear()
        self.cut()


def _names(request: compact.IncomingCall) -> tuple[str, str, str]:
    return request.service[:64], request.method[:64], request.request_id[:64]


def _call(peer: Peer, request: compact.IncomingCall, grant: RoleGrant) -> Call:
    """Return the context of a call. Raises: BAD_REQUEST for a malformed key."""
    return caller(
        peer, grant, (request.request_id[:64], request.request_key), request.read_after, strong=request.strong
    )
