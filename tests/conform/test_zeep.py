"""Zeep, a SOAP client we did not write, loads each service's WSDL from a real daemon and drives every operation.

Messages are built and read by zeep over mutual TLS alone. Arguments come as the ports' own types and answers go back to
them, and every text of an answer must be found again in what zeep understood of it.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import requests
import zeep
from lxml import etree
from zeep.helpers import serialize_object

from chelonia.core import ahash, bartender, drills, healing, librarian, shepherd
from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ObjectId, ReferenceId, RequestKey, ServiceId
from chelonia.core.librarian import BeginPut, Begun, Committed
from chelonia.core.metadata import Needed, Triple
from chelonia.core.names import LogicalName
from chelonia.core.replicas import Checksums, Receipt, ReplicaFacts, ReplicaState
from chelonia.wire import receipts, soap
from chelonia.wire.operations import Service
from chelonia.wire.operations_ahash import AHASH
from chelonia.wire.operations_bartender import BARTENDER
from chelonia.wire.operations_librarian import LIBRARIAN
from chelonia.wire.operations_shepherd import SHEPHERD
from tests.cluster.harness import Cluster
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
        """Call an operation by its port method; what zeep read of the answer, as the port's own type."""
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
    """What stands in a message's Body."""
    return etree.fromstring(message).find(f"{{{soap.ENVELOPE}}}Body")[0]


def leaves(node: Any) -> list[str]:
    """Every text a message says."""
    words = {"true": "1", "false": "0"}
    texts = [part.text for part in node.iter() if not len(part) and part.text]
    return [words.get(text, text) for text in texts]


def scalars(value: Any) -> list[str]:
    """Every text zeep has understood."""
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
    """Which operations were driven: (service, operation)."""
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
    """Drive the Bartender as the user; one outcome of one request."""

    def act(method: str, request: Any, *more: Any) -> Any:
        [outcome] = drive("bartender", "user", method, (request,), *more)
        assert outcome.request_id == "7"
        return outcome

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


def test_bartender_files(user: Driver, drive: Driver, cluster: Cluster) -> None:
    metadata = (
        Triple("states", "size", str(len(DATA))),
        Triple("states", "checksum", MD5),
        Triple("states", "checksumType", "md5"),
        Triple("states", "neededReplicas", "2"),
    )
    put = user("put_file", bartender.PutFileRequest("7", "/zeep/file", metadata, ("http",)))
    assert put.status == "done"
    assert cluster.request("PUT", put.turl, body=DATA).status == 201
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
    begun = user("start_put", bartender.StartPutRequest("7", "/zeep/lost", len(DATA), MD5, "md5", 1))
    words = cluster.request("PUT", begun.turl, body=DATA).headers["chelonia-receipts"].replace(" ", "").split(",")
    assert user("commit_put", bartender.CommitPutRequest("7", begun.put, tuple(words))).status == "done"
    assert user("del_file", bartender.NameRequest("7", "/zeep/lost")).status == "deleted"
    listed = user("list_deleted", bartender.ListRequest("7", "/zeep"))
    assert "lost" in [entry.name for entry in listed.entries]
    assert not user("undelete", bartender.UndeleteRequest("7", "/zeep/lost", "/zeep/found")).kind
    got = user("get_file", bartender.GetFileRequest("7", "/zeep/found", ("http",)))
    assert cluster.request("GET", got.turl).body == DATA


