"""Work that must not come in a burst: one piece, a moment for all others, then the next."""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """Lets one through, and the next `pause_ms` later, in the order in which they come."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_s = pause_ms / 1000
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._shut = False

    async def through(self) -> bool:
        """Wait until it is one's turn. Returns: whether there was something to wait for."""
        loop = asyncio.get_running_loop()
        if self._shut:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            return True
        self._shut = True
        loop.call_later(self._pause_s, self._next)
        return False

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else who waited was cancelled
                turn.set_result(None)
                asyncio.get_running_loop().call_later(self._pause_s, self._next)
                return
        self._shut = False
