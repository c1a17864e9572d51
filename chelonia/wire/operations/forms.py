"""The SOAP form of each of our services, by the table of its port: for who asks, and loads them only when he does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chelonia.core.operations.rows import PortTable
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Service, service

_FORMS: Final[Mapping[str, Service]] = {each.name: each for each in (AHASH, BARTENDER, LIBRARIAN, SHEPHERD)}


def soap_form(table: PortTable) -> Service:
    """The form; without operations where the service has none."""
    return _FORMS.get(table.name) or service(table, "bar", ())
