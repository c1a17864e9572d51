"""How late this process runs: what healing yields to. Measured, not decided, here.

A timer that should ring now rings when everything before it in the event loop has been done, and when the machine has
given the process its turn: what a user's request waits as well, at each of its steps.
"""

from __future__ import annotations

import asyncio
from typing import Final

SAMPLE_S: Final = 0.02
"""Pause between two samples: some fifty a second cost nothing."""
WEIGHT: Final = 0.1
"""Of the newest sample in the average: what counts is about the last quarter of a second."""


class Strain:
    """Call it for the milliseconds by which timers lately were late, on average; `run` keeps it measuring."""

    def __init__(self) -> None:
        self._late_ms = 0.0

    def __call__(self) -> float:
        """Milliseconds."""
        return self._late_ms

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            late_ms = max(0.0, 1000 * (loop.time() - due))
            self._late_ms += WEIGHT * (late_ms - self._late_ms)