def test_bartender_bytes_first_and_add_replica(user: Driver, drive: Driver, cluster: Cluster) -> None:
    begun = user("start_put", bartender.StartPutRequest("7", "/zeep/first", len(DATA), MD5, "md5", 2))
    stored = cluster.request("PUT", begun.turl, body=DATA)
    words = tuple(stored.headers["chelonia-receipts"].replace(" ", "").split(","))
    assert len(words) == 2
    assert user("commit_put", bartender.CommitPutRequest("7", begun.put, words)).status == "done"
    metadata = user("stat", bartender.NameRequest("7", "/zeep/first")).metadata
    guid = next(t.value for t in metadata if t.property == "GUID")
    holders = [cluster.named(t.property) for t in metadata if t.section == "locations"]

    def further() -> Any:
        """A TURL elsewhere; a Shepherd that stalled under load may hold a surplus copy for a while."""
        [more] = drive("bartender", holders[0], "add_replica", (bartender.AddReplicaRequest("7", guid),), ("http",))
        return more if more.status != "no suitable shepherd found" else None

    more = poll(further, 15.0)
    assert (more.status, more.protocol) == ("done", "http"), more
    assert cluster.named(more.turl)
    with pytest.raises(CheloniaError) as caught:
        drive("bartender", "user", "add_replica", (bartender.AddReplicaRequest("7", guid),), ("http",))
    assert caught.value.kind is Kind.DENIED


# --- the A-Hash, as a Librarian ------------------------------------------------------------------------------------


def test_ahash(drive: Driver) -> None:
    one, two = ObjectId("11111111-1111-4111-8111-111111111111"), ObjectId("22222222-2222-4222-8222-222222222222")

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
    link = ahash.Element(one, ahash.ChangeType.SET, "entries", "child", two)
    count = ahash.Element(two, ahash.ChangeType.ADD, "metadata", "n", "5")
    key = RequestKey("zeep-1")
    done = act("transact", key, (link, count), "a memo")
    assert done.applied
    again = act("transact", key, (link, count), "a memo")
    assert (again.applied, again.recalled, again.memo) == (True, True, "a memo")
    refused = act("transact", RequestKey("zeep-2"), (failing,), "")
    assert not refused.applied
    assert refused.unmet is not None
    assert refused.unmet.condition_id == "k1"
    recalled = act("recall", key)
    assert recalled is not None
    assert recalled.memo == "a memo"
    assert act("recall", RequestKey("never")) is None
    [first_object, nothing] = act("get", (one, ObjectId("33333333-3333-4333-8333-333333333333")), ())
    assert first_object.value("metadata", "k") == "v"
    assert not nothing.exists
    [walked] = act("walk", (ahash.Walk(one, (("nobody", "child"),)),), ())
    assert walked.last.value("metadata", "n") == "5"
    page = act("scan", one, "entries", "", 10)
    assert page.items == (("child", two),)
    assert act("status").role == "master"


def test_ahash_for_operators(drive: Driver) -> None:
    page = drive("ahash", "service", "objects", "", 3)
    assert len(page.ids) == 3
    assert page.more
    assert drive("ahash", "admin", "backup", "zeep").endswith("/zeep")
    with pytest.raises(CheloniaError) as caught:
        drive("ahash", "admin", "regroup", ahash.GroupChange(ahash.GroupStep.REMOVE, 99))
    assert caught.value.kind is Kind.NOT_SUPPORTED, "it is alone"


# --- Librarian and Shepherd, as what the table allows --------------------------------------------------------------

_numbers = itertools.count(1)


def reference() -> ReferenceId:
    return ReferenceId(f"aaaaaaaa-0000-4000-8000-{next(_numbers):012d}")


def begin(drive: Driver, name: str, *, named: bool) -> tuple[BeginPut, Begun]:
    asked = BeginPut(
        parent=Guid("0"),
        name=name,
        ln=LogicalName(Guid("0"), (name,)),
        owner=JANE,
        sections={"metadata": {"by": "zeep"}},
        wanted=2,
        size=len(DATA),
        checksums=Checksums(md5=MD5),
        expires_ms=Ms(now() + 600_000),
        named=named,
    )
    return asked, drive("librarian", "core", "begin_put", asked)


