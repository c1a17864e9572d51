"""Makes calls in the compact encoding (`wire.compact`): one connection to each target, many calls in flight on it.

The first call to a target connects, and the first after a connection broke; a break fails all calls on it. The client
leaves a connection that is silent for as long as a call may wait. Then that call fails, and all that may wait no longer
than it; others (a copy takes minutes) go on waiting there. It never repeats a call: `rpc_client.Channel` decides that.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import ssl
from collections.abc import Sequence
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net.http_client import RoundTrips, explain, keep_trouble_quiet, target_of
from chelonia.wire import compact

REFUSED: Final = "TLSV1_ALERT_NO_APPLICATION_PROTOCOL"
"""OpenSSL's reason when a server ends the handshake because nothing was agreed on; most go on without."""
CONNECT_MS: Final = 5_000
"""Time for TCP and TLS together."""


class CompactClient:
    """Connections to services of ours. Use inside one event loop; close when done."""

    def __init__(self, tls: ssl.SSLContext, round_trips: RoundTrips | None = None) -> None:
        """Args: tls: offers `compact.PROTOCOL` and shows this node's certificate; round_trips: keeps those measured."""
        self._tls = tls
        self._round_trips = round_trips or RoundTrips()
        self._open: dict[str, asyncio.Task[Connection]] = {}
        self._live: dict[str, Connection] = {}
        self._left: list[Connection] = []

    async def ask(self, url: str, asking: PendingCall) -> compact.IncomingAnswer:
        """Make one call.

        Raises: NOT_SUPPORTED (the target does not speak it), NETWORK, TIMEOUT, UNTRUSTED, and `Silent` if wanted.
        """
        connection = self._connection_to(_target(url)) or await self._connected(_target(url))
        return await connection.ask(asking)

    def open_connection(self, url: str) -> Connection | None:
        """Return the connection on which a call may be sent at once; None: there is none yet, or it broke."""
        return self._connection_to(_target(url))

    def anew(self) -> None:
        """Make new connections for later calls; the present ones end with their last waiting call."""
        for connection in self._live.values():
            connection.part()

    async def close(self) -> None:
        """Close all connections, and wait until they have ended: else the interpreter warns of them."""
        opening, ending = list(self._open.values()), [*self._left, *self._live.values()]
        self._open, self._live, self._left = {}, {}, []
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in ending:
            connection.close()
        await asyncio.sleep(0)  # sends TLS's goodbye; the peer's own is a round trip away, and not needed
        for connection in ending:
            connection.abort()
        await asyncio.gather(*(connection.ended for connection in ending))

    def _connection_to(self, target: str) -> Connection | None:
        connection = self._live.get(target)
        return None if connection is None or connection.broken else connection

    async def _connected(self, target: str) -> Connection:
        task = self._open.get(target)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().broken)):
            self._left = [each for each in (*self._left, self._live.get(target)) if each is not None and each.waits]
            task = self._open[target] = asyncio.create_task(self._connect(target))
        try:
            return await asyncio.shield(task)
        except CheloniaError as error:  # a fresh one for each caller
            raise type(error)(error.kind, error.op, error.subject, error.cause) from error

    async def _connect(self, target: str) -> Connection:
        url, loop = urlsplit(target), asyncio.get_running_loop()
        host, port = url.hostname or "", url.port or 443
        keep_trouble_quiet(loop)
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                transport, connection = await loop.create_connection(
                    lambda: Connection(target), host, port, ssl=self._tls, server_hostname=host
                )
        except (OSError, TimeoutError) as error:
            if getattr(error, "reason", "") == REFUSED:
                raise _not_spoken(target) from error
            raise explain(error, target, connecting=True) from error
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() != compact.PROTOCOL:
            transport.abort()
            raise _not_spoken(target)
        self._round_trips.note(target, transport)
        self._live[target] = connection
        return connection


class PendingCall(msgspec.Struct, frozen=True):
    """A call that has no number yet. `read_ms`: longest wait for its answer; `silent_ms`: time without an answer after
    which `Silent` is raised (0: never)."""

    words: compact.OutgoingCall
    read_ms: int
    silent_ms: int = 0


class Silent(Exception):
    """A call has no answer yet. It goes on: await `rest`."""

    def __init__(self, rest: asyncio.Future[compact.IncomingAnswer]) -> None:
        super().__init__()
        self.rest = rest


