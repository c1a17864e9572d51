"""`chelonia admin heal` for administrators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.drills import Drill, DrillStatus
from chelonia.core.cluster.healing import (
    Endangered,
    Exposed,
    HealAction,
    HealControl,
    HealOrder,
    HealStatus,
    NodeCopies,
    NodeCursor,
)
from chelonia.core.ids import BlobId, Ms, ServiceId
from chelonia.core.ports.ahash import Position
from chelonia.core.ports.librarian import HealthSummary, NodeView, ServiceRecord
from chelonia.core.values import replace
from chelonia.hosting.metrics import Metrics
from chelonia_clients.arguments import UsageError, parse_rate
from chelonia_clients.verbs import heal as verbs_heal
from tests.support.admin_cli import run_as
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import administrator_on

FREE = HealControl(0, 4)
PAUSED = HealControl(0, 4, "/CN=admin", Ms(1_700_000_000_000))
WHOLE = HealStatus("https://l/Librarian", True, FREE, (), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
NEXT = (Endangered(BlobId("b"), "/data/a", 1, 3, 2 << 20, Ms(1_700_000_000_000)),)
HURT = replace(
    WHOLE, exposed=(Exposed(1, 2), Exposed(2, 40)), copies_to_go=44, bytes_to_go=88 << 20, copies_done=6,
    bytes_done=12 << 20, copying=4, copies_per_min=360, bytes_per_s=12 << 20, forecast_ms=7_300, queue=NEXT, delayed=3,
    nodes=(NodeCopies(ServiceId("https://s1/Shepherd"), 3, 4),),
)  # fmt: skip


class Told:
    """A Librarian with scripted answers, one after another, which notes its orders."""

    def __init__(self, *answers: HealStatus) -> None:
        self.answers = list(answers)
        self.orders: list[HealOrder] = []

    async def heal_status(self, _: Call) -> HealStatus:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def heal_order(self, _: Call, order: HealOrder) -> HealStatus:
        self.orders.append(order)
        return self.answers[0]

    async def health(self, _: Call) -> HealthSummary:
        control = self.answers[0].control
        return HealthSummary("l", True, Position("c", 1, 2), 0, 0, 0, 0, {}, control.paused_by, control.paused_ms)

    async def drill_status(self, _: Call) -> DrillStatus:
        return DrillStatus(Drill())

    async def nodes(self, _: Call) -> tuple[NodeView, ...]:
        return ()

    async def services(self, _: Call) -> tuple[ServiceRecord, ...]:
        return ()


async def run(told: Told, monkeypatch: pytest.MonkeyPatch, *words: str, **flags: Any) -> tuple[str, str]:
    """`chelonia admin <words>`: standard output and error."""
    monkeypatch.setattr(verbs_heal, "WATCH_S", 0)
    said = await run_as(administrator_on(FakeBartender(), told), monkeypatch, *words, **flags)
    return said.stdout, said.stderr


async def test_the_status_says_what_is_exposed_what_is_to_go_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, _ = await run(Told(HURT), monkeypatch, "heal", "status")
    for part in (
        "healing goes on", "2 with 1 left, 40 with 2 left", "44 copies, 88", "6 copies, 12", "4 under way",
        "12 MiB/s, 360 copies/min", "about 7.3 s", "/data/a", "1/3", "3 for a Shepherd expected back",
    ):  # fmt: skip
        assert part in said.replace(".0 ", " "), part
    assert [line.split() for line in said.splitlines() if "s1" in line] == [["https://s1/Shepherd", "3", "4"]]
    whole, _ = await run(Told(WHOLE), monkeypatch, "heal")
    assert "too few copies     none" in whole
    assert "all whole          yes" in whole


async def test_the_same_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = await run(Told(HURT), monkeypatch, "heal", "status", as_json=True)
    [found] = json.loads(said)["results"]
    assert found["exposed"] == {"1": 2, "2": 40}
    assert (found["copies_to_go"], found["forecast_ms"], found["paused_by"]) == (44, 7_300, "")
    assert found["queue"][0]["name"] == "/data/a"
    assert found["nodes"] == [{"shepherd": "https://s1/Shepherd", "copies": 3, "copies_max": 4}]


async def test_watching_ends_when_all_is_whole_or_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(HURT, replace(HURT, copies_done=30), HURT, WHOLE)
    said, _ = await run(told, monkeypatch, "heal", "status", watch="yes")
    assert "all whole          yes" in said
    assert told.answers == [WHOLE]
    said, _ = await run(Told(HURT, replace(HURT, control=PAUSED)), monkeypatch, "heal", "status", watch="yes")
    assert "PAUSED since 2023-11-14 22:13:20Z by /CN=admin" in said
    assert "never, while it is paused" in said


DEAF = replace(WHOLE, is_leader=False)
LEADERLESS = replace(WHOLE, is_leader=False, leader="")
LOOKING = replace(WHOLE, cursors=(NodeCursor(ServiceId("https://s/Shepherd"), "", False),))
REBUILT = replace(WHOLE, waits_for="a rebuild of the namespace has stopped: no room")
LOST = replace(WHOLE, exposed=(Exposed(0, 2),), stuck=2, copies_to_go=2, forecast_ms=100)
STUCK = replace(WHOLE, cursors=(NodeCursor(ServiceId("https://s/Shepherd"), "r1", True),))


@pytest.mark.parametrize(
    ("unsure", "why"),
    [
        (DEAF, "the repair leader does not answer"),
        (LEADERLESS, "nobody leads repair"),
        (LOOKING, "the repair leader is still looking"),
        (REBUILT, "a rebuild of the namespace has stopped: no room"),
    ],
)
async def test_nothing_is_called_whole_while_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, unsure: HealStatus, why: str
) -> None:
    said, _ = await run(Told(unsure), monkeypatch, "heal")
    assert "whole in       not known" in said
    assert "too few copies     not known" in said
    assert why in said
    assert ("healing goes on" in said) != bool(unsure.waits_for)
    told = Told(unsure, unsure, WHOLE)
    said, warned = await run(told, monkeypatch, "heal", "status", watch="yes")
    assert told.answers == [WHOLE]
    assert "all whole          yes" in said
    assert warned.count(why) == 1
    hurt = replace(unsure, exposed=HURT.exposed)
    assert "40 with 2 left, that is known of" in (await run(Told(hurt), monkeypatch, "heal"))[0]


async def test_what_waits_is_not_forecast_and_watching_says_why_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = await run(Told(LOST), monkeypatch, "heal")
    assert "all whole in       not known: nothing can be copied now" in said
    assert (await run(Told(LOST), monkeypatch, "heal", "resume"))[0].startswith("healing is not paused; nothing can")
    said, warned = await run(Told(LOST, LOST, HURT, WHOLE), monkeypatch, "heal", "status", watch="yes")
    assert "all whole          yes" in said
    assert warned.count("0 for a Shepherd expected back, 2 for a place or a source") == 1
    said, _ = await run(Told(replace(LOST, copying=1)), monkeypatch, "heal")
    assert "about 0.1 s" in said


async def test_programs_are_told_whether_all_is_known_to_be_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in (WHOLE, STUCK, DEAF, LOOKING, REBUILT, HURT):
        said, _ = await run(Told(status), monkeypatch, "heal", as_json=True)
        assert json.loads(said)["results"][0]["whole"] is (status in (WHOLE, STUCK))


@pytest.mark.parametrize(
    ("words", "flags", "order"),
    [
        (["pause"], {}, HealOrder(HealAction.PAUSE)),
        (["resume"], {}, HealOrder(HealAction.RESUME)),
        (["rate", "50M"], {}, HealOrder(HealAction.RATE, 50 << 20)),
        (["rate", "0"], {"copies": "2"}, HealOrder(HealAction.RATE, 0, 2)),
        (["rate"], {"copies": "8"}, HealOrder(HealAction.RATE, copies_per_node=8)),
    ],
)
async def test_orders(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str], flags: dict[str, str], order: HealOrder
) -> None:
    told = Told(WHOLE)
    said, _ = await run(told, monkeypatch, "heal", *words, **flags)
    assert told.orders == [order]
    assert "no limit on bytes/s, 4 copies at once, for each Shepherd" in said


@pytest.mark.parametrize(
    "words", [["rate"], ["rate", "fast"], ["rate", "9000P"], ["rate", "1", "2"], ["stop"], ["pause", "now"]]
)
async def test_what_makes_no_sense_orders_nothing(monkeypatch: pytest.MonkeyPatch, words: Sequence[str]) -> None:
    told = Told(WHOLE)
    with pytest.raises(UsageError):
        await run(told, monkeypatch, "heal", *words)
    assert told.orders == []


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("0", 0),
        ("5", 5),
        ("2K", 2048),
        ("3M/s", 3 << 20),
        ("1GiB/s", 1 << 30),
        ("7MB", 7 << 20),
        ("8k", 8192),
        ("2p", 2 << 50),
        ("2000000000000", 2_000_000_000_000),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


async def test_a_pause_warns_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    said, warned = await run(Told(replace(WHOLE, control=PAUSED)), monkeypatch, "status")
    assert "PAUSED since 2023-11-14 22:13:20Z by /CN=admin" in said
    assert "warning: healing is paused" in warned
    said, warned = await run(Told(WHOLE), monkeypatch, "status")
    assert "PAUSED" not in said
    assert warned == ""


async def test_the_same_figures_are_metrics() -> None:
    metrics = Metrics()
    metrics.healing(replace(HURT, control=PAUSED))
    text = (await metrics.expose()).decode()
    for line in (
        'chelonia_heal_exposed{left="1"} 2.0', 'chelonia_heal_exposed{left="2"} 40.0', "chelonia_heal_paused 1.0",
        "chelonia_heal_copies_to_go 44.0", "chelonia_heal_forecast_seconds 7.3", "chelonia_heal_leader 1.0",
    ):  # fmt: skip
        assert line in text
    metrics.healing(WHOLE)
    assert 'chelonia_heal_exposed{left="1"} 0.0' in (await metrics.expose()).decode()
