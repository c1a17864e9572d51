"""The contract of the port `Files`: names, attributes, conditions, moves (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.errors import Kind
from chelonia.core.ids import ROOT, Guid
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    UNSET,
    Clone,
    Done,
    Failure,
    Inline,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Open,
    Over,
    Placed,
    Placing,
    Remove,
    Removing,
    Reserving,
    Set,
    Setting,
    Want,
    When,
    Write,
)
from tests.support.failing import fails
from tests.support.files_worlds import (
    World,
    applied,
    at,
    collection,
    done,
    looked,
    names,
    played,
    there,
    write,
)
from tests.support.stage import EVE, JOE, NOBODY

S = 1_000_000_000

LARGE = {"x": "y" * 200_000}
"""More than an entry's limit of users' metadata."""

# --- making and looking ---------------------------------------------------------------------------------------------


@played
async def test_what_is_made_is_there_with_its_attributes(world: World) -> None:
    setting = Setting(mode=0o750, uid=1000, gid=100, modified_ns=5 * S + 123456789)
    made = await done(world, Make(at("/d"), "collection", setting, {"project": "x"}))
    assert made.made
    assert made.attributes is not None
    seen = await there(world, "/d", Want.USER)
    assert seen.attributes == made.attributes
    assert (seen.attributes.mode, seen.attributes.uid, seen.attributes.gid) == (0o750, 1000, 100)
    assert seen.attributes.modified_ns == 5 * S + 123456789
    assert seen.attributes.owner == JOE.dn
    assert seen.user == {"project": "x"}


@pytest.mark.parametrize("part", ["..", "", "a/b", "\0", "x" * 256])
@played
async def test_a_name_that_no_text_parses_to_is_refused(world: World, part: str) -> None:
    odd = LogicalName(ROOT, (part,))
    await collection(world, "/d")
    assert await applied(world, Make(odd, "collection")) is Kind.BAD_NAME
    assert await applied(world, Move(at("/d"), odd)) is Kind.BAD_NAME
    assert await names(world, "/") == ["d"]


@played
async def test_attributes_nobody_set_are_unset(world: World) -> None:
    await collection(world, "/d")
    seen = (await there(world, "/d")).attributes
    assert (seen.mode, seen.uid, seen.gid, seen.size) == (UNSET, UNSET, UNSET, 0)


@played
async def test_what_a_change_answers_is_what_a_look_tells(world: World) -> None:
    for name, make in (("/d", Make(at("/d"), "collection")), ("/l", Make(at("/l"), "symlink", target="d"))):
        assert (await done(world, make)).attributes == (await there(world, name)).attributes
    await write(world, "/f", b"bytes")
    for name in ("/d", "/l", "/f"):
        changed = await done(world, Set(at(name), Setting(mode=0o751, modified_ns=7 * S), {"k": "v"}))
        assert changed.attributes == (await there(world, name)).attributes
    for source, target in (("/f", "/g"), ("/l", "/d/l"), ("/d", "/e")):
        moved = await done(world, Move(at(source), at(target)))
        assert moved.attributes == (await there(world, target)).attributes
    exchanged = await done(world, Move(at("/g"), at("/e/l"), Over.EXCHANGE))
    assert exchanged.attributes == (await there(world, "/e/l")).attributes


@played
async def test_space_is_told(world: World) -> None:
    told = await world.files.space(JOE)
    assert 0 < told.free <= told.total


GROUP = "VOMS:/vo"


@pytest.mark.parametrize("inline", [True, False])
@played
async def test_bytes_come_with_their_rules(world: World, inline: bool) -> None:
    async def written(name: str, data: bytes, **more: object) -> Done | Kind:
        if not inline:
            return await write(world, name, data, **more)
        call = more.pop("call", JOE)
        assert isinstance(call, Call)
        return await applied(world, Write(at(name), inline=Inline(data, 2), **more), call)  # type: ignore[arg-type]

    assert isinstance(await written("/f", b"new", policy={EVE.dn: "+delete"}), Done)
    assert (await there(world, "/f", Want.POLICY)).policy == {EVE.dn: "+delete"}
    assert await written("/f", b"hers", call=EVE, policy={}) is Kind.DENIED
    assert isinstance(await written("/f", b"same", call=EVE, policy={EVE.dn: "+delete"}), Done), "it changes nothing"
    assert isinstance(await written("/f", b"hers", call=EVE), Done)
    await done(world, Set(at("/f"), policy={"ALL": "+read", GROUP: "+read"}))
    assert isinstance(await written("/f", b"closed", policy={"ANONYMOUS": "-read"}), Done)
    assert (await there(world, "/f", Want.POLICY)).policy == {GROUP: "+read", "ANONYMOUS": "-read"}
    assert isinstance(await written("/f", b"private", policy={}), Done)
    assert (await there(world, "/f", Want.POLICY)).policy == {GROUP: "+read"}
    assert await written("/f", b"odd", policy={"nobody": "+read"}) is Kind.BAD_REQUEST


@played
async def test_a_file_is_written_by_its_guid_too(world: World) -> None:
    await write(world, "/f", b"old")
    before = (await there(world, "/f")).attributes
    done = await write(world, before.guid, b"newer", when=When(etags=(before.etag,)))
    assert isinstance(done, Done), done
    after = (await there(world, "/f")).attributes
    assert (after.guid, after.size) == (before.guid, 5)
    assert await write(world, before.guid, b"lost", when=When(etags=(before.etag,))) is Kind.PRECONDITION


@played
async def test_symlinks_and_special_files_keep_what_they_are(world: World) -> None:
    await done(world, Make(at("/l"), "symlink", target="../elsewhere"))
    await done(world, Make(at("/p"), "special", Setting(mode=0o10644, device=7)))
    assert (await there(world, "/l")).attributes.target == "../elsewhere"
    assert ((await there(world, "/p")).attributes.mode, (await there(world, "/p")).attributes.device) == (
        0o10644,
        7,
    )


@played
async def test_implied_parents_are_made_only_when_asked_for(world: World) -> None:
    assert await applied(world, Make(at("/a/b/c"), "collection")) is Kind.NO_PARENT
    assert await looked(world, "/a") is Kind.NOT_FOUND
    await write(world, "/f")
    assert await applied(world, Make(at("/f/b/c"), "collection")) is Kind.NOT_A_COLLECTION
    await done(world, Make(at("/a/b/c"), "collection", parents=True))
    assert await names(world, "/a/b") == ["c"]
    assert await write(world, "/x/y/file") is Kind.NO_PARENT
    assert isinstance(await write(world, "/x/y/file", parents=True), Done)
    assert await names(world, "/x/y") == ["file"]


@pytest.mark.parametrize("there", [True, False])
@played
async def test_a_change_that_is_refused_leaves_no_implied_parents(world: World, there: bool) -> None:
    if there:
        await write(world, "/a/b/key", parents=True)
    for change in (
        Write(at("/a/b/x/f"), inline=Inline(b"new", 2), parents=True, policy={"nobody": "+read"}),
        Write(at("/a/b/x/f"), inline=Inline(b"new", 2), parents=True, when=When(etags=("none",))),
        Make(at("/a/b/x/y/c"), "collection", parents=True, when=When(etags=("none",))),
        Move(at("/a/none"), at("/a/b/x/f"), parents=True),
    ):
        assert isinstance(await applied(world, change), Kind)
    if there:
        assert await names(world, "/a/b") == ["key"]
    else:
        assert await looked(world, "/a") is Kind.NOT_FOUND


@played
async def test_implied_parents_go_with_the_last_key_in_them(world: World) -> None:
    for name in ("/a/b/one", "/a/b/two"):
        await write(world, name, parents=True)
    assert (await there(world, "/a/b")).attributes.implied
    await done(world, Remove(at("/a/b/one"), Removing.KEY))
    assert await names(world, "/a") == ["b"]
    await done(world, Remove(at("/a/b/two"), Removing.KEY))
    assert await looked(world, "/a") is Kind.NOT_FOUND


@played
async def test_what_is_implied_belongs_to_whom_the_collection_above_does(world: World) -> None:
    await collection(world, "/a")
    await done(world, Set(at("/a"), policy={EVE.dn: "+read +addEntry"}))
    assert isinstance(await write(world, "/a/b/c/hers", call=EVE, parents=True), Done)
    assert (await there(world, "/a/b/c")).attributes.owner == JOE.dn
    assert isinstance(await write(world, "/a/b/c/his", parents=True), Done)
    assert [each.name for each in (await world.files.list(EVE, Listing(at("/a/b/c")))).entries] == ["hers", "his"]


@played
async def test_a_collection_made_for_its_own_sake_stays_until_it_is_no_longer_meant(world: World) -> None:
    await collection(world, "/c")
    await write(world, "/c/key")
    assert await applied(world, Remove(at("/c"), Removing.KEY)) is Kind.NOT_FOUND
    await done(world, Remove(at("/c/key"), Removing.KEY))
    assert not (await there(world, "/c")).attributes.implied
    await write(world, "/c/key")
    assert await applied(world, Remove(at("/c/key"), Removing.MARK)) is Kind.NOT_FOUND
    await done(world, Remove(at("/c"), Removing.MARK))
    assert await names(world, "/c") == ["key"]
    await done(world, Remove(at("/c/key"), Removing.KEY))
    assert await looked(world, "/c") is Kind.NOT_FOUND


@played
async def test_who_sets_something_of_an_implied_collection_keeps_it(world: World) -> None:
    await write(world, "/a/key", parents=True)
    await done(world, Set(at("/a"), user={"project": "x"}))
    await done(world, Remove(at("/a/key"), Removing.KEY))
    assert await names(world, "/a") == []


@played
async def test_a_writer_names_his_bytes_until_others_come(world: World) -> None:
    first = await write(world, "/f", b"one", etag="named")
    assert isinstance(first, Done)
    assert (await there(world, "/f")).attributes.etag == "named"
    assert await write(world, "/f", b"two", when=When(etags=("other",))) is Kind.PRECONDITION
    assert isinstance(await write(world, "/f", b"two", when=When(etags=("named",))), Done)
    assert (await there(world, "/f")).attributes.etag not in ("", "named")
    for etag in ("\x01", "a\r\nSet-Cookie: b", 'a"', "a b", "\u00e9", "a" * 257):
        assert await write(world, "/f", b"two", etag=etag) is Kind.BAD_REQUEST


@played
async def test_a_name_that_is_taken_is_refused(world: World) -> None:
    await collection(world, "/d")
    assert await applied(world, Make(at("/d"), "collection")) is Kind.EXISTS
    assert await write(world, "/d") is Kind.NOT_A_FILE


@pytest.mark.parametrize(
    "setting",
    [
        Setting(mode=-2),
        Setting(mode=1 << 20),
        Setting(uid=2**32 - 1),
        Setting(modified_ns=-1),
        Setting(modified_ns=18446744073 * 10**9),
    ],
)
@played
async def test_attributes_out_of_bounds_are_refused(world: World, setting: Setting) -> None:
    await collection(world, "/d")
    assert await applied(world, Set(at("/d"), setting)) is Kind.BAD_REQUEST
    assert (await there(world, "/d")).attributes.mode == UNSET


# --- bytes ----------------------------------------------------------------------------------------------------------


@played
async def test_a_file_has_size_etag_and_sources(world: World) -> None:
    written = await write(world, "/f", b"12345", setting=Setting(mode=0o640), user={"k": "v"})
    assert isinstance(written, Done)
    assert written.made
    seen = await there(world, "/f", Want.USER | Want.SOURCES)
    assert (seen.attributes.size, seen.attributes.mode, seen.user) == (5, 0o640, {"k": "v"})
    assert seen.attributes.etag
    assert seen.attributes.wanted == 2
    assert seen.sources


@played
async def test_new_bytes_keep_the_file_and_change_its_etag(world: World) -> None:
    await write(world, "/f", b"old", user={"k": "v"})
    before = await there(world, "/f")
    written = await write(world, "/f", b"newer")
    assert isinstance(written, Done)
    assert not written.made
    after = await there(world, "/f", Want.USER)
    assert after.attributes.guid == before.attributes.guid
    assert after.attributes.etag != before.attributes.etag
    assert after.attributes.version > before.attributes.version
    assert (after.attributes.size, after.user) == (5, {"k": "v"})
    await write(world, "/f", b"told", setting=Setting(mode=0o604, uid=7, gid=8, accessed_ns=9 * S))
    await write(world, "/f", b"left as it is")
    told = (await there(world, "/f")).attributes
    assert (told.mode, told.uid, told.gid, told.accessed_ns) == (0o604, 7, 8, 9 * S)


@played
async def test_the_last_of_two_uploads_of_a_new_name_wins(world: World) -> None:
    (one, other) = [(await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2),)))[0] for _ in range(2)]
    assert isinstance(one, Placed)
    assert isinstance(other, Placed)
    first = await done(world, Write(at("/f"), await world.arrive(one, b"one")))
    second = await done(world, Write(at("/f"), await world.arrive(other, b"2nd")))
    assert (first.made, second.made) == (True, False)
    assert first.attributes is not None
    assert (await there(world, "/f")).attributes.guid == first.attributes.guid


@played
async def test_bytes_for_a_file_that_is_gone_make_a_new_one(world: World) -> None:
    await write(world, "/f", b"old")
    (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2),))
    assert isinstance(placed, Placed)
    arrived = await world.arrive(placed, b"new")
    old = (await there(world, "/f")).attributes.guid
    await done(world, Remove(at("/f")))
    assert (await done(world, Write(at("/f"), arrived))).made
    assert (await there(world, "/f")).attributes.guid != old


@played
async def test_bytes_are_for_the_name_and_the_user_they_were_placed_for(world: World) -> None:
    (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2),))
    assert isinstance(placed, Placed)
    arrived = await world.arrive(placed, b"abc")
    assert await applied(world, Write(at("/g"), arrived)) is Kind.BAD_REQUEST
    assert await applied(world, Write(at("/f"), arrived), EVE) is Kind.BAD_TICKET
    assert await names(world, "/") == []


async def reserved(world: World, reserving: Reserving, **more: bool) -> Placed | Kind:
    (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2, reserving=reserving, **more),))
    return placed.kind if isinstance(placed, Failure) else placed


@played
async def test_the_last_byte_makes_the_file_of_a_name_that_is_reserved(world: World) -> None:
    placed = await reserved(world, Reserving(Setting(mode=0o604, modified_ns=9 * S), When(absent=True)))
    assert isinstance(placed, Placed)
    assert (await names(world, "/"), placed.put) == ([], "")
    await world.arrive(placed, b"abc")
    made = (await there(world, "/f")).attributes
    assert (made.size, made.mode, made.modified_ns, made.wanted, made.owner) == (3, 0o604, 9 * S, 2, JOE.dn)
    assert await reserved(world, Reserving(when=When(absent=True))) is Kind.PRECONDITION
    over = await reserved(world, Reserving(Setting(modified_ns=11 * S)))
    assert isinstance(over, Placed)
    assert (await there(world, "/f")).attributes.etag == made.etag
    await world.arrive(over, b"new")
    after = (await there(world, "/f")).attributes
    assert (after.guid, after.etag == made.etag, after.mode) == (made.guid, False, 0o604)
    assert after.modified_ns == 11 * S
    assert await reserved(world, Reserving(), piece=True) is Kind.BAD_REQUEST
    assert await reserved(world, Reserving(), parents=True) is Kind.BAD_REQUEST


# --- conditions -----------------------------------------------------------------------------------------------------


@played
async def test_conditions_of_a_write(world: World) -> None:
    assert await write(world, "/f", when=When(present=True)) is Kind.PRECONDITION
    assert await write(world, "/f", when=When(etags=("x",))) is Kind.PRECONDITION
    assert isinstance(await write(world, "/f", when=When(absent=True)), Done)
    assert await write(world, "/f", when=When(absent=True)) is Kind.PRECONDITION
    seen = (await there(world, "/f")).attributes
    assert await write(world, "/f", when=When(not_etags=(seen.etag,))) is Kind.PRECONDITION
    assert await write(world, "/f", when=When(version=seen.version + 7)) is Kind.PRECONDITION
    assert await write(world, "/f", when=When(guid=Guid("0" * 36))) is Kind.PRECONDITION
    known = When(etags=("x", seen.etag), version=seen.version, guid=seen.guid)
    assert isinstance(await write(world, "/f", when=known), Done)
    assert await write(world, "/f", when=When(etags=(seen.etag,))) is Kind.PRECONDITION


@played
async def test_of_two_that_saw_the_same_version_one_changes_it(world: World) -> None:
    await write(world, "/f")
    version = (await there(world, "/f")).attributes.version
    changes = [Set(at("/f"), Setting(mode=n), when=When(version=version)) for n in (1, 2)]
    answers = await asyncio.gather(*(applied(world, change) for change in changes))
    assert [type(answer) is Done for answer in answers].count(True) == 1
    assert Kind.PRECONDITION in answers


# --- setting --------------------------------------------------------------------------------------------------------


@played
async def test_several_properties_change_together_and_can_be_taken_away(world: World) -> None:
    await write(world, "/f", user={"a": "1", "b": "2"})
    policy = {EVE.dn: "+read"}
    await done(world, Set(at("/f"), Setting(uid=5, accessed_ns=9 * S + 1), {"a": None, "c": "3"}, policy))
    seen = await there(world, "/f", Want.USER | Want.POLICY)
    assert (seen.user, seen.policy, seen.attributes.uid) == ({"b": "2", "c": "3"}, policy, 5)
    assert seen.attributes.accessed_ns == 9 * S + 1
    assert isinstance(await looked(world, "/f", EVE), Looked)


# --- moving ---------------------------------------------------------------------------------------------------------


@played
async def test_users_write_no_more_about_an_entry_than_it_may_hold(world: World) -> None:
    await write(world, "/f", b"12345", user={"a": "1"})
    for change in (
        Set(at("/f"), user=LARGE),
        Make(at("/d"), "collection", user=LARGE),
        Clone(at("/c"), at("/f"), user=LARGE),
        Open(at("/o"), at("/"), user=LARGE),
    ):
        assert await applied(world, change) is Kind.TOO_LARGE, change
    assert await write(world, "/g", b"new", user=LARGE) is Kind.TOO_LARGE
    assert await names(world, "/") == ["f"]
    assert (await there(world, "/f", Want.USER)).user == {"a": "1"}


@played
async def test_a_move_refuses_a_name_that_is_taken_unless_it_may_replace(world: World) -> None:
    await write(world, "/a", b"aa")
    await write(world, "/b", b"bbb")
    guid = (await there(world, "/a")).attributes.guid
    assert await applied(world, Move(at("/a"), at("/b"))) is Kind.EXISTS
    await done(world, Move(at("/a"), at("/b"), Over.REPLACE))
    assert await names(world, "/") == ["b"]
    assert (await there(world, "/b")).attributes.guid == guid


@played
async def test_a_move_makes_the_collections_above_its_target_when_asked_to(world: World) -> None:
    await write(world, "/f", b"bytes")
    assert await applied(world, Move(at("/f"), at("/a/b/f"))) is Kind.NO_PARENT
    await done(world, Move(at("/f"), at("/a/b/f"), parents=True))
    assert (await there(world, "/a/b/f")).attributes.size == 5
    assert (await there(world, "/a")).attributes.implied


@played
async def test_what_a_move_replaces_must_be_of_its_kind_and_empty(world: World) -> None:
    for name in ("/d", "/e", "/e/inside"):
        await collection(world, name)
    await write(world, "/f")
    assert await applied(world, Move(at("/f"), at("/d"), Over.REPLACE)) is Kind.NOT_A_FILE
    assert await applied(world, Move(at("/d"), at("/f"), Over.REPLACE)) is Kind.NOT_A_COLLECTION
    assert await applied(world, Move(at("/d"), at("/e"), Over.REPLACE)) is Kind.NOT_EMPTY
    await done(world, Move(at("/e"), at("/d"), Over.REPLACE))
    assert await names(world, "/") == ["d", "f"]
    assert await names(world, "/d") == ["inside"]


@played
async def test_replacing_one_name_of_a_linked_file_leaves_the_other(world: World) -> None:
    await write(world, "/a")
    await done(world, Move(at("/a"), at("/b"), keep=True))
    assert (await there(world, "/a")).attributes.links == 2
    await done(world, Move(at("/a"), at("/b"), Over.REPLACE))
    assert await names(world, "/") == ["a", "b"]
    await write(world, "/c", b"other")
    await done(world, Move(at("/c"), at("/a"), Over.REPLACE))
    assert (await there(world, "/b")).attributes.links == 1
    assert await names(world, "/") == ["a", "b"]


@played
async def test_two_entries_exchange_their_names(world: World) -> None:
    await collection(world, "/d")
    await write(world, "/d/x")
    await write(world, "/f", b"file")
    one, other = (await there(world, "/d")).attributes.guid, (await there(world, "/f")).attributes.guid
    await done(world, Move(at("/d"), at("/f"), Over.EXCHANGE))
    assert (await there(world, "/f")).attributes.guid == one
    assert (await there(world, "/d")).attributes.guid == other
    assert await names(world, "/f") == ["x"]
    assert await applied(world, Move(at("/d"), at("/nobody"), Over.EXCHANGE)) is Kind.NOT_FOUND


@played
async def test_no_move_makes_a_cycle(world: World) -> None:
    for name in ("/a", "/a/b"):
        await collection(world, name)
    for over in Over:
        assert isinstance(await applied(world, Move(at("/a"), at("/a/b/c"), over)), Kind)
    assert await applied(world, Move(at("/a"), at("/a/b/c"))) is Kind.INVALID_TARGET
    assert await names(world, "/a") == ["b"]


# --- removing -------------------------------------------------------------------------------------------------------


@played
async def test_a_name_a_file_and_a_collection_are_removed_each_by_its_own_word(world: World) -> None:
    await collection(world, "/d")
    await write(world, "/d/f")
    await done(world, Move(at("/d/f"), at("/g"), keep=True))
    assert await applied(world, Remove(at("/d"))) is Kind.NOT_EMPTY
    assert await applied(world, Remove(at("/d"), Removing.FILE)) is Kind.NOT_A_FILE
    assert await applied(world, Remove(at("/g"), Removing.COLLECTION)) is Kind.NOT_A_COLLECTION
    await done(world, Remove(at("/d/f")))
    assert await names(world, "/") == ["d", "g"]
    await done(world, Move(at("/g"), at("/d/again"), keep=True))
    await done(world, Remove(at("/g"), Removing.FILE))
    assert await names(world, "/d") == []
    await done(world, Remove(at("/d"), Removing.COLLECTION))
    assert await names(world, "/") == []


@played
async def test_removals_of_one_call_are_each_of_their_own_condition(world: World) -> None:
    await collection(world, "/d")
    for name in ("/a", "/b", "/d/k", "/l"):
        await write(world, name)
    await done(world, Move(at("/l"), at("/m"), keep=True))
    etag = (await there(world, "/b")).attributes.etag
    changes = (
        Remove(at("/a"), when=When(etags=("other",))),
        Remove(at("/b"), when=When(etags=(etag,))),
        Remove(at("/d")),
        Remove(at("/d/k"), Removing.KEY),
        Remove(at("/d"), Removing.KEY),
        Remove(at("/no"), Removing.FILE),
        Remove(at("/l"), Removing.FILE),
        Remove(at("/m")),
        Remove(at("/a")),
    )
    answers = await world.files.apply(JOE, changes)
    told = [None if isinstance(answer, Done) else answer.kind for answer in answers]
    gone, missing = None, Kind.NOT_FOUND
    assert told == [Kind.PRECONDITION, gone, Kind.NOT_EMPTY, gone, missing, missing, gone, missing, gone]
    assert await names(world, "/") == ["d"]


@played
async def test_a_removal_on_condition(world: World) -> None:
    await write(world, "/f")
    assert await applied(world, Remove(at("/f"), when=When(etags=("other",)))) is Kind.PRECONDITION
    etag = (await there(world, "/f")).attributes.etag
    await done(world, Remove(at("/f"), when=When(etags=(etag,))))
    assert await applied(world, Remove(at("/f"))) is Kind.NOT_FOUND


# --- listing --------------------------------------------------------------------------------------------------------


@played
async def test_a_listing_comes_in_pages_in_byte_order(world: World) -> None:
    for name in ("/b", "/a", "/ä", "/a-b"):
        await collection(world, name)
    await write(world, "/aa")
    whole = await world.files.list(JOE, Listing(at("/")))
    assert [entry.name for entry in whole.entries] == ["a-b", "a", "aa", "b", "ä"]
    assert whole.after == ""
    found, after = [], ""
    while True:
        page = await world.files.list(JOE, Listing(at("/"), after, 2))
        found += [entry.name for entry in page.entries]
        after = page.after
        if not after:
            break
    assert found == [entry.name for entry in whole.entries]


@played
async def test_a_listing_of_what_is_no_collection(world: World) -> None:
    await write(world, "/f")
    for name, kind in (("/f", Kind.NOT_A_COLLECTION), ("/no", Kind.NOT_FOUND)):
        with fails(kind):
            await world.files.list(JOE, Listing(at(name)))


TREE = ("/a", "/a/b", "/a/b/c", "/a/d", "/z", "/z/é")
LEAVES = ("/a.x", "/a/b/f", "/a/f", "/f", "/z/g", "/z/h")
IN_ORDER = ["a.x", "a", "a/b", "a/b/c", "a/b/f", "a/d", "a/f", "f", "z", "z/g", "z/h", "z/é"]


async def grow(world: World) -> None:
    for name in TREE:
        await collection(world, name)
    for name in LEAVES:
        await write(world, name)


async def walked(world: World, call: Call = JOE, **ask: object) -> tuple[list[str], list[str]]:
    """All entries and prefixes of a listing of everything below, page by page; each page's are in order."""
    entries, prefixes, after = list[str](), list[str](), str(ask.pop("after", ""))
    while True:
        page = await world.files.list(call, Listing(at("/"), after, below=True, **ask))  # type: ignore[arg-type]
        assert not ask.get("limit") or len(page.entries) + len(page.prefixes) <= int(str(ask["limit"]))
        entries += [entry.name for entry in page.entries]
        prefixes += page.prefixes
        after = page.after
        if not after:
            return entries, prefixes


