"""Accepts a listener's connections, and bounds the event loop's time for their handshakes.

A handshake costs about a millisecond of the event loop: 64 ready at once would make all others wait 64 times as long.
So one begins, then none for a moment, in which the loop does all other work. Addresses take turns. Each has a bounded
number of connections before their handshakes: for a new one the longest silent is closed.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from chelonia.core import bounds
from chelonia.core.ids import ANONYMOUS
from chelonia.core.limits import LimitCounts
from chelonia.hosting.doors.connection_shares import owner_of
from chelonia.hosting.doors.guarded import Guarded
from chelonia.hosting.doors.turnstile import Turnstile

log = logging.getLogger("chelonia.http.server")

BACKLOG: Final = 1024
"""Connections that the kernel keeps until they are accepted; fewer where `net.core.somaxconn` is less."""
ACCEPT_PAUSE_S: Final = 1.0
"""Pause after a failed accept (no file descriptor is left): a try costs, and changes nothing."""

HANDSHAKE_PAUSE_MS: Final = 3
"""Time between the beginnings of two handshakes: at most 333 new connections a second and listener, a third of the
event loop. With no pause every turn of a user's call waited for a handshake: its p50 tripled."""

GONE_IDLE_S: Final = 30
"""Silence of a connection after which the kernel asks the peer's kernel for a sign of life."""
GONE_INTERVAL_S: Final = 10
"""Pause between two such questions."""
GONE_PROBES: Final = 3
"""Questions without an answer after which the connection ends: a minute after the client's machine or network went.
Its upload is then free for a new try. A client that only pauses is not cut: its kernel answers."""

_HTTPS_ONLY: Final = b"This port speaks HTTPS: begin its address with https://\n"
PLAIN_HTTP_REFUSED: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n" + (
    b"Content-Length: %d\r\n\r\n%s" % (len(_HTTPS_ONLY), _HTTPS_ONLY)
)
"""Answer to a request without TLS."""


class ListeningSockets:
    """A listener's sockets. `protocol` makes a new connection's protocol, after the handshake if `tls` is given."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        handshake_ms: int,
        notes: LimitCounts | None = None,
        guarded: Guarded | None = None,
    ) -> None:
        self._protocol = protocol
        self._tls = tls
        self._notes = notes or LimitCounts()
        self._guarded = guarded
        self._held: dict[socket.socket, int] = {}
        self._handshake_s = handshake_ms / 1000 if tls else None
        self._turnstile = Turnstile(HANDSHAKE_PAUSE_MS)
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._greeted: dict[str, dict[asyncio.Task[None], bool]] = {}
        """Connections up to the end of their handshakes, by owner, and whether they wait for a first byte."""

    @property
    def port(self) -> int:
        """Return the port, also where the system has chosen it."""
        assert self._sockets, "start() first"
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen at every address of a host. `port` 0: the system chooses; `shared`: other processes share the port
        too. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._guarded = self._guarded if port else None  # listening again, it would get another port
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
                self._sockets.append(_bound(family, address, shared))
                self._listen(self._sockets[-1])
        except OSError:
            self.stop()
            raise
        self._accepting = [loop.create_task(self._accept(each)) for each in self._sockets]

    def stop(self) -> None:
        """Accept no more connections; handshakes that have begun go on."""
        for task in self._accepting:
            task.cancel()
        for each in self._sockets:
            each.close()
            if self._guarded is not None:
                self._guarded.release(self._held.pop(each, 0))

    def _listen(self, listening: socket.socket) -> None:
        if self._guarded is not None:
            self._guarded.release(self._held.pop(listening, 0), end=False)  # shut down again, it would accept nothing
        listening.listen(BACKLOG)
        if self._guarded is not None:
            self._held[listening] = self._guarded.hold(listening)

    def _listens_again(self, listening: socket.socket) -> bool:
        """Listen again after the guard shut the socket down; return whether that worked."""
        try:
            self._listen(listening)
        except OSError:
            return False
        return self._guarded is not None

    async def _accept(self, listening: socket.socket) -> None:
        loop, failing = asyncio.get_running_loop(), False
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno == errno.EINVAL and self._listens_again(listening):
                    continue
                if not failing:
                    log.error("no connection can be accepted, it is tried again every second error=%s", error)
                failing = True
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            failing = False
            owner = owner_of(ANONYMOUS, str(address[0]))
            if not self._has_room(owner):
                connection.close()
                continue
            greeted = self._greeted.setdefault(owner, {})
            task = loop.create_task(self._greet(connection, owner, greeted))
            greeted[task] = False
            task.add_done_callback(functools.partial(self._met, owner))

    def _has_room(self, owner: str) -> bool:
        """Return whether an owner's new connection may begin; if need be, close its longest silent one."""
        greeted = self._greeted.get(owner, {})
        if len(greeted) < bounds.HANDSHAKES_PER_ADDRESS_MAX:
            return True
        silent = next((task for task, is_silent in greeted.items() if is_silent), None)
        outcome = "the new one was refused" if silent is None else "the one longest silent was closed"
        self._notes.met("connections of one address before their handshakes", owner, outcome)
        if silent is None:
            return False
        greeted[silent] = False
        silent.cancel()
        return True

    def _met(self, owner: str, done: asyncio.Task[None]) -> None:
        self._greeted[owner].pop(done)
        if not self._greeted[owner]:
            del self._greeted[owner]

    async def _greet(self, connection: socket.socket, owner: str, silent: dict[asyncio.Task[None], bool]) -> None:
        """Shake hands when the client has begun to and its turn has come."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                async with asyncio.timeout(self._handshake_s):
                    silent[task] = True
                    await _readable(connection)
                    silent[task] = False
                    if connection.recv(1, socket.MSG_PEEK).isalpha():  # TLS begins with 22
                        _refuse_plain_http(connection)
                        return
                    await self._turnstile.through(owner)
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # the handshake failed, and its reason is logged; or the client has gone
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise


def _refuse_plain_http(connection: socket.socket) -> None:
    """Answer a request that came without TLS; OpenSSL would keep silent until the client gives up. Raises: OSError."""
    log.info('event=handshake-refused reason="plain HTTP"')
    connection.recv(bounds.HTTP_HEADER_BYTES_MAX)  # closing with bytes unread would take the answer away
    connection.send(PLAIN_HTTP_REFUSED)
    connection.close()


async def _readable(connection: socket.socket) -> None:
    """Wait until there is something to read, or the end."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


def _bound(family: int, address: tuple[object, ...], shared: bool) -> socket.socket:
    """Return a socket bound to an address, not listening yet. Raises: OSError, which names the address."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_the_gone(listening)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        listening.bind(address)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        reason = f"error while attempting to bind on address {address!r}: {(error.strerror or '').lower()}"
        raise OSError(error.errno, reason) from None
    return listening


def _notice_the_gone(listening: socket.socket) -> None:
    """Have the kernel end connections whose peers do not exist any more; the accepted ones inherit it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_IDLE_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, GONE_INTERVAL_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, GONE_PROBES)
