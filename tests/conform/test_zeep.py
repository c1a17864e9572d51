"""Zeep, a foreign SOAP client, loads each service's WSDL from a real daemon and drives every operation.

Zeep alone builds and reads messages, over mutual TLS. Arguments are the ports' own types and answers are converted back
to them; every text of an answer must be found again in zeep's result.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import requests
import zeep
from lxml import etree
from zeep.helpers import serialize_object

from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.errors import Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ObjectId, ReferenceId, ServiceId
from chelonia.core.metadata import Needed, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports import ahash, bartender, librarian, shepherd
from chelonia.core.values import replace
from chelonia.wire import positions, soap
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.shepherd import SHEPHERD
from chelonia.wire.operations.table import Service
from tests.cluster.harness import Cluster
from tests.support.failing import fails
from tests.support.polling import poll

T = TypeVar("T")

ZEEP: Any = zeep
PLAIN: Any = serialize_object
SERVICES = {"ahash": AHASH, "librarian": LIBRARIAN, "bartender": BARTENDER}
SERVICES |= {f"shepherd{number}": SHEPHERD for number in (1, 2, 3)}
JANE = Dn("/DC=org/DC=chelonia/O=Dev/CN=Jane Doe")
DATA = b"driven by zeep " * 1000
MD5 = hashlib.md5(DATA).hexdigest()


class Foreign:
    """Zeep bound to one service of the cluster, as one caller."""

    def __init__(self, cluster: Cluster, door: str, who: str) -> None:
        self.service: Service = SERVICES[door]
        files = cluster.files(who)
        self.session = requests.Session()
        self.session.cert = (str(files.cert), str(files.key))
        self.session.verify = str(cluster.ca_dir)
        self.session.trust_env = False  # REQUESTS_CA_BUNDLE would replace our CA
        transport = ZEEP.transports.Transport(session=self.session, operation_timeout=30)
        self.client = ZEEP.Client(f"{cluster.url(door)}?wsdl", transport=transport)

    def call(self, method: str, *args: Any) -> Any:
        """Call an operation by its port method; returns zeep's answer, as the port's own type."""
        operation = self.service.by_method[method]
        theirs = self.client.service._binding._operations[operation.name]
        meant = theirs.input.body.parse(first(soap.encode_request(self.service, method, args)), self.types)
        with self.client.settings(raw_response=True):
            answer = getattr(self.client.service, operation.name)(**(PLAIN(meant) or {}))
        if answer.status_code != 200:
            soap.decode_response(self.service, method, answer.content)
        theirs.process_reply(etree.fromstring(answer.content))
        read = PLAIN(theirs.output.body.parse(first(answer.content), self.types))
        assert sorted(scalars(read)) == sorted(leaves(first(answer.content))), "zeep understood something else"
        return soap.decode_response(self.service, method, answer.content)

    @property
    def types(self) -> Any:
        return self.client.wsdl.types


def first(message: bytes) -> Any:
    """The first element of a message's Body."""
    return etree.fromstring(message).find(f"{{{soap.ENVELOPE}}}Body")[0]


def leaves(node: Any) -> list[str]:
    """Every text in a message."""
    words = {"true": "1", "false": "0"}
    texts = [part.text for part in node.iter() if not len(part) and part.text]
    return [words.get(text, text) for text in texts]


def scalars(value: Any) -> list[str]:
    """Every text in zeep's result."""
    match value:
        case dict():
            return [text for part in value.values() for text in scalars(part)]
        case list():
            return [text for part in value for text in scalars(part)]
        case bool():
            return ["1" if value else "0"]
        case None | "":
            return []
        case _:
            return [str(value)]


Driver = Callable[..., Any]
"""`drive(door, who, method, *args)`."""


@pytest.fixture(scope="module")
def driven() -> set[tuple[str, str]]:
    """The operations driven: (service, operation)."""
    return set()


@pytest.fixture(scope="module")
def drive(cluster: Cluster, driven: set[tuple[str, str]]) -> Iterator[Driver]:
    """Give `drive(door, who, method, *args)`, with zeep's clients kept."""
    clients: dict[tuple[str, str], Foreign] = {}

    def act(door: str, who: str, method: str, *args: Any) -> Any:
        if (door, who) not in clients:
            clients[door, who] = Foreign(cluster, door, who)
        foreign = clients[door, who]
        driven.add((foreign.service.name, foreign.service.by_method[method].name))
        return foreign.call(method, *args)

    yield act
    for client in clients.values():
        client.session.close()


