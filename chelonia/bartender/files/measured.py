"""All checksums measured of a file's bytes, as the records beside its replicas have them.

A file of several blobs has those that combine over its extents. It has none while an extent is only a piece of its
blob, or unwritten bytes lie between. A checksum that no Shepherd has now is "", and no failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry
from chelonia.bartender.transfers import locations
from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Location, ReplicaState
from chelonia.core.contents.attributes import attributes_of
from chelonia.core.contents.extents import Extent
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, ObjectId, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.shepherd import MeasuredOutcome
from chelonia.wire.crcs import combined

COMBINING: Final = ("adler32", "crc32c", "crc64nvme")
ROUNDS: Final = 3
"""Shepherds tried for one blob, one after the other."""
_ALIVE: Final = (ReplicaState.ALIVE.value,)
_WHOLE: Final = BlobId("")


async def checksums(ports: Ports, turn: ElementCall, found: FoundEntry, recorded: Checksums) -> Checksums:
    """Return the known checksums of a file's bytes. `recorded`: those in the metadata."""
    size = attributes_of(found.object).size
    if not found.section("content"):
        outcomes = await _outcomes(ports, turn, {_WHOLE: locations(found.object, _ALIVE)})
        outcome = outcomes.get(_WHOLE, MeasuredOutcome())
        fits = outcome.size == size and not outcome.checksums.conflicts(recorded)
        return recorded.with_more(outcome.checksums) if fits else recorded
    extents, holders = await _laid(ports, turn, found, size)
    outcomes = await _outcomes(ports, turn, holders)
    measured = [outcomes.get(extent.blob, MeasuredOutcome()) for extent in extents]
    ends = [0, *(extent.end for extent in extents)]
    if [extent.at for extent in extents] + [size] != ends or not extents:
        return recorded
    if any(extent.length != one.size for extent, one in zip(extents, measured, strict=True)):
        return recorded
    sums = {kind: combined(kind, [(getattr(one.checksums, kind), one.size) for one in measured]) for kind in COMBINING}
    return recorded.with_more(Checksums(**sums))


async def _laid(
    ports: Ports, turn: ElementCall, found: FoundEntry, size: int
) -> tuple[list[Extent], dict[BlobId, list[Location]]]:
    """Return the extents of a file and the locations of their blobs; none for very many, or while it changes."""
    extents, holders, at, etag = list[Extent](), dict[BlobId, list[Location]](), 0, attributes_of(found.object).etag
    while at < size:
        page = await ports.librarian.extents(turn.service, found.guid, at, size)
        if page.etag != etag or page.until <= at or len(extents) > bounds.MEASURED_EXTENTS_MAX:
            return [], {}
        extents += page.extents
        for place in page.blobs:
            stored = StoredObject(ObjectId(place.blob), 1, {"locations": place.locations})
            holders[place.blob] = locations(stored, _ALIVE)
        at = page.until
    return extents, holders


async def _outcomes(
    ports: Ports, turn: ElementCall, holders: Mapping[BlobId, Sequence[Location]]
) -> dict[BlobId, MeasuredOutcome]:
    """Return Shepherds' answers about blobs. Where one has none, it tries the next."""
    outcomes = dict[BlobId, MeasuredOutcome]()
    waiting = {blob: await ports.shepherds.nearest(turn.service, places) for blob, places in holders.items()}
    for _ in range(ROUNDS):
        batches = dict[ServiceId, list[tuple[BlobId, Location]]]()
        for blob, places in waiting.items():
            if blob not in outcomes and places:
                location = places.pop(0)
                batches.setdefault(location.shepherd, []).append((blob, location))
        answers = await asyncio.gather(*(_ask(ports, turn, *each) for each in batches.items()))
        for blob, outcome in (pair for answer in answers for pair in answer):
            if outcome.size >= 0:
                outcomes[blob] = outcome
    return outcomes


async def _ask(
    ports: Ports, turn: ElementCall, shepherd: ServiceId, blobs: Sequence[tuple[BlobId, Location]]
) -> Iterable[tuple[BlobId, MeasuredOutcome]]:
    """Return one Shepherd's answers; none when it does not answer, or its version is too old."""
    port, references = ports.shepherds.port(shepherd), tuple(location.reference for _, location in blobs)
    try:
        outcomes = await ports.shepherds.await_answer(shepherd, port.sums(turn.service, references))
    except CheloniaError:
        return ()
    return [(blob, outcome) for (blob, _), outcome in zip(blobs, outcomes, strict=True)]
