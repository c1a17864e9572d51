"""What programs on another mount have done to names and bytes meanwhile, while this one holds on to what it knew."""

from __future__ import annotations

import os

import pytest

from chelonia.core.errors import CheloniaError
from chelonia.core.ports.files import Over
from tests.unit.fuse.mounts import OWNER, Trial, names


async def test_who_appends_on_writes_behind_what_others_have_appended_meanwhile(mount: Trial, other: Trial) -> None:
    await mount.write("log", b"0\n")
    one = await mount.open("log", os.O_WRONLY | os.O_APPEND)
    await mount.system.write(one, 2, b"one\n")
    await other.write("log", b"two\n", at=2, flags=os.O_WRONLY | os.O_APPEND)
    await mount.system.flush(one)
    await mount.system.write(one, 6, b"three\n")  # the kernel has not heard that it is longer
    await mount.close(one)
    assert await other.read("log") == await mount.read("log") == b"0\ntwo\none\nthree\n"


async def test_a_directory_is_what_it_was_though_others_have_moved_it(mount: Trial, other: Trial) -> None:
    moved = await mount.system.make_directory(mount.root, "run", 0o755, OWNER)
    await other.system.rename((other.root, "run"), (other.root, "old"), Over.REPLACE)
    await other.system.make_directory(other.root, "run", 0o755, OWNER)
    await mount.close(await mount.system.create(moved, "f", os.O_CREAT | os.O_WRONLY, 0o644, OWNER))
    with pytest.raises(CheloniaError):
        await other.system.lookup(await other.find("run"), "f")
    assert (await other.system.lookup(await other.find("old"), "f")).attributes.size == 0
    await mount.system.remove(moved, "f", directory=False)


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
