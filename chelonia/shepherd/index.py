"""What this Shepherd holds, in memory: reference -> `Held`, and blob -> references. Built at start.

Replicas are kept as rows of bytes (`rows`), for there may be a million; those asked for lately also as they are.
References are kept in order as well, so that a scrub can go round by cursor and a start can compare page by page.
Lookups are exact: no prefix of an id ever matches. Pure, not thread-safe.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.shepherd import Scanned
from chelonia.shepherd import rows
from chelonia.shepherd.lifecycle import Held

WARM_MAX: Final = 4096
"""Replicas kept as objects because they were asked for lately."""


class Index:
    """The replicas of one Shepherd."""

    def __init__(self) -> None:
        self._rows: dict[ReferenceId, bytes] = {}
        self._blobs: dict[bytes, ReferenceId | tuple[ReferenceId, ...]] = {}
        self._order: list[ReferenceId] = []
        self._warm: dict[ReferenceId, Held] = {}
        self._changed: dict[ReferenceId, None] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, reference: ReferenceId) -> bool:
        return reference in self._rows

    def get(self, reference: ReferenceId) -> Held | None:
        """The replica called `reference`, or None."""
        held = self._warm.get(reference)
        if held is None and (row := self._rows.get(reference)) is not None:
            held = self._keep_warm(rows.unpack(reference, row))
        return held

    def put(self, held: Held) -> None:
        """Add a replica, or replace what is known of it."""
        row, old = rows.pack(held), self._rows.get(held.reference)
        if old is None or rows.facts_of(old) != rows.facts_of(row):
            self._changed[held.reference] = None
        if old is not None:
            self._forget(held.reference, old)
        else:
            self._enter(held.reference)
        self._add(held.reference, row)
        self._keep_warm(held)

    def load(self, page: Scanned, facts: Mapping[ReferenceId, bytes], until_ms: int) -> None:
        """Add the known replicas of a page: whole ones, whose facts were learned by an earlier start.

        Args:
            facts: of each, as `changes` gave them.
            until_ms: monotonic; those not committed are expected to be unknown until then.
        """
        committed, uncommitted = (rows.at_rest(committed=each, keep_until_ms=until_ms) for each in (True, False))
        known = [facts[reference] for reference in page.known]
        self.total_bytes += rows.sizes_together(known)
        if page.uncommitted:
            heads = (uncommitted if reference in page.uncommitted else committed for reference in page.known)
            self._rows.update(zip(page.known, map(bytes.__add__, heads, known), strict=True))
        else:
            self._rows.update(zip(page.known, map(committed.__add__, known), strict=True))
        self._enter_blobs(rows.fact_blobs(known), page.known)
        in_turn = not (self._order and page.known) or self._order[-1] < page.known[0]
        self._order += page.known
        if not in_turn:
            self._order.sort()

    def _enter_blobs(self, blobs: Sequence[bytes], references: Sequence[ReferenceId]) -> None:
        fresh = dict(zip(blobs, references, strict=True))
        if len(fresh) == len(blobs) and self._blobs.keys().isdisjoint(fresh):  # as good as always: one copy of each
            self._blobs.update(fresh)
            return
        for blob, reference in zip(blobs, references, strict=True):
            others = self._blobs.setdefault(blob, reference)
            if others is not reference:
                self._blobs[blob] = (*self._of_blob(blob), reference)

    def remove(self, reference: ReferenceId) -> Held | None:
        """Forget a replica; returns what was known of it."""
        held = self.get(reference)
        if held is None:
            return None
        self._forget(reference, self._rows.pop(reference))
        self._order.pop(bisect.bisect_left(self._order, reference))
        del self._warm[reference]
        self._changed[reference] = None
        return held

    def changes(self, limit: int) -> dict[ReferenceId, bytes]:
        """The facts of some that came, b"" of those that are gone or unreadable, since they were last asked for."""
        chosen = [reference for reference, _ in zip(self._changed, range(limit), strict=False)]
        for reference in chosen:
            del self._changed[reference]
        return {reference: rows.facts_of(self._rows.get(reference, b"")) for reference in chosen}

    def facts_after(self, after: str, limit: int) -> dict[ReferenceId, bytes]:
        """The facts of the next `limit` replicas in order, b"" of those that are unreadable."""
        start = bisect.bisect_right(self._order, ReferenceId(after))
        return {r: rows.facts_of(self._rows[r]) for r in self._order[start : start + limit]}

    def sizes_after(self, after: str, limit: int) -> dict[ReferenceId, int]:
        """The sizes of the next `limit` replicas in order, as their records have them."""
        start = bisect.bisect_right(self._order, ReferenceId(after))
        return {r: rows.size_of(self._rows[r]) for r in self._order[start : start + limit]}

    def live_copy(self, blob: BlobId) -> Held | None:
        """A live replica of exactly this blob, or None."""
        return next((self.get(r) for r in self._of_blob(rows.shorten(blob)) if rows.is_alive(self._rows[r])), None)

    def after(self, reference: str) -> Held | None:
        """The next replica in order of reference, going round at the end; None when there is none at all."""
        if not self._order:
            return None
        at = bisect.bisect_right(self._order, ReferenceId(reference))
        return self.get(self._order[at % len(self._order)])

    def count_after(self, after: str) -> int:
        """How many references are greater than `after`."""
        return len(self._order) - bisect.bisect_right(self._order, ReferenceId(after))

    def references(self, after: str, upto: str) -> list[ReferenceId]:
        """References with `after` < reference <= `upto` in order; `upto` "" means to the end."""
        start = bisect.bisect_right(self._order, ReferenceId(after))
        return self._order[start : bisect.bisect_right(self._order, ReferenceId(upto)) if upto else len(self._order)]

    def between(self, after: str, upto: str) -> Iterator[Held]:
        """Replicas with `after` < reference <= `upto` in order; `upto` "" means to the end."""
        for reference in self.references(after, upto):
            yield rows.unpack(reference, self._rows[reference])

    def _enter(self, reference: ReferenceId) -> None:
        if self._order and reference < self._order[-1]:
            bisect.insort(self._order, reference)
        else:
            self._order.append(reference)

    def _add(self, reference: ReferenceId, row: bytes) -> None:
        self._rows[reference] = row
        self.total_bytes += max(rows.size_of(row), 0)
        blob = rows.blob_of(row)
        if len(blob) > 1:
            others = self._of_blob(blob)
            self._blobs[blob] = (*others, reference) if others else reference

    def _forget(self, reference: ReferenceId, row: bytes) -> None:
        self.total_bytes -= max(rows.size_of(row), 0)
        blob = rows.blob_of(row)
        rest = tuple(other for other in self._of_blob(blob) if other != reference)
        if rest:
            self._blobs[blob] = rest
        else:
            self._blobs.pop(blob, None)

    def _of_blob(self, blob: bytes) -> tuple[ReferenceId, ...]:
        found = self._blobs.get(blob, ())
        return found if isinstance(found, tuple) else (found,)

    def _keep_warm(self, held: Held) -> Held:
        if len(self._warm) >= WARM_MAX:
            self._warm.clear()
        self._warm[held.reference] = held
        return held
