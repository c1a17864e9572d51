"""Tickets at this Shepherd's door: issued in TURLs, and verified when they come back.

A PUT ticket ends with this boot, because the table of open uploads is in memory. A GET ticket bound to a user, or one
for ranges, outlives a restart. Any other GET ticket is good for one full body, so it ends with this boot too.
"""

from __future__ import annotations

from typing import Final

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange, within
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId
from chelonia.core.ports.shepherd import GetRequest, Turl
from chelonia.shepherd.node import ShepherdNode
from chelonia.wire import tickets
from chelonia.wire.tickets import Ticket, Use

GET: Final = "GET"
PUT: Final = "PUT"
COPY_TICKET_MS: Final = 365 * 24 * 3_600_000
"""Lifetime of a ticket to write a claimed copy: in effect that of its upload, which ends soon after its last byte."""


def lifetime_ms(node: ShepherdNode, wish_ms: int) -> int:
    """Return the lifetime of a ticket: the requested one within the settings, their default when none is (0)."""
    return min(wish_ms if wish_ms > 0 else node.settings.ticket_lifetime_ms, node.settings.ticket_lifetime_max_ms)


def turl(node: ShepherdNode, ticket: Ticket) -> str:
    """Sign a ticket and return its TURL."""
    return tickets.turl(node.settings.base_url, ticket.reference, tickets.issue(node.state.ticket_secret, ticket))


def admit(node: ShepherdNode, call: Call, shown: Turl, method: str) -> Ticket:
    """Verify the ticket of a request.

    Raises: BAD_TICKET (altered, another Shepherd's, another replica's, another method's, another user's, of an earlier
    start), EXPIRED.
    """
    use = Use(method, shown.reference, call.dn, call.address, node.state.boot)
    return tickets.verify(node.state.ticket_secret, shown.ticket, node.ports.clock.now_ms(), use)


def read_ticket(node: ShepherdNode, request: GetRequest, expires_ms: Ms) -> Ticket:
    """Return a ticket to read a replica: for one full body, unless the request has a DN, `ranges`, or partial spans."""
    held = node.index.get(request.reference)
    assert held is not None
    spans = () if within(ByteRange(0, held.size), request.spans) else request.spans
    return Ticket(
        method=GET,
        reference=request.reference,
        blob=held.blob,
        boot=node.state.boot,
        size=held.size,
        sha256=held.checksums.sha256,
        md5=held.checksums.md5,
        adler32=held.checksums.adler32,
        dn=Dn(request.dn),
        address=request.address,
        purpose="",
        single_use=not (request.dn or request.ranges or spans),
        expires_ms=expires_ms,
        nonce=node.ports.ids.token(8).hex(),
        spans=tuple((each.offset, each.length) for each in spans),
    )


def closed(reference: ReferenceId, blob: BlobId) -> CheloniaError:
    """Return the refusal of a PUT whose upload is not open (any more)."""
    return CheloniaError(Kind.BAD_TICKET, PUT, reference, f"no upload of {blob} is open here; ask for a new TURL")
