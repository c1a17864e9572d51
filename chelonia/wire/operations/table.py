"""The types of operations and services on the wire.

An `Operation` joins a row of `core.operations` with the descriptions of its request and answer. The four tables
(`ahash`, ...) are the only place of a SOAP form: codec and WSDL both come from them. An operation without one exists
in the compact encoding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chelonia.core.operations.rows import PortTable
from chelonia.wire.schema import Codec, Record

NAMESPACES: Final[Mapping[str, str]] = {
    "ahash": "http://www.nordugrid.org/schemas/ahash",
    "lbr": "http://www.nordugrid.org/schemas/librarian",
    "bar": "http://www.nordugrid.org/schemas/bartender",
    "she": "http://www.nordugrid.org/schemas/shepherd",
}
"""The original's prefixes and namespaces."""


@dataclass(frozen=True, slots=True, eq=False)
class Spec:
    """The SOAP form of one operation.

    Fields: `method` of the port; `request` (the value is the argument tuple) and `answer`.
    `answer_name`: the answer's root element, empty for `<name>Response`. `answer_prefix`: None for the service's; other
    ones are oddities of the original (empty: no namespace). `echo`: name of leaves in the request, unknown to the port,
    that the answer repeats; its value is then (result, echoed texts).
    """

    method: Callable[..., Any]
    request: Record
    answer: Record
    answer_name: str = ""
    answer_prefix: str | None = None
    echo: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation. `method` is the name of the port's method, which takes `call` and the arguments."""

    spec: Spec
    name: str
    method: str
    answer_name: str
    answer_prefix: str
    request: Codec
    answer: Codec


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A service in SOAP: the table of its port, prefix and namespace, operations in order."""

    name: str
    table: PortTable
    prefix: str
    namespace: str
    operations: tuple[Operation, ...]
    by_name: Mapping[str, Operation]
    by_method: Mapping[str, Operation]

    @property
    def type_name(self) -> str:
        return f"org.nordugrid.storage.{self.name}"


def service(table: PortTable, prefix: str, specs: tuple[Spec, ...]) -> Service:
    """Return the SOAP forms of a port's operations."""
    operations = tuple(_operation(table, spec, prefix) for spec in specs)
    return Service(
        name=table.name,
        table=table,
        prefix=prefix,
        namespace=NAMESPACES[prefix],
        operations=operations,
        by_name={operation.name: operation for operation in operations},
        by_method={operation.method: operation for operation in operations},
    )


def _operation(table: PortTable, spec: Spec, prefix: str) -> Operation:
    row = table.by_method[spec.method.__name__]
    assert row.function is spec.method, "the form is of a method of this port"
    return Operation(
        spec=spec,
        name=row.name,
        method=row.method,
        answer_name=spec.answer_name or f"{row.name}Response",
        answer_prefix=prefix if spec.answer_prefix is None else spec.answer_prefix,
        request=Codec(spec.request, prefix),
        answer=Codec(spec.answer, prefix),
    )
