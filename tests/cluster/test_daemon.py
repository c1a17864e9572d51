"""The daemon as a whole: what it writes, how it starts again, and how it ends."""

import asyncio
import os
import signal
import stat
import time
from collections.abc import Callable
from functools import partial

from tests.cluster.harness import Away, Cluster, runs
from tests.cluster.load import Load, fetch, put, until_live
from tests.support.polling import patience, poll, poll_async


async def test_a_file_goes_in_and_comes_out_on_either_path(cluster: Cluster) -> None:
    async with cluster.client("user") as client, cluster.client("anonymous") as stranger:
        await put(client, "/plain", b"some bytes")
        assert await fetch(client, "/plain") == b"some bytes"
        assert await fetch(stranger, "/plain") == b"some bytes"
        assert len({location.split()[0] for location in await until_live(client, "/plain", 2)}) == 2


def test_cluster_json_describes_a_running_cluster(cluster: Cluster) -> None:
    info = cluster.info
    assert len(info["shepherds"]) == cluster.shepherds
    for kind in ("ahash", "librarian", "bartender", "shepherds"):
        for entry in info[kind]:
            assert set(entry) == {"id", "url", "pid", "data_dir"}
            assert runs(entry["pid"])
            assert os.path.isdir(entry["data_dir"])
    for key in ("user_key", "user2_key", "admin_key", "service_key", "user_proxy"):
        assert stat.S_IMODE(os.stat(info[key]).st_mode) & 0o077 == 0, f"{key} is readable by others"
    for service in ("ahash", "librarian", "bartender", "shepherd1"):
        url = cluster.url(service).rsplit("/", 1)[0]
        assert cluster.request("GET", f"{url}/healthz", "admin").text == "ok\n"
        ready = partial(cluster.request, "GET", f"{url}/readyz", "admin")
        poll(lambda ready=ready: ready().text == "ready\n", what=f"{service} is ready")  # type: ignore[misc]
        assert b"chelonia_" in cluster.request("GET", f"{url}/metrics", "admin").body


async def test_everything_is_there_again_after_stop_and_start(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster()
    async with cluster.client("user") as client:
        await client.make_collection("/kept")
        for number in range(5):
            await put(client, f"/kept/{number}", bytes([number]) * 100_000)
    before = cluster.info
    assert cluster.stop() == 0
    assert not any(runs(entry["pid"]) for entry in (*before["shepherds"], *before["ahash"]))
    cluster.start()
    after = cluster.info
    assert [entry["id"] for entry in after["shepherds"]] == [entry["id"] for entry in before["shepherds"]]
    async with cluster.client("user") as client:
        for number in range(5):
            assert await fetch(client, f"/kept/{number}") == bytes([number]) * 100_000
            await until_live(client, f"/kept/{number}", 2)
        await put(client, "/kept/new", b"new")


async def test_sigterm_under_load_ends_in_seconds_and_keeps_what_it_acknowledged(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster()
    async with Load(cluster, "/load", retry_ms=0) as load:
        await load.until_acknowledged(10)
        before = time.monotonic()
        assert await asyncio.to_thread(cluster.stop) == 0
        assert time.monotonic() - before < 15 * patience()
        await load.finish()
    assert load.refused, "the load had ended before the cluster"
    cluster.start()
    await load.judge()


async def test_a_signal_to_the_whole_group_stops_it_once(own_cluster: Callable[..., Cluster]) -> None:
    """Ctrl-C in a terminal reaches every process of the foreground group."""
    cluster = own_cluster(shepherds=1)
    assert cluster.process is not None
    os.killpg(cluster.process.pid, signal.SIGINT)
    process, pids = cluster.process, cluster.pids()
    assert process.wait(30 * patience()) == 0
    assert not any(runs(pid) for pid in pids.values())
    assert "is started again" not in (cluster.root / "dev.log").read_text()


async def test_without_restart_the_dead_stay_dead(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster(restart=False)
    use = f"in another terminal: export CHELONIA_CLUSTER={cluster.root.resolve() / 'cluster.json'}\n"
    poll(lambda: use in (cluster.root / "dev.log").read_text(), 10.0, what="what to type next")
    pid = cluster.kill("shepherd2")
    poll(lambda: "ended name=shepherd2" in (cluster.root / "dev.log").read_text(), 40.0)
    await cluster.until_alive("shepherd1", "shepherd3")

    async def gone() -> bool:
        return (await cluster.nodes())["shepherd2"].state == "offline"

    await poll_async(gone, 20.0, tolerate=Away)
    assert cluster.pid("shepherd2") == pid
    async with cluster.client("user") as client:
        await put(client, "/with-two", b"x" * 1000)
        assert await fetch(client, "/with-two") == b"x" * 1000
