"""The Shepherd on the wire: property lists for `get` and `put` as in the original, our own facts as more properties.

Odd and kept: the answers of `get`, `put` and `delete` have roots without a namespace, `toggleReport` answers in the
Librarian's namespace with the words True and False, and `stat` spells what it does not know "None".
An original client names checksum and type; we add every checksum known under its own name.
"""

from __future__ import annotations

from typing import Any, Final

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId
from chelonia.core.operations import shepherd
from chelonia.core.ports.shepherd import (
    Authority,
    DeleteOutcome,
    GetRequest,
    Purpose,
    PutRequest,
    ReplicaStatOutcome,
    Shepherd,
    TurlOutcome,
)
from chelonia.wire.elements import POSITION, answers, bulk
from chelonia.wire.operations.table import Spec, service
from chelonia.wire.schema import (
    BOOL,
    INT,
    TRUE_FALSE,
    Child,
    Children,
    ListOf,
    Record,
    Text,
    TextContent,
    arguments,
    record,
    shaped,
)

_REQUEST_ID = Text("requestID", "request_id")
_REFERENCE = Text("referenceID", "reference")
_PAIR = shaped(lambda *pair: pair, lambda pair: pair, Text("property", "property"), Text("value", "value"))
_NONE = "None"

Pairs = tuple[tuple[str, str], ...]


def _first(pairs: Pairs) -> dict[str, str]:
    return dict(reversed(pairs))


def _all(pairs: Pairs, name: str) -> tuple[str, ...]:
    return tuple(value for key, value in pairs if key == name)


def _int(found: dict[str, str], name: str, default: int) -> int:
    text = found.get(name, "")
    if not text:
        return default
    try:
        return int(INT.read(text))
    except ValueError:
        raise CheloniaError(Kind.BAD_REQUEST, "", name, f"{text[:80]!a} is not an integer") from None


