"""How long the slowest writes of the A-Hash take, alone and as three replicas, while its store grows.

Eight writers; each change has a request key of its own, as a Librarian's, so that changes go all over the store. With
`--full` ten minutes each. No bar: figures to compare states of the code by.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import cluster
from ahash_group import Doors, roles, urls
from experiment import Outcome, Setup
from machine import meter

from chelonia.core.caller import Call
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.ports.ahash import AHash, ChangeType, Element

WRITERS = 8
SECONDS, QUICK_SECONDS, FULL_SECONDS = 60.0, 2.0, 600.0
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
VALUE = "v" * 500


async def run(setup: Setup) -> Outcome:
    seconds = FULL_SECONDS if setup.full else QUICK_SECONDS if setup.quick else SECONDS
    results: dict[str, Any] = {}
    for name, replicas in (("alone", 1), ("three", 3)):
        async with cluster.dev(setup.scratch, 0, replicas=replicas) as running, Doors(running) as door:
            target = urls(running)[0] if replicas == 1 else (await roles(running, door))[0]
            stop = meter(running.pids)
            took = await _written(door.at(target), seconds)
            cost = stop(len(took))
        waits = sorted(ms for _, ms in took)
        found = {share: round(waits[int(len(waits) * part)], 2) for share, part in SHARES.items()}
        found |= {"longest": round(waits[-1], 1), "longest of the second half": round(_late(took), 1)}
        results[name] = {"writes": len(took), "ms": found, "cost": cost.figures()}
        told = ", ".join(f"{what} {ms}" for what, ms in found.items())
        setup.say(f"  {name}, {seconds:.0f} s: {cost.per_s:.0f} writes/s; ms: {told}")
    return Outcome(results)


async def _written(ahash: AHash, seconds: float) -> list[tuple[float, float]]:
    """When each write was answered, in seconds since the first began, and how many milliseconds it took."""
    took: list[tuple[float, float]] = []
    started = time.perf_counter()

    async def writer(number: int) -> None:
        count = 0
        while (began := time.perf_counter()) - started < seconds:
            count += 1
            element = Element(ObjectId(f"bench:{number}"), ChangeType.SET, "bench", "value", VALUE)
            await ahash.transact(Call(), RequestKey(f"tail-{number}-{count}"), (element,))
            ended = time.perf_counter()
            took.append((ended - started, 1000 * (ended - began)))

    await asyncio.gather(*map(writer, range(WRITERS)))
    return took


def _late(took: list[tuple[float, float]]) -> float:
    half = took[-1][0] / 2
    return max(ms for ended, ms in took if ended >= half)
