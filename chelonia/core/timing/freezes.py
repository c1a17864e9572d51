"""Whether a process stands still, by the signs of life that it gives to who watches it.

Pure: times are passed in. It never says so of a process whose watcher was itself not given its turn: who looks later
than he meant to, as after a machine that stood still as a whole, looks again after a short grace. Nor of one that
works, or would if others left it a CPU: a process that stands still uses none, one that is only silent for long has
too much to do. Who has missed a sign and is known to be stopped is not waited for any longer.
"""

from __future__ import annotations

SIGNS = 8
"""Signs of life in the time after which none is too long: some may come late."""
SIGN_MS_MAX = 100
"""Apart at most, however long the limit is: who was stopped is known soon."""
SIGNS_MISSED = 2
"""After so many it is looked whether somebody has stopped the process."""
LATE_MS = 100
"""A watcher that is later than this was kept from looking, and the process it watches may have been as well."""
GRACE_MS = 50
"""What a watcher that was late gives, before it looks again."""
LOOK_MS = 150
"""For so long at the end of the limit it is looked whether the process works; less where the limit is short."""
BUSY_MS = 5_000
"""So much longer than the limit may be silent who works: then it turns round and round, and serves nobody."""
LEASE_SHARE = 0.8
"""Of a lease, so that what follows from standing still is done within it."""
HEARTBEATS = 2
"""Missed, while no lease is known yet."""


def still_after_ms(lease_ms: int, heartbeat_ms: int) -> int:
    """How long a process may give no sign, in milliseconds, at least 1; `lease_ms` 0: not known yet."""
    return max(1, int(lease_ms * LEASE_SHARE) if lease_ms > 0 else heartbeat_ms * HEARTBEATS)


def sign_ms(limit_ms: int) -> float:
    """How far apart signs of life are, in milliseconds."""
    return min(limit_ms / SIGNS, SIGN_MS_MAX)


class FreezeDetector:
    """What a watcher knows. Nothing is said of a process before its first sign."""

    __slots__ = ("_due_ms", "_early", "_limit_ms", "_worked_ns", "heard_ms", "still")

    def __init__(self) -> None:
        self._due_ms = self._limit_ms = 0
        self._worked_ns = -1
        self._early = False
        self.heard_ms = 0
        self.still = True

    def heard(self, now_ms: int, limit_ms: int) -> None:
        """A sign came; the next has to come within `limit_ms`."""
        assert limit_ms > 0, "no sign comes in no time"
        self.heard_ms, self._limit_ms, self._worked_ns, self.still = now_ms, limit_ms, -1, False
        self._due_ms, self._early = now_ms + int(SIGNS_MISSED * sign_ms(limit_ms)), True
        assert now_ms <= self._due_ms <= now_ms + limit_ms, "a sign is missed before it has been too long"

    def _look_ms(self) -> int:
        return min(LOOK_MS, self._limit_ms // 4)

    def wait_ms(self, now_ms: int) -> int | None:
        """How long to wait for a sign before `stopped` is asked; None: for ever."""
        return None if self.still else max(0, self._due_ms - now_ms)

    def stopped(self, now_ms: int, worked_ns: int | None) -> bool:
        """Asked when no sign is waiting to be heard: whether the process stands still since now. Said once.

        `worked_ns`: differs from that of before where it has worked since, as CPU time does; None: it was stopped, and
        works no more until it is let go on.
        """
        if self.still or now_ms < self._due_ms:
            return False
        self.still = worked_ns is None or self._silent(now_ms, worked_ns)
        return self.still

    def _silent(self, now_ms: int, worked_ns: int) -> bool:
        """Whether it has neither given a sign nor worked for too long; else, when to look again."""
        if self._early:
            self._due_ms, self._early = self.heard_ms + self._limit_ms - self._look_ms(), False
        elif now_ms - self._due_ms > LATE_MS:
            self._due_ms = now_ms + GRACE_MS
        elif worked_ns != self._worked_ns and now_ms < self.heard_ms + self._limit_ms + BUSY_MS:
            self._worked_ns, self._due_ms = worked_ns, now_ms + max(1, self._look_ms())
        else:
            assert now_ms >= self.heard_ms + self._limit_ms - self._look_ms(), "nobody is still who has time for a sign"
            return True
        return False
