"""Many objects: the S3 door with a bucket of few keys and with one of many, two clusters in turn.

The keys are made in bulk while the cluster is stopped. They are records alone, without bytes, in the A-Hash's own
layout and store, with ids in order. Signed requests put, read and list: objects of 4 KiB under names among those keys,
and pages of 1 000 from places among them.

A-Hash, Librarian, Bartender and S3 door of each cluster are one process. There are three Shepherds and three copies,
two of them durable, with the intervals and the page cache of production. 1 000 000 keys beside 10 000; `--full`: 10 000
000.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import listing
import s3
from cluster import all_copied
from experiment import Outcome, Setup
from intervals import check
from machine import Cost, load, medians, meter, side_by_side
from whole import Whole, until

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.contents.summaries import SECTION, summary_of
from chelonia.core.ids import Dn, Guid, ObjectId
from chelonia.core.metadata import StoredObject
from chelonia.hosting.config import load_config

FEW, BUCKET = 10_000, "many"
PUTS, AT_ONCE, PAGES, BAR = 400, 16, 20, 0.8
FILL_COMMIT, FILL_CACHE_BYTES = 5_000, 1 << 30
SPELLED = ("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa", "file-00000000", "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb", "c" * 32)
"""GUID, name, blob and etag of the pattern for all records."""


async def run(setup: Setup) -> Outcome:
    """Fill two clusters, and measure them in turn."""
    many = 100_000 if setup.quick else 10_000_000 if setup.full else 1_000_000
    costs: dict[int, dict[str, list[Cost]]] = {FEW: {}, many: {}}
    wholes, sessions = dict[int, Whole](), dict[int, s3.S3Session]()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        for keys in costs:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=setup.scratch, prefix=f"many-{keys}-"))
            wholes[keys], sessions[keys] = await _filled(Path(directory), keys, http)
            setup.say(f"  {keys} keys are there")
        for whole in wholes.values():
            stack.callback(whole.end, signal.SIGKILL)
            whole.start()
        for keys, whole in wholes.items():
            async with whole.running.client() as client:
                await until(lambda client=client: client.stat(f"/{BUCKET}"))  # type: ignore[misc]
            await _block(whole, sessions[keys], keys, {}, -1)
        for block in range(setup.blocks):
            for keys in [*costs][:: -1 if block % 2 else 1]:
                await _block(wholes[keys], sessions[keys], keys, costs[keys], block)
        memory = {keys: whole.resident_mib() for keys, whole in wholes.items()}
    results: dict[str, Any] = {"load_average": load(), "resident_mib": memory}
    for keys, seen in costs.items():
        results[str(keys)] = {what: medians(each) for what, each in seen.items()}
        for what, told in results[str(keys)].items():
            setup.say(f"  {keys:9} keys: {what:5} {told['per_s']:9.1f}/s, CPU s per 1000: {told['server_cpu']:.3f}")
        setup.say(f"  {keys:9} keys: MiB resident {memory[keys]}")
    checks = []
    for what, seen in costs[many].items():
        ratio = [of_many.per_s / of_few.per_s for of_many, of_few in zip(seen, costs[FEW][what], strict=True)]
        checks.append(check(f"S3 {what}, {many} keys / {FEW}, rate", "at least", BAR, ratio))
    return Outcome(results, checks)


async def _filled(directory: Path, keys: int, http: aiohttp.ClientSession) -> tuple[Whole, s3.S3Session]:
    """A cluster with a bucket of so many keys, stopped; and its user's session."""
    whole = Whole(directory)
    whole.start()
    async with whole.running.client() as client:
        await until(lambda: client.stat("/"))
    session = s3.S3Session(s3.own(whole.running), http)
    await session.ask("PUT", f"/{BUCKET}")
    whole.end(signal.SIGTERM)
    await asyncio.to_thread(_fill, whole, keys, Dn(session.server.dn))
    return whole, session


def _fill(whole: Whole, keys: int, owner: Dn) -> None:
    core = load_config(whole.directory / "conf" / "core.toml")
    assert core.ahash is not None
    store = BdbStore(Path(core.ahash.data_dir), BdbSettings(cache_bytes=FILL_CACHE_BYTES), print)
    found = store.get(layout.wide_key(ObjectId("0"), "entries", f"{BUCKET}/"))
    assert found is not None, "the bucket is not there"
    bucket = ObjectId(layout.decode_value(found))
    guid, name, blob, etag = SPELLED
    sections = listing.file_sections(Guid(guid), bucket, name, blob, owner)
    sections["states"]["etag"] = f"{etag} {blob}"
    summary = summary_of(StoredObject(ObjectId(guid), 1, sections))
    pattern = (
        (layout.header_key(ObjectId(guid)), layout.encode_header(1, sections)),
        (layout.wide_key(bucket, "entries", name), layout.encode_value(guid)),
        (layout.wide_key(bucket, SECTION, name), layout.encode_value(summary)),
    )
    for first in range(0, keys, FILL_COMMIT):
        puts: dict[bytes, bytes] = {}
        for number in range(first, min(first + FILL_COMMIT, keys)):
            puts.update((_spelled(key, number), _spelled(value, number)) for key, value in pattern)
        state = meta.read_state(store)
        counted = layout.StoreState(state.sequence + 1, state.objects + len(puts) // len(pattern))
        store.commit({**puts, layout.META_STATE: layout.encode_state(counted)}, ())
        if store.upkeep_due():
            store.upkeep()  # else the log stays as a whole
    store.close()


def _spelled(record: bytes, number: int) -> bytes:
    """A record of the pattern, as that of key `number`."""
    guid, name, blob, etag = SPELLED
    sum_ = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    ours = f"{number * 400:08x}-{sum_[:4]}-4{sum_[4:7]}-8{sum_[7:10]}-{sum_[10:22]}"
    its = f"{sum_[:8]}-{sum_[8:12]}-4{sum_[12:15]}-8{sum_[15:18]}-{sum_[18:30]}"
    for pattern, text in ((guid, ours), (name, f"file-{number:08d}"), (blob, its), (etag, sum_)):
        record = record.replace(pattern.encode(), text.encode())
    return record


async def _block(
    whole: Whole, session: s3.S3Session, keys: int, seen: dict[str, list[Cost]], block: int
) -> None:  # fmt: skip
    data, chance = os.urandom(s3.SIZE), random.Random(block)
    names = [f"/{BUCKET}/file-{chance.randrange(keys):08d}-{block}-{n}" for n in range(PUTS)]
    places = [f"list-type=2&start-after=file-{chance.randrange(max(keys - 1_000, 1)):08d}" for _ in range(PAGES)]

    async def put(name: str) -> None:
        await session.ask("PUT", name, body=data)

    async def get(name: str) -> None:
        assert await session.ask("GET", name) == data, f"{name} is not what was put"

    async def page(query: str) -> None:
        told = await session.ask("GET", f"/{BUCKET}", query)
        assert told.count(b"<Key>") == 1_000, "a page is full"

    for what, work, count in (
        ("PUT", side_by_side(names, AT_ONCE, put), PUTS),
        ("GET", side_by_side(names, AT_ONCE, get), PUTS),
        ("LIST", side_by_side(places, 1, page), PAGES * 1_000),
    ):
        stop = meter(session.server.pids)
        await work
        seen.setdefault(what, []).append(stop(count))
        if what == "PUT":
            async with whole.running.administrator() as asking:
                await all_copied(asking)
    await side_by_side(names, AT_ONCE, lambda name: session.ask("DELETE", name))
