"""Requests to servers that users name: refused addresses, and errors behind a redirect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net import strangers as module
from chelonia.hosting.net.http_client import Sending
from chelonia.hosting.net.http_messages import Door, HttpRequest, HttpResponse, text_answer
from chelonia.hosting.net.strangers import Strangers
from chelonia.hosting.net.tls import ClientCertificate
from tests.support.failing import fails
from tests.unit.hosting.grid import JANE, Grid
from tests.unit.hosting.listening import secure

LOOPBACK = ("127.0.0.0/8", "::1/128")


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


def strangers(grid: Grid, *networks: str) -> Strangers:
    return Strangers(grid.server(), networks)  # a node has a certificate, which is nothing to show


async def refusal(client: Strangers, url: str) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        async with client.stream(Sending("GET", url)):
            pass
    await client.close()
    return caught.value


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "[::1]",
        "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[2002:7f00:1::]", "224.0.0.1", "[64:ff9b::10.0.0.1]",
        "[::10.0.0.1]", "[::ffff:0:10.0.0.1]", "[fec0::1]", "[2001:0:a00:1::]",
    ],
)  # fmt: skip
async def test_addresses_that_are_not_public_are_refused(grid: Grid, host: str) -> None:
    error = await refusal(strangers(grid), f"https://{host}:1/x")
    assert error.kind is Kind.INVALID_TARGET, error
    assert "transfer_networks" in error.cause


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0177.0.0.1", "127.0.0.1.", "0x7f.1", "\uff11.1"])
async def test_other_spellings_of_an_address_are_none(grid: Grid, host: str) -> None:
    """Not every aiohttp refuses by itself a host that it parses as an address without a resolver."""
    assert (await refusal(strangers(grid), f"https://{host}:1/x")).kind is Kind.INVALID_TARGET


async def test_a_network_may_be_allowed_and_only_what_is_delegated_is_shown(grid: Grid) -> None:
    seen: list[str] = []

    async def door(request: HttpRequest) -> HttpResponse:
        seen.append(request.peer.dn)
        return text_answer(200, "ok")

    async with secure(door, grid.server(), ClientCertificate.OPTIONAL) as server:
        client, sending = strangers(grid, *LOOPBACK), Sending("GET", f"https://localhost:{server.port}/")
        for credential in (b"", grid.proxy(grid.user()).proxy_pem, b""):
            async with client.showing(credential) as one, one.stream(sending) as answer:
                assert answer.status == 200
        async with client.showing(grid.proxy(grid.user()).proxy_pem) as one:
            assert (await refusal(one, "https://10.1.2.3/")).kind is Kind.INVALID_TARGET
        await client.close()
    assert seen == ["ANONYMOUS", JANE, "ANONYMOUS"]


async def test_a_redirect_is_looked_at_and_a_token_stays_at_home(grid: Grid) -> None:
    told: list[tuple[str, str, str, bytes]] = []

    async def other(request: HttpRequest) -> HttpResponse:
        body = b"".join([chunk async for chunk in request.body])
        fields = (request.headers.get(name, "") for name in ("Authorization", "Want-Digest"))
        told.append((request.method, *fields, body))
        return text_answer(201, "ok")

    async with secure(other, grid.server(), ClientCertificate.OPTIONAL) as second:
        where = {
            "there": f"https://localhost:{second.port}/",
            "inside": "https://10.0.0.1/",
            "plain": "http://localhost/",
            "beyond": "https://localhost:99999/",
            "open": "https://[::1/",
        }

        async def first(request: HttpRequest) -> HttpResponse:
            return HttpResponse(307, (("Location", where[request.path.strip("/")]),), b"", 0)

        async def body() -> AsyncIterator[bytes]:
            yield b"bytes"

        async with secure(first, grid.server(), ClientCertificate.OPTIONAL) as server:
            client, home = strangers(grid, *LOOPBACK), f"https://localhost:{server.port}"
            sending = Sending("PUT", f"{home}/there", {"Authorization": "Bearer x", "Want-Digest": "md5"}, length=5)
            async with client.stream(sending, body) as answer:
                assert answer.status == 201
            for path in ("inside", "plain", "beyond", "open"):
                with fails(Kind.INVALID_TARGET):
                    async with client.stream(Sending("GET", f"{home}/{path}")):
                        pass
            await client.close()
    assert told == [("PUT", "", "md5", b"bytes")]


async def test_what_is_delegated_stays_at_home(grid: Grid) -> None:
    told: list[tuple[str, str]] = []

    def door_of(name: str, where: list[str]) -> Door:
        async def door(request: HttpRequest) -> HttpResponse:
            told.append((name, request.peer.dn))
            return HttpResponse(307, (("Location", where.pop(0)),), b"", 0) if where else text_answer(200, "ok")

        return door

    onward: dict[str, list[str]] = {"first": [], "second": []}
    async with (
        secure(door_of("first", onward["first"]), grid.server(), ClientCertificate.OPTIONAL) as first,
        secure(door_of("second", onward["second"]), grid.server(), ClientCertificate.OPTIONAL) as second,
    ):
        home, there = (f"https://localhost:{server.port}/" for server in (first, second))
        onward["first"].extend((f"{home}again", there))
        onward["second"].append(home)  # nor is it shown at home to whoever is sent there from elsewhere
        client = strangers(grid, *LOOPBACK)
        async with client.showing(grid.proxy(grid.user()).proxy_pem) as one, one.stream(Sending("GET", home)) as answer:
            assert answer.status == 200
        await client.close()
    assert told == [("first", JANE), ("first", JANE), ("second", "ANONYMOUS"), ("first", "ANONYMOUS")]


def test_a_network_that_is_none_is_told_at_the_start(grid: Grid) -> None:
    with fails(Kind.BAD_CONFIG):
        strangers(grid, "10.0.0.1/8")


Said = Callable[[str, asyncio.StreamReader], Awaitable[bytes]]


@asynccontextmanager
async def foreign(grid: Grid, says: Said) -> AsyncIterator[str]:
    """A foreign server, and the URL of a file there. `says`: its answer to the head of a request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                writer.write(await says(head, reader))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    context = grid.server().server_context(ClientCertificate.OPTIONAL)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}/f"


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_body_goes_to_a_server_that_never_says_100_continue(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(module, "CONTINUE_MS", 3_600_000 if refuses else 10)
    stored: list[bytes] = []

    async def says(head: str, reader: asyncio.StreamReader) -> bytes:
        if refuses and "100-continue" in head:
            return b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"
        stored.append(await reader.readexactly(100_000))
        return b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"

    async def body() -> AsyncIterator[bytes]:
        yield bytes(100_000)

    async with foreign(grid, says) as url:
        client = strangers(grid, *LOOPBACK)
        async with client.stream(Sending("PUT", url, length=100_000), body) as answer:
            assert answer.status == 201
        await client.close()
    assert stored == [bytes(100_000)]
