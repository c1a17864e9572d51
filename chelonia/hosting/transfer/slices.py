"""A large body by several requests at once, each for a slice of it, handed on in order.

One connection carries a window of bytes per round trip, and less after each lost packet: over a long distance a
fraction of the bandwidth. So after a slice that came quickly several are requested together, and wait in memory for
their turn. After a slow one they are requested one at a time: little is lost when one breaks off. When the first comes
at once, a single request brings the rest: several would cost more and win nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final

from chelonia.core.contents.extents import ByteRange
from chelonia.core.timing.clock import Clock

SLICE_BYTES: Final = 8 * 1024 * 1024
AT_ONCE: Final = 4
QUICK_MS, NEAR_MS = 4_000, 250
"""Longest wait for a slice that came quickly, and for one that came at once (32 MiB/s)."""

Reads = Callable[[ByteRange], AsyncGenerator[bytes, None]]
"""A request for a part of the body."""


async def in_slices(read: Reads, span: ByteRange, clock: Clock) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of `span`; at most `AT_ONCE` slices are in memory. Raises: the error of a slice, after the bytes
    before it."""
    coming, at_once, at, end = deque[_Coming](), 1, span.offset, span.offset + span.length
    try:
        while at < end or coming:
            while at < end and len(coming) < at_once:
                coming.append(_Coming(read(ByteRange(at, min(SLICE_BYTES, end - at)))))
                at = min(at + SLICE_BYTES, end)
            began_ms = clock.monotonic_ms()
            while (piece := await coming[0].next()) is not None:
                yield piece
            coming.popleft()
            took_ms = clock.monotonic_ms() - began_ms
            if at < end and not coming and took_ms <= NEAR_MS:
                async with contextlib.aclosing(read(ByteRange(at, end - at))) as rest:
                    async for piece in rest:
                        yield piece
                return
            at_once = AT_ONCE if took_ms <= QUICK_MS else 1
    finally:
        for each in coming:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in coming), return_exceptions=True)


class _Coming:
    """A slice on its way."""

    def __init__(self, body: AsyncGenerator[bytes, None]) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task = asyncio.ensure_future(self._take(body))

    async def next(self) -> bytes | None:
        """Return its next bytes, None at its end. Raises: its error, after the bytes before it."""
        piece = await self._pieces.get()
        if piece is None:
            await self.task
        return piece

    async def _take(self, body: AsyncGenerator[bytes, None]) -> None:
        try:
            async with contextlib.aclosing(body) as pieces:
                async for piece in pieces:
                    self._pieces.put_nowait(piece)
        finally:
            self._pieces.put_nowait(None)
