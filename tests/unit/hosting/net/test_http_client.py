"""Failures of the transport for callers: a kind, the target, a cure, and never a query."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohappyeyeballs
import aiohttp
import pytest
import uvloop

from chelonia.core import bounds
from chelonia.core.bounds import CHUNK_BYTES
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net.buffered import Buffered
from chelonia.hosting.net.http_client import (
    TARGETS_MAX,
    ClientLimits,
    HttpClient,
    RoundTrips,
    Sending,
    explain,
    raise_for_status,
    target_of,
)
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, error_answer, text_answer
from chelonia.hosting.transfer.push import HttpTransfers
from chelonia.wire.web.headers import OFFSET_HEADER
from tests.support.failing import fails
from tests.support.polling import patience, poll_async
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import client_of, plain


async def failure(client: HttpClient, sending: Sending) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        await client.request(sending)
    return caught.value


async def ok(request: HttpRequest) -> HttpResponse:
    return text_answer(200, "ok")


async def test_nobody_listening_is_network_and_names_the_target() -> None:
    async with plain(ok) as server:
        url = f"http://127.0.0.1:{server.port}/turl/x?ticket=secret"
    async with client_of(None) as client:
        error = await failure(client, Sending("GET", url))
    assert error.kind is Kind.NETWORK
    assert "127.0.0.1" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("number", "says"), [(errno.ECONNRESET, "Connection reset by peer"), (None, "it was closed")])
def test_an_upload_that_breaks_off_is_explained_without_its_ticket(number: int | None, says: str) -> None:
    """aiohttp quotes the URL where it cannot send the body."""
    quoting = "Can not write request body for https://host:1/turl/x?ticket=secret"
    error = explain(aiohttp.ClientOSError(number, quoting), "https://host:1")
    assert (error.kind, error.cause) == (Kind.NETWORK, f"the connection to https://host:1 broke: {says}")


def test_a_users_program_keeps_its_cas_while_aiohttp_is_loaded_and_a_failed_call_does_not_load_it() -> None:
    """Its other threads may make contexts, or start processes, meanwhile."""
    program = """
import asyncio, os, sys
from chelonia.hosting.net.http_client import HttpClient, Sending, explain

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "aiohttp.connector":
            print(os.environ["SSL_CERT_FILE"])

async def ask():
    async with HttpClient(lambda: None) as client:
        await client.request(Sending("GET", "http://127.0.0.1:1/"))

explain(ConnectionRefusedError(), "https://a", connecting=True)
print("aiohttp" in sys.modules)
sys.meta_path.insert(0, Finder())
try:
    asyncio.run(ask())
except Exception as error:
    print(error.kind.value)
