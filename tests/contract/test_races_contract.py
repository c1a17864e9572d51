"""The contract of the port `Files`: a change during which others change the same names is decided anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from chelonia.bartender.bulk import ATTEMPTS_MAX
from chelonia.core.caller import Call
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.parts import UploadId
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import (
    INLINED,
    Arrived,
    Change,
    Clone,
    Content,
    Done,
    Failure,
    Inline,
    Look,
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
    Reserving,
    Seal,
    Set,
    Setting,
    Splice,
    Want,
    Write,
)
from chelonia.core.timing.clock import within
from chelonia.core.values import replace
from tests.sim.virtual_loop import run_virtual
from tests.support.files_worlds import ServiceWorld, World, applied, at, done, names, on_service, there, write
from tests.support.stage import ADMIN, EVE, JOE, NOBODY, Between, keyed

Scenario = Callable[[World, Between], Awaitable[None]]


def staged(scenario: Scenario) -> None:
    """Run a scenario, in which others act between the Bartender and the Librarian."""

    async def play(world: World) -> None:
        assert isinstance(world, ServiceWorld)
        await scenario(world, world.stage.between)

    run_virtual(on_service(play))


async def parted(world: World, name: str, data: bytes, call: Call) -> Seal:
    """An upload in parts, ready to be sealed."""
    upload: UploadId = (await done(world, Open(at(name), at("/"), 2, parents=True), call)).upload
    placing = Placing(at(name), len(data), wanted=2, piece=True, parents=True)
    (placed,) = await world.files.place(call, (placing,))
    assert isinstance(placed, Placed), placed
    arrived: Arrived = await world.arrive(placed, data)
    etag = (await done(world, Part(at(name), upload, 1, arrived), call)).etag
    return Seal(at(name), upload, ((1, etag),), parents=True)


@pytest.mark.parametrize("before", [True, False])
def test_parts_take_a_name_that_others_make_or_remove_meanwhile(before: bool) -> None:
    """They were refused as `exists`, or as if there was no such upload."""

    async def scenario(world: World, between: Between) -> None:
        if before:
            await write(world, "/f", b"before")
        sealing = await parted(world, "/f", b"parts", JOE)

        async def changed() -> None:
            await done(world, Remove(at("/f")) if before else Write(at("/f"), inline=Inline(b"another's", 2)))

        between.before["seal_upload"] = changed
        sealed = await done(world, sealing)
        assert sealed.made is before
        assert (await there(world, "/f")).attributes.size == len(b"parts")

    staged(scenario)


async def to_be_overtaken(world: World, between: Between, *, before: bool) -> None:
    """Have another remove `/f` as its name is about to be reserved; if it is not there `before`, make it."""
    if before:
        await write(world, "/f", b"before")

    async def changed() -> None:
        await done(world, Remove(at("/f")) if before else Clone(at("/f"), at("/other")))

    await write(world, "/other", b"another's")
    between.before["begin_put"] = changed


@pytest.mark.parametrize("before", [True, False])
def test_a_name_is_reserved_though_others_make_or_remove_its_file_meanwhile(before: bool) -> None:
    """It was refused as `not found`, or as `exists`."""

    async def scenario(world: World, between: Between) -> None:
        await to_be_overtaken(world, between, before=before)
        (placed,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2, reserving=Reserving()),))
        assert isinstance(placed, Placed), placed
        await world.arrive(placed, b"new")
        assert (await there(world, "/f")).attributes.size == len(b"new")

    staged(scenario)


@pytest.mark.parametrize("before", [True, False])
def test_put_file_takes_a_name_though_others_make_or_remove_its_file_meanwhile(before: bool) -> None:
    """It was refused as `exists`, or as if there was no such collection."""

    async def scenario(world: World, between: Between) -> None:
        assert isinstance(world, ServiceWorld)
        await to_be_overtaken(world, between, before=before)
        begun = await world.stage.put_file("/f", replace=True, size=3)
        assert begun.status == "done", begun

    staged(scenario)


@pytest.mark.parametrize("held", [True, False])
def test_a_name_that_anothers_upload_holds_is_not_reserved(held: bool) -> None:
    async def scenario(world: World, between: Between) -> None:
        assert isinstance(world, ServiceWorld)
        await done(world, Set(at("/"), policy={EVE.dn: "+addEntry"}))
        if held:
            await world.stage.put_file("/f", EVE)
        (answer,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2, reserving=Reserving()),))
        assert (isinstance(answer, Failure) and answer.kind is Kind.EXISTS) is held

    staged(scenario)


@pytest.mark.parametrize("original", [True, False])
def test_a_file_whose_name_anothers_upload_holds_is_not_reserved(original: bool) -> None:
    """It was a conflict, which clients try again for ever, with somebody else's making it as the cause."""

    async def scenario(world: World, between: Between) -> None:
        assert isinstance(world, ServiceWorld)
        await write(world, "/f", b"before")
        await done(world, Set(at("/f"), policy={EVE.dn: "+delete"}))
        assert (await world.stage.put_file("/f", EVE, replace=True)).status == "done"
        between.calls.clear()
        if original:
            kind = (await world.stage.put_file("/f", replace=True)).kind
        else:
            (answer,) = await world.files.place(JOE, (Placing(at("/f"), 3, wanted=2, reserving=Reserving()),))
            assert isinstance(answer, Failure), answer
            kind = answer.kind.value
        assert kind == Kind.EXISTS.value
        assert len(between.named("begin_put")) == 1

    staged(scenario)


