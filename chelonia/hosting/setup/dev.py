"""A whole cluster on this machine: certificates, configurations, core nodes and N Shepherds as processes.

The core is one node with A-Hash, Librarian and Bartender, or one node for each replica of the A-Hash. The first two of
those have a Librarian and a Bartender too.

Everything is below one directory and is made once: a second start on it finds the same certificates, ports and data.
- `certs/`: CA in the grid-security layout, and certificates of hosts, users, administrator, a service
- `conf/*.toml`: one configuration per process, readable and editable
- `data/`, `log/`: data and logs of each process
- `cluster.json`: where everything is, rewritten whole whenever a process id changes

For tests and demos: everyone may read and add under `/`, and all intervals are short.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Final

from chelonia.ahash.settings import AHashSettings
from chelonia.core.caller import Call
from chelonia.core.cluster.placement import NODE_ALIVE
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.durable_files import write_file
from chelonia.hosting.ahash_replica import found_store
from chelonia.hosting.config import (
    AHashSection,
    BartenderSection,
    LibrarianSection,
    ListenSection,
    NodeConfig,
    NodeSection,
    PeerEntry,
    ShepherdSection,
    TlsSection,
    TrustedService,
    TrustSection,
    render_config,
)
from chelonia.hosting.doors.grants import RegistryPace
from chelonia.hosting.logging_setup import LogSettings
from chelonia.hosting.net.certificates import (
    CertificateAuthority,
    Issued,
    KeyKind,
    load_key,
    make_key,
    make_proxy,
)
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_client import ClientLimits
from chelonia.hosting.net.identity import identity_of_chain
from chelonia.hosting.net.rpc_client import Link, RetryLimits, open_link, remote_ahash, remote_librarian
from chelonia.hosting.net.tls import TlsSettings, TlsStore, load_own_chain
from chelonia.hosting.setup.host_files import is_free
from chelonia.hosting.supervisor import ChildProcess, Program, stop_all
from chelonia.librarian.settings import LibrarianSettings
from chelonia.shepherd.settings import dev as dev_shepherd

log = logging.getLogger("chelonia.dev")

CA_SUBJECT: Final = "/DC=org/DC=chelonia/O=Dev/CN=Chelonia Dev CA"
NAMES: Final = ("localhost", "127.0.0.1", "::1")
HOST: Final = "127.0.0.1"
PORTS_PER_NODE: Final = 2
FRONTS: Final = 2
"""Nodes of a replicated core that have a Librarian and a Bartender: any one of them may die."""
PORTS_END: Final = 65_536
PORT_FIRST, PORT_LAST = 20_000, 31_000
"""Ports below the range from which the system takes them by itself, so that a restart finds ours free."""
PORT_TRIES, PORT_RETRY_S = 30, 0.1
STOP_MS: Final = 30_000
LOOK_S: Final = 0.05
"""Pause between two looks whether all serve."""
SILENT_S: Final = 10.0
"""Longest silence towards a person who waits for that."""
PROXY_LIFETIME_S: Final = 7 * 24 * 3600
EVERYONE: Final[Mapping[str, str]] = {"ALL": "+read +addEntry"}
TRASH_KEEP_MS: Final = 3_600_000
"""Time for which deleted files of a development cluster can be brought back."""


@dataclass(frozen=True, slots=True)
class DevOptions:
    """Options of a cluster. `port_base` 0: found at the first start and kept. `small_as_files`: no segments are made,
    so that each replica can be read, and harmed, as a file."""

    directory: Path
    shepherds: int
    restart: bool = True
    port_base: int = 0
    replicas: int = 1
    trash_keep_ms: int = TRASH_KEEP_MS
    small_as_files: bool = False


@dataclass(frozen=True, slots=True)
class DevNode:
    """One node of the cluster: its name, ports and certificate. `replica`: number of its replica of the A-Hash (0:
    none, or the A-Hash is alone); `front`: whether it has a Librarian and a Bartender."""

    name: str
    port: int
    data_port: int
    certs: Path
    replica: int = 0
    replica_port: int = 0
    files_port: int = 0
    s3_port: int = 0
    front: bool = False
    core: bool = False

    @property
    def services(self) -> tuple[str, ...]:
        if not self.core:
            return ("Shepherd",)
        return ("AHash", "Librarian", "Bartender") if self.front else ("AHash",)

    @property
    def ports(self) -> tuple[int, ...]:
        every = (self.port, self.data_port, self.replica_port, self.files_port, self.s3_port)
        return tuple(filter(None, every))

    @property
    def cert(self) -> Path:
        return self.certs / f"{self.name}-cert.pem"

    @property
    def key(self) -> Path:
        return self.certs / f"{self.name}-key.pem"

    @property
    def dn(self) -> Dn:
        return dn_of(self.cert, self.key)

    def url(self, service: str) -> str:
        """Return the address of a service on it; the Bartender is on the users' port."""
        return f"https://localhost:{self.data_port if service == 'Bartender' else self.port}/{service}"


