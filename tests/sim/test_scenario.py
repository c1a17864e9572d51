"""Whole clusters in one process: every seed must end with every acknowledged file whole."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.scenario import FILES, crashes_and_loss
from tests.sim.scenario_churn import churn
from tests.sim.virtual_loop import Deadlock, run_virtual

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    """In a storm services rightly warn; formatting it would cost half the run."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_file_is_whole_after_crashes_and_loss(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed>..<seed>`."""
    outcome = run_virtual(crashes_and_loss(seed))
    assert outcome.acknowledged >= FILES * 3 // 4, "the storm was so bad that too little was tested"


def test_nothing_acknowledged_is_lost_or_comes_back_while_everything_breaks(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed>..<seed>`."""
    assert run_virtual(churn(seed)).acknowledged >= 4, "the storm was so bad that too little was tested"


def test_a_seed_is_one_history_whatever_the_hash_seed() -> None:
    """Two interpreters that order their sets differently must live through the same events."""
    first, second = (_digest_under(hash_seed) for hash_seed in ("1", "4711"))
    assert first == second
    assert len(first.split()) == 2


def test_seeds_differ() -> None:
    """The seed really draws the faults."""
    assert run_virtual(crashes_and_loss(1)).digest != run_virtual(crashes_and_loss(2)).digest


def test_the_loop_reports_a_world_that_stands_still() -> None:
    """A cluster that waits for nothing is a bug to be shown, not a test that hangs."""

    async def for_ever() -> None:
        import asyncio

        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run_virtual(for_ever())


def _digest_under(hash_seed: str) -> str:
    program = (
        "import logging; logging.disable(logging.CRITICAL)\n"
        "from tests.sim.scenario import crashes_and_loss\n"
        "from tests.sim.scenario_churn import churn\n"
        "from tests.sim.virtual_loop import run_virtual\n"
        "print(run_virtual(crashes_and_loss(7)).digest, run_virtual(churn(7)).digest)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
