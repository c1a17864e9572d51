"""COPY between this cluster and another server, on behalf of a client that only looks on.

This node moves the bytes between the other server and Shepherds, by the same ports as for a GET or PUT. So a copy that
breaks off, or whose checksum is wrong, leaves nothing. Rights at the other server come from the `TransferHeader` fields
(a token) or, with `Credential: gridsite`, from a proxy that the user has delegated. They never come from the node's own
certificate. When the client goes, the copy ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlencode

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.metadata import TYPE_FILE
from chelonia.core.ports.files import Arrived, Placing, Want, Write, good
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import measuring
from chelonia.hosting.doors.plain.delegation import DELEGATION
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, carrying, look, reader, seen
from chelonia.hosting.doors.plain.redirects import COPIER
from chelonia.hosting.net.delegations import Delegations
from chelonia.hosting.net.http_client import Sending, Streaming, raise_for_status, target_of
from chelonia.hosting.net.http_messages import HttpResponse, nothing, text_answer
from chelonia.hosting.net.strangers import Strangers
from chelonia.wire.crcs import Crc
from chelonia.wire.web import third_party
from chelonia.wire.web.digests import parse_digests
from chelonia.wire.web.third_party import Remote

log = logging.getLogger("chelonia.plain")

MARKER_S: Final = 5.0
"""Pause between two markers. Clients give up a copy after some ten pauses without one."""
TRANSFERS_MAX: Final = 32
"""Copies of one node at once: each holds two connections. One user has at most half of what others leave."""
LEFT_MS: Final = 20 * 60 * 1000
"""A client delegates anew before a copy when its proxy ends sooner than this."""
ASKED: Final = "asked-to-delegate"
"""In the query of a COPY: its client was sent to delegate once; it is not sent again."""
_MARKERS: Final = (("Content-Type", "text/perf-marker-stream"), ("Cache-Control", "no-store"))


@dataclass(slots=True)
class ThirdParty:
    """The client for other servers, the users' delegated proxies, and the number of copies under way by `waits_as`."""

    strangers: Strangers
    delegations: Delegations = field(default_factory=Delegations)
    running: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Moved:
    count: int = 0
    sum: Crc = field(default_factory=lambda: Crc("adler32"))

    @property
    def adler32(self) -> str:
        return self.sum.hexdigest()

    async def counted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.count, self.sum = 0, Crc("adler32")
        async for chunk in chunks:
            self.count += len(chunk)
            self.sum.update(chunk)
            yield chunk


@dataclass(frozen=True, slots=True)
class _Copying:
    """The other end, the credential for it, and the progress of the copy."""

    other: Remote
    credential: bytes
    moved: _Moved = field(default_factory=_Moved)


