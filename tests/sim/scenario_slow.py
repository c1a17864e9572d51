"""A slow copy is made once, though it takes longer than its claim, its ticket, and with a wait for it, a day.

One of three Shepherds with a file dies. While its copy is replaced, several things happen. Healing becomes far slower.
A Librarian crashes: the one that ordered the copy, or the other. One misses the heartbeats of the Shepherd that
receives it. The metadata are out of reach for longer than a claim lasts, and the copy's connection breaks. It must
still be that copy that ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from chelonia.core.cluster.healing import HealAction, HealOrder
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.ids import RequestKey
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Arrived, Done, Placing, Write
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import locations_of
from chelonia.wire import receipts
from tests.sim.chaos import CALM
from tests.sim.model import Violation
from tests.sim.virtual_loop import this_loop
from tests.sim.watch import Watch
from tests.sim.world import ADMIN, LIBRARIAN_SETTINGS, USER, Shape, SimShepherd, World

SHAPE = Shape((("a1", "a"), ("l1", "l"), ("l2", "l"), ("b1", "b")), ("",) * 4)
SIZE = 110_000
WANTED = 3
AT_FIRST_BYTES_PER_S = 6_000
LATER_BYTES_PER_S = 100
CLAIM_MS = 45_000
"""As in production, no shorter than the time for which requests to unreachable metadata are repeated."""
FOR_EVER_MS = 365 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Taken:
    """How long the copy took, in virtual ms."""

    copy_ms: int


async def slow_copy(seed: int, slowness: int = 1) -> Taken:
    """Run the scenario. `slowness`: how many times slower than elsewhere everything goes. Raises: Violation."""
    world, rng = _world(seed, slowness), random.Random(seed)
    watch = Watch(world, steady_clocks=True)
    await world.start()
    this_loop().ends_s = FOR_EVER_MS / 1000
    await _upload(world, rng.randbytes(SIZE))
    await _rate(world, max(AT_FIRST_BYTES_PER_S // slowness, 1))
    await world.clock.sleep(5_000 * slowness)
    await _until(
        world, lambda: set(_copies(watch).values()) == {ReplicaState.ALIVE}
    )  # else one is dropped as unfinished
    before = set(_copies(watch))
    await world.crash(world.find(rng.choice(sorted(before)).shepherd))
    began = world.clock.monotonic_ms()
    place = await _begun(world, watch, before)
    taker = world.find(place.shepherd)
    await _until(world, lambda: _here(taker) > 0)
    await _rate(world, max(LATER_BYTES_PER_S // slowness, 1))
    [host] = rng.sample([host for host in world.hosts if host.services == "l"], 1)
    await _later(world, taker, SIZE // 4)
    await world.crash_host(host)
    await _later(world, taker, SIZE // 3)
    await world.restart_host(host)
    [deaf] = rng.sample([host.node.name for host in world.hosts if host.services == "l"], 1)
    await _later(world, taker, SIZE * 3 // 8)
    world.network.cut([taker.node.name], [deaf])
    await _later(world, taker, SIZE // 2)
    world.network.mend([taker.node.name], [deaf])
    [metadata] = [host for host in world.hosts if host.services == "a"]
    await world.crash_host(metadata)
    await world.clock.sleep(2 * CLAIM_MS * slowness)
    await world.restart_host(metadata)
    await _later(world, taker, SIZE * 3 // 4)
    world.note("BREAK")
    world.breaks += 1
    while _copies(watch).get(place) is not ReplicaState.ALIVE:
        _check(watch, {*before, place})
        await world.clock.sleep(4_000 * slowness)
    taken = Taken(world.clock.monotonic_ms() - began)
    _check(watch, {*before, place})
    return taken


def _world(seed: int, slowness: int) -> World:
    world = World(seed, SHAPE)
    world.network.faults = CALM
    world.network.long_answer_ms = FOR_EVER_MS
    slowed = (
        "lease_ms", "leader_lease_ms", "tick_ms", "outbox_interval_ms", "survey_interval_ms", "services_interval_ms",
        "sweep_interval_ms",
    )  # fmt: skip
    times = {name: getattr(LIBRARIAN_SETTINGS, name) * slowness for name in slowed} | {"claim_ms": CLAIM_MS * slowness}
    world.librarian_settings = replace(LIBRARIAN_SETTINGS, **times)
    world.shepherd_tuning = {"heartbeat_ms": 2_000 * slowness, "tidy_ms": 10_000 * slowness}
    world.shepherd_tuning |= {"scrub_period_ms": FOR_EVER_MS, "compare_ms": FOR_EVER_MS}
    return world


async def _upload(world: World, data: bytes) -> None:
    """Store one file while there are no faults yet."""
    files, call = world.bartender_port(door="files"), structs.replace(USER, request_key=RequestKey(world.ids.uuid()))
    place = parse_ln("/f")
    [start] = await files.place(call, (Placing(place, len(data), wanted=WANTED),))
    uploaded = await world.put(start.turl, data)
    words = tuple(receipts.to_text(receipt) for receipt in uploaded.receipts)
    [done] = await files.apply(call, (Write(place, Arrived(start.put, words)),))
    assert isinstance(done, Done), done


async def _rate(world: World, bytes_per_s: int) -> None:
    [librarian, *_] = (host.librarian for host in world.hosts if host.librarian is not None)
    world.note(f"ADMIN heal rate {bytes_per_s}")
    await librarian.heal_order(ADMIN, HealOrder(HealAction.RATE, bytes_per_s=bytes_per_s))


def _copies(watch: Watch) -> dict[Location, ReplicaState]:
    """The copies of the only file, as stored."""
    [blob] = watch.known().blobs()
    return dict(locations_of(blob))


def _here(taker: SimShepherd) -> int:
    """How many bytes of a copy have arrived at the Shepherd that receives it."""
    assert taker.service is not None
    return max((copy.here for copy in taker.service._uploads.arriving()), default=0)


async def _begun(world: World, watch: Watch, before: set[Location]) -> Location:
    """Wait for the copy to begin; returns its place."""
    await _until(world, lambda: len(_copies(watch)) > len(before))
    [place] = set(_copies(watch)) - before
    return place


async def _later(world: World, taker: SimShepherd, here: int) -> None:
    """Wait until so many bytes have arrived. Raises: Violation when the copy ends before."""

    def so_far() -> bool:
        arrived = _here(taker)
        if not arrived:
            raise Violation(f"the copy to {taker.node.name} has ended\n{world.trace.tail(40)}")
        return arrived >= here

    await _until(world, so_far)


async def _until(world: World, holds: Callable[[], bool]) -> None:
    while not holds():
        await world.clock.sleep(world.shepherd_tuning["heartbeat_ms"] // 4)


def _check(watch: Watch, expected: set[Location]) -> None:
    """Raises: Violation when anything is wrong, or another copy was begun, or this one given up."""
    watch.check()
    now = set(_copies(watch))
    if now != expected:
        raise Violation(f"begun anew: {sorted(now - expected)}, given up: {sorted(expected - now)}")
