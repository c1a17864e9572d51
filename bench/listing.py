"""Listing: the server cost of a page of a listing with size and time, from summaries and by reading each file.

One process holds the A-Hash on Berkeley DB, the Librarian and the Bartender, as `cheloniad dev` does. No client takes
part, but each answer is encoded for one. Two collections of equal files are listed in turn. One has summaries beside
its names. The files of the other have to be read, as in a store filled before there were summaries.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from experiment import Outcome, Setup
from intervals import check, median_interval

from chelonia.ahash.service import AHashService
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.bartender.files.service import FilesService
from chelonia.bartender.ports import Ports
from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds
from chelonia.core.caller import Call, Role
from chelonia.core.contents.summaries import SECTION, summary_of
from chelonia.core.ids import ROOT, Dn, Guid, ObjectId, RequestKey, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.names import LogicalName
from chelonia.core.ports.ahash import AHash, Element
from chelonia.core.ports.files import Files, Listing
from chelonia.core.ports.librarian import Librarian
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.librarian.metadata.elements import put, put_all
from chelonia.librarian.metadata.records import LibrarianIdentity, Records
from chelonia.librarian.namespace.names import Names
from chelonia.wire import compact

BAR_RATIO = 3.0
BATCH = 100
USER, LIBRARIAN = Call(Dn("/O=Grid/CN=joe")), Call(Dn("/O=Grid/CN=librarian"), (Role.LIBRARIAN,))
WAYS = {"summaries": True, "read": False}


async def run(setup: Setup) -> Outcome:
    """Fill two collections, and list each of them page by page, in turn."""
    entries = 5_000 if setup.quick else 100_000
    async with _files(setup) as (files, ahash):
        root = {"entry": {"type": "collection", "GUID": ROOT, "owner": USER.dn}, "states": {"closed": "no"}}
        await _commit(ahash, put_all(ObjectId(ROOT), root))
        for way, summed in WAYS.items():
            setup.say(f"{entries} files, {way}")
            await fill(ahash, way, entries, summed=summed)
        costs: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(setup.blocks):
            for way, seen in costs.items():
                seen.append(await _listed(files, way, entries))
    results: dict[str, Any] = {"entries": entries}
    for way, seen in costs.items():
        us = median_interval(seen)
        results[way] = {"cpu_s_per_1000": us.median / 1000, "entries_per_cpu_s": round(1e6 / us.median)}
    gained = [read / summed for read, summed in zip(costs["read"], costs["summaries"], strict=True)]
    return Outcome(results, [check("listing by reading / from summaries, CPU", "at least", BAR_RATIO, gained)])


async def _listed(files: Files, name: str, entries: int) -> float:
    """CPU microseconds of one entry: all pages, each encoded as an answer."""
    place, after, told = LogicalName(ROOT, (name,)), "", 0
    began = time.process_time()
    while True:
        page = await files.list(USER, Listing(place, after))
        compact.encode_result(1, page, None)
        told, after = told + len(page.entries), page.after
        if not after:
            break
    assert told == entries, "all of them"
    return (time.process_time() - began) / entries * 1e6


@asynccontextmanager
async def _files(setup: Setup) -> AsyncIterator[tuple[Files, AHashService]]:
    store = BdbStore(setup.scratch / "listing", BdbSettings(cache_bytes=512 << 20), lambda reason: None)
    clock, ids = SystemClock(), SystemIds()
    ahash = AHashService(store, ThreadExecutor(), clock, AHashSettings(cluster="bench"))
    await ahash.start()
    records = Records(ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("l")))
    names = Names(records, cast(Any, None), lambda shepherd: True)
    settings = BartenderSettings(Dn("/O=Grid/CN=b"), ServiceId("b"), b"the key of tokens")
    try:
        yield (
            FilesService(
                Ports(
                    cast(Librarian, names),
                    cast(Shepherds, None),
                    clock,
                    ids,
                    settings,
                    cast(Any, None),
                    cast(Any, None),
                )
            ),
            ahash,
        )
    finally:
        await ahash.close()


async def fill(ahash: AHash, name: str, entries: int, *, summed: bool = True, owner: Dn = USER.dn) -> None:
    """Make a collection right below the root, of files of one owner, by their records alone: they have no bytes."""
    ids, obj = SystemIds(), ObjectId(SystemIds().uuid())
    own = {"entry": {"type": "collection", "GUID": str(obj), "owner": owner}, "states": {"closed": "no"}}
    made = [put(ObjectId(ROOT), "entries", name + "/", obj), *put_all(obj, own)]
    made += put_all(obj, {"parents": {f"{ROOT}/{name}": "parent"}})
    for number in range(entries):
        guid, called = Guid(ids.uuid()), f"file-{number:06d}"
        file = file_sections(guid, obj, called, ids.uuid(), owner)
        made += [put(obj, "entries", called, guid), *put_all(ObjectId(guid), file)]
        if summed:
            made.append(put(obj, SECTION, called, summary_of(StoredObject(ObjectId(guid), 1, file))))
        if len(made) > 1_900:
            await _commit(ahash, made)
            made = []
    await _commit(ahash, made)


def file_sections(guid: Guid, parent: ObjectId, name: str, blob: str, owner: Dn) -> dict[str, dict[str, str]]:
    """The sections of the record of a file of one blob."""
    return {
        "entry": {"type": "file", "GUID": guid, "owner": owner},
        "timestamps": {"created": "1700000000.123", "modified": "1700000000.123"},
        "parents": {f"{parent}/{name}": "parent"},
        "states": {
            "size": "4096",
            "checksum": "5a" * 32,
            "checksumType": "sha256",
            "neededReplicas": "3",
            "etag": f"{hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()} {blob}",
        },
        "blobs": {"00000000": blob},
    }


async def _commit(ahash: AHash, elements: list[Element]) -> None:
    assert (await ahash.transact(LIBRARIAN, RequestKey(""), tuple(elements))).applied, "nothing stands in the way"
