"""The contract of the port `Files`: what a refused caller does not learn (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import pytest

from chelonia.core.errors import Kind
from chelonia.core.ports.files import (
    Move,
    Over,
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
