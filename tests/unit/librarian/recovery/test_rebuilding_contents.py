"""Files of several blobs in snapshots and rebuilds: from a snapshot as they were, without one no byte is lost."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.parts import PartPlace, UploadId
from chelonia.core.contents.uploads import BeginPut, OpenUpload, PutPart, SealUpload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, BlobId, ContentId, Guid, Ms, ObjectId, blob_object, content_id, content_object
from chelonia.core.metadata import StoredObject
from chelonia.core.names import parse_ln
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import RebuildStatus
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.recovery import snapshots
from chelonia.librarian.recovery.rebuild.parts import decide as found_parts
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN, BARTENDER, HOUR, JOE, shepherd_id
from tests.support.namespace_snapshot import broken
from tests.unit.librarian.keepers import Keepers, checksums, keepers, resealed
from tests.unit.librarian.namespace.test_trash import snapshot
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot, rebuilt


async def content(k: Keepers, file: Guid) -> StoredObject:
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
        piece = await k.arrived(ln, data, piece=True, part=PartPlace(upload, number))
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
        other, _, _ = await _upload(k, "/g", b"never", b"sealed")
        await next_snapshot(k)
        before = await k.bench.stored(file)
        extents = (await content(k, file)).sections["extents"]
    async with rebuilt(k) as (k, _):
        assert (await k.bench.stored(file)).sections == before.sections
        assert (await content(k, file)).sections["extents"] == extents
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{_content(other)}.parts-1-2"}


def _content(upload: UploadId) -> ContentId:
    """The content that collects the parts of an upload."""
    return content_id(found_parts.gathering(PartPlace(upload, 1), JOE))


async def _bytes(k: Keepers, file: Guid) -> bytes:
    """The bytes that a reader gets of a file of several blobs."""
    page = await k.bench.service.extents(BARTENDER, file, 0, 100)
    kept = {each.facts.blob: each.data for keeper in k.shepherds.values() for each in keeper.disk.values()}
    assert [each.at for each in page.extents] == [
        sum(each.length for each in page.extents[:n]) for n in range(len(page.extents))
    ]
    return b"".join(kept[each.blob][each.skip : each.skip + each.length] for each in page.extents)


async def _run(k: Keepers) -> RebuildStatus:
    """Run a rebuild, however it ends."""
    await k.bench.service.rebuild(ADMIN, True)

    async def over() -> bool:
        return (await k.bench.service.rebuild(ADMIN, False)).stage in ("done", "failed")

    await k.until(over, 200_000)
    return await k.bench.service.rebuild(ADMIN, False)


async def _found(k: Keepers, upload: UploadId, parts: str) -> tuple[Guid, StoredObject]:
    """The one file in `/lost+found`, of these parts of an upload, without faults."""
    paths, path = await k.paths(), f"/lost+found/{_content(upload)}.parts-{parts}"
    assert set(paths) == {"/lost+found", path}
    assert broken(await snapshot(k.bench)) == ()
    return Guid(paths[path]), await k.bench.stored(ObjectId(paths[path]))


@virtual
async def test_without_a_snapshot_the_parts_of_an_upload_are_one_file_in_lost_and_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "PARTS_PAGE", 3)
    words = [b"one", b"two", b"three", b"four", b"", b"six", b"seven"]

    k = keepers()
    async with k.running(BEFORE):
        upload, order, blobs = await _upload(k, "/f", *words)
        begin = BeginPut(ROOT, "f", parse_ln("/f"), JOE, {}, 2, -1, Checksums(), Ms(0), named=False)
        await k.bench.service.seal_upload(BARTENDER, SealUpload(upload, begin, tuple(order)))
    for keeper in k.shepherds.values():  # a part is nowhere any more, and one has no bytes
        for reference, each in [*keeper.disk.items()]:
            if each.facts.blob in (blobs[1], blobs[4]):
                del keeper.disk[reference]
    async with rebuilt(k) as (k, _):
        file, stored = await _found(k, upload, "1,3-4,6-7")
        assert await _bytes(k, file) == b"onethreefoursixseven"
        assert stored.value("states", "size") == "20"
        assert stored.sections["metadata"] == {"was": "parts 1,3-4,6-7 of /f", "wasOwnedBy": JOE}
        assert "parts" not in (await content(k, file)).sections
        await next_snapshot(k)
    async with rebuilt(k) as (k, _):
        assert await _bytes(k, (await _found(k, upload, "1,3-4,6-7"))[0]) == b"onethreefoursixseven"


@virtual
async def test_a_copy_that_repair_has_made_knows_its_part_too() -> None:
    k = keepers()
    async with k.running(BEFORE):
        upload, _, blobs = await _upload(k, "/f", b"first", b"second")
        facts = [facts_of(await k.bench.stored(blob_object(blob))) for blob in blobs]
    for keeper in k.shepherds.values():
        keeper.disk.clear()
    for number, each in enumerate(facts):  # as a copy order has them
        k.shepherd(shepherd_id(1)).plant(number, each, [b"first", b"second"][number])
    async with rebuilt(k) as (k, _):
        assert await _bytes(k, (await _found(k, upload, "1-2"))[0]) == b"firstsecond"


@virtual
async def test_parts_of_older_software_whose_records_say_no_place_are_sheltered_each() -> None:
    k = keepers()
    async with k.running(BEFORE):
        upload, _, blobs = await _upload(k, "/f", b"first", b"second", b"third")
    for keeper in k.shepherds.values():
        for each in keeper.disk.values():
            if each.facts.blob != blobs[2]:
                each.facts = resealed(each.facts, name="piece of /f")
    async with rebuilt(k) as (k, _):
        apart = {f"/lost+found/{blob}" for blob in blobs[:2]}
        assert set(await k.paths()) == {"/lost+found", *apart, f"/lost+found/{_content(upload)}.parts-3"}


@virtual
async def test_of_two_records_of_one_part_the_newer_is_taken_and_the_other_is_a_file_of_its_own() -> None:
    k = keepers()
    async with k.running(BEFORE):
        upload, _, blobs = await _upload(k, "/f", b"first", b"second")
        facts = [facts_of(await k.bench.stored(blob_object(blob))) for blob in blobs]
    older, newer = BlobId(str(uuid.uuid4())), BlobId(str(uuid.uuid4()))
    late, unsure = BlobId(str(uuid.uuid4())), BlobId(str(uuid.uuid4()))
    for number, (blob, later_ms, data, committed) in enumerate(
        [(older, -5, b"older", True), (newer, 5, b"newer", True), (unsure, 9, b"unsure", False)], 1
    ):
        made = resealed(facts[0], blob=blob, created_ms=facts[0].created_ms + later_ms, size=len(data))
        k.shepherd(shepherd_id(3)).plant(number, replace(made, checksums=checksums(data)), data, committed=committed)
    forged = replace(facts[1], blob=late, created_ms=facts[1].created_ms + 5, size=6, checksums=checksums(b"forged"))
    k.shepherd(shepherd_id(3)).plant(9, forged, b"forged")
    async with rebuilt(k) as (k, _):
        paths = await k.paths()
        apart = {f"/lost+found/{blob}" for blob in (older, blobs[0], unsure, late)}
        assert set(paths) == {"/lost+found", *apart, f"/lost+found/{_content(upload)}.parts-1-2"}
        assert await _bytes(k, Guid(paths[f"/lost+found/{_content(upload)}.parts-1-2"])) == b"newersecond"


def _break_off(monkeypatch: pytest.MonkeyPatch, decision: str) -> None:
    """Have a rebuild break off once, at the second page with this decision."""
    real, pages = getattr(found_parts, decision), list[str]()

    def once(*args: object) -> list[Element]:
        pages.append(decision)
        if len(pages) == 2:
            raise CheloniaError(Kind.UNAVAILABLE, "rebuild", "-", "broken off")
        return list(real(*args))

    monkeypatch.setattr(found_parts, decision, once)


@virtual
async def test_a_rebuild_that_breaks_off_goes_on_with_the_parts_that_it_has(  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch, expect_log
) -> None:
    expect_log("the rebuild has stopped")
    monkeypatch.setattr(bounds, "PARTS_PAGE", 1)
    k = keepers()
    async with k.running(BEFORE):
        upload, _, blobs = await _upload(k, "/f", b"first", b"second", b"third")
    away = {
        (keeper.id, reference): each
        for keeper in k.shepherds.values()
        for reference, each in [*keeper.disk.items()]
        if each.facts.blob == blobs[0]
    }
    for service, reference in away:
        del k.shepherd(service).disk[reference]
    _break_off(monkeypatch, "lay")
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        assert "broken off" in (await _run(k)).cause
        for (service, reference), each in away.items():
            k.shepherd(service).disk[reference] = each
        assert (await _run(k)).stage == "done"
        assert await _bytes(k, (await _found(k, upload, "1-3"))[0]) == b"firstsecondthird"


def test_a_snapshot_keeps_nothing_of_the_parts_that_were_not_sealed() -> None:
    header = {"state": "sealed", "file": "g", "due_ms": "7", "order": "ab", "splices": "1"}
    stored = StoredObject(content_object(ContentId("c")), 3, {"content": header, "named": {"b": "5", "unnamed": "0"}})
    kept = snapshots.kept(stored)
    assert kept is not None
    assert kept.sections == {"content": {"state": "sealed", "file": "g", "splices": "1"}, "named": {"b": "5"}}
    assert snapshots.kept(StoredObject(stored.id, 3, {"content": {**header, "state": "open"}})) is None


@virtual
async def test_a_rebuild_that_breaks_off_while_it_forgets_parts_forgets_them_in_the_next_run(  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch, expect_log
) -> None:
    expect_log("the rebuild has stopped")
    monkeypatch.setattr(bounds, "PARTS_PAGE", 1)
    k = keepers()
    async with k.running(BEFORE):
        upload, _, _ = await _upload(k, "/f", b"first", b"second", b"third")
    _break_off(monkeypatch, "forget")
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        assert "broken off" in (await _run(k)).cause
        assert (await _run(k)).stage == "done"
        file, _ = await _found(k, upload, "1-3")
        assert await _bytes(k, file) == b"firstsecondthird"
        left = (await content(k, file)).sections
        assert "parts" not in left
        assert "order" not in left["content"]
