"""The one HTTP client: pooled, bounded, mutual TLS, and every failure as a CheloniaError that names its cure.

The services' stubs use it, Shepherds that push copies, and the users' SDK. It knows nothing of SOAP or TURLs. New
connections use the newest TLS context (certificates reloaded); old ones run out by themselves.
Invariant: queries (they may hold tickets) never reach an error text or a log line.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.hosting.net.tls import handshake_error
from chelonia.wire.web.headers import ERROR_HEADER

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

    from chelonia.hosting.net.compact_client import CompactClient

EXPECT_ABOVE_BYTES = 64 * 1024
"""Bodies longer than this (or of unknown length) send `Expect: 100-continue` first: a refusal then costs no upload."""
ERROR_BODY_BYTES_MAX = 2048
ROUND_TRIPS = 4
"""Round trips of a new connection until its peer has answered: TCP, TLS, the question, and one to spare."""
TARGETS_MAX = 1000
"""Targets whose round trip is kept."""
_RTT_AT = 68
"""Offset of the smoothed round trip in `struct tcp_info` (linux/tcp.h), a 32-bit number of microseconds."""

TlsSource = Callable[[], ssl.SSLContext | None]
"""Returns the context for new connections, the same object while nothing changes (connections are pooled by it). Hold
on to one `TlsStore.client_context()`, which renews itself. None: plaintext and default trust (tests)."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of waiting, and pool sizes."""

    connect_ms: int = 10_000
    read_idle_ms: int = 60_000
    """Longest wait for an answer, or for the next bytes of one."""
    send_idle_ms: int = bounds.HTTP_BODY_IDLE_MS
    """Longest wait until the peer takes the next bytes of a body; a longer `Sending.read_idle_ms` counts too."""
    connections_max: int = 256
    connections_per_target_max: int = 32
    keepalive_ms: int = 30_000
    """Time for which an unused connection is kept: less than any server of ours keeps it."""
    answer_bytes_max: int = 4 * bounds.SOAP_BODY_BYTES_MAX


class Sending(msgspec.Struct, frozen=True):
    """A request. `body` of a stream with `length` -1 is sent chunked."""

    method: str
    url: str
    headers: Mapping[str, str] | None = None
    body: bytes | AsyncIterator[bytes] | None = None
    length: int = -1
    read_idle_ms: int = 0
    """Overrides the client's limit when positive."""
    expects: bool = True
    """Whether a long body waits for `100 Continue`."""


