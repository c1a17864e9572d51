"""Finds the Shepherds: in this process when they are hosted here, else by a stub."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from chelonia.core.ids import ServiceId
from chelonia.core.ports.shepherd import Shepherd
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_shepherd

STUBS_MAX: Final = 4096
"""Stubs kept; they are small, and their connections are pooled elsewhere."""


class ShepherdDirectory:
    """`core.ports.shepherd.Directory` of one process. A Shepherd's service id is its URL."""

    def __init__(self, link: Link) -> None:
        patience = RetryLimits(retry_ms=0, read_ms=10_000)
        self._local: dict[ServiceId, Shepherd] = {}
        self._remote = lru_cache(STUBS_MAX)(lambda service: remote_shepherd(link, (service,), patience))

    def host(self, service: ServiceId, shepherd: Shepherd) -> None:
        """Make a Shepherd of this process known."""
        self._local[service] = shepherd

    def shepherd(self, service: ServiceId) -> Shepherd:
        return self._local.get(service) or self._remote(service)
