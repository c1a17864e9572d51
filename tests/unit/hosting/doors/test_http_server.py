"""A listener for clients of every sort: honest, broken, slow and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.core.values import replace
from chelonia.hosting.doors import http_server
from chelonia.hosting.doors.http_server import HttpLimits, HttpServer
from chelonia.hosting.net.buffered import Buffered
from chelonia.hosting.net.http_client import Sending, raise_for_status
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Whole, read_whole, text_answer
from chelonia.hosting.net.tls import ClientCertificate, TlsStore
from chelonia.wire.web.ranges import range_of
from tests.support.failing import fails
from tests.support.group import GroupClock
from tests.support.polling import poll_async
from tests.unit.hosting import listening
from tests.unit.hosting.grid import JANE, Grid
from tests.unit.hosting.listening import PLAIN, client_of, plain, secure, talk

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


@pytest.fixture
def limits_met(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each limit of a plain listener was met."""
    met = dict[str, int]()
    monkeypatch.setattr(PLAIN.notes, "reached", met)
    return met


async def echo(request: HttpRequest) -> HttpResponse:
    """Answer with the method, the path, the caller, and the length of the body."""
    size = sum([len(chunk) async for chunk in request.body])
    return text_answer(200, f"{request.method} {request.path} {request.peer.dn} {size}")


async def bounded(request: HttpRequest) -> HttpResponse:
    return text_answer(200, str(len(await read_whole(request, Whole(1000)))))


def url(server: HttpServer, path: str = "/") -> str:
    return f"https://localhost:{server.port}{path}"


def plain_url(server: HttpServer, path: str = "/") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


async def pieces(count: int, size: int = 100_000) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


# --- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10_000_000, -1])
async def test_bodies_are_streamed_with_and_without_a_length(length: int) -> None:
    async with plain(echo) as server, client_of(None) as client:
        answer = await client.request(Sending("PUT", plain_url(server, "/a"), body=pieces(100), length=length))
        assert answer.body == b"PUT /a ANONYMOUS 10000000"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("https://elsewhere:1/a/b?ticket=secret", b"GET /a/b ANONYMOUS 0"),
        ("davs://elsewhere:1/a/b", b"GET /a/b ANONYMOUS 0"),
        ("/a#b", b" 400 "),
    ],
)
async def test_a_target_may_be_absolute_and_has_no_fragment(target: str, says: bytes) -> None:
    async with plain(echo) as server:
        raw = f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        assert says in await talk(server, raw)


async def test_continue_is_sent_when_the_body_is_wanted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    monkeypatch.setattr(PLAIN.notes, "met", lambda limit, who, did: met.append(limit))
    head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    async with plain(echo) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert b" 200 OK" in await reader.readuntil(b"\r\n")
        writer.close()
    async with plain(refuse, HttpLimits(linger_ms=50)) as server:
        answer = await talk(server, head)
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"100 Continue" not in answer
        assert not met, "no byte came of which there could be too many"
        assert (await talk(server, head, b"hel")).startswith(b"HTTP/1.1 403"), "who does not wait is told as well"
        assert met == ["bytes of a refused body"]


async def test_every_answer_names_its_request() -> None:
    async with plain(echo) as server, client_of(None) as client:
        known = await client.request(Sending("GET", plain_url(server), {"X-Request-Id": "abc-1"}))
        forged = await client.request(Sending("GET", plain_url(server), {"X-Request-Id": "a b"}))
        assert known.headers["X-Request-Id"] == "abc-1"
        assert forged.headers["X-Request-Id"] not in ("", "a b")


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity, chunked"])
async def test_a_coding_that_would_have_to_be_undone_is_not_implemented(coding: bytes) -> None:
    raw = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: " + coding + b"\r\n\r\n1\r\na\r\n0\r\n\r\n"
    async with plain(echo) as server:
        assert (await talk(server, raw, GET)).count(b"HTTP/1.1 501") == 1
        assert b" 200 " in await talk(server, raw.replace(coding, b"Chunked") + GET)


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"rubbish\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_with_a_status(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with plain(echo) as server:
        assert b" 400 " in (await talk(server, raw)).split(b"\r\n")[0]
    assert "malformed request" in caplog.text
    assert "Traceback" not in caplog.text