class Received(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Streaming:
    """An answer whose body is still to be read."""

    def __init__(self, response: aiohttp.ClientResponse, target: str) -> None:
        self._response = response
        self._target = target
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def length(self) -> int:
        """Declared body length, -1 when not declared."""
        return -1 if self._response.content_length is None else self._response.content_length

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises: NETWORK, TIMEOUT, INCOMPLETE when it ends early."""
        import aiohttp

        while True:
            try:
                chunk = await self._response.content.readany()
            except aiohttp.ClientPayloadError as error:
                cause = f"{self._target} closed the connection in mid-body; ask again from where it broke off"
                raise CheloniaError(Kind.INCOMPLETE, cause=cause) from error
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise explain(error, self._target) from error
            if not chunk:
                return
            yield chunk

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises: TOO_LARGE beyond `limit` bytes; NETWORK when it ends early, TIMEOUT."""
        parts: list[bytes] = []
        size = 0
        try:
            async for chunk in self.chunks():
                size += len(chunk)
                if size > limit:
                    raise CheloniaError(Kind.TOO_LARGE, cause=f"{self._target} answered with more than {limit} bytes")
                parts.append(chunk)
        except CheloniaError as error:
            if error.kind is not Kind.INCOMPLETE:
                raise
            cause = f"the connection to {self._target} broke in the middle of its answer"
            raise CheloniaError(Kind.NETWORK, cause=cause) from error
        return b"".join(parts)


class RoundTrips:
    """Round trips to targets in ms, as the kernel measured them while a connection was made (tcp(7)): the load of the
    peer does not count."""

    def __init__(self) -> None:
        self._ms: dict[str, float] = {}

    def note(self, target: str, transport: asyncio.BaseTransport) -> None:
        """Keep the round trip of a new connection, unless the kernel does not know it, or the connection broke."""
        end, option = transport.get_extra_info("socket"), getattr(socket, "TCP_INFO", None)
        if option is not None and end is not None:
            with suppress(OSError, ValueError):  # it is closed: event loops differ in the error
                info = end.getsockopt(socket.IPPROTO_TCP, option, _RTT_AT + 4)
                self.keep(target, int.from_bytes(info[_RTT_AT:], sys.byteorder) / 1000)

    def keep(self, target: str, ms: float) -> None:
        """Keep a target's round trip, capped: a peer that was silent meanwhile is not as far as that."""
        self._ms.pop(target, None)
        self._ms[target] = min(ms, bounds.ROUND_TRIP_MS_MAX)
        if len(self._ms) > TARGETS_MAX:
            del self._ms[next(iter(self._ms))]

    def to(self, url: str) -> float:
        """Return a target's round trip; of an unknown target, the longest of all."""
        measured = self._ms.get(target_of(url))
        return max(self._ms.values(), default=0.0) if measured is None else measured


class Unreachable(CheloniaError):
    """A failure that lasts until somebody changes something, as an unknown host name: trying again is no use."""


class HttpClient:
    """Sends requests over pooled connections. Use inside one event loop; close when done.

    Args: `continue_ms`: time that a body waits for `100 Continue` before it goes without; 0: as for an answer.
    """

    def __init__(
        self,
        tls: TlsSource,
        limits: ClientLimits | None = None,
        resolver: AbstractResolver | None = None,
        *,
        continue_ms: int = 0,
    ) -> None:
        self._tls = tls
        self._resolver = resolver
        self._continue_ms = continue_ms
        self._limits = limits or ClientLimits()
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._closed = False
        self.round_trips = RoundTrips()
        self.compact: CompactClient | None = None
        """The same peers in the compact encoding; closed with this."""
        self.renew: Callable[[], bool] = bool
        """Loads certificates that were replaced on the disk, for new connections; returns whether any were. It reads
        files. Raises: as `TlsStore.reload`."""
        self.loads = "aiohttp"
        """Module to import before the first request; a program of ours may know a quicker way."""

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; later requests fail with NETWORK."""
        self._closed = True
        if self.compact is not None:
            await self.compact.close()
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def request(self, sending: Sending) -> Received:
        """Send and return the whole answer, whatever its status.

        Raises: NETWORK, TIMEOUT, UNTRUSTED (TLS refused, with the reason), TOO_LARGE.
        """
        async with self.stream(sending) as answer:
            body = await answer.read(self._limits.answer_bytes_max)
            return Received(answer.status, answer.headers, body)

    @asynccontextmanager
    async def stream(self, sending: Sending) -> AsyncIterator[Streaming]:
        """Send, and yield the answer with its body still to be read. Raises: as `request`; what the body raised."""
        if not self._sessions:
            importlib.import_module(self.loads)
        import aiohttp  # here: it takes long to load, and many commands do not need it

        target = target_of(sending.url)
        body = _Body(sending.body) if sending.body is not None and not isinstance(sending.body, bytes) else None
        try:
            if body is None:
                response = await self._open(sending, body)
            else:
                async with body.taken_within(max(self._limits.send_idle_ms, sending.read_idle_ms) / 1000):
                    response = await self._open(sending, body)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if body is not None and body.failure is not None:
                raise body.failure from error
            raise explain(error, target) from error
        try:
            yield Streaming(response, target)
        finally:
            # Anything unread makes the connection useless for the next request.
            if not response.content.is_eof():
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()  # first: a TLS transport that is closed reads on for 30 s
                response.close()
            response.release()

    async def _open(self, sending: Sending, body: _Body | None) -> aiohttp.ClientResponse:
        from yarl import URL

        headers = dict(sending.headers or {})
        if body is not None and sending.length >= 0:
            headers["Content-Length"] = str(sending.length)
        options: dict[str, Any] = {}
        context = self._tls()
        if context is not None:
            if not sending.url.startswith("https://"):
                raise CheloniaError(Kind.BAD_REQUEST, cause=f"{target_of(sending.url)} is not https: nothing was sent")
            options["ssl"] = context
        if sending.read_idle_ms > 0:
            options["timeout"] = self._timeout(sending.read_idle_ms)
        expect = sending.expects and body is not None and not 0 <= sending.length <= EXPECT_ABOVE_BYTES
        return await self._pool(asks=sending.method == "HEAD").request(
            sending.method,
            URL(sending.url, encoded=True),
            headers=headers,
            data=body.chunks() if body is not None else sending.body,
            expect100=expect,
            allow_redirects=False,
            **options,
        )

    def _pool(self, *, asks: bool) -> aiohttp.ClientSession:
        """Return the connections for bodies, or those for questions, which never wait for a body's. Else a question
        whether a busy Shepherd lives would find it silent."""
        if self._closed:
            raise CheloniaError(Kind.NETWORK, cause="this process closes its connections: it is ending")
        if asks not in self._sessions:
            import aiohttp

            from chelonia.hosting.net.connector import Connector, impatient

            keep_trouble_quiet(asyncio.get_running_loop())
            limits = self._limits
            connector = Connector(
                self.round_trips,
                limit=limits.connections_max,
                limit_per_host=limits.connections_per_target_max,
                keepalive_timeout=limits.keepalive_ms / 1000,
                enable_cleanup_closed=False,
                resolver=self._resolver,
            )
            self._sessions[asks] = aiohttp.ClientSession(
                connector=connector,
                request_class=impatient(self._continue_ms) if self._continue_ms else aiohttp.ClientRequest,
                timeout=self._timeout(limits.read_idle_ms),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                read_bufsize=256 * 1024,
                max_field_size=bounds.ANSWER_FIELD_BYTES_MAX,
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._sessions[asks]

    def _timeout(self, read_idle_ms: int) -> aiohttp.ClientTimeout:
        import aiohttp

        connect = self._limits.connect_ms / 1000
        return aiohttp.ClientTimeout(total=None, connect=None, sock_connect=connect, sock_read=read_idle_ms / 1000)


class _Body:
    """A body being sent; keeps its source's error, which aiohttp would turn into a connection error."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._limit: asyncio.Timeout | None = None
        self._idle_s = 0.0
        self.failure: Exception | None = None

    @asynccontextmanager
    async def taken_within(self, idle_s: float) -> AsyncIterator[None]:
        """Send the body. Raises: TimeoutError when none of it is taken for so long; its source may take longer."""
        self._idle_s = idle_s
        try:
            async with asyncio.timeout(idle_s) as self._limit:
                yield
        finally:
            self._limit = None  # an answer may come before all of it is sent

    async def chunks(self) -> AsyncIterator[bytes]:
        self._expect(taken=False)
        try:
            async for chunk in self._source:
                self._expect(taken=True)
                yield chunk
                self._expect(taken=False)
        except Exception as error:
            self.failure = error
            raise

    def _expect(self, *, taken: bool) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._idle_s if taken else None)


