"""Whole clusters in one process: every seed must end with every acknowledged file whole.

A smoke of some hundred seeds; `make sim` runs as many as one likes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia.shepherd.transfers import forwarding
from tests.sim import campaign
from tests.sim.model import Violation
from tests.sim.regressions import REGRESSIONS
from tests.sim.scenario_objects import objects_storm
from tests.sim.scenario_slow import AT_FIRST_BYTES_PER_S, SIZE, slow_copy
from tests.sim.scenario_swarm import copying_swarm, rotting_swarm, skewed_swarm, swarm, versioned_swarm
from tests.sim.virtual_loop import ENDLESS_S, Deadlock, Endless, run_virtual, this_loop

ROOT = Path(__file__).parents[2]

NEWEST = 12
"""So many of the seeds that found something run every time."""


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    """In a storm services rightly warn; formatting it would cost half the run."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(1, 13))
def test_everything_holds_whatever_goes_wrong_at_once(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=swarm`."""
    run_virtual(swarm(seed))


@pytest.mark.parametrize("seed", [13, 22])
def test_no_version_is_lost_or_comes_back_wrongly(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=versions`."""
    run_virtual(versioned_swarm(seed))


@pytest.mark.parametrize("seed", range(1, 5))
def test_nobody_is_told_what_amazon_does_not_allow(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=objects`."""
    run_virtual(objects_storm(seed))


@pytest.mark.parametrize("seed", range(1, 3))
def test_bytes_that_several_files_have_go_with_the_last_one(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=copies`."""
    run_virtual(copying_swarm(seed))


@pytest.mark.parametrize("seed", range(1, 4))
def test_nothing_is_lost_or_told_wrongly_where_pages_of_the_metadata_rot(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=pages`."""
    run_virtual(rotting_swarm(seed))


@pytest.mark.parametrize("seed", range(1, 4))
def test_nodes_of_two_versions_work_together(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=skew`."""
    run_virtual(skewed_swarm(seed))


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_copy_that_is_slowed_down_in_mid_way_is_not_begun_anew(seed: int) -> None:
    """Replay one seed: `make sim SEEDS=<seed> ARGS=slow`."""
    assert run_virtual(slow_copy(seed)).copy_ms > 20 * 1_000 * SIZE / AT_FIRST_BYTES_PER_S


def test_a_copy_may_take_more_than_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rarer, or it would take minutes here; under other seeds one end hears of the new rate so much before the other
    # that it takes the pause between two such parts for the other's end.
    monkeypatch.setattr(forwarding, "PART_MS", 20_000)
    assert run_virtual(slow_copy(1, 100)).copy_ms > 24 * 3_600_000


@pytest.mark.parametrize(
    ("name", "seed", "found"),
    [*(pytest.param(*old, marks=pytest.mark.long) for old in REGRESSIONS[:-NEWEST]), *REGRESSIONS[-NEWEST:]],
)
def test_what_was_found_once_is_not_found_again(name: str, seed: int, found: str) -> None:
    assert found
    run_virtual(campaign.SCENARIOS[name](seed))


def test_a_campaign_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign skips seeds that passed with this code, unless `--again` is given."""
    ledger = tmp_path / "sim" / "ledger.jsonl"
    common = ["--jobs", "1", "--ledger", str(ledger)]
    assert campaign.main(["1", "replication", *common]) == 0
    assert "1 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    with ledger.open("a") as file:
        file.write('{"scenario": "replication", "se')  # the process was killed here
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", _Here)  # one real one is enough
    assert campaign.main(["1..2", "replication", *common]) == 0
    assert "1 passed, 0 failed, 1 skipped" in capsys.readouterr().out
    assert campaign.main(["1", "replication", "--again", *common]) == 0
    assert "1 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    runs = campaign.read(ledger)
    assert [(run.scenario, run.seed, run.result) for run in runs] == [
        ("replication", 1, "passed")
    ] * 2  # one was cut off
    assert all(run.seconds > 0 and run.revision == campaign.revision() for run in runs)


def test_a_failure_says_what_broke_and_how_to_replay_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed, first violation, last events, command."""
    ledger = tmp_path / "ledger.jsonl"

    async def broken(seed: int) -> None:
        raise Violation(f"the first thing wrong under {seed}\n  last events:\n  12 s1 -> s2 copy: ok")

    monkeypatch.setitem(campaign.SCENARIOS, "broken", broken)
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", _Here)
    assert campaign.main(["5", "broken", "--ledger", str(ledger)]) == 1
    out = capsys.readouterr().out
    assert "broken seed 5: Violation: the first thing wrong under 5\n  last events:" in out
    assert "replay: make sim SEEDS=5 ARGS=broken" in out
    assert json.loads(ledger.read_text())["result"] == "Violation: the first thing wrong under 5"


class _Here:
    """A pool without processes."""

    def __init__(self, jobs: int, initializer: object) -> None:
        del jobs, initializer

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return

    map = staticmethod(lambda function, runs, chunksize: map(function, runs))


def test_a_seed_is_one_history_whatever_the_hash_seed() -> None:
    """Two interpreters that order their sets differently must have the same events; another seed has others."""
    first, second = (_digest_under(hash_seed) for hash_seed in ("1", "4711"))
    assert first == second
    assert len({*first.split()}) == 2


def test_the_loop_reports_a_world_that_stands_still() -> None:
    """A cluster that waits for nothing is a bug to be reported, not a test that hangs."""

    async def for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run_virtual(for_ever())


def test_a_timer_is_cancelled_even_when_its_time_has_come() -> None:
    async def two_at_once() -> list[str]:
        loop, called = this_loop(), list[str]()
        loop.call_at(1.0, lambda: (called.append("first"), second.cancel()))
        second = loop.call_at(1.0, called.append, "second")
        await loop.sleep(2)
        return called

    assert run_virtual(two_at_once()) == ["first"]


def test_a_run_in_which_everybody_waits_for_ever_ends() -> None:
    async def waits_for_what_will_not_come() -> None:
        this_loop().ends_s = ENDLESS_S
        while True:
            await asyncio.sleep(60)

    with pytest.raises(Endless):
        run_virtual(waits_for_what_will_not_come())


def _digest_under(hash_seed: str) -> str:
    program = (
        "import logging; logging.disable(logging.CRITICAL)\n"
        "from tests.sim.scenario_swarm import swarm\n"
        "from tests.sim.virtual_loop import run_virtual\n"
        "runs = (swarm(7), swarm(8))\n"
        "print(*(run_virtual(run).digest for run in runs))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
