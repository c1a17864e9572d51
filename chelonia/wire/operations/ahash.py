"""The A-Hash on the wire: `get` and `change` as the original's."""

from __future__ import annotations

from typing import Final

from chelonia.core import bounds
from chelonia.core.operations import ahash
from chelonia.core.ports.ahash import AHash, ChangeOutcome, Condition, Element
from chelonia.wire.elements import bulk, needed, stored_object
from chelonia.wire.operations.table import Spec, service
from chelonia.wire.schema import ListOf, Many, arguments, record, single

_CONDITION = record(Condition, "id=conditionID type=conditionType section property value")
_ELEMENT = record(
    Element,
    "change_id object=ID change=changeType section property value",
    ListOf("conditionList", Many("condition", "conditions", _CONDITION)),
)
_CHANGED = record(ChangeOutcome, "change_id status=success condition_id")
_OBJECT = stored_object("ID")
AHASH: Final = service(
    ahash.AHASH,
    "ahash",
    (
        Spec(
            AHash.get,
            arguments(AHash.get, needed(), ListOf("IDs", Many("ID", "ids", limit=bounds.BULK_ELEMENTS_MAX), deep=True)),
            single(ListOf("objects", Many("object", "objects", _OBJECT), required=True)),
        ),
        Spec(
            AHash.change,
            arguments(AHash.change, bulk("change", "elements", _ELEMENT)),
            single(ListOf("changeResponseList", Many("changeResponseElement", "results", _CHANGED), required=True)),
        ),
    ),
)
"""The A-Hash's operations."""
