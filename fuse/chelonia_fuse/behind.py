"""Commits files after they were closed: new small ones that a program makes many of, many in a call.

Decides which: a file that this mount has just made, and that bears the mark which tells other mounts to wait for its
bytes when they open it. So what is closed here is read there, although `close` returns once the bytes are in the
journal. Never lets a commit come late: who closes more than the cluster takes waits.
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
"""How young a file is whose `close` does not wait: the rest of `AWAITED_S` is for the commit, and for clocks."""
MANY, MANY_S = 4, 4.0
"""Making so many files in such a time is a reason not to wait; a single file is there for all when it is closed."""
LATE_S: Final = 0.5
"""When the oldest change has waited so long, `close` waits too."""
LINGER_S: Final = 0.15
"""How long a few changes wait for more."""
_PAUSE_S: Final = 0.02
SENDERS_MAX: Final = 2
TROUBLE_S: Final = 60.0
"""After a commit was refused for good, programs wait for theirs, to hear of it, for so long."""


@dataclass(slots=True)
class WriteBehind:
    """What was closed and is not committed yet. `act` commits one, and knows what to do when that fails; its answer is
    whether programs may go on without waiting."""

    act: Callable[[Inode], Awaitable[bool]]
    _made: deque[float] = field(default_factory=lambda: deque(maxlen=MANY))
    _waiting: deque[tuple[Inode, float]] = field(default_factory=deque)
    _sending: list[float] = field(default_factory=list)
    _senders: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _gathering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _trouble_until: float = 0.0

    def makes_many(self) -> bool:
        """Take note that a file is made. Returns: whether that is one of many."""
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
            self._senders -= 1  # in the step that saw that nothing waits: who comes after it begins another

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
