"""The numbers of repair: exposed blobs by the copies they have left, and replicas by state.

In memory only; every plan corrects them, and the survey counts anew from what is stored. An exposed blob costs its id
and two small integers, no more; the first lost ones are kept with their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.cluster.healing import Endangered
from chelonia.core.ids import BlobId
from chelonia.librarian.repair.plan.decide import BlobPlan

_COUNT_BITS = 6
_COUNT = (1 << _COUNT_BITS) - 1
"""Largest count of copies, 63; a user may ask for 32."""
assert bounds.REPLICAS_WANTED_MAX <= _COUNT, "all counts that a user may ask for can be packed"


@dataclass(frozen=True, slots=True)
class Work:
    """The work for all exposed blobs. `by_live`: copies left -> blobs."""

    by_live: Mapping[int, int]
    delayed: int
    stuck: int
    copies: int
    bytes: int


class RepairTally:
    """The numbers of one Librarian."""

    def __init__(self) -> None:
        self._exposed: dict[BlobId, int] = {}
        self._lost: dict[BlobId, None] = {}
        self._named: dict[BlobId, Endangered] = {}
        self._by_live: dict[int, int] = {}
        self._delayed = self._stuck = self._copies = self._bytes = 0
        self.done = (0, 0)
        """Copies made, and their bytes, since the first of these blobs was exposed."""
        self._counted: dict[str, int] = {}
        self._counting: dict[str, int] = {}
        self._unseen: dict[BlobId, None] = {}
        self._watched: Collection[BlobId] = ()
        self._touched: dict[BlobId, None] = {}

    # --- exposed blobs ----------------------------------------------------------------------------------------------

    @property
    def exposed(self) -> int:
        """Blobs with fewer verified copies than wanted."""
        return len(self._exposed)

    @property
    def work(self) -> Work:
        """Work for these blobs."""
        left = {live: count for live, count in sorted(self._by_live.items()) if count}
        return Work(left, self._delayed, self._stuck, self._copies, self._bytes)

    @property
    def lost(self) -> int:
        """Blobs without a verified copy anywhere."""
        return len(self._lost)

    @property
    def lost_named(self) -> tuple[Endangered, ...]:
        """The first of the lost blobs."""
        return tuple(self._named.values())

    @property
    def unreachable(self) -> int:
        """Blobs whose verified copies are all on Shepherds that are away now."""
        return self._by_live.get(0, 0) - sum(blob in self._exposed for blob in self._lost)

    def lose(self, blob: Endangered) -> bool:
        """Note a lost blob. Returns whether that is news and it is kept by name: as few are logged."""
        self._unseen.pop(blob.blob, None)
        news = blob.blob not in self._lost
        self._lost[blob.blob] = None
        if blob.blob not in self._named and len(self._named) < bounds.LOST_NAMES_SHOWN:
            self._named[blob.blob] = blob
        assert len(self._named) <= min(len(self._lost), bounds.LOST_NAMES_SHOWN), "some of the lost are named"
        return news and blob.blob in self._named

    def found(self, blob: BlobId) -> None:
        """Note that a blob has a verified copy."""
        self._lost.pop(blob, None)
        self._named.pop(blob, None)

    def watch(self, blobs: Collection[BlobId]) -> None:
        """Watch these blobs, and no others, for being exposed, now or from now on."""
        self._watched = blobs
        self._touched = {blob: None for blob in blobs if blob in self._exposed}

    @property
    def touched(self) -> int:
        """Watched blobs that were found exposed."""
        assert len(self._touched) <= len(self._watched), "nothing else is watched"
        return len(self._touched)

    @property
    def watched(self) -> Mapping[int, int]:
        """Watched blobs with fewer verified copies than wanted: copies left -> blobs."""
        found: dict[int, int] = {}
        for blob in self._touched:
            packed = self._exposed.get(blob)
            if packed is not None:
                found[packed & _COUNT] = found.get(packed & _COUNT, 0) + 1
        return found

    def note(self, plan: BlobPlan) -> None:
        """Take over the counts of a plan."""
        self._unseen.pop(plan.blob, None)
        self.left_out(plan.blob)
        if plan.live < plan.wanted:
            if plan.blob in self._watched:
                self._touched[plan.blob] = None
            if not self._exposed:
                self.done = (0, 0)
            packed = self._exposed[plan.blob] = _pack(plan)
            self._add(packed, 1)

    def gone(self, blob: BlobId) -> None:
        """Note that a blob is gone."""
        self.found(blob)
        self.left_out(blob)

    def left_out(self, blob: BlobId) -> None:
        """Note that a blob, whole, lost or gone, wants no copy."""
        packed = self._exposed.pop(blob, None)
        if packed is not None:
            self._add(packed, -1)

    def copied(self, size: int) -> None:
        """Note that a copy was made."""
        assert size >= 0, "a copy that failed made nothing"
        self.done = (self.done[0] + 1, self.done[1] + size)

    def _add(self, packed: int, sign: int) -> None:
        live, lack = packed & _COUNT, packed >> _COUNT_BITS & _COUNT
        size, flags = packed >> (2 * _COUNT_BITS + 2), packed >> 2 * _COUNT_BITS & 3
        self._by_live[live] = self._by_live.get(live, 0) + sign
        self._delayed += sign * (flags & 1)
        self._stuck += sign * (flags >> 1)
        self._copies += sign * lack
        self._bytes += sign * lack * size
        assert min(self._by_live[live], self._delayed, self._stuck, self._copies, self._bytes) >= 0, "counted twice"

    # --- replicas by state ------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> Mapping[str, int]:
        """Replicas by state, as the last whole survey counted them."""
        return dict(self._counted)

    def begin(self) -> None:
        """Begin a survey."""
        self._counting = {}
        self._unseen = dict.fromkeys((*self._exposed, *self._lost))

    def count(self, state: str) -> None:
        """Count a replica that the survey meets in this state."""
        self._counting[state] = self._counting.get(state, 0) + 1

    def end(self) -> None:
        """End a survey: exposed or lost blobs that it has not met are gone by others' hands."""
        self._counted = self._counting
        for blob in self._unseen:
            self.gone(blob)


def _pack(plan: BlobPlan) -> int:
    """From the left: size, whether it is stuck, whether copies are waited for, copies lacking, copies live."""
    assert 0 <= plan.live < plan.wanted, "what lacks no copy is not exposed"
    lack = min(plan.wanted - plan.live, _COUNT)
    flags = int(plan.waited > 0) | int(plan.short > 0) << 1
    return ((max(plan.size, 0) << 2 | flags) << _COUNT_BITS | lack) << _COUNT_BITS | min(plan.live, _COUNT)
