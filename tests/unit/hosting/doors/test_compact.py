"""The compact encoding over real mutual TLS, beside HTTP on one listener."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Horizon, Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Guid, ObjectId, RequestKey, ServiceId
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import Filter, StoredObject, Triple
from chelonia.core.operations import librarian as librarian_rows
from chelonia.core.operations.bartender import BARTENDER
from chelonia.core.ports.ahash import AHash, AHashStatus, ChangeType, Element
from chelonia.core.ports.bartender import Bartender, NameRequest, StatOutcome
from chelonia.core.ports.librarian import Delete, ServiceRecord
from chelonia.core.values import replace
from chelonia.hosting.doors import compact_server
from chelonia.hosting.doors.compact_server import STRANGERS, USERS, AtOnce, CompactDoor, CompactParts, offer
from chelonia.hosting.doors.grants import RoleRegistry, Source
from chelonia.hosting.doors.guarded import Guarded
from chelonia.hosting.doors.http_server import HttpLimits, HttpServer
from chelonia.hosting.doors.soap_door import SoapDoor, SoapParts
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient, Connection, PendingCall
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse
from chelonia.hosting.net.rpc_client import Link, RetryLimits, open_link, remote_ahash, remote_bartender
from chelonia.hosting.net.tls import ClientCertificate, TlsStore
from chelonia.wire import compact
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.librarian import LIBRARIAN as LIBRARIAN_TABLE
from tests.support.ahash import open_store, serving
from tests.support.failing import fails
from tests.support.polling import patience, poll_async
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import client_of, secure

LIBRARIAN, JANE = "/O=Grid/OU=Hosts/CN=librarian", "/O=Grid/CN=Jane Doe"
OBJECT = ObjectId("11111111-1111-4111-8111-111111111111")
STATUS = AHashStatus(Position("c", 1, 1), "master", True, 0, 0)


class Port:
    """A port whose `status` is the test's function, with a count of calls."""

    def __init__(self, status: Callable[[Call], Awaitable[AHashStatus]]) -> None:
        self._status = status
        self.asked = 0

    async def status(self, call: Call) -> AHashStatus:
        self.asked += 1
        return await self._status(call)


class SlowPort(Port):
    """A port without answers before its gate is open."""

    def __init__(self) -> None:
        super().__init__(self._waiting)
        self.gate = asyncio.Event()

    async def _waiting(self, call: Call) -> AHashStatus:
        await self.gate.wait()
        return STATUS


async def until(done: Callable[[], bool]) -> None:
    await poll_async(done, what="the state this test waits for")


async def answered(call: Call) -> AHashStatus:
    return STATUS


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


KNOWN = ServiceRecord(Role.LIBRARIAN, Dn(LIBRARIAN), ServiceId("https://lib"), True)


@asynccontextmanager
async def door(
    grid: Grid, port: object, limits: HttpLimits | None = None, *, source: Source | None = None,
    at_once: AtOnce | None = None,
) -> AsyncIterator[HttpServer]:  # fmt: skip
    """A listener with `port` behind both encodings. `source`: the only registry of callers; `at_once`: tried for
    `status`."""
    registry = RoleRegistry(() if source else (KNOWN,), source, SystemClock())
    soap = SoapDoor(AHASH, port, "https://x/AHash", SoapParts(registry, Metrics()))
    services = offer(AHASH.table, port, frozenset({"status"}), at_once) if at_once else offer(AHASH.table, port)
    packed = CompactDoor(services, CompactParts(registry, Horizon()))
    async with secure(soap.serve, grid.server(), ClientCertificate.REQUIRED, limits, compact=packed) as server:
        yield server


