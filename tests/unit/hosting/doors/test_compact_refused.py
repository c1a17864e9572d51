"""Connections that end: a client without an identity gets the reason, and a host that may be a service asks again.

Nothing is written to a connection that closes.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.ports.ahash import AHashStatus
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.hosting.doors.compact_server import CompactConnection, CompactDoor, CompactParts, offer
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.http_server import HttpLimits
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient, Connection, PendingCall, Silent
from chelonia.hosting.net.http_messages import Peer
from chelonia.hosting.net.identity import Identity
from chelonia.hosting.net.rpc_client import Link, RetryLimits, open_link, remote_ahash
from chelonia.hosting.net.tls import ClientCertificate, TlsStore
from chelonia.wire import compact
from chelonia.wire.operations.ahash import AHASH
from tests.support.failing import fails
from tests.unit.hosting.doors.test_compact import (
    KNOWN,
    LIBRARIAN,
    STATUS,
    Port,
    SlowPort,
    Wire,
    answer_from,
    answered,
    asked,
    door,
    raw,
    stub,
    until,
)
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import client_of


async def test_a_revoked_certificate_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open connection completes the calls under way, then ends with that error; so does a new one."""
    grid, gate = Grid(tmp_path), asyncio.Event()
    store, librarian = grid.server(), grid.user(LIBRARIAN)
    monkeypatch.setattr(grid, "server", lambda: store)

    async def slow(call: Call) -> AHashStatus:
        await gate.wait()
        return STATUS

    port, own = Port(slow), grid.client(librarian)
    packed = CompactClient(own.client_context(speaks=compact.PROTOCOL))
    async with door(grid, port, HttpLimits(identity_ms=0)) as server, client_of(own) as client:
        link = Link(client, SystemClock(), SystemIds(), compact=packed)
        ahash = remote_ahash(link, [f"https://localhost:{server.port}/AHash"], RetryLimits())
        begun = asyncio.create_task(ahash.status(Call()))
        await until(lambda: port.asked == 1)
        grid.ca.revoke(librarian.certificate, grid.now)
        store.reload()
        failures = await asyncio.gather(ahash.status(Call()), ahash.status(Call()), return_exceptions=True)
        gate.set()
        assert await begun == STATUS
        await until(lambda: server.connections == 0)
        failures += await asyncio.gather(ahash.status(Call()), return_exceptions=True)
        await packed.close()
    for failure in failures:
        assert isinstance(failure, CheloniaError)
        assert failure.kind is Kind.UNTRUSTED, failure
        assert "revoked" in failure.cause
    assert port.asked == 1


async def test_a_renewed_certificate_is_shown_at_once_and_what_had_begun_is_answered(tmp_path: Path) -> None:
    grid, gate = Grid(tmp_path), asyncio.Event()

    async def slow(call: Call) -> AHashStatus:
        await gate.wait()
        return STATUS

    port, files = Port(slow), grid.settings(grid.user(LIBRARIAN))
    assert files.proxy is not None
    link = open_link(TlsStore(files, grid.clock.now_ms))
    async with door(grid, port) as server, link.client as client:
        ahash = remote_ahash(link, [f"https://localhost:{server.port}/AHash"], RetryLimits())
        begun = asyncio.create_task(ahash.status(Call()))
        await until(lambda: port.asked == 1)
        assert not client.renew()
        assert client.compact is not None
        files.proxy.unlink()
        grid.user(LIBRARIAN).write_proxy(files.proxy)
        assert client.renew()
        client.compact.anew()
        later = asyncio.create_task(ahash.status(Call()))
        await until(lambda: port.asked == 2)
        assert server.connections == 2
        gate.set()
        assert await asyncio.gather(begun, later) == [STATUS, STATUS]
        await until(lambda: server.connections == 1)


async def away() -> tuple[ServiceRecord, ...]:
    raise CheloniaError(Kind.NETWORK)


@pytest.mark.parametrize("soap", [False, True], ids=["compact", "SOAP"])
@pytest.mark.parametrize("host", [True, False], ids=["host", "user"])
async def test_no_host_is_denied_while_it_is_not_known_who_is_approved(tmp_path: Path, host: bool, soap: bool) -> None:
    """It may be a service, and repeats the call when the core has read the registry. A user never is one."""
    grid = Grid(tmp_path)
    async with (
        door(grid, Port(answered), source=away) as server,
        stub(grid, server, host=host, soap=soap, retry_ms=0) as ahash,
    ):
        with pytest.raises(CheloniaError) as caught:
            await ahash.get(Call(), ())
    assert caught.value.kind is (Kind.UNAVAILABLE if host else Kind.DENIED), caught.value


