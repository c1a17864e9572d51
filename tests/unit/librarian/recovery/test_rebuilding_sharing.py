"""Rebuilds and copies by reference: no file takes another's bytes along, known to the snapshot or not."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.contents.uploads import CopyFile
from chelonia.core.ids import BlobId, Guid
from chelonia.core.ports.librarian import Delete
from chelonia.librarian.recovery import snapshots
from tests.sim.virtual_loop import virtual
from tests.support.librarian import BARTENDER
from tests.unit.librarian.recovery.test_rebuilding import (
    BEFORE,
    HOUR,
    checksums,
    held,
    keepers,
    next_snapshot,
    rebuilt,
    resealed,
    short_uploads,
)

NEWER = BlobId("00000000-0000-4000-9000-b00000000009")


@pytest.mark.parametrize("how", ["known", "page before", "other known", "first ever"])
@virtual
async def test_bytes_that_were_replaced_stay_for_a_copy(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is no instant: it may have the copy, and its blob as of a moment before."""
    if how == "page before":
        monkeypatch.setattr(snapshots, "BLOB_KEPT", ("blob",))

    k = keepers()
    async with k.running(BEFORE):
        file, shared = await k.upload("/over", b"old bytes")
        other, _ = await k.upload("/other")
        copy = ""
        if how != "first ever":
            source = other if how == "other known" else file  # then the snapshot does not know of the copy of this
            copy = await k.bench.service.copy_file(BARTENDER, CopyFile(Guid(source), k.bench.begin("copy")))
        await next_snapshot(k)
        facts = held(k, shared)[0].facts
    newer = resealed(facts, blob=NEWER, checksums=checksums(b"NEW bytes"), created_ms=k.clock.now_ms())
    for number, keeper in enumerate(list(k.shepherds.values())[:2]):
        keeper.plant(number, newer, b"NEW bytes")
    async with rebuilt(k) as (k, status):
        paths = await k.paths()
        assert (await k.bench.stored(paths["/over"])).sections["blobs"] == {"00000000": NEWER}
        assert paths.get("/copy", "") == copy
        assert (await k.bench.stored(f"blob:{shared}")).exists
        assert len(await k.bench.locations(shared)) == 2
        if how in ("known", "page before"):
            assert (await k.bench.stored(copy)).sections["blobs"] == {"00000000": shared}
        else:
            assert f"/lost+found/{shared}" in paths
        assert "files without bytes" not in status.counts


@virtual
async def test_a_copy_keeps_the_bytes_of_a_deleted_file_whose_time_is_over_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "BLOB_KEPT", ("blob",))
    short_uploads(monkeypatch)

    k = keepers()
    async with k.running(BEFORE):
        file, shared = await k.upload("/f")
        await asyncio.sleep(30)
        copy = await k.bench.service.copy_file(BARTENDER, CopyFile(Guid(file), k.bench.begin("copy")))
        await k.bench.service.delete(BARTENDER, Delete(Guid(file)))
        await next_snapshot(k)
    k.clock.step_ms = 2 * HOUR
    async with rebuilt(k) as (k, status):
        assert (await k.paths())["/copy"] == copy
        assert (await k.bench.stored(copy)).sections["blobs"] == {"00000000": shared}
        assert len(await k.bench.locations(shared)) == 2
        assert "files without bytes" not in status.counts
