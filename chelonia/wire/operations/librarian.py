"""The Librarian on the wire: the original's six operations to the letter, and `heartbeat` beside them.

Odd and kept: `report` answers `registerResponse`; `nextReportTime` is in seconds (-1 asks for a reconciliation), our
`nextReportMs` beside it is exact. A report's `<IMBACK>`/`<NOTFOUND>` markers pass as they are, an empty state reads
as `deleted`.
"""

from __future__ import annotations

from typing import Any, Final

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, ReplicaState
from chelonia.core.metadata import StoredObject
from chelonia.core.names import LogicalName
from chelonia.core.operations import librarian
from chelonia.core.ports.librarian import (
    Arriving,
    Heartbeat,
    HeartbeatAnswer,
    Librarian,
    ModifyEntry,
    ModifyOutcome,
    NewOutcome,
    NewRequest,
    RemoveOutcome,
    Report,
    ReportAnswer,
    ReportedReplica,
    Traversal,
    TraversedStep,
)
from chelonia.core.values import replace
from chelonia.wire.elements import CHECKSUMS, COUNTS, LN, POSITION, answers, bulk, extra, needed, stored_object
from chelonia.wire.operations.table import Spec, service
from chelonia.wire.schema import (
    BOOL,
    INT,
    Form,
    ListOf,
    Many,
    Metadata,
    One,
    arguments,
    enum_form,
    record,
    shaped,
    single,
    whole_argument,
)

_REQUEST_ID = One("requestID", "request_id")
_GUID = One("GUID", "guid")
_SECTIONS = Metadata("sections", sections=True)
_STATE = enum_form(ReplicaState)
_OBJECT = stored_object("GUID")

# --- the original's operations -------------------------------------------------------------------------------------

_EXPECTED = shaped(lambda *pair: pair, lambda pair: pair, _GUID, One("version", "version", INT))
_EXPECT = ListOf("expectList", Many("expect", "expect", _EXPECTED, bounds.BULK_ELEMENTS_MAX), omit=True)
_MODIFY = record(ModifyEntry, "change_id guid change_type section property value", _EXPECT)
_REMOVE = shaped(lambda *pair: pair, lambda pair: pair, _REQUEST_ID, _GUID)
_NAME = shaped(lambda _, name: name, lambda pair: pair, _REQUEST_ID, One("LN", "ln", LN))


_TRAVERSE = arguments(
    Librarian.traverse,
    ListOf("traverseLNRequestList", Many("traverseLNRequestElement", "names", _NAME, 1000), required=True),
    replace(needed(), omit=True),
)


def _traverse_take(args: tuple[tuple[LogicalName, ...], Any]) -> tuple[Any, ...]:
    """Number the names: the port has no request ids, so the place in the list serves as one."""
    names, wanted = args
    return tuple((str(index), name) for index, name in enumerate(names)), wanted


_STEP = record(TraversedStep, "part=LNPart guid")


def _traversed_make(_id: str, steps: Any, complete: bool, _done: str, *rest: Any) -> Traversal:
    guid, sections, left, version, counts = rest
    last = StoredObject(guid, version if version >= 0 else int(bool(sections)), sections, counts or {})
    return Traversal(steps, complete, last, tuple(left.split("/")) if left else ())


def _traversed_take(pair: tuple[str, Traversal]) -> tuple[Any, ...]:
    request_id, item = pair
    done = "/".join(step.part for step in item.steps)
    last = item.last
    rest = "/".join(item.rest)
    return request_id, item.steps, item.complete, done, last.id, last.sections, rest, last.version, last.counts or None


_TRAVERSED = shaped(
    _traversed_make,
    _traversed_take,
    _REQUEST_ID,
    ListOf("traversedList", Many("traversedListElement", "steps", _STEP)),
    One("wasComplete", "complete", BOOL),
    One("traversedLN", "done", default=""),
    One("GUID", "guid"),
    _SECTIONS,
    One("restLN", "rest", default=""),
    One("version", "version", INT, default=-1),
    One("counts", "counts", COUNTS, None, omit=True),
)
_TRAVERSALS = shaped(
    lambda results: (results, ()),
    lambda pair: (tuple(zip(pair[1], pair[0], strict=True)),),
    ListOf("traverseLNResponseList", Many("traverseLNResponseElement", "results", _TRAVERSED), required=True),
)


def _read_reported(text: str) -> Any:
    return ReplicaState.DELETED if not text.strip() else _STATE.read(text)


_REPORTED_STATE = Form("string", _STATE.write, _read_reported)


