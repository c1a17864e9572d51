"""The stocktaking of a start, which builds the index without reading the record of every replica.

The facts of a replica never change. Once the namespace lists it, they are noted beside the replicas. The next start
reads the notes, and lists the directories to see which replicas are there. It reads only records that are not noted.
It reports those replicas, and the noted ones that are missing. Sizes are checked later, while it serves; until then
nobody relies on its inventory. Damage to a noted record is left to the scrub, which believes nothing but the disk.
Invariant: the mark (`note_mark`), which says how far the notes go, is durable with all notes before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import MARK, Notes, Scanned, StoredReplica
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store import note_mark as marks
from chelonia.shepherd.store.note_mark import NoteMark

log = logging.getLogger(__name__)

PAGE: Final = 1000
"""Replicas measured, or noted, at once: some milliseconds."""
BEHIND_MIN: Final = 10_000
"""Notes out of order, or of replicas that are gone, beyond half the number of replicas, at which all are rewritten.

In order, a start goes through its memory from end to end and takes two thirds of the time. While a store grows, each
note is written three times in all."""


class Stock:
    """The stocktaking of one Shepherd."""

    def __init__(self, node: ShepherdNode) -> None:
        self._node = node
        self.mark: NoteMark | None = None
        """The last mark that is durable."""
        self.unreported: dict[ReferenceId, None] = {}
        """Replicas that a start found and has to report, as the notes have them otherwise or not at all."""
        self.lost: dict[ReferenceId, bytes] = {}
        """Rows of replicas that are noted as listed and that a start did not find."""
        self._behind = 0
        self._measured_to, self._absences = "", 0
        self._writing = asyncio.Lock()
        self._again: dict[ReferenceId, None] | None = None
        self._rewriting = False

    async def take(self) -> None:
        """Build the index from notes, directories, and the records of replicas that are not noted."""
        node = self._node
        settings, now_ms = node.settings, node.ports.clock.monotonic_ms()
        head = rows.at_rest(now_ms + settings.unknown_grace_ms)  # the namespace has listed it
        notes = await node.ports.blobs.notes(head)
        self.mark = marks.decode(notes.mark)
        noted = sum(map(len, notes.parts.values()))
        unsure = _unsure(notes, len(head))
        scanned = dict.fromkeys(notes.parts, False)
        async for page in node.ports.blobs.scan(notes):
            scanned[page.prefix] = True
            self._take_page(page, notes)
            for stored in page.read:
                await self._found(stored, unsure.get(stored.reference, b""))
        for prefix in [prefix for prefix, seen in scanned.items() if not seen]:
            self._miss_listed(notes.parts[prefix], notes.parts[prefix])
        for reference in unsure:
            node.index.miss(reference)
        self._behind = notes.behind + max(noted - len(node.index), 0)
        read, missing = len(self.unreported), len(node.index.missing)
        text = "shepherd started boot=%d replicas=%d records_read=%d missing=%d"
        log.info(text, node.state.boot, len(node.index), read, missing)

    def _take_page(self, page: Scanned, notes: Notes) -> None:
        noted = notes.parts.get(page.prefix, {})
        if page.known is not noted:
            self._miss_listed(noted, noted.keys() - page.known.keys() - {stored.reference for stored in page.read})
        settled = self.mark is not None and self.mark.settled  # else there may be notes of uncommitted replicas, too
        unsettled = [reference for reference in page.uncommitted if reference in page.known] if settled else []
        self._node.index.load(page)
        for reference in unsettled:
            self._node.known(reference, ReplicaState.ALIVE)

    def _miss_listed(self, noted: Mapping[ReferenceId, bytes], references: Iterable[ReferenceId]) -> None:
        for reference in references:
            self._node.index.miss(reference)
            self.lost[reference] = noted[reference]

    async def _found(self, stored: StoredReplica, note: bytes) -> None:
        node, clock, settings = self._node, self._node.ports.clock, self._node.settings
        if stored.size < 0 and not stored.committed:
            await node.ports.blobs.erase(stored.reference)  # a crash during a commit: only the record came to be
            node.index.miss(stored.reference)
            return
        left_ms = lifecycle.left_ms(stored.facts, clock.now_ms(), settings) if stored.facts else 0
        held = lifecycle.found(stored, clock.monotonic_ms() + left_ms)
        if held.alive and note == rows.DAMAGED:
            log.info("replica was found damaged before reference=%s; it is checked again", held.reference)
            held = lifecycle.unproven(held)
            node.suspect(held.reference)
        elif not held.alive:
            log.warning("replica damaged reference=%s blob=%s; it will be checked", held.reference, held.blob)
            node.suspect(held.reference)
        node.index.put(held)
        self.unreported[held.reference] = None

    async def measure(self) -> None:
        """Check all replicas' sizes, once after a start and after each absence of the disk. Raises: UNAVAILABLE."""
        if self._absences != self._node.disk.absences:
            self._measured_to, self._absences, self._node.measured = "", self._node.disk.absences, False
        while not self._node.measured:
            await self._measure_page()

    async def _measure_page(self) -> None:
        node = self._node
        recorded = node.index.sizes_after(self._measured_to, PAGE)
        found = await node.ports.blobs.sizes(tuple(recorded))
        for (reference, size), actual in zip(recorded.items(), found, strict=True):
            if actual != size:
                await node.disk.require()
                self._check(reference, size, actual)
            self._measured_to = reference
        if not recorded:
            node.measured = True
            node.news.set()

    def _check(self, reference: ReferenceId, size: int, actual: int) -> None:
        """Have a replica checked that has `actual` bytes, not `size`, unless it was erased or replaced meanwhile."""
        node = self._node
        held = node.index.get(reference)
        if held is None or not held.alive or held.size != size:
            return
        node.index.put(lifecycle.unproven(held))
        text = "replica damaged reference=%s blob=%s bytes=%d; it will be checked"
        log.warning(text, reference, held.blob, actual)
        node.suspect(reference)
        node.report(reference)

    async def note(self, *, durably: bool = False) -> None:
        """Note changes since the last call. `durably`: sync all notes, unless there is no mark yet, without which no
        start relies on them. Raises: UNAVAILABLE, NO_SPACE."""
        async with self._writing:
            await self._note(self.mark if durably else None)

    async def keep(self, mark: NoteMark) -> None:
        """Note durably the changes and then the mark. Raises: as `note`."""
        async with self._writing:
            await self._note(mark)
            self.mark = mark

    async def _note(self, mark: NoteMark | None) -> None:
        index, more = self._node.index, True
        while more:
            changes = index.changes(PAGE)
            more = len(changes) == PAGE
            last = {MARK: marks.encode(mark)} if mark is not None and not more else {}
            if not changes and not last:
                return
            try:
                await self._node.ports.blobs.note({**changes, **last})
            except BaseException:
                index.unnoted(changes)
                raise
            self._behind += len(changes)
            if self._again is not None:
                self._again |= dict.fromkeys(changes)

    async def put_in_order(self) -> None:
        """Write all notes anew in order when too many are behind (`BEHIND_MIN`); changes meanwhile come last.

        Raises: UNAVAILABLE, NO_SPACE; then it is not tried again before as many more are behind.
        """
        if self._behind > len(self._node.index) // 2 + BEHIND_MIN:
            self._behind, self._again = 0, {}
            try:
                await self._node.ports.blobs.note_anew(self._everything())
            finally:
                self._again = None
                if self._rewriting:
                    self._rewriting = False
                    self._writing.release()

    async def _everything(self) -> AsyncIterator[dict[ReferenceId, bytes]]:
        """All notes, at last those changed meanwhile; before these it takes the lock on writing, and keeps it."""
        index = self._node.index
        await self._node.disk.require()
        after = ""
        while page := index.notes_after(after, PAGE):
            yield page
            await self._node.disk.require()  # never into the directory below a disk that has gone meanwhile
            after = next(reversed(page))
        await self._writing.acquire()
        self._rewriting = True
        mark = {MARK: marks.encode(self.mark)} if self.mark is not None else {}
        yield {**index.notes_of((self._again or {}) | index.missing), **mark}


def _unsure(notes: Notes, head_bytes: int) -> dict[ReferenceId, bytes]:
    """Take the `OPEN` and `DAMAGED` notes out of the notes, each of which follows `head_bytes` bytes."""
    short = head_bytes + len(rows.OPEN)
    found = dict[ReferenceId, bytes]()
    for part in notes.parts.values():
        for reference in [reference for reference, note in part.items() if len(note) == short]:
            found[reference] = part.pop(reference)[head_bytes:]
    return found
