"""SOAP 1.1 messages of the four services: bytes to calls and answers to bytes, on both sides.

The first child of Body selects the operation by namespace and local name; SOAPAction is ignored. A failure is a Fault.
Its `detail` carries kind, op, subject and cause, so that a `CheloniaError` arrives as it left, and never a traceback.
Faults have HTTP status 500 as SOAP 1.1 section 6.2 demands; the original sent 200 (`docs/formats/soap.md`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.wire.operations.table import NAMESPACES, Operation, Service
from chelonia.wire.xml import Node, attribute, leaf, local_name, namespace, parse, text_of

ENVELOPE: Final = "http://schemas.xmlsoap.org/soap/envelope/"
SOAP_12: Final = "http://www.w3.org/2003/05/soap-envelope"
ERROR_NAMESPACE: Final = "urn:chelonia:error"
"""Namespace of the Fault detail."""
WSRF_RP: Final = "http://docs.oasis-open.org/wsrf/rp-2"
GLUE: Final = "http://schemas.ogf.org/glue/2008/05/spec_2.0_d41_r01"
CONTENT_TYPE: Final = "text/xml; charset=utf-8"
FAULT_STATUS: Final = 500
"""HTTP status of an answer that is a Fault."""
LIDI: Final = "GetResourcePropertyDocument"
"""The information request that every service of the original answers (`encode_lidi`)."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_CLOSE = b"</soap-env:Body></soap-env:Envelope>"


@dataclass(frozen=True, slots=True)
class SoapRequest:
    """A decoded request: call `getattr(port, operation.method)(call, *args)`. `echo` goes back into the answer."""

    operation: Operation
    args: tuple[Any, ...]
    echo: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InformationRequest:
    """A decoded LIDI request: answer with `encode_lidi`."""


def encode_request(service: Service, method: str, args: tuple[Any, ...]) -> bytes:
    """Build the request that calls the port method `method` with all its arguments.

    Raises: BAD_REQUEST when a value is not valid UTF-8.
    """
    operation = service.by_method[method]
    return _envelope(service, operation.name, service.prefix, operation.request.encode(args))


def decode_request(
    service: Service, body: bytes, may: Callable[[str], None] = lambda name: None
) -> SoapRequest | InformationRequest:
    """Read a request; call `may` with the operation's name before reading its arguments.

    Raises: as `may`; BAD_XML, TOO_LARGE, BAD_REQUEST, BAD_NAME, NOT_SUPPORTED (a header that must be understood),
    UNKNOWN_OPERATION in the original's words (`wrong namespace. expected: ...`, `wrong request (...)`).
    """
    node = first_of_body(parse(body))
    name, space = local_name(node), namespace(node)
    if space == WSRF_RP and name == LIDI:
        return InformationRequest()
    if space != service.namespace:
        raise CheloniaError(Kind.UNKNOWN_OPERATION, "", _ascii(name), f"wrong namespace. expected: {service.namespace}")
    operation = service.by_name.get(name)
    if operation is None:
        raise CheloniaError(Kind.UNKNOWN_OPERATION, "", service.name, f"wrong request ({_ascii(name)})")
    may(name)
    try:
        args = operation.request.decode(node)
    except CheloniaError as error:
        raise CheloniaError(error.kind, error.op or name, error.subject, error.cause) from None
    return SoapRequest(operation, args, _echo(operation, node))


def encode_response(service: Service, request: SoapRequest, result: Any) -> bytes:
    """Build the answer to `request` from the port method's result."""
    operation = request.operation
    value = (result, request.echo) if operation.spec.echo else result
    return _envelope(service, operation.answer_name, operation.answer_prefix, operation.answer.encode(value))


def decode_response(service: Service, method: str, body: bytes) -> Any:
    """Read the answer to the port method `method`.

    Raises: the error a Fault carries; BAD_XML, TOO_LARGE when the answer cannot be read.
    """
    operation = service.by_method[method]
    node = first_of_body(parse(body))
    name = local_name(node)
    if name == "Fault":
        raise decode_fault(node)
    if name != operation.answer_name:
        cause = f"expected {operation.answer_name}, the service answered {_ascii(name)}"
        raise CheloniaError(Kind.BAD_XML, operation.name, "", cause)
    value = operation.answer.decode(node)
    return value[0] if operation.spec.echo else value


def encode_fault(error: CheloniaError) -> bytes:
    """Build the Fault for `error`; send it with `FAULT_STATUS`. Never raises: lone surrogates show as `?`."""
    fields = (("kind", error.kind.value), ("op", error.op), ("subject", error.subject), ("cause", error.cause))
    detail = "".join(leaf(f"c:{name}", _SURROGATE.sub("?", text)) for name, text in fields)
    human = leaf("faultstring", _SURROGATE.sub("?", str(error)))
    fault = (
        f"<soap-env:Fault><faultcode>soap-env:{error.meaning.fault}</faultcode>{human}"
        f'<detail><c:error xmlns:c="{ERROR_NAMESPACE}">{detail}</c:error></detail></soap-env:Fault>'
    )
    return f"{_head('')}{fault}".encode() + _CLOSE


