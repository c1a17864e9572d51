"""`chelonia admin drill` for administrators, and the curve it draws."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.drills import Drill, DrillAction, DrillOrder, DrillStage, DrillStatus
from chelonia.core.cluster.healing import Exposed
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.values import replace
from chelonia.hosting.metrics import Metrics
from chelonia.wire.web import chart, curve
from chelonia.wire.web.curve import Curve, CurvePoint
from chelonia_clients.arguments import UsageError
from chelonia_clients.verbs import removing
from tests.support.admin_cli import Said, run_as
from tests.support.bartender import FakeBartender
from tests.support.clocks import QuickClock
from tests.support.failing import fails
from tests.unit.clients.faking import administrator_on

T0 = 1_700_000_000_000
ONE = ServiceId("https://s1/Shepherd")
PLANNED = Drill(
    "d1", 1, DrillAction.SILENCE, DrillStage.NONE, ONE, by="/CN=admin", files=8, began_ms=Ms(T0),
    until_ms=Ms(T0 + 20_000), deadline_ms=Ms(T0 + 320_000),
)  # fmt: skip
RUNNING = replace(PLANNED, stage=DrillStage.RUNNING)
HEALED = replace(
    RUNNING, stage=DrillStage.HEALED, noticed_ms=Ms(T0 + 1_000), whole_ms=Ms(T0 + 4_000), recalled_ms=Ms(T0 + 4_000),
    ended_ms=Ms(T0 + 4_500), touched=8,
)  # fmt: skip


def look(drill: Drill, ms: int, **left: int) -> DrillStatus:
    exposed = tuple(Exposed(int(live[1:]), count) for live, count in left.items())
    return DrillStatus(drill, Ms(T0 + ms), exposed)


STORY = (
    look(RUNNING, 10),
    look(RUNNING, 1_000, l2=8),
    look(RUNNING, 2_000, l1=1, l2=4),
    look(RUNNING, 4_000),
    look(HEALED, 4_500),
)


@dataclass
class Told:
    """A Librarian with scripted answers; orders that are no dry run raise `refusal`."""

    story: list[DrillStatus | CheloniaError] = field(default_factory=lambda: list(STORY))
    orders: list[DrillOrder] = field(default_factory=list)
    planned: Drill = PLANNED
    refusal: CheloniaError | None = None

    async def drill(self, _: Call, order: DrillOrder) -> DrillStatus:
        self.orders.append(order)
        if self.refusal is not None:
            raise self.refusal
        return DrillStatus(self.planned) if order.check_only else await self.drill_status(_)

    async def drill_status(self, _: Call) -> DrillStatus:
        said = self.story.pop(0) if len(self.story) > 1 else self.story[0]
        if isinstance(said, CheloniaError):
            raise said
        return said


async def run(told: Told, monkeypatch: pytest.MonkeyPatch, *words: str, answer: str = "n", **flags: Any) -> Said:
    administrator = administrator_on(FakeBartender(), told)
    administrator.clock = QuickClock(T0)
    monkeypatch.setattr(removing, "ask", lambda _: answer)
    return await run_as(administrator, monkeypatch, "drill", *words, **flags)


async def test_a_drill_is_planned_begun_watched_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = Told()
    files = [str(tmp_path / f"curve.{suffix}") for suffix in ("csv", "json", "svg")]
    ran = await run(told, monkeypatch, "silence", yes="yes", within="2m", curve=tuple(files), **{"for": "20s"})
    assert ran.code == 0
    for part in ("for at most 20 s", "8 files", "healed: silence of https://s1/Shepherd", "noticed after 1.0 s",
                 "8 files exposed", "whole after 4.0 s", "over after 4.5 s"):  # fmt: skip
        assert part in ran.stdout, part
    checked, begun = told.orders
    assert (checked.check_only, checked.shepherd, checked.duration_ms, checked.within_ms) == (True, "", 20_000, 120_000)
    assert begun == replace(checked, check_only=False, shepherd=ONE), "what was told beforehand is what is done"
    rows = list(csv.DictReader(io.StringIO(Path(files[0]).read_text())))
    assert [(row["ms"], row["whole"], row["left_1"], row["left_2"]) for row in rows] == [
        ("0", "8", "0", "0"), ("10", "8", "0", "0"), ("1000", "0", "0", "8"), ("2000", "3", "1", "4"),
        ("4000", "8", "0", "0"), ("4500", "8", "0", "0"),
    ]  # fmt: skip
    assert json.loads(Path(files[1]).read_text())["points"][3] == {"ms": 2000, "whole": 3, "left": {"1": 1, "2": 4}}
    assert ElementTree.fromstring(Path(files[2]).read_text()).tag.endswith("svg")


async def test_a_dry_run_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    ran = await run(told, monkeypatch, "silence", ONE, dry_run="yes")
    assert [order.check_only for order in told.orders] == [True]
    assert told.orders[0].shepherd == ONE
    assert "nothing was done" in ran.stdout


async def test_nobody_is_harmed_without_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError, match="--yes"):
        await run(told, monkeypatch, "silence")
    monkeypatch.setattr("sys.stdin", type("Tty", (), {"isatty": lambda _: True})())
    with pytest.raises(CheloniaError, match="nothing was done"):
        await run(told, monkeypatch, "silence")
    assert all(order.check_only for order in told.orders)
    assert (await run(told, monkeypatch, "silence", answer=" Yes ")).code == 0


async def test_a_refusal_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(refusal=CheloniaError(Kind.CONFLICT, "drill", "", "healing is paused"))
    with pytest.raises(CheloniaError, match="healing is paused"):
        await run(told, monkeypatch, "corrupt", yes="yes")


@pytest.mark.parametrize("stage", [DrillStage.LATE, DrillStage.CALLED_OFF])
async def test_what_did_not_heal_in_time_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, stage: DrillStage) -> None:
    bad = replace(HEALED, stage=stage, why="s2 went away meanwhile")
    ran = await run(Told([*STORY[:3], look(bad, 9_000, l2=1)]), monkeypatch, "silence", yes="yes", as_json=True)
    [said] = json.loads(ran.stdout)["results"]
    assert (ran.code, said["stage"], said["why"]) == (1, stage.value, "s2 went away meanwhile")


async def test_librarians_that_do_not_answer_are_asked_again_until_it_must_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = CheloniaError(Kind.NETWORK, "drillStatus")
    ran = await run(Told([*STORY[:2], *[away] * 50, *STORY[3:]]), monkeypatch, "silence", yes="yes")
    assert ran.code == 0
    with fails(Kind.NETWORK):
        await run(Told([*STORY[:2], away]), monkeypatch, "silence", yes="yes")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ((), {}),
        (("silence", "a", "b"), {}),
        (("corrupt",), {"for": "20s"}),
        (("silence",), {"within": "soon"}),
        (("silence",), {"files": "many"}),
        (("silence",), {"curve": "curve.png"}),
        (("silence",), {"curve": "/proc/nonexistent/curve.svg"}),
        (("silence",), {"curve": "/dev/null/curve.svg"}),
    ],
)
async def test_nonsense_is_refused(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], flags: dict[str, str]
) -> None:
    told = Told()
    with pytest.raises(UsageError):
        await run(told, monkeypatch, *words, **flags)
    assert told.orders == []


async def test_status_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told([DrillStatus(Drill())])
    assert "there has been no drill" in (await run(told, monkeypatch, "status")).stdout
    told = Told([DrillStatus(RUNNING)])
    assert "running" in (await run(told, monkeypatch, "status")).stdout
    [said] = json.loads((await run(told, monkeypatch, "stop", as_json=True)).stdout)["results"]
    assert said["id"] == "d1"
    assert told.orders == [DrillOrder(DrillAction.STOP)]


def test_a_curve_in_text_shows_every_change_and_never_hides_a_single_file() -> None:
    found = Curve(
        "t",
        1000,
        [
            CurvePoint(0, {}),
            CurvePoint(5, {}),
            CurvePoint(10, {2: 1}),
            CurvePoint(20, {1: 1, 2: 499}),
            CurvePoint(30, {}),
        ],
    )
    lines = curve.as_text(found)[1:]
    assert len(lines) == 4, "what did not change is not repeated"
    assert lines[1].count("2") == 1
    assert (lines[2].count("1 "), lines[2].count("#")) == (0, 24)
    assert lines[3].count("#") == 50
    long = replace(found, points=[CurvePoint(ms, {2: ms % 7}) for ms in range(1, 900)])
    assert len(curve.as_text(long)) == 21


def test_a_curve_stays_in_its_figure_when_more_files_are_exposed_than_the_drill_is_about() -> None:
    figure = ElementTree.fromstring(
        curve.as_svg(Curve("t", 1, [CurvePoint(0, {}), CurvePoint(5, {2: 40}), CurvePoint(9, {})]))
    )
    corners = [corner.split(",") for shape in figure.iter() for corner in shape.get("points", "").split()]
    assert corners
    [frame] = [shape for shape in figure.iter() if shape.tag.endswith("rect") and shape.get("fill") == "white"]
    assert min(float(y) for _, y in corners) >= 44
    assert max(float(y) for _, y in corners) <= float(frame.get("height", "0")) - chart.BOTTOM


async def test_metrics_tell_of_a_drill() -> None:
    metrics = Metrics()
    metrics.drill(RUNNING)
    assert b"chelonia_drill_running 1.0" in await metrics.expose()
    metrics.drill(replace(HEALED, stage=DrillStage.LATE))
    text = await metrics.expose()
    for line in (b"drill_running 0.0", b"drill_failed 1.0", b"drill_number 1.0", b"drill_noticed_seconds 1.0"):
        assert line in text
