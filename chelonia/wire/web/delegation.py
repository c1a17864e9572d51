"""GridSite delegation: a client gives a server a proxy for a key that the server has made. Pure.

SOAP in RPC form, in two namespaces (version 1 and 2) with the same operations, except those for versions.
Source: the delegation service of GridSite (`delegation-1.1.0.wsdl`, `delegation-2.0.0.wsdl`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.timing.clock import iso_second
from chelonia.wire.soap import enveloped, first_of_body
from chelonia.wire.xml import leaf, local_name, namespace, parse, text_of

NAMESPACES: Final = tuple(f"http://www.gridsite.org/namespaces/delegation-{version}" for version in (1, 2))
VERSION: Final = "2.0.0"
BODY_BYTES_MAX: Final = 128 * 1024
"""Bytes of a request: a proxy chain has some 10 KiB, with VOMS attributes some 30."""


@dataclass(frozen=True, slots=True)
class DelegationCall:
    """One request: its operation and namespace, and the proxy (PEM), "" where it has none."""

    operation: str
    namespace: str
    proxy: str = ""


def read(body: bytes) -> DelegationCall:
    """Read a request. Raises: BAD_XML, TOO_LARGE, UNKNOWN_OPERATION."""
    node = first_of_body(parse(body, BODY_BYTES_MAX))
    if namespace(node) not in NAMESPACES:
        cause = f"wrong namespace; here is delegation: {' or '.join(NAMESPACES)}"
        raise CheloniaError(Kind.UNKNOWN_OPERATION, "delegation", cause=cause)
    texts = {local_name(child): text_of(child) for child in node}
    return DelegationCall(local_name(node), namespace(node), texts.get("proxy", ""))


def returned(call: DelegationCall, value: str | None = None) -> bytes:
    """Return the answer with one value, or none."""
    inner = "" if value is None else leaf(f"{call.operation}Return", value)
    return enveloped(call.namespace, f"{call.operation}Response", inner)


def requested(call: DelegationCall, request: str, delegation: str) -> bytes:
    """Return the answer to `getNewProxyReq`: a certificate request (PEM) to sign, and the id of the delegation."""
    inner = leaf("proxyRequest", request) + leaf("delegationID", delegation)
    name = f"{call.operation}Return"
    return enveloped(call.namespace, f"{call.operation}Response", f"<{name}>{inner}</{name}>")


def instant(at_ms: Ms) -> str:
    """Return an `xsd:dateTime`."""
    return f"{iso_second(at_ms // 1000)}Z"
