"""The A-Hash under faults: how long clients wait when its master dies or freezes; apart from that, the paper's Table 1.

An outage is the longest time between two answers of a client. That client sends request after request, and goes on to
the next replica when one does not answer. The paper: 10 s, and 60.9 s at worst.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import cluster
from ahash_group import Doors, Victims, roles, urls
from experiment import Outcome, Setup
from intervals import Check, check

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.ports.ahash import AHash, ChangeType, Element
from chelonia.hosting.net.rpc_client import AHASH_HEDGE_MS, AHASH_READ_HEDGE_MS, RetryLimits

KILLS, FREEZES, QUICK = 30, 10, 2
BEFORE_S, AFTER_S = 0.3, 2.5
REST_S = 7.0
"""Rest after a freeze, before the next. A replica that froze three times in 20 s counts as late again and again, and
asks for leases four times as long (docs/design/009-replication.md, *Lateness*)."""
WRITERS = 8
ASK = RetryLimits(retry_ms=10_000, pause_ms=10, hedge_ms=AHASH_HEDGE_MS, hedge_read_ms=AHASH_READ_HEDGE_MS)
"""A Librarian's limits, but the next round over the replicas begins sooner."""
PAPER = {
    "centralised": ((3.7, 13.4), (4.2, 14.4)),
    "replicated, stable": ((3.7, 13.2), (33.9, 1060.0)),
    "clients restarted": ((3.7, 289.5), (34.2, 1130.0)),
    "master restarted": ((3.7, 1971.0), (44.8, 60_900.0)),
}
"""Table 1 of the paper: milliseconds, (mean, longest) of reading and of writing."""
ROW_S, EVERY_S = 600, 60
"""How long the paper measured for each row, and how often something was restarted."""
SHORT_ROW_S, QUICK_ROW_S, SHORT_RESTARTS = 20, 4, 4
DOWN_S = 1.0
"""How long a replica is gone at most before it is started again."""


@dataclass(frozen=True, slots=True)
class _Outage:
    """Seconds that any writing client, and the reading one, waited at most around one fault."""

    write_s: float
    read_s: float


async def run(setup: Setup) -> Outcome:
    """Kill and freeze masters."""
    killed, frozen = await _outages(setup)
    checks = [
        *_bars("master killed", killed, 0.6, 1.5),
        *_bars("master frozen", frozen, 1.0, 2.0),
        check("worst wait of a reader, kills", "at most", 0.5, [max(outage.read_s for outage in killed)]),
        check("worst wait of a reader, freezes", "at most", 0.5, [max(outage.read_s for outage in frozen)]),
    ]
    for line in checks:
        setup.say(f"  {line}")
    results: dict[str, Any] = {
        "killed": [(outage.write_s, outage.read_s) for outage in killed],
        "frozen": [(outage.write_s, outage.read_s) for outage in frozen],
    }
    return Outcome(results, checks)


def _bars(what: str, outages: list[_Outage], median: float, worst: float) -> list[Check]:
    waits = [outage.write_s for outage in outages]
    return [
        check(f"{what}: s until acknowledged writes again", "at most", median, waits),
        check(f"{what}: worst s", "at most", worst, [max(waits)]),
    ]


async def _outages(setup: Setup) -> tuple[list[_Outage], list[_Outage]]:
    killed: list[_Outage] = []
    frozen: list[_Outage] = []
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(cluster.dev(setup.scratch, 0, replicas=3))
        victims = Victims(running)
        stack.callback(victims.stop)  # after the doors are closed: a replica ends only when its connections have ended
        door = await stack.enter_async_context(Doors(running))
        for number in range(QUICK if setup.quick else KILLS):
            killed.append(await _kill(running, door, victims))
            setup.say(f"  kill {number + 1}: writes {killed[-1].write_s:.2f} s, reads {killed[-1].read_s:.2f} s")
        for number in range(QUICK if setup.quick else FREEZES):
            frozen.append(await _freeze(running, door, victims))
            await asyncio.sleep(REST_S)
            setup.say(f"  freeze {number + 1}: writes {frozen[-1].write_s:.2f} s, reads {frozen[-1].read_s:.2f} s")
        await roles(running, door)
    return killed, frozen


async def _kill(running: cluster.Running, door: Doors, victims: Victims) -> _Outage:
    master, _ = await roles(running, door)
    outage = await _around(running, door, lambda: victims.kill(master))
    victims.start(master)
    return outage


async def _freeze(running: cluster.Running, door: Doors, victims: Victims) -> _Outage:
    master, _ = await roles(running, door)
    goes_on: list[Callable[[], None]] = []
    try:
        return await _around(running, door, lambda: goes_on.append(victims.freeze(master)))
    finally:
        for go_on in goes_on:
            go_on()


