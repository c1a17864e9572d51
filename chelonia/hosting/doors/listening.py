"""How connections come to a listener, and how much of the event loop their handshakes take.

A handshake costs about a millisecond of the event loop, whoever begins it: 64 that are ready at once would keep
everybody else waiting for 64 times as long. So one begins, then none for a moment; all that others have ready is done
in between. Addresses take turns, and one has so many beginning at most: the longest silent goes for a new one.
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
"""Connections that the kernel keeps until they are accepted; it takes less where `net.core.somaxconn` is less."""
ACCEPT_PAUSE_S: Final = 1.0
"""After a connection that could not be accepted (no file descriptor is left): a try costs, and changes nothing."""

HANDSHAKE_PAUSE_MS: Final = 3
"""From the beginning of one handshake to that of the next: at most 333 new connections a second and listener, which
take a third of the event loop. With no pause every turn of a user's call waited for a handshake: its p50 tripled."""


class ListeningSockets:
    """A listener's sockets. `protocol` makes what speaks on a new connection, after its handshake if `tls` is given."""

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
        """Connections up to the end of their handshakes, by owner, and whether nothing has come on them yet."""

    @property
    def port(self) -> int:
        """The port listened on, also where the system has chosen it."""
        assert self._sockets, "start() first"
        return int(self._sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen at every address of a host; port 0 lets the system choose; `shared`: beside other processes that share
        the port too. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._guarded = self._guarded if port else None  # listening again, it would have another one
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
        """Accept nobody any more; whoever is in a handshake goes on with it."""
        for task in self._accepting:
            task.cancel()
        for each in self._sockets:
            each.close()
            if self._guarded is not None:
                self._guarded.release(self._held.pop(each, 0))

    def _listen(self, listening: socket.socket) -> None:
        if self._guarded is not None:
            self._guarded.release(self._held.pop(listening, 0), end=False)  # shut down again, it would let nobody in
        listening.listen(BACKLOG)
        if self._guarded is not None:
            self._held[listening] = self._guarded.hold(listening)

    def _listens_again(self, listening: socket.socket) -> bool:
        """After the guard let nobody in because this process stood still."""
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
            mine = self._greeted.setdefault(owner, {})
            task = loop.create_task(self._greet(connection, owner, mine))
            mine[task] = False
            task.add_done_callback(functools.partial(self._met, owner))

    def _has_room(self, owner: str) -> bool:
        """Whether one more of an owner may begin; if need be, the one goes that has been silent for longest."""
        mine = self._greeted.get(owner, {})
        if len(mine) < bounds.HANDSHAKES_PER_ADDRESS_MAX:
            return True
        silent = next((task for task, is_silent in mine.items() if is_silent), None)
        did = "the new one was refused" if silent is None else "the one longest silent was closed"
        self._notes.met("connections of one address before their handshakes", owner, did)
        if silent is None:
            return False
        mine[silent] = False
        silent.cancel()
        return True

    def _met(self, owner: str, done: asyncio.Task[None]) -> None:
        self._greeted[owner].pop(done)
        if not self._greeted[owner]:
            del self._greeted[owner]

    async def _greet(self, connection: socket.socket, owner: str, silent: dict[asyncio.Task[None], bool]) -> None:
        """Shake hands when the other end has begun to and it is its turn."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                async with asyncio.timeout(self._handshake_s):
                    silent[task] = True
                    await _readable(connection)
                    silent[task] = False
                    await self._turnstile.through(owner)
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # the handshake failed; `AlertingObject` has said why
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


def _bound(family: int, address: tuple[object, ...], shared: bool) -> socket.socket:
    """A socket at an address, still deaf. Raises: OSError, which names the address."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
