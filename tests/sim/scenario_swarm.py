"""Everything at once: two Librarians, two Bartenders, an A-Hash, nine Shepherds at three sites. Users work on the same
names, and the seed draws a mix of faults.

Phase 1: faults and load. The invariants are checked throughout, and every answer against earlier ones. Phase 2: faults
stop. Within a bounded virtual time everything must be whole, counts exact, and nothing left over. Every name must hold
what it can hold, and all data lost to disasters must be reported as lost.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from dataclasses import dataclass
from unittest.mock import patch

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, ReferenceId, ServiceId, blob_object
from chelonia.core.values import replace
from chelonia.librarian.recovery import snapshots
from chelonia.librarian.recovery.rebuild import decide
from tests.sim import skew
from tests.sim.acts import Acts, forget
from tests.sim.ahash_group import REPLICAS, slower
from tests.sim.chaos import (
    CALM,
    Chaos,
    Mix,
    draw,
    with_bad_disks,
    with_echo,
    with_group,
    with_loss,
    with_more,
)
from tests.sim.front_ends import front_ends
from tests.sim.laying import Laying
from tests.sim.model import Op, Story, Violation
from tests.sim.objects import Objects
from tests.sim.page_rot import FILLED_WITHIN_MS, scrubbed
from tests.sim.parted import LONG_MS, SLACK_MS, Parted
from tests.sim.quotas import Quotas
from tests.sim.rebuilding import RECORD_KEY, SNAPSHOT_MS, rebuild, rebuild_in_trouble
from tests.sim.rebuilt import story_of
from tests.sim.users import KINDS, NAMES_EACH, REGRET, Group, User, Users, colleagues, dn_of
from tests.sim.versioned import Versioned
from tests.sim.watch import Watch
from tests.sim.world import (
    ADMIN,
    DOMAINS,
    LIBRARIAN_SETTINGS,
    PAIRED,
    PAIRED_GROUP,
    SPLIT,
    SPLIT_GROUP,
    Host,
    SimShepherd,
    World,
)
from tests.support.namespace_snapshot import NamespaceSnapshot

USERS = 4
ROUNDS = 8
VERSION_ROUNDS = 10
LOOK_MS = 4_000
BACKUP_LOOK = 4
"""Looks between backups of the metadata, in a seed that puts them back."""
SITES = tuple(dict.fromkeys(domain.split("/")[0] for domain in DOMAINS))
GROUPS = 0.34
"""The share of seeds whose A-Hash is a group of three replicas."""
LAYS, QUOTAS = 0.7, 0.5
"""Of the seeds with copies, the share in which users write in the middle of files, and in which there are quotas."""
LARGE_FILES = 0.08
"""The share of seeds in which some files have more bytes than one chunk."""
FAR = 0.5
"""The share of those with one far replica: its answers are as much older, as a rule."""
DISTANCES_S = (0.03, 0.1)
AT_ONCE = 0.5
"""The share of those whose masters commit in the event loop where possible, and sync later."""
SKEWED_COPIES = 0.5
"""Of the seeds with two versions, the share in which users copy files and write in the middle of them."""
SKEWED_OBJECTS = 0.3
"""The same of users of S3 buckets, who upload in parts too."""
OF_STORES = ("empty", "roll_back")
"""Faults of stores: only by their ids can the metadata distinguish them."""
SWEPT_WITHIN_MS = 60_000
"""Time until no record of a forgotten Shepherd is left: three intervals of the sweep."""
DRILLS = 0.3
"""The share of seeds that begin with a drill."""
DETECTS = 0.2
"""The share of seeds that begin with a Shepherd that one Librarian cannot hear, and one whose process dies."""
SILENT = 0.15
"""The share of seeds that begin with a Shepherd that is frozen or that no heartbeat arrives from, though its process
runs."""
STANDS_STILL = 0.05
"""The share of seeds that begin with a freeze of all hosts but the Shepherds', longer than a lease."""
ACTS = 0.3
"""The share of seeds with an administrator at work."""
DEAF_MS = 15_000
NOTICED_MS = 4_000
"""Time until the metadata show a Shepherd's arrival or the death of its process: a knock, a call of the other
Librarian, and a tick."""
UNDELETES = 0.12
"""The share of seeds in which deleted files are kept, and brought back."""
FORGETS = 0.12
"""The share of seeds without older metadata in which a Shepherd dies and is given up for good."""
FORGETS_DRAINING = 0.2
"""The same of the others with an administrator at work: then it may be one that drains."""
REBUILDS = 0.12
"""The share of those without a group, older metadata and a Shepherd given up that lose and rebuild all metadata at the
end."""
REBUILDS_GROUP = 0.05
"""The same where the A-Hash is a group."""
LOSES_ALL = 0.05
"""The share of those with none of these and no kept trash that lose and rebuild all metadata in the middle of
faults."""
PARTED = 0.7
"""Of the seeds that lose all metadata, the share in which users upload files in parts."""
PART_ROUNDS = 6
SNAPSHOT_PAGE = 8
"""Objects that a snapshot reads at once: one page for all would leave no changes in between."""
LOSS_LOOK = 4
"""Looks before the loss at least; it also needs a snapshot."""
ASIDE_MS = 150_000
"""How long unacknowledged bytes are kept: longer than a rebuild takes, or than a user repeats a commit."""
SNAPSHOT_WITHIN = 15
"""Further looks to wait for a snapshot; without one by then nothing is lost."""
GREEDY = 0.25
"""Of the seeds with a lying Shepherd, the share in which it claims others' replicas."""
RESTORES = 0.15
"""The share of seeds in which older metadata are put back."""
HEAL_WITHIN_MS = 400_000
"""Virtual time after the last fault in which everything must be whole."""
EVERYTHING = "+read +addEntry +removeEntry +delete +modifyPolicy +modifyStates +modifyMetadata"
SETTINGS = replace(LIBRARIAN_SETTINGS, root_policy={"ALL": EVERYTHING}, root_default_policy={"ALL": EVERYTHING})


