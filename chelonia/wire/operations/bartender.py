"""The Bartender on the wire: the original's operations to the letter, `startPut` and `commitPut` in the same style.

Kind and cause, paging, sizes and further TURLs are optional elements after the original's own.
"""

from __future__ import annotations

from typing import Any, Final

from chelonia.core.operations import bartender
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    Bartender,
    CommitPutRequest,
    DeletedEntry,
    GetFileRequest,
    ListDeletedOutcome,
    ListedEntry,
    ListOutcome,
    ListRequest,
    MakeRequest,
    ModifyRequest,
    MoveRequest,
    NameRequest,
    Outcome,
    PutFileRequest,
    StartPutOutcome,
    StartPutRequest,
    StatOutcome,
    TransferOutcome,
    UndeleteRequest,
)
from chelonia.wire.elements import KIND_AND_CAUSE, answers, bulk, extra, needed
from chelonia.wire.operations.table import Spec, service
from chelonia.wire.schema import (
    BOOL,
    INT,
    YES_NO,
    Child,
    Children,
    ListOf,
    Metadata,
    Record,
    Text,
    Texts,
    arguments,
    record,
    shaped,
    single,
)

_REQUEST_ID = Text("requestID", "request_id")
_LN = Text("LN", "ln")
_METADATA = Metadata("metadata")
_PROTOCOLS = Texts("protocol", "protocols")
_SUCCESS = Text("success", "status")

_NAME = record(NameRequest, _REQUEST_ID, _LN)
_OUTCOME = record(Outcome, _REQUEST_ID, _SUCCESS, *KIND_AND_CAUSE)
_MOVED = record(Outcome, _REQUEST_ID, Text("status", "status"), *KIND_AND_CAUSE)
_MODIFIED = record(Outcome, Text("changeID", "request_id"), _SUCCESS, *KIND_AND_CAUSE)
_STAT = record(StatOutcome, _REQUEST_ID, _METADATA, *KIND_AND_CAUSE)
_LIST = record(ListRequest, _REQUEST_ID, _LN, extra("after", "after"), extra("limit", "limit", 0, form=INT))
_ENTRY = record(ListedEntry, Text("name", "name"), Text("GUID", "guid"), Metadata("metadata", bare=True))
_LISTED = record(
    ListOutcome,
    _REQUEST_ID,
    ListOf("entries", Children("entry", "entries", _ENTRY)),
    Text("status", "status"),
    extra("after", "after"),
    *KIND_AND_CAUSE,
)
_DELETED = record(
    DeletedEntry,
    Text("name", "name"),
    Text("GUID", "guid"),
    Text("owner", "owner"),
    Text("size", "size", INT),
    Text("deletedMs", "deleted_ms", INT),
    Text("untilMs", "until_ms", INT),
    extra("type", "type", "file"),
)
_LISTED_DELETED = record(
    ListDeletedOutcome,
    _REQUEST_ID,
    ListOf("entries", Children("entry", "entries", _DELETED)),
    Text("status", "status"),
    extra("after", "after"),
    *KIND_AND_CAUSE,
)
_UNDELETE = record(UndeleteRequest, _REQUEST_ID, _LN, extra("targetLN", "target_ln"))
_RECURSIVE = shaped(
    lambda _, recursive: recursive,
    lambda recursive: ("recursive", recursive),
    Text("requestID", "request_id", default="recursive"),
    Text("doRecursive", "recursive", YES_NO, default=False),
)
_MAKE_COLLECTION = record(MakeRequest, _REQUEST_ID, _LN, _METADATA)
_MAKE_MOUNTPOINT = record(MakeRequest, _REQUEST_ID, _LN, Text("URL", "url"), _METADATA)
_MOVE = record(
    MoveRequest,
    _REQUEST_ID,
    Text("sourceLN", "source_ln"),
    Text("targetLN", "target_ln"),
    Text("preserveOriginal", "preserve_original", BOOL),
)
_PUT_FILE = record(
    PutFileRequest, _REQUEST_ID, _LN, _METADATA, _PROTOCOLS, extra("replace", "replace", False, form=BOOL)
)
_GET_FILE = record(GetFileRequest, _REQUEST_ID, _LN, _PROTOCOLS)
_ADD_REPLICA = record(AddReplicaRequest, _REQUEST_ID, Text("GUID", "guid"))
_TRANSFER = record(
    TransferOutcome,
    _REQUEST_ID,
    _SUCCESS,
    Text("TURL", "turl"),
    Text("protocol", "protocol"),
    ListOf("furtherTURLs", Texts("furtherTURL", "turls"), omit=True),
    extra("size", "size", -1, form=INT),
    extra("checksum", "checksum"),
    extra("checksumType", "checksum_type"),
    *KIND_AND_CAUSE,
)
_MODIFY = record(
    ModifyRequest,
    Text("changeID", "change_id"),
    _LN,
    Text("changeType", "change_type"),
    Text("section", "section"),
    Text("property", "property"),
    Text("value", "value"),
)
_START_PUT = record(
    StartPutRequest,
    _REQUEST_ID,
    _LN,
    Text("size", "size", INT, default=-1),
    Text("checksum", "checksum", default=""),
    Text("checksumType", "checksum_type", default=""),
    Text("neededReplicas", "needed_replicas", INT),
    extra("replace", "replace", False, form=BOOL),
)
_STARTED = record(StartPutOutcome, _REQUEST_ID, _SUCCESS, Text("TURL", "turl"), Text("put", "put"), *KIND_AND_CAUSE)
_COMMIT_PUT = record(
    CommitPutRequest, _REQUEST_ID, Text("put", "put"), ListOf("receiptList", Texts("receipt", "receipts")), _METADATA
)


