"""Many users at once: 1 to 100 clients, each making 50 collections one after another in one shared collection.

The paper's Fig. 4: there, from 50 clients on some requests fail and are made again, and the slowest client falls far
behind the fastest. Here every client has a connection of its own and repeats nothing, so every failure is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import cluster
from experiment import Outcome, Setup
from intervals import check, median_interval
from machine import Cost, meter
from plot import Chart, Point, Series

from chelonia.core.errors import CheloniaError
from chelonia_clients.client import Client

BAR = 3.0
COLLECTIONS = 50
QUICK_COLLECTIONS = 10
CLIENTS = (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """One run: each client's seconds from the common start to its last answer, and the failed requests."""

    seconds: list[float]
    failures: list[str]
    cost: Cost

    def figures(self) -> dict[str, Any]:
        return {
            "clients": len(self.seconds),
            "s_min": min(self.seconds),
            "s_mean": sum(self.seconds) / len(self.seconds),
            "s_max": max(self.seconds),
            "failed": len(self.failures),
            "failures": self.failures[:10],
            **self.cost.figures(),
        }


async def run(setup: Setup) -> Outcome:
    """Run every number of clients once, then a hundred of them again and again."""
    curve: list[_Crowd] = []
    hundred: list[_Crowd] = []
    serial = itertools.count()
    each = QUICK_COLLECTIONS if setup.quick else COLLECTIONS
    async with cluster.dev(setup.scratch, 0) as running:
        for clients in (1, 20, 100) if setup.quick else CLIENTS:
            curve.append(await _crowd(running, clients, each, f"/crowd{next(serial)}"))
            setup.say(f"  {_told(curve[-1])}")
        for _ in range(setup.blocks):
            hundred.append(await _crowd(running, 100, each, f"/crowd{next(serial)}"))
            setup.say(f"  {_told(hundred[-1])}")
    spread = [max(crowd.seconds) / min(crowd.seconds) for crowd in hundred]
    bar = check("slowest of 100 clients over the fastest", "at most", BAR, spread)
    failed = sum(len(crowd.failures) for crowd in (*curve, *hundred))
    none = check("failed requests in a run", "at most", 0.0, [float(len(crowd.failures)) for crowd in hundred])
    setup.say(f"  {bar}\n  {failed} failed requests in all")
    cpu = median_interval([crowd.cost.server_cpu for crowd in hundred])
    rate = median_interval([crowd.cost.per_s for crowd in hundred])
    results = {
        "curve": [crowd.figures() for crowd in curve],
        "hundred": [crowd.figures() for crowd in hundred],
        "failed": failed,
        "server_cpu_s_per_1000": str(cpu),
        "per_s": str(rate),
    }
    setup.say(f"  at 100 clients: {rate} collections/s, server CPU s/1000 {cpu}")
    return Outcome(results, [bar, none], {"multiuser": _chart(curve)})


async def _crowd(running: cluster.Running, clients: int, each: int, collection: str) -> _Crowd:
    async with AsyncExitStack() as stack:
        users = [await stack.enter_async_context(running.client()) for _ in range(clients)]
        await users[0].make_collection(collection)
        failures: list[str] = []
        stop = meter(running.pids)
        started = time.perf_counter()

        async def user(number: int, client: Client) -> float:
            for n in range(each):
                try:
                    await client.make_collection(f"{collection}/{number}-{n}")
                except CheloniaError as error:
                    failures.append(str(error))
            return time.perf_counter() - started

        seconds = await asyncio.gather(*(user(number, client) for number, client in enumerate(users)))
        return _Crowd(list(seconds), failures, stop(clients * each))


def _told(crowd: _Crowd) -> str:
    low, high = min(crowd.seconds), max(crowd.seconds)
    return (
        f"{len(crowd.seconds)} clients: {low:.2f} .. {high:.2f} s, {crowd.cost.per_s:.0f} collections/s, "
        f"CPU s/1000: {crowd.cost.server_cpu:.3f} + {crowd.cost.client_cpu:.3f} client, {len(crowd.failures)} failed"
    )


def _chart(curve: list[_Crowd]) -> Chart:
    points = [Point(len(c.seconds), sum(c.seconds) / len(c.seconds), min(c.seconds), max(c.seconds)) for c in curve]
    title = "Many users: each makes 50 collections (mean, fastest and slowest client)"
    return Chart(title, "clients at the same time", "s", [Series("50 collections", points)])
