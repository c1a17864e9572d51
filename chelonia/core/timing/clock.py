"""Ports to time and randomness, which only `hosting` and the simulator implement. Waits with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms

T = TypeVar("T")
LAST_S: Final = 253_402_300_799
"""The last second that the calendar has: of the year 9999."""


def stamp(ms: int) -> str:
    """Return an instant (wall-clock milliseconds) in UTC, `-` for 0. One beyond the calendar is shown as its end."""
    return datetime.fromtimestamp(min(ms // 1000, LAST_S), UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ms else "-"


@lru_cache(maxsize=1024)  # one answer has mostly instants of the same minutes
def iso_second(seconds: int) -> str:
    """Return an instant (Unix seconds) as ISO 8601 in UTC, without the final `Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Timer(Protocol):
    """A callback that a clock is to call later."""

    def cancel(self) -> None:
        """Do not call it any more. Without effect once it has been called."""


class Clock(Protocol):
    """Time as a service sees it."""

    def now_ms(self) -> Ms:
        """Return wall-clock milliseconds since the Unix epoch: for records and tickets. May step."""

    def monotonic_ms(self) -> Ms:
        """Return milliseconds that never go back: for leases, intervals and deadlines within this process."""

    async def sleep(self, duration_ms: int) -> None:
        """Return after `duration_ms` milliseconds."""

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> Timer:
        """Call `callback` after `duration_ms` milliseconds, in the event loop: a deadline that costs no task."""


class Ids(Protocol):
    """Source of fresh identifiers and of random choices."""

    def uuid(self) -> str:
        """Return a fresh random UUID (version 4, lower case)."""

    def token(self, n_bytes: int) -> bytes:
        """Return `n_bytes` unpredictable bytes, for secrets and nonces."""

    def uniform(self) -> float:
        """Return a number in [0, 1), for jitter and placement."""


async def done_within(clock: Clock, task: asyncio.Future[Any], limit_ms: int) -> bool:
    """Wait for `task` at most `limit_ms` and return whether it is done. Neither cancels it nor takes its result."""
    if task.done():
        return True
    over = asyncio.get_running_loop().create_future()

    def ended(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(limit_ms, ended)
    task.add_done_callback(ended)
    try:
        await over
    finally:
        timer.cancel()
        task.remove_done_callback(ended)
    return task.done()


async def within(clock: Clock, duration_ms: int, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` for at most `duration_ms` milliseconds, then cancel it. Raises: TIMEOUT, and what `work` raises."""
    task = asyncio.create_task(work)
    try:
        if await done_within(clock, task, duration_ms):
            return task.result()
        raise CheloniaError(Kind.TIMEOUT, cause=f"no answer in {duration_ms} ms")
    finally:
        task.cancel()
        del task  # it holds an error that holds this frame


async def ended_within(clock: Clock, limit_ms: int, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` as `within` does, but interrupt the current task, which must do nothing else, and wait for `work` to
    end then. Raises: TIMEOUT, and what `work` raises."""
    task, ended = asyncio.current_task(), False
    assert task is not None, "a task asks"

    def end() -> None:
        nonlocal ended
        ended = task.cancel()

    timer = clock.call_later(limit_ms, end)
    try:
        return await work
    except asyncio.CancelledError:
        if ended and not task.uncancel():
            raise CheloniaError(Kind.TIMEOUT, cause=f"no answer in {limit_ms} ms") from None
        raise
    finally:
        timer.cancel()
