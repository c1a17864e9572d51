"""A tree of small files by `chelonia put -r`, `get -r` and `rm -r`, beside `rclone` at the S3 doors of peers.

Each transfer is a whole process, as a user starts it; sixteen files at a time for `rclone`, the one on PATH. Peers: as
in `s3`. The output names those that are missing.
CHELONIA_BENCH_TREE: how many files of 4 KiB (by default 10 000).
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
from cluster import Running
from experiment import Outcome, Setup
from intervals import Check, check
from machine import Cost, cpu_s, medians
from peers import S3Server, peers
from stream import timed

SIZE, IN_ONE = 4096, 100
BLOCKS_MAX = 3
BAR = 2.0


async def run(setup: Setup) -> Outcome:
    """Move trees up, down and away, in turn."""
    count = int(os.environ.get("CHELONIA_BENCH_TREE", "0")) or (500 if setup.quick else 10_000)
    with tempfile.TemporaryDirectory(dir=setup.scratch, prefix="trees-") as scratch, ExitStack() as stack:
        if shutil.which("rclone") is None:
            named, skipped = list[S3Server](), ["trees: NOT COMPARED: no `rclone` on PATH"]
        else:
            named, skipped = stack.enter_context(peers(setup.scratch))
        costs = await _moved(setup, Path(scratch), count, named)
    return _outcome(setup, count, costs, skipped)


async def _moved(setup: Setup, scratch: Path, count: int, named: list[S3Server]) -> dict[str, dict[str, list[Cost]]]:
    costs: dict[str, dict[str, list[Cost]]] = {}
    tree = _made(scratch / "tree", count)
    async with cluster.dev(setup.scratch, 3, steady=True) as running:
        movers = [("chelonia", _own(running)), *((peer.name, _rclone(peer)) for peer in named)]
        blocks = range(1 if setup.quick else BLOCKS_MAX)
        # Nothing is removed before all is fetched: ext4 passes over each inode that went minutes ago when it makes one.
        for steps in (("up", "down"), ("removed",)):
            for block in blocks:
                for name, move in movers[:: -1 if block % 2 else 1]:
                    for what in steps:
                        fetched = scratch / f"fetched-{name}-{block}"
                        cost = _timed(move, what, Tree(f"tree-{os.getpid()}-{block}", tree, fetched), count)
                        costs.setdefault(name, {}).setdefault(what, []).append(cost)
                        if what == "down":
                            assert not _differing(tree, fetched), "what was downloaded is not what was uploaded"
    return costs


@dataclass(frozen=True)
class Tree:
    """A tree's name at the servers, the directory it is sent from, and the one it is fetched to."""

    name: str
    source: Path
    fetched: Path


Mover = tuple[Callable[[str, Tree], list[str]], Callable[[], tuple[int, ...]]]
"""The command for a step, and the processes that serve it."""


def _made(top: Path, count: int) -> Path:
    for number in range(count):
        directory = top / f"{number // IN_ONE:04d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:06d}").write_bytes(os.urandom(SIZE))
    return top


def _own(running: Running) -> Mover:
    command = [str(Path(sys.executable).with_name("chelonia")), "--cluster", str(running.description)]

    def words(what: str, tree: Tree) -> list[str]:
        ln = f"/{tree.name}"
        steps = {
            "up": ["put", "-r", str(tree.source), ln],
            "down": ["get", "-r", ln, str(tree.fetched)],
            "removed": ["rm", "-r", ln],
        }
        return [*command, *steps[what]]

    return words, running.pids


def _rclone(peer: S3Server) -> Mover:
    told = {"TYPE": "s3", "PROVIDER": "Other", "ENDPOINT": peer.url, "ACCESS_KEY_ID": peer.key}
    told["SECRET_ACCESS_KEY"] = peer.secret
    # this version fails on a bundle of CAs in its environment, and the peer is named by whoever runs this
    settings = ["env", "-u", "AWS_CA_BUNDLE", *(f"RCLONE_CONFIG_PEER_{key}={value}" for key, value in told.items())]
    command = [*settings, "rclone", "--no-check-certificate", "--transfers", "16", "--checkers", "16"]

    def words(what: str, tree: Tree) -> list[str]:
        there, fetched = f"peer:{tree.name}", str(tree.fetched)
        steps = {"up": ["copy", str(tree.source), there], "down": ["copy", there, fetched], "removed": ["purge", there]}
        return [*command, *steps[what]]

    return words, peer.pids


def _timed(move: Mover, what: str, tree: Tree, count: int) -> Cost:
    words, pids = move
    os.sync()
    before = cpu_s(pids())
    wall_s, client_s = timed(words(what, tree))
    return Cost(count, wall_s, cpu_s(pids()) - before, client_s)


def _differing(one: Path, other: Path) -> list[str]:
    found = filecmp.dircmp(one, other)
    below = [name for each in found.common_dirs for name in _differing(one / each, other / each)]
    _, wrong, failed = filecmp.cmpfiles(one, other, found.common_files, shallow=False)
    return [*found.left_only, *found.right_only, *wrong, *failed, *below]


def _outcome(setup: Setup, count: int, costs: dict[str, dict[str, list[Cost]]], skipped: list[str]) -> Outcome:
    results: dict[str, Any] = {"files": count}
    for name, told in costs.items():
        results[name] = {what: medians(seen) for what, seen in told.items()}
        for what, figures in results[name].items():
            setup.say(f"  {name:10} {what:8} {figures['per_s']:8.0f} files/s, CPU s per 1000: "
                      f"servers {figures['server_cpu']:.2f}, client {figures['client_cpu']:.2f}")  # fmt: skip
    checks: list[Check] = []
    for name in (each for each in costs if each.lower() == "minio"):  # the peer of the bar
        for what in ("up", "down"):
            ratio = [
                own.per_s / other.per_s for own, other in zip(costs["chelonia"][what], costs[name][what], strict=True)
            ]
            checks.append(check(f"tree {what} / rclone at {name}, rate", "at least", BAR, ratio))
    return Outcome(results, checks, skipped=skipped)
