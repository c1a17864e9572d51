"""Brakes of repair: limits on erasures that nobody ordered and on copies at once, and pauses for failing nodes.

Small state machines with monotonic time passed in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from chelonia.core.ids import Ms, ServiceId
from chelonia.core.timing.pacing import Backoff, Pace

MINUTE_MS = 60_000
THROTTLE_MS = 100
"""Pause between two changes of a throttle: the first must have shown its effect."""
LATE_MS, PROMPT_MS = 4.0, 2.0
"""Lateness of the process above which users wait, for a request takes several steps of the event loop. Below the second
there is room for more copies."""


class RateGuard:
    """A limit on events in any minute."""

    def __init__(self, per_minute_max: int) -> None:
        self._max = per_minute_max
        self._events: deque[tuple[Ms, int]] = deque()
        self._sum = 0

    def take(self, count: int, now: Ms) -> bool:
        """Count `count` events if they fit; False means that none of them may happen now."""
        assert count >= 0, count
        if count > self.room(now):
            return False
        self._events.append((now, count))
        self._sum += count
        return True

    def room(self, now: Ms) -> int:
        """Return how many events may happen now."""
        while self._events and now - self._events[0][0] >= MINUTE_MS:
            self._sum -= self._events.popleft()[1]
        assert 0 <= self._sum <= self._max, (self._sum, self._max)
        return self._max - self._sum


class Relief:
    """Bytes on their way off each Shepherd: they count for `keep_ms`, after which they have left."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._moves: deque[tuple[Ms, ServiceId, int]] = deque()
        self._sums: Counter[ServiceId] = Counter()

    def add(self, shepherd: ServiceId, size: int, now: Ms) -> None:
        """Note bytes that begin to leave a Shepherd."""
        assert size >= 0, size
        self._moves.append((now, shepherd, size))
        self._sums[shepherd] += size

    def bytes(self, now: Ms) -> dict[ServiceId, int]:
        """Return the bytes that have not left yet."""
        while self._moves and now - self._moves[0][0] >= self._keep_ms:
            _, shepherd, size = self._moves.popleft()
            self._sums[shepherd] -= size
        assert all(left >= 0 for left in self._sums.values()), "no more has left than was to leave"
        self._sums = +self._sums  # without zeros: a move of 0 bytes may still wait for one of them
        return dict(self._sums)


class Flow:
    """A limit on each Shepherd's bytes per second (0: none). A large copy begins whole, and is paid off before the next
    may begin; the Shepherd itself sends it no faster."""

    def __init__(self, bytes_per_s_max: int = 0) -> None:
        self.bytes_per_s_max = bytes_per_s_max
        self._paces: dict[ServiceId, Pace] = {}

    def free(self, shepherd: ServiceId, now: Ms) -> bool:
        """Return whether the next bytes of this Shepherd may go."""
        return not (self.bytes_per_s_max and shepherd in self._paces and self._paces[shepherd].wait_ms(now))

    def spend(self, shepherd: ServiceId, size: int, now: Ms) -> None:
        """Note bytes that go now."""
        if self.bytes_per_s_max:
            pace = self._paces.setdefault(shepherd, Pace(self.bytes_per_s_max))
            pace.per_s_max = self.bytes_per_s_max
            pace.spend(size, now)


class Throttle:
    """The limit on copies in flight, by how late this process runs: users come first.

    It halves when the process runs late, and rises by one at a time when it does not. It never falls below `least`, so
    that healing goes on under any load.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._allowed = float(most)
        self._looked_ms = Ms(0)

    @property
    def allowed(self) -> int:
        """Copies in flight, at most."""
        return int(self._allowed)

    def look(self, late_ms: float, now: Ms) -> None:
        """Adjust the limit to the average lateness of the process."""
        if now - self._looked_ms < THROTTLE_MS:
            return
        self._looked_ms = now
        if late_ms > LATE_MS:
            self._allowed = max(self._least, self._allowed / 2)
        elif late_ms < PROMPT_MS:
            self._allowed = min(self._most, self._allowed + 1)
        assert self._least <= self._allowed <= self._most, (self._least, self._allowed, self._most)


class Slots:
    """Copies in flight, bounded per Shepherd and in all. `own`: a Shepherd's own configured limit, 0: none."""

    def __init__(self, per_node_max: int, total_max: int, own: Callable[[ServiceId], int] = lambda _: 0) -> None:
        self.per_node_max = per_node_max
        self.total_max = total_max
        self._own = own
        self._busy: dict[ServiceId, int] = {}
        self.total = 0

    def most(self, shepherd: ServiceId) -> int:
        """Return how many copies this Shepherd may send and take at once."""
        return min(self.per_node_max, max(self._own(shepherd), 0) or self.per_node_max)

    def free(self, shepherd: ServiceId) -> bool:
        """Return whether this Shepherd can send or take one more."""
        return self.total < self.total_max and self._busy.get(shepherd, 0) < self.most(shepherd)

    def used(self) -> dict[ServiceId, int]:
        """Return how many copies each Shepherd sends and takes now; without those that have none."""
        return dict(self._busy)

    def copy(self) -> Slots:
        """Return a copy of these slots, to try out what would fit."""
        other = Slots(self.per_node_max, self.total_max, self._own)
        other._busy, other.total = dict(self._busy), self.total
        return other

    def take(self, shepherds: Iterable[ServiceId]) -> None:
        """Note that a copy begins between these."""
        self.total += 1
        for shepherd in shepherds:
            self._busy[shepherd] = self._busy.get(shepherd, 0) + 1

    def release(self, shepherds: Iterable[ServiceId]) -> None:
        """Note that a copy between these has ended."""
        assert self.total > 0, "a copy ends once"
        self.total -= 1
        for shepherd in shepherds:
            assert self._busy.get(shepherd, 0) > 0, "a copy ends where it began"
            self._busy[shepherd] -= 1
            if not self._busy[shepherd]:
                del self._busy[shepherd]


class Backoffs:
    """Shepherds, or single orders, that have failed: left alone for a while, longer with each failure in a row."""

    def __init__(self, first_ms: int, max_ms: int) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._failing: dict[str, tuple[Backoff, Ms]] = {}

    def failed(self, shepherd: str, now: Ms) -> Ms:
        """Note a failure; returns when to try again. A failure during the pause does not prolong it."""
        backoff, until = self._failing.get(shepherd, (Backoff(self._first_ms, self._max_ms), Ms(0)))
        if now >= until:
            until = Ms(now + backoff.failed())
            self._failing[shepherd] = backoff, until
        return until

    def worked(self, shepherd: str) -> None:
        """Note a success, or that a Shepherd has been heard anew."""
        self._failing.pop(shepherd, None)

    def active(self, shepherd: str, now: Ms) -> bool:
        """Return whether to leave it alone now."""
        return self.remaining_ms(shepherd, now) > 0

    def remaining_ms(self, shepherd: str, now: Ms) -> int:
        """Return the milliseconds for which to leave it alone."""
        return max(self._failing[shepherd][1] - now, 0) if shepherd in self._failing else 0
