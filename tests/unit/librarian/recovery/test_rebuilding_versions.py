"""Every A-Hash destroyed: objects of a bucket that keeps versions, written since the last snapshot."""

from __future__ import annotations

import random
import uuid

import pytest

from chelonia.core.ids import ROOT, Guid
from chelonia.core.names import LogicalName
from chelonia.core.ports.librarian import MakeEntry, MoveEntry
from chelonia.wire.s3 import apart, versions
from chelonia.wire.s3 import facts as s3
from tests.sim.virtual_loop import virtual
from tests.support.librarian import BARTENDER, JOE
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot, rebuilt

ENABLED = s3.stored(s3.Facts(versioning=versions.ENABLED))


class Bucket:
    """A bucket, and what its door does with its keys."""

    def __init__(self, k: Keepers, seconds: int) -> None:
        self.k = k
        self._seconds = seconds

    async def guid(self, *parts: str) -> Guid:
        [walk] = await self.k.bench.service.traverse(BARTENDER, (LogicalName(ROOT, ("b", *parts)),))
        return walk.guid if walk.complete else Guid("")

    async def put(self, key: str) -> tuple[Guid, str]:
        """Write a version: staged, then given its key. Returns: its entry, its version."""
        self._seconds += 1
        order = versions.order_of(self._seconds * 10**9, "12345678")
        path = versions.path_of(key, order)
        user = s3.stored(s3.Facts(version=order))
        guid, _ = await self.k.upload("/b/" + "/".join(path), sections={"metadata": user})
        there, staged = await self.guid(key), await self.guid(*path[:-1])
        over = "exchange" if there else "refuse"
        move = MoveEntry(Guid(guid), staged, path[-1], await self.guid(), key, keep=False, over=over, there=there)
        await self.k.bench.service.move(BARTENDER, move)
        return Guid(guid), order

    async def remove(self, key: str) -> None:
        """Put what has the key behind a new delete marker."""
        self._seconds += 1
        *_, name = versions.path_of(key, versions.order_of(self._seconds * 10**9, "12345678"))
        aside = await self.guid(versions.COLLECTION)
        mark = MakeEntry(aside, name, "symlink", JOE, {"node": {"target": name[-versions.ORDER :]}})
        await self.k.bench.service.make_entry(BARTENDER, mark)
        move = MoveEntry(await self.guid(key), await self.guid(), key, aside, f"{name}-", keep=False)
        await self.k.bench.service.move(BARTENDER, move)


async def made(k: Keepers) -> Bucket:
    service = k.bench.service
    bucket = await service.make_entry(BARTENDER, MakeEntry(ROOT, "b", "collection", JOE, {"metadata": ENABLED}))
    assert isinstance(bucket, str)
    await service.make_entry(BARTENDER, MakeEntry(bucket, versions.COLLECTION, "collection", JOE, {}))
    return Bucket(k, 1_700_000_000)


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_versions_written_since_the_snapshot_have_their_keys_and_ids_again(seed: int) -> None:
    """In whatever order their records are told."""
    k, chance = keepers(), random.Random(seed)
    k.ids.uuid = lambda: str(uuid.UUID(int=chance.getrandbits(128), version=4))  # type: ignore[method-assign]
    async with k.running(BEFORE):
        bucket = await made(k)
        for key in ("old", "gone", "marked"):
            await bucket.put(key)
        for key in ("gone", "marked"):
            await bucket.remove(key)
        await next_snapshot(k)
        ids = dict([await bucket.put(key) for key in ("old", "new", "gone") for _ in range(chance.choice((1, 3)))])
        paths = await k.paths()
    async with rebuilt(k) as (k, status):
        assert await k.paths() == paths
        assert "blobs in /lost+found" not in status.counts
        for guid, order in ids.items():
            assert s3.facts_of((await k.bench.stored(guid)).sections["metadata"]).version == order


@virtual
async def test_a_version_that_is_not_known_to_be_committed_takes_no_key() -> None:
    k = keepers()
    async with k.running(BEFORE):
        bucket = await made(k)
        first, _ = await bucket.put("key")
        await next_snapshot(k)
        late, order = await bucket.put("key")
    for keeper in k.shepherds.values():
        for kept in keeper.disk.values():
            kept.committed = kept.facts.guid != late
    async with rebuilt(k) as (k, _):
        paths = await k.paths()
        assert paths["/b/key"] == first
        assert paths["/b/" + "/".join(versions.path_of("key", order))] == late


@virtual
async def test_a_key_that_ends_in_a_slash_does_not_become_the_name_without_it() -> None:
    """Its bytes are kept apart, as what is there by that name would be a collection."""
    k = keepers()
    async with k.running(BEFORE):
        bucket = await made(k)
        [folder, name] = apart.path_of("d/")
        aside = await k.bench.service.make_entry(
            BARTENDER, MakeEntry(await bucket.guid(), folder, "collection", JOE, {})
        )
        assert isinstance(aside, str)
        await next_snapshot(k)
        *above, staged = versions.path_of("d/", versions.order_of(1, "12345678"))
        guid, _ = await k.upload("/b/" + "/".join((*above, staged)))
        move = MoveEntry(Guid(guid), await bucket.guid(*above), staged, aside, name, keep=False)
        await k.bench.service.move(BARTENDER, move)
        paths = await k.paths()
    async with rebuilt(k) as (k, _):
        assert await k.paths() == paths
