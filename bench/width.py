"""Width: the cost of adding to, looking up in and listing a collection that holds 100 or 100 000 entries.

The paper's second test (Fig. 2): there, the whole list of entries moves at every step, and it advises to stay below
5000 entries. Here the entries are records of an ordered store. One client, one request after another.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

import cluster
from experiment import SHORT_TIMES, Act, Outcome, Setup, each, fill, in_turn, measured, ratios
from intervals import Check, check, median_interval
from machine import Cost, added
from plot import Chart, Point, Series

from chelonia.core.metadata import Needed
from chelonia.core.ports.bartender import ListRequest
from chelonia_clients.client import Client, new_call

BAR = 1.2
NARROW = 100
PAGE = 1000
SAMPLES = 5


@dataclass(slots=True)
class _Curve:
    """Times at one width: five samples of each operation."""

    width: int
    costs: dict[str, list[Cost]] = field(default_factory=dict)


async def run(setup: Setup) -> Outcome:
    """Measure collections of several widths, then hold the widest against narrow ones, then list it."""
    wide = 5_000 if setup.quick else 100_000
    widths = [width for width in (100, 1_000, 5_000, 20_000, 100_000) if width <= wide]
    async with cluster.dev(setup.scratch, 0) as running, running.client() as client:
        filled_per_s = await _filled(setup, client, widths)
        curves = await _measured_by_width(running, client, widths)
        figures, checks = await _compared(setup, running, client, wide)
        pages, listing, rate = await _listed(setup, running, client, wide)
    results = {
        "entries": wide,
        "filled_per_s": filled_per_s,
        "compared": figures,
        "curve": [_curve_figures(curve) for curve in curves],
        "listing": listing,
    }
    return Outcome(results, [*checks, rate], {"width": _chart(curves), "listing": pages})


# --- by width ---


async def _filled(setup: Setup, client: Client, widths: list[int]) -> float:
    """Make a collection of each width; returns the entries made a second."""
    started = time.perf_counter()
    for width in widths:
        setup.say(f"width, filling {width}")
        await client.make_collection(_name(width))
        await fill(client, _name(width), range(width))
    return sum(widths) / (time.perf_counter() - started)


async def _measured_by_width(running: cluster.Running, client: Client, widths: list[int]) -> list[_Curve]:
    """Five samples of each operation at each width, the widths in turn."""
    curves = [_Curve(width) for width in widths]
    for sample in range(SAMPLES):
        for curve in curves:
            names = [f"{_name(curve.width)}/new-{sample}-{n}" for n in range(20)]
            for name, act in (
                ("add", each(client.make_collection, names)),
                ("stat the entry", each(client.stat, names)),
                ("stat the collection", each(client.stat, [_name(curve.width)] * 20)),
            ):
                curve.costs.setdefault(name, []).append(await measured(running, act))
    return curves


def _name(width: int) -> str:
    return f"/width{width}"


# --- wide against narrow ---


async def _compared(
    setup: Setup, running: cluster.Running, client: Client, wide: int
) -> tuple[dict[str, Any], list[Check]]:
    adds, stats = (30, 50) if setup.quick else (50, 100)
    blocks = setup.blocks * SHORT_TIMES
    narrow = await _narrow_ones(client, blocks)
    added_to = _Fresh(client, adds)
    acts = {
        "add, narrow": lambda: added_to.act(narrow[added_to.block()]),
        "add, wide": lambda: added_to.act(_name(wide)),
        "look up, narrow": _lookups(client, narrow[0], range(NARROW), stats),
        "look up, wide": _lookups(client, _name(wide), range(wide), stats),
    }
    costs = await in_turn(blocks, running, acts)
    checks: list[Check] = []
    for name in ("add", "look up"):
        above, below = costs[f"{name}, wide"], costs[f"{name}, narrow"]
        title = f"{name} at {wide} entries over {NARROW}, server CPU"
        checks.append(check(title, "at most", BAR, ratios(above, below, lambda cost: cost.server_cpu)))
        both = median_interval(ratios(above, below, lambda cost: cost.cpu))
        times = median_interval(ratios(above, below, lambda cost: cost.ms))
        setup.say(f"  {checks[-1]}; with the client's CPU {both}; of time {times}")
    figures: dict[str, Any] = {name: added(parts).figures() for name, parts in costs.items()}
    for name, parts in costs.items():
        cost = added(parts)
        setup.say(f"  {name}: {cost.per_s:.0f}/s, CPU s/1000: {cost.server_cpu:.3f} + {cost.client_cpu:.3f} client")
    return figures, checks


async def _narrow_ones(client: Client, blocks: int) -> list[str]:
    """Collections of 100 entries, one for each block, because adding makes them grow."""
    names = [f"/narrow{number}" for number in range(blocks + 1)]
    for name in names:
        await client.make_collection(name)
        await fill(client, name, range(NARROW))
    return names


class _Fresh:
    """Adds entries of names never used before."""

    def __init__(self, client: Client, times: int) -> None:
        self._client = client
        self._times = times
        self._serial = 0
        self._block = 0

    def block(self) -> int:
        """Count the blocks, from 1: a new narrow collection for each."""
        self._block += 1
        return self._block

    async def act(self, collection: str) -> int:
        for _ in range(self._times):
            self._serial += 1
            await self._client.make_collection(f"{collection}/add-{self._serial}")
        return self._times


def _lookups(client: Client, collection: str, numbers: range, times: int) -> Act:
    """Look entries up at random, others each time."""
    choice = random.Random(7)

    async def act() -> int:
        return await each(client.stat, [f"{collection}/e{choice.choice(numbers):06d}" for _ in range(times)])()

    return act


# --- listing ---


async def _listed(
    setup: Setup, running: cluster.Running, client: Client, wide: int
) -> tuple[Chart, dict[str, Any], Check]:
    """List the whole collection once, then its first and its last pages in turn."""
    setup.say("width, listing")
    points: list[Point] = []
    costs: list[Cost] = []
    after, seen = "", 0
    while True:
        page: list[str] = []
        costs.append(await measured(running, _page(client, wide, after, page)))
        seen += int(costs[-1].operations)
        points.append(Point(seen, costs[-1].ms * 1000, costs[-1].ms * 1000, costs[-1].ms * 1000))
        if not page[-1]:
            break
        after = page[-1]
    whole = added(costs)
    pages = 2 if setup.quick else 5
    acts = {
        "first pages": _pages(client, wide, "", pages),
        "last pages": _pages(client, wide, f"e{wide - pages * PAGE - 1:06d}", pages),
    }
    turns = await in_turn(setup.blocks, running, acts)
    ratio = ratios(turns["last pages"], turns["first pages"], lambda cost: cost.server_cpu)
    rate = check(f"last {pages} pages of {wide} entries over the first {pages}, server CPU", "at most", BAR, ratio)
    setup.say(f"  {rate}")
    setup.say(
        f"  {seen} entries in {whole.wall_s:.2f} s: {whole.per_s:.0f}/s, "
        f"CPU s/1000: {whole.server_cpu:.3f} + {whole.client_cpu:.3f} client"
    )
    chart = Chart(
        f"Listing {wide} entries page by page", "entries listed", "ms for a page of 1000",
        [Series("page", points)],
    )  # fmt: skip
    turned = {name: added(parts).figures() for name, parts in turns.items()}
    return chart, {"whole": whole.figures(), "page_ms": [p.middle for p in points], **turned}, rate


def _page(client: Client, wide: int, after: str, told: list[str]) -> Act:
    async def act() -> int:
        request = ListRequest("0", _name(wide), after, PAGE)
        [answer] = await client.bartender.list(new_call(), (request,), (Needed("entry", "type"),), False)
        assert answer.status == "found", answer
        told.append(answer.after)
        return len(answer.entries)

    return act


def _pages(client: Client, wide: int, start: str, count: int) -> Act:
    async def act() -> int:
        after, seen = start, 0
        for _ in range(count):
            told: list[str] = []
            seen += await _page(client, wide, after, told)()
            after = told[-1]
        return seen

    return act


# --- figures ---


def _curve_figures(curve: _Curve) -> dict[str, Any]:
    return {"entries": curve.width, **{name: added(costs).figures() for name, costs in curve.costs.items()}}


def _chart(curves: list[_Curve]) -> Chart:
    series = []
    for number, name in enumerate(("add", "stat the entry", "stat the collection")):
        points = []
        for curve in curves:
            times = [cost.ms for cost in curve.costs[name]]
            points.append(Point(curve.width, sum(times) / len(times), min(times), max(times)))
        series.append(Series(name, points, number > 0, number))
    return Chart("Width: one request, by entries in the collection", "entries", "ms", series, log_x=True)
