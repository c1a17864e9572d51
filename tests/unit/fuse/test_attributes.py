"""Times that programs set, also the first second of 1970, and those of files that stay empty. Rights to write."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Done, Set, Setting, When, Write
from chelonia_fuse.options import Options
from chelonia_fuse.stats import shown
from chelonia_fuse.xattrs import Xattrs
from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import WHO, Trial, mounted


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_a_time_of_1970_is_kept_although_the_bytes_are_still_to_come(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    for name in ("sent", "waits"):
        handle = await mount.open(name, os.O_RDWR | os.O_CREAT)
        await mount.system.write(handle, 0, b"x")
        await mount.system.set(handle.inode, Setting(modified_ns=0))
        assert shown(handle.inode, Options(), uid=0, gid=0).modified_ns == 0
        mount.network.away = name == "waits"
        await mount.close(handle)
    again = await mounted(memory, tmp_path / "one")  # the first one was killed
    await again.committer.work_off()
    assert [(await other.find(name)).attributes.modified_ns for name in ("sent", "waits")] == [0, 0]


async def test_cutting_what_is_empty_already_changes_its_time(mount: Trial, other: Trial) -> None:
    for cut in (os.O_WRONLY | os.O_TRUNC, os.O_WRONLY):
        await mount.write("stamp", b"")
        await mount.system.set(await mount.find("stamp"), Setting(modified_ns=7))
        handle = await mount.open("stamp", cut)
        if not cut & os.O_TRUNC:
            await mount.system.resize(handle.inode, 0, by_name=False)
        assert shown(handle.inode, Options(), uid=0, gid=0).modified_ns > 7
        await mount.close(handle)
        assert (await other.find("stamp")).attributes.modified_ns > 7


async def test_who_may_not_write_a_file_hears_it_when_he_opens_it(mount: Trial, memory: MemoryCluster) -> None:
    """Few programs, and no shell, check the result of `close`."""
    await mount.write("f", b"bytes")
    for name in ("/", "/f"):
        (done,) = await memory.apply(Call(dn=WHO), (Set(parse_ln(name), policy={"ALL": "+read +addEntry"}),))
        assert isinstance(done, Done)
    mount.network.who = Dn("/CN=eve")
    assert await mount.read("f") == b"bytes"
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT):
        with pytest.raises(CheloniaError, match="denied"):
            await mount.open("f", flags)


async def test_a_cut_that_failed_is_not_made_by_whoever_reads_the_file_later(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"bytes")
    inode = await mount.find("f")

    def breaks() -> None:
        mount.network.away = True
        mount.network.check()

    mount.network.before_apply = breaks
    with pytest.raises(CheloniaError, match="network"):
        await mount.system.resize(inode, 0, by_name=True)
    mount.network.away = False
    assert await mount.read("f") == b"bytes"
    assert await other.read("f") == b"bytes"


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_a_cut_that_failed_leaves_what_waits_to_be_committed(mount: Trial, other: Trial) -> None:
    await mount.write("f", b"old")
    inode = await mount.find("f")
    handle = await mount.system.open(inode, os.O_RDWR)
    await mount.system.write(handle, 0, b"newer")
    mount.network.away = True
    await mount.system.flush(handle)
    await mount.system.release(handle)
    with pytest.raises(CheloniaError, match="network"):
        await mount.system.resize(inode, 3, by_name=True)
    mount.network.away = False
    await mount.committer.work_off()
    assert await other.read("f") == b"new"


async def test_a_file_is_cut_by_who_opens_it_while_its_last_writer_closes_it(mount: Trial, other: Trial) -> None:
    """This holds also where the cache is full, and drops files that nobody has open."""
    writer = await mount.open("f", os.O_RDWR | os.O_CREAT)
    await mount.system.write(writer, 0, b"longer")
    late = mount.network.late["apply"] = asyncio.Event()
    closing = asyncio.create_task(mount.system.release(writer))
    while "apply" in mount.network.late:
        await asyncio.sleep(0)
    opening = asyncio.create_task(mount.open("f", os.O_WRONLY | os.O_TRUNC))
    while writer.inode.copy is not None and not writer.inode.copy.lock._waiters:
        await asyncio.sleep(0)
    mount.cache._bytes_max = 0
    late.set()
    await closing
    handle = await opening
    await mount.system.write(handle, 0, b"new")
    await mount.close(handle)
    assert await other.read("f") == b"new"


async def test_an_extended_attribute_has_a_name(mount: Trial) -> None:
    await mount.write("f", b"")
    xattrs, inode = Xattrs(mount.system._cluster, dict), await mount.find("f")
    with pytest.raises(OSError, match="Errno 22"):
        await xattrs.set(inode, "user.", b"x")
    assert await xattrs.names(inode) == []


async def test_a_mode_that_was_set_stays_when_a_file_without_a_name_is_cut_to_nothing(mount: Trial) -> None:
    handle = await mount.open("f", os.O_CREAT | os.O_RDWR)
    await mount.system.remove(mount.root, "f", directory=False)
    await mount.system.set(handle.inode, Setting(mode=0o600))
    await mount.system.resize(handle.inode, 0, by_name=False)
    assert shown(handle.inode, Options(), uid=0, gid=0).mode & 0o777 == 0o600


async def test_a_mode_that_was_set_before_a_file_was_cut_to_nothing_is_kept(mount: Trial, other: Trial) -> None:
    """The commit was to come with bytes that are no more: `chmod` was lost."""
    handle = await mount.open("f", os.O_CREAT | os.O_RDWR)
    await mount.system.write(handle, 0, b"secret")
    await mount.system.set(handle.inode, Setting(mode=0o600, uid=7))
    await mount.system.resize(handle.inode, 0, by_name=False)
    assert handle.inode.attributes.mode == 0o600
    await mount.close(handle)
    seen = (await other.find("f")).attributes
    assert (seen.mode, seen.uid, seen.size) == (0o600, 7, 0)


async def test_an_open_file_without_a_name_is_changed_as_any_other_but_keeps_no_attributes_of_users(
    mount: Trial,
) -> None:
    await mount.write("f", b"bytes")
    handle, xattrs = await mount.open("f"), Xattrs(mount.system._cluster, dict)
    await xattrs.set(handle.inode, "user.run", b"7")
    await mount.system.remove(mount.root, "f", directory=False)
    await mount.system.set(handle.inode, Setting(mode=0o640))
    await mount.system.resize(handle.inode, 3, by_name=False)
    await mount.system.set(handle.inode, Setting(modified_ns=10**18))
    await mount.system.refresh(handle.inode)
    seen = shown(handle.inode, Options(), uid=0, gid=0)
    assert (seen.mode & 0o777, seen.size, seen.modified_ns) == (0o640, 3, 10**18)
    assert await mount.system.read(handle, 0, 10) == b"byt"
    assert await xattrs.names(handle.inode) == []
    for answer, number in (
        (xattrs.get(handle.inode, "user.run"), errno.ENODATA),
        (xattrs.set(handle.inode, "user.run", None), errno.ENODATA),
        (xattrs.set(handle.inode, "user.run", b"8"), errno.ENOTSUP),
    ):
        with pytest.raises(OSError, match="run") as refused:
            await answer
        assert refused.value.errno == number
    await mount.close(handle)


async def test_new_files_get_the_copies_that_the_user_has_set(
    mount: Trial, other: Trial, memory: MemoryCluster
) -> None:
    """They got three, as they are made empty, and without a number."""
    for name, size in (("small", 5), ("large", 300_000)):
        await mount.write(name, bytes(size))
        assert (await other.find(name)).attributes.wanted == 2
    memory.write(Write(parse_ln("/there"), when=When(absent=True)), b"five", 5)
    await mount.write("there", b"more")
    assert (await other.find("there")).attributes.wanted == 5, "a file keeps its number"
