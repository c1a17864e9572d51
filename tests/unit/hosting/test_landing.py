"""Arrived files get their names: synced first, together where that is safe, with an error of its own for each."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from chelonia.hosting.transfer import landing as landings
from chelonia.hosting.transfer.landing import FEW, Landing
from chelonia.hosting.transfer.part_file import PartFile

MANY = FEW + 3


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the disk, in order, on a system that can sync a whole file system."""
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def named(path: Path, target: Path) -> Path:
        done.append(f"named {target.name}")
        return replace(path, target)

    def synced(descriptor: int) -> None:
        done.append("synced one")
        fsync(descriptor)

    def all_synced(_: int) -> bool:
        done.append("synced all")
        return True

    monkeypatch.setattr(Path, "replace", named)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(landings, "_knows", lambda _: True)
    monkeypatch.setattr(landings, "_syncfs", all_synced)
    return done


async def landed(*targets: Path) -> list[BaseException | None]:
    landing = Landing()

    async def one(target: Path) -> None:
        with PartFile(target) as part:
            part.write(target.name.encode())
            await landing.land(part, 5.0)

    return await asyncio.gather(*map(one, targets), return_exceptions=True)


async def landed_in(directory: Path, landing: Landing, name: str, mtime_s: float | None = None) -> None:
    with PartFile(directory / name) as part:
        part.write(b"x")
        await landing.land(part, mtime_s)


async def test_files_that_come_together_are_synced_together_before_they_are_named(
    tmp_path: Path, steps: list[str]
) -> None:
    targets = [tmp_path / f"f{number}" for number in range(MANY)]
    assert await landed(*targets) == [None] * MANY
    assert steps == ["synced all", *(f"named f{number}" for number in range(MANY))]
    assert [(path.read_text(), path.stat().st_mtime) for path in targets] == [(path.name, 5.0) for path in targets]
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in targets)


async def test_no_more_are_open_at_once_than_a_process_may_have(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landings, "MOST", MANY)
    names = [f"f{number}" for number in range(2 * MANY)]
    assert await landed(*(tmp_path / name for name in names)) == [None] * (2 * MANY)
    named = [f"named {name}" for name in names]
    assert steps == ["synced all", *named[:MANY], "synced all", *named[MANY:]]


async def test_few_are_synced_each_by_itself(tmp_path: Path, steps: list[str]) -> None:
    assert await landed(tmp_path / "a", tmp_path / "b") == [None, None]
    assert steps == ["synced one", "named a", "synced one", "named b"]


async def test_where_a_sync_of_all_is_not_known_or_fails_each_is_synced(
    tmp_path: Path, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, how in (("_syncfs", False), ("_knows", False)):
        monkeypatch.setattr(landings, name, lambda _, how=how: how)
        steps.clear()
        assert await landed(*(tmp_path / f"{name}{number}" for number in range(MANY))) == [None] * MANY
        assert steps.count("synced one") == MANY
        assert "synced all" not in steps


async def test_what_fails_for_one_is_its_own(tmp_path: Path, steps: list[str]) -> None:
    (tmp_path / "taken").mkdir()
    told = await landed(*(tmp_path / name for name in ("a", "taken", "b", "c", "d")))
    assert [type(error) for error in told] == [type(None), IsADirectoryError, *[type(None)] * 3]
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d", "taken"]
    assert "synced all" in steps


async def test_a_time_that_no_file_can_have_fails_for_its_own_file_alone(tmp_path: Path) -> None:
    """All files that came with it were given up."""
    landing = Landing()

    times = {"a": 5.0, "b": float("inf"), "c": float("nan"), "d": 7.0}
    told = await asyncio.gather(
        *(landed_in(tmp_path, landing, *each) for each in times.items()), return_exceptions=True
    )
    assert [type(error) for error in told] == [type(None), OverflowError, ValueError, type(None)]
    assert sorted(os.listdir(tmp_path)) == ["a", "d"]


def held_sync(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Syncs of a disk begin, and wait. Returns: an event for the beginning, and one that lets all go on."""
    busy, goes_on = threading.Event(), threading.Event()

    def fsync(_: int) -> None:
        busy.set()
        goes_on.wait()

    monkeypatch.setattr(os, "fsync", fsync)
    return busy, goes_on


async def test_who_gives_up_leaves_nothing_and_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing, busy, goes_on = Landing(), *held_sync(monkeypatch)
    one = partial(landed_in, tmp_path, landing)
    tasks = [asyncio.create_task(one("a"))]
    await asyncio.to_thread(busy.wait)
    tasks += [asyncio.create_task(one(name)) for name in ("b", "c")]
    while len(landing._waiting) < 2:
        await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait((tasks[1],))
    goes_on.set()
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(error, asyncio.CancelledError) for error in told] == [False, True, False]
    assert sorted(os.listdir(tmp_path)) == ["a", "c"]


async def test_who_gives_up_twice_still_waits_for_the_thread_that_writes_his_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing, busy, goes_on = Landing(), *held_sync(monkeypatch)
    one = partial(landed_in, tmp_path, landing)
    task = asyncio.create_task(one("a"))
    await asyncio.to_thread(busy.wait)
    for _ in range(2):
        task.cancel()
        await asyncio.wait((task,), timeout=0)
    for _ in range(10):
        await asyncio.sleep(0)
    waits = not task.done()
    goes_on.set()
    assert waits
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == ["a"]


def test_a_loop_that_ends_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files were closed while the thread worked on them, and those that it made stayed."""
    landing, write_out, at_work = Landing(), PartFile.write_out, threading.Event()
    loops = list[asyncio.AbstractEventLoop]()

    def slowly(part: PartFile, mtime_s: float | None) -> None:
        if part._target.name == "3":
            at_work.set()
            for _ in range(20):  # turns of the loop, which ends
                turned = threading.Event()
                loops[0].call_soon_threadsafe(turned.set)
                assert turned.wait(20)
        write_out(part, mtime_s)

    monkeypatch.setattr(PartFile, "write_out", slowly)

    async def whole() -> None:
        loops.append(asyncio.get_running_loop())
        tasks = [asyncio.create_task(landed_in(tmp_path, landing, str(number))) for number in range(MANY)]
        while not at_work.is_set():
            await asyncio.sleep(0)
        assert tasks

    asyncio.run(whole())
    assert all(name.isdecimal() for name in os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("release", "kind", "known"),
    [
        ("6.1.0-18-amd64", "ext4", True),
        ("5.8.1", "xfs", True),
        ("4.18.0-553.el8", "xfs", False),
        ("6.1.0", "fuse.x", False),
        ("6.1.0", "nfs4", False),
        ("odd", "ext4", False),
    ],
)
def test_which_file_systems_tell_of_what_they_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, kind: str, known: bool
) -> None:
    lines = f"36 35 98:0 / /mnt rw,noatime shared:1 - {kind} /dev/x rw\n37 35 98:1 / /y rw - tmpfs tmpfs rw\n"
    monkeypatch.setattr(Path, "read_text", lambda _, **__: lines)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", release, "v", "m")))
    assert landings._knows(os.makedev(98, 0)) is known
    assert not landings._knows(os.makedev(98, 7))