def store(drive: Driver, cluster: Cluster, name: str, begun: Begun) -> Receipt:
    """Put the bytes on the first Shepherd, as a Bartender has it done; its receipt."""
    facts = ReplicaFacts(
        begun.blob, begun.guid, f"/{name}", JANE, len(DATA), Checksums(md5=MD5), 2, now(), begun.seal
    )  # fmt: skip
    wish = shepherd.PutRequest("7", facts, shepherd.Purpose.RECEIPT, ("http",), dn=JANE)
    [offer] = drive("shepherd1", "core", "put", (wish,))
    answer = cluster.request("PUT", offer.turl, body=DATA)
    assert answer.status == 201, answer.text
    return receipts.from_text(answer.headers["chelonia-receipts"])


def committed(drive: Driver, cluster: Cluster, name: str) -> Committed:
    """A file made at the Librarian itself, with one replica on the first Shepherd."""
    asked, begun = begin(drive, name, named=False)
    receipt = store(drive, cluster, name, begun)
    done: Committed = drive("librarian", "core", "commit_file", librarian.CommitFile(asked, begun, (receipt,)))
    return done


def test_librarian_namespace(drive: Driver, cluster: Cluster) -> None:
    def act(method: str, *args: Any) -> Any:
        return drive("librarian", "core", method, *args)

    [made] = act("new", (librarian.NewRequest("7", (Triple("entry", "type", "collection"),)),))
    assert (made.request_id, made.success) == ("7", "success")
    change = librarian.ModifyRequest("8", Guid(made.guid), "set", "metadata", "k", "v")
    assert [(o.change_id, o.success) for o in act("modify_metadata", (change,))] == [("8", "set")]
    [got] = act("get", (Guid(made.guid),), ())
    assert got.value("metadata", "k") == "v"
    assert [o.success for o in act("remove", (("9", Guid(made.guid)),))] == ["removed"]
    box = act("make_entry", librarian.MakeEntry(Guid("0"), "zeep-box", librarian.TYPE_COLLECTION, JANE, {}))
    file = committed(drive, cluster, "zeep-file")
    [walked] = act("traverse", (LogicalName(Guid("0"), ("zeep-file", "beyond")),), ())
    assert (walked.guid, walked.complete, walked.rest) == (file.guid, False, ("beyond",))
    act("move", librarian.Move(file.guid, Guid("0"), "zeep-file", box, "moved", False))
    act("move", librarian.Move(file.guid, box, "moved", box, "second", True))
    page = act("entries", box, "", 10, (Needed("entry"),))
    assert [entry.name for entry in page.entries] == ["moved", "second"]
    act("set_wanted", librarian.SetWanted(file.guid, 1))
    act("unlink", librarian.Unlink(box, "second", file.guid))
    with pytest.raises(CheloniaError) as caught:
        act("unmake", librarian.Unmake(box))
    assert caught.value.kind is Kind.NOT_EMPTY
    act("delete", librarian.Delete(file.guid))
    act("unmake", librarian.Unmake(box))
    assert act("recall") is None
    [gone] = act("traverse", (LogicalName(Guid("0"), ("zeep-box",)),), ())
    assert not gone.complete


def test_librarian_commits_a_pending_name_for_a_shepherd(drive: Driver, cluster: Cluster) -> None:
    _, begun = begin(drive, "zeep-pending", named=True)
    assert not drive("librarian", "core", "traverse", (LogicalName(Guid("0"), ("zeep-pending",)),), ())[0].complete
    receipt = store(drive, cluster, "zeep-pending", begun)
    forged = replace(receipt, size=receipt.size + 1)
    with pytest.raises(CheloniaError):
        drive("librarian", "shepherd1", "commit_put", begun.guid, (forged,))
    done = drive("librarian", "shepherd1", "commit_put", begun.guid, (receipt,))
    assert done.blob == receipt.blob
    assert drive("librarian", "core", "traverse", (LogicalName(Guid("0"), ("zeep-pending",)),), ())[0].complete


