"""The contract of the port `Files`: what a refused caller does not learn, and the rights that new entries get (worlds:
`tests/support/files_worlds.py`)."""

from __future__ import annotations

import pytest
from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.errors import Kind
from chelonia.core.ids import ROOT, Dn, RequestKey
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    UNSET,
    Change,
    Clone,
    Content,
    Done,
    Inline,
    Looked,
    Make,
    Move,
    Open,
    Over,
    Part,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
    Set,
    Setting,
    Splice,
    Want,
    Write,
)
from chelonia.core.values import replace
from tests.support.files_worlds import ServiceWorld, World, applied, at, collection, done, looked, played, there, write
from tests.support.stage import ADMIN, EVE, JOE, NOBODY


@pytest.mark.parametrize("over", [Over.REPLACE, Over.EXCHANGE])
@played
async def test_a_move_onto_itself_tells_nothing_to_who_may_not_move_it(world: World, over: Over) -> None:
    await write(world, "/f")
    for call in (EVE, NOBODY):
        assert await applied(world, Move(at("/f"), at("/f"), over), call) is Kind.DENIED
    moved = await done(world, Move(at("/f"), at("/f"), over))
    assert moved.attributes == (await there(world, "/f")).attributes


async def by_default(world: World, name: str, identity: str, actions: str = "", call: Call = JOE) -> None:
    """Give a collection this rule for new entries, or take it away."""
    assert isinstance(world, ServiceWorld)
    how = "set" if actions else "unset"
    assert await world.stage.modify(name, how, "defaultPolicy", identity, actions, call) == how


async def changes(world: World, name: str, call: Call = JOE) -> list[Change]:
    """Changes that make an entry of this name."""
    place, within = at(name), at("/")
    upload = (await done(world, Open(place, within, 2, parents=True), call)).upload
    placing = Placing(place, 4, wanted=2, piece=True, parents=True)
    (placed,) = await world.files.place(call, (placing,))
    assert isinstance(placed, Placed)
    etag = (await done(world, Part(place, upload, 1, await world.arrive(placed, b"part")), call)).etag
    return [
        Make(place, "symlink", target="there", parents=True),
        Write(place, inline=Inline(b"bytes", 2), parents=True),
        Clone(place, at("/source"), parents=True),
        Splice(place, Content(), parents=True),
        Seal(place, upload, ((1, etag),), parents=True),
    ]


async def rules(world: World, name: str) -> dict[str, str]:
    return dict((await there(world, name, Want.POLICY)).policy)


@played
async def test_what_is_made_in_an_implied_collection_gets_the_default_policy_from_above_it(world: World) -> None:
    """It got the one that the implied collection had been made with: a right taken away went on for new files."""
    await write(world, "/source")
    await collection(world, "/c")
    await by_default(world, "/c", "ALL", "+read")
    await write(world, "/c/p/q/first", parents=True)
    inside = LogicalName((await there(world, "/c/p/q")).attributes.guid, ("inside",))
    for identity, expected in (("ALL", {}), (EVE.dn, {EVE.dn: "+read"})):
        await by_default(world, "/c", identity, "+read" if expected else "")
        for change in await changes(world, "/c/p/q/new/x"):
            await done(world, change)
            assert await rules(world, "/c/p/q/new/x") == expected
            await done(world, Remove(change.place, Removing.KEY))
        await done(world, Make(inside, "collection"))
        assert await rules(world, "/c/p/q/inside") == expected
        await write(world, "/c/p/q/inside/f")
        assert await rules(world, "/c/p/q/inside/f") == expected
        await done(world, Remove(at("/c/p/q/inside/f")))
        await done(world, Remove(at("/c/p/q/inside")))
        assert isinstance(world, ServiceWorld)
        await world.stage.make("/c/p/q/inside")
        await world.stage.put_file("/c/p/q/inside/f", needed=0)
        assert await rules(world, "/c/p/q/inside/f") == expected
        await done(world, Remove(at("/c/p/q/inside/f")))
        await done(world, Remove(at("/c/p/q/inside")))


