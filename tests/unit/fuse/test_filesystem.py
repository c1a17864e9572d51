"""The file system without a kernel: staging, conflicts, the journal, operations while the network is away."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Change, Done, Failure, Over, Setting, Write
from chelonia_fuse import committing, copies, inodes, listings, reading
from chelonia_fuse.copies import CachedCopy
from chelonia_fuse.directories import OpenDirectory
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.options import Options
from chelonia_fuse.staging import PIECES_MAX, Staged
from chelonia_fuse.stats import shown
from chelonia_fuse.xattrs import Xattrs
from tests.support.cluster import MemoryCluster
from tests.support.failing import fails
from tests.support.polling import poll_async
from tests.unit.fuse.mounts import OWNER, Trial, mounted, names

LARGE = bytes(range(256)) * 8192  # 2 MiB


def bound(mount: Trial) -> Any:
    """A mount as the kernel's requests reach it."""
    kernel = pytest.importorskip("chelonia_fuse.kernel")
    return kernel.Binding(mount.system, Xattrs(mount.system._cluster, dict), Options())


async def test_what_is_closed_here_is_read_there(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"hello")
    assert await other.read("f") == b"hello"
    await other.write("f", b"HE")
    assert await mount.read("f") == b"HEllo"
    await mount.write("f", b"new", flags=os.O_WRONLY | os.O_TRUNC)
    assert await other.read("f") == b"new"


async def test_who_has_a_file_open_reads_what_others_append(mount: Trial, other: Trial) -> None:
    await mount.write("log", b"one\n")
    tail = await other.open("log", os.O_RDONLY)
    assert await other.system.read(tail, 0, 100) == b"one\n"
    await mount.write("log", b"two\n", at=4, flags=os.O_WRONLY | os.O_APPEND)
    tail.inode.learned_ns -= 2 * 10**9
    await other.system.refresh(tail.inode)
    assert tail.inode.attributes.size == 8
    assert await other.system.read(tail, 4, 100) == b"two\n"
    await other.close(tail)


async def test_an_attribute_that_is_too_large_is_refused_as_such(mount: Trial) -> None:
    await mount.write("f", b"x")
    xattrs, found = Xattrs(mount.system._cluster, dict), await mount.find("f")
    await xattrs.set(found, "user.a", b"7" * 64_000)
    with pytest.raises(OSError, match="at most") as caught:
        await xattrs.set(found, "user.b", b"7" * 64_000 + b"\xff")
    assert caught.value.errno == errno.E2BIG
    assert await xattrs.names(found) == ["user.a"]


async def test_attributes_that_programs_copy_are_those_that_can_be_set(mount: Trial) -> None:
    await mount.write("f", b"x")
    xattrs, found = Xattrs(mount.system._cluster, dict), await mount.find("f")
    await xattrs.set(found, "user.run", b"7")
    listed = await xattrs.names(found)
    for name in listed:
        await xattrs.set(found, name, await xattrs.get(found, name))
    assert listed == ["user.run"]


async def test_own_writes_are_seen_at_once_through_every_handle(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"old bytes")
    one, two = await mount.open("f"), await mount.open("f", os.O_RDONLY)
    await mount.system.write(one, 0, b"new")
    assert await mount.system.read(two, 0, 100) == b"new bytes"
    assert await other.read("f") == b"old bytes"
    await mount.system.sync(one)
    assert await other.read("f") == b"new bytes"
    await mount.close(one)
    await mount.close(two)


async def test_a_small_change_of_a_large_file_moves_little(mount: Trial, other: Trial) -> None:
    await mount.write("big", LARGE)
    await other.find("big")
    other.network.asked.clear()
    await other.write("big", b"xyz", at=1_000_000, flags=os.O_RDWR)
    assert "place" not in other.network.asked
    assert (other.network.inline_bytes, other.network.sent_bytes, other.network.read_bytes) == (3, 0, 0)
    assert await mount.read("big") == LARGE[:1_000_000] + b"xyz" + LARGE[1_000_003:]


