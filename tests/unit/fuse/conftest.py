"""Fixtures of the mount's tests: one cluster in memory, and two mounts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chelonia_fuse import committing, reading
from tests.support.cluster import MemoryCluster
from tests.unit.fuse.mounts import WHO, Trial, mounted


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once: with their pauses, one that fails takes 11 s."""
    monkeypatch.setattr(committing, "PAUSE_MS_MAX", 0)
    monkeypatch.setattr(reading, "PAUSE_MS_MAX", 0)


@pytest.fixture
async def memory() -> MemoryCluster:
    return MemoryCluster(WHO)


@pytest.fixture
async def mount(memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await mounted(memory, tmp_path / "one")


@pytest.fixture
async def other(memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await mounted(memory, tmp_path / "two")
