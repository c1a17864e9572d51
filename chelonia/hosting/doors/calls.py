"""Makes the `Call` that every port method takes first: identity, roles, ids, freshness of reads. Logs failed ones."""

from __future__ import annotations

import logging

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey, parse_request_key
from chelonia.hosting.doors.grants import RoleGrant, RoleRegistry
from chelonia.hosting.logging_setup import AUDIT_LOGGER
from chelonia.hosting.net.http_messages import HttpRequest, Peer
from chelonia.wire import positions
from chelonia.wire.web.headers import READ_AFTER_HEADER, REQUEST_KEY_HEADER, SERVICE_HEADER, STRONG_HEADER

log = logging.getLogger("chelonia.faults")
audit = logging.getLogger(AUDIT_LOGGER)

_REFUSALS = (Kind.DENIED, Kind.UNTRUSTED, Kind.WRONG_CLUSTER, Kind.BAD_TICKET)


async def call_of(request: HttpRequest, registry: RoleRegistry) -> Call:
    """Return the context of `request`, roles from the registry. Raises: BAD_REQUEST for a malformed key or position."""
    after = request.headers.get(READ_AFTER_HEADER, "")
    key = request.headers.get(REQUEST_KEY_HEADER, "")
    grant = await registry.grant(request.peer.dn, request.headers.get(SERVICE_HEADER, ""), request.peer.issuer)
    position, strong = positions.from_header(after) if after else None, request.headers.get(STRONG_HEADER, "") == "1"
    return caller(request.peer, grant, (request.request_id, key), position, strong=strong)


def caller(peer: Peer, grant: RoleGrant, ids: tuple[str, str], after: Position | None, *, strong: bool) -> Call:
    """Return the context of a call. `ids`: of the request, and its key. Raises: BAD_REQUEST for a malformed key."""
    request_id, key = ids
    return Call(
        dn=peer.dn,
        roles=grant.roles,
        service_id=grant.service_id,
        address=peer.address,
        request_id=request_id,
        request_key=parse_request_key(key) if key else RequestKey(""),
        read_after=after,
        strong=strong,
        attributes=peer.attributes,
        credential=peer.credential,
        unsure=grant.unsure and peer.host,
    )


def note_fault(service: str, operation: str, request_id: str, peer: Peer, error: CheloniaError) -> None:
    """Log that `operation` of `service` was answered with `error`: a line, and for refusals one in the audit log."""
    fields = (service, operation, request_id, peer.dn, str(error))
    log.info("fault service=%s op=%s request=%s who=%r error=%r", *fields)
    if error.kind in _REFUSALS:
        line = "refused service=%s op=%s request=%s who=%r address=%s error=%r"
        audit.info(line, *fields[:4], peer.address, str(error))
