"""Who gets the space of a disk that more uploads want than fit.

Decides from what was promised so far; never looks at the disk itself. Space is promised for the asking, without a byte:
so what an owner has asked for and not begun to use gives way to another who has asked for less, the largest first. What
is being received gives way only beyond `bounds.PROMISED_SHARE_PER_OWNER` of what is free: a trickle holds no disk.
Invariants: copies that the metadata have claimed never give way; nothing gives way in vain, or to a larger claim.
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
    """Space kept for one upload: `bytes` that have not come, whether they are coming now, and whether it is a claimed
    copy, which is nobody's own."""

    reference: ReferenceId
    owner: Dn
    bytes: int
    begun: bool
    claimed: bool = False


def make_room(wanted: Promise, free: int, promises: Sequence[Promise]) -> tuple[ReferenceId, ...]:
    """Find space for one more upload.

    Args:
        wanted: what is asked for; 0 bytes when its size is not known.
        free: bytes of the disk that are not used.
        promises: of all other uploads.
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
    """Promises that end for another, in this order."""
    totals = Counter[Dn]()
    for promise in promises:
        totals[promise.owner] += 0 if promise.claimed else promise.bytes
    claim = 0 if wanted.claimed else totals[wanted.owner] + wanted.bytes
    share = free * bounds.PROMISED_SHARE_PER_OWNER
    others = [p for p in promises if not p.claimed and (wanted.claimed or p.owner != wanted.owner)]
    larger = [promise for promise in others if totals[promise.owner] > claim and promise.bytes]
    yielding = [promise for promise in larger if not promise.begun or totals[promise.owner] > share]
    return sorted(yielding, key=lambda promise: (promise.begun, -promise.bytes))