"""
    environment = {**os.environ, "SSL_CERT_FILE": "/their/cas"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert ended.stdout.split() == ["False", "/their/cas", "network"]


async def test_a_peer_without_tls_is_asked_for_its_port(tmp_path: Path) -> None:
    grid = Grid(tmp_path)
    async with plain(ok) as server, client_of(grid.client(grid.user())) as client:
        error = await failure(client, Sending("GET", f"https://127.0.0.1:{server.port}/"))
    assert error.kind is Kind.UNTRUSTED
    assert "is this the right port?" in error.cause


async def test_no_answer_in_time_is_a_timeout() -> None:
    async def door(request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(1)
        return text_answer(200, "late")

    async with plain(door) as server, client_of(None, ClientLimits(read_idle_ms=50)) as client:
        error = await failure(client, Sending("GET", f"http://127.0.0.1:{server.port}/"))
        assert error.kind is Kind.TIMEOUT


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_who_takes_none_of_a_body_is_not_waited_for(says: bytes) -> None:
    """The same holds before a `100 Continue`. A copy to another server held its place for ever."""

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(says)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await ended.wait()
        writer.close()

    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(CHUNK_BYTES)

    ended = asyncio.Event()
    server = await asyncio.start_server(mute, "127.0.0.1")
    async with server, client_of(None, ClientLimits(send_idle_ms=300)) as client, asyncio.timeout(60 * patience()):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?ticket=secret"
        error = await failure(client, Sending("PUT", url, body=body()))
        ended.set()
    assert error.kind is Kind.TIMEOUT
    assert "secret" not in str(error)


async def test_the_source_of_a_body_may_pause() -> None:
    async def took(request: HttpRequest) -> HttpResponse:
        return text_answer(200, str(sum([len(piece) async for piece in request.body])))

    async def body() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(3 * patience())
        yield b"two"

    async with plain(took) as server, client_of(None, ClientLimits(send_idle_ms=int(2000 * patience()))) as client:
        url = f"http://127.0.0.1:{server.port}/"
        assert (await client.request(Sending("PUT", url, body=body()))).body == b"6"


async def test_what_is_asked_while_or_after_the_client_is_closed_fails_as_a_broken_connection_does() -> None:
    """A background call of a node that ends is no error, and leaves no connection open."""
    async with plain(ok) as server:
        sending = Sending("GET", f"http://127.0.0.1:{server.port}/")
        async with client_of(None) as client:
            await client.request(sending)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            assert (await failure(client, sending)).kind is Kind.NETWORK
            await closing
            assert (await failure(client, sending)).kind is Kind.NETWORK


async def test_who_looks_himself_whether_the_other_side_lives_waits_for_its_answer() -> None:
    """The server reads slowly: all bytes are handed over here, and far from all are there."""
    taken = asyncio.Event()

    async def door(request: HttpRequest) -> HttpResponse:
        async for _ in request.body:
            await taken.wait()
        return HttpResponse(200, ((OFFSET_HEADER, str(CHUNK_BYTES)),), b"")

    async with plain(door) as server, client_of(None, ClientLimits(read_idle_ms=50)) as client:
        transfers, url = HttpTransfers(client), f"http://127.0.0.1:{server.port}/turl/x"
        with pytest.raises(CheloniaError, match="did not answer in time"):
            await transfers.push(url, sent(), CHUNK_BYTES)
        pushing = asyncio.ensure_future(transfers.push(url, sent(), CHUNK_BYTES, patient=True))
        with pytest.raises(CheloniaError, match="did not answer in time"):  # as long again
            await transfers.push(url, sent(), CHUNK_BYTES)
        assert not pushing.done()
        taken.set()
        assert (await pushing).offset == CHUNK_BYTES


async def sent() -> AsyncIterator[bytes]:
    yield bytes(CHUNK_BYTES)


async def test_a_question_waits_for_no_body_before_it() -> None:
    """A probe of a Shepherd would take a lack of connections here for silence there."""
    begun, taken = asyncio.Event(), asyncio.Event()

    async def door(request: HttpRequest) -> HttpResponse:
        if request.method == "PUT":
            begun.set()
            await taken.wait()
        return HttpResponse(200, ((OFFSET_HEADER, "7"),), b"")

    async with plain(door) as server, client_of(None, ClientLimits(connections_per_target_max=1)) as client:
        transfers, url = HttpTransfers(client), f"http://127.0.0.1:{server.port}/turl/x"
        pushing = asyncio.ensure_future(transfers.push(url, sent(), CHUNK_BYTES))
        await begun.wait()
        async with asyncio.timeout(10 * patience()):
            assert await transfers.offset(url) == 7
        assert not pushing.done()
        taken.set()
        await pushing


@pytest.mark.parametrize("url", ["no url", "ftp://localhost/", "https://", "https://local host/"])
async def test_what_is_no_url_is_a_bad_request(url: str) -> None:
    async with client_of(None) as client:
        assert (await failure(client, Sending("GET", url))).kind in (Kind.BAD_REQUEST, Kind.NETWORK)


async def test_a_client_with_credentials_never_speaks_plaintext(tmp_path: Path) -> None:
    grid = Grid(tmp_path)
    seen: list[HttpRequest] = []

    async def door(request: HttpRequest) -> HttpResponse:
        seen.append(request)
        return text_answer(200, "ok")

    async with plain(door) as server, client_of(grid.client(grid.user())) as client:
        error = await failure(client, Sending("PUT", f"http://127.0.0.1:{server.port}/turl/x?ticket=s", None, b"bytes"))
    assert error.kind is Kind.BAD_REQUEST
    assert "ticket" not in str(error)
    assert not seen


async def test_what_the_source_of_a_body_raises_arrives_as_it_left() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        raise CheloniaError(Kind.NOT_ALIVE, cause="the disk ended")

    async def door(request: HttpRequest) -> HttpResponse:
        async for _ in request.body:
            pass
        return text_answer(200, "whole")

    async with plain(door) as server, client_of(None) as client:
        error = await failure(client, Sending("PUT", f"http://127.0.0.1:{server.port}/", body=body(), length=10))
        assert error.kind is Kind.NOT_ALIVE


def test_who_leaves_an_answer_is_sent_no_more_of_it(tmp_path: Path) -> None:
    """uvloop reads a closed TLS transport for another 30 s, at full speed, if its other end does not react."""
    grid, listening = Grid(tmp_path), socket.create_server(("127.0.0.1", 0))

    def sends() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*grid.host_files)
        with listening, context.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
            with contextlib.suppress(OSError):
                while True:
                    connection.sendall(bytes(CHUNK_BYTES))
                    time.sleep(0.01)

    async def leave() -> None:
        url = f"https://localhost:{listening.getsockname()[1]}/"
        async with client_of(grid.client(None)) as client:
            sending = asyncio.create_task(asyncio.to_thread(sends))
            async with client.stream(Sending("GET", url)) as answer:
                assert await anext(aiter(answer.chunks()))
            async with asyncio.timeout(20):
                await sending

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(leave())


async def test_an_answer_longer_than_the_bound_is_refused() -> None:
    async def door(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), b"x" * 1000)

    async with plain(door) as server, client_of(None, ClientLimits(answer_bytes_max=999)) as client:
        assert (await failure(client, Sending("GET", f"http://127.0.0.1:{server.port}/"))).kind is Kind.TOO_LARGE


@pytest.mark.parametrize("kind", list(Kind))
async def test_every_kind_of_refusal_arrives_as_it_left(kind: Kind) -> None:
    answer = error_answer(CheloniaError(kind, cause="because"))
    assert isinstance(answer.body, bytes)
    with pytest.raises(CheloniaError) as caught:
        raise_for_status(answer.status, dict(answer.headers), answer.body)
    assert (caught.value.kind, caught.value.cause) == (kind, "because")


@pytest.mark.parametrize(("status", "kind"), [(404, Kind.NOT_FOUND), (418, Kind.BAD_REQUEST), (504, Kind.UNAVAILABLE)])
def test_others_refusals_are_read_by_their_status(status: int, kind: Kind) -> None:
    with fails(kind):
        raise_for_status(status, {}, b"no")


def test_the_target_has_no_path_and_no_query() -> None:
    assert target_of("https://localhost:1/turl/x?ticket=secret") == "https://localhost:1"


def idle_of(client: HttpClient) -> list[Any]:
    """aiohttp's handlers of the idle connections."""
    return [handler for kept in client._pool(asks=False).connector._conns.values() for handler, _since in kept]


