"""Places for repair copies: how many a Shepherd sends, or receives, at once. A copy waits a moment for a free place.

The Shepherd keeps the limit. Librarians plan within it, but each by itself, and a new leader does not know its
predecessor's orders. Short copies take turns here. Behind long ones a copy is refused with BUSY and goes elsewhere: its
claim would run out while it waits.
Places to send and to receive are counted apart. A copy with a place to send waits for one at another Shepherd, where
copies need none of these places to end. So no circle of waiting arises.
A copy whose bytes have stopped coming gives its place back, and takes one again when they go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.timing.clock import Clock, done_within
from chelonia.shepherd.waiting import settled

MOMENT_MS: Final = 1000
"""How long a copy waits for a place: some turns of small copies, and little compared with a claim."""


STALL_MS: Final = 5_000
"""How long no byte of a copy may come before it gives its place back. Pauses of a sender whose copies share one rate
are shorter."""


def places_of(own: int, ordered: int) -> int:
    """Return the number of places, at least 1: the least of the configuration, the cluster's order (0: none), and the
    bound."""
    return max(1, min(own, ordered or own, bounds.COPIES_IN_FLIGHT_PER_NODE_MAX))


class SlotPool:
    """The places of one direction of one Shepherd, in order of arrival."""

    def __init__(self, clock: Clock, shepherd: ServiceId, most: int) -> None:
        self._clock = clock
        self._shepherd = shepherd
        self.most = most
        self.taken = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def limit(self, most: int) -> None:
        """Set the number of places; copies that hold one keep it."""
        assert most > 0, "`places_of` leaves one: nobody waits for ever"
        self.most = most
        self._next()

    @asynccontextmanager
    async def one(self, operation: str) -> AsyncIterator[TransferSlot]:
        """Hold a place within the context. Raises: BUSY, naming this Shepherd, when none is free in `MOMENT_MS`."""
        place = TransferSlot(self, operation)
        await place.take()
        try:
            yield place
        finally:
            place.leave()

    async def take(self, operation: str) -> None:
        """Take a place; the caller gives it back by `left`. Raises: BUSY, as `one`."""
        assert not self._waiting or self.taken >= self.most, "nobody waits while a place is free"
        if self.taken < self.most and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            came = await done_within(self._clock, turn, MOMENT_MS)
        except BaseException:
            if turn.done():
                self.left()
            raise
        finally:
            self._waiting.pop(turn, None)
        if not came:
            cause = f"it has {self.taken} repair copies under way, and no more at once; ask again soon"
            raise CheloniaError(Kind.BUSY, operation, self._shepherd, cause)

    def left(self) -> None:
        """Give a place back."""
        assert self.taken > 0, "a place is given back once"
        self.taken -= 1
        self._next()

    def _next(self) -> None:
        while self._waiting and self.taken < self.most:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            self.taken += 1
            turn.set_result(None)


class TransferSlot:
    """A place of `one`, given back while the other side sends nothing."""

    def __init__(self, places: SlotPool, operation: str) -> None:
        self._places = places
        self._operation = operation
        self._held = False

    async def take(self) -> None:
        """Hold it, if not already. Raises: BUSY, as `SlotPool.one`."""
        if not self._held:
            await self._places.take(self._operation)
            self._held = True

    def leave(self) -> None:
        """Give it back, if it is held."""
        if self._held:
            self._held = False
            self._places.left()

    async def while_coming(self, clock: Clock, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of `body`; give the place back when none come for `STALL_MS`, and take one for the next.

        Raises: TIMEOUT when there is no place by then (received bytes are kept, and the sender goes on later); errors
            of `body`.
        """
        waits_since: Ms | None = clock.monotonic_ms()

        async def watch() -> None:
            while True:
                await clock.sleep(STALL_MS)
                if waits_since is not None and clock.monotonic_ms() - waits_since >= STALL_MS:
                    self.leave()

        watching = asyncio.create_task(watch())
        try:
            async for piece in body:
                waits_since = None
                await self._again()
                yield piece
                waits_since = clock.monotonic_ms()
        finally:
            await settled(watching)

    async def _again(self) -> None:
        try:
            await self.take()
        except CheloniaError as busy:
            cause = f"no byte came for {STALL_MS} ms, and others have its place since; go on in a moment"
            raise CheloniaError(Kind.TIMEOUT, self._operation, cause=cause) from busy
