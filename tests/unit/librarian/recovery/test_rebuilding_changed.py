"""A rebuild by a snapshot that was taken while files changed: it has each as it was at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from chelonia.core.caller import Call
from chelonia.core.contents.uploads import CopyFile, SealUpload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Guid, ObjectId, blob_object, content_object
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.ports.librarian import MoveEntry, Unlink
from chelonia.core.values import replace
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.metadata.records import Records
from chelonia.librarian.recovery import invariants, snapshots
from chelonia.librarian.recovery.rebuild.act import Rebuilding
from chelonia.librarian.recovery.snapshots import Snapshotting
from chelonia.wire import snapshots as pages
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN, BARTENDER, EVE
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, held, next_snapshot, rebuilt, short_uploads
from tests.unit.librarian.recovery.test_rebuilding_contents import _upload
from tests.unit.librarian.recovery.test_snapshots import taken, times

Change = Callable[[Keepers, Guid], Awaitable[object]]
Snapshot = Callable[[Keepers, str, Callable[[], Awaitable[object]]], Awaitable[None]]
FOR_GOOD = replace(BEFORE, trash_keep_ms=0)
"""Nothing is kept of what is deleted."""


@pytest.fixture
def snapshot_with(monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """Take a snapshot in which something happens after an object was read, with no page behind it read yet."""
    monkeypatch.setattr(snapshots, "PAGE", 1)
    read = Records.get

    async def wait(k: Keepers, at: str, change: Callable[[], Awaitable[object]]) -> None:
        before, changed = await times(k, 1) or await taken(k), list[str]()

        async def get(
            records: Records, call: Call, ids: Sequence[ObjectId], needed: Filter = ()
        ) -> tuple[StoredObject, ...]:
            found = await read(records, call, ids, needed)
            if at in ids and needed == snapshots._READ and not changed:
                changed.append(at)
                await change()
            return found

        async def done() -> bool:
            return bool(changed) and await taken(k) > before

        monkeypatch.setattr(Records, "get", get)
        await k.until(done)

    return wait


async def overwrite(k: Keepers, file: Guid) -> None:
    await k.upload("/f", b"newer", replaces=file)


async def lay_over(k: Keepers, file: Guid) -> None:
    await k.splice("/f", file, 10, b"more")


async def overwrite_twice(k: Keepers, file: Guid) -> None:
    await lay_over(k, file)
    await overwrite(k, file)


@pytest.mark.parametrize("first", ["0", "d"], ids=["before blobs", "after blobs and contents"])
@pytest.mark.parametrize("before", [False, True], ids=["a blob", "a content"])
@pytest.mark.parametrize("change", [overwrite, lay_over, overwrite_twice])
@virtual
async def test_a_file_that_was_overwritten_meanwhile_has_its_newer_bytes(
    change: Change, before: bool, first: str, snapshot_with: Snapshot
) -> None:
    """This holds wherever its id stands, also where the former bytes are still on disks. It also holds where no
    Shepherd with the newer ones knew yet that they were committed."""
    k = keepers()
    async with k.running(BEFORE):
        k.ids.first = first
        file, _ = await k.upload("/f", b"0123456789", sections={"policy": {EVE: "+read"}})
        k.ids.first = "0"
        if before:
            await lay_over(k, file)
        away = next(iter(k.shepherds.values()))
        kept = dict(away.disk)
        await snapshot_with(k, file, lambda: change(k, file))
        now = await k.bench.stored(file)
        away.disk.update(kept)
        for keeper in k.shepherds.values():
            for each in keeper.disk.values():
                each.committed = each.committed and (each.facts.guid != file or each in kept.values())
    async with rebuilt(k) as (k, _):
        found = await k.bench.stored(file)
        for section in ("blobs", "content", "policy"):
            assert found.sections.get(section) == now.sections.get(section), section
        assert found.value("states", "size") == now.value("states", "size")
        assert (await k.paths())["/f"] == file


@virtual
async def test_a_file_that_was_made_behind_what_was_read_has_its_name(snapshot_with: Snapshot) -> None:
    """The snapshot lacks it, and so does not know its bytes: their record may name it."""
    k, made = keepers(), list[str]()
    async with k.running(BEFORE):
        passed, k.ids._count = k.ids._count, 1_000_000
        file, _ = await k.upload("/f")

        async def make() -> None:
            k.ids._count, last = passed, k.ids._count
            made.append((await k.upload("/made"))[0])
            k.ids._count = last

        await snapshot_with(k, file, make)
        assert made[0] < file
    async with rebuilt(k) as (k, _):
        assert await k.paths() == {"/f": file, "/made": made[0]}


@virtual
async def test_a_file_that_was_overwritten_where_the_snapshot_has_been_has_its_newer_bytes(
    snapshot_with: Snapshot,
) -> None:
    """The former ones are gone by then, and the ids of the newer were already passed."""
    k = keepers()
    async with k.running(BEFORE):
        first, k.ids._count = k.ids._count, 1_000_000
        file, former = await k.upload("/f", b"0123456789", sections={"policy": {EVE: "+read"}})

        async def overwritten() -> None:
            k.ids._count, last = first, k.ids._count
            _, blob = await k.upload("/f", b"newer", replaces=file)
            assert blob < former
            k.ids._count = last

        async def erased() -> bool:
            return not held(k, former)

        await snapshot_with(k, file, overwritten)
        await k.until(erased)
        now = await k.bench.stored(file)
        for each in held(k, now.sections["blobs"]["00000000"]):
            each.committed = False  # no Shepherd knows it
    async with rebuilt(k) as (k, _):
        assert await k.paths() == {"/f": file}
        assert (await k.bench.stored(file)).sections["blobs"] == now.sections["blobs"]


async def remove(k: Keepers, file: Guid) -> None:
    await k.bench.service.unlink(BARTENDER, Unlink(Guid("0"), "f", file))


@pytest.mark.parametrize(
    ("over", "kind"),
    [("refuse", "file"), ("replace", "file"), ("exchange", "file"), ("refuse", "collection")],
    ids=["moved away before", "replaced", "exchanged", "another kind"],
)
@virtual
async def test_of_two_entries_that_have_had_a_name_it_is_the_later_ones(
    over: str, kind: str, snapshot_with: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot has both under it: one as before, the other, behind it, as after. A file written and moved over
    another, as editors do, was in /lost+found, and the other had its older bytes."""
    monkeypatch.setattr(pages, "PAGE_OBJECTS_MAX", 1)
    k = keepers()
    async with k.running(BEFORE):
        first, _ = await k.upload("/f", b"older")
        k.ids.first = "d"
        if kind == "file":
            later, _ = await k.upload("/written beside", b"newer")
        else:
            later = await k.bench.collection("written beside")

        async def move() -> None:
            service = k.bench.service
            if over == "refuse":
                await service.move(BARTENDER, MoveEntry(first, ROOT, "f", ROOT, "away", keep=False))
            there = first if over != "refuse" else Guid("")
            beside = MoveEntry(later, ROOT, "written beside", ROOT, "f", keep=False, over=over, there=there)
            await service.move(BARTENDER, beside)

        await snapshot_with(k, first, move)
    async with rebuilt(k) as (k, _):
        assert (await k.paths())["/f"] == later


