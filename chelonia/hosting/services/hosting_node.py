"""The state that a node shares with the services it hosts: identity, clocks, links, doors, jobs, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import SERVICES_OBJECT, Dn, Ms, ServiceId
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import Librarian, ServiceRecord
from chelonia.core.timing.jobs import Job, Jobs, JobView, Wait, every
from chelonia.core.values import replace
from chelonia.hosting.config import NodeConfig, trusted
from chelonia.hosting.doors.compact_server import Offered
from chelonia.hosting.doors.grants import RoleRegistry, Source
from chelonia.hosting.doors.guarded import Guarded, GuardParts
from chelonia.hosting.doors.routes import Readiness
from chelonia.hosting.doors.soap_door import SoapParts
from chelonia.hosting.metrics import Counts, Metrics
from chelonia.hosting.neighbours import ShepherdDirectory
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_messages import Door
from chelonia.hosting.net.identity import Attested, Chain
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_librarian
from chelonia.hosting.net.tls import TlsSettings, TlsStore

log = logging.getLogger("chelonia.node")

START_RETRY_MS: Final = 500
"""Pause between two tries to start a Librarian whose A-Hash does not answer."""


class HostingNode:
    """One process, as its services see it. Make it inside the event loop that will run it."""

    def __init__(self, config: NodeConfig) -> None:
        """Read certificates and keys. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        self.config = config
        self.clock, self.ids, self.metrics = SystemClock(), SystemIds(), Metrics()
        files = TlsSettings(Path(config.tls.cert), Path(config.tls.key), ca_dir=Path(config.tls.ca_dir))
        if Path(config.tls.voms_dir).is_dir():
            import_module("chelonia.hosting.net.voms")  # now, while no request waits
        self.tls = TlsStore(files, self.clock.now_ms, self._attested)
        own = self.tls.own_identity
        assert own is not None, "a node has a certificate"
        self.dn: Dn = own.dn
        self.link = open_link(self.tls, config.client)
        self.client, self.horizon = self.link.client, self.link.horizon
        self.directory = ShepherdDirectory(self.link)
        self.readiness = Readiness()
        self.ahash: AHash | None = None
        self.librarian: Librarian | None = None
        self.doors: dict[str, Door] = {}
        self.offered: dict[str, Offered] = {}
        self.guarded: Guarded | None = None
        self.tasks: dict[asyncio.Task[None], str] = {}
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.farewells: list[Callable[[], Awaitable[None]]] = []
        self._loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        self.failure = ""
        self.jobs = Jobs(self.clock)
        self.all_jobs: list[tuple[str, Callable[[], Jobs]]] = [("node", lambda: self.jobs)]
        issuers = config.trust.issuers
        if issuers and own.issuer not in issuers:
            cause = f"this node's own certificate is of {own.issuer}: the other nodes would refuse it; name that CA too"
            raise CheloniaError(Kind.BAD_CONFIG, "start", "trust.issuers", cause)
        self.registry = RoleRegistry(trusted(config), self._registry_source(), self.clock, config.registry, issuers)
        self.soap = SoapParts(self.registry, self.metrics, self.horizon)

    def _attested(self, chain: Chain, now_ms: Ms) -> Attested:
        from chelonia.hosting.net.voms import Voms  # here: 1.6 MiB, which a node without organisations may never need

        directory = Path(self.config.tls.voms_dir)
        return Voms(directory, lambda: self.tls.trust, lambda: self.tls.own_names).verify(chain, now_ms)

    def own(self, role: Role, service_id: str) -> Call:
        """Return the context of the node's own calls of a service."""
        return Call(self.dn, (role,), ServiceId(service_id), request_id=f"{self.config.node.name}-self")

    def remote_librarians(self, urls: tuple[str, ...], own_id: ServiceId) -> Librarian:
        """Return a failing-over stub, which calls each once: a Shepherd retries in its own loops."""
        return remote_librarian(replace(self.link, service_id=own_id), urls, RetryLimits(retry_ms=0, read_ms=10_000))

    def each_librarian(self, urls: tuple[str, ...], own_id: ServiceId) -> Callable[[], Mapping[str, Librarian]]:
        """Return a function that returns a stub of each present Librarian by URL: named, approved, or in this process.
        Any of them may lead repair."""
        own = self.config.librarian
        here = {own.id: self.librarian} if own is not None and self.librarian is not None else {}
        stub = lru_cache(lambda url: self.remote_librarians((url,), own_id))
        return lambda: {url: stub(url) for url in (*urls, *self.registry.registered(Role.LIBRARIAN))} | here

    def _registry_source(self) -> Source | None:
        config = self.config
        if config.ahash is not None:
            return self._services_of_ahash
        if config.librarian is not None:
            return self._services_of_librarian
        for section in (config.bartender, config.shepherd):
            if section is not None:
                own_id = ServiceId(section.id)
                remote = remote_librarian(self.link, section.librarians, RetryLimits(retry_ms=0, read_ms=5_000))
                call = self.own(Role.SHEPHERD, own_id)
                return lambda: remote.services(call)
        return None

    async def _services_of_ahash(self) -> tuple[ServiceRecord, ...]:
        if self.ahash is None:
            raise CheloniaError(Kind.UNAVAILABLE, "registry", cause="the A-Hash is starting")
        from chelonia.librarian.presence import registry

        stored = await self.ahash.get(self.own(Role.LIBRARIAN, ""), (SERVICES_OBJECT,))
        return registry.parse(stored[0])

    async def _services_of_librarian(self) -> tuple[ServiceRecord, ...]:
        if self.librarian is None:
            raise CheloniaError(Kind.UNAVAILABLE, "registry", cause="the Librarian is starting")
        return await self.librarian.services(self.own(Role.LIBRARIAN, ""))

    def guard(self, limit_ms: Callable[[], int]) -> None:
        """Have users' connections cut when the event loop stands still for `limit_ms`; the first call counts."""
        if self.guarded is not None:
            return
        config = self.config
        parts = GuardParts(limit_ms, self.metrics.cut, config.node.name, config.log.format)
        self.guarded = Guarded(parts)
        self.forever("connection guard", self.guarded.run)

    def served(self, service: str, method: str, kind: str, seconds: float) -> None:
        """Count a call in the compact encoding, which is a sign of life."""
        self.metrics.operation(service, method, kind, seconds)
        if self.guarded is not None:
            self.guarded.served(self.clock.monotonic_ms())

    async def persist(self, name: str, start: Callable[[], Awaitable[None]]) -> bool:
        """Start a service, again and again while its errors are retryable; return False when the node stops before."""
        waiting = False
        while not self.stop.is_set():
            try:
                await start()
                return True
            except CheloniaError as error:
                if not error.meaning.retryable:
                    raise
                if not waiting:
                    log.info("%s waits to start error=%s", name, error)
                waiting = True
            await self.clock.sleep(START_RETRY_MS)
        return False

    def keep(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a service's main work; the node ends when it ends by itself."""
        task = asyncio.create_task(work, name=name)
        self.tasks[task] = name
        task.add_done_callback(self.ended)

    def forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run background work whose one step has no end, as a job."""
        self.jobs.add(Job(name, every(0, work), Wait(0)))

    def job_views(self) -> tuple[JobView, ...]:
        return tuple(view for service, jobs in self.all_jobs for view in jobs().views(service))

    def bugs(self) -> Counts:
        return {(view.service, view.name): view.bugs for view in self.job_views()}

    def ended(self, task: asyncio.Task[None]) -> None:
        name = self.tasks.pop(task, "")
        if task.cancelled() or not name:
            return
        error = task.exception()
        if error is not None and not isinstance(error, CheloniaError):  # a CheloniaError needs no stack trace
            log.error("background work failed: %s", name, exc_info=error)
        if not self.stop.is_set():
            self.fail(f"{name} ended: {error or 'it should go on for ever'}")

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.stop.set()

    def panicked(self, reason: str) -> None:
        """End the node: the store cannot go on in this process. Any thread may call this."""
        self._loop.call_soon_threadsafe(self.fail, f"the store panicked: {reason}")
