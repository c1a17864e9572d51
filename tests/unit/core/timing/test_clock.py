"""A wait with a deadline returns the result, or cancels the work."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.timing.clock import Clock, done_within, ended_within, stamp, within
from tests.support.failing import fails

Limited = Callable[[Clock, int, Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class _Clock:
    """A clock that stands still, or whose time has always run out."""

    def __init__(self, *, over: bool) -> None:
        self._over = over

    def now_ms(self) -> Ms:
        return Ms(0)

    def monotonic_ms(self) -> Ms:
        return Ms(0)

    async def sleep(self, duration_ms: int) -> None:
        if not self._over:
            await asyncio.get_running_loop().create_future()

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(0 if self._over else 3_600, callback)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "-"),
        (1_700_000_000_999, "2023-11-14 22:13:20Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59Z"),
        (253_402_300_800_000, "9999-12-31 23:59:59Z"),
        (2**64, "9999-12-31 23:59:59Z"),
    ],
)
def test_an_instant_beyond_the_calendar_is_shown_as_its_end(ms: int, text: str) -> None:
    """A user may have made a key that lasts so long: the list of all keys is shown nevertheless."""
    assert stamp(ms) == text


@pytest.mark.parametrize("limited", [within, ended_within])
async def test_what_answers_in_time_is_taken_as_it_is(limited: Limited) -> None:
    async def answer() -> str:
        return "done"

    async def refuse() -> str:
        raise CheloniaError(Kind.DENIED, cause="no")

    assert await limited(_Clock(over=False), 5, answer()) == "done"
    with fails(Kind.DENIED):
        await limited(_Clock(over=False), 5, refuse())


@pytest.mark.parametrize("limited", [within, ended_within])
async def test_what_does_not_answer_is_ended(limited: Limited) -> None:
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    with pytest.raises(CheloniaError) as caught:
        await limited(_Clock(over=True), 5, hang())
    assert (caught.value.kind, caught.value.cause) == (Kind.TIMEOUT, "no answer in 5 ms")
    async with asyncio.timeout(5):
        await ended.wait()


async def test_who_is_ended_by_others_meets_no_deadline() -> None:
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(ended_within(_Clock(over=False), 5, hang()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_ends_as_it_may_is_done_and_what_does_not_goes_on() -> None:
    loop = asyncio.get_running_loop()
    one, other = loop.create_future(), loop.create_future()
    loop.call_soon(other.set_exception, ValueError("it ended so"))
    async with asyncio.timeout(5):
        assert await done_within(_Clock(over=False), other, 5)
        assert not await done_within(_Clock(over=True), one, 5)
    assert not one.done()
    assert isinstance(other.exception(), ValueError)


async def test_who_stops_waiting_leaves_what_he_waited_for_alone() -> None:
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(done_within(_Clock(over=False), future, 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not future.done()
    future.set_result(None)
    await asyncio.sleep(0)


async def test_what_failed_is_given_back_without_a_collection() -> None:
    class Held:
        """An object that the work held."""

    kept: list[weakref.ref[Held]] = []

    async def refuse_holding() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        raise CheloniaError(Kind.DENIED)

    gc.disable()
    try:
        with suppress(CheloniaError):
            await within(_Clock(over=False), 5, refuse_holding())
        await asyncio.sleep(0)
        assert kept[0]() is None
    finally:
        gc.enable()
