"""A simulated cluster: the services of production, on virtual time, a lossy network and memory disks.

A `Shape` lists the processes and their services: services of one process call each other directly, others through the
network. Disks (the A-Hash's store, a Shepherd's blobs and state file) outlive a crash; nothing else does.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chelonia.ahash.group.service import ReplicatedAHash
from chelonia.ahash.service import AHashService
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import layout, meta
from chelonia.bartender.service import BartenderService
from chelonia.bartender.settings import BartenderSettings
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Receipt, ReplicaState
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, ObjectId, ReferenceId, ServiceId, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import Report, ServiceRecord
from chelonia.core.ports.shepherd import StoreIdentity, Turl, Upload, Uploaded
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.presence import reports
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World as LibrarianWorld
from chelonia.shepherd.node import ShepherdPorts
from chelonia.shepherd.service import ShepherdService
from chelonia.shepherd.settings import ShepherdSettings
from chelonia.shepherd.store.note_mark import AcceptedReport, Believed
from tests.sim.ahash_group import SimGroup
from tests.sim.disk import SeenDurability, SimDisk, SimDurability, SimState, SimStore, facts_now
from tests.sim.freshness import Decided, Fresh, Sure
from tests.sim.network import Channel, Network, Trace
from tests.sim.process import Node, SimClock, SimIds, make_task
from tests.sim.signing import SimSigner, SimVerifier
from tests.sim.virtual_loop import ENDLESS_S, this_loop
from tests.support.memory_store import InlineExecutor, MemoryStore
from tests.support.shepherd import InlineWorker
from tests.support.turls import parse_turl

USER = Call(dn=Dn("/O=Sim/CN=user"))
ADMIN_DN, CORE_DN = Dn("/O=Sim/CN=admin"), Dn("/O=Sim/CN=core")
ADMIN = Call(dn=ADMIN_DN, roles=(Role.ADMINISTRATOR,))

BODY_IDLE_MS = 10_000
"""A body whose sender is silent for so long has lost its connection."""
RESPAWN_MS = 300
"""Pause before a supervisor restarts a process that has ended by itself."""
START_RETRY_MS = 500  # pause of a service that waits for another to start

LIBRARIAN_SETTINGS = LibrarianSettings(
    root_owner=ADMIN_DN,
    root_policy={"ALL": "+read +addEntry"},
    root_default_policy={"ALL": "+read +addEntry"},
    lease_ms=6_000,
    leader_lease_ms=12_000,
    tick_ms=2_000,
    repair_delay_ms=0,
    flap_window_ms=20_000,
    trim_grace_ms=5_000,
    claim_ms=15_000,
    outbox_interval_ms=8_000,
    survey_interval_ms=20_000,
    survey_page_ms=100,
    backoff_ms=500,
    backoff_max_ms=4_000,
    services_interval_ms=20_000,
    trash_keep_ms=0,
    sweep_interval_ms=30_000,
)
"""Slower than a development cluster: a simulated second costs real time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The processes. `hosts`: (name, services: `a` A-Hash, `l` Librarian, `b` Bartender), the A-Hash in one of them.
    `domains`: one Shepherd for each."""

    hosts: tuple[tuple[str, str], ...]
    domains: tuple[str, ...]


SINGLE = Shape((("core", "alb"),), ("",) * 5)
"""One process for all services, and five Shepherds."""
DOMAINS = tuple(f"site{1 + number // 3}/node{1 + number}" for number in range(9))
SPLIT = Shape((("a1", "a"), ("l1", "l"), ("l2", "l"), ("b1", "b"), ("b2", "b")), DOMAINS)
"""Every service by itself, and nine Shepherds at three sites."""
PAIRED = Shape((("n1", "alb"), ("n2", "lb")), DOMAINS)
"""Two nodes with all services, one of them with the A-Hash."""
SPLIT_GROUP = Shape((("a1", "a"), ("a2", "a"), ("a3", "a"), *SPLIT.hosts[1:]), DOMAINS)
"""As `SPLIT`, with three replicas of the A-Hash."""
PAIRED_GROUP = Shape((("n1", "alb"), ("n2", "alb"), ("n3", "a")), DOMAINS)
"""As `PAIRED`, with a replica on each node and a third one that only votes and answers."""


@dataclass(slots=True)
class Host:
    """A process with any of A-Hash, Librarian and Bartender. A service is None until it has started. `replica`: its
    replica of the A-Hash, 0 when there are none."""

    node: Node
    services: str
    ahash: AHashService | Fresh | None = None
    librarian: LibrarianService | None = None
    bartender: BartenderService | None = None
    replica: int = 0

    @property
    def librarian_id(self) -> ServiceId:
        """The registered id of its Librarian."""
        return ServiceId(f"https://{self.node.name}:1/Librarian")

    @property
    def bartender_id(self) -> ServiceId:
        """The registered id of its Bartender."""
        return ServiceId(f"https://{self.node.name}:1/Bartender")


@dataclass(slots=True)
class SimShepherd:
    """One Shepherd: the parts that survive a crash, and the service while it runs. `between`: a layer before the
    Librarians, if it is not to be trusted. `relied_on`: copies that were requested of it."""

    node: Node
    service_id: ServiceId
    dn: Dn
    disk: SimDisk
    domain: str = ""
    state: SimState = field(default_factory=SimState)
    service: ShepherdService | None = None
    between: Callable[[Any], Any] | None = None
    relied_on: set[ReferenceId] = field(default_factory=set)

    @property
    def call(self) -> Call:
        """This Shepherd's identity as others see it."""
        return Call(dn=self.dn, roles=(Role.SHEPHERD,), service_id=self.service_id)

    @property
    def clock(self) -> SimClock:
        return self.node.clock

    @property
    def compared(self) -> int:
        """The generation of metadata that the running service has compared its disk with, all results accepted; 0 for
        none."""
        return self.service._reporting._proven_generation() if self.service is not None else 0

    def told(self, reference: ReferenceId) -> ReplicaState | None:
        """The running service's state of a replica (`deleted`: it is gone), None while that is still to be reported."""
        assert self.service is not None
        node = self.service._node
        flying = node.journal._flight.replicas if node.journal._flight is not None else ()
        if reference in node.journal._due or any(replica.reference == reference for replica in flying):
            return None
        held = node.index.get(reference)
        return held.state if held is not None else ReplicaState.DELETED