@pytest.mark.expect_log("is kept as")
async def test_of_two_who_write_both_are_kept(mount: Trial, other: Trial, caplog: pytest.LogCaptureFixture) -> None:
    await mount.write("f", b"base")
    one, two = await mount.open("f"), await other.open("f")
    await mount.system.write(one, 0, b"mine")
    await other.system.write(two, 1, b"HERS")
    await other.close(two)
    with caplog.at_level(logging.WARNING):
        await mount.close(one)
    (kept,) = [name for name in await names(other) if name.startswith("f.conflict-")]
    assert kept in caplog.text
    assert await other.read("f") == await mount.read("f") == b"bHERS"
    assert await other.read(kept) == b"mine"


async def test_appends_of_two_follow_each_other(mount: Trial, other: Trial) -> None:
    await mount.write("log", b"0\n")
    one, two = await mount.open("log", os.O_WRONLY | os.O_APPEND), await other.open("log", os.O_WRONLY | os.O_APPEND)
    await mount.system.write(one, 2, b"one\n")
    await other.system.write(two, 2, b"two, longer\n")
    await other.close(two)
    await mount.close(one)
    assert await other.read("log") == await mount.read("log") == b"0\ntwo, longer\none\n"


@pytest.mark.expect_log("is kept as")
async def test_what_others_removed_while_it_was_written_is_kept_beside_it(mount: Trial, other: Trial) -> None:
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.write(handle, 0, b"precious")
    await other.find("f")
    await other.system.remove(other.root, "f", directory=False)
    await mount.close(handle)
    (kept,) = await names(other)
    assert kept.startswith("f.conflict-")
    assert await other.read(kept) == b"precious"


@pytest.mark.expect_log("is kept as")
@pytest.mark.parametrize("removed", [False, True])
async def test_what_was_written_in_many_places_is_kept_when_the_bytes_between_are_gone(
    mount: Trial, other: Trial, removed: bool
) -> None:
    """A commit has fewer pieces than that. The bytes between some of them must be fetched, from a version that is no
    more."""
    await other.write("f", LARGE)
    handle, spots = await mount.open("f"), range(0, len(LARGE), 8192)
    for at in spots:
        await mount.system.write(handle, at, b"!")
    assert len(spots) > PIECES_MAX
    if removed:
        await other.system.remove(other.root, "f", directory=False)
    else:
        await other.write("f", LARGE[::-1], flags=os.O_WRONLY | os.O_TRUNC)
    assert handle.inode.copy is not None
    handle.inode.copy.source = None  # its tickets have expired
    await mount.close(handle)
    (kept,) = [name for name in await names(other) if name.startswith("f.conflict-")]
    data = await other.read(kept)
    assert len(data) == len(LARGE)
    assert {data[at] for at in spots} == set(b"!")
    assert removed or await mount.read("f") == LARGE[::-1]


async def test_a_file_that_others_renamed_is_still_the_same_file(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"1")
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"2")
    await other.find("f")
    await other.system.rename((other.root, "f"), (other.root, "g"), Over.REFUSE)
    await other.write("f", b"another")
    await mount.close(handle)
    assert (await other.read("g"), await other.read("f")) == (b"2", b"another")


@pytest.mark.parametrize("data", [b"once", b""])
async def test_a_commit_whose_answer_was_lost_is_no_conflict(mount: Trial, other: Trial, data: bytes) -> None:
    await mount.write("f", b"base")
    handle = await mount.open("f", os.O_RDWR | os.O_TRUNC)
    if data:
        await mount.system.write(handle, 0, data)
    apply = mount.network.memory.apply

    async def lost(*args: object) -> object:
        mount.network.memory.apply = apply  # type: ignore[method-assign]
        await apply(*args)  # type: ignore[arg-type]
        raise CheloniaError(Kind.OUTCOME_UNKNOWN, cause="the connection broke")

    mount.network.memory.apply = lost  # type: ignore[assignment, method-assign]
    await mount.close(handle)
    assert await names(other) == ["f"]
    assert await other.read("f") == data


