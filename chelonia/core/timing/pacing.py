"""Pauses before the next step: for a rate, or growing after failures. Pure, monotonic time passed in."""

from __future__ import annotations

from math import ceil

import msgspec

from chelonia.core.ids import Ms


class Pace:
    """A limit to the average rate per second, of bytes or moves, since the last pause."""

    def __init__(self, per_s_max: float) -> None:
        self.per_s_max = per_s_max
        self._free_ms = 0.0  # with parts of a millisecond: many small things add up

    def wait_ms(self, now: Ms) -> int:
        """Return how long to wait before the next step."""
        return max(0, ceil(self._free_ms - now))

    def spend(self, much: int, now: Ms) -> None:
        """Count `much` as used now. A rate of 0 counts as 1: a caller without a limit uses no pace."""
        assert much >= 0, much
        self._free_ms = max(now, self._free_ms) + much * 1000 / (self.per_s_max or 1)


class Backoff(msgspec.Struct):
    """Pauses after failures in a row: `first_ms`, then double the last one, at most `max_ms`."""

    first_ms: int
    max_ms: int
    pause_ms: int = 0

    def failed(self) -> int:
        """Note a failure, and return the milliseconds to wait before the next try."""
        self.pause_ms = min(max(self.pause_ms * 2, self.first_ms), self.max_ms)
        return self.pause_ms

    def worked(self) -> None:
        """Note a success: the next failure is a first one."""
        self.pause_ms = 0