def _given(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    """Only the properties that say something."""
    return [pair for pair in pairs if pair[1]]


# --- checksums -----------------------------------------------------------------------------------------------------


def _checksum_pairs(sums: Checksums) -> list[tuple[str, str]]:
    """The original's pair for the checksum it would know (md5 first), then each known one under its own name."""
    known = _given(("md5", sums.md5), ("sha256", sums.sha256), ("adler32", sums.adler32))
    if not known:
        return []
    kind, text = known[0]
    return [("checksum", text), ("checksumType", kind), *known]


def _checksums(found: dict[str, str]) -> Checksums:
    kind, text = found.get("checksumType", "").strip().lower(), found.get("checksum", "")
    named = {name: found.get(name, "") or (text if kind == name else "") for name in ("sha256", "md5", "adler32")}
    return Checksums(**{name: value.strip().lower() for name, value in named.items()})


# --- get and put ---------------------------------------------------------------------------------------------------


def _get_make(request_id: str, pairs: Pairs) -> GetRequest:
    found = _first(pairs)
    return GetRequest(
        request_id,
        ReferenceId(found.get("referenceID", "")),
        _all(pairs, "protocol"),
        found.get("dn", ""),
        found.get("address", ""),
        _int(found, "lifetimeMs", 0),
    )


def _get_take(item: GetRequest) -> tuple[str, Pairs]:
    lifetime = str(item.lifetime_ms) if item.lifetime_ms else ""
    pairs = [
        ("referenceID", item.reference),
        *(("protocol", name) for name in item.protocols),
        *_given(("dn", item.dn), ("address", item.address), ("lifetimeMs", lifetime)),
    ]
    return item.request_id, tuple(pairs)


def _facts(found: dict[str, str]) -> ReplicaFacts:
    return ReplicaFacts(
        blob=BlobId(found.get("blob", "")),
        guid=Guid(found.get("GUID", "")),
        name=found.get("name", ""),
        owner=Dn(found.get("owner", "")),
        size=_int(found, "size", -1),
        checksums=_checksums(found),
        wanted=_int(found, "wanted", 0),
        created_ms=Ms(_int(found, "createdMs", 0)),
        seal=found.get("seal", ""),
        commit_within_ms=_int(found, "commitWithinMs", 0),
    )


def _purpose(found: dict[str, str]) -> Purpose:
    text = found.get("purpose", Purpose.PENDING.value)
    try:
        return Purpose(text)
    except ValueError:
        words = ", ".join(member.value for member in Purpose)
        raise CheloniaError(Kind.BAD_REQUEST, "", "purpose", f"{text[:80]!a} is not one of: {words}") from None


def _put_make(request_id: str, pairs: Pairs) -> PutRequest:
    found = _first(pairs)
    return PutRequest(
        request_id,
        _facts(found),
        _purpose(found),
        _all(pairs, "protocol"),
        reference=ReferenceId(found.get("referenceID", "")),
        dn=found.get("dn", ""),
        address=found.get("address", ""),
        lifetime_ms=_int(found, "lifetimeMs", 0),
        forward=_all(pairs, "forward"),
        spare=_all(pairs, "spare"),
        durable=_int(found, "durable", 1),
        measure_md5=found.get("measureMd5") == "yes",
    )


def _put_take(item: PutRequest) -> tuple[str, Pairs]:
    facts = item.facts
    pairs = [
        ("GUID", facts.guid),
        *_checksum_pairs(facts.checksums),
        ("size", str(facts.size)),
        *(("protocol", name) for name in item.protocols),
        ("purpose", item.purpose.value),
        *_given(("blob", facts.blob), ("name", facts.name), ("owner", facts.owner), ("seal", facts.seal)),
        *_numbers(("wanted", facts.wanted, 0), ("createdMs", facts.created_ms, 0), ("durable", item.durable, 1)),
        *_numbers(("commitWithinMs", facts.commit_within_ms, 0)),
        *_given(("referenceID", item.reference), ("dn", item.dn), ("address", item.address)),
        *_given(("measureMd5", "yes" if item.measure_md5 else "")),
        *_numbers(("lifetimeMs", item.lifetime_ms, 0)),
        *(("forward", turl) for turl in item.forward),
        *(("spare", turl) for turl in item.spare),
    ]
    return item.request_id, tuple(pairs)


def _numbers(*given: tuple[str, int, int]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value, default in given if value != default]


_TURL_PROPERTIES: Final = {
    "TURL": "turl", "protocol": "protocol", "referenceID": "reference", "checksum": "checksum",
    "checksumType": "checksum_type", "error": "error", "kind": "kind",
}  # fmt: skip
"""Properties of an answer, in order, and the fields that they are of."""


def _turl_make(request_id: str, pairs: Pairs) -> TurlOutcome:
    found = _first(pairs)
    return TurlOutcome(request_id, **{field: found.get(name, "") for name, field in _TURL_PROPERTIES.items()})  # type: ignore[arg-type]


def _turl_take(item: TurlOutcome) -> tuple[str, Pairs]:
    return item.request_id, tuple(_given(*((name, getattr(item, field)) for name, field in _TURL_PROPERTIES.items())))


def _properties(base: str, make: Any, take: Any) -> Record:
    """`{requestID, <base>DataList/<base>DataElement*{property,value}}`."""
    return shaped(make, take, _REQUEST_ID, ListOf(f"{base}DataList", Children(f"{base}DataElement", "pairs", _PAIR)))


# --- stat, delete and ours -----------------------------------------------------------------------------------------


def _stat_make(request_id: str, reference: Any, state: str, *rest: str) -> ReplicaStatOutcome:
    if state == _NONE:
        return ReplicaStatOutcome(request_id, reference, False)
    kind, checksum, acl, size, guid, local_id = ("" if text == _NONE else text for text in rest)
    length = _int({"size": size}, "size", -1)
    return ReplicaStatOutcome(request_id, reference, True, state, kind, checksum, acl, length, guid, local_id)


def _stat_take(item: ReplicaStatOutcome) -> tuple[str, ...]:
    if not item.found:
        return (item.request_id, item.reference, *([_NONE] * 7))
    size = str(item.size) if item.size >= 0 else ""
    rest = (item.checksum_type, item.checksum, item.acl, size, item.guid, item.local_id)
    return item.request_id, item.reference, item.state, *rest


_STAT = shaped(
    _stat_make,
    _stat_take,
    _REQUEST_ID,
    _REFERENCE,
    Text("state", "state"),
    Text("checksumType", "checksum_type"),
    Text("checksum", "checksum"),
    Text("acl", "acl"),
    Text("size", "size"),
    Text("GUID", "guid"),
    Text("localID", "local_id"),
)
_NAMED_REFERENCE = shaped(lambda *pair: pair, lambda pair: pair, _REQUEST_ID, _REFERENCE)
_AUTHORITY = record(Authority, Child("position", "position", POSITION))
_TURL = {name: answers(name, _properties(f"{name}Response", _turl_make, _turl_take)) for name in ("get", "put")}

SHEPHERD: Final = service(
    shepherd.SHEPHERD,
    "she",
    (
        Spec(
            Shepherd.get,
            arguments(Shepherd.get, bulk("get", "requests", _properties("getRequest", _get_make, _get_take))),
            _TURL["get"],
            answer_name="getresponse",
            answer_prefix="",
        ),
        Spec(
            Shepherd.put,
            arguments(Shepherd.put, bulk("put", "requests", _properties("putRequest", _put_make, _put_take))),
            _TURL["put"],
            answer_name="putresponse",
            answer_prefix="",
        ),
        Spec(
            Shepherd.stat,
            arguments(Shepherd.stat, bulk("stat", "references", _NAMED_REFERENCE)),
            answers("stat", _STAT),
        ),
        Spec(
            Shepherd.delete,
            arguments(
                Shepherd.delete,
                bulk("delete", "references", _NAMED_REFERENCE),
                Child("authority", "authority", _AUTHORITY, default=None),
            ),
            answers("delete", record(DeleteOutcome, "request_id status kind?")),
            answer_name="deleteresponse",
            answer_prefix="",
        ),
        Spec(
            Shepherd.toggle_report,
            arguments(Shepherd.toggle_report, Text("doReporting", "on", BOOL)),
            shaped(lambda on: on, lambda on: (on,), TextContent("on", TRUE_FALSE)),
            answer_prefix="lbr",
        ),
    ),
)
"""The Shepherd's operations."""
