"""Old copies of disks put back by mistake, on real daemons: a scenario of `make replicas ARGS="--daemons"`."""

import shutil

from tests.cluster.daemons import Trial, grow_from, missed
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
    generation = (await group.status(newer)).position.generation
    for replica in group.replicas:
        group.kill(replica)
    lost = missed(held, AHashDaemons.records_of(group.data(newer)))
    assert not lost, f"it was cut back: {lost[:5]}"
    await grow_from(group, newer, generation, held)
    trial.begin()
    await trial.writers.more(30)