def test_a_file_of_which_no_bytes_are_known_is_not_copied() -> None:
    """It was a conflict, which clients try again for ever."""

    async def scenario(world: World, _: Between) -> None:
        assert isinstance(world, ServiceWorld)
        await world.stage.put_file("/name", needed=0)
        assert await applied(world, Clone(at("/copy"), at("/name"))) is Kind.NO_REPLICA

    staged(scenario)


@pytest.mark.parametrize("call", [JOE, ADMIN])
@pytest.mark.parametrize("op", ["commit_file", "splice", "copy_file", "seal_upload"])
def test_a_collection_that_goes_with_its_last_key_meanwhile_is_made_again(op: str, call: Call) -> None:
    """There was no such collection, it was said, though the change was to make it."""

    async def scenario(world: World, between: Between) -> None:
        await write(world, "/source", b"bytes")
        await done(world, Write(at("/a/b/last"), inline=Inline(b"bytes", 2), parents=True))
        changes: dict[str, Change] = {
            "commit_file": Write(at("/a/b/new"), inline=Inline(b"bytes", 2), parents=True),
            "splice": Splice(at("/a/b/new"), Content(), parents=True),
            "copy_file": Clone(at("/a/b/new"), at("/source"), parents=True),
            "seal_upload": await parted(world, "/a/b/new", b"bytes", call),
        }
        between.before[op] = partial(_gone, world)
        written = await done(world, changes[op], call)
        assert written.made
        assert (await there(world, "/a/b")).attributes.implied

    staged(scenario)


@pytest.mark.parametrize("call", [JOE, ADMIN])
@pytest.mark.parametrize("name", ["/b/new", "/b/x/new"])
@pytest.mark.parametrize("op", ["make_entry", "commit_file", "copy_file", "seal_upload"])
def test_a_collection_that_bounds_those_to_be_made_is_not_made_again(op: str, name: str, call: Call) -> None:
    """A bucket that was removed came back as an implied collection of the root's owner."""

    async def scenario(world: World, between: Between) -> None:
        await write(world, "/source", b"bytes")
        await done(world, Make(at("/b"), "collection"))
        changes: dict[str, Make | Write | Clone | Seal] = {
            "make_entry": Make(at(name), "symlink", target="there", parents=True),
            "commit_file": Write(at(name), inline=Inline(b"bytes", 2), parents=True),
            "copy_file": Clone(at(name), at("/source"), parents=True),
            "seal_upload": await parted(world, name, b"bytes", call),
        }
        change = replace(changes[op], within=at("/b"))

        async def gone() -> None:
            for place in ("/b/x", "/b"):
                await applied(world, Remove(at(place), Removing.COLLECTION))

        between.before[op] = gone
        assert await applied(world, change, call) is Kind.NO_PARENT
        assert await applied(world, change, call) is Kind.NO_PARENT
        placing = Placing(at(name), 5, wanted=2, parents=True, within=at("/b"))
        for ask in (placing, replace(placing, within=at("/c")), replace(placing, within=at(name))):
            (refused,) = await world.files.place(call, (ask,))
            assert isinstance(refused, Failure)
            assert refused.kind is (Kind.NO_PARENT if ask is placing else Kind.BAD_REQUEST)
        assert await names(world, "/") == ["source"]
        await done(world, Make(at("/b"), "collection"))
        assert (await done(world, change, call)).made

    staged(scenario)


@pytest.mark.parametrize("call", [JOE, ADMIN])
@pytest.mark.parametrize("name", ["/c/f", "/c/implied/f"])
def test_a_default_policy_that_changes_meanwhile_counts(name: str, call: Call) -> None:
    async def scenario(world: World, between: Between) -> None:
        assert isinstance(world, ServiceWorld)
        await done(world, Make(at("/c"), "collection"))
        await write(world, "/c/implied/first", parents=True)

        async def closed() -> None:
            assert isinstance(world, ServiceWorld)
            assert await world.stage.modify("/c", "unset", "defaultPolicy", "ALL") == "unset"

        assert await world.stage.modify("/c", "set", "defaultPolicy", "ALL", "+read") == "set"
        between.before["commit_file"] = closed
        await done(world, Write(at(name), inline=Inline(b"bytes", 2)), call)
        (seen,) = await world.files.look(ADMIN, (Look(at(name), Want.POLICY),))
        assert isinstance(seen, Looked)
        assert seen.policy == {}

    staged(scenario)


async def _gone(world: World) -> None:
    answer: Done = await done(world, Remove(at("/a/b/last"), Removing.KEY))
    assert answer.attributes is None


