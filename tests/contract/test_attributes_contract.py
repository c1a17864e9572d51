"""The contract of the port `Files`: attributes beyond all bounds (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

from collections.abc import Awaitable

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Done, Set, Want
from tests.support.files_worlds import World, applied, at, played, there, write

MIB = 2**20


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
