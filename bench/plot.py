"""Draws figures as small SVG files: lines with error bars, over a linear or logarithmic axis. Numbers in, text out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 64, 54
COLOURS = ("#1565c0", "#c62828", "#2e7d32", "#ef6c00", "#6a1b9a", "#546e7a")

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: the middle, and from where to where its samples went."""

    x: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Series:
    """One line."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure. `log_x` needs positive x."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False


def svg(chart: Chart) -> str:
    points = [point for series in chart.series for point in series.points]
    first, last = min(p.x for p in points), max(p.x for p in points)
    top = _nice(max(p.high for p in points) / 5) * 5
    x, y = _x_scale(first if chart.log_x else 0.0, last, chart.log_x), _y_scale(top)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(chart.title)}</text>',
        *_y_axis(y, top, chart.y_label),
        *_x_axis(x, chart, first, last),
    ]
    for number, series in enumerate(chart.series):
        parts += _line(series, x, y)
        parts += _legend(series, number)
    return "\n".join([*parts, "</svg>", ""])


def _x_scale(first: float, last: float, log: bool) -> Scale:
    width = WIDTH - LEFT - RIGHT - 10
    if log:
        span = math.log(last / first) or 1.0
        return lambda value: LEFT + 5 + width * math.log(value / first) / span
    return lambda value: LEFT + 5 + width * (value - first) / ((last - first) or 1.0)


def _y_scale(top: float) -> Scale:
    height = HEIGHT - TOP - BOTTOM
    return lambda value: TOP + height * (1 - value / top)


def _nice(step: float) -> float:
    """The next larger of 1, 2, 2.5, 5 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= step)


def _y_axis(y: Scale, top: float, label: str) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out = [f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">{escape(label)}</text>']
    for number in range(6):
        value = top * number / 5
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#0002"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    return out


def _x_axis(x: Scale, chart: Chart, first: float, last: float) -> list[str]:
    out = [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(chart.x_label)}</text>'
    ]
    if chart.log_x:
        ticks = sorted({point.x for series in chart.series for point in series.points})
    else:
        step = _nice(last / 10)
        ticks = [step * number for number in range(int(last / step) + 1)]
    for tick in ticks:
        out.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(tick)}</text>')
    return out


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _line(series: Series, x: Scale, y: Scale) -> list[str]:
    colour = COLOURS[series.colour % len(COLOURS)]
    path = " ".join(f"{x(p.x):.1f},{y(p.middle):.1f}" for p in series.points)
    dash = ' stroke-dasharray="6 4"' if series.dashed else ""
    out = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
    for p in series.points:
        at, low, high = x(p.x), y(p.low), y(p.high)
        bar = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 3:.1f} {low:.1f}h6M{at - 3:.1f} {high:.1f}h6"
        out.append(f'<path d="{bar}" stroke="{colour}"/>')
        out.append(f'<circle cx="{at:.1f}" cy="{y(p.middle):.1f}" r="3" fill="{colour}"/>')
    return out


def _legend(series: Series, number: int) -> list[str]:
    left, top = LEFT + 215 * (number % 3), 34 + 16 * (number // 3)
    colour = COLOURS[series.colour % len(COLOURS)]
    dash = ' stroke-dasharray="6 4"' if series.dashed else ""
    return [
        f'<line x1="{left}" x2="{left + 24}" y1="{top}" y2="{top}" stroke="{colour}" stroke-width="2"{dash}/>',
        f'<text x="{left + 30}" y="{top + 4}">{escape(series.name)}</text>',
    ]
