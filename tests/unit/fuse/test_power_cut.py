"""The cache directory on a disk that forgets unsynced changes, and has no journal: closed files survive any cut."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia_fuse import behind
from chelonia_fuse.copies import make_directory
from chelonia_fuse.journal import StagingJournal
from chelonia_fuse.mounting import _locked
from tests.support.cluster import MemoryCluster
from tests.support.forgetful import Loss
from tests.support.power import PowerDisk, powered
from tests.unit.fuse.mounts import HOUR_S, Trial, mounted, without_haste

LARGE = bytes(range(256)) * 400
HOME = Path("home/cache/mount-1")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with powered(tmp_path / "disk") as made:
        yield made


@pytest.fixture
async def trial(disk: PowerDisk, memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A mount with its cache on that disk, from a directory on that does not exist yet."""
    without_haste(monkeypatch)
    monkeypatch.setattr(behind, "LINGER_S", HOUR_S)
    with _locked(disk.point / HOME, ""):
        return await mounted(memory, disk.point / HOME)


def after(disk: PowerDisk, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """Yield the bytes in the journal after each kind of cut, by path."""
    for number, loss in enumerate((Loss.ALL, Loss.BYTES, *[Loss.SOME] * 3, *[Loss.LATEST] * 3)):
        image = disk.image(tmp_path / f"image-{number}", number, loss) / HOME
        journal = StagingJournal(image / "journal")
        found = {record.path: data for record, data in journal.packed.records()}
        found |= {each.path: (image / "data" / each.data).read_bytes()[: each.size] for each in journal.records()}
        assert not list((image / "journal").glob("*.bad"))
        yield found


@pytest.mark.expect_log("is kept in", optional=True)
async def test_what_was_closed_is_in_the_journal_after_a_power_cut(
    trial: Trial, disk: PowerDisk, tmp_path: Path
) -> None:
    files = {f"/{name}": name.encode() for name in "abcde"}  # the last two are packed
    for path, data in files.items():
        await trial.write(path.strip("/"), data)
    handle = await trial.open("large", os.O_RDWR | os.O_CREAT)
    await trial.system.write(handle, 0, LARGE)
    trial.system._cluster.is_away = True
    before = disk.syncs()
    await trial.close(handle)
    assert disk.syncs() - before == 4  # the bytes, the name of their file, the record, its name
    again = await trial.open("large")
    await trial.system.write(again, 0, b"later")
    before = disk.syncs()
    await trial.system.flush(again)
    assert disk.syncs() - before == 3
    packed = [record.path for record, _ in trial.committer._packed.records()]
    assert packed
    expected = {path: files[path] for path in packed} | {"/large": b"later" + LARGE[5:]}
    for found in after(disk, tmp_path):
        assert found == expected


async def test_a_small_new_file_of_many_costs_one_sync(trial: Trial, disk: PowerDisk) -> None:
    for name in "abcde":
        before = disk.syncs()
        await trial.write(name, b"1")
    assert disk.syncs() - before == 1


@pytest.mark.expect_log("is committed now|cannot be committed", optional=True)
async def test_what_a_mount_takes_over_from_packed_records_outlives_the_next_power_cut(
    trial: Trial, disk: PowerDisk, memory: MemoryCluster, tmp_path: Path
) -> None:
    for name in "abcde":
        await trial.write(name, name.encode())
    packed = {record.path: data for record, data in trial.committer._packed.records()}
    assert packed
    with contextlib.ExitStack() as over:
        for task in trial.committer.behind._tasks:  # that mount is gone
            over.callback(task.cancel)
        await mounted(memory, disk.point / HOME)
        for found in after(disk, tmp_path):
            assert found == packed


def test_a_cache_is_made_below_a_directory_that_the_user_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `/home`, or a file system for all, where users are not to see each other's names."""
    opens, home = os.open, tmp_path / "home"
    (home / "joe").mkdir(parents=True)

    def refused(path: Path, *flags: int) -> int:
        if path == home:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opens(path, *flags)

    monkeypatch.setattr(os, "open", refused)
    make_directory(home / "joe" / "cache" / "mount-1")
    assert (home / "joe" / "cache" / "mount-1").is_dir()
