"""What the healer has to look at: dirty blobs, parked ones, node sections to page through, and timers.

In memory only, for it can always be derived again; small state machines with monotonic time passed in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice

from chelonia.core.ids import BlobId, Ms, ServiceId

STUCK_MAX = 100_000
"""Blobs remembered for want of a target; the survey finds any beyond."""


class Worklist:
    """Blobs to plan, in the order in which they became known, each at most once."""

    def __init__(self) -> None:
        self._dirty: dict[BlobId, None] = {}
        self._parked: list[tuple[tuple[int, Ms, BlobId], BlobId]] = []
        self._parked_ids: set[BlobId] = set()
        self._stuck: dict[BlobId, None] = {}
        self._pages: dict[ServiceId, str] = {}
        self._timers: list[tuple[Ms, str, str]] = []
        self._set: dict[tuple[str, str], Ms] = {}

    def __len__(self) -> int:
        return len(self._dirty) + len(self._parked_ids) + len(self._stuck)

    @property
    def dirty(self) -> int:
        """Blobs that can be planned now."""
        return len(self._dirty)

    # --- blobs ------------------------------------------------------------------------------------------------------

    def mark(self, blobs: Iterable[BlobId]) -> None:
        """These blobs must be planned."""
        for blob in blobs:
            self._dirty[blob] = None
            self._stuck.pop(blob, None)

    def take(self, limit: int) -> list[BlobId]:
        """The next blobs to plan."""
        out = list(islice(self._dirty, limit))
        for blob in out:
            del self._dirty[blob]
        return out

    def park(self, blob: BlobId, danger: tuple[int, Ms, BlobId]) -> None:
        """This blob waits for a free slot."""
        if blob not in self._parked_ids:
            self._parked_ids.add(blob)
            heapq.heappush(self._parked, (danger, blob))

    def unpark(self, limit: int) -> None:
        """Let the most endangered of the waiting blobs be planned again."""
        while self._parked and limit > 0:
            _, blob = heapq.heappop(self._parked)
            self._parked_ids.discard(blob)
            self._dirty[blob] = None
            limit -= 1

    def stick(self, blob: BlobId) -> bool:
        """This blob waits for another node (or its source) to come; False when too many do."""
        if len(self._stuck) >= STUCK_MAX:
            return False
        self._stuck[blob] = None
        return True

    def unstick(self) -> None:
        """The nodes have changed: stuck blobs are planned again."""
        self._dirty.update(self._stuck)
        self._stuck.clear()

    # --- nodes ------------------------------------------------------------------------------------------------------

    def page(self, shepherd: ServiceId) -> None:
        """All blobs of this Shepherd must be planned: page through them from the start."""
        self._pages[shepherd] = ""

    def next_page(self) -> tuple[ServiceId, str] | None:
        """The Shepherd whose section is to be read next, and after which reference."""
        return next(iter(self._pages.items()), None)

    def paged(self, shepherd: ServiceId, read_after: str, last: str) -> None:
        """A page was read up to `last` ("" at the end) - unless it was restarted meanwhile."""
        if self._pages.get(shepherd) != read_after:
            return
        del self._pages[shepherd]
        if last:
            self._pages[shepherd] = last

    def leave_nodes(self) -> None:
        """Somebody else pages through Shepherds from now on."""
        self._pages.clear()
        self._timers = [timer for timer in self._timers if timer[1] == "blob"]
        heapq.heapify(self._timers)
        self._set = {key: due for key, due in self._set.items() if key[0] == "blob"}

    # --- timers -----------------------------------------------------------------------------------------------------

    def blob_at(self, due: Ms, blob: BlobId) -> None:
        """Plan a blob at a time."""
        self._at(due, "blob", blob)

    def node_at(self, due: Ms, shepherd: ServiceId) -> None:
        """Page through a Shepherd at a time."""
        self._at(due, "node", shepherd)

    def _at(self, due: Ms, what: str, key: str) -> None:
        """Set a timer; one that would ring earlier for the same thing is enough, for it sets the next."""
        if self._set.get((what, key), due + 1) > due:
            self._set[(what, key)] = due
            heapq.heappush(self._timers, (due, what, key))

    def ring(self, now: Ms) -> None:
        """Do what is due."""
        while self._timers and self._timers[0][0] <= now:
            due, what, key = heapq.heappop(self._timers)
            if self._set.get((what, key)) == due:
                del self._set[(what, key)]
            if what == "blob":
                self.mark((BlobId(key),))
            else:
                self.page(ServiceId(key))
