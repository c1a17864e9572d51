"""The contract of the port `Files`: content of several blobs (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import asyncio

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import Kind
from chelonia.core.ids import BlobId
from chelonia.core.ports.files import (
    Arrived,
    Content,
    Done,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Over,
    Placed,
    Placing,
    Remove,
    Set,
    Setting,
    Splice,
    Want,
    When,
    Write,
)
from chelonia.core.values import replace
from tests.support.failing import failure_kind
from tests.support.files_worlds import World, applied, at, done, looked, played, there, write
from tests.support.stage import EVE, JOE, all_sums

S = 1_000_000_000

# --- content of several blobs ---------------------------------------------------------------------------------------

Laid = tuple[int, bytes]
"""Where some bytes go in a file."""


async def piece(world: World, name: str, data: bytes, call: Call = JOE) -> tuple[Placed, Arrived]:
    (placed,) = await world.files.place(call, (Placing(at(name), len(data), wanted=2, piece=True),))
    assert isinstance(placed, Placed), placed
    return placed, await world.arrive(placed, data)


async def lay(world: World, name: str, *pieces: Laid, **more: object) -> Done | Kind:
    """Lay pieces over a file without other writers."""
    told = await laid_over(world, name, *pieces, **more)
    assert not isinstance(told, Done) or told.attributes == (await there(world, name)).attributes
    return told


async def laid_over(world: World, name: str, *pieces: Laid, **more: object) -> Done | Kind:
    arrived = [(offset, len(data), await piece(world, name, data)) for offset, data in pieces]
    extents = tuple(Extent(offset, length, placed.blob) for offset, length, (placed, _) in arrived)
    content = {key: more.pop(key) for key in ("size", "whole") if key in more}
    laid = Content(extents, tuple(a for *_, (_, a) in arrived), **content)  # type: ignore[arg-type]
    return await applied(world, Splice(at(name), laid, **more))  # type: ignore[arg-type]


async def shape(world: World, name: str) -> list[tuple[int, int, int]]:
    """Offset, length and skip of each extent of a file."""
    seen = await there(world, name, Want.EXTENTS | Want.SOURCES)
    assert seen.told == seen.attributes.size or len(seen.extents) == bounds.EXTENTS_PAGE
    if not seen.sources:
        assert {e.blob for e in seen.extents} == set(seen.blobs)
        assert all(seen.blobs.values())
    return [(e.at, e.length, e.skip) for e in seen.extents]


@played
async def test_a_file_of_one_blob_is_one_extent(world: World) -> None:
    await write(world, "/f", b"12345")
    assert await shape(world, "/f") == [(0, 5, 0)]


@played
async def test_appends_and_writes_in_the_middle_keep_the_rest(world: World) -> None:
    made = await write(world, "/f", b"0123456789", user={"k": "v"})
    assert isinstance(made, Done)
    assert made.attributes is not None
    first = await lay(world, "/f", (10, b"abc"))
    assert isinstance(first, Done)
    assert not first.made
    assert await shape(world, "/f") == [(0, 10, 0), (10, 3, 0)]
    second = await lay(world, "/f", (4, b"XY"), (12, b"Z!"))
    assert isinstance(second, Done)
    assert await shape(world, "/f") == [(0, 4, 0), (4, 2, 0), (6, 4, 6), (10, 2, 0), (12, 2, 0)]
    known = (await there(world, "/f", Want.MEASURED)).checksums
    assert known.crc32c in ("", all_sums(b"0123XY6789abZ!").crc32c), "it is of pieces of blobs"
    seen = await there(world, "/f", Want.USER)
    assert (seen.attributes.guid, seen.attributes.size, seen.user) == (made.attributes.guid, 14, {"k": "v"})
    etags = {each.attributes.etag for each in (made, first, second) if each.attributes}
    assert len(etags) == 3
    versions = [each.attributes.version for each in (made, first, second) if each.attributes]
    assert versions == sorted(set(versions))


@played
async def test_a_file_is_cut_short_and_grows_by_a_hole(world: World) -> None:
    await write(world, "/f", b"0123456789")
    await lay(world, "/f", size=4)
    assert await shape(world, "/f") == [(0, 4, 0)]
    await lay(world, "/f", size=2**63 - 1)
    assert (await there(world, "/f")).attributes.size == 2**63 - 1
    assert await shape(world, "/f") == [(0, 4, 0)]
    await lay(world, "/f", (100, b"x"), size=101)
    assert await shape(world, "/f") == [(0, 4, 0), (100, 1, 0)]
    await lay(world, "/f", size=0)
    assert await shape(world, "/f") == []
    await lay(world, "/f", (0, b"again"))
    assert await shape(world, "/f") == [(0, 5, 0)]


@played
async def test_a_file_made_without_bytes_reads_as_nothing_and_its_etag_stays(world: World) -> None:
    made = await done(world, Splice(at("/f"), Content(size=0, whole=True), when=When(absent=True)))
    assert made.attributes is not None
    assert made.attributes.wanted
    assert made.attributes == (await there(world, "/f")).attributes
    for want in (Want.SOURCES | Want.EXTENTS, Want.BYTES | Want.SOURCES):
        seen = await there(world, "/f", want)
        assert (seen.attributes.size, seen.sources, seen.extents, seen.told) == (0, (), (), 0)
        assert not seen.data
    await done(world, Set(at("/f"), Setting(mode=0o600)))
    (named,) = (await world.files.list(JOE, Listing(at("/")))).entries
    assert named.attributes.etag == made.attributes.etag == (await there(world, "/f")).attributes.etag
    await lay(world, "/f", (0, b"one"), when=When(etags=(made.attributes.etag,)))
    assert await shape(world, "/f") == [(0, 3, 0)]
    assert (await there(world, "/f")).attributes.etag != made.attributes.etag
    await done(world, Splice(at("/g"), Content(size=0, whole=True)))
    await write(world, "/g", b"two")
    assert await shape(world, "/g") == [(0, 3, 0)]


@played
async def test_parts_become_a_file_at_once_and_whole_replaces_all(world: World) -> None:
    made = await lay(world, "/f", (0, b"one"), (3, b"two"), (10, b"ten"), whole=True)
    assert isinstance(made, Done)
    assert made.made
    assert await shape(world, "/f") == [(0, 3, 0), (3, 3, 0), (10, 3, 0)]
    assert (await there(world, "/f")).attributes.wanted == 2
    await lay(world, "/f", (0, b"fresh"), whole=True)
    assert await shape(world, "/f") == [(0, 5, 0)]
    await write(world, "/f", b"plain")
    assert (await there(world, "/f", Want.SOURCES)).sources


@played
async def test_one_blob_may_serve_several_extents(world: World) -> None:
    await write(world, "/f", b"0123456789")
    placed, arrived = await piece(world, "/f", b"abcdef")
    extents = (Extent(1, 2, placed.blob, 3), Extent(5, 1, placed.blob, 0))
    await done(world, Splice(at("/f"), Content(extents, (arrived,))))
    assert await shape(world, "/f") == [(0, 1, 0), (1, 2, 3), (3, 2, 3), (5, 1, 0), (6, 4, 6)]


@played
async def test_a_span_tells_only_what_meets_it(world: World) -> None:
    await lay(world, "/f", (0, b"one"), (3, b"two"), (6, b"six"))
    (seen,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(4, 1)),))
    assert isinstance(seen, Looked)
    assert ([e.at for e in seen.extents], seen.told, seen.blobs) == ([3], 5, {})
    (beyond,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(2**62, 2**62)),))
    assert isinstance(beyond, Looked)
    assert (beyond.extents, beyond.told) == ((), 9)
    (bad,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(-4, 1)),))
    assert failure_kind(bad) is Kind.BAD_REQUEST


@played
async def test_many_extents_are_told_page_by_page(world: World) -> None:
    for start in range(0, 80, 20):
        assert isinstance(await lay(world, "/f", *((n, b"x") for n in range(start, start + 20))), Done)
    found, told = [], 0
    while told < 80:
        (seen,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(told, 80 - told)),))
        assert isinstance(seen, Looked)
        assert told < seen.told <= 80
        assert len(seen.extents) <= bounds.EXTENTS_PAGE
        found += [e.at for e in seen.extents]
        told = seen.told
    assert found == list(range(80))


@played
async def test_a_condition_that_does_not_hold_lays_nothing(world: World) -> None:
    await write(world, "/f", b"0123456789")
    before = (await there(world, "/f")).attributes
    assert await lay(world, "/f", (0, b"x"), when=When(version=before.version + 1)) is Kind.PRECONDITION
    assert await lay(world, "/g", (0, b"x"), when=When(present=True)) is Kind.PRECONDITION
    assert (await there(world, "/f")).attributes == before
    assert isinstance(await lay(world, "/f", (0, b"x"), when=When(version=before.version)), Done)
    assert await lay(world, "/f", (0, b"x"), when=When(version=before.version)) is Kind.PRECONDITION


@played
async def test_content_that_is_none_is_refused_and_changes_nothing(world: World) -> None:
    await write(world, "/f", b"0123456789")
    before = (await there(world, "/f")).attributes

    async def refused(content: Content, kind: Kind = Kind.BAD_REQUEST) -> None:
        assert await applied(world, Splice(at("/f"), content)) is kind, content
        assert (await there(world, "/f")).attributes == before

    placed, arrived = await piece(world, "/f", b"abcdef")
    own, blob = (arrived,), placed.blob
    await refused(Content((Extent(0, 7, blob),), own))
    await refused(Content((Extent(0, 2, blob, 5),), own))
    await refused(Content((Extent(-1, 2, blob),), own))
    await refused(Content((Extent(0, 0, blob),), own))
    await refused(Content((Extent(0, 2, blob, -1),), own))
    await refused(Content((Extent(0, 2, blob), Extent(1, 2, blob)), own))
    await refused(Content((Extent(5, 2, blob), Extent(1, 2, blob)), own))
    await refused(Content((Extent(0, 6, blob),), own, size=5))
    await refused(Content((Extent(2**63 - 3, 6, blob),), own))
    await refused(Content(size=2**63))
    await refused(Content(size=-2))
    await refused(Content((), own))
    await refused(Content((Extent(0, 6, BlobId("00000000-0000-4000-8000-00000000abcd")),)))
    await refused(Content(tuple(Extent(n, 1, blob) for n in range(10_001)), own), Kind.TOO_LARGE)
    await done(world, Splice(at("/f"), Content((Extent(0, 6, blob),), own)))
    before = (await there(world, "/f")).attributes
    await refused(Content((Extent(9, 6, blob),), own))  # a piece is laid down once


@played
async def test_pieces_of_others_for_others_and_wholes_are_no_content(world: World) -> None:
    await write(world, "/f", b"0123456789")
    await done(world, Set(at("/f"), policy={EVE.dn: "+read +delete"}))
    before = (await there(world, "/f")).attributes
    placed, arrived = await piece(world, "/f", b"evil", EVE)
    stolen = Content((Extent(0, 4, placed.blob),), (arrived,))
    assert await applied(world, Splice(at("/f"), stolen)) is Kind.BAD_TICKET
    placed, arrived = await piece(world, "/g", b"else")
    assert await applied(world, Splice(at("/f"), Content((Extent(0, 4, placed.blob),), (arrived,)))) is Kind.BAD_REQUEST
    assert await applied(world, Write(at("/g"), arrived)) is Kind.BAD_REQUEST
    (whole,) = await world.files.place(JOE, (Placing(at("/f"), 4, wanted=2),))
    assert isinstance(whole, Placed)
    content = Content((Extent(0, 4, whole.blob),), (await world.arrive(whole, b"whol"),))
    assert await applied(world, Splice(at("/f"), content)) is Kind.BAD_REQUEST
    assert (await there(world, "/f")).attributes == before


@played
async def test_bytes_that_were_placed_for_bytes_of_a_file_are_laid_there_alone(world: World) -> None:
    await lay(world, "/f", (0, b"0123456789"))
    spans = (ByteRange(4, 2), ByteRange(8, 3))
    (placed,) = await world.files.place(JOE, (Placing(at("/f"), 5, wanted=2, piece=True, at=spans),))
    assert isinstance(placed, Placed), placed
    arrived, blob = (await world.arrive(placed, b"abcde"),), placed.blob
    laid = (Extent(4, 2, blob), Extent(8, 3, blob, 2))
    for extents in (
        laid[:1],
        (Extent(4, 5, blob),),
        (replace(laid[0], at=3), laid[1]),
        (laid[0], replace(laid[1], skip=1)),
    ):
        assert await applied(world, Splice(at("/f"), Content(extents, arrived))) is Kind.BAD_REQUEST
    assert await applied(world, Splice(at("/f"), Content(laid, arrived, whole=True))) is Kind.BAD_REQUEST
    assert await applied(world, Write(at("/f"), arrived[0])) is Kind.BAD_REQUEST
    assert isinstance(await applied(world, Splice(at("/f"), Content(laid, arrived))), Done)
    assert await shape(world, "/f") == [(0, 4, 0), (4, 2, 0), (6, 2, 6), (8, 3, 2)]


@played
async def test_nobody_has_bytes_of_others_by_naming_their_blob(world: World) -> None:
    (whole,) = await world.files.place(JOE, (Placing(at("/secret"), 10, wanted=2),))
    assert isinstance(whole, Placed)
    theirs = await world.arrive(whole, b"0123456789")
    await done(world, Write(at("/secret"), theirs))
    await done(world, Make(at("/eve"), "collection"))
    await done(world, Set(at("/eve"), policy={EVE.dn: "+read +addEntry"}))
    placed, arrived = await piece(world, "/eve/f", b"abcdef", EVE)
    own, secret = Extent(0, 6, placed.blob), Extent(6, 10, whole.blob)
    for change in (
        Splice(at("/eve/f"), Content((secret,))),
        Splice(at("/eve/f"), Content((own, secret), (arrived,))),
        Splice(at("/eve/f"), Content((own, secret), (arrived, theirs))),
        Splice(at("/eve/f"), Content((own,), (replace(arrived, receipts=theirs.receipts),))),
        Splice(at("/eve/f"), Content((own, secret), (arrived, replace(arrived, receipts=theirs.receipts)))),
        Write(at("/eve/f"), theirs),
        Write(at("/eve/f"), replace(theirs, put=arrived.put)),
    ):
        assert await applied(world, change, EVE) in (Kind.BAD_REQUEST, Kind.BAD_TICKET), change
    assert await looked(world, "/eve/f", EVE) is Kind.NOT_FOUND
    assert await looked(world, "/secret", EVE) is Kind.DENIED


@played
async def test_two_writers_never_mix_extents(world: World) -> None:
    await write(world, "/f", b"0" * 10)
    both = await asyncio.gather(*(laid_over(world, "/f", (10, each * 5)) for each in (b"a", b"b")))
    assert all(isinstance(each, Done) for each in both), both
    assert await shape(world, "/f") == [(0, 10, 0), (10, 5, 0)]


@played
async def test_a_file_of_several_blobs_is_moved_linked_and_removed(world: World) -> None:
    await lay(world, "/f", (0, b"one"), (3, b"two"))
    await done(world, Move(at("/f"), at("/g")))
    await done(world, Move(at("/g"), at("/h"), keep=True))
    assert await shape(world, "/h") == [(0, 3, 0), (3, 3, 0)]
    await lay(world, "/h", (6, b"six"))
    assert (await there(world, "/g")).attributes.size == 9
    await done(world, Remove(at("/g")))
    await write(world, "/other")
    await done(world, Move(at("/other"), at("/h"), over=Over.REPLACE))
    assert (await there(world, "/h", Want.SOURCES)).sources
