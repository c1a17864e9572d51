"""The recovery curve of a drill: files by verified copies left, over time. Points in; text, CSV, JSON or SVG out.

Steps, because a number is valid until the next look. Pure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chelonia.core.cluster.drills import Drill, looks_at
from chelonia.core.timing.clock import stamp
from chelonia.wire.web.chart import Band, Chart, svg

WHOLE: Final = "#81c784"
COLOURS: Final = ("#b71c1c", "#ef6c00", "#f9a825", "#fdd835", "#cddc39")
"""Colours of files with 0, 1, 2, ... copies left; more are like the last."""
SUFFIXES: Final = (".csv", ".json", ".svg")
"""Suffixes of files that a curve is written to, which determine the form."""
BAR: Final = 50
ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One look: milliseconds since the drill began, and files with fewer copies than wanted by copies left."""

    ms: int
    left: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Curve:
    """The curve of `files` files. `points`: in order of time, at least one; `marks`: (ms, event)."""

    title: str
    files: int
    points: Sequence[CurvePoint]
    marks: Sequence[tuple[int, str]] = ()

    @property
    def lives(self) -> tuple[int, ...]:
        """The numbers of copies left in any point, fewest first."""
        return tuple(sorted({live for point in self.points for live in point.left}))

    def whole(self, point: CurvePoint) -> int:
        """Return the number of whole files at a point."""
        return max(self.files - sum(point.left.values()), 0)


def of_drill(drill: Drill, points: Sequence[CurvePoint] = ()) -> Curve:
    """Return the curve of a drill, from these points or else from the looks stored with it."""
    seen = points or [CurvePoint(0, {}), *(CurvePoint(ms, left) for ms, left in looks_at(drill))]
    if drill.ended_ms and not points:
        seen = [*seen, CurvePoint(max(drill.ended_ms - drill.began_ms, seen[-1].ms), seen[-1].left)]
    marks = (
        (drill.noticed_ms, "noticed"),
        (drill.whole_ms, "whole"),
        (drill.recalled_ms, "called back"),
        (drill.ended_ms, drill.stage.value),
    )
    shown = [(int(at - drill.began_ms), name) for at, name in marks if at]
    title = f"Drill: {drill.action.value} of {drill.shepherd}, {stamp(drill.began_ms)}"
    return Curve(title, drill.files, seen, shown)


def facts(curve: Curve) -> dict[str, Any]:
    """Return the curve as values for JSON."""
    return {
        "title": curve.title,
        "files": curve.files,
        "marks": [{"ms": ms, "what": name} for ms, name in curve.marks],
        "points": [
            {"ms": p.ms, "whole": curve.whole(p), "left": {str(live): n for live, n in sorted(p.left.items())}}
            for p in curve.points
        ],
    }


def write(curve: Curve, name: str) -> str:
    """Return the curve in the form of a file's name, which ends in one of `SUFFIXES`."""
    forms = dict(zip(SUFFIXES, (as_csv, as_json, as_svg), strict=True))
    return next(form for suffix, form in forms.items() if name.endswith(suffix))(curve)


def as_json(curve: Curve) -> str:
    """Return one JSON document."""
    return json.dumps(facts(curve), indent=2) + "\n"


def as_csv(curve: Curve) -> str:
    """Return a line for each point: milliseconds, whole files, and a column for every number of copies left."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["ms", "whole", *(f"left_{live}" for live in curve.lives)])
    for point in curve.points:
        table.writerow([point.ms, curve.whole(point), *(point.left.get(live, 0) for live in curve.lives)])
    return text.getvalue()


def as_text(curve: Curve) -> list[str]:
    """Return lines for a terminal: `#` for whole files, a digit for files with so many copies left."""
    lines = [f"files by copies left: # whole, a digit: so many ({curve.files} files)"]
    for point in _thinned(curve.points):
        bar = "".join(str(min(live, 9)) * _cells(point.left[live], curve.files) for live in sorted(point.left))
        rest = "#" * max(BAR - len(bar), 0) if curve.whole(point) else ""
        lines.append(f"{point.ms / 1000:8.1f} s  {(rest + bar)[-BAR:]:<{BAR}}  {curve.whole(point)}")
    return lines


def _cells(count: int, files: int) -> int:
    """Cells of a bar for `count` of `files`; at least one for any file."""
    return max(1, round(BAR * count / max(files, 1))) if count else 0


def _thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """At most `ROWS` of the points that differ from the one before, with the first and the last."""
    seen = [p for n, p in enumerate(points) if n in (0, len(points) - 1) or p.left != points[n - 1].left]
    if len(seen) <= ROWS:
        return seen
    return [seen[round(n * (len(seen) - 1) / (ROWS - 1))] for n in range(ROWS)]


def as_svg(curve: Curve) -> str:
    """Return the figure: whole files at the bottom, above them files with missing copies."""
    bands = [Band("whole", WHOLE, [curve.whole(point) for point in curve.points])]
    for live in reversed(curve.lives):
        colour = COLOURS[min(live, len(COLOURS) - 1)]
        bands.append(Band(_named(live), colour, [point.left.get(live, 0) for point in curve.points]))
    note = f"{curve.files} files by the good copies that are left of each"
    return svg(Chart(curve.title, note, [point.ms for point in curve.points], bands, curve.marks, "Files"))


def _named(live: int) -> str:
    return "no copy left" if not live else "1 copy left" if live == 1 else f"{live} copies left"
