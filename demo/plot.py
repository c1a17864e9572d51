"""Draws the recovery curve: copies of the ten files by state over time, with marks for each act on the cluster.

Pure: samples in, SVG out.
"""

from __future__ import annotations

from collections.abc import Sequence

from samples import STATES, Sample

from chelonia.wire.web import chart

_BANDS = (
    ("alive", "good", "#81c784"),
    ("thirdwheel", "one too many, about to go", "#fdd835"),
    ("creating", "being made", "#64b5f6"),
    ("offline", "on the dead Shepherd", "#b0bec5"),
    ("invalid", "damaged", "#e57373"),
)


def svg(samples: Sequence[Sample], marks: Sequence[tuple[int, str]], wanted: int) -> str:
    """Return the plot.

    Args:
        samples: in order of time, at least one.
        marks: (ms, act).
        wanted: the number of live replicas of a healthy file, drawn as a line.
    """
    assert {state for state, *_ in _BANDS} == set(STATES)
    bands = [chart.Band(name, colour, [getattr(s, state) for s in samples]) for state, name, colour in _BANDS]
    note = "All copies of ten files; those of the library, which heal at the same time, are not shown"
    figure = chart.Chart(
        "Chelonia heals itself", note, [sample.ms for sample in samples], bands, marks, "Copies",
        (wanted, f"{wanted} wanted"), zoomed=True,
    )  # fmt: skip
    return chart.svg(figure)
