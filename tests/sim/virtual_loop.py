"""An asyncio event loop on virtual time: it never waits, it jumps to the next timer.

Everything a simulated cluster does is a callback of this loop, so a run is a pure function of its seed. Where nothing
is ready and no timer is set it reports the deadlock that this would be.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import selectors
from collections.abc import Coroutine, Mapping
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


ENDLESS_S = 3_600.0
"""No scenario takes so much virtual time: in one that does, everybody waits for what will not come."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: the simulated world would stand still for ever."""


class Endless(RuntimeError):
    """The run goes on after `ends_s`. The loop itself says so: a test's time limit, raised in a callback, is lost."""


class _NoSockets(selectors.BaseSelector):
    """Stands where the base class wants a selector; nobody asks it anything."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise AssertionError("the loop runs by itself")

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class _Ready(partial[object]):
    """What the loop does next, as `asyncio.Handle`: called, it does it."""

    gone = False

    def cancel(self) -> None:
        """Not to be done any more."""
        self.gone = True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.gone


_NOTHING = _Ready(int)


class _Timer(float):
    """What the loop does later, as `asyncio.TimerHandle`; its value is when, in virtual seconds."""

    __slots__ = ("gone", "work")

    gone: bool
    work: _Ready

    def when(self) -> float:
        """Virtual seconds."""
        return float(self)

    def cancel(self) -> None:
        """Not to be done any more; what it would have done is let go."""
        self.gone = self.work.gone = True
        self.work = _NOTHING

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.gone


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` is virtual seconds since the start of the run.

    A simulated second is thousands of callbacks: handles and timers are as light as can be, timers are compared as the
    numbers they are, and nothing is asked of them that one thread makes certain.
    """

    def __init__(self) -> None:
        self.now_s, self.ends_s = 0.0, math.inf
        self._due: list[_Timer] = []
        super().__init__(_NoSockets())

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        ready = _Ready((contextvars.copy_context() if context is None else context).run, callback, *args)
        self._ready.append(ready)  # type: ignore[attr-defined]
        return ready

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        timer = _Timer(when)
        timer.gone = False
        timer.work = _Ready((contextvars.copy_context() if context is None else context).run, callback, *args)
        heappush(self._due, timer)
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    async def finished(self, task: asyncio.Future[Any], limit: float) -> bool:
        """Whether `task` ends within `limit` virtual seconds; waits so long: `asyncio.wait` for one."""
        over = self.create_future()
        timer = self.call_later(limit, _wake, over)

        def ended(_: object) -> None:
            timer.cancel()
            _wake(over)

        task.add_done_callback(ended)
        try:
            await over
        finally:
            timer.cancel()
            task.remove_done_callback(ended)
        return task.done()

    async def sleep(self, delay: float) -> None:
        """Let `delay` virtual seconds pass: `asyncio.sleep` on this loop."""
        if delay <= 0:
            return await asyncio.sleep(0)
        future = self.create_future()
        timer = self.call_later(delay, _wake, future)
        try:
            await future
        finally:
            timer.cancel()

    def _write_to_self(self) -> None:
        """There is one thread: nobody has to be woken."""

    def _run_once(self) -> None:
        """Until the loop is stopped: run all that is ready, jump to the next timer when nothing is."""
        due, ready = self._due, self._ready  # type: ignore[attr-defined]
        while True:
            while due and due[0].gone:
                heappop(due)
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                if not due:
                    raise Deadlock("no task is ready and no timer is set")
                self.now_s = max(self.now_s, due[0])
                if self.now_s > self.ends_s:
                    raise Endless(f"not at its end after {self.ends_s:.0f} virtual seconds")
            while due and due[0] <= self.now_s:
                ready.append(heappop(due).work)
            for _ in range(len(ready)):
                work = ready.popleft()
                if work.gone:
                    continue
                try:
                    work()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"a callback failed: {work}", "exception": error})
            if self._stopping:  # type: ignore[attr-defined]
                return


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def this_loop() -> VirtualLoop:
    """The loop that runs. What keeps it need not ask again: asking costs as much as a callback."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a fresh virtual loop, cancel what it left behind, and return its result.

    Garbage is collected afterwards, and only this run's: looking for it meanwhile would cost a fifth of the time, and
    looking through all that was there before a tenth.
    """
    loop = VirtualLoop()
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        loop.ends_s = math.inf
        leftovers = asyncio.all_tasks(loop)
        for task in leftovers:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
        del loop, leftovers
        gc.collect()
        gc.unfreeze()
        if collecting:
            gc.enable()
