"""Calls to a disk that do not return: the time of the longest, and callers that no longer wait for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import StoreIdentity
from chelonia.shepherd.store.blobs_local import LocalBlobs
from tests.support.failing import fails
from tests.support.polling import poll_async
from tests.support.power import PowerDisk, powered

STILL_MS = 300
OWN = StoreIdentity("store", ServiceId("https://s:1/Shepherd"), "cluster")


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[tuple[LocalBlobs, PowerDisk]]:
    """A store on a disk that can hang."""
    with powered(tmp_path / "disk") as disk:
        blobs = LocalBlobs(disk.point / "store", still_ms=STILL_MS)
        await blobs.identify(OWN)
        yield blobs, disk
        disk.go_on()
        await asyncio.to_thread(blobs.close)


@pytest.mark.parametrize("calls", [1, 20])
async def test_a_disk_that_does_not_answer_is_told_and_answers_again(
    hanging: tuple[LocalBlobs, PowerDisk], calls: int
) -> None:
    """This holds for any number of waiting calls: also when they have all the threads, and a caller gets none."""
    blobs, disk = hanging
    disk.hang("fsync")
    writing = [asyncio.ensure_future(blobs.probe()) for _ in range(calls)]
    await poll_async(lambda: disk.waiting() > 0)
    with fails(Kind.UNAVAILABLE, match="has not returned"):
        while True:
            assert await blobs.identity() == OWN  # the cached one is returned, for a while
            await asyncio.sleep(0.01)
    for asked in (blobs.identity, blobs.probe, blobs.space):
        with fails(Kind.UNAVAILABLE, match="has not returned"):
            await asked()
    disk.go_on()
    await asyncio.gather(*writing, return_exceptions=True)
    assert await poll_async(blobs.identity, tolerate=CheloniaError) == OWN
    await blobs.probe()
