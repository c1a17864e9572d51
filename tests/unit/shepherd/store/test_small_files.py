"""Small replicas that are files beside segments, and the pace of the job that gives segments up."""

from pathlib import Path

import pytest

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import StoreIdentity
from chelonia.core.timing.jobs import Wait
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_local import LOOK_MS, MOVE_MS, LocalBlobs
from tests.unit.shepherd.store.test_segments import data_of, held, named, replicas


async def test_a_small_replica_that_is_a_file_remains_one(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path, small_bytes_max=0)
    await store.store_whole(replicas(1, 2))
    await store.settle((named(1),))
    store.close()
    store = LocalBlobs(tmp_path)
    await store.store_whole(replicas(3))
    seen = {each.reference: each.committed async for page in store.scan() for each in page.read}
    assert seen == {named(1): True, named(2): False, named(3): False}
    assert await store.job().step() == Wait(LOOK_MS)
    assert named(1) not in store._segments
    assert [chunk async for chunk in store.read(named(1), ByteRange(0, 3000))] == [data_of(1)]
    assert await store.sizes([named(1), named(3), named(4)]) == (3000, 3000, -1)
    assert await store.erase(named(1))
    await store.quarantine(named(2))
    assert [each.reference for each in await store.quarantined()] == [named(2)]
    assert held(store._segments) == [3]
    store.close()


async def test_a_segment_is_given_up_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pauses after each step, so that users' reads and writes have the disk meanwhile."""
    monkeypatch.setattr(bounds, "SEGMENT_MOVED_BYTES", 8_000)
    store = LocalBlobs(tmp_path)
    await store.identify(StoreIdentity("store", ServiceId("https://h:1/Shepherd")))
    store._segments._segment_bytes = 100 * 4096
    await store.store_whole(replicas(*range(1, 101)))
    await store.store_whole(replicas(101))
    assert [await store.erase(named(number)) for number in range(11, 101)] == [True] * 90

    def in_first() -> int:
        parts = store._segments.places.values()
        return sum(layout.unpack(each).segment == 1 for part in parts for each in part.values())

    job, steps = store.job(), 0
    first = tmp_path / "segments" / "00000001.segment"
    while first.exists():
        before = in_first()
        assert await job.step() == Wait(MOVE_MS)
        steps += 1
        assert before - in_first() <= 2, "two make 8 000 bytes"
    assert steps == 6, "five for ten replicas, and one for what is left of the segment"
    assert held(store._segments) == [*range(1, 11), 101]
    store.close()
