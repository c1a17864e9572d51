"""Races: a caller sends the same request to several services at once, so that a silent or failing one delays nobody.

The caller begins some, and `many` more after each result of `ended`. It decides whom it asks next, what counts as an
answer and when it has enough. When it leaves, it cancels the rest and does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from chelonia.core.timing.clock import Clock

K = TypeVar("K")
T = TypeVar("T")


def many(*, silent: bool, of_use: bool, at_once: int = 1) -> int:
    """Return how many to begin beside those that run: one for one that failed, `at_once` after a silence."""
    if silent:
        return at_once
    return 0 if of_use else 1


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` in the background for the duration of the `async with` block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()


class Race(Generic[K, T]):
    """The running requests, each with the caller's key `K`. Leave it (`async with`) to cancel those that still run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.running: dict[asyncio.Future[T], K] = {}
        """Those begun that `ended` has not returned, in that order."""
        self._over: asyncio.Future[None] | None = None

    def begin(self, key: K, work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> None:
        """Run `work` too."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        assert task not in self.running, "what is begun runs under one key"
        task.add_done_callback(self._wake)
        self.running[task] = key

    async def ended(self, pause_ms: int | None) -> tuple[K, asyncio.Future[T]] | None:
        """Wait for one to end, at most `pause_ms` (None: for ever), and remove it from `running`.

        Returns: the first begun of those that have ended; None: all were silent for so long.
        """
        assert self.running or pause_ms is not None, "nobody is waited for for ever"
        done = next((task for task in self.running if task.done()), None)
        if done is None:
            await self._wait(pause_ms)
            done = next((task for task in self.running if task.done()), None)
        return (self.running.pop(done), done) if done is not None else None

    async def _wait(self, pause_ms: int | None) -> None:
        assert self._over is None, "whoever began them waits for them, and nobody else"
        over = self._over = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(pause_ms, self._wake) if pause_ms is not None else None
        try:
            await over
        finally:
            self._over = None
            if timer is not None:
                timer.cancel()

    def _wake(self, _: object = None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def __aenter__(self) -> Race[K, T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.running:
            task.cancel()