async def copying_swarm(seed: int) -> Outcome:
    """The same, with quotas and users who also copy files by reference, write in the middle of some and move one over
    another. Raises: Violation."""
    return await swarm(seed, copies=True)


async def versioned_swarm(seed: int) -> Outcome:
    """The same, with users who also work in a bucket that keeps versions, and in one that does so at times. Raises:
    Violation."""
    return await swarm(seed, versions=True)


async def rotting_swarm(seed: int) -> Outcome:
    """The same, where pages of the A-Hash's replicas rot. Raises: Violation."""
    return await swarm(seed, rot=True)


async def skewed_swarm(seed: int) -> Outcome:
    """The same, where nodes are of two versions. Raises: Violation."""
    return await swarm(seed, copies=random.Random(f"skew {seed}").random() < SKEWED_COPIES, skewed=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: files acknowledged, virtual time to heal, and the trace's digest."""

    acknowledged: int
    healed_after_ms: int
    digest: str


async def swarm(
    seed: int, *, copies: bool = False, versions: bool = False, rot: bool = False, skewed: bool = False
) -> Outcome:
    """Run the scenario. Raises: Violation."""
    run = Swarm(seed, rot=rot, skewed=skewed)
    run.users.joining = random.Random(f"together {seed}")
    run.users.copying = random.Random(f"copies {seed}") if copies else None
    if copies:
        run.beside(random.Random(f"beside {seed}"))
    if versions:
        run.buckets.append(Versioned(run.world, run.users, random.Random(f"versions {seed}")))
    if versions and not run.loses_all:  # what a rebuild makes of uploads that are open nobody judges
        run.buckets.append(Objects(run.world, run.users, random.Random(f"objects {seed}")))
    if (
        skewed
        and not run.loses_all
        and run.quotas is None
        and (objects := random.Random(f"objects {seed}")).random() < SKEWED_OBJECTS
    ):
        run.buckets.append(Objects(run.world, run.users, objects))
    run.users.contents.large = None if versions else run.users.contents.large
    bounded = versions or run.quotas is not None  # what quotas refuse of parts nobody judges
    if (parts := random.Random(f"parts {seed}")).random() < PARTED and run.rebuilds_ever and not bounded:
        run.parted = Parted(run.world, run.users, parts)
        run.buckets.append(run.parted)
    doors = front_ends(random.Random(f"front ends {seed}")) if versions or copies or skewed else nullcontext()
    is_dated = run.parted is not None and run.chaos.mix.steady_clocks
    try:
        dates = {"UPLOAD_MS": LONG_MS, "COMMIT_SLACK_MS": SLACK_MS}
        with (
            slower(),
            doors,
            patch.multiple(decide, **dates) if is_dated else nullcontext(),
            patch.object(snapshots, "PAGE", SNAPSHOT_PAGE),
        ):
            await run.prepare()
            await run.trouble()
            return await run.recovery()
    except Violation as violation:
        raise Violation(f"{violation}\n  mix: {run.chaos.mix}\n  last events:\n{run.world.trace.tail(30)}") from None


class Swarm:
    """One run."""

    def __init__(self, seed: int, *, rot: bool = False, skewed: bool = False) -> None:
        rng, more = (
            random.Random(seed * 104_729),
            random.Random(f"swarm {seed}"),
        )  # what was added later draws from `more`
        shape = rng.choice((SPLIT, PAIRED))
        grouped = more.random() < GROUPS or rot
        self.rot = rot
        self.world = World(seed, {SPLIT: SPLIT_GROUP, PAIRED: PAIRED_GROUP}[shape] if grouped else shape)
        self.world.librarian_settings = replace(
            SETTINGS,
            repair_delay_ms=rng.choice((0, 0, 10_000)),
            trash_keep_ms=rng.choice((0, 0, 20_000)),
            trim_grace_ms=rng.choice((1_000, 5_000)),
        )
        # Inventories are compared daily as a rule: what only that mends is a bug to be shown.
        kept = {"compare_ms": 3_600_000, "quarantine_keep_ms": ASIDE_MS}
        self.world.shepherd_tuning = {**kept, "scrub_period_ms": rng.choice((15_000, 60_000))}
        if self.world.group is not None and (far := random.Random(f"far {seed}")).random() < FAR:
            self.world.group.distance_s[far.randint(1, REPLICAS)] = far.choice(DISTANCES_S)
        if self.world.group is not None and (at_once := random.Random(f"at once {seed}")).random() < AT_ONCE:
            self.world.group.at_once = at_once
        self.users = Users(self.world, rng, more if grouped else None)
        if (large := random.Random(f"large {seed}")).random() < LARGE_FILES:
            self.users.contents.large = large
        breaking, mix = random.Random(rng.random()), draw(rng)
        mix = with_group(mix, more) if grouped else mix
        extra = random.Random(f"extra {seed}")  # what was added last draws from it
        mix, self.undeletes, forgets = with_more(mix, extra), extra.random() < UNDELETES, extra.random() < FORGETS
        later = random.Random(f"later {seed}")  # and what was added after that from it
        mix, self.silent = with_echo(mix, later), later.random() < SILENT
        if self.undeletes:
            mix = self._with_trash(mix)
        mix = with_bad_disks(mix, random.Random(f"bad disks {seed}"))
        stories = [Story(NAMES_EACH, trash=self.undeletes) for _ in range(USERS // 2)]
        self.groups = [Group(f"/g{number}", story) for number, story in enumerate(stories)]
        self.drills = rng.random() < DRILLS
        restores = not grouped and more.random() < RESTORES
        self.detects = more.random() < DETECTS
        self.acts = Acts(self.world, random.Random(more.random())) if more.random() < ACTS else None
        forgets = forgets or (self.acts is not None and later.random() < FORGETS_DRAINING)
        self.restores = restores or (grouped and later.random() < RESTORES)
        self.forgets = forgets and not self.restores
        self._losing, rebuilds = random.Random(extra.random()), extra.random() < REBUILDS
        self._burning = random.Random(f"loss {seed}")  # and what was added last from it
        chance, simple = self._burning.random(), not (self.restores or self.forgets)
        rebuilds = chance < REBUILDS_GROUP if grouped else rebuilds
        self.rebuilds = rebuilds and simple
        other = simple and not (self.rebuilds or self.undeletes)
        self.loses_all = other and self._burning.random() < LOSES_ALL
        if self.loses_all:
            mix = with_loss(mix, self._burning)
        mix = replace(mix, greedy=mix.liar and self._burning.random() < GREEDY, rots=rot)
        self.skew = skew.begin(self.world, random.Random(f"versions before {seed}")) if skewed else None
        if self.skew is not None and self.skew.knows_no_stores:
            known = {name: weight for name, weight in mix.misfortunes.items() if name not in OF_STORES}
            mix = replace(mix, misfortunes=known)
        self.chaos = Chaos(self.world, breaking, mix)
        self.buckets: list[Versioned | Objects | Parted] = []
        self.parted: Parted | None = None
        self.quotas: Quotas | None = None
        self.watch = Watch(self.world, steady_clocks=mix.steady_clocks)
        self.rebuilds_ever = self.rebuilds or self.loses_all
        if self.rebuilds_ever:
            self.world.librarian_settings = replace(
                self.world.librarian_settings, record_key=RECORD_KEY, snapshot_interval_ms=SNAPSHOT_MS
            )
        self._still = random.Random(f"still {seed}")  # what was added now draws from it
        self._lost: asyncio.Task[None] | None = None
        self._gone: list[SimShepherd] = []
        self._backup: dict[bytes, bytes] | None = None
        self._stores_then: dict[ServiceId, str] = {}
        self._told_then: list[Story] = []
        self.people = [User(number, self.world.client(f"user{number}")) for number in range(USERS)]

    def _with_trash(self, mix: Mix) -> Mix:
        """Keep deleted files to the end: no clock makes their time pass."""
        self.world.librarian_settings = replace(self.world.librarian_settings, trash_keep_ms=86_400_000)
        self.users.kinds = KINDS | REGRET
        steady = {name: weight for name, weight in mix.misfortunes.items() if name != "clock_step"}
        return replace(mix, misfortunes=steady)

    def beside(self, rng: random.Random) -> None:
        """Draw the activities beside copies, in most seeds."""
        if rng.random() < LAYS and not (
            self.rebuilds or self.loses_all
        ):  # what a rebuild makes of pieces is not judged
            self.users.laying = Laying(self.world, self.users.contents, rng)
            for group in self.groups:
                group.beside = f"{group.path}-beside"
        if rng.random() < QUOTAS:
            users = [dn_of(number) for number in range(USERS)]
            trees = [path.removeprefix("/") for group in self.groups for path in group.paths]
            self.quotas = Quotas(self.world, random.Random(rng.random()), trees, users)

    async def prepare(self) -> None:
        """Start, and make the users' collections."""
        self.world.network.faults = CALM
        await self.world.start()
        await self.users.make_collections(self.groups, self.people[0])
        for bucket in self.buckets:
            await bucket.prepare(self.people[0])
        if self.drills:
            await self._drill()
        if self.detects:
            await self._detect()
        if self.silent:
            await self._fall_silent()
        if self._still.random() < STANDS_STILL:
            await self._stand_still()

    async def _detect(self) -> None:
        """Check that a Shepherd that only the leader does not reach stays alive; one whose process has died is offline
        at once."""
        world, rng = self.world, self.world.rng
        shepherd, leader = rng.choice(world.shepherds), await self._leader()
        await self._until_state(shepherd, "alive")  # one of whom nothing is written yet cannot be called away
        ways = [([shepherd.node.name], [leader.node.name]), ([leader.node.name], [shepherd.node.name])]
        cuts = ways if rng.random() < 0.5 else ways[:1]
        for cut in cuts:
            world.network.cut(*cut)
        for _ in range(DEAF_MS // 1_000):
            await world.clock.sleep(1_000)
            if self.watch.state_of(shepherd) != "alive":
                raise Violation(f"{shepherd.node.name} is called away, and {leader.node.name} alone cannot hear it")
        for cut in cuts:
            world.network.mend(*cut)
        await world.clock.sleep(2 * SETTINGS.lease_ms)
        await world.crash(shepherd)
        await self._until_state(shepherd, "offline")
        await world.restart(shepherd)
        await self._until_whole(world.clock.monotonic_ms())

    async def _fall_silent(self) -> None:
        """Check that a frozen or unreachable Shepherd is offline when its lease is over, until its next heartbeat."""
        world, rng = self.world, self.world.rng
        shepherd, librarians = rng.choice(world.shepherds), [host.node.name for host in world.hosts if host.librarian]
        await self._until_state(shepherd, "alive")
        frozen, cut = rng.random() < 0.5, ([shepherd.node.name], librarians)
        world.note(f"SILENT {shepherd.node.name} frozen={frozen}")
        shepherd.node.freeze() if frozen else world.network.cut(*cut)
        await self._until_state(shepherd, "offline", SETTINGS.lease_ms + NOTICED_MS)
        shepherd.node.thaw() if frozen else world.network.mend(*cut)
        await self._until_state(shepherd, "alive", SETTINGS.lease_ms + NOTICED_MS)
        await self._until_whole(world.clock.monotonic_ms())

    async def _stand_still(self) -> None:
        """Check that after a freeze of all Librarians, as of a paused machine, no Shepherd is called offline."""
        world = self.world
        for shepherd in world.shepherds:
            await self._until_state(shepherd, "alive")
        still_ms = self._still.randint(SETTINGS.lease_ms, SETTINGS.leader_lease_ms - SETTINGS.tick_ms)
        world.note(f"STAND STILL {still_ms}")
        for host in world.hosts:
            host.node.freeze()
        await world.clock.sleep(still_ms)
        for host in world.hosts:
            host.node.thaw()
        for _ in range(SETTINGS.lease_ms // 100):
            await world.clock.sleep(100)
            if gone := [s.node.name for s in world.shepherds if self.watch.state_of(s) != "alive"]:
                raise Violation(f"{', '.join(gone)} called away by Librarians that had stood still for {still_ms} ms")

    async def _until_state(self, shepherd: SimShepherd, state: str, within_ms: int = NOTICED_MS) -> None:
        clock, since_ms = self.world.clock, self.world.clock.monotonic_ms()
        while (now := self.watch.state_of(shepherd)) != state:
            if clock.monotonic_ms() - since_ms > within_ms:
                raise Violation(f"{shepherd.node.name} is {now or 'unknown'} after {within_ms} ms, not {state}")
            await clock.sleep(100)

    async def _leader(self) -> Host:
        while True:
            for host in self.world.hosts:
                if host.librarian is not None and (await host.librarian.health(ADMIN)).is_leader:
                    return host
            await self.world.clock.sleep(500)

    async def _drill(self) -> None:
        """Check that while all is well no site has two copies: of a new file, and after a lost copy is replaced."""
        user, drill = self.people[0], Group("/drill")
        await self._until_all_accept()
        await self.users.make_collections([drill], user)
        self.users.asked += 1
        content = self.users.contents.new(self.world.rng)
        told = await self.users.act(drill, user, Op(self.users.asked, user.number, "put", 0, 1, content, len(SITES)))
        if told != "done":
            raise Violation(f"an upload while all is well: {told}")
        await self._spread(drill.ln(0), "after an upload")
        lost = self.world.rng.choice(self.watch.homes(drill.ln(0)))
        await self.world.crash(lost)
        await self._spread(drill.ln(0), f"after the loss of {lost.node.name}")
        await self.world.restart(lost)
        await self._until_whole(self.world.clock.monotonic_ms())
        await self._spread(drill.ln(0), "after its return")

    async def _until_all_accept(self) -> None:
        """Wait until each Librarian knows that every Shepherd has started."""
        clock, since_ms = self.world.clock, self.world.clock.monotonic_ms()
        for host in [host for host in self.world.hosts if "l" in host.services]:
            while host.librarian is None or not all(node.accepting for node in await host.librarian.nodes(ADMIN)):
                if clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
                    raise Violation(f"{host.node.name} does not hear of all Shepherds that have started")
                await clock.sleep(500)
        await clock.sleep(SETTINGS.tick_ms)  # so old what planning goes by may be

    async def _spread(self, name: str, when: str) -> None:
        since_ms = self.world.clock.monotonic_ms()
        while len(sites := self.watch.sites(name)) < len(SITES):
            if self.world.clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
                raise Violation(f"copies at {sites} only, {when}")
            await self.world.clock.sleep(1_000)
        if tuple(dict.fromkeys(sites)) != SITES:
            raise Violation(f"copies at {sites}, {when}, while another site is free")

    async def trouble(self) -> None:
        await self.chaos.begin()
        skewed = self.skew and asyncio.ensure_future(skew.upgrade(self.world, self.skew, self.chaos))
        breaking = asyncio.ensure_future(self.chaos.run())
        self._acting = asyncio.ensure_future(self.acts.run()) if self.acts is not None else None
        self._lost = asyncio.ensure_future(self._lose()) if self.forgets else None
        working = [
            asyncio.ensure_future(self.users.work(self.groups[number // 2], self.people[number], colleague, ROUNDS))
            for number, colleague in colleagues(USERS)
        ]
        for bucket in self.buckets:
            rounds = PART_ROUNDS if bucket is self.parted else VERSION_ROUNDS
            working += [asyncio.ensure_future(bucket.work(each, rounds)) for each in self.people]
        quotas = self.quotas and asyncio.ensure_future(self.quotas.run(self.watch.known()))
        looks = 0
        while not all(task.done() for task in working):
            await asyncio.wait(working, timeout=LOOK_MS / 1000)
            self._check()
            for task in working:
                if task.done() and not task.cancelled():
                    task.result()
            looks += 1
            if self.restores and looks == BACKUP_LOOK:
                self._back_up()
            if self.loses_all and looks >= LOSS_LOOK and self.watch.in_snapshot():
                await self._lose_all(working)
        if self.loses_all:
            await self._lose_all_yet(working)
        breaking.cancel()
        if skewed is not None:
            skewed.cancel()
        for admin in (self._acting, quotas):
            if admin is not None:
                admin.cancel()
        if self._backup is not None:
            self._unjudged()
            await self._restore(self._backup)

    def _check(self) -> None:
        self.watch.check()
        if self.quotas is not None:
            self.quotas.check(self.watch.known())

    def _unjudged(self) -> None:
        """Check no version answers any more: older or rebuilt metadata say nothing certain of versions."""
        for bucket in self.buckets:
            bucket.unjudged()

    async def _lose_all_yet(self, working: list[asyncio.Task[None]]) -> None:
        """The same when users are done, as soon as there is a snapshot."""
        for _ in range(SNAPSHOT_WITHIN):
            if self.watch.in_snapshot():
                return await self._lose_all(working)
            await self.world.clock.sleep(LOOK_MS)
            self.watch.check()

    async def _lose_all(self, working: list[asyncio.Task[None]]) -> None:
        """Lose and rebuild all metadata during all other faults. Requests under way get any allowed answer; then users
        begin with the present state. Where no snapshot came back whole, none of their earlier knowledge holds."""
        self.loses_all, users = False, self.users
        users.held = asyncio.Event()
        for group in self.groups:
            group.story.unjudged()
        if self.parted is not None:
            self.parted.check_sealed(self.watch.known())
        self._unjudged()
        if self._acting is not None:
            self._acting.cancel()
        names_known = await rebuild_in_trouble(self.world, self.watch, self.chaos, self._burning)
        if self.acts is not None:
            self.acts.forgotten()
        await users.idle()
        if names_known:
            seen = self.watch.known()
            for group in self.groups:
                group.story = story_of(seen, group.path, users.contents, USERS)
        else:
            self.world.note("NO NAMES CAME BACK")
            self.groups = []
            for task in working:
                task.cancel()
        users.held.set()

    def _back_up(self) -> None:
        self.world.note("BACKUP")
        self._backup = self.world.store.contents()
        self._stores_then = {shepherd.service_id: self.watch.store_of(shepherd) for shepherd in self.world.shepherds}
        self._told_then = [group.story.copied() for group in self.groups]

    async def _restore(self, backup: dict[bytes, bytes]) -> None:
        """Users delete all their files, and the administrator puts the backup back, while erasures ordered under the
        newer metadata are still under way."""
        network = self.world.network
        await self.chaos.pause()
        network.faults = replace(network.faults, orders_late=1.0, late_ms_max=20_000)
        for group in self.groups:
            user = self.people[2 * self.groups.index(group)]
            for name in range(NAMES_EACH):
                self.users.asked += 1
                await self.users.act(group, user, Op(self.users.asked, user.number, "delete", name))
        await self.users.settled()
        while any(network.flying(f"op{op}") for op in range(self.users.asked + 1)):
            await self.world.clock.sleep(200)  # a doubled request would be a new one to the restored metadata
        replaced = [s for s in self.world.shepherds if s.disk.store() != self._stores_then[s.service_id]]
        for shepherd in replaced:  # the metadata know another store of it again: its administrator says so once more
            await self.world.crash(shepherd)
            shepherd.disk.accept()
        before = self.watch.known()
        await self.world.restore(backup)
        for shepherd in replaced:
            await self.world.restart(shepherd)
        if self.acts is not None:
            self.acts.forgotten()
        self.watch.restored(before)
        if self.quotas is not None:
            self.quotas.restored()
        for group, then in zip(self.groups, self._told_then, strict=True):
            group.story = then
            then.cut_off()
        await self.world.clock.sleep(30_000)
        self.watch.check()

    async def _lose(self) -> None:
        """A Shepherd dies and is given up for good; it may come back all the same, and must not be accepted. Metadata
        of others' work with it may still be written, and go by themselves."""
        rng, world = self._losing, self.world
        await world.clock.sleep(rng.randint(2_000, 30_000))
        draining = self.acts.drained if self.acts is not None and rng.random() < 0.5 else {}
        shepherd = self.chaos.give_up(draining)
        if shepherd is None:
            return
        await world.crash(shepherd)
        world.lose(shepherd)
        if self.acts is not None:
            self.acts.given_up(shepherd.service_id)
        await forget(world, shepherd)
        world.note(f"FORGOTTEN {shepherd.node.name}")
        self._gone.append(shepherd)
        held, then = set(shepherd.disk.platter.references()), self.watch.known()
        if rng.random() < 0.5:
            await world.restart(shepherd)
            await world.clock.sleep(20_000)
            if self._given(shepherd, held, then):
                raise Violation(f"{shepherd.node.name} is forgotten, and taken again")

    async def _until_gone(self) -> None:
        """Wait until nobody who is forgotten counts as alive: a Librarian without word of it may have written that, and
        the leader's sweep drops it."""
        give_up_ms = self.world.clock.monotonic_ms() + SWEPT_WITHIN_MS
        while alive := [each.node.name for each in self._gone if self.watch.state_of(each) == "alive"]:
            if self.world.clock.monotonic_ms() > give_up_ms:
                raise Violation(f"{alive} are forgotten, and alive after {SWEPT_WITHIN_MS} ms")
            await self.world.clock.sleep(1_000)

    def _given(self, shepherd: SimShepherd, before: set[ReferenceId], then: NamespaceSnapshot) -> list[ReferenceId]:
        """Return the new replicas of this Shepherd whose blobs the metadata have only since `then`. An upload through a
        Bartender without word that the Shepherd is forgotten is refused at its commit, and has no owner. A repair copy
        of an older blob that a Librarian had under way is swept."""
        seen = self.watch.known()
        fresh = {stored.reference: stored.facts for stored in shepherd.disk.held() if stored.reference not in before}
        blobs = {each: blob_object(facts.blob) for each, facts in fresh.items() if facts}
        return [each for each, blob in blobs.items() if seen.get(blob).exists and not then.get(blob).exists]

    async def recovery(self) -> Outcome:
        await self.chaos.calm()
        since_ms = self.world.clock.monotonic_ms()
        await self.users.settled()
        for bucket in self.buckets:
            await bucket.rest(self.people[0])
        if self._lost is not None:
            await self._lost
        if self.skew is not None:
            await skew.finish(self.world, self.skew, all_of_them=False)
        if self.acts is not None:
            await self._settle(self.acts, since_ms)
        await self._until_whole(since_ms)
        healed_ms = self.world.clock.monotonic_ms() - since_ms
        await self._until_gone()
        if self.skew is not None and self.skew.old:
            await skew.finish(self.world, self.skew, all_of_them=True)
            await self._until_whole(self.world.clock.monotonic_ms())
        if self.rot and (left := await scrubbed(self.world)):
            raise Violation(f"not filled anew after {FILLED_WITHIN_MS} ms: {left}")
        for group in self.groups:
            await self._read_all(group)
        for bucket in self.buckets:
            if not self.watch.lost():
                await bucket.check(self.people[0])
        if self.rebuilds and not self.watch.lost():
            await self._rebuild()
        for user in self.people if self.undeletes else ():
            await self._bring_back(self.groups[user.number // 2], user)
        self.watch.check()
        return Outcome(self.users.acknowledged, healed_ms, self.world.trace.digest())

    async def _rebuild(self) -> None:
        """Rebuild: afterwards only the orders of administrators differ, and they repeat those."""
        since = self._put_since if self.chaos.mix.steady_clocks and self._losing.random() < 0.5 else None
        if self.quotas is not None:  # what a full quota refuses is on disks, newer than the snapshot: it comes back
            since = None
        unheard, gone = None, set[BlobId]()
        if self.parted is not None:
            self.parted.check_sealed(self.watch.known())
        if self.parted is not None and self.chaos.mix.steady_clocks and not self.undeletes:
            unheard = self._losing.choice(self.world.shepherds)
            gone = await self.parted.go_unheard(self.people[0], unheard)
            await self.world.clock.sleep(LONG_MS + SLACK_MS)
        await rebuild(self.world, self.watch, self._losing, since, unheard)
        if back := [blob for blob in sorted(gone) if self.watch.known().get(blob_object(blob)).exists]:
            raise Violation(f"{back} went long before, and have come back")
        since_ms = self.world.clock.monotonic_ms()
        if self.acts is not None:
            self.acts.forgotten()
            await self._settle(self.acts, since_ms)
        await self._until_whole(since_ms)
        for group in self.groups:
            await self._read_all(group)
        for bucket in self._versioned:
            await bucket.back(self.people[0])

    @property
    def _versioned(self) -> list[Versioned]:
        return [bucket for bucket in self.buckets if isinstance(bucket, Versioned)]

    async def _put_since(self) -> None:
        """Write a file that no snapshot has, and wait until its Shepherds know that it is committed."""
        user = self._losing.choice(self.people)
        self.users.asked += 1
        name, content = self._losing.randrange(NAMES_EACH), self.users.contents.new(self._losing)
        op = Op(self.users.asked, user.number, "put", name, 0, content, 2)
        told = await self.users.act(self.groups[user.number // 2], user, op)
        if told not in ("done", "refused denied"):
            raise Violation(f"an upload while all is well: {told}")
        if self.parted is not None:
            await self.parted.since(self.people[0])  # an upload is its opener's
        for bucket in self._versioned:
            await bucket.since(self.people[0])
        await self.world.clock.sleep(5_000)

    def _starting(self) -> str:
        hosts = [host for host in self.world.hosts if "b" in host.services and host.bartender is None]
        return f"{hosts[0].node.name} is starting" if hosts else ""

    async def _until_whole(self, since_ms: int) -> None:
        while True:
            await self.world.clock.sleep(8_000)
            self._check()
            left = (
                self._starting()
                or await self._not_empty()
                or self.watch.named()
                or self.watch.left()
                or await self._unhealthy()
            )
            left = left or (self.quotas.left(self.watch.known()) if self.quotas is not None else "")
            if not left:
                return
            if self.world.clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
                raise Violation(f"not whole after {HEAL_WITHIN_MS} ms: {left}")

    async def _settle(self, acts: Acts, since_ms: int) -> None:
        """Repeat the administrator's last requests until each has an answer."""
        while True:
            try:
                return await acts.settle()
            except CheloniaError as error:
                if self.world.clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
                    raise Violation(f"no administrator is heard after {HEAL_WITHIN_MS} ms: {error}") from error
                await self.world.clock.sleep(1_000)

    async def _not_empty(self) -> str:
        """The draining Shepherds that are not empty. Raises: Violation when one is reported empty too early."""
        if self.acts is None or not self.acts.drained:
            return ""
        try:
            early = [shepherd for shepherd in await self.acts.empty() if self.watch.listed_on(shepherd)]
            if early:
                raise Violation(f"{early} may go, it is told, with {len(self.watch.listed_on(early[0]))} copies on it")
            # What is left of a lost file stays where it is, however damaged.
            waiting = [each for each in await self.acts.left() if not self.watch.keeps_only_lost(each)]
            return f"{waiting} drain" if waiting else ""
        except CheloniaError as error:
            return str(error)

    async def _unhealthy(self) -> str:
        """The repair leader's counts of work, which must be zero; "" when they are."""
        if self.watch.lost():
            return ""
        for host in self.world.hosts:
            health = await host.librarian.health(ADMIN) if host.librarian is not None else None
            if health is not None and health.is_leader:
                counts = {name: getattr(health, name) for name in ("exposed", "copying", "erasing")}
                return f"the leader still counts {counts}" if any(counts.values()) else ""
        return "nobody leads repair"

    async def _read_all(self, group: Group) -> None:
        """Have users read every name: the content must be possible there."""
        lost = self.watch.lost()
        user = self.people[2 * self.groups.index(group)]
        for name in range(NAMES_EACH):
            self.users.asked += 1
            op = Op(self.users.asked, user.number, "read", name)
            told = await self.users.act(group, user, op)
            if told.startswith("refused") and not lost:
                raise Violation(f"{group.ln(name)} cannot be read: {told}")

    async def _bring_back(self, group: Group, user: User) -> None:
        """Bring back all that this user certainly finds in the trash; a file of several names under any one of them."""
        while names := group.story.can_come_back(user.number):
            index = self.users.rng.choice(names)
            name, reserved = group.ln(index), self.watch.reserved(group.ln(index))
            self.users.asked += 1
            told = await self.users.act(group, user, Op(self.users.asked, user.number, "undelete", index))
            if told == "refused exists" and reserved:
                await self._until_free(name)
            elif told == "refused quota" and self.quotas is not None:
                return
            elif told != "done":
                raise Violation(f"{name} does not come back from the trash: {told}")
            await self._read_all(group)

    async def _until_free(self, name: str) -> None:
        """Wait for a name that an abandoned upload holds until its reservation has expired and is swept."""
        since_ms = self.world.clock.monotonic_ms()
        while self.watch.reserved(name):
            if self.world.clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
                raise Violation(f"{name} is still reserved after {HEAL_WITHIN_MS} ms")
            await self.world.clock.sleep(1_000)
