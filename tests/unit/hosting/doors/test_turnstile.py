"""One at a time, a moment apart, and owners in turns: many calls of one owner hold no other up."""

from __future__ import annotations

import asyncio
import random

import pytest

from chelonia.hosting.doors.turnstile import Turnstile
from tests.sim.virtual_loop import virtual

PAUSE_MS = 3


async def _through(turnstile: Turnstile, owner: str, passed: list[tuple[str, float]]) -> None:
    await turnstile.through(owner)
    passed.append((owner, asyncio.get_running_loop().time()))


@virtual
async def test_one_goes_through_at_a_time_in_the_order_of_coming() -> None:
    turnstile, passed = Turnstile(PAUSE_MS), list[tuple[str, float]]()
    tasks = [asyncio.create_task(_through(turnstile, "a", passed)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(1)
    assert not await turnstile.through("a"), "nobody waits any more"
    times = [at for _, at in passed]
    assert [round(1000 * (at - times[0])) for at in times] == [0, PAUSE_MS, 2 * PAUSE_MS, 3 * PAUSE_MS]


@pytest.mark.parametrize("seed", range(30))
@virtual
async def test_an_owner_waits_for_one_turn_of_each_other_however_many_they_have_waiting(seed: int) -> None:
    """Thousands of a few owners come while honest ones come one by one, and some of all give up."""
    rng = random.Random(seed)
    owners = [f"flood{n}" for n in range(rng.randint(1, 4))]
    turnstile, passed = Turnstile(PAUSE_MS), list[tuple[str, float]]()
    flood = [asyncio.create_task(_through(turnstile, rng.choice(owners), passed)) for _ in range(1500)]
    for _ in range(20):
        await asyncio.sleep(rng.uniform(0, 0.02))
        for task in rng.sample(flood, 5):
            task.cancel()
        before = len(passed)
        await turnstile.through("honest")
        since = [owner for owner, _ in passed[before:]]
        assert len(since) <= len(owners)
        assert len(set(since)) == len(since), "one turn each at most"
    for task in flood:
        task.cancel()
    await asyncio.wait(flood)
    await asyncio.sleep(1)
    assert not await turnstile.through("honest"), "who gave up holds nobody up"
