"""Files that were written piece by piece since the snapshot, or without any, come back from the pieces' records."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.contents.attributes import etag_of, laid_on
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.contents.uploads import CopyFile, PiecePlace, SpliceFile, parse_piece_name
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import OVERWRITTEN_OBJECT, ROOT, BlobId, Guid, Ms, ObjectId, blob_object
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import MoveEntry, RebuildStatus
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.recovery.rebuild.pieces import act
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.librarian import ADMIN, BARTENDER
from tests.support.namespace_snapshot import broken
from tests.unit.librarian.keepers import Keepers, checksums, keepers, resealed
from tests.unit.librarian.namespace.test_trash import snapshot
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, held, next_snapshot, over, rebuilt
from tests.unit.librarian.recovery.test_rebuilding_late import late, without

LAID = "pieces laid over their files"


async def content(k: Keepers, path: str) -> bytes:
    """The bytes that a reader gets under a name."""
    file = Guid((await k.paths())[path])
    stored = await k.bench.stored(file)
    kept = {each.facts.blob: each.data for keeper in k.shepherds.values() for each in keeper.disk.values()}
    if blobs := stored.sections.get("blobs"):
        return b"".join(kept[BlobId(blob)] for blob in blobs.values())
    data = bytearray(int(stored.value("states", "size")))
    page = await k.bench.service.extents(BARTENDER, file, 0, len(data))
    for each in page.extents:
        data[each.at : each.end] = kept[each.blob][each.skip : each.skip + each.length]
    return bytes(data)


async def was(k: Keepers, blob: BlobId) -> str:
    """The former name of bytes in `/lost+found`."""
    assert f"/lost+found/{blob}" in await k.paths()
    return (await k.bench.stored(ObjectId(blob))).value("metadata", "was")


def lose(k: Keepers, blob: BlobId) -> None:
    """Take every replica of a blob away."""
    for keeper in k.shepherds.values():
        for reference in [each for each, kept in keeper.disk.items() if kept.facts.blob == blob]:
            del keeper.disk[reference]


async def appended(k: Keepers, *words: bytes) -> tuple[Guid, list[BlobId]]:
    """A file of these words, each after the first one appended."""
    async with k.running(BEFORE):
        first, *others = words
        file, blob = await k.upload("/f", first)
        blobs, size = [blob], len(first)
        for word in others:
            await asyncio.sleep(0.1)
            blobs.append(await k.lay("/f", file, size, word))
            size += len(word)
    return file, blobs


@virtual
async def test_without_a_snapshot_a_file_comes_back_with_all_that_was_laid_over_it() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        for at, data in ((10, b"abcde"), (15, b"fgh"), (3, b"XY"), (14, b"Z")):
            await k.lay("/f", file, at, data)
        before = await k.bench.stored(file)
    async with rebuilt(k) as (k, status):
        assert set(await k.paths()) == {"/f"}
        assert await content(k, "/f") == b"012XY56789abcdZfgh"
        stored = await k.bench.stored(file)
        assert stored.sections["states"] == before.sections["states"]
        assert etag_of(stored) == etag_of(before), "who has its bytes may keep them"
        assert (status.counts[LAID], status.counts["blobs in /lost+found"]) == (4, 0)
        left = await k.bench.ahash.scan(LIBRARIAN, OVERWRITTEN_OBJECT, "formerly", "", 10)
        assert left.items == ()
        await k.lay("/f", file, 18, b"more")
        assert await content(k, "/f") == b"012XY56789abcdZfghmore"


@virtual
async def test_what_was_laid_since_the_snapshot_follows_on_what_that_knew() -> None:
    k = keepers()
    async with k.running(BEFORE):
        one, _ = await k.upload("/one", b"0123456789")
        many, _ = await k.upload("/many", b"0123456789")
        await k.lay("/many", many, 10, b"known")
        await next_snapshot(k)
        await asyncio.sleep(1)
        new, _ = await k.upload("/new", b"new")
        for ln, file, at in (("/one", one, 10), ("/many", many, 15), ("/many", many, 18), ("/new", new, 3)):
            await k.lay(ln, file, at, b"late")
    async with rebuilt(k) as (k, _):
        assert set(await k.paths()) == {"/one", "/many", "/new"}
        assert await content(k, "/one") == b"0123456789late"
        assert await content(k, "/many") == b"0123456789knownlatlate"
        assert await content(k, "/new") == b"newlate"


@virtual
async def test_a_piece_that_was_on_its_way_when_the_snapshot_was_begun_follows_too() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        place = PiecePlace(*laid_on(await k.bench.stored(file)), 10, (ByteRange(0, 2),))
        late = await k.arrived("/f", b"ab", piece=True, replaces=file, at=place)
        await next_snapshot(k)
        await asyncio.sleep(1)
        extents = (Extent(0, 2, late.begun.blob),)
        await k.bench.service.splice(BARTENDER, SpliceFile(late.begin, (late,), extents))
        await k.lay("/f", file, 10, b"cd")
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"ab23456789cd"


@virtual
async def test_a_missing_piece_ends_the_file_and_the_rest_say_where_they_were() -> None:
    k = keepers()
    _, blobs = await appended(k, b"0123456789", b"first", b"gone", b"last")
    lose(k, blobs[2])
    async with rebuilt(k) as (k, _):
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{blobs[3]}"}
        assert await content(k, "/f") == b"0123456789first"
        place = parse_piece_name(await was(k, blobs[3]))
        assert place is not None
        assert (place.size, place.spans[0].offset) == (19, 19)


@pytest.mark.parametrize("change", ["uncommitted", "unsealed", "without a place", "rotten"])
@virtual
async def test_a_piece_in_doubt_ends_the_file(change: str) -> None:
    k = keepers()
    _, blobs = await appended(k, b"0123456789", b"first", b"doubt", b"last")
    if change == "uncommitted":
        lose(k, blobs[3])  # which would show that the one before was
    for kept in held(k, blobs[2]):
        match change:
            case "uncommitted":
                kept.committed = False
            case "unsealed":
                kept.facts = replace(kept.facts, seal="forged")
            case "without a place":
                kept.facts = resealed(kept.facts, name="piece of /f")
            case _:
                kept.data, kept.state = b"ROTTEN", "invalid"  # type: ignore[assignment]
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == (b"0123456789" if change == "rotten" else b"0123456789first")
        assert f"/lost+found/{blobs[2 if change == 'uncommitted' else 3]}" in await k.paths()


@virtual
async def test_pieces_of_the_last_seconds_follow_though_no_shepherd_has_heard_of_their_commits() -> None:
    k = keepers()
    _, blobs = await appended(k, b"0123456789", b"first", b"second", b"last")
    for kept in (kept for blob in blobs[1:] for kept in held(k, blob)):
        kept.committed = False
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"0123456789firstsecond"
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{blobs[3]}"}


@virtual
async def test_a_file_does_not_come_back_without_a_piece_that_one_in_doubt_has_covered() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        erased = await k.lay("/f", file, 0, b"AAAAA")
        await k.lay("/f", file, 10, b"bb")
        last = await k.lay("/f", file, 0, b"CCCCC")
    lose(k, erased)
    for kept in held(k, last):
        kept.committed = False
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"0123456789", "never was 0123456789bb"


@virtual
async def test_pieces_of_bytes_that_were_replaced_are_not_laid_over_the_new_ones() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        piece = await k.lay("/f", file, 3, b"abc")
        [kept, *_] = held(k, piece)
        await asyncio.sleep(1)
        await k.upload("/f", b"WHOLE NEW!", replaces=file)
        await asyncio.sleep(30)
    one, *_ = k.shepherds.values()
    one.plant(1, kept.facts, kept.data)  # nothing has erased it yet
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"WHOLE NEW!"
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{piece}"}


@virtual
async def test_whole_bytes_that_the_rebuild_does_not_take_end_what_came_before_them() -> None:
    """Over a file of several blobs they are sheltered; what was laid over them is not laid over the older bytes."""
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await k.lay("/f", file, 10, b"known")
        await next_snapshot(k)
        await asyncio.sleep(1)
        _, whole = await k.upload("/f", b"AS LONG AS THAT", replaces=file)
        piece = await k.lay("/f", file, 0, b"xx")
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"0123456789known"
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{whole}", f"/lost+found/{piece}"}


@virtual
async def test_a_file_that_was_moved_has_its_pieces_under_the_first_name() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await k.lay("/f", file, 10, b"abc")
        await k.bench.service.move(BARTENDER, MoveEntry(file, ROOT, "f", ROOT, "g", keep=False))
        await k.lay("/g", file, 13, b"def")
    async with rebuilt(k) as (k, _):
        assert set(await k.paths()) == {"/f"}
        assert await content(k, "/f") == b"0123456789abcdef"


@virtual
async def test_a_copy_by_reference_keeps_the_bytes_that_its_source_has_lost_to_a_piece() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, shared = await k.upload("/f", b"0123456789")
        await k.bench.service.copy_file(BARTENDER, CopyFile(file, k.bench.begin("copy")))
        await next_snapshot(k)
        await asyncio.sleep(1)
        await k.lay("/f", file, 0, b"covers it all")
    async with rebuilt(k) as (k, _):
        assert set(await k.paths()) == {"/f", "/copy"}
        assert await content(k, "/f") == b"covers it all"
        assert (await k.bench.stored((await k.paths())["/copy"])).sections["blobs"] == {"00000000": shared}


@virtual
async def test_bytes_that_a_piece_covers_are_a_file_of_their_own() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, first = await k.upload("/f", b"0123456789")
        [kept, *_] = held(k, first)
        await k.lay("/f", file, 0, b"covers it all")
    one, *_ = k.shepherds.values()
    lose(k, first)
    one.plant(1, kept.facts, kept.data)
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"covers it all"
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{first}"}


@virtual
async def test_while_a_shepherd_is_away_no_piece_is_laid_and_its_own_come_late_to_lost_and_found() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await next_snapshot(k)
        await asyncio.sleep(1)
        here = await k.lay("/f", file, 10, b"abc")
    facts = held(k, here)[0].facts
    away = list(k.shepherds.values())[3]
    alone = BlobId("00000000-0000-4000-8000-00000000000a")
    name = facts.name.replace("10 bytes at 10+3", "13 bytes at 13+3")
    made = resealed(facts, blob=alone, name=name, created_ms=Ms(facts.created_ms + 1), checksums=checksums(b"def"))
    away.plant(1, made, b"def")
    async with without(k, away, settings=BEFORE):
        assert await content(k, "/f") == b"0123456789"
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{here}"}
        await late(k, away)
        assert await content(k, "/f") == b"0123456789"
        assert await was(k, alone) == name
        assert broken(await snapshot(k.bench)) == ()


async def run(k: Keepers) -> RebuildStatus:
    """Run a rebuild, however it ends."""
    await k.bench.service.rebuild(ADMIN, True)
    await k.until(lambda: over(k), 200_000)
    return await k.bench.service.rebuild(ADMIN, False)


@virtual
async def test_a_rebuild_that_breaks_off_goes_on_with_the_pieces_that_are_left(  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch, expect_log
) -> None:
    expect_log("the rebuild has stopped")
    k = keepers()
    file, _ = await appended(k, b"0123456789", b"first", b"second", b"third")
    real, laid = act.lay_found, list[str]()

    def once(*args: object) -> list[Element]:
        laid.append("one")
        if len(laid) == 2:
            raise CheloniaError(Kind.UNAVAILABLE, "rebuild", "-", "broken off")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(act, "lay_found", once)
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        assert "broken off" in (await run(k)).cause
        assert (await k.bench.stored(file)).value("states", "size") == "15"
        status = await run(k)
        assert (status.stage, status.counts[LAID]) == ("done", 2)
        assert await content(k, "/f") == b"0123456789firstsecondthird"
        assert set(await k.paths()) == {"/f"}
        assert broken(await snapshot(k.bench)) == ()


@virtual
async def test_a_tail_that_was_written_anew_stands_for_the_pieces_before_it() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        first = await k.lay("/f", file, 10, b"ab")
        await k.lay("/f", file, 10, b"abcd")
        await k.lay("/f", file, 1, b"X")
        await k.lay("/f", file, 10, b"abcdef", copies=3)  # more than the file wants
    lose(k, first)
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"0X23456789abcdef"
        assert (await k.bench.stored(file)).value("states", "neededReplicas") == "3"


@virtual
async def test_the_etag_of_a_file_is_never_that_of_other_bytes_that_it_had() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, _ = await k.upload("/f", b"0123456789")
        await k.lay("/f", file, 10, b"ab")
        await next_snapshot(k)
        await asyncio.sleep(1)
        erased = await k.lay("/f", file, 12, b"cd")
        etags = {etag_of(await k.bench.stored(file))}
        await k.lay("/f", file, 12, b"cdef")
        before = await k.bench.stored(file)
    lose(k, erased)
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"0123456789abcdef"
        assert etag_of(await k.bench.stored(file)) == etag_of(before) not in etags


@virtual
async def test_a_copy_that_repair_has_made_says_where_the_piece_was_too() -> None:
    k = keepers()
    async with k.running(BEFORE):
        file, first = await k.upload("/f", b"0123456789")
        piece = await k.lay("/f", file, 10, b"abc")
        facts = [facts_of(await k.bench.stored(blob_object(blob))) for blob in (first, piece)]
    one, *_ = k.shepherds.values()
    for keeper in k.shepherds.values():
        keeper.disk.clear()
    for number, (each, data) in enumerate(zip(facts, (b"0123456789", b"abc"), strict=True)):
        one.plant(number, each, data)  # as a copy order has them
    async with rebuilt(k) as (k, _):
        assert await content(k, "/f") == b"0123456789abc"
