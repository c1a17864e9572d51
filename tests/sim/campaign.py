"""Runs many seeds, one per core at a time, and says how to replay each that failed: `make sim SEEDS=1..200`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.sim.scenario import Outcome, crashes_and_loss
from tests.sim.virtual_loop import run_virtual


def main(arguments: Sequence[str]) -> int:
    """Run the seeds named by the first argument (`7`, `1..200`); 0 when all held."""
    first, _, last = (arguments[0] if arguments else "1..200").partition("..")
    seeds = range(int(first), int(last or first) + 1)
    began = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(os.cpu_count(), initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        for seed, (outcome, error) in zip(seeds, pool.map(_try_seed, seeds, chunksize=4), strict=True):
            if outcome is None:
                failed += 1
                print(f"seed {seed}: {error}\n  replay: make sim SEEDS={seed}", flush=True)
    print(f"{len(seeds) - failed} passed, {failed} failed")
    print(f"{len(seeds)} seeds in {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


def _try_seed(seed: int) -> tuple[Outcome | None, str]:
    try:
        return run_virtual(crashes_and_loss(seed)), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
