"""Small replicas in segments: the results of crashes, rot and erasures, and the end of mostly dead segments."""

import asyncio
import errno
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.ports.shepherd import SmallReplica, StoreIdentity
from chelonia.shepherd.store import blobs_segment_file, blobs_segment_start
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.blobs_segment_file import SegmentFile
from chelonia.shepherd.store.blobs_segment_start import name_of
from chelonia.shepherd.store.blobs_segments import BlobSegments
from chelonia.shepherd.store.segment_format import BLOCK_BYTES
from chelonia.shepherd.store.store_state import read_identity
from chelonia.wire import records
from tests.support.failing import fails
from tests.support.polling import poll, poll_async


def named(number: int) -> ReferenceId:
    return ReferenceId(f"{number:08x}-0000-4000-8000-{number:012x}")


def facts(size: int) -> ReplicaFacts:
    blob, guid = BlobId("cccccccc-0000-4000-8000-000000000003"), Guid("dddddddd-0000-4000-8000-000000000004")
    return ReplicaFacts(blob, guid, "/a", Dn("/CN=joe"), size, Checksums("aa", "bb", "cc"), 2, Ms(5), "seal")


def data_of(number: int, size: int = 3000) -> bytes:
    return random.Random(number).randbytes(size)


def replicas(*numbers: int, size: int = 3000) -> list[SmallReplica]:
    return [SmallReplica(named(number), facts(size), data_of(number, size)) for number in numbers]


def held(segments: BlobSegments) -> list[int]:
    """The replicas that are there; each is whole."""
    found = sorted(reference for part in segments.places.values() for reference in part)
    for reference in found:
        size = segments.size(reference, {})
        assert segments.facts(reference) == facts(size)
        assert segments.read(reference, ByteRange(0, size)) == data_of(int(reference[:8], 16), size)
    return [int(reference[:8], 16) for reference in found]


