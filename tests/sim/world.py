"""A simulated cluster: the very services that run in production, on virtual time, a lossy network and memory disks.

One `core` process hosts A-Hash, Librarian and Bartender; each Shepherd is a process of its own. Disks (the A-Hash's
store, a Shepherd's blobs and state file) outlive a crash; everything else does not.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from chelonia.ahash.service import AHashService, AHashSettings
from chelonia.ahash.store_memory import InlineExecutor, MemoryStore
from chelonia.bartender.service import BartenderService
from chelonia.bartender.settings import BartenderSettings
from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.librarian import ServiceRecord
from chelonia.core.shepherd import ByteRange, Upload, Uploaded
from chelonia.librarian.records import Identity
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World as LibrarianWorld
from chelonia.shepherd.blobs_memory import MemoryBlobs
from chelonia.shepherd.node import ShepherdPorts
from chelonia.shepherd.service import ShepherdService
from chelonia.shepherd.settings import ShepherdSettings
from chelonia.shepherd.store_state import MemoryState
from chelonia.wire import tickets
from tests.sim.network import Network, Node, SimClock, SimIds, Trace

T = TypeVar("T")

USER = Call(dn=Dn("/O=Sim/CN=user"))
ADMIN_DN = Dn("/O=Sim/CN=admin")
CORE_DN = Dn("/O=Sim/CN=core")
LIBRARIAN_ID = ServiceId("https://core:1/Librarian")
BARTENDER_ID = ServiceId("https://core:1/Bartender")

BODY_IDLE_MS = 10_000
"""A body whose sender is silent for so long has lost its connection."""

LIBRARIAN_SETTINGS = LibrarianSettings(
    root_owner=ADMIN_DN,
    root_policy={"ALL": "+read +addEntry"},
    root_default_policy={"ALL": "+read +addEntry"},
    lease_ms=6_000,
    leader_lease_ms=12_000,
    tick_ms=2_000,
    repair_delay_ms=0,
    trim_grace_ms=5_000,
    claim_ms=15_000,
    outbox_interval_ms=8_000,
    survey_interval_ms=20_000,
    survey_page_ms=100,
    backoff_ms=500,
    backoff_max_ms=4_000,
    services_interval_ms=20_000,
)
"""Slower than a development cluster: a simulated second costs real time."""


class InlineWorker:
    """Hashes where it stands."""

    async def run(self, fn: Callable[[], T]) -> T:
        """Run `fn`."""
        return fn()


class SimSigner:
    """Signs with a name instead of a key: the simulator's Shepherds lie in other ways."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sign(self, message: bytes) -> str:
        """A digest of name and message."""
        return hashlib.sha256(self._name.encode() + message).hexdigest()

    def verify_key(self) -> str:
        """The name."""
        return self._name


class SimVerifier:
    """Checks `SimSigner`'s signatures."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        """Whether the digest is right."""
        return SimSigner(verify_key).sign(message) == signature


@dataclass(slots=True)
class SimShepherd:
    """One Shepherd: what survives a crash, and the service while it runs."""

    node: Node
    service_id: ServiceId
    dn: Dn
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    state: MemoryState = field(default_factory=MemoryState)
    clock: SimClock = field(default_factory=SimClock)
    service: ShepherdService | None = None

    @property
    def call(self) -> Call:
        """This Shepherd's identity as others see it."""
        return Call(dn=self.dn, roles=(Role.SHEPHERD,), service_id=self.service_id)

    def running(self) -> ShepherdService:
        """The service. The network never asks a node that is down."""
        assert self.service is not None
        return self.service


