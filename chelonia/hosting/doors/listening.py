"""How connections come to a listener, and how much of the event loop their handshakes take.

A handshake costs about a millisecond of the event loop, whoever begins it: 64 that are ready at once would keep
everybody else waiting for 64 times as long. So one begins, then none for a moment, the first that came first; all that
others have ready is done in between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from chelonia.hosting.doors.turnstile import Turnstile

log = logging.getLogger("chelonia.http.server")

BACKLOG: Final = 1024
"""Connections that the kernel keeps until they are accepted; it takes less where `net.core.somaxconn` is less."""
ACCEPT_PAUSE_S: Final = 1.0
"""After a connection that could not be accepted (no file descriptor is left): a try costs, and changes nothing."""

HANDSHAKE_PAUSE_MS: Final = 3
"""From the beginning of one handshake to that of the next: at most 333 new connections a second and listener, which
take a third of the event loop. With no pause every turn of a user's call waited for a handshake: its p50 tripled."""


class ListeningSockets:
    """A listener's sockets. `protocol` makes what speaks on a new connection, after its handshake if `tls` is given."""

    def __init__(
        self, protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None, handshake_ms: int
    ) -> None:
        self._protocol = protocol
        self._tls = tls
        self._handshake_s = handshake_ms / 1000 if tls else None
        self._turnstile = Turnstile(HANDSHAKE_PAUSE_MS)
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._greeted: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port listened on."""
        assert self._sockets, "start() first"
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int) -> None:
        """Listen at every address of a host; port 0 lets the system choose. Raises: OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
                self._sockets.append(_bound(family, address))
        except OSError:
            self.stop()
            raise
        self._accepting = [loop.create_task(self._accept(each)) for each in self._sockets]

    def stop(self) -> None:
        """Accept nobody any more; whoever is in a handshake goes on with it."""
        for task in self._accepting:
            task.cancel()
        for each in self._sockets:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop, failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                if not failing:
                    log.error("no connection can be accepted, it is tried again every second error=%s", error)
                failing = True
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            failing = False
            task = loop.create_task(self._greet(connection))
            self._greeted.add(task)
            task.add_done_callback(self._greeted.discard)

    async def _greet(self, connection: socket.socket) -> None:
        """Shake hands when the other end has begun to and it is its turn."""
        loop = asyncio.get_running_loop()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                async with asyncio.timeout(self._handshake_s):
                    await _readable(connection)
                    await self._turnstile.through()
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # the handshake failed; `TellingObject` has said why
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or the end."""
    loop, come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, come.set)
    try:
        await come.wait()
    finally:
        loop.remove_reader(connection)


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    """A socket that listens. Raises: OSError, which names the address."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        reason = f"error while attempting to bind on address {address!r}: {(error.strerror or '').lower()}"
        raise OSError(error.errno, reason) from None
    return listening
