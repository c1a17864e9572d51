"""The conditions of a figure: the machine, versions, the commit, the load.

Also CPU time of other processes, and medians.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import ssl
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("aiohttp", "uvloop", "lxml", "berkeleydb", "pyopenssl", "msgspec")
CPUCLOCK_SCHED = 2
"""Low bits of a process's CPU clock: nanoseconds run, all threads, from the scheduler (linux/posix-timers.h)."""


class NoPeer(Exception):
    """There is nothing to compare with; the text says why, and the cure."""


def facts() -> dict[str, Any]:
    """The machine, the versions and the commit."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "load_average": load(),
    }


def load() -> list[float]:
    """The load averages of 1, 5 and 15 minutes, which show other work on the machine."""
    return [round(value, 2) for value in os.getloadavg()]


def free_port() -> int:
    """A port of loopback that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait for a server on loopback. Raises: NoPeer with the end of its log."""
    for _ in range(200):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise NoPeer(f"the server did not start: {log.read_text()[-300:]}")


def cpu_s(pids: Iterable[int]) -> float:
    """User and system CPU seconds of processes so far.

    The scheduler's own count, which is the sum of utime and stime in /proc/PID/stat without the rounding to 10 ms.
    """
    return sum(time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED) for pid in pids)


def resident_mib(pids: Iterable[int]) -> float:
    """Memory that processes have in RAM, in MiB."""
    fields = (Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split() for pid in pids)
    return round(sum(int(found[0]) for found in fields) / 1024, 1)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of some operations. `server_s`, `client_s`: CPU seconds."""

    operations: float
    wall_s: float
    server_s: float
    client_s: float

    @property
    def per_s(self) -> float:
        """Operations a second."""
        return self.operations / self.wall_s

    @property
    def ms(self) -> float:
        """Milliseconds an operation."""
        return 1000 * self.wall_s / self.operations

    @property
    def server_cpu(self) -> float:
        """CPU seconds of the servers for 1000 operations."""
        return 1000 * self.server_s / self.operations

    @property
    def client_cpu(self) -> float:
        """CPU seconds of the client for 1000 operations."""
        return 1000 * self.client_s / self.operations

    @property
    def cpu(self) -> float:
        """CPU seconds for 1000 operations."""
        return self.server_cpu + self.client_cpu

    def figures(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "per_s": self.per_s,
            "server_cpu_s_per_1000": self.server_cpu,
            "client_cpu_s_per_1000": self.client_cpu,
        }


def meter(pids: Callable[[], Iterable[int]]) -> Callable[[float], Cost]:
    """Start measuring this process and `pids`; calling the result ends it, given the number of operations."""
    servers = tuple(pids())
    server, client, start = cpu_s(servers), time.process_time(), time.perf_counter()

    def stop(operations: float) -> Cost:
        wall = time.perf_counter() - start
        return Cost(operations, wall, cpu_s(servers) - server, time.process_time() - client)

    return stop


def medians(seen: Sequence[Cost]) -> dict[str, float]:
    """Of several blocks: operations a second, and CPU seconds of servers and client for 1000."""
    fields: dict[str, Callable[[Cost], float]] = {
        "per_s": lambda cost: cost.per_s,
        "server_cpu": lambda cost: cost.server_cpu,
        "client_cpu": lambda cost: cost.client_cpu,
    }
    return {name: statistics.median(of(cost) for cost in seen) for name, of in fields.items()}


async def side_by_side(names: Sequence[str], how_many: int, act: Callable[[str], Awaitable[Any]]) -> int:
    """Carry the act out for every name, so many at once; returns how often."""
    waiting = iter(names)

    async def worker() -> None:
        for name in waiting:
            await act(name)

    await asyncio.gather(*(worker() for _ in range(how_many)))
    return len(names)


def added(costs: Iterable[Cost]) -> Cost:
    """All costs as one."""
    parts = list(costs)
    return Cost(
        sum(c.operations for c in parts),
        sum(c.wall_s for c in parts),
        sum(c.server_s for c in parts),
        sum(c.client_s for c in parts),
    )


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
