"""Changes here reach their target, whatever other machines do to names and bytes meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.bartender import UndeleteRequest
from chelonia.core.ports.files import Clone, Done, Move, Over, Setting
from chelonia_fuse import committing
from chelonia_fuse.copies import CachedCopy
from chelonia_fuse.filesystem import Handle
from tests.support.cluster import MemoryCluster
from tests.support.failing import fails
from tests.support.polling import poll_async
from tests.unit.fuse.mounts import OWNER, WHO, Trial, mounted, names

LARGE = bytes(range(256)) * 4096


async def test_what_was_written_to_a_renamed_file_does_not_go_to_its_copy(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    """A copy by reference has the same bytes, and their etag."""
    await mount.write("f", b"1")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"2")
    place = mount.system.inodes.place(handle.inode)
    moved = place.parent.child("g")
    for change in (Move(place, moved), Clone(place, moved)):
        (done,) = await memory.apply(Call(dn=WHO), (change,))
        assert isinstance(done, Done)
    await mount.close(handle)
    assert (await other.read("g"), await other.read("f")) == (b"2", b"1")


async def test_what_is_done_in_a_directory_that_others_renamed_is_done_there(mount: Trial, other: Trial) -> None:
    """It went into the directory that had the name by then."""
    inside = await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    new = await other.system.make_directory(other.root, "new", 0o755, OWNER)
    for trial, directory in ((mount, inside), (other, new)):
        for name in ("gone", "linked", "moved"):
            await trial.close(await trial.system.create(directory, name, os.O_WRONLY, 0o644, OWNER))
    old = await other.find("d")
    await other.system.rename((other.root, "d"), (other.root, "old"), Over.REFUSE)
    await other.system.rename((other.root, "new"), (other.root, "d"), Over.REFUSE)
    await mount.system.remove(inside, "gone", directory=False)
    await mount.system.rename((inside, "moved"), (inside, "renamed"), Over.REFUSE)
    await mount.system.make_directory(inside, "made", 0o755, OWNER)
    linked = await mount.system.lookups.lookup(inside, "linked")
    await mount.system.link(linked, inside, "twice")
    assert await names(other, directory=old) == ["linked", "made", "renamed", "twice"]
    assert await names(other, directory=new) == ["gone", "linked", "moved"]
    assert (await other.system.lookups.lookup(old, "twice")).guid == linked.guid


async def test_what_is_written_after_a_name_is_removed_is_read_by_one_that_others_gave(
    mount: Trial, other: Trial
) -> None:
    await mount.write("f", b"1")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"2")
    await other.system.link(await other.find("f"), other.root, "g")
    await mount.system.remove(mount.root, "f", directory=False)
    await mount.close(handle)
    assert await other.read("g") == b"2"


async def test_what_is_written_to_a_file_that_was_brought_back_is_committed_though_it_was_open_all_the_time(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    await mount.write("f", b"old")
    handle = await mount.open("f")
    await mount.system.remove(mount.root, "f", directory=False)
    request = UndeleteRequest("1", "/f")
    await memory.ask(lambda stage: stage.bartender, "undelete", Call(dn=WHO), (request,))
    await mount.write("f", b"new", flags=os.O_RDWR)
    await mount.close(handle)
    assert await other.read("f") == await mount.read("f") == b"new"


@pytest.mark.parametrize("by", ["remove", "rename"])
async def test_who_has_a_file_open_that_could_not_be_removed_reads_on_what_others_append(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    for name in ("f", "g"):
        await mount.write(name, b"1")
    handle = await mount.open("f", os.O_RDONLY)
    with monkeypatch.context() as patch, fails(Kind.DENIED):
        patch.setattr(memory, "apply", AsyncMock(side_effect=CheloniaError(Kind.DENIED, cause="it is theirs")))
        if by == "remove":
            await mount.system.remove(mount.root, "f", directory=False)
        else:
            await mount.system.rename((mount.root, "g"), (mount.root, "f"), Over.REPLACE)
    await other.write("f", b"2", flags=os.O_WRONLY | os.O_APPEND)
    handle.inode.learned_ns = handle.inode.listed_ns = 0
    await mount.system.refresh(handle.inode)
    assert await mount.system.read(handle, 0, 10) == b"12"


async def _swapped(mount: Trial, other: Trial) -> Handle:
    """A file `f`, open and written to here, that another machine has renamed `g`; its `f` is another file."""
    await mount.write("f", b"1")
    await other.write("g", b"1")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"2")
    await other.system.rename((other.root, "f"), (other.root, "g"), Over.EXCHANGE)
    return handle


@pytest.mark.parametrize("over", [Over.REFUSE, Over.REPLACE])
async def test_what_was_written_to_a_file_goes_there_when_its_name_that_is_anothers_is_changed(
    mount: Trial, other: Trial, over: Over
) -> None:
    handle = await _swapped(mount, other)
    await mount.system.rename((mount.root, "f"), (mount.root, "h"), over)
    await mount.close(handle)
    assert (await other.read("g"), await other.read("h")) == (b"2", b"1")
    assert await mount.read("h") == b"1"


async def test_what_was_written_to_a_file_stays_when_its_name_that_is_anothers_is_removed(
    mount: Trial, other: Trial
) -> None:
    handle = await _swapped(mount, other)
    await mount.system.remove(mount.root, "f", directory=False)
    await mount.close(handle)
    assert (await names(other), await other.read("g")) == (["g"], b"2")


async def test_what_was_written_to_a_file_stays_when_its_name_that_is_anothers_is_replaced(
    mount: Trial, other: Trial
) -> None:
    handle = await _swapped(mount, other)
    await mount.write("new", b"3")
    await mount.system.rename((mount.root, "new"), (mount.root, "f"), Over.REPLACE)
    await mount.close(handle)
    assert (await other.read("f"), await other.read("g")) == (b"3", b"2")


@pytest.mark.parametrize("by", [Over.REFUSE, Over.REPLACE])
async def test_a_file_is_written_to_after_its_name_that_is_anothers_was_taken_away(
    mount: Trial, other: Trial, by: Over
) -> None:
    """The mount took it for removed, and dropped its writes."""
    await mount.close(await _swapped(mount, other))
    known = await mount.find("g")
    if by is Over.REPLACE:
        await mount.write("new", b"3")
        await mount.system.rename((mount.root, "new"), (mount.root, "f"), by)
    else:
        await mount.system.remove(mount.root, "f", directory=False)
    handle = await mount.system.open(known, os.O_RDWR)
    await mount.system.write(handle, 0, b"4")
    await mount.close(handle)
    assert await other.read("g") == b"4"


@pytest.mark.expect_log("is kept as")
async def test_what_was_written_to_a_file_whose_names_all_went_is_kept_where_the_mount_begins(
    mount: Trial, other: Trial
) -> None:
    """No name is left to keep it beside."""
    await mount.write("f", b"1")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"2")
    await other.system.remove(other.root, "f", directory=False)
    with pytest.raises(CheloniaError):
        await mount.find("f")
    await mount.close(handle)
    (kept,) = await names(other)
    assert (kept.startswith(f"{handle.inode.guid}.conflict-"), await other.read(kept)) == (True, b"2")


async def test_who_appends_on_writes_behind_what_others_have_appended_meanwhile(mount: Trial, other: Trial) -> None:
    await mount.write("log", b"0\n")
    one = await mount.open("log", os.O_WRONLY | os.O_APPEND)
    await mount.system.write(one, 2, b"one\n")
    await other.write("log", b"two\n", at=2, flags=os.O_WRONLY | os.O_APPEND)
    await mount.system.flush(one)
    await mount.system.write(one, 6, b"three\n")  # the kernel does not know yet that it is longer
    await mount.close(one)
    assert await other.read("log") == await mount.read("log") == b"0\ntwo\none\nthree\n"


async def test_who_appends_behind_what_others_wrote_reads_what_they_wrote(mount: Trial, other: Trial) -> None:
    """Bytes of the old version were on their way then."""
    await other.write("f", b"a" * (4 << 20))
    handle = await mount.open("f", os.O_RDWR | os.O_APPEND)
    await mount.system.write(handle, 0, b"1")
    mount.network.slow_bytes = asyncio.Event()
    await mount.system.read(handle, 0, 1 << 20)
    assert handle.inode.copy is not None
    coming = [each.task for each in handle.inode.copy.fetching]
    await other.write("f", b"b" * (4 << 20), flags=os.O_WRONLY)
    await mount.system.sync(handle)
    mount.network.slow_bytes.set()
    await asyncio.wait(coming)
    assert await mount.system.read(handle, 0, 5 << 20) == await other.read("f")


async def test_what_a_full_disk_does_not_let_move_behind_others_bytes_stays_as_it_is(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", bytes(100_000))
    handle = await mount.open("f", os.O_RDWR | os.O_APPEND)
    await mount.system.write(handle, 0, b"0123456789")
    await other.write("f", b"2", flags=os.O_WRONLY | os.O_APPEND)
    pwrite, fallocate, full = os.pwrite, os.posix_fallocate, 100_010

    def writes(fd: int, data: bytes, offset: int) -> int:
        if offset >= full:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, data[: full - offset], offset)

    def reserves(fd: int, offset: int, size: int) -> None:
        if offset + size > full:
            raise OSError(errno.ENOSPC, "full")
        fallocate(fd, offset, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", writes)
        patch.setattr(os, "posix_fallocate", reserves)
        with pytest.raises(OSError, match="full"):
            await mount.system.sync(handle)
    assert await mount.system.read(handle, 100_000, 99) == b"0123456789"
    await mount.close(handle)
    assert await other.read("f", 100_000) == b"20123456789"


async def test_behind_what_was_appended_to_a_file_that_others_cut_are_zeros(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"x" * 100)
    handle = await mount.open("f", os.O_RDWR | os.O_APPEND)
    await mount.system.write(handle, 0, b"1" * 10)
    await other.system.resize(await other.find("f"), 0, by_name=True)
    await mount.system.sync(handle)
    await mount.system.resize(handle.inode, 50, by_name=False)
    await mount.close(handle)
    assert await mount.read("f") == await other.read("f") == b"1" * 10 + bytes(40)


async def test_a_link_is_to_the_file_that_has_the_name_now(mount: Trial, other: Trial) -> None:
    await mount.write("a", b"first")
    await other.system.rename((other.root, "a"), (other.root, "b"), Over.REPLACE)
    await other.write("a", b"second")
    await mount.system.link(await mount.find("b"), mount.root, "c")
    assert await mount.read("c") == b"first"


@pytest.mark.parametrize("opened", [False, True])
async def test_who_cuts_a_file_by_its_name_cuts_what_others_have_made_of_it(
    mount: Trial, other: Trial, opened: bool
) -> None:
    await mount.write("f", b"older")
    assert await other.read("f") == b"older"
    reading = await other.open("f", os.O_RDONLY) if opened else None
    await mount.write("f", b"newer, and longer")
    await other.system.resize(await other.find("f"), 3, by_name=True)
    assert await other.read("f") == await mount.read("f") == b"new"
    assert await names(other) == ["f"]
    if reading is not None:
        assert await other.system.read(reading, 0, 99) == b"new"
        await other.close(reading)


@pytest.mark.parametrize("meanwhile", ["nothing", "others wrote", "removed"])
@pytest.mark.expect_log("cannot be committed|is committed now|is kept as", optional=True)
async def test_what_a_close_was_refused_is_committed_later_and_never_over_what_others_wrote(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    monkeypatch.setattr(committing, "REFUSED_S", 0)
    await mount.write("f", b"old")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"new")
    refusal = CheloniaError(Kind.QUOTA, cause="it is over their quota")
    with monkeypatch.context() as patch:
        patch.setattr(memory, "apply", AsyncMock(side_effect=refusal))
        with fails(Kind.QUOTA):
            await mount.close(handle)
    assert (await mount.read("f"), await other.read("f")) == (b"new", b"old")
    if meanwhile == "others wrote":
        await other.write("f", b"theirs")
    elif meanwhile == "removed":
        await mount.system.remove(mount.root, "f", directory=False)
    await mount.committer.work_off()
    found = {name[:10]: await other.read(name) for name in await names(other)}
    assert (
        found
        == {
            "nothing": {"f": b"new"},
            "others wrote": {"f": b"theirs", "f.conflict": b"new"},
            "removed": {},
        }[meanwhile]
    )


async def test_a_mode_that_was_set_on_a_file_that_others_have_emptied_too_is_kept(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"bytes")
    handle = await mount.open("f")
    await mount.system.resize(handle.inode, 0, by_name=False)
    await mount.system.set(handle.inode, Setting(mode=0o600))
    await other.system.resize(await other.find("f"), 0, by_name=True)
    await mount.close(handle)
    assert (await other.find("f")).attributes.mode == 0o600
    assert (await names(other), await other.read("f")) == (["f"], b"")


async def written_below(mount: Trial) -> Handle:
    """The open file `d/f`, with bytes that are not committed."""
    above = await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    handle = await mount.system.create(above, "f", os.O_RDWR | os.O_CREAT, 0o644, OWNER)
    await mount.system.write(handle, 0, b"1")
    return handle


@pytest.mark.expect_log("is kept as")
async def test_what_was_written_in_a_directory_that_others_removed_is_kept_where_the_mount_begins(
    mount: Trial, other: Trial
) -> None:
    handle = await written_below(mount)
    there = await other.find("d")
    await other.system.lookups.lookup(there, "f")
    await other.system.remove(there, "f", directory=False)
    await other.system.remove(other.root, "d", directory=True)
    await mount.close(handle)
    (kept,) = await names(other)
    assert (kept.startswith("f.conflict-"), await other.read(kept)) == (True, b"1")


@pytest.mark.expect_log("is kept as /d/f.conflict-")
async def test_what_was_written_is_kept_beside_its_file_though_its_directorys_name_is_anothers(
    mount: Trial, other: Trial
) -> None:
    """It went into the other directory, which others may read."""
    handle = await written_below(mount)
    there = await other.find("d")
    theirs = await other.system.open(await other.system.lookups.lookup(there, "f"), os.O_RDWR)
    await other.system.write(theirs, 0, b"22")
    await other.close(theirs)
    await other.system.rename((other.root, "d"), (other.root, "moved"), Over.REFUSE)
    new = await other.system.make_directory(other.root, "d", 0o755, OWNER)
    await mount.close(handle)
    found = await names(other, directory=there)
    assert (found[0], found[1].startswith("f.conflict-"), await names(other, directory=new)) == ("f", True, [])


@pytest.mark.expect_log("is kept as")
async def test_bytes_that_can_be_read_again_make_room_for_what_is_kept_beside_a_file(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its close failed, and was tried again in vain."""
    for name in ("f", "g"):
        await other.write(name, LARGE)
    handle, known = await mount.open("f", os.O_WRONLY), await mount.find("g")
    await mount.system.write(handle, 0, b"1")
    await other.write("f", b"2", at=1)
    assert await mount.read("g") == LARGE
    store = CachedCopy.store

    def tight(copy: CachedCopy, offset: int, data: bytes) -> None:
        if known.copy is not None:
            raise OSError(errno.ENOSPC, "full")
        store(copy, offset, data)

    monkeypatch.setattr(CachedCopy, "store", tight)
    await mount.close(handle)
    _, kept, _ = await names(other)
    assert await other.read(kept) == b"12" + LARGE[2:]


