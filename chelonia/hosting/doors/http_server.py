"""The one HTTP server: every listener of every daemon is one of these.

It bounds what a hostile or broken client could abuse: header and body sizes, slow bodies, slow readers, idle and too
many connections. It knows no routes: a `Door` turns an `HttpRequest` into an `HttpResponse`. It serves absolute-form
targets too, as ARC's clients send no other. A stopping server takes no new work and finishes every request that has
begun, so that no acknowledged write is lost. It closes each connection after its last answer.
Invariant: a request has exactly one answer, or its connection is cut so that nobody takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from aiohttp import ClientPayloadError
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_writer import StreamWriter
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest  # not by `aiohttp.web`, which loads routes, files, applications
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.core.limits import LimitCounts
from chelonia.core.timing.clock import Clock, Ids
from chelonia.core.values import replace
from chelonia.hosting.doors.compact_server import CompactConnection, CompactDoor
from chelonia.hosting.doors.connection_shares import ConnectionTable, Rank, Shares, owner_of
from chelonia.hosting.doors.guarded import Guarded
from chelonia.hosting.doors.listening import ListeningSockets
from chelonia.hosting.doors.turnstile import Turnstile
from chelonia.hosting.net.buffered import SLICE_BYTES, Buffered
from chelonia.hosting.net.http_messages import Door, HttpRequest, HttpResponse, Peer, error_answer
from chelonia.hosting.net.identity import Identity, TlsObject
from chelonia.wire import compact
from chelonia.wire.web.headers import REQUEST_ID_HEADER

log = logging.getLogger("chelonia.http.server")


_OF_THE_CONNECTION = (Kind.TIMEOUT, Kind.INCOMPLETE, Kind.UNTRUSTED, Kind.EXPIRED, Kind.NOT_SUPPORTED)
"""Errors that another connection may avoid: a client that has a new certificate shows it on the next one."""
_BREAKS = (OSError, RequestPayloadError, ClientPayloadError, HttpProcessingError)
"""Errors that end a body which does not come whole; of OSError: broken TLS, a client that was reset or is gone."""
Identify = Callable[[TlsObject | None], Identity]
"""Returns the peer's identity on a TLS connection, as `IdentityCache.identify`. Raises: UNTRUSTED, EXPIRED."""
Observe = Callable[[HttpRequest, HttpResponse, int, int], None]
"""Called after each request, with it, its answer, bytes sent (-1: the client went away), milliseconds taken."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of clients. Defaults from `core.bounds`; tests make them small."""

    header_bytes_max: int = bounds.HTTP_HEADER_BYTES_MAX
    body_idle_ms: int = bounds.HTTP_BODY_IDLE_MS
    body_rate_bytes_per_s_min: int = bounds.HTTP_BODY_RATE_BYTES_PER_S_MIN
    send_idle_ms: int = bounds.HTTP_SEND_IDLE_MS
    connections_max: int = bounds.CONNECTIONS_MAX
    connections_reserved: int = bounds.CONNECTIONS_RESERVED
    connections_per_address_max: int = bounds.CONNECTIONS_PER_ADDRESS_MAX
    connections_per_dn_max: int = bounds.CONNECTIONS_PER_DN_MAX
    first_request_ms: int = bounds.FIRST_REQUEST_MS
    keepalive_ms: int = 75_000
    handshake_ms: int = 10_000
    linger_ms: int = 3_000
    """Time for which the rest of a refused body is read and dropped, so that its sender sees the refusal."""
    identity_ms: int = 1_000
    """Time for which a connection's identity counts before expiry and revocation are checked again."""

    @property
    def shares(self) -> Shares:
        """Return the shares of connections; a small listener reserves at most half for known services."""
        reserve = min(self.connections_reserved, self.connections_max // 2)
        return Shares(self.connections_max, reserve, self.connections_per_address_max, self.connections_per_dn_max)


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The address of a listener. `port` 0: the system chooses. `tls` None: plaintext (tests only). `shared`: other
    processes of this account listen there too, and the kernel gives each some of the connections."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    certificate_required: bool = True
    shared: bool = False


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Parts of the node for a server."""

    clock: Clock
    ids: Ids
    identify: Identify
    observe: Observe = lambda request, answer, sent, ms: None
    compact: CompactDoor | None = None
    """The door of connections that agree on the compact encoding; the listener's TLS has to offer it."""
    guarded: Guarded | None = None
    """Cuts connections, and refuses new ones, when this process stands still."""
    known: Callable[[Identity], bool] = lambda identity: False
    """Whether a peer is already known as an approved service or an administrator."""
    notes: LimitCounts = field(default_factory=LimitCounts)


class HttpServer:
    """Serves one listener through one door."""

    def __init__(
        self, door: Door, listener: ListenSettings, parts: ServerParts, limits: HttpLimits | None = None
    ) -> None:
        self._door = door
        self._listener = listener
        self._parts = parts
        self._limits = limits or HttpLimits()
        self._acceptor: _Acceptor | None = None
        self._listening = ListeningSockets(
            self._protocol, listener.tls, self._limits.handshake_ms, parts.notes, parts.guarded
        )
        self._refused = Turnstile(bounds.REFUSED_PAUSE_MS)
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._active: dict[int, BaseRequest] = {}
        self.compact_connections: set[CompactConnection] = set()

    @property
    def port(self) -> int:
        return self._listening.port

    @property
    def connections(self) -> int:
        return len(self._acceptor.connections) + len(self.compact_connections) if self._acceptor else 0

    async def start(self) -> None:
        """Listen. Raises: OSError when the address is taken."""
        limits = self._limits
        self._acceptor = _Acceptor(
            self._serve,
            _Newcomers(self._parts, limits),
            keepalive_timeout=limits.keepalive_ms / 1000,
            lingering_time=0,  # `_drop_body` does it
            max_line_size=limits.header_bytes_max,
            max_field_size=limits.header_bytes_max,
            read_bufsize=SLICE_BYTES,
            auto_decompress=False,
            access_log=None,
            logger=_ProtocolLog(logging.getLogger("chelonia.http.protocol")),
        )
        await self._listening.start(self._listener.host, self._listener.port, shared=self._listener.shared)

    async def stop(self, deadline_ms: int) -> None:
        """Take no new connection, finish what has begun within `deadline_ms`, then close everything."""
        if self._acceptor is None:
            return
        self._stopping = self._acceptor.newcomers.stopping = True
        self._listening.stop()
        busy = {id(request.protocol) for request in self._active.values()}
        for connection in self._acceptor.connections:
            if id(connection) not in busy:
                connection.force_close()
        for compact_connection in self.compact_connections:
            compact_connection.finish()
        self._set_idle()
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            log.warning(
                "requests cut off at the stop deadline count=%d", len(self._active) + len(self.compact_connections)
            )
            for compact_connection in self.compact_connections:
                compact_connection.cut()
        # The last answer may still be in the transport.
        await self._acceptor.shutdown(1.0)

    # --- one request ---

    async def _serve(self, raw: BaseRequest) -> StreamResponse:
        self._active[id(raw)] = raw
        self._idle.clear()
        assert self._acceptor is not None
        table = self._acceptor.newcomers.table
        table.busy(raw.protocol)
        try:
            response = await self._exchange(raw)
        finally:
            table.idle(raw.protocol)
            del self._active[id(raw)]
            self._set_idle()
        if not raw.content.is_eof():
            await self._drop_body(raw)
        return response

    async def _drop_body(self, raw: BaseRequest) -> None:
        """Read and drop the rest of a refused body, so that its sender sees the answer."""
        # By pieces, connections in turn: 8 MB at full speed would hold the event loop for 50 ms. This waits for clients
        # that expect 100 Continue as well: some send without it, and a reset would take the answer away.
        owner, received = owner_of(ANONYMOUS, raw.remote or ""), 0
        try:
            async with asyncio.timeout(self._limits.linger_ms / 1000):
                while not raw.content.is_eof():
                    await self._refused.through(owner)
                    received += len(await raw.content.read(bounds.REFUSED_PIECE_BYTES))
        except TimeoutError:
            if received:
                self._parts.notes.met("bytes of a refused body", owner, "the connection was closed")
            _connection(raw).cut()
        except (*_BREAKS, RuntimeError) as error:
            if isinstance(error, RuntimeError) and raw.transport is not None:
                raise  # not aiohttp's way to say that the connection is closed
            log.debug("a refused body ended before its end error=%s", error)

    def _set_idle(self) -> None:
        """Set `_idle` while no request is being answered and no compact connection is open."""
        if self._active or self.compact_connections:
            self._idle.clear()
        else:
            self._idle.set()

    # --- connections that are not HTTP ---

    def _protocol(self) -> asyncio.BaseProtocol:
        assert self._acceptor is not None
        http = self._acceptor.protocol()
        door = self._parts.compact
        if door is None or self._listener.tls is None:
            return http
        return _Greeter(http, lambda transport: self._agreed(door, transport))

    def _agreed(self, door: CompactDoor, transport: asyncio.BaseTransport) -> CompactConnection:
        assert self._acceptor is not None
        connection = CompactConnection(door, self._parts.identify, self._forget)
        connection.identity_ms = self._limits.identity_ms
        self.compact_connections.add(connection)
        newcomers = self._acceptor.newcomers
        if newcomers.take(connection, transport):
            connection.at_work = lambda on: (newcomers.table.busy if on else newcomers.table.idle)(connection)
        else:
            asyncio.get_running_loop().call_soon(connection.cut)
        return connection

    def _forget(self, connection: CompactConnection) -> None:
        assert self._acceptor is not None
        self._acceptor.newcomers.forget(connection)
        self.compact_connections.discard(connection)
        self._set_idle()

    async def _exchange(self, raw: BaseRequest) -> StreamResponse:
        started = self._parts.clock.monotonic_ms()
        if self._parts.guarded is not None:
            self._parts.guarded.served(started)
        try:
            peer, untrusted = self._peer(raw), None
        except CheloniaError as error:
            peer, untrusted = Peer(address=raw.remote or ""), error
        request = self._request(raw, peer)
        try:
            _check_target(raw)
            _check_coding(raw)
            if untrusted is not None:
                raise untrusted
            answer = await self._door(request)
        except CheloniaError as error:
            log.info("refused request=%s path=%r error=%s", request.request_id, request.path, error)
            answer = replace(error_answer(error), close=error.kind in _OF_THE_CONNECTION)
        except ConnectionError:
            raise
        except Exception:
            log.exception("door failed request=%s method=%s path=%r", request.request_id, request.method, request.path)
            cause = f"an internal failure; the log has it under request {request.request_id}"
            answer = error_answer(CheloniaError(Kind.INTERNAL, cause=cause))
        sent = -1
        try:
            response, sent = await self._send(raw, request, answer)
            return response
        finally:
            now = self._parts.clock.monotonic_ms()
            self._parts.observe(request, answer, sent, now - started)
            if self._parts.guarded is not None:
                self._parts.guarded.served(now)

    def _request(self, raw: BaseRequest, peer: Peer) -> HttpRequest:
        length = raw.content_length
        if length is None:
            length = -1 if raw.body_exists else 0
        request_id = raw.headers.get(REQUEST_ID_HEADER, "")
        if not (
            0 < len(request_id) <= 64 and request_id.isascii() and request_id.isprintable() and " " not in request_id
        ):
            request_id = self._parts.ids.token(8).hex()
        connection = _connection(raw)
        slow = partial(self._parts.notes.met, "time of a body", connection.owner, "it was refused")
        body = _body(raw, self._limits, self._parts.clock, slow)
        return HttpRequest(
            raw.method, raw.path, raw.query, raw.headers, peer, body, length, request_id,
            connection.when_closed, raw.raw_path,
        )  # fmt: skip

    def _peer(self, raw: BaseRequest) -> Peer:
        address = raw.remote or ""
        if self._listener.tls is None:
            return Peer(ANONYMOUS, address)
        transport, connection = raw.transport, _connection(raw)
        if transport is None:
            raise ConnectionResetError("the client went away")
        now = self._parts.clock.monotonic_ms()
        if connection.peer is not None and now - connection.peer_ms < self._limits.identity_ms:
            return connection.peer
        identity = self._parts.identify(transport.get_extra_info("ssl_object"))
        if identity.anonymous and self._listener.certificate_required:
            raise CheloniaError(Kind.UNTRUSTED, cause="this listener demands a client certificate")
        peer = Peer(identity.dn, address, identity.issuer, identity.serial, identity.attributes, identity.host)
        connection.peer, connection.peer_ms = peer, now
        return peer

    # --- the answer ---

    async def _send(self, raw: BaseRequest, request: HttpRequest, answer: HttpResponse) -> tuple[StreamResponse, int]:
        response = (_OfKnownLength if answer.length >= 0 or isinstance(answer.body, bytes) else StreamResponse)(
            status=answer.status,
            headers=(*answer.headers, (REQUEST_ID_HEADER, request.request_id), ("Server", "Chelonia")),
        )
        unread_wait = "100-continue" in raw.headers.get("Expect", "").lower() and raw.can_read_body
        if answer.close or self._stopping or unread_wait:
            response.force_close()
        length = answer.length
        if isinstance(answer.body, bytes) and not (raw.method == "HEAD" and length >= 0):
            length = len(answer.body)
        if length >= 0:
            response.content_length = length
        bodiless = raw.method == "HEAD" or answer.status in (204, 304)
        sent = 0
        try:
            await response.prepare(raw)
            if not bodiless:
                sent = await self._send_body(raw, answer.body, length)
            await response.write_eof()
        except ConnectionError:
            raise
        except Exception as error:
            # Part of an answer is out: only a cut connection shows the client that it is not whole.
            level = logging.INFO if isinstance(error, CheloniaError) else logging.ERROR
            fields = request.request_id, request.path, raw.writer.output_size, error
            log.log(level, "answer cut off request=%s path=%r sent=%d: %r", *fields)
            if raw.transport is not None:
                raw.transport.abort()
            raise ConnectionAbortedError(str(error)) from error
        finally:
            await _close(answer.body)
        return response, sent

    async def _send_body(self, raw: BaseRequest, body: bytes | AsyncIterator[bytes], length: int) -> int:
        if isinstance(body, bytes):
            await self._send_piece(raw, body)
            return len(body)
        sent = 0
        async for chunk in body:
            await self._send_piece(raw, chunk)
            sent += len(chunk)
        if 0 <= length != sent:
            raise CheloniaError(Kind.NOT_ALIVE, cause=f"{sent} of {length} bytes could be read")
        return sent

    async def _send_piece(self, raw: BaseRequest, piece: bytes) -> None:
        writer, view = raw.writer, memoryview(piece)
        assert isinstance(writer, StreamWriter)
        for start in range(0, len(view), SLICE_BYTES):
            await writer.write(view[start : start + SLICE_BYTES], drain=False)
            await self._drain(raw)

    async def _drain(self, raw: BaseRequest) -> None:
        """Wait until the client has taken enough. Raises: TIMEOUT when it takes nothing for `send_idle_ms`."""
        if not raw.protocol.writing_paused:
            return
        waiting = asyncio.ensure_future(raw.writer.drain())
        left = _unsent(raw)
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=self._limits.send_idle_ms / 1000)
                if done:
                    return waiting.result()
                now_left = _unsent(raw)
                if now_left >= left:
                    self._parts.notes.met("time of an answer", _connection(raw).owner, "the connection was cut")
                    raise CheloniaError(Kind.TIMEOUT, cause="the client has stopped reading")
                left = now_left
        finally:
            waiting.cancel()


