"""Users of an S3 bucket whose versions are kept, suspended, and kept again, on a bad network with front ends that die.

It is the second bucket of `versioned_swarm` by itself, for many seeds. Phase 1: messages are lost, late and doubled, as
the seed draws. Phase 2: faults stop, and the earlier answers must explain the final state.
"""

from __future__ import annotations

import asyncio
import random

from tests.sim.chaos import CALM
from tests.sim.front_ends import front_ends
from tests.sim.model import Violation
from tests.sim.network import Faults
from tests.sim.objects import Objects
from tests.sim.scenario_swarm import SETTINGS, Outcome
from tests.sim.users import User, Users
from tests.sim.world import PAIRED, World

USERS = 4
ROUNDS = 14
STORMS = 0.6
"""The share of seeds in which messages get lost; in the others they are only late."""
REST_S = 30


async def objects_storm(seed: int) -> Outcome:
    """Run the scenario. Raises: Violation."""
    rng, world = random.Random(f"lean {seed}"), World(seed, PAIRED)
    world.librarian_settings = SETTINGS
    users = Users(world, rng)
    objects = Objects(world, users, random.Random(f"objects {seed}"))
    people = [User(number, world.client(f"user{number}")) for number in range(USERS)]
    try:
        with front_ends(random.Random(f"front ends {seed}")):
            world.network.faults = CALM
            await world.start()
            await objects.prepare(people[0])
            world.network.faults = _drawn(rng)
            await asyncio.gather(*(objects.work(each, ROUNDS) for each in people))
            world.network.faults = CALM
            await objects.rest(people[0])
            await world.clock.sleep(REST_S)
            await objects.check(people[0])
    except Violation as violation:
        raise Violation(f"{violation}\n  last events:\n{world.trace.tail(30)}") from None
    return Outcome(users.acknowledged, 0, world.trace.digest())


def _drawn(rng: random.Random) -> Faults:
    if rng.random() >= STORMS:
        return Faults(delay_ms_max=rng.choice((5, 50, 200)))
    return Faults(
        loss=rng.choice((0.01, 0.05, 0.1)),
        duplicate=rng.choice((0, 0.02)),
        late=rng.choice((0, 0.02)),
        delay_ms_max=rng.choice((20, 200)),
    )
