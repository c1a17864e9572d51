"""Bodies on their way to Shepherds: this node keeps small ones, so that it can try other Shepherds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.bytes import PATIENT
from chelonia.core.ports.files import NOTHING_ARRIVED, Arrived, Inline, Placed, Placing, good
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, carrying
from chelonia.hosting.net.http_messages import Whole, nothing, read_whole
from chelonia.wire.s3.forms import FormDecoder

log = logging.getLogger("chelonia.files")

KEPT_BYTES_MAX: Final = 1024 * 1024
"""Largest body that is here as a whole before it is sent."""
TRIES: Final = 3


async def for_write(parts: DoorParts, exchange: Exchange, placing: Placing) -> tuple[Arrived, Inline | None]:
    """Return the request's body for a `Write`: a small one to go in its message, else stored on stable storage."""
    length = exchange.request.length
    if not 0 <= length <= bounds.INLINE_BYTES_MAX:
        return (await sent(parts, exchange, placing))[1], None
    data = await read_whole(exchange.request, Whole(bounds.INLINE_BYTES_MAX))
    if len(data) != length:
        cause = f"{len(data)} of {length} bytes arrived; send it again"
        raise CheloniaError(Kind.INCOMPLETE, exchange.request.method, str(placing.place), cause)
    return NOTHING_ARRIVED, Inline(data, placing.wanted, placing.checksums)


async def sent(parts: DoorParts, exchange: Exchange, placing: Placing) -> tuple[Placed, Arrived]:
    """Store the request's body; send it anew until its first byte is taken, or while it is kept here."""
    request = exchange.request
    if 0 <= request.length <= KEPT_BYTES_MAX:
        return await kept_sent(parts, exchange, placing, await read_whole(request, Whole(KEPT_BYTES_MAX)))
    with parts.room.kept(request.length) as is_kept:
        body = PassingBody(request.body, is_kept=is_kept)
        try:
            return await _sent(parts, exchange, placing, body, request.length)
        finally:
            await body.close()


async def kept_sent(parts: DoorParts, exchange: Exchange, placing: Placing, body: bytes) -> tuple[Placed, Arrived]:
    """Store a small body; send it again when the first Shepherds fail."""
    return await _sent(parts, exchange, placing, PassingBody(nothing(), [body], is_kept=True), len(body))


async def _sent(
    parts: DoorParts, exchange: Exchange, placing: Placing, body: PassingBody, size: int
) -> tuple[Placed, Arrived]:
    for tried in range(TRIES):
        (placed,) = await parts.files.place(carrying(parts, exchange.call), (placing,))
        first = good(placed, "PUT")
        try:
            return first, await parts.bytes.put(first, body.chunks(), size, tried if body.is_kept else PATIENT)
        except CheloniaError as error:
            if tried == TRIES - 1 or body.is_gone or not error.meaning.retryable:
                raise
            log.info("upload is sent anew request=%s error=%s", exchange.request.request_id, error)
    raise AssertionError("the last try returns or raises")


async def file_in(form: AsyncIterator[bytes], decoder: FormDecoder) -> AsyncIterator[bytes]:
    """Read a browser's form up to its file; return the file's bytes, which fail where the form breaks off.
    Raises: BAD_REQUEST, TOO_LARGE."""
    first = b""
    async for piece in form:
        first = decoder.feed(piece)
        if decoder.filename is not None:
            break
    else:
        decoder.end()
    return _rest_of(form, decoder, first)


async def _rest_of(form: AsyncIterator[bytes], decoder: FormDecoder, first: bytes) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in form:
        if data := decoder.feed(piece):
            yield data
    decoder.end()


async def held_back(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces, the last of them once all have come: a body wrong at its end is never stored whole."""
    held = b""
    async for piece in pieces:
        if held:
            yield held
        held = piece
    if held:
        yield held


class PassingBody:
    """A body that is sent on as it comes. While `is_kept`, its `chunks` can be read again from the first on. Their
    reader may be cancelled while it waits: another task reads from the sender."""

    def __init__(self, rest: AsyncIterator[bytes], start: list[bytes] | None = None, *, is_kept: bool) -> None:
        self._rest = rest
        self._kept = start or []
        self.is_kept = is_kept
        self._taking: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self.is_gone = False
        """Whether it cannot be read again: some of it was not kept, or its sender has failed."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body from its first byte. Raises: its sender's error."""
        if not self.is_kept:
            self.is_gone = True
            async for chunk in self._rest:
                yield chunk
            return
        taking = self._taking = self._taking or asyncio.ensure_future(self._take())
        at = 0
        while at < len(self._kept) or not taking.done():
            if at < len(self._kept):
                yield self._kept[at]
                at += 1
            else:
                self._news.clear()
                await self._news.wait()
        taking.result()

    async def _take(self) -> None:
        try:
            async for chunk in self._rest:
                self._kept.append(chunk)
                self._news.set()
        except BaseException:
            self.is_gone = True
            raise
        finally:
            asyncio.get_running_loop().call_soon(self._news.set)  # when this task is done

    async def close(self) -> None:
        """Take no more of the body, as nobody reads it again."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)
