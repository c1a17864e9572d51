"""A client, and the command, on the in-memory Bartender."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest

from chelonia.core.ids import ServiceId
from chelonia.core.ports.bartender import Bartender
from chelonia.core.ports.librarian import Librarian
from chelonia.core.ports.shepherd import Shepherd
from chelonia.hosting.net.http_client import HttpClient
from chelonia_clients import connect
from chelonia_clients.administrator import Administrator
from chelonia_clients.cli import run
from chelonia_clients.client import Client
from chelonia_clients.output import Output
from tests.support.bartender import FakeBartender
from tests.support.clocks import QuickClock


def client_on(fake: FakeBartender, retry_ms: int = 2000) -> Client:
    client = Client(cast(Bartender, fake), fake.files, cast(HttpClient, fake.store), retry_ms=retry_ms)
    client.clock = QuickClock()
    return client


def administrator_on(
    fake: FakeBartender, librarian: object, shepherd: Callable[[ServiceId], object] | None = None
) -> Administrator:
    """An administrator of a test's own services."""
    ports = cast("Callable[[ServiceId], Shepherd]", shepherd), cast("Librarian", librarian)
    return Administrator(cast(HttpClient, fake.store), *ports, {}, QuickClock())


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Command:
    """`chelonia ...` on a fake cluster."""

    def __init__(self, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = fake
        for name in ("CHELONIA_CLUSTER", "ARC_BARTENDER_URL", "ARC_NEEDED_REPLICAS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(connect, "open_client", lambda *_: client_on(fake, retry_ms=0))

    def __call__(self, *words: str) -> Ran:
        out = Output(io.StringIO(), io.StringIO())
        code = run(words, out)
        return Ran(code, cast(io.StringIO, out.stdout).getvalue(), cast(io.StringIO, out.stderr).getvalue())