@pytest.mark.parametrize("limit", [0, 1, 3, 12])
@played
async def test_all_below_a_collection_comes_in_byte_order_of_path(world: World, limit: int) -> None:
    await grow(world)
    assert await walked(world, limit=limit) == (IN_ORDER, [])
    assert (await walked(world, limit=limit, prefix="a/b"))[0] == ["a/b", "a/b/c", "a/b/f"]
    assert (await walked(world, limit=limit, prefix="a/b/f"))[0] == ["a/b/f"]
    assert (await walked(world, limit=limit, prefix="nobody/x"))[0] == []
    assert (await walked(world, limit=limit, after="a/b/zzz"))[0] == IN_ORDER[5:]
    assert (await walked(world, limit=limit, after="a"))[0] == IN_ORDER, "`a.x` comes before `a/`"
    assert (await walked(world, limit=limit, after="a/", prefix="z/"))[0] == ["z", "z/g", "z/h", "z/é"]


@pytest.mark.parametrize("limit", [0, 1, 2])
@played
async def test_a_delimiter_sums_up_what_follows_it(world: World, limit: int) -> None:
    await grow(world)
    assert await walked(world, limit=limit, delimiter="/") == (["a.x", "f"], ["a/", "z/"])
    assert await walked(world, limit=limit, delimiter="/", prefix="a/") == (["a", "a/f"], ["a/b/", "a/d/"])
    assert await walked(world, limit=limit, delimiter="b/f") == (
        [name for name in IN_ORDER if name != "a/b/f"],
        ["a/b/f"],
    )
    assert await walked(world, limit=limit, delimiter=".") == (IN_ORDER[1:], ["a."])
    assert await walked(world, limit=limit, delimiter="/", after="a/") == (["f"], ["z/"])
    names = [entry.name for entry in (await world.files.list(JOE, Listing(at("/z"), prefix="h"))).entries]
    assert names == ["h"]


