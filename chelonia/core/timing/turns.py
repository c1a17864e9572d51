"""Turns: the order of calls when more callers want to be served than there are places. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with calls of one size. Each caller has a clock that his turns
advance by one, and the caller furthest behind goes next. One who was away begins at the time of the others, so nobody
saves turns up. A caller with one call at a time is not behind those with many.
Invariants: no more calls are at work than there are places; nobody waits while a place is free. A caller's calls go in
the order of their arrival.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")
REMEMBERED_MAX: Final = 10_000
"""Callers whose clocks are kept: beyond it all begin anew, equal."""


class TurnOutcome(enum.Enum):
    """The outcome of an arriving call."""

    GOES = "goes"
    WAITS = "waits"
    REFUSED = "refused"
    """Too many calls of this caller wait already."""


@dataclass(slots=True)
class Turns(Generic[T]):
    """`places`: calls at work at once; `waiting_max`: calls of one caller that may wait."""

    places: int
    waiting_max: int
    _waiting: dict[str, deque[T]] = field(default_factory=dict)
    """By caller, in order of their last turns where their clocks are equal."""
    _clocks: dict[str, int] = field(default_factory=dict)
    """Time of each caller's next turn; a missing caller is due now."""
    _now: int = 0
    _busy: int = 0

    @property
    def is_full(self) -> bool:
        """Whether one more call would wait."""
        return self._busy >= self.places

    def goes(self, caller: str) -> bool:
        """Admit a call if a place is free, and return whether it is."""
        if self._busy >= self.places:
            return False
        self._begin(caller)
        return True

    def came(self, caller: str, ticket: T) -> TurnOutcome:
        """Admit a call, let it wait, or refuse it. `left` returns the ticket of one that waits."""
        if self.goes(caller):
            return TurnOutcome.GOES
        assert self._busy == self.places, "nobody waits while a place is free"
        queue = self._waiting.setdefault(caller, deque())
        if len(queue) >= self.waiting_max:
            return TurnOutcome.REFUSED
        queue.append(ticket)
        return TurnOutcome.WAITS

    def left(self) -> T | None:
        """End a call. Returns: the ticket of the one that goes in its place, which is at work from now on."""
        assert self._busy > 0, "a call ends once"
        self._busy -= 1
        if not self._waiting:
            if not self._busy:
                self._clocks.clear()
            return None
        following = min(self._waiting, key=self._due)
        queue = self._waiting.pop(following)
        ticket = queue.popleft()
        if queue:
            self._waiting[following] = queue
        assert self._busy == self.places - 1, "who waited goes in the place of one that has just left"
        self._begin(following)
        return ticket

    def gave_up(self, caller: str, ticket: T) -> None:
        """Withdraw a waiting call; without effect when its turn has come meanwhile."""
        queue = self._waiting.get(caller)
        if queue is None or ticket not in queue:
            return
        queue.remove(ticket)
        if not queue:
            del self._waiting[caller]

    def _due(self, caller: str) -> int:
        return max(self._now, self._clocks.get(caller, 0))

    def _begin(self, caller: str) -> None:
        self._busy += 1
        assert self._busy <= self.places, (self._busy, self.places)
        self._now = self._due(caller)
        self._clocks[caller] = self._now + 1
        if len(self._clocks) > REMEMBERED_MAX:
            self._now = max(self._clocks.values())
            self._clocks.clear()
