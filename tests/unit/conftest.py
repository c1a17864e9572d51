"""Plumbing of the unit tests."""

from collections.abc import Iterator

import pytest

from tests.support import cluster


@pytest.fixture(autouse=True)
def clusters_end() -> Iterator[None]:
    """End the in-memory clusters that a test has made."""
    yield
    cluster.close_all()
