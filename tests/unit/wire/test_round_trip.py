"""Every message of every port arrives as it left."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.bartender import Bartender
from chelonia.core.ports.librarian import Librarian
from chelonia.core.ports.shepherd import Shepherd
from chelonia.wire import soap
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Operation, Service
from tests.unit.wire import messages

TABLES = ((AHASH, AHash), (LIBRARIAN, Librarian), (SHEPHERD, Shepherd), (BARTENDER, Bartender))
CASES = [(service, operation) for service, _ in TABLES for operation in service.operations]
IDS = [f"{service.name}.{operation.name}" for service, operation in CASES]


@pytest.mark.parametrize(("service", "port"), TABLES, ids=lambda item: getattr(item, "name", ""))
def test_every_port_method_has_a_row_in_the_operation_table(service: Service, port: Any) -> None:
    methods = {name for name, _ in inspect.getmembers(port, inspect.isfunction) if not name.startswith("_")}
    assert set(service.table.by_method) == methods


@pytest.mark.parametrize(("service", "operation"), CASES, ids=IDS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_arguments_and_answer_arrive_as_they_left(service: Service, operation: Operation, data: st.DataObject) -> None:
    args = data.draw(messages.arguments(operation.spec.method))
    request = soap.decode_request(service, soap.encode_request(service, operation.method, args))
    assert isinstance(request, soap.SoapRequest)
    assert request.operation is operation
    assert request.args == args

    result = data.draw(messages.results(operation.spec.method))
    if operation.spec.echo:
        request = soap.SoapRequest(operation, args, tuple(str(index) for index in range(len(result))))
    answered = soap.encode_response(service, request, result)
    assert soap.decode_response(service, operation.method, answered) == result