@pytest.mark.parametrize("size", [1, 100_000])
async def test_an_append_whose_answer_was_lost_is_there_once_though_others_have_appended_since(
    mount: Trial, other: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    await mount.write("f", LARGE)
    handle, apply = await mount.open("f", os.O_WRONLY | os.O_APPEND), memory.apply
    await mount.system.write(handle, len(LARGE), b"1" * size)

    async def lost(*args: Any) -> None:
        monkeypatch.setattr(memory, "apply", apply)
        await apply(*args)
        await other.write("f", b"2", at=len(LARGE) + size, flags=os.O_WRONLY | os.O_APPEND)
        raise CheloniaError(Kind.OUTCOME_UNKNOWN, cause="the connection broke")

    monkeypatch.setattr(memory, "apply", lost)
    await mount.close(handle)
    assert await other.read("f", len(LARGE)) == b"1" * size + b"2"


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_an_append_whose_answer_a_mount_that_died_never_heard_is_there_once(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", LARGE)
    handle, apply = await mount.open("f", os.O_WRONLY | os.O_APPEND), memory.apply
    await mount.system.write(handle, len(LARGE), b"1")

    async def unheard(*args: Any) -> None:
        await apply(*args)
        raise CheloniaError(Kind.NETWORK, "apply", cause="the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(memory, "apply", unheard)
        patch.setattr(committing, "GIVE_UP_S", -1.0)
        await mount.close(handle)
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await names(other) == ["f"]
    assert await other.read("f", len(LARGE)) == b"1"


@pytest.mark.expect_log("will be committed later|is committed now")
@pytest.mark.parametrize("data", [b"once", LARGE])
async def test_a_commit_whose_answer_the_network_lost_for_long_is_no_conflict(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    apply = mount.network.memory.apply

    async def unheard(*args: Any) -> None:
        if any(isinstance(change, Write) for change in args[1]):
            await apply(*args)
            raise CheloniaError(Kind.NETWORK, "apply", cause="the connection broke")

    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.write(handle, 0, data)
    with monkeypatch.context() as patch:
        patch.setattr(mount.network.memory, "apply", unheard)
        await mount.close(handle)
    await mount.committer.work_off()
    assert await names(other) == ["f"]
    assert await other.read("f") == data


async def test_a_read_waits_until_shepherds_that_died_are_back(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 1024
    await other.write("f", data)
    get, refused = mount.network.get, iter(range(6))

    def dead(*args: Any) -> AsyncGenerator[bytes, None]:
        if next(refused, None) is not None:
            raise CheloniaError(Kind.NO_REPLICA, cause="none answers")
        return get(*args)

    monkeypatch.setattr(mount.network, "get", dead)
    assert await mount.read("f") == data


async def test_an_append_to_a_small_file_is_one_look_and_one_change(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"one\n")
    found = await other.find("f")
    other.network.asked.clear()
    handle = await other.system.open(found, os.O_WRONLY | os.O_APPEND)
    await other.system.write(handle, 4, b"two\n")
    await other.close(handle)
    assert other.network.asked == ["look", "apply"]
    assert other.network.sent_bytes == 0
    assert await mount.read("f") == b"one\ntwo\n"


async def test_a_file_of_several_pieces_is_read_with_one_look(mount: Trial, other: Trial) -> None:
    await mount.write("f", LARGE)
    await mount.write("f", b"!", at=1 << 20)
    found = await other.find("f")
    other.network.asked.clear()
    handle = await other.system.open(found, os.O_RDONLY)
    assert await other.system.read(handle, (1 << 20) - 1, 3) == LARGE[(1 << 20) - 1 :][:1] + b"!" + LARGE[1:2]
    await other.close(handle)
    assert other.network.asked == ["look"]


async def test_the_place_of_a_large_piece_is_recorded(mount: Trial) -> None:
    await mount.write("f", LARGE)
    await mount.write("f", b"!" * 100_000, at=1 << 20)
    shepherds = mount.network.memory.stage.shepherds.values()
    found = {asked.facts.name: asked.facts.blob for each in shepherds for asked in each.puts.values()}
    assert set(found) == {"/f", f"piece of {found['/f']}-0 of {len(LARGE)} bytes at {1 << 20}+100000: /f"}


@pytest.mark.expect_log("is kept as")
async def test_versions_are_not_mixed_when_a_changed_file_is_opened_again(mount: Trial, other: Trial) -> None:
    await mount.write("f", LARGE)
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    mount.cache.of(handle.inode).restart(Staged.of(handle.inode.attributes.etag, len(LARGE)))
    await mount.system.write(handle, 0, b"!")
    await other.write("f", LARGE[::-1], flags=os.O_WRONLY | os.O_TRUNC)
    again = await mount.open("f", os.O_RDONLY)
    with fails(Kind.PRECONDITION):
        await mount.system.read(again, 0, 1000)
    await mount.close(again)
    await mount.close(handle)


async def test_the_other_name_of_a_file_is_gone_from_its_count_at_once(mount: Trial) -> None:
    await mount.write("f", b"")
    found = await mount.find("f")
    await mount.system.link(found, mount.root, "g")
    await mount.system.refresh(found)
    assert found.attributes.links == 2
    await mount.system.remove(mount.root, "g", directory=False)
    await mount.system.refresh(found)
    assert found.attributes.links == 1


async def test_attributes_that_were_just_told_are_not_asked_for(mount: Trial) -> None:
    made = await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    mount.network.asked.clear()
    assert 0 < await mount.system.refresh(made) < 1
    made.learned_ns -= 2 * 10**9
    assert await mount.system.refresh(made) == 0
    assert mount.network.asked == ["look"]


async def test_reads_here_and_there_bring_the_block_that_they_are_in(mount: Trial, other: Trial) -> None:
    await mount.write("f", LARGE)
    handle = await other.open("f", os.O_RDONLY)
    for at in range(pages := len(LARGE) // 4096):
        place = at * 37 % pages * 4096
        assert await other.system.read(handle, place, 4096) == LARGE[place : place + 4096]
    assert other.network.reads <= 16
    assert other.network.read_bytes <= 2 * len(LARGE)
    await other.close(handle)


async def test_a_small_file_travels_in_the_messages(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"small")
    assert await other.read("f") == b"small"
    assert mount.network.sent_bytes == other.network.read_bytes == 0


async def test_only_one_makes_a_file_that_both_want_to_make(mount: Trial, other: Trial) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
    await mount.close(await mount.open("lock", flags))
    with pytest.raises(OSError, match="it is there") as refused:
        await other.open("lock", flags)
    assert refused.value.errno == errno.EEXIST
    await other.close(await other.open("lock", os.O_CREAT | os.O_RDWR))


async def test_what_is_removed_here_while_it_is_committed_does_not_come_back_beside(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, reached, go = mount.network.memory.apply, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        if any(isinstance(change, Write) for change in args[1]):
            reached.set()
            await go.wait()
        return await apply(*args)

    monkeypatch.setattr(mount.network.memory, "apply", slowly)
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.write(handle, 0, b"bytes")
    closing = asyncio.create_task(mount.close(handle))
    await reached.wait()
    await mount.system.remove(mount.root, "f", directory=False)
    go.set()
    await closing
    assert await names(other) == []


async def test_what_is_open_is_read_on_after_it_lost_its_name(mount: Trial, other: Trial) -> None:
    await mount.write("f", LARGE)
    reading_on = await other.open("f", os.O_RDONLY)
    await other.system.remove(other.root, "f", directory=False)
    assert await other.system.read(reading_on, 1_000_000, 100) == LARGE[1_000_000:1_000_100]
    await other.close(reading_on)
    assert await names(mount) == []
    assert len(other.cache) == 0


@pytest.mark.expect_log("will be committed later|is committed now")
@pytest.mark.parametrize("why", [Kind.NETWORK, Kind.UNTRUSTED, Kind.EXPIRED])  # a proxy has ended, or a CRL
async def test_what_is_closed_while_the_network_is_away_is_committed_later(
    mount: Trial, other: Trial, tmp_path: Path, memory: MemoryCluster, caplog: pytest.LogCaptureFixture, why: Kind
) -> None:
    mount.network.why = why
    await mount.write("f", LARGE)
    handle = await mount.open("f")
    await mount.system.write(handle, 5, b"later")
    mount.network.away = True
    with pytest.raises(CheloniaError, match="away"):
        await mount.system.sync(handle)
    with caplog.at_level(logging.INFO):
        await mount.close(handle)
    assert "will be committed later" in caplog.text
    assert (await mount.read("f"))[:12] == LARGE[:5] + b"later" + LARGE[10:12]
    again = await mounted(memory, tmp_path / "one")  # the first one was killed
    assert len(again.committer.waiting) == 1
    await again.committer.work_off()
    assert not again.committer.waiting
    assert (await other.read("f"))[:12] == LARGE[:5] + b"later" + LARGE[10:12]
    assert not list((tmp_path / "one" / "journal").iterdir())


async def test_attributes_of_a_file_being_written_are_committed_with_it(mount: Trial, other: Trial) -> None:
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.write(handle, 0, b"x")
    await mount.system.set(handle.inode, Setting(mode=0o600, uid=5))
    await mount.system.set(handle.inode, Setting(gid=6, modified_ns=7))
    told = shown(handle.inode, Options(), uid=0, gid=0)
    assert (stat.S_IMODE(told.mode), told.uid, told.gid, told.modified_ns) == (0o600, 5, 6, 7)
    await mount.close(handle)
    seen = (await other.find("f")).attributes
    assert (seen.mode, seen.uid, seen.gid, seen.modified_ns) == (0o600, 5, 6, 7)


async def test_a_strict_mount_says_what_it_could_not_do(memory: MemoryCluster, tmp_path: Path) -> None:
    strict = await mounted(memory, tmp_path / "strict", strict=True)
    handle = await strict.open("f", os.O_RDWR | os.O_CREAT)
    await strict.system.write(handle, 0, b"x")
    strict.network.away = True
    with pytest.raises(CheloniaError, match="away"):
        await strict.system.flush(handle)
    strict.network.away = False
    await strict.close(handle)
    assert await strict.read("f") == b"x"


async def test_a_listing_goes_on_where_it_was(mount: Trial) -> None:
    for name in "abcde":
        await mount.write(name, b"")
    assert await names(mount, most=2) == ["a", "b"]
    assert await names(mount, start=2) == ["c", "d", "e"]


async def test_what_is_gone_is_looked_up_anew_although_a_listing_told_of_it(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PAGE_ENTRIES_MAX", 1)
    monkeypatch.setattr(listings, "SERVES", 10**9)
    await mount.write("g", b"")
    pyfuse3 = pytest.importorskip("pyfuse3")
    await mount.write("f", b"old")
    await names(other)
    old = await other.find("f")
    await mount.system.remove(mount.root, "f", directory=False)
    await mount.write("f", b"new")
    binding = bound(other)
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await binding.open(old.number, os.O_RDONLY, None)
    assert caught.value.errno == errno.ESTALE
    assert await other.read("f") == b"new"


@pytest.mark.expect_log("/f was closed here and cannot be committed: .*quota|/f is committed now")
async def test_what_a_last_close_could_not_commit_is_told_to_the_log_and_tried_again(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    """A shared mapping may be written to and released after the file was closed: no program gets the error."""
    pytest.importorskip("pyfuse3")
    binding = bound(mount)
    binding._next = 40  # else file and inode would have the same number
    opened = binding._opened(await mount.open("f", os.O_RDWR | os.O_CREAT))
    await binding.write(opened.fh, 0, b"x")

    def full() -> None:
        raise CheloniaError(Kind.QUOTA, "apply", "/f", "it is used up")

    mount.network.before_apply = full
    await binding.release(opened.fh)
    await mount.committer.work_off()
    assert len((await mounted(memory, tmp_path / "one")).committer.waiting) == 1, "the next mount commits it"
    assert await other.read("f") == b"", "it is not tried again at once"
    (inode,) = mount.committer.waiting.values()
    assert inode.copy is not None
    inode.copy.due_s = 1.0  # a minute has passed
    await mount.committer.work_off()
    assert (await other.read("f"), list(mount.committer.waiting)) == (b"x", [])


@pytest.mark.expect_log("readdir /d: network")
async def test_a_directory_that_cannot_be_read_is_named_in_the_log(
    mount: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    pyfuse3 = pytest.importorskip("pyfuse3")
    binding = bound(mount)
    made = await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    opened = await binding.opendir(made.number, None)
    mount.network.away = True
    with pytest.raises(pyfuse3.FUSEError):
        await binding.readdir(opened, 0, None)
    assert "readdir /d: network" in caplog.text


async def test_a_listing_tells_what_others_changed(mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    await mount.write("f", b"old")
    seen = await other.find("f")
    await other.system.refresh(seen)
    await mount.write("f", b"longer")
    await names(other)
    assert seen.attributes.size == len(b"longer")
    await other.system.set(seen, Setting(modified_ns=4_000_000_000 * 10**9))
    await other.system.refresh(seen)
    await mount.write("f", b"longer still", flags=os.O_WRONLY)
    monkeypatch.setattr(inodes, "LAGS_NS", -1)
    await names(other)
    assert seen.attributes.size == len(b"longer still")


async def test_a_listing_that_lags_does_not_take_back_what_was_done_here(mount: Trial, memory: MemoryCluster) -> None:
    await mount.write("f", b"old")
    listing = OpenDirectory(mount.root)
    await mount.system.entries(listing, 0, lambda *_: True)
    await mount.write("f", b"longer")
    await mount.system.entries(listing, 1, lambda *_: True)
    (page,) = [entry for entry in listing.shown if entry.name == "f"]
    inode = mount.system.inodes.listed(page.attributes, mount.root.number, "f", 0)
    assert inode.attributes.size == len(b"longer")


async def test_the_cache_keeps_to_its_size(memory: MemoryCluster, tmp_path: Path) -> None:
    small = await mounted(memory, tmp_path / "small", cache_bytes=3 * len(LARGE))
    for n in range(6):
        await small.write(f"f{n}", LARGE)
        assert await small.read(f"f{n}") == LARGE
    assert sum(path.stat().st_size for path in (tmp_path / "small" / "data").iterdir()) <= 4 * len(LARGE)
    assert await small.read("f0") == LARGE


async def test_few_files_of_the_cache_are_open_at_a_time(mount: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "FILES_OPEN_MAX", 4)
    kept = [await mount.open(f"open{n}", os.O_CREAT | os.O_RDWR) for n in range(6)]
    for handle in kept:
        await mount.system.write(handle, 0, handle.inode.guid.encode())
    for n in range(20):
        await mount.write(f"f{n}", b"x" * n)
    await mount.committer.behind.drained()
    await mount.read("f0")
    assert sum(inode.copy.fd >= 0 for inode in mount.cache.inodes() if inode.copy is not None) <= 4
    for handle in kept:
        assert await mount.system.read(handle, 0, 100) == handle.inode.guid.encode()
        await mount.close(handle)


async def test_a_file_larger_than_the_cache_is_read_all_the_same(
    mount: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("big", LARGE * 8)
    small = await mounted(memory, tmp_path / "small", cache_bytes=len(LARGE))
    handle = await small.open("big", os.O_RDONLY)
    parts = [await small.system.read(handle, at, 1 << 17) for at in range(0, 8 * len(LARGE), 1 << 17)]
    assert b"".join(parts) == LARGE * 8
    await small.close(handle)


async def test_a_directory_hands_its_group_on(mount: Trial) -> None:
    made = await mount.system.make_directory(mount.root, "shared", 0o2775, OWNER)
    below = await mount.system.make_directory(made, "below", 0o755, type(OWNER)(7, 7))
    assert (below.attributes.mode, below.attributes.uid, below.attributes.gid) == (0o2755, 7, 100)


async def test_changes_that_come_together_share_calls(mount: Trial) -> None:
    names_ = [f"f{n}" for n in range(40)]
    await asyncio.gather(*(mount.write(name, name.encode()) for name in names_))
    assert [await mount.read(name) for name in names_] == [name.encode() for name in names_]
    mount.network.asked.clear()
    await asyncio.gather(*(mount.system.remove(mount.root, name, directory=False) for name in names_))
    assert await names(mount) == []
    assert mount.network.asked.count("apply") < 10


async def test_a_commit_that_met_a_passing_trouble_is_tried_again_without_its_neighbours(
    mount: Trial, other: Trial
) -> None:
    memory, names_ = mount.network.memory, [f"f{n}" for n in range(10)]
    apply, written = memory.apply, list[str]()

    async def troubled(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        answers = list(await apply(call, changes))
        for n, change in enumerate(changes):
            if isinstance(change, Write):
                written.append(change.place.name)
                if change.place.name == "f7" and written.count("f7") == 1:
                    answers[n] = Failure(Kind.UNAVAILABLE)
        return tuple(answers)

    memory.apply = troubled  # type: ignore[method-assign]
    await asyncio.gather(*(mount.write(name, name.encode()) for name in names_))
    await mount.committer.behind.drained()
    assert sorted(written) == sorted([*names_, "f7"])
    assert await other.read("f7") == b"f7"
    assert sorted(await names(other)) == sorted(names_)


async def test_an_answer_that_was_overtaken_by_a_commit_is_no_change_by_others(mount: Trial, other: Trial) -> None:
    """A read ahead or an `open` sends its request before a commit of this mount, and gets the old version after it."""
    await other.write("f", LARGE)
    for ask in ("read", "open"):
        first = await mount.open("f")
        assert first.inode.copy is not None
        first.inode.copy.source, overtaken = None, asyncio.Event()
        mount.network.late["look"] = overtaken
        act = mount.system.read(first, 1 << 20, 10) if ask == "read" else mount.system.open(first.inode, os.O_RDWR)
        slow = asyncio.create_task(act)
        await asyncio.sleep(0)
        await mount.system.write(first, 5, b"mine")
        await mount.system.sync(first)
        overtaken.set()
        await slow
        await mount.system.write(first, 9, b" too")
        await mount.close(first)
        assert await names(other) == ["f"]
        assert await other.read("f", size=20) == LARGE[:5] + b"mine too" + LARGE[13:20]
        first.inode.copy.restart(Staged.of(first.inode.attributes.etag, first.inode.attributes.size))


async def test_answers_that_stay_behind_what_is_known_are_asked_for_a_few_times(mount: Trial, other: Trial) -> None:
    """It is as after a restore of the metadata from an older snapshot."""
    await other.write("f", LARGE)
    handle = await mount.open("f", os.O_RDONLY)
    assert handle.inode.copy is not None
    known = structs.replace(handle.inode.attributes, version=1 << 40, etag="newer", size=9)
    handle.inode.attributes, handle.inode.copy.staged, handle.inode.copy.source = known, Staged.of("newer", 9), None
    look, left = mount.network.memory.look, iter(range(2 * reading.TRIES))

    async def a_few_times(*args: Any) -> Any:
        next(left)
        return await look(*args)

    mount.network.memory.look = a_few_times  # type: ignore[method-assign]
    with pytest.raises(CheloniaError) as caught:
        await mount.system.read(handle, 0, 9)
    assert caught.value.kind in AGAIN
    assert "older" in caught.value.cause


async def test_who_sees_the_version_that_is_being_committed_waits_for_it(mount: Trial, other: Trial) -> None:
    await other.write("f", LARGE)
    handle = await mount.open("f")
    assert handle.inode.copy is not None
    handle.inode.copy.source, answered = None, asyncio.Event()
    await mount.system.write(handle, 5, b"mine")
    mount.network.late["apply"] = answered
    commit = asyncio.create_task(mount.system.sync(handle))
    while (await other.find("f")).attributes.size and mount.network.late:
        await asyncio.sleep(0)
    reading_ = asyncio.create_task(mount.system.read(handle, 1 << 20, 10))
    for _ in range(20):
        await asyncio.sleep(0)
    answered.set()
    await commit
    assert await reading_ == LARGE[1 << 20 : (1 << 20) + 10]
    await mount.close(handle)
    assert await names(other) == ["f"]


async def test_attributes_are_asked_for_once_a_second(mount: Trial) -> None:
    handle = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.link(handle.inode, mount.root, "g")
    mount.network.asked.clear()
    for n in range(5):
        await mount.system.write(handle, n, b"x")
        assert await mount.system.refresh(handle.inode) < 1.0
    assert mount.network.asked == []
    await mount.system.remove(mount.root, "g", directory=False)
    await mount.system.refresh(handle.inode)
    assert handle.inode.attributes.links == 1
    handle.inode.learned_ns -= 10**9
    mount.network.asked.clear()
    await mount.system.refresh(handle.inode)
    assert mount.network.asked == ["look"]
    await mount.close(handle)


async def test_who_reads_on_costs_few_requests(mount: Trial, other: Trial) -> None:
    await other.write("f", LARGE * 16)
    handle, size, step = await mount.open("f", os.O_RDONLY), 16 * len(LARGE), 128 * 1024
    seen = []
    for at in range(0, size, step):
        seen.append(await mount.system.read(handle, at, step))
        await asyncio.sleep(0)
    await mount.close(handle)
    assert b"".join(seen) == LARGE * 16
    assert mount.network.reads <= 24
    assert mount.network.read_bytes == size


async def test_a_read_waits_for_its_own_bytes_alone(mount: Trial, other: Trial) -> None:
    await other.write("f", LARGE * 4)
    handle, size = await mount.open("f", os.O_RDONLY), 4 * len(LARGE)
    mount.network.slow_bytes = asyncio.Event()
    everything = asyncio.create_task(mount.system.read(handle, 0, size))
    await poll_async(lambda: mount.cache.bytes >= 1 << 20)
    assert await mount.system.read(handle, 4096, 8192) == (LARGE * 4)[4096 : 4096 + 8192]
    assert not everything.done()
    mount.network.slow_bytes.set()
    assert await everything == LARGE * 4
    await mount.close(handle)


async def test_a_read_hears_of_no_trouble_behind_its_own_bytes(mount: Trial, other: Trial) -> None:
    await other.write("f", LARGE[: 1 << 20])
    handle = await mount.open("f", os.O_RDONLY)

    async def broken(sources: object, span: ByteRange) -> AsyncGenerator[bytes, None]:
        if not span.offset:
            yield LARGE[: 64 * 1024]
        raise CheloniaError(Kind.DENIED, "read", "f", "the rest is refused")

    mount.network.get = broken  # type: ignore[method-assign]
    assert await mount.system.read(handle, 4096, 8192) == LARGE[4096 : 4096 + 8192]
    with pytest.raises(CheloniaError, match="the rest is refused"):
        await mount.system.read(handle, 64 * 1024, 4096)
    await mount.close(handle)


async def test_bytes_that_a_full_disk_did_not_take_are_not_read_as_zeros(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.write("f", LARGE)
    handle = await mount.open("f", os.O_RDONLY)
    with monkeypatch.context() as full:
        full.setattr(CachedCopy, "store", Mock(side_effect=OSError(errno.ENOSPC, "the disk is full")))
        with pytest.raises(OSError, match="the disk is full"):
            await mount.system.read(handle, 0, 4096)
    assert await mount.system.read(handle, 0, 4096) == LARGE[:4096]
    await mount.close(handle)


async def test_what_is_only_read_makes_room_on_a_full_disk(
    mount: Trial, other: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("f", "g"):
        await other.write(name, LARGE)
    pwrite = os.pwrite

    def tight(fd: int, data: bytes, offset: int) -> int:
        if sum(path.stat().st_size for path in (tmp_path / "one" / "data").iterdir()) > 3 << 20:
            raise OSError(errno.ENOSPC, "the disk is full")
        return pwrite(fd, data, offset)

    for name in ("f", "g"):
        monkeypatch.setattr(os, "pwrite", tight)
        assert await mount.read(name) == LARGE
    for n in range(3):
        await mount.write(f"new{n}", LARGE)
    monkeypatch.undo()
    assert await other.read("new2") == LARGE


async def test_what_a_full_disk_takes_of_a_write_is_a_change(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", LARGE)
    handle, pwrite = await mount.open("f"), os.pwrite

    def half(fd: int, data: bytes, offset: int) -> int:
        if len(data) < 8192:
            raise OSError(errno.ENOSPC, "the disk is full")
        return pwrite(fd, data[:4096], offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", half)
        assert await mount.system.write(handle, 0, b"x" * 8192) == 4096  # else who tries again appends it twice
        with pytest.raises(OSError, match="the disk is full"):
            await mount.system.write(handle, 4096, b"x" * 4096)
    await mount.close(handle)
    assert await mount.read("f") == await other.read("f") == b"x" * 4096 + LARGE[4096:]
