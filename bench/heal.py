"""Healing on real processes: Shepherds are killed, and users' reads are watched until every file is whole again.

Two questions. How soon are 40 files of 1 MB back at 3 copies? How fast are large files copied, beside a plain copy over
the same TLS? The killed Shepherd comes back after each block, and the next block begins when the surplus is trimmed.
For many small files on the lost node, steadiness and the effect on users count: `small_files.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
import plain_copy
from experiment import Outcome, Setup
from intervals import check, median_interval
from machine import Cost, cpu_s

from chelonia.core.ports.bartender import NameRequest
from chelonia_clients.client import Client, new_call

MIB = 1024**2
GIB = 1024**3
FILES, FILE_BYTES, COPIES, SHEPHERDS = 40, 10**6, 3, 5
LARGE_BYTES, LARGE_COPIES, LARGE_SHEPHERDS = 64 * MIB, 2, 3
SAMPLE_S = 0.02
LARGE_SAMPLE_S = 0.1
PATIENCE_S = 300.0
STAT_BATCH = 200
SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """One look at all files: `alive` and `offline` copies, and how many files have the wanted number."""

    alive: int
    offline: int
    other: int
    enough: int
    exact: int


class _Herd:
    """A running cluster whose Shepherds are killed and started again."""

    def __init__(self, running: cluster.Running, client: Client, names: Sequence[str], copies: int) -> None:
        self.running, self.client, self.names, self.copies = running, client, names, copies
        self._again: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def _directory(self) -> Path:
        return self.running.description.parent

    def pid(self, index: int) -> int:
        """The process of a Shepherd, as last started."""
        if index in self._again:
            return self._again[index].pid
        return int(json.loads(self.running.description.read_text())["shepherds"][index]["pid"])

    def others(self, index: int, count: int) -> tuple[int, ...]:
        """All processes that serve but that Shepherd's."""
        shepherds = {self.pid(n) for n in range(count) if n != index}
        told = json.loads(self.running.description.read_text())
        core = {entry["pid"] for name in ("ahash", "librarian", "bartender") for entry in told[name]}
        return tuple(shepherds | core)

    def kill(self, index: int) -> None:
        os.kill(self.pid(index), signal.SIGKILL)
        if index in self._again:
            self._again[index].wait()

    def start(self, index: int) -> None:
        """Start a killed Shepherd again on its directory."""
        config = self._directory / "conf" / f"shepherd{index + 1}.toml"
        with (self._directory / "log" / f"again{index + 1}.log").open("ab") as log:
            command = (*cluster.CHELONIAD, "run", "--config", str(config))
            self._again[index] = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        for process in self._again.values():
            process.terminate()
        for process in self._again.values():
            process.wait(40)

    async def sample(self) -> _Sample:
        """Look at all files as a user may."""
        counts: list[dict[str, int]] = []
        for start in range(0, len(self.names), STAT_BATCH):
            requests = tuple(NameRequest(ln, ln) for ln in self.names[start : start + STAT_BATCH])
            for answer in await self.client.bartender.stat(new_call(), requests):
                states: dict[str, int] = {}
                for triple in answer.metadata:
                    if triple.section == "locations":
                        states[triple.value] = states.get(triple.value, 0) + 1
                counts.append(states)
        alive = [states.get("alive", 0) for states in counts]
        offline = sum(states.get("offline", 0) for states in counts)
        whole = sum(sum(states.values()) for states in counts)
        exact = sum(states == {"alive": self.copies} for states in counts)
        enough = sum(number >= self.copies for number in alive)
        return _Sample(sum(alive), offline, whole - sum(alive) - offline, enough, exact)

    async def until_whole(self) -> tuple[float, float]:
        """Seconds until a loss is seen, and until every file has its copies again."""
        started, noticed = time.perf_counter(), 0.0
        while True:
            sample = await self.sample()
            now = time.perf_counter() - started
            if not noticed and sample.alive < len(self.names) * self.copies:
                noticed = now
            if noticed and sample.enough == len(self.names):
                return noticed, now
            if now > PATIENCE_S:
                raise SystemExit(f"not healed after {now:.0f} s: {sample}")
            await asyncio.sleep(SAMPLE_S)

    async def until_settled(self) -> None:
        """Wait until every file has exactly its copies, alive, and this lasts."""
        give_up, since = time.monotonic() + PATIENCE_S, 0.0
        while time.monotonic() < give_up:
            sample = await self.sample()
            if sample.exact < len(self.names):
                since = 0.0
            elif not since:
                since = time.monotonic()
            elif time.monotonic() - since > SETTLED_S:
                return
            await asyncio.sleep(0.1)
        raise SystemExit(f"not settled after {PATIENCE_S:.0f} s: {await self.sample()}")


