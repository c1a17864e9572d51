"""A door's view of HTTP: one request, one answer, without the library that carries them.

Bodies are async iterators. The server bounds a request's in idle time and pace, and writes an answer's with
back-pressure. A door's CheloniaError becomes an answer by `errors.TABLE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass

from msgspec import Struct

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.wire.web.headers import ERROR_HEADER

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection.

    - `dn` is `ANONYMOUS` without a client certificate
    - `issuer`: its CA, `serial`: its number in hex
    - `attributes`: verified groups and roles
    - `host`: it is for a host
    """

    dn: Dn = ANONYMOUS
    address: str = ""
    issuer: Dn = Dn("")
    serial: str = ""
    attributes: tuple[str, ...] = ()
    host: bool = False

    @property
    def credential(self) -> str:
        """Serial number and issuer of the certificate, by which a CRL names it; "" without one."""
        return f"{self.serial} {self.issuer}" if self.serial else ""


async def joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield `first`, then the rest of a body."""
    yield first
    async for piece in rest:
        yield piece


async def nothing() -> AsyncIterator[bytes]:
    """Yield nothing: a body without bytes."""
    empty: tuple[bytes, ...] = ()
    for chunk in empty:
        yield chunk


WhenClosed = Callable[[Hashable, Callable[[], None]], None]
"""Registers a function to call when the connection has closed; of those with the same key only the last."""


def _never(key: Hashable, callback: Callable[[], None]) -> None:
    """Register nothing: there is no connection that closes."""


class HttpRequest(Struct, frozen=True):
    """One request.

    - `path` is decoded
    - `headers` is case-insensitive, its items are in order, each field by itself
    - `length` is -1 when not declared
    - `target`: path and query as they were sent, which signatures cover
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    peer: Peer
    body: AsyncIterator[bytes]
    length: int
    request_id: str
    when_closed: WhenClosed = _never
    target: str = ""


class AccessNote(Struct, frozen=True):
    """Facts of a request that only its door knows, for the access log: as whom it was served, its operation, and its
    error ("": none)."""

    who: Dn
    operation: str
    error: str = ""


class HttpResponse(Struct, frozen=True):
    """One answer. A streamed `body` with `length` -1 is sent chunked; `close` ends the connection after it."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | AsyncIterator[bytes] = b""
    length: int = -1
    close: bool = False
    accessed: AccessNote | None = None


Door = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Serves the requests of a listener."""


def text_answer(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> HttpResponse:
    """Return a short plain text answer; bytes of a header field that are no UTF-8 show as escapes."""
    return HttpResponse(status, (("Content-Type", TEXT), *headers), text.encode("utf-8", "backslashreplace"))


def error_answer(error: CheloniaError) -> HttpResponse:
    """Return the answer for an error: its status, and a line naming kind and cause."""
    kind = ((ERROR_HEADER, error.kind.value),)
    retry = (("Retry-After", "1"),) if error.meaning.http == 503 else ()
    return text_answer(error.meaning.http, f"{error.kind.value}: {error.cause or error.op}\n", (*kind, *retry))


@dataclass(frozen=True, slots=True)
class Whole:
    """Limits of a collected body: at most `limit` bytes within `deadline_ms`. `large` is called with its size as it
    grows beyond `bounds.SOAP_SMALL_BYTES`, and may refuse it."""

    limit: int
    deadline_ms: int = bounds.SOAP_BODY_MS
    large: Callable[[int], None] = lambda size: None


async def read_whole(request: HttpRequest, whole: Whole) -> bytes:
    """Collect a request body. Raises: TOO_LARGE, TIMEOUT, INCOMPLETE, and as `whole.large`."""
    try:
        async with asyncio.timeout(whole.deadline_ms / 1000):
            return await _collect(request, whole)
    except TimeoutError as error:
        raise CheloniaError(
            Kind.TIMEOUT, cause=f"the body did not arrive whole within {whole.deadline_ms} ms"
        ) from error


async def _collect(request: HttpRequest, whole: Whole) -> bytes:
    limit = whole.limit
    if request.length > limit:
        cause = f"a body here has at most {limit} bytes, this declares {request.length}"
        raise CheloniaError(Kind.TOO_LARGE, cause=cause)
    parts: list[bytes] = []
    size = 0
    async for chunk in request.body:
        size += len(chunk)
        if size > limit:
            raise CheloniaError(Kind.TOO_LARGE, cause=f"a body here has at most {limit} bytes")
        if size > bounds.SOAP_SMALL_BYTES:
            whole.large(size)
        parts.append(chunk)
    return b"".join(parts)
