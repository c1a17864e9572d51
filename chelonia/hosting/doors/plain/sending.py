"""Bodies on their way to Shepherds: kept here while they are small, so that others can be tried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import NOTHING_ARRIVED, Arrived, Inline, Placed, Placing
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, carrying, good
from chelonia.hosting.net.http_messages import Whole, read_whole

KEPT_BYTES_MAX: Final = 1024 * 1024
"""A body up to this size is kept here, so that it can be sent to other Shepherds when the first ones fail."""
TRIES: Final = 3


async def for_write(parts: DoorParts, exchange: Exchange, placing: Placing) -> tuple[Arrived, Inline | None]:
    """The request's body for a `Write`: to go in its message when it is small, else on stable storage."""
    length = exchange.request.length
    if not 0 <= length <= bounds.INLINE_BYTES_MAX:
        return (await sent(parts, exchange, placing))[1], None
    data = await read_whole(exchange.request, Whole(bounds.INLINE_BYTES_MAX))
    if len(data) != length:
        cause = f"{len(data)} of {length} bytes arrived; send it again"
        raise CheloniaError(Kind.INCOMPLETE, exchange.request.method, str(placing.place), cause)
    return NOTHING_ARRIVED, Inline(data, placing.wanted, placing.checksums)


async def sent(parts: DoorParts, exchange: Exchange, placing: Placing) -> tuple[Placed, Arrived]:
    """The request's body on stable storage; sent anew until its first byte is taken, or while it is kept here."""
    request = exchange.request
    if 0 <= request.length <= KEPT_BYTES_MAX:
        return await kept_sent(parts, exchange, placing, await read_whole(request, Whole(KEPT_BYTES_MAX)))
    return await _sent(parts, exchange, placing, request.body, request.length)


async def kept_sent(parts: DoorParts, exchange: Exchange, placing: Placing, body: bytes) -> tuple[Placed, Arrived]:
    """A small body on stable storage, sent again when the first Shepherds fail."""
    return await _sent(parts, exchange, placing, body, len(body))


async def _sent(
    parts: DoorParts, exchange: Exchange, placing: Placing, body: bytes | AsyncIterator[bytes], size: int
) -> tuple[Placed, Arrived]:
    is_gone = False

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal is_gone
        if isinstance(body, bytes):
            if body:
                yield body
            return
        is_gone = True
        async for chunk in body:
            yield chunk

    for left in range(TRIES - 1, -1, -1):
        (placed,) = await parts.files.place(carrying(parts, exchange.call), (placing,))
        first = good(placed, "PUT")
        try:
            return first, await parts.bytes.put(first, chunks(), size)
        except CheloniaError as error:
            if not left or is_gone or not error.meaning.retryable:
                raise
    raise AssertionError("the last try returns or raises")