def after_crash(root: Path, target: Path, change: Callable[[Path], None] = lambda path: None) -> BlobSegments:
    """A store of another process that opens the files as they are, without an orderly end."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target)
    change(target / "segments")
    return BlobSegments(target)


def first(root: Path) -> Path:
    return root / "segments" / "00000001.segment"


def test_what_was_stored_is_there_after_any_end(tmp_path: Path) -> None:
    segments = BlobSegments(tmp_path / "a")
    (tmp_path / "a").mkdir()
    segments.store(replicas(1, 2, 3))
    segments.settle([named(2)])
    assert held(after_crash(tmp_path / "a", tmp_path / "b")) == [1, 2, 3]
    segments.close()
    assert (tmp_path / "a/segments/notes").exists()
    again = BlobSegments(tmp_path / "a")
    assert (held(again), again.load()) == ([1, 2, 3], False)
    assert [again.place(named(number)).committed for number in (1, 2, 3)] == [False, True, False]
    assert not (tmp_path / "a/segments/notes").exists(), "it holds until something is changed"
    with pytest.raises(OSError, match="closed"):
        segments.store(replicas(4))


def test_an_orderly_end_spares_the_next_start_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = BlobSegments(tmp_path)
    segments.store(replicas(*range(20)))
    segments.erase(named(7))
    segments.close()
    with monkeypatch.context() as patched:
        patched.setattr(blobs_segment_file.SegmentFile, "walk", lambda *_: pytest.fail("headers are read"))
        again = BlobSegments(tmp_path)
        assert not again.load()
    assert held(again) == [number for number in range(20) if number != 7]
    again.close()
    with first(tmp_path).open("ab") as file:
        file.write(bytes(BLOCK_BYTES))  # it has been used since by somebody else
    other = BlobSegments(tmp_path)
    assert (other.load(), len(held(other))) == (True, 19)


@pytest.mark.parametrize("size", [0, 3000, 5000])
def test_cut_off_at_every_byte_of_a_batch_only_what_is_not_whole_is_gone(tmp_path: Path, size: int) -> None:
    root, target = tmp_path / "a", tmp_path / "b"
    root.mkdir()
    segments = BlobSegments(root)
    segments.store(replicas(1))
    start = first(root).stat().st_size
    segments.store(replicas(2, 3, size=size))
    raw, target_file = first(root).read_bytes(), first(target)
    second = segments.place(named(2))
    needed = {2: second.at + second.size, 3: segments.place(named(3)).at + segments.place(named(3)).size}
    target_file.parent.mkdir(parents=True)
    edges = {at + step for at in (start, *needed.values(), second.end) for step in (*range(-2, 3), *range(48, 68, 3))}
    for cut in sorted(at for at in edges | set(range(start, len(raw), 397)) if start <= at <= len(raw)):
        target_file.write_bytes(raw[:cut])
        found = BlobSegments(target)
        assert held(found) == [1] + [number for number, end in needed.items() if end <= cut]
    found.store(replicas(4))
    assert held(BlobSegments(target))[-1] == 4


def test_whatever_pages_of_a_batch_are_lost_what_was_before_it_is_there(tmp_path: Path) -> None:
    """A disk writes pages in any order: some are old, or zeros where there was nothing."""
    root, target, chance = tmp_path / "a", tmp_path / "b", random.Random(5)
    root.mkdir()
    segments = BlobSegments(root)
    segments.store(replicas(1, 2))
    start = first(root).stat().st_size
    segments.store(replicas(3, 4, 5, size=6000))
    raw = first(root).read_bytes()
    for _ in range(40):
        lost = {at for at in range(start, len(raw), BLOCK_BYTES) if chance.random() < 0.5}

        def lose(folder: Path, lost: set[int] = lost) -> None:
            torn = bytearray(raw)
            for at in lost:
                torn[at : at + BLOCK_BYTES] = bytes(BLOCK_BYTES)
            (folder / "00000001.segment").write_bytes(torn)

        found = after_crash(root, target, lose)
        whole = [number for number in (3, 4, 5) if not lost & pages(segments, number)]
        assert held(found) == [1, 2, *whole]
        for number in {3, 4, 5} - set(whole):
            assert not found.erase(named(number))
            assert data_of(number, 6000)[:100] not in first(target).read_bytes(), "nothing is left of it"
        found.store(replicas(6))
        assert held(BlobSegments(target)) == [1, 2, *whole, 6]


def pages(segments: BlobSegments, number: int) -> set[int]:
    place = segments.place(named(number))
    return set(range(place.at, place.end, BLOCK_BYTES))


@pytest.mark.parametrize("what", ["magic", "length", "reference", "digest", "record", "data"])
def test_what_is_damaged_loses_only_itself(tmp_path: Path, what: str, expect_log: Callable[..., None]) -> None:
    expect_log("damaged blocks", optional=True)
    root = tmp_path / "a"
    root.mkdir()
    segments = BlobSegments(root, segment_bytes=20 * BLOCK_BYTES)
    segments.store(replicas(1, 2, 3, size=9000))
    segments.settle(map(named, (1, 2, 3)))
    segments.store(replicas(*range(4, 30)))
    place = segments.place(named(2))
    at = {"magic": 0, "length": 33, "reference": 20, "digest": 50, "record": 90, "data": place.data_at - place.at + 5}[
        what
    ]

    def flip(folder: Path) -> None:
        with (folder / "00000001.segment").open("r+b") as file:
            file.seek(place.at + at)
            (byte,) = file.read(1)
            file.seek(place.at + at)
            file.write(bytes((byte ^ 0x40,)))

    found = after_crash(root, tmp_path / "b", flip)
    there = {int(reference[:8], 16) for part in found.places.values() for reference in part}
    assert there == set(range(1, 30)) - ({2} if what in ("magic", "length", "reference", "digest") else set())
    assert found.read(named(1), ByteRange(0, 9000)) == data_of(1, 9000)
    assert found.read(named(3), ByteRange(0, 9000)) == data_of(3, 9000)
    if what == "record":
        assert found.facts(named(2)) is None
    if what == "data":
        assert found.read(named(2), ByteRange(0, 9000)) != data_of(2, 9000), "the scrub tells it"


def test_the_front_of_a_segment_may_be_lost(tmp_path: Path) -> None:
    root = tmp_path / "a"
    root.mkdir()
    segments = BlobSegments(root)
    segments.store(replicas(1, 2))

    def damage(folder: Path) -> None:
        with (folder / "00000001.segment").open("r+b") as file:
            file.write(b"garbage" * 20)

    found = after_crash(root, tmp_path / "b", damage)
    assert held(found) == [1, 2]
    found.store(replicas(3))
    assert found.place(named(3)).segment == 2, "nothing is added to it"
    found.erase(named(1))
    assert held(after_crash(tmp_path / "b", tmp_path / "c")) == [2, 3]


@pytest.mark.parametrize("block", range(5))
def test_a_block_that_cannot_be_read_costs_only_its_entry(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch, expect_log: Callable[..., None]
) -> None:
    """It proves nothing: if a later start can read it, it is as before."""
    expect_log("what cannot be read in it is passed over", optional=True)
    expect_log("damaged blocks", optional=True)
    pread, bad = os.pread, block * BLOCK_BYTES

    def failing(fd: int, length: int, at: int) -> bytes:
        if at <= bad < at + length or bad < at < bad + BLOCK_BYTES:
            if at < bad:
                return pread(fd, bad - at, at)
            raise OSError(errno.EIO, "no")
        return pread(fd, length, at)

    root = tmp_path / "a"
    root.mkdir()
    segments = BlobSegments(root)
    segments.store([*replicas(1), *replicas(2, size=6000), *replicas(3)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", failing)
        found = after_crash(root, tmp_path / "b")
        there = {int(reference[:8], 16) for part in found.places.values() for reference in part}
        assert there == {1, 2, 3} - {{1: 1, 2: 2, 4: 3}.get(block, 0)}
        if block == 3:
            with fails(Kind.NOT_ALIVE):
                found.read(named(2), ByteRange(0, 6000))
        found.store(replicas(4))
        for number in there:
            found.erase(named(number))
        assert found.compact() is (block == 0)
        found.close()
    assert held(BlobSegments(tmp_path / "b")) == sorted({1, 2, 3, 4} - there)


def test_rot_of_what_nobody_has_settled_yet_is_no_crash(tmp_path: Path) -> None:
    """A user may have its receipt; only the newest segment can have an entry that was being written."""
    root = tmp_path / "a"
    root.mkdir()
    segments = BlobSegments(root, segment_bytes=2 * BLOCK_BYTES)
    for number in (1, 2):
        segments.store(replicas(number))
    at = segments.place(named(1)).data_at

    def rot(folder: Path) -> None:
        with (folder / "00000001.segment").open("r+b") as file:
            file.seek(at)
            file.write(b"rot")

    found = after_crash(root, tmp_path / "b", rot)
    assert found.read(named(1), ByteRange(0, 3000))[:3] == b"rot", "the scrub tells it"


@pytest.mark.parametrize("after", ["a start", "a read that failed"])
def test_a_full_segment_is_synced_before_the_next_one_is_begun(
    tmp_path: Path, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also when it has not been written to since it was opened: wiped entries must not come back."""
    segments, synced, sync = BlobSegments(tmp_path, segment_bytes=2 * BLOCK_BYTES), list[str](), os.fdatasync
    segments.store(replicas(1))
    if after == "a start":
        segments = BlobSegments(tmp_path, segment_bytes=2 * BLOCK_BYTES)
        segments.load()
    else:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
            with pytest.raises(CheloniaError):
                segments.read(named(1), ByteRange(0, 3000))

    def note(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    segments.store(replicas(2))
    assert synced == ["00000001.segment", "00000002.segment"]


def test_bytes_that_look_like_a_header_are_none(tmp_path: Path, expect_log: Callable[..., None]) -> None:
    """A user who damages nothing but knows the layout cannot make a replica of his own."""
    expect_log("damaged blocks", optional=True)
    root = tmp_path / "a"
    root.mkdir()
    segments = BlobSegments(root)
    forged = layout.encode(b"whatever", layout.header_of(named(9), b"", b"mine"), b"mine")
    size = 5 * BLOCK_BYTES
    data = (bytes(BLOCK_BYTES - layout.HEADER_BYTES - len(records.encode_facts(facts(size)))) + forged * 5)[:size]
    segments.store([SmallReplica(named(1), facts(size), data)])
    segments.store(replicas(2))
    assert first(root).read_bytes().index(forged) % BLOCK_BYTES == 0

    def damage(folder: Path) -> None:
        with (folder / "00000001.segment").open("r+b") as file:
            file.seek(BLOCK_BYTES + 20)
            file.write(b"rot")

    assert held(after_crash(root, tmp_path / "b", damage)) == [2]


def test_an_erasure_leaves_no_bytes_and_gives_its_blocks_back(tmp_path: Path) -> None:
    segments = BlobSegments(tmp_path)
    segments.store(replicas(1, 2, 3, size=50_000))
    before = first(tmp_path).stat().st_blocks
    assert segments.erase(named(2))
    assert not segments.erase(named(2))
    raw = first(tmp_path).read_bytes()
    assert data_of(2, 50_000)[:50] not in raw
    assert bytes.fromhex(named(2).replace("-", "")) not in raw
    assert first(tmp_path).stat().st_blocks <= before - 50_000 // 512
    assert held(segments) == [1, 3]
    assert held(BlobSegments(tmp_path)) == [1, 3]


def test_where_no_blocks_are_taken_back_they_are_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_segment_file, "_punch_hole", lambda *_: False)
    segments = BlobSegments(tmp_path)
    segments.store(replicas(1, 2, 3))
    segments.erase(named(2))
    assert data_of(2)[:50] not in first(tmp_path).read_bytes()
    assert held(BlobSegments(tmp_path)) == [1, 3]


