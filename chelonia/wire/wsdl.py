"""WSDL 1.1 (document/literal) of a service, from the same tables as the codec, so that the two cannot differ.

It describes the original's odd answers as they are. Roots without a namespace get a schema without a target namespace,
`toggleReportResponse` one in the Librarian's. Unprefixed children of `list` are local elements of unqualified form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chelonia.wire.operations.table import NAMESPACES, Operation, Service
from chelonia.wire.schema import (
    REQUIRED,
    STR,
    Form,
    ListOf,
    Many,
    Metadata,
    One,
    Part,
    Record,
    TextContent,
)
from chelonia.wire.xml import attribute

XSD: Final = "http://www.w3.org/2001/XMLSchema"
WSDL: Final = "http://schemas.xmlsoap.org/wsdl/"
WSDL_SOAP: Final = "http://schemas.xmlsoap.org/wsdl/soap/"
_TRANSPORT: Final = "http://schemas.xmlsoap.org/soap/http"


def wsdl(service: Service, url: str) -> str:
    """Return the WSDL document of `service` at `url`."""
    name = service.name.capitalize()
    declared = "".join(f' xmlns:{prefix}="{space}"' for prefix, space in NAMESPACES.items())
    operations = service.operations
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<wsdl:definitions name="{name}" targetNamespace="{service.namespace}" xmlns:wsdl="{WSDL}" '
        f'xmlns:soap="{WSDL_SOAP}" xmlns:xsd="{XSD}"{declared}>\n'
        f"<wsdl:types>\n{_schemas(service)}</wsdl:types>\n"
        f"{''.join(_messages(service, operation) for operation in operations)}"
        f'<wsdl:portType name="{name}PortType">\n'
        f"{''.join(_port_operation(service, operation) for operation in operations)}</wsdl:portType>\n"
        f'<wsdl:binding name="{name}Binding" type="{service.prefix}:{name}PortType">\n'
        f'<soap:binding style="document" transport="{_TRANSPORT}"/>\n'
        f"{''.join(_bound_operation(operation) for operation in operations)}</wsdl:binding>\n"
        f'<wsdl:service name="{name}"><wsdl:port name="{name}" binding="{service.prefix}:{name}Binding">'
        f'<soap:address location="{attribute(url)}"/></wsdl:port></wsdl:service>\n'
        "</wsdl:definitions>\n"
    )


# --- messages and operations ---------------------------------------------------------------------------------------


def _messages(service: Service, operation: Operation) -> str:
    answer = operation.answer_name
    if operation.answer_prefix:
        answer = f"{operation.answer_prefix}:{answer}"
    return (
        f'<wsdl:message name="{operation.name}Request">'
        f'<wsdl:part name="body" element="{service.prefix}:{operation.name}"/></wsdl:message>\n'
        f'<wsdl:message name="{operation.name}Answer"><wsdl:part name="body" element="{answer}"/></wsdl:message>\n'
    )


def _port_operation(service: Service, operation: Operation) -> str:
    prefix, name = service.prefix, operation.name
    return (
        f'<wsdl:operation name="{name}"><wsdl:input message="{prefix}:{name}Request"/>'
        f'<wsdl:output message="{prefix}:{name}Answer"/></wsdl:operation>\n'
    )


def _bound_operation(operation: Operation) -> str:
    return (
        f'<wsdl:operation name="{operation.name}"><soap:operation soapAction=""/>'
        '<wsdl:input><soap:body use="literal"/></wsdl:input>'
        '<wsdl:output><soap:body use="literal"/></wsdl:output></wsdl:operation>\n'
    )


# --- schemas -------------------------------------------------------------------------------------------------------


def _schemas(service: Service) -> str:
    """One schema per namespace that an element of this service's messages is in."""
    own: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    for operation in service.operations:
        own.append(_root(operation.name, operation.spec.request))
        name, answer = operation.answer_name, operation.spec.answer
        if operation.answer_prefix == service.prefix:
            own.append(_root(name, answer))
        elif isinstance(answer.parts[0], TextContent):
            elsewhere.setdefault(operation.answer_prefix, []).append(_root(name, answer))
        else:
            own.append(f'<xsd:complexType name="{name}">{_sequence(answer)}</xsd:complexType>\n')
            typed = f'<xsd:element name="{name}" type="{service.prefix}:{name}"/>\n'
            elsewhere.setdefault(operation.answer_prefix, []).append(typed)
    text = _schema(service.namespace, "", own)
    for prefix, elements in elsewhere.items():
        text += _schema(NAMESPACES.get(prefix, ""), service.namespace, elements)
    return text


def _schema(namespace: str, imported: str, elements: Iterable[str]) -> str:
    target = f' targetNamespace="{namespace}"' if namespace else ""
    imports = f'<xsd:import namespace="{imported}"/>\n' if imported else ""
    return f'<xsd:schema{target} elementFormDefault="qualified">\n{imports}{"".join(elements)}</xsd:schema>\n'


def _root(name: str, described: Record) -> str:
    if described.parts and isinstance(described.parts[0], TextContent):
        return _leaf(name, described.parts[0].form, "") + "\n"
    return f'<xsd:element name="{name}">{_complex(described)}</xsd:element>\n'


def _complex(described: Record) -> str:
    return f"<xsd:complexType>{_sequence(described)}</xsd:complexType>"


def _sequence(described: Record) -> str:
    parts = zip(described.parts, described.slots, strict=True)
    inside = [_part(part, described.start[slot] is not REQUIRED) for part, slot in parts]
    return f"<xsd:sequence>{''.join(inside)}</xsd:sequence>"


def _part(part: Part, optional: bool) -> str:
    occurs = ' minOccurs="0"' if optional else ""
    match part:
        case One():
            return _typed(part, occurs)
        case Many():
            return _typed(part, ' minOccurs="0" maxOccurs="unbounded"')
        case ListOf():
            return _element(part.name, _wrapped(_part(part.of, True)), occurs)
        case Metadata():
            return _element(part.name, _metadata(part.bare), occurs)
        case TextContent():
            return ""


def _typed(part: One | Many, occurs: str) -> str:
    if isinstance(part.of, Form):
        return _leaf(part.name, part.of, occurs)
    return _element(part.name, _complex(part.of), occurs)


def _element(name: str, inside: str, occurs: str) -> str:
    return f'<xsd:element name="{name}"{occurs}>{inside}</xsd:element>'


def _wrapped(inside: str) -> str:
    return f"<xsd:complexType><xsd:sequence>{inside}</xsd:sequence></xsd:complexType>"


def _metadata(bare: bool) -> str:
    form = ' form="unqualified"' if bare else ""
    leaves = "".join(_leaf(name, STR, form) for name in ("section", "property", "value"))
    return _wrapped(_element("metadata", _wrapped(leaves), f'{form} minOccurs="0" maxOccurs="unbounded"'))


def _leaf(name: str, form: Form, attributes: str) -> str:
    if not form.words:
        return f'<xsd:element name="{name}" type="xsd:{form.xsd}"{attributes}/>'
    words = "".join(f'<xsd:enumeration value="{attribute(word)}"/>' for word in form.words)
    restricted = f'<xsd:simpleType><xsd:restriction base="xsd:{form.xsd}">{words}</xsd:restriction></xsd:simpleType>'
    return f'<xsd:element name="{name}"{attributes}>{restricted}</xsd:element>'
