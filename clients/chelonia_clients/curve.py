"""The recovery curve of a drill: files by verified copies left, over time. Points in; text, CSV, JSON or SVG out.

Steps, because a number stands until the next look. Pure.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 44, 44
WHOLE: Final = "#2e7d32"
COLOURS: Final = ("#b71c1c", "#ef6c00", "#f9a825", "#fdd835", "#c0ca33")
"""Of files with 0, 1, 2, ... copies left; more are like the last."""
SUFFIXES: Final = (".csv", ".json", ".svg")
"""Of the names of files that a curve is written to; each says the form."""
BAR: Final = 50
ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One look: milliseconds since the drill began, and files with fewer copies than wanted by copies left."""

    ms: int
    left: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Curve:
    """The curve of `files` files. `points`: in order of time, at least one; `marks`: (ms, what happened)."""

    title: str
    files: int
    points: Sequence[CurvePoint]
    marks: Sequence[tuple[int, str]] = ()

    @property
    def lives(self) -> tuple[int, ...]:
        """Every number of copies left that was seen, fewest first."""
        return tuple(sorted({live for point in self.points for live in point.left}))

    def whole(self, point: CurvePoint) -> int:
        """Files that are whole."""
        return max(self.files - sum(point.left.values()), 0)


def facts(curve: Curve) -> dict[str, Any]:
    """The curve for programs."""
    return {
        "title": curve.title,
        "files": curve.files,
        "marks": [{"ms": ms, "what": what} for ms, what in curve.marks],
        "points": [
            {"ms": p.ms, "whole": curve.whole(p), "left": {str(live): n for live, n in sorted(p.left.items())}}
            for p in curve.points
        ],
    }


def write(curve: Curve, name: str) -> str:
    """The curve in the form that a file's name says, which ends in one of `SUFFIXES`."""
    forms = dict(zip(SUFFIXES, (as_csv, as_json, as_svg), strict=True))
    return next(form for suffix, form in forms.items() if name.endswith(suffix))(curve)


def as_json(curve: Curve) -> str:
    """One JSON document."""
    return json.dumps(facts(curve), indent=2) + "\n"


def as_csv(curve: Curve) -> str:
    """A line a look: milliseconds, whole files, and a column for every number of copies left."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["ms", "whole", *(f"left_{live}" for live in curve.lives)])
    for point in curve.points:
        table.writerow([point.ms, curve.whole(point), *(point.left.get(live, 0) for live in curve.lives)])
    return text.getvalue()


def as_text(curve: Curve) -> list[str]:
    """Lines for a terminal: `#` for whole files, a digit for those with so many copies left."""
    lines = [f"files by copies left: # whole, a digit: so many ({curve.files} files)"]
    for point in _thinned(curve.points):
        bar = "".join(str(min(live, 9)) * _cells(point.left[live], curve.files) for live in sorted(point.left))
        rest = "#" * max(BAR - len(bar), 0) if curve.whole(point) else ""
        lines.append(f"{point.ms / 1000:8.1f} s  {(rest + bar)[-BAR:]:<{BAR}}  {curve.whole(point)}")
    return lines


def _cells(count: int, files: int) -> int:
    """At least one cell for any file."""
    return max(1, round(BAR * count / max(files, 1))) if count else 0


def _thinned(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Those that differ from the one before, and of these so many as fit, the first and the last among them."""
    seen = [p for n, p in enumerate(points) if n in (0, len(points) - 1) or p.left != points[n - 1].left]
    if len(seen) <= ROWS:
        return seen
    return [seen[round(n * (len(seen) - 1) / (ROWS - 1))] for n in range(ROWS)]


def as_svg(curve: Curve) -> str:
    """The figure: whole files at the bottom, above them those with copies missing."""
    end = max(curve.points[-1].ms, 1)
    top = max(1, curve.files, *(sum(point.left.values()) for point in curve.points))  # others may be exposed meanwhile

    def x(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / end

    def y(count: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - count / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(curve.title)}</text>',
    ]
    below = [0.0] * len(curve.points)
    bands = [("whole", WHOLE, [curve.whole(p) for p in curve.points])]
    for live in reversed(curve.lives):
        colour = COLOURS[min(live, len(COLOURS) - 1)]
        bands.append((f"{live} left", colour, [p.left.get(live, 0) for p in curve.points]))
    for number, (name, colour, counts) in enumerate(bands):
        above = [low + count for low, count in zip(below, counts, strict=True)]
        upper = _steps(curve.points, above)
        lower = _steps(curve.points, below)[::-1]
        outline = " ".join(f"{x(ms):.1f},{y(count):.1f}" for ms, count in upper + lower)
        parts.append(f'<polygon points="{outline}" fill="{colour}"/>')
        at = TOP + 20 * number
        parts.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{at}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 34}" y="{at + 11}">{name}</text>')
        below = above
    return "\n".join([*parts, *_axes(curve, end, top), *_marks(curve, end), "</svg>", ""])


def _steps(points: Sequence[CurvePoint], counts: Sequence[float]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for number, (point, count) in enumerate(zip(points, counts, strict=True)):
        until = points[number + 1].ms if number + 1 < len(points) else point.ms
        out += [(point.ms, count), (until, count)]
    return out


def _axes(curve: Curve, end: int, top: int) -> list[str]:
    out = []
    for number in range(5):
        at = TOP + (HEIGHT - TOP - BOTTOM) * (1 - number / 4)
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{top * number / 4:g}</text>')
    for number in range(7):
        at = LEFT + (WIDTH - LEFT - RIGHT) * number / 6
        seconds = f"{end * number / 6000:.3g} s"
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{seconds}</text>')
    out.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">{curve.files} files by verified copies left</text>')
    return out


def _marks(curve: Curve, end: int) -> list[str]:
    out = []
    for number, (ms, what) in enumerate(curve.marks):
        at = LEFT + (WIDTH - LEFT - RIGHT) * ms / end
        line = f'x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
        out.append(f'<line {line} stroke="black" stroke-dasharray="4 3"/>')
        out.append(f'<text x="{at + 4:.1f}" y="{TOP + 14 + 15 * (number % 4)}">{escape(what)}</text>')
    return out
