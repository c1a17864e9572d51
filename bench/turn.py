#!/usr/bin/env python3
"""Two states of the code side by side: three replicas of the A-Hash and a client for each, measured in turn.

Usage: turn.py OLD NEW [--rounds 20] [--pairs 4] [--seconds 0.25] [--at-once 1 8 64] [--operations write local]

OLD and NEW are checkouts, each with an environment of its own (`make install`); the same one twice shows the effect of
the machine alone. Each state's servers and client are processes of that state's interpreter and code. A cluster's share
of a busy machine stays the same for its whole life, so each pair starts both anew. The output is the geometric mean of
the pairs' ratios NEW / OLD, with the least and the most. It is not a bar: those are `run.py`'s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

SHOWN = {"per_s": "rate", "p50_ms": "p50", "server_cpu": "CPU of servers", "client_cpu": "CPU of client"}
Figures = dict[str, float]
"""Of one slice, by the names of `slices.Sample`."""


class State:
    """One checkout's cluster and client, which measures a slice on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, operation: str, at_once: int, seconds: float) -> Figures:
        """One slice."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([operation, at_once, seconds]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a client ended; what it said is above")
        figures: Figures = json.loads(line)
        return figures


@contextmanager
def state(tree: Path) -> Iterator[State]:
    """A cluster and a client of one checkout, gone at the end."""
    paths = os.pathsep.join(map(str, (tree, tree / "clients", tree / "bench")))
    command = (str(tree / ".venv/bin/python"), "-P", str(tree / "bench" / "turn.py"), "--serve")
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}  # servers too: not the code of this folder
    (tree / "build").mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=tree / "build", prefix="turn-") as scratch,
        subprocess.Popen(
            (*command, scratch), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        yield State(process)
        process.communicate()


def serve(scratch: Path) -> None:
    """Run the process of one state: it reads the slices to measure from its input, line by line."""
    import uvloop
    from ahash_group import Doors, roles
    from cluster import dev
    from slices import sampled

    from chelonia.core.caller import Call
    from chelonia.core.ids import ObjectId, RequestKey
    from chelonia.core.metadata import Needed
    from chelonia.core.ports.ahash import ChangeType, Element

    async def work() -> None:
        async with dev(scratch, 0, replicas=3) as running, Doors(running) as door:
            master, others = await roles(running, door)

            def writing(*urls: str, soap: bool = False) -> Callable[[str], Awaitable[object]]:
                ahash = door.at(*urls, soap=soap)

                def write(key: str) -> Awaitable[object]:
                    element = Element(ObjectId(f"bench:{key}"), ChangeType.SET, "bench", "value", "v" * 500)
                    if soap:  # which has the original's operations alone
                        return ahash.change(Call(), (element,))
                    return ahash.transact(Call(), RequestKey(""), (element,))

                return write

            def reading(url: str) -> Callable[[str], Awaitable[object]]:
                ahash, needed = door.at(url), (Needed("bench", "value"),)
                return lambda key: ahash.get(Call(), (ObjectId(f"bench:{key}"),), needed)

            operations = {
                "write": writing(master),
                "through": writing(others[0]),
                "soap": writing(master, soap=True),
                "local": reading(master),
                "other": reading(others[0]),
            }
            for number in range(64):
                await operations["write"](str(number))
            while line := await asyncio.to_thread(sys.stdin.readline):
                operation, at_once, seconds = json.loads(line)
                sample = await sampled(operations[operation], running.pids(), at_once, seconds)
                print(json.dumps(asdict(sample)), flush=True)

    uvloop.run(work())


def ratios(old: Sequence[Figures], new: Sequence[Figures]) -> Figures:
    """NEW / OLD of each figure: the median of the rounds, which were measured in turn."""
    return {name: statistics.median(b[name] / a[name] for a, b in zip(old, new, strict=True)) for name in SHOWN}


def told(pairs: Sequence[Figures]) -> str:
    """The geometric mean of the pairs, with the least and the most."""

    def one(name: str) -> str:
        found = [pair[name] for pair in pairs]
        return f"{SHOWN[name]} {statistics.geometric_mean(found):.3f} [{min(found):.3f} .. {max(found):.3f}]"

    return ", ".join(map(one, SHOWN))


def main() -> None:
    """Measure pair after pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--operations", nargs="+", default=["write", "local"])
    options = parser.parse_args()
    plan = [(operation, at_once) for operation in options.operations for at_once in options.at_once]
    found: dict[tuple[str, int], list[Figures]] = {each: [] for each in plan}
    for pair in range(options.pairs):
        samples: dict[tuple[str, int], dict[str, list[Figures]]] = {each: {"old": [], "new": []} for each in plan}
        with ExitStack() as stack:
            states: dict[str, Any] = {}
            for which in ("old", "new") if pair % 2 == 0 else ("new", "old"):
                states[which] = stack.enter_context(state(getattr(options, which).resolve()))
            for number in range(options.rounds):
                for each in plan:
                    for which in ("old", "new") if number % 2 == 0 else ("new", "old"):
                        samples[each][which].append(states[which].measure(*each, options.seconds))
        for each in plan:
            found[each].append(ratios(samples[each]["old"], samples[each]["new"]))
        load = math.ceil(os.getloadavg()[0])
        print(f"after pair {pair + 1} (load {load}):", flush=True)
        for (operation, at_once), pairs in found.items():
            print(f"  {operation}, {at_once} at once: {told(pairs)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
