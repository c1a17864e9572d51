"""The first scenario: users store files while messages get lost and Shepherds crash; at the end every file is whole.

Phase 1: uploads under message loss, two Shepherds crash, one of them returns while the loss goes on. Phase 2: the
faults stop, the other returns, and within a bounded virtual time every acknowledged file must have exactly the wanted
number of live replicas, nothing else left behind, and every byte right.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import parse_location
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.metadata import from_triples
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import GetFileRequest, NameRequest
from chelonia.core.ports.files import Arrived, Done, Failure, Placing, Write
from chelonia.wire import receipts
from tests.sim.network import Faults
from tests.sim.world import USER, World

FILES = 40
WANTED = 3
CALM = Faults(loss=0.0, duplicate=0.0, delay_ms_max=3)
STORM = Faults(loss=0.05, duplicate=0.02, delay_ms_max=20)
HEAL_WITHIN_MS = 240_000
"""Virtual time after the last fault in which everything must be whole."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed: files acknowledged, virtual time to heal, and the trace's digest."""

    acknowledged: int
    healed_after_ms: int
    digest: str


class Violation(AssertionError):
    """An invariant broke; the message names the seed's evidence."""


async def crashes_and_loss(seed: int) -> Outcome:
    """Run the scenario. Raises: Violation."""
    world = World(seed)
    world.network.faults = CALM
    await world.start()
    world.network.faults = STORM
    files = {f"/f{number:02d}": random.Random(seed * 1000 + number).randbytes(200 + number) for number in range(FILES)}
    first, second = world.rng.sample(world.shepherds, 2)
    acknowledged: dict[str, bytes] = {}
    for number, (ln, data) in enumerate(files.items()):
        if number == 10:
            await world.crash(first)
        if number == 20:
            await world.crash(second)
        if number == 30:
            await world.restart(first)
        if await _upload(world, ln, data):
            acknowledged[ln] = data
    world.network.faults = CALM
    await world.restart(second)
    calm_since = world.clock.monotonic_ms()
    await _until_whole(world, acknowledged, calm_since)
    healed = world.clock.monotonic_ms() - calm_since
    await _check_bytes(world, acknowledged)
    return Outcome(len(acknowledged), healed, world.trace.digest())


async def _upload(world: World, ln: str, data: bytes) -> bool:
    """Store one file, as the SDK does it; True when it was acknowledged."""
    for _attempt in range(8):
        try:
            return await _try_upload(world, ln, data)
        except CheloniaError:
            await world.clock.sleep(500)
    return False


async def _try_upload(world: World, ln: str, data: bytes) -> bool:
    files, place = world.bartender_port(door="files"), parse_ln(ln)
    [start] = await files.place(_call(world), (Placing(place, len(data), wanted=WANTED),))
    if isinstance(start, Failure):
        await world.clock.sleep(500)
        return False if start.kind is Kind.DENIED else await _again(start.cause)
    uploaded = await world.put(start.turl, data)
    words = tuple(receipts.to_text(receipt) for receipt in uploaded.receipts)
    commit_call = _call(world)
    for _attempt in range(8):
        try:
            [done] = await files.apply(commit_call, (Write(place, Arrived(start.put, words)),))
        except CheloniaError:
            await world.clock.sleep(300)
            continue
        return True if isinstance(done, Done) else await _again(done.cause)
    return False


async def _again(cause: str) -> bool:
    raise CheloniaError(Kind.UNAVAILABLE, "put", cause=cause)


async def _until_whole(world: World, files: Mapping[str, bytes], since_ms: int) -> None:
    """Wait until every file has exactly the wanted live replicas and every disk holds nothing else."""
    while True:
        wrong = await _what_is_wrong(world, files)
        if not wrong:
            return
        if world.clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
            raise Violation(f"not whole after {HEAL_WITHIN_MS} ms: {wrong}")
        await world.clock.sleep(4_000)


async def _what_is_wrong(world: World, files: Mapping[str, bytes]) -> str:
    answers = await world.bartender.stat(USER, tuple(NameRequest(ln, ln) for ln in files))
    for answer in answers:
        places = from_triples(answer.metadata).get("locations", {})
        if sorted(places.values()) != ["alive"] * WANTED:
            return f"{answer.request_id}: {places}"
    return ""


async def _check_bytes(world: World, files: Mapping[str, bytes]) -> None:
    """Every location the namespace names holds the right bytes, and every file can be read by its user."""
    answers = await world.bartender.stat(USER, tuple(NameRequest(ln, ln) for ln in files))
    for answer in answers:
        for place in from_triples(answer.metadata)["locations"]:
            location = parse_location(place)
            if world.find(location.shepherd).disk.platter.data(location.reference) != files[answer.request_id]:
                raise Violation(f"{answer.request_id}: other bytes at {place}")
    for ln, data in files.items():
        [answer] = await world.bartender.get_file(USER, (GetFileRequest("0", ln, ("http",)),))
        if answer.kind:
            raise Violation(f"{ln} cannot be read: {answer.status} {answer.cause}")
        if await world.get(answer.turl) != data:
            raise Violation(f"{ln} has other bytes than were acknowledged")


def _call(world: World) -> Call:
    key = world.ids.uuid()
    return structs.replace(USER, request_id=key[:8], request_key=RequestKey(key))
