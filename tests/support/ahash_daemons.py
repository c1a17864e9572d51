"""A-Hash replicas as `cheloniad run` runs them: certificates, configurations, processes, the administrator's command.

It is for whole daemons what `ReplicaGroup` is for the shell alone: `Writers` and `verify` work on both. Records are
compared in the directories of killed processes, each recovered in a copy, not in a process's answers.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn
from chelonia.core.ports.ahash import AHash, AHashStatus
from chelonia.core.values import replace
from chelonia.hosting.config import (
    AHashSection,
    ListenSection,
    NodeConfig,
    NodeSection,
    PeerEntry,
    TlsSection,
    TrustedService,
    TrustSection,
    render_config,
)
from chelonia.hosting.net.certificates import CertificateAuthority, KeyKind, make_key
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import ClientLimits
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_ahash
from chelonia.hosting.net.tls import TlsSettings, TlsStore
from tests.support.ahash import no_panic
from tests.support.polling import patience, poll_async
from tests.support.ports import free_ports
from tests.support.replica_group import ROOT, DaemonDoor, Writers
from tests.support.replica_process import SETTINGS

CA = "/DC=org/O=Grid/CN=Group CA"
BASE = "/DC=org/O=Grid"
HOST = "127.0.0.1"
CHELONIAD = (sys.executable, "-P", "-m", "chelonia.hosting.cheloniad")
COMMAND = (sys.executable, "-P", "-m", "chelonia_clients.cli")
COMMAND_S = 90
Away = (CheloniaError, OSError)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a daemon is started: a prefix of its command line, its program, its environment."""

    before: tuple[str, ...] = ()
    program: tuple[str, ...] = CHELONIAD
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass
class AHashDaemons:
    """Up to `places` A-Hash daemons below `root`, by replica id. Nothing runs before `launch`."""

    root: Path
    places: int = 6
    cluster: str = field(default_factory=lambda: str(uuid.uuid4()))
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    replicas: tuple[int, ...] = ()
    """The replicas that belong to the group now, as far as the test knows."""

    def __post_init__(self) -> None:
        for name in ("certs", "conf", "log", "data", "backups"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * self.places)
        self.ports = dict(enumerate(ports[: self.places], start=1))
        self.links = dict(enumerate(ports[self.places :], start=1))
        now = SystemClock().now_ms()
        self.ca = CertificateAuthority.create(self.root / "certs", CA, now, kind=KeyKind.P256)
        for replica in self.ports:
            self.certify(replica)
        names, key = ("localhost", HOST), make_key(KeyKind.P256)
        self.ca.issue_host(f"{BASE}/CN=host/librarian", names, now, key=key).write(*self._pair("librarian"))
        self.ca.issue_user(f"{BASE}/CN=admin", now).write(*self._pair("admin"))
        self._asking = _Asking(self.files("librarian"))

    # --- files ------------------------------------------------------------------------------------------------------

    def _pair(self, name: str) -> tuple[Path, Path]:
        return self.root / "certs" / f"{name}.pem", self.root / "certs" / f"{name}.key"

    def files(self, name: str) -> TlsSettings:
        """Certificate, key and CAs of `replica-<n>`, `librarian` or `admin`."""
        cert, key = self._pair(name)
        return TlsSettings(cert=cert, key=key, ca_dir=self.ca.trust_dir)

    def certify(self, replica: int) -> None:
        names, key = ("localhost", HOST), make_key(KeyKind.P256)
        issued = self.ca.issue_host(self.dn(replica), names, SystemClock().now_ms(), key=key)
        issued.write(*self._pair(f"replica-{replica}"))

    def dn(self, replica: int) -> Dn:
        """The name in a replica's certificate."""
        return Dn(f"{BASE}/CN=host/meta{replica}")

    def address(self, replica: int) -> str:
        """Where other replicas reach it."""
        return f"{HOST}:{self.links[replica]}"

    def url(self, replica: int) -> str:
        """Where clients reach it."""
        return f"https://localhost:{self.ports[replica]}/AHash"

    def data(self, replica: int) -> Path:
        return self.root / "data" / str(replica)

    def log(self, replica: int) -> str:
        path = self.root / "log" / f"{replica}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def configure(self, replica: int, known: Iterable[int] = (), **changes: Any) -> Path:
        """Write a configuration: one of `known` replicas, or alone without any. `changes`: of its `[ahash]`. Returns:
        its path."""
        entries = tuple(PeerEntry(n, HOST, self.links[n], self.dn(n)) for n in known)
        section = AHashSection(
            self.url(replica), str(self.data(replica)), str(self.root / "backups"), replica if entries else 0, HOST,
            entries, tuning={"cluster": self.cluster},
        )  # fmt: skip
        cert, key = self._pair(f"replica-{replica}")
        trust = [TrustedService("ahash", self.url(n), self.dn(n)) for n in self.ports]
        trust.append(TrustedService("librarian", "https://localhost/Librarian", f"{BASE}/CN=host/librarian"))
        config = NodeConfig(
            node=NodeSection(name=f"meta{replica}", stop_deadline_ms=5_000),
            listen=(ListenSection(self.ports[replica], ("ahash", "metrics"), HOST),),
            tls=TlsSection(str(cert), str(key), str(self.ca.trust_dir), reload_check_ms=500),
            trust=TrustSection((f"{BASE}/CN=admin",), tuple(trust)),
            client=ClientLimits(connect_ms=1_000),
            ahash=replace(section, **changes),
        )
        path = self.root / "conf" / f"{replica}.toml"
        path.write_text(render_config(config))
        return path

    def found(self, replica: int, known: Iterable[int]) -> None:
        self.cheloniad("found-ahash", "--config", str(self.configure(replica, known)))

    # --- commands ---------------------------------------------------------------------------------------------------

    def cheloniad(self, *words: str, code: int = 0) -> str:
        """Run `cheloniad` to its end; returns all its output."""
        return _run((*CHELONIAD, *words), code)

    async def admin(self, *words: str, code: int = 0, at: Iterable[int] = ()) -> str:
        """Run `chelonia admin ahash <words>` as the administrator, at these replicas (none: at all); returns its
        output."""
        cert, key = self._pair("admin")
        nowhere = "https://localhost:1/Bartender"  # the command wants one named; these verbs ask none
        options = ["--cert", str(cert), "--key", str(key), "--ca-dir", str(self.ca.trust_dir), "-b", nowhere]
        for replica in at or self.replicas:
            options += ["--ahash", self.url(replica)]
        return await asyncio.to_thread(_run, (*COMMAND, *options, "admin", "ahash", *words), code)

    # --- processes --------------------------------------------------------------------------------------------------

    def launch(self, replica: int, how: Launch = Launch()) -> None:
        """Start it with the configuration written last."""
        config = self.root / "conf" / f"{replica}.toml"
        with (self.root / "log" / f"{replica}.log").open("ab") as log:
            self.processes[replica] = subprocess.Popen(
                [*how.before, *how.program, "run", "--config", str(config)],
                cwd=ROOT, env=_environ(how.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, replica: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; with one that ends, wait for the end."""
        process = self.processes[replica]
        process.send_signal(how)
        if how is signal.SIGKILL:
            del self.processes[replica]
            process.wait()

    async def terminate(self, replica: int) -> int:
        """End one in order; returns its exit code."""
        process = self.processes.pop(replica)
        process.terminate()
        return await asyncio.to_thread(process.wait, 40 * patience())

    async def ended(self, replica: int, deadline: float = 60) -> int:
        """Wait until it has ended by itself; returns its exit code."""
        process = self.processes[replica]
        await poll_async(lambda: process.poll() is not None, deadline, what=f"replica {replica} ends")
        del self.processes[replica]
        return process.wait()

    async def close(self) -> None:
        await self._asking.close()
        for process in self.processes.values():
            process.kill()
            process.wait()

    # --- looking ----------------------------------------------------------------------------------------------------

    async def logged(self, replica: int, text: str, deadline: float = 60, *, times: int = 1) -> None:
        """Wait for a line in a replica's log."""
        await poll_async(
            lambda: self.log(replica).count(text) >= times, deadline, what=f"replica {replica} logs {text!r}"
        )

    def door(self, replica: int) -> DaemonDoor:
        return DaemonDoor(partial(self._asking.at, self.url(replica)))

    def writers(self, count: int = 4, first: int = 0) -> Writers:
        """Writers that try all replicas there may ever be."""
        return Writers({n: n for n in self.ports}, count, first=first, door=self.door)

    def ahash(self, replica: int, read_ms: int = 2_000) -> AHash:
        """One replica alone, with so much time for each answer. Its calls raise: as `Away`."""
        return self._asking.at(self.url(replica), read_ms)

    async def status(self, replica: int) -> AHashStatus:
        """Return a replica's status. Raises: as `Away`."""
        return await self.ahash(replica).status(Call())

    async def master(self, deadline: float = 60) -> int:
        """The master that takes changes now."""

        async def look() -> int:
            for replica in sorted(set(self.replicas) & self.processes.keys()):
                try:
                    status = await self.status(replica)
                except Away:
                    continue
                if status.role == "master" and status.writable:
                    return replica
            return 0

        return await poll_async(look, deadline, what="a master")

    async def settled(self, deadline: float = 120) -> int:
        """Wait until all of `replicas` vote and follow one master, at its position. Returns: the master."""
        seen: dict[int, Any] = {}

        async def look() -> int:
            for replica in self.replicas:
                seen[replica] = await self.status(replica)
            if self.replicas and all(not each.replica for each in seen.values()):
                return self.replicas[0]  # alone
            masters = [n for n in self.replicas if seen[n].role == "master"]
            views = seen[masters[0]].replicas if len(masters) == 1 else ()
            whole = {view.replica for view in views if view.role in ("master", "follower") and view.lag >= 0}
            ready = whole == set(self.replicas) == {view.replica for view in views}
            following = all(seen[n].role in ("master", "client") for n in self.replicas)
            same = len({(seen[n].term, seen[n].membership) for n in self.replicas}) == 1
            return masters[0] if ready and following and same else 0

        try:
            return await poll_async(look, deadline, interval=0.1, tolerate=Away, what="a settled group")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from error

    # --- judging ----------------------------------------------------------------------------------------------------

    async def records(self) -> dict[int, dict[bytes, bytes]]:
        """All records of each replica, from disk: all are killed while nothing writes, and started again."""
        await self._same()
        for replica in self.replicas:  # the rest cannot go on without it
            self.kill(replica)
        held = await asyncio.to_thread(lambda: {n: self.records_of(self.data(n)) for n in self.replicas})
        for replica in self.replicas:
            self.launch(replica)
        return held

    @staticmethod
    def records_of(directory: Path) -> dict[bytes, bytes]:
        """The records that recovery finds in a copy of a replica's directory."""
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "db").mkdir()
            for path in (directory / "db").iterdir():
                if not path.name.startswith("__db"):  # regions: they are made anew
                    shutil.copy(path, Path(scratch) / "db")
            store = BdbStore(Path(scratch), SETTINGS, no_panic)
            try:
                return dict(store.scan(b"", b"\xff" * 64, 1 << 30))
            finally:
                store.close()

    async def _same(self, deadline: float = 120) -> None:
        """Wait until all have the same commit as their last, all of it durable."""
        seen: list[AHashStatus] = []

        async def look() -> bool:
            seen[:] = [await self.status(replica) for replica in self.replicas]
            behind = any(view.lag for each in seen if each.role == "master" for view in each.replicas)
            return len({(each.position, each.term) for each in seen}) == 1 and not behind

        await poll_async(look, deadline, tolerate=Away, what="the same commit everywhere")


class _Asking:
    """A Librarian's connections, for all doors."""

    def __init__(self, files: TlsSettings) -> None:
        self._link = open_link(TlsStore(files, SystemClock().now_ms), ClientLimits(connect_ms=1_000))

    def at(self, url: str, read_ms: int) -> AHash:
        return remote_ahash(self._link, (url,), RetryLimits(retry_ms=0, read_ms=read_ms))

    async def close(self) -> None:
        await self._link.client.close()


def _environ(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}", **more}


def _run(command: tuple[str, ...], code: int) -> str:
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            command, cwd=ROOT, env=_environ({"HOME": home}), capture_output=True, text=True,
            timeout=COMMAND_S * patience(), check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{' '.join(command[3:])} ended with {done.returncode}: {said}"
    return said
