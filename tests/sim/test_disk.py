"""A simulated disk after a crash: it has all that was answered, and of the rest no more than a real one may keep."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from chelonia.core.errors import Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import StoredReplica
from tests.sim.disk import SimDisk
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.shepherd import numbered, request

REFERENCE = ReferenceId(numbered("a", 1))
BYTES = b"0123456789"
SEEDS = range(60)


async def _fails(disk: SimDisk, work: Callable[[], Awaitable[object]]) -> None:
    """Do something until its sync fails."""
    disk.fails = 1.0
    with fails(Kind.UNAVAILABLE):
        await work()
    disk.fails = 0.0


async def _commit(disk: SimDisk) -> None:
    writer = await disk.create(REFERENCE)
    await writer.write(BYTES)
    await writer.commit(request(BYTES).facts)


def _disk(seed: int) -> SimDisk:
    disk = SimDisk(random.Random(seed), lambda reference, heard: None)
    disk.troubles = random.Random(f"troubles {seed}")
    return disk


def _kind(disk: SimDisk, held: tuple[StoredReplica, ...]) -> str:
    data = disk.platter.data(REFERENCE) if held else b""
    assert BYTES.startswith(data.rstrip(b"\0"))
    return "nothing" if not held else "whole" if data == BYTES else "short" if len(data) < len(BYTES) else "zeros"


@virtual
async def test_a_commit_that_failed_leaves_nothing_a_part_or_all_and_one_that_was_answered_all() -> None:
    seen = set[str]()
    for seed in SEEDS:
        disk = _disk(seed)
        await _fails(disk, lambda disk=disk: _commit(disk))
        assert not disk.held()
        await disk.crash()
        seen.add(_kind(disk, disk.held()))
        disk = _disk(seed)
        await _commit(disk)
        await disk.crash()
        assert _kind(disk, disk.held()) == "whole"
    assert seen == {"nothing", "short", "zeros", "whole"}


@virtual
async def test_an_upload_whose_suspension_failed_is_thrown_away() -> None:
    """A real store syncs the bytes before it names them as kept."""
    for seed in SEEDS:
        disk = _disk(seed)
        writer = await disk.create(REFERENCE)
        await writer.write(BYTES)
        await _fails(disk, writer.suspend)
        await writer.abort()
        assert not disk.platter.kept_uploads()


@virtual
async def test_an_erasure_may_be_undone_until_it_is_answered() -> None:
    seen = set[int]()
    for seed in SEEDS:
        disk = _disk(seed)
        await _commit(disk)
        await _fails(disk, lambda disk=disk: disk.erase(REFERENCE))
        gone = not disk.held()
        await disk.crash()
        if gone:
            seen.add(len(disk.held()))
        await disk.erase(REFERENCE)
        await disk.crash()
        assert not disk.held()
    assert seen == {0, 1}
