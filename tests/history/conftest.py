"""The checker, built once per run, and a cluster for faults.

A machine without Go skips tests that need the checker, and says so at the end of the run, also under CI.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import CLUSTERS, pytest_runtest_makereport, started
from tests.cluster.harness import Cluster
from tests.history import porcupine
from tests.support import capabilities

__all__ = ["pytest_runtest_makereport"]


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(CLUSTERS, [])


@pytest.fixture(scope="module")
def tormented(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster of three A-Hash replicas and no Shepherds, to be killed and frozen."""
    pytestconfig.stash.setdefault(CLUSTERS, [])
    yield from started(pytestconfig, Cluster(tmp_path_factory.mktemp("tormented"), shepherds=0, replicas=3))


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checker as a program. No shipped part needs Go, so a plain machine may lack it. With it, under CI, the module
    must be available."""
    if reason := capabilities.missing("command:go"):
        pytest.skip(f"{capabilities.MISSING_PREFIX} command:go: {reason}; not needed by CI")
    try:
        return porcupine.build(tmp_path_factory.mktemp("checker"))
    except porcupine.Missing as error:
        if capabilities.under_ci():
            raise
        pytest.skip(f"{capabilities.MISSING_PREFIX} go modules: {str(error).splitlines()[0]}")
