"""The messages whose bytes stand in docs/formats/soap.md: (block name, service, port method, arguments or answer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ObjectId, ReferenceId, ServiceId
from chelonia.core.metadata import Needed, StoredObject, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.ahash import ChangeOutcome, ChangeStatus, ChangeType, Condition, ConditionType, Element
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    ListedEntry,
    ListOutcome,
    ListRequest,
    MoveRequest,
    NameRequest,
    Outcome,
    StatOutcome,
    TransferOutcome,
)
from chelonia.core.ports.librarian import Report, ReportAnswer, ReportedReplica, Traversal, TraversedStep
from chelonia.core.ports.shepherd import Authority, DeleteOutcome, GetRequest, Purpose, PutRequest, TurlOutcome
from chelonia.core.ports.shepherd import ReplicaStatOutcome as Described
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Service


@dataclass(frozen=True)
class Golden:
    """One message: `args` of a request, or `result` of an answer (`echo`: request ids it repeats)."""

    block: str
    service: Service
    method: str
    args: tuple[Any, ...] | None = None
    result: Any = None
    echo: tuple[str, ...] = ()


SHE = ServiceId("https://h:7000/Shepherd")
REF = ReferenceId("5d9b7a52-0c7c-4c3e-9a3f-0b8f6f0e7f11")
BLOB = BlobId("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
GUID = Guid("c0ffee00-1111-2222-3333-444455556666")
HERE = Position("c1", 1, 42)
MD5 = "d41d8cd98f00b204e9800998ecf8427e"
FACTS = ReplicaFacts(BLOB, GUID, "/a/f", Dn("/O=Grid/CN=joe"), 0, Checksums(md5=MD5), 2, Ms(1700000000000))

GOLDENS = (
    Golden("ahash.get request", AHASH, "get", ((ObjectId("0"),), (Needed("entry", "type"), Needed("states")))),
    Golden(
        "ahash.get answer",
        AHASH,
        "get",
        result=(
            StoredObject(ObjectId("0"), 3, {"entry": {"type": "collection"}}, {"entries": 1001}),
            StoredObject(ObjectId("no-such"), 0),
        ),
    ),
    Golden(
        "ahash.change request",
        AHASH,
        "change",
        (
            (
                Element(
                    ObjectId("0"),
                    ChangeType.SET,
                    "states",
                    "closed",
                    "yes",
                    (Condition(ConditionType.IS, "states", "closed", "no", "c0"),),
                    "0",
                ),
            ),
        ),
    ),
    Golden("ahash.change answer", AHASH, "change", result=(ChangeOutcome("0", ChangeStatus.CONDITION_NOT_MET, "c0"),)),
    Golden("librarian.traverseLN request", LIBRARIAN, "traverse", ((LogicalName(Guid("0"), ("a", "b")),), ())),
    Golden(
        "librarian.traverseLN answer",
        LIBRARIAN,
        "traverse",
        result=(
            Traversal(
                (TraversedStep("", Guid("0")), TraversedStep("a", GUID)),
                False,
                StoredObject(ObjectId(GUID), 2, {"entry": {"type": "collection"}}),
                ("b",),
            ),
        ),
        echo=("0",),
    ),
    Golden(
        "librarian.report request",
        LIBRARIAN,
        "report",
        (Report(SHE, 2, 5, (ReportedReplica(GUID, REF, ReplicaState.ALIVE, BLOB, 0, Checksums(md5=MD5)),)),),
    ),
    Golden("librarian.report answer", LIBRARIAN, "report", result=ReportAnswer(5, 30_000, (REF,))),
    Golden("shepherd.get request", SHEPHERD, "get", ((GetRequest("0", REF, ("byteio", "http")),),)),
    Golden(
        "shepherd.get answer",
        SHEPHERD,
        "get",
        result=(
            TurlOutcome("0", "https://h:7000/turl/x?ticket=t", "http", checksum=MD5, checksum_type="md5"),
            TurlOutcome("1", error="file is not alive", kind="not-alive"),
        ),
    ),
    Golden(
        "shepherd.put request",
        SHEPHERD,
        "put",
        (
            (
                PutRequest(
                    "0", FACTS, Purpose.PENDING, ("http",), forward=("https://g:7000/turl/y?ticket=u",), durable=2
                ),
            ),
        ),
    ),
    Golden(
        "shepherd.put answer",
        SHEPHERD,
        "put",
        result=(TurlOutcome("0", "https://h:7000/turl/x?ticket=t", "http", REF),),
    ),
    Golden(
        "shepherd.stat answer",
        SHEPHERD,
        "stat",
        result=(
            Described("0", REF, True, "alive", "md5", MD5, "", 0, GUID, REF),
            Described("1", ReferenceId("no-such"), False),
        ),
    ),
    Golden("shepherd.delete request", SHEPHERD, "delete", ((("0", REF),), Authority(HERE))),
    Golden("shepherd.delete answer", SHEPHERD, "delete", result=(DeleteOutcome("0", "deleted"),)),
    Golden("shepherd.toggleReport request", SHEPHERD, "toggle_report", (False,)),
    Golden("shepherd.toggleReport answer", SHEPHERD, "toggle_report", result=False),
    Golden("bartender.stat request", BARTENDER, "stat", ((NameRequest("0", "/a & b"),),)),
    Golden(
        "bartender.stat answer",
        BARTENDER,
        "stat",
        result=(
            StatOutcome("0", (Triple("entry", "type", "file"),)),
            StatOutcome("1", (), "not-found", "no such name"),
        ),
    ),
    Golden("bartender.list request", BARTENDER, "list", ((ListRequest("0", "/a"),), (Needed("entry", ""),), True)),
    Golden(
        "bartender.list answer",
        BARTENDER,
        "list",
        result=(ListOutcome("0", "found", (ListedEntry("f", GUID, (Triple("entry", "type", "file"),)),)),),
    ),
    Golden("bartender.move request", BARTENDER, "move", ((MoveRequest("0", "/a", "/b", True),),)),
    Golden("bartender.move answer", BARTENDER, "move", result=(Outcome("0", "moved"),)),
    Golden("bartender.addReplica request", BARTENDER, "add_replica", ((AddReplicaRequest("0", GUID),), ("http",))),
    Golden(
        "bartender.addReplica answer",
        BARTENDER,
        "add_replica",
        result=(TransferOutcome("0", "done", "https://h:7000/turl/x?ticket=t", "http"),),
    ),
)