@asynccontextmanager
async def stub(
    grid: Grid,
    server: HttpServer,
    *others: HttpServer,
    who: str = LIBRARIAN,
    host: bool = False,
    soap: bool = False,
    **patience: int,
) -> AsyncIterator[AHash]:
    """A stub over the compact encoding, or over SOAP; `host`: as a host."""
    store = grid.client(grid.ca.issue_host(who, ["lib.example.org"], grid.now) if host else grid.user(who))
    packed = CompactClient(store.client_context(speaks=compact.PROTOCOL))
    async with client_of(store) as client:
        link = Link(client, SystemClock(), SystemIds(), compact=None if soap else packed)
        try:
            urls = [f"https://localhost:{each.port}/AHash" for each in (server, *others)]
            yield remote_ahash(link, urls, RetryLimits(**patience))
        finally:
            await packed.close()


@asynccontextmanager
async def raw(grid: Grid, server: HttpServer, who: str = LIBRARIAN) -> AsyncIterator[tuple[Any, Any]]:
    """A raw connection that has agreed on the encoding."""
    context = grid.client(grid.user(who)).client_context(speaks=compact.PROTOCOL)
    reader, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == compact.PROTOCOL
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def asked(number: int, method: str = "status") -> bytes:
    return compact.encode_asked(
        compact.IncomingCall(number, "ahash", method, "r", "", "", None, False, compact.encode_args(()))
    )


async def answer_from(reader: asyncio.StreamReader) -> compact.IncomingAnswer:
    size = int.from_bytes(await reader.readexactly(4))
    return compact.decode_answered(await reader.readexactly(size))


async def test_the_port_behaves_as_if_it_were_local(grid: Grid, tmp_path: Path) -> None:
    async with (
        serving(open_store("memory", tmp_path)) as service,
        door(grid, service) as server,
        stub(grid, server) as ahash,
    ):
        element = Element(OBJECT, ChangeType.SET, "entry", "type", "file")
        assert (await ahash.transact(Call(), RequestKey("k1"), (element,))).applied
        assert (await ahash.transact(Call(), RequestKey("k1"), (element,))).recalled
        (found,) = await ahash.get(Call(), (OBJECT,))
        assert found.value("entry", "type") == "file"
        assert server.connections == 1, "all of it on one connection"
        with fails(Kind.BAD_REQUEST):
            await ahash.get(Call(), (ObjectId("\0"),))


async def test_how_far_a_service_is_is_known_to_whoever_sends_bytes_there(grid: Grid) -> None:
    async with door(grid, Port(answered)) as server:
        link, url = open_link(grid.client(grid.user(LIBRARIAN))), f"https://localhost:{server.port}/AHash"
        await remote_ahash(link, (url,)).status(Call())
        assert link.client.round_trips.to(url) > 0
        await link.client.close()


async def test_many_calls_are_in_flight_at_once(grid: Grid) -> None:
    port = SlowPort()
    async with door(grid, port) as server, stub(grid, server) as ahash:
        calls = [asyncio.create_task(ahash.status(Call())) for _ in range(50)]
        await until(lambda: port.asked == 50)
        port.gate.set()
        assert await asyncio.gather(*calls) == [STATUS] * 50


