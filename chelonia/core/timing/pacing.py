"""When the next may go: so much a second, or ever later after failures. Pure, monotonic time passed in."""

from __future__ import annotations

from math import ceil

import msgspec

from chelonia.core.ids import Ms


class Pace:
    """So much a second - bytes, or moves - on average since the last pause."""

    def __init__(self, per_s_max: float) -> None:
        self.per_s_max = per_s_max
        self._free_ms = 0.0  # parts of a millisecond, too: many small things add up

    def wait_ms(self, now: Ms) -> int:
        """How long to wait before the next may go."""
        return max(0, ceil(self._free_ms - now))

    def spend(self, much: int, now: Ms) -> None:
        """So much goes now. A rate of 0 counts as one of 1: a caller without a limit asks for no pace."""
        assert much >= 0, much
        self._free_ms = max(now, self._free_ms) + much * 1000 / (self.per_s_max or 1)


class Backoff(msgspec.Struct):
    """Pauses after failures in a row: `first_ms`, then double the last one, at most `max_ms`."""

    first_ms: int
    max_ms: int
    pause_ms: int = 0

    def failed(self) -> int:
        """It failed; returns the milliseconds to wait before it is tried again."""
        self.pause_ms = min(max(self.pause_ms * 2, self.first_ms), self.max_ms)
        return self.pause_ms

    def worked(self) -> None:
        """It went through: the next failure is a first one."""
        self.pause_ms = 0
