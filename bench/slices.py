"""A slice of time in which some requesters work at once, each one request after another: how fast, at what cost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from intervals import Interval, median_interval
from machine import meter

Ask = Callable[[str], Awaitable[Any]]
"""Makes one request and returns its answer. The argument is the number of the requester, which serves as a key of its
own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One slice: requests a second, milliseconds of the median one, CPU seconds per 1000 of servers and client."""

    per_s: float
    p50_ms: float
    server_cpu: float
    client_cpu: float


async def sampled(ask: Ask, pids: Iterable[int], at_once: int, seconds: float) -> Sample:
    """Measure one slice against the servers `pids`."""
    took: list[float] = []
    stop, started = meter(lambda: pids), time.perf_counter()

    async def requester(number: str) -> None:
        while time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            await ask(number)
            took.append(time.perf_counter() - begun)

    await asyncio.gather(*(requester(str(number)) for number in range(at_once)))
    cost = stop(len(took))
    return Sample(cost.per_s, 1000 * statistics.median(took), cost.server_cpu, cost.client_cpu)


def medians(samples: Sequence[Sample]) -> dict[str, Interval]:
    """The median of each field with its interval, in the order of the fields."""
    fields = ("per_s", "p50_ms", "server_cpu", "client_cpu")
    return {name: median_interval([getattr(sample, name) for sample in samples]) for name in fields}