async def agree(world: World, call: Call = JOE, want: Want = Want.NOTHING) -> None:
    """Check that a listing of everything equals a look at each entry, but for a version that it may not know."""
    page = await world.files.list(call, Listing(at("/"), below=True, want=want))
    looks = await world.files.look(call, tuple(Look(at("/" + entry.name), want) for entry in page.entries))
    for entry, seen in zip(page.entries, looks, strict=True):
        if isinstance(seen, Looked):
            version = entry.attributes.version or seen.attributes.version
            assert (structs.replace(entry.attributes, version=version), dict(entry.user)) == (
                seen.attributes,
                dict(seen.user),
            )
        else:
            assert (entry.attributes.owner, entry.attributes.etag, entry.attributes.mode) == ("", "", UNSET)


@played
async def test_a_listing_tells_what_a_look_does_whatever_has_changed(world: World) -> None:
    await collection(world, "/d")
    steps = (
        Set(at("/f"), Setting(mode=0o640, uid=7, gid=8, modified_ns=3 * S + 1, accessed_ns=4 * S)),
        Set(at("/f"), user={"k": "v"}),
        Move(at("/f"), at("/d/again"), keep=True),
        Set(at("/d/again"), policy={EVE.dn: "+read"}),
        Move(at("/f"), at("/d/g")),
        Set(at("/d/g"), user={"k": None}),
        Move(at("/other"), at("/d/again"), Over.REPLACE),
        Move(at("/d/g"), at("/third"), Over.EXCHANGE),
        Remove(at("/d/again")),
        Set(at("/d"), Setting(modified_ns=5 * S)),
        Move(at("/third"), at("/d/last")),
    )
    for name in ("/f", "/other", "/third"):
        await write(world, name, name.encode(), user={"a": "b"} if name == "/third" else None)
    await done(world, Set(at("/"), policy={EVE.dn: "+read"}))
    await done(world, Set(at("/d"), policy={EVE.dn: "+read"}))
    for step in steps:
        await done(world, step)
        await agree(world)
        await agree(world, EVE)
        await agree(world, want=Want.USER)
    await write(world, "/d/g", b"written anew")
    await agree(world)


