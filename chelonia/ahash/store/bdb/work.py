"""Work of one thread, which another may do on the spot while nothing waits for it.

To hand a piece of work to a thread, and its result back, costs more than most pieces: threads of one interpreter take
turns, and each begins with cold caches. So whoever brings a brief piece does it himself when nothing waits and nobody
is at work. How long such pieces take is looked at all the time: one that waited for a disk sends the next ones back to
the thread, whose waiting holds up nobody else. So does any for a moment, that a backlog is the thread's.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BRIEF_S: Final = 0.005
"""What takes longer is not done on the spot: a sync on a disk that turns takes twice as long, on a good one a tenth."""
DOUBT_FACTOR: Final = 10
"""For how long nothing is done on the spot after a piece that took longer, in terms of what that took."""
STALL_S: Final = 0.05
"""What takes longer holds up a process so that others may soon give it up as their master."""
CALM_S: Final = 10.0
"""For how long at least a master does nothing on the spot after that: a disk that stalls does so again."""
REST_FACTOR: Final = 0.5
"""The same after a brief one: pieces that come one upon the other go to the thread, which syncs once for all."""


class WorkQueue(Generic[T]):
    """What waits for a thread, in order. `turn` is held by whoever is at work, and by whoever takes from the queue."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._waiting: deque[T] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._rung = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T) -> None:
        """On any thread: have something wait."""
        self._waiting.append(item)
        if not self._rung:  # looked at after the append, cleared before anything is taken: nothing is left behind
            self._rung = True
            self._bell.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until something waits, or so long; returns whether something does. For the one thread only."""
        until_s = time.monotonic() + seconds
        while not self._waiting:
            try:
                self._bell.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return False
            self._rung = False  # it may have been rung for what was taken already, without a wait
        return True

    def take(self) -> T:
        """What has waited longest. The caller holds `turn`, and has seen that something waits."""
        return self._waiting.popleft()

    def take_turn(self) -> bool:
        """Whether nothing waits and nobody is at work; if so, nobody begins before the caller releases `turn`.

        Waits for nobody.
        """
        if self._waiting or not self.turn.acquire(blocking=False):
            return False
        if not self._waiting:
            return True
        self.turn.release()
        return False


class Briefness:
    """Whether work may be expected to be brief: not for a while after a piece that was not, nor right after any.

    Args: `of_master`: a master's loop must not stand still for long, and no backlog comes to it: after a stall the
    while is longer, after a brief piece there is none.
    """

    def __init__(self, *, of_master: bool = False) -> None:
        self._of_master = of_master
        self._resting_until_s = 0.0

    def expected(self, now_s: float) -> bool:
        """Whether the next piece is likely to be brief."""
        return now_s >= self._resting_until_s

    def note(self, began_s: float, ended_s: float) -> None:
        """One took from then to now."""
        took_s = ended_s - began_s
        rest_s = took_s * (DOUBT_FACTOR if took_s > BRIEF_S else 0.0 if self._of_master else REST_FACTOR)
        if self._of_master and took_s > STALL_S:
            rest_s = max(rest_s, CALM_S)
        self._resting_until_s = max(self._resting_until_s, ended_s + rest_s)