@pytest.mark.parametrize("before", [False, True], ids=["a blob", "a content"])
@virtual
async def test_a_file_that_was_removed_meanwhile_stays_so(before: bool, snapshot_with: Snapshot) -> None:
    k = keepers()
    async with k.running(FOR_GOOD):
        file, _ = await k.upload("/f", b"0123456789")
        if before:
            await lay_over(k, file)
        await snapshot_with(k, file, lambda: remove(k, file))
        await k.until(lambda: none_left(k, file))
    async with rebuilt(k, FOR_GOOD) as (k, _):
        assert await k.paths() == {}


async def none_left(k: Keepers, file: Guid) -> bool:
    return not any(kept.facts.guid == file for keeper in k.shepherds.values() for kept in keeper.disk.values())


@virtual
async def test_a_copy_that_was_made_meanwhile_has_the_bytes_as_well(snapshot_with: Snapshot) -> None:
    """The snapshot has them twice: before, and when they had two owners."""
    k = keepers()
    async with k.running(BEFORE):
        file, shared = await k.upload("/f")
        k.ids.first = "d"
        before, _ = await k.upload("/behind")
        copy = list[str]()

        async def make() -> None:
            k.ids.first = "e"
            copy.append(await k.bench.service.copy_file(BARTENDER, CopyFile(file, k.bench.begin("copy"))))
            k.ids.first = "0"

        await snapshot_with(k, before, make)
    async with rebuilt(k) as (k, _):
        assert (await k.paths()) == {"/f": file, "/behind": before, "/copy": copy[0]}
        blob = await k.bench.stored(blob_object(shared))
        assert set(blob.sections["owners"]) == {file, copy[0]}