def _spec(name: str, method: Any, request: Record, answer: Record) -> Spec:
    """An operation of the common bulk form."""
    return Spec(method, arguments(method, bulk(name, "requests", request)), answers(name, answer))


BARTENDER: Final = service(
    bartender.BARTENDER,
    "bar",
    (
        _spec("stat", Bartender.stat, _NAME, _STAT),
        Spec(
            Bartender.list,
            arguments(
                Bartender.list,
                bulk("list", "requests", _LIST),
                needed(),
                Child(
                    "listRecursive", "recursive", single(Child("listRequestRecursive", "recursive", _RECURSIVE)), False
                ),
            ),
            answers("list", _LISTED),
        ),
        _spec("makeCollection", Bartender.make_collection, _MAKE_COLLECTION, _OUTCOME),
        _spec("unmakeCollection", Bartender.unmake_collection, _NAME, _OUTCOME),
        _spec("makeMountpoint", Bartender.make_mountpoint, _MAKE_MOUNTPOINT, _OUTCOME),
        _spec("unmakeMountpoint", Bartender.unmake_mountpoint, _NAME, _OUTCOME),
        _spec("move", Bartender.move, _MOVE, _MOVED),
        _spec("putFile", Bartender.put_file, _PUT_FILE, _TRANSFER),
        _spec("getFile", Bartender.get_file, _GET_FILE, _TRANSFER),
        Spec(
            Bartender.add_replica,
            arguments(
                Bartender.add_replica,
                bulk("addReplica", "requests", _ADD_REPLICA, element_name="putReplicaRequestElement"),
                _PROTOCOLS,
            ),
            answers("addReplica", _TRANSFER),
        ),
        _spec("delFile", Bartender.del_file, _NAME, _OUTCOME),
        _spec("undelete", Bartender.undelete, _UNDELETE, _OUTCOME),
        _spec("listDeleted", Bartender.list_deleted, _LIST, _LISTED_DELETED),
        _spec("unlink", Bartender.unlink, _NAME, _OUTCOME),
        _spec("modify", Bartender.modify, _MODIFY, _MODIFIED),
        _spec("startPut", Bartender.start_put, _START_PUT, _STARTED),
        _spec("commitPut", Bartender.commit_put, _COMMIT_PUT, _OUTCOME),
    ),
)
"""The Bartender's operations."""
