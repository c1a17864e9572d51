"""What a start finds on the disk, without reading a record for each replica: the facts of a replica never change.

They are noted beside the replicas as they come, and given back at the next start; the directory says what is there. So
a start reads the records of what came since the last note, and finds out afterwards, while it serves, whether bytes
were cut off meanwhile. Until then its inventory is not compared, and nobody relies on what is believed of it.
A replica whose record was damaged while noted is found by the scrub, which believes nothing but the disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from chelonia.core.ids import ReferenceId
from chelonia.core.shepherd import StoredReplica
from chelonia.shepherd import lifecycle
from chelonia.shepherd.node import Node

log = logging.getLogger(__name__)

PAGE: Final = 1000
"""Replicas measured, or noted, at once: some milliseconds."""
STALE_MIN: Final = 10_000
"""Notes of replicas that are gone, beside as many as there are replicas, after which the notes are written anew."""


class Stock:
    """The stocktaking of one Shepherd."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._noted = 0
        self._measured_to = ""
        self._measuring = asyncio.Lock()

    async def take(self) -> None:
        """Build the index from what is on the disk."""
        node = self._node
        settings, now_ms = node.settings, node.ports.clock.monotonic_ms()
        keep_until_ms = now_ms + settings.ticket_lifetime_max_ms + settings.unknown_grace_ms
        notes = await node.ports.blobs.notes()
        self._noted, read = len(notes), 0
        async for page in node.ports.blobs.scan(notes.keys()):
            node.index.load(page, notes, keep_until_ms)
            read += len(page.read)
            for stored in page.read:
                await self._found(stored, keep_until_ms)
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
        async with self._measuring:
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
        blobs, index = self._node.ports.blobs, self._node.index
        if self._noted > 2 * len(index) + STALE_MIN:
            index.changes(self._noted + len(index))  # what changes from now on is noted behind
            everything, after = dict[ReferenceId, bytes](), ""
            while page := index.facts_after(after, PAGE):
                everything |= page
                after = next(reversed(page))
                await self._node.ports.clock.sleep(0)
            await blobs.note(everything, anew=True)
            self._noted = len(everything)
        while changes := index.changes(PAGE):
            self._noted += len(changes)
            await blobs.note(changes)
