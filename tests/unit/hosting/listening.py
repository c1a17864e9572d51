"""A listener on loopback for tests: one HTTP server over a door, and ways to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chelonia.hosting.doors.compact_server import CompactDoor
from chelonia.hosting.doors.guarded import Guarded
from chelonia.hosting.doors.http_server import HttpLimits, HttpServer, ListenSettings, ServerParts
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_client import ClientLimits, HttpClient
from chelonia.hosting.net.http_messages import Door
from chelonia.hosting.net.identity import NOBODY
from chelonia.hosting.net.tls import ClientCertificate, TlsStore
from tests.unit.hosting.grid import Grid

STOP_MS = 10_000
"""The server then cuts off all clients with a warning: no test leaves any."""
PLAIN = ServerParts(SystemClock(), SystemIds(), lambda tls: NOBODY)


@asynccontextmanager
async def plain(door: Door, limits: HttpLimits | None = None) -> AsyncIterator[HttpServer]:
    """The door on a listener without TLS."""
    server = HttpServer(door, ListenSettings("127.0.0.1", 0, None, False), PLAIN, limits)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(STOP_MS)


@asynccontextmanager
async def secure(
    door: Door,
    store: TlsStore,
    demand: ClientCertificate,
    limits: HttpLimits | None = None,
    compact: CompactDoor | None = None,
    guarded: Guarded | None = None,
) -> AsyncIterator[HttpServer]:
    """The door on a listener that demands, or accepts, client certificates; beside it, the compact encoding's."""
    listener = ListenSettings("127.0.0.1", 0, store.server_context(demand), demand is ClientCertificate.REQUIRED)
    parts = ServerParts(SystemClock(), SystemIds(), store.identify, compact=compact, guarded=guarded)
    server = HttpServer(door, listener, parts, limits)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(STOP_MS)


def client_of(store: TlsStore | None, limits: ClientLimits | None = None) -> HttpClient:
    """A client with that store's credentials; plaintext without one."""
    context = store.client_context() if store is not None else None
    return HttpClient(lambda: context, limits)


def anonymous(grid: Grid) -> TlsStore:
    return grid.client(None)


async def talk(server: HttpServer, *pieces: bytes) -> bytes:
    """Send raw bytes over one connection; return all that comes until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read(-1)
    finally:
        writer.close()