@played
async def test_changes_at_once_leave_what_listings_tell_true(world: World) -> None:
    for name in ("/f", "/g", "/h"):
        await write(world, name)
    changes = (
        Set(at("/f"), Setting(mode=0o600)),
        Set(at("/f"), user={"k": "v"}),
        Move(at("/f"), at("/f2"), keep=True),
        Move(at("/g"), at("/f"), Over.REPLACE),
        Move(at("/f"), at("/h"), Over.EXCHANGE),
        Set(at("/f"), policy={EVE.dn: "+read"}),
        Set(at("/h"), Setting(uid=9)),
        Move(at("/h"), at("/h2")),
    )
    for start in range(3):
        await asyncio.gather(*(world.files.apply(JOE, (change,)) for change in changes[start:]))
        await agree(world)
        await agree(world, want=Want.USER)


@played
async def test_a_file_of_many_names_is_listed_as_it_is(world: World) -> None:
    await write(world, "/f")
    for number in range(18):
        await done(world, Move(at("/f"), at(f"/f{number}"), keep=True))
    await agree(world)
    await done(world, Set(at("/f"), Setting(mode=0o600)))
    await agree(world)
    for number in range(18):
        await done(world, Remove(at(f"/f{number}")))
    await agree(world)


@played
async def test_the_time_and_etag_of_a_collection_change_with_its_names(world: World) -> None:
    await collection(world, "/d")
    etags = [(await there(world, "/d")).attributes.etag]
    for change in (
        Make(at("/d/x"), "collection"),
        Move(at("/d/x"), at("/d/y")),
        Set(at("/d"), Setting(modified_ns=5 * S)),
        Remove(at("/d/y")),
    ):
        await done(world, change)
        seen = (await there(world, "/d")).attributes
        assert seen.etag not in etags
        assert (seen.modified_ns == 5 * S) is isinstance(change, Set)
        etags.append(seen.etag)


