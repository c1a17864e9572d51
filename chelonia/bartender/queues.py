"""Limits to calls at work: of one kind and one caller (`Queues`), and of all callers (`Places`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.core.timing.clock import Clock, done_within
from chelonia.core.timing.turns import TurnOutcome, Turns


@dataclass(slots=True)
class _CallQueue:
    places: asyncio.Semaphore
    inside: int = 0


@dataclass(slots=True)
class Queues:
    """The queues of one kind of call, one per caller (`Call.waits_as`)."""

    most: int
    _queues: dict[str, _CallQueue] = field(default_factory=dict)

    def is_full(self, call: Call) -> bool:
        """Whether one more call would wait."""
        queue = self._queues.get(call.waits_as)
        return queue is not None and queue.places.locked()

    @asynccontextmanager
    async def one(self, call: Call) -> AsyncIterator[None]:
        """Hold a place for one call, once its turn comes."""
        caller = call.waits_as
        queue = self._queues.setdefault(caller, _CallQueue(asyncio.Semaphore(self.most)))
        queue.inside += 1
        try:
            async with queue.places:
                yield
        finally:
            queue.inside -= 1
            if not queue.inside:
                del self._queues[caller]


class _ElementPlace(AbstractAsyncContextManager[bool]):
    """A place of `Places`; entering it returns whether the call had to wait. No generator, which costs three times as
    much: each look takes a place."""

    __slots__ = ("_call", "_clock", "_limits", "_places")

    def __init__(self, places: Places, call: Call, limits: LimitCounts, clock: Clock) -> None:
        self._places, self._call, self._limits, self._clock = places, call, limits, clock

    async def __aenter__(self) -> bool:
        free = self._places.goes(self._call)
        return not free and await self._places.wait(self._call, self._limits, self._clock)

    async def __aexit__(self, *_: object) -> None:
        self._places.leave()


class Places:
    """Places for elements of calls at work. When all are taken, callers take turns (`core.timing.turns`)."""

    def __init__(
        self, places: int = bounds.ELEMENTS_AT_WORK_MAX, waiting_max: int = bounds.ELEMENTS_WAITING_MAX
    ) -> None:
        self._turns: Turns[asyncio.Future[None]] = Turns(places, waiting_max)

    def one(self, call: Call, limits: LimitCounts, clock: Clock) -> AbstractAsyncContextManager[bool]:
        """Hold a place for one element, once its caller's turn comes. Raises: BUSY: too many wait, or one too long."""
        return _ElementPlace(self, call, limits, clock)

    @property
    def is_full(self) -> bool:
        """Whether one more element would wait."""
        return self._turns.is_full

    def goes(self, call: Call) -> bool:
        """Take a place if one is free, and return whether one was."""
        return self._turns.goes(call.waits_as)

    async def wait(self, call: Call, limits: LimitCounts, clock: Clock) -> bool:
        """Take a place once the caller's turn comes, and return whether it had to wait. Raises: as `one`."""
        caller = call.waits_as
        place = asyncio.get_running_loop().create_future()
        match self._turns.came(caller, place):
            case TurnOutcome.REFUSED:
                limits.met("elements_waiting", caller, f"{call.request_id} was told that all is busy")
                cause = "so much that you have asked for waits already; ask again in a second"
                raise CheloniaError(Kind.BUSY, cause=cause)
            case TurnOutcome.WAITS:
                if not await self._turn(caller, place, clock):
                    limits.met("turn_waited", caller, f"{call.request_id} was told that all is busy")
                    cause = "this front end has more to do than it can; ask again in a second, or ask another"
                    raise CheloniaError(Kind.BUSY, cause=cause)
                return True
            case TurnOutcome.GOES:
                return False

    async def _turn(self, caller: str, place: asyncio.Future[None], clock: Clock) -> bool:
        try:
            if await done_within(clock, place, bounds.TURN_WAIT_MS_MAX):
                return True
        except asyncio.CancelledError:
            if place.done():  # its turn came in the same moment
                self.leave()
            else:
                self._turns.gave_up(caller, place)
            raise
        self._turns.gave_up(caller, place)
        return False

    def leave(self) -> None:
        """Give a place back."""
        following = self._turns.left()
        if following is not None:  # a cancelled one passes it on
            following.set_result(None)
