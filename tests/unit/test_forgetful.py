"""The file system that forgets: the data it keeps, and a mount of it."""

import mmap
import os
import random
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import capabilities
from tests.support.forgetful import PAGE, Forgetful, Loss
from tests.support.polling import poll
from tests.support.power import PowerDisk, powered

FILE = stat.S_IFREG | 0o600
ANY = random.Random(1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with powered(tmp_path / "disk") as made:
        yield made


def test_a_machine_that_can_mount_no_such_disk_fails_under_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all that is tested of power cuts would vanish without a word."""
    monkeypatch.setattr(capabilities, "missing", lambda name: "no such device" if name == "fuse" else None)
    for ci, outcome in (("true", pytest.fail.Exception), ("", pytest.skip.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match="missing capability fuse"), powered(tmp_path / "disk"):
            pass


def names(disk: Forgetful) -> set[str]:
    return set(disk.nodes[1].names)


@pytest.mark.parametrize("journal", [False, True])
def test_a_name_is_kept_when_its_directory_was_synced_or_anything_with_a_journal(journal: bool) -> None:
    disk = Forgetful(journal=journal)
    node = disk.make(1, "a", FILE)
    disk.sync(node.number)
    disk.make(1, "b", FILE)
    disk.cut(ANY, Loss.ALL)
    assert names(disk) == ({"a"} if journal else set())


def test_a_rename_that_was_not_synced_is_undone_whole() -> None:
    disk = Forgetful()
    disk.make(1, "a", FILE)
    disk.sync(1)
    disk.rename(1, "a", 1, "b")
    seen = set()
    for seed in range(20):
        disk.sync(1)
        disk.rename(1, *("a", 1, "b") if "a" in names(disk) else ("b", 1, "a"))
        disk.cut(random.Random(seed), Loss.SOME)
        assert len(names(disk)) == 1
        seen |= names(disk)
    assert seen == {"a", "b"}


def test_unsynced_pages_are_lost_each_by_itself() -> None:
    disk = Forgetful()
    node = disk.make(1, "a", FILE)
    disk.sync(1)
    disk.write(node.number, 0, b"o" * 8 * PAGE)
    disk.sync(node.number)
    disk.write(node.number, 0, b"n" * 8 * PAGE)
    disk.cut(random.Random(3), Loss.SOME)
    pages = [disk.read(node.number, page * PAGE, PAGE) for page in range(8)]
    assert {b"o" * PAGE, b"n" * PAGE} == set(pages)


def test_what_a_failed_sync_has_lost_no_later_one_saves() -> None:
    disk = Forgetful()
    node = disk.make(1, "a", FILE)
    disk.sync(1)
    disk.write(node.number, 0, b"o" * PAGE)
    disk.sync(node.number)
    disk.write(node.number, 0, b"n" * PAGE)
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="failed"):
        disk.sync(node.number)
    disk.sync(node.number)
    disk.cut(ANY, Loss.ALL)
    assert disk.read(node.number, 0, PAGE) == b"o" * PAGE


def test_a_mount_forgets_also_what_the_kernel_kept(disk: PowerDisk) -> None:
    path = disk.point / "f"
    with path.open("w+b") as file:
        file.write(b"old" + bytes(PAGE))
        file.flush()
        os.fsync(file.fileno())
        folder = os.open(disk.point, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        mapped = mmap.mmap(file.fileno(), PAGE)
        mapped[:3] = b"new"
        (disk.point / "g").write_bytes(b"g")
        assert disk.cut() > 0
        assert path.read_bytes()[:3] == b"old"
        assert os.listdir(disk.point) == ["f"]
        with pytest.raises(OSError, match="not connected"):
            os.fsync(file.fileno())
    disk.fail_syncs(1)
    with path.open("ab") as file:
        file.write(b"x")
        file.flush()
        with pytest.raises(OSError, match="output"):
            os.fsync(file.fileno())


def written(path: Path) -> float:
    """Write to a file and sync it. Returns: the time when the sync ended."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(handle, b"x")
        os.fsync(handle)
    finally:
        os.close(handle)
    return time.monotonic()


def test_a_mount_hangs_until_it_goes_on_and_may_be_read_only(disk: PowerDisk) -> None:
    path = disk.point / "f"
    written(path)
    with ThreadPoolExecutor() as pool:
        disk.hang("fsync")
        stuck = pool.submit(written, path)
        assert path.read_bytes() == b"x"  # cached data is served meanwhile
        poll(lambda: disk.waiting() == 1)
        released = time.monotonic()
        disk.go_on()
        assert stuck.result() >= released
    disk.read_only(True)
    for change in (lambda: written(path), lambda: written(disk.point / "g"), path.unlink):
        with pytest.raises(OSError, match="Read-only"):
            change()
    assert path.read_bytes() == b"x"
    disk.read_only(False)
    written(disk.point / "g")
    assert sorted(os.listdir(disk.point)) == ["f", "g"]