class World:
    """The cluster. `start` brings everything up; `crash`/`restart` take Shepherds down and up."""

    def __init__(self, seed: int, shepherds: int = 5) -> None:
        self.rng = random.Random(seed)
        self.trace = Trace()
        self.clock = SimClock()
        self.core_clock = SimClock()
        self.ids = SimIds(self.rng)
        self.network = Network(self.rng, self.trace)
        self.core = Node("core")
        self.store = MemoryStore()
        self.shepherds = [self._shepherd(number) for number in range(1, shepherds + 1)]

    async def start(self) -> None:
        """Start all services and wait until every Shepherd is alive."""
        await self._start_core()
        for shepherd in self.shepherds:
            await self.restart(shepherd)
        admin = replace(USER, dn=ADMIN_DN, roles=(Role.ADMINISTRATOR,))
        while any(view.state != "alive" for view in await self.librarian.nodes(admin)):
            await self.clock.sleep(100)

    async def crash(self, shepherd: SimShepherd) -> None:
        """Kill a Shepherd: memory and unsynced bytes are gone."""
        self.trace.add(self.clock.monotonic_ms(), f"CRASH {shepherd.node.name}")
        await shepherd.node.crash()
        shepherd.blobs.crash()
        shepherd.service = None

    async def restart(self, shepherd: SimShepherd) -> None:
        """Start a Shepherd on its disk."""
        self.trace.add(self.clock.monotonic_ms(), f"START {shepherd.node.name}")
        shepherd.service = ShepherdService(self._shepherd_ports(shepherd), _shepherd_settings(shepherd))
        await shepherd.service.start()
        shepherd.node.up = True
        shepherd.node.spawn(shepherd.service.run())

    async def crash_core(self) -> None:
        """Kill A-Hash, Librarian and Bartender: what was committed is there, nothing else."""
        self.trace.add(self.clock.monotonic_ms(), "CRASH core")
        await self.core.crash()
        self.store = self.store.reopened()

    async def restart_core(self) -> None:
        """Start them on the store."""
        self.trace.add(self.clock.monotonic_ms(), "START core")
        await self._start_core()

    async def empty_disk(self, shepherd: SimShepherd, *, state_too: bool) -> None:
        """Start a Shepherd that is down on an empty disk, with or without its state file."""
        self.trace.add(self.clock.monotonic_ms(), f"EMPTY {shepherd.node.name} state={state_too}")
        shepherd.blobs = MemoryBlobs()
        if state_too:
            shepherd.state = MemoryState()

    def bartender_port(self) -> Any:
        """The Bartender as the user reaches it: through the network."""
        return self.network.port(lambda: self.bartender, self.core, USER, "user")

    async def put(self, turl: str, data: bytes) -> Uploaded:
        """PUT `data` to a TURL as the user."""
        return await _Transfers(self, USER, "user").push(turl, _pieces(data), len(data))

    async def get(self, turl: str) -> bytes:
        """GET a TURL whole, as the user."""
        shepherd, ticket = self.of_turl(turl)

        async def work() -> bytes:
            download = await shepherd.running().open(USER, ticket)
            parts = [part async for part in download.reader.read(ByteRange(0, download.size))]
            await download.reader.close(complete=True)
            return b"".join(parts)

        data: bytes = await self.network.carry("user", shepherd.node, "GET", work)
        return data

    def _shepherd(self, number: int) -> SimShepherd:
        name = f"s{number}"
        return SimShepherd(Node(name), ServiceId(f"https://{name}:1/Shepherd"), Dn(f"/O=Sim/CN={name}"))

    async def _start_core(self) -> None:
        self.ahash = AHashService(self.store, InlineExecutor(), self.core_clock, AHashSettings(cluster="sim"))
        await self.ahash.start()
        self.core.spawn(self.ahash.run())
        bootstrap = (
            ServiceRecord(Role.BARTENDER, CORE_DN, BARTENDER_ID, True),
            ServiceRecord(Role.LIBRARIAN, CORE_DN, LIBRARIAN_ID, True),
            *(ServiceRecord(Role.SHEPHERD, s.dn, s.service_id, True) for s in self.shepherds),
        )
        settings = replace(LIBRARIAN_SETTINGS, bootstrap=bootstrap)
        world = LibrarianWorld(
            _Directory(self, LIBRARIAN_ID, Role.LIBRARIAN), SimVerifier(), self.core_clock, self.ids, settings
        )
        self.librarian = LibrarianService(self.ahash, Identity(CORE_DN, LIBRARIAN_ID), world)
        self.bartender = BartenderService(
            self.librarian,
            _Directory(self, BARTENDER_ID, Role.BARTENDER),
            self.core_clock,
            self.ids,
            BartenderSettings(CORE_DN, BARTENDER_ID, b"simulated token key", put_lifetime_ms=40_000),
        )
        self.core.up = True
        await self.librarian.start()
        self.core.spawn(self.librarian.run())

    def _shepherd_ports(self, shepherd: SimShepherd) -> ShepherdPorts:
        librarians = self.network.port(lambda: self.librarian, self.core, shepherd.call, shepherd.node.name)
        return ShepherdPorts(
            blobs=shepherd.blobs,
            state_file=shepherd.state,
            librarians=librarians,
            transfers=_Transfers(self, shepherd.call, shepherd.node.name),
            signer=SimSigner(shepherd.node.name),
            worker=InlineWorker(),
            clock=shepherd.clock,
            ids=self.ids,
        )

    def find(self, service: ServiceId) -> SimShepherd:
        """The Shepherd with this id."""
        return next(shepherd for shepherd in self.shepherds if shepherd.service_id == service)

    def of_turl(self, turl: str) -> tuple[SimShepherd, str]:
        host = turl.split("/")[2]
        shepherd = next(s for s in self.shepherds if s.service_id.split("/")[2] == host)
        return shepherd, tickets.parse_turl(turl).ticket


