"""Old copies of disks put back by mistake, on real daemons: a scenario of `make replicas ARGS="--daemons"`."""

import shutil

from tests.cluster.daemons import Trial
from tests.support.ahash_daemons import AHashDaemons


async def put_back_old_copies(trial: Trial) -> None:
    """Old copies of two disks are put back by mistake: the third, which has newer records, is not cut back, and all log
    it. Then the newer history is chosen, as the runbook says."""
    group, newer = trial.group, trial.group.replicas[0]
    old = [replica for replica in group.replicas if replica != newer]
    await trial.judge()
    for replica in group.replicas:
        group.kill(replica)
    for replica in old:
        shutil.copytree(group.data(replica), group.root / f"old{replica}")
    for replica in group.replicas:
        group.launch(replica)
    await group.settled()
    trial.begin()
    await trial.writers.more(20)
    await trial.judge()
    for replica in group.replicas:
        group.kill(replica)
    held = AHashDaemons.records_of(group.data(newer))
    for replica in old:
        shutil.rmtree(group.data(replica))
        shutil.move(group.root / f"old{replica}", group.data(replica))
        group.launch(replica)
    await group.master()
    other = group.writers(first=900)
    other.start()
    await other.more(5)
    await other.end()
    group.launch(newer)
    for replica in group.replicas:
        await group.logged(replica, "have two histories")
    said = await group.admin("status")
    assert f"ERROR: replicas {newer} and " in said, said
    assert "parted" in said, said
    for replica in group.replicas:
        assert group.log(replica).count(f"replicas {replica} and {newer} have two histories") <= 1, "it is said once"
    await choose(group, newer, held)
    trial.begin()
    await trial.writers.more(30)


async def choose(group: AHashDaemons, newer: int, held: dict[bytes, bytes]) -> None:
    """Go on with the newer history: alone as a new generation, the others filled from it."""
    generation = (await group.status(newer)).position.generation
    for replica in group.replicas:
        group.kill(replica)
    kept = AHashDaemons.records_of(group.data(newer))
    lost = sorted(key for key in held if not key.startswith(b"M") and kept.get(key) != held[key])
    assert not lost, f"it was cut back: {lost[:5]}"
    (group.data(newer) / "restored").touch()
    group.configure(newer, (newer,))
    group.launch(newer)
    group.replicas = (newer,)
    await group.settled()
    assert (await group.status(newer)).position.generation > generation
    for replica in (newer + 1, newer + 2):
        shutil.rmtree(group.data(replica), ignore_errors=True)
        await group.admin("add", group.dn(replica), group.address(replica))
        group.configure(replica, (*group.replicas, replica))
        group.launch(replica)
        group.replicas = (*group.replicas, replica)
        await group.settled()
    for replica, records in (await group.records()).items():
        lost = sorted(key for key in held if not key.startswith(b"M") and records.get(key) != held[key])
        assert not lost, f"replica {replica} has not what the newer one had: {lost[:5]}"
    await group.settled()
