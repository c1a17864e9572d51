"""Time and randomness as they really are: the only place, beside the simulator, that implements `core.clock`."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import Callable
from time import CLOCK_BOOTTIME, clock_gettime_ns

from chelonia.core.ids import Ms
from chelonia.core.timing.clock import Timer


class SystemClock:
    """A `Clock`: the machine's clocks."""

    def now_ms(self) -> Ms:
        return Ms(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> Ms:
        """Return ms that never go back, and go on while the host sleeps: no lease outlives a suspension."""
        return Ms(clock_gettime_ns(CLOCK_BOOTTIME) // 1_000_000)

    async def sleep(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(duration_ms / 1000, callback)


class SystemIds:
    """`Ids` from the operating system's source; choices that need no secrecy come from a quicker one."""

    def __init__(self) -> None:
        self._random = random.Random()  # jitter and placement; seeded by the system

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def token(self, n_bytes: int) -> bytes:
        return secrets.token_bytes(n_bytes)

    def uniform(self) -> float:
        return self._random.random()
