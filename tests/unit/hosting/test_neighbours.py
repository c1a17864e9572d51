"""A Librarian's evidence that a process is gone: connections that close, addresses that refuse."""

import asyncio
import socket

import pytest

from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import Heartbeat
from chelonia.hosting.neighbours import HttpNeighbours, heartbeats_end
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, text_answer
from chelonia.hosting.net.rpc_client import Link
from tests.support.polling import poll_async
from tests.unit.hosting.listening import client_of, plain, talk

SHEPHERD = ServiceId("https://s1/Shepherd")
BEAT = Heartbeat(SHEPHERD, 1, 0, 1, 1, 0, True, "", "")


def neighbours() -> HttpNeighbours:
    return HttpNeighbours(Link(client_of(None), SystemClock(), SystemIds()))


async def test_an_address_refuses_only_when_nobody_listens_there() -> None:
    found = neighbours()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert await found.refused(ServiceId(f"https://127.0.0.1:{port}/Shepherd"))
        listener.listen(1)  # as a frozen process: nobody takes the connection, the kernel does
        assert not await found.refused(ServiceId(f"https://127.0.0.1:{port}/Shepherd"))
        assert not await found.refused(ServiceId(f"https://localhost:{port}/Shepherd")), "one of two addresses listens"


@pytest.mark.parametrize("name", ["no url", "https://h:port/x", "https://[::1/x"])
async def test_what_cannot_be_told_is_not_a_refusal(name: str) -> None:
    assert not await neighbours().refused(ServiceId(name))


async def test_the_end_of_a_connection_that_heartbeats_came_over_is_told_once() -> None:
    told: list[ServiceId] = []
    done = heartbeats_end(told.append)

    async def door(request: HttpRequest) -> HttpResponse:
        done(request, "heartbeat" if request.path == "/beat" else "report", (BEAT,))
        return text_answer(200, "ok")

    beat = b"GET /beat HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"GET /other HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    async with plain(door) as server:
        await talk(server, last)
        await poll_async(lambda: gone(server.connections), what="the connection has closed")
        assert told == []
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(3):
            writer.write(beat)
            await reader.readuntil(b"ok")
        assert told == []
        writer.transport.abort()
        await poll_async(lambda: gone(not told), what="the end is told")
        await poll_async(lambda: gone(server.connections), what="the connection has closed")
    assert told == [SHEPHERD]


async def gone(what: object) -> bool:
    return not what


def test_what_goes_over_no_connection_ends_none() -> None:
    request = HttpRequest("POST", "/", {}, {}, None, None, 0, "r")  # type: ignore[arg-type]
    heartbeats_end(pytest.fail)(request, "heartbeat", (BEAT,))
