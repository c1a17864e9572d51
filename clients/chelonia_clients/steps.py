"""Many small jobs at a time, their results in the order in which the jobs were given."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec

from chelonia.core.errors import CheloniaError

PARALLEL = 6
"""Files moved at a time: enough to hide the latency of small ones."""
AHEAD = 8
"""Results that wait for their turn, for each file moved at a time."""


class TransferResult(msgspec.Struct, frozen=True):
    """The result for one name.

    Args:
        type: file, collection or mountpoint.
        note: why it was skipped; error: why it failed.
        same: it was there already; over: another file was there.
        remark: a note of the cluster to the user.
    """

    type: str
    source: str
    target: str
    size: int = 0
    note: str = ""
    error: CheloniaError | None = None
    same: bool = False
    over: bool = False
    remark: str = ""


Job = Callable[[], Awaitable[TransferResult]]


def known(done: TransferResult) -> Job:
    """Return a job whose result is known."""

    async def job() -> TransferResult:
        return done

    return job


async def in_order(jobs: AsyncGenerator[Job, None], parallel: int) -> AsyncGenerator[TransferResult, None]:
    """Run jobs, at most `parallel` at a time, and yield their results in the order of the jobs."""
    gate = asyncio.Semaphore(parallel)
    waiting: deque[asyncio.Task[TransferResult]] = deque()

    async def run(job: Job) -> TransferResult:
        async with gate:
            return await job()

    try:
        async with aclosing(jobs):
            async for job in jobs:
                waiting.append(asyncio.create_task(run(job)))
                while waiting and (waiting[0].done() or len(waiting) > AHEAD * parallel):
                    yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