def _reported_take(item: ReportedReplica) -> tuple[Any, ...]:
    sums = item.checksums
    return item.guid, item.reference, item.state, item.blob, item.size, sums.sha256, sums.md5, sums.adler32


_REPORTED = shaped(
    lambda guid, reference, state, blob, size, *sums: ReportedReplica(
        guid, reference, state, blob, size, Checksums(*sums)
    ),
    _reported_take,
    _GUID,
    One("referenceID", "reference"),
    One("state", "state", _REPORTED_STATE),
    extra("blob", "blob"),
    extra("size", "size", -1, of=INT),
    *CHECKSUMS,
)
_REPORT = record(
    Report,
    One("serviceID", "shepherd"),
    One("boot", "boot", INT, default=0),
    One("number", "number", INT, default=0),
    ListOf("filelist", Many("file", "replicas", _REPORTED, bounds.REPORT_ENTRIES_MAX)),
    extra("store", "store"),
)


def _reported_answer_make(seconds: int, files: Any, *extras: Any) -> ReportAnswer:
    accepted, exact_ms, unknown, *before = extras
    if exact_ms is None:
        exact_ms = seconds * 1000 if seconds >= 0 else -1
    return ReportAnswer(accepted, exact_ms, unknown, files, *before)


def _reported_answer_take(item: ReportAnswer) -> tuple[Any, ...]:
    exact = item.next_report_ms
    seconds = (exact + 999) // 1000 if exact >= 0 else -1
    before = item.before_boot, item.before_number, item.obeyed
    return seconds, item.all_files, item.accepted, exact, item.unknown, *before


_REPORT_ANSWER = shaped(
    _reported_answer_make,
    _reported_answer_take,
    One("nextReportTime", "seconds", INT),
    ListOf("allFiles", Many("GUID", "files", limit=bounds.XML_ELEMENTS_MAX)),
    One("accepted", "accepted", INT, default=0),
    One("nextReportMs", "exact_ms", INT, default=None),
    ListOf("unknownList", Many("referenceID", "unknown", limit=bounds.BULK_ELEMENTS_MAX), omit=True),
    extra("beforeBoot", "before_boot", 0, of=INT),
    extra("beforeNumber", "before_number", 0, of=INT),
    extra("obeyed", "obeyed", 0, of=INT),
)

# --- ours ------------------------------------------------------------------------------------------------------------

_ARRIVING = record(Arriving, "reference=referenceID blob here")
_HEARTBEAT = record(
    Heartbeat,
    "shepherd=serviceID boot reported free_bytes total_bytes replicas accepting domain verify_key",
    "version? compared? store?",
    ListOf("bootList", Many("boot", "boots", of=INT, limit=bounds.BOOTS_KEPT), omit=True),
    "replaces? trouble? reclaimable_bytes? leaving? starting?",
    ListOf("arrivingList", Many("copy", "arriving", _ARRIVING, limit=bounds.ARRIVING_MAX), omit=True),
    "copies_at_once_max?",
)
_HEARTBEAT_ANSWER = record(
    HeartbeatAnswer,
    "lease_ms known accepted",
    One("position", "position", POSITION),
    "refused? cause? copy_bytes_per_s_max? copies_at_once_max?",
)
_GET_ELEMENT = single(_GUID)
_L = Librarian

LIBRARIAN: Final = service(
    librarian.LIBRARIAN,
    "lbr",
    (
        Spec(
            _L.new,
            arguments(_L.new, bulk("new", "requests", record(NewRequest, "request_id", Metadata("metadata")))),
            answers("new", record(NewOutcome, "request_id guid success")),
        ),
        Spec(_L.get, arguments(_L.get, needed(), bulk("get", "guids", _GET_ELEMENT)), answers("get", _OBJECT)),
        Spec(_L.traverse, replace(_TRAVERSE, take=_traverse_take), _TRAVERSALS, echo="requestID"),
        Spec(
            _L.modify_metadata,
            arguments(_L.modify_metadata, bulk("modifyMetadata", "requests", _MODIFY)),
            answers("modifyMetadata", record(ModifyOutcome, "change_id success")),
        ),
        Spec(
            _L.remove,
            arguments(_L.remove, bulk("remove", "requests", _REMOVE)),
            answers("remove", record(RemoveOutcome, "request_id success")),
        ),
        Spec(_L.report, whole_argument(_L.report, _REPORT), _REPORT_ANSWER, answer_name="registerResponse"),
        Spec(_L.heartbeat, whole_argument(_L.heartbeat, _HEARTBEAT), _HEARTBEAT_ANSWER),
    ),
)
"""The Librarian's operations."""