@played
async def test_a_listing_of_everything_does_not_tell_what_may_not_be_read(world: World) -> None:
    await grow(world)
    for name in ("/", "/z", "/a/b"):
        await done(world, Set(at(name), policy={EVE.dn: "+read"}))
    for limit in (0, 1, 2):
        told = ["a.x", "a", "f", "z", "z/g", "z/h", "z/é"]
        assert await walked(world, EVE, limit=limit) == (told, [])
        assert await walked(world, EVE, limit=limit, after="a/b/c/") == (told[2:], [])
        assert await walked(world, EVE, limit=limit, prefix="a/b/f") == ([], [])
        assert await walked(world, EVE, limit=limit, delimiter="b/") == (told, [])


# --- rights ---------------------------------------------------------------------------------------------------------


@played
async def test_who_looks_at_a_file_to_write_it_hears_whether_he_may(world: World) -> None:
    await write(world, "/f", b"bytes")
    for rule, may in (("+read", False), ("+read +delete", True)):
        await done(world, Set(at("/f"), policy={EVE.dn: rule}))
        assert isinstance(await looked(world, "/f", EVE), Looked)
        assert isinstance(await looked(world, "/f", EVE, Want.WRITE), Looked) is may
        assert (await write(world, "/f", b"hers", EVE) is Kind.DENIED) is not may
    assert isinstance(await looked(world, "/f", JOE, Want.WRITE), Looked)
    await collection(world, "/d")
    for rule, kind in (("+read", Kind.DENIED), ("+read +addEntry", Kind.NOT_FOUND)):
        await done(world, Set(at("/d"), policy={EVE.dn: rule}))
        assert await looked(world, "/d/new", EVE, Want.WRITE) is kind
    assert await looked(world, "/no/new", EVE, Want.WRITE) is Kind.NO_PARENT


