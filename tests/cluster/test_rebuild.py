"""Every A-Hash destroyed under real daemons: names, policies and bytes come back from the Shepherds alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from chelonia.core.ids import SNAPSHOTS_OBJECT, ObjectId
from chelonia.hosting.config import parse_config, render_config
from chelonia_clients.client import Client, new_call
from tests.cluster.harness import Cluster, merge
from tests.cluster.load import fetch, put, until_live
from tests.support.polling import poll, poll_async

CLI = (sys.executable, "-m", "chelonia_clients.cli")


def restart_core(cluster: Cluster, change: Callable[[Path], None]) -> None:
    """Kill the core, change something on its disk, start it again."""
    if "core" in cluster.by_hand:
        cluster.by_hand["core"].kill()
        cluster.by_hand["core"].wait()
    else:
        cluster.kill("core")
    change(cluster.root)
    cluster.start_node("core")


def snapshots_every(milliseconds: int) -> Callable[[Path], None]:
    """How often snapshots are taken, from the next start on."""

    def change(root: Path) -> None:
        path = root / "conf" / "core.toml"
        config = tomllib.loads(path.read_text())
        merge(config["librarian"], {"tuning": {"snapshot_interval_ms": milliseconds, "survey_page_ms": 0}})
        path.write_text(render_config(parse_config(config)))

    return change


def lose_all_metadata(root: Path) -> None:
    """Destroy the A-Hash, and have it begin again as the runbook says."""
    states = [json.loads(path.read_text()) for path in root.glob("data/*/state.json")]
    [cluster] = {state["cluster"] for state in states}
    generation = max(state["generation"] for state in states)
    shutil.rmtree(root / "data" / "ahash")
    (root / "data" / "ahash").mkdir(mode=0o700)
    (root / "data" / "ahash" / "restored").write_text(f"{cluster} {generation}\n")


async def snapshots(cluster: Cluster) -> list[str]:
    """When snapshots were taken."""
    async with cluster.ports("admin") as ports:
        [stored] = await ports.ahash.get(new_call(), (ObjectId(SNAPSHOTS_OBJECT),))
        return sorted(stored.sections.get("snapshot", {}))


def chelonia(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, as an administrator."""
    command = (*CLI, "--cluster", str(cluster.root / "cluster.json"), *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


async def fill(client: Client) -> None:
    await client.make_collection("/data")
    await client.set_policy("/data", "ALL", "+read")
    for number in range(5):
        await put(client, f"/data/{number}", bytes([number]) * 20_000)
    await put(client, "/doomed", b"doomed")
    await client.move("/data/4", "/moved")
    await client.del_file("/doomed")


async def test_the_namespace_comes_back_from_the_shepherds_alone(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster(restart=False)
    cluster.expect_log("other side|Librarian|refused|ended|exit|lost|heartbeat|core")
    restart_core(cluster, snapshots_every(1_000))
    await cluster.until_alive(deadline=40)
    async with cluster.client("user", retry_ms=30_000) as client:
        await fill(client)
        before = (await client.stat("/data"), await client.stat("/moved"))
    seen = await snapshots(cluster)

    async def another() -> bool:
        return (await snapshots(cluster))[-1:] > seen[-1:] or bool(seen == [] and await snapshots(cluster))

    await poll_async(another, 30.0, what="a snapshot of everything")
    restart_core(cluster, snapshots_every(0))  # what follows is known to records alone
    await cluster.until_alive(deadline=40)
    async with cluster.client("user", retry_ms=30_000) as client:
        await put(client, "/data/late", b"written since")
        await until_live(client, "/data/late", 2)

    restart_core(cluster, lose_all_metadata)
    await cluster.until_alive(deadline=40)
    ran = poll(lambda: _ran(cluster), 60.0, what="the Librarian takes the command")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rebuilt" in ran.stdout
    assert chelonia(cluster, "admin", "fsck").returncode == 0
    async with cluster.client("user", retry_ms=30_000) as client:
        after = (await client.stat("/data"), await client.stat("/moved"))
        for was, now in zip(before, after, strict=True):
            assert {name: now.get(name) for name in ("entry", "policy", "parents")} == {
                name: was.get(name) for name in ("entry", "policy", "parents")
            }
        names = sorted([entry.name async for entry in client.list("/data")])
        assert names == ["0", "1", "2", "3", "late"]
        assert not await client.exists("/doomed")
        for number in range(4):
            assert await fetch(client, f"/data/{number}") == bytes([number]) * 20_000
        assert await fetch(client, "/moved") == bytes([4]) * 20_000
        assert await fetch(client, "/data/late") == b"written since"
        await put(client, "/data/new", b"life goes on")
        await until_live(client, "/data/new", 2)
    async with cluster.ports("admin") as ports:
        assert (await ports.ahash.status(new_call())).position.generation == 2
    cluster.by_hand["core"].send_signal(signal.SIGTERM)


def _ran(cluster: Cluster) -> subprocess.CompletedProcess[str] | None:
    """The command's end; None while the Librarian is not there yet."""
    ran = chelonia(cluster, "admin", "rebuild")
    return None if "network" in ran.stderr or "unavailable" in ran.stderr else ran