async def run(setup: Setup) -> Outcome:
    small, noticed, whole = await _kills(setup)
    large, throughput = await _throughput(setup)
    checks = [
        check("s until a kill is noticed", "at most", 1.0, noticed),
        check(f"s until {FILES} files of 1 MB have {COPIES} copies again", "at most", 2.5, whole),
        check("healing of large files over a plain copy, rate", "at least", 0.7, throughput),
    ]
    return Outcome({"kills": small, "large": large}, checks)


async def _kills(setup: Setup) -> tuple[dict[str, Any], list[float], list[float]]:
    noticed: list[float] = []
    whole: list[float] = []
    async with AsyncExitStack() as stack:
        herd = await _herd(stack, setup, SHEPHERDS, [FILE_BYTES] * FILES, COPIES)
        for block in range(setup.blocks):
            index = block % SHEPHERDS
            herd.kill(index)
            seen, done = await herd.until_whole()
            noticed.append(seen)
            whole.append(done)
            setup.say(f"  kill {block + 1}: noticed after {seen:.2f} s, whole after {done:.2f} s")
            herd.start(index)
            await herd.until_settled()
    return {"noticed_s": noticed, "whole_s": whole}, noticed, whole


async def _throughput(setup: Setup) -> tuple[dict[str, Any], list[float]]:
    files = 4 if setup.quick else 16
    rows: list[dict[str, float]] = []
    async with AsyncExitStack() as stack:
        herd = await _herd(stack, setup, LARGE_SHEPHERDS, [LARGE_BYTES] * files, LARGE_COPIES)
        told = json.loads(herd.running.description.read_text())
        credentials = plain_copy.Credentials(told["service_cert"], told["service_key"], told["ca_dir"])
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setup.scratch, prefix="plain-")))
        sources = [scratch / f"source{n}" for n in range(files * LARGE_COPIES // LARGE_SHEPHERDS)]
        for path in sources:
            path.write_bytes(os.urandom(LARGE_BYTES))
        for block in range(setup.blocks):
            plain = await asyncio.to_thread(plain_copy.copy, credentials, sources, scratch / "target")
            rows.append(await _large_block(herd, block % LARGE_SHEPHERDS, files) | {"plain": _rate(plain)})
            row = rows[-1]
            setup.say(
                f"  block {block + 1}: healed {row['gib']:.2f} GiB at {row['rate']:.0f} MiB/s, plain copy"
                f" {row['plain']:.0f} MiB/s, {row['cpu_s_per_gib']:.2f} CPU s per GiB"
            )
    figures = {key: str(median_interval([row[key] for row in rows])) for key in ("rate", "plain", "cpu_s_per_gib")}
    return {"blocks": rows, **figures}, [row["rate"] / row["plain"] for row in rows]


async def _large_block(herd: _Herd, index: int, files: int) -> dict[str, float]:
    before = await herd.sample()
    os.sync()
    herd.kill(index)
    servers = herd.others(index, LARGE_SHEPHERDS)
    used = cpu_s(servers)
    lost, seen, done = await _healed(herd, before.alive)
    gib = lost * LARGE_BYTES / GIB
    row = {"gib": gib, "rate": gib * 1024 / (done - seen), "cpu_s_per_gib": (cpu_s(servers) - used) / gib}
    herd.start(index)
    await herd.until_settled()
    return row


async def _healed(herd: _Herd, alive: int) -> tuple[int, float, float]:
    """Copies that were lost, and the seconds from the kill until the cluster saw it and until all were replaced."""
    started, lost, seen = time.perf_counter(), 0, 0.0
    while True:
        sample = await herd.sample()
        now = time.perf_counter() - started
        if sample.alive < alive and not seen:
            seen = now
        lost = max(lost, sample.offline)
        if seen and sample.enough == len(herd.names):
            return lost, seen, now
        if now > PATIENCE_S:
            raise SystemExit(f"not healed after {now:.0f} s: {sample}")
        await asyncio.sleep(LARGE_SAMPLE_S)


async def _herd(stack: AsyncExitStack, setup: Setup, shepherds: int, sizes: Sequence[int], copies: int) -> _Herd:
    """A fresh cluster with files of these sizes, settled."""
    running = await stack.enter_async_context(cluster.dev(setup.scratch, shepherds))
    source = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setup.scratch, prefix="files-")))
    for number, size in enumerate(sizes):
        (source / f"f{number:06d}").write_bytes(os.urandom(size))
    chelonia = Path(sys.executable).with_name("chelonia")
    command = [str(chelonia), "--cluster", str(running.description), "put", "-r", "--replicas", str(copies)]
    await asyncio.to_thread(subprocess.run, [*command, str(source), "/heal"], check=True, stdout=subprocess.DEVNULL)
    client = await stack.enter_async_context(running.client())
    herd = _Herd(running, client, [f"/heal/f{n:06d}" for n in range(len(sizes))], copies)
    stack.callback(herd.stop)
    await herd.until_settled()
    return herd


def _rate(cost: Cost) -> float:
    """MiB/s."""
    return cost.operations * 1024 / cost.wall_s