class _Directory:
    """Finds Shepherds through the network."""

    def __init__(self, world: World, service_id: ServiceId, role: Role) -> None:
        self._world = world
        self._call = Call(dn=CORE_DN, roles=(role,), service_id=service_id)

    def shepherd(self, service: ServiceId) -> Any:
        """The control port of a Shepherd."""
        target = self._world.find(service)
        return self._world.network.port(target.running, target.node, self._call, "core")


class _Transfers:
    """Pushes bytes through the network; a lost request leaves nothing, a lost answer leaves the bytes."""

    def __init__(self, world: World, caller: Call, source: str) -> None:
        self._world, self._caller, self._source = world, caller, source

    async def push(self, turl: str, body: AsyncIterator[bytes], length: int, offset: int = 0) -> Uploaded:
        """PUT `body`."""
        shepherd, ticket = self._world.of_turl(turl)

        async def work() -> Uploaded:
            upload = Upload(ticket, _broken_when_idle(self._world.clock, body), length, offset)
            return await shepherd.running().receive(self._caller, upload)

        uploaded: Uploaded = await self._world.network.carry(self._source, shepherd.node, "PUT", work)
        return uploaded

    async def offset(self, turl: str) -> int:
        """Bytes kept of an interrupted push."""
        shepherd, ticket = self._world.of_turl(turl)

        async def work() -> int:
            return await shepherd.running().offset(self._caller, ticket)

        kept: int = await self._world.network.carry(self._source, shepherd.node, "HEAD", work)
        return kept


async def _broken_when_idle(clock: SimClock, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body as a connection delivers it: when its sender is gone, it breaks."""
    while True:
        piece = asyncio.ensure_future(_next(body))
        idle = asyncio.ensure_future(clock.sleep(BODY_IDLE_MS))
        try:
            await asyncio.wait((piece, idle), return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            if not piece.done():
                piece.cancel()
        if not piece.done():
            raise CheloniaError(Kind.NETWORK, "PUT", "", "the sender is gone")
        chunk = piece.result()
        if chunk is None:
            return
        yield chunk


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    return await anext(body, None)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 4096):
        yield data[start : start + 4096]
        await asyncio.sleep(0)


def _shepherd_settings(shepherd: SimShepherd) -> ShepherdSettings:
    base_url = shepherd.service_id.removesuffix("/Shepherd")
    return ShepherdSettings(
        service_id=shepherd.service_id,
        base_url=base_url,
        dn=shepherd.dn,
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