def decode_fault(node: Node) -> CheloniaError:
    """Read a Fault element, ours or another's, as an error."""
    found = {local_name(child): child for child in node}
    for error in found.get("detail", ()):
        if namespace(error) == ERROR_NAMESPACE:
            texts = {local_name(child): text_of(child) for child in error}
            kind = kind_from_wire(texts.get("kind", ""))
            return CheloniaError(kind, texts.get("op", ""), texts.get("subject", ""), texts.get("cause", ""))
    message = text_of(found["faultstring"]) if "faultstring" in found else ""
    code = text_of(found["faultcode"]) if "faultcode" in found else ""
    if "is inactive" in message:
        return CheloniaError(Kind.UNAVAILABLE, cause=message[:500])
    kind = Kind.BAD_REQUEST if code.rpartition(":")[2].startswith("Client") else Kind.INTERNAL
    return CheloniaError(kind, cause=message[:500] or "a Fault without words")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes of a Shepherd's disk, for `encode_lidi`."""

    free_bytes: int
    total_bytes: int


def encode_lidi(service: Service, capacity: Capacity | None = None) -> bytes:
    """Build the status document; with a capacity in the Shepherd's form (GiB of 2^30 bytes)."""
    inside = (
        "<Endpoint><HealthState>ok</HealthState><ServingState>production</ServingState></Endpoint>"
        f"<Type>{service.type_name}</Type>"
    )
    if capacity is None:
        described = f"<Service>{inside}</Service>"
    else:
        free, total = capacity.free_bytes >> 30, capacity.total_bytes >> 30
        sizes = f"<FreeSize>{free}</FreeSize><UsedSize>{total - free}</UsedSize><TotalSize>{total}</TotalSize>"
        within = f"{inside}<StorageServiceCapacity>{sizes}</StorageServiceCapacity>"
        described = f"<StorageService>{within}</StorageService>"
    head = _head(f' xmlns:wsrf-rp="{WSRF_RP}"')
    text = (
        f'{head}<wsrf-rp:GetResourcePropertyDocumentResponse><Domains xmlns="{GLUE}"><AdminDomain><Services>'
        f"{described}</Services></AdminDomain></Domains></wsrf-rp:GetResourcePropertyDocumentResponse>"
    )
    return text.encode() + _CLOSE


def _head(declared: str) -> str:
    envelope = f'<soap-env:Envelope xmlns:soap-env="{ENVELOPE}"{declared}>'
    return f'<?xml version="1.0" encoding="UTF-8"?>{envelope}<soap-env:Body>'


def enveloped(space: str, name: str, inner: str) -> bytes:
    """Build a message whose body is one element of a namespace other than ours; `inner` is XML."""
    declared = f' xmlns:m="{attribute(space)}"'
    return f"{_head(declared)}<m:{name}>{inner}</m:{name}>".encode() + _CLOSE


def _envelope(service: Service, name: str, prefix: str, inner: str) -> bytes:
    declared = f' xmlns:{service.prefix}="{attribute(service.namespace)}"'
    if prefix not in ("", service.prefix):
        declared += f' xmlns:{prefix}="{NAMESPACES[prefix]}"'
    tag = f"{prefix}:{name}" if prefix else name
    return f"{_head(declared)}<{tag}>{inner}</{tag}>".encode() + _CLOSE


def first_of_body(root: Node) -> Node:
    """Return the first child of an envelope's Body. Raises: BAD_XML, NOT_SUPPORTED for a mustUnderstand header."""
    space, name = namespace(root), local_name(root)
    if name != "Envelope" or space != ENVELOPE:
        found = "a SOAP 1.2 envelope" if space == SOAP_12 else f"{_ascii(name)} in namespace {_ascii(space)}"
        raise CheloniaError(Kind.BAD_XML, cause=f"expected a SOAP 1.1 envelope ({ENVELOPE}), got {found}")
    for part in root:
        if local_name(part) == "Header" and namespace(part) == ENVELOPE:
            _check_header(part)
        elif local_name(part) == "Body" and namespace(part) == ENVELOPE:
            if len(part):
                return part[0]
            raise CheloniaError(Kind.BAD_XML, cause="the SOAP Body is empty")
    raise CheloniaError(Kind.BAD_XML, cause="the SOAP envelope has no Body")


def _check_header(header: Node) -> None:
    for block in header:
        if block.get(f"{{{ENVELOPE}}}mustUnderstand") in ("1", "true"):
            cause = f"a header that must be understood is not known here: {_ascii(local_name(block))}"
            raise CheloniaError(Kind.NOT_SUPPORTED, cause=cause)


def _echo(operation: Operation, node: Node) -> tuple[str, ...]:
    wanted = operation.spec.echo
    if not wanted:
        return ()
    return tuple(text_of(child) for child in node.iter() if local_name(child) == wanted)


def _ascii(name: str) -> str:
    return ascii(name[:80])[1:-1]
