"""What a start finds on the disk, without reading a record for each replica: the facts of a replica never change.

They are noted beside the replicas as they come, and given back at the next start; the directory says what is there. So
a start reads the records of what came since the last note, and finds out afterwards, while it serves, whether bytes
were cut off meanwhile. Until then its inventory is not compared, and nobody relies on what is believed of it.
A replica whose record was damaged while noted is found by the scrub, which believes nothing but the disk.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final

from chelonia.core.ids import ReferenceId
from chelonia.core.shepherd import StoredReplica
from chelonia.shepherd import lifecycle, rows
from chelonia.shepherd.node import Node

log = logging.getLogger(__name__)

PAGE: Final = 1000
"""Replicas measured, or noted, at once: some milliseconds."""
BEHIND_MIN: Final = 10_000
"""So many notes behind those in order, or of what is gone, beside half as many as there are replicas, and all are
written anew in order: then a start goes through its memory from end to end, in two thirds of the time. While a store
grows, each note is written three times in all."""


class Stock:
    """The stocktaking of one Shepherd."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._behind = 0
        self._measured_to = ""

    async def take(self) -> None:
        """Build the index from what is on the disk."""
        node = self._node
        settings, now_ms = node.settings, node.ports.clock.monotonic_ms()
        keep_until_ms = now_ms + settings.ticket_lifetime_max_ms + settings.unknown_grace_ms
        notes = await node.ports.blobs.notes(rows.at_rest(keep_until_ms))
        noted, read = sum(map(len, notes.parts.values())), 0
        async for page in node.ports.blobs.scan(notes):
            node.index.load(page)
            read += len(page.read)
            for stored in page.read:
                await self._found(stored, keep_until_ms)
        self._behind = notes.behind + max(noted - len(node.index), 0)
        log.info("shepherd started boot=%d replicas=%d records_read=%d", node.state.boot, len(node.index), read)

    async def _found(self, stored: StoredReplica, keep_until_ms: int) -> None:
        node = self._node
        if stored.size < 0 and not stored.committed:
            await node.ports.blobs.erase(stored.reference)  # a crash during a commit: only the record came to be
            return
        held = lifecycle.found(stored, keep_until_ms)
        node.index.put(held)
        if not held.alive:
            log.warning("replica damaged reference=%s blob=%s; it will be checked", held.reference, held.blob)
            node.suspect(held.reference)

    async def measure(self) -> None:
        """Look, once after a start, whether all bytes of every replica are there. Raises: UNAVAILABLE."""
        while not self._node.measured:
            await self._measure_page()

    async def _measure_page(self) -> None:
        node = self._node
        recorded = node.index.sizes_after(self._measured_to, PAGE)
        found = await node.ports.blobs.sizes(tuple(recorded))
        for (reference, size), there in zip(recorded.items(), found, strict=True):
            held = node.index.get(reference) if there != size else None
            if held is not None and held.alive and held.size == size:
                await node.disk.require()
                node.index.put(lifecycle.unproven(held))
                text = "replica damaged reference=%s blob=%s bytes=%d; it will be checked"
                log.warning(text, reference, held.blob, there)
                node.suspect(reference)
            self._measured_to = reference
        if not recorded:
            node.measured = True
            node.news.set()

    async def note(self) -> None:
        """Note what came and what is gone since the last time. Raises: UNAVAILABLE."""
        while changes := self._node.index.changes(PAGE):
            self._behind += len(changes)
            await self._node.ports.blobs.note(changes)

    async def put_in_order(self) -> None:
        """Write all notes anew in order when too many are behind: what changes meanwhile is noted after it.

        Raises: UNAVAILABLE, NO_SPACE; then it is not tried again before as many more are behind.
        """
        if self._behind > len(self._node.index) // 2 + BEHIND_MIN:
            self._behind = 0
            await self._node.ports.blobs.note_anew(self._everything())

    async def _everything(self) -> AsyncIterator[dict[ReferenceId, bytes]]:
        await self._node.disk.require()
        after = ""
        while page := self._node.index.facts_after(after, PAGE):
            yield {reference: facts for reference, facts in page.items() if facts}
            await self._node.disk.require()  # never into the directory below a disk that has gone meanwhile
            after = next(reversed(page))
