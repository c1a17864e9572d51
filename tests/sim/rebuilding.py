"""Every A-Hash lost, and the namespace rebuilt from the Shepherds alone, as in docs/operate/all-metadata-lost.md.

`rebuild` happens when all is whole and the last snapshot has everything. Then every name, policy and note must be as it
was, and deleted files must stay deleted. Repair may have work only for a Shepherd that was away. `rebuild_in_trouble`
happens in the middle of it all; `rebuilt` has its permitted losses.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import (
    REBUILD_OBJECT,
    SNAPSHOTS_OBJECT,
    ContentId,
    ObjectId,
    ServiceId,
    blob_object,
    content_object,
)
from chelonia.core.metadata import TYPE_COLLECTION, StoredObject
from chelonia.core.ports.librarian import RebuildStatus, ServiceRecord
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import A_CONTENT, OWNERS, blob_of, facts_of, owners_of
from chelonia.librarian.metadata.contents import SEALED
from chelonia.librarian.namespace.tree import names_of, type_of, visible
from chelonia.librarian.recovery.mends import LOST_FOUND
from chelonia.librarian.recovery.rebuild.decide import is_over
from tests.sim.chaos import Chaos
from tests.sim.model import Violation
from tests.sim.network import Channel
from tests.sim.parted import PartsJudging
from tests.sim.rebuilt import Judging, facts_held, loss
from tests.sim.watch import Watch
from tests.sim.world import ADMIN, Host, SimShepherd, World
from tests.support.namespace_snapshot import NamespaceSnapshot

SNAPSHOT_MS = 15_000
RECORD_KEY = "5a" * 32
REBUILT_MS = 900_000
"""Virtual time in which a rebuild has to end; each lost answer costs it 2.5 s. Where every tenth message is lost, one
took 200 to 210 s (seed 9858828 of `versions`). Of uploads in parts one took 299 s (seed 87 of `skew`), of ten such
uploads 605 s (seed 21001632 of `pages`)."""
TROUBLE_MS = 40_000
"""Time for new faults while it is under way. Bytes not known to be acknowledged are kept for a while only: in
production for a week."""
PATIENCE_MS = 30_000
"""Time that an administrator waits for Shepherds that are away."""
ENOUGH = 7
"""Shepherds alive with which he goes on earlier."""
ELSEWHERE = ("entries", "summaries", "tally", "locations", "claims", "pending", "uploads")
"""Sections that a rebuild derives from other records, and the names that uploads under way have taken."""

Since = Callable[[], Awaitable[None]]
Kept = Mapping[ObjectId, Mapping[str, Mapping[str, str]]]


async def rebuild(
    world: World, watch: Watch, rng: random.Random, since: Since | None, unheard: SimShepherd | None = None
) -> None:
    """Lose all metadata and rebuild them, perhaps while a Shepherd is away. Raises: Violation. `since`: users' acts
    after the snapshot, whose results they check themselves. `unheard`: a Shepherd that is down, and starts when the
    metadata are lost."""
    await world.clock.sleep(3 * SNAPSHOT_MS)
    before = watch.known()
    if before.get(SNAPSHOTS_OBJECT).sections.get("snapshot") is None:
        raise Violation("there is no snapshot of the namespace")
    if since is not None:
        await since()
    last = watch.known()
    told = _changed(_kept(before, world), _kept(last, world))
    away = rng.choice([each for each in world.shepherds if each is not unheard]) if rng.random() < 0.5 else None
    if away is not None:
        await world.crash(away)
    with watch.not_looking():
        await world.stop_core()
        watch.loses(last)
        was = loss(world, last, RECORD_KEY)
        host = await world.lose_metadata()
        if unheard is not None:
            await world.restart(unheard)
        await _alive(world, host, len(world.shepherds) - (away is not None))
        stored = {blob_object(facts.blob) for facts in facts_held(world) if facts.guid == SNAPSHOTS_OBJECT}
        under_way = stored - {blob.id for blob in before.blobs()}  # bytes of a snapshot that nothing names yet
        await _run(world, host)
        watch.names_more()
    kept = _kept(before, world)
    back = set() if watch.steady_clocks else _dated_since(watch.known()) - {*kept}
    _compare(kept, _kept(watch.known(), world), {*told, *under_way, *back, *_made_anew(watch.known(), last)})
    _compare_parts(PartsJudging(last, watch.known(), before.get, was.reach(away), was.written), watch)
    await world.open_doors()
    if away is not None:
        await world.restart(away)
        with watch.nobody_uploading():
            await _late(world, host, away)
        known = {obj.id for obj in before.entries()} | {*told} | back | _made_anew(watch.known(), last)
        new = {obj.id for obj in watch.known().entries()} - known
        after = _kept(watch.known(), world)
        if strange := [obj for obj in sorted(new) if obj in after and not _found(obj, after)]:
            raise Violation(f"{strange} came with {away.service_id}, which was away in the rebuild")


async def _late(world: World, host: Host, shepherd: SimShepherd) -> None:
    """Start a Shepherd that was away, and have it report what it alone knows."""
    since_ms, status = world.clock.monotonic_ms(), None
    while status is None or status.stage != "done":
        if world.clock.monotonic_ms() - since_ms > REBUILT_MS:
            raise Violation(f"what {shepherd.service_id} knows is not told: {status}")
        await world.clock.sleep(1_000)
        assert host.librarian is not None
        if status is None or status.stage == "failed":
            await host.librarian.rebuild(ADMIN, True, shepherd.service_id)
        status = await host.librarian.rebuild(ADMIN, False)
    world.note(f"TOLD LATE {dict(status.counts)} {status.notes}")


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


def _kept(seen: NamespaceSnapshot, world: World) -> Kept:
    """The entries and blobs that must come back: all but deleted files whose time in the trash is over by now."""
    entries = [obj for obj in seen.entries() if visible(obj)]
    over = {obj.id for obj in seen.entries() if is_over(obj, world.clock.now_ms())}
    blobs = (blob for blob in _blobs(seen) if facts_of(blob).guid not in over)
    return {obj.id: _facts(obj) for obj in (*entries, *blobs)}


def _blobs(seen: NamespaceSnapshot) -> Iterator[StoredObject]:
    """Blobs, without the owners that no snapshot keeps, or that it keeps without their file, until they are swept.
    Those owners are uploads that were given up, contents of deleted files, and uploads sealed without this part."""
    for blob in seen.blobs():
        owners = owners_of(blob)
        kept = {owner: kind for owner, kind in owners.items() if kind != A_CONTENT or _is_kept(owner, blob, seen)}
        if kept:
            yield blob if kept == owners else replace(blob, sections={**blob.sections, OWNERS: kept})


def _is_kept(content: str, blob: StoredObject, seen: NamespaceSnapshot) -> bool:
    sections = seen.get(content_object(ContentId(content))).sections
    header, names = sections.get("content", {}), sections.get("named", {}).get(blob_of(blob), "0") != "0"
    is_sealed = names and header.get("state") == SEALED
    return is_sealed and not _is_in_lost_found(seen.get(ObjectId(header["file"])).sections)


def _is_in_lost_found(entry: Mapping[str, Mapping[str, str]]) -> bool:
    return any(parent.startswith(f"{LOST_FOUND}/") for parent in entry.get("parents", {}))


def _facts(obj: StoredObject) -> Mapping[str, Mapping[str, str]]:
    return {name: dict(section) for name, section in obj.sections.items() if section and name not in ELSEWHERE}


def _found(obj: ObjectId, after: Kept) -> bool:
    """Whether it is `/lost+found` or in it: perhaps bytes of a deleted file that a Shepherd still keeps apart."""
    entry = after[obj].get("blob", {}).get("file", obj)
    return entry == LOST_FOUND or _is_in_lost_found(after.get(ObjectId(entry), {}))


def _changed(before: Kept, after: Kept) -> list[ObjectId]:
    return [obj for obj in sorted({*before, *after}) if before.get(obj) != _less(after.get(obj), before.get(obj))]


def _less(after: Mapping[str, Mapping[str, str]] | None, before: object) -> object:
    """The sections without an Adler-32 that only the record of a copy had: a rebuild computes one of all bytes."""
    blob = after.get("blob", {}) if after else {}
    if not after or not isinstance(before, Mapping) or "adler32" not in blob or "adler32" in before.get("blob", {}):
        return after
    return {**after, "blob": {name: value for name, value in blob.items() if name != "adler32"}}


def _made_anew(after: NamespaceSnapshot, last: NamespaceSnapshot) -> set[ObjectId]:
    """Collections for administrators alone, with the names of collections at the loss."""
    had = {pair for obj in last.entries() if type_of(obj) == TYPE_COLLECTION for pair in names_of(obj)}
    new = [obj for obj in after.entries() if type_of(obj) == TYPE_COLLECTION and not last.get(obj.id).exists]
    bare = [obj for obj in new if obj.value("entry", "owner") == ADMIN.dn and not obj.sections.get("policy")]
    return {obj.id for obj in bare if had.issuperset(names_of(obj))}


def _dated_since(after: NamespaceSnapshot) -> set[ObjectId]:
    """Entries and blobs dated after the snapshot was begun; where that clock was behind, they may be deleted."""
    begun_ms = int(after.value(REBUILD_OBJECT, "rebuild", "snapshot_ms") or 0)
    blobs = [facts_of(blob) for blob in after.blobs()]
    dated = [facts for facts in blobs if facts.created_ms >= begun_ms]
    return {each for facts in dated for each in (blob_object(facts.blob), ObjectId(facts.guid))}


def _compare(before: Kept, after: Kept, told: Collection[ObjectId]) -> None:
    for obj in _changed(before, after):
        if obj not in told and (obj in before or not _found(obj, after)):
            raise Violation(f"{obj} is {after.get(obj)} after the rebuild, and was {before.get(obj)}")


def _compare_parts(judging: PartsJudging, watch: Watch) -> None:
    begun_ms = int(watch.known().value(REBUILD_OBJECT, "rebuild", "snapshot_ms") or 0)
    if found := [*judging.findings(), *(judging.gone(begun_ms) if watch.steady_clocks else ())]:
        raise Violation("; ".join(found[:4]))


# --- in the middle of trouble ---------------------------------------------------------------------------------------


async def rebuild_in_trouble(world: World, watch: Watch, chaos: Chaos, rng: random.Random) -> bool:
    """Lose all metadata while Shepherds die, freeze, are cut off and rot, and rebuild them. A Shepherd may be away
    until it is over, or to the end, and the processes that rebuild may die in the middle. Returns: whether names came
    from a snapshot. Raises: Violation."""
    await chaos.spare([host.node for host in world.hosts])
    late = chaos.give_up(()) if rng.random() < 0.5 else None
    if late is not None:
        await world.crash(late)
    await world.stop_core()
    world.doors_shut = True
    was = loss(world, watch.known(), RECORD_KEY)
    with watch.not_looking():
        command = _Command(world, chaos, await world.lose_metadata(), rng)
        await command.enough_alive()
        status = await command.insist()
        judging = Judging(world, was, watch.known(), status, command.withdrawn, RECORD_KEY)
    found = list(judging.findings())
    if found:
        raise Violation("; ".join(found[:4]))
    watch.rebuilt(was.then)
    await world.open_doors()
    chaos.resume()
    if late is not None and rng.random() < 0.7:
        await world.restart(late)
        chaos.give_back(late)
    await command.approve_again()
    return judging.names_known


class _Command:
    """An administrator who has a namespace rebuilt. `withdrawn`: the Shepherds that he no longer waits for."""

    def __init__(self, world: World, chaos: Chaos, host: Host, rng: random.Random) -> None:
        self._world, self._chaos, self._host, self._rng = world, chaos, host, rng
        self._at = world.client("restorer")
        self._librarian = world.network.port(lambda: host.librarian, host.node, ADMIN, self._at)
        self.withdrawn: dict[ServiceId, SimShepherd] = {}

    async def enough_alive(self) -> None:
        """Wait for Shepherds, with patience."""
        since_ms = self._world.clock.monotonic_ms()
        while self._world.clock.monotonic_ms() - since_ms < PATIENCE_MS:
            await self._world.clock.sleep(500)
            try:
                views = await self._host.librarian.nodes(ADMIN) if self._host.librarian is not None else ()
            except CheloniaError:
                continue
            if sum(view.state == "alive" for view in views) >= ENOUGH:
                return

    async def insist(self) -> RebuildStatus:
        """Repeat the command until the rebuild is complete; its processes may die in the middle. Returns: the
        report."""
        world, since_ms = self._world, self._world.clock.monotonic_ms()
        dies_ms = self._rng.randint(500, 15_000) if self._rng.random() < 0.5 else REBUILT_MS
        while True:
            await world.clock.sleep(250)
            gone_ms = world.clock.monotonic_ms() - since_ms
            if gone_ms > TROUBLE_MS:
                self._chaos.rest()
            status = await self._status()
            if status is not None and status.stage == "done":
                world.note(f"REBUILT {dict(status.counts)} {status.notes}")
                return status
            if gone_ms > REBUILT_MS:
                raise Violation(f"the rebuild is not through: {status}")
            if gone_ms > dies_ms:
                dies_ms = REBUILT_MS
                await self._die()
                continue
            if status is not None and status.stage in ("idle", "failed"):
                await self._begin(status, patient=gone_ms < PATIENCE_MS)

    async def _status(self) -> RebuildStatus | None:
        try:
            return await self._host.librarian.rebuild(ADMIN, False) if self._host.librarian is not None else None
        except CheloniaError:
            return None

    async def _begin(self, status: RebuildStatus, *, patient: bool) -> None:
        self._world.note(f"REBUILD {status.cause} {status.notes}")
        try:
            for shepherd in () if patient else self._world.shepherds:
                if "are away" in status.cause and shepherd.service_id in status.cause:
                    self.withdrawn[shepherd.service_id] = shepherd
                    await self._librarian.approve(ADMIN, _record(shepherd, approved=False))
            await self._librarian.rebuild(ADMIN, True)
        except CheloniaError as error:
            self._world.note(f"REBUILD {error}")

    async def _die(self) -> None:
        host = self._rng.choice([host for host in self._world.hosts if host.node.up])
        await self._world.crash_host(host)
        await self._world.clock.sleep(self._rng.choice((200, 3_000)))
        await self._world.restart_host(host)

    async def approve_again(self) -> None:
        """Approve the withdrawn Shepherds again."""
        librarian = Channel("librarian", self._world.librarians(ADMIN, self._at), self._at, self._world.ids)
        for shepherd in self.withdrawn.values():
            while True:
                try:
                    await librarian.approve(ADMIN, _record(shepherd, approved=True))
                    break
                except CheloniaError as error:
                    self._world.note(f"APPROVE {error}")
                    await self._world.clock.sleep(1_000)


def _record(shepherd: SimShepherd, *, approved: bool) -> ServiceRecord:
    return ServiceRecord(Role.SHEPHERD, shepherd.dn, shepherd.service_id, approved)
