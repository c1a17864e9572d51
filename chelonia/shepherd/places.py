"""How many repair copies a Shepherd sends, or takes, at once: who comes while all places are taken waits a moment.

Librarians plan within the same limit, but each by itself, and a new leader knows nothing of what the one before it has
ordered: so it is the Shepherd that keeps it. Short copies take turns here. Beside long ones who asks is told BUSY, and
goes elsewhere: for as long as it waited no byte of its copy would arrive, and its claim would run out.
Places to send and places to take are counted apart: a copy that has the one waits for the other at another Shepherd,
and what that one takes ends without a place of this one. So none waits for itself in a circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from chelonia.core import bounds
from chelonia.core.clock import Clock, done_within
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId

MOMENT_MS: Final = 1000
"""How long somebody waits for a place: some turns of small copies, and little beside how long a claim lasts."""


def places_of(own: int, ordered: int) -> int:
    """How many places there are: the least of what is configured, what the cluster orders (0: nothing) and the bound,
    at least 1."""
    return max(1, min(own, ordered or own, bounds.COPIES_IN_FLIGHT_PER_NODE_MAX))


class Places:
    """The places of one direction of one Shepherd; who has waited longest has the next one."""

    def __init__(self, clock: Clock, shepherd: ServiceId, most: int) -> None:
        self._clock = clock
        self._shepherd = shepherd
        self.most = most
        self.taken = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def limit(self, most: int) -> None:
        """So many there are from now on; who has one keeps it."""
        self.most = most
        self._next()

    @asynccontextmanager
    async def one(self, operation: str) -> AsyncIterator[None]:
        """Hold a place. Raises: BUSY, about this Shepherd, when none comes free in a moment."""
        await self._turn(operation)
        try:
            yield
        finally:
            self._left()

    async def _turn(self, operation: str) -> None:
        if self.taken < self.most and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            came = await done_within(self._clock, turn, MOMENT_MS)
        except BaseException:
            if turn.done():
                self._left()
            raise
        finally:
            self._waiting.pop(turn, None)
        if not came:
            cause = f"it has {self.taken} repair copies under way, and no more at once; ask again soon"
            raise CheloniaError(Kind.BUSY, operation, self._shepherd, cause)

    def _left(self) -> None:
        self.taken -= 1
        self._next()

    def _next(self) -> None:
        while self._waiting and self.taken < self.most:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            self.taken += 1
            turn.set_result(None)
