"""Waiting with a deadline on the injected clock, on asyncio primitives only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from chelonia.core.errors import CheloniaError
from chelonia.core.timing.clock import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")


async def wake_or_sleep(clock: Clock, wake: asyncio.Event, limit_ms: int) -> None:
    """Return when `wake` is set or after `limit_ms`, which sets it; it is cleared. Nobody else waits for it."""
    timer = clock.call_later(limit_ms, wake.set)
    try:
        await wake.wait()
    finally:
        timer.cancel()
    wake.clear()


async def settled(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait until it has ended, however it ends."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # looked at, so that nobody warns about it


class Background:
    """Tasks that outlive the request that started them; cancelled together at stop."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` to its end even if the caller goes away."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks):
            await settled(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, CheloniaError):
            log.error("background work failed", exc_info=error)


async def run_together(*loops: Awaitable[None]) -> None:
    """Run endless loops until one fails or this is cancelled; then end the others."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            await settled(task)
