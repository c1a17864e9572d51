"""Elements that share calls: which ones wait, how long, and which begin beside a running call."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from chelonia.core.caller import Call
from chelonia.core.ids import Dn, RequestKey
from chelonia.hosting.transfer.call_batches import CALL_FILES_MAX, CALLS_AT_ONCE, WAIT_MS, CallBatches
from tests.sim.virtual_loop import virtual
from tests.support.clocks import VirtualClock

CALL_MS = 1_000


class Slow:
    """An operation whose calls take so long. `begun`: each call's number of elements, and its beginning."""

    def __init__(self, call_ms: int = CALL_MS) -> None:
        self.call_ms = call_ms
        self.begun: list[tuple[int, int]] = []
        self.keys: set[RequestKey] = set()

    async def ask(self, call: Call, elements: tuple[int, ...]) -> tuple[int, ...]:
        clock = VirtualClock()
        self.begun.append((len(elements), clock.monotonic_ms()))
        self.keys.add(call.request_key)
        await clock.sleep(self.call_ms)
        return tuple(2 * each for each in elements)


def _stage() -> tuple[Slow, CallBatches[int, int]]:
    slow = Slow()
    return slow, CallBatches(slow.ask, VirtualClock())


async def _send(batches: CallBatches[int, int], count: int) -> list[asyncio.Task[int]]:
    """As many elements, one after another, with a turn of the event loop after each."""
    tasks = []
    for n in range(count):
        call = Call(Dn("/CN=joe"), request_key=RequestKey(f"key-{n}-{len(asyncio.all_tasks())}"))
        tasks.append(asyncio.create_task(batches.send(call, n)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return tasks


@virtual
async def test_what_comes_while_a_call_is_on_its_way_goes_together() -> None:
    slow, batches = _stage()
    tasks = await _send(batches, 5)
    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert [count for count, _ in slow.begun] == [1, 4]


@virtual
async def test_a_slow_call_holds_nothing_up_for_long() -> None:
    slow, batches = _stage()
    began = VirtualClock().monotonic_ms()
    await asyncio.gather(*await _send(batches, 3))
    assert [at - began for _, at in slow.begun] == [0, WAIT_MS]


@virtual
async def test_what_goes_with_each_call_in_time_begins_none_beside_it() -> None:
    slow, clock, tasks = Slow(WAIT_MS // 2), VirtualClock(), list[asyncio.Task[int]]()
    batches = CallBatches(slow.ask, clock)
    for _ in range(100):
        tasks += await _send(batches, 1)
        await clock.sleep(WAIT_MS // 10)
    await asyncio.gather(*tasks)
    starts = [at for _, at in slow.begun]
    assert all(later - earlier >= slow.call_ms for earlier, later in pairwise(starts))


@virtual
async def test_a_full_call_waits_for_none_until_enough_are_on_their_way() -> None:
    slow, batches = _stage()
    began = VirtualClock().monotonic_ms()
    tasks = await _send(batches, 1 + (CALLS_AT_ONCE + 1) * CALL_FILES_MAX)
    assert await asyncio.gather(*tasks) == [2 * n for n in range(len(tasks))]
    assert [count for count, at in slow.begun if at == began] == [1, *[CALL_FILES_MAX] * (CALLS_AT_ONCE - 1)]
    assert len(slow.keys) == len(slow.begun)
