"""How long the claim of a copy lasts: as long as its bytes arrive. Pure, time passed in.

A claim ends `claim_ms` after it was made or last renewed. The Shepherd that takes the copy tells in its heartbeats how
many bytes are here, and a Librarian that hears it renews the claim when they have grown enough.
Invariants: no byte counts twice, and none beyond the size of the blob; less than a least rate renews nothing. So
whoever tells one Librarian of bytes that never come keeps a claim for twice `claim_ms` and the time that the blob
takes at that rate, no longer; whoever tells of none, for `claim_ms`. Reasoning: docs/design/002-protocols.md, Healing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chelonia.core.bounds import COPIES_IN_FLIGHT_PER_NODE_MAX
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.ids import Ms
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import Arriving
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import is_, put

GIVEN_UP: Final = "0"
"""The end of a claim whose copy has failed: it is over, whatever arrives."""
RENEWALS: Final = 4
"""Renewals in the time that a claim lasts: it outlives lost heartbeats, and a Librarian that has to count anew."""
SHARES: Final = 2 * COPIES_IN_FLIGHT_PER_NODE_MAX
"""What a copy makes is at least this part of the rate of its sender: as many as that sends at once, twice over."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Bytes that have been counted, since when (monotonic) no more have been, and whether a renewal is due for them."""

    counted: int
    since_ms: Ms
    due: bool = False


def rate_min(configured: int, ordered: int) -> float:
    """Bytes a second at which a copy keeps its claim.

    Args:
        configured: what is expected of any copy.
        ordered: what a Shepherd may send for all copies together, 0: no limit.
    """
    return min(configured, ordered / SHARES) if ordered else configured


class Arrivals:
    """What has arrived of the copies under way, as far as it has counted."""

    def __init__(self, claim_ms: int) -> None:
        self._claim_ms = claim_ms
        self._marks: dict[Location, _Mark] = {}

    def due(self, told: Mapping[Location, Arriving], rate: float, now: Ms) -> dict[Location, Arriving]:
        """The copies that have earned a renewal, in the order of `told`; each stays due until it is `written`.

        Args:
            told: what Shepherds said last of the copies they are taking.
            rate: bytes a second, from `rate_min`.
            now: monotonic milliseconds.
        """
        kept = {place: mark for place, mark in self._marks.items() if now - mark.since_ms < self._claim_ms}
        looked = {place: self._looked(self._marks.get(place), copy.here, rate, now) for place, copy in told.items()}
        self._marks = {**kept, **looked}
        assert all(mark.since_ms <= now for mark in looked.values()), "nothing arrived later than now"
        return {place: copy for place, copy in told.items() if looked[place].due}

    def written(self, place: Location) -> None:
        """The renewal that was due has been written, or cannot be."""
        self._marks[place] = replace(self._marks[place], due=False)

    def _looked(self, mark: _Mark | None, here: int, rate: float, now: Ms) -> _Mark:
        if mark is None:
            return _Mark(here, now)
        grown, passed_ms = here - mark.counted, now - mark.since_ms
        assert passed_ms >= 0, "time here never goes back"
        soon = RENEWALS * passed_ms < self._claim_ms
        return mark if soon or grown <= 0 or grown * 1000 < rate * passed_ms else _Mark(here, now, due=True)


def renewal(blob: StoredObject, place: Location, here: int, span: tuple[Ms, Ms], *, anyhow: bool) -> Element | None:
    """The change that renews a claim; None where there is none, it was given up, another Librarian has just renewed it,
    or more is `here` than there is, or less than nothing.

    Unless it is renewed `anyhow`, one that has run out, or ends later than it would now, is left alone: the clocks of
    Librarians differ, and a claim that a wrong one wrote is over for the others.

    Args:
        blob: as stored; the change is conditional on the claim that stands there.
        span: wall-clock milliseconds of now, and of when the claim is to end.
        anyhow: for the repair leader, whose clock counts, and while claims may have run out because the metadata were
            out of reach.
    """
    key, creating, (now, until) = str(place), ReplicaState.CREATING.value, span
    assert now < until, "a claim is renewed for some time"
    claim, size = blob.value("claims", key), blob.value("blob", "size")
    stands = blob.value("locations", key) == creating and claim.isdecimal() and claim != GIVEN_UP
    if not stands or not size.isdecimal() or not 0 <= here <= int(size):
        return None
    if not anyhow and not now < int(claim) <= until:
        return None
    if 0 <= until - int(claim) < (until - now) // (2 * RENEWALS):
        return None
    return put(blob.id, "claims", key, str(until), is_("locations", key, creating), is_("claims", key, claim))
