"""A rebuild by a snapshot that was taken while files changed: it has an entry of before, and bytes of after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from chelonia.core.ids import CONTENT_PREFIX, Guid, blob_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import Unlink
from chelonia.core.values import replace
from chelonia.librarian.recovery import invariants, snapshots
from chelonia.librarian.recovery.snapshots import Snapshotting
from tests.sim.virtual_loop import virtual
from tests.support.librarian import BARTENDER, EVE
from tests.support.namespace_snapshot import broken
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.namespace.test_trash import snapshot
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, held, next_snapshot, rebuilt
from tests.unit.librarian.recovery.test_rebuilding_late import late, without
from tests.unit.librarian.recovery.test_snapshots import taken, times

Change = Callable[[Keepers, Guid], Awaitable[object]]


@pytest.fixture
def snapshot_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[None]]:
    """Waits for a snapshot in which something happens when the entry of a file has been read, and no blob yet; or when
    another object has."""
    monkeypatch.setattr(snapshots, "PAGE", 1)

    async def wait(k: Keepers, file: Guid, change: Change, at: str = "") -> None:
        read, before = Snapshotting._parts, await times(k, 1) or await taken(k)
        changed: list[StoredObject] = []

        async def parts(taking: Snapshotting, obj: StoredObject) -> Sequence[StoredObject]:
            found = await read(taking, obj)
            if obj.id == (at or file) and not changed:
                changed.append(obj)
                await change(k, file)
            return found

        async def done() -> bool:
            return bool(changed) and await taken(k) > before

        monkeypatch.setattr(Snapshotting, "_parts", parts)
        await k.until(done)

    return wait


async def overwrite(k: Keepers, file: Guid) -> None:
    await k.upload("/f", b"newer", replaces=file)


async def lay_over(k: Keepers, file: Guid) -> None:
    await k.splice("/f", file, 10, b"more")


async def overwrite_twice(k: Keepers, file: Guid) -> None:
    await lay_over(k, file)
    await overwrite(k, file)


@pytest.mark.parametrize("before", [False, True], ids=["a blob", "a content"])
@pytest.mark.parametrize("change", [overwrite, lay_over, overwrite_twice])
@virtual
async def test_a_file_that_was_overwritten_meanwhile_has_its_newer_bytes(
    before: bool, change: Change, snapshot_with: Callable[..., Awaitable[None]]
) -> None:
    """Also where the bytes that it had then are still on disks."""
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789", sections={"policy": {EVE: "+read"}})
        if before:
            await lay_over(k, file)
        away = next(iter(k.shepherds.values()))
        kept = dict(away.disk)
        await snapshot_with(k, file, change)
        now = await k.bench.stored(file)
        away.disk.update(kept)
    async with rebuilt(k) as (k, status):
        found = await k.bench.stored(file)
        for section in ("blobs", "content", "policy"):
            assert found.sections.get(section) == now.sections.get(section), section
        assert found.value("states", "size") == now.value("states", "size")
        same = before and change is lay_over  # its content has changed, and knows its size
        assert status.counts.get("files that changed while the snapshot was taken", 0) == (not same)
        assert (await k.paths())["/f"] == file


@virtual
async def test_a_file_of_whose_bytes_the_snapshot_knows_none_keeps_its_name(
    snapshot_with: Callable[..., Awaitable[None]],
) -> None:
    """The bytes that it had were erased before the snapshot came to them; the others came where it had been already,
    and who has them is away. It comes to them when that is back."""
    k = keepers()
    async with k.running(BEFORE):
        first, k.ids._count = k.ids._count, 1_000_000
        _, passed = await k.upload("/other")
        file, former = await k.upload("/f", b"0123456789", sections={"policy": {EVE: "+read"}})

        async def overwritten(k: Keepers, file: Guid) -> None:
            k.ids._count, last = first, k.ids._count
            _, blob = await k.upload("/f", b"newer", copies=1, replaces=file)
            assert blob < passed
            k.ids._count = last

        async def erased() -> bool:
            return not held(k, former)

        await snapshot_with(k, file, overwritten, blob_object(passed))
        await k.until(erased)
        away = next(iter(k.shepherds.values()))
        now = await k.bench.stored(file)
    async with without(k, away, settings=BEFORE) as status:
        assert status.counts["left: blob-missing"] == 1
        assert any(file in note for note in status.notes)
        assert (await k.paths())["/f"] == file
        await late(k, away)
        found = await k.bench.stored(file)
        assert (await k.paths())["/f"] == file
        for section in ("blobs", "policy"):
            assert found.sections.get(section) == now.sections.get(section), section


async def remove(k: Keepers, file: Guid) -> None:
    await k.bench.service.unlink(BARTENDER, Unlink(Guid("0"), "f", file))


@pytest.mark.parametrize(
    ("before", "rule"),
    [(False, invariants.BLOB_MISSING), (True, invariants.CONTENT_MISSING)],
    ids=["a blob", "a content"],
)
@virtual
async def test_a_file_that_was_removed_meanwhile_is_told_as_lost_and_can_be_removed(
    before: bool, rule: str, snapshot_with: Callable[..., Awaitable[None]]
) -> None:
    """It cannot be told from one that was overwritten by bytes which only a Shepherd that is away knows."""
    k = keepers()
    async with k.running(replace(BEFORE, trash_keep_ms=0)):
        file, _ = await k.upload("/f", b"0123456789")
        if before:
            await lay_over(k, file)
        await snapshot_with(k, file, remove)
        await k.until(lambda: none_left(k, file))
    async with rebuilt(k, replace(BEFORE, trash_keep_ms=0), rule) as (k, status):
        assert status.counts[f"left: {rule}"] == 1
        assert any(file in note for note in status.notes)
        assert (await k.paths())["/f"] == file
        await remove(k, file)
        assert "/f" not in await k.paths()
        await k.until(lambda: whole(k))


async def whole(k: Keepers) -> bool:
    """Nothing is left of it: what would be let go of is swept."""
    seen = await snapshot(k.bench)
    return not broken(seen) and not any(obj.startswith(CONTENT_PREFIX) for obj in seen.objects)


async def none_left(k: Keepers, file: Guid) -> bool:
    return not any(kept.facts.guid == file for keeper in k.shepherds.values() for kept in keeper.disk.values())


@virtual
async def test_a_file_that_changed_all_the_time_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot could not read its extents. It has not been removed, so a person is told."""
    monkeypatch.setattr(snapshots, "CONTENT_TRIES", 0)
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await lay_over(k, file)
        await next_snapshot(k)
    async with rebuilt(k, BEFORE, invariants.CONTENT_MISSING) as (k, status):
        assert (await k.paths())["/f"] == file
        assert status.counts["left: content-missing"] == 1
