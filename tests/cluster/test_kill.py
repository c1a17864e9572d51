"""kill -9 and SIGSTOP of every kind of process under a running upload load: nothing acknowledged is lost."""

import asyncio
import contextlib
import http.client
import os
import signal
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chelonia.hosting.transfer.upload import UploadOptions
from chelonia_clients import parted
from chelonia_clients.parted import upload_stream
from tests.cluster.conftest import started
from tests.cluster.harness import Cluster, read_answer
from tests.cluster.load import Load, fetch, put, turl_for_get, turl_for_put, until_live
from tests.support.polling import patience, poll, poll_async


@pytest.fixture(scope="module")
def battered(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster whose processes die, and are started again."""
    yield from started(pytestconfig, Cluster(tmp_path_factory.mktemp("battered")))


@pytest.mark.parametrize("victim", ["shepherd1", "core"])
async def test_kill_of_a_process_loses_nothing_acknowledged(battered: Cluster, victim: str) -> None:
    async with Load(battered, f"/killed-{victim}") as load:
        for _ in range(2):
            await load.until_acknowledged(8)
            old = await asyncio.to_thread(battered.kill, victim)
            await asyncio.to_thread(battered.wait_restarted, victim, old)
        await load.until_acknowledged(8)
    await battered.until_serving(*battered.shepherd_names)
    await load.judge()


async def test_kill_of_everything_at_once_loses_nothing_acknowledged(battered: Cluster) -> None:
    async with Load(battered, "/killed-all", retry_ms=0) as load:
        await load.until_acknowledged(15)
        await asyncio.to_thread(battered.crash)
        await load.finish()
    await asyncio.to_thread(battered.start)
    await load.judge()


async def test_a_frozen_shepherd_holds_up_neither_reads_nor_writes(battered: Cluster) -> None:
    async with battered.client("user") as client:
        await client.make_collection("/frozen")
        for number in range(6):
            await put(client, f"/frozen/{number}", bytes([number]) * 300_000)
        async with Load(battered, "/frozen-load") as load:
            await load.until_acknowledged(4)
            battered.signal("shepherd2", signal.SIGSTOP)
            try:
                await load.until_acknowledged(20)
                for number in range(6):
                    assert await fetch(client, f"/frozen/{number}") == bytes([number]) * 300_000
            finally:
                battered.signal("shepherd2", signal.SIGCONT)
    await battered.until_alive()
    await load.judge()


async def test_a_frozen_shepherds_plain_clients_are_cut_off_within_the_lease_and_succeed_elsewhere(
    battered: Cluster,
) -> None:
    data = bytes(range(256)) * 100_000
    async with battered.client("user") as client:
        await put(client, "/plain-get", data)
        turl = await turl_for_get(client, "/plain-get")
        with battered.connected(turl) as connection, frozen(battered, turl, lambda: ask(connection, turl)) as name:
            assert await asyncio.to_thread(cut_off, connection, b"") < len(data) - FIRST
            turl = await turl_for_get(client, "/plain-get")
            assert battered.named(turl) != name
            assert battered.request("GET", turl).body == data
        await battered.until_serving(name)

        turl = await turl_for_put(client, "/plain-put", data)
        with (
            battered.connected(turl) as connection,
            frozen(battered, turl, lambda: offer(connection, battered, turl, data)) as name,
        ):
            await asyncio.to_thread(cut_off, connection, data[FIRST:])
            turl = await turl_for_put(client, "/plain-put", data)
            assert battered.named(turl) != name
            assert battered.request("PUT", turl, body=data).status == 201
            assert await fetch(client, "/plain-put") == data
        await battered.until_serving(name)
        assert battered.log_of(name).count("clients' connections were cut") > 0
        await until_live(client, "/plain-put", 2)
    await poll_async(lambda: not unfinished(battered), 40.0, what="no upload is left open")


FIRST = 4_000_000
"""Bytes of a transfer, at least, that go over before its Shepherd freezes: more than it takes at once."""
LEASE_S, SLOW_MACHINE_S = 1.0, 9.0


@contextlib.contextmanager
def frozen(cluster: Cluster, turl: str, begin: Callable[[], None]) -> Iterator[str]:
    """Begin a transfer and freeze the Shepherd of its TURL in the midst of it; yields its name."""
    name = cluster.named(turl)
    begin()
    cluster.signal(name, signal.SIGSTOP)
    try:
        yield name
    finally:
        cluster.signal(name, signal.SIGCONT)


def ask(connection: ssl.SSLSocket, turl: str) -> None:
    parts = urlsplit(turl)
    connection.sendall(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    came = connection.recv(FIRST)
    assert came.startswith(b"HTTP/1.1 200")
    while len(came) < FIRST:
        came += connection.recv(FIRST)


def offer(connection: ssl.SSLSocket, cluster: Cluster, turl: str, data: bytes) -> None:
    parts = urlsplit(turl)
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data[:FIRST])
    reference, incoming = parts.path.rpartition("/")[2], cluster.data_dir(cluster.named(turl)) / "incoming"
    poll(lambda: list(incoming.glob(f"{reference}*.writing")), what="the upload has begun")


def cut_off(connection: ssl.SSLSocket, sent: bytes) -> int:
    """Read, or send and never read, until the connection ends, which must be soon; returns how many bytes came."""
    began, came = time.monotonic(), 0
    with contextlib.suppress(OSError):
        if sent:
            connection.sendall(sent)
            raise AssertionError("a frozen process took it all")
        while chunk := connection.recv(1 << 20):
            came += len(chunk)
    assert time.monotonic() - began < (LEASE_S + SLOW_MACHINE_S) * patience()
    return came


def unfinished(cluster: Cluster) -> list[Path]:
    return [path for n in cluster.shepherd_names for path in (cluster.data_dir(n) / "incoming").glob("*.writing")]


async def test_a_shepherd_killed_in_mid_upload_costs_an_error_and_nothing_else(battered: Cluster) -> None:
    data = bytes(range(256)) * 40_000
    async with battered.client("user") as client:
        turl = await turl_for_put(client, "/cut-short", data)
        name, parts = battered.named(turl), urlsplit(turl)
        head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
        with battered.connected(turl) as connection:
            connection.sendall(head.encode() + data[: len(data) // 2])
            poll(lambda: list((battered.data_dir(name) / "incoming").glob("*.writing")), 40.0)
            old = battered.kill(name)
            with pytest.raises((OSError, http.client.HTTPException)):
                finish(connection, data[len(data) // 2 :])
        assert await client.exists("/cut-short") == ""
        await asyncio.to_thread(battered.wait_restarted, name, old)
        await battered.until_serving(name)
        assert battered.request("PUT", turl, body=data).status == 403, "a ticket of the dead"
        turl = await turl_for_put(client, "/cut-short", data)
        assert battered.request("PUT", turl, body=data).status == 201
        assert await fetch(client, "/cut-short") == data
        await until_live(client, "/cut-short", 2)

        await poll_async(lambda: not unfinished(battered), 40.0, what="no upload is left open")


async def test_a_stream_outlives_the_shepherds_it_goes_to(battered: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes from a pipe cannot be read a second time."""
    monkeypatch.setattr(parted, "STREAMED_BYTES", 1 << 20)
    data, sent = os.urandom(100_000) * 60, list[int]()

    async def stream() -> AsyncGenerator[bytes, None]:
        for third, victim in enumerate(("", "shepherd1", "shepherd2")):
            if victim:
                before = third * 1_000_000
                await poll_async(partial(has_sent, before), 60.0, what="half of what there was is sent")
                old = await asyncio.to_thread(battered.kill, victim)
                killed.append(asyncio.create_task(asyncio.to_thread(battered.wait_restarted, victim, old)))
            for at in range(third * 2_000_000, (third + 1) * 2_000_000, 100_000):
                yield data[at : at + 100_000]

    def has_sent(least: int) -> bool:
        return sum(sent) > least

    killed = list[asyncio.Task[object]]()
    async with battered.client("user") as client:
        await upload_stream(client, stream, "/streamed", UploadOptions(progress=sent.append))
        assert await fetch(client, "/streamed") == data
    await asyncio.gather(*killed)
    await battered.until_serving("shepherd1", "shepherd2")


def finish(connection: ssl.SSLSocket, rest: bytes) -> None:
    connection.sendall(rest)
    read_answer(connection)
