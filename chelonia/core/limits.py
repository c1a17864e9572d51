"""Counts of the bounds that were reached, by name: they show an operator an attack, or a bound that is too low.

Every time counts. The log has at most one line per bound every `LOG_MS`, however often an attack reaches it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_LOG = logging.getLogger("chelonia.limits")

LOG_MS: Final = 10_000
"""Least time between two log lines about the same bound."""


class LimitCounts:
    """The counts of one node, which its metrics show as `chelonia_limits_reached`."""

    def __init__(self, now_ms: Callable[[], int] = int) -> None:
        """Args: `now_ms`: monotonic; without it the log has only the first line of each bound."""
        self.reached: dict[str, int] = {}
        self._now_ms = now_ms
        self._logged: dict[str, tuple[int, int]] = {}

    def met(self, limit: str, caller: str, action: str) -> None:
        """Count that `caller` reached the bound `limit`, and log what the node did about it (`action`)."""
        count, now_ms = self.reached.get(limit, 0) + 1, self._now_ms()
        self.reached[limit] = count
        logged_ms, before = self._logged.get(limit, (now_ms - LOG_MS, 0))
        if now_ms - logged_ms >= LOG_MS:
            self._logged[limit] = (now_ms, count)
            suppressed = count - before - 1
            _LOG.info("limit met limit=%r who=%r done=%r times_since_last_line=%d", limit, caller, action, suppressed)
