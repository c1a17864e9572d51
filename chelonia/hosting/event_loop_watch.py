"""Measures how late this process runs, which healing yields to; it decides nothing.

A timer fires once the event loop has done all before it and the machine gives the process its turn. Each step of a
user's request waits as long.
"""

from __future__ import annotations

import asyncio
from typing import Final

SAMPLE_S: Final = 0.02
"""Pause between two samples: fifty a second cost next to nothing."""
WEIGHT: Final = 0.1
"""Share of the newest sample in the average, which covers about the last quarter of a second."""


class LoopLag:
    """The average lateness of recent timers. A call returns it in milliseconds; `run` measures."""

    def __init__(self) -> None:
        self._late_ms = 0.0

    def __call__(self) -> float:
        """Return milliseconds."""
        return self._late_ms

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            late_ms = max(0.0, 1000 * (loop.time() - due))
            self._late_ms += WEIGHT * (late_ms - self._late_ms)
