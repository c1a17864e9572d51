"""What this Shepherd holds, in memory: reference -> `Held`, and blob -> references. Rebuilt from the records at start.

References are kept in order as well, so that a scrub can go round by cursor and a start can compare page by page.
Lookups are exact: no prefix of an id ever matches. Pure, not thread-safe.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from chelonia.core.ids import BlobId, ReferenceId
from chelonia.shepherd.lifecycle import Held


class Index:
    """The replicas of one Shepherd."""

    def __init__(self) -> None:
        self._held: dict[ReferenceId, Held] = {}
        self._blobs: dict[BlobId, tuple[ReferenceId, ...]] = {}
        self._order: list[ReferenceId] = []
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, reference: ReferenceId) -> bool:
        return reference in self._held

    def get(self, reference: ReferenceId) -> Held | None:
        """The replica called `reference`, or None."""
        return self._held.get(reference)

    def put(self, held: Held) -> None:
        """Add a replica, or replace what is known of it."""
        old = self._held.get(held.reference)
        if old is None:
            bisect.insort(self._order, held.reference)
        else:
            self._forget_blob(old)
            self.total_bytes -= max(old.size, 0)
        self._held[held.reference] = held
        self.total_bytes += max(held.size, 0)
        if held.blob:
            self._blobs[held.blob] = (*self._blobs.get(held.blob, ()), held.reference)

    def remove(self, reference: ReferenceId) -> Held | None:
        """Forget a replica; returns what was known of it."""
        held = self._held.pop(reference, None)
        if held is None:
            return None
        self._order.pop(bisect.bisect_left(self._order, reference))
        self._forget_blob(held)
        self.total_bytes -= max(held.size, 0)
        return held

    def live_copy(self, blob: BlobId) -> Held | None:
        """A live replica of exactly this blob, or None."""
        for reference in self._blobs.get(blob, ()):
            held = self._held[reference]
            if held.alive:
                return held
        return None

    def after(self, reference: str) -> Held | None:
        """The next replica in order of reference, going round at the end; None when there is none at all."""
        if not self._order:
            return None
        at = bisect.bisect_right(self._order, ReferenceId(reference))
        return self._held[self._order[at % len(self._order)]]

    def count_after(self, after: str) -> int:
        """How many references are greater than `after`."""
        return len(self._order) - bisect.bisect_right(self._order, ReferenceId(after))

    def between(self, after: str, upto: str) -> Iterator[Held]:
        """Replicas with `after` < reference <= `upto` in order; `upto` "" means to the end."""
        start = bisect.bisect_right(self._order, ReferenceId(after))
        end = bisect.bisect_right(self._order, ReferenceId(upto)) if upto else len(self._order)
        for reference in self._order[start:end]:
            yield self._held[reference]

    def _forget_blob(self, held: Held) -> None:
        rest = tuple(r for r in self._blobs.get(held.blob, ()) if r != held.reference)
        if rest:
            self._blobs[held.blob] = rest
        else:
            self._blobs.pop(held.blob, None)