def test_writers_that_wait_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, syncs, sync = BlobSegments(tmp_path), 0, os.fdatasync
    segments.store(replicas(0))
    begun, go = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        begun.set()
        assert go.wait(60)
        sync(fd)

    monkeypatch.setattr(blobs_segment_file.os, "fdatasync", slow)
    threads = [threading.Thread(target=segments.store, args=(replicas(number),)) for number in range(1, 9)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    poll(lambda: segments._file(1)._changes == 9, what="all have written")
    go.set()
    for thread in threads:
        thread.join(60)
    assert (held(segments), syncs) == (list(range(9)), 2)


def test_after_a_sync_that_failed_nothing_is_vouched_for_that_it_was_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports it once; a later sync succeeds and has saved none of it."""
    segments, sync = BlobSegments(tmp_path), os.fdatasync
    segments.store(replicas(1))

    def fail(fd: int) -> None:
        monkeypatch.setattr(blobs_segment_file.os, "fdatasync", sync)
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(blobs_segment_file.os, "fdatasync", fail)
    with pytest.raises(OSError, match="no"):
        segments.store(replicas(2))
    segments.store(replicas(3))
    assert held(segments) == [1, 3]
    assert (segments.place(named(1)).segment, segments.place(named(3)).segment) == (1, 2)
    assert held(BlobSegments(tmp_path)) == [1, 3]


def test_an_erasure_whose_sync_failed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, sync = BlobSegments(tmp_path), os.fdatasync
    segments.store(replicas(1))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(blobs_segment_file.os, "fdatasync", fail)
    with pytest.raises(OSError, match="no"):
        segments.erase(named(1))
    monkeypatch.setattr(blobs_segment_file.os, "fdatasync", sync)
    assert named(1) not in segments
    assert segments.erase(named(1)), "it is not confirmed before it is durable"
    assert not segments.erase(named(1))


def test_a_segment_that_is_mostly_dead_is_given_up(tmp_path: Path) -> None:
    root = tmp_path / "a"
    root.mkdir()
    segments = BlobSegments(root, segment_bytes=40 * BLOCK_BYTES)
    segments.store(replicas(*range(39)))
    segments.settle([named(5)])
    segments.store(replicas(*range(39, 45)))
    assert not segments.compact()
    for number in range(39):
        if number % 8 != 5:
            segments.erase(named(number))
    living = [5, 13, 21, 29, 37]
    assert segments.compact()
    assert {segments.place(named(number)).segment for number in living} == {2}
    found = after_crash(root, tmp_path / "b")
    assert held(found) == held(segments) == [*living, *range(39, 45)]
    assert segments.compact()
    assert not first(root).exists()
    assert not segments.compact()
    assert segments.place(named(5)).committed
    assert not segments.place(named(13)).committed
    segments.close()
    assert held(BlobSegments(root)) == [*living, *range(39, 45)]


def test_a_segment_that_is_gone_keeps_no_other_from_being_given_up(
    tmp_path: Path, expect_log: Callable[..., None]
) -> None:
    expect_log("segment 1 stays")
    segments = BlobSegments(tmp_path, segment_bytes=10 * BLOCK_BYTES)
    for start in (0, 10, 20):
        segments.store(replicas(*range(start, start + 10)))
    for number in (*range(1, 10), *range(11, 20)):
        segments.erase(named(number))
    first(tmp_path).unlink()
    segments._opened.clear()
    while segments.compact():
        pass
    assert [segments.place(named(number)).segment for number in (0, 10)] == [1, 4]
    assert segments.erase(named(0))
    assert segments.compact(), "nothing is left of it: it need not be read"
    assert not segments.compact()


def test_a_store_after_a_spoiling_whose_sync_failed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = BlobSegments(tmp_path)
    segments.store(replicas(1))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="no"):
            segments.spoil(named(1))
    segments.store(replicas(2))
    assert segments.place(named(2)).segment == 2


def test_a_crash_while_a_replica_is_moved_leaves_one_of_it_and_an_erasure_both_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, images = tmp_path / "a", list[Path]()
    root.mkdir()
    segments = BlobSegments(root, segment_bytes=20 * BLOCK_BYTES)
    segments.store(replicas(*range(1, 20)))
    segments.store(replicas(20))
    for number in range(3, 20):
        segments.erase(named(number))

    def pictured(call: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            for moment in ("before", "after"):
                images.append(tmp_path / f"{len(images)}{moment}")
                shutil.copytree(root, images[-1])
                if moment == "before":
                    result = call(*arguments, **named)
            return result

        return called

    with monkeypatch.context() as patched:
        for name in ("add", "wipe", "sync"):
            patched.setattr(
                blobs_segment_file.SegmentFile, name, pictured(getattr(blobs_segment_file.SegmentFile, name))
            )
        assert segments.compact()
        segments.settle([named(1)])
    assert segments.erase(named(2))
    images.append(root)
    twice = 0
    for image in images:
        twice += sum(path.read_bytes().count(data_of(1)) for path in (image / "segments").iterdir()) == 2
        found = BlobSegments(image)
        assert held(found) == [1, 20] if image == root else held(found) == [1, 2, 20]
        assert sum(path.read_bytes().count(data_of(1)) for path in (image / "segments").iterdir()) == 1
        found.erase(named(1))
        assert held(BlobSegments(image)) == [number for number in held(found) if number != 1]
    assert twice


def test_an_erased_replica_is_not_brought_back_by_a_reader_or_a_move(tmp_path: Path) -> None:
    """With readers, erasures and moves at once, a reader gets all of it or an error."""
    segments = BlobSegments(tmp_path, segment_bytes=30 * BLOCK_BYTES)
    for start in range(0, 120, 10):
        segments.store(replicas(*range(start, start + 10)))
    wrong, done = list[str](), threading.Event()

    def read() -> None:
        while not done.is_set():
            for number in range(120):
                try:
                    found = segments.read(named(number), ByteRange(0, 3000))
                except CheloniaError as error:
                    if error.kind is not Kind.NOT_ALIVE or number % 10 == 5:
                        wrong.append(str(error))
                    continue
                if found != data_of(number):
                    wrong.append(f"{number} is torn")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(120):
        if number % 10 != 5:
            segments.erase(named(number))
    while segments.compact():
        pass
    done.set()
    for reader in readers:
        reader.join(60)
    assert wrong == []
    assert held(segments) == [number for number in range(120) if number % 10 == 5]
    assert len(list((tmp_path / "segments").iterdir())) <= 3


def test_few_segments_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SEGMENTS_OPEN_MAX", 4)
    segments = BlobSegments(tmp_path, segment_bytes=2 * BLOCK_BYTES)
    for number in range(20):
        segments.store(replicas(number))
    before, found = len(os.listdir("/proc/self/fd")), list[list[int]]()
    readers = [threading.Thread(target=lambda: found.append(held(segments))) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert found == [list(range(20))] * 8
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_a_segment_stays_open_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its descriptor is another file's by then, and so are the bytes."""
    segments, pread = BlobSegments(tmp_path), os.pread
    segments.store(replicas(1))
    (tmp_path / "foreign").write_bytes(bytes(100_000))
    opened = []

    def late(fd: int, length: int, at: int) -> bytes:
        segments._opened.clear()
        segments._current = None
        opened.append((tmp_path / "foreign").open("rb"))
        return pread(fd, length, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", late)
        assert segments.read(named(1), ByteRange(0, 3000)) == data_of(1)
    for file in opened:
        file.close()


def test_what_is_rotten_is_not_moved_as_if_it_were_whole(tmp_path: Path, expect_log: Callable[..., None]) -> None:
    expect_log("segment 1 stays")
    segments = BlobSegments(tmp_path, segment_bytes=20 * BLOCK_BYTES)
    segments.store(replicas(*range(1, 20)))
    segments.store(replicas(20))
    for number in range(3, 20):
        segments.erase(named(number))
    with first(tmp_path).open("r+b") as file:
        file.seek(segments.place(named(2)).data_at)
        file.write(b"rot")
    assert segments.compact()
    assert segments.compact()
    assert not segments.compact()
    assert [segments.place(named(number)).segment for number in (1, 2)] == [2, 1]


# --- the engine -----------------------------------------------------------------------------------------------------

IDENTITY = StoreIdentity("store", ServiceId("https://h:1/Shepherd"), "cluster")


async def test_what_is_erased_together_shares_hole_and_sync_and_loses_no_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a"
    store = LocalBlobs(root)
    await store.store_whole(replicas(*range(9)))
    calls = list[str]()
    for name in ("wipe", "sync"):
        whole = getattr(SegmentFile, name)

        def counted(*args: Any, name: str = name, whole: Callable[..., Any] = whole, **named: Any) -> Any:
            calls.append(name)
            return whole(*args, **named)

        monkeypatch.setattr(SegmentFile, name, counted)
    gone = (1, 2, 3, 6, 7)
    assert await asyncio.gather(*(store.erase(named(number)) for number in gone)) == [True] * 5
    assert calls == ["wipe", "wipe", "sync"]
    assert held(after_crash(root, tmp_path / "b")) == [0, 4, 5, 8]
    store.close()


async def test_one_in_an_unreadable_sector_is_set_aside_as_far_as_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pread = LocalBlobs(tmp_path), os.pread
    await store.store_whole(replicas(1, size=3 * BLOCK_BYTES))
    bad = store._segments.place(named(1)).at + BLOCK_BYTES

    def rotten(fd: int, length: int, at: int) -> bytes:
        if at < bad + BLOCK_BYTES and bad < at + length:
            raise OSError(errno.EIO, "no")
        return pread(fd, length, at)

    monkeypatch.setattr(os, "pread", rotten)
    before = data_of(1, 3 * BLOCK_BYTES)
    skipped = bad - store._segments.place(named(1)).data_at
    await store.quarantine(named(1))
    (stored,) = await store.quarantined()
    assert (stored.reference, stored.size) == (named(1), len(before))
    found = (tmp_path / "quarantine" / named(1)).read_bytes()
    assert found == before[:skipped] + bytes(BLOCK_BYTES) + before[skipped + BLOCK_BYTES :]
    assert held(store._segments) == []
    store.close()


async def test_an_upload_that_began_anew_and_is_given_up_leaves_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path, small_bytes_max=10)
    for data in (b"so", b"not small any more"):
        writer = await store.create(named(1))
        await writer.write(b"some")
        await writer.suspend()
        assert list((tmp_path / "incoming").iterdir())
        again = await store.create(named(1))
        await again.write(data)
        await again.abort()
        await again.abort()
        assert not list((tmp_path / "incoming").iterdir())
    store.close()


async def test_what_cannot_be_erased_holds_up_nothing_that_is_erased_with_it(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path, segment_bytes=4 * BLOCK_BYTES)
    for number in range(4):
        await store.store_whole(replicas(number))
    segments = [store._segments.place(named(each)).segment for each in range(4)]
    assert len(set(segments)) > 1
    store._segments._opened.clear()
    (tmp_path / "segments" / name_of(segments[1])).write_bytes(layout.encode_segment(b"another!"))
    erased = await asyncio.gather(*(store.erase(named(each)) for each in range(4)), return_exceptions=True)
    assert [isinstance(each, CheloniaError) for each in erased] == [each == segments[1] for each in segments]
    store.close()


async def test_an_erasure_that_nobody_waits_for_any_more_is_not_done_with_a_later_one(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    await store.store_whole(replicas(1, 2))
    given_up = asyncio.create_task(store.erase(named(1)))
    await asyncio.sleep(0)  # it has begun
    given_up.cancel()
    assert await store.erase(named(2))
    assert given_up.cancelled()
    assert held(store._segments) == [1]
    store.close()


async def test_a_store_whose_segments_are_gone_is_not_there(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    await store.identify(IDENTITY)
    assert json.loads((tmp_path / "store.json").read_bytes())["format"] == 1
    await store.store_whole(replicas(1))
    assert json.loads((tmp_path / "store.json").read_bytes())["format"] == 2, "older software is to refuse it"
    assert await store.identity() == IDENTITY == read_identity(tmp_path)
    (tmp_path / "segments").rename(tmp_path / "away")
    with pytest.raises(CheloniaError, match="its segments/ is gone"):
        await store.identity()
    for harm in (store.store_whole(replicas(2)), store.erase(named(1))):
        with fails(Kind.UNAVAILABLE):
            await harm
    (tmp_path / "away").rename(tmp_path / "segments")
    assert await store.identity() == IDENTITY
    await store.store_whole(replicas(3))
    assert await store.erase(named(1))
    store.close()
    (tmp_path / "segments").rename(tmp_path / "away")
    (tmp_path / "segments").mkdir()
    with fails(Kind.BAD_CONFIG, match="accept-store"):
        LocalBlobs(tmp_path)


async def test_an_upload_is_a_file_once_it_is_not_small(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path, small_bytes_max=100)
    for number, size in ((1, 100), (2, 101)):
        writer = await store.create(named(number))
        for byte in data_of(number, size):
            await writer.write(bytes((byte,)))
        assert writer.offset == size
        await writer.commit(facts(size))
    files = [path.name for path in (tmp_path / "replicas").glob("*/*") if path.suffix == ""]
    assert files == [named(2)]
    for number, size in ((1, 100), (2, 101)):
        assert b"".join([chunk async for chunk in store.read(named(number), ByteRange(0, size))]) == data_of(
            number, size
        )
    store.close()


async def test_what_is_in_segments_is_served_when_no_more_are_made(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    await store.store_whole(replicas(1))
    store.close()
    store = LocalBlobs(tmp_path, small_bytes_max=0)
    await store.store_whole(replicas(2))
    await store.store_whole(replicas(3, size=0))
    names = [named(1), named(2), named(3)]
    assert await store.sizes(names) == (3000, 3000, 0)
    assert [each.reference async for page in store.scan() for each in page.read] == names
    assert (tmp_path / "replicas/00" / named(2)).exists()
    assert (tmp_path / "replicas/00" / named(3)).exists()
    store.close()


async def test_a_crash_while_a_replica_is_set_aside_leaves_one_of_it(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    await store.store_whole(replicas(1, 2, 3))
    for number, left in ((1, data_of(1)), (2, data_of(2)[:10]), (3, bytes(3000))):
        record, _, committed = store._segments.raw(named(number))
        store._files.put_aside(named(number), record, left, committed=committed)
    store.close()
    (tmp_path / "segments/notes").unlink()
    store = LocalBlobs(tmp_path)
    assert [each.reference async for page in store.scan() for each in page.read] == [named(2), named(3)]
    assert [each.reference for each in await store.quarantined()] == [named(1)]
    store.close()


async def test_what_is_stored_while_the_store_is_closed_is_in_its_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, begun, go, sync = LocalBlobs(tmp_path), threading.Event(), threading.Event(), os.fdatasync
    await store.store_whole(replicas(1))

    def slow(fd: int) -> None:
        begun.set()
        assert go.wait(60)
        sync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", slow)
        storing = asyncio.create_task(store.store_whole(replicas(2)))
        await asyncio.to_thread(begun.wait, 60)
        closing = asyncio.create_task(asyncio.to_thread(store.close))
        await poll_async(lambda: store._files.threads._pool._shutdown, what="the store is being closed")
        go.set()
        await closing
        await storing
    assert held(BlobSegments(tmp_path)) == [1, 2]


def test_committed_replicas_in_segments_are_counted(tmp_path: Path) -> None:
    segments = BlobSegments(tmp_path)
    assert blobs_segment_start.count_committed(tmp_path) == 0
    segments.store(replicas(1, 2, 3))
    segments.settle([named(1), named(3)])
    assert blobs_segment_start.count_committed(tmp_path) == 2


@pytest.mark.parametrize("change", ["quarantine", "spoil", "trim"])
async def test_an_erasure_that_comes_between_is_answered_as_for_a_file(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalBlobs(tmp_path)
    await store.store_whole(replicas(1))
    run = store._files.run

    async def late(work: Callable[[], object], *, long: bool = False) -> object:
        store._segments.erase(named(1))
        return await run(work, long=long)

    monkeypatch.setattr(store._files, "run", late)
    if change == "quarantine":
        await store.quarantine(named(1))
        assert await store.count_quarantined() == 0
    else:
        with fails(Kind.UNAVAILABLE):
            await (store.spoil(named(1)) if change == "spoil" else store.trim(named(1), 1))
    store.close()