async def overtake(other: Trial, *, removed: bool) -> None:
    """Remove `f`, or write other bytes to it, by the other mount."""
    if removed:
        await other.system.remove(other.root, "f", directory=False)
    else:
        await other.write("f", b"hers")


@pytest.mark.expect_log("is kept as")
@pytest.mark.parametrize("removed", [False, True])
async def test_an_fsync_of_bytes_that_went_beside_the_file_fails_once_for_each_who_has_it_open(
    mount: Trial, other: Trial, removed: bool
) -> None:
    """It succeeded: databases acknowledged transactions that they did not have. It fails too where `close` of another
    program here made the commit."""
    await mount.write("f", b"base")
    one, two = await mount.open("f"), await mount.open("f")
    await mount.system.write(one, 0, b"mine")
    await overtake(other, removed=removed)
    with fails(Kind.PRECONDITION, "kept beside"):
        await mount.system.sync(one)
    await mount.system.sync(one)
    with fails(Kind.PRECONDITION, "kept beside"):
        await mount.system.sync(two)
    if not removed:
        three = await mount.open("f")
        await mount.system.write(three, 0, b"more")
        await mount.system.sync(three)
        await mount.close(three)
        assert await other.read("f") == b"more"
    for handle in (one, two):
        await mount.close(handle)
    (kept,) = [name for name in await names(other) if name.startswith("f.conflict-")]
    assert await other.read(kept) == b"mine"


