"""One process that hosts any subset of the four services, bound together and to the world.

Each module of `chelonia/hosting/services` binds one service. Services of this process call each other directly, others
through stubs. `run` returns after SIGTERM, a panic of the store or the end of a background task; SIGHUP reloads
certificates. A node stops its listeners first (they finish what has begun), then background work, then stores.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.operations.access_keys import ACCESS_KEYS
from chelonia.core.operations.files import FILES
from chelonia.core.timing.jobs import Job, NodeJobs, Wait, every
from chelonia.core.values import replace
from chelonia.hosting.config import DOORS, ListenSection, NodeConfig
from chelonia.hosting.doors.compact_server import STARTING, CompactDoor, CompactParts, Offered
from chelonia.hosting.doors.http_server import HttpLimits, HttpServer, ListenSettings, ServerParts
from chelonia.hosting.doors.routes import Routes, observer, serve_jobs
from chelonia.hosting.net.http_messages import Door, HttpRequest, HttpResponse, error_answer
from chelonia.hosting.net.tls import ClientCertificate
from chelonia.hosting.services.hosting_node import HostingNode

log = logging.getLogger("chelonia.node")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
GUARDED: Final = {"turl", *DOORS}
"""Services whose clients' connections the guard cuts when this process stands still."""
SERVICES: Final = ("ahash", "librarian", "bartender", "shepherd")
"""The services in their order of start: each may use those before it."""
GOODBYE_MS: Final = 1_000
"""Time to notify the Librarians that a Shepherd ends."""
STORES_CLOSE_MS: Final = 20_000
"""Time for background work to end, and for each store, before the process ends anyway."""


async def _starting(request: HttpRequest) -> HttpResponse:
    """Answer for a service that has not started yet."""
    return error_answer(CheloniaError(Kind.UNAVAILABLE, "start", request.path, STARTING))


