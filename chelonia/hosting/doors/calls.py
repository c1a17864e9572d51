"""Turns a request into the `Call` that every port method takes first: identity, roles, ids, and how fresh to read."""

from __future__ import annotations

from chelonia.core.caller import Call
from chelonia.core.ids import RequestKey, parse_request_key
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.wire import positions
from chelonia.wire.web.headers import READ_AFTER_HEADER, REQUEST_KEY_HEADER, SERVICE_HEADER, STRONG_HEADER


async def call_of(request: HttpRequest, registry: RoleRegistry) -> Call:
    """The context of `request`, roles from the registry. Raises: BAD_REQUEST for a malformed key or position."""
    after = request.headers.get(READ_AFTER_HEADER, "")
    key = request.headers.get(REQUEST_KEY_HEADER, "")
    grant = await registry.grant(request.peer.dn, request.headers.get(SERVICE_HEADER, ""), request.peer.issuer)
    return Call(
        dn=request.peer.dn,
        roles=grant.roles,
        service_id=grant.service_id,
        address=request.peer.address,
        request_id=request.request_id,
        request_key=parse_request_key(key) if key else RequestKey(""),
        read_after=positions.from_header(after) if after else None,
        strong=request.headers.get(STRONG_HEADER, "") == "1",
        attributes=request.peer.attributes,
        credential=request.peer.credential,
        unsure=grant.unsure and request.peer.host,
    )
