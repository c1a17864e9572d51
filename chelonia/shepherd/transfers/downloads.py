"""Downloads: read tickets issued, replicas opened, single-use tickets accounted for.

A replica found truncated or unreadable while it is read is checked at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ReferenceId
from chelonia.core.ports.shepherd import PROTOCOL_HTTP, ByteRange, Download, GetRequest, Turl, TurlOutcome
from chelonia.core.status import NO_SUPPORTED_PROTOCOL
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.store.lifecycle import KeptReplica
from chelonia.shepherd.transfers import ticket_gate as gate


@dataclass(slots=True)
class _Use:
    """A single-use ticket that was presented: being read, or used up; forgotten when it would have expired."""

    expires_ms: Ms
    done: bool = False


class Downloads:
    """The download side of one Shepherd."""

    def __init__(self, node: ShepherdNode) -> None:
        self._node = node
        self._uses: dict[str, _Use] = {}

    def offer(self, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Issue a TURL per request, or say in the original's words why not."""
        return tuple(self._offer_one(request) for request in requests)

    async def open(self, call: Call, turl: Turl) -> Download:
        """Open the replica of a read ticket. Raises: BAD_TICKET, EXPIRED, ALREADY_DONE, NOT_ALIVE."""
        ticket = gate.admit(self._node, call, turl, gate.GET)
        held = self._node.index.get(ticket.reference)
        if held is None or not held.alive or held.blob != ticket.blob:
            cause = "this replica is not alive (any more); ask for a TURL of another"
            raise CheloniaError(Kind.NOT_ALIVE, gate.GET, ticket.reference, cause)
        if ticket.single_use:
            if ticket.nonce in self._uses:
                cause = "this TURL is for one download and was used; ask for a new TURL"
                raise CheloniaError(Kind.ALREADY_DONE, gate.GET, ticket.reference, cause)
            self._uses[ticket.nonce] = _Use(ticket.expires_ms)
        reader = ReplicaReader(self._node, held, self._uses, ticket.nonce if ticket.single_use else "")
        return Download(held.size, held.checksums, held.created_ms, held.blob, reader, ticket.single_use)

    def expire(self) -> None:
        """Forget single-use tickets that have expired."""
        now_ms = self._node.ports.clock.now_ms()
        self._uses = {nonce: use for nonce, use in self._uses.items() if use.expires_ms > now_ms or not use.done}

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
        ticket = gate.read_ticket(
            node, request.reference, dn=request.dn, address=request.address, expires_ms=expires_ms
        )
        name, value = checksum_of(held)
        turl = gate.turl(node, ticket)
        return TurlOutcome(request.request_id, turl, PROTOCOL_HTTP, held.reference, value, name)


class ReplicaReader:
    """Reads ranges of one open replica. `nonce`: of its single-use ticket, else ""."""

    def __init__(self, node: ShepherdNode, held: KeptReplica, uses: dict[str, _Use], nonce: str) -> None:
        self._node = node
        self._held = held
        self._uses = uses
        self._nonce = nonce

    async def read(self, span: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `span`. Raises: NOT_ALIVE when they are not all there, BAD_RANGE beyond the end."""
        reference: ReferenceId = self._held.reference
        if span.offset < 0 or span.length < 0 or span.offset + span.length > self._held.size:
            raise CheloniaError(Kind.BAD_RANGE, gate.GET, reference, f"the replica has {self._held.size} bytes")
        try:
            async for chunk in self._node.ports.blobs.read(reference, span):
                yield chunk
        except CheloniaError as error:
            if error.kind is Kind.NOT_ALIVE:
                self._node.suspect(reference)
            raise

    async def close(self, *, complete: bool) -> None:
        """Release the replica; `complete` False gives a single-use ticket back."""
        use = self._uses.get(self._nonce)
        if use is None:
            return
        if complete:
            use.done = True
        elif not use.done:
            del self._uses[self._nonce]


def checksum_of(held: KeptReplica) -> tuple[str, str]:
    """(type, value) of the one checksum the original's messages have room for."""
    if held.checksums.md5:
        return "md5", held.checksums.md5
    return ("sha256", held.checksums.sha256) if held.checksums.sha256 else ("", "")
