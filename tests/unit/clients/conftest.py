"""Fixtures of the clients' tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command

MINDED = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def process_kept() -> Iterator[None]:
    """A command changes signals and other state of its process, which usually ends with it."""
    collects, minds = gc.get_threshold(), {number: signal.getsignal(number) for number in MINDED}
    yield
    gc.set_threshold(*collects)
    for number, handler in minds.items():
        signal.signal(number, handler)


@pytest.fixture
def fake() -> FakeBartender:
    return FakeBartender()


@pytest.fixture
def chelonia(fake: FakeBartender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Command(fake, monkeypatch)
