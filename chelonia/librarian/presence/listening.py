"""Since when one Librarian listens: Shepherds are silent only while it runs. Pure; times are monotonic, in ms.

A process that stood still (SIGSTOP, a paused machine) has not read what was sent meanwhile. When it wakes it listens
anew for a lease. A process that stands still again and again would never listen for a whole lease: the time in which
it stood still is left out then, and the rest counts.
"""

from __future__ import annotations

from typing import Final

from chelonia.core.ids import Ms

WATCHES: Final = 4
"""In a lease a Librarian notes that it runs: half a lease without is one in which it stood still."""
STEADY_LEASES: Final = 2
"""Who has not run for so long before it stands still again runs late."""


class Listening:
    """The time in which one process has listened, counted in ms of which those that it stood still are left out."""

    def __init__(self, lease_ms: int, started_ms: Ms) -> None:
        self._lease_ms = lease_ms
        self._watched_ms: Ms | None = None
        self._still_ms = 0
        self._woke_ran_ms = started_ms - STEADY_LEASES * lease_ms
        self.since: int = started_ms
        """From when on silence counts, by `ran`."""

    def anew(self, now: Ms) -> None:
        """Nothing that was not heard before counts as silence."""
        self.since = max(self.since, self.ran(now))

    def watch(self, now: Ms) -> None:
        """This process runs: to be told `WATCHES` times in a lease. Never told, it is taken to run."""
        ran = self.ran(now)
        if self.stood_still(now):
            if ran - self._woke_ran_ms >= STEADY_LEASES * self._lease_ms:
                self.since = ran
            self._still_ms, self._woke_ran_ms = now - ran, ran
        self._watched_ms = now

    def ran(self, now: Ms) -> int:
        """The time now without that in which this process stood still. It was to sleep from one look to the next, so
        that much counts."""
        if self._watched_ms is not None and self.stood_still(now):
            now = Ms(self._watched_ms + self._lease_ms // WATCHES)
        return now - self._still_ms

    def stood_still(self, now: Ms) -> bool:
        """Whether this process has not run for so long that a lease may be over which it has not listened through: one
        that was heard two heartbeats before is not silent yet after half of it."""
        return self._watched_ms is not None and now - self._watched_ms >= self._lease_ms // 2
