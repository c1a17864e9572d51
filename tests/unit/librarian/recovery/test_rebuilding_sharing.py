"""Rebuilds and copies by reference: no file takes bytes along that another has, known to the snapshot or not."""

from __future__ import annotations

import pytest

from chelonia.core.contents.uploads import CopyFile
from chelonia.core.ids import BlobId, Guid
from tests.sim.virtual_loop import run_virtual
from tests.support.librarian import BARTENDER
from tests.unit.librarian.recovery.test_rebuilding import (
    BEFORE,
    checksums,
    held,
    keepers,
    next_snapshot,
    rebuilt,
    resealed,
    times,
)

NEWER = BlobId("00000000-0000-4000-9000-b00000000009")


@pytest.mark.parametrize("known", [True, False])
def test_bytes_that_were_replaced_stay_for_a_copy(known: bool) -> None:
    async def scenario() -> None:
        k = keepers()
        async with k.running(BEFORE):
            file, shared = await k.upload("/over", b"old bytes")
            other, _ = await k.upload("/other")
            source = file if known else other  # then the snapshot knows of another copy, and not of this one
            copy = await k.bench.service.copy_file(BARTENDER, CopyFile(Guid(source), k.bench.begin("copy")))
            await times(k, 1)
            await next_snapshot(k)
            facts = held(k, shared)[0].facts
        newer = resealed(facts, blob=NEWER, checksums=checksums(b"NEW bytes"), created_ms=k.clock.now_ms())
        for number, keeper in enumerate(list(k.shepherds.values())[:2]):
            keeper.plant(number, newer, b"NEW bytes")
        async with rebuilt(k) as (k, status):
            paths = await k.paths()
            assert (await k.bench.stored(paths["/over"])).sections["blobs"] == {"00000000": NEWER}
            assert paths["/copy"] == copy
            blob = await k.bench.stored(f"blob:{shared}")
            assert blob.exists
            if known:
                assert blob.sections["owners"] == {copy: "file"}
                assert (await k.bench.stored(copy)).sections["blobs"] == {"00000000": shared}
            else:
                assert f"/lost+found/{shared}" in paths
            assert "files without bytes" not in status.counts

    run_virtual(scenario())
