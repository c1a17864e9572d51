"""Small objects through the SDK: put, get, stat, delete and list of 4 KiB files, at 1, 16 and 64 at once.

Three Shepherds, three copies wanted, two of them durable before the answer, mutual TLS, syncs and intervals as in
production. What a
put still owes when it is answered, the third copy, is waited for after each block and counted in `put_and_copies`.
A MinIO (`minio` on the PATH, four directories, plain HTTP, signed requests of boto3) is measured beside it; without one
that is said. The client of MinIO is another one: compare the servers' CPU, and rates with care.
Before them the store alone, in this process: batches of 16 replicas as files and in segments, settled and erased, in
turn on one disk.

CHELONIA_BENCH_OBJECTS: how many objects a block (by default as many as are at once, times 20, at least 100).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cluster
from cluster import Running
from experiment import Outcome, Setup
from intervals import median_interval
from machine import Cost, medians, meter, side_by_side

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId
from chelonia.core.ports.shepherd import SmallReplica
from chelonia.hosting.transfer import download as downloads
from chelonia.hosting.transfer import upload as uploads
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import SHORT, Client
from chelonia_clients.settings import Wish

SIZE = 4096
AT_ONCE = (1, 16, 64)
BATCH, BATCHES = 16, 4
BLOCKS_MAX = 5
COPIED_S = 120.0
MINIO_READY_S = 30.0
Costs = dict[str, dict[str, list[Cost]]]
"""By how many are at once, then by operation."""


async def run(setup: Setup) -> Outcome:
    """Measure this cluster, then MinIO."""
    blocks = 1 if setup.quick else min(setup.blocks, BLOCKS_MAX)
    results: dict[str, Any] = {"size": SIZE, "stores": await _stores(setup, 10 if setup.quick else 40)}
    for way, told in results["stores"].items():
        setup.say(f"  {way:8} " + ", ".join(f"{what} {ms:.3f} ms" for what, ms in told.items()) + " a replica")
    results["chelonia"] = _figures(await _measured(setup, blocks))
    skipped = []
    if shutil.which("minio") is None:
        skipped.append("MinIO: no `minio` on the PATH")
    else:
        results["minio"] = _figures(await _measured_minio(setup, blocks))
    for whose in ("chelonia", "minio"):
        for at_once, told in results.get(whose, {}).items():
            for name, figures in told.items():
                setup.say(
                    f"  {whose:8} {name:14} {at_once:>2} at once: {figures['per_s']:8.0f}/s, CPU s per 1000: "
                    f"servers {figures['server_cpu']:.2f}, client {figures['client_cpu']:.2f}"
                )
    return Outcome(results, skipped=skipped)


def _count(at_once: int) -> int:
    return int(os.environ.get("CHELONIA_BENCH_OBJECTS", "0")) or max(100, 20 * at_once)


def _figures(costs: Costs) -> dict[str, Any]:
    """The medians over the blocks."""
    return {at_once: {name: medians(seen) for name, seen in told.items()} for at_once, told in costs.items()}


# --- the store alone ------------------------------------------------------------------------------------------------


async def _stores(setup: Setup, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of ms a replica, CPU and time, as files and in segments: four batches at once a round."""
    stores = {
        "files": LocalBlobs(setup.scratch / "files", small_bytes_max=0),
        "segments": LocalBlobs(setup.scratch / "segments"),
    }
    seen: dict[str, dict[str, list[float]]] = {way: {} for way in stores}
    for _ in range(rounds):
        for way, store in stores.items():
            batches = [[_replica() for _ in range(BATCH)] for _ in range(BATCHES)]
            references = [each.reference for batch in batches for each in batch]
            steps: dict[str, Callable[[], Awaitable[Any]]] = {
                "store": lambda store=store, batches=batches: asyncio.gather(*map(store.store_whole, batches)),
                "settle": lambda store=store, references=references: store.settle(tuple(references)),
                "erase": lambda store=store, references=references: asyncio.gather(*map(store.erase, references)),
            }
            for what, step in steps.items():
                began, cpu = time.perf_counter(), time.process_time()
                await step()
                for unit, spent in (("CPU", time.process_time() - cpu), ("time", time.perf_counter() - began)):
                    seen[way].setdefault(f"{what} {unit}", []).append(1000 * spent / len(references))
    for store in stores.values():
        store.close()
    return {way: {what: median_interval(each).median for what, each in told.items()} for way, told in seen.items()}


def _replica() -> SmallReplica:
    ids, data = [str(uuid.uuid4()) for _ in range(3)], os.urandom(SIZE)
    sums = Checksums(hashlib.sha256(data).hexdigest())
    facts = ReplicaFacts(BlobId(ids[0]), Guid(ids[1]), "/objects/f", Dn("/CN=bench"), SIZE, sums, 3, Ms(0), "seal" * 24)
    return SmallReplica(ReferenceId(ids[2]), facts, data)


# --- this cluster ---------------------------------------------------------------------------------------------------


async def _measured(setup: Setup, blocks: int) -> Costs:
    costs: Costs = {}
    async with (
        cluster.dev(setup.scratch, 3, steady=True) as running,
        running.client() as client,
        _administrator(running) as asking,
    ):
        await client.make_collection("/objects")
        await _block(running, client, asking, 4, "warm")
        for block in range(blocks):
            for at_once in AT_ONCE:
                told = await _block(running, client, asking, at_once, f"{at_once}-{block}")
                for name, cost in told.items():
                    costs.setdefault(str(at_once), {}).setdefault(name, []).append(cost)
    return costs


