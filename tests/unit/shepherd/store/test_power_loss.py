"""A Shepherd's disk after a power cut, on a file system that forgets unsynced data."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.ports.shepherd import MARK, ShepherdState, SmallReplica, StoredReplica, StoreIdentity
from chelonia.shepherd.store import blobs_files, blobs_segment_file, store_state
from chelonia.shepherd.store.blobs_files import FileBlobs
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.blobs_segments import BlobSegments
from chelonia.shepherd.store.store_state import StateFile
from tests.support.failing import fails
from tests.support.forgetful import Loss
from tests.support.power import PowerDisk, powered

REF = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
OTHER = ReferenceId("bbbbbbbb-0000-4000-8000-000000000002")
BYTES = os.urandom(30_000)
SEEDS = range(4)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with powered(tmp_path / "disk") as made:
        yield made


@pytest.fixture
async def blobs(disk: PowerDisk) -> AsyncIterator[FileBlobs]:
    store = FileBlobs(disk.point / "store")
    yield store
    store.close()


def facts(size: int = len(BYTES)) -> ReplicaFacts:
    blob, guid = BlobId("cccccccc-0000-4000-8000-000000000003"), Guid("dddddddd-0000-4000-8000-000000000004")
    return ReplicaFacts(blob, guid, "/a", Dn("/CN=joe"), size, Checksums("aa", "bb", "cc"), 2, Ms(5), "seal")


async def uploaded(blobs: FileBlobs) -> None:
    writer = await blobs.create(REF)
    await writer.write(BYTES)
    await writer.commit(facts())


async def stored_whole(blobs: FileBlobs) -> None:
    await blobs.store_whole([SmallReplica(REF, facts(), BYTES)])


Storing = Callable[[FileBlobs], Awaitable[None]]
both_ways = pytest.mark.parametrize("stored", [uploaded, stored_whole])


class After:
    """The disk after every kind of cut, each opened as a store."""

    def __init__(self, disk: PowerDisk, target: Path) -> None:
        self._disk = disk
        self._target = target
        self._taken = 0

    def images(self, *losses: Loss) -> Iterator[Path]:
        for loss in losses or Loss:
            for seed in SEEDS if loss in (Loss.SOME, Loss.LATEST) else (0,):
                self._taken += 1
                yield self._disk.image(self._target / str(self._taken), seed, loss)

    async def each(self, look: Callable[[Any], Awaitable[None]], *losses: Loss, engine: type = FileBlobs) -> None:
        for image in await asyncio.to_thread(lambda: list(self.images(*losses))):
            store = await asyncio.to_thread(engine, image / "store")
            try:
                await look(store)
            finally:
                store.close()


@pytest.fixture
def after(disk: PowerDisk, tmp_path: Path) -> After:
    (tmp_path / "images").mkdir()
    return After(disk, tmp_path / "images")


async def found(store: FileBlobs | LocalBlobs) -> list[StoredReplica]:
    return [each async for page in store.scan() for each in page.read]


async def read(store: FileBlobs | LocalBlobs) -> bytes:
    return b"".join([chunk async for chunk in store.read(REF, ByteRange(0, len(BYTES)))])


@both_ways
async def test_a_committed_replica_is_there_with_its_record(stored: Storing, blobs: FileBlobs, after: After) -> None:
    await stored(blobs)

    async def look(store: FileBlobs) -> None:
        assert await found(store) == [StoredReplica(REF, facts(), len(BYTES), committed=False)]
        assert await read(store) == BYTES

    await after.each(look)


@both_ways
async def test_whatever_is_cut_short_no_replica_is_seen_without_all_its_bytes_and_its_record(
    stored: Storing, blobs: FileBlobs, after: After, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[Path] = []

    def before(call: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: object) -> None:
            images.extend(after.images(Loss.ALL, Loss.BYTES, Loss.LATEST))
            call(*arguments)

        return called

    with monkeypatch.context() as patched:
        for name in ("fsync", "replace"):
            patched.setattr(blobs_files.os, name, before(getattr(os, name)))
        await stored(blobs)
    assert len(images) >= 5, "bytes, record, two names and their directory"
    for image in images:
        store = FileBlobs(image / "store")
        for replica in await found(store):
            assert replica.facts == facts(), "bytes have no record"
            if replica.size >= 0:
                assert await read(store) == BYTES
        store.close()


async def test_what_is_settled_is_whole_and_may_have_to_be_settled_again(blobs: FileBlobs, after: After) -> None:
    await uploaded(blobs)
    await blobs.settle((REF,))

    async def look(store: FileBlobs) -> None:
        assert [(each.size, each.facts is not None) for each in await found(store)] == [(len(BYTES), True)]
        await store.settle((REF,))
        assert [each.committed for each in await found(store)] == [True]

    await after.each(look)


async def test_a_suspended_upload_is_thrown_away(blobs: FileBlobs, after: After) -> None:
    writer = await blobs.create(REF)
    await writer.write(BYTES)
    await writer.suspend()

    async def look(store: FileBlobs) -> None:
        assert (await store.create(REF, resume=True)).offset == 0
        assert await found(store) == []

    await after.each(look)


async def test_a_sync_that_fails_keeps_nothing_of_a_suspended_upload(blobs: FileBlobs, disk: PowerDisk) -> None:
    """A process that opens the bytes again may see no error."""
    writer = await blobs.create(REF)
    await writer.write(BYTES)
    disk.fail_syncs(1)
    with fails(Kind.UNAVAILABLE):
        await writer.suspend()
    await writer.abort()
    assert (await blobs.create(REF, resume=True)).offset == 0


async def test_what_is_set_aside_brought_back_and_erased_stays_so(blobs: FileBlobs, after: After) -> None:
    await uploaded(blobs)
    await blobs.quarantine(REF)

    async def aside(store: FileBlobs) -> None:
        assert ([each.facts for each in await store.quarantined()], await found(store)) == ([facts()], [])

    async def back(store: FileBlobs) -> None:
        assert (await store.quarantined(), await read(store)) == ((), BYTES)
        assert [(each.facts, each.committed) for each in await found(store)] == [(facts(), True)]

    async def gone(store: FileBlobs) -> None:
        assert (await store.quarantined(), await found(store)) == ((), [])

    await after.each(aside)
    assert await blobs.reinstate(REF) is not None
    await after.each(back)
    assert await blobs.erase(REF)
    await after.each(gone)


@pytest.mark.parametrize("aside", [False, True])
async def test_an_erasure_whose_sync_failed_is_durable_once_it_is_repeated(
    blobs: FileBlobs, disk: PowerDisk, after: After, aside: bool
) -> None:
    await uploaded(blobs)
    if aside:
        await blobs.quarantine(REF)
    erase = blobs.discard if aside else blobs.erase
    disk.fail_syncs(1)
    with fails(Kind.UNAVAILABLE):
        await erase(REF)
    assert not await erase(REF), "nothing is left to be seen"

    async def gone(store: FileBlobs) -> None:
        assert (await store.quarantined(), await found(store)) == ((), [])

    await after.each(gone)


async def test_notes_before_a_mark_are_kept(blobs: FileBlobs, after: After) -> None:
    """A new file of notes may be gone: then a start reads every record."""

    async def nothing() -> AsyncIterator[Mapping[ReferenceId, bytes]]:
        yield {}

    await blobs.note_anew(nothing())
    await blobs.note({REF: b"told"})
    await blobs.note({MARK: b"1"})

    async def look(store: FileBlobs) -> None:
        notes = await store.notes()
        assert (notes.mark, notes.parts.get(REF[:2], {}).get(REF)) == (b"1", b"told")

    await after.each(look)


async def test_a_sync_that_fails_in_the_background_fails_the_upload(
    blobs: FileBlobs, disk: PowerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports it once; the next sync succeeds, and the bytes are gone."""
    monkeypatch.setattr(blobs_files, "SYNC_EVERY_BYTES", 10_000)
    writer = await blobs.create(REF)
    disk.fail_syncs(1)
    await writer.write(BYTES)
    with fails(Kind.UNAVAILABLE):
        await writer.commit(facts())
    assert await found(blobs) == []