class _OfKnownLength(StreamResponse):
    """An answer whose head leaves with the first of its body, in one TLS record: a second write costs as much again."""

    _send_headers_immediately = False


class _Greeter(asyncio.BufferedProtocol):
    """Gives a new connection to the protocol that the TLS handshake has agreed on."""

    def __init__(self, http: Buffered, agreed: Callable[[asyncio.BaseTransport], asyncio.Protocol]) -> None:
        self._http = http
        self._agreed = agreed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ssl_object = transport.get_extra_info("ssl_object")
        chosen: asyncio.BaseProtocol = self._http
        if ssl_object is not None and ssl_object.selected_alpn_protocol() == compact.PROTOCOL:
            chosen = self._agreed(transport)
        transport.set_protocol(chosen)
        chosen.connection_made(transport)


class _Newcomers:
    """Identifies new connections, cuts the ones that have to go for them, and has all guarded."""

    def __init__(self, parts: ServerParts, limits: HttpLimits) -> None:
        self.table = ConnectionTable(limits.shares)
        self.notes = parts.notes
        self.stopping = False
        self._parts = parts
        self._first_request_ms = limits.first_request_ms
        self._guarded: dict[_Connection, int] = {}
        """All open connections, with their numbers at the guard."""

    def take(self, connection: _Connection, transport: asyncio.BaseTransport) -> bool:
        """Return whether a new connection is taken. Unless a known service's, it ends if no request comes in time."""
        guarded = self._parts.guarded
        self._guarded[connection] = guarded.hold(transport.get_extra_info("socket")) if guarded is not None else 0
        if self.stopping:
            log.info("connection refused: this stops")
            return False
        dn, rank = self._dn_and_rank(transport)
        owner = connection.owner = owner_of(dn, str((transport.get_extra_info("peername") or ("",))[0]))
        verdict = self.table.came(connection, owner, rank)
        if verdict.limit:
            done = "its oldest idle one, or a stranger's, was cut" if verdict.taken else "the new one was refused"
            self.notes.met(verdict.limit, owner, done)
        if verdict.cut is not None:
            cast("_Connection", verdict.cut).cut()
        if verdict.taken and rank is not Rank.KNOWN:
            asyncio.get_running_loop().call_later(self._first_request_ms / 1000, self._check_silent, connection, owner)
        return verdict.taken

    def _check_silent(self, connection: _Connection, owner: str) -> None:
        if connection in self._guarded and connection.silent:
            self.notes.met("time to the first request", owner, "the connection was closed")
            connection.cut()

    def forget(self, connection: _Connection) -> None:
        self.table.gone(connection)
        number = self._guarded.pop(connection, 0)
        if self._parts.guarded is not None:
            self._parts.guarded.release(number)

    def _dn_and_rank(self, transport: asyncio.BaseTransport) -> tuple[Dn, Rank]:
        """Return DN and rank of the peer; an untrusted one gets its refusal as the answer to its request."""
        try:
            identity = self._parts.identify(transport.get_extra_info("ssl_object"))
            rank = Rank.STRANGER if identity.anonymous else Rank.KNOWN if self._parts.known(identity) else Rank.USER
        except CheloniaError:
            return ANONYMOUS, Rank.STRANGER
        return identity.dn, rank


