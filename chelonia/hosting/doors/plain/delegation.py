"""POST to `/?delegation`: a user gives this node a proxy, with which it speaks to other servers in the user's name.

The answer to a COPY sends clients without a token of the other server here (`X-Delegate-To`). The proxy belongs to the
holder of the connection's certificate, whatever token comes beside it.
"""

from __future__ import annotations

import logging
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.doors.plain.parts import Exchange
from chelonia.hosting.net.delegations import Delegations, id_of
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole
from chelonia.wire import soap
from chelonia.wire.web import delegation
from chelonia.wire.web.delegation import DelegationCall

log = logging.getLogger("chelonia.plain")

DELEGATION: Final = "delegation"
"""`/?delegation`: a query, because every path is a name."""
SOAP: Final = "text/xml"
"""The content type that a request must have: no page of another site can send it."""
_XML: Final = (("Content-Type", soap.CONTENT_TYPE), ("Cache-Control", "no-store"))


async def post(delegations: Delegations, exchange: Exchange) -> HttpResponse:
    """Answer one SOAP request; failures are Faults."""
    try:
        call = delegation.read(await read_whole(exchange.request, Whole(delegation.BODY_BYTES_MAX)))
        return HttpResponse(200, _XML, await _answer(delegations, exchange, call))
    except CheloniaError as error:
        log.info("refused delegation request=%s who=%r error=%s", exchange.request.request_id, exchange.call.dn, error)
        return HttpResponse(soap.FAULT_STATUS, _XML, soap.encode_fault(error))


async def _answer(delegations: Delegations, exchange: Exchange, call: DelegationCall) -> bytes:
    """Carry out one operation. Raises: as `Delegations`; UNKNOWN_OPERATION."""
    peer = exchange.request.peer
    match call.operation:
        case "getVersion" | "getInterfaceVersion":
            return delegation.returned(call, delegation.VERSION)
        case "getProxyReq" | "renewProxyReq":
            return delegation.returned(call, await delegations.request(peer))
        case "getNewProxyReq":
            return delegation.requested(call, await delegations.request(peer), id_of(peer))
        case "putProxy":
            delegations.put(peer, call.proxy)
            return delegation.returned(call)
        case "getTerminationTime":
            return delegation.returned(call, delegation.instant(delegations.until_ms(peer)))
        case "destroy":
            delegations.drop(peer)
            return delegation.returned(call)
        case _:
            raise CheloniaError(Kind.UNKNOWN_OPERATION, "delegation", cause="no operation of the delegation service")
