"""Every A-Hash destroyed: objects of a bucket that keeps versions, written since the last snapshot."""

from __future__ import annotations

import random
import uuid

import pytest

from chelonia.core.ids import ROOT, Guid
from chelonia.core.metadata import Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.librarian import ChangeEntry, MakeEntry, ModifyEntry, MoveEntry
from chelonia.wire.s3 import apart, keys, versions
from chelonia.wire.s3 import facts as s3
from tests.sim.virtual_loop import virtual
from tests.support.librarian import BARTENDER, EVE, JOE
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot, rebuilt

ENABLED = s3.stored(s3.Facts(versioning=versions.ENABLED))


class Bucket:
    """A bucket, with its door's operations on keys."""

    def __init__(self, k: Keepers, seconds: int) -> None:
        self.k = k
        self._seconds = seconds

    async def guid(self, *parts: str) -> Guid:
        [walk] = await self.k.bench.service.traverse(BARTENDER, (LogicalName(ROOT, ("b", *parts)),))
        return walk.guid if walk.complete else Guid("")

    async def put(self, key: str, home: tuple[str, ...] = (), version: str | None = None) -> tuple[Guid, str]:
        """Write a version: staged, then given its key, which is there (`home`) or by its name. Returns: its entry and
        version."""
        self._seconds += 1
        order = versions.order_of(self._seconds * 10**9, "12345678")
        path, home = versions.path_of(key, order), home or (key,)
        user = s3.stored(s3.Facts(version=order if version is None else version))
        guid, _ = await self.k.upload("/b/" + "/".join(path), sections={"metadata": user})
        there, staged = await self.guid(*home), await self.guid(*path[:-1])
        over = "exchange" if there else "refuse"
        above = await self.guid(*home[:-1])
        move = MoveEntry(Guid(guid), staged, path[-1], above, home[-1], keep=False, over=over, there=there)
        await self.k.bench.service.move(BARTENDER, move)
        return Guid(guid), order

    async def remove(self, key: str) -> None:
        """Put the key's version behind a new delete marker."""
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
    """The order of their records makes no difference."""
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


@pytest.mark.parametrize("key", ["d/", "a/b", "link", "free/k"])
@virtual
async def test_a_key_that_is_kept_apart_comes_back_so(key: str) -> None:
    """It has no place by its name: with a slash at its end that would be a collection, or an entry is or was there."""
    k, home = keepers(), apart.path_of(key)
    async with k.running(BEFORE):
        bucket, service = await made(k), k.bench.service
        await bucket.put("a")
        above = await bucket.guid()
        await service.make_entry(BARTENDER, MakeEntry(above, "link", "symlink", JOE, {"node": {"target": "/b/a"}}))
        await service.make_entry(BARTENDER, MakeEntry(above, apart.COLLECTION, "collection", JOE, {}))
        if key == "free/k":
            await bucket.put(key, home)
        await next_snapshot(k)
        for _ in range(2):
            await bucket.put(key, home)
        paths = await k.paths()
    async with rebuilt(k) as (k, _):
        assert await k.paths() == paths


@virtual
async def test_a_version_of_a_bucket_that_keeps_none_any_more_has_no_id() -> None:
    k = keepers()
    async with k.running(BEFORE):
        bucket = await made(k)
        suspended = s3.stored(s3.Facts(versioning=versions.SUSPENDED))
        told = tuple(Triple("metadata", name, value) for name, value in suspended.items())
        await k.bench.service.change_entry(BARTENDER, ChangeEntry(await bucket.guid(), told, (), ()))
        await next_snapshot(k)
        guid, _ = await bucket.put("key", version="")
    async with rebuilt(k) as (k, _):
        assert (await k.paths())["/b/key"] == guid
        assert not (await k.bench.stored(guid)).sections.get("metadata")


