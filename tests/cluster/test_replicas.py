"""The replicated A-Hash as real processes: a smoke of what `make replicas` does at length."""

import random
from pathlib import Path

import pytest

from tests.cluster import replicas
from tests.cluster.replicas import Trial
from tests.support.replica_group import ReplicaGroup


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_what_was_acknowledged_outlives_faults(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path)
    try:
        await group.start()
        trial = Trial(group, random.Random(1))
        await replicas.run(
            trial, [replicas.kill_master, replicas.kill_all, replicas.freeze_the_elected, replicas.lose_a_disk]
        )
        assert trial.acknowledged > 300
        assert max(trial.killed_ms) < 10_000, "a bound for busy machines; make replicas measures"
    finally:
        await group.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_replicas_that_are_far_apart_elect_a_master_and_keep_it(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path, apart_ms=(80, 100))
    try:
        await group.start()
        trial = Trial(group, random.Random(1))
        await replicas.run(trial, [replicas.kill_master])
        before = await group.status(1)
        trial.begin()
        await trial.writers.more(300, 60)
        await trial.judge()
        assert (await group.status(1))["term"] == before["term"], "no needless election"
    finally:
        await group.close()
