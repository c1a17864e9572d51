"""Nodes of an older revision are stopped and started with this tree, one after the other, while users work.

`make upgrade FROM=v0.3` (any revision that git knows). Replicas of the A-Hash and Shepherds of both versions work
beside each other meanwhile. Nothing acknowledged may be lost, nothing removed, several at a time, may come back, and
nothing may hang.

Users have the SDK, boto3, which repeats once at another front end, and a mount of the revision before. Their failures,
which load may cause, are printed. The seed decides the order. `--back`: older nodes replace those of now.
"""

import argparse
import asyncio
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chelonia.core.errors import CheloniaError, Kind
from tests.cluster.door_users import DoorUsers
from tests.cluster.harness import Cluster, runs
from tests.cluster.load import Load, content, put
from tests.cluster.powercut import WHOLE_S, Trial
from tests.support.polling import poll

ROOT = Path(__file__).parents[2]
SHEPHERDS, CORES, WRITERS = 4, 3, 4
TOGETHER = 8
"""Files that one user makes in one call, to remove them in one."""


def code_of(tree: Path) -> Any:
    """While this is entered, new processes run the code in `tree`, with the libraries of now."""
    path = os.pathsep.join(map(str, (tree, tree / "clients", tree / "fuse")))
    return patch.dict(os.environ, PYTHONPATH=path, PYTHONSAFEPATH="1")


def check_out(revision: str, tree: Path) -> None:
    """The files of a revision. Raises: CalledProcessError when git does not know it."""
    tree.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", revision, "chelonia", "clients", "fuse"], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", str(tree)], input=archive.stdout, check=True)


def replace(cluster: Cluster, name: str, tree: Path = ROOT) -> None:
    """End one node in order, and start it from a tree. Its complaints at the end are the older revision's: nothing here
    can mend those."""
    before = len(cluster.log_of(name))
    pid = cluster.signal(name, signal.SIGTERM)
    poll(lambda: not runs(pid), WHOLE_S, what=f"{name} has ended")
    for line in cluster.log_of(name)[before:].splitlines():
        cluster.expect_log(f"^{re.escape(line)}$")
    with code_of(tree):
        cluster.start_node(name)


async def turn_over(load: Load) -> list[str]:
    """Make small files and remove every other one, several in a call, until the load stops. Returns: the removed
    ones."""
    gone: list[str] = []

    async def done(files: dict[str, int], act: Callable[[str], Awaitable[object]]) -> list[str]:
        """Do it to all at once. Returns: those for which it was done; the others count as refused."""
        answers = await asyncio.gather(*(act(ln) for ln in files), return_exceptions=True)
        failed = {ln: answer for ln, answer in zip(files, answers, strict=True) if isinstance(answer, BaseException)}
        for ln, error in failed.items():
            if not isinstance(error, CheloniaError):
                raise error
            load.refused[ln] = files[ln]
            load.reasons[str(error)[:160]] += 1
        return [ln for ln in files if ln not in failed]

    async with load.cluster.client("user", retry_ms=load.retry_ms) as client:
        for first in itertools.takewhile(lambda _: not load.stopping, itertools.count(1_000_000, 4 * TOGETHER)):
            files = {f"{load.collection}/t{seed}": seed for seed in range(first, first + 4 * TOGETHER, 4)}
            made = await done(files, lambda ln: put(client, ln, content(int(ln.rpartition("t")[2]))))
            load.acknowledged |= {ln: files[ln] for ln in made[::2]}
            gone += await done({ln: files[ln] for ln in made[1::2]}, client.del_file)
    return gone


async def upgrade(root: Path, revision: str, seed: int, *, back: bool = False) -> int:
    """Replace all nodes of a cluster below `root`. Returns: files acknowledged. Raises: AssertionError."""
    check_out(revision, root / "old")
    before, after = (ROOT, root / "old") if back else (root / "old", ROOT)
    trial = Trial(Cluster(root / "cluster", SHEPHERDS, restart=False, replicas=CORES), random.Random(seed))
    cluster = trial.cluster
    users = DoorUsers(cluster, root)
    try:
        with code_of(before):
            await asyncio.to_thread(cluster.start)
            await trial.whole()
            await asyncio.to_thread(users.start)
        load = Load(cluster, "/upgrade", writers=WRITERS, retry_ms=10_000)
        trial.loads.append(load)
        async with load:
            turning = asyncio.create_task(turn_over(load))
            await load.until_acknowledged(4, WHOLE_S)
            for name in trial.chance.sample(cluster.names, len(cluster.names)):
                began = time.monotonic()
                await asyncio.to_thread(replace, cluster, name, after)
                await trial.whole()
                await load.until_acknowledged(3, WHOLE_S)
                await asyncio.to_thread(users.more)
                took = f"on after {time.monotonic() - began:.1f} s; {users.told(began)}"
                print(f"{name} is replaced; {took}", flush=True)
        gone = await turning
        print(f"all nodes are replaced; {len(load.acknowledged)} acknowledged files are read again", flush=True)
        await asyncio.to_thread(users.stop)
        async with cluster.client("user") as client:
            back = [ln for ln in gone if await client.exists(ln)]
        assert gone, load.reasons
        assert not back, back
        files = await trial.judge_all()
        wrong = await asyncio.to_thread(users.judge)
        print(f"refused {dict(load.reasons)}; asked again {dict(users.tally.retried)}", flush=True)
        print(f"failed {dict(users.tally.failed)}", flush=True)
        assert not wrong, wrong
        unread = [each for each in load.reasons if Kind.BAD_REQUEST.value in each]
        assert not unread, unread  # messages that the other version cannot read
        print("fsck is asked until it finds nothing", flush=True)
        await trial.clean()
    finally:
        users.abandon()
        await asyncio.to_thread(cluster.stop)
        cluster.give_up()
    complaints = cluster.complaints()
    assert not complaints, "\n".join(complaints)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.upgrade")
    parser.add_argument("revision")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--back", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="upgrade-"))
    print(f"{'to' if options.back else 'from'} {options.revision}, seed {options.seed}, below {root}", flush=True)
    files = asyncio.run(upgrade(root, options.revision, options.seed, back=options.back))
    print(f"all nodes replaced; {files} acknowledged files, none lost", flush=True)
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
