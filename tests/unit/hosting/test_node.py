"""A process while it starts: the answers of its open listeners."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.operations.files import FILES
from chelonia.core.ports.files import Files, Look, Looked
from chelonia.core.values import replace
from chelonia.hosting.config import ListenSection, NodeConfig, NodeSection, ShepherdSection, TlsSection, TrustSection
from chelonia.hosting.doors.compact_server import offer
from chelonia.hosting.doors.http_server import HttpLimits
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_files
from chelonia.hosting.node import Node
from chelonia.hosting.services import shepherd
from chelonia.hosting.services.hosting_node import HostingNode
from chelonia.shepherd.service import ShepherdService
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.store_state import locked
from chelonia.wire import compact
from tests.support.cluster import MemoryCluster
from tests.support.failing import fails
from tests.support.polling import poll_async
from tests.unit.hosting.grid import JANE, Grid
from tests.unit.hosting.listening import client_of

ALL = ListenSection(0, ("ahash", "librarian", "bartender", "metrics"), "127.0.0.1")
TOP = (Look(LogicalName(ROOT, ())),)


@contextlib.asynccontextmanager
async def files_at(grid: Grid, port: int) -> AsyncIterator[Files]:
    store = grid.client(grid.user(JANE))
    packed = CompactClient(store.client_context(speaks=compact.PROTOCOL))
    async with client_of(store) as client:
        try:
            link = Link(client, SystemClock(), SystemIds(), compact=packed)
            yield remote_files(link, (f"https://localhost:{port}/Bartender",), RetryLimits(retry_ms=0))
        finally:
            await packed.close()


async def test_what_a_listener_will_serve_is_awaited_and_then_served(tmp_path: Path) -> None:
    """An answer that no service speaks the encoding would make callers use SOAP from then on; no Bartender starts
    so."""
    grid = Grid(tmp_path)
    tls = TlsSection(str(grid.host_files[0]), str(grid.host_files[1]), str(grid.trust_dir))
    node = Node(NodeConfig(NodeSection("n"), (ALL,), tls, trust=TrustSection((JANE,))))
    await node._listen(ALL)
    (server,) = node._servers
    assert node._jobs().version == version("chelonia")
    try:
        async with files_at(grid, server.port) as files:
            with fails(Kind.UNAVAILABLE, match="it is starting"):
                await files.look(Call(), TOP)
            node._node.offered |= offer(FILES, MemoryCluster(Dn(JANE)))
            await node._listen(ALL)
            assert node._servers == [server]
            (there,) = await files.look(Call(), TOP)
            assert isinstance(there, Looked)
    finally:
        await server.stop(0)
        await node._node.link.client.close()


@pytest.mark.parametrize(("address", "dn", "at_s3"), [(64, 256, 256), (1000, 256, 1000), (64, 900, 900)])
async def test_an_address_of_s3_clients_has_the_larger_share_of_an_address_and_a_dn(
    tmp_path: Path, address: int, dn: int, at_s3: int
) -> None:
    """Raising the share of an address, as troubleshooting says, changed nothing for S3 clients behind one router."""
    grid = Grid(tmp_path)
    tls = TlsSection(*map(str, (*grid.host_files, grid.trust_dir)))
    limits = HttpLimits(connections_per_address_max=address, connections_per_dn_max=dn)
    node = Node(NodeConfig(NodeSection("n"), (), tls, limits=limits))
    shares = [node._limits(replace(ALL, serves=serves)).shares for serves in (("s3",), ("files",))]
    assert [each.address for each in shares] == [at_s3, address]
    assert [each.dn for each in shares] == [dn, dn]
    await node._node.client.close()


@contextlib.asynccontextmanager
async def a_shepherd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A Shepherd on `tmp_path / "store"` whose work has ended; yields what closes it."""
    grid, root = Grid(tmp_path / "grid"), tmp_path / "store"
    tls = TlsSection(str(grid.host_files[0]), str(grid.host_files[1]), str(grid.trust_dir))
    librarians = ("https://localhost:9/Librarian",)
    section = ShepherdSection("https://localhost:1/Shepherd", "https://localhost:2", str(root), librarians)
    node = HostingNode(NodeConfig(NodeSection("n"), (), tls, shepherd=section))
    monkeypatch.setattr(HostingNode, "guard", lambda *_: None)
    await shepherd.host(node, section)
    (close,) = node.closers
    for task in node.tasks:
        task.cancel()
    await asyncio.wait(node.tasks)
    yield close
    await node.client.close()


async def test_a_shepherd_that_cannot_note_all_at_its_end_gives_its_store_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start took that end for a crash, and read all that is in segments."""

    async def fail(_: ShepherdService) -> None:
        raise CheloniaError(Kind.UNAVAILABLE, "settle")

    monkeypatch.setattr(ShepherdService, "stop", fail)
    async with a_shepherd(tmp_path, monkeypatch) as close:
        with fails(Kind.UNAVAILABLE):
            await close()
        with locked(tmp_path / "store"):
            pass


async def test_a_shepherd_whose_disk_hangs_at_its_end_keeps_no_other_service_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store was closed after the time for that, and waited for the disk: the A-Hash of its node stayed open."""
    answers, close_store = threading.Event(), LocalBlobs.close

    async def hang(_: ShepherdService) -> None:
        await asyncio.Event().wait()

    def wait_and_close(blobs: LocalBlobs) -> None:
        answers.wait()
        close_store(blobs)

    monkeypatch.setattr(ShepherdService, "stop", hang)
    monkeypatch.setattr(LocalBlobs, "close", wait_and_close)
    async with a_shepherd(tmp_path, monkeypatch) as close:

        async def in_time() -> None:
            async with asyncio.timeout(0.01):
                await close()

        closing = asyncio.create_task(in_time())
        try:
            await poll_async(closing.done, what="the end of its time")
        finally:
            answers.set()
        with pytest.raises(TimeoutError):
            await closing


async def test_a_service_that_fails_to_close_keeps_no_other_from_closing(tmp_path: Path) -> None:
    """A disk raises the system's own errors: the A-Hash beside such a Shepherd stayed open."""
    grid, closed = Grid(tmp_path), list[str]()
    node = Node(NodeConfig(NodeSection("n"), (), TlsSection(*map(str, (*grid.host_files, grid.trust_dir)))))

    async def close() -> None:
        closed.append("ahash")

    async def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    node._node.closers += [close, fail]
    await node._shut_down()
    assert closed == ["ahash"]
    assert "Input/output error" in node._node.failure
