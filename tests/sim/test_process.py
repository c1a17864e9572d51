"""Stand-ins for tasks in the simulator behave as tasks do, turn by turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from chelonia.core.timing.jobs import Job, Jobs, Next, Wait
from tests.sim import large_pages
from tests.sim.process import Nap, Node, Waiter, make_task
from tests.sim.virtual_loop import VirtualLoop, run_virtual, this_loop, virtual
from tests.sim.world import World

Make = Callable[..., Any]


async def _as_it_is(work: Any) -> Any:
    return await work


def _whole_task(loop: VirtualLoop, work: Any, **options: Any) -> Any:
    """A real asyncio task in place of a `Nap` or a `Waiter`."""
    return asyncio.Task(_as_it_is(work), loop=loop, **{key: value for key, value in options.items() if value})


async def _history(make: Make, seed: int) -> list[str]:
    """Run sleeps and waits in a process that freezes now and then; returns the events in order. They end, or are
    cancelled once or twice, in time and too late."""
    rng, loop, told = random.Random(seed), this_loop(), list[str]()
    node = Node("n", lambda name, error: told.append(repr(error)))
    node.begin()
    event = asyncio.Event()

    def begin(number: int) -> None:
        work = event.wait() if rng.random() < 0.4 else node.clock.sleep(rng.choice((0, 1, 2, 5, 5)))
        task = make(loop, work)
        task.add_done_callback(lambda ended: told.append(f"{loop.now_ms} {number} {ended.cancelled()}"))
        for _ in range(rng.choice((0, 0, 1, 2))):
            loop.call_later(rng.choice((0, 1, 2, 5)) / 1000, task.cancel)

    for number in range(60):
        begin(number)
        match rng.randrange(8):
            case 0:
                node.freeze()
            case 1:
                node.thaw()
            case 2:
                event.set()
                event.clear()
            case 3:
                event.set()
            case _:
                event.clear()
        await asyncio.sleep(rng.choice((0, 0, 1, 3)) / 1000)
        told.append(f"turn {loop.now_ms}")
    node.thaw()
    event.set()
    await asyncio.sleep(1)
    return told


@pytest.mark.parametrize("seed", range(40))
def test_a_nap_and_a_waiter_take_the_turns_of_tasks(seed: int) -> None:
    light, whole = run_virtual(_history(make_task, seed)), run_virtual(_history(_whole_task, seed))
    assert light == whole
    assert {"True", "False"} <= {line.rpartition(" ")[2] for line in light}


@virtual
async def test_what_only_sleeps_or_waits_is_no_task() -> None:
    node, event = Node("n", lambda *_: None), asyncio.Event()
    this_loop().make_tasks_by(make_task)
    node.begin()
    assert isinstance(asyncio.create_task(node.clock.sleep(1)), Nap)
    assert isinstance(asyncio.create_task(event.wait()), Waiter)


@virtual
async def test_a_timer_of_a_frozen_process_is_due_when_it_is_thawed() -> None:
    node, called = Node("n", lambda *_: None), list[int]()
    node.begin()
    node.clock.call_later(5, lambda: called.append(this_loop().now_ms))
    cancelled = node.clock.call_later(5, lambda: called.append(-1))
    node.freeze()
    await asyncio.sleep(0.02)
    assert called == []
    cancelled.cancel()
    node.thaw()
    await asyncio.sleep(0.01)
    assert called == [20]


def test_a_timer_is_cancelled_in_the_very_turn_in_which_it_is_due() -> None:
    async def scenario() -> list[str]:
        clock, called = Node("n", lambda *_: None).clock, list[str]()
        clock.call_later(5, lambda: (called.append("first"), second.cancel()))
        second = clock.call_later(5, lambda: called.append("second"))
        await asyncio.sleep(1)
        return called

    assert run_virtual(scenario()) == ["first"]


@pytest.mark.parametrize("how", ["asked", "crash", "many"])
def test_an_error_that_no_service_may_raise_is_found_whenever_it_is_looked_for(how: str) -> None:
    async def scenario() -> list[str]:
        world = World(1)
        this_loop().make_tasks_by(make_task)
        node = world.client("n")
        node.spawn(_broken())
        await world.clock.sleep(10)
        if how == "crash":
            await node.crash()
        for _ in range(100 if how == "many" else 0):
            await node.spawn(_as_it_is(world.clock.sleep(1)))
        return world._bugs if how != "asked" else world.bugs

    assert run_virtual(scenario()) == ["n: ZeroDivisionError('no service does this')"]


async def _broken() -> None:
    raise ZeroDivisionError("no service does this")


def test_large_pages_are_no_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "SMALL_BYTES", 1 << 20)
    size, pins = large_pages.reserve()
    assert size >= 0
    assert pins

    def none() -> None:
        raise OSError("no such file")

    monkeypatch.setattr(large_pages, "_areas", none)
    assert large_pages.reserve()[0] == 0


def test_a_mistake_in_a_job_fails_the_run_and_not_the_process() -> None:
    async def scenario() -> tuple[list[str], int]:
        told = list[str]()
        node, steps = Node("n", lambda name, error: told.append(f"{name}: {error!r}")), list[int]()
        node.begin()

        async def step() -> Next:
            steps.append(node.clock.monotonic_ms())
            raise KeyError("planted")

        node.spawn(Jobs(node.clock, [Job("a", step, Wait(1))]).run())
        await node.clock.sleep(2_000)
        await node.crash()
        return told, len(steps)

    assert run_virtual(scenario()) == (["n: KeyError('planted')"] * 2, 2)


def test_what_is_to_be_done_at_the_end_of_a_run_is_done_unless_the_run_has_failed() -> None:
    done = list[str]()

    async def ending() -> None:
        await asyncio.sleep(60)
        done.append("ended")

    async def run(*, fails: bool) -> None:
        this_loop().endings.append(ending)
        assert not fails

    run_virtual(run(fails=False))
    assert done == ["ended"]
    with pytest.raises(AssertionError):
        run_virtual(run(fails=True))
    assert done == ["ended"]
