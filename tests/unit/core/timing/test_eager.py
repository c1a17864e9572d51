"""Coroutines that begin at once."""

import asyncio

import pytest

from chelonia.core.timing.eager import Turn, begin


async def test_what_never_waits_is_done_at_once() -> None:
    done: list[int] = []

    async def work() -> None:
        done.append(1)

    assert begin(work()) is None
    assert done == [1]


async def test_what_waits_goes_on_as_a_task() -> None:
    seen: list[object] = []
    answers = [asyncio.get_running_loop().create_future() for _ in range(2)]

    async def work() -> None:
        seen.append("begun")
        for answer in answers:
            seen.append(await answer)
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            seen.append("ended")

    task = begin(work())
    assert task is not None
    assert seen == ["begun"]
    answers[0].set_result(1)  # before the task had its first turn
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answers[1].set_result(2)
    await task
    assert seen == ["begun", 1, 2, "ended"]


async def test_failures_arrive_where_they_happen() -> None:
    async def fails(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        begin(fails(wait=False))
    task = begin(fails(wait=True))
    assert task is not None
    with pytest.raises(KeyError):
        await task


@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancellation_reaches_the_work(begun: bool) -> None:
    seen: list[str] = []
    waits = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await waits
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned")
            raise

    task = begin(work())
    assert task is not None
    if begun:  # the task has had its first turn
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "cleaned"]
    assert waits.cancelled()


async def test_a_turn_is_one_turn() -> None:
    seen: list[str] = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(seen.append, "what was due in this turn")
        await Turn()
        seen.append("goes on")

    asyncio.get_running_loop().call_soon(seen.append, "earlier")
    task = begin(work())
    assert task is not None
    assert seen == []
    await task
    assert seen == ["earlier", "what was due in this turn", "goes on"]
