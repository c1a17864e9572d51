"""A Librarian's links to its cluster: other Librarians, the ports of Shepherds, and the end of their connections.

A bare TCP connection probes a Shepherd. The kernel accepts it for a process that lives, even frozen or busy, and
refuses it for one that is gone. Everything else, silence above all, says nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import Heartbeat, Librarian
from chelonia.core.ports.shepherd import Shepherd
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_librarian, remote_shepherd

KNOCK_S: Final = 1.0
"""Longest probe: an address that does not answer at once may still be in use."""
KNOCKS_MAX: Final = 64
"""Probes at once: a rack that fails closes many connections together."""
ASK_MS: Final = 2_000
"""Longest wait for another Librarian's answer; callers give up sooner."""
STUBS_MAX: Final = 4096
"""Stubs kept; they are small, and their connections are pooled elsewhere."""


class HttpNeighbours:
    """`librarian.world.Neighbours` over HTTPS and TCP. A service id is its URL."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stubs: dict[ServiceId, Librarian] = {}
        self._knocks = asyncio.Semaphore(KNOCKS_MAX)

    def librarian(self, service: ServiceId) -> Librarian:
        if service not in self._stubs:
            patience = RetryLimits(retry_ms=0, read_ms=ASK_MS)
            self._stubs[service] = remote_librarian(self._link, (service,), patience)
        return self._stubs[service]

    async def refused(self, service: ServiceId) -> bool:
        """Return whether every address of a service refuses connections."""
        async with self._knocks:
            try:
                async with asyncio.timeout(KNOCK_S):
                    addresses = await _addresses(service)
                    return bool(addresses) and all([await _refuses(*address) for address in addresses])
            except (OSError, ValueError):  # TimeoutError is an OSError
                return False


async def _addresses(service: ServiceId) -> list[tuple[socket.AddressFamily, Any]]:
    """Return the addresses that a service id names. Raises: ValueError for no URL, OSError for an unknown host."""
    parts = urlsplit(service)
    if not parts.hostname:
        raise ValueError("no host is named")
    found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _refuses(family: socket.AddressFamily, address: Any) -> bool:
    """Return whether an address refuses a connection. Raises: OSError when it neither refuses nor accepts."""
    with socket.socket(family, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(knock, address)
        except ConnectionRefusedError:
            return True
        return False


def heartbeats_end(notify: Callable[[ServiceId], None]) -> Callable[[HttpRequest, str, Sequence[Any]], None]:
    """Return a Librarian door's hook after operations, which announces the end of a connection of heartbeats."""

    def done(request: HttpRequest, operation: str, arguments: Sequence[Any]) -> None:
        if operation == "heartbeat":
            beat: Heartbeat = arguments[0]
            request.when_closed(("heartbeat", beat.shepherd), lambda: notify(beat.shepherd))

    return done


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
