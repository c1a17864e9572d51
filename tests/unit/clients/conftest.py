"""Fixtures of the clients' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command


@pytest.fixture
def fake() -> FakeBartender:
    return FakeBartender()


@pytest.fixture
def chelonia(fake: FakeBartender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Command(fake, monkeypatch)