class Node:
    """One process. Make it inside the event loop that will run it."""

    def __init__(self, config: NodeConfig) -> None:
        """Read certificates and keys. Raises: BAD_CONFIG, EXPIRED, UNTRUSTED."""
        self._node = HostingNode(config)
        self._servers: list[HttpServer] = []
        self._open: dict[ListenSection, tuple[dict[str, Door], dict[str, Offered]]] = {}
        """The doors and ports of each open listener."""
        self._process = self._node.ids.uuid()
        self._version = version("chelonia")  # now, as loaded: an upgrade may install another meanwhile

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serve until a signal or a failure; return the exit code. Raises: CheloniaError when it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._node.stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            await self._start()
            self._node.readiness.held = ""
            on_ready()
            log.info("serving dn=%r listeners=%d", self._node.dn, len(self._servers))
            await self._node.stop.wait()
        finally:
            await self._shut_down()
        if self._node.failure:
            log.error("node failed: %s", self._node.failure)
        return EXIT_FAILED if self._node.failure else EXIT_OK

    def reload(self, *, replaced: bool = False) -> None:
        """Read certificates, CAs and CRLs again, or (`replaced`) those alone that were replaced on disk; on failure the
        old ones stay."""
        try:
            read = self._node.tls.reload_if_changed if replaced else self._node.tls.reload
            read()
        except CheloniaError as error:
            log.error("certificates not reloaded, the old ones stay error=%s", error)

    # --- the four services ---

    async def _start(self) -> None:
        node = self._node
        node.keep("jobs", node.jobs.run())
        text = "Steps of background jobs that ended with an unexpected error."
        node.metrics.keep("job_failures", text, ("service", "job"), node.bugs)
        node.metrics.read_with(self._certificate_days)
        node.metrics.read_with(node.readiness.gauge(node.metrics))
        await self._host()

    async def _listen(self, section: ListenSection) -> None:
        """Open a listener; an open one takes up the services that started since."""
        node = self._node
        doors, offered = self._open.setdefault(section, ({}, {}))
        opens = not doors
        if not self._servers:
            self._keep_fresh()
        served = {*section.serves, *((FILES.name, ACCESS_KEYS.name) if "bartender" in section.serves else ())}
        doors |= {name: node.doors.get(name, _starting) for name in section.serves if name in (*SERVICES, *node.doors)}
        offered |= {name: port for name, port in node.offered.items() if name in served}
        if not opens:
            return
        doors["jobs"] = partial(serve_jobs, node.registry, self._jobs)
        context = node.tls.server_context(ClientCertificate[section.client_certificate.upper()])
        required = section.client_certificate == "required"
        listener = ListenSettings(section.host, section.port, context, required, section.shared)
        routes = Routes(doors, node.readiness, node.metrics if "metrics" in section.serves else None)
        serve = next((node.doors[name] for name in section.serves if name in DOORS), routes.serve)
        parts = CompactParts(node.registry, node.horizon, node.served, node.metrics.limits)
        door = CompactDoor(offered, parts, frozenset(served))
        guarded = node.guarded if GUARDED & {*section.serves} else None
        server = HttpServer(
            serve, listener,
            ServerParts(
                node.clock, node.ids, node.tls.identify, observer(node.metrics), door, guarded,
                node.registry.has_role, node.metrics.limits,
            ),
            self._limits(section),
        )  # fmt: skip
        await server.start()
        self._servers.append(server)

    def _keep_fresh(self) -> None:
        node = self._node
        node.jobs.add(Job("registry", node.registry.step, Wait(node.config.registry.refresh_ms)))
        pause, watch = node.config.tls.reload_check_ms, partial(asyncio.to_thread, self.reload, replaced=True)
        node.jobs.add(Job("certificates", every(pause, watch), Wait(pause)))

    def _jobs(self) -> NodeJobs:
        return NodeJobs(self._node.config.node.name, self._process, self._node.job_views(), self._version)

    async def _host(self) -> None:
        """Start the services and open their listeners; import none that is not hosted.

        The A-Hash's listener opens before the Librarian, which may wait: health then answers why."""
        node, listeners = self._node, self._node.config.listen
        sections = {name: section for name in SERVICES if (section := getattr(self._node.config, name)) is not None}
        # All before any begins: an import blocks the event loop, and a master's follower must not be late.
        services = {name: import_module(f"chelonia.hosting.services.{name}") for name in sections}
        for name, section in sections.items():
            if not node.stop.is_set():
                await services[name].host(node, section)
            if name == "ahash":
                for listener in listeners:
                    if name in listener.serves and not GUARDED & {*listener.serves}:
                        await self._listen(listener)
        if node.stop.is_set():
            return
        for listener in listeners:
            await self._listen(listener)

    def _limits(self, section: ListenSection) -> HttpLimits:
        """Return a listener's limits. S3 clients show no certificate, so an address gets at least the connections of a
        DN."""
        limits = self._node.config.limits
        if "s3" not in section.serves:
            return limits
        most = max(limits.connections_per_address_max, limits.connections_per_dn_max)
        return replace(limits, connections_per_address_max=most)

    async def _certificate_days(self) -> None:
        days = self._node.tls.days_left()
        self._node.metrics.gauges("certificate_days_left", "Days until the first expires.", "what", days)

    async def _announce_end(self) -> None:
        """Notify the cluster that this node ends, before it refuses calls."""
        try:
            async with asyncio.timeout(GOODBYE_MS / 1000):
                await asyncio.gather(*(leave() for leave in self._node.farewells))
        except (CheloniaError, TimeoutError) as error:
            log.info("the cluster finds out by itself that this node ends error=%r", error)

    async def _shut_down(self) -> None:
        self._node.readiness.held = "it is stopping"
        await self._announce_end()
        deadline = self._node.config.node.stop_deadline_ms
        await asyncio.gather(*(server.stop(deadline) for server in self._servers))
        tasks = [task for task, name in self._node.tasks.items() if name != "ahash"]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STORES_CLOSE_MS / 1000)
        for close in reversed(self._node.closers):
            try:
                async with asyncio.timeout(STORES_CLOSE_MS / 1000):
                    await close()
            except Exception as error:
                self._node.failure = self._node.failure or f"closing failed: {error!r}"
        await self._node.client.close()
        log.info("stopped")
