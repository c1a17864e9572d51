"""Elements that come while others are at work share a batch; none waits for company, and a mistake ends its own
batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chelonia.core.timing.gathering import BatchLimits, Gathering, Pending
from tests.sim.virtual_loop import virtual
from tests.support.clocks import VirtualClock

Batches = list[list[int]]


def gathering(
    batches: Batches, *, takes_ms: Callable[[int], int] = lambda first: 100, most: int = 4, at_once: int = 2
) -> Gathering[int, int]:
    """Answers each number with its double, a batch in the time that its first one takes; 13 is a mistake."""

    async def work(batch: list[Pending[int, int]]) -> None:
        batches.append([each.asked for each in batch])
        await asyncio.sleep(takes_ms(batch[0].asked) / 1000)
        for each in batch:
            assert each.asked != 13, "unlucky"
            each.answer.set_result(2 * each.asked)

    return Gathering(work, VirtualClock(), BatchLimits(most, at_once, 20, lambda number: number, 100))


async def later(ms: int, work: Gathering[int, int], number: int) -> int:
    await asyncio.sleep(ms / 1000)
    return await work.ask(number)


@virtual
async def test_what_comes_meanwhile_goes_in_the_next_batch_which_begins_when_it_is_full_or_has_waited() -> None:
    batches: Batches = []
    work = gathering(batches)
    told = await asyncio.gather(*(work.ask(n) for n in (1, 2)), *(later(n, work, n) for n in (3, 4, 5, 6, 7)))
    assert told == [2, 4, 6, 8, 10, 12, 14]
    assert batches == [[1, 2], [3, 4, 5, 6], [7]]
    await asyncio.gather(work.ask(8), later(1, work, 9))
    assert batches[3:] == [[8], [9]]


@virtual
async def test_what_weighs_too_much_together_goes_apart_and_what_nobody_waits_for_does_not_go() -> None:
    batches: Batches = []
    work = gathering(batches, at_once=1)
    first = work.ask(1)
    waiting = [asyncio.create_task(later(ms, work, n)) for ms, n in enumerate((60, 50, 200, 2), 1)]
    await asyncio.sleep(0.01)
    waiting[3].cancel()
    await asyncio.gather(first, *waiting[:3])
    assert batches == [[1], [60], [50], [200]]


@virtual
async def test_a_mistake_in_one_batch_is_told_to_those_in_it_alone() -> None:
    batches: Batches = []
    work = gathering(batches, at_once=1)
    told = await asyncio.gather(work.ask(1), work.ask(13), later(1, work, 2), return_exceptions=True)
    assert told[0] == 2
    assert isinstance(told[1], AssertionError)
    assert told[2] == 4
    with pytest.raises(AssertionError):
        await work.ask(13)
    assert await work.ask(3) == 6


@virtual
async def test_when_its_loop_ends_so_do_all_that_wait() -> None:
    batches: Batches = []
    work = gathering(batches, at_once=1)
    asked = [work.ask(1), asyncio.create_task(later(1, work, 2))]
    await asyncio.sleep(0.05)
    for task in work._tasks:
        task.cancel()
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in told] == [asyncio.CancelledError] * 2
