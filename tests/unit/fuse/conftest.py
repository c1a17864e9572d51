"""Fixtures of the mount's tests: one cluster in memory, and two mounts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import WHO, Trial, mounted


@pytest.fixture
async def memory() -> MemoryCluster:
    return MemoryCluster(WHO)


@pytest.fixture
async def mount(memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await mounted(memory, tmp_path / "one")


@pytest.fixture
async def other(memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await mounted(memory, tmp_path / "two")
