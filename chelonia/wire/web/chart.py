"""A figure of steps stacked over time, as SVG: bands, marks of events, round ticks. Pure: numbers in, text out.

Steps, because a count is valid until the next look. Labels of events are above the frame and do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH, PLOT_HEIGHT = 960, 330
LEFT, RIGHT, BOTTOM = 70, 230, 52
LABEL: Final = 7.2
"""Approximate width of a letter of a label."""
ROW: Final = 18
"""Height of a row of labels."""
TICKS: Final = 6
"""Approximate number of ticks on an axis."""
SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
"""Distances of ticks of time, from a second on."""
INK, GRID = "#37474f", "#dfe3e6"

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Band:
    """One area, stacked on those before it: its name, its colour, and its height at each time."""

    name: str
    colour: str
    counts: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure.

    Args:
        title, note: above it; the note names the counted things.
        times: milliseconds, rising; at least one.
        bands: the lowest first.
        marks: (ms, event), in order of time.
        unit: of the vertical axis.
        wanted: a level to draw with its name, as "40 wanted".
        zoomed: whether the vertical axis may begin above 0, where the lowest band is always higher.
    """

    title: str
    note: str
    times: Sequence[int]
    bands: Sequence[Band]
    marks: Sequence[tuple[int, str]] = ()
    unit: str = ""
    wanted: tuple[float, str] | None = None
    zoomed: bool = False
    _sums: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._sums.extend(sum(heights) for heights in zip(*(band.counts for band in self.bands), strict=True))

    @property
    def end(self) -> int:
        """The last moment."""
        return max(self.times[-1], 1)

    @property
    def top(self) -> float:
        """The highest value."""
        return max(1, *self._sums, self.wanted[0] if self.wanted else 0)

    @property
    def floor(self) -> float:
        """The begin of the vertical axis: 0, or a tick with room below the lowest band."""
        least = min(self.bands[0].counts, default=0) if self.zoomed else 0
        step = round_step(max(self.top - least, 1) * 1.5 / TICKS)
        return max(0.0, (least // step - 2) * step) if least > self.top / 2 else 0.0


def svg(chart: Chart) -> str:
    """Return a figure as SVG."""
    rows = _rows(chart)
    above = 62 + ROW * (max((row for row, *_ in rows), default=-1) + 1)
    height = above + PLOT_HEIGHT + BOTTOM
    step = round_step((chart.top - chart.floor) / TICKS)
    most = -(-chart.top // step) * step

    def x(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / chart.end

    def y(count: float) -> float:
        return above + PLOT_HEIGHT * (1 - (max(count, chart.floor) - chart.floor) / (most - chart.floor))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{INK}" role="img">',
        f"<title>{escape(chart.title)}</title><desc>{escape(_description(chart))}</desc>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="17" font-weight="bold">{escape(chart.title)}</text>',
        f'<text x="{LEFT}" y="44">{escape(chart.note)}</text>',
        *_grid(chart, step, most, (x, y)),
        *_areas(chart, (x, y)),
        *_level(chart, y),
    ]
    for row, anchor, ms, text in rows:
        at, base = x(ms), 66 + ROW * row
        parts.append(f'<path d="M{at:.1f} {base + 4}V{y(chart.floor):.1f}" stroke="{INK}" stroke-dasharray="3 3"/>')
        shift = 4 if anchor == "start" else -4
        parts.append(f'<text x="{at + shift:.1f}" y="{base + 6}" text-anchor="{anchor}">{escape(text)}</text>')
    return "\n".join([*parts, *_legend(chart, above), "</svg>", ""])


def _description(chart: Chart) -> str:
    """The figure in words, for readers who cannot see it."""
    return "; ".join([chart.note, *(f"{text} after {ms / 1000:.1f} s" for ms, text in chart.marks)])


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, 50 ... that is not below `least`: counts are whole."""
    power = 1
    while power * 5 < least:
        power *= 10
    return next((power * each for each in (1, 2, 5) if power * each >= least), power * 10)


def time_ticks(end_ms: int) -> list[tuple[float, str]]:
    """Return round moments of the time axis, in milliseconds, with their names."""
    step = next((each for each in SECONDS if end_ms / 1000 / each <= TICKS + 1), SECONDS[-1])
    if end_ms < 2000:
        tenth = next(each for each in (1, 2, 5) if end_ms / 100 / each <= TICKS + 1) if end_ms <= 3500 else 5
        return [(n * tenth * 100, f"{n * tenth / 10:g} s") for n in range(int(end_ms / 100 / tenth) + 1)]
    return [(n * step * 1000, _named(n * step)) for n in range(int(end_ms / 1000 / step) + 1)]


def _named(seconds: int) -> str:
    if seconds % 3600 == 0 and seconds:
        return f"{seconds // 3600} h"
    return f"{seconds // 60} min" if seconds % 60 == 0 and seconds else f"{seconds} s"


def _rows(chart: Chart) -> list[tuple[int, str, int, str]]:
    """The places of marks' labels: row, anchor, moment, text. They stay in the frame and do not overlap."""
    taken: list[float] = []
    out = []
    for ms, text in chart.marks:
        at, wide = LEFT + (WIDTH - LEFT - RIGHT) * ms / chart.end, LABEL * len(text) + 8
        anchor = "start" if at + wide <= WIDTH else "end"
        begin = at if anchor == "start" else at - wide
        row = next((n for n, end in enumerate(taken) if end <= begin), len(taken))
        taken[row : row + 1] = [at + (wide if anchor == "start" else 4)]
        out.append((row, anchor, ms, text))
    return out


def _grid(chart: Chart, step: float, most: float, scales: tuple[Scale, Scale]) -> list[str]:
    x, y = scales
    out, right, base = [], x(chart.end), y(chart.floor)
    for n in range(round((most - chart.floor) / step) + 1):
        count = chart.floor + n * step
        out.append(f'<path d="M{LEFT} {y(count):.1f}H{right:.1f}" stroke="{GRID}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(count) + 4:.1f}" text-anchor="end">{count:g}</text>')
    for ms, name in time_ticks(chart.end):
        out.append(f'<path d="M{x(ms):.1f} {base:.1f}v5" stroke="{INK}"/>')
        out.append(f'<text x="{x(ms):.1f}" y="{base + 20:.1f}" text-anchor="middle">{name}</text>')
    begins = f" (the axis begins at {chart.floor:g})" if chart.floor else ""
    out.append(f'<text x="{LEFT}" y="{base + 42:.1f}">{escape(chart.unit)}{begins} over time</text>')
    return out


def _areas(chart: Chart, scales: tuple[Scale, Scale]) -> list[str]:
    x, y = scales
    out, below = [], [0.0] * len(chart.times)
    for band in chart.bands:
        above = [low + count for low, count in zip(below, band.counts, strict=True)]
        if above != below:
            outline = _steps(chart, above) + _steps(chart, below)[::-1]
            points = " ".join(f"{x(ms):.1f},{y(count):.1f}" for ms, count in outline)
            out.append(f'<polygon points="{points}" fill="{band.colour}"/>')
        below = above
    return out


def _steps(chart: Chart, counts: Sequence[float]) -> list[tuple[float, float]]:
    untils = [*chart.times[1:], chart.times[-1]]
    pairs = zip(chart.times, untils, counts, strict=True)
    return [point for since, until, count in pairs for point in ((since, count), (until, count))]


def _level(chart: Chart, y: Scale) -> list[str]:
    if chart.wanted is None:
        return []
    count, name = chart.wanted
    right = WIDTH - RIGHT
    return [
        f'<path d="M{LEFT} {y(count):.1f}H{right}" stroke="{INK}"/>',
        f'<text x="{right + 8}" y="{y(count) + 4:.1f}">{escape(name)}</text>',
    ]


def _legend(chart: Chart, above: float) -> list[str]:
    out = []
    shown = [band for band in chart.bands if any(band.counts)]
    for number, band in enumerate(reversed(shown)):
        at = above + PLOT_HEIGHT - 24 * (len(shown) - number)
        out.append(f'<rect x="{WIDTH - RIGHT + 20}" y="{at}" width="14" height="14" fill="{band.colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 42}" y="{at + 12}">{escape(band.name)}</text>')
    return out
