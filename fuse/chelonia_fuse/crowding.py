"""Joint commits while several threads make files, as a call of many costs little more than a call of one.

The kernel lets one thread at a time make a name in a directory, so without a wait their commits would come singly.
Decides how many go together: as many as were on their way when a file was last made. A lone commit never waits. None
waits where no file was made a moment ago, nor much longer than commits take.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

ENOUGH: Final = 8
"""Commits that do not wait for more: half of a call, so that the threads behind them make files meanwhile."""
PATIENCE: Final = 3
"""Longest wait for others, in durations of the last commit, which reflect the machine's load."""
WAIT_S_MAX: Final = 0.5
"""Limit of that wait; a commit waits not at all where no file was made in that time."""


@dataclass(slots=True)
class CommitCrowd:
    """The commits of one mount that are on their way, and those of them that wait for others."""

    _commits: int = 0
    _together: int = 0
    _made_s: float = 0.0
    _wait_s: float = 0.0
    _waiting: int = 0
    _begin: asyncio.Future[None] | None = None

    def makes(self) -> None:
        """Note that a file is being made."""
        self._together, self._made_s = min(self._commits, ENOUGH), time.monotonic()

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Hold during a commit, which begins in one step with those that it waited for."""
        self._commits += 1
        try:
            await self._others()
            began_s = time.monotonic()
            yield
            self._wait_s = min(PATIENCE * (time.monotonic() - began_s), WAIT_S_MAX)
        finally:
            self._commits -= 1

    async def _others(self) -> None:
        if self._together < 2 or time.monotonic() - self._made_s > self._wait_s:
            return
        loop = asyncio.get_running_loop()
        if self._begin is None:
            self._begin, self._waiting = loop.create_future(), 0
            loop.call_later(self._wait_s, self._release, self._begin)
        begin = self._begin
        self._waiting += 1
        if self._waiting >= self._together:
            loop.call_soon(self._release, begin)  # not at once: else this one would go before those that it wakes
        await asyncio.wait([begin])

    def _release(self, begin: asyncio.Future[None]) -> None:
        if self._begin is begin:
            self._begin = None
            begin.set_result(None)
