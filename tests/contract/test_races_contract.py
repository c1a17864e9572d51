"""The contract of the port `Files`: a change during which others change the same names is decided anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from chelonia.core.caller import Call
from chelonia.core.contents.parts import UploadId
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import (
    Arrived,
    Change,
    Clone,
    Content,
    Done,
    Inline,
    Open,
    Part,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
    Splice,
    Write,
)
from tests.sim.virtual_loop import run_virtual
from tests.support.files_worlds import ServiceWorld, World, at, done, on_service, there, write
from tests.support.stage import ADMIN, JOE, Between

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
