"""Small replicas that are files move into segments: none is lost or doubled, whatever happens in between."""

import asyncio
import errno
import hashlib
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.ports.shepherd import SmallReplica, StoreIdentity
from chelonia.core.timing.jobs import Wait
from chelonia.shepherd.store import blobs_files, blobs_segment_file, small_files
from chelonia.shepherd.store.blobs_local import LOOK_MS, MOVE_MS, LocalBlobs
from chelonia.shepherd.store.segment_format import Place, unpack
from tests.support.failing import fails
from tests.support.forgetful import Loss
from tests.support.power import PowerDisk, powered


def named(number: int) -> ReferenceId:
    return ReferenceId(f"{number:02x}000000-0000-4000-8000-{number:012x}")


def replica(number: int, size: int = 3000) -> SmallReplica:
    data = random.Random(number).randbytes(size)
    blob, guid = BlobId("cccccccc-0000-4000-8000-000000000003"), Guid("dddddddd-0000-4000-8000-000000000004")
    sums = Checksums(hashlib.sha256(data).hexdigest())
    return SmallReplica(named(number), ReplicaFacts(blob, guid, "/a", Dn("/CN=joe"), size, sums, 2, Ms(5), "s"), data)


async def made(root: Path, *replicas: SmallReplica) -> None:
    """A store from before segments; all but the last replica are committed."""
    store = LocalBlobs(root, small_bytes_max=0)
    await store.identify(StoreIdentity("store", ServiceId("https://h:1/Shepherd")))
    await store.store_whole(replicas)
    await store.settle(tuple(each.reference for each in replicas[:-1]))
    store.close()


async def begun(root: Path) -> LocalBlobs:
    store = LocalBlobs(root)
    await there(store)
    return store


async def there(store: LocalBlobs) -> dict[ReferenceId, tuple[int, bool]]:
    """Size of each replica, and whether it is committed; each is there once and reads as it was stored."""
    found = [each async for page in store.scan() for each in page.read]
    for each in found:
        wanted = replica(int(each.reference[:2], 16), each.size)
        assert each.facts == wanted.facts == await store.facts(each.reference)
        assert await read(store, each.reference, each.size) == wanted.data
    assert len({each.reference for each in found}) == len(found), "something is there twice"
    assert list(await store.sizes([each.reference for each in found])) == [each.size for each in found]
    return {each.reference: (each.size, each.committed) for each in found}


async def read(store: LocalBlobs, reference: ReferenceId, size: int) -> bytes:
    return b"".join([chunk async for chunk in store.read(reference, ByteRange(0, size))])


async def moved(store: LocalBlobs) -> None:
    """Move all, as the job does."""
    while await store.job().step() != Wait(LOOK_MS):
        pass


def files(root: Path) -> set[str]:
    return {path.name for path in (root / "replicas").glob("??/*")}


async def test_small_committed_files_move_once_and_all_else_stays(
    tmp_path: Path, expect_log: Callable[..., None]
) -> None:
    small = [replica(number, size) for number, size in ((1, 0), (2, 1), (3, 3000), (4, 65_536))]
    small += [replica(number) for number in range(10, 10 + small_files.TOGETHER_MAX + 5)]
    rotten, large, uncommitted = replica(5), replica(6, 65_537), replica(7)
    await made(tmp_path, *small, rotten, large, uncommitted)
    store = await begun(tmp_path)
    (tmp_path / "replicas/05" / named(5)).write_bytes(bytes(3000))
    await moved(store)
    left = {named(5), named(6), named(7)}
    assert files(tmp_path) == {*left, f"{named(5)}.record", f"{named(6)}.record", f"{named(7)}.uncommitted"}
    (tmp_path / "replicas/05" / named(5)).write_bytes(rotten.data)
    wanted = {
        each.reference: (each.facts.size, each is not uncommitted) for each in (*small, rotten, large, uncommitted)
    }
    assert await there(store) == wanted
    store.close()
    again = await begun(tmp_path)
    assert await there(again) == wanted
    await moved(again)
    assert named(5) not in files(tmp_path), "the next start has seen that it is whole"
    again.close()


