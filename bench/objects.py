"""Small objects through the SDK: put, get, stat, deletion and listing of 4 KiB files, at 1, 16 and 64 at once.

Three Shepherds, three copies wanted, two of them durable before the answer; mutual TLS, syncs and intervals as in
production. Each block waits for the third copies, which a put leaves for later, and `put_and_copies` counts them. `bulk
delete`: as many are put again, and removed 1 000 at once. A collection of 100 000 names, which are records alone, is
listed as a whole. Peers: as in `s3`; they are measured in turn, by signed requests. `one process`: gets of a cluster
whose one process has all services, so that the only Shepherd is in the Bartender's.

Before that comes the store alone, in this process, on one disk. Batches of 16 replicas as files and in segments are
settled and erased in turn.

CHELONIA_BENCH_OBJECTS: how many objects a block (by default as many as are at once, times 20, at least 100).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import cluster
import listing
import s3
from ahash_group import Doors, urls
from cluster import Running
from experiment import Outcome, Setup
from intervals import median_interval
from machine import Cost, medians, meter, side_by_side
from peers import peers

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId
from chelonia.core.ports.shepherd import SmallReplica
from chelonia.hosting.transfer import download as downloads
from chelonia.hosting.transfer import upload as uploads
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client

SIZE = 4096
AT_ONCE = (1, 16, 64)
BATCH, BATCHES = 16, 4
BLOCKS_MAX = 5
Costs = dict[str, dict[str, list[Cost]]]
"""By how many are at once, then by operation."""


async def run(setup: Setup) -> Outcome:
    """Measure the store alone, then this cluster."""
    blocks = 1 if setup.quick else min(setup.blocks, BLOCKS_MAX)
    results: dict[str, Any] = {"size": SIZE, "stores": await _stores(setup, 10 if setup.quick else 40)}
    for way, told in results["stores"].items():
        setup.say(f"  {way:8} " + ", ".join(f"{what} {ms:.3f} ms" for what, ms in told.items()) + " a replica")
    with peers(setup.scratch) as (named, skipped):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            costs = await _measured(setup, blocks, [s3.S3Session(each, http) for each in named])
    costs["one process"] = await _colocated(setup, blocks)
    for name, told in costs.items():
        results[name] = {at_once: {op: medians(each) for op, each in ops.items()} for at_once, ops in told.items()}
        for at_once, ops in results[name].items():
            for op, figures in ops.items():
                setup.say(f"  {name:11} {op:14} {at_once:>4} at once: {figures['per_s']:8.0f}/s, CPU s per 1000: "
                          f"servers {figures['server_cpu']:.3f}, client {figures['client_cpu']:.3f}")  # fmt: skip
    return Outcome(results, skipped=skipped)


def _count(at_once: int) -> int:
    return int(os.environ.get("CHELONIA_BENCH_OBJECTS", "0")) or max(100, 20 * at_once)


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


async def _measured(setup: Setup, blocks: int, sessions: list[s3.S3Session]) -> dict[str, Costs]:
    """The costs of this cluster and of each peer."""
    costs, seen = Costs(), {peer.server.name: Costs() for peer in sessions}
    async with (
        cluster.dev(setup.scratch, 3, steady=True) as running,
        running.client() as client,
        running.administrator() as asking,
    ):
        await client.make_collection("/objects")
        await _block(running, client, asking, 4, "warm")
        for peer in sessions:
            await peer.ask("PUT", f"/{s3.BUCKET}")
        for block in range(blocks):
            for at_once in AT_ONCE:
                told = await _block(running, client, asking, at_once, f"{at_once}-{block}")
                for name, cost in told.items():
                    costs.setdefault(str(at_once), {}).setdefault(name, []).append(cost)
                for peer in sessions:
                    await s3.small(
                        peer, seen[peer.server.name].setdefault(str(at_once), {}), at_once, f"{at_once}-{block}"
                    )
        await _listed(running, client, 2_000 if setup.quick else 100_000, blocks, costs.setdefault("1", {}))
    return {"chelonia": costs, **seen}


async def _listed(running: Running, client: Client, count: int, blocks: int, costs: dict[str, list[Cost]]) -> None:
    """Names, types and sizes of a large collection."""
    owner = (await client.stat("/objects"))["entry"]["owner"]
    async with Doors(running) as doors:
        await listing.fill(doors.at(urls(running)[0]), "listed", count, owner=Dn(owner))
    await asyncio.sleep(count / 4_000)  # what has just been made is copied for the snapshot of the metadata
    for _ in range(blocks):
        stop = meter(running.pids)
        listed = [entry.size async for entry in client.names("/listed")]
        assert len(listed) == count, f"{len(listed)} of {count} are listed"
        costs.setdefault("list", []).append(stop(count))


async def _colocated(setup: Setup, blocks: int) -> Costs:
    """Gets where the Shepherd is in the Bartender's process."""
    costs = Costs()
    async with cluster.whole(setup.scratch) as running, running.client() as client:
        await _until_stored(await _Objects.made(client, "/warm", 1, copies=1))
        for block in range(blocks):
            for at_once in AT_ONCE:
                objects = await _Objects.made(client, f"/{at_once}-{block}", _count(at_once), copies=1)
                await side_by_side(objects.lns, at_once, objects.put)
                stop = meter(running.pids)
                gets = stop(await side_by_side(objects.lns, at_once, objects.get))
                costs.setdefault(str(at_once), {}).setdefault("get", []).append(gets)
    return costs


