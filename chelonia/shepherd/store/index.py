"""The index of this Shepherd's replicas, in memory: reference -> `KeptReplica`, and blob -> references. Built at start.

Replicas are kept as rows of bytes (`compact_rows`), for there may be a million; recently used ones also as objects.
They are kept in parts, by prefix of reference, as a start finds them. A part is sorted when it is first gone through in
order, as a scrub by its cursor or a comparison by pages does. Lookups are exact: no prefix of an id ever matches.
Pure, not thread-safe.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.ports.shepherd import PREFIX_CHARS, Scanned
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store.lifecycle import KeptReplica

WARM_MAX: Final = 4096
"""Recently used replicas kept as objects."""


class Index:
    """The replicas of one Shepherd."""

    def __init__(self) -> None:
        self._parts: dict[str, _IndexPart] = {}
        self._prefixes: list[str] = []
        self._blobs: dict[bytes, ReferenceId | tuple[ReferenceId, ...]] = {}
        self._warm: dict[ReferenceId, KeptReplica] = {}
        self._changed: dict[ReferenceId, None] = {}
        self.missing: dict[ReferenceId, None] = {}
        """Replicas that are not here, though the namespace may list them: noted until that is reported."""
        self.uncommitted: dict[ReferenceId, None] = {}
        """Replicas that no transact is known to have named."""
        self.strangers: dict[ReferenceId, None] = {}
        """Committed replicas that the namespace did not know by its last answer."""
        self._count = 0
        self.total_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, reference: ReferenceId) -> bool:
        return self._row(reference) is not None

    def get(self, reference: ReferenceId) -> KeptReplica | None:
        """Return the replica called `reference`, or None."""
        held = self._warm.get(reference)
        if held is None and (row := self._row(reference)) is not None:
            held = self._keep_warm(rows.unpack(reference, row))
        return held

    def put(self, held: KeptReplica) -> None:
        """Add a replica, or replace the one of its reference."""
        part = self._part(held.reference[:PREFIX_CHARS])
        row, old = rows.pack(held), part.rows.get(held.reference)
        if old is None or rows.note_of(old) != rows.note_of(row):
            self._changed[held.reference] = None
        self.missing.pop(held.reference, None)
        if old is None:
            self._count += 1
        else:
            self._forget(held.reference, old)
        part.enter(held.reference, row)
        self._add(held.reference, row)
        self._keep_warm(held)
        self.uncommitted.pop(held.reference, None)
        if not held.committed:
            self.uncommitted[held.reference] = None

    def load(self, page: Scanned) -> None:
        """Add the known replicas of a page: whole ones, whose facts an earlier start has read. Replicas that are in the
        index already stay as they are.

        Args:
            page: the note of each known one is `compact_rows.at_rest` and its facts.
        """
        part = self._part(page.prefix)
        for reference in part.rows:
            page.known.pop(reference, None)
        for reference in page.uncommitted & page.known.keys():
            page.known[reference] = rows.uncommitted(page.known[reference])
            self.uncommitted[reference] = None
        self._enter_blobs(page.known)
        self.total_bytes += rows.sizes_together(page.known.values())
        self._count += len(page.known)
        page.known.update(part.rows)
        part.rows, part.order = page.known, None
        assert self._count >= len(part.rows), "all of a part are counted"

    def _enter_blobs(self, known: Mapping[ReferenceId, bytes]) -> None:
        blobs = rows.blobs_of(known.values())
        first = list(map(self._blobs.setdefault, blobs, known))
        if first == list(known):  # as good as always: one copy of each
            return
        for blob, other, reference in zip(blobs, first, known, strict=True):
            if other is not reference:
                self._blobs[blob] = (*self._of_blob(blob), reference)

    def remove(self, reference: ReferenceId) -> KeptReplica | None:
        """Remove a replica; returns it, None when it was not here."""
        held = self.get(reference)
        if held is None:
            return None
        self._forget(reference, self._part(reference[:PREFIX_CHARS]).take(reference))
        self._count -= 1
        assert self._count >= 0, "what goes was counted"
        assert reference not in self, "it is in one part"
        del self._warm[reference]
        self.uncommitted.pop(reference, None)
        self.strangers.pop(reference, None)
        self._changed[reference] = None
        return held

    def miss(self, reference: ReferenceId) -> None:
        """Note that this replica is not here, and that the namespace may list it."""
        if reference not in self:
            self.missing[reference] = self._changed[reference] = None

    def confirm_missing(self, reference: ReferenceId) -> None:
        """Note that the namespace knows that this replica is not here."""
        if reference in self.missing:
            del self.missing[reference]
            self._changed[reference] = None

    def changes(self, limit: int) -> dict[ReferenceId, bytes]:
        """Return notes of up to `limit` replicas that came, went or changed since the last call, b"" of those gone."""
        chosen = [reference for reference, _ in zip(self._changed, range(limit), strict=False)]
        for reference in chosen:
            del self._changed[reference]
        return self.notes_of(chosen)

    def unnoted(self, references: Iterable[ReferenceId]) -> None:
        """Take back replicas that `changes` returned and that could not be noted."""
        self._changed = {**dict.fromkeys(references), **self._changed}

    def notes_of(self, references: Iterable[ReferenceId]) -> dict[ReferenceId, bytes]:
        """Return the notes of these replicas, b"" of those gone."""
        return {reference: self._note(reference) for reference in references}

    def notes_after(self, after: str, limit: int) -> dict[ReferenceId, bytes]:
        """Return the notes of the next `limit` replicas in order."""
        return {reference: rows.note_of(row) for reference, row in self._following(after, limit)}

    def _note(self, reference: ReferenceId) -> bytes:
        row = self._row(reference)
        if row is not None:
            return rows.note_of(row)
        return rows.OPEN if reference in self.missing else b""

    def sizes_after(self, after: str, limit: int) -> dict[ReferenceId, int]:
        """Return the sizes of the next `limit` replicas in order, as their records have them."""
        return {reference: rows.size_of(row) for reference, row in self._following(after, limit)}

    def live_copy(self, blob: BlobId) -> KeptReplica | None:
        """Return a live replica of exactly this blob, or None."""
        copies = map(self.get, self._of_blob(rows.shorten(blob)))
        return next((held for held in copies if held is not None and held.alive), None)

    def after(self, reference: str) -> KeptReplica | None:
        """Return the next replica in order of reference, after the last the first; None when there is none at all."""
        for part, span in chain(self._spans(reference, ""), self._spans("", "")):
            if span.start < span.stop:
                return self.get(part.in_order()[span.start])
        return None

    def count_after(self, after: str) -> int:
        """Return how many references are greater than `after`."""
        prefix = after[:PREFIX_CHARS]
        later = self._prefixes[bisect.bisect_right(self._prefixes, prefix) :]
        order = self._parts[prefix].in_order() if prefix in self._parts else []
        beside = len(order) - bisect.bisect_right(order, after)
        found = beside + sum(len(self._parts[each].rows) for each in later)
        assert found <= self._count, "no more come after it than there are"
        return found

    def references(self, after: str, upto: str) -> list[ReferenceId]:
        """Return the references with `after` < reference <= `upto` in order; `upto` "" means to the end."""
        found = list[ReferenceId]()
        for part, span in self._spans(after, upto):
            found += part.in_order()[span]
        return found

    def following(self, after: str, limit: int) -> list[KeptReplica]:
        """Return the next `limit` replicas in order."""
        return [rows.unpack(reference, row) for reference, row in self._following(after, limit)]

    def _following(self, after: str, limit: int) -> list[tuple[ReferenceId, bytes]]:
        found = list[tuple[ReferenceId, bytes]]()
        for part, span in self._spans(after, ""):
            chosen = part.in_order()[span.start : span.start + limit - len(found)]
            found += [(reference, part.rows[reference]) for reference in chosen]
            if len(found) == limit:
                break
        assert len(found) <= limit, "a page is no longer than was asked"
        return found

    def _spans(self, after: str, upto: str) -> Iterator[tuple[_IndexPart, slice]]:
        """The parts, and slices of their order, of references with `after` < reference <= `upto`."""
        for at in range(bisect.bisect_left(self._prefixes, after[:PREFIX_CHARS]), len(self._prefixes)):
            if upto and self._prefixes[at] > upto:
                break
            part = self._parts[self._prefixes[at]]
            order = part.in_order()
            stop = bisect.bisect_right(order, upto) if upto else len(order)
            yield part, slice(bisect.bisect_right(order, after), stop)

    def _row(self, reference: ReferenceId) -> bytes | None:
        part = self._parts.get(reference[:PREFIX_CHARS])
        return None if part is None else part.rows.get(reference)

    def _part(self, prefix: str) -> _IndexPart:
        if prefix not in self._parts:
            self._parts[prefix] = _IndexPart()
            bisect.insort(self._prefixes, prefix)
        return self._parts[prefix]

    def _add(self, reference: ReferenceId, row: bytes) -> None:
        self.total_bytes += max(rows.size_of(row), 0)
        blob = rows.blob_of(row)
        if len(blob) > 1:
            others = self._of_blob(blob)
            self._blobs[blob] = (*others, reference) if others else reference

    def _forget(self, reference: ReferenceId, row: bytes) -> None:
        self.total_bytes -= max(rows.size_of(row), 0)
        assert self.total_bytes >= 0, "its bytes were counted"
        blob = rows.blob_of(row)
        copies = self._of_blob(blob)
        assert len(blob) <= 1 or reference in copies, "a blob knows its copies here"
        rest = tuple(other for other in copies if other != reference)
        if rest:
            self._blobs[blob] = rest
        else:
            self._blobs.pop(blob, None)

    def _of_blob(self, blob: bytes) -> tuple[ReferenceId, ...]:
        found = self._blobs.get(blob, ())
        return found if isinstance(found, tuple) else (found,)

    def _keep_warm(self, held: KeptReplica) -> KeptReplica:
        if len(self._warm) >= WARM_MAX:
            self._warm.clear()
        self._warm[held.reference] = held
        assert len(self._warm) <= WARM_MAX, "memory is bounded"
        return held


class _IndexPart:
    """The replicas whose references begin alike. `order`: their references in order, from the first use on."""

    def __init__(self) -> None:
        self.rows: dict[ReferenceId, bytes] = {}
        self.order: list[ReferenceId] | None = None

    def in_order(self) -> list[ReferenceId]:
        if self.order is None:
            self.order = sorted(self.rows)
        assert len(self.order) == len(self.rows), "each row has its place in the order"
        return self.order

    def enter(self, reference: ReferenceId, row: bytes) -> None:
        if self.order is not None and reference not in self.rows:
            bisect.insort(self.order, reference)
        self.rows[reference] = row

    def take(self, reference: ReferenceId) -> bytes:
        if self.order is not None:
            gone = self.order.pop(bisect.bisect_left(self.order, reference))
            assert gone == reference, "no other loses its place"
        return self.rows.pop(reference)
