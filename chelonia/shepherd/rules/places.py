"""How many repair copies a Shepherd sends, or takes, at once: who comes while all places are taken waits a moment.

Librarians plan within the same limit, but each by itself, and a new leader knows nothing of what the one before it has
ordered: so it is the Shepherd that keeps it. Short copies take turns here. Beside long ones who asks is told BUSY, and
goes elsewhere: for as long as it waited no byte of its copy would arrive, and its claim would run out.
Places to send and places to take are counted apart: a copy that has the one waits for the other at another Shepherd,
and what that one takes ends without a place of this one. So none waits for itself in a circle.
A copy whose bytes have stopped coming gives its place back, and has one again when they go on.
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
"""How long somebody waits for a place: some turns of small copies, and little beside how long a claim lasts."""


STALL_MS: Final = 5_000
"""A copy of which no byte comes for so long gives its place back until one does. A sender all of whose copies share one
rate pauses for less."""


def places_of(own: int, ordered: int) -> int:
    """How many places there are: the least of what is configured, what the cluster orders (0: nothing) and the bound,
    at least 1."""
    return max(1, min(own, ordered or own, bounds.COPIES_IN_FLIGHT_PER_NODE_MAX))


class SlotPool:
    """The places of one direction of one Shepherd; who has waited longest has the next one."""

    def __init__(self, clock: Clock, shepherd: ServiceId, most: int) -> None:
        self._clock = clock
        self._shepherd = shepherd
        self.most = most
        self.taken = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def limit(self, most: int) -> None:
        """So many there are from now on; who has one keeps it."""
        assert most > 0, "`places_of` leaves one: nobody waits for ever"
        self.most = most
        self._next()

    @asynccontextmanager
    async def one(self, operation: str) -> AsyncIterator[TransferSlot]:
        """Hold a place. Raises: BUSY, about this Shepherd, when none comes free in a moment."""
        place = TransferSlot(self, operation)
        await place.take()
        try:
            yield place
        finally:
            place.leave()

    async def take(self, operation: str) -> None:
        """Take a place, which is to be `left`. Raises: BUSY, as `one`."""
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
        """A place is free again."""
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
    """A place of `one`, which is given back while the other side stands still."""

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
        """The same bytes; the place is given back when none comes for `STALL_MS`, and taken again for the next.

        Raises: TIMEOUT when there is none by then: what has come is kept, and who sends goes on later; what `body`
        raises.
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