class Connection(asyncio.Protocol):
    """One connection: numbers calls, and hands answers to their callers."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[compact.IncomingAnswer]] = {}
        self._due: list[tuple[float, int, float, float]] = []
        """Deadlines of calls: the instant, the call's number, its beginning, and its next deadline (0: none)."""
        self._received_s = 0.0
        self._watch: asyncio.Handle | None = None
        self._watch_s = 0.0
        """When the watch looks next: uvloop's handle of a time that is now does not know it."""
        self._splitter = compact.Splitter(compact.ANSWER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._handed_out = 0
        """Number of answers that came last together: as many callers may call again in this turn."""
        self.broken = False
        self._refused: compact.WireError | None = None
        """The peer's refusal of all our calls."""
        self.ended = self._loop.create_future()
        """Done when the connection is closed."""

    def ask(self, asking: PendingCall) -> asyncio.Future[compact.IncomingAnswer]:
        """Send a call; return the future of its answer.

        Raises: NETWORK, TOO_LARGE, BAD_REQUEST (text that is not UTF-8); when awaited NETWORK, TIMEOUT, `Silent`.
        """
        if self.broken:
            raise self._refused.error() if self._refused is not None else self._failure("broke")
        words = asking.words
        words.number = number = next(self._numbers)
        self._out.append(compact.encode_asked(words))
        answer = self._waiting[number] = self._loop.create_future()
        now_s = self._loop.time()
        read_s = now_s + asking.read_ms / 1000
        if 0 < asking.silent_ms < asking.read_ms:
            self._expect(now_s + asking.silent_ms / 1000, number, now_s, read_s)
        else:
            self._expect(read_s, number, now_s, 0)
        if len(self._waiting) == 1 and self._handed_out < 2:
            self._flush()  # no other call waits: hardly another comes in this turn
        elif len(self._out) == 1:
            self._loop.call_soon(self._flush)
        return answer

    @property
    def waits(self) -> bool:
        """Whether any call waits for its answer."""
        return bool(self._waiting)

    def part(self) -> None:
        """Take no more calls, and end with the last that waits."""
        self.broken = True
        self._end_when_left()

    def close(self) -> None:
        """End the connection with TLS's goodbye."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every call in flight."""
        if not self.ended.done():
            self.ended.set_result(None)
        self._transport = None
        self._break(explain(exc, self._target) if exc is not None else self._failure("was closed"))

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that have arrived whole."""
        self._received_s = self._loop.time()
        self._handed_out = 0
        try:
            for frame in self._splitter.feed(data):
                self._handed_out += 1
                answered = compact.decode_answered(frame)
                if answered.number == compact.EVERY_CALL and answered.failure is not None:
                    self._refused = answered.failure
                    self._break(self._refused.error())
                    return
                waiting = self._waiting.pop(answered.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answered)
            self._end_when_left()
        except CheloniaError as error:
            self._break(CheloniaError(Kind.NETWORK, cause=f"{self._target} answered what is no answer: {error.cause}"))

    def _flush(self) -> None:
        """Send the calls of one turn of the event loop in one write."""
        out = self._out
        if self._transport is not None and not self._transport.is_closing() and not self.broken and out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()

    def _expect(self, due_s: float, number: int, since_s: float, then_s: float) -> None:
        """Watch a deadline, and another after it (0: none); one timer, for the earliest of all calls."""
        while self._due and self._is_over(self._due[0][1]):
            self._waiting.pop(heapq.heappop(self._due)[1], None)
        heapq.heappush(self._due, (due_s, number, since_s, then_s))
        if self._watch is None or due_s < self._watch_s:
            if self._watch is not None:
                self._watch.cancel()
            self._look_at(due_s)

    def _look_at(self, when_s: float) -> None:
        self._watch, self._watch_s = self._loop.call_at(when_s, self._overdue), when_s

    def _overdue(self) -> None:
        """Fail a call that has waited too long, and others with it if nothing came meanwhile: the peer is frozen, gone,
        or busy for long."""
        self._watch = None
        while self._due:
            due_s, number, since_s, then_s = self._due[0]
            if self._is_over(number):
                self._waiting.pop(heapq.heappop(self._due)[1], None)
                continue
            if due_s > self._loop.time():
                self._look_at(due_s)
                return
            heapq.heappop(self._due)
            waiting = self._waiting[number]
            if then_s:
                self._raise_silent(number, waiting)
                heapq.heappush(self._due, (then_s, number, since_s, 0))
                continue
            error = CheloniaError(
                Kind.TIMEOUT, cause=f"{self._target} did not answer in time; is it overloaded or cut off?"
            )
            if self._received_s <= since_s:
                self._abandon(error, due_s - since_s)
                return
            del self._waiting[number]
            waiting.set_exception(error)

    def _is_over(self, number: int) -> bool:
        """Return whether a call was answered, or its caller no longer waits."""
        waiting = self._waiting.get(number)
        return waiting is None or waiting.done()

    def _raise_silent(self, number: int, waiting: asyncio.Future[compact.IncomingAnswer]) -> None:
        """Raise `Silent` for a waiting caller; the answer will come to another future."""
        rest = self._waiting[number] = self._loop.create_future()
        rest.add_done_callback(_look_at)  # the caller may have gone in this turn of the loop: then nobody awaits it
        waiting.set_exception(Silent(rest))

    def _break(self, error: CheloniaError) -> None:
        """Fail all calls, and end the connection."""
        self.broken = True
        self._due.clear()
        self._fail(error, tuple(self._waiting))

    def _abandon(self, error: CheloniaError, patience_s: float) -> None:
        """Fail the calls that may wait no longer than `patience_s`; take no more, and end with the last that waits."""
        self.broken = True
        self._due = [due for due in self._due if (due[3] or due[0]) - due[2] > patience_s and not self._is_over(due[1])]
        heapq.heapify(self._due)
        stay = {number for _, number, _, _ in self._due}
        self._fail(error, tuple(number for number in self._waiting if number not in stay))
        if self._due:
            self._look_at(self._due[0][0])

    def _fail(self, error: CheloniaError, numbers: Sequence[int]) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for number in numbers:
            waiting = self._waiting.pop(number)
            if not waiting.done():
                waiting.set_exception(CheloniaError(error.kind, error.op, error.subject, error.cause))
        self._end_when_left()

    def _end_when_left(self) -> None:
        if self.broken and not self._waiting:
            self.abort()

    def _failure(self, symptom: str) -> CheloniaError:
        return CheloniaError(Kind.NETWORK, cause=f"the connection to {self._target} {symptom}")


def _look_at(answer: asyncio.Future[compact.IncomingAnswer]) -> None:
    """Take a failure, so that the event loop does not warn that nobody did."""
    if not answer.cancelled():
        answer.exception()


def _not_spoken(target: str) -> CheloniaError:
    cause = "it does not speak the compact encoding: is it the right port, or does something between end TLS itself?"
    return CheloniaError(Kind.NOT_SUPPORTED, "connect", target, cause)


_target: Final = functools.lru_cache(maxsize=1024)(target_of)
