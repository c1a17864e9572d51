"""Threads for heavy or blocking pure functions: hashlib and zlib release the interpreter lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ThreadWorker:
    """A `Worker` on a small pool of threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, fn: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, fn)

    def close(self) -> None:
        """Finish running functions, drop waiting ones, stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
