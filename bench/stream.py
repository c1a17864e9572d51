"""One large stream over TLS, up and down, beside `scp` on the same machine in the same minutes.

Each transfer is a whole process, as a user starts it. The user's files are in memory (tmpfs), the server's on disk.
Chelonia answers when the copies asked for are on stable storage and every checksum has been compared; `scp` promises
neither. Copies: 1, and 3 of which 2 are durable before the answer.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
from experiment import Outcome, Setup
from intervals import Check, check, median_interval
from machine import Cost, NoPeer, cpu_s
from plot import Chart, Point, Series
from scp import Sshd, sshd

GIB = 1024**3
MIB = 1024**2
SHEPHERDS = 3
BARS = {"up, 1 copy": ("scp up", 1.2), "down": ("scp down", 1.3), "up, 3 copies": ("scp up", 0.7)}
DELETED_S = 30.0


@dataclass(frozen=True, slots=True)
class _Stage:
    """Where files are. `near` is in memory, `far` on the disk that the servers use."""

    running: cluster.Running
    near: Path
    far: Path
    size: int

    @property
    def source(self) -> Path:
        return self.near / "source"

    @property
    def fetched(self) -> Path:
        return self.near / "fetched"


async def run(setup: Setup) -> Outcome:
    size = int(os.environ.get("CHELONIA_BENCH_STREAM_MIB", "64" if setup.quick else "1024")) * MIB
    skipped: list[str] = []
    async with AsyncExitStack() as stack:
        server: Sshd | None = None
        try:
            server = stack.enter_context(sshd(setup.scratch))
        except NoPeer as error:
            skipped.append(f"stream: NOT COMPARED WITH scp: {error}")
        near = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="chelonia-bench-")))
        far = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setup.scratch, prefix="scp-")))
        running = await stack.enter_async_context(cluster.dev(setup.scratch, SHEPHERDS, steady=True))
        stage = _Stage(running, near, far, size)
        _write_random(stage.source, size)
        costs = await _blocks(setup, stage, server)
    return _outcome(setup, size, costs, skipped)


def _write_random(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))


async def _blocks(setup: Setup, stage: _Stage, server: Sshd | None) -> dict[str, list[Cost]]:
    steps: dict[str, Callable[[int], Cost]] = {}
    if server is not None:
        steps["scp up"] = lambda _: _scp(stage, server, up=True)
    steps["up, 1 copy"] = lambda block: _chelonia(stage, "put", f"/one{block}", 1)
    if server is not None:
        steps["scp down"] = lambda _: _scp(stage, server, up=False)
    steps["down"] = lambda block: _chelonia(stage, "get", f"/one{block}", 1)
    steps["up, 3 copies"] = lambda block: _chelonia(stage, "put", f"/three{block}", 3)
    costs: dict[str, list[Cost]] = {name: [] for name in steps}
    for block in range(setup.blocks):
        for name, step in steps.items():
            await asyncio.to_thread(_touch_memory, 4 * stage.size)
            os.sync()
            costs[name].append(await asyncio.to_thread(step, block))
            if stage.fetched.exists():
                assert await asyncio.to_thread(_same, stage.source, stage.fetched), f"{name} brought other bytes"
                stage.fetched.unlink()  # replacing it would need memory for both files
        setup.say(
            f"  block {block + 1}: " + ", ".join(f"{name} {_rate(c[-1]):.0f}" for name, c in costs.items()) + " MiB/s"
        )
        await _clean(stage, block)
    return costs


def _scp(stage: _Stage, server: Sshd, *, up: bool) -> Cost:
    there = stage.far / "copy"
    ends = (str(stage.source), server.remote(there)) if up else (server.remote(there), str(stage.fetched))
    before = server.cpu_s()
    wall_s, client_s = timed([*server.scp(), *ends])
    return Cost(stage.size / GIB, wall_s, server.cpu_s() - before, client_s)


def _chelonia(stage: _Stage, verb: str, ln: str, replicas: int) -> Cost:
    chelonia = Path(sys.executable).with_name("chelonia")
    command = [str(chelonia), "--cluster", str(stage.running.description)]
    if verb == "put":
        command += ["put", "--replicas", str(replicas), str(stage.source), ln]
    else:
        command += ["get", "-f", ln, str(stage.fetched)]
    pids = stage.running.pids()
    before = cpu_s(pids)
    wall_s, client_s = timed(command)
    return Cost(stage.size / GIB, wall_s, cpu_s(pids) - before, client_s)


def timed(command: list[str]) -> tuple[float, float]:
    """Run a process; returns its seconds, and the CPU seconds of it and its children."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        # its arguments may be a key and a secret; what was wrong it has said itself
        raise SystemExit(f"failed ({process.returncode}): {command[0]} ... {command[-1]}")
    return wall_s, usage.ru_utime + usage.ru_stime


async def _clean(stage: _Stage, block: int) -> None:
    """Compare what came back, delete everything and wait until the Shepherds have given the space back."""
    (stage.far / "copy").unlink(missing_ok=True)
    free = shutil.disk_usage(stage.far).free
    async with stage.running.client() as client:
        for name in ("one", "three"):
            await client.del_file(f"/{name}{block}")
    give_up = time.monotonic() + DELETED_S
    while shutil.disk_usage(stage.far).free < free + 3 * stage.size and time.monotonic() < give_up:
        await asyncio.sleep(0.1)


def _touch_memory(size: int) -> None:
    """Make the host provide so much memory beyond the free part. A virtual machine may give unused memory back. A write
    to the page cache then waits for the host, once a page. That costs 1 to 2 ms of CPU a MiB here, in place of 0.2."""
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as a, other.open("rb") as b:
        while True:
            left, right = a.read(MIB), b.read(MIB)
            if left != right:
                return False
            if not left:
                return True


def _outcome(setup: Setup, size: int, costs: dict[str, list[Cost]], skipped: list[str]) -> Outcome:
    checks: list[Check] = []
    for name, (other, bar) in BARS.items():
        if other in costs:
            ratio = [_rate(a) / _rate(b) for a, b in zip(costs[name], costs[other], strict=True)]
            checks.append(check(f"{size // MIB} MiB {name} over {other}", "at least", bar, ratio))
            setup.say(f"  {checks[-1]}")
    results: dict[str, Any] = {"bytes": size}
    for name, parts in costs.items():
        figures = {
            "mib_per_s": median_interval([_rate(cost) for cost in parts]),
            "server_cpu_s_per_gib": median_interval([cost.server_s / cost.operations for cost in parts]),
            "client_cpu_s_per_gib": median_interval([cost.client_s / cost.operations for cost in parts]),
        }
        results[name] = {key: {"median": v.median, "low": v.low, "high": v.high} for key, v in figures.items()}
        setup.say(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    return Outcome(results, checks, {"stream": _chart(size, costs)}, skipped)


def _rate(cost: Cost) -> float:
    """MiB/s."""
    return cost.operations * 1024 / cost.wall_s


def _chart(size: int, costs: dict[str, list[Cost]]) -> Chart:
    series = []
    for number, (name, parts) in enumerate(costs.items()):
        points = [Point(block, _rate(cost), _rate(cost), _rate(cost)) for block, cost in enumerate(parts, 1)]
        series.append(Series(name, points, name.startswith("scp"), number))
    return Chart(f"One stream of {size // MIB} MiB, block by block", "block", "MiB/s", series)
