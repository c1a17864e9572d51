"""The implementations of the port `Files` for its contract suites, and short ways to use them.

They are the Bartender with a real Librarian and A-Hash, and the same Bartender over TLS in the compact encoding.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.operations.files import FILES
from chelonia.core.ports.files import (
    Arrived,
    Change,
    Done,
    Failure,
    Files,
    Listing,
    Look,
    Looked,
    Make,
    Placed,
    Placing,
    Want,
    Write,
)
from chelonia.hosting.doors.compact_server import CompactDoor, CompactParts, offer
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.hosting.net.rpc_client import Link, open_link, remote_files
from chelonia.hosting.net.tls import ClientCertificate
from tests.sim.virtual_loop import run_virtual
from tests.support.ahash import LIBRARIAN
from tests.support.namespace_snapshot import NamespaceSnapshot, broken
from tests.support.stage import JOE, Stage
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import secure

S = 1_000_000_000


class World(Protocol):
    """One implementation, and how bytes get to it."""

    files: Files

    async def arrive(self, placed: Placed, data: bytes) -> Arrived: ...


class ServiceWorld:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.files: Files = stage.bartender.files

    async def arrive(self, placed: Placed, data: bytes) -> Arrived:
        return await self.stage.arrive(placed, data)


async def on_service(test: Callable[[World], Awaitable[None]]) -> None:
    stage = Stage()
    await stage.start()
    await stage.add_shepherds("s1", "s2", "s3")
    try:
        await test(ServiceWorld(stage))
        ids = (await stage.ahash.objects(LIBRARIAN)).ids
        assert broken(NamespaceSnapshot(await stage.ahash.get(LIBRARIAN, ids))) == ()
    finally:
        await stage.ahash.close()


class Callers:
    """The port for several callers: each has a connection of his own, and his certificate's identity."""

    def __init__(self, grid: Grid, url: str) -> None:
        self._grid = grid
        self._url = url
        self._links: dict[str, Link] = {}

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def ask(call: Call, *args: Any) -> Awaitable[Any]:
            if call.dn not in self._links:
                store = self._grid.client(None if call.dn == ANONYMOUS else self._grid.user(call.dn))
                self._links[call.dn] = open_link(store)
            asked: Awaitable[Any] = getattr(remote_files(self._links[call.dn], (self._url,)), method)(call, *args)
            return asked

        return ask

    async def close(self) -> None:
        for link in self._links.values():
            await link.client.close()


class OverTls(ServiceWorld):
    def __init__(self, stage: Stage, files: Files) -> None:
        super().__init__(stage)
        self.files = files


async def no_http(request: object) -> HttpResponse:
    raise AssertionError("asked over HTTP")


async def on_compact(test: Callable[[World], Awaitable[None]], grid: Grid) -> None:
    stage, registry = Stage(), RoleRegistry((), None, SystemClock())
    door = CompactDoor(offer(FILES, stage.bartender.files), CompactParts(registry, Horizon()))
    await stage.start()
    await stage.add_shepherds("s1", "s2", "s3")
    try:
        async with secure(no_http, grid.server(), ClientCertificate.OPTIONAL, compact=door) as server:
            callers = Callers(grid, f"https://localhost:{server.port}/Bartender")
            try:
                await test(OverTls(stage, cast(Files, callers)))
            finally:
                await callers.close()
    finally:
        await stage.ahash.close()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    return Grid(tmp_path_factory.mktemp("grid"))


@pytest.fixture(params=["service", "compact"])
def play(request: pytest.FixtureRequest, grid: Grid) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    """Runs a test on one implementation, on virtual time unless it has sockets."""
    if request.param == "compact":
        return lambda test: asyncio.run(on_compact(test, grid))
    return lambda test: run_virtual(on_service(test))


Play = Callable[[Callable[[World], Awaitable[None]]], None]


def played(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test of a world (its first argument), run by the fixture `play` with its other fixtures."""

    def run(play: Play, **others: Any) -> None:
        play(lambda world: test(world, **others))

    _, *others = inspect.signature(test).parameters.values()
    first = inspect.Parameter("play", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
    return run


# --- short ways -----------------------------------------------------------------------------------------------------


def at(text: str) -> LogicalName:
    return parse_ln(text)


async def applied(world: World, change: Change, call: Call = JOE) -> Done | Kind:
    """Apply one change; returns its answer, or the kind of its failure."""
    (answer,) = await world.files.apply(call, (change,))
    return answer.kind if isinstance(answer, Failure) else answer


async def done(world: World, change: Change, call: Call = JOE) -> Done:
    answer = await applied(world, change, call)
    assert isinstance(answer, Done), answer
    return answer


async def looked(world: World, name: str, call: Call = JOE, want: Want = Want.NOTHING) -> Looked | Kind:
    (answer,) = await world.files.look(call, (Look(at(name), want),))
    return answer.kind if isinstance(answer, Failure) else answer


async def there(world: World, name: str, want: Want = Want.NOTHING) -> Looked:
    answer = await looked(world, name, want=want)
    assert isinstance(answer, Looked), (name, answer)
    return answer


async def write(world: World, name: str, data: bytes = b"bytes", call: Call = JOE, **more: object) -> Done | Kind:
    (placed,) = await world.files.place(call, (Placing(at(name), len(data), wanted=2, parents="parents" in more),))
    if isinstance(placed, Failure):
        return placed.kind
    return await applied(world, Write(at(name), await world.arrive(placed, data), **more), call)  # type: ignore[arg-type]


async def collection(world: World, name: str) -> None:
    await done(world, Make(at(name), "collection"))


async def names(world: World, name: str) -> list[str]:
    return [entry.name for entry in (await world.files.list(JOE, Listing(at(name)))).entries]
