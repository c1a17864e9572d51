"""Leases on monotonic clocks: how long a master may answer alone, and how long a follower is bound to it.

A master stamps each beat with its own clock. A follower echoes the stamp and is bound for `lease_ms` from receiving it.
The master counts its lease from the stamps that a majority echoed, less a margin. So it ends before the first of these
followers is free. Only the rates of the clocks matter, never their readings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from chelonia.ahash.group.membership import Quorum
from chelonia.core import bounds

NEVER_MS: Final = 1 << 62
"""Time of a timer that never ends."""
MARGIN_PER_MILLE: Final = 50
"""Margin by which a master's lease is shorter than the grants: two clocks may differ in rate by almost 5 %."""


@dataclass(frozen=True, slots=True)
class ProtocolPeriods:
    """The periods of the protocol, in milliseconds. The defaults suit replicas near each other; see `over`.

    All replicas of a group have the same: a follower that forgets a grant is bound for as long as its own lease.

    Args:
        beat_ms: between a master's beats, and between the notices of a replica that stands for election.
        dead_ms: from the end of its lease (else the begin of its term) until a master steps down. It is longer when the
            master had no time to listen.
        lease_ms: how long an echo binds a follower.
        stale_ms: time without a beat after which a follower answers no reads.
        mandate_ms: time after which a won election is void.
        vote_ms: how long each phase of an election waits for silent replicas; longer after failures.
        backoff_ms: base of the pause after a failed election.
        tell_ms: least time between beats that announce a higher watermark; half of it where they go with engine frames.
        stuck_ms: wait of the oldest commit under a live lease after which a master steps down: a new term may help.
        round_trip_ms: the distance that these periods suit.
        announce_ms: pause before an unsynchronised follower announces itself again.
    """

    beat_ms: int = 50
    dead_ms: int = 300
    lease_ms: int = 340
    stale_ms: int = 1000
    mandate_ms: int = 200
    vote_ms: int = 100
    backoff_ms: int = 10
    tell_ms: int = 5
    stuck_ms: int = 3000
    round_trip_ms: int = bounds.ROUND_TRIP_MS
    announce_ms: int = 2000

    def __post_init__(self) -> None:
        """Check that a master's lease ends before a replica that lost its disk, or its grants, counts again."""
        assert self.beat_ms < self.dead_ms < self.held_ms, "beat_ms < dead_ms < lease_ms less its margin"
        assert self.longest_ms < 1 << 16, "a beat and its echo name it in two bytes"

    @classmethod
    def over(cls, round_trip_ms: int) -> ProtocolPeriods:
        """Return the periods for a longest round trip from `bounds.ROUND_TRIP_MS` to `bounds.ROUND_TRIP_MS_MAX`.

        An echo that a lost packet delays still comes within the lease, a vote before its election is over.
        """
        assert bounds.ROUND_TRIP_MS <= round_trip_ms <= bounds.ROUND_TRIP_MS_MAX, "refused by the configuration"
        far_ms = round_trip_ms - bounds.ROUND_TRIP_MS
        near = cls()
        return cls(
            lease_ms=near.lease_ms + 2 * far_ms,
            dead_ms=near.dead_ms + 3 * far_ms // 2,
            vote_ms=near.vote_ms + 3 * far_ms // 2,
            stuck_ms=near.stuck_ms + 10 * far_ms,
            round_trip_ms=round_trip_ms,
        )

    @property
    def held_ms(self) -> int:
        """How long a master's lease lasts from the stamp echoed."""
        return held_for(self.lease_ms)

    @property
    def longest_ms(self) -> int:
        """How long an echo may bind at most."""
        return self.lease_ms * bounds.LEASE_STRETCH_MAX


def held_for(lease_ms: int) -> int:
    """Return how long a master may count on an echo that binds its sender for `lease_ms`."""
    return lease_ms * (1000 - MARGIN_PER_MILLE) // 1000


class Lease:
    """The lease of one term, by the times for which echoes bind the followers. `own`, the master, is always bound.

    Each follower states its time, which is longer where the master asks for more. The lease ends before the first
    follower of a majority is free.
    """

    def __init__(self, own: int, pace: ProtocolPeriods, quorum: Quorum) -> None:
        self._usual_ms, self._longest_ms = pace.lease_ms, pace.longest_ms
        self._quorum = quorum
        self._bound = {own: NEVER_MS}
        self._until = quorum.agreed(self._bound)

    def echoed(self, replica: int, sent_ms: int, lease_ms: int = 0) -> bool:
        """Register the echo of a beat that we sent at `sent_ms`, our clock. Return whether the lease lasts longer."""
        until_ms = sent_ms + held_for(max(lease_ms, self._usual_ms))
        if until_ms <= self._bound.get(replica, -1):
            return False
        self._bound[replica] = until_ms
        before, self._until = self._until, self._quorum.agreed(self._bound)
        assert before is None or (self._until or 0) >= before, "no echo makes a lease shorter"
        return self._until != before

    def would_hold(self, quorum: Quorum, among: Collection[int], now_ms: int) -> bool:
        """Return whether the lease would be live under another quorum, by the echoes of `among` alone."""
        until_ms = quorum.agreed({replica: until_ms for replica, until_ms in self._bound.items() if replica in among})
        return until_ms is not None and now_ms < until_ms

    def decide_by(self, quorum: Quorum) -> None:
        """Count by another quorum from now on."""
        self._quorum = quorum
        self._until = quorum.agreed(self._bound)

    def until(self, now_ms: int) -> int | None:
        """Return when the lease ends; None: there was none yet. A master alone renews it at every moment."""
        if self._until == NEVER_MS:
            return now_ms + held_for(self._usual_ms)
        return None if self._until is None else min(self._until, now_ms + held_for(self._longest_ms))
