"""Commits that wait for each other while several threads make files."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from chelonia.core.caller import Call
from chelonia.core.ports.files import Change, Done, Failure, Write
from chelonia_fuse import crowding
from chelonia_fuse.crowding import CommitCrowd
from chelonia_fuse.filesystem import Handle
from tests.sim.virtual_loop import run_virtual
from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import WHO, mounted

FOREVER_S = 600.0
"""Longer than a test lasts: no wait for this time ends."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "PATIENCE", 1e12)
    monkeypatch.setattr(crowding, "WAIT_S_MAX", FOREVER_S)


async def crowd_of(count: int) -> CommitCrowd:
    """A crowd that saw a file being made during so many commits, which are over now."""
    crowd, over = CommitCrowd(), asyncio.Event()
    commits = [asyncio.create_task(_commit(crowd, over)) for _ in range(count)]
    await turns()
    crowd.makes()
    over.set()
    await asyncio.gather(*commits)
    return crowd


async def _commit(crowd: CommitCrowd, over: asyncio.Event | None = None, began: list[int] | None = None) -> None:
    async with crowd.together():
        if began is not None:
            began.append(len(began))
        if over is not None:
            await over.wait()


async def turns() -> None:
    """Let every ready task run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_as_many_go_together_as_were_on_their_way(patient: None) -> None:
    crowd, began, over = await crowd_of(3), list[int](), asyncio.Event()
    commits = [asyncio.create_task(_commit(crowd, over, began)) for _ in range(2)]
    await turns()
    assert began == []
    commits.append(asyncio.create_task(_commit(crowd, over, began)))
    await turns()
    assert began == [0, 1, 2]
    over.set()
    await asyncio.gather(*commits)


async def test_those_that_waited_begin_in_one_step(patient: None) -> None:
    """Else the last one would be sent alone, and the others after it."""
    crowd, seen = await crowd_of(3), list[int]()

    async def commit() -> None:
        async with crowd.together():
            began.append(1)
            await asyncio.sleep(0)
            seen.append(len(began))

    began = list[int]()
    await asyncio.gather(*(commit() for _ in range(3)))
    assert seen == [3, 3, 3]


async def test_who_is_alone_never_waits(patient: None) -> None:
    await _commit(await crowd_of(1))
    crowd = await crowd_of(3)
    crowd.makes()  # nobody's commit is on its way now
    await _commit(crowd)


async def test_where_no_file_was_made_a_moment_ago_nobody_waits(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, skipped_s = itertools.count(), 0.0
    monkeypatch.setattr(crowding, "time", SimpleNamespace(monotonic=lambda: skipped_s + next(ticks)))
    crowd = await crowd_of(3)
    waits = asyncio.create_task(_commit(crowd))
    await turns()
    assert not waits.done()
    waits.cancel()
    await asyncio.wait([waits])
    skipped_s = FOREVER_S + 1
    await _commit(crowd)


def test_where_all_takes_long_commits_wait_as_long_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The busier a machine, the dearer the calls."""
    monkeypatch.setattr(crowding, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))

    async def slow() -> list[float]:
        crowd, began = CommitCrowd(), list[float]()

        async def commit() -> None:
            async with crowd.together():
                began.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.15)

        first = [asyncio.create_task(commit()) for _ in range(3)]
        await asyncio.sleep(0.01)
        crowd.makes()
        await asyncio.gather(*first)
        began.clear()
        later = list[asyncio.Task[None]]()
        for _ in range(3):
            later.append(asyncio.create_task(commit()))
            await asyncio.sleep(0.12)
        await asyncio.gather(*later)
        return began

    assert len(set(run_virtual(slow()))) == 1


async def test_who_waits_in_vain_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowding, "PATIENCE", 0)
    await _commit(await crowd_of(3))


async def test_a_commit_that_failed_or_was_given_up_is_none_on_its_way(patient: None) -> None:
    crowd, over = CommitCrowd(), asyncio.Event()
    given_up = [asyncio.create_task(_commit(crowd, over)) for _ in range(3)]
    await turns()
    for each in given_up:
        each.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    with pytest.raises(OSError, match="refused"):
        async with crowd.together():
            raise OSError("refused")
    crowd.makes()
    await _commit(crowd)


async def test_a_mount_commits_together_what_threads_make_and_sync(patient: None, tmp_path: Path) -> None:
    memory = MemoryCluster(WHO)
    mount, apply, sizes, gate = await mounted(memory, tmp_path), memory.apply, list[int](), asyncio.Event()

    async def counted(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Write):
            sizes.append(len(changes))
            await gate.wait()
        return await apply(call, changes)

    memory.apply = counted  # type: ignore[method-assign]
    handles = [await mount.open(f"f{n}", os.O_RDWR | os.O_CREAT) for n in range(3)]

    async def sync(handle: Handle) -> None:
        await mount.system.write(handle, 0, b"bytes")
        await mount.system.sync(handle)

    first = [asyncio.create_task(sync(handle)) for handle in handles]
    await turns()
    await mount.open("f3", os.O_RDWR | os.O_CREAT)
    gate.set()
    await asyncio.gather(*first)
    sizes.clear()
    later = [asyncio.create_task(sync(handle)) for handle in handles[:2]]
    await turns()
    assert sizes == []
    await asyncio.gather(*later, sync(handles[2]))
    assert sizes == [3]