async def test_answers_are_read_through_one_buffer() -> None:
    """A release of the library that bypasses `Buffered` would cost a second of CPU per GiB and break nothing else."""
    async with plain(ok) as server, client_of(None) as client:
        await client.request(Sending("GET", f"http://127.0.0.1:{server.port}/"))
        idle = idle_of(client)
        assert [type(handler.transport.get_protocol()) for handler in idle] == [Buffered]


async def test_how_far_a_target_is_is_known_once_there_was_a_connection() -> None:
    async with plain(ok) as server, client_of(None) as client:
        url = f"http://127.0.0.1:{server.port}/"
        assert client.round_trips.to(url) == 0
        await client.request(Sending("GET", url))
        assert 0 < client.round_trips.to(url) < 1_000
        assert client.round_trips.to("http://127.0.0.2:1/") == client.round_trips.to(url), "as far as the farthest"


def test_the_round_trip_stands_where_the_kernel_has_it() -> None:
    """`struct tcp_info` (linux/tcp.h): 8 bytes, then numbers of 32 bits, of which `tcpi_rtt` is the 16th."""

    class Connection(asyncio.BaseTransport):
        def getsockopt(self, level: int, what: int, size: int) -> bytes:
            assert (level, what) == (socket.IPPROTO_TCP, socket.TCP_INFO)
            return struct.pack("8B24I", *range(8), *range(1000, 25_000, 1000))[:size]

    known = RoundTrips()
    known.note("https://there:1", Connection({"socket": Connection()}))
    assert known.to("https://there:1/turl/x") == 16


