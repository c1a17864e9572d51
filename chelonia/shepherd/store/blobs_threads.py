"""The threads that call a Shepherd's disk, and how long the disk has let them wait.

A disk that hangs answers no call, for minutes or for good, and blocks its threads. So each call is timed from where its
thread takes it. A caller that only checks whether the disk is there waits at most `still_ms`, and not at all while
another call has waited that long. All other callers wait: their work may still be done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from chelonia.core.errors import CheloniaError, Kind

T = TypeVar("T")

LOOK_S: Final = 0.25
"""Pause between two looks whether the disk answers."""


class DiskThreads:
    """A pool of threads. `still_ms`: how long a call may wait before the disk counts as not answering."""

    def __init__(self, threads: int, still_ms: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="blobs")
        self._still_s = still_ms / 1000
        self._since: dict[int, float] = {}
        """Start of the call that each busy thread makes, by thread (monotonic s)."""

    def close(self) -> None:
        """Wait for running calls."""
        self._pool.shutdown(wait=True)

    def run(self, fn: Callable[[], T], *, long: bool = False) -> asyncio.Future[T]:
        """Run `fn` in a thread. `long`: it makes very many calls to the disk, and is not timed."""
        return asyncio.get_running_loop().run_in_executor(self._pool, fn if long else lambda: self._timed(fn))

    async def answered(self, fn: Callable[[], T]) -> T:
        """Return `fn()`, waiting only while the disk answers. Raises: UNAVAILABLE when it does not; errors of `fn`."""
        self._require_answers()
        call = self.run(fn)
        try:
            while not (await asyncio.wait((call,), timeout=LOOK_S))[0]:
                self._require_answers()
            return call.result()
        finally:
            call.cancel()
            call.add_done_callback(_forget)

    def _timed(self, fn: Callable[[], T]) -> T:
        self._since[threading.get_ident()] = time.monotonic()
        try:
            return fn()
        finally:
            del self._since[threading.get_ident()]

    def _require_answers(self) -> None:
        first = min(tuple(self._since.values()), default=None)
        if first is not None and time.monotonic() - first >= self._still_s:
            cause = f"a call to it has not returned for {self._still_s:g} s"
            raise CheloniaError(Kind.UNAVAILABLE, "disk", cause=cause)


def _forget(call: asyncio.Future[T]) -> None:
    if not call.cancelled():
        call.exception()  # retrieved, so that asyncio does not log it: nobody waits for the call any more
