"""Small blobs that travel in messages: stored whole, and read whole, without a ticket.

The rules of an upload hold: space as promised, checksums measured here, one copy of a blob, no receipt before bytes
and record are durable. Blobs that no transact names go as other uncommitted bytes do.
Blobs that come while the disk is busy are written together: one hop to a thread, and syncs that share their work.
Invariant: a stored blob is in the index even if the caller has gone away meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Receipt
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import (
    FetchOutcome,
    MeasuredOutcome,
    Purpose,
    PutRequest,
    SmallBlob,
    SmallReplica,
    StoreOutcome,
)
from chelonia.core.timing.gathering import BatchLimits, Gathering, Pending, still_wanted
from chelonia.core.values import replace
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store.checksums import OFF_LOOP_BYTES_MIN, Hasher
from chelonia.shepherd.store.lifecycle import KeptReplica
from chelonia.shepherd.transfers import ticket_gate as gate
from chelonia.shepherd.transfers.uploads import ShepherdUploads, wrong_checksum

SPACE_MS: Final = 1000
"""Age limit of the count of free bytes; bytes stored since are subtracted, and the disk checks again itself."""
STORE: Final = "store"
WRITERS: Final = 2
"""Batches on their way to the disk at once: while one is synced the other is written."""
BATCH: Final = BatchLimits[SmallReplica](
    bounds.BULK_ELEMENTS_MAX, WRITERS, 0, lambda replica: len(replica.data), bounds.STORED_CALL_BYTES_MAX
)


class SmallBlobs:
    """Whole small blobs of one Shepherd."""

    def __init__(self, node: ShepherdNode, uploads: ShepherdUploads) -> None:
        self._node = node
        self._uploads = uploads
        self._free = 0
        self._counted_ms = -1
        self._writing: Gathering[SmallReplica, Receipt] = Gathering(self._written, node.ports.clock, BATCH)
        self._hashed = 0

    async def store(self, blobs: Sequence[SmallBlob]) -> tuple[StoreOutcome, ...]:
        """Put blobs on stable storage, together; one outcome each, in order. Raises: TOO_LARGE."""
        _check_size(STORE, sum(len(each.data) for each in blobs))
        node = self._node
        if node.disk.unready:
            why = f"not ready: {node.disk.unready}"
            return tuple(StoreOutcome(error=why, kind=Kind.UNAVAILABLE.value) for _ in blobs)
        for blob in blobs:
            self._note_named(blob.named)
        await self._count()
        checked = list[SmallReplica | StoreOutcome]()
        for each in blobs:
            await self._breathe(len(each.data))
            checked.append(self._checked(each))
        writing = [self._writing.ask(each) for each in checked if isinstance(each, SmallReplica)]
        given = await asyncio.gather(*writing, return_exceptions=True)
        if any(isinstance(each, CheloniaError) for each in given):
            await node.disk.look(hard=True)
        outcomes = map(_outcome, given)
        return tuple(each if isinstance(each, StoreOutcome) else next(outcomes) for each in checked)

    async def fetch(self, references: Sequence[ReferenceId]) -> tuple[FetchOutcome, ...]:
        """Read whole replicas, checked; one outcome each, in order. Raises: TOO_LARGE."""
        found = [self._node.index.get(reference) for reference in references]
        _check_size("fetch", sum([held.size for held in found if held is not None]))
        outcomes = list[FetchOutcome | None]()
        for reference, held in zip(references, found, strict=True):
            await self._breathe(held.size if held is not None else 0)
            outcomes.append(self._at_once(reference, held))
        reading = [held for held, outcome in zip(found, outcomes, strict=True) if held is not None and outcome is None]
        read = iter(await asyncio.gather(*map(self._read, reading)) if reading else ())
        return tuple([next(read) if outcome is None else outcome for outcome in outcomes])

    async def sums(self, reference: ReferenceId) -> MeasuredOutcome:
        """Return size and checksums from the record of a replica that is alive; else empty."""
        held = self._node.index.get(reference)
        facts = await self._node.ports.blobs.facts(reference) if held is not None and held.alive else None
        return MeasuredOutcome(facts.size, facts.checksums) if facts is not None else MeasuredOutcome()

    async def _breathe(self, size: int) -> None:
        """Let others have a turn of the event loop before so many bytes more are hashed in it."""
        self._hashed += size
        if self._hashed > OFF_LOOP_BYTES_MIN:
            self._hashed = size
            await self._node.ports.clock.sleep(0)

    def _note_named(self, references: Sequence[ReferenceId]) -> None:
        """Note that a transact has named these replicas: they need no report for that."""
        for reference in references:
            held = self._node.index.get(reference)
            if held is not None and lifecycle.is_named(held):
                self._node.listed(reference)

    # --- storing ----------------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        now_ms = self._node.ports.clock.monotonic_ms()
        if self._counted_ms < 0 or now_ms - self._counted_ms >= SPACE_MS:
            self._free, _ = await self._node.ports.blobs.space()  # calls meanwhile count too
            self._counted_ms = now_ms

    def _checked(self, blob: SmallBlob) -> SmallReplica | StoreOutcome:
        expected, size = blob.facts, len(blob.data)
        if size > bounds.INLINE_BYTES_MAX or expected.size != size:
            cause = f"{size} bytes; {expected.size} were announced, at most {bounds.INLINE_BYTES_MAX} come in a message"
            return StoreOutcome(error=cause, kind=Kind.BAD_REQUEST.value)
        refusal = self._uploads.refusal(PutRequest("", expected, Purpose.RECEIPT, (PROTOCOL_HTTP,)), self._free)
        if refusal is not None:
            return StoreOutcome(error=refusal[0], kind=refusal[1].value)
        hasher = Hasher(md5=bool(expected.checksums.md5))
        hasher.update(blob.data)
        reference = ReferenceId(self._node.ports.ids.uuid())
        measured = hasher.checksums()
        if expected.checksums.conflicts(measured):
            error = wrong_checksum(reference, expected.checksums, measured)
            return StoreOutcome(error=error.cause, kind=error.kind.value)
        self._free -= size
        return SmallReplica(reference, replace(expected, checksums=measured), blob.data)

    async def _written(self, batch: list[Pending[SmallReplica, Receipt]]) -> None:
        await self._node.background.start(self._write(batch))

    async def _write(self, batch: list[Pending[SmallReplica, Receipt]]) -> None:
        """Write a batch at once; if that fails, each by itself, so that none fails for another's bytes."""
        replicas = [each.asked for each in batch]
        try:
            await self._node.ports.blobs.store_whole(replicas)
        except CheloniaError as error:
            if len(batch) > 1:
                for one in batch:
                    await self._write([one])
                return
            for each in still_wanted(batch):
                each.answer.set_exception(error)
            return
        self._node.ports.moved("in", sum(len(replica.data) for replica in replicas))
        for each, receipt in zip(batch, self._node.receipts(self._taken(replicas)), strict=True):
            if not each.answer.done():
                each.answer.set_result(receipt)

    def _taken(self, replicas: Sequence[SmallReplica]) -> list[KeptReplica]:
        node, kept = self._node, list[KeptReplica]()
        now_ms, wall_ms = node.ports.clock.monotonic_ms(), node.ports.clock.now_ms()
        for replica in replicas:
            facts = replica.facts
            lasts_ms = gate.lifetime_ms(node, facts.commit_within_ms) + node.settings.unknown_grace_ms
            kept.append(lifecycle.arrived(replica.reference, facts, now_ms + lasts_ms, wall_ms))
        node.took(kept, node.settings.uncommitted_report_ms)
        return kept

    # --- reading ----------------------------------------------------------------------------------------------------

    def _at_once(self, reference: ReferenceId, held: KeptReplica | None) -> FetchOutcome | None:
        """The outcome for a replica that does not have to be read from the disk; None: it has to be."""
        if held is None or not held.alive:
            self._node.doubt(reference)
            return FetchOutcome(error="file is not alive", kind=Kind.NOT_ALIVE.value)
        if held.size > bounds.INLINE_BYTES_MAX:
            return FetchOutcome(error="it is not small; ask for a TURL", kind=Kind.TOO_LARGE.value)
        data = self._node.ports.blobs.at_hand(reference, held.size)
        return None if data is None else self._proven(held, data)

    async def _read(self, held: KeptReplica) -> FetchOutcome:
        try:
            chunks = self._node.ports.blobs.read(held.reference, ByteRange(0, held.size))
            return self._proven(held, b"".join([chunk async for chunk in chunks]))
        except CheloniaError as error:
            if error.kind is Kind.NOT_ALIVE:
                self._node.suspect(held.reference)
            return FetchOutcome(error=error.cause, kind=error.kind.value)

    def _proven(self, held: KeptReplica, data: bytes) -> FetchOutcome:
        """The outcome for bytes that were read, once their checksum agrees."""
        if hashlib.sha256(data).hexdigest() != held.checksums.sha256:
            self._node.suspect(held.reference)
            return FetchOutcome(error="its bytes have another checksum", kind=Kind.NOT_ALIVE.value)
        self._node.ports.moved("out", len(data))
        return FetchOutcome(data)


def _outcome(given: Receipt | BaseException) -> StoreOutcome:
    if isinstance(given, CheloniaError):
        return StoreOutcome(error=str(given), kind=given.kind.value)
    if isinstance(given, BaseException):
        raise given
    return StoreOutcome(given)


def _check_size(op: str, size: int) -> None:
    if size > bounds.STORED_CALL_BYTES_MAX:
        cause = f"{size} bytes in one call; at most {bounds.STORED_CALL_BYTES_MAX}"
        raise CheloniaError(Kind.TOO_LARGE, f"shepherd.{op}", "", cause)
