"""The Librarian on the wire: the original's six operations to the letter, the transactional namespace beside them.

Odd and kept: `report` answers `registerResponse`; `nextReportTime` is in seconds (-1 asks for a reconciliation), our
`nextReportMs` beside it is exact. A report's `<IMBACK>`/`<NOTFOUND>` markers pass as they are, an empty state reads
as `deleted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from chelonia.core import bounds, operations
from chelonia.core.caller import Role
from chelonia.core.drills import Drill, DrillAction, DrillOrder, DrillStage, DrillStatus
from chelonia.core.healing import (
    KEEP,
    Endangered,
    Exposed,
    ForgetPage,
    HealAction,
    HealControl,
    HealOrder,
    HealStatus,
    HeldDrain,
    Loss,
    NodeCopies,
    NodeCursor,
    Word,
)
from chelonia.core.ids import BlobId, Guid, ReferenceId
from chelonia.core.librarian import (
    Arriving,
    BeginPut,
    Begun,
    CommitFile,
    Committed,
    Delete,
    Entry,
    EntryPage,
    Finding,
    FsckPage,
    HealthSummary,
    Heartbeat,
    HeartbeatAnswer,
    InventoryItem,
    InventoryPage,
    Librarian,
    MakeEntry,
    Mended,
    ModifyOutcome,
    ModifyRequest,
    Move,
    NewOutcome,
    NewRequest,
    NodeView,
    RebuildStatus,
    RemoveOutcome,
    Report,
    ReportAnswer,
    ReportedReplica,
    ServiceRecord,
    SetWanted,
    Severity,
    Trashed,
    TrashPage,
    Traversal,
    TraversedStep,
    Undelete,
    Unlink,
    Unmake,
)
from chelonia.core.metadata import StoredObject
from chelonia.core.names import LogicalName
from chelonia.core.replicas import Checksums, ReplicaState
from chelonia.wire.elements import (
    CHECKSUMS,
    COUNTS,
    LN,
    POSITION,
    RECEIPT,
    answers,
    bulk,
    extra,
    needed,
    stored_object,
)
from chelonia.wire.operations import Spec, service
from chelonia.wire.schema import (
    BOOL,
    INT,
    NOTHING,
    Child,
    Children,
    Form,
    Listed,
    Metadata,
    Record,
    Text,
    Texts,
    arguments,
    enum_form,
    record,
    shaped,
    single,
    whole_argument,
)

_REQUEST_ID = Text("requestID", "request_id")
_GUID = Text("GUID", "guid")
_SUCCESS = Text("success", "success")
_SECTIONS = Metadata("sections", sections=True)
_STATE = enum_form(ReplicaState)
_OBJECT = stored_object("GUID")

# --- the original's operations -------------------------------------------------------------------------------------

_EXPECTED = shaped(lambda *pair: pair, lambda pair: pair, _GUID, Text("version", "version", INT))
_EXPECT = Listed("expectList", Children("expect", "expect", _EXPECTED, bounds.BULK_ELEMENTS_MAX), omit=True)
_MODIFY = record(
    ModifyRequest,
    Text("changeID", "change_id"),
    _GUID,
    Text("changeType", "change_type"),
    Text("section", "section"),
    Text("property", "property"),
    Text("value", "value"),
    _EXPECT,
)
_REMOVE = shaped(lambda *pair: pair, lambda pair: pair, _REQUEST_ID, _GUID)
_NAME = shaped(lambda _, name: name, lambda pair: pair, _REQUEST_ID, Text("LN", "ln", LN))


_TRAVERSE = arguments(
    Librarian.traverse,
    Listed("traverseLNRequestList", Children("traverseLNRequestElement", "names", _NAME, 1000), required=True),
    replace(needed(), omit=True),
)


def _traverse_take(args: tuple[tuple[LogicalName, ...], Any]) -> tuple[Any, ...]:
    """The port has no request ids: the place in the list serves as one."""
    names, wanted = args
    return tuple((str(index), name) for index, name in enumerate(names)), wanted


_STEP = record(TraversedStep, Text("LNPart", "part"), _GUID)


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
    Listed("traversedList", Children("traversedListElement", "steps", _STEP)),
    Text("wasComplete", "complete", BOOL),
    Text("traversedLN", "done", default=""),
    Text("GUID", "guid"),
    _SECTIONS,
    Text("restLN", "rest", default=""),
    Text("version", "version", INT, default=-1),
    Child("counts", "counts", COUNTS, default=None),
)
_TRAVERSALS = shaped(
    lambda results: (results, ()),
    lambda pair: (tuple(zip(pair[1], pair[0], strict=True)),),
    Listed("traverseLNResponseList", Children("traverseLNResponseElement", "results", _TRAVERSED), required=True),
)


def _read_reported(text: str) -> Any:
    return ReplicaState.DELETED if not text.strip() else _STATE.read(text)


_REPORTED_STATE = Form("string", _STATE.write, _read_reported)


def _reported_make(guid: str, reference: Any, state: ReplicaState, blob: Any, size: int, *sums: str) -> ReportedReplica:
    return ReportedReplica(guid, ReferenceId(reference), state, BlobId(blob), size, Checksums(*sums))


def _reported_take(item: ReportedReplica) -> tuple[Any, ...]:
    sums = item.checksums
    return item.guid, item.reference, item.state, item.blob, item.size, sums.sha256, sums.md5, sums.adler32


_REPORTED = shaped(
    _reported_make,
    _reported_take,
    _GUID,
    Text("referenceID", "reference"),
    Text("state", "state", _REPORTED_STATE),
    extra("blob", "blob"),
    extra("size", "size", -1, form=INT),
    *CHECKSUMS,
)
_REPORT = record(
    Report,
    Text("serviceID", "shepherd"),
    Text("boot", "boot", INT, default=0),
    Text("number", "number", INT, default=0),
    Listed("filelist", Children("file", "replicas", _REPORTED, bounds.REPORT_ENTRIES_MAX)),
    extra("store", "store"),
)


def _reported_answer_make(seconds: int, files: Any, *ours: Any) -> ReportAnswer:
    accepted, exact_ms, unknown, *before = ours
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
    Text("nextReportTime", "seconds", INT),
    Listed("allFiles", Texts("GUID", "files", limit=bounds.XML_ELEMENTS_MAX)),
    Text("accepted", "accepted", INT, default=0),
    Text("nextReportMs", "exact_ms", INT, default=None),
    Listed("unknownList", Texts("referenceID", "unknown"), omit=True),
    extra("beforeBoot", "before_boot", 0, form=INT),
    extra("beforeNumber", "before_number", 0, form=INT),
    extra("obeyed", "obeyed", 0, form=INT),
)

# --- the transactional namespace -----------------------------------------------------------------------------------

_MAKE_ENTRY = record(
    MakeEntry,
    Text("parent", "parent"),
    Text("name", "name"),
    Text("type", "type"),
    Text("owner", "owner"),
    _SECTIONS,
    _EXPECT,
)
_SUMS = record(Checksums, *CHECKSUMS)
_BEGIN_PUT = record(
    BeginPut,
    Text("parent", "parent"),
    Text("name", "name"),
    Text("LN", "ln", LN),
    Text("owner", "owner"),
    _SECTIONS,
    Text("wanted", "wanted", INT),
    Text("size", "size", INT),
    Child("checksums", "checksums", _SUMS),
    Text("expiresMs", "expires_ms", INT),
    Text("named", "named", BOOL),
    extra("replaces", "replaces"),
    _EXPECT,
)
_BEGUN = record(Begun, _GUID, Text("blob", "blob"), Text("seal", "seal"))
_RECEIPTS = Listed("receiptList", Children("receipt", "receipts", RECEIPT, bounds.RECEIPTS_MAX))
_COMMIT_FILE = record(CommitFile, Child("begin", "begin", _BEGIN_PUT), Child("begun", "begun", _BEGUN), _RECEIPTS)
_COMMITTED = record(Committed, _GUID, Text("blob", "blob"))
_UNLINK = record(Unlink, Text("parent", "parent"), Text("name", "name"), Text("child", "child"), _EXPECT)
_DELETE = record(Delete, _GUID, _EXPECT)
_UNMAKE = record(Unmake, _GUID, _EXPECT)
_MOVE = record(
    Move,
    Text("child", "child"),
    Text("sourceParent", "source_parent"),
    Text("sourceName", "source_name"),
    Text("targetParent", "target_parent"),
    Text("targetName", "target_name"),
    Text("keep", "keep", BOOL),
    _EXPECT,
)
_UNDELETE = record(Undelete, _GUID, Text("parent", "parent"), Text("name", "name"), _EXPECT)
_TRASHED = record(
    Trashed,
    _GUID,
    Text("owner", "owner"),
    Text("parent", "parent"),
    Text("name", "name"),
    Text("size", "size", INT),
    Text("deletedMs", "deleted_ms", INT),
    Text("untilMs", "until_ms", INT),
)
_TRASH_PAGE = record(TrashPage, Listed("entryList", Children("entry", "entries", _TRASHED)), Text("after", "after"))
_SET_WANTED = record(SetWanted, _GUID, Text("wanted", "wanted", INT), _EXPECT)
_ENTRY = record(Entry, Text("name", "name"), Child("object", "object", _OBJECT))
_ENTRY_PAGE = record(EntryPage, Listed("entryList", Children("entry", "entries", _ENTRY)), Text("after", "after"))

# --- nodes ---------------------------------------------------------------------------------------------------------

_ARRIVING = record(Arriving, Text("referenceID", "reference"), Text("blob", "blob"), Text("here", "here", INT))
_HEARTBEAT = record(
    Heartbeat,
    Text("serviceID", "shepherd"),
    Text("boot", "boot", INT),
    Text("reported", "reported", INT),
    Text("freeBytes", "free_bytes", INT),
    Text("totalBytes", "total_bytes", INT),
    Text("replicas", "replicas", INT),
    Text("accepting", "accepting", BOOL),
    Text("domain", "domain"),
    Text("verifyKey", "verify_key"),
    extra("version", "version"),
    extra("compared", "compared", 0, form=INT),
    extra("store", "store"),
    Listed("bootList", Texts("boot", "boots", form=INT, limit=bounds.BOOTS_KEPT), omit=True),
    extra("replaces", "replaces", False, form=BOOL),
    extra("trouble", "trouble"),
    extra("reclaimableBytes", "reclaimable_bytes", 0, form=INT),
    extra("leaving", "leaving", False, form=BOOL),
    extra("starting", "starting", False, form=BOOL),
    Listed("arrivingList", Children("copy", "arriving", _ARRIVING, limit=bounds.ARRIVING_MAX), omit=True),
    extra("copiesAtOnceMax", "copies_at_once_max", 0, form=INT),
)
_HEARTBEAT_ANSWER = record(
    HeartbeatAnswer,
    Text("leaseMs", "lease_ms", INT),
    Text("known", "known", BOOL),
    Text("accepted", "accepted", INT),
    Child("position", "position", POSITION),
    extra("refused", "refused"),
    extra("cause", "cause"),
    extra("copyBytesPerSMax", "copy_bytes_per_s_max", 0, form=INT),
    extra("copiesAtOnceMax", "copies_at_once_max", 0, form=INT),
)
_NODE = record(
    NodeView,
    Text("serviceID", "shepherd"),
    Text("dn", "dn"),
    Text("state", "state"),
    Text("sinceMs", "since_ms", INT),
    Text("boot", "boot", INT),
    Text("freeBytes", "free_bytes", INT),
    Text("totalBytes", "total_bytes", INT),
    Text("replicas", "replicas", INT),
    Text("accepting", "accepting", BOOL),
    Text("domain", "domain"),
    Text("maintenanceUntilMs", "maintenance_until_ms", INT),
    extra("store", "store"),
    extra("reclaimableBytes", "reclaimable_bytes", 0, form=INT),
    extra("trouble", "trouble"),
    extra("drain", "drain"),
)
_LOSS = record(
    Loss,
    _GUID,
    Text("LN", "name"),
    Text("blob", "blob"),
    Listed("elsewhereList", Texts("serviceID", "elsewhere")),
)
_FORGET_PAGE = record(
    ForgetPage,
    Text("lookedAt", "looked_at", INT),
    Listed("lossList", Children("loss", "losses", _LOSS)),
    Text("after", "after"),
    Text("forgotten", "forgotten", BOOL),
)
_INVENTORY_ITEM = record(
    InventoryItem,
    Text("referenceID", "reference"),
    Text("blob", "blob"),
    Text("state", "state", _STATE, default=None, omit=True),
)
_INVENTORY = record(
    InventoryPage, Listed("itemList", Children("item", "items", _INVENTORY_ITEM)), Text("after", "after")
)
_SERVICE = record(
    ServiceRecord,
    Text("role", "role", enum_form(Role)),
    Text("dn", "dn"),
    Text("serviceID", "service_id"),
    Text("approved", "approved", BOOL),
    extra("forgotten", "forgotten", False, form=BOOL),
)
_TALLY = shaped(lambda *pair: pair, lambda pair: pair, Text("state", "state"), Text("number", "number", INT))


def _health_make(leader: str, is_leader: bool, position: Any, *rest: Any) -> HealthSummary:
    exposed, queued, copying, erasing, replicas, *paused = rest
    return HealthSummary(leader, is_leader, position, exposed, queued, copying, erasing, dict(replicas), *paused)


def _health_take(item: HealthSummary) -> tuple[Any, ...]:
    tally: Mapping[str, int] = item.replicas
    work = (item.exposed, item.queued, item.copying, item.erasing)
    paused = (item.paused_by, item.paused_ms, item.held_back, item.waits_for)
    return item.leader, item.is_leader, item.position, *work, tuple(tally.items()), *paused


_HEALTH = shaped(
    _health_make,
    _health_take,
    Text("leader", "leader"),
    Text("isLeader", "is_leader", BOOL),
    Child("position", "position", POSITION),
    Text("exposed", "exposed", INT),
    Text("queued", "queued", INT),
    Text("copying", "copying", INT),
    Text("erasing", "erasing", INT),
    Listed("replicaList", Children("replica", "replicas", _TALLY)),
    extra("pausedBy", "paused_by"),
    extra("pausedMs", "paused_ms", 0, form=INT),
    extra("heldBack", "held_back", 0, form=INT),
    extra("waitsFor", "waits_for"),
)

_HEAL_ORDER = record(
    HealOrder,
    Text("action", "action", enum_form(HealAction)),
    extra("bytesPerS", "bytes_per_s", KEEP, form=INT),
    extra("copiesPerNode", "copies_per_node", KEEP, form=INT),
)
_HEAL_CONTROL = record(
    HealControl,
    Text("bytesPerS", "bytes_per_s", INT),
    Text("copiesPerNode", "copies_per_node", INT),
    extra("pausedBy", "paused_by"),
    extra("pausedMs", "paused_ms", 0, form=INT),
)
_ENDANGERED = record(
    Endangered,
    Text("blob", "blob"),
    Text("name", "name"),
    Text("live", "live", INT),
    Text("wanted", "wanted", INT),
    Text("size", "size", INT),
    Text("createdMs", "created_ms", INT),
)
_CURSOR = record(NodeCursor, Text("serviceID", "shepherd"), extra("after", "after"), Text("read", "read", BOOL))
_NODE_COPIES = record(
    NodeCopies, Text("serviceID", "shepherd"), Text("copies", "copies", INT), Text("copiesMax", "copies_max", INT)
)
_HELD_DRAIN = record(
    HeldDrain,
    Text("serviceID", "shepherd"),
    Text("blobs", "blobs", INT),
    Listed("exampleList", Children("endangered", "examples", _ENDANGERED), omit=True),
)
_EXPOSED = record(Exposed, Text("live", "live", INT), Text("blobs", "blobs", INT))
_HEAL_STATUS = record(
    HealStatus,
    Text("leader", "leader"),
    Text("isLeader", "is_leader", BOOL),
    Child("control", "control", _HEAL_CONTROL),
    Listed("exposedList", Children("exposed", "exposed", _EXPOSED)),
    Text("delayed", "delayed", INT),
    Text("stuck", "stuck", INT),
    Text("copiesToGo", "copies_to_go", INT),
    Text("bytesToGo", "bytes_to_go", INT),
    Text("copiesDone", "copies_done", INT),
    Text("bytesDone", "bytes_done", INT),
    Text("copying", "copying", INT),
    Text("copiesPerMin", "copies_per_min", INT),
    Text("bytesPerS", "bytes_per_s", INT),
    Text("forecastMs", "forecast_ms", INT),
    Listed("queueList", Children("endangered", "queue", _ENDANGERED), omit=True),
    Listed("cursorList", Children("cursor", "cursors", _CURSOR), omit=True),
    extra("waitsFor", "waits_for"),
    Listed("nodeList", Children("node", "nodes", _NODE_COPIES), omit=True),
    Listed("drainList", Children("drain", "drains", _HELD_DRAIN), omit=True),
    extra("lost", "lost", 0, form=INT),
    Listed("lostList", Children("endangered", "lost_named", _ENDANGERED), omit=True),
    extra("unreachable", "unreachable", 0, form=INT),
)


_DRILL_ORDER = record(
    DrillOrder,
    Text("action", "action", enum_form(DrillAction)),
    extra("serviceID", "shepherd"),
    extra("durationMs", "duration_ms", 0, form=INT),
    Text("withinMs", "within_ms", INT),
    Text("filesMax", "files_max", INT),
    Text("oneLeftMax", "one_left_max", INT),
    extra("checkOnly", "check_only", False, form=BOOL),
    extra("by", "by"),
)
_DRILL = record(
    Drill,
    extra("id", "id"),
    Text("number", "number", INT),
    Text("action", "action", enum_form(DrillAction)),
    Text("stage", "stage", enum_form(DrillStage)),
    extra("serviceID", "shepherd"),
    extra("referenceID", "reference"),
    extra("blob", "blob"),
    extra("name", "name"),
    extra("by", "by"),
    Text("files", "files", INT),
    Text("beganMs", "began_ms", INT),
    Text("untilMs", "until_ms", INT),
    Text("deadlineMs", "deadline_ms", INT),
    extra("noticedMs", "noticed_ms", 0, form=INT),
    Text("touched", "touched", INT),
    extra("wholeMs", "whole_ms", 0, form=INT),
    extra("recalledMs", "recalled_ms", 0, form=INT),
    extra("endedMs", "ended_ms", 0, form=INT),
    extra("why", "why"),
)
_DRILL_STATUS = record(
    DrillStatus,
    Child("drill", "drill", _DRILL),
    Text("nowMs", "now_ms", INT),
    Listed("exposedList", Children("exposed", "exposed", _EXPOSED), omit=True),
)


_FINDING = record(
    Finding,
    Text("ID", "object"),
    Text("rule", "rule"),
    extra("subject", "subject"),
    Text("severity", "severity", enum_form(Severity)),
    Text("text", "text"),
    Text("mendable", "mendable", BOOL),
)
_FINDINGS = Listed("findingList", Children("finding", "findings", _FINDING, bounds.XML_ELEMENTS_MAX))
_FSCK = record(
    FsckPage,
    _FINDINGS,
    extra("cursor", "cursor"),
    Text("examined", "examined", INT),
    Text("objects", "objects", INT),
)
_COUNT = shaped(lambda *pair: pair, lambda pair: pair, Text("what", "what"), Text("number", "number", INT))


def _rebuild_make(stage: str, done: int, total: int, counts: Any, notes: Any, cause: str) -> RebuildStatus:
    return RebuildStatus(stage, done, total, dict(counts), notes, cause)


def _rebuild_take(item: RebuildStatus) -> tuple[Any, ...]:
    return item.stage, item.done, item.total, tuple(item.counts.items()), item.notes, item.cause


_REBUILD = shaped(
    _rebuild_make,
    _rebuild_take,
    Text("stage", "stage"),
    Text("done", "done", INT),
    Text("total", "total", INT),
    Listed("countList", Children("count", "counts", _COUNT)),
    Listed("noteList", Texts("note", "notes", limit=bounds.XML_ELEMENTS_MAX)),
    extra("cause", "cause"),
)
_MENDED = record(Mended, Text("done", "done", BOOL), Text("what", "what"))


def _single_guid(guid: Guid) -> tuple[Guid]:
    return (guid,)


_GUID_ANSWER = shaped(lambda guid: guid, _single_guid, _GUID)
_GET_ELEMENT = single(_GUID)
_L = Librarian


def _command(method: Any, of: Record, answer: Record = NOTHING) -> Spec:
    """An operation with one message in, one out: the parts stand directly in request and answer."""
    return Spec(method, whole_argument(method, of), answer)


LIBRARIAN: Final = service(
    operations.LIBRARIAN,
    "lbr",
    (
        Spec(
            _L.new,
            arguments(_L.new, bulk("new", "requests", record(NewRequest, _REQUEST_ID, Metadata("metadata")))),
            answers("new", record(NewOutcome, _REQUEST_ID, _GUID, _SUCCESS)),
        ),
        Spec(
            _L.get,
            arguments(_L.get, needed(), bulk("get", "guids", _GET_ELEMENT)),
            answers("get", _OBJECT),
        ),
        Spec(_L.traverse, replace(_TRAVERSE, take=_traverse_take), _TRAVERSALS, echo="requestID"),
        Spec(
            _L.modify_metadata,
            arguments(_L.modify_metadata, bulk("modifyMetadata", "requests", _MODIFY)),
            answers("modifyMetadata", record(ModifyOutcome, Text("changeID", "change_id"), _SUCCESS)),
        ),
        Spec(
            _L.remove,
            arguments(_L.remove, bulk("remove", "requests", _REMOVE)),
            answers("remove", record(RemoveOutcome, _REQUEST_ID, _SUCCESS)),
        ),
        Spec(
            _L.report,
            whole_argument(_L.report, _REPORT),
            _REPORT_ANSWER,
            answer_name="registerResponse",
        ),
        _command(_L.make_entry, _MAKE_ENTRY, _GUID_ANSWER),
        _command(_L.begin_put, _BEGIN_PUT, _BEGUN),
        Spec(_L.commit_put, arguments(_L.commit_put, _GUID, _RECEIPTS), _COMMITTED),
        _command(_L.commit_file, _COMMIT_FILE, _COMMITTED),
        _command(_L.unlink, _UNLINK),
        _command(_L.delete, _DELETE),
        _command(_L.unmake, _UNMAKE),
        _command(_L.move, _MOVE),
        _command(_L.undelete, _UNDELETE),
        Spec(
            _L.trash,
            arguments(_L.trash, extra("under", "under"), extra("after", "after"), Text("limit", "limit", INT)),
            _TRASH_PAGE,
        ),
        _command(_L.set_wanted, _SET_WANTED),
        Spec(
            _L.entries,
            arguments(_L.entries, _GUID, extra("after", "after"), Text("limit", "limit", INT), needed()),
            _ENTRY_PAGE,
        ),
        Spec(_L.recall, arguments(_L.recall), single(Text("memo", "memo", default=None, omit=True))),
        _command(_L.heartbeat, _HEARTBEAT, _HEARTBEAT_ANSWER),
        Spec(
            _L.hearing,
            arguments(_L.hearing, Listed("serviceList", Texts("serviceID", "shepherds"))),
            single(Listed("wordList", Texts("word", "words", form=enum_form(Word)))),
        ),
        Spec(_L.consider, arguments(_L.consider, Listed("blobList", Texts("blob", "blobs"))), NOTHING),
        Spec(
            _L.inventory,
            arguments(
                _L.inventory, Text("serviceID", "shepherd"), extra("after", "after"), Text("limit", "limit", INT)
            ),
            _INVENTORY,
        ),
        Spec(_L.nodes, arguments(_L.nodes), single(Listed("nodeList", Children("node", "nodes", _NODE)))),
        Spec(
            _L.services,
            arguments(_L.services),
            single(Listed("serviceList", Children("service", "services", _SERVICE))),
        ),
        _command(_L.approve, _SERVICE),
        Spec(
            _L.maintenance,
            arguments(_L.maintenance, Text("serviceID", "shepherd"), Text("untilMs", "until_ms", INT)),
            NOTHING,
        ),
        Spec(
            _L.drain,
            arguments(_L.drain, Text("serviceID", "shepherd"), Text("on", "on", BOOL)),
            NOTHING,
        ),
        Spec(
            _L.forget,
            arguments(
                _L.forget,
                Text("serviceID", "shepherd"),
                extra("after", "after"),
                Text("checkOnly", "check_only", BOOL),
                Text("acceptLoss", "accept_loss", BOOL),
            ),
            _FORGET_PAGE,
        ),
        Spec(_L.heal_status, arguments(_L.heal_status), _HEAL_STATUS),
        _command(_L.heal_order, _HEAL_ORDER, _HEAL_STATUS),
        _command(_L.drill, _DRILL_ORDER, _DRILL_STATUS),
        Spec(_L.drill_status, arguments(_L.drill_status), _DRILL_STATUS),
        Spec(_L.health, arguments(_L.health), _HEALTH),
        Spec(_L.rebuild, arguments(_L.rebuild, Text("begin", "begin", BOOL), extra("late", "late")), _REBUILD),
        Spec(_L.fsck, arguments(_L.fsck, extra("GUID", "below"), extra("cursor", "cursor")), _FSCK),
        Spec(
            _L.mend,
            arguments(_L.mend, replace(_FINDINGS, required=True)),
            single(Listed("mendedList", Children("mended", "results", _MENDED))),
        ),
    ),
)
"""The Librarian's operations."""