def test_librarian_trash(drive: Driver, cluster: Cluster) -> None:
    _, begun = begin(drive, "zeep-trashed", named=True)
    receipt = store(drive, cluster, "zeep-trashed", begun)
    assert drive("librarian", "shepherd1", "commit_put", begun.guid, (receipt,)).guid == begun.guid
    drive("librarian", "core", "delete", librarian.Delete(begun.guid))
    page = drive("librarian", "core", "trash", begun.guid, "", 10)
    assert [(entry.guid, entry.name, entry.size) for entry in page.entries] == [(begun.guid, "zeep-trashed", len(DATA))]
    drive("librarian", "core", "undelete", librarian.Undelete(begun.guid, Guid("0"), "zeep-back"))
    assert drive("librarian", "core", "traverse", (LogicalName(Guid("0"), ("zeep-back",)),), ())[0].complete


def test_librarian_care(drive: Driver, cluster: Cluster) -> None:
    here, stranger = ServiceId(cluster.url("shepherd2")), ServiceId("https://zeep.invalid/Nobody")
    assert drive("librarian", "admin", "hearing", (here, stranger)) == (healing.Word.HEARD, healing.Word.UNKNOWN)
    assert drive("librarian", "admin", "consider", (BlobId("none"),)) is None
    before = drive("librarian", "admin", "heal_status")
    assert before.is_leader
    order = healing.HealOrder(healing.HealAction.RATE, 1_000_000_000)
    assert drive("librarian", "admin", "heal_order", order).control.bytes_per_s == 1_000_000_000
    order = replace(order, bytes_per_s=before.control.bytes_per_s)
    assert drive("librarian", "admin", "heal_order", order).control == before.control
    page = drive("librarian", "admin", "fsck", Guid(""), "")
    assert page.examined > 0
    found = librarian.Finding(ObjectId("zeep"), "no such rule", "", librarian.Severity.DISAGREEMENT, "<made up>")
    [mended] = drive("librarian", "admin", "mend", (found,))
    assert not mended.done
    assert drive("librarian", "admin", "rebuild", False).stage == "idle"
    assert drive("librarian", "admin", "drill_status").drill.stage is drills.DrillStage.NONE
    with pytest.raises(CheloniaError) as caught:
        drive("librarian", "admin", "drill", drills.DrillOrder(drills.DrillAction.STOP))
    assert caught.value.kind is Kind.CONFLICT, "none runs"


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
    page = drive("librarian", "shepherd1", "inventory", own, "", 5)
    assert all(item.reference for item in page.items)
    nodes = {node.shepherd: node for node in drive("librarian", "admin", "nodes")}
    assert nodes[own].state == "alive"
    assert nodes[own].total_bytes > 100
    newcomer = librarian.ServiceRecord(Role.SHEPHERD, Dn("/CN=zeep"), ServiceId("https://zeep.invalid/Shepherd"), True)
    drive("librarian", "admin", "approve", newcomer)
    assert newcomer in drive("librarian", "admin", "services")
    drive("librarian", "admin", "approve", replace(newcomer, approved=False))
    drive("librarian", "admin", "maintenance", own, Ms(now() + 60_000))
    assert {n.shepherd: n for n in drive("librarian", "admin", "nodes")}[own].state == "maintenance"
    drive("librarian", "admin", "maintenance", own, Ms(0))
    drive("librarian", "admin", "drain", own, True)
    assert {n.shepherd: n for n in drive("librarian", "admin", "nodes")}[own].drain == "draining"
    drive("librarian", "admin", "drain", own, False)
    drive("librarian", "admin", "approve", newcomer)
    gone = drive("librarian", "admin", "forget", newcomer.service_id, "", False, False)
    assert (gone.forgotten, gone.losses) == (True, ())
    health = drive("librarian", "admin", "health")
    assert health.is_leader


