"""The clusters that are measured: processes on this machine, mutual TLS between them, started as `cheloniad dev` does.

`dev` is the whole cluster with A-Hash, Librarian and Bartender in one process. `split` has the A-Hash in a process of
its own, so that every request of the Librarian to it goes over TLS. `whole` is one process with all four services.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from chelonia.core.errors import CheloniaError
from chelonia.core.values import replace
from chelonia.hosting.config import NodeConfig, TrustedService, load_config, render_config
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_bartender, remote_files
from chelonia.hosting.net.tls import TlsStore
from chelonia.hosting.setup.dev import DevCluster, DevOptions
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.client import Client
from chelonia_clients.settings import Wish

CHELONIAD = (sys.executable, "-m", "chelonia.hosting.cheloniad")
STEADY = (sys.executable, str(Path(__file__).with_name("steady.py")))
READY_S, COPIED_S = 60.0, 120.0


class Running:
    """A cluster that serves: where its `cluster.json` is, and its processes."""

    def __init__(self, directory: Path) -> None:
        self.description = directory / "cluster.json"
        self._tls: TlsStore | None = None

    def pids(self) -> tuple[int, ...]:
        """The processes that serve."""
        told: dict[str, Any] = json.loads(self.description.read_text())
        services = (told[name] for name in ("ahash", "librarian", "bartender", "shepherds"))
        return tuple(dict.fromkeys(entry["pid"] for entries in services for entry in entries))

    def pid(self, url: str) -> int:
        """The process that serves an address, as `cheloniad dev` started it."""
        told: dict[str, Any] = json.loads(self.description.read_text())
        entries = [entry for service in ("ahash", "librarian", "bartender", "shepherds") for entry in told[service]]
        return next(int(entry["pid"]) for entry in entries if entry["url"] == url)

    def client(self) -> Client:
        """A user with one connection of his own who repeats nothing, so that every failed request counts."""
        settings = connect.settle_here(Wish(cluster=self.description), {})
        if self._tls is None:
            self._tls = TlsStore(connect.find(settings, {}).tls, SystemClock().now_ms)
        link = open_link(self._tls)
        urls, patience = settings.bartender_urls(), RetryLimits(retry_ms=0)
        files = remote_files(link, urls, patience)
        return Client(remote_bartender(link, urls, patience), files, link.client, retry_ms=0)

    def administrator(self) -> Administrator:
        """A client of the services themselves, with the administrator's certificate."""
        return connect.administrator_from_environment(Wish(cluster=self.description), {})


async def all_copied(asking: Administrator) -> None:
    """Wait until every blob has all its copies."""
    give_up = time.monotonic() + COPIED_S
    while True:
        status = await asking.heal_status()
        if not (sum(each.blobs for each in status.exposed) or status.copies_to_go or status.copying):
            return
        if time.monotonic() > give_up:
            raise SystemExit(f"copies are still missing: {status.copies_to_go} to go")
        await asyncio.sleep(0.25)


