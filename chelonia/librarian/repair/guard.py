"""Brakes of repair: how many erasures nobody asked for, how many copies at once, how long to spare a failing node.

Small state machines with monotonic time passed in.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from chelonia.core.ids import Ms, ServiceId
from chelonia.core.timing.pacing import Backoff, Pace

MINUTE_MS = 60_000
THROTTLE_MS = 100
"""Between two changes of a throttle: the first must have shown its effect."""
LATE_MS, PROMPT_MS = 4.0, 2.0
"""A process that runs later than this makes users wait: a request takes several steps of the event loop. One that runs
less late than that has room."""


class RateGuard:
    """At most so many events in any minute."""

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
        """How many may happen now."""
        while self._events and now - self._events[0][0] >= MINUTE_MS:
            self._sum -= self._events.popleft()[1]
        assert 0 <= self._sum <= self._max, (self._sum, self._max)
        return self._max - self._sum


class Relief:
    """What is on its way off each Shepherd: counted for a while, then it is off."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._moves: deque[tuple[Ms, ServiceId, int]] = deque()
        self._sums: Counter[ServiceId] = Counter()

    def add(self, shepherd: ServiceId, size: int, now: Ms) -> None:
        """So many bytes begin to leave a Shepherd."""
        assert size >= 0, size
        self._moves.append((now, shepherd, size))
        self._sums[shepherd] += size

    def bytes(self, now: Ms) -> dict[ServiceId, int]:
        """What has not left yet."""
        while self._moves and now - self._moves[0][0] >= self._keep_ms:
            _, shepherd, size = self._moves.popleft()
            self._sums[shepherd] -= size
        assert all(left >= 0 for left in self._sums.values()), "no more has left than was to leave"
        self._sums = +self._sums  # without those at 0: a move of 0 bytes may still wait for one of them
        return dict(self._sums)


class Flow:
    """Bytes of each Shepherd, at most so many a second each (0: no limit). What is large begins whole, and is paid off
    before the next may begin; a Shepherd sends it no faster than that."""

    def __init__(self, bytes_per_s_max: int = 0) -> None:
        self.bytes_per_s_max = bytes_per_s_max
        self._paces: dict[ServiceId, Pace] = {}

    def free(self, shepherd: ServiceId, now: Ms) -> bool:
        """Whether the next bytes of this Shepherd may go."""
        return not (self.bytes_per_s_max and shepherd in self._paces and self._paces[shepherd].wait_ms(now))

    def spend(self, shepherd: ServiceId, size: int, now: Ms) -> None:
        """So many bytes go now."""
        if self.bytes_per_s_max:
            pace = self._paces.setdefault(shepherd, Pace(self.bytes_per_s_max))
            pace.per_s_max = self.bytes_per_s_max
            pace.spend(size, now)


class Throttle:
    """How many copies may be in flight, going by how late this process runs: users come first.

    Half as many when it runs late, one more at a time when it does not; never fewer than `least`, so that healing goes
    on under any load.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._allowed = float(most)
        self._looked_ms = Ms(0)

    @property
    def allowed(self) -> int:
        """Copies in flight at most."""
        return int(self._allowed)

    def look(self, late_ms: float, now: Ms) -> None:
        """The process is so late on average."""
        if now - self._looked_ms < THROTTLE_MS:
            return
        self._looked_ms = now
        if late_ms > LATE_MS:
            self._allowed = max(self._least, self._allowed / 2)
        elif late_ms < PROMPT_MS:
            self._allowed = min(self._most, self._allowed + 1)
        assert self._least <= self._allowed <= self._most, (self._least, self._allowed, self._most)


class Slots:
    """Copies in flight, bounded per Shepherd and in all. `own`: what a Shepherd bears by its configuration, 0: any."""

    def __init__(self, per_node_max: int, total_max: int, own: Callable[[ServiceId], int] = lambda _: 0) -> None:
        self.per_node_max = per_node_max
        self.total_max = total_max
        self._own = own
        self._busy: dict[ServiceId, int] = {}
        self.total = 0

    def most(self, shepherd: ServiceId) -> int:
        """How many copies this Shepherd may send and take at once."""
        return min(self.per_node_max, self._own(shepherd) or self.per_node_max)

    def free(self, shepherd: ServiceId) -> bool:
        """Whether this Shepherd can send or take one more."""
        return self.total < self.total_max and self._busy.get(shepherd, 0) < self.most(shepherd)

    def used(self) -> dict[ServiceId, int]:
        """How many copies each Shepherd sends and takes now; without those that have none."""
        return dict(self._busy)

    def copy(self) -> Slots:
        """The same, to try out what would fit."""
        other = Slots(self.per_node_max, self.total_max, self._own)
        other._busy, other.total = dict(self._busy), self.total
        return other

    def take(self, shepherds: Iterable[ServiceId]) -> None:
        """One copy begins between these."""
        self.total += 1
        for shepherd in shepherds:
            self._busy[shepherd] = self._busy.get(shepherd, 0) + 1

    def release(self, shepherds: Iterable[ServiceId]) -> None:
        """One copy between these has ended."""
        assert self.total > 0, "a copy ends once"
        self.total -= 1
        for shepherd in shepherds:
            assert self._busy.get(shepherd, 0) > 0, "a copy ends where it began"
            self._busy[shepherd] -= 1
            if not self._busy[shepherd]:
                del self._busy[shepherd]


class Sparing:
    """Which Shepherds, or single orders, are left alone: each that has failed, longer with each failure in a row."""

    def __init__(self, first_ms: int, max_ms: int) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._failing: dict[str, tuple[Backoff, Ms]] = {}

    def failed(self, shepherd: str, now: Ms) -> Ms:
        """It failed; returns when it may be tried again. What fails while it is left alone says nothing new."""
        backoff, until = self._failing.get(shepherd, (Backoff(self._first_ms, self._max_ms), Ms(0)))
        if now >= until:
            until = Ms(now + backoff.failed())
            self._failing[shepherd] = backoff, until
        return until

    def worked(self, shepherd: str) -> None:
        """It did what it was asked, or has been heard of anew."""
        self._failing.pop(shepherd, None)

    def spared(self, shepherd: str, now: Ms) -> bool:
        """Whether it should be left alone now."""
        return self.spared_ms(shepherd, now) > 0

    def spared_ms(self, shepherd: str, now: Ms) -> int:
        """How long it should still be left alone."""
        return max(self._failing[shepherd][1] - now, 0) if shepherd in self._failing else 0