class Wire(asyncio.Transport):
    """The bytes that a connection wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closes = False

    def is_closing(self) -> bool:
        return self.closes

    def pause_reading(self) -> None:
        """Do nothing: no bytes come."""

    resume_reading = pause_reading

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        """Do nothing: there is no socket."""


async def test_who_is_answered_together_asks_again_in_one_write() -> None:
    connection, wire = Connection("somebody"), Wire()
    connection.connection_made(wire)

    async def ask() -> None:
        words = compact.OutgoingCall(0, "ahash", "status", "r", "", "", None, False, ())
        await connection.ask(PendingCall(words, 60_000))

    async def requester() -> None:
        for _ in range(2):
            await ask()

    requesters = [asyncio.create_task(requester()) for _ in range(8)]
    await until(lambda: len(b"".join(wire.written).split(b"status")) == 9)
    wire.written.clear()
    connection.data_received(b"".join(compact.encode_result(number, None, None) for number in range(1, 9)))
    await until(lambda: bool(wire.written))
    await asyncio.sleep(0)
    assert [len(each.split(b"status")) - 1 for each in wire.written] == [8]
    connection.data_received(b"".join(compact.encode_result(number, None, None) for number in range(9, 17)))
    await asyncio.gather(*requesters)
    wire.written.clear()
    alone = asyncio.create_task(ask())
    await until(lambda: bool(wire.written))
    connection.data_received(compact.encode_result(17, None, None))
    await alone


class Slow:
    """A Librarian whose calls last until the test ends them."""

    def __init__(self) -> None:
        self.asked, self.ended, self.done = 0, list[str](), asyncio.Event()

    async def _last(self, what: str) -> None:
        self.asked += 1
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{what} cancelled")
            raise
        self.ended.append(f"{what} done")

    async def get(self, call: Call, guids: object, needed: object) -> tuple[()]:
        await self._last("get")
        return ()

    async def delete(self, call: Call, request: object) -> None:
        await self._last("delete")


async def test_what_only_reads_ends_with_its_connection_and_a_change_does_not(grid: Grid) -> None:
    port, registry = Slow(), RoleRegistry((replace(KNOWN, role=Role.BARTENDER),), None, SystemClock())
    limits = LimitCounts()
    packed = CompactDoor(offer(librarian_rows.LIBRARIAN, port), CompactParts(registry, Horizon(), notes=limits))
    soap = SoapDoor(LIBRARIAN_TABLE, port, "https://x/Librarian", SoapParts(registry, Metrics()))
    wanted = {"get": ((), ()), "delete": (Delete(Guid("0")),)}
    async with secure(soap.serve, grid.server(), ClientCertificate.REQUIRED, compact=packed) as server:
        async with raw(grid, server) as (_, writer):
            for number, (method, args) in enumerate(wanted.items()):
                arguments = compact.encode_args(args)
                call = compact.IncomingCall(number, "librarian", method, "r", "", "", None, False, arguments)
                writer.write(compact.encode_asked(call))
            await until(lambda: port.asked == 2)
        await until(lambda: bool(port.ended))
        assert port.ended == ["get cancelled"]
        assert limits.reached == {"readers_gone": 1}
        port.done.set()
        await until(lambda: len(port.ended) == 2)
        assert port.ended == ["get cancelled", "delete done"]


async def test_a_user_is_denied(grid: Grid) -> None:
    async with door(grid, Port(answered)) as server, stub(grid, server, who="/O=Grid/CN=Jane Doe") as ahash:
        with pytest.raises(CheloniaError) as caught:
            await ahash.status(Call(roles=(Role.LIBRARIAN,)))
    assert caught.value.kind is Kind.DENIED


class Names:
    """A Bartender that knows every name, and counts its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def stat(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome, ...]:
        self.asked.append(call.dn)
        return tuple(StatOutcome(each.request_id, (Triple("entry", "owner", call.dn),)) for each in requests)

    async def add_replica(self, call: Call, requests: tuple[object, ...], protocols: tuple[str, ...]) -> None:
        raise AssertionError("it is for Shepherds")


