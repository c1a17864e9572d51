"""An asyncio event loop on virtual time: it never waits, it jumps to the next timer.

Everything a simulated cluster does is a callback of this loop, so a run is a pure function of its seed. The selector
is a stand-in that knows no sockets: asked to wait, it advances the clock; asked to wait for ever, it reports the
deadlock that this would be.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections import deque
from collections.abc import Coroutine, Mapping
from heapq import heappop
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: the simulated world would stand still for ever."""


class _TimeSelector(selectors.BaseSelector):
    """Advances `now_s` by the time the loop asks to wait; reports no events."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("no task is ready and no timer is set")
        self.now_s += max(timeout, 0.0)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` is virtual seconds since the start of the run."""

    def __init__(self) -> None:
        self._virtual = _TimeSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now_s

    def _write_to_self(self) -> None:
        """There is one thread: nobody has to be woken."""

    def _run_once(self) -> None:
        """Jump to the next timer when nothing is ready, and run all that is: as the base class does, for one thread."""
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        ready: deque[Any] = self._ready  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Deadlock("no task is ready and no timer is set")
            self._virtual.now_s = max(self._virtual.now_s, scheduled[0]._when)
        now_s = self._virtual.now_s
        while scheduled and scheduled[0]._when <= now_s:
            handle = heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a fresh virtual loop, cancel what it left behind, and return its result.

    Garbage is collected afterwards: looking for it meanwhile would cost a fifth of the time.
    """
    loop = VirtualLoop()
    collecting = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        leftovers = asyncio.all_tasks(loop)
        for task in leftovers:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
        if collecting:
            gc.enable()
