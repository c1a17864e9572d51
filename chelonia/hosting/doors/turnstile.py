"""Work that must not come in a burst: one piece, a moment for all others, then the next."""

from __future__ import annotations

import asyncio


class Turnstile:
    """Lets one through, and the next `pause_ms` later. Owners take turns, each with his in the order of their coming:
    however many one has waiting, another waits for one of his at most in each round."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_s = pause_ms / 1000
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._shut = False

    async def through(self, owner: str) -> bool:
        """Wait until it is this owner's turn. Returns: whether there was something to wait for."""
        loop = asyncio.get_running_loop()
        if self._shut:
            turn = loop.create_future()
            self._waiting.setdefault(owner, {})[turn] = None
            try:
                await turn
            except asyncio.CancelledError:
                self._forget(owner, turn)
                raise
            return True
        self._shut = True
        loop.call_later(self._pause_s, self._next)
        return False

    def _next(self) -> None:
        if not self._waiting:
            self._shut = False
            return
        asyncio.get_running_loop().call_later(self._pause_s, self._next)
        owner = next(iter(self._waiting))
        others = self._waiting.pop(owner)
        turn = next(iter(others))
        del others[turn]
        if others:
            self._waiting[owner] = others
        if not turn.done():  # else who waited is cancelled in this very turn of the loop
            turn.set_result(None)

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(owner, {})
        waiting.pop(turn, None)
        if not waiting:
            self._waiting.pop(owner, None)
