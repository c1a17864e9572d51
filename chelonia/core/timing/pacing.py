"""So much a second: when the next may go. Pure, monotonic time passed in."""

from __future__ import annotations

from chelonia.core.ids import Ms


class Pace:
    """So much a second - bytes, or moves - on average since the last pause."""

    def __init__(self, per_s_max: float) -> None:
        self.per_s_max = per_s_max
        self._free_ms = Ms(0)

    def wait_ms(self, now: Ms) -> int:
        """How long to wait before the next may go."""
        return max(0, self._free_ms - now)

    def spend(self, much: int, now: Ms) -> None:
        """So much goes now. A rate of 0 is one of 1: who wants none at all does not ask."""
        self._free_ms = Ms(max(now, self._free_ms) + round(much * 1000 / (self.per_s_max or 1)))
