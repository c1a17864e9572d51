"""Full disks: a clear refusal, nothing lost or leaked, and others take over. On small tmpfs mounts."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms
from chelonia.core.ports.shepherd import Purpose, PutRequest
from chelonia.hosting.transfer import upload as uploads
from chelonia_clients.client import Client
from tests.cluster.conftest import started
from tests.cluster.harness import Away, Cluster
from tests.cluster.load import fetch, locations, put, until_live
from tests.support.polling import poll_async

pytestmark = pytest.mark.needs_tmpfs

DISK = "40m"
RESERVE = 16 * 1024 * 1024
"""Bytes that a Shepherd keeps free at dev settings."""
JANE = Dn("/DC=org/DC=chelonia/O=Dev/CN=Jane Doe")
DATA = os.urandom(3_000_000)


@pytest.fixture
def small_disks(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three Shepherds; the first two on disks of 40 MiB."""
    cluster = Cluster(tmp_path / "small")
    mounts = [cluster.root / "data" / name for name in ("shepherd1", "shepherd2")]
    try:
        for mount in mounts:
            mount.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(mount)], check=True)
        yield from started(pytestconfig, cluster)
    finally:
        for mount in mounts:
            subprocess.run(["umount", str(mount)], capture_output=True)


def fill(cluster: Cluster, name: str, leave: int) -> Path:
    """Use up a Shepherd's disk until `leave` bytes are free."""
    folder = cluster.data_dir(name)
    found = os.statvfs(folder)
    path = folder / "somebody-elses-file"
    path.write_bytes(bytes(max(found.f_bavail * found.f_frsize - leave, 0)))
    return path


async def free_bytes(cluster: Cluster, name: str) -> int:
    return (await cluster.nodes())[name].free_bytes


def incoming(cluster: Cluster) -> list[Path]:
    return [path for name in cluster.shepherd_names for path in (cluster.data_dir(name) / "incoming").iterdir()]


async def test_full_disks(small_disks: Cluster) -> None:
    cluster = small_disks
    async with cluster.client("user") as client:
        await put(client, "/before", DATA, 3)
        await until_live(client, "/before", 3)  # of two one may be a third for a while, and makes room as it goes

        # One fills up in the middle of an upload it had room for.
        name, other = "shepherd1", "shepherd2"
        turl = await turl_on(cluster, name)
        filler = fill(cluster, name, leave=RESERVE + 500_000)
        answer = cluster.request("PUT", turl, body=DATA)
        assert (answer.status, answer.kind) == (507, "no-space"), answer.text
        assert "space" in answer.text

        # The others take what comes next; what it has stays readable.
        await poll_async(lambda: below(cluster, name, 600_000), 30.0, tolerate=Away, what="it says that it is full")
        for number in range(3):
            await put(client, f"/after{number}", DATA)
            places = await until_live(client, f"/after{number}", 2)
            assert {cluster.named(place) for place in places} == {other, "shepherd3"}
        assert await fetch(client, "/before") == DATA

        # Bytes of unknown length that fit nowhere twice: an error that says so, and nothing is left behind.
        error = await poll_async(lambda: refusal(client), 60.0, what="no busy Shepherd's guard cuts the upload off")
        assert error.kind in (Kind.NO_SPACE, Kind.NO_SHEPHERD, Kind.UNAVAILABLE), error
        assert await client.exists("/endless") == ""

        # All but one are full: two durable copies cannot be had, and the answer names the reason.
        second = fill(cluster, other, leave=RESERVE)
        await poll_async(lambda: below(cluster, other, 1), 30.0, tolerate=Away, what="the second is full")
        with pytest.raises(CheloniaError) as caught:
            await put(client, "/nowhere", DATA)
        assert caught.value.kind in (Kind.NO_SPACE, Kind.NO_SHEPHERD), caught.value
        assert await client.exists("/nowhere") == ""
        await put(client, "/single", DATA, 1)
        assert {cluster.named(place) for place in await locations(client, "/single")} == {"shepherd3"}

        # Room again, and everything goes on.
        filler.unlink()
        second.unlink()
        await poll_async(lambda: above(cluster, name, 10_000_000), 30.0, tolerate=Away)
        assert cluster.request("PUT", turl, body=DATA).status == 201, "the ticket is still good"
        await put(client, "/again", DATA, 3)
        for ln in ("/before", "/again", "/single", "/after0"):
            assert await fetch(client, ln) == DATA
        await poll_async(lambda: not incoming(cluster), 40.0, what="nothing half-written is left")


async def turl_on(cluster: Cluster, name: str) -> str:
    """A TURL to write on one Shepherd, as a Bartender gets it."""
    async with cluster.ports("core") as ports:
        blob = BlobId("00000000-0000-4000-8000-000000000001")
        facts = ReplicaFacts(blob, Guid(blob), "/caught", JANE, len(DATA), Checksums(), 1, Ms(0))
        wish = PutRequest("0", facts, Purpose.RECEIPT, ("http",), dn=JANE)
        [outcome] = await ports.shepherds[name].put(Call(), (wish,))
        assert outcome.turl, outcome
        return outcome.turl


async def below(cluster: Cluster, name: str, limit: int) -> bool:
    return await free_bytes(cluster, name) < limit


async def above(cluster: Cluster, name: str, limit: int) -> bool:
    return await free_bytes(cluster, name) > limit


async def refusal(client: Client) -> CheloniaError | None:
    """The error of `endless` bytes; None when a connection broke first."""
    with pytest.raises(CheloniaError) as caught:
        await uploads.upload(client, endless(), "/endless", uploads.UploadOptions(replicas=2))
    return None if caught.value.kind is Kind.NETWORK else caught.value


def endless() -> uploads.Source:
    """30 MB that nobody announced."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield DATA

    return uploads.Source(chunks, -1)
