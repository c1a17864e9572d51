"""How long processes wait for a processor or a disk, and how much longer leases last because of it. Pure.

One that stood still once says nothing, nor does one that is gone: what counts is being late again and again. The
longer lease is asked for by a master and promised by each follower for itself, in the echo that it counts from.
Never: shortens what was promised. Bounds: `bounds.LEASE_STRETCH_MAX`; usual again `STRAIN_KEPT_MS` after the last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.core import bounds

STRAIN_KEPT_MS: Final = 20_000
"""For how long a lateness counts."""
STRAIN_TIMES: Final = 3
"""So many of them make a strain; the least of the largest so many is borne."""
STUCK_LONGER: Final = 4
"""A commit may wait for so many times the time by which leases are longer than usual: it takes more than an echo."""
STUCK_DOUBLED_MAX: Final = 3
"""A term may take twice as long to open for each attempt that came to nothing, so often at most: followers begin anew
with each term to bring their logs into line, a slow disk syncs its first commits anew, and would never come to the end
of it."""
STEPS: Final = 4
"""Of the usual lease, by which it grows: who is late by a third of it must not have his successor wait for four."""
BORNE_TIMES: Final = 3
"""A lease outlasts so many of it: a beat, its echo and the next one may each be as late."""


@dataclass(slots=True)
class ReplicaStrain:
    """Of one replica."""

    pace: ProtocolPeriods
    _late: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=bounds.LATENESSES_KEPT))

    def late(self, late_ms: int, now_ms: int) -> None:
        """Somebody came so much later than meant. What comes late together, within a lease, was one delay."""
        if late_ms <= self.pace.beat_ms:
            return
        assert not self._late or self._late[-1][0] <= now_ms, "the newest is the last"
        if self._late and now_ms - self._late[-1][0] < self.pace.lease_ms:
            at_ms, late_before = self._late[-1]
            self._late[-1] = (at_ms, max(late_before, late_ms))
        else:
            self._late.append((now_ms, late_ms))

    def _lasts_ms(self, now_ms: int) -> int:
        """How long a lease has to last now: as usual, or longer by as many steps as are enough."""
        usual_ms = self.pace.lease_ms
        if len(self._late) < STRAIN_TIMES:  # asked with every message
            return usual_ms
        late = tuple(self._late)  # at once: who asks may be in another thread than who adds
        borne = sorted(late_ms for at_ms, late_ms in late if now_ms - at_ms < STRAIN_KEPT_MS)
        if len(borne) < STRAIN_TIMES:
            return usual_ms
        step_ms = usual_ms // STEPS
        steps = -(-(usual_ms + BORNE_TIMES * borne[-STRAIN_TIMES]) // step_ms)
        lasts_ms = min(steps * step_ms, self.pace.longest_ms)
        assert usual_ms <= lasts_ms <= self.pace.longest_ms, "nobody is bound for longer than who starts anew waits"
        return lasts_ms

    def stretch(self, now_ms: int) -> int:
        """How many times as long as usual a lease has to last now, rounded up."""
        return -(-self._lasts_ms(now_ms) // self.pace.lease_ms)

    def lease_ms(self, now_ms: int) -> int:
        """How long an echo is to bind; 0: as usual."""
        lasts_ms = self._lasts_ms(now_ms)
        return lasts_ms if lasts_ms > self.pace.lease_ms else 0

    def stuck_ms(self, now_ms: int, failures: int) -> int:
        """How long a commit may wait, or a term to be opened after so many `failures`."""
        return self.pace.stuck_ms + STUCK_LONGER * self.extra_ms(now_ms) << min(failures, STUCK_DOUBLED_MAX)

    def dead_ms(self, now_ms: int) -> int:
        return self.pace.dead_ms + self.extra_ms(now_ms)

    def extra_ms(self, now_ms: int) -> int:
        """How much longer than usual it lasts for that."""
        return self._lasts_ms(now_ms) - self.pace.lease_ms
