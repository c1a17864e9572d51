"""The replicated A-Hash as real processes: a smoke of what `make replicas` does at length."""

import random
from pathlib import Path

import pytest

from chelonia.core import bounds
from tests.cluster import replicas
from tests.cluster.replicas import Trial
from tests.support.polling import patience, poll_async
from tests.support.replica_group import ReplicaGroup


@pytest.mark.slow
async def test_what_was_acknowledged_outlives_faults(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path)
    try:
        await group.start()
        trial = Trial(group, random.Random(1))
        await replicas.run(
            trial, [replicas.kill_master, replicas.kill_all, replicas.freeze_the_elected, replicas.lose_a_disk]
        )
        assert trial.acknowledged > 300
        assert max(trial.killed_ms) < 10_000 * patience(), "seconds, and not a minute; make replicas measures"
    finally:
        await group.close()


@pytest.mark.slow
async def test_replicas_on_other_continents_elect_a_master_and_keep_it(tmp_path: Path) -> None:
    """A busy host may cost a term, so of several quiet stretches one is enough."""
    group = ReplicaGroup(tmp_path, apart_ms=(90, 140), round_trip_ms=300)
    try:
        await group.start()
        trial = Trial(group, random.Random(1))
        await replicas.run(trial, [replicas.kill_master])
        trial.begin()
        await poll_async(lambda: _writes_under_one_master(group, trial), 90, what="a term without a needless end")
        await trial.judge()
        away = (await group.status(1))["round_trip_ms"]
        assert 180 <= min(each for each in away.values() if each is not None) <= 280 * patience()
    finally:
        await group.close()


@pytest.mark.slow
async def test_how_far_replicas_may_be_is_changed_by_restarting_one_after_the_other(tmp_path: Path) -> None:
    """Those with different leases never form a majority; nothing acknowledged is lost on the way up or down."""
    group = ReplicaGroup(tmp_path)
    try:
        await group.start()
        trial = Trial(group, random.Random(1))
        for round_trip_ms in (300, bounds.ROUND_TRIP_MS):
            for replica in group.replicas:
                await trial.writers.more(20, 60)
                await group.terminate(replica)
                group.configure(replica, round_trip_ms)
                group.launch(replica)
                await poll_async(lambda replica=replica: group.status(replica), 60, what="it has started")
            await group.settled()
        await trial.judge()
        log = (tmp_path / "1.log").read_text()
        assert "its ahash.tuning.round_trip_ms is 100, here it is 300" in log
        assert "its ahash.tuning.round_trip_ms is 300, here it is 100" in log
    finally:
        await group.close()


async def _writes_under_one_master(group: ReplicaGroup, trial: Trial) -> bool:
    before = (await group.status(1)).get("term")
    await trial.writers.more(200, 60)  # eight at a time, each a round trip at least: six seconds, many leases
    return bool(before) and (await group.status(1)).get("term") == before