def target_of(url: str) -> str:
    """Return the part of a URL that may be shown: scheme, host and port."""
    parsed = urlsplit(url)
    return f"{parsed.scheme}://{parsed.netloc}"


def raise_for_status(status: int, headers: Mapping[str, str], body: bytes, op: str = "") -> None:
    """Raise the error of a door's refusal: of the kind that the answer names, else by the status."""
    if status < 400:
        return
    text = body[:ERROR_BODY_BYTES_MAX].decode("utf-8", "replace").strip()
    name = headers.get(ERROR_HEADER, "")
    if name:
        raise CheloniaError(kind_from_wire(name), op, cause=text.removeprefix(f"{name}: "))
    kind = _BY_STATUS.get(status, Kind.UNAVAILABLE if status >= 500 else Kind.BAD_REQUEST)
    raise CheloniaError(kind, op, cause=f"HTTP {status}: {text[:200]}")


_BY_STATUS = {
    401: Kind.DENIED,
    403: Kind.DENIED,
    404: Kind.NOT_FOUND,
    408: Kind.TIMEOUT,
    409: Kind.CONFLICT,
    410: Kind.NOT_FOUND,
    412: Kind.PRECONDITION,
    413: Kind.TOO_LARGE,
    416: Kind.BAD_RANGE,
    429: Kind.BUSY,
    500: Kind.INTERNAL,
    501: Kind.NOT_SUPPORTED,
    507: Kind.NO_SPACE,
}


