"""The cost of a frozen Shepherd to readers and writers: the longest time a user is left without progress.

Users work without a pause on a cluster of four Shepherds, one kind of operation at a time. Meanwhile one Shepherd after
another is stopped in mid-run and let go again. SIGSTOP leaves its connections open and silent.

A stall is the longest time within an operation in which nothing moved: no byte came or went, and it did not end.
Operations that met no freeze show the cost of the machine itself.

With the dev settings the Librarian misses a frozen Shepherd after a second. With a lease of 30 s, the second run, it
never does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster
from experiment import Outcome, Setup
from intervals import Check, check

from chelonia.core.errors import CheloniaError
from chelonia.hosting.config import parse_config, render_config
from chelonia.hosting.transfer import download as downloads
from chelonia.hosting.transfer import upload as uploads
from chelonia_clients.client import Client

BAR_S = 1.0
SHEPHERDS, FILES, COPIES = 4, 24, 3
USERS = {"get 64 KiB": 4, "get 24 MiB": 2, "put 64 KiB": 4, "put 24 MiB": 1, "stat": 4, "ls": 4}
"""Users at once: enough to keep the machine busy and no more. A frozen Shepherd does not delay an operation that waits
for a disk."""
SMALL, LARGE = 64 * 1024, 24 * 1024 * 1024
FROZEN_S, RUNNING_S = 4.0, 1.5
OPERATIONS_MIN, FREEZES_MIN, FREEZES_QUICK = 500, 10, 1
LONG_LEASE_MS = 30_000


class Progress:
    """Watches one operation: the longest time in which nothing moved."""

    def __init__(self) -> None:
        self.longest, self._last = 0.0, time.perf_counter()

    def __call__(self, _: int = 0) -> None:
        now = time.perf_counter()
        self.longest, self._last = max(self.longest, now - self._last), now


Operation = Callable[[Client, int, Progress], Awaitable[None]]


@dataclass(slots=True)
class _Kind:
    """One kind of operation: seconds of the longest stall in each operation that met a freeze, and (`calm`) in each
    other."""

    name: str
    stalls: list[float] = field(default_factory=list)
    calm: list[float] = field(default_factory=list)
    frozen: bool = False
    failures: list[str] = field(default_factory=list)
    freezes: int = 0

    def figures(self) -> dict[str, Any]:
        return {
            "freezes": self.freezes,
            **_spread(self.stalls),
            "calm": _spread(self.calm),
            "failed": len(self.failures),
            "failures": self.failures[:10],
        }

    def __str__(self) -> str:
        told = self.figures()
        return (
            f"{self.name}: worst stall {told['worst_s']:.3f} s, p99 {told['p99_s']:.3f}, p50 {told['p50_s']:.4f}; "
            f"{told['operations']} operations, {self.freezes} freezes, {told['failed']} failed; "
            f"nobody frozen: worst {told['calm']['worst_s']:.3f} s of {told['calm']['operations']}"
        )


def _spread(stalls: list[float]) -> dict[str, Any]:
    ordered = sorted(stalls) or [0.0]
    return {
        "operations": len(stalls),
        "worst_s": ordered[-1],
        "p99_s": ordered[int(0.99 * (len(ordered) - 1))],
        "p50_s": ordered[len(ordered) // 2],
    }


async def run(setup: Setup) -> Outcome:
    """Measure every kind under both leases."""
    results: dict[str, Any] = {}
    checks: list[Check] = []
    for lease_ms in (0,) if setup.quick else (0, LONG_LEASE_MS):
        title = f"lease {lease_ms // 1000} s" if lease_ms else "dev settings"
        setup.say(f"  {title}")
        async with _cluster(setup, lease_ms) as running:
            for kind in await _measured(setup, running):
                results.setdefault(title, {})[kind.name] = kind.figures()
                worst = Check(
                    f"{kind.name}, one of {SHEPHERDS} Shepherds frozen, {title}: worst stall (s)", "at most", BAR_S,
                    check("", "at most", BAR_S, [max(kind.stalls)]).interval, counts=not setup.quick,
                )  # fmt: skip
                none = check(f"{kind.name}, {title}: failed operations", "at most", 0.0, [float(len(kind.failures))])
                checks += [worst, none]
    return Outcome(results, checks)


@asynccontextmanager
async def _cluster(setup: Setup, lease_ms: int) -> AsyncIterator[cluster.Running]:
    async with cluster.dev(setup.scratch, SHEPHERDS) as running:
        again = await _with_lease(running, lease_ms) if lease_ms else None
        try:
            yield running
        finally:
            if again is not None:
                again.terminate()
                again.wait(40)


async def _with_lease(running: cluster.Running, lease_ms: int) -> subprocess.Popen[bytes]:
    """Start the core again with this lease."""
    directory = running.description.parent
    path = directory / "conf" / "core.toml"
    table = tomllib.loads(path.read_text())
    table["librarian"]["tuning"]["lease_ms"] = lease_ms
    path.write_text(render_config(parse_config(table)))
    old = int(json.loads(running.description.read_text())["librarian"][0]["pid"])
    os.kill(old, signal.SIGTERM)
    while Path(f"/proc/{old}").exists() and "Z" not in Path(f"/proc/{old}/stat").read_text().split()[2]:
        await asyncio.sleep(0.05)
    with (directory / "log" / "again.log").open("ab") as log:
        return subprocess.Popen((*cluster.CHELONIAD, "run", "--config", str(path)), stdout=log, stderr=log)


async def _measured(setup: Setup, running: cluster.Running) -> list[_Kind]:
    with tempfile.TemporaryDirectory(dir=setup.scratch, prefix="freeze-") as folder:
        operations = _operations(Path(folder))
        async with _sdk(running) as client:
            await _filled(client)
        kinds = []
        for name, operation in operations.items():
            kinds.append(await _one_kind(setup, running, name, operation))
            setup.say(f"    {kinds[-1]}")
        return kinds


def _operations(folder: Path) -> dict[str, Operation]:
    small, large = os.urandom(SMALL), os.urandom(LARGE)

    def getting(size: str) -> Operation:
        async def get(client: Client, number: int, progress: Progress) -> None:
            target = folder / f"{size}{number}"
            await downloads.download(client, f"/frozen/{size}{number % FILES}", target, progress=progress)
            target.unlink()

        return get

    def putting(size: str, data: bytes) -> Operation:
        async def put(client: Client, number: int, progress: Progress) -> None:
            wish = uploads.UploadOptions(2, progress=progress)
            ln = f"/frozen/put-{size}{number}"
            await uploads.upload(client, uploads.bytes_source(data), ln, wish)
            progress()
            await client.del_file(ln)  # so that the disk holds what is measured, not what was

        return put

    async def stat(client: Client, number: int, _: Progress) -> None:
        await client.stat(f"/frozen/small{number % FILES}")

    async def listing(client: Client, _number: int, _: Progress) -> None:
        async for _entry in client.list("/frozen"):
            pass

    return {
        "get 64 KiB": getting("small"),
        "get 24 MiB": getting("large"),
        "put 64 KiB": putting("small", small),
        "put 24 MiB": putting("large", large),
        "stat": stat,
        "ls": listing,
    }


async def _filled(client: Client) -> None:
    """Make the files that are read, and wait until each has its copies."""
    until = time.perf_counter() + 60
    while True:
        try:
            await client.make_collections("/frozen")
            break
        except CheloniaError:
            if time.perf_counter() > until:
                raise
            await asyncio.sleep(0.2)
    for size, count in (("small", SMALL), ("large", LARGE)):
        for number in range(FILES):
            wish = uploads.UploadOptions(COPIES)
            await uploads.upload(client, uploads.bytes_source(os.urandom(count)), f"/frozen/{size}{number}", wish)
    for size in ("small", "large"):
        for number in range(FILES):
            while list((await client.stat(f"/frozen/{size}{number}"))["locations"].values()).count("alive") < COPIES:
                await asyncio.sleep(0.2)


@asynccontextmanager
async def _sdk(running: cluster.Running) -> AsyncIterator[Client]:
    """A user as the command line makes one, who repeats passing failures."""
    async with running.client() as made:
        yield Client(made.bartender, made.files, made.http)


async def _one_kind(setup: Setup, running: cluster.Running, name: str, operation: Operation) -> _Kind:
    kind = _Kind(name)
    done = asyncio.Event()
    pids = _shepherds(running)
    freezer = asyncio.create_task(_freeze(pids, kind, done, FREEZES_QUICK if setup.quick else FREEZES_MIN))
    try:
        await asyncio.gather(*(_user(running, number, operation, kind, done) for number in range(USERS[name])))
    finally:
        done.set()
        freezer.cancel()
        await asyncio.gather(freezer, return_exceptions=True)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(RUNNING_S)
    return kind


async def _user(running: cluster.Running, number: int, operation: Operation, kind: _Kind, done: asyncio.Event) -> None:
    """One user: one operation after another."""
    async with _sdk(running) as client:
        while not done.is_set():
            progress, met = Progress(), kind.freezes
            frozen = kind.frozen
            try:
                await operation(client, number, progress)
            except CheloniaError as error:
                kind.failures.append(str(error))
            progress()
            (kind.stalls if frozen or kind.frozen or met != kind.freezes else kind.calm).append(progress.longest)
            number += USERS[kind.name]


async def _freeze(pids: Sequence[int], kind: _Kind, done: asyncio.Event, freezes: int) -> None:
    """Stop one after another, at random from a fixed seed, until there are enough samples."""
    chance = random.Random(kind.name)
    while True:
        await asyncio.sleep(RUNNING_S + chance.random() / 2)
        if kind.freezes >= freezes and len(kind.stalls) >= OPERATIONS_MIN:
            done.set()
            return
        pid = chance.choice(pids)
        kind.freezes, kind.frozen = kind.freezes + 1, True
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(RUNNING_S / 2)  # what it held up comes to its end
        kind.frozen = False


def _shepherds(running: cluster.Running) -> tuple[int, ...]:
    return tuple(entry["pid"] for entry in json.loads(running.description.read_text())["shepherds"])
