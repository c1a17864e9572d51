"""Writes down that a limit was met: counted each time, logged at most every few seconds, however many meet it.

An attack meets a limit thousands of times a minute; the log says how often without filling the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("chelonia.limits")

LOG_MS: Final = 10_000
"""Between two lines about the same limit."""


class LimitNotes:
    """The limits met at the doors of one node. `count`: told the name of each limit that is met."""

    def __init__(
        self, count: Callable[[str], None] = lambda limit: None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._now_s = now_s
        self._met: dict[str, tuple[float, int]] = {}

    def met(self, limit: str, who: str, did: str) -> None:
        """Note that `who` met `limit`, and what was done about it."""
        self._count(limit)
        now_s = self._now_s()
        logged_s, silent = self._met.get(limit, (-LOG_MS, 0))
        if (now_s - logged_s) * 1000 < LOG_MS:
            self._met[limit] = (logged_s, silent + 1)
            return
        self._met[limit] = (now_s, 0)
        log.info("limit met limit=%r who=%r done=%r times_since_last_line=%d", limit, who, did, silent)
