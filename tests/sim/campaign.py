"""Runs many seeds of every scenario, several at a time, and prints how to replay each that failed.

`make sim SEEDS=1..200 ARGS="swarm --jobs 1"`. The ledger `build/sim/ledger.jsonl` has a line for each run: scenario,
seed, result, CPU seconds, and the revision of the code. An interrupted campaign goes on where it was: it skips seeds
that passed with the present code. `--again` runs them all the same; `--new` skips every seed ever run. No option: all
scenarios, one process per core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.sim import large_pages
from tests.sim.replication_scenario import replication
from tests.sim.scenario_objects import objects_storm
from tests.sim.scenario_slow import slow_copy
from tests.sim.scenario_swarm import copying_swarm, rotting_swarm, skewed_swarm, swarm, versioned_swarm
from tests.sim.virtual_loop import run_virtual

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "build" / "sim" / "ledger.jsonl"
PASSED = "passed"

SCENARIOS: dict[str, Callable[[int], Coroutine[Any, Any, object]]] = {
    "swarm": swarm,
    "copies": copying_swarm,
    "versions": versioned_swarm,
    "objects": objects_storm,
    "pages": rotting_swarm,
    "skew": skewed_swarm,
    "slow": slow_copy,
    "replication": replication,
}
"""Every scenario a campaign runs, by name."""
_KEPT: list[object] = []
"""Objects that a process must never free."""


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the ledger. `result`: `passed`, or the first thing that was wrong; `seconds` of CPU."""

    scenario: str
    seed: int
    result: str
    seconds: float
    revision: str


def main(arguments: Sequence[str]) -> int:
    """Run a campaign; 0 when everything held."""
    options = _options(arguments)
    runs = list(_to_run(options))
    began, failed, spent = time.monotonic(), 0, 0.0
    options.ledger.parent.mkdir(parents=True, exist_ok=True)
    with options.ledger.open("a") as ledger, ProcessPoolExecutor(options.jobs, initializer=_begin) as pool:
        for (name, seed), (error, seconds) in zip(runs, pool.map(_try_seed, runs, chunksize=2), strict=True):
            failed += bool(error)
            spent += seconds
            if error:
                print(f"{name} seed {seed}: {error}\n  replay: make sim SEEDS={seed} ARGS={name}", flush=True)
            first = error.partition("\n")[0]
            run = Run(name, seed, first or PASSED, round(seconds, 3), options.revision)
            print(json.dumps(asdict(run)), file=ledger, flush=True)
    print(f"{len(runs) - failed} passed, {failed} failed, {options.skipped} skipped (passed before, see --again)")
    each = f", {spent / len(runs):.2f} s of CPU each" if runs else ""
    print(f"{', '.join(options.scenarios)} in {time.monotonic() - began:.1f} s{each}")
    return 1 if failed else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", nargs="?", default="1..200", help="7, or 1..200")
    parser.add_argument("scenarios", nargs="*", help=f"which of {', '.join(SCENARIOS)}; all when none is named")
    parser.add_argument("--again", action="store_true", help="also seeds that passed with this code before")
    parser.add_argument("--new", action="store_true", help="only seeds that were never run, with any code")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario is called {unknown[0]}; there are {', '.join(SCENARIOS)}")
    options.scenarios = options.scenarios or list(SCENARIOS)
    options.revision = revision()
    options.skipped = 0
    return options


def _to_run(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """The chosen runs, without those that the ledger makes needless."""
    first, _, last = options.seeds.partition("..")
    done = set() if options.again or first == (last or first) else _done(options)
    for name in options.scenarios:
        for seed in range(int(first), int(last or first) + 1):
            if (name, seed) in done:
                options.skipped += 1
            else:
                yield name, seed


def _done(options: argparse.Namespace) -> set[tuple[str, int]]:
    runs = read(options.ledger)
    return {
        (run.scenario, run.seed)
        for run in runs
        if options.new or (run.revision == options.revision and run.result == PASSED)
    }


def read(ledger: Path) -> list[Run]:
    """The lines of a ledger; one that was cut off by a crash counts for nothing."""
    runs = []
    for line in ledger.read_text().splitlines() if ledger.exists() else ():
        try:
            runs.append(Run(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return runs


def revision() -> str:
    """The revision of the code: 12 hex digits over every file that a run depends on."""
    digest = hashlib.sha256()
    for folder in ("chelonia", "tests/sim"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _begin() -> None:
    logging.disable(logging.CRITICAL)
    _KEPT.append(large_pages.reserve())


def _try_seed(run: tuple[str, int]) -> tuple[str, float]:
    """Run a seed. Returns: its failure ("" for none), and CPU seconds."""
    name, seed = run
    began = time.process_time()
    try:
        run_virtual(SCENARIOS[name](seed))
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.process_time() - began
    return "", time.process_time() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