LONG = b"a" * 40_000


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /" + LONG + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nIf: " + LONG + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"X: %s\r\n" % LONG[:1000]) * 40,
    ],
    ids=["url", "field", "fields"],
)
async def test_a_head_that_is_too_long_is_told_the_limit(raw: bytes, limits_met: dict[str, int]) -> None:
    async with plain(echo) as server:
        answer = await talk(server, raw)
    assert b" 431 Request Header Fields Too Large" in answer.split(b"\r\n")[0]
    assert answer.endswith(
        b"\r\n\r\ntoo-large: the URL, or the header fields, are over 32768 bytes; send shorter ones\n"
    )
    assert limits_met == {"bytes of a request's head": 1}


async def test_too_many_header_fields_are_told_the_limit(limits_met: dict[str, int]) -> None:
    fields = [b"Host: a\r\n", *(b"X-%d: a\r\n" % n for n in range(130))]
    async with plain(echo) as server:
        assert b" 200 " in (
            await talk(server, b"GET / HTTP/1.1\r\nConnection: close\r\n" + b"".join(fields[:120]) + b"\r\n")
        )
        answer = await talk(server, b"GET / HTTP/1.1\r\n" + b"".join(fields) + b"\r\n")
    assert b" 431 Request Header Fields Too Large" in answer.split(b"\r\n")[0]
    assert answer.endswith(b"\r\n\r\ntoo-large: there are more than 128 header fields; send fewer\n")
    assert limits_met == {"bytes of a request's head": 1}


async def test_as_many_ranges_as_are_served_fit_into_a_request() -> None:
    far = range_of((ByteRange(99 * 10**12 - 2, 1),) * bounds.RANGES_MAX)
    more = f"Host: a\r\nConnection: close\r\nX: {'a' * 1900}"
    async with plain(echo) as server:
        assert b" 200 " in await talk(server, f"GET / HTTP/1.1\r\n{more}\r\nRange: {far}\r\n\r\n".encode())


@pytest.mark.parametrize("length", [5000, -1])
async def test_a_body_beyond_the_bound_is_413(length: int) -> None:
    async with plain(bounded) as server, client_of(None) as client:
        answer = await client.request(Sending("POST", plain_url(server), body=pieces(1, 5000), length=length))
        assert answer.status == 413
        with fails(Kind.TOO_LARGE):
            raise_for_status(answer.status, answer.headers, answer.body)


async def refuse(request: HttpRequest) -> HttpResponse:
    raise CheloniaError(Kind.DENIED, cause="not you")


def steps_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that the event loop reads in each later step."""
    steps: list[int] = []

    class Counting(Buffered):
        def buffer_updated(self, nbytes: int) -> None:
            steps.append(nbytes)
            super().buffer_updated(nbytes)

    monkeypatch.setattr(http_server, "Buffered", Counting)
    return steps


@pytest.mark.parametrize("door", [refuse, bounded])
def test_what_no_door_has_asked_for_is_read_in_small_steps(
    door: Callable[[HttpRequest], Awaitable[HttpResponse]], grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One door refuses at once, the other after 1000 bytes: both with 8 MB under way."""
    steps = steps_of(monkeypatch)
    assert sent_over_tls(grid, door, pieces(80)) in (403, 413)
    assert 0 < max(steps) <= bounds.UNASKED_BYTES


