"""Depth: the cost of making and looking up a collection 1 to 64 levels down, the A-Hash co-located and remote.

The paper's first test (Fig. 1): there, every level is a message, and time grows with depth. Here a walk is one request
to the A-Hash however deep it goes. One client, one request after another.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from typing import Any

import cluster
from experiment import SHORT_TIMES, Act, Outcome, Setup, each, in_turn, measured, ratios
from intervals import Check, check, median_interval
from machine import Cost, added
from plot import Chart, Point, Series

from chelonia_clients.client import Client

BAR = 1.5
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
SAMPLES = 5
"""As in the paper."""


async def run(setup: Setup) -> Outcome:
    """Measure both places of the A-Hash."""
    results: dict[str, Any] = {}
    checks: list[Check] = []
    series: list[Series] = []
    places: dict[str, AbstractAsyncContextManager[cluster.Running]] = {
        "co-located": cluster.dev(setup.scratch, 0),
        "remote": cluster.split(setup.scratch),
    }
    for number, (place, started) in enumerate(places.items()):
        async with started as running, running.client() as client:
            setup.say(f"depth, A-Hash {place}")
            figures, bar = await _ratio(setup, running, client, place)
            curve = await _curve(setup, running, client)
        results[place] = {**figures, "curve": {name: _listed(levels) for name, levels in curve.items()}}
        checks.append(bar)
        for name, dashed in (("make", False), ("stat", True)):
            points = [_point(depth, costs) for depth, costs in curve[name].items()]
            series.append(Series(f"{name}, A-Hash {place}", points, dashed, number))
    chart = Chart("Depth: one request, by levels below the root", "depth", "ms", series, log_x=True)
    return Outcome(results, checks, {"depth": chart})


async def _ratio(setup: Setup, running: cluster.Running, client: Client, place: str) -> tuple[dict[str, Any], Check]:
    names = await _chain(client)
    times = 50 if setup.quick else 100
    acts = {f"depth {depth}": _stats(client, names[depth], times) for depth in (1, 64)}
    costs = await in_turn(setup.blocks * SHORT_TIMES, running, acts)
    shallow, deep = costs["depth 1"], costs["depth 64"]
    bar = check(f"stat at depth 64 over depth 1, A-Hash {place}", "at most", BAR, ratios(deep, shallow, _ms))
    cpu = median_interval(ratios(deep, shallow, lambda cost: cost.cpu))
    setup.say(f"  {bar}; of CPU {cpu}")
    for name, parts in costs.items():
        cost = added(parts)
        setup.say(
            f"  stat, {name}: {cost.per_s:.0f}/s, CPU s/1000: {cost.server_cpu:.3f} + {cost.client_cpu:.3f} client"
        )
    figures = {name: added(parts).figures() for name, parts in costs.items()}
    return {"stat": figures, "cpu_ratio": str(cpu)}, bar


async def _chain(client: Client) -> dict[int, str]:
    """Make 64 collections in one another; returns each depth's name."""
    names: dict[int, str] = {}
    ln = ""
    for depth in range(1, 65):
        ln += f"/level{depth:02d}"
        await client.make_collection(ln)
        names[depth] = ln
    return names


async def _curve(setup: Setup, running: cluster.Running, client: Client) -> dict[str, dict[int, list[Cost]]]:
    """Make and stat at each depth, five samples each, the depths in turn."""
    times = 10 if setup.quick else 40
    serial = itertools.count()
    curve: dict[str, dict[int, list[Cost]]] = {"make": {d: [] for d in DEPTHS}, "stat": {d: [] for d in DEPTHS}}
    for _ in range(SAMPLES):
        for depth in DEPTHS:
            parent = "".join(f"/level{level:02d}" for level in range(1, depth))
            names = [f"{parent}/new{next(serial)}" for _ in range(times)]
            curve["make"][depth].append(await measured(running, each(client.make_collection, names)))
            curve["stat"][depth].append(await measured(running, each(client.stat, names)))
    return curve


def _stats(client: Client, ln: str, times: int) -> Act:
    return each(client.stat, [ln] * times)


def _ms(cost: Cost) -> float:
    return cost.ms


def _point(x: float, costs: list[Cost]) -> Point:
    times = [cost.ms for cost in costs]
    return Point(x, sum(times) / len(times), min(times), max(times))


def _listed(levels: dict[int, list[Cost]]) -> list[dict[str, Any]]:
    out = []
    for depth, costs in levels.items():
        point = _point(depth, costs)
        whole = added(costs).figures()
        out.append({"depth": depth, "ms": point.middle, "ms_min": point.low, "ms_max": point.high, **whole})
    return out
