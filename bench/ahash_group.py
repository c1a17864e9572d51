"""Three replicas of the A-Hash as processes that are killed, frozen and started again, and how clients reach them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import cluster

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ports.ahash import AHash
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_ahash
from chelonia.hosting.net.tls import TlsSettings, TlsStore

SETTLED_S = 30.0


def urls(running: cluster.Running) -> list[str]:
    told = json.loads(running.description.read_text())
    return [entry["url"] for entry in told["ahash"]]


class Doors:
    """Connections to the A-Hashes of one cluster, with a Librarian's certificate. Use as an async context manager."""

    def __init__(self, running: cluster.Running) -> None:
        told = json.loads(running.description.read_text())
        files = TlsSettings(Path(told["service_cert"]), Path(told["service_key"]), ca_dir=Path(told["ca_dir"]))
        self._link = open_link(TlsStore(files, SystemClock().now_ms))

    def at(self, *targets: str, soap: bool = False, patience: RetryLimits | None = None) -> AHash:
        """Return a stub of these addresses: it goes on to the next when one fails, and tries each once unless
        `patience` says more."""
        link = replace(self._link, compact=None) if soap else self._link
        return remote_ahash(link, targets, patience or RetryLimits(retry_ms=0))

    async def __aenter__(self) -> Doors:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.client.close()


async def roles(running: cluster.Running, door: Doors) -> tuple[str, list[str]]:
    """Return the master's address and those of the others, once all are synchronised and the master misses nothing. A
    group of three that loses its master before that loses its majority."""
    give_up = time.monotonic() + SETTLED_S
    seen: dict[str, str] = {}
    while time.monotonic() < give_up:
        seen, whole = {}, False
        for url in urls(running):
            try:
                status = await door.at(url, patience=RetryLimits(retry_ms=0, read_ms=1_000)).status(Call())
                seen[url] = status.role
                whole |= status.role == "master" and all(replica.lag == 0 for replica in status.replicas)
            except CheloniaError as error:
                seen[url] = str(error)
        masters = [url for url, role in seen.items() if role == "master"]
        others = [url for url, role in seen.items() if role == "client"]
        if whole and len(masters) == 1 and len(others) == len(seen) - 1:
            return masters[0], others
        await asyncio.sleep(0.1)
    raise SystemExit(f"the replicas did not settle: {seen}")


class Victims:
    """The processes of a cluster's core, to be killed or frozen and brought back."""

    def __init__(self, running: cluster.Running) -> None:
        self._running = running
        self._again: dict[str, subprocess.Popen[bytes]] = {}

    def pid(self, url: str) -> int:
        """The process that serves an address now."""
        return self._again[url].pid if url in self._again else self._running.pid(url)

    def kill(self, url: str) -> None:
        os.kill(self.pid(url), signal.SIGKILL)
        if url in self._again:
            self._again[url].wait()

    def freeze(self, url: str) -> Callable[[], None]:
        """Stop a process; calling the result lets it go on."""
        pid = self.pid(url)
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)

    def start(self, url: str) -> None:
        """Start a killed process again on its directory."""
        directory = self._running.description.parent
        name = f"core{urls(self._running).index(url) + 1}"
        with (directory / "log" / f"again-{name}.log").open("ab") as log:
            command = (*cluster.CHELONIAD, "run", "--config", str(directory / "conf" / f"{name}.toml"))
            self._again[url] = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        for process in self._again.values():
            process.terminate()
        for process in self._again.values():
            process.wait(40)
