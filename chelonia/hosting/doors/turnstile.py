"""Work that must not come in a burst: one piece, a moment for all else, then the next."""

from __future__ import annotations

import asyncio


class Turnstile:
    """Lets one through, and the next `pause_ms` later. Owners take turns: in each round one of each passes, in the
    order of arrival, however many an owner has waiting."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_s = pause_ms / 1000
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._shut = False

    async def through(self, owner: str) -> bool:
        """Wait for this owner's turn; return whether it had to wait."""
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
        if not turn.done():  # else its waiter was cancelled in this very turn of the loop
            turn.set_result(None)

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(owner, {})
        waiting.pop(turn, None)
        if not waiting:
            self._waiting.pop(owner, None)