@pytest.mark.parametrize(
    ("rights", "of_bucket", "takes"),
    [("", "", False), ("+addEntry", "+addEntry", False), ("+delete", "", True), ("", "+removeEntry", True)],
)
@virtual
async def test_a_version_takes_its_key_from_a_file_only_if_its_writer_may_replace_that(
    rights: str, of_bucket: str, takes: bool
) -> None:
    """A user with the right to add entries can put one among the versions by another door."""
    k = keepers()
    async with k.running(BEFORE):
        bucket = await made(k)
        order = versions.order_of(1_800_000_000 * 10**9, "12345678")
        mine, _ = await k.upload("/b/key", sections={"policy": {EVE: rights} if rights else {}})
        if of_bucket:
            rule = ModifyEntry("1", await bucket.guid(), "set", "policy", EVE, of_bucket)
            await k.bench.service.modify_metadata(BARTENDER, (rule,))
        await next_snapshot(k)
        planted, _ = await k.upload("/b/" + "/".join(versions.path_of("key", order)), owner=EVE)
        later = (await bucket.put("key"))[0] if not takes else mine
    async with rebuilt(k) as (k, status):
        paths = await k.paths()
        assert paths["/b/key"] == (planted if takes else later)
        if not takes:
            assert paths["/b/" + "/".join(versions.path_of("key", order))] == planted
            assert status.counts["versions behind their key"] == 1


@virtual
async def test_a_version_takes_a_key_that_nothing_has() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await made(k)
        await next_snapshot(k)
        path = versions.path_of("key", versions.order_of(1_800_000_000 * 10**9, "12345678"))
        put, _ = await k.upload("/b/" + "/".join(path), owner=EVE)
    async with rebuilt(k) as (k, _):
        assert (await k.paths())["/b/key"] == put


@virtual
async def test_an_object_has_the_default_policy_of_the_collection_that_its_key_is_in() -> None:
    """It had the one that the collection of versions, or of a longer key, had been made with."""
    k, past, now = keepers(), {"defaultPolicy": {"ALL": "+read"}}, {"defaultPolicy": {EVE: "+read"}}
    async with k.running(BEFORE):
        bucket, service = await made(k), k.bench.service
        implied = {"node": {"implied": "yes"}, **past}
        *rooms, name_apart = keys.apart_of(LogicalName(ROOT, ("b",)), "d/f/k").parts
        below = [("/".join(rooms[:n]), room, implied) for n, room in enumerate(rooms) if n]
        for place, name, sections in [("b", "d", now), ("b", "p", implied), ("b/p", "q", implied), *below]:
            above = await bucket.guid(*place.split("/")[1:])
            await service.make_entry(BARTENDER, MakeEntry(above, name, "collection", JOE, sections))
        room = await bucket.guid(versions.COLLECTION)
        for guid, rules in (await bucket.guid(), {JOE: "+read"}), (room, past["defaultPolicy"]):
            default = tuple(Triple("defaultPolicy", *rule) for rule in rules.items())
            await service.change_entry(BARTENDER, ChangeEntry(guid, default, (), ()))
        await next_snapshot(k)
        expected = {"/b/d/k": {EVE: "+read"}, "/b/p/q/k": {JOE: "+read"}, "/b/d/named": {EVE: "+read"}}
        expected["/b/p/q/by guid"] = {JOE: "+read"}
        await k.upload("/b/d/named")
        within = await bucket.guid("p", "q")
        await k.upload(f"{within}/by guid")  # as a mount names it
        for key in ("d/k", "p/q/k"):
            await bucket.put(key, tuple(key.split("/")))
        await bucket.put("d/f", ("d", "f"))
        await bucket.put("d/f/k", (*rooms[1:], name_apart))  # a file has the name of its collection
        expected["/".join(("", *rooms, name_apart))] = {EVE: "+read"}
    async with rebuilt(k) as (k, _):
        paths = await k.paths()
        for path, rules in expected.items():
            assert (await k.bench.stored(paths[path])).sections["policy"] == rules, path
