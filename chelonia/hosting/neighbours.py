"""How a Librarian reaches the rest of its cluster: other Librarians, the doors of Shepherds, and who hangs up on it.

A door is knocked at by a bare TCP connection: the kernel answers for a process that lives, frozen or busy as it may be,
and refuses for one that is gone. Everything else, silence above all, says nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import Heartbeat, Librarian
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_librarian

KNOCK_S: Final = 1.0
"""How long a door is knocked at: an address that does not answer at once is not certainly empty."""
KNOCKS_MAX: Final = 64
"""Doors knocked at together: a rack that fails closes many connections at once."""
ASK_MS: Final = 2_000
"""How long another Librarian's answer is read for; who asks gives up sooner."""


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
        """Whether nobody listens at a service's address: at any of them, if its name has several."""
        async with self._knocks:
            try:
                async with asyncio.timeout(KNOCK_S):
                    addresses = await _addresses(service)
                    return bool(addresses) and all([await _refuses(*address) for address in addresses])
            except (OSError, ValueError):  # TimeoutError is an OSError
                return False


async def _addresses(service: ServiceId) -> list[tuple[socket.AddressFamily, Any]]:
    """The addresses that a service id names. Raises: ValueError when it is no URL, OSError when nobody knows it."""
    parts = urlsplit(service)
    if not parts.hostname:
        raise ValueError("no host is named")
    found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _refuses(family: socket.AddressFamily, address: Any) -> bool:
    """Whether an address refuses a connection. Raises: OSError when it does something else than to refuse or accept."""
    with socket.socket(family, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(knock, address)
        except ConnectionRefusedError:
            return True
        return False


def heartbeats_end(told: Callable[[ServiceId], None]) -> Callable[[HttpRequest, str, Sequence[Any]], None]:
    """What a Librarian's door does after each operation: when a connection closes that a Shepherd's heartbeats came
    over, `told` hears of it."""

    def done(request: HttpRequest, operation: str, arguments: Sequence[Any]) -> None:
        if operation == "heartbeat":
            beat: Heartbeat = arguments[0]
            request.when_closed(("heartbeat", beat.shepherd), lambda: told(beat.shepherd))

    return done