@pytest.mark.parametrize("kind", [Kind.BUSY, Kind.DENIED, Kind.INTERNAL, Kind.UNAVAILABLE])
@pytest.mark.parametrize("names", [("/a/b/one",), ("/a/b/one", "/a/b/two")])
def test_a_removed_key_is_removed_whatever_becomes_of_its_collection(kind: Kind, names: tuple[str, ...]) -> None:
    """It was answered as a failure, although the name was gone."""

    async def scenario(world: World, between: Between) -> None:
        for name in names:
            await done(world, Write(at(name), inline=Inline(b"bytes", 2), parents=True))

        async def refused() -> None:
            raise CheloniaError(kind, "librarian.unmake", "", "not now")

        between.before["unmake"] = refused
        removals = tuple(Remove(at(name), Removing.KEY) for name in names)
        assert await world.files.apply(JOE, removals) == (Done(),) * len(names)

    staged(scenario)


class Doubled:
    """A Librarian that gets each change twice, as when an answer is lost or late; the second answer counts."""

    def __init__(self, librarian: Any, *, at_once: bool) -> None:
        self._librarian = librarian
        self._at_once = at_once

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._librarian, name)

        async def call(*args: Any) -> Any:
            if self._at_once:
                return (await asyncio.gather(method(*args), method(*args)))[1]
            await method(*args)
            return await method(*args)

        return call


@pytest.mark.parametrize("at_once", [False, True])
def test_a_change_that_arrives_twice_is_answered_as_done_once(*, at_once: bool) -> None:
    """The second arrival of a Seal found no upload any more."""

    async def scenario(world: World, between: Between) -> None:
        librarian, small = between._librarian, Inline(b"bytes", 2)
        piece = Content((Extent(3, 5, INLINED),), inline=small)
        changes: tuple[Change, ...] = (
            Make(at("/a/b/d"), "collection", parents=True),
            Write(at("/a/b/f"), inline=small),
            Write(at("/a/b/f"), inline=Inline(b"other", 2)),
            Splice(at("/s"), piece),
            Splice(at("/s"), piece),
            Clone(at("/c"), at("/s")),
            Clone(at("/c"), at("/a/b/f")),
            await parted(world, "/p", b"parts", JOE),
            await parted(world, "/p", b"again", JOE),
            Set(at("/p"), Setting(mode=0o600)),
            Move(at("/p"), at("/c"), Over.EXCHANGE),
            Move(at("/p"), at("/c"), Over.REPLACE),
            Remove(at("/a/b/f"), Removing.KEY),
            Remove(at("/c"), Removing.FILE),
            Remove(at("/a/b/d"), Removing.COLLECTION),
        )
        for number, change in enumerate(changes):
            call = structs.replace(keyed(JOE, f"key {number}"), is_first=True)
            between._librarian = Doubled(librarian, at_once=at_once)  # type: ignore[assignment]
            await done(world, change, call)
            between._librarian = librarian

    staged(scenario)


def test_a_name_that_an_upload_holds_is_no_collection_to_be_made() -> None:
    """The Bartender tried to make it for as long as the name was held."""

    async def scenario(world: World, between: Between) -> None:
        assert isinstance(world, ServiceWorld)
        await done(world, Set(at("/"), policy={EVE.dn: "+addEntry"}))
        await world.stage.put_file("/a", EVE)
        write = applied(world, Write(at("/a/f"), inline=Inline(b"bytes", 2), parents=True))
        assert await within(world.stage.clock, 60_000, write) is Kind.CONFLICT
        assert len(between.named("make_entry")) <= ATTEMPTS_MAX

    staged(scenario)


def test_a_default_policy_that_a_collection_gets_meanwhile_stays() -> None:
    """An administrator's change of another attribute gave the collection, implied until then, the one from above."""

    async def scenario(world: World, between: Between) -> None:
        assert isinstance(world, ServiceWorld)
        stage = world.stage
        await done(world, Make(at("/c"), "collection"))
        await stage.modify("/c", "set", "defaultPolicy", EVE.dn, "+read")
        await done(world, Write(at("/c/p/f"), inline=Inline(b"bytes", 2), parents=True))

        async def ruled() -> None:
            assert await stage.modify("/c/p", "set", "defaultPolicy", EVE.dn, "+delete") == "set"

        between.before["change_entry"] = ruled
        await done(world, Set(at("/c/p"), user={"a": "b"}), ADMIN)
        assert (await stage.stat("/c/p"))["defaultPolicy"] == {EVE.dn: "+delete"}

    staged(scenario)


def test_a_collection_that_closes_meanwhile_opens_no_strangers_file() -> None:
    async def scenario(world: World, between: Between) -> None:
        await done(world, Set(at("/"), policy={"ALL": "+read +addEntry"}))

        async def closed() -> None:
            await done(world, Set(at("/"), policy={"ALL": "+addEntry"}))

        between.before["commit_file"] = closed
        change = Write(at("/f"), inline=Inline(b"bytes", 2), policy={"ALL": "+read"})
        assert await applied(world, change, NOBODY) is Kind.DENIED
        assert await names(world, "/") == []
        assert len(between.named("commit_file")) == 1, "the second decision refuses"

    staged(scenario)
