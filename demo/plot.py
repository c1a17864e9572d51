"""Draws the recovery curve as SVG: replicas by state over time, with the moments of what was done to the cluster.

Pure: samples in, text out. Stacked steps, because a replica keeps its state until the next change is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from samples import STATES, Sample

Scales = tuple[Callable[[float], float], Callable[[float], float]]
"""Milliseconds to x, count to y."""

_COLOURS = {
    "alive": "#2e7d32",
    "thirdwheel": "#f9a825",
    "creating": "#1976d2",
    "offline": "#9e9e9e",
    "invalid": "#c62828",
}
_ORDER = ("alive", "thirdwheel", "creating", "offline", "invalid")
_WIDTH, _HEIGHT = 960, 480
_FONT = 'font-family="sans-serif" font-size="13"'
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 150, 40, 50


def svg(samples: Sequence[Sample], marks: Sequence[tuple[int, str]], wanted: int) -> str:
    """Return the plot.

    Args:
        samples: in order of time, at least one.
        marks: (ms, what happened), drawn as dashed lines.
        wanted: the number of live replicas that health means, drawn as a line.
    """
    assert set(_ORDER) == set(STATES)
    end_ms = max(samples[-1].ms, 1)
    top = max([wanted, *(sum(getattr(s, state) for state in STATES) for s in samples)]) + 4
    plot_w, plot_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(ms: float) -> float:
        return float(_LEFT + plot_w * ms / end_ms)

    def y(count: float) -> float:
        return float(_TOP + plot_h * (1 - count / top))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="16">Chelonia heals itself: replicas of ten files by state</text>',
    ]
    below = [0.0] * len(samples)
    for state in _ORDER:
        above = [low + getattr(sample, state) for low, sample in zip(below, samples, strict=True)]
        if above != below:
            parts.append(_band(samples, (below, above), (x, y), _COLOURS[state]))
        below = above
    parts += _axes((x, y), end_ms, top)
    level = f"{y(wanted):.1f}"
    parts.append(f'<line x1="{_LEFT}" x2="{x(end_ms):.1f}" y1="{level}" y2="{level}" stroke="black"/>')
    parts.append(f'<text x="{x(end_ms) + 6:.1f}" y="{y(wanted) + 4:.1f}">{wanted} wanted</text>')
    parts += _marks(marks, x)
    parts += _legend()
    return "\n".join([*parts, "</svg>", ""])


def _band(samples: Sequence[Sample], edges: tuple[list[float], list[float]], scales: Scales, colour: str) -> str:
    (below, above), (x, y) = edges, scales
    end_ms = samples[-1].ms
    upper: list[str] = []
    lower: list[str] = []
    for index, sample in enumerate(samples):
        until = samples[index + 1].ms if index + 1 < len(samples) else end_ms
        upper += [f"{x(sample.ms):.1f},{y(above[index]):.1f}", f"{x(until):.1f},{y(above[index]):.1f}"]
        lower += [f"{x(sample.ms):.1f},{y(below[index]):.1f}", f"{x(until):.1f},{y(below[index]):.1f}"]
    return f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" fill-opacity="0.85"/>'


def _axes(scales: Scales, end_ms: int, top: float) -> list[str]:
    x, y = scales
    out = []
    for count in range(0, int(top) + 1, 10):
        out.append(f'<text x="{_LEFT - 8}" y="{y(count) + 4:.1f}" text-anchor="end">{count}</text>')
        out.append(f'<line x1="{_LEFT}" x2="{x(end_ms):.1f}" y1="{y(count):.1f}" y2="{y(count):.1f}" stroke="#0002"/>')
    step_s = next(step for step in (1, 2, 5, 10, 30, 60, 120, 600, 3600) if end_ms / 1000 / step <= 12)
    for second in range(0, int(end_ms / 1000) + 1, step_s):
        out.append(f'<text x="{x(second * 1000):.1f}" y="{_HEIGHT - 28}" text-anchor="middle">{second} s</text>')
    return out


def _marks(marks: Sequence[tuple[int, str]], x: Callable[[float], float]) -> list[str]:
    out = []
    for index, (ms, text) in enumerate(marks):
        at = f'x1="{x(ms):.1f}" x2="{x(ms):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"'
        out.append(f'<line {at} stroke="black" stroke-dasharray="4 3"/>')
        out.append(f'<text x="{x(ms) + 4:.1f}" y="{_TOP + 14 + 16 * (index % 3)}" font-size="12">{escape(text)}</text>')
    return out


def _legend() -> list[str]:
    out = []
    for index, state in enumerate(_ORDER):
        top = _HEIGHT - _BOTTOM - 24 * (len(_ORDER) - index)
        out.append(f'<rect x="{_WIDTH - _RIGHT + 20}" y="{top}" width="14" height="14" fill="{_COLOURS[state]}"/>')
        out.append(f'<text x="{_WIDTH - _RIGHT + 40}" y="{top + 12}">{state.upper()}</text>')
    return out
