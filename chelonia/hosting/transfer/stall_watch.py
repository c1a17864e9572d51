"""Detection of an upload whose Shepherd has gone silent, as opposed to one that is busy or far away.

When no byte has been taken for a while, a probe on another connection requests the upload's offset. A Shepherd that is
alive answers at once, however long its disk takes. One that does not answer, being frozen or cut off, is given up; so
is one that answers that its disk hangs. The patience depends on distance, and on the link's speed so far: on a slow
one even a probe waits behind bytes under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.clock import Clock
from chelonia.hosting.net.http_client import ROUND_TRIPS, HttpClient, Sending, target_of
from chelonia.wire.web.headers import ERROR_HEADER

STALL_MS: Final = 250
"""Time without a byte taken, or an answer, after which the Shepherd is probed; it has as long to answer."""
STALL_MS_MAX: Final = 30_000
"""The same on the slowest links."""
LOOK_MS: Final = 50
"""Interval of looks whether bytes have been taken."""
CHUNKS: Final = 5
"""Chunks whose time may pass without a byte on a slow link: sockets and routers hold about as many megabytes."""
SLOW_CHUNK_MS: Final = 100
"""Time of a chunk of `bounds.CHUNK_BYTES` above which a link is slow."""
MORE: Final = 4
"""Factor of patience with each fresh start."""


T = TypeVar("T")


class StallWatch:
    """Watches one sending. `start`: fresh starts before it. `moved`: returns the bytes taken so far. `waits`: returns
    whether the source owes the next ones."""

    def __init__(
        self, http: HttpClient, clock: Clock, start: int, moved: Callable[[], int],
        waits: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._http = http
        self._clock = clock
        self._start = start
        self._moved, self._waits = moved, waits
        self._began_ms = self._moved_ms = clock.monotonic_ms()

    async def settled(self, work: asyncio.Task[T], turl: str) -> T:
        """Wait for the answer as long as the Shepherd lives. Raises: TIMEOUT when it does not; errors of `work`."""
        try:
            before, quiet_ms = 0, 0
            while not work.done():
                await asyncio.wait((work,), timeout=LOOK_MS / 1000)
                quiet_ms += LOOK_MS
                if self._waits() or self._moved() != before:
                    before, quiet_ms, self._moved_ms = self._moved(), 0, self._clock.monotonic_ms()
                elif quiet_ms >= self._patience_ms(turl):
                    await self._require_life(work, turl)
                    quiet_ms = 0
            return work.result()
        finally:
            work.cancel()
            await asyncio.wait((work,))  # its source is in use until then

    def _patience_ms(self, turl: str) -> float:
        chunks = self._moved() // bounds.CHUNK_BYTES
        chunk_ms = (self._moved_ms - self._began_ms) / chunks if chunks > CHUNKS else 0
        usual_ms = CHUNKS * chunk_ms if chunk_ms > SLOW_CHUNK_MS else 0
        least_ms = (STALL_MS + ROUND_TRIPS * self._http.round_trips.to(turl)) * MORE**self._start
        return float(min(max(least_ms, usual_ms), STALL_MS_MAX))

    async def _require_life(self, work: asyncio.Task[T], turl: str) -> None:
        if not await self._lives(turl) and not work.done():
            cause = f"{target_of(turl)} takes no byte, and it or its disk does not answer; the upload starts again"
            raise CheloniaError(Kind.TIMEOUT, "put", cause=cause)

    async def _lives(self, turl: str) -> bool:
        question = asyncio.ensure_future(self._http.request(Sending("HEAD", turl)))
        try:
            await asyncio.wait((question,), timeout=self._patience_ms(turl) / 1000)
            if not question.done() or question.exception() is not None:
                return False
            return question.result().headers.get(ERROR_HEADER) != Kind.UNAVAILABLE.value
        finally:
            question.cancel()