class World:
    """The cluster. `start` brings everything up; `crash`/`restart` take processes down and up. `bugs` are errors that
    no service may raise. `harmed`: for each blob, the Shepherds on which a disaster damaged a copy, `taken` the copies.
    `liars` are Shepherds that have lied, `lost` those given up for good. `kept_down` processes do not restart by
    themselves. While `doors_shut` no Bartender starts. `history`: every version of each object of a group."""

    def __init__(self, seed: int, shape: Shape = SINGLE) -> None:
        self.rng = random.Random(seed)
        self.trace = Trace()
        self.ids = SimIds(self.rng)
        self.network = Network(self.rng, self.trace)
        self._bugs: list[str] = []
        self._processes: list[Node] = []
        self.harmed: dict[BlobId, set[ServiceId]] = {}
        self.taken: set[tuple[ServiceId, ReferenceId]] = set()
        self.liars: set[ServiceId] = set()
        self.on_erased: Callable[[SimShepherd, ReferenceId, int], None] | None = None
        self.clock = SimClock()
        self.user = self.client("user")
        self.store = SimStore(self.rng)
        self.store.failing = self._look_at_tasks
        self.durability = SimDurability(self.rng)
        self.hosts = [Host(self._process(name), services) for name, services in shape.hosts]
        self.history = Decided(self._look)
        self.group = self._group(seed)
        self.shepherds = [self._shepherd(number, domain) for number, domain in enumerate(shape.domains, start=1)]
        self.lost: list[SimShepherd] = []
        self.kept_down: list[Host] = []
        self.doors_shut = False
        self.librarian_settings = LIBRARIAN_SETTINGS
        self.shepherd_tuning: dict[str, int] = {}
        self.breaks = 0
        """How often all bodies under way have broken off."""

    @property
    def bugs(self) -> list[str]:
        """Errors that no service may raise, so far."""
        self._look_at_tasks()
        return self._bugs

    def _look_at_tasks(self) -> None:
        for node in self._processes:
            node.look()

    def _process(self, name: str) -> Node:
        node = Node(name, self._unexpected)
        self._processes.append(node)
        return node

    def _group(self, seed: int) -> SimGroup | None:
        """The replicas of the A-Hash, where there are several. Their decided records are in `store`."""
        hosts = self._with("a")
        if len(hosts) == 1:
            return None
        for own, host in enumerate(hosts, start=1):
            host.replica = own
        rng, nodes = random.Random(f"group {seed}"), [host.node for host in hosts]
        return SimGroup(nodes, rng, self.network, self._decided, self._unexpected)

    def _decided(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        """Add a group's decided record to the store, to older metadata where those were put back."""
        self.history.add(puts, deletes)
        self.store.commit(puts, deletes)

    def _look(self) -> None:
        if self.group is not None:
            self.group.look_all()

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all services and wait until every Shepherd is alive."""
        loop = this_loop()
        loop.make_tasks_by(make_task)
        loop.ends_s = ENDLESS_S
        if self.group is not None:
            self._connecting = asyncio.ensure_future(self.group.connect())
        for host in self.hosts:
            await self.restart_host(host)
        for shepherd in self.shepherds:
            await self.restart(shepherd)
        while not await self._all_alive():
            assert not self.bugs, self.bugs  # what has not started would be waited for without end
            await self.clock.sleep(100)

    async def _all_alive(self) -> bool:
        if not all(host.librarian for host in self._with("l")) or not all(host.bartender for host in self._with("b")):
            return False
        for librarian in [host.librarian for host in self.hosts if host.librarian is not None]:
            for view in await librarian.nodes(ADMIN):
                if view.state != "alive" or (self.group is not None and not view.total_bytes):
                    return False
        return True

    async def crash(self, shepherd: SimShepherd) -> None:
        """Kill a Shepherd: memory and unsynced bytes are gone."""
        self.note(f"CRASH {shepherd.node.name}")
        await shepherd.node.crash()
        await shepherd.disk.crash()
        shepherd.service = None
        self.closed(shepherd.node)

    async def stop(self, shepherd: SimShepherd) -> None:
        """End a Shepherd as an administrator does: it announces that it goes."""
        self.note(f"STOP {shepherd.node.name}")
        if shepherd.service is not None:
            leaving = shepherd.node.spawn(shepherd.service.leave())
            await asyncio.wait((leaving,), timeout=1)
        await self.crash(shepherd)

    async def restart(self, shepherd: SimShepherd) -> None:
        """Start a Shepherd on its disk."""
        self.note(f"START {shepherd.node.name}")
        shepherd.node.begin()
        settings = replace(shepherd_settings(shepherd), **self.shepherd_tuning)
        service = ShepherdService(self._shepherd_ports(shepherd), settings)
        doubt = service._node.doubt

        def relied(reference: ReferenceId) -> None:
            shepherd.relied_on.add(reference)
            doubt(reference)

        service._node.doubt = relied  # type: ignore[method-assign]
        await shepherd.node.spawn(service.start())
        shepherd.service = service
        self._keep(shepherd.node, service.run())

    async def crash_host(self, host: Host) -> None:
        """Kill a process with everything it hosts: only committed data stays."""
        self.note(f"CRASH {host.node.name}")
        await host.node.crash()
        host.ahash = host.librarian = host.bartender = None
        if host.replica:
            assert self.group is not None
            self.group.crashed(host.replica)
        elif "a" in host.services:
            self.store = self.store.reopened()

    async def restart_host(self, host: Host) -> None:
        """Start a process; a service that needs another starts when that answers."""
        self.note(f"START {host.node.name}")
        host.node.begin()
        host.node.spawn(self._boot(host))
        if len(self.hosts) == 1:
            while host.bartender is None:
                await self.clock.sleep(1)

    async def _boot(self, host: Host) -> None:
        if host.replica:
            assert self.group is not None
            replica = await self.group.open(host.replica, host.node.horizon)
            host.ahash = Fresh(replica, host.node, self.history, self._bugs.append)
            host.node.spawn(self._run_replica(host, replica))
        elif "a" in host.services:
            durability = SeenDurability(self.durability, host.node.horizon)
            settings = AHashSettings(cluster="sim")
            ahash = AHashService(self.store, InlineExecutor(), host.node.clock, settings, durability)
            await ahash.start()
            host.ahash = ahash
            self._keep(host.node, ahash.run())
        if "l" in host.services:
            librarian = LibrarianService(
                self._ahash_of(host), LibrarianIdentity(CORE_DN, host.librarian_id), self._librarian_world(host)
            )
            await _persist(host.node.clock, librarian.start)
            host.librarian = librarian
            self._keep(host.node, librarian.run())
        if "b" in host.services and not self.doors_shut:
            settings = BartenderSettings(CORE_DN, host.bartender_id, b"simulated token key", put_lifetime_ms=40_000)
            directory = _Directory(self, host.node, host.bartender_id, Role.BARTENDER)
            port = self._librarian_of(host)
            host.bartender = BartenderService(port, directory, host.node.clock, self.ids, settings)

    async def _run_replica(self, host: Host, replica: ReplicatedAHash) -> None:
        """Run a replica of the A-Hash; when it says that its process has to end, the process restarts."""
        try:
            await replica.run()
        except CheloniaError as error:
            self.note(f"{host.node.name} ends: {error.cause}")
            if "internal failure" in error.cause:
                self._unexpected(host.node.name, error)
            context = contextvars.Context()
            self._ending = asyncio.get_running_loop().create_task(self._begin_anew(host), context=context)

    async def _begin_anew(self, host: Host) -> None:
        await self.crash_host(host)
        await self.clock.sleep(RESPAWN_MS)
        if not host.node.up and host not in self.kept_down:
            await self.restart_host(host)

    def _keep(self, node: Node, work: Coroutine[Any, Any, None]) -> None:
        """Run work that must never end by itself."""

        async def kept() -> None:
            try:
                await work
            except CheloniaError as error:
                self._unexpected(node.name, error)
            else:
                self._unexpected(node.name, RuntimeError("background work has ended"))

        node.spawn(kept())

    def _unexpected(self, name: str, error: BaseException) -> None:
        if self.store.panicked.is_set() and any(name == host.node.name for host in self._with("a")):
            return  # the A-Hash ends with its store, as it must
        self.note(f"BUG {name}: {error!r}")
        self._bugs.append(f"{name}: {error!r}")

    async def restore(self, backup: Mapping[bytes, bytes]) -> None:
        """Stop every A-Hash, replace its store by a backup, as an administrator does, and start them. Of a group the
        first one gets it, and the others fill up from that."""
        hosts = self._with("a")
        for host in hosts:
            await self.crash_host(host)
        self.note("RESTORE")
        self.store = self.store.holding(backup)
        meta.raise_generation(self.store)
        self._begin_group()
        for host in hosts:
            await self.restart_host(host)

    def _begin_group(self) -> None:
        """Have the first replica of a group, if there is one, begin with the present contents of the store."""
        if self.group is not None:
            self.history.begin(self.store.contents())
            self.group.restore(self.store.contents())

    async def stop_core(self) -> None:
        """Stop everything but the Shepherds; it stays down until it is started."""
        self.kept_down = list(self.hosts)
        for each in self.hosts:
            await self.crash_host(each)

    async def lose_metadata(self) -> Host:
        """Destroy the store of every A-Hash when all but the Shepherds is stopped. The first A-Hash begins again as the
        next generation, and one Librarian, whose host is returned."""
        host = self._with("a")[0]
        with self.store.watched():
            word = f"sim {meta.read_number(self.store, layout.META_GENERATION)}"
        self.note("METADATA LOST")
        self.store = self.store.holding({})
        self.store.free = MemoryStore().free
        meta.found_again(self.store, word)
        self._begin_group()
        librarian = host if "l" in host.services else self._with("l")[0]
        self.kept_down = [each for each in self.hosts if each not in (host, librarian)]
        for each in (host, librarian) if librarian is not host else (host,):
            await self.restart_host(each)
        return librarian

    async def open_doors(self) -> None:
        """Start the Bartenders, other Librarians and replicas that a rebuild holds back."""
        shut, self.doors_shut, self.kept_down = self.doors_shut, False, []
        for host in self.hosts:
            if shut and host.node.up and "b" in host.services:
                await self.crash_host(host)
            if not host.node.up:
                await self.restart_host(host)

    # --- disasters --------------------------------------------------------------------------------------------------

    def harm(self, shepherd: SimShepherd, reference: ReferenceId) -> None:
        """Note that a disaster takes this copy."""
        self.taken.add((shepherd.service_id, reference))
        facts = facts_now(shepherd.disk.platter, reference)
        if facts is not None:
            self.harmed.setdefault(facts.blob, set()).add(shepherd.service_id)

    def harm_all(self, shepherd: SimShepherd) -> None:
        """Note that a disaster takes every copy of a Shepherd."""
        for reference in shepherd.disk.platter.references():
            self.harm(shepherd, reference)

    async def empty_disk(self, shepherd: SimShepherd, *, state_too: bool) -> None:
        """Empty the disk of a Shepherd that is down, its state file too or not; its administrator knows."""
        self.note(f"EMPTY {shepherd.node.name} state={state_too}")
        self.harm_all(shepherd)
        accepted = StoreIdentity(self.ids.uuid(), shepherd.service_id, replaces=True)
        shepherd.disk.platter = type(shepherd.disk.platter)(shepherd.disk.platter.capacity, accepted)
        if state_too:
            shepherd.state = SimState()

    def lose(self, shepherd: SimShepherd) -> None:
        """Note that an administrator is about to give a Shepherd up for good: its replicas no longer count."""
        self.harm_all(shepherd)
        self.shepherds.remove(shepherd)
        self.lost.append(shepherd)

    def note(self, text: str) -> None:
        self.trace.add(self.clock.monotonic_ms(), text)

    # --- users ------------------------------------------------------------------------------------------------------

    def client(self, name: str) -> Node:
        node = self._process(name)
        node.begin()
        return node

    def bartender_port(self, user: Node | None = None, caller: Call = USER, door: str = "") -> Any:
        """A Bartender for a user: through the network, any of them. `door`: another port of it."""
        host = hosts[0] if len(hosts := self._with("b")) == 1 else self.rng.choice(hosts)
        at = (lambda: getattr(host.bartender, door, None)) if door else lambda: host.bartender
        return self.network.port(at, host.node, caller, user or self.user)

    @property
    def bartender(self) -> BartenderService:
        """A Bartender without a network, for checks."""
        return next(host.bartender for host in self.hosts if host.bartender is not None)

    async def put(self, turl: str, data: bytes, user: Node | None = None, caller: Call = USER) -> Uploaded:
        """PUT `data` to a TURL as a user."""
        return await _Transfers(self, caller, user or self.user).push(turl, _pieces(data), len(data))

    async def get(self, turl: str, user: Node | None = None, caller: Call = USER) -> bytes:
        """GET a TURL whole, as a user."""
        return (await self.download(turl, user or self.user, caller))[0]

    async def download(self, turl: str, user: Node, caller: Call, span: ByteRange | None = None) -> tuple[bytes, str]:
        """The bytes of a span behind a TURL, by default all; and its Shepherd's SHA-256 of all."""
        shepherd, ticket = self.of_turl(turl)

        async def work() -> tuple[bytes, str]:
            opened = await _running(shepherd).open(caller, ticket)
            data = b"".join([part async for part in opened.reader.read(span or ByteRange(0, opened.size))])
            await opened.reader.close(complete=True)
            return data, opened.checksums.sha256 if len(data) == opened.size else ""

        return await self.network.carry(user, shepherd.node, "GET", work, caller.request_id)

    # --- places and ports ---------------------------------------------------------------------------------------------

    def find(self, service: ServiceId) -> SimShepherd:
        return next(shepherd for shepherd in self._all() if shepherd.service_id == service)

    def _all(self) -> list[SimShepherd]:
        return [*self.shepherds, *self.lost] if self.lost else self.shepherds

    def of_turl(self, turl: str) -> tuple[SimShepherd, Turl]:
        """The Shepherd of a TURL, and its parts."""
        host = turl.split("/")[2]
        shepherd = next(s for s in self._all() if s.service_id.split("/")[2] == host)
        return shepherd, parse_turl(turl)

    def nodes(self) -> list[Node]:
        return [*(host.node for host in self.hosts), *(shepherd.node for shepherd in self._all())]

    def _with(self, service: str) -> list[Host]:
        return [host for host in self.hosts if service in host.services]

    def _shepherd(self, number: int, domain: str) -> SimShepherd:
        name = f"s{number}"
        node = self._process(name)
        service_id = ServiceId(f"https://{name}:1/Shepherd")
        disk = SimDisk(self.rng, lambda reference, heard: self._erased(shepherd, reference, heard))
        shepherd = SimShepherd(node, service_id, Dn(f"/O=Sim/CN={name}"), disk, domain)
        disk.heard = lambda: shepherd.state.heard
        return shepherd

    def _erased(self, shepherd: SimShepherd, reference: ReferenceId, heard: int) -> None:
        if self.on_erased is not None:
            self.on_erased(shepherd, reference, heard)

    def _librarian_world(self, host: Host) -> LibrarianWorld:
        records = [ServiceRecord(Role.BARTENDER, CORE_DN, other.bartender_id, True) for other in self._with("b")]
        records += [ServiceRecord(Role.LIBRARIAN, CORE_DN, other.librarian_id, True) for other in self._with("l")]
        records += [ServiceRecord(Role.SHEPHERD, s.dn, s.service_id, True) for s in self._all()]
        settings = replace(self.librarian_settings, bootstrap=tuple(records))
        directory, carrier = _Directory(self, host.node, host.librarian_id, Role.LIBRARIAN), None
        neighbours = _Neighbours(self, host)
        if settings.record_key:
            call = Call(dn=CORE_DN, roles=(Role.LIBRARIAN,), service_id=host.librarian_id)
            carrier = _Carrier(self, call, host.node)
        return LibrarianWorld(directory, SimVerifier(), host.node.clock, self.ids, settings, neighbours, carrier)

    def _ahash_of(self, host: Host) -> Any:
        if host.ahash is not None:
            return host.ahash
        caller = Call(dn=CORE_DN, roles=(Role.LIBRARIAN,), service_id=host.librarian_id)
        each = (self._port_of(other, "ahash", caller, host.node) for other in self._with("a"))
        return Channel("ahash", list(each), host.node, self.ids)

    def _librarian_of(self, host: Host) -> Any:
        if host.librarian is not None:
            return self.network.within(host.node, host.librarian)
        caller = Call(dn=CORE_DN, roles=(Role.BARTENDER,), service_id=host.bartender_id)
        return Channel("librarian", self.librarians(caller, host.node), host.node, self.ids)

    def librarians(self, caller: Call, source: Node) -> list[Any]:
        """Every Librarian, for this caller from there."""
        return [self._port_of(host, "librarian", caller, source) for host in self._with("l")]

    def _port_of(self, host: Host, service: str, caller: Call, source: Node) -> Any:
        return self.network.port(lambda: self._service(host, service), host.node, caller, source)

    def _service(self, host: Host, service: str) -> Any:
        found = getattr(host, service)
        if found is None or service != "librarian" or self.group is None:
            return found
        return Sure(found, self._on_record, self._bugs.append)

    def _on_record(self, shepherd: ObjectId, reference: ReferenceId) -> str:
        self._look()
        with self.store.watched():
            found = self.store.get(layout.wide_key(shepherd, "file", reference))
        return layout.decode_value(found) if found is not None else ""

    def believed(self, shepherd: SimShepherd) -> Believed:
        """The belief that the answer to the first report of its next start would show."""
        self._look()
        own, first = shepherd_object(shepherd.service_id), Report(shepherd.service_id, 1 << 60, 1, ())
        with self.store.watched():
            header = layout.decode_header(self.store.get(layout.header_key(own)) or layout.encode_header(0, {}))
            generation = meta.read_number(self.store, layout.META_GENERATION)
        last, obeyed = reports.before(first, StoredObject(own, *header), generation)
        return Believed(AcceptedReport(last.boot, last.number), obeyed, generation)

    def _shepherd_ports(self, shepherd: SimShepherd) -> ShepherdPorts:
        each = self.librarians(shepherd.call, shepherd.node)
        librarians = Channel("librarian", each, shepherd.node, self.ids, retry_ms=0)
        return ShepherdPorts(
            blobs=shepherd.disk,
            state_file=shepherd.state,
            librarians=shepherd.between(librarians) if shepherd.between else librarians,
            transfers=_Transfers(self, shepherd.call, shepherd.node),
            signer=SimSigner(shepherd.node.name),
            worker=InlineWorker(),
            clock=shepherd.clock,
            ids=self.ids,
            each_librarian=lambda: {str(number): librarian for number, librarian in enumerate(each)},
        )

    def closed(self, node: Node) -> None:
        """Close the connections of a process that is gone: reachable peers notice."""
        shepherd = next((shepherd for shepherd in self._all() if shepherd.node is node), None)
        for host in self.hosts:
            if shepherd is not None and host.librarian is not None and self.network.reaches(node, host.node):
                host.node.spawn(_told(host, shepherd.service_id))


async def _told(host: Host, shepherd: ServiceId) -> None:
    await host.node.awake()
    if host.librarian is not None:
        host.librarian.suspect(shepherd)


class _Neighbours:
    """A Librarian's connections to the others, and to the doors of Shepherds."""

    def __init__(self, world: World, host: Host) -> None:
        self._world, self._host = world, host

    def librarian(self, service: ServiceId) -> Any:
        other = next(host for host in self._world.hosts if host.librarian_id == service)
        caller = Call(dn=CORE_DN, roles=(Role.LIBRARIAN,), service_id=self._host.librarian_id)
        return self._world.network.port(lambda: other.librarian, other.node, caller, self._host.node)

    async def refused(self, service: ServiceId) -> bool:
        """Whether nothing listens there: a frozen process is not gone, nor is one out of reach."""
        name = service.split("/")[2].partition(":")[0]
        node = next(node for node in self._world.nodes() if node.name == name)
        return await self._world.network.knock(self._host.node, node)


class _Directory:
    """Finds Shepherds through the network."""

    def __init__(self, world: World, source: Node, service_id: ServiceId, role: Role) -> None:
        self._world = world
        self._source = source
        self._call = Call(dn=CORE_DN, roles=(role,), service_id=service_id)

    def shepherd(self, service: ServiceId) -> Any:
        """The control port of a Shepherd."""
        target = self._world.find(service)
        return self._world.network.port(lambda: target.service, target.node, self._call, self._source)


class _Transfers:
    """Pushes bytes through the network; a lost request leaves nothing, a lost answer leaves the bytes."""

    def __init__(self, world: World, caller: Call, source: Node) -> None:
        self._world, self._caller, self._source = world, caller, source

    async def push(
        self, turl: str, body: AsyncIterator[bytes], length: int, offset: int = 0, *, patient: bool = False
    ) -> Uploaded:
        shepherd, ticket = self._world.of_turl(turl)

        async def work() -> Uploaded:
            upload = Upload(ticket, self._arriving(body), length, offset)
            return await _running(shepherd).receive(self._caller, upload)

        uploaded: Uploaded = await self._carry(shepherd, "PUT", work)
        return uploaded

    async def offset(self, turl: str) -> int:
        """Bytes kept of an interrupted push."""
        shepherd, ticket = self._world.of_turl(turl)

        async def work() -> int:
            return await _running(shepherd).offset(self._caller, ticket)

        kept: int = await self._carry(shepherd, "HEAD", work)
        return kept

    async def _carry(self, shepherd: SimShepherd, what: str, work: Callable[[], Any]) -> Any:
        network, request_id = self._world.network, self._caller.request_id
        return await network.carry(self._source, shepherd.node, what, work, request_id)

    def _arriving(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        world = self._world
        whole = _broken_when_idle(world, body)
        if world.network.faults.cut and world.rng.random() < world.network.faults.cut:
            return _broken_off(whole, world.rng.randint(0, 2))
        return whole


class _Carrier:
    """`core.ports.shepherd.Carrier` of a Librarian."""

    def __init__(self, world: World, caller: Call, source: Node) -> None:
        self._world, self._caller, self._source = world, caller, source

    async def put(self, turl: str, body: bytes) -> tuple[Receipt, ...]:
        return (await self._world.put(turl, body, self._source, self._caller)).receipts

    async def get(self, turl: str, size_max: int) -> bytes:
        data = await self._world.get(turl, self._source, self._caller)
        assert len(data) <= size_max
        return data


async def _broken_when_idle(world: World, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body over a connection, which breaks when its sender is gone."""
    breaks = world.breaks
    while True:
        piece = asyncio.ensure_future(_next(body))
        idle = asyncio.create_task(world.clock.sleep(BODY_IDLE_MS))  # a Nap
        try:
            await asyncio.wait((piece, idle), return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            if not piece.done():
                piece.cancel()
        if not piece.done() or world.breaks > breaks:
            raise CheloniaError(Kind.NETWORK, "PUT", "", "the sender is gone")
        chunk = piece.result()
        if chunk is None:
            return
        yield chunk


async def _broken_off(body: AsyncIterator[bytes], pieces: int) -> AsyncIterator[bytes]:
    """The first pieces of a body, then the connection is gone."""
    async for piece in body:
        if pieces == 0:
            raise CheloniaError(Kind.NETWORK, "PUT", "", "the connection broke")
        pieces -= 1
        yield piece


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    return await anext(body, None)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 64):
        yield data[start : start + 64]
        await asyncio.sleep(0)


async def _persist(clock: SimClock, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a service; repeat it while a service it needs does not answer."""
    while True:
        try:
            return await start()
        except CheloniaError as error:
            if not error.meaning.retryable:
                raise
        await clock.sleep(START_RETRY_MS)


def _running(shepherd: SimShepherd) -> ShepherdService:
    if shepherd.service is None:
        raise CheloniaError(Kind.UNAVAILABLE, "PUT", shepherd.node.name, "it is starting")
    return shepherd.service


def shepherd_settings(shepherd: SimShepherd) -> ShepherdSettings:
    """The settings of every simulated Shepherd."""
    return ShepherdSettings(
        service_id=shepherd.service_id,
        base_url=shepherd.service_id.removesuffix("/Shepherd"),
        dn=shepherd.dn,
        domain=shepherd.domain,
        heartbeat_ms=2_000,
        report_ms=500,
        report_retry_ms=1_000,
        uncommitted_report_ms=3_000,
        unknown_retry_ms=5_000,
        unknown_grace_ms=20_000,
        quarantine_keep_ms=10_000,
        ticket_lifetime_ms=40_000,
        ticket_lifetime_max_ms=40_000,
        scrub_period_ms=60_000,
        compare_ms=120_000,
        tidy_ms=10_000,
        min_free_bytes=0,
    )
