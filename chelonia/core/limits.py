"""The bounds that were reached, by name: what an operator sees of an attack, or of a bound that is too low.

Each time counts; the log has a line of each bound at most every few seconds. An attack reaches one thousands of times a
minute: the log says how often, and is not filled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_LOG = logging.getLogger("chelonia.limits")

LOG_MS: Final = 10_000
"""Between two lines about the same bound."""


class LimitCounts:
    """The counts of one node, which it shows as `chelonia_limits_reached`."""

    def __init__(self, now_ms: Callable[[], int] = int) -> None:
        """Args: `now_ms`: monotonic; without it the log has one line of each bound."""
        self.reached: dict[str, int] = {}
        self._now_ms = now_ms
        self._logged: dict[str, tuple[int, int]] = {}

    def met(self, limit: str, who: str, did: str) -> None:
        """The bound called `limit` was reached by `who`; what was done about it."""
        count, now_ms = self.reached.get(limit, 0) + 1, self._now_ms()
        self.reached[limit] = count
        logged_ms, before = self._logged.get(limit, (now_ms - LOG_MS, 0))
        if now_ms - logged_ms >= LOG_MS:
            self._logged[limit] = (now_ms, count)
            silent = count - before - 1
            _LOG.info("limit met limit=%r who=%r done=%r times_since_last_line=%d", limit, who, did, silent)