async def test_nothing_moves_before_a_start_has_seen_all_where_nothing_is_small_and_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(tmp_path, replica(1), replica(2))
    before = files(tmp_path)
    store = LocalBlobs(tmp_path)
    await moved(store)
    assert files(tmp_path) == before
    store.close()
    store = LocalBlobs(tmp_path, small_bytes_max=0)
    await there(store)
    await moved(store)
    assert files(tmp_path) == before
    store.close()
    store = await begun(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(store._files, "free_bytes", lambda: 1000)
        await moved(store)
        assert files(tmp_path) == before
    await moved(store)
    assert named(1) not in files(tmp_path)
    store.close()


async def test_a_folder_that_could_not_be_listed_is_looked_through_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas remained files until the next start."""
    await made(tmp_path, replica(1), replica(2))
    store = await begun(tmp_path)

    def away(_: str) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(blobs_files.os, "scandir", away)
        for _ in range(2):
            with fails(Kind.UNAVAILABLE):
                await store.job().step()
    await moved(store)
    assert named(1) not in files(tmp_path)
    store.close()


async def test_a_file_that_cannot_be_removed_is_there_once_and_goes_with_its_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expect_log: Callable[..., None]
) -> None:
    await made(tmp_path, replica(1), replica(2), replica(3))
    store = await begun(tmp_path)
    unname = blobs_files._unname
    with monkeypatch.context() as patched:

        def refused(place: Path) -> bool:
            if place.name == named(1):
                raise PermissionError(1, "not permitted", str(place))
            return unname(place)

        patched.setattr(blobs_files, "_unname", refused)
        await moved(store)
        expect_log("the file of .* stays")
        assert files(tmp_path) >= {named(1)}
    assert await store.erase(named(1))
    assert named(1) not in files(tmp_path)
    assert set(await there(store)) == {named(2), named(3)}
    store.close()


@pytest.mark.parametrize("torn", ["entry", "file"])
async def test_of_a_file_and_an_entry_that_a_crash_left_the_whole_one_stays(tmp_path: Path, torn: str) -> None:
    await made(tmp_path, replica(1), replica(2))
    store = LocalBlobs(tmp_path)
    store._segments.store([replica(1)])
    store._segments.settle([named(1)])
    if torn == "entry":
        store._segments.spoil(named(1))
    else:
        (tmp_path / "replicas/01" / named(1)).unlink()
    store.close()
    store = await begun(tmp_path)
    assert await there(store) == {named(1): (3000, True), named(2): (3000, False)}
    assert (f"{named(1)}.record" in files(tmp_path), named(1) in store._segments) == (torn == "entry", torn == "file")
    store.close()


class Between:
    """Holds the mover after it has read a replica, or after it has synced an entry, until `go` is set."""

    def __init__(self, patch: pytest.MonkeyPatch, store: LocalBlobs, after: str) -> None:
        self.there, self.go = threading.Event(), threading.Event()
        owner: Any = store._files if after == "whole" else store._segments
        call = getattr(owner, after)

        def held(*arguments: Any) -> Any:
            answer = call(*arguments)
            self.there.set()
            assert self.go.wait(60)
            return answer

        patch.setattr(owner, after, held)

    async def meanwhile(self, store: LocalBlobs, act: Callable[[], Any]) -> Any:
        moving = asyncio.create_task(moved(store))
        assert await asyncio.to_thread(self.there.wait, 60)
        acting = asyncio.ensure_future(act())
        await asyncio.wait((acting,), timeout=0.05)  # it waits, or is done: both may be
        self.go.set()
        await moving
        return await acting


@pytest.mark.parametrize("after", ["whole", "add"])
async def test_who_erases_reads_or_sets_aside_what_moves_has_all_of_it(
    tmp_path: Path, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acted(number: int, act: Callable[[LocalBlobs], Any]) -> tuple[Any, LocalBlobs, Path]:
        root = tmp_path / str(number)
        await made(root, replica(1), replica(2))
        store = await begun(root)
        with monkeypatch.context() as patched:
            answer = await Between(patched, store, after).meanwhile(store, lambda: act(store))
        return answer, store, root

    erased, store, root = await acted(1, lambda store: store.erase(named(1)))
    assert (erased, set(await there(store)), files(root) & {named(1)}) == (True, {named(2)}, set())
    assert not await store.erase(named(1))
    store.close()
    _, store, root = await acted(2, lambda store: store.quarantine(named(1)))
    assert set(await there(store)) == {named(2)}
    assert [each.facts for each in await store.quarantined()] == [replica(1).facts]
    store.close()
    data, store, _ = await acted(3, lambda store: read(store, named(1), 3000))
    assert data == replica(1).data
    store.close()
    spoilt, store, _ = await acted(4, lambda store: store.spoil(named(1)))
    assert spoilt
    assert await read(store, named(1), 3000) != replica(1).data
    store.close()


@pytest.mark.parametrize("what", ["read", "facts", "sizes", "quarantine", "erase", "spoil"])
async def test_who_took_it_for_a_file_finds_it_where_it_went(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole move falls between an operation's choice of the engine and its turn there."""
    await made(tmp_path, replica(1), replica(2))
    store = await begun(tmp_path)
    call = getattr(store._files, what)

    async def late(*arguments: Any) -> Any:
        await moved(store)
        return await call(*arguments)

    async def late_read(*arguments: Any) -> AsyncIterator[bytes]:
        await moved(store)
        async for chunk in call(*arguments):
            yield chunk

    with monkeypatch.context() as patched:
        patched.setattr(store._files, what, late_read if what == "read" else late)
        if what == "read":
            assert await read(store, named(1), 3000) == replica(1).data
        elif what == "sizes":
            assert await store.sizes([named(1), named(2), named(3)]) == (3000, 3000, -1)
        elif what == "facts":
            assert await store.facts(named(1)) == replica(1).facts
        elif what == "spoil":
            assert await store.spoil(named(1))
        else:
            await getattr(store, what)(named(1))
    assert named(1) not in files(tmp_path)
    if what in ("erase", "quarantine"):
        assert set(await there(store)) == {named(2)}
        with pytest.raises(CheloniaError):
            await read(store, named(1), 3000)
    elif what == "spoil":
        assert await read(store, named(1), 3000) != replica(1).data
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with powered(tmp_path / "disk") as mounted:
        yield mounted


async def test_wherever_the_power_goes_each_is_there_once_and_whole(
    disk: PowerDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, images = disk.point / "store", list[Path]()
    (tmp_path / "images").mkdir()
    await made(root, replica(1), replica(2, 5000), replica(3))
    store = await begun(root)
    os.sync()

    def before(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            for loss, seed in ((Loss.ALL, 0), (Loss.BYTES, 0), *((Loss.SOME, seed) for seed in range(3))):
                images.append(disk.image(tmp_path / "images" / str(len(images)), seed, loss))
            return call(*arguments, **named)

        return called

    with monkeypatch.context() as patched:
        for module, names in ((blobs_segment_file, ("fdatasync", "pwrite")), (blobs_files, ("fsync", "replace"))):
            for name in names:
                patched.setattr(module.os, name, before(getattr(os, name)))
        await moved(store)
    store.close()
    assert named(1) not in files(root)
    for image in images:
        found = await begun(image / "store")
        sizes = {each: size for each, (size, _) in (await there(found)).items()}  # settling is synced by nobody
        assert sizes == {named(1): 3000, named(2): 5000, named(3): 3000}
        entries = {named(each) for each in (1, 2) if named(each) in found._segments}
        assert entries ^ {named(1), named(2)} == files(image / "store") & {named(1), named(2)}, "a file or an entry"
        found.close()


async def test_what_moved_without_the_sync_of_its_folder_is_erased_durably(
    disk: PowerDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut brought its file back, though its erasure had been confirmed."""
    root = disk.point / "store"
    await made(root, replica(1), replica(2))
    store = await begun(root)
    os.sync()

    def refused(_: Path) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(blobs_files, "sync_path", refused)
        with fails(Kind.UNAVAILABLE):
            await moved(store)
    assert (named(1) in store._segments, named(1) in files(root)) == (True, False)
    assert await store.erase(named(1))
    image = disk.image(tmp_path / "image", 0, Loss.ALL)
    store.close()
    again = await begun(image / "store")
    assert set(await there(again)) == {named(2)}
    again.close()


async def test_a_segment_is_given_up_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pauses after each step, so that users' reads and writes have the disk meanwhile."""
    monkeypatch.setattr(bounds, "SEGMENT_MOVED_BYTES", 8_000)
    store = LocalBlobs(tmp_path)
    await store.identify(StoreIdentity("store", ServiceId("https://h:1/Shepherd")))
    store._segments._segment_bytes = 100 * 4096
    await store.store_whole([replica(number) for number in range(1, 101)])
    await store.store_whole([replica(101)])
    assert [await store.erase(named(number)) for number in range(11, 101)] == [True] * 90
    job, steps = store.job(), 0
    first = tmp_path / "segments" / "00000001.segment"
    while first.exists():
        before = sum(place.segment == 1 for place in places(store))
        assert await job.step() == Wait(MOVE_MS)
        steps += 1
        assert before - sum(place.segment == 1 for place in places(store)) <= 2, "two make 8 000 bytes"
    assert steps == 6, "five for ten replicas, and one for what is left of the segment"
    assert set(await there(store)) == {named(number) for number in (*range(1, 11), 101)}
    store.close()


def places(store: LocalBlobs) -> list[Place]:
    return [unpack(each) for part in store._segments.places.values() for each in part.values()]
