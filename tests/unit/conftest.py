"""Plumbing of the unit tests."""

from collections.abc import Iterator

import pytest

from tests.support import cluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    """Clusters in memory end with the test that has made them."""
    yield
    cluster.close_all()
