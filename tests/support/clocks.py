"""Clocks for tests, of which none waits in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chelonia.core.ids import Ms

EPOCH_MS = 1_700_000_000_000


class VirtualClock:
    """Time of the running (virtual) loop. A test may step its wall clock, and let time pass in which nothing runs."""

    def __init__(self) -> None:
        self.step_ms = self.stood_still_ms = 0

    def now_ms(self) -> Ms:
        return Ms(EPOCH_MS + self.step_ms + self.monotonic_ms())

    def monotonic_ms(self) -> Ms:
        return Ms(round(asyncio.get_running_loop().time() * 1000) + self.stood_still_ms)

    async def sleep(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(duration_ms / 1000, callback)


class QuickClock:
    """A clock that moves when a test sets it or sleeps on it: sleeps take no real time."""

    def __init__(self, ms: int = 1_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> Ms:
        return Ms(self.ms)

    def monotonic_ms(self) -> Ms:
        return Ms(self.ms)

    async def sleep(self, duration_ms: int) -> None:
        self.ms += duration_ms
        await asyncio.sleep(0)

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        def due() -> None:
            self.ms += duration_ms
            callback()

        return asyncio.get_running_loop().call_later(0, due)