@pytest.mark.parametrize("how", ["set", "modify"])
@played
async def test_a_collection_that_is_implied_no_more_has_a_default_policy_of_its_own(world: World, how: str) -> None:
    await collection(world, "/c")
    await by_default(world, "/c", "ALL", "+read")
    await write(world, "/c/p/first", parents=True)
    await by_default(world, "/c", "ALL")
    await by_default(world, "/c", EVE.dn, "+read")
    if how == "set":
        await done(world, Set(at("/c/p"), user={"a": "b"}))
    else:
        await by_default(world, "/c/p", NOBODY.dn, "+read")
    assert not (await there(world, "/c/p")).attributes.implied
    await by_default(world, "/c", EVE.dn, "+delete")
    await write(world, "/c/p/second")
    assert await rules(world, "/c/p/second") == {EVE.dn: "+read"} | ({NOBODY.dn: "+read"} if how == "modify" else {})
    await done(world, Remove(at("/c/p"), Removing.MARK))
    await write(world, "/c/p/third")
    assert await rules(world, "/c/p/third") == {EVE.dn: "+delete"}


@played
async def test_a_new_entry_gets_the_default_policy_of_the_collection_that_is_named(world: World) -> None:
    await write(world, "/source")
    given = {"/c": "ALL", "/c/d": EVE.dn, "/c/rooms": JOE.dn}
    for name in given:
        await collection(world, name)
    for name, identity in given.items():
        await by_default(world, name, identity, "+read")
    await write(world, "/c/d/file")
    for of in ("/c/d", "/c/d/none/there", "/c/d/file"):
        for change in await changes(world, "/c/rooms/x"):
            if not isinstance(change, Splice):
                await done(world, replace(change, default_of=at(of)))
                assert await rules(world, "/c/rooms/x") == {EVE.dn: "+read"}, change
                await done(world, Remove(at("/c/rooms/x")))
    bad = Write(at("/c/rooms/x"), inline=Inline(b"", 2), default_of=LogicalName(ROOT, ("a/b",)))
    assert await applied(world, bad) is Kind.BAD_NAME
    # Eve may put files there, and learns no rules of a collection that she may not see.
    await done(world, Set(at("/c/rooms"), policy={EVE.dn: "+addEntry"}))
    hers = Write(at("/c/rooms/hers"), inline=Inline(b"", 2), default_of=at("/c/d"))
    await done(world, hers, EVE)
    told = await looked(world, "/c/rooms/hers", EVE, Want.POLICY)
    assert isinstance(told, Looked)
    assert told.policy == {}


@pytest.mark.parametrize("rights", ["+modifyMetadata +delete", "+modifyMetadata +delete +read"])
@played
async def test_who_may_change_an_entry_and_not_read_it_learns_of_it_what_a_listing_shows(
    world: World, rights: str
) -> None:
    await write(world, "/f")
    await done(world, Set(at("/f"), Setting(mode=0o640, uid=7), policy={EVE.dn: rights}))
    await done(world, Set(at("/"), policy={EVE.dn: "+addEntry"}))
    keyed = structs.replace(EVE, request_key=RequestKey("k"))
    changes = (
        Set(at("/f"), Setting(accessed_ns=1)),
        Set(at("/f")),
        Move(at("/f"), at("/f"), Over.REPLACE),
        Move(at("/f"), at("/g")),
    )
    for call, change in [(EVE, each) for each in changes[:-1]] + [(keyed, changes[-1])] * 2:
        told = (await done(world, change, call)).attributes
        assert told is not None
        if "+read" in rights:
            assert (told.mode, told.uid) == (0o640, 7)
        else:
            assert (told.owner, told.etag, told.mode, told.uid, told.wanted) == (Dn(""), "", UNSET, UNSET, 0), change
            assert (told.type, told.size) == ("file", 5)


OPEN = "+read +addEntry"
"""Rights of all in the collection of a stranger's file."""