class SlowNames(Names):
    """One without answers before its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def stat(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome, ...]:
        self.asked.append(call.dn)
        await self.gate.wait()
        return ()


@asynccontextmanager
async def for_users(grid: Grid, port: object, limits: HttpLimits | None = None) -> AsyncIterator[HttpServer]:
    """A listener for users, with a Bartender in the compact encoding alone."""
    packed = CompactDoor(offer(BARTENDER, port), CompactParts(RoleRegistry((), None, SystemClock()), Horizon()))
    async with secure(unused, grid.server(), ClientCertificate.OPTIONAL, limits, compact=packed) as server:
        yield server


@asynccontextmanager
async def bartender_at(grid: Grid, server: HttpServer, store: TlsStore) -> AsyncIterator[Bartender]:
    packed = CompactClient(store.client_context(speaks=compact.PROTOCOL))
    async with client_of(store) as client:
        link = Link(client, SystemClock(), SystemIds(), compact=packed)
        try:
            yield remote_bartender(link, (f"https://localhost:{server.port}/Bartender",), RetryLimits(retry_ms=0))
        finally:
            await packed.close()


@pytest.mark.parametrize("who", [JANE, ""], ids=["user", "anonymous"])
async def test_who_has_no_role_may_ask_what_is_for_everyone_and_nothing_else(grid: Grid, who: str) -> None:
    port, store = Names(), grid.client(grid.user(who) if who else None)
    async with for_users(grid, port) as server, bartender_at(grid, server, store) as bartender:
        (found,) = await bartender.stat(Call(roles=(Role.LIBRARIAN,)), (NameRequest("0", "/a"),))
        assert found.metadata[0].value == (who or ANONYMOUS)
        with fails(Kind.DENIED):
            await bartender.add_replica(Call(), (), ())
    assert port.asked == [who or ANONYMOUS]


@pytest.mark.parametrize(("who", "most"), [(JANE, USERS.bytes_max), ("", STRANGERS.bytes_max)])
async def test_one_call_of_a_user_is_small_and_of_a_stranger_smaller(
    grid: Grid, who: str, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chelonia.limits")
    store = grid.client(grid.user(who) if who else None)
    async with for_users(grid, Names()) as server, bartender_at(grid, server, store) as bartender:
        assert await bartender.stat(Call(), (NameRequest("0", "x" * (most - 1000)),))
        with fails(Kind.TOO_LARGE if who else Kind.NETWORK):
            await bartender.stat(Call(), (NameRequest("0", "x" * most),))
    assert "limit='bytes of one call'" in caplog.text


async def test_too_large_a_call_of_a_user_is_refused_and_those_beside_it_are_not(grid: Grid) -> None:
    store = grid.client(grid.user(JANE))
    async with for_users(grid, Names()) as server, bartender_at(grid, server, store) as bartender:
        assert await bartender.stat(Call(), (NameRequest("0", "/a"),))
        large = asyncio.create_task(bartender.stat(Call(), (NameRequest("0", "x" * 7_000_000),)))
        await asyncio.sleep(0)
        assert await bartender.stat(Call(), (NameRequest("0", "/beside"),))
        with pytest.raises(CheloniaError, match=f"at most {USERS.bytes_max} bytes"):
            await large
        assert server.connections == 1, "the connection was not broken"


async def test_a_user_has_fewer_calls_in_flight(grid: Grid, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "chelonia.limits")
    port = SlowNames()
    async with for_users(grid, port) as server, bartender_at(grid, server, grid.client(grid.user(JANE))) as bartender:
        calls = [asyncio.create_task(bartender.stat(Call(), ())) for _ in range(USERS.calls_max + 20)]
        await until(lambda: len(port.asked) >= USERS.calls_max)
        assert len(port.asked) < len(calls)
        assert "limit='calls in flight on one connection'" in caplog.text
        port.gate.set()
        await asyncio.gather(*calls)


async def test_who_asks_nothing_is_cut_and_who_is_at_work_gives_way_to_nobody(grid: Grid) -> None:
    port, limits = SlowNames(), HttpLimits(first_request_ms=round(500 * patience()), connections_per_dn_max=1)
    async with for_users(grid, port, limits) as server:
        async with raw(grid, server, JANE) as (reader, _):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        await until(lambda: server.connections == 0)
        store = grid.client(grid.user(JANE))
        async with bartender_at(grid, server, store) as first, bartender_at(grid, server, store) as second:
            asking = asyncio.create_task(first.stat(Call(), ()))
            await until(lambda: len(port.asked) == 1)
            with fails(Kind.NETWORK):
                await second.stat(Call(), ())
            port.gate.set()
            assert await asking == ()


async def test_the_guard_holds_a_connection_until_it_ends(grid: Grid) -> None:
    held, released = list[object](), list[int]()

    class Guard:
        def hold(self, known: socket.socket) -> int:
            held.append(known.getpeername())
            return 7

        def release(self, number: int) -> None:
            released.append(number)

    packed = CompactDoor(offer(BARTENDER, Names()), CompactParts(RoleRegistry((), None, SystemClock()), Horizon()))
    guard, demand = cast(Guarded, Guard()), ClientCertificate.OPTIONAL
    async with secure(unused, grid.server(), demand, compact=packed, guarded=guard) as server:
        async with raw(grid, server, JANE) as (_, writer):
            await until(lambda: bool(held))
            assert held == [writer.get_extra_info("sockname")]
            assert released == []
        await until(lambda: released == [7])


async def unused(request: HttpRequest) -> HttpResponse:
    raise AssertionError("asked over HTTP")


async def test_more_elements_than_one_call_may_have_are_refused_before_the_port(grid: Grid) -> None:
    port = Names()
    async with for_users(grid, port) as server, bartender_at(grid, server, grid.client(grid.user(JANE))) as bartender:
        many = (NameRequest("0", "/a"),) * (bounds.BULK_ELEMENTS_MAX + 1)
        with fails(Kind.TOO_LARGE, match="length <= 1000"):
            await bartender.stat(Call(), many)
        assert len(await bartender.stat(Call(), many[1:])) == bounds.BULK_ELEMENTS_MAX
    assert len(port.asked) == 1


LARGE = ObjectId("x" * (bounds.COMPACT_STRANGER_BYTES_MAX + 1))


async def test_of_who_has_no_role_nothing_large_is_kept(grid: Grid) -> None:
    size = (bounds.COMPACT_STRANGER_BYTES_MAX + 1).to_bytes(4)
    async with door(grid, Port(answered)) as server, raw(grid, server, "/O=Grid/CN=Jane Doe") as (reader, writer):
        writer.write(asked(1))
        failure = (await answer_from(reader)).failure
        assert failure is not None
        assert failure.kind == "denied"
        writer.write(size)
        assert await asyncio.wait_for(reader.read(), 60) == b""
    async with door(grid, Port(answered)) as server, raw(grid, server) as (reader, writer):
        writer.write(size)
        await until(lambda: any(connection._splitter.kept for connection in server.compact_connections))


async def test_nothing_is_read_of_a_caller_before_it_is_known_whether_he_has_a_role(grid: Grid) -> None:
    told = asyncio.Event()

    async def source() -> tuple[ServiceRecord, ...]:
        await told.wait()
        return (KNOWN,)

    class Wide(Port):
        async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
            return tuple(StoredObject(each, 1, {}) for each in ids)

    async with door(grid, Wide(answered), source=source) as server, stub(grid, server, retry_ms=0) as ahash:
        asking = asyncio.create_task(ahash.get(Call(), (LARGE,)))
        await until(lambda: len(server.compact_connections) == 1)
        (connection,) = server.compact_connections
        assert connection._transport is not None
        assert not connection._transport.is_reading()
        told.set()
        assert [found.id for found in await asking] == [LARGE]


async def test_a_connection_that_broke_is_made_anew(grid: Grid) -> None:
    port = Port(answered)
    async with door(grid, port) as server, stub(grid, server, retry_ms=5_000, pause_ms=1) as ahash:
        assert await ahash.status(Call()) == STATUS
        for connection in tuple(server.compact_connections):
            connection.cut()
        assert await ahash.status(Call()) == STATUS


async def test_who_gets_no_answer_in_time_says_so(grid: Grid) -> None:
    async def never(call: Call) -> AHashStatus:
        await asyncio.Event().wait()
        raise AssertionError

    async with door(grid, Port(never)) as server, stub(grid, server, retry_ms=0, read_ms=100) as ahash:
        with fails(Kind.TIMEOUT):
            await ahash.status(Call())
        for connection in tuple(server.compact_connections):
            connection.cut()


class Freezing(Port):
    """A port whose `status` answers until it is frozen, and after that when the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(self._when_it_goes)
        self.goes = asyncio.Event()
        self.goes.set()

    async def _when_it_goes(self, call: Call) -> AHashStatus:
        await self.goes.wait()
        return STATUS


