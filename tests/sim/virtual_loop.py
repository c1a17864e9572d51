"""An asyncio event loop on virtual time: it never waits, it jumps to the next timer.

Everything in a simulated cluster is a callback of this loop, so a run is a pure function of its seed. Where nothing is
ready and no timer is set, it raises Deadlock.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import math
import selectors
import sys
from asyncio import Task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")


ENDLESS_S = 3_600.0
"""No scenario takes so much virtual time: in one that does, everything waits for an event that never comes."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set: the simulated world would stop for ever."""


class Endless(RuntimeError):
    """The run goes on after `ends_s`. The loop itself raises it: a test's time limit, raised in a callback, is lost."""


class _NoSockets(selectors.BaseSelector):
    """A selector for the base class, never used."""

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


_Work = tuple[Any, ...]
"""The loop's next call: a context, a callable, its arguments. One tuple is all that a callback costs."""
_NOTHING: Any = object()


class Timer(float):
    """A later call of the loop, as `asyncio.TimerHandle`; its value is the time in virtual seconds. `gone`: it is no
    longer due. `calls`: its callback, where it can be cancelled after its time has come."""

    __slots__ = ("calls", "gone", "work")

    calls: list[Any]
    gone: bool
    work: _Work

    def when(self) -> float:
        return float(self)

    def cancel(self) -> None:
        """Cancel it, and drop its callback."""
        self.gone = True
        self.calls.clear()

    def cancelled(self) -> bool:
        return self.gone


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` is virtual seconds since the start of the run. A simulated second is thousands of callbacks.
    So a ready callback is a tuple, timers compare as the numbers they are, and checks that one thread makes needless
    are left out. Only timers can be cancelled."""

    def __init__(self) -> None:
        self.now_s, self.now_ms, self.ends_s = 0.0, 0, math.inf
        self._due: list[Timer] = []
        self._own = contextvars.Context()
        self.living: set[Task[Any]] = set()
        self.endings: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Work for the end of a run. A failed run skips it, as one failure is enough."""
        super().__init__(_NoSockets())
        self._ready: deque[_Work] = deque()
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.create_task = partial(_plain_task, self)  # type: ignore[method-assign]
        self.get_debug = bool  # type: ignore[method-assign]  # never; called for each future

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s

    def jump(self, now_s: float) -> None:
        self.now_s, self.now_ms = now_s, round(now_s * 1000)

    def call_soon(
        self, callback: Any, argument: Any = _NOTHING, *more: Any, context: contextvars.Context | None = None
    ) -> Any:
        """See `asyncio.AbstractEventLoop`. Returns: nothing to cancel it by."""
        if context is None:
            context = copy_context()
        if argument is _NOTHING:
            self._ready.append((context, callback))
        elif more:
            self._ready.append((context, callback, argument, *more))
        else:
            self._ready.append((context, callback, argument))

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        timer = Timer(when)
        timer.gone, timer.calls = False, [callback, *args]
        timer.work = (copy_context() if context is None else context, _call, timer.calls)
        heappush(self._due, timer)
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def make_tasks_by(self, make_task: Callable[..., Any]) -> None:
        """Have tasks made by `make_task(loop, work, name=None, context=None)`, as in `create_task`."""
        self.create_task = partial(make_task, self)  # type: ignore[method-assign]
        asyncio.create_task = self.create_task

    def next_turn(self, callback: Callable[..., object]) -> None:
        """Call it in the next turn of the loop, outside any context."""
        self._ready.append((self._own, callback))

    async def finished(self, task: asyncio.Future[Any], limit: float) -> bool:
        """Whether `task` ends within `limit` virtual seconds; waits so long: `asyncio.wait` for one."""
        over = self.create_future()
        timer = self.wake_after(limit, over)

        def ended(_: object) -> None:
            timer.gone = True
            _wake(over)

        task.add_done_callback(ended)
        try:
            await over
        finally:
            timer.gone = True
            task.remove_done_callback(ended)
        return task.done()

    async def sleep(self, delay: float) -> None:
        """Let `delay` virtual seconds pass: `asyncio.sleep` on this loop."""
        if delay <= 0:
            return await asyncio.sleep(0)
        future = self.create_future()
        timer = self.wake_after(delay, future)
        try:
            await future
        finally:
            timer.gone = True

    def wake_after(self, delay: float, future: asyncio.Future[None]) -> Timer:
        """A timer for a future with a waiter: fired too late it does nothing."""
        timer = Timer(self.now_s + delay)
        timer.gone = False
        timer.work = (self._own, _wake, future)
        heappush(self._due, timer)
        return timer

    def ring_after(self, delay: float, callback: Callable[[], object]) -> Timer:
        """A timer that calls `callback`, outside any context."""
        timer = Timer(self.now_s + delay)
        timer.gone = False
        timer.work = (self._own, callback)
        heappush(self._due, timer)
        return timer

    def _write_to_self(self) -> None:
        """Do nothing: there is one thread, and none to wake."""

    def _run_once(self) -> None:
        """Until the loop is stopped: run all that is ready, jump to the next timer when nothing is."""
        due, ready, run = self._due, self._ready, contextvars.Context.run
        while True:
            while due and due[0].gone:
                heappop(due)
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                self._pass_time()
            while due and due[0] <= self.now_s:
                ready.append(heappop(due).work)
            for _ in range(len(ready)):
                work = ready.popleft()
                try:
                    run(*work)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"a callback failed: {work[1]}", "exception": error})
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _pass_time(self) -> None:
        """Jump to the next timer. Raises: Deadlock when there is none, Endless."""
        if not self._due:
            raise Deadlock("no task is ready and no timer is set")
        if self._due[0] > self.now_s:
            self.jump(float(self._due[0]))
        if self.now_s > self.ends_s:
            raise Endless(f"not at its end after {self.ends_s:.0f} virtual seconds")


def _call(calls: list[Any]) -> None:
    if calls:
        calls[0](*calls[1:])


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _plain_task(
    loop: VirtualLoop, work: Any, *, name: str | None = None, context: contextvars.Context | None = None
) -> Task[Any]:
    del name  # nobody asks for it
    task: Task[Any] = Task(work, loop=loop, name="", context=context)
    loop.living.add(task)
    task.add_done_callback(loop.living.discard)
    return task


@contextmanager
def _registered(loop: VirtualLoop) -> Iterator[None]:
    """While held, tasks stand in a set of the loop's alone, and `create_task` finds the loop at once. asyncio's own set
    refers weakly to them, which costs more than a callback (since Python 3.14 none is visible)."""
    name = "_all_tasks" if sys.version_info < (3, 12) else "_scheduled_tasks"
    every: Any = getattr(asyncio.tasks, name)
    every.add = loop.living.add
    asyncio.create_task = loop.create_task
    try:
        yield
    finally:
        del every.add
        asyncio.create_task = asyncio.tasks.create_task


def this_loop() -> VirtualLoop:
    """The running loop. Keep it: each call costs as much as a callback."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a fresh virtual loop, cancel what it left behind, and return its result. Garbage is
    collected afterwards, and only this run's. Collecting meanwhile would cost a fifth of the time; looking through
    older objects, a tenth."""
    loop = VirtualLoop()
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        asyncio.set_event_loop(loop)
        with _registered(loop):
            return _run(loop, main)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        del loop
        gc.collect()
        gc.unfreeze()
        if collecting:
            gc.enable()


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a virtual-time loop: sleeping costs nothing."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run


def supplied(
    test: Callable[..., Awaitable[None]], gives: str, play: Callable[..., Coroutine[Any, Any, None]]
) -> Callable[..., None]:
    """`play` on a virtual-time loop as the test `test`. `gives`: `play`'s own argument; pytest sees its other
    parameters."""

    @functools.wraps(test)
    def run(**named: Any) -> None:
        run_virtual(play(**named))

    signature = inspect.signature(test)
    others = [parameter for name, parameter in signature.parameters.items() if name != gives]
    run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    del run.__wrapped__
    return run


def _run(loop: VirtualLoop, main: Coroutine[Any, Any, T]) -> T:
    try:
        result = loop.run_until_complete(main)
        for ending in loop.endings:
            loop.run_until_complete(ending())
        return result
    except BaseException:
        loop.set_exception_handler(lambda _loop, _context: None)  # a run that failed has said why: once is enough
        raise
    finally:
        loop.ends_s = math.inf
        leftovers = list(loop.living)
        for task in leftovers:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
