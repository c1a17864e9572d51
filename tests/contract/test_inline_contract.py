"""The contract of the port `Files`: small bytes in its messages (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import asyncio
import hashlib

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import Extent
from chelonia.core.errors import Kind
from chelonia.core.ids import RequestKey
from chelonia.core.ports.files import (
    INLINED,
    MARK,
    Arrived,
    Content,
    Inline,
    Move,
    Placed,
    Placing,
    Setting,
    Splice,
    Want,
    When,
    Write,
)
from chelonia.core.values import replace
from tests.support.failing import failure_kind
from tests.support.files_worlds import World, applied, at, collection, done, looked, names, played, there, write
from tests.support.stage import EVE, JOE

S = 1_000_000_000
DATA = b"small bytes"


def inline(name: str, data: bytes = DATA, sums: Checksums | None = None, **more: object) -> Write:
    return Write(at(name), inline=Inline(data, 2, sums or Checksums()), **more)  # type: ignore[arg-type]


async def read(world: World, name: str) -> bytes | None:
    return (await there(world, name, Want.BYTES)).data


@played
async def test_bytes_in_the_message_make_a_file_and_come_back_in_one(world: World) -> None:
    written = await done(world, inline("/f", setting=Setting(modified_ns=5 * S), user={"project": "x"}))
    assert written.made
    seen = await there(world, "/f", Want.BYTES | Want.USER)
    assert seen.data == DATA
    assert seen.sources == ()
    assert seen.attributes == written.attributes
    assert (seen.attributes.size, seen.attributes.wanted) == (len(DATA), 2)
    assert (seen.attributes.modified_ns, seen.user) == (5 * S, {"project": "x"})


@played
async def test_bytes_in_the_message_take_the_place_of_others(world: World) -> None:
    before = (await done(world, inline("/f"))).attributes
    assert before is not None
    second = await done(world, inline("/f", b"others", when=When(etags=(before.etag,))))
    assert second.attributes is not None
    assert not second.made
    assert (second.attributes.guid, await read(world, "/f")) == (before.guid, b"others")
    assert second.attributes.etag != before.etag
    for when in (When(absent=True), When(etags=(before.etag,))):
        assert await applied(world, inline("/f", when=when)) is Kind.PRECONDITION
    assert await read(world, "/f") == b"others"


@played
async def test_of_many_that_make_a_name_at_once_one_does_and_who_asks_nothing_comes_after_it(world: World) -> None:
    async def all_at_once(name: str, when: When) -> list[Kind | None]:
        tries = (applied(world, inline(name, b"%d" % number, when=when)) for number in range(5))
        return [found if isinstance(found, Kind) else None for found in await asyncio.gather(*tries)]

    found = await all_at_once("/one", When(absent=True))
    assert (found.count(None), found.count(Kind.PRECONDITION)) == (1, 4)
    assert await all_at_once("/each", When()) == [None] * 5


@played
async def test_an_empty_file_has_its_bytes_too(world: World) -> None:
    await done(world, inline("/f", b""))
    assert await read(world, "/f") == b""


@played
async def test_bytes_are_refused_that_are_not_as_announced_or_too_many(world: World) -> None:
    right = Checksums(hashlib.sha256(DATA).hexdigest())
    await done(world, inline("/right", sums=right))
    assert await applied(world, inline("/wrong", DATA[1:], right)) is Kind.CHECKSUM
    assert await applied(world, inline("/large", bytes(bounds.INLINE_BYTES_MAX + 1))) is Kind.TOO_LARGE
    assert await names(world, "/") == ["right"]
    await done(world, inline("/largest", bytes(bounds.INLINE_BYTES_MAX)))


@played
async def test_nobody_writes_or_reads_in_messages_what_he_may_not(world: World) -> None:
    await done(world, inline("/f"))
    assert await applied(world, inline("/f", b"mine"), EVE) is Kind.DENIED
    assert await applied(world, inline("/g"), EVE) is Kind.DENIED
    assert await looked(world, "/f", EVE, Want.BYTES) is Kind.DENIED
    assert await read(world, "/f") == DATA


@played
async def test_what_is_no_small_file_comes_without_bytes(world: World) -> None:
    await collection(world, "/d")
    await write(world, "/large", bytes(bounds.INLINE_BYTES_MAX + 1))
    assert await read(world, "/d") is None
    seen = await there(world, "/large", Want.BYTES | Want.SOURCES)
    assert seen.data is None
    assert seen.sources


def laid(name: str, *at_: int, data: bytes = DATA, **more: object) -> Splice:
    """A splice whose bytes come in the message, once at each place."""
    sums = more.pop("sums", Checksums())
    fields = {key: more.pop(key) for key in ("size", "whole", "mark", "blobs") if key in more}
    extents = tuple(Extent(offset, len(data), INLINED) for offset in at_)
    content = Content(extents, inline=Inline(data, 2, sums), **fields)  # type: ignore[arg-type]
    return Splice(at(name), content, **more)  # type: ignore[arg-type]


async def shape(world: World, name: str) -> list[tuple[int, int]]:
    return [(extent.at, extent.length) for extent in (await there(world, name, Want.EXTENTS)).extents]


@played
async def test_a_piece_in_the_message_is_laid_over_a_file_or_makes_one(world: World) -> None:
    before = (await done(world, inline("/f", b"0123456789"))).attributes
    assert before is not None
    appended = await done(world, laid("/f", 10, when=When(etags=(before.etag,))))
    assert appended.attributes == (await there(world, "/f")).attributes
    assert appended.attributes is not None
    assert (appended.attributes.size, appended.made) == (10 + len(DATA), False)
    assert await applied(world, laid("/f", 10, when=When(etags=(before.etag,)))) is Kind.PRECONDITION
    await done(world, laid("/f", 2, size=15))
    assert await shape(world, "/f") == [(0, 2), (2, len(DATA)), (13, 2)]
    made = await done(world, laid("/new", 5, when=When(absent=True)))
    assert (made.made, await shape(world, "/new")) == (True, [(5, len(DATA))])


@played
async def test_a_piece_in_the_message_stands_alone_and_is_as_announced(world: World) -> None:
    await done(world, inline("/f"))
    other = Arrived("token", ("receipt",))
    for wrong, kind in (
        (laid("/f", 0, blobs=(other,)), Kind.BAD_REQUEST),
        (laid("/f"), Kind.BAD_REQUEST),
        (laid("/f", -1), Kind.BAD_REQUEST),
        (laid("/f", 0, mark="a:b"), Kind.BAD_REQUEST),
        (laid("/f", 0, sums=Checksums(hashlib.sha256(b"").hexdigest())), Kind.CHECKSUM),
        (laid("/f", 0, data=bytes(bounds.INLINE_BYTES_MAX + 1)), Kind.TOO_LARGE),
        (Splice(at("/f"), Content((Extent(0, 1, INLINED),))), Kind.BAD_REQUEST),
    ):
        assert await applied(world, wrong) is kind, wrong
    assert await applied(world, laid("/f", 0), EVE) is Kind.DENIED
    assert await read(world, "/f") == DATA


@played
async def test_a_mark_tells_whose_pieces_are_there(world: World) -> None:
    await done(world, laid("/f", 0, mark="one"))
    await done(world, laid("/f", len(DATA), mark="other"))
    await done(world, laid("/f", 2 * len(DATA)))
    seen = await there(world, "/f", Want.EXTENTS | Want.CHECKSUMS)
    marks = [seen.sums.get(extent.blob, {}).get(MARK) for extent in seen.extents]
    assert marks == ["one", "other", None]


@played
async def test_many_files_in_one_call(world: World) -> None:
    changes = tuple(inline(f"/f{n}", str(n).encode()) for n in range(40))
    assert [getattr(each, "made", each) for each in await world.files.apply(JOE, changes)] == [True] * 40
    assert [await read(world, f"/f{n}") for n in (0, 39)] == [b"0", b"39"]


@played
async def test_bytes_that_a_name_is_not_free_for_are_refused_before_they_are_sent(world: World) -> None:
    free = Placing(at("/f"), 5, when=When(absent=True))
    [placed] = await world.files.place(JOE, (free,))
    assert isinstance(placed, Placed)
    await write(world, "/f")
    [refused] = await world.files.place(JOE, (free,))
    assert failure_kind(refused) is Kind.PRECONDITION


@played
async def test_a_request_key_is_of_its_bytes_too(world: World) -> None:
    """Other bytes, as many, were taken for a repetition: answered as done, and not written."""
    call, states = JOE.keyed(RequestKey("key")), list[list[str]]()
    for data in (b"one", b"two", b"two"):
        await done(world, inline("/f", data), call)
        await done(world, Splice(at("/g"), Content((Extent(0, 3, INLINED),), inline=Inline(data))), call)
        states.append([(await there(world, name)).attributes.etag for name in ("/f", "/g")])
        assert await read(world, "/f") == data
    assert states[1] == states[2]
    assert all(one != two for one, two in zip(*states[:2], strict=True))


@played
async def test_a_mark_tells_whether_a_change_has_applied(world: World) -> None:
    asked = Splice(at("/f"), Content(mark="m"), when=When(present=True, absent=True))
    assert await applied(world, asked) is Kind.PRECONDITION
    first = await done(world, inline("/f", b"one", mark="m"))
    assert await applied(world, replace(asked, content=Content(mark="n"))) is Kind.PRECONDITION
    assert (await done(world, inline("/f", b"two", mark="m"))).attributes == first.attributes
    await done(world, inline("/f", b"others"))
    for repeated in (asked, inline("/f", b"two", mark="m")):
        assert (await done(world, repeated, JOE.keyed(RequestKey("another")))).attributes is None
    assert await read(world, "/f") == b"others"
    assert await applied(world, asked, EVE) is Kind.PRECONDITION
    await done(world, inline("/g", b"two", mark="m"))
    assert await read(world, "/g") == b"two"


@played
async def test_a_mark_of_a_size_alone_tells_whether_it_was_set(world: World) -> None:
    await write(world, "/f", b"bytes")
    await done(world, Splice(at("/f"), Content(size=2, mark="m")))
    await done(world, Splice(at("/f"), Content(size=3, mark="m")))
    assert (await there(world, "/f")).attributes.size == 2


@played
async def test_an_invalid_mark_is_refused(world: World) -> None:
    for mark in ("a b", "x" * (bounds.MARK_CHARACTERS_MAX + 1), "ä"):
        assert await applied(world, inline("/f", mark=mark)) is Kind.BAD_REQUEST


@played
async def test_a_mark_is_of_an_entry_whatever_its_name_and_tells_of_no_other(world: World) -> None:
    before = (await done(world, inline("/f"))).attributes
    assert before is not None
    it = When(guid=before.guid)
    after = (await done(world, inline("/f", b"two", mark="m", when=it))).attributes
    await done(world, Move(at("/f"), at("/g")))
    await done(world, inline("/f", b"another"))
    asked = Splice(at("/g"), Content(mark="m"), when=replace(it, present=True, absent=True))
    told = (await done(world, asked)).attributes
    assert told is not None
    assert after is not None
    assert (told.guid, told.etag) == (after.guid, after.etag)
    assert (await done(world, replace(asked, place=at("/f")))).attributes is None