def failures() -> list[CheloniaError]:
    """All failures still in memory."""
    return [each for each in gc.get_objects() if isinstance(each, CheloniaError)]


@asynccontextmanager
async def uncollected() -> AsyncIterator[Callable[[], bool]]:
    """Yield a check whether failures made since then are still in memory: those in reference cycles are."""
    gc.collect()
    before = {id(each): each for each in failures()}
    gc.disable()
    try:
        yield lambda: any(id(each) not in before for each in failures())
    finally:
        gc.enable()


async def test_what_failed_is_given_back_at_once(grid: Grid) -> None:
    async def missing(call: Call) -> AHashStatus:
        raise CheloniaError(Kind.NOT_FOUND, "status")

    async with door(grid, Port(missing)) as server, stub(grid, server, retry_ms=0) as ahash, uncollected() as kept:
        for _ in range(3):
            with pytest.raises(CheloniaError):
                await ahash.status(Call())
        await until(lambda: not kept())


async def test_a_broken_connection_keeps_nothing_of_its_calls(grid: Grid) -> None:
    port = Freezing()
    port.goes.clear()
    async with door(grid, port) as server, stub(grid, server, retry_ms=0) as ahash, uncollected() as kept:
        calls = [asyncio.create_task(ahash.status(Call())) for _ in range(5)]
        await until(lambda: port.asked == 5)
        for connection in tuple(server.compact_connections):
            connection.cut()
        await asyncio.wait(calls)
        assert {type(call.exception()) for call in calls} == {CheloniaError}
        del calls
        await until(lambda: not kept())
        port.goes.set()


