"""The journal of a mount: its bytes on the disk, power cuts, a disk that is full or fails."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Change, Over, Setting, Splice, Write
from chelonia.core.timing.jobs import Jobs
from chelonia.hosting.net.clock import SystemClock
from chelonia_fuse import committing, journal
from chelonia_fuse.copies import CachedCopy
from chelonia_fuse.inodes import Inode
from chelonia_fuse.journal import JournalRecord, PackedJournal, StagingJournal
from chelonia_fuse.staging import Ranges
from tests.support.cluster import MemoryCluster
from tests.support.failing import fails
from tests.support.polling import poll_async
from tests.unit.fuse.mounts import WHO, Trial, mounted
from tests.unit.fuse.test_behind import NEW, held, mount, other, quick, slow_disk

__all__ = ["mount", "other", "quick"]

RECORD = JournalRecord("6d4a", "/lab/f", "6d4a-0", 0, 5, 0, False, ((0, 5),), ((0, 5),), {"mode": 420}, "e1")
TEXT = (
    b'{"guid":"6d4a","path":"/lab/f","etag":"6d4a-0","base":0,"size":5,"kept":0,"appended":false,'
    b'"valid":[[0,5]],"dirty":[[0,5]],"attributes":{"mode":420},"commit":"e1"}'
)
FRAME = bytes.fromhex("a30000000500000013f03e66")


class Disk:
    """The synced part of the packed journal, or of another folder, which a power cut leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: str = "packed") -> None:
        self._kept: dict[str, bytes] = {}
        self._folder = folder
        self.error: OSError | None = None
        monkeypatch.setattr(journal.os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        if self.error is not None:
            raise self.error
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.parent.name == self._folder:
            self._kept[str(path)] = path.read_bytes()

    def cut(self, directory: Path | None = None) -> None:
        """Leave what was synced, or a copy of it in a directory."""
        for text, data in self._kept.items():
            path = Path(text)
            (directory / path.name if directory is not None else path).write_bytes(data)


async def test_the_bytes_of_the_journal_are_those_of_its_format(tmp_path: Path) -> None:
    kept = StagingJournal(tmp_path / "journal")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "6d4a").touch()
    kept.write(RECORD)
    await kept.packed.keep(RECORD, b"bytes")
    assert (tmp_path / "journal" / "6d4a.json").read_bytes() == TEXT
    assert (tmp_path / "packed" / "0").read_bytes() == FRAME + TEXT + b"bytes"
    again = StagingJournal(tmp_path / "journal")
    assert again.records() == [RECORD]
    assert list(again.packed.records()) == [(RECORD, b"bytes")]


