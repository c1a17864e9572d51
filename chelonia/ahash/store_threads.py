"""The executor on real threads: one for the writer, a few for readers.

Reads handed over in one turn of the event loop travel to a reader together and come back together, so that a thread
hop is paid per turn and not per read. Results return in one order with all else that threads hand back.
"""

from __future__ import annotations

import asyncio
import queue
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from chelonia.ahash.store_waking import Inbox, LoopInbox

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
        self._back = LoopInbox()
        self._writes: Inbox[_Group | None] = Inbox()
        self._reads: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._gathered: _Group = []
        self._blocks = 0
        self._threads = [_start("ahash-committer", self._writes.get, self._back)]
        self._threads += [_start(f"ahash-reader-{n}", self._reads.get, self._back) for n in range(readers)]

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

    def hand_back(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """See `Executor.hand_back`."""
        self._back.put(work, at_once=at_once)

    def waited(self) -> bool:
        """Whether the kernel had to read a disk for the thread that asks."""
        before, self._blocks = self._blocks, resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        return self._blocks > before

    async def close(self) -> None:
        """Finish what was handed over and join the threads."""
        self._send_reads()
        self._writes.put(None)
        for _ in self._threads[1:]:
            self._reads.put(None)
        threads, self._threads = self._threads, []
        await self._loop.run_in_executor(None, _join, threads)
        if threads:
            self._back.close()

    def _send_reads(self) -> None:
        gathered, self._gathered = self._gathered, []
        for start in range(0, len(gathered), READ_GROUP_MAX):
            self._reads.put(gathered[start : start + READ_GROUP_MAX])


def _start(name: str, take: Callable[[], _Group | None], back: LoopInbox) -> threading.Thread:
    thread = threading.Thread(target=_serve, args=(take, back), name=name, daemon=True)
    thread.start()
    return thread


def _serve(take: Callable[[], _Group | None], back: LoopInbox) -> None:
    while (group := take()) is not None:
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