async def test_a_silent_instance_has_the_next_asked_beside_it_and_is_left(grid: Grid) -> None:
    one, other = Freezing(), Freezing()
    async with (
        door(grid, one) as first,
        door(grid, other) as second,
        stub(grid, first, second, retry_ms=0, hedge_ms=round(500 * patience())) as ahash,
    ):
        assert await ahash.status(Call()) == STATUS
        frozen, well = (one, other) if one.asked else (other, one)
        frozen.goes.clear()
        assert await ahash.status(Call()) == STATUS
        assert (frozen.asked, well.asked) == (2, 1)
        assert await ahash.status(Call()) == STATUS
        assert (frozen.asked, well.asked) == (2, 2), "it stays with who answered"
        frozen.goes.set()


async def test_a_brief_call_is_answered_at_once_or_else_by_the_port(grid: Grid) -> None:
    port, asked = Port(answered), list[tuple[object, ...]]()
    answers: list[Callable[[], AHashStatus | None]] = [lambda: replace(STATUS, term=7), lambda: None, broken, refused]

    def at_once(call: Call, method: str, args: tuple[object, ...]) -> AHashStatus | None:
        asked.append((method, *call.roles))
        return answers.pop(0)()

    async with door(grid, port, at_once=at_once) as server, stub(grid, server, retry_ms=0) as ahash:
        assert (await ahash.status(Call())).term == 7
        assert port.asked == 0
        assert [await ahash.status(Call()) for _ in range(3)] == [STATUS] * 3
    assert port.asked == 3
    assert asked == [("status", Role.LIBRARIAN)] * 4


def broken() -> None:
    raise ZeroDivisionError("the port meets it again, and tells")


def refused() -> None:
    raise CheloniaError(Kind.DENIED, "status")


async def test_who_takes_long_and_answers_others_is_waited_for(grid: Grid) -> None:
    one, other, slow = Port(answered), Port(answered), asyncio.Event()

    async def slow_for_some(call: Call) -> AHashStatus:
        if call.request_id == "slow":
            await slow.wait()
        return STATUS

    one._status = other._status = slow_for_some
    async with (
        door(grid, one) as first,
        door(grid, other) as second,
        stub(grid, first, second, retry_ms=0, hedge_ms=round(500 * patience())) as ahash,
    ):
        assert await ahash.status(Call()) == STATUS
        long = asyncio.create_task(ahash.status(Call(request_id="slow")))
        for _ in range(30):
            assert await ahash.status(Call()) == STATUS
            await asyncio.sleep(0.03)
        assert 0 in (one.asked, other.asked), "one was never asked"
        slow.set()
        assert await long == STATUS


