"""The executor on real threads: one for the writer, a few for readers.

Reads handed over in one turn of the event loop travel to a reader together and come back together, so that a thread
hop is paid per turn and not per read. Results return in one order with all else that threads hand back.
"""

from __future__ import annotations

import asyncio
import queue
import resource
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

READ_GROUP_MAX: Final = 64
"""Reads that travel together: more readers share a long queue."""
READERS: Final = 2
"""Reader threads: short reads do not scale over threads, a second one passes a long scan."""


@dataclass(slots=True)
class _QueuedWork:
    """Work, its future, and what came of it."""

    run: Callable[[], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


_Group = list[_QueuedWork]


class _WayBack:
    """What threads tell the event loop, in one order; a wake-up takes along all that waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._own = threading.get_ident()
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken = False

    def put(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """On any thread: have `work` called on the loop."""
        self._waiting.append(work)
        if self._woken:  # looked at after the append, cleared before the work is taken
            return
        here = threading.get_ident() == self._own  # the loop's own thread: it needs no bell
        if at_once or here:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self.take)

    def take(self) -> None:
        """On the loop: call what waits."""
        self._woken = False
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            if self._waiting:  # one of them failed, which the loop tells; the others go on
                self._loop.call_soon(self.take)


class ThreadExecutor:
    """An `Executor` over threads. Make it inside the running event loop that will await its futures."""

    def __init__(self, readers: int = READERS) -> None:
        self._loop = asyncio.get_running_loop()
        self._back = _WayBack(self._loop)
        self._writes: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._gathered: _Group = []
        self._blocks = 0
        self._threads = [_start("ahash-committer", self._writes, self._back)]
        self._threads += [_start(f"ahash-reader-{n}", self._reads, self._back) for n in range(readers)]

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the committer thread, after all write work handed over before."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._writes.put([_QueuedWork(work, future)])
        return future

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on a reader thread, together with the other reads of this turn of the loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._gathered:
            self._loop.call_soon(self._send_reads)
        self._gathered.append(_QueuedWork(work, future))
        return future

    def hand_back(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        self._back.put(work, at_once=at_once)

    def catch_up(self) -> None:
        self._back.take()

    def waited(self) -> bool:
        """Whether the kernel had to read a disk for the thread that asks."""
        before, self._blocks = self._blocks, resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        return self._blocks > before

    async def close(self) -> None:
        self._send_reads()
        self._writes.put(None)
        for _ in self._threads[1:]:
            self._reads.put(None)
        threads, self._threads = self._threads, []
        await self._loop.run_in_executor(None, _join, threads)

    def _send_reads(self) -> None:
        gathered, self._gathered = self._gathered, []
        for start in range(0, len(gathered), READ_GROUP_MAX):
            self._reads.put(gathered[start : start + READ_GROUP_MAX])


def _start(name: str, work: queue.SimpleQueue[_Group | None], back: _WayBack) -> threading.Thread:
    thread = threading.Thread(target=_serve, args=(work, back), name=name, daemon=True)
    thread.start()
    return thread


def _serve(work: queue.SimpleQueue[_Group | None], back: _WayBack) -> None:
    while (group := work.get()) is not None:
        for item in group:
            try:
                item.result = item.run()
            except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
                item.error = error
        back.put(partial(_deliver, group))


def _deliver(group: _Group) -> None:
    for item in group:
        if item.future.done():
            continue
        if item.error is not None:
            item.future.set_exception(item.error)
        else:
            item.future.set_result(item.result)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
