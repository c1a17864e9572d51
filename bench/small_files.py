"""Very many small files on a lost node: is healing steady, is memory flat, what do users feel, what is it in CPU?

Steadiness is measured twice: in copies a second, which follows other work on the machine, and in CPU a copy. One
Shepherd of three holds a copy of every file, the others one half each; it is killed with `kill -9`. A user makes `stat`
and `get` in turn, one after another, before, during and after. Copies are counted in the leader's log, so that counting
costs it nothing.

CHELONIA_BENCH_SMALL_FILES: how many (5 000; the bar is for 100 000).
CHELONIA_BENCH_SMALL_CACHE_MIB: the A-Hash's cache, in the leader's process (128). While it fills, memory grows. With 16
it is full before a tenth of the copies is made, and all further growth is healing's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import filling
from experiment import Outcome, Setup
from intervals import check
from machine import cpu_s
from whole import NAMES, Whole, logged

from chelonia.hosting.transfer import download as downloads
from chelonia_clients.client import Client

SIZE = 1024
LOST = "shepherd1"
QUIET_S = 20.0
PAUSE_S = 0.01
LOOK_S = 0.25
STALLED_S = 120.0
COPIED = b"creating -> alive"
PARTS = 10


class _User:
    """Milliseconds of one user's operations, one after another."""

    def __init__(self, client: Client, files: int) -> None:
        self._client = client
        self._files = files
        self.took: dict[str, list[float]] = {"stat": [], "get": []}

    async def work(self, done: asyncio.Event) -> None:
        """Work until `done` is set."""
        rng = random.Random(1)
        while not done.is_set():
            ln = f"/{filling.COLLECTION}/f{rng.randrange(self._files):07d}"
            await self._time("stat", self._client.stat(ln))
            await self._time("get", self._read(ln))
            await asyncio.sleep(PAUSE_S)

    async def _read(self, ln: str) -> None:
        size = sum([len(chunk) async for chunk in downloads.read(self._client, ln)])
        assert size == SIZE, f"{ln} has {size} bytes"

    async def _time(self, what: str, operation: Any) -> None:
        started = time.perf_counter()
        await operation
        self.took[what].append(1000 * (time.perf_counter() - started))

    def figures(self) -> dict[str, float]:
        """Operations, and p50 and p99 in ms of each kind."""
        told: dict[str, float] = {}
        for what, took in self.took.items():
            told |= {f"{what}s": len(took), f"{what}_p50_ms": _at(took, 0.5), f"{what}_p99_ms": _at(took, 0.99)}
        return told


class _Leader:
    """The leader's log, with its copies counted."""

    def __init__(self, whole: Whole) -> None:
        self._log = whole.log(NAMES[0]).open("rb")
        self._log.seek(0, os.SEEK_END)
        self.copies = 0

    def look(self) -> int:
        """Copies made since the beginning."""
        self.copies += self._log.read().count(COPIED)
        return self.copies


async def run(setup: Setup) -> Outcome:
    files = int(os.environ.get("CHELONIA_BENCH_SMALL_FILES", "200" if setup.quick else "5000"))
    quiet_s = 2.0 if setup.quick else QUIET_S
    with tempfile.TemporaryDirectory(dir=setup.scratch, prefix="small-") as name:
        whole = Whole(Path(name), int(os.environ.get("CHELONIA_BENCH_SMALL_CACHE_MIB", "0")))
        try:
            await whole.fill(files, 1, SIZE)
            whole.start()
            await logged(whole, "inventory compared")
            results = await _measured(setup, whole, files, quiet_s)
        finally:
            whole.end(signal.SIGTERM)
    quiet = [results[when] for when in ("quiet_before", "quiet_after")]
    checks = [
        check(f"p99 of {what} while {files} files of 1 KiB are healed / quiet (one run)", "at most", 2.0, [ratio])
        for what in ("stat", "get")
        for ratio in [2 * results["healing"][f"{what}_p99_ms"] / sum(each[f"{what}_p99_ms"] for each in quiet)]
    ]
    steady = min(results["rates"]) / results["per_s"]
    checks.append(check("slowest tenth of the copies / all of them, rate (one run)", "at least", 0.5, [steady]))
    late = results["cpu_ms"][-1] / results["cpu_ms"][1]
    checks.append(check("last tenth of the copies / the second, CPU a copy (one run)", "at most", 1.2, [late]))
    checks.append(check("memory of the leader at the end / at a tenth (one run)", "at most", 1.1, [results["grown"]]))
    return Outcome({"files": files, **results}, checks)


