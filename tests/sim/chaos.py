"""The faults of a run: each seed draws the misfortunes that can happen, how often, and how bad the network is.

A swarm of such mixes finds more than one mix of everything. Some bugs need many crashes and a quiet network, others a
long partition and nothing else. Only the `victims`, one as a rule, ever lose data on their disk: with two durable
copies nothing acknowledged may then be lost. Where there are several, `World.harmed` says which losses are excused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from chelonia.core.cluster.replicas import Checksums, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.core.ports.librarian import Report, ReportedReplica
from chelonia.core.values import replace
from chelonia.shepherd.store.note_mark import decode, why_whole
from tests.sim.disk import run_now
from tests.sim.network import Faults
from tests.sim.process import Node
from tests.sim.world import START_RETRY_MS, Host, SimShepherd, World
from tests.support.memory_blobs import MemoryBlobs

CALM = Faults(delay_ms_max=3)
SCARCE = 0.1
"""The share of seeds in which space is short everywhere now and then, and bytes rot meanwhile."""
ECHO = 0.1
ECHO_MORE = 0.4
"""The share of seeds with reports that come a second time up to a minute later; of the others, the share where most
do."""
BAD_DISKS = 0.15
"""The share of seeds in which syncs of disks fail."""
LARGE = 1 << 40
ROT_MS_MAX = 6_000
"""How soon after one page of an A-Hash the next one rots, at most."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The possible faults of one seed. `misfortunes`: methods of `Chaos` with their weights.

    `pause_ms`: the longest time between two.
    `victims`: how many Shepherds may lose bytes.
    `liar`: one of these lies.
    `greedy`: it claims data of others as well.
    `rots`: whether pages of the A-Hash's replicas rot.
    """

    faults: Faults
    misfortunes: dict[str, int]
    pause_ms: int
    victims: int = 1
    liar: bool = False
    greedy: bool = False
    absent: bool = False
    drift: bool = False
    lag_ms: int = 0
    unsure: float = 0.0
    slow_ms: int = 0
    rots: bool = False

    @property
    def steady_clocks(self) -> bool:
        """Whether no clock is wrong."""
        return not (self.drift or "clock_step" in self.misfortunes)

    def __str__(self) -> str:
        kinds = ", ".join(sorted(self.misfortunes))
        more = [name for name in ("liar", "greedy", "absent", "drift") if getattr(self, name)]
        return f"{kinds}; {self.victims} victims {' '.join(more)}; {self.faults}"


MISFORTUNES = (
    "crash", "crash_host", "freeze", "partition", "clock_step", "rot", "empty", "roll_back", "fill_up", "slow_disk",
    "panic", "outage", "stop",
)  # fmt: skip


TROUBLE = ("crash", "freeze", "partition", "rot")
"""Faults that happen during a rebuild."""
OF_GROUPS = ("depose", "wipe", "isolate", "stall")
"""Faults of replicas of the A-Hash."""


def with_group(mix: Mix, rng: random.Random) -> Mix:
    """The mix of a seed whose A-Hash is a group."""
    chosen = {name: rng.randint(1, 4) for name in OF_GROUPS if rng.random() < 0.5}
    return replace(mix, misfortunes=mix.misfortunes | chosen)


def with_more(mix: Mix, rng: random.Random) -> Mix:
    """The mix with what was added later: disks that are full all over, reports that come again much later."""
    scarce, echo = rng.random() < SCARCE, rng.random() < ECHO
    faults = replace(mix.faults, echo=rng.choice((0.3, 0.8))) if echo else mix.faults
    return replace(mix, faults=faults, misfortunes=mix.misfortunes | ({"scarce": 4, "rot": 4} if scarce else {}))


def with_echo(mix: Mix, rng: random.Random) -> Mix:
    """The mix, in more seeds with reports that come again."""
    more = rng.random() < ECHO_MORE and not mix.faults.echo
    return replace(mix, faults=replace(mix.faults, echo=0.8)) if more else mix


def with_bad_disks(mix: Mix, rng: random.Random) -> Mix:
    """The mix, in some seeds with disks on which syncs fail."""
    return replace(mix, misfortunes=mix.misfortunes | {"bad_disk": 3}) if rng.random() < BAD_DISKS else mix


def with_loss(mix: Mix, rng: random.Random) -> Mix:
    """The mix of a seed that loses all metadata in the middle. Shepherds have trouble for certain. Clocks are right, as
    they order a snapshot and a record."""
    steady = {name: weight for name, weight in mix.misfortunes.items() if name != "clock_step"}
    more = {name: 3 for name in TROUBLE if rng.random() < 0.7}
    return replace(mix, misfortunes=steady | more, drift=False, pause_ms=min(mix.pause_ms, 8_000))


def draw(rng: random.Random) -> Mix:
    def some(chance: float, low: float, high: float) -> float:
        return rng.uniform(low, high) if rng.random() < chance else 0.0

    faults = Faults(
        loss=some(0.6, 0.01, 0.1), duplicate=some(0.4, 0.01, 0.08), late=some(0.4, 0.01, 0.05),
        cut=some(0.3, 0.05, 0.3), delay_ms_max=rng.choice((3, 30, 200)), late_ms_max=rng.choice((2_000, 20_000)),
        double_ms_max=rng.choice((0, 200, 20_000)),
    )  # fmt: skip
    chosen = {name: rng.randint(1, 4) for name in MISFORTUNES if rng.random() < 0.45}
    return Mix(
        faults=faults,
        misfortunes=chosen,
        pause_ms=rng.choice((3_000, 8_000, 15_000)),
        victims=rng.choice((1, 1, 1, 1, 1, 3)),
        liar=rng.random() < 0.2,
        absent=rng.random() < 0.25,
        drift=rng.random() < 0.3,
        lag_ms=rng.choice((0, 0, 20)),
        unsure=some(0.2, 0.005, 0.03),
        slow_ms=rng.choice((0, 0, 0, 50)),
    )


class Chaos:
    """Breaks one thing after the other until `calm`. It ends one fault of a process before it begins another: `_busy`
    holds those that are being broken. While it is `resting` no new fault begins."""

    def __init__(self, world: World, rng: random.Random, mix: Mix) -> None:
        self._world = world
        self._rng = rng
        self.mix = mix
        self.victims = rng.sample(world.shepherds, mix.victims)
        self._busy: dict[Node, None] = {}
        self._cuts: list[tuple[Sequence[str], Sequence[str]]] = []
        self._running: dict[asyncio.Task[None], None] = {}
        self._spared: dict[Node, None] = {}
        self._over = False
        self.resting = False

    async def begin(self) -> None:
        """Set the faults that hold for the whole run."""
        world, mix, rng = self._world, self.mix, self._rng
        world.network.faults = mix.faults
        world.durability.lag_ms, world.durability.unknown = mix.lag_ms, mix.unsure
        for shepherd in world.shepherds:
            shepherd.disk.slow_ms = mix.slow_ms
        if mix.drift:
            for node in world.nodes():
                node.clock.drift(rng.uniform(0.9, 1.1))
            for host in world.hosts:
                if host.replica:  # leases of masters stand 2.5 %
                    host.node.clock.drift(1 + (host.node.clock.pace - 1) / 5)
        if mix.rots:
            self._start(self._rot_pages(random.Random(rng.random())))
        if mix.liar:
            await self._turn(self.victims[0])
        if mix.absent:
            away = rng.choice([shepherd for shepherd in world.shepherds if shepherd not in self.victims])
            self._busy[away.node] = None
            self._start(self._stay_away(away))

    async def run(self) -> None:
        if not self.mix.misfortunes:
            return
        names, weights = list(self.mix.misfortunes), list(self.mix.misfortunes.values())
        while not self._over:
            await self._world.clock.sleep(self._rng.randint(200, self.mix.pause_ms))
            if self.resting:
                continue
            [name] = self._rng.choices(names, weights=weights)
            misfortune: Callable[[], Awaitable[None]] = getattr(self, f"_{name}")
            self._start(misfortune())

    async def pause(self) -> None:
        """Begin nothing new, and wait until the faults of processes have ended, but for one that stays away."""
        self._over = True
        lasting = [task for task in self._running if not task.done()]
        if lasting:
            await asyncio.wait(lasting)
        host = next(host for host in self._world.hosts if "a" in host.services)
        while host.ahash is None:
            await self._world.clock.sleep(500)

    async def spare(self, nodes: Sequence[Node]) -> None:
        """Leave these processes alone from now on, and wait until their faults have ended."""
        self._spared.update(dict.fromkeys(nodes))
        while any(node in self._busy for node in nodes):
            await self._world.clock.sleep(200)

    async def take(self, node: Node, patience_ms: int) -> bool:
        """Leave a process alone, once it has no fault; False: that takes too long."""
        for _ in range(patience_ms // 200):
            if node.up and not self._taken(node):
                self._busy[node] = None
                return True
            await self._world.clock.sleep(200)
        return False

    def put_back(self, node: Node) -> None:
        del self._busy[node]

    def rest(self) -> None:
        """Begin no new fault, and report the outcome of every change."""
        self.resting = True
        self._world.durability.unknown = 0.0

    def resume(self) -> None:
        """End all exceptions: every process may be hit again, and nothing rests."""
        self._spared.clear()
        self.resting = False
        self._world.durability.unknown = self.mix.unsure

    def give_up(self, rather: Collection[ServiceId]) -> SimShepherd | None:
        """Return a Shepherd without a fault, and leave it alone from now on. It is nobody's victim; one of these, if
        possible."""
        fit = [shepherd for shepherd in self._world.shepherds if shepherd not in self.victims]
        chosen = [shepherd for shepherd in fit if shepherd.service_id in rather]
        shepherd: SimShepherd | None = self._free(chosen) or self._free(fit)
        if shepherd is not None:
            self._busy[shepherd.node] = None
        return shepherd

    def give_back(self, shepherd: SimShepherd) -> None:
        """Allow faults of a Shepherd that was given up, which runs again."""
        del self._busy[shepherd.node]

    async def calm(self) -> None:
        """End all faults, and have everything run."""
        self._over = True
        world = self._world
        world.note("CALM")
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        world.network.faults = CALM
        world.durability.lag_ms, world.durability.unknown, world.store.unknown = 0, 0.0, 0.0
        world.store.free = LARGE
        if world.group is not None:
            world.group.free = LARGE
        for sources, targets in self._cuts:
            world.network.mend(sources, targets)
        for node in self._world.nodes():
            node.thaw()
        for host in world.hosts:
            if host.node in self._busy or not host.node.up:
                await world.crash_host(host)
                await world.restart_host(host)
        for shepherd in world.shepherds:
            await self._soothe(shepherd)

    async def _soothe(self, shepherd: SimShepherd) -> None:
        shepherd.disk.slow_ms, shepherd.disk.fails, shepherd.disk.platter.capacity = 0, 0.0, LARGE
        if shepherd.between is not None:
            shepherd.between, shepherd.disk.forgets = None, 0.0
            await self._world.crash(shepherd)
            shepherd.disk.platter.drop_notes()  # they are of what it knew, not of what it said
        if shepherd.node in self._busy or shepherd.service is None:
            await self._world.crash(shepherd)
            await self._world.restart(shepherd)

    # --- plumbing ---------------------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._world.bugs.append(f"a misfortune failed: {task.exception()!r}")

    def _free(self, among: Sequence[Any]) -> Any:
        """A running one of these without a fault, or None."""
        fit = [each for each in among if each.node.up and not self._taken(each.node)]
        return self._rng.choice(fit) if fit else None

    def _taken(self, node: Node) -> bool:
        return node in self._busy or node in self._spared

    async def _pause(self, *choices: int) -> None:
        await self._world.clock.sleep(self._rng.choice(choices))

    # --- processes --------------------------------------------------------------------------------------------------

    async def _restart(self, shepherd: SimShepherd) -> None:
        """Start a Shepherd; again while its disk fails, as a supervisor does."""
        while True:
            try:
                return await self._world.restart(shepherd)
            except CheloniaError as error:
                if error.kind is not Kind.UNAVAILABLE:
                    raise
                await self._world.crash(shepherd)
                await self._pause(START_RETRY_MS)

    async def _crash(self) -> None:
        shepherd: SimShepherd | None = self._free(self._world.shepherds)
        if shepherd is not None:
            await self._down(shepherd, (200, 3_000, 15_000))

    async def _down(
        self, shepherd: SimShepherd, choices: Sequence[int], meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._busy[shepherd.node] = None
        await self._world.crash(shepherd)
        await self._pause(*choices)
        if meanwhile is not None:
            await meanwhile()
        await self._restart(shepherd)
        del self._busy[shepherd.node]

    async def _stop(self) -> None:
        shepherd: SimShepherd | None = self._free(self._world.shepherds)
        if shepherd is not None:
            self._busy[shepherd.node] = None
            await self._world.stop(shepherd)
            await self._pause(200, 5_000)
            await self._restart(shepherd)
            del self._busy[shepherd.node]

    async def _stay_away(self, shepherd: SimShepherd) -> None:
        """Stop one soon; it comes back when all is over."""
        await self._pause(0, 5_000, 20_000)
        await self._world.crash(shepherd)

    async def _crash_host(self) -> None:
        host: Host | None = self._free(self._world.hosts)
        if host is not None:
            await self._host_down(host)

    async def _freeze(self) -> None:
        one = self._free([*self._world.shepherds, *self._world.hosts])
        if one is not None:
            self._busy[one.node] = None
            self._world.note(f"FREEZE {one.node.name}")
            one.node.freeze()
            await self._pause(1_000, 10_000, 20_000)
            self._world.note(f"THAW {one.node.name}")
            one.node.thaw()
            del self._busy[one.node]

    async def _partition(self) -> None:
        """Cut some from the others, in one direction or both."""
        rng, names = self._rng, [node.name for node in self._world.nodes()]
        some = rng.sample(names, rng.randint(1, len(names) // 2))
        others = [name for name in names if name not in some]
        cuts = [(some, others), (others, some)]
        chosen = cuts if rng.random() < 0.5 else [rng.choice(cuts)]
        await self._cut_for(chosen, (1_000, 5_000, 20_000))

    async def _cut_for(self, chosen: Sequence[tuple[Sequence[str], Sequence[str]]], pauses: Sequence[int]) -> None:
        self._world.note(f"CUT {chosen}")
        for cut in chosen:
            self._world.network.cut(*cut)
            self._cuts.append(cut)
        await self._pause(*pauses)
        self._world.note(f"MEND {chosen}")
        for cut in chosen:
            self._world.network.mend(*cut)
            self._cuts.remove(cut)

    async def _clock_step(self) -> None:
        clock = self._rng.choice(self._world.nodes()).clock
        clock.offset_ms += self._rng.choice((-86_400_000, -60_000, -5_000, 5_000, 60_000, 86_400_000))

    # --- the A-Hash -------------------------------------------------------------------------------------------------

    async def _panic(self) -> None:
        """The store fails while it syncs; the process ends and is started again. Of a group: its master's process."""
        if self._world.group is not None:
            return await self._depose()
        [host] = [host for host in self._world.hosts if "a" in host.services]
        if self._taken(host.node) or not host.node.up:
            return
        self._busy[host.node] = None
        self._world.store.unknown = 0.3
        waiting = asyncio.ensure_future(self._world.store.panicked.wait())
        await asyncio.wait((waiting,), timeout=20)
        waiting.cancel()
        await self._world.crash_host(host)
        await self._pause(100, 2_000)
        await self._world.restart_host(host)
        del self._busy[host.node]

    async def _outage(self) -> None:
        """The A-Hash is there and takes no changes: its disk is full."""
        self._metadata_disk.free = 0
        await self._pause(1_000, 10_000)
        self._metadata_disk.free = LARGE  # a crash meanwhile has left another store

    @property
    def _metadata_disk(self) -> Any:
        return self._world.group or self._world.store

    # --- a group of replicas ----------------------------------------------------------------------------------------

    def _replica(self) -> Host | None:
        """A running replica without a fault, while no other has one: the master more often than not."""
        assert self._world.group is not None
        if any(host.replica and self._taken(host.node) for host in self._world.hosts) or self._cuts:
            return None
        free = [host for host in self._world.hosts if host.replica and host.node.up and host.node not in self._busy]
        masters = [host for host in free if host.replica == self._world.group.master()]
        return self._rng.choice(masters if masters and self._rng.random() < 0.7 else free) if free else None

    async def _depose(self) -> None:
        host = self._replica()
        if host is not None:
            await self._host_down(host)

    async def _wipe(self) -> None:
        """A replica loses its disk, while a majority is whole without it."""
        host, group = self._replica(), self._world.group
        if host is None or group is None or not group.may_lose(host.replica):
            return
        self._world.note(f"WIPE {host.node.name}")
        await self._host_down(host, lambda: group.wipe(host.replica))

    async def _rot_pages(self, rng: random.Random) -> None:
        """Damage pages of replicas, or the end of a log, of each while a majority is whole without it."""
        group, hosts = self._world.group, [host for host in self._world.hosts if host.replica]
        assert group is not None
        while not self._over:
            await self._world.clock.sleep(rng.randint(500, ROT_MS_MAX))
            fit = [host.replica for host in hosts if group.may_rot(host.replica)]
            if fit and not self.resting and not any(self._taken(host.node) for host in hosts):
                own = rng.choice(fit)
                self._world.note(f"PAGE ROT {own} {group.spoil(own, rng)}")

    async def _host_down(self, host: Host, meanwhile: Callable[[], None] | None = None) -> None:
        self._busy[host.node] = None
        await self._world.crash_host(host)
        if meanwhile is not None:
            meanwhile()
        await self._pause(100, 3_000, 10_000)
        await self._world.restart_host(host)
        del self._busy[host.node]

    async def _isolate(self) -> None:
        """Cut a replica off from the others, in one direction or both; clients still reach it."""
        host, rng = self._replica(), self._rng
        if host is not None:
            others = [other.node.name for other in self._world.hosts if other.replica and other is not host]
            cuts: list[tuple[Sequence[str], Sequence[str]]] = [([host.node.name], others), (others, [host.node.name])]
            await self._cut_for(cuts if rng.random() < 0.5 else [rng.choice(cuts)], (2_000, 8_000))

    async def _stall(self) -> None:
        """Stop the thread of a replica's engine; the rest of its process goes on."""
        host, group = self._replica(), self._world.group
        engine = group.places[host.replica].engine if host is not None and group is not None else None
        if host is not None and engine is not None:
            self._world.note(f"STALL {host.node.name}")
            engine.stall(self._rng.choice((1_000, 5_000)))

    # --- disks ------------------------------------------------------------------------------------------------------

    async def _rot(self) -> None:
        victim = self._rng.choice(self.victims)
        held = victim.disk.platter.references()
        for reference in self._rng.sample(held, min(len(held), self._rng.choice((1, 1, 3)))):
            self._rot_one(victim, reference)

    def _rot_one(self, victim: SimShepherd, reference: ReferenceId) -> None:
        platter = victim.disk.platter
        self._world.harm(victim, reference)
        fault = self._rng.choice(("flip", "lose", "truncate", "record"))
        self._world.note(f"ROT {victim.node.name} {reference} {fault}")
        match fault:
            case "flip" if platter.data(reference):
                platter.flip(reference)
            case "truncate":
                platter.truncate(reference, 3)
            case "record":
                platter.damage_record(reference)
            case _:
                platter.lose(reference)

    async def _empty(self) -> None:
        victim: SimShepherd | None = self._free(self.victims)
        if victim is not None:
            state_too = self._rng.random() < 0.7
            await self._down(victim, (200, 10_000), lambda: self._world.empty_disk(victim, state_too=state_too))

    async def _roll_back(self) -> None:
        """An old image of the disk is put back."""
        victim: SimShepherd | None = self._free(self.victims)
        if victim is None:
            return
        self._world.note(f"IMAGE {victim.node.name}")
        platter, image, state = victim.disk.platter, victim.disk.image(), replace_state(victim)
        await self._pause(5_000, 20_000)

        async def put_back() -> None:
            self._world.note(f"ROLL BACK {victim.node.name}")
            self._world.harm_all(victim)
            victim.disk.platter = image
            victim.state.state = state

        same = victim.disk.platter is platter  # the image of a disk that has been replaced is refused
        if (
            same
            and not self._passes_for_newer(victim, image, state)
            and victim.node.up
            and victim.node not in self._busy
        ):
            await self._down(victim, (200, 5_000), put_back)

    def _passes_for_newer(self, victim: SimShepherd, image: MemoryBlobs, state: Any) -> bool:
        """Whether a start on this image would not notice that it is old. No report was accepted since it was made, but
        bytes have come that may be listed by now (docs/design/018-returning.md, "What stays open")."""
        found, store = decode(run_now(image.notes()).mark), victim.disk.store()
        believes = state is not None and not why_whole(found, self._world.believed(victim), store, state)
        passes = believes and not {*victim.disk.platter.references()} <= {*image.references()}
        if passes:
            self._world.note(f"TOO YOUNG {victim.node.name}")
        return passes

    async def _fill_up(self) -> None:
        shepherd: SimShepherd = self._rng.choice(self._world.shepherds)
        shepherd.disk.platter.capacity = shepherd.disk.platter.used_bytes() + self._rng.choice((0, 50, 300))
        await self._pause(3_000, 15_000)
        shepherd.disk.platter.capacity = LARGE

    async def _scarce(self) -> None:
        """Let no disk take new data for a while: copies lost now stay short."""
        shepherds = list(self._world.shepherds)
        for shepherd in shepherds:
            shepherd.disk.platter.capacity = shepherd.disk.platter.used_bytes()
        await self._rot()
        await self._pause(10_000, 20_000)
        for shepherd in shepherds:
            shepherd.disk.platter.capacity = LARGE

    async def _slow_disk(self) -> None:
        shepherd: SimShepherd = self._rng.choice(self._world.shepherds)
        shepherd.disk.slow_ms = self._rng.choice((200, 2_000))
        await self._pause(3_000, 15_000)
        shepherd.disk.slow_ms = self.mix.slow_ms

    async def _bad_disk(self) -> None:
        """Syncs of a disk fail now and then; then the power of its Shepherd goes."""
        shepherd: SimShepherd = self._rng.choice(self._world.shepherds)
        disk = shepherd.disk
        disk.troubles, disk.fails = random.Random(self._rng.random()), 0.3
        self._world.note(f"BAD DISK {shepherd.node.name}")
        await self._pause(3_000, 15_000)

        async def mended() -> None:
            disk.fails = 0.0

        if shepherd.node.up and not self._taken(shepherd.node):
            await self._down(shepherd, (200, 3_000), mended)
        disk.fails = 0.0

    async def _turn(self, shepherd: SimShepherd) -> None:
        """Make a Shepherd lie: it throws away bytes that it has acknowledged, and reports them as alive."""
        self._world.note(f"LIAR {shepherd.node.name}")
        self._world.liars.add(shepherd.service_id)
        shepherd.disk.forgets = 0.4
        claims = _Claims(self._world, shepherd, random.Random(self._rng.random())) if self.mix.greedy else None
        shepherd.between = lambda honest: _Lies(honest, self._rng, claims)
        await self._world.crash(shepherd)
        await self._restart(shepherd)


