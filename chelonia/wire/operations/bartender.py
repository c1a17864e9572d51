"""The Bartender on the wire: the original's operations to the letter, `undelete` and `listDeleted` in the same style.

Kind and cause, paging, sizes and further TURLs are optional elements after the original's own.
"""

from __future__ import annotations

from typing import Any, Final

from chelonia.core import bounds
from chelonia.core.operations import bartender
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    Bartender,
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
    StatOutcome,
    TransferOutcome,
    UndeleteRequest,
)
from chelonia.wire.elements import answers, bulk, needed
from chelonia.wire.operations.table import Spec, service
from chelonia.wire.schema import (
    YES_NO,
    ListOf,
    Many,
    Metadata,
    One,
    Record,
    arguments,
    record,
    shaped,
    single,
)

_METADATA = Metadata("metadata")
_PROTOCOLS = Many("protocol", "protocols", limit=bounds.BULK_ELEMENTS_MAX)

_NAME = record(NameRequest, "request_id ln")
_OUTCOME = record(Outcome, "request_id status=success kind? cause?")
_MOVED = record(Outcome, "request_id status kind? cause?")
_MODIFIED = record(Outcome, "request_id=changeID status=success kind? cause?")
_STAT = record(StatOutcome, "request_id", _METADATA, "kind? cause?")
_LIST = record(ListRequest, "request_id ln after? limit?")
_ENTRY = record(ListedEntry, "name guid", Metadata("metadata", bare=True))
_LISTED = record(
    ListOutcome, "request_id", ListOf("entries", Many("entry", "entries", _ENTRY)), "status after? kind? cause?"
)
_DELETED = record(DeletedEntry, "name guid owner size deleted_ms until_ms type?")
_LISTED_DELETED = record(
    ListDeletedOutcome,
    "request_id",
    ListOf("entries", Many("entry", "entries", _DELETED)),
    "status after? kind? cause?",
)
_UNDELETE = record(UndeleteRequest, "request_id ln target_ln?")
_RECURSIVE = shaped(
    lambda _, recursive: recursive,
    lambda recursive: ("recursive", recursive),
    One("requestID", "request_id", default="recursive"),
    One("doRecursive", "recursive", YES_NO, default=False),
)
_MAKE_COLLECTION = record(MakeRequest, "request_id ln", _METADATA)
_MAKE_MOUNTPOINT = record(MakeRequest, "request_id ln url", _METADATA)
_MOVE = record(MoveRequest, "request_id source_ln target_ln preserve_original")
_PUT_FILE = record(PutFileRequest, "request_id ln", _METADATA, _PROTOCOLS, "replace?")
_GET_FILE = record(GetFileRequest, "request_id ln", _PROTOCOLS)
_ADD_REPLICA = record(AddReplicaRequest, "request_id guid")
_TRANSFER = record(
    TransferOutcome,
    "request_id status=success turl protocol",
    ListOf("furtherTURLs", Many("furtherTURL", "turls", limit=bounds.BULK_ELEMENTS_MAX), omit=True),
    "size? checksum? checksum_type? kind? cause?",
)
_MODIFY = record(ModifyRequest, "change_id ln change_type section property value")


def _spec(name: str, method: Any, request: Record, answer: Record) -> Spec:
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
                One("listRecursive", "recursive", single(One("listRequestRecursive", "recursive", _RECURSIVE)), False),
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
    ),
)
"""The Bartender's operations."""
