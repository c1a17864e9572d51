"""The executor on real threads: one for the writer, a few for readers.

Reads of one turn of the event loop go to a reader and come back together: a thread hop costs per turn, not per read.
Results return in one order with all else that threads hand back.
A search that comes to an empty page loops in Berkeley DB for ever and raises nothing. So a watch looks at the threads,
the event loop's too: one that uses CPU for `ROUND_S` on one piece of work loops.
"""

from __future__ import annotations

import asyncio
import queue
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOOK_S: Final = 1.0
"""Between two looks at the threads."""
ROUND_S: Final = 30.0
"""CPU seconds for one piece of work after which it loops. The longest batch, 256 deletions with a thousand properties
each, takes 3.3; waiting for a disk or the processor takes none."""
REPLICATION_ROUND_S: Final = 300.0
"""The same for the thread that replicates: a rollback, or opening its store again, reads all of a long log."""
THREADS_CPU: Final = 6
"""Kind of the clock that counts a thread's CPU: `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` of the kernel."""
READ_GROUP_MAX: Final = 64
"""Reads that travel together: the readers share a longer queue."""
READERS: Final = 2
"""Reader threads: short reads do not scale over threads, but a second one passes a long scan."""


@dataclass(slots=True)
class _QueuedWork:
    run: Callable[[], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


_Group = list[_QueuedWork]


class _WayBack:
    """Calls that threads hand to the event loop, in one order; one wake-up takes all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._own = threading.get_ident()
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken = False

    def put(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """Have `work` called on the loop. On any thread."""
        self._waiting.append(work)
        if self._woken:  # read after the append, and cleared before the work is taken
            return
        on_loop = threading.get_ident() == self._own  # the loop's own thread: it needs no wake-up
        if at_once or on_loop:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody is left to call
                (self._loop.call_soon if on_loop else self._loop.call_soon_threadsafe)(self.take)

    def take(self) -> None:
        """Call all work that waits. On the loop."""
        self._woken = False
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            if self._waiting:  # one of them failed, which the loop logs; the others go on
                self._loop.call_soon(self.take)


class ThreadExecutor:
    """An `Executor` over threads. Make it inside the running event loop that will await its futures.

    Args: `goes_round`: called with the name of a thread that loops, on another thread; an orderly end would wait for
    it. None: there is no watch.
    """

    def __init__(self, readers: int = READERS, goes_round: Callable[[str], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._back = _WayBack(self._loop)
        self._writes: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._gathered: _Group = []
        self._blocks = 0
        self._turns = AtWork(threading.current_thread())
        self._workers = [_start("ahash-committer", self._writes, self._back)]
        self._workers += [_start(f"ahash-reader-{n}", self._reads, self._back) for n in range(readers)]
        self._watched = [self._turns, *self._workers]
        self._apart: set[Future[Any]] = set()
        self._closed = threading.Event()
        if goes_round is not None:
            threading.Thread(target=self._watch, args=(goes_round,), name="ahash-watch", daemon=True).start()

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the committer thread, after all earlier write work."""
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
        """Return whether the kernel had to read a disk for the calling thread since the last call."""
        before, self._blocks = self._blocks, resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        return self._blocks > before

    async def close(self) -> None:
        self._send_reads()
        self._writes.put(None)
        for _ in self._workers[1:]:
            self._reads.put(None)
        workers, self._workers = self._workers, []
        await self._loop.run_in_executor(None, _join, [each.thread for each in workers])
        await self._loop.run_in_executor(None, wait, tuple(self._apart))
        self._closed.set()

    def _send_reads(self) -> None:
        gathered, self._gathered = self._gathered, []
        for start in range(0, len(gathered), READ_GROUP_MAX):
            self._reads.put(gathered[start : start + READ_GROUP_MAX])

    def watch(self, other: AtWork) -> None:
        """Watch another thread as well."""
        self._watched.append(other)

    async def run_apart(self, work: Callable[[], T]) -> T:
        executor = ThreadPoolExecutor(1, "ahash-apart")
        running = executor.submit(work)
        executor.shutdown(wait=False)
        self._apart.add(running)
        running.add_done_callback(self._apart.discard)
        return await asyncio.wrap_future(running)

    async def run_watched(self, work: Callable[[Callable[[], None]], T], long_s: float) -> T:
        """Run `work` apart, and watched.

        Args: `work` gets a function to call at each piece of it; `long_s`: CPU seconds that a piece may use.
        """

        def run() -> T:
            own = AtWork(threading.current_thread(), long_s)
            self._watched.append(own)
            try:
                return work(own.begins)
            finally:
                self._watched.remove(own)

        return await self.run_apart(run)

    def _watch(self, goes_round: Callable[[str], None]) -> None:
        while not self._closed.wait(LOOK_S):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._turns.begins)
            for each in self._watched:
                if each.goes_round():
                    return goes_round(each.thread.name)


class AtWork:
    """A thread, and how many pieces of work it has begun. `long_s`: CPU seconds for one; 0: `ROUND_S`."""

    def __init__(self, thread: threading.Thread, long_s: float = 0.0) -> None:
        self.thread, self._long_s = thread, long_s
        self._started, self._seen, self._cpu_s = 0, -1, 0.0

    def begins(self) -> None:
        """Note that the thread takes its next piece."""
        self._started += 1

    def goes_round(self) -> bool:
        """Return whether it has used too much CPU since a call first saw it at its present piece."""
        try:
            cpu_s = time.clock_gettime((~(self.thread.native_id or 0) << 3) | THREADS_CPU)
        except OSError:  # it has ended
            return False
        if self._started != self._seen:
            self._seen, self._cpu_s = self._started, cpu_s
        return cpu_s - self._cpu_s > (self._long_s or ROUND_S)


def _start(name: str, work: queue.SimpleQueue[_Group | None], back: _WayBack) -> AtWork:
    thread = threading.Thread(target=lambda: _serve(work, back, own), name=name, daemon=True)
    own = AtWork(thread)
    thread.start()
    return own


def _serve(work: queue.SimpleQueue[_Group | None], back: _WayBack, own: AtWork) -> None:
    while (group := work.get()) is not None:
        for item in group:
            own.begins()
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
