"""Disks that are not there, empty, somebody else's, or there twice: noticed and logged, and no replica counts as lost
by it."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chelonia.core.caller import Call
from chelonia_clients.client import Client
from tests.cluster.conftest import started
from tests.cluster.harness import Away, Cluster
from tests.cluster.load import fetch, locations, put, until_live
from tests.support.polling import patience, poll, poll_async
from tests.support.ports import free_ports
from tests.support.power import PowerDisk, powered

LEASE_MS = 20_000
"""Long enough that even a busy machine does not miss the first of two twins; else the second would take its place."""
DATA = {f"/disk/{number}": bytes([number]) * 50_000 for number in range(6)}


async def filled(cluster: Cluster, client: Client) -> None:
    if not await client.exists("/disk"):
        await client.make_collection("/disk")
        for ln, data in DATA.items():
            await put(client, ln, data, 3)
    for ln in DATA:
        await until_live(client, ln, 3)


def run_alone(config: Path) -> subprocess.CompletedProcess[str]:
    """Run a node until it ends by itself."""
    argv = [sys.executable, "-m", "chelonia.hosting.cheloniad", "run", "--config", str(config)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120 * patience(), check=False)


async def test_an_emptied_disk_is_refused_until_an_administrator_says_that_it_is_meant(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False)
    config = cluster.root / "conf" / "shepherd1.toml"
    async with cluster.client("user") as client:
        await filled(cluster, client)
        cluster.kill("shepherd1")
        home = cluster.data_dir("shepherd1")
        away = home.with_name("away")
        home.rename(away)
        home.mkdir()
        cluster.expect_log("heartbeat refused|another process is alive")  # while the last one has not been missed
        refused = run_alone(config)
        assert refused.returncode in (1, 2), "2: it is told while it still starts"
        assert "the cluster knows" in refused.stderr
        assert "accept-store" in refused.stderr
        async with cluster.ports("admin") as ports:
            [view] = [v for v in await ports.librarian.nodes(Call()) if v.shepherd == cluster.url("shepherd1")]
        assert "the cluster knows" in view.trouble
        for ln in DATA:
            assert len(await locations(client, ln)) >= 3, "the empty directory was believed"

        other = refusal_of_a_foreign_disk(cluster, "shepherd1", cluster.data_dir("shepherd2"))
        assert "is the store of" in other

        shutil.rmtree(home)
        away.rename(home)
        cluster.start_node("shepherd1")
        await cluster.until_serving("shepherd1")
        for ln in DATA:
            await until_live(client, ln, 3)

        cluster.by_hand["shepherd1"].terminate()
        cluster.by_hand.pop("shepherd1").wait()
        for name in ("replicas", "segments"):
            shutil.rmtree(home / name, ignore_errors=True)
        gone = run_alone(config)
        assert gone.returncode == 2
        assert "replicas/ is gone" in gone.stderr
        assert "0 committed replicas" in cluster.accept_store("shepherd1")
        cluster.expect_log("has store|replicas it held are reported lost")
        cluster.start_node("shepherd1")
        told = f"{len(DATA)} replicas it held are reported lost"
        await poll_async(lambda: told in cluster.log_of("shepherd1"), 60.0, what=told)  # before: as it was
        for ln, data in DATA.items():
            await until_live(client, ln, 3, deadline=60.0)
            assert await fetch(client, ln) == data
    assert cluster.log_of("core").count("as an administrator said") == 1


def refusal_of_a_foreign_disk(cluster: Cluster, name: str, foreign: Path) -> str:
    """Start a node on another's directory (a copy, for the other is in use); returns its refusal."""
    copy = cluster.root / "copied"
    shutil.copytree(foreign, copy, ignore=shutil.ignore_patterns("lock"))
    config = cluster.root / "conf" / "copied.toml"
    text = (cluster.root / "conf" / f"{name}.toml").read_text()
    config.write_text(text.replace(str(cluster.data_dir(name)), str(copy)))
    ended = run_alone(config)
    assert ended.returncode == 2
    return ended.stderr


