"""Space of a disk that more uploads want than fit.

Decides from promises made so far; never looks at the disk itself. A promise costs its owner nothing, so one that has
not begun gives way to an owner who was promised less, the largest first. An upload that has begun gives way only where
its owner has more than `bounds.PROMISED_SHARE_PER_OWNER` of the free space: a trickle holds no disk.
Invariants: copies that the metadata have claimed never give way; none gives way in vain, or to a larger claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ReferenceId


@dataclass(frozen=True, slots=True)
class Promise:
    """Space promised to one upload. `bytes`: still to come. `begun`: they are coming now. `claimed`: a copy that the
    metadata have claimed, which counts for no owner."""

    reference: ReferenceId
    owner: Dn
    bytes: int
    begun: bool
    claimed: bool = False


def make_room(wanted: Promise, free: int, promises: Sequence[Promise]) -> tuple[ReferenceId, ...]:
    """Find space for one more upload.

    Args:
        wanted: the new promise; 0 bytes when its size is not known.
        free: unused bytes of the disk.
        promises: those of all other uploads.
    Returns: the uploads whose promises end for it.
    Raises: NO_SPACE.
    """
    assert wanted.bytes >= 0, "a size is known, or nothing is promised"
    missing = max(wanted.bytes, 1) - (free - sum(promise.bytes for promise in promises))
    ended: list[ReferenceId] = []
    for promise in _giving_way(wanted, free, promises):
        if missing <= 0:
            break
        missing -= promise.bytes
        ended.append(promise.reference)
    if missing > 0:
        raise CheloniaError(Kind.NO_SPACE, "put", wanted.reference, "not enough space")
    claimed = {promise.reference for promise in promises if promise.claimed}
    assert claimed.isdisjoint(ended), "a claimed upload keeps its room"
    return tuple(ended)


def _giving_way(wanted: Promise, free: int, promises: Sequence[Promise]) -> list[Promise]:
    """Promises that may end for `wanted`, first to go first."""
    totals = Counter[Dn]()
    for promise in promises:
        totals[promise.owner] += 0 if promise.claimed else promise.bytes
    claim = 0 if wanted.claimed else totals[wanted.owner] + wanted.bytes
    share = free * bounds.PROMISED_SHARE_PER_OWNER
    others = [p for p in promises if not p.claimed and (wanted.claimed or p.owner != wanted.owner)]
    larger = [promise for promise in others if totals[promise.owner] > claim and promise.bytes]
    yielding = [promise for promise in larger if not promise.begun or totals[promise.owner] > share]
    return sorted(yielding, key=lambda promise: (promise.begun, -promise.bytes))
