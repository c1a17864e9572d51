"""Hosts of the other sites have addresses, as in a real setup."""

import socket
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _other_hosts_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Callable[..., Any] = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return known("127.0.0.1" if str(host).endswith("two.example.org") else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
