"""The download side: read tickets, open replicas, and the use of single-use tickets.

Bytes are verified block by block before they leave. A replica that a read finds truncated, unreadable or wrong is
checked at once.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Checksums
from chelonia.core.contents.extents import ByteRange, within
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ReferenceId
from chelonia.core.ports.shepherd import BlobStore, Download, GetRequest, Turl, TurlOutcome
from chelonia.core.status import NO_SUPPORTED_PROTOCOL
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.store.lifecycle import KeptReplica
from chelonia.shepherd.store.verified import verified
from chelonia.shepherd.transfers import ticket_gate as gate
from chelonia.wire.tickets import Ticket


class _SingleUses:
    """Single-use tickets that were presented, by their nonces: being read, or used up and not expired."""

    def __init__(self) -> None:
        self._presented: set[str] = set()
        self._used_up: list[tuple[Ms, str]] = []
        """Used-up tickets as a heap by expiry: a busy hour leaves very many, and few expire at a time."""

    def begin(self, ticket: Ticket) -> None:
        """Begin a read with this ticket. Raises: ALREADY_DONE when one is under way, or was complete."""
        if ticket.nonce in self._presented:
            cause = "this TURL is for one download and was used; ask for a new TURL"
            raise CheloniaError(Kind.ALREADY_DONE, gate.GET, ticket.reference, cause)
        self._presented.add(ticket.nonce)

    def end(self, ticket: Ticket, *, complete: bool) -> None:
        """End a read with this ticket; `complete` False makes it usable again."""
        if complete:
            heapq.heappush(self._used_up, (ticket.expires_ms, ticket.nonce))
        else:
            self._presented.discard(ticket.nonce)

    def expire(self, now_ms: Ms) -> None:
        """Forget used-up tickets that have expired."""
        while self._used_up and self._used_up[0][0] <= now_ms:
            self._presented.discard(heapq.heappop(self._used_up)[1])


class _KnownBlocks:
    """A cache of the block CRCs in the records of recently read replicas."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._kept: dict[ReferenceId, bytes] = {}
        self._bytes = 0

    async def of(self, reference: ReferenceId) -> bytes:
        """Return the block CRCs of a replica, b"" where its record has none. Raises: NOT_ALIVE without a record."""
        crcs = self._kept.pop(reference, None)
        if crcs is None:
            crcs = await self._blobs.blocks(reference)
            self._forget(reference)  # another call may have read them meanwhile
            if not crcs:
                if await self._blobs.facts(reference) is None:
                    raise CheloniaError(Kind.NOT_ALIVE, gate.GET, reference, "its record is missing or unreadable")
                return crcs
            self._bytes += len(crcs) + len(reference)
        self._kept[reference] = crcs
        while self._bytes > bounds.BLOCK_CRCS_KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        return crcs

    def _forget(self, reference: ReferenceId) -> None:
        if (crcs := self._kept.pop(reference, None)) is not None:
            self._bytes -= len(crcs) + len(reference)


class Downloads:
    """The download side of one Shepherd."""

    def __init__(self, node: ShepherdNode) -> None:
        self._node = node
        self._uses = _SingleUses()
        self._blocks = _KnownBlocks(node.ports.blobs)

    def offer(self, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Issue a TURL per request, or answer in the original's words why not."""
        return tuple(self._offer_one(request) for request in requests)

    async def open(self, call: Call, turl: Turl) -> Download:
        """Open the replica of a read ticket. Raises: BAD_TICKET, EXPIRED, ALREADY_DONE, NOT_ALIVE."""
        ticket = gate.admit(self._node, call, turl, gate.GET)
        held = self._node.index.get(ticket.reference)
        if held is None or not held.alive or held.blob != ticket.blob:
            cause = "this replica is not alive (any more); ask for a TURL of another"
            raise CheloniaError(Kind.NOT_ALIVE, gate.GET, ticket.reference, cause)
        if ticket.single_use:
            self._uses.begin(ticket)
        reader = ReplicaReader(self._node, held, self._blocks, self._uses, ticket)
        sums = Checksums() if ticket.spans else held.checksums
        return Download(held.size, sums, held.created_ms, held.blob, reader, ticket.single_use, reader.spans)

    def expire(self) -> None:
        """Forget single-use tickets that have expired."""
        self._uses.expire(self._node.ports.clock.now_ms())

    def _offer_one(self, request: GetRequest) -> TurlOutcome:
        if PROTOCOL_HTTP not in request.protocols:
            error = NO_SUPPORTED_PROTOCOL
            return TurlOutcome(request.request_id, error=error, kind=Kind.NO_PROTOCOL.value)
        node = self._node
        held = node.index.get(request.reference)
        if held is None or not held.alive:
            node.doubt(request.reference)
            return TurlOutcome(request.request_id, error="file is not alive", kind=Kind.NOT_ALIVE.value)
        expires_ms = Ms(node.ports.clock.now_ms() + gate.lifetime_ms(node, request.lifetime_ms))
        ticket = gate.read_ticket(node, request, expires_ms)
        name, value = checksum_of(held)
        turl = gate.turl(node, ticket)
        return TurlOutcome(request.request_id, turl, PROTOCOL_HTTP, held.reference, value, name)


class ReplicaReader:
    """Reads ranges of one open replica, within its ticket."""

    def __init__(
        self, node: ShepherdNode, held: KeptReplica, blocks: _KnownBlocks, uses: _SingleUses, ticket: Ticket
    ) -> None:
        self._node = node
        self._held = held
        self._blocks = blocks
        self._uses = uses
        self._ticket = ticket if ticket.single_use else None
        self.spans = tuple(ByteRange(*each) for each in ticket.spans)

    async def read(self, span: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `span`. Raises: NOT_ALIVE before a block that is not whole or has changed, BAD_RANGE
        beyond the end, BAD_TICKET beyond the spans of the ticket."""
        reference: ReferenceId = self._held.reference
        if span.offset < 0 or span.length < 0 or span.offset + span.length > self._held.size:
            raise CheloniaError(Kind.BAD_RANGE, gate.GET, reference, f"the replica has {self._held.size} bytes")
        if self.spans and not within(span, self.spans):
            raise CheloniaError(Kind.BAD_TICKET, gate.GET, reference, "this TURL is for other bytes of the replica")
        try:
            crcs = await self._blocks.of(reference)
            async for chunk in verified(self._node.ports.blobs, reference, span, self._held.size, crcs):
                yield chunk
        except CheloniaError as error:
            if error.kind is Kind.NOT_ALIVE:
                self._node.suspect(reference)
            raise

    async def checksums(self) -> Checksums:
        if self.spans:
            return Checksums()
        facts = await self._node.ports.blobs.facts(self._held.reference)
        return self._held.checksums.with_more(facts.checksums if facts else Checksums())

    async def close(self, *, complete: bool) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._uses.end(ticket, complete=complete)


def checksum_of(held: KeptReplica) -> tuple[str, str]:
    """Return (type, value) of the one checksum that the original's messages have room for."""
    if held.checksums.md5:
        return "md5", held.checksums.md5
    return ("sha256", held.checksums.sha256) if held.checksums.sha256 else ("", "")