async def test_after_a_power_cut_nothing_that_was_committed_is_committed_again(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, go = Disk(monkeypatch), held(mount, monkeypatch)
    for name in ("one", "two", "three"):
        await mount.write(name, b"first", flags=NEW)
    await mount.system.remove(mount.root, "two", directory=False)
    go.set()
    await mount.committer.behind.drained()
    handle = await mount.open("one")
    await mount.system.write(handle, 0, b"second")
    await mount.system.sync(handle)
    disk.cut()
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert again.committer.conflicts == 0
    assert await again.read("one") == b"second"


@pytest.mark.expect_log("/g is committed now")
async def test_a_power_cut_after_the_end_of_a_change_brings_no_earlier_change_of_the_file_back(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one was packed, and the end of that not on the disk: it was appended once more."""
    disk, _ = Disk(monkeypatch), held(mount, monkeypatch)
    await mount.write("g", b"to hold the file of the journal", flags=NEW)
    await mount.write("f", b"first ", flags=NEW | os.O_APPEND)
    handle, sync = await mount.open("f", os.O_RDWR | os.O_APPEND), StagingJournal._sync
    await mount.system.write(handle, 0, b"second")

    def cut(kept: StagingJournal) -> None:
        sync(kept)
        if not list(kept._directory.iterdir()):  # the removal of the later one's record is on the disk
            shutil.copytree(tmp_path / "one", tmp_path / "left")
            disk.cut(tmp_path / "left" / "packed")

    monkeypatch.setattr(StagingJournal, "_sync", cut)
    await mount.system.sync(handle)
    monkeypatch.undo()
    again = await mounted(memory, tmp_path / "left")
    await again.committer.work_off()
    assert await other.read("f") == b"first second"


async def test_a_sync_is_of_what_was_written_and_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, synced, go = PackedJournal(tmp_path / "packed"), list[str](), threading.Event()

    def sync(fd: int) -> None:
        go.wait(10)
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)

    monkeypatch.setattr(journal.os, "fdatasync", sync)
    waiting = [asyncio.create_task(kept.keep(RECORD, b"bytes"))]
    await asyncio.sleep(0)  # it is written
    kept.done(RECORD.guid)
    for _ in range(2):
        waiting.append(asyncio.create_task(kept.settled()))
        await asyncio.sleep(0)  # the sync before has begun
    assert not any(each.done() for each in waiting)
    go.set()
    await asyncio.gather(*waiting)
    assert set(synced) == {"0"}


async def test_a_sync_that_fails_is_told_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, kept = Disk(monkeypatch), PackedJournal(tmp_path / "packed")
    await kept.keep(RECORD, b"first")
    disk.error = OSError(errno.EIO, "the disk fails")
    with pytest.raises(OSError, match="the disk fails"):
        await kept.keep(RECORD, b"later")
    assert found(tmp_path)
    kept.done(RECORD.guid)
    assert not found(tmp_path)


@pytest.mark.expect_log("files are committed without it|after a power cut what is committed may be tried again")
async def test_what_a_full_disk_does_not_take_is_committed_at_once(
    mount: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch).error = OSError(errno.ENOSPC, "no space left on device")
    await mount.write("f", b"bytes", flags=NEW)
    assert not len(mount.committer.behind)
    assert (await mount.find("f")).attributes.size == 5


async def test_a_change_stays_when_the_other_file_says_that_an_earlier_one_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "TURN_BYTES", 0)
    packed, other = PackedJournal(tmp_path / "packed"), structs.replace(RECORD, guid="77aa")
    await packed.keep(other, b"other")
    await packed.keep(RECORD, b"first")  # the next file, as the one before is in use
    await packed.keep(structs.replace(RECORD, guid="88bb"), b"third")
    packed.done("6d4a")
    packed.done("77aa")
    await packed.keep(RECORD, b"later")
    found = {record.guid: data for record, data in PackedJournal(tmp_path / "packed").records()}
    assert found["6d4a"] == b"later"


def test_of_a_record_that_a_full_disk_did_not_take_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = StagingJournal(tmp_path / "journal")
    monkeypatch.setattr(journal.os, "fsync", full_disk)
    with pytest.raises(OSError, match="full"):
        kept.write(RECORD)
    assert not list((tmp_path / "journal").iterdir())


async def test_who_lets_go_waits_for_the_sync_that_another_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, go, begun = StagingJournal(tmp_path / "journal"), threading.Event(), threading.Event()
    kept.write(RECORD)
    kept.remove(RECORD.guid)

    def sync(fd: int) -> None:
        begun.set()
        go.wait(10)

    monkeypatch.setattr(journal.os, "fsync", sync)
    first = asyncio.create_task(kept.settled())
    await asyncio.to_thread(begun.wait, 10)
    second = asyncio.create_task(kept.settled())
    for _ in range(3):
        await asyncio.sleep(0)
    waits = not second.done()
    go.set()
    await asyncio.gather(first, second)
    assert waits


@contextmanager
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The disk takes nothing more."""
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", Mock(side_effect=OSError(errno.ENOSPC, "no space left on device")))
        yield


def found(directory: Path) -> dict[str, bytes]:
    """The records that the next mount finds."""
    return {record.guid: data for record, data in PackedJournal(directory / "packed").records()}


async def test_what_a_full_disk_did_not_take_note_of_is_not_found_in_place_of_a_later_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "TURN_BYTES", 0)
    packed = PackedJournal(tmp_path / "packed")
    await packed.keep(structs.replace(RECORD, guid="77aa"), b"other")
    await packed.keep(RECORD, b"first")  # the next file, as the one before is in use
    await packed.keep(structs.replace(RECORD, guid="88bb"), b"third")
    with full(monkeypatch):
        packed.done("6d4a")
    packed.done("77aa")
    await packed.keep(RECORD, b"later")
    assert found(tmp_path) == {"6d4a": b"later", "88bb": b"third"}


async def test_what_a_full_disk_did_not_take_note_of_is_noted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = PackedJournal(tmp_path / "packed")
    for guid in ("6d4a", "77aa"):
        await packed.keep(structs.replace(RECORD, guid=guid), b"bytes")
    with full(monkeypatch):
        packed.done("6d4a")
        with pytest.raises(OSError, match="no space"):
            await packed.settled()
    await packed.settled()
    assert found(tmp_path) == {"77aa": b"bytes"}


@pytest.mark.expect_log("the cache directory: .*files are committed without it")
async def test_who_closes_again_what_neither_disk_nor_cluster_took_hears_of_it_again(
    mount: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(mount, monkeypatch)
    await mount.write("f", b"first", flags=NEW)
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"second")
    refused = CheloniaError(Kind.QUOTA, cause="it is over their quota")
    monkeypatch.setattr(memory, "apply", AsyncMock(side_effect=refused))
    for _ in range(2):
        with full(monkeypatch), pytest.raises(CheloniaError, match="quota"):
            await mount.system.flush(handle)


@pytest.mark.expect_log("cannot be committed|is committed now")
async def test_what_is_closed_after_a_refusal_goes_where_the_earlier_change_is_kept(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(mount, monkeypatch)
    handle = await mount.open("f", NEW)
    await mount.system.write(handle, 0, b"first")
    mount.system._cluster.is_away = True  # it waits in the journal
    await mount.system.flush(handle)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "apply", AsyncMock(side_effect=CheloniaError(Kind.QUOTA, cause="it is over their quota")))
        await mount.committer.work_off()
    await mount.system.write(handle, 0, b"second")
    await mount.system.flush(handle)
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await again.read("f") == b"second"


@pytest.mark.expect_log("will be committed later|was changed by somebody else|is committed now")
async def test_what_is_written_after_a_commit_whose_answer_was_lost_is_not_taken_for_it(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, apply = held(mount, monkeypatch), memory.apply
    handle = await mount.open("f", NEW)
    await mount.system.write(handle, 0, b"first")
    await mount.system.flush(handle)

    async def unheard(*args: Any) -> None:
        await apply(*args)
        raise CheloniaError(Kind.NETWORK, "apply", cause="the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(memory, "apply", unheard)
        go.set()
        await mount.committer.behind.drained()
    await mount.system.write(handle, 0, b"second")
    mount.system._cluster.is_away = True
    await mount.close(handle)
    await mount.committer.work_off()
    other = await mounted(memory, tmp_path / "two")
    there = await other.system._cluster.page(parse_ln("/"), "")
    assert b"second" in [await other.read(each.name) for each in there.entries]


@pytest.mark.expect_log("it cannot be read .* it stays there as .bad with its bytes")
@pytest.mark.parametrize("record", [b"no record", b'{"guid": "\xff"}'])
async def test_bytes_whose_record_cannot_be_read_stay(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, record: bytes
) -> None:
    (tmp_path / "one" / "journal" / "6d4a.json").write_bytes(record)
    (tmp_path / "one" / "data" / "6d4a").write_bytes(b"bytes")
    for _ in range(2):
        await mounted(memory, tmp_path / "one")
        assert (tmp_path / "one" / "data" / "6d4a.bad").read_bytes() == b"bytes"


@pytest.mark.expect_log("it cannot be read|is committed now")
async def test_bytes_whose_record_cannot_be_read_stay_though_an_earlier_change_is_packed(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That change was written over them, then set aside in their place, and zeros were committed."""
    held(mount, monkeypatch)
    await mount.write("f", b"first", flags=NEW)
    guid = (await mount.find("f")).guid
    (tmp_path / "one" / "journal" / f"{guid}.json").write_bytes(b"no record")
    (tmp_path / "one" / "data" / guid).write_bytes(b"later")
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert (tmp_path / "one" / "data" / f"{guid}.bad").read_bytes() == b"later"
    assert await other.read("f") == b"first"


@pytest.mark.expect_log("/g is committed now")
async def test_who_syncs_what_another_one_is_closing_waits_for_what_the_journal_has_of_it(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, _ = Disk(monkeypatch), held(mount, monkeypatch)
    one = await mount.open("f", NEW)
    two = await mount.open("f")
    await mount.write("g", b"to hold the file of the journal", flags=NEW)
    await mount.system.write(one, 0, b"first")
    keeping, go = slow_disk(mount, monkeypatch)
    closing = asyncio.create_task(mount.system.flush(one))
    await keeping.wait()
    syncing = asyncio.create_task(mount.system.sync(two))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(closing, syncing)
    await mount.system.write(two, 0, b"later")
    await mount.system.sync(two)
    disk.cut()
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert again.committer.conflicts == 0


async def kept(mount: Trial, *names: str) -> None:
    """Close files while the cluster is away."""
    for name in names:
        handle = await mount.open(name, os.O_RDWR | os.O_CREAT)
        await mount.system.write(handle, 0, b"bytes")
        mount.system._cluster.is_away = True
        await mount.close(handle)


@pytest.mark.expect_log("waits still: the cache directory: .*the disk fails|is committed now")
async def test_what_waits_is_committed_though_the_disk_does_not_give_another_file(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(mount, "bad", "good")
    bad, pread = await mount.find("bad"), os.pread
    assert bad.copy is not None
    fd_of_bad = bad.copy.file()

    def failing(fd: int, size: int, offset: int) -> bytes:
        if fd == fd_of_bad:
            raise OSError(errno.EIO, "the disk fails")
        return pread(fd, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        await mount.committer.work_off()
    assert list(mount.committer.waiting) == [bad.guid]
    await mount.committer.work_off()
    assert await (await mounted(memory, tmp_path / "two")).read("bad") == b"bytes"


@pytest.mark.expect_log("the cache directory: .*full|closed here and cannot be committed|is committed now")
@pytest.mark.parametrize("behind", [False, True])
async def test_what_neither_cluster_nor_disk_took_is_committed_later_and_once(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, behind: bool
) -> None:
    go, name = held(mount, monkeypatch), "f" if behind else "many0"
    handle = await mount.open(name, NEW if behind else os.O_RDWR)
    await mount.system.write(handle, 0, b"bytes")
    if behind:
        await mount.close(handle)
    monkeypatch.setattr(committing, "REFUSED_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(mount.network, "away", True)
        patch.setattr(mount.network, "why", Kind.NETWORK if behind else Kind.QUOTA)
        patch.setattr(committing, "GIVE_UP_S", -1.0)
        patch.setattr(mount.committer._journal, "write", full_disk)
        if not behind:
            with pytest.raises(CheloniaError, match="network is away"):
                await mount.close(handle)
        go.set()
        await mount.committer.behind.drained()
    for _ in range(2):
        await mount.committer.work_off()
    assert await other.read(name) == b"bytes"
    assert (len(mount.committer.waiting), caplog.text.count("is committed now")) == (0, 1)


@pytest.mark.expect_log("is committed now")
async def test_what_the_end_of_a_mount_has_no_time_to_commit_is_committed_by_the_next_one(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    for name in ("many0", "many1"):
        await mount.system.write(await mount.open(name), 0, b"bytes")
    mount.network.late["apply"] = asyncio.Event()  # the first of them has no answer
    await mount.committer.drain(0.2)
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert [await other.read(name) for name in ("many0", "many1")] == [b"bytes", b"bytes"]


async def test_a_record_promises_no_bytes_that_came_while_the_others_were_synced(
    mount: Trial, other: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would leave zeros in their place."""
    await other.write("f", b"x" * (4 << 20))
    handle, slow = await mount.open("f"), asyncio.Event()
    await mount.system.write(handle, 0, b"bytes")
    mount.network.slow_bytes = slow
    await mount.system.read(handle, 0, 1 << 20)
    assert handle.inode.copy is not None
    coming = [each.task for each in handle.inode.copy.fetching]

    async def syncing(copy: CachedCopy) -> None:
        slow.set()
        await asyncio.wait(coming)

    monkeypatch.setattr(CachedCopy, "sync", syncing)
    mount.system._cluster.is_away = True
    await mount.system.flush(handle)
    (record,) = StagingJournal(tmp_path / "one" / "journal").records()
    assert Ranges(record.valid).end < 4 << 20


@pytest.mark.expect_log("is committed now")
async def test_what_was_cut_after_it_was_closed_has_no_zeros_in_its_place_when_the_mount_dies(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await kept(mount, "f", "g")
    handle = await mount.open("f", os.O_RDWR | os.O_TRUNC)
    await mount.system.write(handle, 0, b"12")
    await mount.system.resize(await mount.find("g"), 3, by_name=False)
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert (await other.read("f"), await other.read("g")) == (b"", b"byt")


@pytest.mark.expect_log("is committed now")
async def test_what_was_cut_after_it_was_closed_has_no_zeros_in_its_place_after_a_power_cut(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "data")
    await other.write("f", b"x" * 1000)
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"12345")
    mount.system._cluster.is_away = True
    await mount.system.flush(handle)
    mount.system._cluster.is_away = False
    await mount.system.read(handle, 0, 1000)
    await mount.system.write(handle, 10, b"6")
    await mount.system.resize(handle.inode, 500, by_name=False)
    disk.cut()
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await other.read("f") == b"12345xxxxx6".ljust(500, b"x")


async def test_a_record_of_a_cut_file_promises_no_bytes_that_came_while_the_others_were_synced(
    mount: Trial, other: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "data")
    await other.write("f", b"x" * (4 << 20))
    handle, slow = await mount.open("f"), asyncio.Event()
    await mount.system.write(handle, 0, b"bytes")
    mount.system._cluster.is_away = True
    await mount.system.flush(handle)
    mount.network.slow_bytes = slow
    await mount.system.read(handle, 0, 1 << 20)
    assert handle.inode.copy is not None
    coming, sync = [each.task for each in handle.inode.copy.fetching], CachedCopy.sync

    async def syncing(copy: CachedCopy) -> None:
        await sync(copy)
        slow.set()
        await asyncio.wait(coming)

    monkeypatch.setattr(CachedCopy, "sync", syncing)
    await mount.system.resize(handle.inode, 3 << 20, by_name=False)
    disk.cut()
    (record,) = StagingJournal(tmp_path / "one" / "journal").records()
    left = (tmp_path / "one" / "data" / record.data).read_bytes().ljust(record.size, b"\0")
    assert record.size == 3 << 20
    assert not any(b"\0" in left[start:end] for start, end in record.valid)


@pytest.mark.expect_log("is committed now")
async def test_what_moved_behind_others_bytes_is_what_was_appended_though_the_mount_dies_before_its_commit(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", bytes(300_000))
    mount.system._cluster.is_away = True
    await mount.write("f", b"mine", flags=os.O_WRONLY | os.O_APPEND)
    await other.write("f", b"2", flags=os.O_WRONLY | os.O_APPEND)
    with monkeypatch.context() as patch:
        patch.setattr(committing, "TRIES", 2)  # the second finds the others' bytes, and no cluster
        apply = memory.apply

        async def once(*args: Any) -> Any:
            patch.setattr(memory, "apply", AsyncMock(side_effect=CheloniaError(Kind.NETWORK, cause="it is away")))
            return await apply(*args)

        patch.setattr(memory, "apply", once)
        await mount.committer.work_off()
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await other.read("f", 300_000) == b"2mine"


@pytest.mark.expect_log("is committed now")
async def test_what_waits_for_one_cluster_is_not_committed_to_another(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await kept(mount, "f")
    another = MemoryCluster(WHO)
    with fails(Kind.BAD_CONFIG):
        await mounted(another, tmp_path / "one")
    assert another.names() == []
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await other.read("f") == b"bytes"
    await mounted(another, tmp_path / "one")  # nothing waits there any more


@pytest.mark.expect_log("is committed now")
async def test_of_what_waited_nothing_stays_in_memory_once_it_is_committed(
    mount: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    known = len(mount.system.inodes)
    await kept(mount, "f", "g")
    for name in ("f", "g"):
        inode = mount.system.inodes.named(mount.root.number, name)
        assert inode is not None
        mount.system.forget(inode.number, inode.lookups)
    await mount.committer.work_off()
    assert (len(mount.system.inodes), len(mount.cache.inodes())) == (known, 4)
    await kept(mount, "f")
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert (len(again.system.inodes), again.cache.inodes()) == (1, [])


def full_disk(*args: object) -> None:
    raise OSError(errno.ENOSPC, "full")


@pytest.mark.expect_log("job failed: commit")
@pytest.mark.expect_log("/good is committed now")
async def test_a_mistake_with_one_file_that_waits_keeps_no_other_one_waiting(
    mount: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(mount, "bad", "good")
    bad, commit, committed = await mount.find("bad"), mount.committer.commit, list[Inode]()

    async def failing(inode: Inode) -> None:
        assert inode is not bad, "a mistake that nobody expected"
        await commit(inode)
        committed.append(inode)

    monkeypatch.setattr(mount.committer, "commit", failing)
    working = asyncio.create_task(Jobs(SystemClock(), [mount.committer.job()]).run())
    await poll_async(lambda: len(committed) == 1, what="the other one is committed")
    assert list(mount.committer.waiting) == [bad.guid]
    working.cancel()


@pytest.mark.expect_log("/one is committed now")
async def test_what_another_has_committed_meanwhile_is_left_alone(
    mount: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(mount, "one", "two")
    two, commit = await mount.find("two"), mount.committer.commit

    async def beside(inode: Inode) -> None:
        await commit(inode)
        if inode is not two:
            await commit(two)
            mount.cache.drop(two)

    monkeypatch.setattr(mount.committer, "commit", beside)
    await mount.committer.work_off()
    assert not mount.committer.waiting


@pytest.mark.expect_log("it cannot be read .*No such file")
async def test_of_bytes_that_are_gone_no_zeros_are_committed(
    mount: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("f", b"bytes")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"BYTES")
    mount.system._cluster.is_away = True
    await mount.close(handle)
    (tmp_path / "one" / "data" / handle.inode.guid).unlink()
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await again.read("f") == b"bytes"


@pytest.mark.expect_log("closed here and cannot be committed: .*denied|is committed now")
async def test_what_the_user_may_not_see_any_more_keeps_nothing_else_from_being_mounted(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await kept(mount, "taken", "free")
    memory.allow("/taken", ALL="-read -delete")
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    memory.allow("/taken", ALL=None)
    assert (await other.read("free"), await other.read("taken")) == (b"bytes", b"")
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await other.read("taken") == b"bytes"


@pytest.mark.expect_log("is committed now|was removed by somebody else")
async def test_of_what_waited_and_others_removed_nothing_stays_once_it_is_kept_beside(
    mount: Trial, other: Trial
) -> None:
    await kept(mount, "f")
    await other.system.remove(other.root, "f", directory=False)
    mount.system._cluster.is_away = False
    known = mount.system.inodes.named(mount.root.number, "f")
    assert known is not None
    mount.system.forget(known.number, known.lookups)
    await mount.committer.work_off()
    assert known not in mount.cache.inodes()


async def test_what_waits_takes_the_place_of_another_file_only_once_it_is_committed(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So programs replace a file by a new one. Others found it empty, and for good where this machine died."""
    await mount.write("f", b"old")
    await kept(mount, "new")
    apply = memory.apply

    async def refused(call: Call, changes: tuple[Change, ...]) -> Any:
        if isinstance(changes[0], Write | Splice):
            raise CheloniaError(Kind.QUOTA, cause="it is over their quota")
        return await apply(call, changes)

    with monkeypatch.context() as patch:
        patch.setattr(memory, "apply", refused)
        with fails(Kind.QUOTA):
            await mount.system.rename((mount.root, "new"), (mount.root, "f"), Over.REPLACE)
        assert await other.read("f") == b"old"
        await mount.system.rename((mount.root, "new"), (mount.root, "newer"), Over.REPLACE)
    await mount.system.rename((mount.root, "newer"), (mount.root, "f"), Over.REPLACE)
    assert (await other.read("f"), mount.committer.waiting) == (b"bytes", {})


@pytest.mark.expect_log("is committed now")
async def test_what_waits_can_be_undone_while_the_cluster_is_away(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    """`> f` failed, as the cluster was to hear of the new time at once; but the bytes were gone."""
    await mount.close(await mount.open("f", NEW))
    await kept(mount, "f")
    mount.network.away = True
    await mount.system.set(await mount.find("f"), Setting(mode=0o600))
    await mount.close(await mount.open("f", os.O_WRONLY | os.O_TRUNC))
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert (await other.read("f"), (await other.find("f")).attributes.mode) == (b"", 0o600)


async def test_a_full_disk_keeps_no_file_from_being_committed_after_a_request_without_an_answer(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount.committer._journal, "write", full_disk)
    await kept(mount, "f")
    assert await other.read("f") == b"bytes"


async def test_a_full_disk_keeps_no_file_from_being_committed_whose_other_bytes_it_does_not_take(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are fetched only so that the file goes in one message."""
    await other.write("f", b"x" * 50_000)
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"bytes")
    with monkeypatch.context() as patch:
        patch.setattr(CachedCopy, "store", full_disk)
        await mount.close(handle)
    assert await other.read("f") == b"bytes" + b"x" * 49_995


@pytest.mark.parametrize("by", ["rename", "link", "exchange"])
async def test_what_waits_has_another_name_only_once_it_is_committed(mount: Trial, other: Trial, by: str) -> None:
    await kept(mount, "new")
    if by == "rename":
        await mount.system.rename((mount.root, "new"), (mount.root, "f"), Over.REFUSE)
    elif by == "link":
        await mount.system.link(await mount.find("new"), mount.root, "f")
    else:
        await other.write("f", b"old")
        await mount.find("f")
        await mount.system.rename((mount.root, "f"), (mount.root, "new"), Over.EXCHANGE)
    assert await other.read("f") == b"bytes"


@pytest.mark.expect_log("was changed by somebody else|is committed now")
async def test_what_waited_is_kept_beside_once_by_a_strict_mount(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    """It was logged as refused, and its record stayed without the bytes: the next mount kept zeros, too."""
    await mount.write("f", b"old")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"mine")
    mount.system._cluster.is_away = True
    await mount.system.flush(handle)
    await other.write("f", b"theirs")
    for _ in range(2):
        again = await mounted(memory, tmp_path / "one", strict=True)
        await again.committer.work_off()
        assert again.cache.inodes() == []
    there = await again.system._cluster.page(parse_ln("/"), "")
    assert sorted([await again.read(each.name) for each in there.entries if "f" in each.name]) == [b"mine", b"theirs"]


async def test_a_journal_of_a_newer_format_is_left_alone(memory: MemoryCluster, tmp_path: Path) -> None:
    mount = await mounted(memory, tmp_path / "one")
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.write(handle, 0, b"1")
    mount.system._cluster.is_away = True
    await mount.close(handle)
    form = tmp_path / "one" / "format"
    assert form.read_text() == "1"
    form.write_text("2")
    (record,) = (tmp_path / "one" / "journal").iterdir()
    record.write_text("what a newer one writes")
    with fails(Kind.BAD_CONFIG, "of format '2', and this version knows 1"):
        await mounted(memory, tmp_path / "one")
    assert record.read_text() == "what a newer one writes"