@played
async def test_who_may_not_is_refused_and_changes_nothing(world: World) -> None:
    await collection(world, "/d")
    await write(world, "/d/f")
    for call in (EVE, NOBODY):
        assert await looked(world, "/d/f", call) is Kind.DENIED
        assert await write(world, "/d/f", b"mine", call) is Kind.DENIED
        assert await write(world, "/d/g", b"mine", call) is Kind.DENIED
        for change in (
            Make(at("/d/new"), "collection"),
            Set(at("/d/f"), Setting(mode=0)),
            Set(at("/d/f"), policy={call.dn: "+read"}),
            Move(at("/d/f"), at("/mine")),
            Remove(at("/d/f")),
        ):
            assert await applied(world, change, call) is Kind.DENIED
    assert await names(world, "/d") == ["f"]


@played
async def test_a_child_that_may_not_be_read_shows_type_and_size_alone(world: World) -> None:
    await done(world, Set(at("/"), policy={EVE.dn: "+read"}))
    await write(world, "/f", b"12345", setting=Setting(mode=0o600), user={"secret": "x"})
    (named,) = (await world.files.list(EVE, Listing(at("/"), want=Want.USER))).entries
    assert (named.attributes.type, named.attributes.size) == ("file", 5)
    assert (named.user, named.attributes.etag, named.attributes.mode) == ({}, "", UNSET)


# --- several at once ------------------------------------------------------------------------------------------------


@played
async def test_each_element_is_answered_by_itself_in_order(world: World) -> None:
    changes = (
        Make(at("/a"), "collection"),
        Make(at("/a/b"), "collection"),
        Make(at("/no/b"), "collection"),
        Make(at("/a"), "collection"),
        Remove(at("/a/b")),
    )
    answers = await world.files.apply(JOE, changes)
    kinds = [a.kind if isinstance(a, Failure) else "done" for a in answers]
    assert kinds == ["done", "done", Kind.NO_PARENT, Kind.EXISTS, "done"]
    looks = await world.files.look(JOE, (Look(at("/a")), Look(at("/a/b"))))
    assert [type(each) for each in looks] == [Looked, Failure]
