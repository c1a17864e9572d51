"""Large messages under way: their owners, the one that ends for another's, and the log lines about limits."""

from __future__ import annotations

import contextlib

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.doors.large_bodies import OTHERS, PER_OWNER, LargeBodies, LargeBody
from tests.support.failing import fails


def arriving(stack: contextlib.ExitStack, pool: LargeBodies, owner: str, ended: list[str], size: int) -> LargeBody:
    one = stack.enter_context(pool.one(owner))
    one.give_up = lambda: ended.append(owner)
    one.grow(size, 0.0)
    return one


def test_an_owner_has_his_share_and_frees_it() -> None:
    pool, met = LargeBodies(8, 2), list[str]()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(pool.one("x")).grow(70_000, 0.0)
        with pool.one("x", met.append) as third, fails(Kind.UNAVAILABLE, match="one after the other"):
            third.grow(70_000, 0.0)
        assert met == [PER_OWNER]
        stack.enter_context(pool.one("y")).grow(70_000, 0.0)
    with pool.one("x") as again:
        again.grow(70_000, 0.0)
    assert pool.held == []


def test_the_slowest_gives_way_once_it_had_time_to_show_it() -> None:
    pool, ended, met = LargeBodies(3, 2), list[str](), list[str]()
    with contextlib.ExitStack() as stack:
        for owner, size in (("fast", 900_000), ("slow", 70_000), ("middle", 200_000)):
            arriving(stack, pool, owner, ended, size)
        new = stack.enter_context(pool.one("new", met.append))
        with pytest.raises(CheloniaError, match="try again in a moment"):
            new.grow(70_000, 0.5)
        new.grow(70_000, 1.5)
        assert ended == ["slow"]
        assert met == [OTHERS, OTHERS]
        assert len(pool.held) == 3


def test_what_has_arrived_is_not_ended() -> None:
    pool = LargeBodies(1)
    with pool.one("x") as whole, pool.one("y") as new:
        whole.grow(70_000, 0.0)
        with pytest.raises(CheloniaError, match="try again in a moment"):
            new.grow(70_000, 5.0)
