"""The Shepherd on the wire: property lists for `get` and `put` as in the original, our own facts as more properties.

Odd and kept:
- The answers of `get`, `put` and `delete` have roots without a namespace.
- `toggleReport` answers in the Librarian's namespace with the words True and False.
- `stat` spells unknown values "None".
An original client names checksum and type; we add every known checksum under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
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
    STR,
    TRUE_FALSE,
    Form,
    ListOf,
    Many,
    One,
    Record,
    TextContent,
    arguments,
    enum_form,
    record,
    shaped,
)

_REQUEST_ID = One("requestID", "request_id")
_REFERENCE = One("referenceID", "reference")
_PAIR = shaped(lambda *pair: pair, lambda pair: pair, One("property", "property"), One("value", "value"))
_NONE = "None"

Pairs = tuple[tuple[str, str], ...]


def _first(pairs: Pairs) -> dict[str, str]:
    return dict(reversed(pairs))


@dataclass(frozen=True, slots=True)
class _Property:
    """A property of a request or answer. `path`: the attribute with its value. It is left out at its `default` unless
    `always`; `many`: one property for each value."""

    name: str
    path: str
    form: Form = STR
    default: Any = ""
    always: bool = False
    many: bool = False


def _property_pairs(properties: Sequence[_Property], item: Any) -> list[tuple[str, str]]:
    pairs = list[tuple[str, str]]()
    for each in properties:
        value = attrgetter(each.path)(item)
        values = value if each.many else (value,) if each.always or value != each.default else ()
        pairs += [(each.name, each.form.write(one)) for one in values]
    return pairs


def _values(properties: Sequence[_Property], pairs: Pairs) -> dict[str, Any]:
    """The values in the properties, by path. Raises: BAD_REQUEST."""
    found = _first(pairs)
    return {each.path: _each(each, pairs) if each.many else _value(each, found) for each in properties}


def _each(prop: _Property, pairs: Pairs) -> tuple[Any, ...]:
    return tuple(_value(prop, {name: text}) for name, text in pairs if name == prop.name)


def _value(prop: _Property, found: dict[str, str]) -> Any:
    text = found.get(prop.name, "")
    try:
        return prop.form.read(text) if text else prop.default
    except ValueError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "", prop.name, f"{text[:80]!a} is not {error}") from None


# --- checksums -----------------------------------------------------------------------------------------------------


def _checksum_pairs(sums: Checksums) -> list[tuple[str, str]]:
    """The original's pair for the first known checksum (md5 first), then each known one under its own name."""
    known = [(name, text) for name in ("md5", "sha256", "adler32") if (text := getattr(sums, name))]
    if not known:
        return []
    kind, text = known[0]
    return [("checksum", text), ("checksumType", kind), *known]


def _checksums(found: dict[str, str]) -> Checksums:
    kind, text = found.get("checksumType", "").strip().lower(), found.get("checksum", "")
    named = {name: found.get(name, "") or (text if kind == name else "") for name in ("sha256", "md5", "adler32")}
    return Checksums(**{name: value.strip().lower() for name, value in named.items()})


# --- get and put ---------------------------------------------------------------------------------------------------


def _read_span(text: str) -> ByteRange:
    offset, _, length = text.partition(" ")
    try:
        return ByteRange(INT.read(offset), INT.read(length))
    except ValueError:
        raise ValueError("an offset and a length") from None


