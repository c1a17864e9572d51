"""Work of one thread, which another may do on the spot while nothing waits.

Handing work to a thread and its result back costs more than most pieces: threads take turns, each with cold caches.
So the thread that brings a brief piece does it itself when nothing waits.
A piece that took long sends the next ones back to the worker thread, whose waits hold up nobody else. So does any piece
for a moment, so that a backlog stays with the worker.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BRIEF_S: Final = 0.005
"""Longest brief piece. A sync takes twice as long on a spinning disk, a tenth on a good one."""
DOUBT_FACTOR: Final = 10
"""Rest after a longer piece, as a multiple of its time; in a rest the worker thread does all pieces."""
STALL_S: Final = 0.05
"""Time of a piece after which others may soon give up a process as their master."""
CALM_S: Final = 10.0
"""Least rest of a master after such a piece: a disk that stalls does so again."""
REST_FACTOR: Final = 0.5
"""Rest after a brief piece, as a multiple of its time: pieces in quick succession go to the thread, which syncs once
for all."""


class WorkQueue(Generic[T]):
    """The pieces that wait for a thread, in order. A thread at work, or taking from the queue, holds `turn`."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._waiting: deque[T] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._rung = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T) -> None:
        """Add an item. On any thread."""
        self._waiting.append(item)
        if not self._rung:  # read after the append, cleared before anything is taken: nothing is left behind
            self._rung = True
            self._bell.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for an item, at most so long; return whether there is one. For the one worker thread only."""
        until_s = time.monotonic() + seconds
        while not self._waiting:
            try:
                self._bell.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return False
            self._rung = False  # it may have been rung for what was taken already, without a wait
        return True

    def take(self) -> T:
        """Return the oldest item. The caller holds `turn`, and has seen that there is one."""
        return self._waiting.popleft()

    def take_turn(self) -> bool:
        """Take `turn` if nothing waits and nobody is at work, without waiting; return whether the caller has it now."""
        if self._waiting or not self.turn.acquire(blocking=False):
            return False
        if not self._waiting:
            return True
        self.turn.release()
        return False


class Briefness:
    """Whether the next piece is likely to be brief: not in the rest after a long piece, nor right after any.

    Args: `of_master`: rest longer after a stall, as a master's loop must not stop for long. After a brief piece do not
    rest, as no backlog comes to it.
    """

    def __init__(self, *, of_master: bool = False) -> None:
        self._of_master = of_master
        self._resting_until_s = 0.0

    def expected(self, now_s: float) -> bool:
        """Return whether the next piece is likely to be brief."""
        return now_s >= self._resting_until_s

    def note(self, began_s: float, ended_s: float) -> None:
        """Note the begin and end of a piece."""
        took_s = ended_s - began_s
        rest_s = took_s * (DOUBT_FACTOR if took_s > BRIEF_S else 0.0 if self._of_master else REST_FACTOR)
        if self._of_master and took_s > STALL_S:
            rest_s = max(rest_s, CALM_S)
        self._resting_until_s = max(self._resting_until_s, ended_s + rest_s)
