"""The contract of the port `Files`: attributes beyond all bounds (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from msgspec import structs

from chelonia.core import bounds
from chelonia.core.contents.extents import Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, Triple
from chelonia.core.ports.files import (
    INLINED,
    Clone,
    Content,
    Done,
    Failure,
    Inline,
    Listing,
    Make,
    Move,
    Over,
    Placing,
    Remove,
    Set,
    Splice,
    Want,
    When,
    Write,
)
from chelonia.core.ports.librarian import ChangeEntry
from chelonia.core.rights.locks import Lock
from tests.contract.test_races_contract import parted
from tests.support.files_worlds import ServiceWorld, World, applied, at, done, played, there, write
from tests.support.librarian import BARTENDER
from tests.support.stage import EVE, JOE

MIB = 2**20
BYTES = Extent(0, 5, INLINED)


async def refusal(work: Awaitable[Done | Kind]) -> Done | Kind:
    """The outcome of one change, whose message may be refused as a whole."""
    try:
        return await work
    except CheloniaError as error:
        return error.kind


@played
async def test_an_attribute_of_a_mebibyte_is_refused_and_the_caller_goes_on(world: World) -> None:
    await write(world, "/f")
    for user in ({"x": "y" * MIB}, {"x" * MIB: "y"}, {f"x{n}": "y" * 1024 for n in range(1024)}):
        assert await refusal(applied(world, Set(at("/f"), user=user))) is Kind.TOO_LARGE
    assert (await there(world, "/f", Want.USER)).user == {}


MANY = {str(n): "v" for n in range(bounds.USER_METADATA_MAX - 100)}


@played
async def test_an_entry_gets_no_more_properties_than_its_collection_is_listed_with(world: World) -> None:
    await write(world, "/f", user=MANY)
    more = {f"more {n}": "v" for n in range(101)}
    assert await applied(world, Set(at("/f"), user=more)) is Kind.TOO_LARGE
    more.popitem()
    await done(world, Set(at("/f"), user=more))
    await done(world, Set(at("/f"), user={"0": "anew"}))
    await done(world, Clone(at("/g"), at("/f")))


@played
async def test_an_entry_of_very_many_properties_is_shown_and_listed(world: World) -> None:
    """Older software wrote more than is kept now: what came with bytes was added to the rest."""
    await write(world, "/f", user=MANY)
    assert isinstance(world, ServiceWorld)
    guid = (await there(world, "/f")).attributes.guid
    more = tuple(Triple("metadata", f"{name} more", value) for name, value in MANY.items())
    await world.stage.librarian.change_entry(BARTENDER, ChangeEntry(guid, more))
    user = (await there(world, "/f", Want.USER)).user
    assert len(user) > bounds.USER_METADATA_MAX
    (named,) = (await world.files.list(JOE, Listing(at("/"), want=Want.USER))).entries
    assert named.user == user


@played
async def test_a_change_of_nothing_tells_nothing_and_changes_nothing(world: World) -> None:
    """Its answer had the attributes of an entry that its caller may not read. It made a collection permanent."""
    await write(world, "/a/b/f", parents=True)
    before = await there(world, "/a/b")
    assert before.attributes.implied
    for place in ("/a/b/f", "/a/b"):
        for change in (Set(at(place)), Move(at(place), at(place), Over.REPLACE), Move(at(place), at(place), keep=True)):
            assert await applied(world, change, EVE) in (Kind.DENIED, Kind.EXISTS), change
    assert await there(world, "/a/b") == before
    assert (await done(world, Set(at("/a/b")))).attributes == before.attributes
    assert await there(world, "/a/b") == before


@played
async def test_who_may_not_read_a_file_learns_nothing_by_a_condition(world: World) -> None:
    """The refusal named the etag, which S3 makes the MD5 of the bytes, and a guess of it was told from a wrong one."""
    await write(world, "/f", etag="0123")
    whens = [When(etags=("x",)), When(etags=("0123",)), When(not_etags=("0123",)), When(unmodified_since_ns=1)]
    told = set()
    for when in whens:
        changes = (
            Set(at("/f"), user={"a": "b"}, when=when), Set(at("/f"), when=when), Remove(at("/f"), when=when),
            Move(at("/f"), at("/g"), when=when), Write(at("/f"), inline=Inline(b"", 2), when=when),
            Clone(at("/g"), at("/f"), of=when), Set(at("/f"), locks=(Lock(token="t", lasts_ms=1000),), when=when),
            Make(at("/f"), TYPE_COLLECTION, when=when),
        )  # fmt: skip
        answers = [answer for change in changes for answer in await world.files.apply(EVE, (change,))]
        assert all(isinstance(answer, Failure) and answer.kind is Kind.DENIED for answer in answers), (when, answers)
        told.add(tuple(answers))
        (placed,) = await world.files.place(EVE, (Placing(at("/f"), 1, wanted=2, when=when),))
        assert isinstance(placed, Failure)
        assert placed.kind is Kind.DENIED
    assert len(told) == 1, "whether a guess was right is not told either"
    assert (
        await applied(world, Write(at("/f"), inline=Inline(b"", 2), when=When(absent=True)), EVE) is Kind.PRECONDITION
    )
    assert await applied(world, Set(at("/f"), user={"a": "b"}, when=whens[0])) is Kind.PRECONDITION
    (refused,) = await world.files.apply(EVE, (Set(at("/f"), user={"a": "b"}, when=When(version=0)),))
    assert refused == Failure(Kind.PRECONDITION, "/f", "its version is another; look at it again"), "nor which it is"


@pytest.mark.parametrize("kind", ["placed", "inline", "splice", "seal"])
@played
async def test_metadata_that_come_with_bytes_replace_those_of_the_file(world: World, kind: str) -> None:
    """They were added to the others, unless the file came in parts or as a copy."""
    piece = Inline(b"bytes", 2)

    async def given(user: dict[str, str] | None) -> dict[str, str]:
        if kind == "placed":
            assert isinstance(await write(world, "/f", user=user), Done)
        elif kind == "seal":
            await done(world, structs.replace(await parted(world, "/f", b"bytes", JOE), user=user or {}))
        else:
            write_, splice = Write(at("/f"), inline=piece), Splice(at("/f"), Content((BYTES,), inline=piece))
            await done(world, structs.replace(write_ if kind == "inline" else splice, user=user))
        return dict((await there(world, "/f", Want.USER)).user)

    assert await given({"kept": "1", "gone": "1"}) == {"kept": "1", "gone": "1"}
    await done(world, Set(at("/f"), user={"of another door": "1"}))
    assert await given({"kept": "2"}) == {"kept": "2"}
    assert await given(None) == {"kept": "2"}
    if kind != "seal":  # whose parts come with some, or with none at all
        assert await given({}) == {}
