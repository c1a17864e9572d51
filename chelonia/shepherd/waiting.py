"""Tasks that end with the code that started them, or outlive it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from chelonia.core.errors import CheloniaError

log = logging.getLogger(__name__)
T = TypeVar("T")


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
