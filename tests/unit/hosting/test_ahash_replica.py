"""A replica in a node: which directories it takes, and what it says of itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from chelonia.core.ahash import AHashStatus, ReplicaView
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.position import Position
from chelonia.hosting.ahash_replica import leave_group, tell, unready
from chelonia.hosting.metrics import Metrics

VIEWS = (
    ReplicaView(1, Dn("/CN=1"), "h1:7", "follower", 3),
    ReplicaView(2, Dn("/CN=2"), "h2:7", "master", 0),
    ReplicaView(3, Dn("/CN=3"), "h3:7", "away", -1),
)
STATUS = AHashStatus(Position("c", 1, 9), "master", True, 5, 9, replica=2, term=4, lease_ms=371, replicas=VIEWS)


def test_the_directory_of_a_replica_is_not_opened_alone(tmp_path: Path) -> None:
    leave_group(tmp_path / "not there yet")
    for name in ("replica", "acked"):
        (tmp_path / name).touch()
    with pytest.raises(CheloniaError, check=lambda error: error.kind is Kind.BAD_CONFIG):
        leave_group(tmp_path)
    (tmp_path / "restored").touch()
    leave_group(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["restored"]


def test_a_replica_without_a_master_is_not_ready_and_says_whom_it_does_not_see() -> None:
    unready(STATUS)
    lost = replace(STATUS, role="alone", replicas=tuple(replace(view, role="away") for view in VIEWS))
    with pytest.raises(CheloniaError) as caught:
        unready(lost)
    assert caught.value.kind is Kind.UNAVAILABLE
    assert "1, 2, 3" in caught.value.cause


async def test_gauges_of_a_master() -> None:
    metrics = Metrics()
    tell(metrics, STATUS)
    told = (await metrics.expose()).decode()
    for line in (
        "chelonia_ahash_master 1.0",
        "chelonia_ahash_term 4.0",
        "chelonia_ahash_lease_seconds 0.371",
        'chelonia_ahash_lag_commits{replica="1"} 3.0',
        'chelonia_ahash_lag_commits{replica="2"} 0.0',
    ):
        assert line in told
    assert 'replica="3"' not in told