async def test_both_silent_are_waited_for_until_one_answers(grid: Grid) -> None:
    one, other = Freezing(), Freezing()
    async with (
        door(grid, one) as first,
        door(grid, other) as second,
        stub(grid, first, second, retry_ms=0, hedge_ms=20) as ahash,
    ):
        assert await ahash.status(Call()) == STATUS
        one.goes.clear()
        other.goes.clear()
        asking = asyncio.create_task(ahash.status(Call()))
        await until(lambda: one.asked > 0 and other.asked > 0)
        one.goes.set()
        assert await asking == STATUS
        other.goes.set()


async def test_one_slow_call_fails_alone_while_others_are_answered(grid: Grid) -> None:
    async def slow_for_some(call: Call) -> AHashStatus:
        if call.request_id == "slow":
            await asyncio.Event().wait()
        return STATUS

    read_ms = round(500 * patience())
    async with door(grid, Port(slow_for_some)) as server, stub(grid, server, retry_ms=0, read_ms=read_ms) as ahash:
        slow = asyncio.create_task(ahash.status(Call(request_id="slow")))
        while not slow.done():
            assert await ahash.status(Call()) == STATUS
            await asyncio.sleep(0.05)
        with fails(Kind.TIMEOUT):
            await slow
        (connection,) = server.compact_connections
        assert await ahash.status(Call()) == STATUS
        assert tuple(server.compact_connections) == (connection,), "the connection was not broken"
        connection.cut()