def of_a_broken_connection(context: Mapping[str, Any]) -> bool:
    """Return whether an error that an event loop could hand to nobody (`loop.call_exception_handler`) is only a broken
    connection. Its peer left, or it was given up before its handshake ended; its user gets the error by an await."""
    error, text = context.get("exception"), str(context.get("message", ""))
    if text.startswith("Fatal error on"):
        return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "handler is closed" in str(error))
    # nobody awaits aiohttp's task of an upload that fails before the first byte of the body
    return text.startswith("Task exception was never") and _is_a(error, "aiohttp", "ClientConnectionError")


def keep_trouble_quiet(loop: asyncio.AbstractEventLoop) -> None:
    """Have a loop without an exception handler ignore errors of our connections, which it would write to the stderr of
    any program that uses them. A program's own handler stays, and gets them."""
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_pass_over)


def _pass_over(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    session = context.get("client_session")
    connector = context.get("connector") or getattr(session, "connector", None)
    is_own = _is_a(connector, "chelonia.hosting.net.connector", "Connector")
    if not is_own and not of_a_broken_connection(context):
        loop.default_exception_handler(context)


def explain(error: BaseException, target: str, *, connecting: bool = False) -> CheloniaError:
    """Turn a failure of the transport into an error that names the target, the reason and the cure.

    `connecting`: the connection was being made; aiohttp's own errors say so themselves.
    """
    if isinstance(error, CheloniaError):
        return error
    # aiohttp's wrapper of a refused certificate looks like one itself, without the reason.
    refused = handshake_error(getattr(error, "certificate_error", error), target)
    if refused.kind is not Kind.NETWORK:
        return refused
    connecting = connecting or _is_a(error, "aiohttp", "ClientConnectorError")
    if connecting and isinstance(error, ssl.SSLError):
        reason = getattr(getattr(error, "os_error", error), "reason", None) or "no common version or cipher"
        cause = f"TLS with {target} failed: {reason}; is this the right port?"
        return CheloniaError(Kind.UNTRUSTED, cause=cause)
    if isinstance(error, ValueError):
        return CheloniaError(Kind.BAD_REQUEST, cause="not a URL that can be reached over https")
    if isinstance(error, TimeoutError):
        return CheloniaError(Kind.TIMEOUT, cause=f"{target} did not answer in time; is it overloaded or cut off?")
    if _is_unknown_host(error):
        cause = f"cannot connect to {target}: there is no host of that name; is it spelled right?"
        return Unreachable(Kind.NETWORK, cause=cause)
    if _is_a(error, "aiohttp", "ClientResponseError"):
        cause = f"{target} answered with what is no HTTP/1.1, or too much of it; is this the right port?"
        return CheloniaError(Kind.NETWORK, cause=cause)
    if connecting:
        unnamed = isinstance(getattr(error, "os_error", error), socket.gaierror)
        hint = "does the name server answer?" if unnamed else "is it running?"
        return CheloniaError(Kind.NETWORK, cause=f"cannot connect to {target}: {_reason(error)}; {hint}")
    return CheloniaError(Kind.NETWORK, cause=f"the connection to {target} broke: {_reason(error)}")


def _is_a(thing: object, module: str, name: str) -> bool:
    """Return whether a thing is of a class of a module; False while that is not loaded."""
    return isinstance(thing, getattr(sys.modules.get(module), name, ()))


def _is_unknown_host(error: BaseException) -> bool:
    """Return whether the name service is certain that there is no such host; its own failures pass."""
    inner = getattr(error, "os_error", error)
    return isinstance(inner, socket.gaierror) and inner.errno in (socket.EAI_NONAME, socket.EAI_NODATA)


def _reason(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, ConnectionRefusedError):
        return "connection refused"  # event loops differ in the words
    if inner is error and _is_a(error, "aiohttp", "ClientOSError"):  # its own text may quote the URL, with the ticket
        number = getattr(error, "errno", None)
        return os.strerror(number) if number else "it was closed"
    return getattr(inner, "strerror", None) or type(inner).__name__