async def _until_stored(objects: _Objects) -> None:
    """Put the first object once the Shepherd has been heard of."""
    async with asyncio.timeout(cluster.READY_S):
        while True:
            try:
                return await objects.put(objects.lns[0])
            except CheloniaError as error:
                if error.kind is not Kind.NO_SHEPHERD:
                    raise
            await asyncio.sleep(0.1)


class _Objects:
    """Names in a collection, and what is stored under each."""

    def __init__(self, client: Client, collection: str, count: int, copies: int) -> None:
        self._client, self._data, self._wish = client, os.urandom(SIZE), uploads.UploadOptions(copies)
        self.lns = [f"{collection}/{n:06d}" for n in range(count)]

    @classmethod
    async def made(cls, client: Client, collection: str, count: int, copies: int = 3) -> _Objects:
        await client.make_collection(collection)
        return cls(client, collection, count, copies)

    async def put(self, ln: str) -> None:
        await uploads.upload(self._client, uploads.bytes_source(self._data), ln, self._wish)

    async def get(self, ln: str) -> None:
        got = b"".join([chunk async for chunk in downloads.read(self._client, ln)])
        assert got == self._data, f"{ln} is not what was put"


async def _block(running: Running, client: Client, asking: Administrator, at_once: int, name: str) -> dict[str, Cost]:
    """Put, get, stat and delete the same objects, one by one and in bulk."""
    objects = await _Objects.made(client, f"/objects/{name}", _count(at_once))
    lns, put = objects.lns, objects.put
    costs: dict[str, Cost] = {}
    copied = meter(running.pids)
    stop = meter(running.pids)
    costs["put"] = stop(await side_by_side(lns, at_once, put))
    await cluster.all_copied(asking)
    costs["put_and_copies"] = copied(len(lns))
    for operation, act in (("get", objects.get), ("stat", client.stat)):
        stop = meter(running.pids)
        costs[operation] = stop(await side_by_side(lns, at_once, act))
    stop = meter(running.pids)
    costs["delete"] = stop(await side_by_side(lns, at_once, client.del_file))
    await side_by_side(lns, at_once, put)
    await cluster.all_copied(asking)
    stop = meter(running.pids)
    costs["bulk delete"] = stop(await side_by_side(lns, 1000, client.del_file))
    return costs
