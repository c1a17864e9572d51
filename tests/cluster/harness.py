"""A real cluster for tests: `cheloniad dev` in a directory of its own, its processes, and clients of every kind.

Everything is addressed by name: `core` (A-Hash, Librarian, Bartender; `core1`... where the A-Hash has replicas),
`shepherd1`..., and callers `user`, `user2`,
`admin`, `service`, `proxy`, `anonymous`, or the name of a node. Signals go only to processes of this cluster, by the
pids it wrote into cluster.json.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.bartender import Bartender
from chelonia.core.ports.librarian import Librarian, NodeView
from chelonia.core.ports.shepherd import Shepherd
from chelonia.hosting.config import parse_config, render_config
from chelonia.hosting.net.certificates import CertificateAuthority
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.rpc_client import (
    Link,
    RetryLimits,
    open_link,
    remote_ahash,
    remote_bartender,
    remote_files,
    remote_librarian,
    remote_shepherd,
)
from chelonia.hosting.net.tls import TlsSettings, TlsStore
from chelonia_clients.client import RETRY_MS, Client
from tests.support.polling import patience, poll, poll_async
from tests.support.ports import Range, claimed

START_S = 150.0
LOG_LINES, COMPLAINTS = 30, 20
AUDIT = " at=chelonia.audit "
LOUD = re.compile(
    r"level=(WARNING|ERROR|CRITICAL)|^Traceback|^\S*(Error|Exception):|^Exception ignored in|^\S+:\d+: \w*Warning: "
)
READ_MS = 15_000

Away = (CheloniaError, OSError)
"""Errors of a look at a cluster that is not whole."""


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate and its key; a proxy file is both. Empty for an anonymous caller."""

    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """The error kind of a SOAP Fault or of a plain refusal, "" when there is none."""
        found = re.search(rb"<c:kind>([^<]*)</c:kind>", self.body)
        return found[1].decode() if found else self.headers.get("chelonia-error", "")

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ports:
    """Typed stubs of every service, as one caller, over one pool of connections."""

    link: Link
    ahash: AHash
    librarian: Librarian
    bartender: Bartender
    shepherds: Mapping[str, Shepherd]


