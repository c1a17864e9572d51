"""Slots for large messages on their way, so that no caller fills the memory or keeps the others out.

Approved services have a pool of their own. In the other one each DN (each address, without one) has a few slots. In a
full pool the slowest message that still arrives gives way to a new one. Small messages need no slot. It never reads a
clock: time is passed in. Invariant: no pool gives more slots than it has, nor an owner more than its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

OTHERS: Final = "large messages"
PER_OWNER: Final = "large messages of one caller"


def _pass(limit: str) -> None:
    """Count nothing."""


@dataclass(slots=True, eq=False)
class LargeBody:
    """One message. `give_up` ends its arrival; None while nothing arrives."""

    pool: LargeBodies
    owner: str
    met: Callable[[str], None] = _pass
    size: int = 0
    since_s: float = -1.0
    give_up: Callable[[], None] | None = None

    def grow(self, size: int, now_s: float) -> None:
        """Take a slot, at the first call, and note the size. Raises: UNAVAILABLE when there is no slot."""
        if self.since_s < 0:
            self.pool.take(self, now_s)
            self.since_s = now_s
        self.size = size


@dataclass(slots=True)
class LargeBodies:
    """One pool of slots; `per_owner` of them at most for each owner."""

    room: int = bounds.SOAP_LARGE_BODIES_MAX
    per_owner: int = bounds.SOAP_LARGE_BODIES_MAX
    held: list[LargeBody] = field(default_factory=list)

    @contextmanager
    def one(self, owner: str, met: Callable[[str], None] = _pass) -> Iterator[LargeBody]:
        """Yield a message of `owner`, which frees its slot in the end; `met` is called with a limit it meets."""
        arriving = LargeBody(self, owner, met)
        try:
            yield arriving
        finally:
            if arriving in self.held:
                self.held.remove(arriving)

    def take(self, new: LargeBody, now_s: float) -> None:
        """Give a slot, if need be the slowest message's. Raises: UNAVAILABLE."""
        own = sum(one.owner == new.owner for one in self.held)
        if own >= self.per_owner:
            new.met(PER_OWNER)
            cause = f"{own} large messages of yours are on their way here: send them one after the other, or smaller"
            raise CheloniaError(Kind.UNAVAILABLE, cause=cause)
        if len(self.held) >= self.room:
            new.met(OTHERS)
            self._evict(now_s)
        self.held.append(new)
        assert len(self.held) <= self.room

    def _evict(self, now_s: float) -> None:
        """End the slowest arrival of those that had time to show their pace. Raises: UNAVAILABLE if none had."""
        paced = [one for one in self.held if one.give_up and now_s - one.since_s >= bounds.SOAP_LARGE_SHOW_MS / 1000]
        if not paced:
            cause = "too many large messages are on their way here; try again in a moment, or send less at once"
            raise CheloniaError(Kind.UNAVAILABLE, cause=cause)
        slowest = min(paced, key=lambda one: one.size / (now_s - one.since_s))
        assert slowest.give_up is not None
        slowest.give_up()
        self.held.remove(slowest)
