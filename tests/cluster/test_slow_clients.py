"""Clients that trickle, stall or vanish: cut off within the configured bounds, while everybody else is served."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.cluster.conftest import started
from tests.cluster.harness import Cluster
from tests.cluster.load import fetch, put, turl_for_put
from tests.cluster.test_tickets import turl_for_get
from tests.support.polling import patience, poll_async

IDLE_MS = 1_500
PATIENCE_S = 20.0
"""Several times the bound: what is not cut off by then never is."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster of one Shepherd that waits for nobody longer than that."""
    for cluster in started(pytestconfig, Cluster(tmp_path_factory.mktemp("impatient"), shepherds=1)):
        limits = {"body_idle_ms": IDLE_MS, "send_idle_ms": IDLE_MS, "handshake_ms": IDLE_MS, "keepalive_ms": IDLE_MS}
        for name in ("core", "shepherd1"):
            cluster.reconfigure(name, limits=limits)
        yield cluster


async def others_go_on(cluster: Cluster, ln: str) -> None:
    async with cluster.client("user2") as client:
        await poll_async(lambda: client.exists("/"), 60.0, what="the Bartender answers")
        before = time.monotonic()
        await put(client, ln, b"meanwhile", 1)
        assert await fetch(client, ln) == b"meanwhile"
        assert time.monotonic() - before < 10 * patience()


def cut_off_after(connection: ssl.SSLSocket, drip: bytes = b"") -> float:
    """Drip bytes, if any, and wait for the other side to end it; seconds until then."""
    begun = time.monotonic()
    connection.settimeout(0.2)
    while time.monotonic() - begun < PATIENCE_S * patience():
        with contextlib.suppress(TimeoutError, ssl.SSLWantReadError):
            try:
                if drip:
                    connection.send(drip)
                if not connection.recv(65536):
                    break
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                break
    return time.monotonic() - begun


async def test_an_upload_that_comes_byte_by_byte_is_cut_off(impatient: Cluster) -> None:
    await impatient.until_alive()
    async with impatient.client("user") as client:
        turl = await turl_for_put(client, "/drip", b"x" * 100_000, 1)
        parts = urlsplit(turl)
        head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: 100000\r\n\r\n"
        with impatient.connected(turl) as connection:
            connection.sendall(head.encode())
            waiting = asyncio.to_thread(cut_off_after, connection, b"x")
            took, _ = await asyncio.gather(waiting, others_go_on(impatient, "/beside-drip"))
        assert took < PATIENCE_S
        assert await client.exists("/drip") == ""


@pytest.mark.parametrize("sent", ["body", "nothing of the body", "half a head", "nothing", "no handshake"])
async def test_a_caller_who_stalls_is_cut_off(impatient: Cluster, sent: str) -> None:
    await impatient.until_alive()
    url = urlsplit(impatient.url("bartender"))
    head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 1000\r\n\r\n"
    begin = {"body": head + "<a>", "nothing of the body": head, "half a head": head[:40], "nothing": ""}.get(sent)
    if begin is None:
        assert url.port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", url.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_S * patience())
        writer.close()
        return
    with impatient.connected(impatient.url("bartender")) as connection:
        connection.sendall(begin.encode())
        waiting = asyncio.to_thread(cut_off_after, connection)
        took, _ = await asyncio.gather(waiting, others_go_on(impatient, f"/beside {sent}"))
    assert took < PATIENCE_S


async def test_a_reader_who_stops_is_cut_off_and_its_replica_released(impatient: Cluster) -> None:
    await impatient.until_alive()
    size = 40_000_000
    async with impatient.client("user") as client:
        await put(client, "/big", bytes(size), 1)
        turl = await turl_for_get(client, "/big")
        parts = urlsplit(turl)
        with impatient.connected(turl) as connection:
            connection.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")

            def noticed() -> bool:
                return "answer cut off" in impatient.log_of("shepherd1")

            waiting = poll_async(noticed, PATIENCE_S, what="the Shepherd gives up")
            await asyncio.gather(waiting, others_go_on(impatient, "/beside-stopped"))
            got = await asyncio.to_thread(drained, connection)
            assert got < size, "it was sent whole"
        assert len(await fetch(client, "/big")) == size


def drained(connection: ssl.SSLSocket) -> int:
    got = 0
    try:
        while chunk := connection.recv(1 << 20):
            got += len(chunk)
    except OSError:
        pass
    return got