@dataclass(frozen=True, slots=True)
class Kept:
    """Facts that a cluster settles at its first start: `nodes` is how many have ports, `cluster` the id of a group."""

    port_base: int
    nodes: int = 11
    replicas: int = 1
    cluster: str = ""
    founded: bool = False


class DevCluster:
    """The cluster below one directory."""

    def __init__(self, options: DevOptions) -> None:
        self._options = options
        self._root = options.directory.resolve()
        self._certs = self._root / "certs"
        self._children: dict[str, ChildProcess] = {}
        self._places: dict[str, DevNode] = {}
        self._serves = False
        """Whether `ready` was printed."""

    async def run(self, run_node: Callable[[Path], int]) -> int:
        """Prepare, start, print `ready`, and stay until SIGTERM or SIGINT; return the exit code.

        Args: `run_node`: runs the node of a configuration to its end, in a process of its own; returns the exit code.
        """
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        self._root.mkdir(parents=True, exist_ok=True)
        lock = self._lock()
        places = self.prepare()
        (self._root / "cluster.json").unlink(missing_ok=True)  # until all serve there is nothing to use
        _report(
            f"starting {len(places)} processes: {', '.join(place.name for place in places)}; logs: {self._root / 'log'}"
        )
        await self._await_ports(places)
        tasks = [asyncio.create_task(self._child(place, run_node).run()) for place in places]
        readiness = asyncio.create_task(self._until_ready(places))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((readiness, stopped), return_when=asyncio.FIRST_COMPLETED)
            if readiness.done():
                readiness.result()
                self._serves = True
                self._write_cluster()
                sys.stdout.write("ready\n")
                sys.stdout.flush()
                cluster = quote(str(self._root.resolve() / "cluster.json"))
                _report(f"in another terminal: export CHELONIA_CLUSTER={cluster}")
            await stopped
        finally:
            readiness.cancel()
            await stop_all([self._children[place.name] for place in places if not place.core], STOP_MS)
            await stop_all([self._children[place.name] for place in places if place.core], STOP_MS)
            await asyncio.wait(tasks)
            os.close(lock)
        return 0

    # --- what is made once ---

    def prepare(self) -> list[DevNode]:
        """Make what is missing; return the nodes, the core first."""
        for name in ("certs", "conf", "data", "log"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        kept = self._kept()
        places = self._lay_out(kept)
        self._make_certificates(places)
        secret = self._root / "data" / "bartender.key"
        if not secret.exists():
            write_file(secret, os.urandom(32).hex().encode(), 0o400)
        for place in places:
            config = self._config(place, places, kept)
            (self._root / "conf" / f"{place.name}.toml").write_text(render_config(config), encoding="utf-8")
            if place.replica == 1 and not kept.founded:
                assert config.ahash is not None
                found_store(Path(config.ahash.data_dir), kept.cluster)
        self._keep(replace(kept, founded=True))
        return places

    def _lay_out(self, kept: Kept) -> list[DevNode]:
        """Return the nodes: the core's first, then the Shepherds; replicas talk on ports behind all others."""
        replicas, base = kept.replicas, kept.port_base
        cores = ["core"] if replicas == 1 else [f"core{n}" for n in range(1, replicas + 1)]
        names = [*cores, *(f"shepherd{n}" for n in range(1, self._options.shepherds + 1))]
        places = [
            DevNode(name, base + PORTS_PER_NODE * n, base + PORTS_PER_NODE * n + 1, self._certs)
            for n, name in enumerate(names)
        ]
        for n in range(replicas):
            replica = n + 1 if replicas > 1 else 0
            port, front = base + PORTS_PER_NODE * kept.nodes + n, n < FRONTS
            files, s3 = (port + replicas, port + replicas + FRONTS) if front else (0, 0)
            places[n] = replace(places[n], replica=replica, replica_port=port, front=front, core=True)
            places[n] = replace(places[n], files_port=files, s3_port=s3)
        return places

    def _kept(self) -> Kept:
        """Return the facts of the first start; settle them if this is the first. Raises: BAD_CONFIG, BAD_REQUEST."""
        path = self._root / "conf" / "ports.json"
        options = self._options
        if path.exists():
            kept = Kept(**json.loads(path.read_text()))
            if options.port_base not in (0, kept.port_base):
                cause = f"this cluster has its ports from {kept.port_base}: they are in the names of its services"
                raise CheloniaError(Kind.BAD_CONFIG, "dev", str(self._root), cause)
            if options.replicas != kept.replicas:
                cause = f"this cluster was made with --replicas {kept.replicas}: say so, or begin in a new directory"
                raise CheloniaError(Kind.BAD_CONFIG, "dev", str(self._root), cause)
            return kept
        nodes = max(options.shepherds, 10) + options.replicas
        count = PORTS_PER_NODE * nodes + options.replicas + 2 * FRONTS
        if options.port_base and not 1 <= options.port_base <= PORTS_END - count:
            cause = f"--port-base is from 1 to {PORTS_END - count}: {count} ports follow"
            raise CheloniaError(Kind.BAD_REQUEST, "dev", str(options.port_base), cause)
        base = options.port_base or _free_ports(count)
        return self._keep(Kept(base, nodes, options.replicas, SystemIds().uuid()))

    def _keep(self, kept: Kept) -> Kept:
        (self._root / "conf" / "ports.json").write_text(json.dumps(asdict(kept)))
        return kept

    async def _await_ports(self, places: list[DevNode]) -> None:
        """Give processes that just end time to free the ports, which cannot change: services are named by them.

        Raises: UNAVAILABLE.
        """
        taken: list[int] = []
        for _ in range(PORT_TRIES):
            taken = [port for place in places for port in place.ports if not is_free(port, HOST)]
            if not taken:
                return
            await asyncio.sleep(PORT_RETRY_S)
        cause = f"port {', '.join(map(str, taken))} is taken by another process: stop that first"
        raise CheloniaError(Kind.UNAVAILABLE, "dev", str(self._root), cause)

    def _lock(self) -> int:
        """Take the directory for this process alone. Raises: UNAVAILABLE when another has it."""
        handle = os.open(self._root / "dev.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            cause = "another `cheloniad dev` runs on this directory: stop it first"
            raise CheloniaError(Kind.UNAVAILABLE, "dev", str(self._root), cause) from error
        return handle

    def _make_certificates(self, places: list[DevNode]) -> None:
        now = SystemClock().now_ms()
        if (self._certs / "ca" / "cakey.pem").exists():
            ca = CertificateAuthority.load(self._certs)
            ca.write_crl(now)
        else:
            ca = CertificateAuthority.create(self._certs, CA_SUBJECT, now)
        base = CA_SUBJECT.rpartition("/")[0]
        for place in places:
            if not place.cert.exists():
                # Elliptic keys: a Shepherd signs a receipt with it for every replica.
                key = make_key(KeyKind.P256)
                ca.issue_host(f"{base}/CN=host/{place.name}", NAMES, now, key=key).write(place.cert, place.key)
        if not self._file("service-cert").exists():
            issued = ca.issue_host(f"{base}/CN=host/service", NAMES, now)
            issued.write(self._file("service-cert"), self._file("service-key"))
        for name, person in (("user", "Jane Doe"), ("user2", "Juan Perez"), ("admin", "Dev Admin")):
            if not self._file(f"{name}-cert").exists():
                ca.issue_user(f"{base}/CN={person}", now).write(self._file(f"{name}-cert"), self._file(f"{name}-key"))
        self._renew_proxy()

    def _renew_proxy(self) -> None:
        """Make the user a new proxy, at every start, as proxies are short-lived."""
        user = load_issued(self._file("user-cert"), self._file("user-key"))
        proxy = make_proxy(user, SystemClock().now_ms(), lifetime_s=PROXY_LIFETIME_S)
        proxy.write_proxy(self._file("user-proxy"))

    def _file(self, name: str) -> Path:
        return self._certs / f"{name}.pem"

    # --- configurations ---

    def _config(self, place: DevNode, places: list[DevNode], kept: Kept) -> NodeConfig:
        node = NodeConfig(
            node=NodeSection(name=place.name, stop_deadline_ms=20_000),
            listen=(),
            tls=TlsSection(str(place.cert), str(place.key), str(self._certs / "certificates"), reload_check_ms=2_000),
            log=LogSettings(audit_file=str(self._root / "log" / f"{place.name}-audit.log")),
            trust=self._trust(places),
            registry=RegistryPace(refresh_ms=1_000, miss_ms=200),
            client=ClientLimits(connect_ms=2_000),
        )
        if not place.core:
            return self._shepherd(node, place, [other for other in places if other.front])
        node = replace(
            node,
            listen=(ListenSection(place.port, ("ahash", "metrics"), HOST),),
            ahash=self._ahash(place, [other for other in places if other.replica], kept),
        )
        return self._front(node, place) if place.front else node

    def _ahash(self, place: DevNode, replicas: list[DevNode], kept: Kept) -> AHashSection:
        settings = AHashSettings(cluster=kept.cluster if replicas else "")
        entries = tuple(PeerEntry(each.replica, HOST, each.replica_port, each.dn) for each in replicas)
        backups = self._root / "backups"
        backups.mkdir(exist_ok=True)
        group = (place.replica, HOST, entries)
        return AHashSection(place.url("AHash"), self._data(place), str(backups), *group, tuning=_tuned(settings))

    def _front(self, node: NodeConfig, place: DevNode) -> NodeConfig:
        owner = dn_of(self._file("admin-cert"), self._file("admin-key"))
        quick = replace(
            LibrarianSettings.dev(owner),
            root_policy=EVERYONE,
            root_default_policy=EVERYONE,
            trash_keep_ms=self._options.trash_keep_ms,
        )
        durable = max(1, min(2, self._options.shepherds))
        return replace(
            node,
            listen=(
                ListenSection(place.port, ("ahash", "librarian", "metrics"), HOST),
                ListenSection(place.data_port, ("bartender", "metrics"), HOST, "optional"),
                ListenSection(place.files_port, ("files",), HOST, "optional"),
                ListenSection(place.s3_port, ("s3",), HOST, "optional"),
            ),
            librarian=LibrarianSection(
                place.url("Librarian"), (), str(self._root / "data" / "record.key"), _tuned(quick)
            ),
            bartender=BartenderSection(
                place.url("Bartender"), str(self._root / "data" / "bartender.key"), tuning={"durable_copies": durable}
            ),
        )

    def _shepherd(self, node: NodeConfig, place: DevNode, fronts: list[DevNode]) -> NodeConfig:
        data_url = f"https://localhost:{place.data_port}"
        url = place.url("Shepherd")
        quick = replace(dev_shepherd(ServiceId(url), data_url), domain=place.name)
        if self._options.small_as_files:
            quick = replace(quick, segment_replica_bytes_max=0)
        librarians = tuple(front.url("Librarian") for front in fronts)
        section = ShepherdSection(url, data_url, self._data(place), librarians, _tuned(quick))
        return replace(
            node,
            listen=(
                ListenSection(place.port, ("shepherd", "metrics"), HOST),
                ListenSection(place.data_port, ("turl", "metrics"), HOST, "optional"),
            ),
            shepherd=section,
        )

    def _trust(self, places: list[DevNode]) -> TrustSection:
        services = [
            TrustedService(name.lower(), place.url(name), place.dn) for place in places for name in place.services
        ]
        service_dn = dn_of(self._file("service-cert"), self._file("service-key"))
        services.append(TrustedService("librarian", "https://localhost/Librarian/service", service_dn))
        admin = dn_of(self._file("admin-cert"), self._file("admin-key"))
        return TrustSection((admin,), tuple(services), (CA_SUBJECT,))

    def _data(self, place: DevNode) -> str:
        name = f"ahash{place.replica or ''}" if place.core else place.name
        return str(self._root / "data" / name)

    # --- processes ---

    def _child(self, place: DevNode, run_node: Callable[[Path], int]) -> ChildProcess:
        config = self._root / "conf" / f"{place.name}.toml"
        program = Program(place.name, partial(run_node, config), self._root / "log" / f"{place.name}.log")
        child = ChildProcess(program, restart=self._options.restart, changed=self._write_cluster)
        self._children[place.name] = child
        self._places[place.name] = place
        return child

    def _write_cluster(self) -> None:
        """Write cluster.json whole, once all serve: a reader sees the old one or the new one."""
        if not self._serves:
            return
        path = self._root / "cluster.json"
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.describe(), indent=2) + "\n", encoding="utf-8")
        scratch.replace(path)

    def describe(self) -> dict[str, Any]:
        """Return the content of cluster.json."""
        out: dict[str, Any] = {}
        for name in ("AHash", "Librarian", "Bartender", "Shepherd"):
            key = "shepherds" if name == "Shepherd" else name.lower()
            out[key] = [self._entry(place, name) for place in self._places.values() if name in place.services]
        out["files"] = [f"https://localhost:{place.files_port}/" for place in self._places.values() if place.files_port]
        out["s3"] = [f"https://localhost:{place.s3_port}" for place in self._places.values() if place.s3_port]
        out["ca_dir"] = str(self._certs / "certificates")
        out["user_proxy"] = str(self._file("user-proxy"))
        for name in ("user", "user2", "admin", "service"):
            out[f"{name}_cert"] = str(self._file(f"{name}-cert"))
            out[f"{name}_key"] = str(self._file(f"{name}-key"))
        return out

    def _entry(self, place: DevNode, service: str) -> dict[str, Any]:
        url = place.url(service)
        return {"id": url, "url": url, "pid": self._children[place.name].pid, "data_dir": self._data(place)}

    async def _until_ready(self, places: list[DevNode]) -> None:
        """Return when every Librarian has heard, in this run, that every Shepherd takes bytes, and every replica of the
        A-Hash has its vote."""
        files = TlsSettings(self._file("admin-cert"), self._file("admin-key"), ca_dir=self._certs / "certificates")
        link = open_link(TlsStore(files, SystemClock().now_ms))
        async with link.client:
            waited = 0.0
            while True:
                try:
                    if await _all_serve(link, places):
                        return
                except CheloniaError as error:
                    if error.kind not in (Kind.NETWORK, Kind.UNAVAILABLE, Kind.TIMEOUT, Kind.DENIED):
                        raise
                dead = [name for name, child in self._children.items() if child.pid and not child.alive]
                if dead and not self._options.restart:
                    cause = f"{', '.join(dead)} ended at once: see {self._root / 'log'}"
                    raise CheloniaError(Kind.UNAVAILABLE, "dev", cause=cause)
                await asyncio.sleep(LOOK_S)
                waited += LOOK_S
                if waited > SILENT_S:
                    waited = 0.0
                    _report("not all of them serve yet")


