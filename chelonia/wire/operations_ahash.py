"""The A-Hash on the wire: `get` and `change` as the original's, the transactional operations in the same style."""

from __future__ import annotations

from typing import Any, Final

from chelonia.core import bounds, operations
from chelonia.core.ahash import (
    AHash,
    AHashStatus,
    ChangeOutcome,
    ChangeStatus,
    ChangeType,
    Condition,
    ConditionType,
    Element,
    GroupChange,
    GroupStep,
    Linked,
    ObjectPage,
    Page,
    PagesSeen,
    ReplicaView,
    TransactOutcome,
    Unmet,
    Walk,
    WalkOutcome,
    WalkStep,
)
from chelonia.core.errors import Kind
from chelonia.wire.elements import POSITION, answers, bulk, extra, needed, stored_object
from chelonia.wire.operations import Spec, service
from chelonia.wire.schema import (
    BOOL,
    INT,
    AnyDepth,
    Child,
    Children,
    Listed,
    Refusal,
    Text,
    Texts,
    arguments,
    enum_form,
    record,
    shaped,
    single,
    whole_argument,
)

_NOT_READY = Refusal("error", Kind.UNAVAILABLE)

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
    Listed("conditionList", Children("condition", "conditions", _CONDITION)),
)
_CHANGED = record(
    ChangeOutcome,
    Text("changeID", "change_id"),
    Text("success", "status", enum_form(ChangeStatus)),
    Text("conditionID", "condition_id"),
)
_OBJECT = stored_object("ID")
_UNMET = record(Unmet, Text("changeID", "change_id"), Text("conditionID", "condition_id"))
_TRANSACTED = record(
    TransactOutcome,
    Text("applied", "applied", BOOL),
    Child("position", "position", POSITION),
    Child("unmet", "unmet", _UNMET, default=None),
    extra("memo", "memo"),
    Text("recalled", "recalled", BOOL),
)


def _walk_make(start: Any, steps: tuple[tuple[str, ...], ...], section: str, linked: Linked | None) -> Walk:
    return Walk(start, steps, section, linked)


_LINKED = record(Linked, Text("section", "section"), Text("prefix", "prefix"), needed())
_WALK = shaped(
    _walk_make,
    lambda walk: (walk.start, walk.steps, walk.section, walk.linked),
    Text("start", "start"),
    Listed("stepList", Children("step", "steps", single(Texts("name", "names")))),
    Text("section", "section", default="entries"),
    Child("linked", "linked", _LINKED, default=None),
)
_STEP = record(WalkStep, Text("property", "property"), Text("ID", "object"))
_WALKED = record(
    WalkOutcome,
    Listed("takenList", Children("taken", "taken", _STEP)),
    Child("object", "last", _OBJECT),
    Listed("linkedList", Children("linked", "linked", _OBJECT), omit=True),
)
_ITEM = shaped(lambda *pair: pair, lambda pair: pair, Text("property", "property"), Text("value", "value"))
_PAGE = record(Page, Listed("itemList", Children("item", "items", _ITEM)), Text("more", "more", BOOL))
_REPLICA = record(
    ReplicaView,
    Text("replica", "replica", INT),
    Text("DN", "dn"),
    Text("address", "address"),
    Text("role", "role"),
    Text("lag", "lag", INT),
    extra("roundTripMs", "round_trip_ms", -1, form=INT),
)
_IDS = record(ObjectPage, Listed("IDList", Texts("ID", "ids")), Text("more", "more", BOOL))
_GROUP_CHANGE = record(
    GroupChange,
    Text("step", "step", enum_form(GroupStep)),
    extra("replica", "replica", 0, form=INT),
    extra("DN", "dn"),
    extra("address", "address"),
)
_PAGES_SEEN = record(
    PagesSeen,
    Text("pages", "pages", INT),
    Text("checked", "checked", INT),
    Text("endedMs", "ended_ms", INT),
    Text("damaged", "damaged", INT),
)
_STATUS = record(
    AHashStatus,
    Child("position", "position", POSITION),
    Text("role", "role"),
    Text("writable", "writable", BOOL),
    Text("objectsEstimate", "objects_estimate", INT),
    Text("freeBytes", "free_bytes", INT),
    extra("replica", "replica", 0, form=INT),
    extra("term", "term", 0, form=INT),
    extra("leaseMs", "lease_ms", 0, form=INT),
    extra("electedMs", "elected_ms", 0, form=INT),
    extra("membership", "membership", 0, form=INT),
    Listed("replicaList", Children("replica", "replicas", _REPLICA), omit=True),
    Child("pages", "pages", _PAGES_SEEN, default=None),
    extra("roundTripMs", "round_trip_ms", 0, form=INT),
    extra("vouchedTerm", "vouched_term", 0, form=INT),
    extra("vouchedSequence", "vouched_sequence", 0, form=INT),
    extra("termsBegun", "terms_begun", 0, form=INT),
    extra("leaseStretch", "lease_stretch", 0, form=INT),
)

AHASH: Final = service(
    operations.AHASH,
    "ahash",
    (
        Spec(
            AHash.get,
            arguments(AHash.get, needed(), AnyDepth("IDs", "ID", "ids")),
            single(Listed("objects", Children("object", "objects", _OBJECT), required=True), _NOT_READY),
        ),
        Spec(
            AHash.change,
            arguments(AHash.change, bulk("change", "elements", _ELEMENT)),
            single(
                Listed("changeResponseList", Children("changeResponseElement", "results", _CHANGED), required=True),
                _NOT_READY,
            ),
        ),
        Spec(
            AHash.transact,
            arguments(
                AHash.transact,
                Text("requestKey", "key"),
                extra("memo", "memo"),
                bulk("transact", "elements", _ELEMENT, limit=bounds.TRANSACT_ELEMENTS_MAX),
            ),
            _TRANSACTED,
        ),
        Spec(
            AHash.recall,
            arguments(AHash.recall, Text("requestKey", "key")),
            single(Child("outcome", "outcome", _TRANSACTED, default=None)),
        ),
        Spec(
            AHash.walk,
            arguments(AHash.walk, bulk("walk", "walks", _WALK), needed()),
            answers("walk", _WALKED),
        ),
        Spec(
            AHash.scan,
            arguments(
                AHash.scan,
                Text("ID", "object_id"),
                Text("section", "section"),
                extra("after", "after"),
                Text("limit", "limit", INT),
            ),
            _PAGE,
        ),
        Spec(
            AHash.objects,
            arguments(AHash.objects, extra("after", "after"), Text("limit", "limit", INT)),
            _IDS,
        ),
        Spec(
            AHash.backup,
            arguments(AHash.backup, Text("name", "name")),
            single(Text("directory", "directory")),
        ),
        Spec(
            AHash.regroup,
            whole_argument(AHash.regroup, _GROUP_CHANGE),
            _STATUS,
        ),
        Spec(AHash.status, arguments(AHash.status), _STATUS),
    ),
)
"""The A-Hash's operations."""
