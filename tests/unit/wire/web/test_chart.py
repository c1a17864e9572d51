"""Figures of steps over time: labels whole, ticks round, the axis where the story is."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from chelonia.wire.web.chart import LABEL, WIDTH, Band, Chart, round_step, svg, time_ticks


def drawn(chart: Chart) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg(chart)).iter())


def words(chart: Chart) -> list[str]:
    return [each.text or "" for each in drawn(chart) if each.tag.endswith("text")]


def test_every_label_is_within_the_figure_and_none_covers_another() -> None:
    marks = [
        (0, "begun"),
        (10, "a Shepherd is killed"),
        (12, "and at once another one"),
        (995, "64 bytes of a copy flip"),
    ]
    taken: dict[float, float] = {}
    for each in drawn(Chart("t", "n", [0, 1000], [Band("good", "green", [40, 40])], marks)):
        if each.tag.endswith("text") and each.text in [text for _, text in marks]:
            at, wide = float(each.get("x", "0")), LABEL * len(each.text or "")
            begin = at if each.get("text-anchor") == "start" else at - wide
            assert 0 <= begin < begin + wide <= WIDTH
            row = float(each.get("y", "0"))
            assert begin >= taken.get(row, 0)
            taken[row] = begin + wide
    assert len(taken) >= 2


@pytest.mark.parametrize("end_ms", [1, 238, 951, 1999, 2500, 7_130, 61_000, 1_800_000, 40_000_000])
def test_ticks_of_time_are_round_and_few(end_ms: int) -> None:
    ticks = time_ticks(end_ms)
    assert 1 <= len(ticks) <= 9
    assert all(ms <= end_ms and len(name) <= 6 for ms, name in ticks)


def test_counts_are_whole() -> None:
    assert [round_step(least) for least in (0.2, 1, 1.5, 3, 7, 11, 60)] == [1, 1, 2, 5, 10, 20, 100]


def test_the_axis_begins_where_the_story_is_and_says_so() -> None:
    chart = Chart("t", "n", [0, 1, 2], [Band("good", "green", [40, 33, 40])], unit="Copies", zoomed=True)
    assert 20 <= chart.floor <= 31
    assert any("the axis begins at" in text for text in words(chart))
    assert Chart("t", "n", [0, 1], [Band("good", "green", [40, 1])], zoomed=True).floor == 0


def test_what_never_was_has_no_place_in_the_legend() -> None:
    bands = [Band("good", "green", [1, 1]), Band("damaged", "red", [0, 0])]
    assert "damaged" not in words(Chart("t", "n", [0, 1], bands))