@virtual
async def test_parts_that_were_sealed_behind_what_was_read_are_not_lost(
    snapshot_with: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their age makes no difference: the snapshot does not know their file, but that it had them."""
    short_uploads(monkeypatch)
    k = keepers()
    async with k.running(BEFORE):
        upload, order, blobs = await _upload(k, "/sealed", b"first", b"second")
        k.clock.step_ms += 60_000
        passed, k.ids._count = k.ids._count, 1_000_000
        file, _ = await k.upload("/f")

        async def seal() -> None:
            k.ids._count, last = passed, k.ids._count
            sealed = SealUpload(upload, k.bench.begin("sealed"), tuple(order))
            assert await k.bench.service.seal_upload(BARTENDER, sealed) < file
            k.ids._count = last

        await snapshot_with(k, file, seal)
    async with rebuilt(k) as (k, _):
        found = [path for path in await k.paths() if path.endswith(".parts-1-2")]
        assert len(found) == 1
        assert all([len(await k.bench.locations(blob)) == 2 for blob in blobs])


@virtual
async def test_a_file_that_changed_all_the_time_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot could not read its extents. It has not been removed, so an administrator gets a report."""
    monkeypatch.setattr(snapshots, "TRIES", 0)
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await lay_over(k, file)
        await next_snapshot(k)
    async with rebuilt(k, BEFORE, invariants.CONTENT_MISSING) as (k, status):
        assert (await k.paths())["/f"] == file
        assert status.counts["left: content-missing"] == 1


@virtual
async def test_the_bytes_of_a_file_that_changed_all_the_time_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are older than a snapshot that could not read the file's extents: it knows them all the same."""
    short_uploads(monkeypatch)
    k, read, splices = keepers(), Records.get, list[str]()
    async with k.running(BEFORE):
        file, blob = await k.upload("/f", b"0123456789")
        await lay_over(k, file)
        obj = content_object(content_of(await k.bench.stored(file)))
        await asyncio.sleep(20)

        async def get(
            records: Records, call: Call, ids: Sequence[ObjectId], needed: Filter = ()
        ) -> tuple[StoredObject, ...]:
            found = await read(records, call, ids, needed)
            if list(ids) == [obj] and needed[0] == Needed("content"):
                splices.append(obj)
                with monkeypatch.context() as quietly:
                    quietly.setattr(Records, "get", read)
                    await k.splice("/f", file, 10, b"more")
            return found

        monkeypatch.setattr(Records, "get", get)
        await next_snapshot(k)
        monkeypatch.setattr(Records, "get", read)
        assert len(splices) >= 2 * snapshots.TRIES
    async with rebuilt(k, BEFORE, invariants.CONTENT_MISSING) as (k, _):
        assert (await k.paths())["/f"] == file
        assert len(await k.bench.locations(blob)) == 2
        assert f"/lost+found/{blob}" in await k.paths()


@virtual
async def test_a_snapshot_of_older_software_is_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all objects in order of their ids, each once."""

    async def by_id(taking: Snapshotting, ids: Sequence[ObjectId]) -> AsyncIterator[StoredObject]:
        for obj in await taking._read(ids):
            yield obj

    monkeypatch.setattr(Snapshotting, "_entries", by_id)
    k = keepers()
    async with k.running(BEFORE):
        file, shared = await k.upload("/f", sections={"policy": {EVE: "+read"}})
        copy = await k.bench.service.copy_file(BARTENDER, CopyFile(file, k.bench.begin("copy")))
        await next_snapshot(k)
    async with rebuilt(k) as (k, _):
        assert await k.paths() == {"/f": file, "/copy": copy}
        assert (await k.bench.stored(file)).sections["policy"] == {EVE: "+read"}
        assert set((await k.bench.stored(blob_object(shared))).sections["owners"]) == {file, copy}


@pytest.mark.expect_log("the rebuild has stopped")
@virtual
async def test_what_was_written_since_the_snapshot_stays_when_a_rebuild_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The earlier bytes still claim to be the file's."""
    k, broken_off = keepers(), list[str]()
    put_together = Rebuilding._put_together

    async def breaks_off_once(self: Rebuilding) -> None:
        if not broken_off:
            broken_off.append("the records are read")
            raise CheloniaError(Kind.TIMEOUT, "get")
        await put_together(self)

    monkeypatch.setattr(Rebuilding, "_put_together", breaks_off_once)
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await next_snapshot(k)
        _, newer = await k.upload("/f", b"newer", replaces=file)
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        for stage in ("failed", "done"):
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda stage=stage: is_at(k, stage), 200_000)
            assert list((await k.bench.stored(file)).sections["blobs"].values()) == [newer]


async def is_at(k: Keepers, stage: str) -> bool:
    return (await k.bench.service.rebuild(ADMIN, False)).stage == stage