@played
async def test_a_strangers_new_file_grants_what_its_collection_grants(world: World) -> None:
    """A stranger owns nothing, so he was refused all rules but those of the default policy."""
    assert isinstance(world, ServiceWorld)
    await write(world, "/source")
    await done(world, Set(at("/source"), policy={"ALL": "+read"}))
    await collection(world, "/c")
    cases: tuple[tuple[dict[str, str | None], dict[str, str], bool], ...] = (
        ({"ALL": OPEN}, {"ALL": "+read"}, True),
        ({"ALL": OPEN}, {"ALL": "+read", NOBODY.dn: "-read"}, True),
        ({"ALL": OPEN}, {EVE.dn: "+read"}, True),
        ({"ALL": OPEN}, {}, True),
        ({"ALL": OPEN}, {"ALL": "+read +delete"}, False),
        ({"ALL": OPEN}, {"ALL": "+read", NOBODY.dn: "+modifyPolicy"}, False),
        ({"ALL": None, NOBODY.dn: OPEN}, {"ALL": "+read"}, False),
        ({"ALL": OPEN, EVE.dn: "-read", NOBODY.dn: None}, {"ALL": "+read"}, False),
        ({"ALL": OPEN, EVE.dn: "-read"}, {"ALL": "+read", EVE.dn: "-read"}, True),
    )
    for rule, given, made in cases:
        await done(world, Set(at("/c"), policy=rule))
        for change in await changes(world, "/c/f", NOBODY):
            if not isinstance(change, Write | Clone | Seal):
                continue
            answer = await applied(world, replace(change, policy=given), NOBODY)
            if made:
                assert isinstance(answer, Done), (change, answer)
                assert (await world.stage.stat("/c/f", ADMIN)).get("policy", {}) == given
                await done(world, Remove(at("/c/f")))
            else:
                assert answer is Kind.DENIED, change
                assert await looked(world, "/c/f") is Kind.NOT_FOUND


@played
async def test_a_stranger_opens_no_file_that_is_there(world: World) -> None:
    await done(world, Set(at("/"), policy={"ALL": OPEN + " +delete"}))
    await done(world, Write(at("/f"), inline=Inline(b"x", 2)), NOBODY)
    assert isinstance(world, ServiceWorld)
    assert await world.stage.modify("/f", "set", "policy", "ALL", "+delete", ADMIN) == "set"
    opened = Write(at("/f"), inline=Inline(b"y", 2), policy={"ALL": "+read +delete"})
    assert await applied(world, opened, NOBODY) is Kind.DENIED
    assert isinstance(await applied(world, replace(opened, policy=None), NOBODY), Done)
    assert await looked(world, "/f", EVE, Want.SOURCES) is Kind.DENIED


@played
async def test_a_strangers_new_file_keeps_what_the_default_policy_denies(world: World) -> None:
    await done(world, Set(at("/"), policy={"ALL": OPEN}))
    change = Write(at("/f"), inline=Inline(b"x", 2), policy={"ALL": "+read"})
    await by_default(world, "/", EVE.dn, "-read")
    assert await applied(world, change, NOBODY) is Kind.DENIED
    await by_default(world, "/", EVE.dn, "+delete")
    await done(world, replace(change, place=at("/g"), policy={"ALL": "+read", EVE.dn: "+delete"}), NOBODY)
    await done(world, change, NOBODY)
    await by_default(world, "/", "ALL", "-modifyPolicy")
    assert await applied(world, replace(change, place=at("/hers")), EVE) is Kind.DENIED, "she is no stranger"


@played
async def test_a_stranger_opens_nothing_by_another_collections_policy(world: World) -> None:
    await done(world, Set(at("/"), policy={"ALL": OPEN}))
    await collection(world, "/closed")
    await done(world, Set(at("/closed"), policy={"ALL": "+addEntry"}))
    await write(world, "/implied/by/f", parents=True)
    inline = Inline(b"x", 2)
    for name, of in (("/closed/f", None), ("/closed/f", at("/")), ("/f", at("/closed"))):
        change = Write(at(name), inline=inline, policy={"ALL": "+read"}, default_of=of)
        assert await applied(world, change, NOBODY) is Kind.DENIED, (name, of)
    for name, of in (("/implied/by/g", None), ("/new/g", None), ("/f", at("/implied"))):
        change = Write(at(name), inline=inline, policy={"ALL": "+read"}, default_of=of, parents=True)
        assert isinstance(await applied(world, change, NOBODY), Done), (name, of)
