"""Files of several blobs in snapshots and rebuilds: from a snapshot as they were, without one no byte is lost."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.parts import UploadId
from chelonia.core.contents.uploads import BeginPut, OpenUpload, PutPart, SealUpload
from chelonia.core.ids import ROOT, BlobId, ContentId, Guid, Ms, ObjectId, content_object
from chelonia.core.metadata import StoredObject
from chelonia.core.names import parse_ln
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.recovery import snapshots
from tests.sim.virtual_loop import virtual
from tests.support.librarian import BARTENDER, HOUR, JOE
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot, rebuilt


async def content(k: Keepers, file: Guid) -> StoredObject:
    """The content of a file."""
    return await k.bench.stored(content_object(content_of(await k.bench.stored(file))))


@virtual
async def test_a_file_of_several_blobs_comes_back_as_the_snapshot_knew_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PAGE", 3)

    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        for at in (10, 15, 20, 25, 3):
            await k.splice("/f", file, at, b"abcde")
        await next_snapshot(k)
        before, whole = await k.bench.stored(file), await content(k, file)
        assert len(whole.sections["extents"]) == 7
    async with rebuilt(k) as (k, _):
        assert (await k.bench.stored(file)).sections == before.sections
        assert (await content(k, file)).sections == whole.sections
        page = await k.bench.service.extents(BARTENDER, file, 0, 100)
        assert all("alive" in place.locations.values() for place in page.blobs)
        assert set(await k.paths()) == {"/f"}


@virtual
async def test_what_was_laid_over_a_file_since_the_snapshot_is_sheltered_and_never_taken_for_the_file() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        spliced, _ = await k.upload("/g", b"0123456789")
        await k.splice("/g", spliced, 10, b"known")
        await next_snapshot(k)
        await asyncio.sleep(1)
        since = [await k.splice("/f", file, 10, b"late"), await k.splice("/g", spliced, 15, b"late")]
        since.append((await k.upload("/g", b"whole", replaces=spliced))[1])
    async with rebuilt(k) as (k, _):
        assert (await k.bench.stored(file)).value("states", "size") == "10"
        assert (await k.bench.stored(spliced)).value("states", "size") == "15"
        assert set(await k.paths()) == {"/f", "/g", "/lost+found", *(f"/lost+found/{blob}" for blob in since)}


@virtual
async def test_without_a_snapshot_every_piece_is_in_lost_and_found() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, first = await k.upload("/f", b"0123456789")
        pieces = [await k.splice("/f", file, at, b"abcde") for at in (10, 15)]
    async with rebuilt(k) as (k, _):
        paths = await k.paths()
        assert set(paths) == {"/f", "/lost+found", *(f"/lost+found/{blob}" for blob in pieces)}
        stored = await k.bench.stored(ObjectId(paths["/f"]))
        assert set(stored.sections["blobs"].values()) == {first}


async def _upload(k: Keepers, ln: str, *parts: bytes) -> tuple[UploadId, list[tuple[int, str]], list[BlobId]]:
    """An open upload with these parts: numbers and etags, and the blobs."""
    name, order, blobs = parse_ln(ln), [], []
    begin = BeginPut(ROOT, name.name, name, JOE, {}, 2, -1, Checksums(), Ms(k.clock.now_ms() + HOUR), named=False)
    upload = await k.bench.service.open_upload(BARTENDER, OpenUpload(begin, ROOT, name.name))
    for number, data in enumerate(parts, 1):
        piece = await k.arrived(ln, data, piece=True)
        order.append((number, await k.bench.service.put_part(BARTENDER, PutPart(upload, number, piece))))
        blobs.append(piece.begun.blob)
    return upload, order, blobs


@virtual
async def test_a_file_sealed_of_parts_comes_back_and_parts_that_nobody_sealed_are_sheltered() -> None:
    k = keepers()
    async with k.running(BEFORE):
        upload, order, _ = await _upload(k, "/f", b"first", b"second", b"unnamed")
        name = parse_ln("/f")
        begin = BeginPut(ROOT, "f", name, JOE, {}, 2, -1, Checksums(), Ms(0), named=False)
        file = await k.bench.service.seal_upload(BARTENDER, SealUpload(upload, begin, tuple(order[:2])))
        _, _, open_ones = await _upload(k, "/g", b"never", b"sealed")
        await next_snapshot(k)
        before = await k.bench.stored(file)
        extents = (await content(k, file)).sections["extents"]
    async with rebuilt(k) as (k, _):
        assert (await k.bench.stored(file)).sections == before.sections
        assert (await content(k, file)).sections["extents"] == extents
        assert set(await k.paths()) == {"/f", "/lost+found", *(f"/lost+found/{blob}" for blob in open_ones)}


def test_a_snapshot_keeps_nothing_of_the_parts_that_were_not_sealed() -> None:
    header = {"state": "sealed", "file": "g", "due_ms": "7", "order": "ab", "splices": "1"}
    stored = StoredObject(content_object(ContentId("c")), 3, {"content": header, "named": {"b": "5", "unnamed": "0"}})
    kept = snapshots.kept(stored)
    assert kept is not None
    assert kept.sections == {"content": {"state": "sealed", "file": "g", "splices": "1"}, "named": {"b": "5"}}
    assert snapshots.kept(StoredObject(stored.id, 3, {"content": {**header, "state": "open"}})) is None
