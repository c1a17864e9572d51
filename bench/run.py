"""`make bench`: measures, prints, and writes figures as JSON and SVG below build/bench/.

Usage: run.py [--only NAME]... [--quick | --full] [--figures DIR]. A ratio is the median over at least ten blocks that
are measured in turn, with its 95 % interval. It is met when the whole interval is on the good side of its bar. Exit
code 1 when a bar that counts is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ahash
import ahash_faults
import attack
import cumulus
import depth
import floor
import freeze
import heal
import https
import idle
import listing
import many
import memory
import mount
import multiuser
import objects
import plan
import publish
import restart
import root_reads
import s3
import small_files
import stream
import tail
import trees
import uvloop
import width
from experiment import Outcome, Setup
from machine import ROOT, facts, load
from plot import svg

EXPERIMENTS: dict[str, Callable[[Setup], Awaitable[Outcome]]] = {
    "ahash": ahash.run,
    "table1": ahash_faults.table,
    "tail": tail.run,
    "floor": floor.run,
    "depth": depth.run,
    "width": width.run,
    "listing": listing.run,
    "multiuser": multiuser.run,
    "plan": plan.run,
    "stream": stream.run,
    "heal": heal.run,
    "freeze": freeze.run,
    "idle": idle.run,
    "attack": attack.run,
    "https": https.run,
    "restart": restart.run,
    "small_files": small_files.run,
    "objects": objects.run,
    "trees": trees.run,
    "s3": s3.run,
    "many": many.run,
    "memory": memory.run,
    "cumulus": cumulus.run,
    "root": root_reads.run,
    "publish": publish.run,
    "mount": mount.run,
}
OUT = ROOT / "build" / "bench"


def main() -> int:
    """Run the chosen experiments; returns the exit code."""
    options = _options()
    OUT.mkdir(parents=True, exist_ok=True)
    machine = facts()
    print(json.dumps(machine), flush=True)
    fine = True
    for name in options.only or EXPERIMENTS:
        fine = _measure(name, options, machine) and fine
    print(f"load average now: {load()}; figures are in {OUT}")
    return 0 if fine else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=EXPERIMENTS, help="one experiment (may be repeated)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a minute in all: shows that everything runs")
    length.add_argument(
        "--full", action="store_true", help="table1 at the paper's length, tail as long: ten minutes for each row"
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write the plots there too")
    return parser.parse_args()


def _measure(name: str, options: argparse.Namespace, machine: dict[str, Any]) -> bool:
    """Run one experiment; returns whether every bar that counts is met."""
    before, started = load(), time.perf_counter()
    print(f"== {name} (load average {before})", flush=True)
    outcome = uvloop.run(_run(name, Setup(OUT, options.quick, lambda line: print(line, flush=True), options.full)))
    told = {
        "experiment": name,
        "quick": options.quick,
        "full": options.full,
        "machine": machine,
        "load_before": before,
        "load_after": load(),
        "seconds": round(time.perf_counter() - started, 1),
        "checks": [check.figures() for check in outcome.checks],
        "skipped": list(outcome.skipped),
        "results": outcome.results,
    }
    (OUT / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")
    for figure, chart in outcome.charts.items():
        for directory in filter(None, (OUT, options.figures)):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"{figure}.svg").write_text(svg(chart))
    for check in outcome.checks:
        print(f"-- {check}", flush=True)
    for line in outcome.skipped:
        print(f"!! SKIPPED {line}", flush=True)
    print(f"   {told['seconds']} s, load average {told['load_after']}", flush=True)
    return all(check.met for check in outcome.checks if check.counts)


async def _run(name: str, setup: Setup) -> Outcome:
    return await EXPERIMENTS[name](setup)


if __name__ == "__main__":
    sys.exit(main())
