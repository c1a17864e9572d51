"""The composition root: one process that hosts any subset of the four services, bound together and to the world.

`_host_*` builds one service each: services in this process call each other directly, others through stubs. `run` keeps
the node up until SIGTERM, a panic of the store or the end of a background task; SIGHUP reads certificates again.
Stopping: listeners first (what has begun is finished), then background work, then stores.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from chelonia.ahash.group.service import ReplicatedAHash
from chelonia.ahash.service import BRIEF, AHashService, AHashSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.page_scrub import PageScrub
from chelonia.ahash.store.port import LocalDurability
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.bartender.service import BartenderService
from chelonia.bartender.settings import BartenderSettings
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.healing import HealStatus
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import SERVICES_OBJECT, Dn, ServiceId
from chelonia.core.names import parse_ln
from chelonia.core.operations import ACCESS_KEYS, FILES
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import Librarian, NodeView, ServiceRecord
from chelonia.core.timing.freezes import still_after_ms
from chelonia.core.timing.jobs import Job, Jobs, JobView, NodeJobs, Wait, every
from chelonia.hosting.ahash_replica import (
    REPLACE,
    RESTORE,
    ReplicaSurroundings,
    host_replica,
    leave_group,
    page_scrub,
    settings_of,
    store_settings,
    tell,
    unready,
)
from chelonia.hosting.config import (
    DOORS,
    AHashSection,
    BartenderSection,
    ListenSection,
    NodeConfig,
    files_url,
    read_secret,
    trusted,
)
from chelonia.hosting.directory import ShepherdDirectory
from chelonia.hosting.doors.compact_server import CompactDoor, CompactParts, Offered, offer
from chelonia.hosting.doors.data_door import DataDoor
from chelonia.hosting.doors.grants import RoleRegistry, Source
from chelonia.hosting.doors.guarded import Guarded, GuardParts
from chelonia.hosting.doors.http_server import HttpLimits, HttpServer, ListenSettings, ServerParts
from chelonia.hosting.doors.jobs_door import JobsDoor
from chelonia.hosting.doors.limit_notes import LimitNotes
from chelonia.hosting.doors.plain.bearer import Bearers
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.doors.plain.issuers import Issuers
from chelonia.hosting.doors.plain.parts import DoorParts
from chelonia.hosting.doors.plain.third_party import ThirdParty
from chelonia.hosting.doors.routes import Readiness, Routes, observer
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.doors.soap_door import SoapDoor, SoapParts
from chelonia.hosting.event_loop_watch import Strain
from chelonia.hosting.metrics import Counts, Metrics
from chelonia.hosting.neighbours import HttpNeighbours, heartbeats_end
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_messages import Door
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_ahash, remote_librarian
from chelonia.hosting.net.strangers import Strangers
from chelonia.hosting.net.tls import ClientCertificate, TlsSettings, TlsStore
from chelonia.hosting.net.voms import Voms
from chelonia.hosting.record_key import load_record_key, save_record_key
from chelonia.hosting.signer import KeyVerifier, load_signer
from chelonia.hosting.thread_pool import ThreadWorker
from chelonia.hosting.transfer.front import HttpBytes
from chelonia.hosting.transfer.push import HttpCarrier, HttpTransfers
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.presence import registry as stored_registry
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from chelonia.shepherd.node import ShepherdPorts
from chelonia.shepherd.service import ShepherdService
from chelonia.shepherd.settings import ShepherdSettings
from chelonia.shepherd.store.blobs_files import FileBlobs
from chelonia.shepherd.store.store_state import StateFile
from chelonia.wire.operations_ahash import AHASH
from chelonia.wire.operations_bartender import BARTENDER
from chelonia.wire.operations_librarian import LIBRARIAN
from chelonia.wire.operations_shepherd import SHEPHERD
from chelonia.wire.soap import Capacity

log = logging.getLogger("chelonia.node")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
GOODBYE_MS: Final = 1_000
"""What telling the Librarians that a Shepherd ends may take."""
START_RETRY_MS: Final = 500
"""Pause before a Librarian whose A-Hash does not answer yet tries to start again."""
STORES_CLOSE_MS: Final = 20_000
"""What background work and stores get to end, each, before the process ends anyway."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the page of the cluster shows (`doors.plain.parts.Cluster`), asked by a Bartender in its own name."""

    librarian: Librarian
    call: Call
    jobs: Callable[[], tuple[JobView, ...]]

    async def nodes(self) -> tuple[NodeView, ...]:
        """All Shepherds."""
        return await self.librarian.nodes(self.call)

    async def healing(self) -> HealStatus:
        """Healing as the leader sees it."""
        return await self.librarian.heal_status(self.call)


