"""How long processes wait for a processor or a disk, and how much longer leases last because of it. Pure.

One freeze says nothing, nor does a process that is gone: only repeated lateness counts. A master requests the longer
lease; each follower promises it in its echo. It never shortens a promise.
Bounds: `bounds.LEASE_STRETCH_MAX`; leases are usual again `LATENESS_KEPT_MS` after the last lateness.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.core import bounds

LATENESS_KEPT_MS: Final = 20_000
"""For how long a lateness counts."""
LATENESSES_BORNE: Final = 3
"""Leases bear the least of the largest so many latenesses. Fewer change nothing."""
STUCK_LONGER: Final = 4
"""Factor on the extra time of leases by which a commit may wait longer: it takes more than an echo."""
STUCK_DOUBLED_MAX: Final = 3
"""Failed attempts to open a term for which the time to open it doubles. In each term followers bring their logs into
line anew and a slow disk syncs its first commits anew, so equal times might never suffice."""
STEPS: Final = 4
"""Steps in a usual lease by which it grows: a lateness of a third must not quadruple the wait for a successor."""
BORNE_TIMES: Final = 3
"""Latenesses that a lease outlasts: a beat, its echo and the next beat may each be as late."""


@dataclass(slots=True)
class PeerLateness:
    """How late one peer runs."""

    pace: ProtocolPeriods
    _late: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=bounds.LATENESSES_KEPT))

    def late(self, late_ms: int, now_ms: int) -> None:
        """Note that a timer or message came `late_ms` late. All within one lease count as one delay, the largest."""
        if late_ms <= self.pace.beat_ms:
            return
        assert not self._late or self._late[-1][0] <= now_ms, "the newest is the last"
        if self._late and now_ms - self._late[-1][0] < self.pace.lease_ms:
            at_ms, late_before = self._late[-1]
            self._late[-1] = (at_ms, max(late_before, late_ms))
        else:
            self._late.append((now_ms, late_ms))

    def _lasts_ms(self, now_ms: int) -> int:
        """How long a lease has to last now: as usual, or longer by as many steps as needed."""
        usual_ms = self.pace.lease_ms
        if len(self._late) < LATENESSES_BORNE:  # the hot path: every message comes here
            return usual_ms
        late = tuple(self._late)  # a copy, as another thread may add
        borne = sorted(late_ms for at_ms, late_ms in late if now_ms - at_ms < LATENESS_KEPT_MS)
        if len(borne) < LATENESSES_BORNE:
            return usual_ms
        step_ms = usual_ms // STEPS
        steps = -(-(usual_ms + BORNE_TIMES * borne[-LATENESSES_BORNE]) // step_ms)
        lasts_ms = min(steps * step_ms, self.pace.longest_ms)
        assert usual_ms <= lasts_ms <= self.pace.longest_ms, "nobody is bound for longer than who starts anew waits"
        return lasts_ms

    def stretch(self, now_ms: int) -> int:
        """Return the needed lease as a multiple of the usual one, rounded up."""
        return -(-self._lasts_ms(now_ms) // self.pace.lease_ms)

    def lease_ms(self, now_ms: int) -> int:
        """Return how long an echo should bind; 0: as usual."""
        lasts_ms = self._lasts_ms(now_ms)
        return lasts_ms if lasts_ms > self.pace.lease_ms else 0

    def stuck_ms(self, now_ms: int, failures: int) -> int:
        """Return how long a commit may wait, or a term take to open after so many `failures`."""
        return self.pace.stuck_ms + STUCK_LONGER * self.extra_ms(now_ms) << min(failures, STUCK_DOUBLED_MAX)

    def dead_ms(self, now_ms: int) -> int:
        return self.pace.dead_ms + self.extra_ms(now_ms)

    def extra_ms(self, now_ms: int) -> int:
        """Return by how much a lease is longer than usual."""
        return self._lasts_ms(now_ms) - self.pace.lease_ms
