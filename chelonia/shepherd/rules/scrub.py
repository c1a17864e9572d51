"""The order and pace of the scrub: suspicious replicas first, the others in rounds of one period, at a bounded rate.

A round goes by order of reference. Its cursor survives restarts, so a Shepherd that restarts often still comes to its
last replica. The time between two replicas is in proportion to their bytes. Pure; time is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chelonia.core.ids import ReferenceId
from chelonia.shepherd.store.index import Index
from chelonia.shepherd.store.lifecycle import KeptReplica

REPLICA_COST_BYTES: Final = 64 * 1024
"""Cost of opening a replica, in bytes read: a million tiny replicas are not free."""
NAP_MS_MAX: Final = 60_000
"""Longest wait before the scrub looks at the index again."""


@dataclass(frozen=True, slots=True)
class RoundPace:
    """All replicas within `period_ms`, never faster than `bytes_per_s_max` on average."""

    period_ms: int
    bytes_per_s_max: int


def nap_ms(pace: RoundPace) -> int:
    """Return the longest wait before the scrub looks at the index again, short compared with the period."""
    return max(1, min(NAP_MS_MAX, pace.period_ms // 20))


def read_ms(size: int, pace: RoundPace) -> int:
    """Return how long reading `size` bytes takes at the highest rate, in ms."""
    assert pace.bytes_per_s_max > 0, "the configuration allows no rate of 0"
    return size * 1000 // pace.bytes_per_s_max


def slot_ms(size: int, index: Index, pace: RoundPace) -> int:
    """Return the share of the period for a replica of `size` bytes, in ms: no less than the highest rate demands."""
    cost = size + REPLICA_COST_BYTES
    total = index.total_bytes + REPLICA_COST_BYTES * len(index)
    share = pace.period_ms * cost // max(total, cost)
    assert share <= pace.period_ms, "all replicas have their turns within the period, where the rate allows it"
    return max(share, read_ms(cost, pace))


class ScrubRound:
    """Chooses the next replica. `cursor` is the reference checked last in the round, to be kept across restarts."""

    def __init__(self, cursor: str = "") -> None:
        self.cursor = cursor
        self._suspects: dict[ReferenceId, None] = {}

    def suspect(self, reference: ReferenceId) -> None:
        """Have this replica checked before any other."""
        self._suspects[reference] = None

    def is_suspect(self, reference: ReferenceId) -> bool:
        """Whether this replica is suspected and not yet checked."""
        return reference in self._suspects

    def next_suspect(self, index: Index) -> KeptReplica | None:
        """Take the oldest suspicion that is still here, or None."""
        while self._suspects:
            reference = next(iter(self._suspects))
            del self._suspects[reference]
            held = index.get(reference)
            if held is not None:
                return held
        return None

    def next_in_turn(self, index: Index) -> KeptReplica | None:
        """Advance the cursor and return the replica there, or None when there is none."""
        held = index.after(self.cursor)
        if held is not None:
            self.cursor = held.reference
        return held
