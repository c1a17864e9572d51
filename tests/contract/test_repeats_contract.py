"""The contract of the port `Files`: the answer to a repeated change is about that change, not about later ones."""

from __future__ import annotations

import pytest
from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.contents.extents import Extent
from chelonia.core.errors import Kind
from chelonia.core.ids import RequestKey
from chelonia.core.ports.files import (
    INLINED,
    Change,
    Clone,
    Content,
    Inline,
    Make,
    Move,
    Over,
    Remove,
    Removing,
    Set,
    Setting,
    Splice,
    When,
    Write,
)
from tests.contract.test_races_contract import parted
from tests.support.files_worlds import World, at, done, grid, looked, play, played, there, write
from tests.support.stage import JOE

__all__ = ["grid", "play"]

KEYED: Call = structs.replace(JOE, request_key=RequestKey("k"))
OTHERS = b"another's"
OF_BYTES = ("write", "splice", "make", "clone", "copy", "seal")


async def change_of(world: World, kind: str) -> Change:
    """A change that gives `/f` bytes; `copy`: those of a file of extents."""
    piece = Inline(b"bytes", 2)
    splice = Splice(at("/f"), Content((Extent(0, 5, INLINED),), inline=piece))
    match kind:
        case "write":
            return Write(at("/f"), inline=piece)
        case "splice":
            await done(world, splice)
            return splice
        case "make":
            return Splice(at("/f"), Content(size=0, whole=True), when=When(absent=True))
        case "clone":
            await write(world, "/source")
            return Clone(at("/f"), at("/source"))
        case "copy":
            await done(world, structs.replace(splice, place=at("/source")))
            return Clone(at("/f"), at("/source"))
    return await parted(world, "/f", b"bytes", JOE)


@pytest.mark.parametrize("kind", OF_BYTES)
@played
async def test_a_repeat_is_not_answered_with_the_etag_of_anothers_bytes(world: World, kind: str) -> None:
    """A client took them for its own: its next change, on condition of that etag, overwrote them."""
    change = await change_of(world, kind)
    first = (await done(world, change, KEYED)).attributes
    assert first is not None
    assert first == (await there(world, "/f")).attributes
    again = (await done(world, change, KEYED)).attributes
    assert again == first, "nobody has changed it"
    await write(world, "/f", OTHERS)
    assert (await done(world, change, KEYED)).attributes is None
    assert (await there(world, "/f")).attributes.size == len(OTHERS)


@pytest.mark.parametrize("kind", OF_BYTES)
@played
async def test_a_repeat_is_not_answered_with_another_file_of_that_name(world: World, kind: str) -> None:
    change = await change_of(world, kind)
    await done(world, change, KEYED)
    await write(world, "/other", OTHERS)
    await done(world, Move(at("/other"), at("/f"), Over.REPLACE))
    assert (await done(world, change, KEYED)).attributes is None


@pytest.mark.parametrize(
    "change",
    [Make(at("/d"), "collection"), Set(at("/d"), Setting(mode=0o700)), Move(at("/d"), at("/e"))],
    ids=["make", "set", "move"],
)
@played
async def test_a_repeat_is_not_answered_with_another_entry_of_that_name(world: World, change: Change) -> None:
    if not isinstance(change, Make):
        await done(world, Make(at("/d"), "collection"))
    first = (await done(world, change, KEYED)).attributes
    assert (await done(world, change, KEYED)).attributes == first
    place = change.target if isinstance(change, Move) else at("/d")
    await done(world, Remove(place))
    await done(world, Make(place, "collection"))
    assert (await done(world, change, KEYED)).attributes is None


@pytest.mark.parametrize("kind", OF_BYTES)
@played
async def test_a_repeat_leaves_no_collection_for_what_was_removed(world: World, kind: str) -> None:
    """It made those above the file again, which nobody needed any more."""
    change = structs.replace(await change_of(world, kind), parents=True, place=at("/a/b/f"))
    await done(world, change, KEYED)
    await done(world, Remove(at("/a/b/f"), Removing.KEY))
    assert await looked(world, "/a") is Kind.NOT_FOUND
    assert (await done(world, change, KEYED)).attributes is None
    assert await looked(world, "/a") is Kind.NOT_FOUND
