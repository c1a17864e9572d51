"""The memory of a cluster at rest: proportional set size, 12 s after all nodes serve, with the processes that a node
starts beside itself.

`whole`: one process with all four services. `forks`: three A-Hash, two front ends, three Shepherds, as `cheloniad dev`
has them, with their supervisor. `apart`: the same nodes, each started by itself, as on hosts of their own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import cluster
from experiment import Outcome, Setup
from intervals import check, median_interval

from chelonia.hosting.config import NodeConfig, load_config
from chelonia.hosting.setup.dev import DevCluster, DevOptions

REST_S = 12.0
BARS = {"whole": 120.0, "forks": 320.0, "apart": 320.0}


async def run(setup: Setup) -> Outcome:
    """Start each kind of cluster once a block, and look."""
    kinds = {"whole": whole, "forks": forks, "apart": apart}
    seen: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(1 if setup.quick else setup.blocks):
        for name, kind in kinds.items():
            seen[name].append(await _at_rest(kind, setup.scratch))
            setup.say(f"  {name:6}: {seen[name][-1]:.1f} MiB")
    checks = [check(f"memory at rest, MiB: {name}", "at most", BARS[name], each) for name, each in seen.items()]
    return Outcome({name: median_interval(each).median for name, each in seen.items()}, checks)


Kind = Callable[[Path], AbstractAsyncContextManager[Iterable[int]]]
"""A cluster below a directory, which yields the processes that were started."""


async def _at_rest(kind: Kind, scratch: Path) -> float:
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        async with kind(Path(name)) as pids:
            await asyncio.sleep(REST_S)
            return sum(_pss_mib(pid) for pid in _with_children(pids))


@asynccontextmanager
async def forks(directory: Path) -> AsyncIterator[Iterable[int]]:
    """As `cheloniad dev` starts them, and the supervisor."""
    async with cluster.dev(directory, 3, replicas=3, steady=True) as running:
        one = Path(f"/proc/{running.pids()[0]}/stat").read_text().rpartition(")")[2].split()
        yield [int(one[1])]


@asynccontextmanager
async def apart(directory: Path) -> AsyncIterator[Iterable[int]]:
    """The same nodes, each started by itself."""
    async with _started(directory, _nodes(directory, DevOptions(directory, 3, replicas=3))) as pids:
        yield pids


@asynccontextmanager
async def whole(directory: Path) -> AsyncIterator[Iterable[int]]:
    """All services in one process."""
    async with cluster.whole(directory) as running:
        yield running.pids()


def _nodes(directory: Path, options: DevOptions) -> list[NodeConfig]:
    DevCluster(options).prepare()
    return [load_config(path) for path in sorted((directory / "conf").glob("*.toml"))]


@asynccontextmanager
async def _started(directory: Path, nodes: Iterable[NodeConfig]) -> AsyncIterator[list[int]]:
    processes = {node.node.name: cluster.start(directory, node) for node in nodes}
    try:
        while not all(b" serving dn=" in (directory / "log" / f"{name}.log").read_bytes() for name in processes):
            await asyncio.sleep(0.1)
            assert all(process.poll() is None for process in processes.values()), (
                f"a node has ended: see {directory}/log"
            )
        yield [process.pid for process in processes.values()]
    finally:
        cluster.stop([*processes.values()][::-1])


def _with_children(pids: Iterable[int]) -> list[int]:
    found = [*pids]
    for pid in found:
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def _pss_mib(pid: int) -> float:
    """A process's share of the memory in RAM: a page that n processes share counts 1/n for each (proc(5),
    smaps_rollup)."""
    return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) / 1024