async def _measured(setup: Setup, whole: Whole, files: int, quiet_s: float) -> dict[str, Any]:
    results: dict[str, Any] = {"quiet_before": await _quiet(whole, files, quiet_s)}
    leader, done = _Leader(whole), asyncio.Event()
    whole.kill(LOST)
    used, began = _cpu(whole), time.perf_counter()
    async with whole.running.client() as client:
        user = _User(client, files)
        working = asyncio.create_task(user.work(done))
        marks = await _healed(setup, whole, leader, files)
        done.set()
        await working
    took = marks[-1]["s"]
    spent = {name: round(1000 * (now - used[name]) / files, 2) for name, now in _cpu(whole).items()}
    steps = pairwise([{"s": 0.0, "copies": 0, "cpu_s": sum(used.values())}, *marks])
    parts = [(before, after) for before, after in steps if after["copies"] > before["copies"]]  # a look may pass two
    rates = [(after["copies"] - before["copies"]) / max(after["s"] - before["s"], 1e-9) for before, after in parts]
    dear = [(after["cpu_s"] - before["cpu_s"]) / (after["copies"] - before["copies"]) for before, after in parts]
    results |= {
        "healing": user.figures(),
        "took_s": took,
        "noticed_and_healed_s": round(time.perf_counter() - began, 1),
        "per_s": files / took,
        "rates": [round(rate, 1) for rate in rates],
        "cpu_ms": [round(1000 * each, 1) for each in dear],
        "marks": marks,
        "cpu_s_per_1000": spent,
        "grown": marks[-1]["core_mib"] / marks[0]["core_mib"],
        "quiet_after": await _quiet(whole, files, quiet_s),
    }
    setup.say(f"  {json.dumps({key: value for key, value in results.items() if key != 'marks'})}")
    return results


async def _healed(setup: Setup, whole: Whole, leader: _Leader, files: int) -> list[dict[str, Any]]:
    """Seconds since the first copy, copies, CPU of all servers and memory at each tenth."""
    marks: list[dict[str, Any]] = []
    started = moved = time.perf_counter()
    while len(marks) < PARTS:
        before = leader.copies
        copies, now = leader.look(), time.perf_counter()
        if not before:
            started = now
        if copies > before:
            moved = now
        if now - moved > STALLED_S:
            raise SystemExit(f"healing stands still at {copies} of {files} copies")
        while len(marks) < PARTS and copies >= (len(marks) + 1) * files // PARTS:
            sizes = {f"{name}_mib": size for name, size in whole.resident_mib().items()}
            used = round(cpu_s(whole.pids()), 2)
            marks.append({"s": round(now - started, 2), "copies": copies, "cpu_s": used, **sizes})
            setup.say(f"  {json.dumps(marks[-1])}")
        await asyncio.sleep(LOOK_S)
    return marks


async def _quiet(whole: Whole, files: int, seconds: float) -> dict[str, float]:
    done = asyncio.Event()
    async with whole.running.client() as client:
        user = _User(client, files)
        working = asyncio.create_task(user.work(done))
        await asyncio.sleep(seconds)
        done.set()
        await working
    return user.figures()


def _cpu(whole: Whole) -> dict[str, float]:
    return {name: cpu_s((pid,)) for name, pid in whole.by_name().items()}


def _at(took: Sequence[float], share: float) -> float:
    ordered = sorted(took)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
