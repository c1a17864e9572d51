"""A store's own state: its identity, and that it has segments, even when two writers race."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import StoreIdentity
from chelonia.core.values import replace
from chelonia.shepherd.store import store_state
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.store_state import has_segments, read_identity
from tests.unit.shepherd.store.test_small_files import replica

MADE = StoreIdentity("store", ServiceId("https://h:1/Shepherd"))
TAKEN_IN = replace(MADE, cluster="cluster")


async def test_a_first_segment_is_said_though_a_cluster_takes_the_store_in_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalBlobs(tmp_path)
    await store.identify(MADE)
    run = store._files.run

    async def late(fn: Callable[[], Any]) -> Any:
        monkeypatch.undo()
        await store.store_whole([replica(1)])
        return await run(fn)

    monkeypatch.setattr(store._files, "run", late)
    await store.identify(TAKEN_IN)
    assert read_identity(tmp_path) == TAKEN_IN
    assert has_segments(tmp_path), "a start without them would find a store that is whole"
    store.close()


async def test_what_a_first_segment_says_leaves_the_store_in_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, loop = LocalBlobs(tmp_path), asyncio.get_running_loop()
    await store.identify(MADE)
    taken_in: list[concurrent.futures.Future[None]] = []

    def meanwhile(root: Path) -> StoreIdentity | None:
        monkeypatch.undo()
        found = read_identity(root)
        taken_in.append(asyncio.run_coroutine_threadsafe(store.identify(TAKEN_IN), loop))
        concurrent.futures.wait(taken_in, timeout=0.3)  # it is not to come before what was begun
        return found

    monkeypatch.setattr(store_state, "read_identity", meanwhile)
    await store.store_whole([replica(1)])
    await asyncio.wrap_future(taken_in[0])
    assert read_identity(tmp_path) == TAKEN_IN
    assert has_segments(tmp_path)
    store.close()


@pytest.mark.parametrize("name", ["00000001 (copy).segment", "00000001.segment.old", "0000000².segment"])
async def test_what_somebody_puts_beside_the_segments_is_none(tmp_path: Path, name: str) -> None:
    store = LocalBlobs(tmp_path)
    await store.store_whole([replica(1)])
    store.close()
    (tmp_path / "segments" / name).write_bytes(b"a copy")
    store = LocalBlobs(tmp_path)
    assert await store.facts(replica(1).reference) == replica(1).facts
    store.close()
