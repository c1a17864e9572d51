"""A foreign SOAP client loads each WSDL, builds every request and reads every answer."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import zeep
from lxml import etree
from zeep.helpers import serialize_object

from chelonia.wire import soap
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Operation, Service
from chelonia.wire.wsdl import wsdl
from tests.unit.wire import samples

CLIENT: Any = zeep.Client
PLAIN: Any = serialize_object

SERVICES = (AHASH, LIBRARIAN, SHEPHERD, BARTENDER)
CASES = [(service, operation) for service in SERVICES for operation in service.operations]
IDS = [f"{service.name}.{operation.name}" for service, operation in CASES]


@cache
def client(service: Service) -> Any:
    return CLIENT(io.BytesIO(wsdl(service, "https://localhost:1/X?a=1&b=2").encode()))


def zeep_operation(service: Service, operation: Operation) -> Any:
    return client(service).service._binding._operations[operation.name]


def body_of(message: bytes) -> Any:
    return etree.fromstring(message).find(f"{{{soap.ENVELOPE}}}Body")


def in_envelope(node: Any) -> bytes:
    envelope = etree.fromstring(f'<e:Envelope xmlns:e="{soap.ENVELOPE}"><e:Body/></e:Envelope>')
    envelope[0].append(node)
    return etree.tostring(envelope)


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_wsdl_names_every_operation_and_the_address(service: Service) -> None:
    loaded = client(service)
    assert set(loaded.service._binding._operations) == set(service.by_name)
    assert loaded.service._binding_options["address"] == "https://localhost:1/X?a=1&b=2"


@pytest.mark.parametrize(("service", "operation"), CASES, ids=IDS)
def test_zeep_builds_the_request(service: Service, operation: Operation) -> None:
    args = samples.arguments(operation.spec.method)
    ours = body_of(soap.encode_request(service, operation.method, args))
    read = zeep_operation(service, operation).input.body.parse(ours[0], client(service).wsdl.types)
    built = client(service).create_message(client(service).service, operation.name, **(PLAIN(read) or {}))
    request = soap.decode_request(service, etree.tostring(built))
    assert isinstance(request, soap.SoapRequest)
    assert request.operation is operation
    assert request.args == args


@pytest.mark.parametrize(("service", "operation"), CASES, ids=IDS)
def test_zeep_reads_the_answer_and_writes_it_again_without_loss(service: Service, operation: Operation) -> None:
    result = samples.result(operation.spec.method)
    request = soap.SoapRequest(operation, (), ("0", "1"))
    answered = body_of(soap.encode_response(service, request, result))
    body = zeep_operation(service, operation).output.body
    read = body.parse(answered[0], client(service).wsdl.types)
    parent = etree.Element("parent")
    body.render(parent, {} if read is None else PLAIN(read))
    assert soap.decode_response(service, operation.method, in_envelope(parent[0])) == result
