"""The A-Hash on the wire: `get` and `change` as the original's."""

from __future__ import annotations

from typing import Final

from chelonia.core.operations import ahash
from chelonia.core.ports.ahash import (
    AHash,
    ChangeOutcome,
    ChangeStatus,
    ChangeType,
    Condition,
    ConditionType,
    Element,
)
from chelonia.wire.elements import bulk, needed, stored_object
from chelonia.wire.operations.table import Spec, service
from chelonia.wire.schema import (
    AnyDepth,
    Children,
    ListOf,
    Text,
    arguments,
    enum_form,
    record,
    single,
)

_CONDITION = record(
    Condition,
    Text("conditionID", "id"),
    Text("conditionType", "type", enum_form(ConditionType)),
    Text("section", "section"),
    Text("property", "property"),
    Text("value", "value"),
)
_ELEMENT = record(
    Element,
    Text("changeID", "change_id"),
    Text("ID", "object"),
    Text("changeType", "change", enum_form(ChangeType)),
    Text("section", "section"),
    Text("property", "property"),
    Text("value", "value"),
    ListOf("conditionList", Children("condition", "conditions", _CONDITION)),
)
_CHANGED = record(
    ChangeOutcome,
    Text("changeID", "change_id"),
    Text("success", "status", enum_form(ChangeStatus)),
    Text("conditionID", "condition_id"),
)
_OBJECT = stored_object("ID")
AHASH: Final = service(
    ahash.AHASH,
    "ahash",
    (
        Spec(
            AHash.get,
            arguments(AHash.get, needed(), AnyDepth("IDs", "ID", "ids")),
            single(ListOf("objects", Children("object", "objects", _OBJECT), required=True)),
        ),
        Spec(
            AHash.change,
            arguments(AHash.change, bulk("change", "elements", _ELEMENT)),
            single(ListOf("changeResponseList", Children("changeResponseElement", "results", _CHANGED), required=True)),
        ),
    ),
)
"""The A-Hash's operations."""