def test_a_body_that_a_door_takes_is_read_in_large_steps(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(monkeypatch)
    assert sent_over_tls(grid, echo, pieces(80)) == 200
    assert max(steps) > bounds.UNASKED_BYTES


def test_of_a_closed_connection_nothing_waits_for_the_garbage_collector(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS holds nearly a megabyte for each, and a full collection may be an hour away."""
    born: list[weakref.ref[Buffered]] = []

    class Born(Buffered):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            born.append(weakref.ref(self))
            super().connection_made(transport)

    monkeypatch.setattr(http_server, "Buffered", Born)
    gc.collect()
    gc.disable()
    try:
        assert sent_over_tls(grid, echo, pieces(80)) == 200
        assert [each() for each in born] == [None]
    finally:
        gc.enable()


def sent_over_tls(
    grid: Grid, door: Callable[[HttpRequest], Awaitable[HttpResponse]], body: AsyncIterator[bytes]
) -> int:
    """The status of a body of 8 MB that a client without a certificate sends to a door, on the loop of production."""

    async def scenario() -> int:
        async with (
            secure(door, grid.server(), ClientCertificate.OPTIONAL) as server,
            client_of(grid.client(None)) as client,
        ):
            return (await client.request(Sending("PUT", url(server), body=body, length=8_000_000))).status

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario())


async def test_a_refused_body_is_read_in_pieces_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next turn an hour away, most of 16 MB stays with its sender, who has the answer."""
    monkeypatch.setattr(bounds, "REFUSED_PAUSE_MS", 3_600_000)
    steps = steps_of(monkeypatch)
    async with plain(refuse, HttpLimits(linger_ms=3_600_000)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 16000000\r\n\r\n" + bytes(16_000_000))
        assert b" 403 " in await reader.readuntil(b"\r\n")
        (connection,) = server._acceptor.connections  # type: ignore[union-attr]
        await poll_async(lambda: connection._reading_paused)
        assert sum(steps) < 2_000_000
        writer.transport.abort()


def test_a_refused_body_without_an_end_is_cut_off(grid: Grid) -> None:
    """A TLS transport that is only closed goes on reading for as long as its client sends."""

    def send_for_ever(port: int) -> bytes:
        context = ssl.create_default_context(capath=grid.trust_dir)
        with (
            socket.create_connection(("localhost", port)) as wire,
            context.wrap_socket(wire, server_hostname="localhost") as client,
        ):
            client.sendall(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
            status = client.recv(12)
            with contextlib.suppress(OSError):
                while True:
                    client.sendall(bytes(100_000))
        return status

    async def scenario() -> None:
        async with secure(refuse, grid.server(), ClientCertificate.OPTIONAL, HttpLimits(linger_ms=50)) as server:
            sending = asyncio.create_task(asyncio.to_thread(send_for_ever, server.port))
            assert await asyncio.wait_for(sending, 20) == b"HTTP/1.1 403"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_a_body_that_stops_coming_is_408(limits_met: dict[str, int]) -> None:
    async with plain(echo, HttpLimits(body_idle_ms=50, linger_ms=50)) as server:
        answer = await talk(server, b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe")
        assert answer.startswith(b"HTTP/1.1 408")
    assert limits_met["time of a body"] == 1


async def test_a_body_that_trickles_is_408(limits_met: dict[str, int]) -> None:
    limits = HttpLimits(body_idle_ms=500, body_rate_bytes_per_s_min=1000, linger_ms=50)
    async with plain(echo, limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n")
        answer = asyncio.ensure_future(reader.readuntil(b"B/s"))
        while not answer.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        told = await answer
        assert told.startswith(b"HTTP/1.1 408")
        assert b"the body came at less than 1000 B/s" in told, "it never stopped"
        assert limits_met == {"time of a body": 1}
        writer.close()


async def test_a_body_whose_door_was_busy_has_not_trickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes came, and the door's disk took long for them: the sender was blamed for that."""
    clock, taken = GroupClock(), asyncio.Event()
    monkeypatch.setattr(listening, "PLAIN", replace(PLAIN, clock=clock))

    async def busy(request: HttpRequest) -> HttpResponse:
        size = 0
        async for chunk in request.body:
            size += len(chunk)
            clock.hand.now += 2 * bounds.HTTP_BODY_IDLE_MS
            taken.set()
        return text_answer(200, str(size))

    async with plain(busy) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh")
        await taken.wait()
        writer.write(b"i")
        assert b" 200 " in await reader.readuntil(b"\r\n")
        writer.close()


async def test_many_small_header_fields_are_bounded_together(limits_met: dict[str, int]) -> None:
    fields = [b"a%d: %s\r\n" % (n, b"b" * 200) for n in range(90)]
    async with plain(echo, HttpLimits(header_bytes_max=16 * 1024, first_request_ms=600_000)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(fields))
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert b"HTTP/1.1 200" not in await reader.read(-1)
        writer.close()
    assert limits_met == {"bytes of a request's head": 1}


async def test_headers_that_never_end_are_cut_off() -> None:
    async with plain(echo, HttpLimits(keepalive_ms=100)) as server:
        assert await talk(server, b"GET / HTTP/1.1\r\nHost: a\r\n") == b""


async def test_a_handshake_that_does_not_begin_is_cut_off(grid: Grid) -> None:
    async with secure(echo, grid.server(), ClientCertificate.OPTIONAL, HttpLimits(handshake_ms=50)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.timeout(60):
            assert await reader.read(-1) == b""
        writer.close()


async def test_a_body_cut_in_the_middle_reaches_the_door_as_incomplete() -> None:
    seen: asyncio.Future[CheloniaError] = asyncio.get_running_loop().create_future()

    async def door(request: HttpRequest) -> HttpResponse:
        try:
            return await echo(request)
        except CheloniaError as error:
            seen.set_result(error)
            raise

    async with plain(door) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nhello")
        await poll_async(lambda: server.connections)
        await writer.drain()
        writer.close()
        assert (await seen).kind is Kind.INCOMPLETE


@pytest.mark.parametrize(("tls", "size"), [(False, 100_000), (True, 10), (True, 100_000), (True, 570_000)])
def test_a_body_that_has_come_whole_is_taken_though_its_client_has_gone(grid: Grid, tls: bool, size: int) -> None:
    """FFmpeg goes so, without reading the answer. The door has other work first, on the loop of production."""

    async def scenario() -> int:
        gone, taken = asyncio.Event(), asyncio.get_running_loop().create_future()

        async def door(request: HttpRequest) -> HttpResponse:
            request.when_closed("test", gone.set)
            with contextlib.suppress(TimeoutError):  # the server reads nothing more of a large body, and sees no end
                async with asyncio.timeout(1):
                    await gone.wait()
            try:
                taken.set_result(sum([len(chunk) async for chunk in request.body]))
            except CheloniaError as error:
                taken.set_exception(error)
            return text_answer(200, "stored")

        def send(port: int) -> None:
            connection = socket.create_connection(("127.0.0.1", port))
            with unchecked.wrap_socket(connection) if tls else connection as connection:
                head = f"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"
                connection.sendall(head.encode() + b"x" * size)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        listener = secure(door, grid.server(), ClientCertificate.OPTIONAL) if tls else plain(door)
        async with listener as server:
            await asyncio.to_thread(send, server.port)
            return await taken

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scenario()) == size


async def test_who_asks_to_be_told_of_an_end_that_has_come_is_told_at_once() -> None:
    """A listing whose client had gone before it began went on for nobody."""
    begun, gone, told = asyncio.Event(), asyncio.Event(), list[str]()

    async def door(request: HttpRequest) -> HttpResponse:
        request.when_closed("first", gone.set)
        begun.set()
        await gone.wait()
        request.when_closed("late", lambda: told.append("late"))
        return text_answer(200, "nobody reads this")

    async with plain(door) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(60):
            await begun.wait()
            writer.transport.abort()
            await gone.wait()
    assert told == ["late"]


async def test_a_client_that_stops_reading_is_cut_off(
    caplog: pytest.LogCaptureFixture, limits_met: dict[str, int]
) -> None:
    caplog.set_level("INFO")
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            async for piece in pieces(1000, 1_000_000):
                yield piece
        finally:
            ended.set()

    async def door(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), endless())

    async with plain(door, HttpLimits(send_idle_ms=100)) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(GET)
        async with asyncio.timeout(60):
            await ended.wait()
        await poll_async(lambda: server.connections == 0)
        writer.close()
    assert re.search(r"answer cut off .* sent=[1-9]\d{5,}: ", caplog.text)
    assert limits_met == {"time of an answer": 1}


async def test_one_address_has_its_share_and_loses_the_oldest_idle_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with plain(echo, HttpLimits(connections_per_address_max=2)) as server:
        (first, one), (_, two) = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        await poll_async(lambda: server.connections == 2)
        assert b" 200 " in await talk(server, GET)
        assert await first.read(-1) == b""
        one.close()
        two.close()
    assert "limit met limit='connections of one address' who='127.0.0.1'" in caplog.text


async def test_who_asks_nothing_in_time_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with plain(echo, HttpLimits(first_request_ms=100)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost:")
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read(-1) == b""
        writer.close()
    assert "limit met limit='time to the first request'" in caplog.text


async def test_who_has_asked_is_known_or_has_gone_is_not_minded() -> None:
    cut, notes, ranks = list[str](), LimitCounts(), {"known": True, "gone": False, "asked": False, "user": False}
    over = asyncio.Event()

    class Connected:
        def __init__(self, name: str) -> None:
            self.name, self.silent = name, name != "asked"

        def cut(self) -> None:
            cut.append(self.name)
            over.set()

    parts = replace(
        PLAIN,
        identify=lambda name: SimpleNamespace(anonymous=False, dn=name),
        known=lambda identity: ranks[identity.dn],
        notes=notes,
    )
    newcomers = http_server._Newcomers(parts, HttpLimits(first_request_ms=1))
    for name in ranks:
        connection: Any = Connected(name)
        assert newcomers.take(connection, asyncio.BaseTransport({"ssl_object": name}))
        if name == "gone":
            newcomers.forget(connection)
    await over.wait()
    assert (cut, notes.reached) == (["user"], {"time to the first request": 1})


async def test_connections_at_work_are_not_cut_for_others() -> None:
    async with plain(echo, HttpLimits(connections_max=4)) as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for _, writer in held:
            writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1")
        await poll_async(lambda: len(server._active) == 2)
        try:
            answer = await talk(server, GET)
        except ConnectionError:
            answer = b""  # reset, or closed without a word: both end it
        assert answer == b""
        for _, writer in held:
            writer.close()


# --- what goes wrong on our side -----------------------------------------------------------------------------------


@pytest.mark.expect_log("door failed")
async def test_an_unexpected_failure_is_500_without_a_trace_of_it() -> None:
    async def door(request: HttpRequest) -> HttpResponse:
        raise RuntimeError("secret detail")

    async with plain(door) as server, client_of(None) as client:
        answer = await client.request(Sending("GET", plain_url(server)))
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert answer.headers["X-Request-Id"].encode() in answer.body


async def test_an_answer_that_breaks_off_is_never_taken_for_whole() -> None:
    async def door(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), pieces(1, 1000), 2000 if request.path == "/declared" else -1)

    async def breaking(request: HttpRequest) -> HttpResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"x" * 1000
            raise CheloniaError(Kind.NOT_ALIVE, cause="the disk ended")

        return HttpResponse(200, (), body())

    for serve, path in ((door, "/declared"), (breaking, "/chunked")):
        async with plain(serve) as server, client_of(None) as client:
            with fails(Kind.NETWORK):
                await client.request(Sending("GET", plain_url(server, path)))


# --- stopping ------------------------------------------------------------------------------------------------------


async def test_stopping_finishes_what_has_begun_and_takes_nothing_new() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def door(request: HttpRequest) -> HttpResponse:
        size = 0
        async for chunk in request.body:
            size += len(chunk)
            arrived.set()
        return text_answer(200, str(size))

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await go_on.wait()
        yield b"y" * 1000

    async with plain(door) as server, client_of(None) as client, client_of(None) as late:
        assert (await late.request(Sending("GET", plain_url(server)))).status == 200
        running = asyncio.ensure_future(client.request(Sending("PUT", plain_url(server), body=body())))
        await arrived.wait()
        stopping = asyncio.ensure_future(server.stop(5000))
        with fails(Kind.NETWORK):
            await late.request(Sending("PUT", plain_url(server), body=b"x"))
        go_on.set()
        answer = await running
        assert answer.body == b"2000"
        assert answer.headers["Connection"] == "close"
        await stopping


@pytest.mark.expect_log("cut off at the stop deadline")
async def test_stopping_does_not_wait_beyond_its_deadline() -> None:
    arrived = asyncio.Event()

    async def door(request: HttpRequest) -> HttpResponse:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with plain(door) as server, client_of(None) as client:
        running = asyncio.ensure_future(client.request(Sending("GET", plain_url(server))))
        await arrived.wait()
        async with asyncio.timeout(60):
            await server.stop(50)
        with pytest.raises(CheloniaError):
            await running


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_handshake_that_ends_after_the_stop_brings_no_request(
    grid: Grid, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The stores behind the answers are closed by then."""
    asked: list[str] = []

    async def door(request: HttpRequest) -> HttpResponse:
        asked.append(request.path)
        return text_answer(200, "ok")

    async def scenario() -> None:
        context = grid.client(grid.user()).client_context()
        async with secure(door, grid.server(), ClientCertificate.REQUIRED) as server:
            for stopped in (False, True):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = context.wrap_bio(into, out, server_hostname="localhost")
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        writer.write(out.read())
                        into.write(await reader.read(65536))
                if stopped:
                    await server.stop(1000)
                tls.write(b"GET /%d HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n" % stopped)
                writer.write(out.read())  # the end of the handshake, and the request
                with contextlib.suppress(ConnectionError):
                    while stopped and await reader.read(65536):
                        pass
                await poll_async(lambda: bool(asked), 5.0)
                writer.transport.abort()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())
    assert asked == ["/0"]


# --- certificates --------------------------------------------------------------------------------------------------


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


async def test_the_identity_is_the_end_entity_behind_the_proxies(grid: Grid) -> None:
    jane = grid.client(grid.proxy(grid.user(), 2))
    async with secure(echo, grid.server(), ClientCertificate.REQUIRED) as server, client_of(jane) as client:
        for _ in range(2):
            assert (await client.request(Sending("GET", url(server)))).body.decode() == f"GET / {JANE} 0"


async def test_without_a_certificate_one_is_anonymous_where_that_is_allowed(grid: Grid) -> None:
    nobody = grid.client(None)
    async with secure(echo, grid.server(), ClientCertificate.OPTIONAL) as server, client_of(nobody) as client:
        assert (await client.request(Sending("GET", url(server)))).body == b"GET / ANONYMOUS 0"


async def test_without_a_certificate_one_is_refused_where_it_is_demanded(
    grid: Grid, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nobody = grid.client(None)
    async with secure(echo, grid.server(), ClientCertificate.REQUIRED) as server, client_of(nobody) as client:
        with fails(Kind.UNTRUSTED):
            await client.request(Sending("GET", url(server)))


async def test_a_certificate_of_a_foreign_ca_is_refused(grid: Grid, tmp_path: Path) -> None:
    stranger = Grid(tmp_path / "foreign", "/O=Elsewhere/CN=Other CA")
    settings = stranger.settings(stranger.user("/O=Elsewhere/CN=Eve"), grid.trust_dir)
    eve = type(grid.server())(settings, grid.clock.now_ms)
    async with secure(echo, grid.server(), ClientCertificate.OPTIONAL) as server, client_of(eve) as client:
        with fails(Kind.UNTRUSTED):
            await client.request(Sending("GET", url(server)))


async def test_a_server_of_a_foreign_ca_is_not_trusted(grid: Grid, tmp_path: Path) -> None:
    other = Grid(tmp_path / "foreign", "/O=Elsewhere/CN=Other CA")
    jane = grid.client(grid.user())
    async with secure(echo, other.server(), ClientCertificate.OPTIONAL) as server, client_of(jane) as client:
        with fails(Kind.UNTRUSTED) as caught:
            await client.request(Sending("GET", url(server)))
        assert f"localhost:{server.port}" in str(caught.value)


async def test_a_revoked_certificate_is_refused_on_its_open_connection_after_a_reload(grid: Grid) -> None:
    jane, store = grid.user(), grid.server()
    limits = HttpLimits(identity_ms=0)
    async with (
        secure(echo, store, ClientCertificate.REQUIRED, limits) as server,
        client_of(grid.client(jane)) as client,
    ):
        assert (await client.request(Sending("GET", url(server)))).status == 200
        grid.ca.revoke(jane.certificate, grid.now)
        store.reload()
        answer = await client.request(Sending("GET", url(server)))
        assert answer.status == 403
        assert b"revoked" in answer.body


async def test_who_has_a_new_certificate_is_let_in_though_his_old_one_was_refused(grid: Grid) -> None:
    jane, store = grid.user(), grid.server()
    settings = grid.settings(jane)
    assert settings.proxy is not None
    own, limits = TlsStore(settings, grid.clock.now_ms), HttpLimits(identity_ms=0)
    async with secure(echo, store, ClientCertificate.REQUIRED, limits) as server, client_of(own) as client:
        assert (await client.request(Sending("GET", url(server)))).status == 200
        grid.ca.revoke(jane.certificate, grid.now)
        store.reload()
        grid.user(str(jane.dn)).write_proxy(settings.proxy)
        own.reload()
        assert (await client.request(Sending("GET", url(server)))).status == 403
        assert (await client.request(Sending("GET", url(server)))).status == 200, "over a connection of its own"


async def test_a_path_forges_no_field_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(request: HttpRequest) -> HttpResponse:
        raise CheloniaError(Kind.NOT_FOUND, cause="nothing here")

    with caplog.at_level("INFO"):
        async with plain(refuse) as server:
            await talk(server, b"GET /x%20error=none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "path='/x error=none' error=not-found" in line


async def test_a_body_that_is_no_tls_any_more_is_one_that_has_ended(grid: Grid) -> None:
    begun = asyncio.Event()
    kinds: list[Kind] = []

    async def door(request: HttpRequest) -> HttpResponse:
        try:
            async for _ in request.body:
                begun.set()
        except CheloniaError as error:
            kinds.append(error.kind)
            raise
        return text_answer(200, "all")

    async with secure(door, grid.server(), ClientCertificate.OPTIONAL) as server:
        context = grid.client(None).client_context()
        reader, writer = await asyncio.open_connection("localhost", server.port, ssl=context)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nhello")
        await begun.wait()
        os.write(writer.get_extra_info("socket").fileno(), b"this is no record of TLS")
        assert await reader.read(-1) == b""
        writer.close()
        await poll_async(lambda: kinds == [Kind.INCOMPLETE])
