"""Every A-Hash lost, and the namespace rebuilt from the Shepherds alone, as docs/operate/all-metadata-lost.md says.

It happens when all is whole and the last snapshot has everything: then every name, policy and note must be as it was,
what was deleted must stay deleted, and repair may have nothing to make up for but a Shepherd that was away.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from chelonia.core.ids import SNAPSHOTS_OBJECT, ObjectId
from chelonia.core.metadata import StoredObject
from chelonia.librarian.blobs import facts_of
from chelonia.librarian.invariants import Snapshot
from chelonia.librarian.mending import LOST_FOUND
from chelonia.librarian.rebuild import is_over
from chelonia.librarian.tree import visible
from tests.sim.model import Violation
from tests.sim.watch import Watch
from tests.sim.world import ADMIN, Host, World

SNAPSHOT_MS = 15_000
RECORD_KEY = "5a" * 32
REBUILT_MS = 200_000
"""Virtual time in which a rebuild has to be through."""
ELSEWHERE = ("entries", "locations", "claims", "pending")
"""Sections that a rebuild makes up from other things, and the names that uploads under way have taken."""

Since = Callable[[], Awaitable[None]]
Kept = Mapping[ObjectId, Mapping[str, Mapping[str, str]]]


async def rebuild(world: World, watch: Watch, rng: random.Random, since: Since | None) -> None:
    """Lose all metadata and rebuild them, perhaps while a Shepherd is away. Raises: Violation.

    `since`: what users do when the snapshot has been taken; for what it changes they answer themselves.
    """
    await world.clock.sleep(3 * SNAPSHOT_MS)
    before = watch.known()
    if before.get(SNAPSHOTS_OBJECT).sections.get("snapshot") is None:
        raise Violation("there is no snapshot of the namespace")
    if since is not None:
        await since()
    told = _changed(_kept(before, world), _kept(watch.known(), world))
    away = rng.choice(world.shepherds) if rng.random() < 0.5 else None
    if away is not None:
        await world.crash(away)
    with watch.not_looking():
        host = await world.lose_metadata()
        await _alive(world, host, len(world.shepherds) - (away is not None))
        await _run(world, host)
    _compare(_kept(before, world), _kept(watch.known(), world), told)
    for other in world.hosts:
        if not other.node.up:
            await world.restart_host(other)
    if away is not None:
        await world.restart(away)


async def _alive(world: World, host: Host, count: int) -> None:
    while host.librarian is None or count > len([v for v in await host.librarian.nodes(ADMIN) if v.state == "alive"]):
        await world.clock.sleep(500)


async def _run(world: World, host: Host) -> None:
    assert host.librarian is not None
    since_ms = world.clock.monotonic_ms()
    world.note("REBUILD")
    await host.librarian.rebuild(ADMIN, True)
    while (status := await host.librarian.rebuild(ADMIN, False)).stage != "done":
        if status.stage == "failed" or world.clock.monotonic_ms() - since_ms > REBUILT_MS:
            raise Violation(f"the rebuild is not through: {status}")
        await world.clock.sleep(1_000)
    world.note(f"REBUILT {dict(status.counts)}")


def _kept(seen: Snapshot, world: World) -> Kept:
    """What is to come back: all but deleted files whose time in the trash is over by now."""
    entries = [obj for obj in seen.entries() if visible(obj)]
    over = {obj.id for obj in entries if is_over(obj, world.clock.now_ms())}
    blobs = (blob for blob in seen.blobs() if facts_of(blob).guid not in over)
    return {obj.id: _facts(obj) for obj in (*entries, *blobs) if obj.id not in over}


def _facts(obj: StoredObject) -> Mapping[str, Mapping[str, str]]:
    return {name: dict(section) for name, section in obj.sections.items() if section and name not in ELSEWHERE}


def _found(obj: ObjectId, after: Kept) -> bool:
    """Whether it is `/lost+found` or in it: bytes of a deleted file that a Shepherd still keeps apart, perhaps."""
    entry = after[obj].get("blob", {}).get("file", obj)
    parents = after.get(ObjectId(entry), {}).get("parents", {})
    return entry == LOST_FOUND or any(parent.startswith(f"{LOST_FOUND}/") for parent in parents)


def _changed(before: Kept, after: Kept) -> list[ObjectId]:
    return [obj for obj in sorted({*before, *after}) if before.get(obj) != after.get(obj)]


def _compare(before: Kept, after: Kept, told: Sequence[ObjectId]) -> None:
    for obj in _changed(before, after):
        if obj not in told and (obj in before or not _found(obj, after)):
            raise Violation(f"{obj} is {after.get(obj)} after the rebuild, and was {before.get(obj)}")