@pytest.fixture(scope="module")
def user(drive: Driver) -> Driver:
    """Drive the Bartender as the user, repeated while a busy machine makes Shepherds miss their lease; one outcome of
    one request."""

    def act(method: str, request: Any, *more: Any) -> Any:
        def answered() -> Any:
            [outcome] = drive("bartender", "user", method, (request,), *more)
            assert outcome.request_id == "7"
            return outcome if outcome.kind != Kind.NO_SHEPHERD.value else None

        return poll(answered, 15.0)

    return act


def now() -> Ms:
    return Ms(time.time_ns() // 1_000_000)


# --- the Bartender, as a user --------------------------------------------------------------------------------------


def test_bartender_names(user: Driver, drive: Driver) -> None:
    assert (
        user("make_collection", bartender.MakeRequest("7", "/zeep", (Triple("states", "closed", "no"),))).status
        == "done"
    )
    assert user("make_collection", bartender.MakeRequest("7", "/zeep")).kind == "exists"
    assert user("make_collection", bartender.MakeRequest("7", "/zeep/sub")).status == "done"
    assert user("make_mountpoint", bartender.MakeRequest("7", "/zeep/m", (), "gsiftp://x/y")).status == "done"
    stat = user("stat", bartender.NameRequest("7", "/zeep/m"))
    assert Triple("mountpoint", "externalURL", "gsiftp://x/y") in stat.metadata
    assert user("move", bartender.MoveRequest("7", "/zeep/sub", "/zeep/moved")).status == "moved"
    listed = user("list", bartender.ListRequest("7", "/zeep"), (Needed("entry"),), False)
    assert [entry.name for entry in listed.entries] == ["m", "moved"]
    assert user("unmake_mountpoint", bartender.NameRequest("7", "/zeep/m")).status == "removed"
    assert user("unmake_collection", bartender.NameRequest("7", "/zeep/moved")).status == "removed"
    gone = user("stat", bartender.NameRequest("7", "/zeep/moved"))
    assert gone.metadata == ()


def put(user: Driver, cluster: Cluster, name: str, copies: int) -> None:
    metadata = (
        Triple("states", "size", str(len(DATA))),
        Triple("states", "checksum", MD5),
        Triple("states", "checksumType", "md5"),
        Triple("states", "neededReplicas", str(copies)),
    )
    begun = user("put_file", bartender.PutFileRequest("7", name, metadata, ("http",)))
    assert begun.status == "done"
    assert cluster.request("PUT", begun.turl, body=DATA).status == 201


def test_bartender_files(user: Driver, drive: Driver, cluster: Cluster) -> None:
    put(user, cluster, "/zeep/file", 2)
    got = user("get_file", bartender.GetFileRequest("7", "/zeep/file", ("http",)))
    assert (got.status, got.size, got.checksum) == ("done", len(DATA), MD5)
    assert cluster.request("GET", got.turl).body == DATA
    change = bartender.ModifyRequest("7", "/zeep/file", "set", "metadata", "k", "<v> & 'v'")
    assert user("modify", change).status == "set"
    assert Triple("metadata", "k", "<v> & 'v'") in user("stat", bartender.NameRequest("7", "/zeep/file")).metadata
    assert user("move", bartender.MoveRequest("7", "/zeep/file", "/zeep/also", True)).status == "moved"
    assert user("unlink", bartender.NameRequest("7", "/zeep/file")).status == "unset"
    assert user("del_file", bartender.NameRequest("7", "/zeep/also")).status == "deleted"


def test_bartender_brings_deleted_files_back(user: Driver, cluster: Cluster) -> None:
    put(user, cluster, "/zeep/lost", 1)
    assert user("del_file", bartender.NameRequest("7", "/zeep/lost")).status == "deleted"
    listed = user("list_deleted", bartender.ListRequest("7", "/zeep"))
    assert "lost" in [entry.name for entry in listed.entries]
    assert not user("undelete", bartender.UndeleteRequest("7", "/zeep/lost", "/zeep/found")).kind
    got = user("get_file", bartender.GetFileRequest("7", "/zeep/found", ("http",)))
    assert cluster.request("GET", got.turl).body == DATA


def test_bartender_add_replica(user: Driver, drive: Driver, cluster: Cluster) -> None:
    put(user, cluster, "/zeep/first", 2)
    metadata = user("stat", bartender.NameRequest("7", "/zeep/first")).metadata
    guid = next(t.value for t in metadata if t.property == "GUID")
    holders = [cluster.named(t.property) for t in metadata if t.section == "locations"]

    def further() -> Any:
        """A TURL on another Shepherd; one that stalled under load may hold a surplus copy for a while."""
        [more] = drive("bartender", holders[0], "add_replica", (bartender.AddReplicaRequest("7", guid),), ("http",))
        return more if more.status != "no suitable shepherd found" else None

    more = poll(further, 15.0)
    assert (more.status, more.protocol) == ("done", "http"), more
    assert cluster.named(more.turl)
    with fails(Kind.DENIED):
        drive("bartender", "user", "add_replica", (bartender.AddReplicaRequest("7", guid),), ("http",))


# --- the A-Hash, as a Librarian ------------------------------------------------------------------------------------


def test_ahash(drive: Driver) -> None:
    one = ObjectId("11111111-1111-4111-8111-111111111111")

    def act(method: str, *args: Any) -> Any:
        return drive("ahash", "service", method, *args)

    setting = ahash.Element(one, ahash.ChangeType.SET, "metadata", "k", "v", (), "c1")
    unmet = ahash.Condition(ahash.ConditionType.IS, "metadata", "k", "other", "k1")
    failing = replace(setting, conditions=(unmet,), change_id="c2")
    outcomes = act("change", (setting, failing))
    assert [(o.change_id, o.status) for o in outcomes] == [
        ("c1", ahash.ChangeStatus.SET),
        ("c2", ahash.ChangeStatus.CONDITION_NOT_MET),
    ]
    [first_object, nothing] = act("get", (one, ObjectId("33333333-3333-4333-8333-333333333333")), ())
    assert first_object.value("metadata", "k") == "v"
    assert not nothing.exists


# --- Librarian and Shepherd, as what the table allows --------------------------------------------------------------

_numbers = itertools.count(1)


def reference() -> ReferenceId:
    return ReferenceId(f"aaaaaaaa-0000-4000-8000-{next(_numbers):012d}")


def test_librarian_namespace(drive: Driver, cluster: Cluster) -> None:
    def act(method: str, *args: Any) -> Any:
        return drive("librarian", "core", method, *args)

    [made] = act("new", (librarian.NewRequest("7", (Triple("entry", "type", "collection"),)),))
    assert (made.request_id, made.success) == ("7", "success")
    change = librarian.ModifyEntry("8", Guid(made.guid), "set", "metadata", "k", "v")
    assert [(o.change_id, o.success) for o in act("modify_metadata", (change,))] == [("8", "set")]
    [got] = act("get", (Guid(made.guid),), ())
    assert got.value("metadata", "k") == "v"
    assert [o.success for o in act("remove", (("9", Guid(made.guid)),))] == ["removed"]
    [walked] = act("traverse", (LogicalName(Guid("0"), ("zeep", "beyond")),), ())
    assert (walked.complete, walked.rest) == (False, ("beyond",))


def test_librarian_nodes(drive: Driver, cluster: Cluster) -> None:
    own = ServiceId(cluster.url("shepherd1"))
    beat = librarian.Heartbeat(own, 1, 0, 10, 100, 0, True, "d", "key", "zeep")
    answer = drive("librarian", "shepherd1", "heartbeat", beat)
    assert answer.known, "an older boot is known, and changes nothing"
    told = librarian.ReportedReplica(
        str(reference()), reference(), ReplicaState.ALIVE, BlobId(""), 5, Checksums(md5="0" * 32)
    )
    report = drive("librarian", "shepherd1", "report", librarian.Report(own, 1, 1, (told,)))
    assert report.next_report_ms > 0


def stored(user: Driver, cluster: Cluster, name: str) -> tuple[str, ReferenceId]:
    """Store a file; the door of a holder, and its reference there."""
    put(user, cluster, name, 1)
    metadata = user("stat", bartender.NameRequest("7", name)).metadata
    shepherd, _, reference = next(t.property for t in metadata if t.section == "locations").partition(" ")
    return cluster.named(shepherd), ReferenceId(reference)


def test_shepherd(drive: Driver, user: Driver, cluster: Cluster) -> None:
    door, held = stored(user, cluster, "/zeep-shepherd")
    [stat, unknown] = drive(door, "admin", "stat", (("7", held), ("8", reference())))
    assert (stat.found, stat.state, stat.size, unknown.found) == (True, "alive", len(DATA), False)
    [offer] = drive(door, "service", "get", (shepherd.GetRequest("7", held, ("http",), JANE),))
    assert cluster.request("GET", offer.turl).body == DATA
    assert drive(door, "admin", "toggle_report", False) is False
    assert drive(door, "admin", "toggle_report", True) is True
    blob, guid = BlobId("bbbbbbbb-0000-4000-8000-000000000001"), Guid("cccccccc-0000-4000-8000-000000000001")
    facts = ReplicaFacts(blob, guid, "/x", JANE, len(DATA), Checksums(md5=MD5), 1, now())
    wish = shepherd.PutRequest("7", facts, shepherd.Purpose.PENDING, ("http",), dn=JANE)
    [offer] = drive(door, "service", "put", (wish,))
    assert offer.turl


def newest(cluster: Cluster) -> Position:
    """The position of the metadata, which every answer of the A-Hash states."""
    foreign = Foreign(cluster, "ahash", "service")
    try:
        with foreign.client.settings(raw_response=True):
            answer = foreign.client.service.get(neededMetadataList={}, IDs={})
        return positions.from_header(answer.headers["Chelonia-Position"])
    finally:
        foreign.session.close()


def test_shepherd_erases_only_on_authority(drive: Driver, user: Driver, cluster: Cluster) -> None:
    cluster.expect_log("erasure refused")
    cluster.expect_log("is lost, no verified copy is left: file /zeep")
    cluster.expect_log("replica missing")  # a Librarian ordered an erasure without the namespace
    door, held = stored(user, cluster, "/zeep-erase")
    here = newest(cluster)
    for bad in (None, replace(here, cluster="another"), replace(here, generation=0)):
        authority = None if bad is None else shepherd.Authority(bad)
        [answer] = drive(door, "service", "delete", (("7", held),), authority)
        assert answer.status.startswith("nosuchfile: "), answer

    def erased() -> bool:
        authority = shepherd.Authority(newest(cluster))
        [answer] = drive(door, "service", "delete", (("7", held),), authority)
        return bool(answer.status == "deleted")

    poll(erased, 30.0, what="an order as new as the cluster is obeyed")
    [stat] = drive(door, "admin", "stat", (("7", held),))
    assert not stat.found
    assert user("del_file", bartender.NameRequest("7", "/zeep-erase")).status == "deleted"


# --- zeep's own ways ------------------------------------------------------------------------------------------------


def test_zeep_alone_without_any_help_of_ours(cluster: Cluster) -> None:
    foreign = Foreign(cluster, "bartender", "user")
    try:
        service = foreign.client.service
        answer = service.makeCollection(makeCollectionRequestList={"makeCollectionRequestElement": [
            {"requestID": "0", "LN": "/by-hand", "metadataList": {"metadata": []}}
        ]})  # fmt: skip
        assert "done" in str(answer)
        answer = service.stat(statRequestList={"statRequestElement": [{"requestID": "0", "LN": "/by-hand"}]})
        assert "collection" in str(answer)
        with pytest.raises(ZEEP.exceptions.Fault) as caught:
            service.addReplica(
                addReplicaRequestList={"putReplicaRequestElement": [{"requestID": "0", "GUID": "0"}]},
                protocol=["http"],
            )
        assert "denied" in str(caught.value)
    finally:
        foreign.session.close()


def test_every_operation_of_every_service_was_driven(driven: set[tuple[str, str]]) -> None:
    """Runs last in this file: no test above may have left out an operation of the tables."""
    every = {(service.name, operation.name) for service in SERVICES.values() for operation in service.operations}
    assert not every - driven
