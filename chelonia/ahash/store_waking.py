"""Handing over between threads and the event loop: who is woken runs at once.

A thread that is woken by a lock or a queue finds the interpreter held by who woke it: it runs, waits and runs again,
on a machine of few cores in the place of who holds what it waits for. A bell is rung by a system call that gives the
interpreter up meanwhile, and only when somebody waits.
Invariants: what is put in first comes out first; nothing is left behind without a bell that rings.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Bell:
    """Rung by any thread, heard by one. A ring that nobody waits for is heard by who waits next.

    It ends with its last user: who still rings must not write to a file that has its number by then.
    """

    def __init__(self) -> None:
        self.file = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self.file, select.POLLIN)

    def __del__(self) -> None:
        """Release the file."""
        os.close(self.file)

    def ring(self) -> None:
        """Wake who waits."""
        os.eventfd_write(self.file, 1)

    def wait(self, timeout_ms: int | None) -> bool:
        """Until it rings; False after `timeout_ms` (None: never)."""
        if not self._poll.poll(timeout_ms):
            return False
        self.hush()
        return True

    def hush(self) -> None:
        """What it rang for is being seen to."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.file)


class Inbox(Generic[T]):
    """What waits for one thread, in order. Any thread puts in, one takes out."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell = Bell()
        self._listening = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._items)

    def put(self, item: T) -> None:
        """Put in, and wake the thread if it waits."""
        self._items.append(item)
        if self._listening:
            self._listening = False
            self._bell.ring()

    def get(self, timeout_ms: int | None = None) -> T:
        """Take out, once there is something. Raises: queue.Empty after `timeout_ms` (None: never)."""
        while not self._items:
            self._listening = True
            if not self._items and not self._bell.wait(timeout_ms):
                raise queue.Empty
        return self._items.popleft()


class LoopInbox:
    """Work of other threads for the event loop, done there in order. Make it inside the loop; `close` it there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: deque[Callable[[], None]] = deque()
        self._bell = Bell()
        self._rung = False
        self._loop.add_reader(self._bell.file, self._heard)

    def put(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """On any thread: have `work` called; not `at_once`: together with what this thread puts in next."""
        self._work.append(work)
        if at_once and not self._rung:
            self._rung = True
            self._bell.ring()

    def close(self) -> None:
        """Do what is left, and listen no more: what comes later is never done."""
        self._loop.remove_reader(self._bell.file)
        self._do()

    def _heard(self) -> None:
        self._bell.hush()
        self._rung = False  # before the work is looked at: what comes from now on rings again
        self._do()

    def _do(self) -> None:
        try:
            while self._work:
                self._work.popleft()()
        finally:
            if self._work:  # one of them failed, which the loop tells; the others go on
                self._loop.call_soon(self._do)