class Node:
    """One process. Make it inside the event loop that will run it."""

    def __init__(self, config: NodeConfig) -> None:
        """Read certificates and keys. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        self._config = config
        self._clock, self._ids, self._metrics = SystemClock(), SystemIds(), Metrics()
        files = TlsSettings(Path(config.tls.cert), Path(config.tls.key), ca_dir=Path(config.tls.ca_dir))
        voms = Voms(Path(config.tls.voms_dir), lambda: self._tls.trust, lambda: self._tls.own_names)
        self._tls = TlsStore(files, self._clock.now_ms, voms.verify)
        self._replica_tls = TlsStore(files, self._clock.now_ms)
        self._nobody_tls = TlsStore(TlsSettings(ca_dir=files.ca_dir), self._clock.now_ms)
        own = self._tls.own_identity
        assert own is not None, "a node has a certificate"
        self._dn: Dn = own.dn
        self._link = open_link(self._tls, config.client)
        self._client, self._horizon = self._link.client, self._link.horizon
        self._directory = ShepherdDirectory(self._link)
        self._readiness = Readiness()
        self._ahash: AHash | None = None
        self._librarian: Librarian | None = None
        self._doors: dict[str, Door] = {}
        self._offered: dict[str, Offered] = {}
        self._servers: list[HttpServer] = []
        self._guarded: Guarded | None = None
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._farewells: list[Callable[[], Awaitable[None]]] = []
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._failure = ""
        self._jobs = Jobs(self._clock)
        self._all_jobs: dict[str, Callable[[], Jobs]] = {"node": lambda: self._jobs}
        issuers = config.trust.issuers
        if issuers and own.issuer not in issuers:
            cause = f"this node's own certificate is of {own.issuer}: the other nodes would refuse it; name that CA too"
            raise CheloniaError(Kind.BAD_CONFIG, "start", "trust.issuers", cause)
        self._registry = RoleRegistry(trusted(config), self._registry_source(), self._clock, config.registry, issuers)
        self._notes = LimitNotes(self._metrics.limits.hit)
        self._parts = SoapParts(self._registry, self._metrics, self._horizon, self._notes)

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serve until told to stop; returns the exit code. Raises: CheloniaError when it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            await self._start()
            on_ready()
            log.info("serving dn=%r listeners=%d", self._dn, len(self._servers))
            await self._stop.wait()
        finally:
            await self._shut_down()
        if self._failure:
            log.error("node failed: %s", self._failure)
        return EXIT_FAILED if self._failure else EXIT_OK

    def reload(self) -> None:
        """Read certificates, CAs and CRLs again; on failure the old ones stay."""
        try:
            self._tls.reload()
            self._replica_tls.reload()
            self._nobody_tls.reload()
        except CheloniaError as error:
            log.error("certificates not reloaded, the old ones stay error=%s", error)

    # --- the four services ---

    async def _start(self) -> None:
        self._keep("jobs", self._jobs.run())
        text = "Steps of background jobs that ended with an unexpected error."
        self._metrics.keep("job_failures", text, ("service", "job"), self._bugs)
        for host in (self._host_ahash, self._host_librarian, self._host_bartender, self._host_shepherd):
            if self._stop.is_set():
                return
            await host()
        self._metrics.read_with(self._certificate_days)
        self._jobs.add(Job("registry", self._registry.step, Wait(self._config.registry.refresh_ms)))
        pause = self._config.tls.reload_check_ms
        self._jobs.add(Job("certificates", every(pause, self._watch_certificates), Wait(pause)))
        process, name = self._ids.uuid(), self._config.node.name
        jobs_door = JobsDoor(self._registry, lambda: NodeJobs(name, process, self._job_views())).serve
        for section in self._config.listen:
            context = self._tls.server_context(ClientCertificate[section.client_certificate.upper()])
            listener = ListenSettings(section.host, section.port, context, section.client_certificate == "required")
            doors = {name: self._doors[name] for name in section.serves if name in self._doors}
            doors["jobs"] = jobs_door
            routes = Routes(doors, self._readiness, self._metrics if "metrics" in section.serves else None)
            serve = next((self._doors[name] for name in section.serves if name in DOORS), routes.serve)
            served = {*section.serves, *((FILES.name, ACCESS_KEYS.name) if "bartender" in section.serves else ())}
            offered = {name: port for name, port in self._offered.items() if name in served}
            door = CompactDoor(
                offered, CompactParts(self._registry, self._horizon, self._metrics.operation, self._notes)
            )
            guarded = self._guarded if "turl" in section.serves else None
            parts = ServerParts(
                self._clock, self._ids, self._tls.identify, observer(self._metrics), door, guarded,
                self._registry.has_role, self._notes,
            )  # fmt: skip
            server = HttpServer(serve, listener, parts, self._limits(section))
            await server.start()
            self._servers.append(server)

    def _limits(self, section: ListenSection) -> HttpLimits:
        """S3 clients show no certificate; one of them holds as many connections as a user elsewhere."""
        limits = self._config.limits
        if "s3" not in section.serves:
            return limits
        return replace(limits, connections_per_address_max=limits.connections_per_dn_max)

    async def _host_ahash(self) -> None:
        section = self._config.ahash
        if section is None:
            return
        scrub = page_scrub(section, self._clock)
        ahash: ReplicatedAHash | AHashService
        if section.replica_id:
            ahash = await self._host_replica(section, scrub)
        else:
            ahash = await self._host_alone(section, scrub)
        if scrub.on:
            cure = REPLACE if section.replica_id else RESTORE
            self._forever("page scrub", lambda: scrub.run(cure, self._ids.uniform()))
        self._ahash = ahash
        self._doors["ahash"] = SoapDoor(AHASH, ahash, section.id, self._parts).serve
        self._offered |= offer(AHASH.table, ahash, BRIEF, ahash.at_once)
        call = self._own(Role.LIBRARIAN, section.id)

        async def check() -> None:
            status = await ahash.status(call)
            tell(self._metrics, status)
            self._metrics.gauge("ahash_commits", "Commits of the A-Hash in this generation.", status.position.sequence)
            self._metrics.gauge("ahash_free_bytes", "Space left for the A-Hash.", status.free_bytes)
            self._metrics.gauge("ahash_writable", "Whether this A-Hash takes changes.", status.writable)
            if status.replica:
                unready(status)

        self._watch("ahash", check)

    async def _host_alone(self, section: AHashSection, scrub: PageScrub) -> AHashService:
        leave_group(Path(section.data_dir))
        store = await asyncio.to_thread(BdbStore, Path(section.data_dir), store_settings(section), self._panicked)
        ahash = await self._started_ahash(store, settings_of(section))
        ahash.pages_seen = scrub.seen
        self._closers.append(ahash.close)
        self._keep("ahash", ahash.run())
        return ahash

    async def _host_replica(self, section: AHashSection, scrub: PageScrub) -> ReplicatedAHash:
        around = ReplicaSurroundings(
            self._dn, self._replica_tls, self._clock, self._ids, self._horizon, scrub, self._config.trust.issuers
        )
        replica = await host_replica(section, settings_of(section), around)
        self._closers.append(replica.close)
        self._keep("ahash", replica.run())
        return replica.ahash

    async def _started_ahash(self, store: BdbStore, settings: AHashSettings) -> AHashService:
        """Start the A-Hash. A fresh store that nobody named gets a new name: what was before it is another cluster."""
        executor = ThreadExecutor()
        durability = LocalDurability(self._horizon)
        ahash = AHashService(store, executor, self._clock, settings, durability)
        try:
            await ahash.start()
        except CheloniaError as error:
            if error.kind is not Kind.BAD_CONFIG or settings.cluster:
                raise
            ahash = AHashService(store, executor, self._clock, replace(settings, cluster=self._ids.uuid()), durability)
            try:
                await ahash.start()
            except CheloniaError:
                raise error from None
        return ahash

    async def _host_librarian(self) -> None:
        section = self._config.librarian
        if section is None:
            return
        tuning = dict(section.tuning)
        admins = self._config.trust.administrators
        tuning.setdefault("root_owner", Dn(admins[0] if admins else ""))
        known = load_record_key(section.record_key_file)
        settings = LibrarianSettings(bootstrap=trusted(self._config), record_key=known, **tuning)
        neighbours, carrier, strain = HttpNeighbours(self._link), HttpCarrier(self._client), Strain()
        around = (neighbours, carrier, strain, self._metrics.limits)
        world = World(self._directory, KeyVerifier(), self._clock, self._ids, settings, *around)
        ahash = self._ahash or remote_ahash(self._link, section.ahash)
        librarian = LibrarianService(ahash, LibrarianIdentity(self._dn, ServiceId(section.id)), world)
        if not await self._persist("librarian", librarian.start):
            return
        save_record_key(section.record_key_file, librarian.record_key)
        self._closers.append(librarian.stop)
        self._forever("event loop watch", strain.run)
        self._keep("librarian", librarian.run())
        self._all_jobs["librarian"] = lambda: librarian.jobs
        self._metrics.keep(
            "transacts", "Transacts that applied, by the job or operation that they were made for.", ("cause",),
            lambda: {(cause,): count for cause, count in librarian.written.items()},
        )  # fmt: skip
        self._librarian = librarian
        ended = heartbeats_end(librarian.suspect)
        self._offered |= offer(LIBRARIAN.table, librarian)
        self._doors["librarian"] = SoapDoor(LIBRARIAN, librarian, section.id, self._parts, done=ended).serve
        call = self._own(Role.LIBRARIAN, section.id)

        async def check() -> None:
            self._metrics.healing(await librarian.heal_status(call))
            self._metrics.drill((await librarian.drill_status(call)).drill)
            health = await librarian.health(call)
            self._metrics.replicas(health.replicas)
            for name in ("exposed", "queued", "copying", "erasing", "held_back"):
                self._metrics.gauge(
                    f"repair_{name}", f"Repair as this Librarian sees it: {name}.", getattr(health, name)
                )

        self._watch("librarian", check)

    async def _host_bartender(self) -> None:
        section = self._config.bartender
        if section is None:
            return
        key = read_secret(Path(section.token_key_file))
        settings = BartenderSettings(self._dn, ServiceId(section.id), key, **section.tuning)
        if not settings.files_url:
            settings = replace(settings, files_url=files_url(section.id, self._config.listen))
        librarian = self._librarian or remote_librarian(self._link, section.librarians)
        bartender = BartenderService(librarian, self._directory, self._clock, self._ids, settings)
        self._metrics.count(bartender.limits)
        self._offered |= offer(BARTENDER.table, bartender) | offer(FILES, bartender.files)
        self._offered |= offer(ACCESS_KEYS, bartender.keys)
        self._doors["bartender"] = SoapDoor(BARTENDER, bartender, section.id, self._parts).serve
        context = self._nobody_tls.client_context()
        strangers = Strangers(lambda: context, settings.transfer_networks)
        self._closers.append(strangers.close)
        third = ThirdParty(strangers)
        plain = DoorParts(
            bartender.files, HttpBytes(self._client), self._dn, bounds.REPLICAS_DEFAULT, bartender, third,
            cluster=ClusterView(librarian, self._own(Role.BARTENDER, section.id), self._job_views),
        )  # fmt: skip
        bearers = Bearers(self._registry, key, self._clock, settings.share_lifetime_ms_max, self._is_revoked,
                          Issuers(section.issuers, self._clock).call_of)  # fmt: skip
        self._doors["files"] = PlainDoor(plain, bearers.call_of, self._metrics).serve
        self._doors["s3"] = self._s3_door(plain, bartender, section)
        call = self._own(Role.BARTENDER, section.id)

        async def check() -> None:
            await librarian.nodes(call)

        self._readiness.add("bartender", check)

    def _s3_door(self, plain: DoorParts, bartender: BartenderService, section: BartenderSection) -> Door:
        own = replace(plain, copies=section.s3_copies)
        root = parse_ln(section.s3_root)
        return S3Door(S3Parts(own, bartender.keys, self._clock, root, section.s3_domain.lower()), self._metrics).serve

    async def _host_shepherd(self) -> None:
        section = self._config.shepherd
        if section is None:
            return
        root, own_id = Path(section.data_dir), ServiceId(section.id)
        settings = ShepherdSettings(
            service_id=own_id, base_url=section.data_url, dn=self._dn, version=version("chelonia"), **section.tuning
        )
        worker = ThreadWorker(self._config.node.worker_threads, "hash")
        blobs = await asyncio.to_thread(FileBlobs, root, min_free_bytes=settings.min_free_bytes)
        librarians = self._librarian or self._remote_librarians(section.librarians, own_id)
        ports = ShepherdPorts(
            blobs=blobs,
            state_file=StateFile(root / "state.json"),
            librarians=librarians,
            transfers=HttpTransfers(self._client),
            signer=load_signer(Path(self._config.tls.key)),
            worker=worker,
            clock=self._clock,
            ids=self._ids,
            each_librarian=self._each_librarian(section.librarians, own_id),
            limits=self._metrics.limits,
        )
        shepherd = ShepherdService(ports, settings)
        self._guard(lambda: still_after_ms(shepherd.lease_ms, settings.heartbeat_ms))
        await shepherd.start()
        self._farewells.append(shepherd.leave)

        async def close() -> None:
            await shepherd.stop()
            await asyncio.to_thread(blobs.close)
            worker.close()

        self._closers.append(close)
        self._keep("shepherd", shepherd.run())
        self._all_jobs["shepherd"] = lambda: shepherd.jobs
        self._directory.host(own_id, shepherd)
        call = self._own(Role.LIBRARIAN, section.id)

        async def capacity() -> Capacity:
            status = await shepherd.status(call)
            return Capacity(status.free_bytes, status.total_bytes)

        async def check() -> None:
            status = await shepherd.status(call)
            self._metrics.gauge(
                "shepherd_disk_present", "Whether this Shepherd's store is there and its own.", not status.trouble
            )
            if status.trouble:
                raise CheloniaError(Kind.UNAVAILABLE, "shepherd", own_id, status.trouble)
            self._metrics.gauge("shepherd_replicas", "Replicas on this Shepherd.", status.replicas)
            self._metrics.gauge("shepherd_free_bytes", "Space left for replicas.", status.free_bytes)
            self._metrics.gauge("shepherd_quarantined", "Replicas set aside.", status.quarantined)
            self._metrics.gauge("shepherd_damaged", "Replicas found damaged since the start.", status.damaged)
            pages = shepherd.inventory_pages
            self._metrics.gauge("shepherd_inventory_pages", "Pages of its inventory compared since the start.", pages)
            failed = shepherd.erasures_failed
            self._metrics.gauge("shepherd_erasures_failed", "Tries to erase that failed since the start.", failed)
            for name in ("quarantined_bytes", "unfinished_bytes"):
                self._metrics.gauge(f"shepherd_{name}", f"Space that could be had back: {name}.", getattr(status, name))

        self._watch("shepherd", check)
        self._offered |= offer(SHEPHERD.table, shepherd)
        self._doors["shepherd"] = SoapDoor(SHEPHERD, shepherd, section.id, self._parts, capacity).serve
        self._doors["turl"] = DataDoor(shepherd, self._registry, self._metrics).serve

    def _is_revoked(self, credential: str) -> bool:
        """Whether a CRL names a certificate (`Call.credential`)."""
        serial, _, issuer = credential.partition(" ")
        return any(int(serial, 16) in crl.revoked for crl in self._tls.trust.crls.get(issuer, ()))

    def _guard(self, limit_ms: Callable[[], int]) -> None:
        """Have users' connections cut when the event loop has not turned for `limit_ms`."""
        config = self._config
        parts = GuardParts(limit_ms, self._metrics.cut, config.node.name, config.log.format)
        self._guarded = Guarded(parts)
        self._forever("connection guard", self._guarded.run)

    # --- bindings ---

    def _own(self, role: Role, service_id: str) -> Call:
        """The context of what the node itself asks a service it hosts."""
        return Call(self._dn, (role,), ServiceId(service_id), request_id=f"{self._config.node.name}-self")

    def _remote_librarians(self, urls: tuple[str, ...], own_id: ServiceId) -> Librarian:
        """A failing-over stub; a Shepherd retries in its own loops, so the stub itself asks each once."""
        return remote_librarian(replace(self._link, service_id=own_id), urls, RetryLimits(retry_ms=0, read_ms=10_000))

    def _each_librarian(self, urls: tuple[str, ...], own_id: ServiceId) -> tuple[Librarian, ...]:
        """All Librarians, each by itself: the one in this process, and those that are named."""
        own = self._config.librarian
        others = tuple(self._remote_librarians((url,), own_id) for url in urls if own is None or url != own.id)
        return others if self._librarian is None else (self._librarian, *others)

    def _registry_source(self) -> Source | None:
        config = self._config
        if config.ahash is not None:
            return self._services_of_ahash
        if config.librarian is not None:
            return self._services_of_librarian
        for section in (config.bartender, config.shepherd):
            if section is not None:
                own_id = ServiceId(section.id)
                remote = remote_librarian(self._link, section.librarians, RetryLimits(retry_ms=0, read_ms=5_000))
                call = self._own(Role.SHEPHERD, own_id)
                return lambda: remote.services(call)
        return None

    async def _services_of_ahash(self) -> tuple[ServiceRecord, ...]:
        if self._ahash is None:
            raise CheloniaError(Kind.UNAVAILABLE, "registry", cause="the A-Hash is starting")
        stored = await self._ahash.get(self._own(Role.LIBRARIAN, ""), (SERVICES_OBJECT,))
        return stored_registry.parse(stored[0])

    async def _services_of_librarian(self) -> tuple[ServiceRecord, ...]:
        if self._librarian is None:
            raise CheloniaError(Kind.UNAVAILABLE, "registry", cause="the Librarian is starting")
        return await self._librarian.services(self._own(Role.LIBRARIAN, ""))

    # --- life ---

    async def _persist(self, what: str, start: Callable[[], Awaitable[None]]) -> bool:
        """Start a service; while what it needs does not answer, try again. Returns False when told to stop before."""
        waiting = False
        while not self._stop.is_set():
            try:
                await start()
                return True
            except CheloniaError as error:
                if not error.meaning.retryable:
                    raise
                if not waiting:
                    log.info("%s waits to start error=%s", what, error)
                waiting = True
            await self._clock.sleep(START_RETRY_MS)
        return False

    def _keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run what the node is there for; when it ends by itself the node ends with it."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    def _forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work whose one step has no end, as a job."""
        self._jobs.add(Job(name, every(0, work), Wait(0)))

    def _job_views(self) -> tuple[JobView, ...]:
        return tuple(view for service, jobs in self._all_jobs.items() for view in jobs().views(service))

    def _bugs(self) -> Counts:
        return {(view.service, view.name): view.bugs for view in self._job_views()}

    def _ended(self, task: asyncio.Task[None]) -> None:
        name = self._tasks.pop(task, "")
        if task.cancelled() or not name:
            return
        error = task.exception()
        if error is not None and not isinstance(error, CheloniaError):  # those say themselves what is wrong
            log.error("background work failed: %s", name, exc_info=error)
        if not self._stop.is_set():
            self._fail(f"{name} ended: {error or 'it should go on for ever'}")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._stop.set()

    def _panicked(self, reason: str) -> None:
        """The store cannot go on in this process. Called from any thread."""
        self._loop.call_soon_threadsafe(self._fail, f"the store panicked: {reason}")

    def _watch(self, part: str, check: Callable[[], Awaitable[None]]) -> None:
        """Ask `check` for readiness and for gauges."""
        self._readiness.add(part, check)
        self._metrics.read_with(check)

    async def _certificate_days(self) -> None:
        self._metrics.certificate_days(self._tls.days_left())

    async def _watch_certificates(self) -> None:
        """Take up certificates and CRLs that were replaced on disk without a SIGHUP."""
        try:
            await asyncio.to_thread(self._tls.reload_if_changed)
            await asyncio.to_thread(self._replica_tls.reload_if_changed)
            await asyncio.to_thread(self._nobody_tls.reload_if_changed)
        except CheloniaError as error:
            log.error("certificates not reloaded, the old ones stay error=%s", error)

    async def _say_goodbye(self) -> None:
        """Tell the cluster that this node ends, before it refuses anybody."""
        try:
            async with asyncio.timeout(GOODBYE_MS / 1000):
                await asyncio.gather(*(leave() for leave in self._farewells))
        except (CheloniaError, TimeoutError) as error:
            log.info("the cluster finds out by itself that this node ends error=%r", error)

    async def _shut_down(self) -> None:
        self._readiness.stopping = True
        await self._say_goodbye()
        deadline = self._config.node.stop_deadline_ms
        await asyncio.gather(*(server.stop(deadline) for server in self._servers))
        tasks = [task for task, name in self._tasks.items() if name != "ahash"]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STORES_CLOSE_MS / 1000)
        for close in reversed(self._closers):
            try:
                async with asyncio.timeout(STORES_CLOSE_MS / 1000):
                    await close()
            except (CheloniaError, TimeoutError) as error:
                self._failure = self._failure or f"closing failed: {error!r}"
        await self._client.close()
        log.info("stopped")