def test_whoever_was_silent_while_a_connection_was_made_is_not_as_far_as_that() -> None:
    """A Shepherd that froze for 20 s would have a second one beside it only after 80 s more."""
    known = RoundTrips()
    known.keep("https://there:1", 20_000)
    assert known.to("https://there:1") == bounds.ROUND_TRIP_MS_MAX


def test_how_far_they_are_is_known_of_so_many_targets_at_most() -> None:
    known = RoundTrips()
    for number in range(TARGETS_MAX + 1):
        known.keep(f"https://n{number}:1", number)
    known.keep("https://n1:1", 7)
    assert known.to("https://n1:1") == 7
    assert known.to("https://n0:1") == TARGETS_MAX, "it was forgotten: as far as the farthest"
    assert len(known._ms) == TARGETS_MAX


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_of_a_connection_that_has_broken_already_nothing_is_kept(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def broken() -> RoundTrips:
        async with plain(ok) as server:
            loop, known = asyncio.get_running_loop(), RoundTrips()
            transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", server.port)
            transport.abort()
            while is_open(transport):
                await asyncio.sleep(0)
            known.note("http://there:1", transport)
        return known

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(broken()).to("http://there:1") == 0


def is_open(transport: asyncio.BaseTransport) -> bool:
    try:
        return bool(transport.get_extra_info("socket").fileno() >= 0)
    except ValueError:  # as uvloop says it
        return False


async def test_an_answer_that_was_read_slowly_leaves_no_patience_of_its_own_behind() -> None:
    """aiohttp's timer for the next bytes restarts when reading goes on, though the answer has come whole."""
    body = b"x" * 600_000

    async def whole(request: HttpRequest) -> HttpResponse:
        await anext(request.body, b"")
        return HttpResponse(200, (), body)

    async with plain(whole) as server, client_of(None, ClientLimits(connections_per_target_max=1)) as client:
        url = f"http://127.0.0.1:{server.port}/"
        async with client.stream(Sending("GET", url, read_idle_ms=60_000)) as answer:
            await poll_async(lambda: answer._response.content.total_bytes > len(body) // 2, what="most has come")
            assert b"".join([chunk async for chunk in answer.chunks()]) == body
        assert [handler._read_timeout_handle for handler in idle_of(client)] == [None]
        assert (await client.request(Sending("GET", url))).status == 200


@pytest.mark.filterwarnings("ignore:.*Unclosed:ResourceWarning")
async def test_a_program_s_stderr_is_spared_what_concerns_our_connections_alone(
    caplog: pytest.LogCaptureFixture, expect_log: Callable[..., None]
) -> None:
    """The loop's other errors are logged as ever, and a handler of the program's own gets all of them."""
    loop = asyncio.get_running_loop()
    broken = {"message": "Fatal error on SSL protocol", "exception": ConnectionResetError()}
    async with plain(ok) as server:
        client = client_of(None)
        await client.request(Sending("GET", f"http://127.0.0.1:{server.port}/"))
        loop.call_exception_handler(broken)
        del client
        gc.collect()
        await asyncio.sleep(0)
        assert not caplog.records
        expect_log("a bug")
        loop.call_exception_handler({"message": "a bug of the program", "exception": ValueError()})
        assert [record.getMessage().partition("\n")[0] for record in caplog.records] == ["a bug of the program"]
        told: list[object] = []
        loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
        async with client_of(None) as client:
            await client.request(Sending("GET", f"http://127.0.0.1:{server.port}/"))
        loop.call_exception_handler(broken)
        assert told == ["Fatal error on SSL protocol"]


def test_a_connection_that_is_reset_at_once_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop forgot the socket that it had got; its late close then hit another connection's."""
    start = aiohappyeyeballs.start_connection

    async def reset(**options: Any) -> socket.socket:
        begun = await start(**options)
        accepted, _ = listening.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        readable = select.poll()  # select.select refuses numbers from 1024 on, which late tests of a run get
        readable.register(begun, select.POLLIN)
        assert readable.poll(patience() * 10_000)
        return begun

    async def fail() -> None:
        async with HttpClient(ssl.create_default_context) as client:
            with contextlib.suppress(CheloniaError):  # kept, it would keep the socket
                await client.request(Sending("GET", f"https://127.0.0.1:{listening.getsockname()[1]}/"))
            others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
            gc.collect()
            await asyncio.sleep(0)
            gc.collect()
            for other in others:
                os.close(other)

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", reset)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(fail())