async def test_who_leaves_waits_for_no_goodbye(tmp_path: Path) -> None:
    """A peer's goodbye is a round trip away, and a frozen one sends none."""
    grid, met = Grid(tmp_path), asyncio.Queue[asyncio.StreamWriter]()

    async def frozen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        met.put_nowait(writer)

    context = grid.server().server_context(ClientCertificate.REQUIRED)
    context.set_alpn_protocols([compact.PROTOCOL])
    server = await asyncio.start_server(frozen, "localhost", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/AHash"
    packed = CompactClient(grid.client(grid.user(LIBRARIAN)).client_context(speaks=compact.PROTOCOL))
    words = compact.OutgoingCall(0, "ahash", "status", "r", "", "", None, False, ())
    asking = asyncio.ensure_future(packed.ask(url, PendingCall(words, 60_000)))
    peer = await met.get()
    await until(lambda: packed.open_connection(url) is not None)
    connection = packed.open_connection(url)
    assert connection is not None
    await packed.close()
    assert connection.ended.done()
    with pytest.raises(CheloniaError):
        await asking
    peer.transport.abort()
    server.close()
    await server.wait_closed()


async def test_nothing_is_written_to_a_connection_that_closes() -> None:
    """TLS closes in several turns of the loop, and logs each write beyond the fifth."""
    port, wire, ours = SlowPort(), Wire(), Wire()
    packed = CompactDoor(offer(AHASH.table, port), CompactParts(RoleRegistry((KNOWN,), None, SystemClock()), Horizon()))
    busy = list[bool]()
    serving = CompactConnection(packed, lambda _: Identity(Dn(LIBRARIAN)), lambda _: None)
    serving.at_work = busy.append
    serving.connection_made(wire)
    serving.data_received(b"".join(asked(number) for number in range(10)))
    await until(lambda: port.asked == 10)
    asking = Connection("somebody")
    asking.connection_made(ours)
    wire.closes = ours.closes = True
    port.gate.set()
    words = compact.OutgoingCall(0, "ahash", "status", "r", "", "", None, False, ())
    answer = asking.ask(PendingCall(words, 60_000))
    await until(lambda: busy[-1:] == [False])
    assert not wire.written
    assert not ours.written
    asking.connection_lost(None)
    with fails(Kind.NETWORK):
        await answer


async def test_nothing_is_said_of_who_goes_when_he_hears_that_it_takes_long() -> None:
    """Nobody awaits the rest of the call then; the kill of a frozen peer was an ERROR in the log."""
    complaints = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    connection = Connection("somebody")
    connection.connection_made(Wire())
    words = compact.OutgoingCall(0, "ahash", "status", "r", "", "", None, False, ())
    answer = connection.ask(PendingCall(words, 60_000, silent_ms=1))
    await until(answer.done)
    assert isinstance(answer.exception(), Silent)
    del answer
    connection.connection_lost(None)
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints


async def test_of_what_a_caller_calls_his_request_no_more_is_kept_than_by_other_doors(
    expect_log: Callable[[str], None],
) -> None:
    heard, long = list[str](), "x" * 64 + "y" * 10_000

    async def status(call: Call) -> AHashStatus:
        heard.append(call.request_id)
        if len(heard) == 1:
            return STATUS
        raise RuntimeError("planted")

    registry = RoleRegistry((KNOWN,), None, SystemClock())
    packed = CompactDoor(offer(AHASH.table, Port(status)), CompactParts(registry, Horizon()))
    expect_log(f"failed service=ahash op=status request={'x' * 64}$")
    for _ in range(2):
        call = compact.decode_asked(asked(1)[compact.LENGTH_BYTES :])
        call.request_id = long
        answer = await packed.answer(Peer(Dn(LIBRARIAN)), call)
    assert heard == ["x" * 64] * 2
    assert b"x" * 64 in answer
    assert b"xy" not in answer


async def test_bytes_that_are_not_utf_8_cost_their_sender_the_connection(tmp_path: Path) -> None:
    """No event loop's handler of errors sees them: strangers could fill the log with stack traces."""
    trouble: list[dict[str, Any]] = []
    grid, port = Grid(tmp_path), Port(answered)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context))
    async with door(grid, port) as server, raw(grid, server) as (reader, writer):
        writer.write(asked(1))
        assert (await answer_from(reader)).number == 1
        writer.write(asked(2).replace(b"ahash", b"ahas\xff"))
        assert not await reader.read()
    assert (port.asked, trouble) == (1, [])
