"""The detection of a frozen process, by the signs of life that it sends to its watcher. Pure: times are passed in.

- A watcher that looks later than planned, as after a freeze of the whole machine, looks again after a short grace.
- A process that works, or would with a free CPU, is not frozen: a frozen one uses none, a silent one may be busy.
- A process that missed signs and is known to be stopped is reported at once.
"""

from __future__ import annotations

SIGNS = 8
"""Signs of life within the limit of silence: some may come late."""
SIGN_MS_MAX = 100
"""Most between two signs, however long the limit is, so that a stop is noticed soon."""
SIGNS_MISSED = 2
"""Missed signs after which the watcher checks whether somebody has stopped the process."""
LATE_MS = 100
"""A watcher that is later than this was kept from looking, and the process it watches may have been as well."""
GRACE_MS = 50
"""Grace of a late watcher before it looks again."""
LOOK_MS = 150
"""End of the limit, in which the watcher checks whether the process works; less where the limit is short."""
BUSY_MS = 5_000
"""Further silence allowed to a working process: after it, it works in circles and serves nobody."""
LEASE_SHARE = 0.8
"""Share of a lease, so that the consequences of a freeze are carried out within it."""
HEARTBEATS = 2
"""Heartbeats missed, while no lease is known yet."""


def still_after_ms(lease_ms: int, heartbeat_ms: int) -> int:
    """Return how long a process may give no sign, in milliseconds, at least 1; `lease_ms` 0: not known yet."""
    return max(1, int(lease_ms * LEASE_SHARE) if lease_ms > 0 else heartbeat_ms * HEARTBEATS)


def sign_ms(limit_ms: int) -> float:
    """Return the time between two signs of life, in milliseconds."""
    return min(limit_ms / SIGNS, SIGN_MS_MAX)


class FreezeDetector:
    """The state of a watcher. It reports nothing of a process before its first sign."""

    __slots__ = ("_due_ms", "_early", "_limit_ms", "_worked_ns", "heard_ms", "still")

    def __init__(self) -> None:
        self._due_ms = self._limit_ms = 0
        self._worked_ns = -1
        self._early = False
        self.heard_ms = 0
        self.still = True

    def heard(self, now_ms: int, limit_ms: int) -> None:
        """Note a sign; the next has to come within `limit_ms`."""
        assert limit_ms > 0, "no sign comes in no time"
        self.heard_ms, self._limit_ms, self._worked_ns, self.still = now_ms, limit_ms, -1, False
        self._due_ms, self._early = now_ms + int(SIGNS_MISSED * sign_ms(limit_ms)), True
        assert now_ms <= self._due_ms <= now_ms + limit_ms, "a sign is missed before it has been too long"

    def _look_ms(self) -> int:
        return min(LOOK_MS, self._limit_ms // 4)

    def wait_ms(self, now_ms: int) -> int | None:
        """Return how long to wait for a sign before calling `stopped`; None: for ever."""
        return None if self.still else max(0, self._due_ms - now_ms)

    def stopped(self, now_ms: int, worked_ns: int | None) -> bool:
        """Return whether the process is frozen, True once. Call it when no sign waits to be read.

        `worked_ns`: a value that changes when the process works, as its CPU time; None: it was stopped, and does not
        work until it is continued.
        """
        if self.still or now_ms < self._due_ms:
            return False
        self.still = worked_ns is None or self._silent(now_ms, worked_ns)
        return self.still

    def _silent(self, now_ms: int, worked_ns: int) -> bool:
        """Return whether it has neither given a sign nor worked for too long; if not, set when to look again."""
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
