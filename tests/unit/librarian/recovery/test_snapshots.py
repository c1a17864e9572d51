"""Snapshots: their contents, the segments written anew, those let go."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import CLUSTER_OBJECT, SNAPSHOTS_OBJECT, BlobId, blob_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import ModifyEntry
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import make_blob
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.records import PlannedTransact
from chelonia.librarian.recovery import snapshots as snapshotting
from chelonia.wire.snapshots import Manifest, decode_manifest, decode_page, snapshot_name
from tests.sim.virtual_loop import virtual
from tests.support import namespace_snapshot
from tests.support.ahash import LIBRARIAN
from tests.support.librarian import BARTENDER
from tests.unit.librarian.keepers import SETTINGS, Keepers, keepers
from tests.unit.librarian.namespace.test_trash import snapshot

pytestmark = pytest.mark.expect_log("is lost, no verified copy is left", optional=True)


async def taken(k: Keepers) -> list[str]:
    """The times of the snapshots, in order."""
    return sorted((await k.bench.stored(SNAPSHOTS_OBJECT)).sections.get("snapshot", {}))


async def data_of(k: Keepers, blob: str) -> bytes:
    found = [kept.data for keeper in k.shepherds.values() for kept in keeper.disk.values() if kept.facts.blob == blob]
    assert len(set(found)) == 1
    return found[0]


async def key(k: Keepers) -> str:
    return (await k.bench.stored(CLUSTER_OBJECT)).value("cluster", "record_key")


async def newest(k: Keepers) -> tuple[Manifest, dict[str, StoredObject]]:
    """The newest snapshot: its manifest, and every object in it."""
    uses = (await k.bench.stored(SNAPSHOTS_OBJECT)).value("snapshot", (await taken(k))[-1]).split(" ")
    manifest = decode_manifest(await data_of(k, uses[0]), await key(k))
    assert list(manifest.segments) == uses[1:]
    objects = {}
    for place in manifest.pages:
        body = await data_of(k, manifest.segments[place.segment])
        for obj in decode_page(body[place.offset : place.offset + place.length], place.digest):
            objects[obj.id] = obj
    return manifest, objects


async def times(k: Keepers, count: int) -> None:
    async def reached() -> bool:
        return len(await taken(k)) >= count

    await k.until(reached, 400_000)


async def another(k: Keepers) -> None:
    """Wait for one begun from now on."""
    begun_ms = k.clock.now_ms()

    async def newer() -> bool:
        return max(await taken(k), default="") > f"{begun_ms:013d}"

    await k.until(newer, 400_000)


@virtual
async def test_a_snapshot_has_every_entry_and_blob_and_who_is_registered_and_no_secret() -> None:
    async with keepers().running(SETTINGS) as k:
        data = await k.bench.collection("data")
        guid, blob = await k.upload("/data/f")
        await k.bench.service.begin_put(BARTENDER, k.bench.begin("coming", named=True))
        await times(k, 1)
        await asyncio.sleep(6)
        manifest, objects = await newest(k)
        assert set(objects) == {"0", data, guid, f"blob:{blob}", "sys:services"}
        assert manifest.objects == 5
        stored = await k.bench.stored(guid)
        assert objects[guid].sections == stored.sections
        assert "entries" not in objects[data].sections
        assert set(objects[f"blob:{blob}"].sections) == {"blob"}
        secret = (await key(k)).encode()
        assert not any(secret in kept.data for keeper in k.shepherds.values() for kept in keeper.disk.values())
        assert namespace_snapshot.broken(await snapshot(k.bench)) == ()


@virtual
async def test_only_what_has_changed_is_written_again_and_a_manifest_when_nothing_has() -> None:
    async with keepers().running(SETTINGS) as k:
        for number in range(300):
            await k.upload(f"/f{number}", copies=1)
        await times(k, 1)
        await asyncio.sleep(13)
        first, _ = await newest(k)
        await another(k)
        before, _ = await newest(k)
        assert replace(before, begun_ms=first.begun_ms) == first
        guid = (await k.bench.names())["f7"]
        await k.bench.service.modify_metadata(
            BARTENDER,
            (ModifyEntry("1", guid, "set", "metadata", "k", "v"),),  # type: ignore[arg-type]
        )
        await another(k)
        after, objects = await newest(k)
        assert objects[guid].value("metadata", "k") == "v"
        changed = {page.digest for page in after.pages} - {page.digest for page in before.pages}
        assert len(changed) == 1
        assert set(before.segments) < set(after.segments)
        body = await data_of(k, after.segments[-1])
        assert len(body) < len(await data_of(k, before.segments[0])) / 2


@virtual
async def test_old_snapshots_are_let_go_of_and_their_bytes_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SNAPSHOTS_KEPT", 2)

    async with keepers().running(SETTINGS) as k:
        seen = []
        for number in range(5):
            await k.upload(f"/f{number}", copies=1)
            await asyncio.sleep(7)
            seen += [each for each in await taken(k) if each not in seen]
        assert len(seen) >= 4
        assert await taken(k) == seen[-2:]
        await asyncio.sleep(8)
        named = set((await k.bench.stored(SNAPSHOTS_OBJECT)).sections["blobs"])
        on_disk = {
            kept.facts.blob
            for keeper in k.shepherds.values()
            for kept in keeper.disk.values()
            if kept.facts.guid == SNAPSHOTS_OBJECT
        }
        assert on_disk == named
        _, objects = await newest(k)
        assert len(objects) == 2 + 2 * 5
        assert namespace_snapshot.broken(await snapshot(k.bench)) == ()


@virtual
async def test_a_snapshot_is_repaired_like_any_blob_and_a_lost_one_is_written_anew(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("snapshot .* cannot be read")

    async with keepers(5).running(SETTINGS) as k:
        await k.upload("/f", copies=1)
        await times(k, 1)
        [blob, *_] = (await k.bench.stored(SNAPSHOTS_OBJECT)).sections["blobs"]
        holder = next(s for s in k.shepherds if any(kept.facts.blob == blob for kept in k.shepherds[s].disk.values()))
        k.shepherds[holder].up = False

        async def whole() -> bool:
            holders = [s for s, keeper in k.shepherds.items() if keeper.up and any(
                kept.facts.blob == blob for kept in keeper.disk.values())]  # fmt: skip
            return len(holders) == 3

        await k.until(whole)
        k.shepherds[holder].up = True
        for keeper in k.shepherds.values():
            for kept in keeper.disk.values():
                if kept.facts.guid == SNAPSHOTS_OBJECT:
                    kept.data = bytes(len(kept.data))
        count = len(await taken(k))
        await k.upload("/g", copies=1)
        await times(k, count + 1)
        _, objects = await newest(k)
        assert len(objects) == 2 + 2 * 2


async def lose_copies(k: Keepers, blob: str) -> None:
    """Record all copies of a blob as damaged."""
    obj = blob_object(BlobId(blob))
    invalid = [put(obj, "locations", place, "invalid") for place in (await k.bench.stored(obj)).sections["locations"]]
    await k.bench.service._parts.records.attempt(LIBRARIAN, PlannedTransact(invalid))


@virtual
async def test_pages_in_a_segment_without_a_good_copy_are_written_again() -> None:
    async with keepers().running(SETTINGS) as k:
        await k.upload("/f", copies=1)
        await times(k, 1)
        await asyncio.sleep(13)
        before, objects = await newest(k)
        await lose_copies(k, before.segments[-1])
        await another(k)
        after, again = await newest(k)
        assert before.segments[-1] not in after.segments
        assert again == objects


@virtual
async def test_too_few_shepherds_take_no_snapshot_and_break_nothing() -> None:
    async with keepers().running(SETTINGS) as k:
        await k.upload("/f")
        for keeper in list(k.shepherds.values())[1:]:
            keeper.up = False
        await asyncio.sleep(8)
        assert len(await k.bench.names()) == 1


def refusing(k: Keepers, kind: str) -> list[int]:
    """Have Shepherds refuse bytes of snapshots of this kind; returns the times of refusals."""
    put, refused = k.put, list[int]()

    async def refuse(turl: str, body: bytes) -> tuple[Receipt, ...]:
        if f" {kind} " in k.turls[turl].name:
            refused.append(k.clock.monotonic_ms())
            raise CheloniaError(Kind.NO_SPACE, "put", turl, "no room")
        return await put(turl, body)

    k.put = refuse  # type: ignore[method-assign]
    return refused


@virtual
async def test_the_last_snapshot_with_all_its_copies_is_kept_until_a_newer_one_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "SNAPSHOTS_KEPT", 2)

    async with keepers(3).running(SETTINGS) as k:
        await k.upload("/f", copies=1)
        await times(k, 1)
        await asyncio.sleep(13)
        *_, whole = await taken(k)
        put, full = k.put, list(k.shepherds)[2]

        async def refuse(turl: str, body: bytes) -> tuple[Receipt, ...]:
            if "snapshot " in k.turls[turl].name and turl.startswith(full):
                raise CheloniaError(Kind.NO_SPACE, "put", turl, "no room")
            return await put(turl, body)

        k.put = refuse  # type: ignore[method-assign]
        for number in range(4):
            await k.upload(f"/scarce{number}", copies=1)
            await asyncio.sleep(13)
            assert whole in await taken(k)
        assert len(await taken(k)) == 3
        k.put = put  # type: ignore[method-assign]
        await k.upload("/again", copies=1)
        await asyncio.sleep(60)
        await k.upload("/last", copies=1)
        await asyncio.sleep(13)
        assert (len(await taken(k)), whole in await taken(k)) == (2, False)
        assert of_snapshots(k) == {*(await k.bench.stored(SNAPSHOTS_OBJECT)).sections["blobs"]}


def of_snapshots(k: Keepers) -> set[str]:
    """The blobs of snapshots that have bytes on disks."""
    kept = (kept.facts for keeper in k.shepherds.values() for kept in keeper.disk.values())
    return {facts.blob for facts in kept if facts.guid == SNAPSHOTS_OBJECT}


@virtual
async def test_a_snapshot_that_fails_is_tried_again_after_the_interval_and_leaves_nothing(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("no snapshot of the namespace for")

    async with keepers().running(SETTINGS) as k:
        put, refused = k.put, refusing(k, "manifest")
        await k.upload("/f", copies=1)
        await asyncio.sleep(32)
        assert 5 <= len(set(refused)) <= 7
        await asyncio.sleep(4)
        assert len(of_snapshots(k)) <= 1
        k.put = put  # type: ignore[method-assign]
        await times(k, 1)
        await asyncio.sleep(13)
        _, objects = await newest(k)
        assert len(objects) == 2 + 2
        assert of_snapshots(k) == {*(await k.bench.stored(SNAPSHOTS_OBJECT)).sections["blobs"]}
        assert namespace_snapshot.broken(await snapshot(k.bench)) == ()


@virtual
async def test_without_a_shepherd_that_takes_bytes_nothing_is_read_and_the_first_one_is_not_waited_for_long() -> None:
    k = keepers()
    async with k.running(replace(SETTINGS, snapshot_interval_ms=600_000)):
        for keeper in k.shepherds.values():
            keeper.up = False
        await asyncio.sleep(5)
        await k.bench.collection("d")
        await asyncio.sleep(30)
        assert await taken(k) == []
        for keeper in k.shepherds.values():
            keeper.up = True
        await times(k, 1)
        assert k.clock.monotonic_ms() < 100_000


@virtual
async def test_all_that_no_snapshot_uses_is_let_go_of_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshotting, "DISCARDED_MAX", 2)
    monkeypatch.setattr(bounds, "SNAPSHOTS_KEPT", 1)

    async with keepers().running(SETTINGS) as k:
        kept = k.bench.service._parts.healer.internal_blobs
        assert kept is not None
        for number in range(7):  # as of a Librarian that died on its way
            new = await kept.store(b"%d" % number, snapshot_name("segment", k.clock.now_ms()))
            named = put(SNAPSHOTS_OBJECT, "blobs", new.facts.blob, new.facts.blob)
            await k.bench.service._parts.records.attempt(LIBRARIAN, PlannedTransact([*make_blob(new), named]))
        await k.upload("/f", copies=1)
        await times(k, 1)
        await asyncio.sleep(4)
        assert len((await k.bench.stored(SNAPSHOTS_OBJECT)).sections["blobs"]) == 2
        assert len(of_snapshots(k)) == 2


@virtual
async def test_without_an_interval_none_is_taken() -> None:
    async with keepers().running(replace(SETTINGS, snapshot_interval_ms=0)) as k:
        await k.upload("/f")
        await asyncio.sleep(12)
        assert await taken(k) == []