@pytest.mark.parametrize("failing", range(3))
async def test_any_sync_that_fails_fails_the_commit(
    blobs: FileBlobs, disk: PowerDisk, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = 0

    def sync(fd: int) -> None:
        nonlocal synced
        if synced == failing:
            disk.fail_syncs(1)
        synced += 1
        os_fsync(fd)

    os_fsync = os.fsync
    with monkeypatch.context() as patched:
        patched.setattr(blobs_files.os, "fsync", sync)
        with pytest.raises(CheloniaError) as caught:
            await uploaded(blobs)
    assert caught.value.kind is Kind.UNAVAILABLE
    assert synced > failing
    assert await found(blobs) == [], "nobody is told of it"


# --- small replicas in segments ---------------------------------------------------------------------------------------


@pytest.fixture
async def local(disk: PowerDisk) -> AsyncIterator[LocalBlobs]:
    store = LocalBlobs(disk.point / "store")
    await store.identify(StoreIdentity("store", ServiceId("https://h:1/Shepherd")))
    yield store
    store.close()


async def test_a_replica_in_a_segment_is_kept_settled_set_aside_and_erased(local: LocalBlobs, after: After) -> None:
    await local.store_whole([SmallReplica(OTHER, facts(3), b"abc")])
    await local.store_whole([SmallReplica(REF, facts(), BYTES)])

    async def there(store: LocalBlobs) -> None:
        assert [(each.reference, each.facts, each.size) for each in await found(store)] == [
            (REF, facts(), len(BYTES)),
            (OTHER, facts(3), 3),
        ]
        assert await read(store) == BYTES
        await store.settle((REF,))
        assert next(each.committed for each in await found(store))

    async def aside(store: LocalBlobs) -> None:
        assert [each.facts for each in await store.quarantined()] == [facts()]
        assert [each.reference for each in await found(store)] == [OTHER]

    async def gone(store: LocalBlobs) -> None:
        assert ([each.reference for each in await found(store)], await store.quarantined()) == ([], ())

    await local.settle((REF,))
    await after.each(there, Loss.ALL, Loss.SOME, engine=LocalBlobs)
    await local.quarantine(REF)
    await after.each(aside, Loss.ALL, Loss.LATEST, engine=LocalBlobs)
    assert await local.erase(REF)
    assert await local.erase(OTHER)
    await after.each(gone, Loss.ALL, Loss.SOME, engine=LocalBlobs)


async def test_wherever_a_batch_is_cut_short_those_before_it_are_there_and_each_is_whole(
    local: LocalBlobs, after: After, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[Path] = []

    def before(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            images.extend(after.images(Loss.SOME))
            return call(*arguments)

        return called

    await local.store_whole([SmallReplica(REF, facts(), BYTES)])
    others = [ReferenceId(f"bbbbbbbb-0000-4000-8000-{number:012d}") for number in range(3)]
    with monkeypatch.context() as patched:
        for name in ("fdatasync", "pwrite"):
            patched.setattr(blobs_segment_file.os, name, before(getattr(os, name)))
        await local.store_whole([SmallReplica(other, facts(5000), BYTES[:5000]) for other in others])
    images.extend(after.images(Loss.ALL, Loss.BYTES))
    for image in images:
        store = await asyncio.to_thread(LocalBlobs, image / "store")
        assert await read(store) == BYTES
        for replica in await found(store):
            assert (replica.facts, replica.size) in ((facts(), len(BYTES)), (facts(5000), 5000))
            size = replica.size
            chunks = [chunk async for chunk in store.read(replica.reference, ByteRange(0, size))]
            assert b"".join(chunks) == BYTES[:size]
        store.close()


async def test_a_sync_that_fails_leaves_no_replica_of_its_batch(
    local: LocalBlobs, disk: PowerDisk, after: After
) -> None:
    await local.store_whole([SmallReplica(OTHER, facts(3), b"abc")])
    disk.fail_syncs(1)
    with fails(Kind.UNAVAILABLE):
        await local.store_whole([SmallReplica(REF, facts(), BYTES)])
    assert [each.reference for each in await found(local)] == [OTHER]
    await local.store_whole([SmallReplica(REF, facts(), BYTES)])

    async def there(store: LocalBlobs) -> None:
        assert [each.reference for each in await found(store)] == [REF, OTHER]
        assert await read(store) == BYTES

    await after.each(there, Loss.ALL, engine=LocalBlobs)


def test_a_move_that_was_killed_before_its_sync_loses_nothing_in_a_power_cut_after_it(
    disk: PowerDisk, after: After, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start reads unsynced data: it may not wipe the other entry on their evidence."""
    images: list[Path] = []

    class Killed(BaseException):
        pass

    def killed(file: blobs_segment_file.SegmentFile, change: int = 0, *, added: bool) -> None:
        if file.path.name == "00000002.segment":
            raise Killed

    def before(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            images.extend(after.images(Loss.ALL))
            return call(*arguments)

        return called

    (disk.point / "store").mkdir()
    blobs_segment_file.sync_path(disk.point)
    segments = BlobSegments(disk.point / "store", segment_bytes=10 * 4096)
    segments.store([SmallReplica(REF, facts(), BYTES)])
    with monkeypatch.context() as patched:
        patched.setattr(blobs_segment_file.SegmentFile, "sync", killed)
        with pytest.raises(Killed):
            segments.trim(REF, len(BYTES))
    with monkeypatch.context() as patched:
        for name in ("fdatasync", "pwrite"):
            patched.setattr(blobs_segment_file.os, name, before(getattr(os, name)))
        assert BlobSegments(disk.point / "store").read(REF, ByteRange(0, len(BYTES))) == BYTES
    images.extend(after.images(Loss.ALL))
    for image in images:
        assert BlobSegments(image / "store").read(REF, ByteRange(0, len(BYTES))) == BYTES


def test_wherever_a_segment_is_cut_short_while_it_is_given_up_what_lives_in_it_is_there_once_and_whole(
    disk: PowerDisk, after: After, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[Path] = []

    def before(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object) -> object:
            images.extend(after.images(Loss.ALL, Loss.BYTES))
            return call(*arguments)

        return called

    (disk.point / "store").mkdir()
    blobs_segment_file.sync_path(disk.point)
    segments = BlobSegments(disk.point / "store", segment_bytes=36 * 4096)
    dead = [ReferenceId(f"cccccccc-0000-4000-8000-{number:012d}") for number in range(28)]
    segments.store([SmallReplica(REF, facts(), BYTES), *[SmallReplica(each, facts(3), b"abc") for each in dead]])
    segments.store([SmallReplica(OTHER, facts(3), b"abc")])
    for each in dead:
        segments.erase(each)
    first = disk.point / "store" / "segments" / "00000001.segment"
    with monkeypatch.context() as patched:
        for name in ("fdatasync", "fsync", "pwrite", "unlink"):
            patched.setattr(blobs_segment_file.os, name, before(getattr(os, name)))
        patched.setattr(blobs_segment_file, "_punch_hole", before(blobs_segment_file._punch_hole))
        while segments.compact():
            pass
    images.extend(after.images(Loss.ALL))
    assert not first.exists(), "it was given up"
    assert len(images) > 10, "a write, its sync, a hole, its sync, a file that goes"
    for image in images:
        found = BlobSegments(image / "store")
        assert found.read(REF, ByteRange(0, len(BYTES))) == BYTES
        assert {each for part in found.places.values() for each in part} == {REF, OTHER}


# --- state and identity -----------------------------------------------------------------------------------------------

STATES = [ShepherdState(boot, b"secret", "c", boot, 0, {}) for boot in (1, 2)]


def test_state_and_identity_are_kept_when_they_are_said_to_be(disk: PowerDisk, after: After) -> None:
    for state in STATES:
        identity = StoreIdentity(f"store{state.boot}", ServiceId("https://h:1/Shepherd"))
        with store_state.locked(disk.point):
            StateFile(disk.point / "state.json").save(state)
            store_state.write_identity(disk.point, identity)
        for image in after.images():
            assert StateFile(image / "state.json").load() == state
            assert store_state.read_identity(image) == identity


def test_a_state_that_is_cut_short_is_the_one_before(
    disk: PowerDisk, after: After, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, images = StateFile(disk.point / "state.json"), []
    os.close(store_state.lock_directory(disk.point))
    file.save(STATES[0])

    def before(call: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: object) -> None:
            images.extend(after.images())
            call(*arguments)

        return called

    with monkeypatch.context() as patched:
        for name in ("fsync", "replace"):
            patched.setattr(store_state.os, name, before(getattr(os, name)))
        file.save(STATES[1])
    for image in images:
        assert StateFile(image / "state.json").load() in STATES