def replace_state(shepherd: SimShepherd) -> Any:
    """A copy of a Shepherd's state file."""
    return replace(shepherd.state.state) if shepherd.state.state is not None else None


@dataclass(slots=True)
class _Lies:
    """The Librarians as a lying Shepherd reaches them. It claims replicas that it lacks or that others hold, and
    reports damaged ones as intact."""

    honest: Any
    rng: random.Random
    claims: _Claims | None = None
    known: list[ReportedReplica] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        return getattr(self.honest, method)

    async def report(self, call: Any, report: Report) -> Any:
        """Report with lies among the truths."""
        self.known += report.replicas
        replicas = [self._lie(replica) for replica in report.replicas]
        if self.known and self.rng.random() < 0.3:
            invented = replace(self.rng.choice(self.known), reference=ReferenceId(_uuid(self.rng)))
            replicas.append(replace(invented, state=ReplicaState.ALIVE))
        replicas += self.claims.draw() if self.claims is not None else []
        return await self.honest.report(call, replace(report, replicas=tuple(replicas)))

    def _lie(self, replica: ReportedReplica) -> ReportedReplica:
        if replica.state is ReplicaState.ALIVE or self.rng.random() < 0.3:
            return replica
        return replace(replica, state=ReplicaState.ALIVE, size=-1, checksums=Checksums())


class _Claims:
    """The claims of a greedy liar: copies of other Shepherds' replicas, with the right size and checksums."""

    def __init__(self, world: World, liar: SimShepherd, rng: random.Random) -> None:
        self._world, self._liar, self._rng = world, liar, rng

    def draw(self) -> list[ReportedReplica]:
        other = self._rng.choice([shepherd for shepherd in self._world.shepherds if shepherd is not self._liar])
        held = [stored.facts for stored in other.disk.held() if stored.committed and stored.facts is not None]
        if not held or self._rng.random() < 0.5:
            return []
        facts = self._rng.choice(held)
        self._liar.disk.thrown.add(facts.blob)
        alive, reference = ReplicaState.ALIVE, ReferenceId(_uuid(self._rng))
        return [ReportedReplica(facts.guid, reference, alive, facts.blob, facts.size, facts.checksums)]


def _uuid(rng: random.Random) -> str:
    text = f"{rng.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"
