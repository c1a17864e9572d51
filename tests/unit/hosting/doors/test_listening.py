"""Connections to a listener: one handshake in each turn of the event loop, and none is given up lightly."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.hosting.doors import listening
from chelonia.hosting.doors.listening import ListeningSockets
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, text_answer
from chelonia.hosting.net.tls import ClientCertificate
from tests.support.polling import poll_async
from tests.unit.hosting.doors.test_http_server import echo
from tests.unit.hosting.grid import Grid
from tests.unit.hosting.listening import plain, secure

SO_ATTACH_FILTER = 26
"""Of Linux; `socket` does not name it."""


async def test_handshakes_that_come_at_once_begin_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, turn = list[int](), 0
    shake = ssl.SSLObject.do_handshake

    def count(each: ssl.SSLObject) -> Any:
        if each.server_side and not vars(each).get("_counted"):
            vars(each)["_counted"] = True
            began.append(turn)
        return shake(each)

    def look() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(look)

    loop = asyncio.get_running_loop()
    async with secure(echo, Grid(tmp_path).server(), ClientCertificate.OPTIONAL) as server:
        monkeypatch.setattr(ssl.SSLObject, "do_handshake", count)
        hellos = [_hello() for _ in range(20)]
        wires = [await asyncio.open_connection("127.0.0.1", server.port) for _ in hellos]
        loop.call_soon(look)
        for (_, writer), hello in zip(wires, hellos, strict=True):
            writer.write(hello)
        await poll_async(lambda: len(began) == len(hellos))
        assert len(set(began)) == len(began)
        for _, writer in wires:
            writer.transport.abort()


def _hello() -> bytes:
    """A client's first message."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = context.wrap_bio(ssl.MemoryBIO(), out)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


async def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    """A host with both has one listener: two at one port are refused as a mistake."""
    listener = ListeningSockets(asyncio.Protocol, None, 1000)
    await listener.start("::", 0)
    for address in ("127.0.0.1", "::1"):
        _, writer = await asyncio.open_connection(address, listener.port)
        writer.close()
    listener.stop()


@pytest.mark.expect_log("no connection can be accepted")
async def test_a_listener_without_file_descriptors_goes_on_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "ACCEPT_PAUSE_S", 0.01)
    loop, failures = asyncio.get_running_loop(), [OSError(errno.EMFILE, "Too many open files")] * 3
    accept = loop.sock_accept

    async def fail_first(sock: Any) -> Any:
        if failures:
            raise failures.pop()
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", fail_first)
    greeted = asyncio.Event()

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            greeted.set()
            transport.close()

    listener = ListeningSockets(Greeting, None, 1000)
    await listener.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await asyncio.wait_for(greeted.wait(), 30)
    assert not failures
    writer.close()
    listener.stop()


async def test_an_address_that_has_too_many_beginning_loses_its_longest_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "HANDSHAKES_PER_ADDRESS_MAX", 3)
    met = LimitCounts()
    grid = Grid(tmp_path)
    listener = ListeningSockets(asyncio.Protocol, grid.server().server_context(ClientCertificate.OPTIONAL), 60_000, met)
    await listener.start("127.0.0.1", 0)
    wires = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(4)]
    async with asyncio.timeout(30):
        assert await wires[0][0].read() == b""  # the first has said nothing for longest
        for reader, writer in wires[1:]:
            writer.write(_hello())
            assert await reader.read(1), "the others are answered"
        half = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(1)]
        assert await half[0][0].read() == b"", "all before it have begun"
    assert met.reached == {"connections of one address before their handshakes": 2}
    for _, writer in (*wires, *half):
        writer.transport.abort()
    listener.stop()


async def test_a_client_that_speaks_plain_http_is_sent_to_https(tmp_path: Path) -> None:
    async with secure(echo, Grid(tmp_path).server(), ClientCertificate.OPTIONAL) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /lab/x HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nbytes")
        async with asyncio.timeout(60):
            answer = await reader.read()  # of a failed handshake there is none
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"\r\n\r\nThis port speaks HTTPS" in answer
        writer.close()


async def test_an_address_that_is_taken_is_named() -> None:
    first, second = (ListeningSockets(asyncio.Protocol, None, 1000) for _ in range(2))
    await first.start("127.0.0.1", 0)
    with pytest.raises(OSError, match=rf"'127.0.0.1', {first.port}\): address already in use"):
        await second.start("127.0.0.1", first.port)
    first.stop()


async def test_listeners_that_share_a_port_take_it_together_and_nobody_else_does() -> None:
    first, second, stranger = (ListeningSockets(asyncio.Protocol, None, 1000) for _ in range(3))
    await first.start("127.0.0.1", 0, shared=True)
    await second.start("127.0.0.1", first.port, shared=True)
    with pytest.raises(OSError, match="address already in use"):
        await stranger.start("127.0.0.1", first.port)
    first.stop()
    await asyncio.sleep(0)  # its socket is let go of
    _, writer = await asyncio.open_connection("127.0.0.1", second.port)
    writer.close()
    second.stop()


async def test_a_body_whose_client_has_gone_without_a_word_ends_long_before_its_idle_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine lost power, or its network: an upload was taken for one under way, and refused to a new try."""
    monkeypatch.setattr(listening, "GONE_IDLE_S", 1)
    monkeypatch.setattr(listening, "GONE_PROBES", 1)
    monkeypatch.setattr(listening, "GONE_INTERVAL_S", 1)
    began, ended = asyncio.Event(), list[Kind]()

    async def take(request: HttpRequest) -> HttpResponse:
        try:
            async for _ in request.body:
                began.set()
        except CheloniaError as error:
            ended.append(error.kind)
            raise
        return text_answer(200, "")

    async with plain(take) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe")
        await began.wait()
        _hear_nothing(writer.get_extra_info("socket"))
        await poll_async(lambda: ended, what="the end of the body")
        assert ended == [Kind.INCOMPLETE]
        writer.transport.abort()


def _hear_nothing(raw: socket.socket) -> None:
    """Have the kernel drop all that comes to a socket, unacknowledged, as of a machine that has gone."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K: keep 0 bytes
    raw.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(drop)))
