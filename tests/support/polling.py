"""Wait for a state by looking at it until a deadline, never by sleeping and hoping.

`poll` is for synchronous tests (processes, files, HTTP through a synchronous client); `poll_async` for those in an
event loop, under real or virtual time. Both return the awaited state; their failures name the last one seen.
"""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

INTERVAL_S = 0.02
DEADLINE_S = 30.0
"""Enough for a state that takes a second or two, on a machine ten times as slow; only a vain wait takes so long."""

PATIENCE_MAX = 8.0
"""Even at a very high load, a state that is late by this factor is not coming."""


def patience() -> float:
    """How many times longer than on an idle machine work may take now, by the processes for each processor."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), PATIENCE_MAX)


class NotReached(AssertionError):
    """The state waited for did not come before the deadline."""


def poll(
    until: Callable[[], T],
    deadline: float = DEADLINE_S,
    *,
    interval: float = INTERVAL_S,
    tolerate: type[BaseException] | tuple[type[BaseException], ...] = (),
    what: str = "",
) -> T:
    """Call `until` until it answers something true, and return that.

    Args:
        until: Looks at the state; a falsy answer means "not yet".
        deadline: Seconds from now after which waiting fails.
        interval: Seconds between two looks.
        tolerate: Exceptions of `until` that mean "not yet" (a refused connection, a missing file).
        what: The state waited for, in words, for the failure message.

    Raises:
        NotReached: when the deadline has passed; names the last answer or the last tolerated exception.
    """
    begun = time.monotonic()
    while True:
        try:
            last: object = None
            if answer := until():
                return answer
            last = answer
        except tolerate as error:
            last = error
        waited = time.monotonic() - begun
        if waited >= deadline and waited >= deadline * patience():
            raise NotReached(_describe(until, deadline, what, last)) from (
                last if isinstance(last, BaseException) else None
            )
        time.sleep(interval)


async def poll_async(
    until: Callable[[], T | Awaitable[T]],
    deadline: float = DEADLINE_S,
    *,
    interval: float = INTERVAL_S,
    tolerate: type[BaseException] | tuple[type[BaseException], ...] = (),
    what: str = "",
) -> T:
    """Do as `poll` does inside an event loop, on the loop's own clock; `until` may be a coroutine function."""
    clock = asyncio.get_running_loop().time
    begun, real = clock(), abs(clock() - time.monotonic()) < 1
    while True:
        try:
            last: object = None
            answer = until()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer:
                return answer
            last = answer
        except tolerate as error:
            last = error
        waited = clock() - begun
        if waited >= deadline and (not real or waited >= deadline * patience()):
            raise NotReached(_describe(until, deadline, what, last)) from (
                last if isinstance(last, BaseException) else None
            )
        await asyncio.sleep(interval)


def _describe(until: Callable[..., object], deadline: float, what: str, last: object) -> str:
    goal = what or getattr(until, "__qualname__", repr(until))
    return f"not reached within {deadline:g} s: {goal}; last seen: {last!r}"
