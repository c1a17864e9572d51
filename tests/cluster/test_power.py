"""A few power cuts of real daemons under load; `make powercut` makes many.

Tests of single processes show the purpose of each sync: `tests/unit/shepherd/store/test_power_loss.py`,
`tests/unit/ahash/store/bdb/test_power_loss.py`.
"""

from pathlib import Path

import pytest

from tests.cluster.powercut import run
from tests.support.power import NEEDS


@pytest.mark.capability(*NEEDS)
async def test_what_was_acknowledged_is_there_after_power_cuts(tmp_path: Path) -> None:
    trial = await run(tmp_path / "cluster", 2, 1)
    assert trial.cuts.total() == 2
    assert trial.unsynced > 0
