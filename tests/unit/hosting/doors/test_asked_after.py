"""A client waits for a Bartender that is only busy: another one would store the same bytes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.names import parse_ln
from chelonia.core.operations.files import FILES
from chelonia.core.ports.files import Change, Done, Look, Looked, Remove
from chelonia.hosting.doors.compact_server import CompactDoor, CompactParts, offer
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.http_server import HttpServer
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_files
from chelonia.hosting.net.tls import ClientCertificate
from chelonia.wire import compact
from tests.support.polling import patience, poll_async
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import client_of, secure

CHANGE = Remove(parse_ln("/f"))


class Busy:
    """A Bartender whose changes take until it `goes` on; it answers cheap calls, unless it is frozen."""

    def __init__(self) -> None:
        self.goes, self.frozen = asyncio.Event(), False
        self.applied = self.looked = 0

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done, ...]:
        self.applied += 1
        await self.goes.wait()
        return tuple(Done() for _ in changes)

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked, ...]:
        self.looked += 1
        if self.frozen:
            await self.goes.wait()
        return ()


async def no_http(request: HttpRequest) -> HttpResponse:
    raise AssertionError("all is asked in the compact encoding")


@asynccontextmanager
async def door(grid: Grid, port: Busy) -> AsyncIterator[HttpServer]:
    registry = RoleRegistry((), None, SystemClock())
    packed = CompactDoor(offer(FILES, port), CompactParts(registry, Horizon()))
    async with secure(no_http, grid.server(), ClientCertificate.REQUIRED, compact=packed) as server:
        yield server


async def test_who_is_busy_is_waited_for_and_who_is_frozen_is_not(tmp_path: Path) -> None:
    grid, one, other = Grid(tmp_path), Busy(), Busy()
    store = grid.client(grid.user("/O=Grid/CN=Jane Doe"))
    packed = CompactClient(store.client_context(speaks=compact.PROTOCOL))
    async with door(grid, one) as first, door(grid, other) as second, client_of(store) as client:
        urls = [f"https://localhost:{each.port}/Bartender" for each in (first, second)]
        link = Link(client, SystemClock(), SystemIds(), compact=packed)
        files = remote_files(link, urls, RetryLimits(retry_ms=0, hedge_ms=round(400 * patience())))
        asking = asyncio.create_task(files.apply(Call(), (CHANGE,)))
        await poll_async(lambda: one.looked + other.looked > 4, what="four halves of the time of a hedge")
        assert one.applied + other.applied == 1
        busy = one if one.applied else other
        busy.frozen = True
        await poll_async(lambda: one.applied + other.applied == 2, what="the other one is asked beside it")
        busy.goes.set()
        assert await asking == (Done(),)
        (one if busy is other else other).goes.set()
        await packed.close()