def _report(line: str) -> None:
    sys.stderr.write(f"cheloniad dev: {line}\n")
    sys.stderr.flush()


async def _all_serve(link: Link, places: list[DevNode]) -> bool:
    """Return whether all services know each other. Raises: the error of one that does not answer yet."""
    once, call = RetryLimits(retry_ms=0, read_ms=5_000), Call(request_id="dev-ready")
    wanted = {place.url("Shepherd") for place in places if not place.core}
    for place in places:
        if place.front:
            nodes = await remote_librarian(link, (place.url("Librarian"),), once).nodes(call)
            if not wanted <= {node.shepherd for node in nodes if _takes_bytes(node)}:
                return False
        if place.replica:
            status = await remote_ahash(link, (place.url("AHash"),), once).status(call.strongly())
            if not all(view.role in ("master", "follower") for view in status.replicas):
                return False
    return True


def _takes_bytes(node: NodeView) -> bool:
    """Return whether a Shepherd was heard in this run and takes new bytes, or has a lasting reason not to."""
    alive = node.state == NODE_ALIVE and node.boot > 0
    return alive and bool(node.accepting or node.drain or node.trouble or not node.free_bytes)


def load_issued(cert: Path, key: Path) -> Issued:
    """Read a certificate with its chain and key. Raises: BAD_CONFIG when they do not fit or cannot be used."""
    chain = load_own_chain(TlsSettings(cert, key), SystemClock().now_ms())
    return Issued(tuple(chain), load_key(key))


def dn_of(cert: Path, key: Path) -> Dn:
    """Return the end-entity subject of a certificate file."""
    return identity_of_chain(load_own_chain(TlsSettings(cert, key), SystemClock().now_ms())).dn


def _tuned(settings: Any) -> dict[str, Any]:
    """Return the settings that differ from the defaults, and can be set in a configuration."""
    kept = ("service_id", "base_url", "dn", "version", "bootstrap", "token_key")
    out: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if item.name not in kept and value != item.default:
            out[item.name] = dict(value) if isinstance(value, Mapping) else value
    return out


def _free_ports(count: int) -> int:
    """Return the first of `count` free ports in a row. Raises: BAD_CONFIG when there are none."""
    for _ in range(200):
        first = random.randrange(PORT_FIRST, PORT_LAST - count)
        if all(is_free(port, HOST) for port in range(first, first + count)):
            return first
    raise CheloniaError(Kind.BAD_CONFIG, "dev", cause=f"no {count} free ports in a row: name some with --port-base")
