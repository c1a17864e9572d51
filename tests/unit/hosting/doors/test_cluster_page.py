"""The page of the cluster: the users who see it, and the problems it shows."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest
from lxml import html

from chelonia.core.caller import Role
from chelonia.core.cluster.drills import Drill, DrillAction, DrillStage
from chelonia.core.cluster.healing import Endangered, Exposed, HealControl, HealStatus
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, BlobId, Dn, Ms, ServiceId
from chelonia.core.ports.librarian import NodeView, ServiceRecord
from chelonia.core.timing.jobs import JobView, NodeJobs
from chelonia.core.values import replace
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.plain import cluster_page
from chelonia.hosting.doors.plain.cluster_page import page
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.metrics import Metrics
from chelonia.wire.web import curve
from tests.unit.hosting.doors.test_plain_door import EVE, JOE, Bench
from tests.unit.hosting.doors.test_plain_tokens import asked, by

ODD = "<script>alert(1)</script>"
WHOLE = HealStatus(
    leader="https://l/Librarian", is_leader=True, control=HealControl(0, 2), exposed=(), delayed=0, stuck=0,
    copies_to_go=0, bytes_to_go=0, copies_done=0, bytes_done=0, copying=0,
    copies_per_min=0, bytes_per_s=0, forecast_ms=0,
)  # fmt: skip
WORSE = replace(
    WHOLE,
    exposed=(Exposed(1, 7),),
    queue=(Endangered(BlobId("b"), f"/lab/{ODD}", 1, 3, 2048, Ms(1)),),
    copies_to_go=14,
    bytes_to_go=3 << 20,
    copying=2,
    forecast_ms=42_000,
)
NODES = (
    NodeView(ServiceId("https://s1/Shepherd"), Dn("/CN=s1"), "alive", Ms(1), free_bytes=1 << 30, total_bytes=1 << 31),
    NodeView(ServiceId("https://s2/Shepherd"), Dn("/CN=s2"), "offline", Ms(1), trouble="its disk is gone"),
)
FAILS = JobView("librarian", "survey", "failing", "", f"it broke {ODD}", 1, None, True)
JOBS: dict[str, NodeJobs | CheloniaError] = {
    "https://core1": NodeJobs("core1", "p", (replace(FAILS, name="repair", state="idle", last_error=""),), "0.1.0"),
    "https://core2": NodeJobs("core2", "q", (FAILS,)),
    "https://s2": CheloniaError(Kind.NETWORK, "jobs", "https://s2", "nobody listens there"),
}

DRILL = Drill("d", 1, DrillAction.SILENCE, DrillStage.LATE, ServiceId("https://s2/Shepherd"), files=9,
              began_ms=Ms(1000), noticed_ms=Ms(4500), touched=7, whole_ms=Ms(61_000), why="it took long",
              looks="3500:2=7 9000:1=1,2=6 60000:")  # fmt: skip

AWAY = CheloniaError(Kind.UNAVAILABLE, "traverse", cause="no majority of the A-Hash")


class Cluster:
    async def nodes(self) -> tuple[NodeView, ...]:
        return NODES

    async def healing(self) -> HealStatus:
        return WORSE

    async def drill(self) -> Drill:
        return DRILL

    async def jobs(self) -> dict[str, NodeJobs | CheloniaError]:
        return JOBS


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    registry = RoleRegistry((ServiceRecord(Role.ADMINISTRATOR, JOE, ServiceId(""), True),), None, bench.clock)
    bearers = replace(bench.bearers, registry=registry, lifetime_ms_max=10**12)
    bench.door = PlainDoor(replace(bench.parts, cluster=Cluster()), bearers.call_of, Metrics())
    return bench


def text(name: str, shown: str) -> str:
    (cell,) = html.fromstring(shown).xpath(f"//th[.='{name}']/following-sibling::td")
    return str(cell.text_content())


def test_an_administrator_sees_the_cluster(bench: Bench) -> None:
    answer = bench.ask("GET", "/?cluster", Accept="text/html")
    assert answer.status == 200
    assert "script-src" not in answer.headers["Content-Security-Policy"]
    shown = html.fromstring(answer.text)
    assert not shown.xpath("//script"), "names are text"
    assert f"/lab/{ODD}" in shown.text_content()
    assert text("All whole in", answer.text) == "about 42.0 s"
    assert text("Too few copies", answer.text) == "7 with 1 left"
    assert text("To go", answer.text) == "14 copies, 3.0 MiB"
    bad = [cell.text_content() for cell in shown.xpath("//td[@class='bad']")]
    assert bad[:5] == ["7 with 1 left", "offline", "its disk is gone", "1 of 3", "late it took long"]
    assert bad[5:] == [f"it broke {ODD}", str(JOBS["https://s2"])]
    (jobs,) = shown.xpath("//table[caption='Background work']/tbody")
    rows = [[cell.text_content() for cell in row][:3] for row in jobs]
    quiet = ["https://core1", "librarian", "repair"]
    assert rows == [["https://core2", "librarian", "survey"], ["https://s2", "", ""], quiet], "bad news stands first"
    assert text("0.1.0", answer.text) == "https://core1"
    assert text("older, not reported", answer.text) == "https://core2"
    assert shown.xpath("//meta[@http-equiv='refresh']")
    for name, told in (("Noticed after", "3.5 s"), ("Found exposed", "7 of 9"), ("All whole after", "60.0 s")):
        assert text(name, answer.text) == told
    (figure,) = shown.xpath("//svg[@role='img']")
    assert "noticed after 3.5 s" in figure.findtext("desc"), "who does not see it hears it"
    assert {band.get("fill") for band in figure.iter("polygon")} == {curve.WHOLE, *curve.COLOURS[1:3]}
    assert not figure.xpath(".//@style"), "the page's policy would refuse it"
    assert "The last drill" not in page(NODES, WHOLE, {})
    odd = page(NODES, WHOLE, {"https://n": NodeJobs("n", "p", (), ODD)})
    assert text(ODD, odd) == "https://n"
    root = html.fromstring(bench.ask("GET", "/", Accept="text/html").text)
    assert "/?cluster" in {link.get("href") for link in root.iter("a")}


def test_who_reads_slowly_holds_it_still(bench: Bench) -> None:
    moving = html.fromstring(bench.ask("GET", "/?cluster", Accept="text/html").text)
    (hold,) = moving.xpath("//footer/a/@href")
    still = html.fromstring(bench.ask("GET", hold, Accept="text/html").text)
    assert not still.xpath("//meta[@http-equiv='refresh']")
    assert still.xpath("//footer/a/@href") == ["/?cluster"]


def test_nobody_else_does(bench: Bench) -> None:
    assert bench.ask("GET", "/?cluster", dn=EVE).status == 403
    assert bench.ask("GET", "/?cluster", dn=ANONYMOUS).status == 401
    assert bench.ask("PUT", "/f", b"x").status == 201
    token = asked(bench, "/", "activity:LIST")
    assert bench.ask("GET", "/?cluster", dn=ANONYMOUS, **by(token)).status == 403
    page = bench.ask("GET", f"/?authz={token}", dn=ANONYMOUS, Accept="text/html").text
    assert "?cluster" not in page


@pytest.mark.parametrize(
    ("part", "title"),
    [("nodes", "Shepherds"), ("healing", "Healing"), ("drill", "The last drill"), ("jobs", "Background work")],
)
def test_a_part_that_is_not_known_says_why_beside_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str, title: str
) -> None:
    monkeypatch.setattr(Cluster, part, AsyncMock(side_effect=AWAY))
    answer = bench.ask("GET", "/?cluster", Accept="text/html")
    assert answer.status == 200
    shown = html.fromstring(answer.text)
    told = {table.findtext("caption"): table.text_content() for table in shown.iter("table")}
    assert str(AWAY) in told[title]
    assert {"Shepherds", "Healing", "The last drill", "Background work"} <= told.keys()
    assert sum(str(AWAY) in each for each in told.values()) == 1
    assert shown.xpath("//meta[@http-equiv='refresh']")


def test_it_is_there_while_no_name_can_be_looked_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.files, "look", AsyncMock(side_effect=AWAY))
    assert bench.ask("GET", "/", Accept="text/html").status == 503
    assert bench.ask("GET", "/?cluster", Accept="text/html").status == 200
    assert bench.ask("GET", "/?cluster", dn=EVE, Accept="text/html").status == 403


async def test_a_part_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_page, "PART_S", 0.01)
    found = await cluster_page._known(asyncio.Event().wait())
    assert isinstance(found, CheloniaError)
    assert found.kind is Kind.TIMEOUT


def test_it_is_no_rosier_than_what_is_known() -> None:
    assert text("All whole in", page(NODES, WHOLE, {})) == "it is whole"
    leaderless = replace(WHOLE, leader="", is_leader=False)
    assert "nobody leads repair" in text("All whole in", page(NODES, leaderless, {}))
    assert text("Too few copies", page(NODES, leaderless, {})) == "not known"
    paused = replace(WORSE, control=HealControl(0, 2, "/CN=anna", Ms(1)))
    assert text("All whole in", page(NODES, paused, {})) == "never, while it is paused"
    lost = replace(WORSE, lost=1, lost_named=(Endangered(BlobId("b"), "/gone", 0, 3, 1, Ms(1)),))
    assert text("Lost", page(NODES, lost, {})) == "1: /gone"
    assert "failing" in page((), WHOLE, JOBS)