def test_shepherd(drive: Driver, cluster: Cluster) -> None:
    file = committed(drive, cluster, "zeep-shepherd")
    [place] = file.locations
    [stat, unknown] = drive("shepherd1", "admin", "stat", (("7", place.reference), ("8", reference())))
    assert (stat.found, stat.state, stat.size, unknown.found) == (True, "alive", len(DATA), False)
    [offer] = drive("shepherd1", "service", "get", (shepherd.GetRequest("7", place.reference, ("http",), JANE),))
    assert cluster.request("GET", offer.turl).body == DATA
    assert drive("shepherd1", "admin", "scrub", (place.reference,)) == 0
    status = drive("shepherd1", "admin", "status")
    assert (status.shepherd, status.reporting) == (place.shepherd, True)
    assert drive("shepherd1", "admin", "toggle_report", False) is False
    assert drive("shepherd1", "admin", "toggle_report", True) is True
    facts = ReplicaFacts(file.blob, file.guid, "/x", JANE, len(DATA), Checksums(md5=MD5), 1, now())
    wish = shepherd.PutRequest("7", facts, shepherd.Purpose.REPLICA, ("http",))
    # A second copy may be on its way already, as the file wants two.
    offers = {name: offered(cluster, name, wish) for name in ("shepherd2", "shepherd3")}
    name = next(name for name, offer in offers.items() if offer.turl)
    receipt = drive("shepherd1", "service", "copy", shepherd.CopyOrder(place.reference, offers[name].turl))
    assert receipt.location.shepherd == cluster.url(name)
    assert receipt.size == len(DATA)


def test_shepherd_care(drive: Driver, cluster: Cluster) -> None:
    [place] = committed(drive, cluster, "zeep-care").locations
    page = drive("shepherd1", "admin", "scrub_page", shepherd.ScrubOrder((place.reference,)))
    assert (page.checked, page.damaged, page.left) == (1, (), 0)
    records = drive("shepherd1", "admin", "records", "", 500)
    assert place.reference in [record.reference for record in records.items]
    question = shepherd.Question(place.reference, (shepherd.ByteRange(0, 7), shepherd.ByteRange(9, 3)))
    [proof] = drive("shepherd1", "service", "prove", shepherd.Challenge("c0ffee", (question,)))
    assert len(proof) == 64
    position = drive("librarian", "admin", "health").position
    order = drills.ShepherdDrill(drills.DrillAction.STOP, "zeep", position)
    assert drive("shepherd1", "service", "drill", order) == 0
    assert drive("shepherd1", "admin", "readmit") == 0
    assert drive("shepherd1", "admin", "discard", (reference(),)) == 0


def offered(cluster: Cluster, door: str, wish: shepherd.PutRequest) -> shepherd.TurlOutcome:
    foreign = Foreign(cluster, door, "service")
    try:
        [offer] = foreign.call("put", (wish,))
    finally:
        foreign.session.close()
    answer: shepherd.TurlOutcome = offer
    return answer


def test_shepherd_erases_only_on_authority(drive: Driver, cluster: Cluster) -> None:
    cluster.expect_log("erasure refused")
    cluster.expect_log("replica missing")  # erased on order of a Librarian that did not tell the namespace
    file = committed(drive, cluster, "zeep-erase")
    [place] = file.locations
    here = drive("ahash", "service", "status").position
    for bad in (None, replace(here, cluster="another"), replace(here, generation=0)):
        authority = None if bad is None else shepherd.Authority(bad)
        [answer] = drive("shepherd1", "service", "delete", (("7", place.reference),), authority)
        assert answer.status.startswith("nosuchfile: "), answer

    def erased() -> bool:
        authority = shepherd.Authority(drive("ahash", "service", "status").position)
        [answer] = drive("shepherd1", "service", "delete", (("7", place.reference),), authority)
        return bool(answer.status == "deleted")

    poll(erased, 30.0, what="an order as new as the cluster is obeyed")
    [stat] = drive("shepherd1", "admin", "stat", (("7", place.reference),))
    assert not stat.found


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
    """Runs last in this file: the operations of the tables that no test above has driven."""
    every = {(service.name, operation.name) for service in SERVICES.values() for operation in service.operations}
    assert not every - driven