async def _around(running: cluster.Running, door: Doors, fault: Callable[[], None]) -> _Outage:
    """The longest waits of eight writers and one reader while `fault` happens."""
    done = asyncio.Event()
    ahashes = [door.at(*urls(running), patience=ASK) for _ in range(WRITERS + 1)]
    writing = [asyncio.create_task(_longest(_writer(ahash, n), done)) for n, ahash in enumerate(ahashes[1:])]
    reading = asyncio.create_task(_longest(_reader(ahashes[0]), done))
    await asyncio.sleep(BEFORE_S)
    fault()
    await asyncio.sleep(AFTER_S)
    done.set()
    return _Outage(max(await asyncio.gather(*writing)), await reading)


def _writer(ahash: AHash, number: int) -> Callable[[], Awaitable[object]]:
    element = Element(ObjectId(f"bench:{number}"), ChangeType.SET, "bench", "value", "v" * 500)
    return lambda: ahash.transact(Call(), RequestKey(""), (element,))


def _reader(ahash: AHash) -> Callable[[], Awaitable[object]]:
    return lambda: ahash.get(Call(), (ObjectId("bench:0"),))


async def _longest(ask: Callable[[], Awaitable[object]], done: asyncio.Event) -> float:
    """Ask again and again; the longest time between two answers."""
    longest, last = 0.0, time.perf_counter()
    while not done.is_set():
        try:
            await ask()
        except CheloniaError:
            await asyncio.sleep(0.01)
            continue
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return max(longest, time.perf_counter() - last)


# --- the paper's Table 1 ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """How long a row is measured, and how often something is restarted meanwhile."""

    seconds: float
    every_s: float

    @classmethod
    def of(cls, setup: Setup) -> _Row:
        if setup.full:
            return cls(ROW_S, EVERY_S)
        seconds = QUICK_ROW_S if setup.quick else SHORT_ROW_S
        return cls(seconds, seconds / SHORT_RESTARTS)


async def table(setup: Setup) -> Outcome:
    """Rows of Table 1: mean and longest milliseconds of reading and writing, beside the paper's."""
    length = _Row.of(setup)
    table: dict[str, Any] = {}
    for name, paper in PAPER.items():
        replicas = 1 if name == "centralised" else 3
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(cluster.dev(setup.scratch, 0, replicas=replicas))
            victims = Victims(running)
            stack.callback(victims.stop)
            door = await stack.enter_async_context(Doors(running))
            disturbing = _disturb(name, running, door, victims, length)
            reads, writes, restarts = await _row(running, door, disturbing, length.seconds)
        table[name] = {"here_ms": (reads, writes), "paper_ms": paper, "restarts": restarts}
        setup.say(
            f"  Table 1, {name}, {length.seconds} s, {restarts} restarts; ms, mean and longest:"
            f" reading {reads} (paper: {paper[0]}), writing {writes} (paper: {paper[1]})"
        )
    return Outcome({"seconds_each": length.seconds, "restart_every_s": length.every_s, **table})


async def _row(
    running: cluster.Running, door: Doors, disturbing: Awaitable[int], seconds: float
) -> tuple[tuple[float, float], tuple[float, float], int]:
    ahash = door.at(*urls(running), patience=ASK)
    write, read = _writer(ahash, 0), _reader(ahash)
    await write()
    disturber = asyncio.ensure_future(disturbing)
    reads, writes = await asyncio.gather(_timed(read, seconds), _timed(write, seconds))
    return reads, writes, await disturber


async def _timed(ask: Callable[[], Awaitable[object]], seconds: float) -> tuple[float, float]:
    """One request after another: milliseconds, mean and longest."""
    took: list[float] = []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        await ask()
        took.append(1000 * (time.perf_counter() - begun))
    return round(statistics.fmean(took), 2), round(max(took), 1)


async def _disturb(name: str, running: cluster.Running, door: Doors, victims: Victims, length: _Row) -> int:
    """Kill a replica and start it again while a row is measured. Returns: how often."""
    restarts = int(length.seconds / length.every_s) if name in ("clients restarted", "master restarted") else 0
    began = time.monotonic()
    for number in range(restarts):
        await asyncio.sleep(began + (number + 0.5) * length.every_s - time.monotonic())
        master, others = await roles(running, door)
        victim = master if name == "master restarted" else others[number % len(others)]
        victims.kill(victim)
        await asyncio.sleep(min(DOWN_S, length.every_s / 4))
        victims.start(victim)
    return restarts