@dataclass
class Cluster:
    """One `cheloniad dev` below `root`; `stop` it at the end, whatever happens."""

    root: Path
    shepherds: int = 3
    restart: bool = True
    replicas: int = 1
    process: subprocess.Popen[str] | None = None
    expected: list[str] = field(default_factory=list)
    by_hand: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    taken: Range | None = None
    small_as_files: bool = False

    # --- life ---

    def start(self) -> Cluster:
        """Start it and wait for `ready`."""
        argv = [sys.executable, "-m", "chelonia.hosting.cheloniad", "dev", "--dir", str(self.root)]
        argv += [
            "--shepherds",
            str(self.shepherds),
            "--replicas",
            str(self.replicas),
            "--port-base",
            str(self.ports_taken().first),
            "--trash-keep-s",
            "10",
            *([] if self.restart else ["--no-restart"]),
            *(["--small-as-files"] if self.small_as_files else []),
        ]
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "dev.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        line = self._first_line(START_S)
        assert line == "ready\n", f"cheloniad dev said {line!r}; it ended with {self.process.poll()}\n{self.logs()}"
        return self

    def ports_taken(self) -> Range:
        """Its ports, the same at each start."""
        if self.taken is None:
            self.taken = claimed()
        return self.taken

    def give_up(self) -> None:
        """Give its ports back: it will not be started again."""
        if self.taken is not None:
            self.taken.close()

    def _first_line(self, deadline: float) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if selector.select(deadline * patience()) else "nothing in time"

    def stop(self, deadline: float = 40.0) -> int:
        """SIGTERM; returns the exit code. A cluster that is not running is left alone."""
        process, self.process = self.process, None
        for node in self.by_hand.values():
            node.terminate()
        for node in self.by_hand.values():
            node.wait(deadline * patience())
        self.by_hand.clear()
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return self._reap(process, deadline)

    def crash(self) -> None:
        """Kill the supervisor, and with it everything: the kernel kills its children."""
        process, self.process = self.process, None
        assert process is not None
        pids = self.pids()
        process.kill()
        self._reap(process, 30.0)
        for name, pid in pids.items():
            poll(lambda pid=pid: not runs(pid), 30.0, what=f"{name} dies with its supervisor")  # type: ignore[misc]

    def _reap(self, process: subprocess.Popen[str], deadline: float) -> int:
        assert process.stdout is not None
        try:
            return process.wait(deadline * patience())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()

    # --- what cluster.json says ---

    @property
    def info(self) -> dict[str, Any]:
        """cluster.json as it is now."""
        read: dict[str, Any] = json.loads((self.root / "cluster.json").read_text())
        return read

    @property
    def names(self) -> list[str]:
        """The nodes, the core first."""
        return [*self.core_names, *self.shepherd_names]

    @property
    def core_names(self) -> list[str]:
        """The nodes with an A-Hash."""
        return ["core"] if self.replicas == 1 else [f"core{number}" for number in range(1, self.replicas + 1)]

    @property
    def shepherd_names(self) -> list[str]:
        return [f"shepherd{number}" for number in range(1, self.shepherds + 1)]

    def entry(self, name: str) -> dict[str, Any]:
        """`{id, url, pid, data_dir}` of a node (of the core, its A-Hash)."""
        info = self.info
        key, number = ("ahash", name[4:]) if name.startswith("core") else ("shepherds", name[8:])
        found: dict[str, Any] = info[key][int(number or 1) - 1]
        return found

    def pids(self) -> dict[str, int]:
        """The pid of every node's process."""
        return {name: self.pid(name) for name in self.names}

    def pid(self, name: str) -> int:
        """The pid of a node's process as last started."""
        return int(self.entry(name)["pid"])

    def url(self, service: str) -> str:
        """The URL of `ahash`, `librarian`, `bartender`, or of a Shepherd by name."""
        if service.startswith("shepherd"):
            return str(self.entry(service)["url"])
        return self.urls(service)[0]

    def urls(self, service: str) -> tuple[str, ...]:
        """The URLs of all instances of `ahash`, `librarian` or `bartender`."""
        return tuple(entry["url"] for entry in self.info[service])

    @property
    def files_url(self) -> str:
        """Where the plain door of the first Bartender is, without a slash at the end."""
        return str(self.info["files"][0]).rstrip("/")

    @property
    def s3_url(self) -> str:
        """Where the S3 door of the first Bartender is."""
        return str(self.info["s3"][0])

    def named(self, url: str) -> str:
        """The name of the Shepherd whose id, URL or TURL this is."""
        port = urlsplit(url.split(" ", 1)[0]).port
        for name in self.shepherd_names:
            own = urlsplit(self.url(name)).port
            if own is not None and port in (own, own + 1):
                return name
        raise AssertionError(f"no Shepherd has port {port}")

    def data_url(self, name: str) -> str:
        """Where a Shepherd serves TURLs."""
        parts = urlsplit(self.url(name))
        assert parts.port is not None
        return f"https://localhost:{parts.port + 1}"

    def data_dir(self, name: str) -> Path:
        """Where a node keeps its data."""
        return Path(self.entry(name)["data_dir"])

    def replica_file(self, location: str) -> Path:
        """The file of a replica, given a property of `locations` (`<Shepherd> <reference>`); a small one has none but
        in a cluster with `small_as_files`."""
        shepherd, _, reference = location.partition(" ")
        return self.data_dir(self.named(shepherd)) / "replicas" / reference[:2] / reference

    @property
    def ca(self) -> CertificateAuthority:
        return CertificateAuthority.load(self.root / "certs")

    @property
    def ca_dir(self) -> Path:
        return Path(self.info["ca_dir"])

    def files(self, who: str) -> Files:
        """Certificate and key of a caller."""
        if who == "anonymous":
            return Files()
        if who == "proxy":
            path = Path(self.info["user_proxy"])
            return Files(path, path)
        certs = self.root / "certs"
        return Files(certs / f"{who}-cert.pem", certs / f"{who}-key.pem")

    # --- processes ---

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal to one node's process; returns its pid."""
        pid = self.pid(name)
        assert self.process is not None, "the cluster is not running"
        assert parent_of(pid) == self.process.pid, f"{name} ({pid}) is not a child of this cluster"
        os.kill(pid, number)
        return pid

    def kill(self, name: str) -> int:
        """kill -9 one node; returns the pid it had."""
        pid = self.signal(name, signal.SIGKILL)
        poll(lambda: not runs(pid), 30.0, what=f"{name} is dead")
        return pid

    def start_node(self, name: str) -> None:
        """Start a node that died in a cluster without restart."""
        assert not self.restart, "the supervisor does that"
        argv = [sys.executable, "-m", "chelonia.hosting.cheloniad", "run"]
        argv += ["--config", str(self.root / "conf" / f"{name}.toml")]
        with (self.root / "log" / f"{name}.log").open("ab") as log:
            self.by_hand[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_restarted(self, name: str, old_pid: int) -> None:
        """Wait until the supervisor has started a node again."""
        poll(lambda: self.pid(name) != old_pid, 60.0, what=f"{name} is started again")

    def accept_store(self, name: str) -> str:
        """Accept a Shepherd's directory as it is now as its store, as an administrator does."""
        config = self.root / "conf" / f"{name}.toml"
        argv = [sys.executable, "-m", "chelonia.hosting.cheloniad", "accept-store", "--config", str(config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120 * patience(), check=True).stdout

    def reconfigure(self, name: str, **tables: Mapping[str, Any]) -> None:
        """Change tables of a node's configuration and start it again with it (until `dev` itself is restarted).

        Keys of a table are keys of the TOML table of that name; `tuning` of a service is a table inside.
        """
        path = self.root / "conf" / f"{name}.toml"
        config = tomllib.loads(path.read_text())
        for table, values in tables.items():
            merge(config[table], values)
        path.write_text(render_config(parse_config(config)))
        self.wait_restarted(name, self.signal(name, signal.SIGTERM))

    # --- the log ---

    def logs(self) -> str:
        """The daemons' complaints that no test declared, and the last lines of each log."""
        parts = ["--- complaints that nobody declared", *self.complaints()[:COMPLAINTS]]
        for path in (self.root / "dev.log", *sorted((self.root / "log").glob("*.log"))):
            if path.exists() and not path.name.endswith("-audit.log"):
                lines = [line for line in path.read_text("utf-8", "replace").splitlines() if AUDIT not in line]
                parts += [f"--- the end of {path.name}", *lines[-LOG_LINES:]]
        return "\n".join(parts)

    def log_of(self, name: str) -> str:
        return (self.root / "log" / f"{name}.log").read_text("utf-8", "replace")

    def expect_log(self, pattern: str) -> None:
        """Declare complaints of the daemons that a test provokes."""
        self.expected.append(pattern)

    def complaints(self) -> list[str]:
        """Lines of WARNING or worse, stack traces, and what Python itself warns of, that nobody declared."""
        found = []
        for path in (self.root / "dev.log", *sorted((self.root / "log").glob("*.log"))):
            if not path.exists():
                continue
            for line in path.read_text("utf-8", "replace").splitlines():
                loud = LOUD.search(line)
                if path.name == "dev.log" and " at=chelonia.supervisor ended name=" in line:
                    continue  # tests kill nodes
                if loud and not any(re.search(pattern, line) for pattern in self.expected):
                    found.append(f"{path.name}: {line}")
        return found

    def until_met(self, name: str, limit: str) -> None:
        """Wait until a node's log and metrics show that a limit was met: it may not have read the last bytes sent
        yet."""
        url = self.data_url(name) if name.startswith("shepherd") else self.url("bartender").rsplit("/", 1)[0]
        counted = re.compile(rf"^chelonia_limits_reached_total{{limit=\"{limit}\"}} [1-9]", re.MULTILINE)

        def met() -> bool:
            told = self.request("GET", f"{url}/metrics", "admin").text
            return counted.search(told) is not None and f"limit={limit!r}" in self.log_of(name)

        poll(met, what=f"{name} meets the limit of {limit}")

    # --- typed clients ---

    def tls(self, who: str | Files) -> TlsStore:
        """The TLS settings of a caller."""
        files = self.files(who) if isinstance(who, str) else who
        if files.cert is not None and files.cert == files.key:
            settings = TlsSettings(proxy=files.cert, ca_dir=self.ca_dir)
        else:
            settings = TlsSettings(cert=files.cert, key=files.key, ca_dir=self.ca_dir)
        return TlsStore(settings, SystemClock().now_ms)

    @contextlib.asynccontextmanager
    async def ports(self, who: str | Files = "admin", *, retry_ms: int = 0) -> AsyncIterator[Ports]:
        """Stubs of all services as `who`."""
        times = patience()
        link, waits = open_link(self.tls(who)), RetryLimits(round(times * retry_ms), read_ms=round(times * READ_MS))
        async with link.client:
            yield Ports(
                link,
                remote_ahash(link, self.urls("ahash"), waits),
                remote_librarian(link, self.urls("librarian"), waits),
                remote_bartender(link, self.urls("bartender"), waits),
                {name: remote_shepherd(link, (self.url(name),), waits) for name in self.shepherd_names},
            )

    @contextlib.asynccontextmanager
    async def client(self, who: str | Files = "user", *, retry_ms: int = 10_000) -> AsyncIterator[Client]:
        """The SDK as `who`."""
        async with self.ports(who, retry_ms=retry_ms) as ports:
            files = remote_files(ports.link, self.urls("bartender"))
            yield Client(ports.bartender, files, ports.link.client, retry_ms=round(patience() * RETRY_MS))

    async def nodes(self) -> dict[str, NodeView]:
        """The Shepherds by name, as the Librarian sees them."""
        async with self.ports("admin") as ports:
            own = {self.url(name): name for name in self.shepherd_names}
            nodes = await ports.librarian.nodes(Call())
            return {own[node.shepherd]: node for node in nodes if node.shepherd in own}

    async def until_alive(self, *names: str, deadline: float = 60.0) -> None:
        """Wait until these Shepherds (all, when none is named) are alive in the Librarian's eyes."""
        wanted = names or tuple(self.shepherd_names)

        async def alive() -> bool:
            nodes = await self.nodes()
            return all(nodes[name].state == "alive" for name in wanted if name in nodes) and set(wanted) <= set(nodes)

        await poll_async(alive, deadline, tolerate=Away, what=f"{', '.join(wanted)} alive")

    async def until_serving(self, *names: str, deadline: float = 60.0) -> None:
        """Wait until these Shepherds' own processes answer: the Librarian never misses one that was away for a moment
        only."""
        for name in names:

            def serves(url: str = f"{self.data_url(name)}/readyz") -> bool:
                return self.request("GET", url).status == 200

            await poll_async(serves, deadline, tolerate=Away, what=f"{name} serves")
        await self.until_alive(*names, deadline=deadline)

    # --- bytes on a socket ---

    def context(self, who: str | Files = "user") -> ssl.SSLContext:
        """A plain TLS context of Python's own, as any foreign client would have."""
        files = self.files(who) if isinstance(who, str) else who
        context = ssl.create_default_context(capath=str(self.ca_dir))
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key)
        return context

    @contextlib.contextmanager
    def connected(self, url: str, who: str | Files = "user", timeout: float = 15.0) -> Iterator[ssl.SSLSocket]:
        """A TLS connection to where `url` points."""
        parts = urlsplit(url)
        assert parts.port is not None
        with (
            socket.create_connection(("127.0.0.1", parts.port), timeout * patience()) as plain,
            self.context(who).wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            yield secured

    def exchange(self, url: str, sent: bytes, who: str | Files = "user", *, end: bool = False) -> Answer:
        """Send exactly these bytes and read one answer. `end`: shut the connection down for writing then."""
        with self.connected(url, who) as connection:
            connection.sendall(sent)
            if end:
                connection.shutdown(socket.SHUT_WR)
            return read_answer(connection)

    def request(
        self,
        method: str,
        url: str,
        who: str | Files = "user",
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        parts = urlsplit(url)
        assert parts.port is not None
        connection = http.client.HTTPSConnection(
            "localhost", parts.port, context=self.context(who), timeout=20 * patience()
        )
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(method, target, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, lowered(answer.headers), answer.read())
        finally:
            connection.close()

    def soap(self, url: str, body: bytes, who: str | Files = "user") -> Answer:
        """POST these bytes as a SOAP message."""
        return self.request("POST", url, who, body=body, headers={"Content-Type": "text/xml; charset=utf-8"})


def read_answer(connection: ssl.SSLSocket) -> Answer:
    """Read one HTTP answer from a connection."""
    answer = http.client.HTTPResponse(connection)
    try:
        answer.begin()
        return Answer(answer.status, lowered(answer.headers), answer.read())
    finally:
        answer.close()


def lowered(headers: Mapping[str, str] | Message) -> dict[str, str]:
    """Headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Put values into a table, tables inside it one by one."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def runs(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def now_ms() -> Ms:
    """Real time, for certificates."""
    return Ms(time.time_ns() // 1_000_000)
