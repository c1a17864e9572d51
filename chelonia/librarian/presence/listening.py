"""The time for which one Librarian has listened: Shepherds are silent only while it runs. Pure; monotonic ms.

A process that stood still (SIGSTOP, a paused machine) has not read what came meanwhile. When it wakes it listens anew
for a lease. A process that stands still again and again would never listen for a whole lease. Then only the time in
which it stood still is left out, and the rest counts.
"""

from __future__ import annotations

from typing import Final

from chelonia.core.ids import Ms

WATCHES: Final = 4
"""Times in a lease that a Librarian notes that it runs; half a lease without a note is one in which it stood still."""
STEADY_LEASES: Final = 2
"""Leases for which a process has to run before it stands still again; one that ran for less runs late."""
assert WATCHES > 2, "a process that runs notes it before half a lease is over"


class Listening:
    """The time in which one process has listened, in ms, without those in which it stood still."""

    def __init__(self, lease_ms: int, started_ms: Ms) -> None:
        assert lease_ms > 0, "silence is a while without a heartbeat"
        self._lease_ms = lease_ms
        self._watched_ms: Ms | None = None
        self._still_ms = 0
        self._woke_ran_ms = started_ms - STEADY_LEASES * lease_ms
        self.since: int = started_ms
        """Time, by `ran`, from which silence counts."""

    def anew(self, now: Ms) -> None:
        """Listen anew: earlier silence does not count."""
        self.since = max(self.since, self.ran(now))

    def watch(self, now: Ms) -> None:
        """Note that this process runs, `WATCHES` times in a lease; without any note it counts as running."""
        assert self._watched_ms is None or self._watched_ms <= now, "the clock is monotonic"
        ran = self.ran(now)
        if self.stalled(now):
            if ran - self._woke_ran_ms >= STEADY_LEASES * self._lease_ms:
                self.since = ran
            self._still_ms, self._woke_ran_ms = now - ran, ran
        self._watched_ms = now
        assert self.ran(now) == ran, "a note changes what counts from now on, not what has passed"

    def ran(self, now: Ms) -> int:
        """Return the time now without that in which this process stood still beyond its sleep between two notes."""
        if self._watched_ms is not None and self.stalled(now):
            now = Ms(self._watched_ms + self._lease_ms // WATCHES)
        return now - self._still_ms

    def stalled(self, now: Ms) -> bool:
        """Return whether this process has not run for half a lease, so that a lease may have passed without listening.
        A Shepherd that was heard two heartbeats before is not silent yet after half of it."""
        return self._watched_ms is not None and now - self._watched_ms >= self._lease_ms // 2
