"""`admin scrub` and `admin quarantine`, on fake Shepherds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.ports.shepherd import RECORDS_ASIDE, Damaged, RecordPage, ReplicaRecord, ScrubOrder, ScrubPage
from chelonia_clients import connect
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command, administrator_on

S1, S2 = ServiceId("https://s1/Shepherd"), ServiceId("https://s2/Shepherd")
AWAY, UNAPPROVED = ServiceId("https://s3/Shepherd"), ServiceId("https://s4/Shepherd")


@dataclass
class PaperShepherd:
    """Two pages of a scrub, the second with a damaged replica on s2; two replicas in quarantine."""

    service: ServiceId
    orders: list[ScrubOrder] = field(default_factory=list)
    discarded: list[ReferenceId] = field(default_factory=list)
    fails: bool = False

    async def scrub_page(self, call: Call, order: ScrubOrder) -> ScrubPage:
        self.orders.append(order)
        if self.fails:
            raise CheloniaError(Kind.UNAVAILABLE, "scrub", self.service, "its disk is gone")
        if not order.after:
            return ScrubPage(3, 300, (), "r3", 1)
        damaged = (Damaged(ReferenceId("r4"), BlobId("b4"), "its checksum differs"),) if self.service == S2 else ()
        return ScrubPage(1, 100, damaged, "", 0)

    async def records(self, call: Call, after: str, limit: int) -> RecordPage:
        if self.fails:
            raise CheloniaError(Kind.UNAVAILABLE, "records", self.service, "its disk is gone")
        facts = ReplicaFacts(BlobId("b1"), Guid("g"), "/lost", Dn("/CN=joe"), 10, Checksums(), 2, Ms(0))
        if after == RECORDS_ASIDE:
            first = ReplicaRecord(ReferenceId("q1"), ReplicaState.ALIVE, True, True, facts)
            return RecordPage((first,), "aside q1")
        return RecordPage((ReplicaRecord(ReferenceId("q2"), ReplicaState.INVALID, False, True, None),), "")

    async def discard(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        self.discarded += [reference for reference in references if reference in ("q1", "q2")]
        return len(self.discarded)

    async def readmit(self, call: Call) -> int:
        return 1


class PaperLibrarian:
    async def nodes(self, call: Call) -> tuple[NodeView, ...]:
        states = ((S1, "alive"), (S2, "alive"), (AWAY, "offline"), (UNAPPROVED, "waiting"))
        return tuple(NodeView(service, Dn("/CN=s"), state, Ms(0)) for service, state in states)


@pytest.fixture
def shepherds(chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> dict[str, PaperShepherd]:
    herd: dict[str, PaperShepherd] = {service: PaperShepherd(service) for service in (S1, S2, AWAY, UNAPPROVED)}
    administrator = administrator_on(fake, PaperLibrarian(), herd.__getitem__)
    monkeypatch.setattr(connect, "open_administrator", lambda *_: administrator)
    return herd


def test_a_scrub_asks_all_that_are_alive_until_the_end_and_says_what_is_damaged(
    chelonia: Command, shepherds: dict[str, PaperShepherd]
) -> None:
    ran = chelonia("admin", "scrub", "--older-than", "2h", "--suspicion")
    assert ran.code == 7
    assert f"{S2} r4: its checksum differs" in ran.out
    assert "1 damaged" in ran.out
    assert [order.after for order in shepherds[S1].orders] == ["", "r3"]
    assert all(order.suspicious and order.before_ms for order in shepherds[S1].orders)
    assert shepherds[AWAY].orders == []
    assert shepherds[UNAPPROVED].orders == []


def test_a_scrub_names_who_was_away_and_does_not_end_well(
    chelonia: Command, shepherds: dict[str, PaperShepherd], fake: FakeBartender
) -> None:
    ran = chelonia("admin", "scrub", "--older-than", "2h")
    assert f"'{AWAY}': not checked: it is offline" in ran.err
    assert UNAPPROVED not in ran.err
    shepherds[S1].fails = True
    told = json.loads(chelonia("--json", "admin", "scrub").out)
    unchecked = {found["shepherd"]: found["error"]["cause"] for found in told["results"] if not found["ok"]}
    figures = {each["shepherd"]: (each["checked"], each["damaged"]) for each in told["shepherds"]}
    assert figures == {S1: (0, 0), S2: (4, 1), AWAY: (0, 0)}
    assert unchecked == {S1: "not checked to its end: its disk is gone", AWAY: "not checked: it is offline"}
    assert (told["ok"], told["exit_code"]) == (False, 7)
    shepherds[S1].fails = False
    fake.add_file("/f", b"x")
    fake.told["/f"] = {"locations": {f"{S1} r9": "alive", f"{AWAY} r8": "offline"}}
    ran = chelonia("admin", "scrub", "--path", "/f")
    assert (ran.code, f"'{AWAY}': not checked: it is offline" in ran.err) == (7, True)
    assert chelonia("admin", "scrub", "--path", "/f", "--node", S1).code == 0


def test_a_scrub_of_one_node_may_be_clean_and_is_told_as_json(
    chelonia: Command, shepherds: dict[str, PaperShepherd]
) -> None:
    ran = chelonia("--json", "admin", "scrub", "--node", S1)
    assert ran.code == 0
    told = json.loads(ran.out)
    assert (told["checked"], told["bytes"], told["damaged"]) == (4, 400, 0)
    assert told["shepherds"] == [{"shepherd": S1, "checked": 4, "bytes": 400, "damaged": 0, "left": 0}]
    assert shepherds[S2].orders == []
    assert chelonia("admin", "scrub", "--node", "https://nobody/Shepherd").code != 0


def test_a_scrub_of_names_asks_for_their_copies(
    chelonia: Command, shepherds: dict[str, PaperShepherd], fake: FakeBartender
) -> None:
    fake.add_collection("/d")
    fake.add_file("/d/f", b"x")
    fake.told["/d/f"] = {"locations": {f"{S1} r9": "alive", f"{S2} r8": "creating"}}
    assert chelonia("admin", "scrub", "--path", "/d").code == 2
    assert chelonia("admin", "scrub", "-r").code == 2
    assert chelonia("admin", "scrub", "--path", "/d", "-r").code == 0
    assert [order.references for order in shepherds[S1].orders] == [("r9",), ("r9",)]
    assert shepherds[S2].orders == []


def test_a_scrub_that_breaks_off_says_so(chelonia: Command, shepherds: dict[str, PaperShepherd]) -> None:
    shepherds[S1].fails = True
    ran = chelonia("admin", "scrub", "--node", S1)
    assert ran.code not in (0, 1)
    assert "its disk is gone" in ran.err


def test_quarantine_is_listed_and_discarded(chelonia: Command, shepherds: dict[str, PaperShepherd]) -> None:
    ran = chelonia("admin", "quarantine", "list", S1)
    assert ran.code == 0
    assert "/lost" in ran.out
    assert "damaged" in ran.out
    assert "2 in quarantine" in ran.out
    assert chelonia("admin", "quarantine", "discard", S1, "all").code == 0
    assert shepherds[S1].discarded == ["q1", "q2"]
    assert chelonia("admin", "quarantine", "discard", S2, "q1", "other").code != 0
    ran = chelonia("admin", "quarantine", "list")
    assert (ran.code, "4 in quarantine" in ran.out) == (7, True)
    assert f"'{AWAY}': not asked: it is offline" in ran.err
    shepherds[S1].fails = True
    ran = chelonia("admin", "quarantine", "list")
    assert "2 in quarantine" in ran.out
    assert f"'{S1}': not asked to its end: its disk is gone" in ran.err
    shepherds[S1].fails = False
    assert "1 are asked for again" in chelonia("admin", "quarantine", "readmit", S1).out
    assert chelonia("admin", "quarantine", "discard", S1).code == 2
