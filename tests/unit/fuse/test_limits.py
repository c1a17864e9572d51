"""Names beyond a depth, a number or a size get POSIX's errno, and no byte is lost."""

from __future__ import annotations

import errno
import os

import pytest

from chelonia.core import bounds
from chelonia.core.names import check_ln
from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import OWNER, Trial


@pytest.mark.parametrize(("name", "depth"), [("d", bounds.LN_DEPTH_MAX + 2), ("d" * 255, 70)])
async def test_a_file_deeper_than_a_name_may_say_is_written_all_the_same(
    mount: Trial, other: Trial, name: str, depth: int
) -> None:
    """Programs get there step by step; files closed there could not be committed."""
    inside = mount.root
    for _ in range(depth):
        inside = await mount.system.make_directory(inside, name, 0o755, OWNER)
    handle = await mount.system.create(inside, "f", os.O_RDWR, 0o644, OWNER)
    await mount.system.write(handle, 0, b"deep")
    place = mount.system.inodes.place(handle.inode)
    check_ln(place)
    assert place.name == "f"
    await mount.close(handle)
    there = other.root
    for _ in range(depth):
        there = await other.system.lookups.lookup(there, name)
    seen = await other.system.open(await other.system.lookups.lookup(there, "f"), os.O_RDONLY)
    assert await other.system.read(seen, 0, 10) == b"deep"


async def test_a_file_has_so_many_names_and_no_more(
    mount: Trial, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp -al` and `rsync --link-dest` copy a file on EMLINK, the error for too many names."""
    monkeypatch.setattr(bounds, "PARENTS_MAX", 3)
    await mount.write("f", b"x")
    inode = await mount.find("f")
    for name in ("g", "h"):
        await mount.system.link(inode, mount.root, name)
    with pytest.raises(OSError, match="names already") as refused:
        await mount.system.link(inode, mount.root, "i")
    assert refused.value.errno == errno.EMLINK


async def test_a_file_longer_than_one_of_the_local_disk_is_cut(mount: Trial) -> None:
    """It is sparse. That failed, after the file had its new size."""
    await mount.write("f", b"bytes")
    handle = await mount.open("f")
    for size in (1 << 62, 1 << 61, 7):
        await mount.system.resize(handle.inode, size, by_name=False)
        assert await mount.system.read(handle, 0, 9) == b"bytes\0\0\0\0"[:size]
    await mount.system.resize(handle.inode, 1 << 61, by_name=False)
    assert mount.cache.of(handle.inode).held is not None
    mount.cache.of(handle.inode).file()
    await mount.system.resize(handle.inode, 1 << 60, by_name=False)
    assert await mount.system.read(handle, 0, 9) == b"bytes\0\0\0\0"
