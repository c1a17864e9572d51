"""Waiting for news with a deadline: neither is told twice."""

from __future__ import annotations

import asyncio

from chelonia.core.timing.jobs import wake_or_sleep
from tests.support.shepherd import VirtualClock, virtual


def _now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_news_end_a_wait_and_are_over_then() -> None:
    news = asyncio.Event()
    asyncio.get_running_loop().call_later(2, news.set)
    await wake_or_sleep(VirtualClock(), news, 5_000)
    assert (_now(), news.is_set()) == (2, False)
    await wake_or_sleep(VirtualClock(), news, 5_000)
    assert _now() == 7, "the first deadline would have been at 5"


@virtual
async def test_a_deadline_is_no_news_for_the_next_wait() -> None:
    news = asyncio.Event()
    for number in (1, 2, 3):
        await wake_or_sleep(VirtualClock(), news, 1_000)
        assert (_now(), news.is_set()) == (number, False)


@virtual
async def test_who_stops_waiting_leaves_no_deadline_behind() -> None:
    news = asyncio.Event()
    waiting = asyncio.create_task(wake_or_sleep(VirtualClock(), news, 1_000))
    await asyncio.sleep(0.5)
    waiting.cancel()
    await asyncio.wait((waiting,))
    await asyncio.sleep(1)
    assert not news.is_set()