@asynccontextmanager
async def dev(scratch: Path, shepherds: int, *, replicas: int = 1, steady: bool = False) -> AsyncIterator[Running]:
    """Run a whole cluster below a fresh directory, which is gone at the end. `replicas` of the A-Hash: 1 or 3.
    `steady`: with the intervals of production."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="dev-") as name:
        directory = Path(name)
        options = ("--shepherds", str(shepherds), "--replicas", str(replicas), "--no-restart", "--trash-keep-s", "10")
        command = (*(STEADY if steady else CHELONIAD), "dev", "--dir", name, *options)
        with (directory / "dev.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            if not any(line.strip() == "ready" for line in process.stdout):
                raise SystemExit(f"the cluster did not start:\n{(directory / 'dev.log').read_text()}")
            yield Running(directory)
        finally:
            stop([process])


@asynccontextmanager
async def split(scratch: Path) -> AsyncIterator[Running]:
    """An A-Hash in one process, Librarian and Bartender in another; no Shepherds."""
    async with _run(scratch, 0, lambda nodes: _in_two(*nodes)) as running:
        yield running


@asynccontextmanager
async def whole(scratch: Path) -> AsyncIterator[Running]:
    """All four services in one process; one Shepherd."""
    async with _run(scratch, 1, lambda nodes: _in_one(*nodes)) as running:
        yield running


@asynccontextmanager
async def _run(
    scratch: Path, shepherds: int, arranged: Callable[[list[NodeConfig]], Sequence[NodeConfig]]
) -> AsyncIterator[Running]:
    """The services of `dev`, as `arranged` puts them into processes."""
    with tempfile.TemporaryDirectory(dir=scratch, prefix="nodes-") as name:
        directory = Path(name)
        DevCluster(DevOptions(directory, shepherds)).prepare()
        nodes = arranged([load_config(path) for path in sorted((directory / "conf").glob("*.toml"))])
        processes = [start(directory, config) for config in nodes]
        try:
            _describe(directory, nodes, processes)
            running = Running(directory)
            await _until_serving(running, directory)
            yield running
        finally:
            stop(processes[::-1])


def _in_one(core: NodeConfig, shepherd: NodeConfig) -> tuple[NodeConfig]:
    """Put a Shepherd into the core node, at its own port, under the node's DN."""
    section = shepherd.shepherd
    assert section is not None
    own = tuple(replace(each, serves=tuple(s for s in each.serves if s != "metrics")) for each in shepherd.listen)
    (dn,) = {entry.dn for entry in core.trust.services if entry.role == "ahash"}
    trusted = (*core.trust.services, TrustedService("shepherd", section.id, dn))
    core = replace(core, trust=replace(core.trust, services=trusted), listen=(*core.listen, *own))
    return (replace(core, shepherd=replace(section, librarians=())),)


def _in_two(core: NodeConfig) -> tuple[NodeConfig, NodeConfig]:
    """Take the A-Hash out of the core node, to a port of its own."""
    section, librarian = core.ahash, core.librarian
    assert section is not None
    assert librarian is not None
    service, *doors = core.listen
    port = 1 + max(listener.port for listener in core.listen)
    url = f"https://localhost:{port}/AHash"
    trusted = tuple(_moved(entry, url) for entry in core.trust.services)
    core = replace(core, trust=replace(core.trust, services=trusted))
    ahash = replace(
        core,
        node=replace(core.node, name="ahash"),
        listen=(replace(service, port=port, serves=("ahash", "metrics")),),
        ahash=replace(section, id=url),
        librarian=None,
        bartender=None,
    )
    front = replace(
        core,
        node=replace(core.node, name="front"),
        listen=(replace(service, serves=("librarian", "metrics")), *doors),
        ahash=None,
        librarian=replace(librarian, ahash=(url,)),
    )
    return ahash, front


def _moved(entry: TrustedService, url: str) -> TrustedService:
    return replace(entry, id=url) if entry.role == "ahash" else entry


def start(directory: Path, config: NodeConfig) -> subprocess.Popen[str]:
    """Start one node below the directory of a cluster that was prepared."""
    path = directory / "conf" / f"{config.node.name}.toml"
    path.write_text(render_config(config))
    with (directory / "log" / f"{config.node.name}.log").open("wb") as log:
        return subprocess.Popen((*CHELONIAD, "run", "--config", str(path)), stdout=log, stderr=log, text=True)


def _describe(directory: Path, nodes: Sequence[NodeConfig], processes: Sequence[subprocess.Popen[str]]) -> None:
    certs = directory / "certs"
    told: dict[str, Any] = {"ca_dir": str(certs / "certificates"), "user_proxy": str(certs / "user-proxy.pem")}
    for name, service in (
        ("ahash", "ahash"),
        ("librarian", "librarian"),
        ("bartender", "bartender"),
        ("shepherds", "shepherd"),
    ):
        sections = [(getattr(node, service), process.pid) for node, process in zip(nodes, processes, strict=True)]
        told[name] = [{"url": section.id, "pid": pid} for section, pid in sections if section is not None]
    (directory / "cluster.json").write_text(json.dumps(told))


async def _until_serving(running: Running, directory: Path) -> None:
    give_up = time.monotonic() + READY_S
    while True:
        try:
            async with running.client() as client:
                await client.exists("/")
            return
        except CheloniaError as error:
            if time.monotonic() > give_up:
                logs = "\n".join(path.read_text()[-2000:] for path in (directory / "log").glob("*.log"))
                raise SystemExit(f"the cluster did not start: {error}\n{logs}") from error
        await asyncio.sleep(0.1)


def stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End them, the last one begun first in the list; kill those that do not end."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
