"""Clusters for tests on real daemons: one for the whole session, small ones of their own for tests that destroy."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster

CLUSTERS = pytest.StashKey[list[Cluster]]()
SHARED = "shared"


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(CLUSTERS, [])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for cluster in item.config.stash[CLUSTERS]:
            others = cluster.root.name.startswith(SHARED) and "cluster" not in item.fixturenames
            if cluster.process is not None and not others:
                report.sections.append((f"daemons below {cluster.root.name}", cluster.logs()))
    return report


def started(config: pytest.Config, cluster: Cluster) -> Iterator[Cluster]:
    """Run a cluster; at its end no daemon may have complained of what no test declared."""
    config.stash[CLUSTERS].append(cluster)
    try:
        cluster.start()
        yield cluster
    finally:
        code = cluster.stop()
        cluster.give_up()
        config.stash[CLUSTERS].remove(cluster)
    assert code == 0, f"cheloniad dev ended with {code}\n{cluster.logs()}"
    assert not cluster.complaints(), "the daemons complained:\n" + "\n".join(cluster.complaints())


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The session's cluster of three Shepherds. Tests leave it as whole as they found it."""
    shared = Cluster(tmp_path_factory.mktemp(SHARED))
    shared.expect_log("Fatal error on SSL protocol")  # what uvloop says when a test cuts a connection in mid-record
    yield from started(pytestconfig, shared)


@pytest.fixture
def own_cluster(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Callable[..., Cluster]]:
    """Give `own_cluster(shepherds=3, restart=True)`: a fresh cluster for one test; it is stopped at the end."""
    running: list[Iterator[Cluster]] = []

    def start(**options: object) -> Cluster:
        life = started(pytestconfig, Cluster(tmp_path / f"own{len(running)}", **options))  # type: ignore[arg-type]
        running.append(life)
        return next(life)

    yield start
    for life in running:
        for _ in life:
            raise AssertionError("a cluster lives once")
