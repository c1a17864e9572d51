"""A whole cluster, full of files, is killed and started again: how soon does it serve, and are the files left alone?

A-Hash, Librarian and Bartender in one process and three Shepherds, with the default intervals of healing. All are
killed by `kill -9` and started again. Measured are the seconds until the first `stat`, `get` and `put` (2 durable
copies) succeed. Each Shepherd has three more: until it is heard, has checked its bytes, and has compared its inventory.
Then the metadata of every file are compared with those before: a copy, a trim or an erasure that was begun would show.

CHELONIA_BENCH_RESTART_FILES: how many files (100 000; the bar is for 1 000 000).
CHELONIA_BENCH_RESTART_BLOCKS: how often.
CHELONIA_BENCH_RESTART_DIR: a directory that stays, so that a further run need not fill it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filling
from experiment import Outcome, Setup
from intervals import check, median_interval
from machine import cpu_s
from whole import Whole, logged, until

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.ids import ServiceId, shepherd_object
from chelonia.hosting.config import load_config
from chelonia.hosting.transfer import download as downloads
from chelonia.hosting.transfer import upload as uploads
from chelonia_clients.client import Client

SIZE, SECOND_COPY_EVERY = 64, 10
WATCHED_S = 15.0
PAGE = 10_000


@dataclass(frozen=True, slots=True)
class _Stock:
    """Metadata of all files: blobs of the filling, a digest of all of them, and orders to erase."""

    blobs: int
    digest: str
    unrest: int
    erasures: int


def _taken(whole: Whole) -> _Stock:
    """Return the metadata of the stopped cluster."""
    core = load_config(whole.directory / "conf" / "core.toml")
    assert core.ahash is not None
    told = json.loads(whole.running.description.read_text())
    store = BdbStore(Path(core.ahash.data_dir), BdbSettings(), print)
    try:
        return _stock(store, [entry["url"] for entry in told["shepherds"]])
    finally:
        store.close()


def _stock(store: BdbStore, shepherds: list[str]) -> _Stock:
    digest, blobs, unrest = hashlib.sha256(), 0, 0
    key, end = b"H\0blob:", b"H\0blob;"
    while page := store.scan(key, end, PAGE):
        for found, value in page:
            _, sections = layout.decode_header(value)
            if sections["blob"]["name"].startswith(f"/{filling.COLLECTION}/f"):
                digest.update(found + value)
                blobs += 1
            states = set(sections["locations"].values())
            unrest += bool(sections.get("claims")) or states != {ReplicaState.ALIVE.value}
        key = page[-1][0] + b"\0"
    orders = (layout.wide_range(shepherd_object(ServiceId(s)), "erase") for s in shepherds)
    erasures = sum(len(store.scan(start, stop, PAGE)) for start, stop in orders)
    return _Stock(blobs, digest.hexdigest(), unrest, erasures)


async def run(setup: Setup) -> Outcome:
    files = int(os.environ.get("CHELONIA_BENCH_RESTART_FILES", "1000" if setup.quick else "100000"))
    blocks = int(os.environ.get("CHELONIA_BENCH_RESTART_BLOCKS", "1" if setup.quick else "3"))
    stays = os.environ.get("CHELONIA_BENCH_RESTART_DIR")
    with nullcontext(stays) if stays else tempfile.TemporaryDirectory(dir=setup.scratch, prefix="restart-") as name:
        whole = Whole(Path(name))
        try:
            before = await _filled(setup, whole, files)
            rows = [await _restarted(setup, whole, block, files) for block in range(blocks)]
        finally:
            whole.end(signal.SIGTERM)
        after = await asyncio.to_thread(_taken, whole)
    told = {key: str(median_interval([row[key] for row in rows])) for key in rows[0] if key.endswith("_s")}
    checks = [
        check(f"{files} files: s from kill -9 and start of all until {what} is served", "at most", 10.0, row_values)
        for what in ("stat", "get", "put")
        if (row_values := [row[f"{what}_s"] for row in rows])
    ]
    wrong = int(after.digest != before.digest) + after.unrest + after.erasures
    checks.append(check("copies, trims and erasures begun without a loss", "at most", 0, [float(wrong)]))
    results = {"files": files, "blocks": rows, **told, "after": str(after), "before": str(before)}
    return Outcome(results, checks)


async def _filled(setup: Setup, whole: Whole, files: int) -> _Stock:
    """Have the cluster full and running; returns its metadata."""
    mark = whole.directory / "filled"
    if not mark.exists():
        started = time.perf_counter()
        await whole.fill(files, SECOND_COPY_EVERY, SIZE)
        setup.say(f"  filled with {files} files in {time.perf_counter() - started:.0f} s")
        mark.touch()
    whole.start()
    await logged(whole, "inventory compared")
    whole.end(signal.SIGTERM)
    before = await asyncio.to_thread(_taken, whole)
    if before.blobs != files or before.unrest or before.erasures:
        raise SystemExit(f"the filling is not whole: {before}")
    whole.start()
    await logged(whole, "inventory compared")
    return before


async def _restarted(setup: Setup, whole: Whole, block: int, files: int) -> dict[str, Any]:
    """Kill all, start all, and return the times of each step."""
    whole.end(signal.SIGKILL)
    began = time.perf_counter()
    whole.start()
    row: dict[str, Any] = {}

    async def when(name: str, act: Callable[[], Awaitable[object]]) -> None:
        await until(act)
        row[f"{name}_s"] = round(time.perf_counter() - began, 2)

    async with whole.running.client() as client, whole.running.client() as reader, whole.running.client() as writer:
        known, fresh = f"/{filling.COLLECTION}/f{files // 2:07d}", f"/{filling.COLLECTION}/put{block}"
        source = uploads.bytes_source(bytes(SIZE))
        await asyncio.gather(
            when("stat", lambda: client.stat(known)),
            when("get", lambda: _read(reader, known)),
            when("put", lambda: uploads.upload(writer, source, fresh, uploads.UploadOptions(2))),
            when("index", lambda: logged(whole, "shepherd started")),
            when("measured_and_compared", lambda: logged(whole, "inventory compared")),
        )
    row["cpu_s_until_then"] = round(cpu_s(whole.pids()), 1)
    row["resident_mib"] = whole.resident_mib()
    await asyncio.sleep(WATCHED_S if not setup.quick else 1.0)
    setup.say(f"  restart {block + 1}: {json.dumps(row)}")
    return row


async def _read(client: Client, ln: str) -> None:
    data = b"".join([chunk async for chunk in downloads.read(client, ln)])
    assert data, f"{ln} is empty"
