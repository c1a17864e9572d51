"""The executor on real threads: one for the writer, a few for readers.

Reads handed over in one turn of the event loop travel to a reader together and come back together, so that a thread
hop is paid per turn and not per read. Results return through `call_soon_threadsafe`, once per group.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

READ_GROUP_MAX: Final = 64
"""Reads that travel together: more readers share a long queue."""
READERS: Final = 2
"""Reader threads: short reads do not scale over threads, a second one passes a long scan."""


@dataclass(slots=True)
class _Work:
    """Work, its future, and what came of it."""

    run: Callable[[], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


_Group = list[_Work]


class ThreadExecutor:
    """An `Executor` over threads. Make it inside the running event loop that will await its futures."""

    def __init__(self, readers: int = READERS) -> None:
        self._loop = asyncio.get_running_loop()
        self._writes: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._gathered: _Group = []
        self._threads = [_start("ahash-committer", self._loop, self._writes)]
        self._threads += [_start(f"ahash-reader-{n}", self._loop, self._reads) for n in range(readers)]

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the committer thread, after all write work handed over before."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._writes.put([_Work(work, future)])
        return future

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on a reader thread, together with the other reads of this turn of the loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._gathered:
            self._loop.call_soon(self._send_reads)
        self._gathered.append(_Work(work, future))
        return future

    async def close(self) -> None:
        """Finish what was handed over and join the threads."""
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


def _start(name: str, loop: asyncio.AbstractEventLoop, work: queue.SimpleQueue[_Group | None]) -> threading.Thread:
    thread = threading.Thread(target=_serve, args=(loop, work), name=name, daemon=True)
    thread.start()
    return thread


def _serve(loop: asyncio.AbstractEventLoop, work: queue.SimpleQueue[_Group | None]) -> None:
    while (group := work.get()) is not None:
        for item in group:
            try:
                item.result = item.run()
            except BaseException as error:  # noqa: BLE001 - raised again where the future is awaited
                item.error = error
        loop.call_soon_threadsafe(_deliver, group)


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
