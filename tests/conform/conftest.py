"""A real cluster of three Shepherds for foreign clients."""

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import CLUSTERS, pytest_runtest_makereport, started
from tests.cluster.harness import Cluster

__all__ = ["pytest_runtest_makereport"]


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(CLUSTERS, [])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The session's cluster of three Shepherds."""
    pytestconfig.stash.setdefault(CLUSTERS, [])
    yield from started(pytestconfig, Cluster(tmp_path_factory.mktemp("conform")))
