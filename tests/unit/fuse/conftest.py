"""Fixtures of the mount's tests: one cluster in memory, and two mounts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.files import MemoryFiles
from tests.unit.fuse.mounts import WHO, Trial, mounted


@pytest.fixture
async def twin() -> MemoryFiles:
    return MemoryFiles(WHO)


@pytest.fixture
async def mount(twin: MemoryFiles, tmp_path: Path) -> Trial:
    return await mounted(twin, tmp_path / "one")


@pytest.fixture
async def other(twin: MemoryFiles, tmp_path: Path) -> Trial:
    return await mounted(twin, tmp_path / "two")
