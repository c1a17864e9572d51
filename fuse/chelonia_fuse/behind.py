"""Commits files after `close`: small new ones, where a program makes many, many in a call.

Decides which: files that this mount has just made, with the mark that has other mounts wait for the bytes when they
open them. So other mounts read a closed file, although `close` returns once the bytes are in the journal. Never lets a
commit come late: `close` waits where the cluster takes fewer files than programs close.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from chelonia.core import bounds
from chelonia.hosting.transfer.call_batches import CALL_FILES_MAX
from chelonia_fuse.copies import CachedCopy
from chelonia_fuse.inodes import Inode, is_unwritten

YOUNG_S: Final = 1.0
"""Age up to which `close` of a new file does not wait: the rest of `AWAITED_S` is for the commit, and for clocks."""
MANY, MANY_S = 4, 4.0
"""Files made, and in which time, from which on `close` does not wait; a single file is committed when it is closed."""
LATE_S: Final = 0.5
"""Wait of the oldest change from which on `close` waits too."""
LINGER_S: Final = 0.15
"""How long a few changes wait for more."""
_PAUSE_S: Final = 0.02
SENDERS_MAX: Final = 2
TROUBLE_S: Final = 60.0
"""How long programs wait for their commits, to get failures, after one was refused for good."""


@dataclass(slots=True)
class WriteBehind:
    """Files that are closed and not committed yet. `act`: commits one and handles its failure; returns whether programs
    may go on without waiting."""

    act: Callable[[Inode], Awaitable[bool]]
    _made: deque[float] = field(default_factory=lambda: deque(maxlen=MANY))
    _waiting: deque[tuple[Inode, float]] = field(default_factory=deque)
    _sending: list[float] = field(default_factory=list)
    _senders: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _gathering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _trouble_until: float = 0.0

    def makes_many(self) -> bool:
        """Note that a file is made. Returns: whether it is one of many."""
        self._made.append(time.monotonic())
        return self.is_busy() and time.monotonic() > self._trouble_until

    def is_busy(self) -> bool:
        return len(self._made) == MANY and time.monotonic() - self._made[0] < MANY_S

    def takes(self, inode: Inode, copy: CachedCopy) -> bool:
        """Whether `close` need not wait for the commit of this file."""
        now, known = time.monotonic(), inode.attributes
        young = inode.made_ns > 0 and now - inode.made_ns / 1e9 < YOUNG_S and now > self._trouble_until
        if not young or not is_unwritten(known, known.created_ns):
            return False
        staged = copy.staged
        return staged.etag == known.etag and staged.size <= bounds.INLINE_BYTES_MAX and staged.plan().plain

    async def add(self, inode: Inode) -> None:
        """Have a change committed; returns at once, unless the commits are late."""
        self._waiting.append((inode, time.monotonic()))
        if self._senders < SENDERS_MAX:
            self._senders += 1
            task = asyncio.create_task(self._send())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while self._oldest() < time.monotonic() - LATE_S:
            await asyncio.wait(self._tasks, timeout=_PAUSE_S)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    def _oldest(self) -> float:
        first = [self._waiting[0][1]] if self._waiting else []
        return min((*self._sending, *first), default=time.monotonic())

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._send_some()
        finally:
            self._senders -= 1  # in the step that saw nothing wait: a later change begins another sender

    async def _send_some(self) -> None:
        async with self._gathering:
            if len(self._waiting) < CALL_FILES_MAX:
                await asyncio.sleep(LINGER_S)
            batch = [self._waiting.popleft() for _ in range(min(CALL_FILES_MAX, len(self._waiting)))]
        times = [since for _, since in batch]
        self._sending += times
        try:
            well = await asyncio.gather(*(self.act(inode) for inode, _ in batch))
            if not all(well):
                self._trouble_until = time.monotonic() + TROUBLE_S
        finally:
            for since in times:
                self._sending.remove(since)

    async def drained(self) -> None:
        """Return once nothing waits."""
        while self._tasks:
            await asyncio.wait(self._tasks)
