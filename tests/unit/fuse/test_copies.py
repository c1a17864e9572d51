"""The local copy of a file: in memory while it is small, in a file of the cache directory else."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path
from unittest.mock import Mock

import pytest

from chelonia_fuse import copies, filesystem, reading
from chelonia_fuse.copies import CachedCopy
from chelonia_fuse.staging import Staged
from tests.support.cluster import MemoryCluster
from tests.support.polling import poll_async
from tests.unit.fuse.mounts import Trial, mounted
from tests.unit.fuse.test_filesystem import bound

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
SMALL, LARGE = b"a few bytes", bytes(range(256)) * 256


@pytest.fixture
async def mount(memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await mounted(memory, tmp_path)


async def test_a_small_file_needs_no_file_of_the_cache(mount: Trial, tmp_path: Path) -> None:
    await mount.write("f", SMALL, flags=NEW)
    assert await mount.read("f") == SMALL
    assert not list((tmp_path / "data").iterdir())
    await mount.write("f", LARGE, 3)
    assert await mount.read("f") == SMALL[:3] + LARGE
    (path,) = (tmp_path / "data").iterdir()
    assert path.read_bytes() == SMALL[:3] + LARGE


@pytest.mark.expect_log("cache directory: .*Read-only")
async def test_a_disk_that_became_read_only_is_told_with_the_file_and_is_no_answer_about_the_mount(
    mount: Trial, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyfuse3, binding = pytest.importorskip("pyfuse3"), bound(mount)
    opened = binding._opened(await mount.open("f", NEW))
    monkeypatch.setattr(CachedCopy, "file", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await binding.write(opened.fh, 0, LARGE)
    assert caught.value.errno == errno.EIO
    assert "write /f: the cache directory: " in caplog.text


async def test_a_copy_has_its_bytes_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "HELD_BYTES_MAX", 64)
    chosen = random.Random(1)
    for number in range(200):
        copy, model = CachedCopy(tmp_path / f"{number}", Staged.of("", 0), held=bytearray()), bytearray()
        for _ in range(20):
            at, size = chosen.randrange(100), chosen.randrange(1, 40)
            match chosen.choice(["write", "write", "resize", "spill", "close"]):
                case "write":
                    data = chosen.randbytes(size)
                    copy.write(at, data, append=False)
                    model += bytes(max(0, at + size - len(model)))
                    model[at : at + size] = data
                case "resize":
                    copy.resize(at)
                    model = (model + bytes(at))[:at]
                case "spill":
                    copy.file()
                    assert copy.held is None
                case "close":
                    copy.close()
            assert copy.read(0, 1000) == model, number
            assert copy.read(at, size) == model[at : at + size], number
        copy.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [97, 103])
async def test_a_full_disk_leaves_bytes_that_it_does_not_let_move_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A file may be small, and have holes where its bytes are to go."""
    copy = CachedCopy(tmp_path / "f", Staged.of("old", 100))
    copy.write(100, b"appended", append=True)
    pwrite, room = os.pwrite, 5

    def writes(fd: int, data: bytes, offset: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "full")
        taken, room = min(room, len(data)), room - min(room, len(data))
        return pwrite(fd, data[:taken], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", writes)
        patch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            copy.move_on("new", size)
    copy.move_on("new", size)
    assert copy.read(size, 100) == b"appended"


async def test_the_copies_last_used_are_in_memory(
    mount: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "FILES_OPEN_MAX", 3)
    for n in range(8):
        await mount.write(f"f{n}", SMALL, flags=NEW)
    await mount.committer.behind.drained()
    held = [inode for inode in mount.cache.inodes() if inode.copy is not None and inode.copy.held is not None]
    assert len(held) <= 3
    assert len(list((tmp_path / "data").iterdir())) == len(mount.cache) - len(held)
    assert [await mount.read(f"f{n}") for n in range(8)] == [SMALL] * 8


async def test_what_a_full_disk_does_not_take_stays_in_memory(mount: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "FILES_OPEN_MAX", 3)

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "it is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for n in range(8):
            await mount.write(f"f{n}", SMALL, flags=NEW)
        await mount.committer.behind.drained()
        assert [await mount.read(f"f{n}") for n in range(8)] == [SMALL] * 8
    await mount.write("g", SMALL, flags=NEW)
    assert sum(inode.copy.held is not None for inode in mount.cache.inodes() if inode.copy is not None) <= 3


def _in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in (
        (reading, "PART_BYTES", 1 << 16), (reading, "SMALL_BYTES", 1 << 14), (reading, "BLOCKS", (1 << 14,)),
        (filesystem, "WINDOW_MIN", 1 << 16), (filesystem, "AHEAD_BYTES", 1 << 17), (copies, "AHEAD_BYTES", 1 << 17),
        (copies, "BEHIND_BYTES", 1 << 14),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)


def _kept(mount: Trial) -> int:
    return sum(inode.copy.staged.valid.total for inode in mount.cache.inodes() if inode.copy is not None)


async def test_the_cache_keeps_to_its_size_while_a_large_file_is_read(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes fetched ahead made the file busy, and a busy file keeps its bytes: the cache grew to the file's size."""
    _in_small_steps(monkeypatch)
    whole = random.Random(1).randbytes(64 * len(LARGE))
    await mount.write("big", whole)
    await mount.committer.behind.drained()
    small = await mounted(memory, tmp_path / "small", cache_bytes=8 * len(LARGE))
    handle, most = await small.open("big", os.O_RDONLY), 0
    for at in range(0, len(whole), 1 << 14):
        assert await small.system.read(handle, at, 1 << 14) == whole[at : at + (1 << 14)]
        most = max(most, _kept(small))
    assert most <= 12 * len(LARGE)
    assert small.network.read_bytes <= len(whole) + 16 * len(LARGE), "and nothing is fetched twice for that"
    await small.close(handle)
    assert _kept(small) <= 8 * len(LARGE)


async def test_a_large_file_is_read_through_a_disk_with_little_room(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_small_steps(monkeypatch)
    whole = random.Random(2).randbytes(64 * len(LARGE))
    await mount.write("big", whole)
    await mount.committer.behind.drained()
    small, write = await mounted(memory, tmp_path / "small"), os.pwrite

    def with_little_room(fd: int, data: bytes, offset: int) -> int:
        if _kept(small) + len(data) > 12 * len(LARGE):
            raise OSError(errno.ENOSPC, "it is full")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", with_little_room)
    handle = await small.open("big", os.O_RDONLY)
    for at in range(0, len(whole), 1 << 14):
        assert await small.system.read(handle, at, 1 << 14) == whole[at : at + (1 << 14)]
    await small.close(handle)


async def test_what_is_open_without_a_name_is_not_let_go_for_room(
    mount: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("big", LARGE * 8)
    for n in range(4):
        await mount.write(f"f{n}", LARGE)
    await mount.committer.behind.drained()
    small = await mounted(memory, tmp_path / "small", cache_bytes=len(LARGE))
    handle = await small.open("big", os.O_RDONLY)
    await small.system.remove(small.root, "big", directory=False)
    for n in range(4):
        assert await small.read(f"f{n}") == LARGE
    assert await small.system.read(handle, 0, 8 * len(LARGE)) == LARGE * 8
    await small.close(handle)


async def test_bytes_on_their_way_to_a_removed_file_leave_neither_a_descriptor_nor_a_file(
    mount: Trial, other: Trial, tmp_path: Path
) -> None:
    await other.write("f", bytes(8 << 20))
    mount.network.slow_bytes = asyncio.Event()
    handle = await mount.open("f", os.O_RDONLY)
    await mount.system.read(handle, 0, 1 << 20)
    copy = handle.inode.copy
    assert copy is not None
    coming = [each.task for each in copy.fetching]
    await mount.close(handle)
    await mount.system.remove(mount.root, "f", directory=False)
    mount.network.slow_bytes.set()
    await asyncio.wait(coming)
    assert (copy.fd, list((tmp_path / "data").iterdir())) == (-1, [])


async def test_who_opens_a_changed_file_late_takes_no_bytes_from_one_who_opened_it_meanwhile(
    mount: Trial, other: Trial
) -> None:
    await other.write("f", b"a" * 100_000)
    await mount.read("f")
    inode = await mount.find("f")
    await other.write("f", b"b" * 100_000)
    late = mount.network.late["look"] = asyncio.Event()
    opening = asyncio.create_task(mount.system.open(inode, os.O_RDONLY))
    await poll_async(lambda: "look" not in mount.network.late, what="its look is under way")
    mount.cache.trim(0)
    handle = await mount.system.open(inode, os.O_RDONLY)
    assert await mount.system.read(handle, 0, 100_000) == b"b" * 100_000
    late.set()
    await opening
    assert await mount.system.read(handle, 0, 100_000) == b"b" * 100_000


@pytest.mark.expect_log("the cache directory: .*has removed|cannot be committed")
async def test_no_zeros_stand_for_bytes_that_somebody_has_removed_from_the_cache(
    memory: MemoryCluster, mount: Trial, tmp_path: Path
) -> None:
    """As a cleaner of /var/tmp does with old files, of which a mount with many has not all open."""
    await mount.write("f", LARGE, flags=NEW)
    inode = await mount.find("f")
    for changed in (False, True):
        assert await mount.read("f") == LARGE
        handle = await mount.open("f")
        if changed:
            await mount.system.write(handle, 0, LARGE[1:])
        assert inode.copy is not None
        inode.copy.close()
        (path,) = (tmp_path / "data").iterdir()
        path.unlink()
        if not changed:
            await mount.close(handle)
            continue
        for act in (mount.system.read(handle, 0, 10), mount.close(handle)):
            with pytest.raises(OSError, match="has removed it") as failed:
                await act
            assert failed.value.errno == errno.EIO
    there = await mounted(memory, tmp_path / "two")
    assert await there.read("f") == LARGE