@pytest.mark.expect_log("is kept as")
@pytest.mark.parametrize("removed", [False, True])
async def test_a_strict_mount_fails_each_writer_whose_bytes_went_beside_the_file_once(
    memory: MemoryCluster, other: Trial, tmp_path: Path, removed: bool
) -> None:
    """The second writer's close succeeded, and any where the file was removed. An fsync that failed did so for good."""
    mount = await mounted(memory, tmp_path / "one", strict=True)
    await mount.write("f", b"base")
    one, two, three = [await mount.open("f") for _ in range(3)]
    reader = await mount.open("f", os.O_RDONLY)
    await mount.system.write(one, 0, b"mine")
    await overtake(other, removed=removed)
    with fails(Kind.PRECONDITION, "kept beside"):
        await mount.system.sync(one)
    await mount.system.write(one, 0, b"MINE")
    await mount.system.sync(one)
    for handle in (two, three):
        with fails(Kind.PRECONDITION, "kept beside"):
            await mount.system.flush(handle)
        await mount.system.sync(handle)
    for handle in (one, two, three, reader):
        await mount.close(handle)
    assert mount.committer.conflicts == 1
    if not removed:
        assert await other.read("f") == b"MINE"


@pytest.mark.expect_log("is kept as")
async def test_a_strict_mount_tells_who_truncates_by_name_what_others_change(
    memory: MemoryCluster, other: Trial, tmp_path: Path
) -> None:
    mount = await mounted(memory, tmp_path / "one", strict=True)
    await mount.write("f", b"base")
    known = await mount.find("f")
    mount.network.late["look"] = looked = asyncio.Event()
    cutting = asyncio.create_task(mount.system.resize(known, 2, by_name=True))
    await poll_async(lambda: "look" not in mount.network.late, what="it has looked")
    await other.write("f", b"hers")
    looked.set()
    with fails(Kind.PRECONDITION, "kept beside"):
        await cutting