_SPAN: Final = Form("string", lambda span: f"{span.offset} {span.length}", _read_span)
_GET: Final = (
    _Property("referenceID", "reference", always=True),
    _Property("protocol", "protocols", many=True),
    _Property("dn", "dn"),
    _Property("address", "address"),
    _Property("lifetimeMs", "lifetime_ms", INT, 0),
    _Property("ranges", "ranges", BOOL, False),
    _Property("span", "spans", _SPAN, many=True),
)
_SIZE: Final = _Property("size", "facts.size", INT, -1, always=True)
_PUT: Final = (
    _Property("GUID", "facts.guid", always=True),
    _SIZE,
    _Property("protocol", "protocols", many=True),
    _Property("purpose", "purpose", enum_form(Purpose), Purpose.PENDING, always=True),
    _Property("blob", "facts.blob"),
    _Property("name", "facts.name"),
    _Property("owner", "facts.owner"),
    _Property("seal", "facts.seal"),
    _Property("wanted", "facts.wanted", INT, 0),
    _Property("createdMs", "facts.created_ms", INT, 0),
    _Property("durable", "durable", INT, 1),
    _Property("commitWithinMs", "facts.commit_within_ms", INT, 0),
    _Property("referenceID", "reference"),
    _Property("dn", "dn"),
    _Property("address", "address"),
    _Property("lifetimeMs", "lifetime_ms", INT, 0),
    _Property("forward", "forward", many=True),
    _Property("spare", "spare", many=True),
)
_TURL: Final = (
    _Property("TURL", "turl"),
    _Property("protocol", "protocol"),
    _Property("referenceID", "reference"),
    _Property("checksum", "checksum"),
    _Property("checksumType", "checksum_type"),
    _Property("error", "error"),
    _Property("kind", "kind"),
)


def _put_make(request_id: str, pairs: Pairs) -> PutRequest:
    values = _values(_PUT, pairs)
    facts = {path.removeprefix("facts."): values.pop(path) for path in list(values) if path.startswith("facts.")}
    return PutRequest(request_id, ReplicaFacts(**facts, checksums=_checksums(_first(pairs))), **values)


def _put_take(item: PutRequest) -> tuple[str, Pairs]:
    guid, *others = _property_pairs(_PUT, item)
    return item.request_id, (guid, *_checksum_pairs(item.facts.checksums), *others)


def _plain(cls: Callable[..., Any], base: str, properties: Sequence[_Property]) -> Record:
    """Describe a value that has only a request id and properties."""
    return _properties(
        base,
        lambda request_id, pairs: cls(request_id, **_values(properties, pairs)),
        lambda item: (item.request_id, tuple(_property_pairs(properties, item))),
    )


def _properties(base: str, make: Any, take: Any) -> Record:
    """Describe `{requestID, <base>DataList/<base>DataElement*{property,value}}`."""
    return shaped(make, take, _REQUEST_ID, ListOf(f"{base}DataList", Many(f"{base}DataElement", "pairs", _PAIR)))


# --- stat, delete and ours -----------------------------------------------------------------------------------------


def _stat_make(request_id: str, reference: Any, state: str, *rest: str) -> ReplicaStatOutcome:
    if state == _NONE:
        return ReplicaStatOutcome(request_id, reference, False)
    kind, checksum, acl, size, guid, local_id = ("" if text == _NONE else text for text in rest)
    length = _value(_SIZE, {"size": size})
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
    One("state", "state"),
    One("checksumType", "checksum_type"),
    One("checksum", "checksum"),
    One("acl", "acl"),
    One("size", "size"),
    One("GUID", "guid"),
    One("localID", "local_id"),
)
_NAMED_REFERENCE = shaped(lambda *pair: pair, lambda pair: pair, _REQUEST_ID, _REFERENCE)
_AUTHORITY = record(Authority, One("position", "position", POSITION))
_TURLS = {name: answers(name, _plain(TurlOutcome, f"{name}Response", _TURL)) for name in ("get", "put")}

SHEPHERD: Final = service(
    shepherd.SHEPHERD,
    "she",
    (
        Spec(
            Shepherd.get,
            arguments(Shepherd.get, bulk("get", "requests", _plain(GetRequest, "getRequest", _GET))),
            _TURLS["get"],
            answer_name="getresponse",
            answer_prefix="",
        ),
        Spec(
            Shepherd.put,
            arguments(Shepherd.put, bulk("put", "requests", _properties("putRequest", _put_make, _put_take))),
            _TURLS["put"],
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
                One("authority", "authority", _AUTHORITY, None, omit=True),
            ),
            answers("delete", record(DeleteOutcome, "request_id status kind?")),
            answer_name="deleteresponse",
            answer_prefix="",
        ),
        Spec(
            Shepherd.toggle_report,
            arguments(Shepherd.toggle_report, One("doReporting", "on", BOOL)),
            shaped(lambda on: on, lambda on: (on,), TextContent("on", TRUE_FALSE)),
            answer_prefix="lbr",
        ),
    ),
)
"""The Shepherd's operations."""
