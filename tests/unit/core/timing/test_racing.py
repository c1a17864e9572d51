"""Attempts begun beside others, and the end of those that no caller waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chelonia.core.ids import Ms
from chelonia.core.timing.racing import Race, many


class _Clock:
    """Every pause is over at once, or never."""

    def __init__(self, *, over: bool) -> None:
        self._over = over
        self.asked: list[int] = []

    def now_ms(self) -> Ms:
        return Ms(0)

    def monotonic_ms(self) -> Ms:
        return Ms(0)

    async def sleep(self, duration_ms: int) -> None:
        raise AssertionError("nobody sleeps in a race")

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self.asked.append(duration_ms)
        return asyncio.get_running_loop().call_later(0 if self._over else 3_600, callback)


async def _say(word: str) -> str:
    return word


async def _refuse() -> str:
    raise ValueError("no")


async def _hang(ended: asyncio.Event) -> str:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        ended.set()
    return ""


@pytest.mark.parametrize(
    ("silent", "of_use", "begun"), [(True, False, 3), (True, True, 3), (False, False, 1), (False, True, 0)]
)
def test_one_follows_a_failure_and_several_a_silence(silent: bool, of_use: bool, begun: int) -> None:
    assert many(silent=silent, of_use=of_use, at_once=3) == begun


async def test_each_that_ends_is_told_of_once_first_begun_first() -> None:
    async with Race[str, str](_Clock(over=False)) as race:
        race.begin("first", _say("one"))
        race.begin("second", _refuse())
        await asyncio.wait(race.running)
        told = [await race.ended(5), await race.ended(5)]
        assert not race.running
    assert [each[0] for each in told if each] == ["first", "second"]
    assert told[0] is not None
    assert told[0][1].result() == "one"
    assert told[1] is not None
    assert isinstance(told[1][1].exception(), ValueError)


async def test_silence_is_told_and_who_keeps_it_runs_on_until_the_end() -> None:
    ended, clock = asyncio.Event(), _Clock(over=True)
    async with Race[str, str](clock) as race:
        race.begin("silent", _hang(ended))
        assert await race.ended(150) is None
        assert list(race.running.values()) == ["silent"]
        assert not ended.is_set()
    async with asyncio.timeout(5):
        await ended.wait()
    assert clock.asked == [150]


async def test_without_a_limit_nobody_looks_at_the_clock() -> None:
    clock = _Clock(over=True)
    async with Race[str, str](clock) as race:
        race.begin("first", _say("one"))
        assert await race.ended(None) is not None
    assert clock.asked == []