async def test_too_large_an_answer_or_call_fails_alone(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(Port):
        async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
            return tuple(StoredObject(each, 1, {"s": {"p": "x" * 65_000}}) for each in ids)

    monkeypatch.setattr(compact, "ANSWER_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(compact, "CALL_BYTES_MAX", 100_000)
    async with door(grid, Wide(answered)) as server, stub(grid, server, retry_ms=0) as ahash:
        for ids in ((OBJECT,) * 20, (ObjectId("x" * 200_000),)):
            with fails(Kind.TOO_LARGE):
                await ahash.get(Call(), ids)
        assert len(await ahash.get(Call(), (OBJECT,) * 3)) == 3
        assert server.connections == 1


@pytest.mark.parametrize("begun", [b"", b"\0\0\1\0half a call"])
async def test_who_says_nothing_or_only_half_is_cut_in_the_end(
    grid: Grid, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_server, "LOOK_MS", 20)
    longest_ms = round(300 * patience())
    monkeypatch.setattr(compact_server, "IDLE_MS", longest_ms if not begun else 60_000)
    monkeypatch.setattr(bounds, "SOAP_BODY_MS", longest_ms)
    async with door(grid, Port(answered)) as server, raw(grid, server) as (reader, writer):
        writer.write(asked(1))
        assert (await answer_from(reader)).number == 1
        writer.write(begun)
        assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_an_internal_failure_names_the_request(grid: Grid, expect_log: Callable[[str], None]) -> None:
    async def broken(call: Call) -> AHashStatus:
        raise RuntimeError("oops")

    expect_log("failed service=ahash")
    async with door(grid, Port(broken)) as server, stub(grid, server, retry_ms=0) as ahash:
        with pytest.raises(CheloniaError) as caught:
            await ahash.status(Call(request_id="abc"))
    assert caught.value.kind is Kind.INTERNAL
    assert "abc" in caught.value.cause


@pytest.mark.parametrize("junk", [b"\xff\xff\xff\xff", b"\0\0\0\x01\xc1", b"GET / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_frame_ends_the_connection(grid: Grid, junk: bytes) -> None:
    async with door(grid, Port(answered)) as server, raw(grid, server) as (reader, writer):
        writer.write(asked(1))
        assert (await answer_from(reader)).number == 1
        writer.write(junk)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ssl.SSLError)):
            await answer_from(reader)
        await until(lambda: server.connections == 0)


async def test_who_floods_waits_for_himself(grid: Grid) -> None:
    port = SlowPort()
    calls = 4 * bounds.COMPACT_CALLS_MAX
    async with door(grid, port) as server, raw(grid, server) as (reader, writer):
        for number in range(calls):
            writer.write(asked(number))
            await asyncio.sleep(0)
        await until(lambda: port.asked >= bounds.COMPACT_CALLS_MAX)
        async with stub(grid, server) as other:
            waiting = asyncio.create_task(other.status(Call()))
            await until(lambda: port.asked > bounds.COMPACT_CALLS_MAX)
            assert port.asked < calls, "calls beyond the bound are not even read"
            port.gate.set()
            assert await waiting == STATUS
        assert {(await answer_from(reader)).number for _ in range(calls)} == set(range(calls))


@pytest.mark.parametrize("waits", [False, True])
async def test_many_calls_that_are_answered_at_once_do_not_have_the_loop_to_themselves(
    grid: Grid, *, waits: bool
) -> None:
    calls, begun_by_then = 100, []

    async def status(call: Call) -> AHashStatus:
        if port.asked == 1:
            asyncio.get_running_loop().call_soon(lambda: begun_by_then.append(port.asked))
        if waits:
            await asyncio.sleep(0)
        return STATUS

    port = Port(status)
    async with door(grid, port) as server, raw(grid, server) as (reader, writer):
        writer.write(b"".join(asked(number) for number in range(calls)))
        assert {(await answer_from(reader)).number for _ in range(calls)} == set(range(calls))
    assert begun_by_then == [calls if waits else compact_server.ANSWERS_AT_ONCE]


async def test_calls_before_what_is_no_frame_are_answered_and_none_behind_it_begins(grid: Grid) -> None:
    port, before = Port(answered), compact_server.ANSWERS_AT_ONCE
    async with door(grid, port) as server, raw(grid, server) as (reader, writer):
        calls = [asked(number) for number in range(2 * before)]
        writer.write(b"".join([*calls[:before], b"\0\0\0\x01\xc1", *calls[before:]]))
        assert [(await answer_from(reader)).number for _ in range(before)] == list(range(before))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ssl.SSLError)):
            await answer_from(reader)
        await until(lambda: server.connections == 0)
    assert port.asked == before


async def test_stopping_answers_what_has_begun(grid: Grid) -> None:
    port = SlowPort()
    async with door(grid, port) as server, stub(grid, server, retry_ms=0) as ahash:
        waiting = asyncio.create_task(ahash.status(Call()))
        await until(lambda: port.asked == 1)
        stopping = asyncio.create_task(server.stop(5_000))
        await asyncio.sleep(0)
        port.gate.set()
        assert await waiting == STATUS
        await stopping
        assert server.connections == 0


def test_the_same_on_the_loop_that_daemons_run_on(grid: Grid) -> None:
    async def scenario() -> None:
        async with door(grid, Port(answered)) as server, stub(grid, server) as ahash:
            assert await asyncio.gather(*(ahash.status(Call()) for _ in range(20))) == [STATUS] * 20
            assert server.connections == 1

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_a_deadline_that_is_over_as_soon_as_it_is_set_fails_who_waits() -> None:
    """The loop of daemons makes no timer for less than half a millisecond."""

    async def scenario() -> None:
        connection = Connection("somebody")
        connection.connection_made(Wire())
        words = compact.OutgoingCall(0, "ahash", "status", "r", "", "", None, False, ())
        waiting = [connection.ask(PendingCall(words, read_ms)) for read_ms in (0, 1)]
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert [error.kind for error in failed if isinstance(error, CheloniaError)] == [Kind.TIMEOUT] * 2

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