def _administrator(running: Running) -> Administrator:
    return connect.administrator_from_environment(Wish(cluster=running.description), {})


async def _block(running: Running, client: Client, asking: Administrator, at_once: int, name: str) -> dict[str, Cost]:
    """Put, get, stat, list and delete the same objects."""
    collection = f"/objects/{name}"
    await client.make_collection(collection)
    lns = [f"{collection}/{n:06d}" for n in range(_count(at_once))]
    data = os.urandom(SIZE)

    async def put(ln: str) -> None:
        await uploads.upload(client, uploads.bytes_source(data), ln)

    async def get(ln: str) -> None:
        got = b"".join([chunk async for chunk in downloads.read(client, ln)])
        assert got == data, f"{ln} is not what was put"

    costs: dict[str, Cost] = {}
    copied = meter(running.pids)
    stop = meter(running.pids)
    costs["put"] = stop(await side_by_side(lns, at_once, put))
    await _all_copied(asking)
    costs["put_and_copies"] = copied(len(lns))
    for operation, act in (("get", get), ("stat", client.stat)):
        stop = meter(running.pids)
        costs[operation] = stop(await side_by_side(lns, at_once, act))
    stop = meter(running.pids)
    listed = [entry.name async for entry in client.list(collection, needed=SHORT)]
    assert len(listed) == len(lns), f"{len(listed)} of {len(lns)} are listed"
    costs["list"] = stop(len(listed))
    stop = meter(running.pids)
    costs["delete"] = stop(await side_by_side(lns, at_once, client.del_file))
    return costs


async def _all_copied(asking: Administrator) -> None:
    """Wait until every blob has all its copies."""
    give_up = time.monotonic() + COPIED_S
    while True:
        status = await asking.heal_status()
        if not (sum(each.blobs for each in status.exposed) or status.copies_to_go or status.copying):
            return
        if time.monotonic() > give_up:
            raise SystemExit(f"copies are still missing: {status.copies_to_go} to go")
        await asyncio.sleep(0.25)


# --- MinIO ----------------------------------------------------------------------------------------------------------


async def _measured_minio(setup: Setup, blocks: int) -> Costs:
    costs: Costs = {}
    with _minio(setup.scratch) as (pid, s3), ThreadPoolExecutor(max(AT_ONCE)) as pool:
        await asyncio.to_thread(s3.create_bucket, Bucket="objects")
        for block in range(blocks):
            for at_once in AT_ONCE:
                told = await _minio_block(pid, s3, pool, at_once, f"{at_once}-{block}")
                for name, cost in told.items():
                    costs.setdefault(str(at_once), {}).setdefault(name, []).append(cost)
    return costs


async def _minio_block(pid: int, s3: Any, pool: ThreadPoolExecutor, at_once: int, name: str) -> dict[str, Cost]:
    keys = [f"{name}/{n:06d}" for n in range(_count(at_once))]
    data, loop = os.urandom(SIZE), asyncio.get_running_loop()
    acts: dict[str, Callable[[str], Any]] = {
        "put": lambda key: s3.put_object(Bucket="objects", Key=key, Body=data),
        "get": lambda key: s3.get_object(Bucket="objects", Key=key)["Body"].read(),
        "stat": lambda key: s3.head_object(Bucket="objects", Key=key),
        "delete": lambda key: s3.delete_object(Bucket="objects", Key=key),
    }
    costs = {}
    for operation, act in acts.items():
        stop = meter(lambda: (pid,))
        costs[operation] = stop(
            await side_by_side(keys, at_once, lambda key, act=act: loop.run_in_executor(pool, act, key))  # type: ignore[misc]
        )
    return costs


@contextmanager
def _minio(scratch: Path) -> Iterator[tuple[int, Any]]:
    """A MinIO on four directories, as its erasure coding wants, and a client of it."""
    import boto3
    from botocore.config import Config

    user, secret = "bench", "bench-bench-bench"
    with tempfile.TemporaryDirectory(dir=scratch, prefix="minio-") as name, socket.create_server(("127.0.0.1", 0)) as s:
        address = f"127.0.0.1:{s.getsockname()[1]}"
        s.close()
        directories = [str(Path(name) / f"d{n}") for n in range(4)]
        # MINIO_CI_CD: directories on the disk of the root are taken.
        environment = {**os.environ, "MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": secret, "MINIO_CI_CD": "1"}
        command = ("minio", "server", "--quiet", "--address", address, *directories)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _until_listening(address)
            config = Config(max_pool_connections=max(AT_ONCE), s3={"addressing_style": "path"})
            keys = {"aws_access_key_id": user, "aws_secret_access_key": secret, "region_name": "us-east-1"}
            yield process.pid, boto3.client("s3", endpoint_url=f"http://{address}", config=config, **keys)
        finally:
            process.terminate()
            process.wait(20)


def _until_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    give_up = time.monotonic() + MINIO_READY_S
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError as error:
            if time.monotonic() > give_up:
                raise SystemExit("minio did not start") from error
            time.sleep(0.1)
