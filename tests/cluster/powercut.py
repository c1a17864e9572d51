"""The power of real daemons is cut under writers; everything acknowledged must be there. `make powercut` runs it long.

Three cores and five Shepherds keep their data on file systems that forget what was not synced (`tests/support/power`).
The power of one node, of several or of all goes at once: the nodes stop, their disks forget, they are killed, and come
back. The seed is printed; the directory of a run that failed is kept.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from chelonia.core.caller import Call
from tests.cluster.harness import Away, Cluster
from tests.cluster.load import Load
from tests.cluster.test_rebuild import CLI
from tests.support.capabilities import missing
from tests.support.forgetful import Loss
from tests.support.polling import patience, poll_async
from tests.support.power import NEEDS, PowerDisk

SHEPHERDS, CORES = 5, 3
WRITERS = 6
CUTS_A_ROUND = 4
"""So many cuts under one load, before it is judged."""
WHOLE_S = 120.0


@dataclass
class Trial:
    """A cluster on disks that forget, and what was cut."""

    cluster: Cluster
    chance: random.Random
    disks: dict[str, PowerDisk] = field(default_factory=dict)
    cuts: Counter[str] = field(default_factory=Counter)
    nodes_cut: int = 0
    unsynced: int = 0
    loads: list[Load] = field(default_factory=list)

    def mount(self, stack: ExitStack) -> None:
        """A disk for each node, before the cluster is started first."""
        for name in self.cluster.names:
            core = name.startswith("core")
            point = self.cluster.root / "data" / (f"ahash{name[4:]}" if core else name)
            # The library does not sync the directory of a new log: a journal is assumed there, and not of Shepherds.
            self.disks[name] = stack.enter_context(PowerDisk(point, journal=core))

    async def cut(self) -> str:
        """Cut the power of some nodes, and bring them back. Returns: which ones."""
        kind = self.chance.choice(("one", "one", "several", "several", "cores", "all"))
        names = self.cluster.names
        match kind:
            case "one":
                victims = [self.chance.choice(names)]
            case "several":
                victims = self.chance.sample(names, self.chance.randint(2, len(names) - 1))
            case "cores":
                victims = list(self.cluster.core_names)
            case _:
                victims = names
        loss = self.chance.choice(tuple(Loss))
        await asyncio.to_thread(self._cut, victims, loss)
        self.cuts[kind] += 1
        self.nodes_cut += len(victims)
        return f"{kind} ({loss.value}): {' '.join(victims)}"

    def _cut(self, victims: Sequence[str], loss: Loss) -> None:
        pids = {name: self.cluster.signal(name, signal.SIGSTOP) for name in victims}
        seeds = {name: self.chance.getrandbits(32) for name in victims}
        with ThreadPoolExecutor(len(victims)) as pool:
            self.unsynced += sum(pool.map(lambda name: self.disks[name].cut(seeds[name], loss), victims))
        if len(victims) == len(self.cluster.names):
            self.cluster.crash()
            self.cluster.start()
            return
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for name, pid in pids.items():
            self.cluster.wait_restarted(name, pid)

    async def whole(self) -> None:
        """Wait until every replica of the A-Hash follows and every Shepherd is there."""

        seen: list[object] = []

        async def follows() -> bool:
            async with self.cluster.ports("admin") as ports:
                status = await ports.ahash.status(Call().strongly())
                seen[:] = [status.replicas]
                return all(view.role in ("master", "follower") and view.lag >= 0 for view in status.replicas)

        try:
            await poll_async(follows, WHOLE_S, tolerate=Away, what="every replica of the A-Hash follows")
        except AssertionError as error:
            ends = "".join(f"\n--- {core}\n{self.cluster.log_of(core)[-4000:]}" for core in self.cluster.core_names)
            raise AssertionError(f"{error}: {seen}{ends}") from error
        await self.cluster.until_alive(deadline=WHOLE_S)
        await self.cluster.until_serving(*self.cluster.shepherd_names, deadline=WHOLE_S)

    async def round(self, cuts: int) -> None:
        """Make so many cuts under one load; then everything acknowledged is whole, and fsck finds nothing."""
        load = Load(self.cluster, f"/cut{sum(self.cuts.values())}", writers=WRITERS, retry_ms=10_000)
        self.loads.append(load)
        async with load:
            await load.until_acknowledged(4, WHOLE_S)
            for _ in range(cuts):
                await asyncio.sleep(self.chance.random())  # any time: cuts must not come in step with the writers
                began = time.monotonic()
                what = await self.cut()
                await self.whole()
                await load.until_acknowledged(3, WHOLE_S)
                print(f"cut {sum(self.cuts.values())} of {what}; on after {time.monotonic() - began:.1f} s", flush=True)
        await load.judge()
        await self.clean()

    async def clean(self) -> None:
        """Wait until fsck finds nothing."""
        said: list[str] = []

        async def finds_nothing() -> bool:
            done = await asyncio.to_thread(self._fsck)
            said[:] = [done.stdout + done.stderr]
            return done.returncode == 0

        try:
            await poll_async(finds_nothing, WHOLE_S, interval=1.0)
        except AssertionError as error:
            raise AssertionError(f"fsck is not clean: {said}") from error

    def _fsck(self) -> subprocess.CompletedProcess[str]:
        argv = [*CLI, "--cluster", str(self.cluster.root / "cluster.json"), "admin", "fsck"]
        return subprocess.run(argv, capture_output=True, text=True, timeout=WHOLE_S * patience(), check=False)

    async def judge_all(self) -> int:
        """Check everything ever acknowledged. Returns: how many files."""
        for load in self.loads:
            await load.judge()
        return sum(len(load.acknowledged) for load in self.loads)


async def run(root: Path, cuts: int, seed: int) -> Trial:
    """So many cuts of a fresh cluster below `root`. Raises: AssertionError for what was lost."""
    trial = Trial(Cluster(root, shepherds=SHEPHERDS, replicas=CORES), random.Random(seed))
    with ExitStack() as stack:
        trial.mount(stack)
        try:
            await asyncio.to_thread(trial.cluster.start)
            await trial.whole()
            while (left := cuts - sum(trial.cuts.values())) > 0:
                await trial.round(min(left, CUTS_A_ROUND))
            files = await trial.judge_all()
        finally:
            await asyncio.to_thread(trial.cluster.stop)
            trial.cluster.give_up()
    print(
        f"{sum(trial.cuts.values())} cuts {dict(trial.cuts)} of {trial.nodes_cut} nodes, {trial.unsynced} unsynced "
        f"changes; {files} acknowledged files, none lost",
        flush=True,
    )
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.powercut")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    if reasons := [reason for name in NEEDS if (reason := missing(name))]:
        print(f"no power can be cut here: {', '.join(reasons)}", file=sys.stderr)
        return 2
    root = Path(tempfile.mkdtemp(prefix="powercut-"))
    print(f"seed {options.seed}, below {root}", flush=True)
    asyncio.run(run(root, options.cuts, options.seed))
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
