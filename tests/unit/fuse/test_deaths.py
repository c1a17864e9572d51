"""Mounts that die in the middle of a commit: what was closed is there once, and as it was written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Change, Setting
from chelonia_fuse import committing
from tests.support.cluster import MemoryCluster
from tests.support.failing import fails
from tests.unit.fuse.mounts import OWNER, Trial, mounted, names

APPEND = os.O_RDWR | os.O_APPEND
LARGE = bytes(range(256)) * 4096


@contextmanager
def dying(memory: MemoryCluster, directory: Path, *, applied: bool, at: int = 1) -> Iterator[Path]:
    """The mount dies at its `at`th commit, before it has applied or before its answer. Yields the directory that has
    what was on its disk then."""
    apply, left, count = memory.apply, directory.with_name(f"{directory.name}-left"), 0

    async def last(call: Call, changes: tuple[Change, ...]) -> Any:
        nonlocal count
        count += not any(change.when.present and change.when.absent for change in changes)  # else a question
        if count == at and not left.exists():
            if applied:
                await apply(call, changes)
            shutil.copytree(directory, left)
        if left.exists():
            raise CheloniaError(Kind.NETWORK, "apply", cause="this mount is dead")
        return await apply(call, changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "apply", last)
        patch.setattr(committing, "GIVE_UP_S", -1.0)
        yield left
        assert left.exists()


async def kept(trial: Trial, name: str, data: bytes, at: int = 0, flags: int = APPEND) -> None:
    """Write, by default append, while the cluster is away."""
    handle = await trial.open(name, flags)
    trial.system._cluster.is_away = True
    await trial.system.write(handle, at, data)
    await trial.close(handle)
    trial.system._cluster.is_away = False


@pytest.mark.expect_log("will be committed later|is committed now")
@pytest.mark.parametrize("old", [b"old ", LARGE])
async def test_what_is_appended_to_what_waits_is_there_once_though_the_mount_dies_before_the_answer(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, old: bytes
) -> None:
    await mount.write("f", old)
    await kept(mount, "f", b"1")
    with dying(memory, tmp_path / "one", applied=True) as left:
        await mount.write("f", b"2", flags=APPEND)
    again = await mounted(memory, left)
    await again.committer.work_off()
    assert (await names(other), await other.read("f")) == (["f"], old + b"12")


@pytest.mark.expect_log("is committed now")
async def test_what_waits_is_there_once_though_its_mode_was_set_and_the_mount_dies_before_the_answer(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("f", b"old ")
    await kept(mount, "f", b"1")
    await mount.system.set(await mount.find("f"), Setting(mode=0o600))
    with dying(memory, tmp_path / "one", applied=True) as left:
        await mount.committer.work_off()
    again = await mounted(memory, left)
    await again.committer.work_off()
    assert (await names(other), await other.read("f")) == (["f"], b"old 1")


@pytest.mark.expect_log("is committed now")
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("others", [b"2", b"2" * 300])
async def test_what_was_moved_behind_others_bytes_is_whole_and_there_once_though_the_mount_dies_in_its_commit(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, applied: bool, others: bytes
) -> None:
    await mount.write("f", b"old ")
    await kept(mount, "f", b"123456")
    await other.write("f", others, flags=APPEND)
    with dying(memory, tmp_path / "one", applied=applied, at=2) as left:
        await mount.committer.work_off()
    again = await mounted(memory, left)
    handle = await again.open("f", APPEND)
    await again.committer.work_off()
    assert await again.system.read(handle, 0, 1000) == await other.read("f") == b"old " + others + b"123456"
    await again.system.write(handle, 0, b"7")
    await again.close(handle)
    assert (await names(other), await other.read("f")) == (["f"], b"old " + others + b"1234567")


async def died_twice(mount: Trial, memory: MemoryCluster, directory: Path, *changes: tuple[bytes, int, int]) -> Trial:
    """Each mount that died had left a record, and the second commit was on the first one. Returns: the third mount."""
    trial = mount
    for commit, (data, at, flags) in enumerate(changes, 1):
        await kept(trial, "f", data, at, flags)
        with dying(memory, directory, applied=True, at=commit) as left:
            await trial.committer.work_off()
        trial, directory = await mounted(memory, left), left
    return trial


@pytest.mark.parametrize(("old", "others"), [(b"old ", None), (LARGE, None), (LARGE, 1)])
async def test_of_two_commits_whose_answers_two_mounts_never_heard_the_later_one_counts(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, old: bytes, others: int | None
) -> None:
    """Others append, or write over the bytes by which the second commit can be recognised."""
    await mount.write("f", old)
    third = await died_twice(mount, memory, tmp_path / "one", (b"1", 0, APPEND), (b"2", 0, APPEND))
    await other.write("f", b"3", len(old) + (others or 0), os.O_RDWR if others else APPEND)
    await third.write("f", b"4", flags=APPEND)
    await third.committer.work_off()
    assert (await names(other), await other.read("f")) == (["f"], old + (b"134" if others else b"1234"))


async def test_what_is_written_after_two_commits_whose_answers_two_mounts_never_heard_is_no_conflict(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    await mount.write("f", LARGE)
    third = await died_twice(mount, memory, tmp_path / "one", (b"1", 0, os.O_RDWR), (b"2", 1, os.O_RDWR))
    await third.write("f", b"3", 2, os.O_RDWR)
    await third.committer.work_off()
    assert (await names(other), await other.read("f")) == (["f"], b"123" + LARGE[3:])


@pytest.mark.expect_log("is committed now")
@pytest.mark.parametrize("others", [b"2", b"22"])
async def test_what_is_being_moved_behind_others_bytes_is_whole_though_the_mount_dies_before_its_record_is_written(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bytes
) -> None:
    await mount.write("f", b"old ")
    await kept(mount, "f", b"123456")
    await other.write("f", b"2", flags=APPEND)
    if others == b"22":  # then it has been moved before
        with dying(memory, tmp_path / "one", applied=False, at=2):
            await mount.committer.work_off()
        await other.write("f", b"2", flags=APPEND)

    def dies(record: object) -> None:
        shutil.copytree(tmp_path / "one", tmp_path / "left", dirs_exist_ok=True)
        raise CheloniaError(Kind.NETWORK, cause="this mount is dead")

    with monkeypatch.context() as patch, fails(Kind.NETWORK):
        patch.setattr(mount.committer._journal, "write", dies)
        await mount.committer.work_off()
    await other.write("f", b"3", flags=APPEND)
    again = await mounted(memory, tmp_path / "left")
    with dying(memory, tmp_path / "left", applied=False, at=2) as last:
        await again.committer.work_off()
    third = await mounted(memory, last)
    await third.committer.work_off()
    assert (await names(other), await other.read("f")) == (["f"], b"old " + others + b"3123456")
    assert not list((last / "data").iterdir())


@pytest.mark.expect_log("is committed now")
@pytest.mark.parametrize("applied", [False, True])
async def test_what_was_not_closed_when_the_mount_died_is_not_read_once_what_was_closed_is_committed(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, applied: bool
) -> None:
    """It is in the file of what was closed, but in no record. Other mounts would never see it."""
    await mount.write("f", LARGE)
    await mount.read("f")
    await kept(mount, "f", b"closed", 50, os.O_RDWR)
    with dying(memory, tmp_path / "one", applied=applied) as left:
        await mount.committer.work_off()
    there = left / "data" / (await mount.find("f")).guid
    there.write_bytes(b"not closed" + there.read_bytes()[10:])
    again = await mounted(memory, left)
    handle = await again.open("f")
    assert await again.system.read(handle, 0, 10) == b"not closed"
    await again.committer.work_off()
    assert await again.system.read(handle, 0, 1 << 20) == await other.read("f") == LARGE[:50] + b"closed" + LARGE[56:]


@pytest.mark.expect_log("is committed now")
async def test_of_bytes_that_were_moved_nothing_stays_though_a_full_disk_took_no_record(
    mount: Trial, other: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mount.write("f", b"old ")
    await kept(mount, "f", b"123456")
    await other.write("f", b"2", flags=APPEND)
    handle = await mount.open("f")
    monkeypatch.setattr(mount.committer._journal, "write", full_disk)
    await mount.committer.work_off()
    assert await mount.system.read(handle, 0, 100) == await other.read("f") == b"old 2123456"
    assert len(list((tmp_path / "one" / "data").iterdir())) == 1


def full_disk(*args: object) -> None:
    raise OSError(errno.ENOSPC, "full")


@pytest.mark.expect_log("is committed now")
@pytest.mark.parametrize("old", [b"old ", LARGE])
async def test_what_waits_is_there_once_though_a_full_disk_took_no_record_of_what_was_appended_to_it(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes
) -> None:
    await mount.write("f", old)
    await kept(mount, "f", b"1")
    handle = await mount.open("f", APPEND)
    await mount.system.write(handle, 0, b"2")
    monkeypatch.setattr(mount.committer._journal, "write", full_disk)
    with dying(memory, tmp_path / "one", applied=True) as left, fails(Kind.NETWORK):
        await mount.system.sync(handle)
    again = await mounted(memory, left)
    await again.committer.work_off()
    assert (await names(other), await other.read("f")) == (["f"], old + b"12")


async def test_what_was_not_closed_when_the_mount_died_does_not_stand_in_place_of_zeros(
    mount: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    """It is in the file of what was closed, behind its end."""
    await mount.write("f", b"old ")
    await kept(mount, "f", b"1")
    handle = await mount.open("f", APPEND)
    await mount.system.write(handle, 0, b"not closed")
    again = await mounted(memory, tmp_path / "one")
    handle = await again.open("f")
    await again.system.resize(handle.inode, 10, by_name=False)
    assert await again.system.read(handle, 0, 20) == b"old 1" + bytes(5)


async def test_what_waits_may_be_longer_than_a_file_of_the_local_disk(
    mount: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    """It is sparse, and its zeros are not in the file of the cache."""
    await mount.write("f", b"old ")
    handle = await mount.open("f")
    await mount.system.resize(handle.inode, 1 << 62, by_name=False)
    mount.system._cluster.is_away = True
    await mount.system.flush(handle)
    again = await mounted(memory, tmp_path / "one")
    (waiting,) = again.committer.waiting.values()
    assert waiting.copy is not None
    assert (waiting.copy.staged.size, waiting.copy.read(0, 8)) == (1 << 62, b"old \0\0\0\0")


@pytest.mark.expect_log("was changed by somebody else|is committed now")
async def test_what_is_kept_beside_a_file_is_there_once_though_the_mount_dies_before_the_answer(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path
) -> None:
    """The next mount knows the file by its path alone."""
    above = await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    handle = await mount.system.create(above, "f", os.O_RDWR | os.O_CREAT, 0o644, OWNER)
    await mount.system.write(handle, 0, b"mine")
    mount.system._cluster.is_away = True
    await mount.close(handle)
    there = await other.find("d")
    theirs = await other.system.open(await other.system.lookups.lookup(there, "f"), os.O_RDWR)
    await other.system.write(theirs, 0, b"theirs")
    await other.close(theirs)
    with dying(memory, tmp_path / "one", applied=True, at=2) as left:
        await mount.committer.work_off()
    again = await mounted(memory, left)
    await again.committer.work_off()
    assert (len(await names(other, directory=there)), again.committer.waiting) == (2, {})
