"""The contract of the port `Files`: what a refused caller does not learn (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import pytest

from chelonia.core.errors import Kind
from chelonia.core.ports.files import (
    Change,
    Clone,
    Failure,
    Inline,
    Move,
    Over,
    Placing,
    Remove,
    Set,
    Setting,
    When,
    Write,
)
from tests.support.files_worlds import World, applied, at, done, played, there, write
from tests.support.stage import EVE, NOBODY


@pytest.mark.parametrize("over", [Over.REPLACE, Over.EXCHANGE])
@played
async def test_a_move_onto_itself_tells_nothing_to_who_may_not_move_it(world: World, over: Over) -> None:
    await write(world, "/f")
    for call in (EVE, NOBODY):
        assert await applied(world, Move(at("/f"), at("/f"), over), call) is Kind.DENIED
    moved = await done(world, Move(at("/f"), at("/f"), over))
    assert moved.attributes == (await there(world, "/f")).attributes


@played
async def test_a_condition_that_does_not_hold_names_no_etag(world: World) -> None:
    await write(world, "/f")
    etag, other = (await there(world, "/f")).attributes.etag, When(etags=("guess",))
    changes: tuple[Change, ...] = (
        Set(at("/f"), Setting(mode=0), when=other),
        Write(at("/f"), inline=Inline(b"hers", 2), when=other),
        Clone(at("/g"), at("/f"), of=other),
        Move(at("/f"), at("/g"), when=other),
        Remove(at("/f"), when=other),
    )
    answers = [(await world.files.apply(EVE, (change,)))[0] for change in changes]
    answers += await world.files.place(EVE, (Placing(at("/f"), 4, when=other),))
    for answer in answers:
        assert isinstance(answer, Failure)
        assert answer.kind is Kind.PRECONDITION
        assert etag not in answer.cause


@played
async def test_a_change_of_nothing_tells_and_changes_nothing_without_a_right(world: World) -> None:
    await done(world, Write(at("/a/b/f"), inline=Inline(b"bytes", 2), parents=True))
    for name in ("/a/b/f", "/a/b"):
        for call in (EVE, NOBODY):
            assert await applied(world, Set(at(name)), call) is Kind.DENIED
    assert (await there(world, "/a/b")).attributes.implied
    assert (await done(world, Set(at("/a/b/f")))).attributes == (await there(world, "/a/b/f")).attributes
    await done(world, Set(at("/a/b")))
    assert not (await there(world, "/a/b")).attributes.implied