@pytest.fixture(scope="module")
def vanishing(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster one of whose disks is away now and then."""
    cluster = Cluster(tmp_path_factory.mktemp("vanishing"))
    cluster.expect_log("the store is not there any more|cannot tell anything of its replicas")
    yield from started(pytestconfig, cluster)


@pytest.mark.parametrize(
    ("below", "empty", "why"),
    [
        ("", True, "directory is empty"),
        ("replicas", False, "replicas/ is gone"),
        ("replicas", True, "replicas/ is gone"),
    ],
)
async def test_a_disk_that_vanishes_under_a_running_shepherd_is_told_and_comes_back(
    vanishing: Cluster, below: str, empty: bool, why: str
) -> None:
    """The disk is mounted at the directory, or at replicas/ alone: without it that is missing, or an `empty`
    directory."""
    cluster, since = vanishing, len(vanishing.log_of("shepherd2"))
    async with cluster.client("user") as client:
        await filled(cluster, client)
        home = cluster.data_dir("shepherd2") / below
        away = home.rename(home.with_name("away"))
        if empty:
            home.mkdir()

        async def shown() -> bool:
            view = (await cluster.nodes())["shepherd2"]
            return view.state == "offline" and why in view.trouble

        await poll_async(shown, 40.0, tolerate=Away, what="it is away and says why")
        assert cluster.request("GET", f"{cluster.data_url('shepherd2')}/readyz").status == 503
        end = time.monotonic() + 3.0  # several rounds of the scrub would fit
        while time.monotonic() < end:
            for ln, data in DATA.items():
                assert await fetch(client, ln) == data
                assert not {"invalid", "deleted"} & set((await locations(client, ln)).values())
        if empty:
            assert list(home.rglob("*")) == [], "something was written below the mount point"
            home.rmdir()
        away.rename(home)
        await cluster.until_serving("shepherd2")
        for ln in DATA:
            await until_live(client, ln, 3)
    log = cluster.log_of("shepherd2")[since:]
    assert "replica is invalid" not in log
    assert "replica missing" not in log
    assert log.count("the store is not there any more") == 1


async def test_a_second_process_on_a_copied_disk_is_refused_while_the_first_lives(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster()
    cluster.reconfigure("core", librarian={"tuning": {"lease_ms": LEASE_MS}})
    await cluster.until_alive()
    async with cluster.client("user") as client:
        await filled(cluster, client)
        home, copy = cluster.data_dir("shepherd3"), cluster.root / "data" / "twin"
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("lock", "state.json*"))
        text = (cluster.root / "conf" / "shepherd3.toml").read_text().replace(str(home), str(copy))
        own = urlsplit(cluster.url("shepherd3")).port
        assert own is not None
        for port, free in zip((own, own + 1), free_ports(2), strict=True):
            text = text.replace(f"port = {port}", f"port = {free}")
        config = cluster.root / "conf" / "twin.toml"
        config.write_text(text)
        cluster.expect_log("heartbeat refused .* another process is alive")
        log = cluster.root / "twin.txt"
        argv = [sys.executable, "-m", "chelonia.hosting.cheloniad", "run", "--config", str(config)]
        with log.open("wb") as out:
            twin = subprocess.Popen(argv, stdout=out, stderr=out)
        try:
            poll(lambda: "refused by the cluster: another process is alive" in log.read_text(), 60.0)
            view = (await cluster.nodes())["shepherd3"]
            assert view.state == "alive"
            assert "another process is alive" in view.trouble
            for ln, data in DATA.items():
                assert await fetch(client, ln) == data
        finally:
            twin.terminate()
            assert twin.wait(40 * patience()) == 0
        for ln in DATA:
            await until_live(client, ln, 3)


@pytest.fixture
def hanging(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[tuple[Cluster, PowerDisk]]:
    """A cluster one of whose disks can hang."""
    cluster = Cluster(tmp_path / "hanging")
    cluster.expect_log("the store is not there any more: its disk fails|cannot tell anything of its replicas")
    with powered(cluster.root / "data" / "shepherd2") as disk:
        for each in started(pytestconfig, cluster):
            try:
                yield each, disk
            finally:
                disk.go_on()


async def test_a_disk_that_hangs_is_told_uploads_start_elsewhere_and_it_comes_back(
    hanging: tuple[Cluster, PowerDisk],
) -> None:
    cluster, disk = hanging
    large = {f"/hang{number}": bytes([number]) * 3_000_000 for number in range(6)}
    async with cluster.client("user") as client:
        await filled(cluster, client)
        disk.hang("all")
        await asyncio.gather(*(put(client, ln, data, 2) for ln, data in large.items()))

        async def shown() -> bool:
            view = (await cluster.nodes())["shepherd2"]
            return view.state == "offline" and "a call to it has not returned" in view.trouble

        await poll_async(shown, 60.0, tolerate=Away, what="it is away and says why")
        assert cluster.request("GET", f"{cluster.data_url('shepherd2')}/readyz").status == 503
        for ln, data in (DATA | large).items():
            assert await fetch(client, ln) == data
        disk.go_on()
        await cluster.until_serving("shepherd2")
        for ln in DATA:
            await until_live(client, ln, 3)
        for ln, data in large.items():
            await until_live(client, ln, 2)
            assert await fetch(client, ln) == data
    assert cluster.log_of("shepherd2").count("the store is not there any more") == 1


@pytest.fixture
def replicated(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[tuple[Cluster, dict[int, PowerDisk]]]:
    """A cluster whose A-Hash has three replicas on disks that can hang, by the number of each."""
    cluster = Cluster(tmp_path / "metadata", replicas=3)
    cluster.expect_log("disk has not taken a change for|registry unreachable for|no Librarian has answered|it ended")
    with ExitStack() as stack:
        disks = {n: stack.enter_context(powered(cluster.root / "data" / f"ahash{n}")) for n in (1, 2, 3)}
        for each in started(pytestconfig, cluster):
            try:
                yield each, disks
            finally:
                for disk in disks.values():
                    disk.go_on()


@pytest.mark.long
async def test_a_master_of_the_metadata_whose_disk_hangs_makes_way_for_another(
    replicated: tuple[Cluster, dict[int, PowerDisk]],
) -> None:
    """Its heartbeats went on and the others followed it as long as its disk hung: no change was answered."""
    cluster, disks = replicated
    async with cluster.ports("admin") as ports, cluster.client("user") as client:
        await put(client, "/before", b"1", 2)
        await put(client, "/gone", b"1", 2)
        master = (await ports.ahash.status(Call().strongly())).replica
        disk = disks[master]
        await slowed(disk, client.make_collection("/slow"))
        disk.hang("fsync")
        removal = asyncio.create_task(client.del_file("/gone"))
        await poll_async(lambda: asyncio.to_thread(disk.waiting), 60.0, what="its commit hangs")

        async def changed() -> bool:
            await client.make_collection(f"/after-{time.monotonic()}")
            return True

        await poll_async(changed, 150.0, tolerate=Away, what="another replica takes changes")
        assert (await ports.ahash.status(Call().strongly())).replica != master
        disk.go_on()
        await asyncio.gather(removal, return_exceptions=True)
        await cluster.until_alive()
        assert await fetch(client, "/before") == b"1"
    assert "has not taken a change for" in cluster.log_of(f"core{master}")


async def slowed(disk: PowerDisk, change: Coroutine[object, object, object]) -> None:
    """Have a sync take long, so that the next ones are not made in the event loop, which would hang with them."""
    disk.hang("fsync")
    changing = asyncio.create_task(change)
    await poll_async(lambda: asyncio.to_thread(disk.waiting), 60.0, what="a sync takes long")
    await asyncio.sleep(0.15)
    disk.go_on()
    await changing
