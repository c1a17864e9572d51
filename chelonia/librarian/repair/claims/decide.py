"""The claim of a copy lasts as long as its bytes arrive. Pure, time passed in.

A claim ends `claim_ms` after it was made or last renewed. The Shepherd that takes the copy states in its heartbeats how
many bytes have arrived. A Librarian that hears it renews the claim when they have grown enough.

Invariants: no byte counts twice, none beyond the size of the blob, and growth below a least rate renews nothing. A
Shepherd that reports no bytes keeps a claim for `claim_ms`. One that reports false ones keeps it for at most twice that
and the blob's time at that rate. Reasoning: docs/design/002-protocols.md, Healing.
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
"""End of a claim whose copy has failed: it is over, whatever arrives."""
RENEWALS: Final = 4
"""Renewals within the term of a claim: it outlives lost heartbeats, and a Librarian that has to count anew."""
SHARES: Final = 2 * COPIES_IN_FLIGHT_PER_NODE_MAX
"""Parts of a sender's rate, one of which is the least for a copy: twice as many as it may send at once."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Bytes that have counted, the time (monotonic) since which none have been added, and whether a renewal is due."""

    counted: int
    since_ms: Ms
    due: bool = False


def rate_min(configured: int, ordered: int) -> float:
    """Return the bytes per second at which a copy keeps its claim.

    Args:
        configured: least rate of any copy.
        ordered: limit of a Shepherd for all copies together, 0: none.
    """
    return min(configured, ordered / SHARES) if ordered else configured


class Arrivals:
    """The bytes that have arrived of the copies under way, as far as they have counted."""

    def __init__(self, claim_ms: int) -> None:
        self._claim_ms = claim_ms
        self._marks: dict[Location, _Mark] = {}

    def due(self, arriving: Mapping[Location, Arriving], rate: float, now: Ms) -> dict[Location, Arriving]:
        """Return the copies that have earned a renewal, in order of `arriving`; each stays due until it is `written`.

        Args:
            arriving: the copies that Shepherds take, by their last heartbeats.
            rate: bytes a second, from `rate_min`.
            now: monotonic milliseconds.
        """
        kept = {place: mark for place, mark in self._marks.items() if now - mark.since_ms < self._claim_ms}
        looked = {place: self._looked(self._marks.get(place), copy.here, rate, now) for place, copy in arriving.items()}
        self._marks = {**kept, **looked}
        assert all(mark.since_ms <= now for mark in looked.values()), "nothing arrived later than now"
        return {place: copy for place, copy in arriving.items() if looked[place].due}

    def written(self, place: Location) -> None:
        """Note that a due renewal was written, or cannot be."""
        self._marks[place] = replace(self._marks[place], due=False)

    def _looked(self, mark: _Mark | None, here: int, rate: float, now: Ms) -> _Mark:
        if mark is None:
            return _Mark(here, now)
        grown, passed_ms = here - mark.counted, now - mark.since_ms
        assert passed_ms >= 0, "time here never goes back"
        soon = RENEWALS * passed_ms < self._claim_ms
        return mark if soon or grown <= 0 or grown * 1000 < rate * passed_ms else _Mark(here, now, due=True)


def renewal(blob: StoredObject, place: Location, here: int, span: tuple[Ms, Ms], *, anyhow: bool) -> Element | None:
    """Return the change that renews a claim; None when it does not stand, was just renewed, or `here` is out of range.

    Unless `anyhow`, a claim that has run out, or ends later than it would now, is left alone too. Clocks of Librarians
    differ, and for others a claim by a wrong one is over.

    Args:
        blob: as stored; the change is conditional on its claim.
        span: wall-clock milliseconds of now, and of the new end.
        anyhow: for the repair leader, whose clock counts, and when claims may have run out while the metadata were out
            of reach.
    """
    key, creating, (now, until) = str(place), ReplicaState.CREATING.value, span
    assert now < until, "a claim is renewed for some time"
    claim, size = blob.value("claims", key), blob.value("blob", "size")
    is_active = blob.value("locations", key) == creating and claim.isdecimal() and claim != GIVEN_UP
    if not is_active or not size.isdecimal() or not 0 <= here <= int(size):
        return None
    if not anyhow and not now < int(claim) <= until:
        return None
    if 0 <= until - int(claim) < (until - now) // (2 * RENEWALS):
        return None
    return put(blob.id, "claims", key, str(until), is_("locations", key, creating), is_("claims", key, claim))
