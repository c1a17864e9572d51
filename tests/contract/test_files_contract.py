"""The contract of the port `Files`: on its memory twin, on the Bartender with a real Librarian and A-Hash, and on that
Bartender asked in the compact encoding over TLS, each caller with his own certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.extents import Extent
from chelonia.core.files import (
    UNSET,
    Arrived,
    Change,
    Content,
    Done,
    Failure,
    Files,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Over,
    Placed,
    Placing,
    Remove,
    Removing,
    Set,
    Setting,
    Splice,
    Want,
    When,
    Write,
)
from chelonia.core.ids import ANONYMOUS, ROOT, BlobId
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.operations import FILES
from chelonia.core.position import Horizon
from chelonia.core.shepherd import ByteRange
from chelonia.hosting.doors.compact_server import CompactDoor, CompactParts, offer
from chelonia.hosting.doors.grants import Registry
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_messages import Answer
from chelonia.hosting.net.rpc_client import Link, open_link, remote_files
from chelonia.hosting.net.tls import ClientCertificate
from chelonia.librarian.recovery.invariants import Snapshot, broken
from chelonia.wire import receipts
from tests.sim.virtual_loop import run_virtual
from tests.support.ahash import LIBRARIAN
from tests.support.files import MemoryFiles
from tests.unit.bartender.stage import EVE, JOE, NOBODY, Stage
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import secure

S = 1_000_000_000


class World(Protocol):
    """One implementation, and how bytes get to it."""

    files: Files

    async def arrive(self, placed: Placed, data: bytes) -> Arrived: ...


class TwinWorld:
    def __init__(self) -> None:
        self._twin = MemoryFiles(JOE.dn)
        self.files: Files = self._twin

    async def arrive(self, placed: Placed, data: bytes) -> Arrived:
        return self._twin.arrive(placed, data)


class ServiceWorld:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.files: Files = stage.bartender.files

    async def arrive(self, placed: Placed, data: bytes) -> Arrived:
        held = await self._stage.upload(placed.turl, size=len(data))
        return Arrived(placed.put, tuple(receipts.to_text(receipt) for receipt in held))


async def on_twin(test: Callable[[World], Awaitable[None]]) -> None:
    await test(TwinWorld())


async def on_service(test: Callable[[World], Awaitable[None]]) -> None:
    stage = Stage()
    await stage.ahash.start()
    await stage.librarian.start()
    await stage.add_shepherds("s1", "s2", "s3")
    try:
        await test(ServiceWorld(stage))
        ids = (await stage.ahash.objects(LIBRARIAN)).ids
        assert broken(Snapshot(await stage.ahash.get(LIBRARIAN, ids))) == ()
    finally:
        await stage.ahash.close()


class Callers:
    """The port as its callers have it: each has a connection of his own, and is who his certificate says."""

    def __init__(self, grid: Grid, url: str) -> None:
        self._grid = grid
        self._url = url
        self._links: dict[str, Link] = {}

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def ask(call: Call, *args: Any) -> Awaitable[Any]:
            if call.dn not in self._links:
                store = self._grid.client(None if call.dn == ANONYMOUS else self._grid.user(call.dn))
                self._links[call.dn] = open_link(store)
            asked: Awaitable[Any] = getattr(remote_files(self._links[call.dn], (self._url,)), method)(call, *args)
            return asked

        return ask

    async def close(self) -> None:
        for link in self._links.values():
            await link.client.close()


class OverTls(ServiceWorld):
    def __init__(self, stage: Stage, files: Files) -> None:
        super().__init__(stage)
        self.files = files


async def no_http(request: object) -> Answer:
    raise AssertionError("asked over HTTP")


async def on_compact(test: Callable[[World], Awaitable[None]], grid: Grid) -> None:
    stage, registry = Stage(), Registry((), None, SystemClock())
    door = CompactDoor(offer(FILES, stage.bartender.files), CompactParts(registry, Horizon()))
    await stage.ahash.start()
    await stage.librarian.start()
    await stage.add_shepherds("s1", "s2", "s3")
    try:
        async with secure(no_http, grid.server(), ClientCertificate.OPTIONAL, compact=door) as server:
            callers = Callers(grid, f"https://localhost:{server.port}/Bartender")
            try:
                await test(OverTls(stage, cast(Files, callers)))
            finally:
                await callers.close()
    finally:
        await stage.ahash.close()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    return Grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(params=["twin", "service", "compact"])
def play(request: pytest.FixtureRequest, grid: Grid) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    """Runs a test on one implementation, on virtual time unless it has sockets."""
    if request.param == "compact":
        return lambda test: asyncio.run(on_compact(test, grid))
    on = on_twin if request.param == "twin" else on_service
    return lambda test: run_virtual(on(test))


Play = Callable[[Callable[[World], Awaitable[None]]], None]


# --- short ways -----------------------------------------------------------------------------------------------------


def at(text: str) -> LogicalName:
    return parse_ln(text)


async def applied(world: World, change: Change, call: Call = JOE) -> Done | Kind:
    """What one change came to: its answer, or the kind of its failure."""
    (answer,) = await world.files.apply(call, (change,))
    return answer.kind if isinstance(answer, Failure) else answer


async def done(world: World, change: Change, call: Call = JOE) -> Done:
    answer = await applied(world, change, call)
    assert isinstance(answer, Done), answer
    return answer


async def looked(world: World, name: str, call: Call = JOE, want: Want = Want.NOTHING) -> Looked | Kind:
    (answer,) = await world.files.look(call, (Look(at(name), want),))
    return answer.kind if isinstance(answer, Failure) else answer


async def there(world: World, name: str, want: Want = Want.NOTHING) -> Looked:
    answer = await looked(world, name, want=want)
    assert isinstance(answer, Looked), (name, answer)
    return answer


async def write(world: World, name: str, data: bytes = b"bytes", call: Call = JOE, **more: object) -> Done | Kind:
    (placed,) = await world.files.place(call, (Placing(at(name), len(data), wanted=2, parents="parents" in more),))
    if isinstance(placed, Failure):
        return placed.kind
    return await applied(world, Write(at(name), await world.arrive(placed, data), **more), call)  # type: ignore[arg-type]


async def collection(world: World, name: str) -> None:
    await done(world, Make(at(name), "collection"))


async def names(world: World, name: str) -> list[str]:
    return [entry.name for entry in (await world.files.list(JOE, Listing(at(name)))).entries]


# --- making and looking ---------------------------------------------------------------------------------------------


def test_what_is_made_is_there_with_its_attributes(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


@pytest.mark.parametrize("part", ["..", "", "a/b", "\0", "x" * 256])
def test_a_name_that_no_text_parses_to_is_refused(play: Play, part: str) -> None:
    async def scenario(world: World) -> None:
        odd = LogicalName(ROOT, (part,))
        await collection(world, "/d")
        assert await applied(world, Make(odd, "collection")) is Kind.BAD_NAME
        assert await applied(world, Move(at("/d"), odd)) is Kind.BAD_NAME
        assert await names(world, "/") == ["d"]

    play(scenario)


def test_attributes_nobody_set_are_unset(play: Play) -> None:
    async def scenario(world: World) -> None:
        await collection(world, "/d")
        seen = (await there(world, "/d")).attributes
        assert (seen.mode, seen.uid, seen.gid, seen.size) == (UNSET, UNSET, UNSET, 0)

    play(scenario)


def test_symlinks_and_special_files_keep_what_they_are(play: Play) -> None:
    async def scenario(world: World) -> None:
        await done(world, Make(at("/l"), "symlink", target="../elsewhere"))
        await done(world, Make(at("/p"), "special", Setting(mode=0o10644, device=7)))
        assert (await there(world, "/l")).attributes.target == "../elsewhere"
        assert ((await there(world, "/p")).attributes.mode, (await there(world, "/p")).attributes.device) == (
            0o10644,
            7,
        )

    play(scenario)


def test_implied_parents_are_made_only_when_asked_for(play: Play) -> None:
    async def scenario(world: World) -> None:
        assert await applied(world, Make(at("/a/b/c"), "collection")) is Kind.NO_PARENT
        assert await looked(world, "/a") is Kind.NOT_FOUND
        await done(world, Make(at("/a/b/c"), "collection", parents=True))
        assert await names(world, "/a/b") == ["c"]
        assert await write(world, "/x/y/file") is Kind.NO_PARENT
        assert isinstance(await write(world, "/x/y/file", parents=True), Done)
        assert await names(world, "/x/y") == ["file"]

    play(scenario)


def test_a_name_that_is_taken_is_refused(play: Play) -> None:
    async def scenario(world: World) -> None:
        await collection(world, "/d")
        assert await applied(world, Make(at("/d"), "collection")) is Kind.EXISTS
        assert await write(world, "/d") is Kind.NOT_A_FILE

    play(scenario)


@pytest.mark.parametrize(
    "setting", [Setting(mode=-2), Setting(mode=1 << 20), Setting(uid=2**32 - 1), Setting(modified_ns=-1)]
)
def test_attributes_out_of_bounds_are_refused(play: Play, setting: Setting) -> None:
    async def scenario(world: World) -> None:
        await collection(world, "/d")
        assert await applied(world, Set(at("/d"), setting)) is Kind.BAD_REQUEST
        assert (await there(world, "/d")).attributes.mode == UNSET

    play(scenario)


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_a_file_has_size_etag_and_sources(play: Play) -> None:
    async def scenario(world: World) -> None:
        written = await write(world, "/f", b"12345", setting=Setting(mode=0o640), user={"k": "v"})
        assert isinstance(written, Done)
        assert written.made
        seen = await there(world, "/f", Want.USER | Want.SOURCES)
        assert (seen.attributes.size, seen.attributes.mode, seen.user) == (5, 0o640, {"k": "v"})
        assert seen.attributes.etag
        assert seen.attributes.wanted == 2
        assert seen.sources

    play(scenario)


def test_new_bytes_keep_the_file_and_change_its_etag(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_the_last_of_two_uploads_of_a_new_name_wins(play: Play) -> None:
    async def scenario(world: World) -> None:
        (one, other) = [(await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2),)))[0] for _ in range(2)]
        assert isinstance(one, Placed)
        assert isinstance(other, Placed)
        first = await done(world, Write(at("/f"), await world.arrive(one, b"one")))
        second = await done(world, Write(at("/f"), await world.arrive(other, b"2nd")))
        assert (first.made, second.made) == (True, False)
        assert first.attributes is not None
        assert (await there(world, "/f")).attributes.guid == first.attributes.guid

    play(scenario)


def test_bytes_for_a_file_that_is_gone_make_a_new_one(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", b"old")
        (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2),))
        assert isinstance(placed, Placed)
        arrived = await world.arrive(placed, b"new")
        old = (await there(world, "/f")).attributes.guid
        await done(world, Remove(at("/f")))
        assert (await done(world, Write(at("/f"), arrived))).made
        assert (await there(world, "/f")).attributes.guid != old

    play(scenario)


def test_bytes_are_for_the_name_and_the_user_they_were_placed_for(play: Play) -> None:
    async def scenario(world: World) -> None:
        (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2),))
        assert isinstance(placed, Placed)
        arrived = await world.arrive(placed, b"abc")
        assert await applied(world, Write(at("/g"), arrived)) is Kind.BAD_REQUEST
        assert await applied(world, Write(at("/f"), arrived), EVE) is Kind.BAD_TICKET
        assert await names(world, "/") == []

    play(scenario)


# --- conditions -----------------------------------------------------------------------------------------------------


def test_conditions_of_a_write(play: Play) -> None:
    async def scenario(world: World) -> None:
        assert await write(world, "/f", when=When(present=True)) is Kind.PRECONDITION
        assert await write(world, "/f", when=When(etags=("x",))) is Kind.PRECONDITION
        assert isinstance(await write(world, "/f", when=When(absent=True)), Done)
        assert await write(world, "/f", when=When(absent=True)) is Kind.PRECONDITION
        seen = (await there(world, "/f")).attributes
        assert await write(world, "/f", when=When(not_etags=(seen.etag,))) is Kind.PRECONDITION
        assert await write(world, "/f", when=When(version=seen.version + 7)) is Kind.PRECONDITION
        assert isinstance(await write(world, "/f", when=When(etags=("x", seen.etag), version=seen.version)), Done)
        assert await write(world, "/f", when=When(etags=(seen.etag,))) is Kind.PRECONDITION

    play(scenario)


def test_of_two_that_saw_the_same_version_one_changes_it(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f")
        version = (await there(world, "/f")).attributes.version
        changes = [Set(at("/f"), Setting(mode=n), when=When(version=version)) for n in (1, 2)]
        answers = await asyncio.gather(*(applied(world, change) for change in changes))
        assert [type(answer) is Done for answer in answers].count(True) == 1
        assert Kind.PRECONDITION in answers

    play(scenario)


# --- setting --------------------------------------------------------------------------------------------------------


def test_several_properties_change_together_and_can_be_taken_away(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", user={"a": "1", "b": "2"})
        policy = {EVE.dn: "+read"}
        await done(world, Set(at("/f"), Setting(uid=5, accessed_ns=9 * S + 1), {"a": None, "c": "3"}, policy))
        seen = await there(world, "/f", Want.USER | Want.POLICY)
        assert (seen.user, seen.policy, seen.attributes.uid) == ({"b": "2", "c": "3"}, policy, 5)
        assert seen.attributes.accessed_ns == 9 * S + 1
        assert isinstance(await looked(world, "/f", EVE), Looked)

    play(scenario)


# --- moving ---------------------------------------------------------------------------------------------------------


def test_a_move_refuses_a_name_that_is_taken_unless_it_may_replace(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/a", b"aa")
        await write(world, "/b", b"bbb")
        guid = (await there(world, "/a")).attributes.guid
        assert await applied(world, Move(at("/a"), at("/b"))) is Kind.EXISTS
        await done(world, Move(at("/a"), at("/b"), Over.REPLACE))
        assert await names(world, "/") == ["b"]
        assert (await there(world, "/b")).attributes.guid == guid

    play(scenario)


def test_what_a_move_replaces_must_be_of_its_kind_and_empty(play: Play) -> None:
    async def scenario(world: World) -> None:
        for name in ("/d", "/e", "/e/inside"):
            await collection(world, name)
        await write(world, "/f")
        assert await applied(world, Move(at("/f"), at("/d"), Over.REPLACE)) is Kind.NOT_A_FILE
        assert await applied(world, Move(at("/d"), at("/f"), Over.REPLACE)) is Kind.NOT_A_COLLECTION
        assert await applied(world, Move(at("/d"), at("/e"), Over.REPLACE)) is Kind.NOT_EMPTY
        await done(world, Move(at("/e"), at("/d"), Over.REPLACE))
        assert await names(world, "/") == ["d", "f"]
        assert await names(world, "/d") == ["inside"]

    play(scenario)


def test_replacing_one_name_of_a_linked_file_leaves_the_other(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/a")
        await done(world, Move(at("/a"), at("/b"), keep=True))
        assert (await there(world, "/a")).attributes.links == 2
        await done(world, Move(at("/a"), at("/b"), Over.REPLACE))
        assert await names(world, "/") == ["a", "b"]
        await write(world, "/c", b"other")
        await done(world, Move(at("/c"), at("/a"), Over.REPLACE))
        assert (await there(world, "/b")).attributes.links == 1
        assert await names(world, "/") == ["a", "b"]

    play(scenario)


def test_two_entries_exchange_their_names(play: Play) -> None:
    async def scenario(world: World) -> None:
        await collection(world, "/d")
        await write(world, "/d/x")
        await write(world, "/f", b"file")
        one, other = (await there(world, "/d")).attributes.guid, (await there(world, "/f")).attributes.guid
        await done(world, Move(at("/d"), at("/f"), Over.EXCHANGE))
        assert (await there(world, "/f")).attributes.guid == one
        assert (await there(world, "/d")).attributes.guid == other
        assert await names(world, "/f") == ["x"]
        assert await applied(world, Move(at("/d"), at("/nobody"), Over.EXCHANGE)) is Kind.NOT_FOUND

    play(scenario)


def test_no_move_makes_a_cycle(play: Play) -> None:
    async def scenario(world: World) -> None:
        for name in ("/a", "/a/b"):
            await collection(world, name)
        for over in Over:
            assert isinstance(await applied(world, Move(at("/a"), at("/a/b/c"), over)), Kind)
        assert await applied(world, Move(at("/a"), at("/a/b/c"))) is Kind.INVALID_TARGET
        assert await names(world, "/a") == ["b"]

    play(scenario)


# --- removing -------------------------------------------------------------------------------------------------------


def test_a_name_a_file_and_a_collection_are_removed_each_by_its_own_word(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_a_removal_on_condition(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f")
        assert await applied(world, Remove(at("/f"), when=When(etags=("other",)))) is Kind.PRECONDITION
        etag = (await there(world, "/f")).attributes.etag
        await done(world, Remove(at("/f"), when=When(etags=(etag,))))
        assert await applied(world, Remove(at("/f"))) is Kind.NOT_FOUND

    play(scenario)


# --- listing --------------------------------------------------------------------------------------------------------


def test_a_listing_comes_in_pages_in_byte_order(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_a_listing_of_what_is_no_collection(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f")
        for name, kind in (("/f", Kind.NOT_A_COLLECTION), ("/no", Kind.NOT_FOUND)):
            with pytest.raises(CheloniaError) as caught:
                await world.files.list(JOE, Listing(at(name)))
            assert caught.value.kind is kind

    play(scenario)


# --- rights ---------------------------------------------------------------------------------------------------------


def test_who_may_not_is_refused_and_changes_nothing(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_a_child_that_may_not_be_read_shows_type_and_size_alone(play: Play) -> None:
    async def scenario(world: World) -> None:
        await done(world, Set(at("/"), policy={EVE.dn: "+read"}))
        await write(world, "/f", b"12345", setting=Setting(mode=0o600), user={"secret": "x"})
        (named,) = (await world.files.list(EVE, Listing(at("/"), want=Want.USER))).entries
        assert (named.attributes.type, named.attributes.size) == ("file", 5)
        assert (named.user, named.attributes.etag, named.attributes.mode) == ({}, "", UNSET)

    play(scenario)


# --- several at once ------------------------------------------------------------------------------------------------


def test_each_element_is_answered_by_itself_in_order(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


# --- content of several blobs ---------------------------------------------------------------------------------------

Laid = tuple[int, bytes]
"""Where some bytes go in a file."""


async def piece(world: World, name: str, data: bytes, call: Call = JOE) -> tuple[Placed, Arrived]:
    (placed,) = await world.files.place(call, (Placing(at(name), len(data), wanted=2, piece=True),))
    assert isinstance(placed, Placed), placed
    return placed, await world.arrive(placed, data)


async def lay(world: World, name: str, *pieces: Laid, **more: object) -> Done | Kind:
    """Lay pieces over a file."""
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


def test_a_file_of_one_blob_is_one_extent(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", b"12345")
        assert await shape(world, "/f") == [(0, 5, 0)]

    play(scenario)


def test_appends_and_writes_in_the_middle_keep_the_rest(play: Play) -> None:
    async def scenario(world: World) -> None:
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
        seen = await there(world, "/f", Want.USER)
        assert (seen.attributes.guid, seen.attributes.size, seen.user) == (made.attributes.guid, 14, {"k": "v"})
        etags = {each.attributes.etag for each in (made, first, second) if each.attributes}
        assert len(etags) == 3
        versions = [each.attributes.version for each in (made, first, second) if each.attributes]
        assert versions == sorted(set(versions))

    play(scenario)


def test_a_file_is_cut_short_and_grows_by_a_hole(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_parts_become_a_file_at_once_and_whole_replaces_all(play: Play) -> None:
    async def scenario(world: World) -> None:
        made = await lay(world, "/f", (0, b"one"), (3, b"two"), (10, b"ten"), whole=True)
        assert isinstance(made, Done)
        assert made.made
        assert await shape(world, "/f") == [(0, 3, 0), (3, 3, 0), (10, 3, 0)]
        assert (await there(world, "/f")).attributes.wanted == 2
        await lay(world, "/f", (0, b"fresh"), whole=True)
        assert await shape(world, "/f") == [(0, 5, 0)]
        await write(world, "/f", b"plain")
        assert (await there(world, "/f", Want.SOURCES)).sources

    play(scenario)


def test_one_blob_may_serve_several_extents(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", b"0123456789")
        placed, arrived = await piece(world, "/f", b"abcdef")
        extents = (Extent(1, 2, placed.blob, 3), Extent(5, 1, placed.blob, 0))
        await done(world, Splice(at("/f"), Content(extents, (arrived,))))
        assert await shape(world, "/f") == [(0, 1, 0), (1, 2, 3), (3, 2, 3), (5, 1, 0), (6, 4, 6)]

    play(scenario)


def test_a_span_tells_only_what_meets_it(play: Play) -> None:
    async def scenario(world: World) -> None:
        await lay(world, "/f", (0, b"one"), (3, b"two"), (6, b"six"))
        (seen,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(4, 1)),))
        assert isinstance(seen, Looked)
        assert ([e.at for e in seen.extents], seen.told, seen.blobs) == ([3], 5, {})
        (beyond,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(2**62, 2**62)),))
        assert isinstance(beyond, Looked)
        assert (beyond.extents, beyond.told) == ((), 9)
        (bad,) = await world.files.look(JOE, (Look(at("/f"), Want.EXTENTS, ByteRange(-4, 1)),))
        assert isinstance(bad, Failure)
        assert bad.kind is Kind.BAD_REQUEST

    play(scenario)


def test_many_extents_are_told_page_by_page(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_a_condition_that_does_not_hold_lays_nothing(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", b"0123456789")
        before = (await there(world, "/f")).attributes
        assert await lay(world, "/f", (0, b"x"), when=When(version=before.version + 1)) is Kind.PRECONDITION
        assert await lay(world, "/g", (0, b"x"), when=When(present=True)) is Kind.PRECONDITION
        assert (await there(world, "/f")).attributes == before
        assert isinstance(await lay(world, "/f", (0, b"x"), when=When(version=before.version)), Done)
        assert await lay(world, "/f", (0, b"x"), when=When(version=before.version)) is Kind.PRECONDITION

    play(scenario)


def test_content_that_is_none_is_refused_and_changes_nothing(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)


def test_pieces_of_others_for_others_and_wholes_are_no_content(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", b"0123456789")
        await done(world, Set(at("/f"), policy={EVE.dn: "+read +delete"}))
        before = (await there(world, "/f")).attributes
        placed, arrived = await piece(world, "/f", b"evil", EVE)
        stolen = Content((Extent(0, 4, placed.blob),), (arrived,))
        assert await applied(world, Splice(at("/f"), stolen)) is Kind.BAD_TICKET
        placed, arrived = await piece(world, "/g", b"else")
        assert (
            await applied(world, Splice(at("/f"), Content((Extent(0, 4, placed.blob),), (arrived,))))
            is Kind.BAD_REQUEST
        )
        assert await applied(world, Write(at("/g"), arrived)) is Kind.BAD_REQUEST
        (whole,) = await world.files.place(JOE, (Placing(at("/f"), 4, wanted=2),))
        assert isinstance(whole, Placed)
        content = Content((Extent(0, 4, whole.blob),), (await world.arrive(whole, b"whol"),))
        assert await applied(world, Splice(at("/f"), content)) is Kind.BAD_REQUEST
        assert (await there(world, "/f")).attributes == before

    play(scenario)


def test_two_writers_never_mix_extents(play: Play) -> None:
    async def scenario(world: World) -> None:
        await write(world, "/f", b"0" * 10)
        both = await asyncio.gather(lay(world, "/f", (10, b"a" * 5)), lay(world, "/f", (10, b"b" * 5)))
        assert all(isinstance(each, Done) for each in both), both
        assert await shape(world, "/f") == [(0, 10, 0), (10, 5, 0)]

    play(scenario)


def test_a_file_of_several_blobs_is_moved_linked_and_removed(play: Play) -> None:
    async def scenario(world: World) -> None:
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

    play(scenario)
