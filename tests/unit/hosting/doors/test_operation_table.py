"""A new operation is a row, a method of the port and a handler: guard, stub and wire follow from these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.operations.rows import EVERYONE, Retry, row, table
from chelonia.core.operations.tables import TABLES
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.rights.access import guarded
from chelonia.hosting.doors.compact_server import CompactDoor, CompactParts, offer
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.soap_door import SoapDoor, SoapParts
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote
from chelonia.hosting.net.tls import ClientCertificate
from chelonia.wire import compact
from chelonia.wire.operations.table import service
from tests.support.failing import fails
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import client_of, secure

LIBRARIAN, SHEPHERD = "/O=Grid/OU=Hosts/CN=librarian", "/O=Grid/OU=Hosts/CN=shepherd"
KNOWN = tuple(
    ServiceRecord(role, Dn(dn), ServiceId(f"https://{role.value}"), True)
    for role, dn in ((Role.LIBRARIAN, LIBRARIAN), (Role.SHEPHERD, SHEPHERD))
)


class Weather(Protocol):
    """The port of an imaginary service."""

    async def forecast(self, call: Call, days: tuple[int, ...], place: str = "here") -> Mapping[str, int]: ...

    async def climate(self, call: Call) -> int:
        """The temperature of all days, which takes long."""
        ...


WEATHER = table(
    "weather", row(Weather.forecast, Role.LIBRARIAN, retry=Retry.KEYED),
    row(Weather.climate, Role.LIBRARIAN, answer_ms=60_000),
)  # fmt: skip


@guarded(WEATHER)
class Station:
    """Its handler."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.cloudy = asyncio.Event()
        self.cloudy.set()

    async def forecast(self, call: Call, days: tuple[int, ...], place: str = "here") -> Mapping[str, int]:
        self.keys.append(call.request_key)
        await self.cloudy.wait()
        return {f"{place} {day}": day for day in days}

    async def climate(self, call: Call) -> int:
        await self.cloudy.wait()
        return 7


@asynccontextmanager
async def asking(
    grid: Grid, station: Station, who: str, *, offered: bool = True, read_ms: int = 0
) -> AsyncIterator[Weather]:
    """A stub of the service, over TLS."""
    registry, nowhere = RoleRegistry(KNOWN, None, SystemClock()), "https://x/Weather"
    spoken = service(WEATHER, "ahash", ())
    soap = SoapDoor(spoken, station, nowhere, SoapParts(registry, Metrics()))
    door = CompactDoor(offer(WEATHER, station) if offered else {}, CompactParts(registry, Horizon()))
    store = grid.client(grid.user(who))
    packed = CompactClient(store.client_context(speaks=compact.PROTOCOL))
    tls = secure(soap.serve, grid.server(), ClientCertificate.REQUIRED, compact=door)
    async with tls as server, client_of(store) as client:
        link = Link(client, SystemClock(), SystemIds(), compact=packed)
        try:
            urls = (f"https://localhost:{server.port}/Weather",)
            yield cast(Weather, remote(link, spoken, urls, RetryLimits(retry_ms=0, read_ms=read_ms)))
        finally:
            await packed.close()


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


async def test_an_operation_is_served_by_its_row_its_port_and_its_handler(grid: Grid) -> None:
    station = Station()
    async with asking(grid, station, LIBRARIAN) as weather:
        assert await weather.forecast(Call(), (1, 2)) == {"here 1": 1, "here 2": 2}
        assert await weather.forecast(Call(), days=(3,), place="there") == {"there 3": 3}
    assert all(station.keys), "a keyed operation is given a key"


async def test_its_roles_are_those_of_the_row(grid: Grid) -> None:
    async with asking(grid, Station(), SHEPHERD) as weather:
        with pytest.raises(CheloniaError, match="not registered and approved as librarian") as caught:
            await weather.forecast(Call(), (1,))
    assert caught.value.kind is Kind.DENIED


async def test_what_may_take_long_is_waited_for_beyond_patience(grid: Grid) -> None:
    station = Station()
    station.cloudy.clear()
    async with asking(grid, station, LIBRARIAN, read_ms=50) as weather:
        climate = asyncio.create_task(weather.climate(Call()))
        with fails(Kind.TIMEOUT):
            await weather.forecast(Call(), (1,))
        station.cloudy.set()
        assert await climate == 7


async def test_where_a_service_is_not_offered_it_is_said(grid: Grid) -> None:
    async with asking(grid, Station(), LIBRARIAN, offered=False) as weather:
        with pytest.raises(CheloniaError, match="at this port, which serves none: is it the right port") as caught:
            await weather.forecast(Call(), (1,))
    assert caught.value.kind is Kind.NOT_SUPPORTED


@pytest.mark.parametrize("args", [((1,), "a", "b"), (), ("a",)], ids=["too many", "too few", "twice"])
def test_a_stub_is_called_as_the_port_is(args: tuple[Any, ...]) -> None:
    named = {"days": (1,)} if args == ("a",) else {}
    with pytest.raises(TypeError, match="takes days, place"):
        WEATHER.by_method["forecast"].filled(args, named)


def test_a_row_without_a_handler_is_refused_when_the_service_is_made() -> None:
    with pytest.raises(AttributeError, match="forecast"):
        guarded(WEATHER)(type("Broken", (), {"climate": None}))


def test_what_a_retry_must_apply_once_has_a_key() -> None:
    """A second undelete would bring a file back under two names, or report a failure to a user."""
    changes = {
        (row.service, row.method) for port in TABLES.values() for row in port.by_method.values()
        if row.retry in (Retry.KEYED, Retry.KEY_ARGUMENT)
    }  # fmt: skip
    assert {("bartender", "undelete"), ("librarian", "undelete"), ("ahash", "transact")} <= changes


def test_what_is_for_everyone_says_so_by_name() -> None:
    assert row(Weather.forecast, *EVERYONE)("weather").roles is EVERYONE
