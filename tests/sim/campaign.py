"""Runs many seeds of every scenario, one per core at a time, and says how to replay each that failed:
`make sim SEEDS=1..200`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.sim.scenario import Outcome, crashes_and_loss
from tests.sim.scenario_churn import churn
from tests.sim.virtual_loop import run_virtual

SCENARIOS: dict[str, Callable[[int], Coroutine[Any, Any, Outcome]]] = {"crashes": crashes_and_loss, "churn": churn}
"""Every scenario a campaign runs, by name."""


def main(arguments: Sequence[str]) -> int:
    """Run the seeds named first (`7`, `1..200`) in the scenarios named after them, or in all; 0 when all held."""
    first, _, last = (arguments[0] if arguments else "1..200").partition("..")
    seeds = range(int(first), int(last or first) + 1)
    names = arguments[1:] or list(SCENARIOS)
    runs = [(name, seed) for name in names for seed in seeds]
    began = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(os.cpu_count(), initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        for (name, seed), (outcome, error) in zip(runs, pool.map(_try_seed, runs, chunksize=4), strict=True):
            if outcome is None:
                failed += 1
                print(f"{name} seed {seed}: {error}\n  replay: make sim SEEDS={seed} ARGS={name}", flush=True)
    print(f"{len(runs) - failed} passed, {failed} failed")
    print(f"{len(seeds)} seeds of {', '.join(names)} in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def _try_seed(run: tuple[str, int]) -> tuple[Outcome | None, str]:
    name, seed = run
    try:
        return run_virtual(SCENARIOS[name](seed)), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