class _Acceptor(Server):
    """aiohttp's server with shares of its connections."""

    def __init__(self, handler: Any, newcomers: _Newcomers, **options: Any) -> None:
        super().__init__(handler, **options)
        self.newcomers = newcomers
        self._options = options
        self._buffer = bytearray(SLICE_BYTES)

    def protocol(self) -> Buffered:
        """Return the event loop's protocol for a new connection."""
        return Buffered(self(), self._buffer, bounds.UNASKED_BYTES)

    def __call__(self) -> RequestHandler:
        return _HttpConnection(self, loop=self._loop, **self._options)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        assert isinstance(handler, _HttpConnection)
        if not self.newcomers.take(handler, transport):
            handler.refused = True
            self._loop.call_later(0.01, transport.abort)  # not at once: the handler is not on its feet yet

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        assert isinstance(handler, _HttpConnection)
        self.newcomers.forget(handler)
        super().connection_lost(handler, exc)
        for callback in handler.closing.values():
            callback()


class _HttpConnection(RequestHandler):
    """aiohttp's connection with a bound on all header fields of a request together; aiohttp bounds each of many."""

    __slots__ = ("_head_bytes", "closing", "owner", "peer", "peer_ms", "refused")

    def __init__(self, manager: Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_bytes = 0
        self.closing: dict[Hashable, Callable[[], None]] = {}
        """Functions to call at its end."""
        self.owner = ""
        """The owner in whose share of connections it counts."""
        self.peer: Peer | None = None
        self.peer_ms = 0
        """When the peer was last identified."""
        self.refused = False
        """Whether its bytes are dropped. (Asyncio's own loop may begin to read a transport that was paused at once.)"""

    @property
    def silent(self) -> bool:
        """Whether no whole head of a request has come yet."""
        return bool(self._request_count == 0)

    def cut(self) -> None:
        """End the connection at once, without the peer's consent."""
        transport = self.transport
        if transport is not None:
            transport.abort()  # first: a TLS transport that is closed reads on for 30 s
        self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Leave a body that has come whole to the door: some clients do not wait for the answer."""
        if self._current_request is not None:
            body = self._current_request.content
            if not body.is_eof():
                body.set_read_chunk_size(sys.maxsize)  # so that aiohttp parses all bytes it has
                self.resume_reading()
            if body.is_eof():
                self._current_request = None  # else aiohttp would void its body
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; cut off a client whose header fields do not end within `max_field_size` bytes."""
        if self.refused:
            return
        before = self._request_count
        # Else the bytes are of a body, also while the handler of a request just read is awake but has not run yet.
        idle = before == 0 or (self._waiter is not None and not self._waiter.done())
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if idle and self._request_count == before else 0
        if self._head_bytes > self.max_field_size:
            log.info("connection cut off: %d bytes of header fields without an end", self._head_bytes)
            self._note_long_head()
            if self.transport is not None:  # no answer is on its way there: this is `idle`
                body = _too_long(self.max_field_size).encode()
                head = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
                self.transport.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            self.force_close()

    def _note_long_head(self) -> None:
        if isinstance(self._manager, _Acceptor):
            self._manager.newcomers.notes.met("bytes of a request's head", self.owner, "the request was refused")

    def when_closed(self, key: Hashable, callback: Callable[[], None]) -> None:
        """Register a function for the end, as `WhenClosed`; call it at once if the connection has ended."""
        self.closing[key] = callback
        if self.transport is None:
            callback()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """Answer a malformed request."""
        if isinstance(exc, LineTooLong):
            self._note_long_head()
            status, message = 431, _too_long(self.max_field_size)
        elif isinstance(exc, HttpProcessingError) and exc.message == _TOO_MANY:
            cause = f"there are more than {self.max_headers} header fields; send fewer"
            self._note_long_head()
            status, message = 431, f"too-large: {cause}\n"
        return super().handle_error(request, status, exc, message)


_Connection = _HttpConnection | CompactConnection


def _connection(raw: BaseRequest) -> _HttpConnection:
    assert isinstance(raw.protocol, _HttpConnection)
    return raw.protocol


_TOO_MANY: Final = "Too many headers received"
"""aiohttp's message for too many header fields."""


def _too_long(most: int) -> str:
    return f"too-large: the URL, or the header fields, are over {most} bytes; send shorter ones\n"


class _ProtocolLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's complaints: a client's mistake is one INFO line, not our stack trace."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        fault = kwargs.get("exc_info")
        if isinstance(fault, HttpProcessingError):
            # Its text quotes the request, which may hold a ticket.
            self.logger.info("malformed request: %s", type(fault).__name__)
        elif isinstance(fault, ConnectionError):
            self.logger.debug("connection lost: %s", fault)
        else:
            super().log(level, msg, *args, **kwargs)


def _check_target(raw: BaseRequest) -> None:
    """Refuse a target with a fragment: a client that sends one means another resource. Raises: BAD_REQUEST."""
    if raw.rel_url.raw_fragment:
        raise CheloniaError(Kind.BAD_REQUEST, raw.method, cause="a request has no fragment: write # in a name as %23")


def _check_coding(raw: BaseRequest) -> None:
    """Refuse a transfer coding other than chunked. Raises: NOT_SUPPORTED. Source: RFC 9112 section 6.1."""
    codings = raw.headers.getall("Transfer-Encoding", ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        cause = f"Transfer-Encoding {', '.join(codings)[:80]!a} is not supported: send chunked alone"
        raise CheloniaError(Kind.NOT_SUPPORTED, raw.method, cause=cause)


async def _body(raw: BaseRequest, limits: HttpLimits, clock: Clock, slow: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield the body as it comes; call `slow` when it comes too slowly. Raises: TIMEOUT, INCOMPLETE."""
    if not raw.can_read_body:
        return
    if "100-continue" in raw.headers.get("Expect", "").lower() and raw.version >= (1, 1):
        await raw.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw.writer.output_size = 0
    waited_ms = window_bytes = taken = 0
    while True:
        started_ms = clock.monotonic_ms()
        chunk = await _next_chunk(raw, limits, slow)
        waited_ms += clock.monotonic_ms() - started_ms  # without the door's time to store it
        if not chunk:
            return
        yield chunk
        window_bytes += len(chunk)
        before, taken = taken, taken + len(chunk)
        if before <= bounds.SOAP_SMALL_BYTES < taken and raw.transport is not None:
            _widen(raw.transport)
        if waited_ms >= limits.body_idle_ms:
            if window_bytes * 1000 < limits.body_rate_bytes_per_s_min * waited_ms:
                slow()
                raise CheloniaError(
                    Kind.TIMEOUT, cause=f"the body came at less than {limits.body_rate_bytes_per_s_min} B/s"
                )
            waited_ms = window_bytes = 0


def _widen(transport: asyncio.BaseTransport) -> None:
    """Read in large steps from now on: a door wants more of a body than a stranger's message has."""
    reading = transport.get_protocol()
    if isinstance(reading, Buffered):
        reading.widen()


async def _next_chunk(raw: BaseRequest, limits: HttpLimits, slow: Callable[[], None]) -> bytes:
    patience = asyncio.timeout(limits.body_idle_ms / 1000)
    try:
        async with patience:
            return await raw.content.readany()
    except (*_BREAKS, RuntimeError) as error:
        if isinstance(error, TimeoutError) and patience.expired():  # else it is the kernel's: the peer is gone
            slow()
            cause = f"no byte of the body came for {limits.body_idle_ms} ms"
            raise CheloniaError(Kind.TIMEOUT, cause=cause) from error
        if isinstance(error, RuntimeError) and raw.transport is not None:
            raise  # not aiohttp's way to say that the connection is closed
        cause = "the connection ended before the body did"
        raise CheloniaError(Kind.INCOMPLETE, cause=cause) from error


async def _close(body: bytes | AsyncIterator[bytes]) -> None:
    aclose = getattr(body, "aclose", None)
    if aclose is not None:
        await aclose()


def _unsent(raw: BaseRequest) -> int:
    return raw.transport.get_write_buffer_size() if raw.transport is not None else 0
