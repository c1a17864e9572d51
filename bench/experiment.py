"""The input and the result of every experiment, and fair measurements of two things beside each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Running
from intervals import Check
from machine import Cost, meter
from plot import Chart

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Triple
from chelonia.core.ports.bartender import MakeRequest
from chelonia_clients.client import Client, new_call

BLOCKS = 12
QUICK_BLOCKS = 3
SHORT_TIMES = 3
"""Factor of further blocks where an operation takes a millisecond: disturbances come in bursts."""
FILL_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Setup:
    """Conditions of a measurement. `scratch` is on the disk to be measured, `say` shows progress. `full`: at the
    paper's length."""

    scratch: Path
    quick: bool
    say: Callable[[str], None]
    full: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks of alternating measurements to make."""
        return QUICK_BLOCKS if self.quick else BLOCKS


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of an experiment: figures as JSON, bars, plots by file name, and measurements that were not possible."""

    results: dict[str, Any]
    checks: Sequence[Check] = ()
    charts: Mapping[str, Chart] = field(default_factory=dict)
    skipped: Sequence[str] = ()


Act = Callable[[], Awaitable[int]]
"""Makes some operations and returns how many."""


async def measured(cluster: Running, act: Act) -> Cost:
    stop = meter(cluster.pids)
    return stop(await act())


def each(operation: Callable[[str], Awaitable[Any]], names: Sequence[str]) -> Act:
    """The act that carries out one operation on each of some names."""

    async def act() -> int:
        for name in names:
            await operation(name)
        return len(names)

    return act


async def in_turn(blocks: int, cluster: Running, acts: Mapping[str, Act]) -> dict[str, list[Cost]]:
    """Measure every act once a block, in an order that turns round from block to block."""
    costs: dict[str, list[Cost]] = {name: [] for name in acts}
    for block in range(blocks):
        for name in list(acts)[:: 1 if block % 2 == 0 else -1]:
            costs[name].append(await measured(cluster, acts[name]))
    return costs


def ratios(above: Sequence[Cost], below: Sequence[Cost], of: Callable[[Cost], float]) -> list[float]:
    """One ratio a block."""
    return [of(a) / of(b) for a, b in zip(above, below, strict=True)]


async def fill(client: Client, collection: str, numbers: range, prefix: str = "e") -> None:
    """Make many collections in one, in bulk."""
    for start in range(numbers.start, numbers.stop, FILL_AT_ONCE):
        part = range(start, min(start + FILL_AT_ONCE, numbers.stop))
        triples = (Triple("states", "closed", "no"),)
        requests = tuple(MakeRequest(str(n), f"{collection}/{prefix}{n:06d}", triples) for n in part)
        for answer in await client.bartender.make_collection(new_call(), requests):
            if answer.kind:
                raise CheloniaError(Kind.INTERNAL, "fill", collection, f"{answer.status} {answer.cause}")