async def pull(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Fetch a file from the other server (`Source`)."""
    other = _remote(exchange, "Source")
    third, place = parts.third, exchange.place
    credential = _credential(third, exchange)
    if isinstance(credential, HttpResponse):
        return credential
    # With WRITE: callers who may store nothing must not have this node send requests to any server.
    entry = await seen(parts, exchange.call, place, Want.WRITE)
    when = replace(exchange.when, absent=True) if exchange.keeps_target else exchange.when
    when.require(place, entry.attributes if entry else None)
    copies = entry.attributes.wanted if entry and entry.attributes.wanted else parts.copies
    copy = _Copying(other, credential)

    async def run() -> None:
        arrived = await _fetched(parts, exchange, copy, copies)
        await apply(parts, exchange.call, Write(place, arrived, when=when))

    return await _accepted(_markers(third, exchange, run, copy))


async def _fetched(parts: DoorParts, exchange: Exchange, copy: _Copying, copies: int) -> Arrived:
    """Store the other server's bytes, and nothing but them. Raises: its refusal; CHECKSUM."""
    other, moved = copy.other, copy.moved
    fields = {"Want-Digest": "adler32,md5,sha-256", "Accept-Encoding": "identity", "User-Agent": COPIER}
    request = Sending("GET", other.url, {**dict(other.headers), **fields})
    async with parts.third.strangers.showing(copy.credential) as strangers, strangers.stream(request) as answer:
        await _check(answer, copy, whole=True)
        announced = _announced(answer)
        wants = "RequireChecksumVerification wants one" if other.verified else _doubt(answer)
        if wants and announced == Checksums():
            raise CheloniaError(Kind.CHECKSUM, "COPY", cause=f"the other server tells no checksum of it, and {wants}")
        placing = Placing(exchange.place, answer.length, announced.noted, copies)
        (placed,) = await parts.files.place(carrying(parts, exchange.call), (placing,))
        body = moved.counted(measuring.agreeing(answer.chunks(), announced))
        arrived = await parts.bytes.put(good(placed, "COPY"), body, answer.length)
    if announced.adler32 and announced.adler32 != moved.adler32:
        cause = f"adler32 is {moved.adler32}, was told as {announced.adler32}"
        raise CheloniaError(Kind.CHECKSUM, "COPY", cause=cause)
    return arrived


async def push(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Send a file to the other server (`Destination` on another host)."""
    other = _remote(exchange, "Destination")
    third, place = parts.third, exchange.place
    credential = _credential(third, exchange)
    if isinstance(credential, HttpResponse):
        return credential
    entry = await look(parts, carrying(parts, exchange.call), place, Want.SOURCES | Want.CHECKSUMS)
    file = entry.attributes
    if file.type != TYPE_FILE:
        raise CheloniaError(Kind.NOT_A_FILE, "COPY", str(place), f"it is a {file.type}; other servers take files")
    exchange.when.require(place, file)
    copy = _Copying(other, credential)

    def body() -> AsyncIterator[bytes]:
        return copy.moved.counted(reader(parts, exchange.call, place).get(entry, ByteRange(0, file.size)))

    async def run() -> None:
        async with third.strangers.showing(credential) as strangers:
            await _send(strangers, copy, body if file.size else nothing, file.size, keeps_target=exchange.keeps_target)
            await _verify(strangers, other, copy.moved)

    return await _accepted(_markers(third, exchange, run, copy))


async def _send(
    strangers: Strangers, copy: _Copying, body: Callable[[], AsyncIterator[bytes]], size: int, *, keeps_target: bool
) -> None:
    """Have the other server store all of a body. Raises: its refusal; INCOMPLETE, PRECONDITION."""
    other, headers = copy.other, dict(copy.other.headers)
    async with strangers.stream(Sending("HEAD", other.url, headers)) as answer:
        server = answer.headers.get("Server", "")
        if keeps_target and answer.status == 200:  # not every server checks the condition of a PUT
            raise CheloniaError(Kind.PRECONDITION, "the other server", cause="there is an entry of this name")
    if keeps_target:
        headers["If-None-Match"] = "*"
    # XRootD 5 announces with its 100 Continue that it will close, and then does not: that is no HTTP
    sending = Sending("PUT", other.url, headers, length=size, expects=not server.startswith("XrootD"))
    async with strangers.stream(sending, body) as answer:
        await _check(answer, copy)
        if copy.moved.count != size:
            cause = f"the other server answered HTTP {answer.status} when {copy.moved.count} of {size} bytes had gone"
            raise CheloniaError(Kind.INCOMPLETE, "COPY", cause=cause)


async def _accepted(markers: AsyncGenerator[bytes, None]) -> HttpResponse:
    await anext(markers)
    return HttpResponse(202, _MARKERS, markers)


def _credential(third: ThirdParty, exchange: Exchange) -> bytes | HttpResponse:
    """Return the credential for the other server, "" for none; or the answer that has the client delegate one first.

    Raises: BAD_REQUEST, DENIED.
    """
    wanted = exchange.header("Credential").strip().lower()
    if wanted in ("", "none"):
        return b""
    if wanted != "gridsite":
        raise CheloniaError(Kind.BAD_REQUEST, "COPY", cause="Credential is `gridsite` or `none` here")
    asked, query = ASKED in exchange.request.query, urlencode({**exchange.request.query, ASKED: ""})
    found = third.delegations.credential(exchange.request.peer, 0 if asked else LEFT_MS)
    if found:
        return found
    if asked:
        cause = f"nothing that you have delegated is kept here; delegate a proxy at /?{DELEGATION}, or send a token"
        raise CheloniaError(Kind.DENIED, "COPY", cause=cause)
    here = "/" + exchange.request.path.lstrip("/")  # two slashes would name another host
    headers = (("Location", f"{quote(here)}?{query}"), ("X-Delegate-To", f"/?{DELEGATION}"))
    return text_answer(302, f"delegate a proxy at /?{DELEGATION} first\n", headers)


async def _verify(strangers: Strangers, other: Remote, sent: _Moved) -> None:
    """Compare with the other server's file. Raises: CHECKSUM, INCOMPLETE."""
    headers = {**dict(other.headers), "Want-Digest": "adler32", "Accept-Encoding": "identity"}
    async with strangers.stream(Sending("HEAD", other.url, headers)) as answer:
        is_found = answer.status == 200
        announced = _announced(answer) if is_found else Checksums()
        length = answer.length if is_found else -1
    if length not in (-1, sent.count):
        raise CheloniaError(Kind.INCOMPLETE, "COPY", cause=f"{length} bytes of it are there, {sent.count} were sent")
    if announced.adler32 and announced.adler32 != sent.adler32:
        raise CheloniaError(Kind.CHECKSUM, "COPY", cause=f"adler32 there is {announced.adler32}, here {sent.adler32}")
    if other.verified and not announced.adler32:
        cause = "the other server tells no adler32, and RequireChecksumVerification wants one"
        raise CheloniaError(Kind.CHECKSUM, "COPY", cause=cause)


async def _check(answer: Streaming, copy: _Copying, *, whole: bool = False) -> None:
    """Raises: the other server's refusal; NETWORK for a redirect and, with `whole`, for anything but a whole file."""
    if answer.status < 300 and not (whole and answer.status != 200):
        return
    if answer.status < 400:
        reason = "a redirect too many, or to nowhere" if answer.status >= 300 else "not the whole file"
        raise CheloniaError(Kind.NETWORK, "the other server", cause=f"HTTP {answer.status}: {reason}")
    hint = f"(Retry-After: {later[:40]}) " if (later := answer.headers.get("Retry-After", "")) else ""
    is_nobody = not copy.credential and "authorization" not in {name.lower() for name, _ in copy.other.headers}
    if is_nobody and answer.status in (401, 403):
        hint = "(it was shown no right: send TransferHeaderAuthorization, or Credential: gridsite) "
    body = hint.encode("utf-8", "backslashreplace") + await answer.read(64 * 1024)
    raise_for_status(answer.status, answer.headers, body, "the other server")


def _announced(answer: Streaming) -> Checksums:
    """Return the checksums in an answer's header fields. Raises: BAD_REQUEST."""
    headers = answer.headers
    try:
        return parse_digests(digest=headers.get("Digest", ""), repr_digest=headers.get("Repr-Digest", ""))
    except CheloniaError as error:
        raise CheloniaError(error.kind, "the other server", cause=error.cause) from error


def _doubt(answer: Streaming) -> str:
    """Return why only a checksum can prove that an answer is the whole file; "" where none is needed."""
    if answer.length >= 0 or "chunked" in answer.headers.get("Transfer-Encoding", "").lower():
        return ""
    return "neither how long it is nor, as HTTP/1.1 would, where it ends"


def _remote(exchange: Exchange, field_name: str) -> Remote:
    """Return the other server and file. Raises: BAD_REQUEST; DENIED to ANONYMOUS."""
    if exchange.call.dn == ANONYMOUS:
        cause = "a copy from or to another server is somebody's: show a certificate or a token"
        raise CheloniaError(Kind.DENIED, "COPY", str(exchange.place), cause)
    return third_party.remote(exchange.header(field_name), exchange.request.headers.items())


async def _markers(
    third: ThirdParty, exchange: Exchange, run: Callable[[], Coroutine[None, None, None]], copy: _Copying
) -> AsyncGenerator[bytes, None]:
    """Yield an empty piece once the copy has begun, markers while it goes on, and its result. The copy ends with its
    client's connection, and when this body is closed. Raises: BUSY."""
    dn, user = exchange.call.dn, exchange.call.waits_as
    own, others = third.running[user], third.running.total() - third.running[user]
    if 2 * (own + 1) > TRANSFERS_MAX - others:
        cause = f"{own} copies of yours go on, {others} of others, at most {TRANSFERS_MAX}: wait for one to end"
        third.delegations.limits.met("copies_of_other_servers", dn, "one was refused")
        raise CheloniaError(Kind.BUSY, "COPY", cause=cause)
    third.running[user] += 1
    task = asyncio.ensure_future(run())

    def cancel() -> None:
        task.cancel()

    exchange.request.when_closed(_markers, cancel)
    try:
        yield b""
        is_over = False
        while not is_over:
            await asyncio.wait({task}, timeout=MARKER_S)
            if task.cancelled():
                raise ConnectionResetError("the client has gone")
            line, is_over = third_party.marker(int(time.time() * 1000), copy.moved.count), task.done()
            yield line + third_party.ended(_failure(task)) if is_over else line
    finally:
        third.running -= Counter((user,))  # keeps what is above 0
        task.cancel()
        await asyncio.wait({task})
        failure = "the client has gone" if task.cancelled() else str(task.exception() or "")
        fields = (
            exchange.request.request_id,
            dn,
            str(exchange.place),
            target_of(copy.other.url),
            copy.moved.count,
            failure,
        )
        log.info("event=copied request=%s who=%r path=%r other=%s bytes=%d failure=%r", *fields)


def _failure(task: asyncio.Future[None]) -> str:
    """Return why a copy has failed, "" when it has not. Raises: an error that is no CheloniaError."""
    try:
        task.result()
    except CheloniaError as error:
        return f"{error.meaning.http} {error}"
    return ""
