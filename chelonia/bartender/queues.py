"""So many calls of one caller at work at once; further ones wait for their turn, and nobody else for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS


@dataclass(slots=True)
class _CallQueue:
    places: asyncio.Semaphore
    inside: int = 0


@dataclass(slots=True)
class Queues:
    """The queues of one kind of call, one a caller: a DN, or the address of whoever shows none."""

    most: int
    _queues: dict[str, _CallQueue] = field(default_factory=dict)

    def is_full(self, call: Call) -> bool:
        """Whether one more call would wait."""
        queue = self._queues.get(_caller(call))
        return queue is not None and queue.places.locked()

    @asynccontextmanager
    async def one(self, call: Call) -> AsyncIterator[None]:
        """A place for one call, when its turn comes."""
        caller = _caller(call)
        queue = self._queues.setdefault(caller, _CallQueue(asyncio.Semaphore(self.most)))
        queue.inside += 1
        try:
            async with queue.places:
                yield
        finally:
            queue.inside -= 1
            if not queue.inside:
                del self._queues[caller]


def _caller(call: Call) -> str:
    return call.dn if call.dn != ANONYMOUS else call.address
