"""Every A-Hash destroyed under real daemons: names, policies and bytes come back from the Shepherds alone.

The steps are those of docs/operate/all-metadata-lost.md.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from chelonia.core.contents.uploads import PIECE_OF
from chelonia.core.ids import SNAPSHOTS_OBJECT, ObjectId
from chelonia.hosting.config import parse_config, render_config
from chelonia_clients.client import Client, new_call
from tests.cluster.harness import Away, Cluster, merge
from tests.cluster.load import append, fetch, put, put_and_append, put_in_parts, until_live
from tests.support.polling import patience, poll, poll_async

CLI = (sys.executable, "-m", "chelonia_clients.cli")
RARELY_MS = 60_000
"""Snapshots go on, but none falls between the last file and the loss."""
PIECED = random.Random(1).randbytes(720_000)
"""Bytes of a file of several blobs."""
TRASH_KEEP_MS = 3_600_000
"""Deleted files stay in the trash until the rebuild, however slow the machine. Later, bytes that nothing has erased yet
would be sheltered in /lost+found."""


def stop(cluster: Cluster, *names: str) -> None:
    """Kill nodes of the core."""
    for name in names:
        by_hand = cluster.by_hand.pop(name, None)
        if by_hand is None:
            cluster.kill(name)
        else:
            by_hand.kill()
            by_hand.wait()


def edit(cluster: Cluster, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the configuration of a node, from its next start on."""
    path = cluster.root / "conf" / f"{name}.toml"
    config = tomllib.loads(path.read_text())
    change(config)
    path.write_text(render_config(parse_config(config)))


def snapshots_every(milliseconds: int) -> Callable[[dict[str, Any]], None]:
    """Have the node's Librarian, if it has one, take snapshots so often."""

    def change(config: dict[str, Any]) -> None:
        if "librarian" in config:
            tuning = {"snapshot_interval_ms": milliseconds, "survey_page_ms": 0, "trash_keep_ms": TRASH_KEEP_MS}
            merge(config["librarian"], {"tuning": tuning})

    return change


def restart_core(cluster: Cluster, change: Callable[[dict[str, Any]], None]) -> None:
    """Kill the core, change its configuration, start it again."""
    stop(cluster, *cluster.core_names)
    for name in cluster.core_names:
        edit(cluster, name, change)
        cluster.start_node(name)


def lose_all_metadata(cluster: Cluster) -> None:
    """Steps 2 and 3: destroy every A-Hash, and have the first begin again as the next generation of its cluster."""
    states = [json.loads(path.read_text()) for path in cluster.root.glob("data/*/state.json")]
    [name] = {state["cluster"] for state in states}
    generation = max(state["generation"] for state in states)
    for core in cluster.core_names:
        shutil.rmtree(cluster.data_dir(core))
        cluster.data_dir(core).mkdir(mode=0o700)
    (cluster.data_dir(cluster.core_names[0]) / "restored").write_text(f"{name} {generation}\n")


async def snapshots(cluster: Cluster) -> list[str]:
    """When snapshots were taken."""
    async with cluster.ports("admin") as ports:
        [stored] = await ports.ahash.get(new_call(), (ObjectId(SNAPSHOTS_OBJECT),))
        return sorted(stored.sections.get("snapshot", {}))


async def until_another_snapshot(cluster: Cluster) -> None:
    """Wait for a snapshot begun after now: the second new one, for the first may have been under way."""
    for _ in range(2):
        seen = await snapshots(cluster)

        async def another(last: str = max(seen, default="")) -> bool:
            return max(await snapshots(cluster), default="") > last

        await poll_async(another, 60.0, tolerate=Away, what="a snapshot of everything")


async def until_whole(cluster: Cluster) -> None:
    """Until every replica of the A-Hash follows."""

    async def look() -> bool:
        async with cluster.ports("admin") as ports:
            status = await ports.ahash.status(new_call().strongly())
            return all(view.role in ("master", "follower") for view in status.replicas)

    await poll_async(look, 60.0, tolerate=Away, what="every replica follows")


def chelonia(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, as an administrator."""
    command = (*CLI, "--cluster", str(cluster.root / "cluster.json"), *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=120 * patience(), check=False)


async def fill(client: Client) -> None:
    await client.make_collection("/data")
    await client.set_policy("/data", "ALL", "+read")
    for number in range(5):
        await put(client, f"/data/{number}", bytes([number]) * 20_000)
    await put_in_parts(client, "/data/in-parts", PIECED)
    await put_and_append(client, "/data/appended", PIECED)
    await put(client, "/doomed", b"doomed")
    await client.move("/data/4", "/moved")
    await client.del_file("/doomed")


async def heard(cluster: Cluster) -> bool:
    """Whether a Shepherd of each piece has heard of its commit. Copies too many, and tries before, have none."""
    async with cluster.ports("admin") as ports:
        pages = [await shepherd.records(new_call(), "", 1_000) for shepherd in ports.shepherds.values()]
    known = [(item.facts, item.committed) for page in pages for item in page.items if item.facts is not None]
    pieces = [(facts.name, committed) for facts, committed in known if facts.name.startswith(PIECE_OF)]
    return {name for name, _ in pieces} == {name for name, committed in pieces if committed}


async def sheltered(client: Client) -> list[bytes]:
    """The bytes in /lost+found."""
    if not await client.exists("/lost+found"):
        return []
    return [await fetch(client, f"/lost+found/{entry.name}") async for entry in client.list("/lost+found")]


async def judge(client: Client) -> None:
    """All that was written is there, and what was deleted is not."""
    names = sorted([entry.name async for entry in client.list("/data")])
    assert names == ["0", "1", "2", "3", "appended", "in-parts", "late", "late-appended"]
    assert not await client.exists("/doomed")
    for number in range(4):
        assert await fetch(client, f"/data/{number}") == bytes([number]) * 20_000
    assert await fetch(client, "/moved") == bytes([4]) * 20_000
    assert await fetch(client, "/data/late") == b"written since"
    for name in ("in-parts", "appended"):
        assert await fetch(client, f"/data/{name}") == PIECED + b"more"
    assert await fetch(client, "/data/late-appended") == PIECED
    await put(client, "/data/new", b"life goes on")
    await until_live(client, "/data/new", 2)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.long), 3])
async def test_the_namespace_comes_back_from_the_shepherds_alone(
    own_cluster: Callable[..., Cluster], replicas: int
) -> None:
    cluster = own_cluster(restart=False, replicas=replicas)
    cluster.expect_log("other side|Librarian|refused|ended|exit|lost|heartbeat|core|registry unreachable for")
    first, *others = cluster.core_names
    restart_core(cluster, snapshots_every(1_000))
    await cluster.until_alive(deadline=90)
    async with cluster.client("user", retry_ms=30_000) as client:
        await fill(client)
        before = (await client.stat("/data"), await client.stat("/moved"))
        await until_another_snapshot(cluster)
    restart_core(cluster, snapshots_every(RARELY_MS))
    await cluster.until_alive(deadline=90)
    async with cluster.client("user", retry_ms=30_000) as client:
        await put(client, "/data/late", b"written since")  # known to records alone
        await append(client, "/data/in-parts", len(PIECED), b"more")
        await append(client, "/data/appended", len(PIECED), b"more")
        await put_and_append(client, "/data/late-appended", PIECED)
        await until_live(client, "/data/late", 2)
    await poll_async(lambda: heard(cluster), 60.0, what="the Shepherds have heard of every commit")
    key = (cluster.root / "data" / "record.key").read_bytes()

    stop(cluster, *cluster.core_names)
    lose_all_metadata(cluster)
    cluster.start_node(first)
    await cluster.until_alive(deadline=90)
    refused = poll(lambda: _refused(cluster), 60.0, what="the Bartender answers")
    assert "being rebuilt" in refused, "users find no empty namespace"
    assert (cluster.root / "data" / "record.key").read_bytes() == key
    ran = poll(lambda: _ran(cluster), 60.0, what="the Librarian takes the command")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rebuilt" in ran.stdout
    again = chelonia(cluster, "admin", "rebuild")
    assert (again.returncode, again.stdout) == (0, ran.stdout)
    for name in others:
        cluster.start_node(name)

    await until_whole(cluster)
    await cluster.until_alive(deadline=90)
    await poll_async(lambda: clean(cluster), 60.0, interval=0.5, what="fsck finds nothing")
    async with cluster.client("user", retry_ms=30_000) as client:
        after = (await client.stat("/data"), await client.stat("/moved"))
        for was, now in zip(before, after, strict=True):
            assert {name: now.get(name) for name in ("entry", "policy", "parents")} == {
                name: was.get(name) for name in ("entry", "policy", "parents")
            }
        await judge(client)
    async with cluster.client("admin", retry_ms=30_000) as client:
        strays = await sheltered(client)
        assert all(each in PIECED + b"more" for each in strays), "nothing but pieces that were sent again"
    async with cluster.ports("admin") as ports:
        assert (await ports.ahash.status(new_call())).position.generation == 2


async def clean(cluster: Cluster) -> bool:
    """Whether fsck finds nothing. Shepherds may still be comparing what they hold with the rebuilt namespace."""
    return chelonia(cluster, "admin", "fsck").returncode == 0


def _refused(cluster: Cluster) -> str:
    """Return a user's error; "" while it says only that there is no Bartender."""
    ran = chelonia(cluster, "ls", "/data")
    assert ran.returncode != 0, ran.stdout
    return "" if "network" in ran.stderr or "starting" in ran.stderr else ran.stderr


def _ran(cluster: Cluster) -> subprocess.CompletedProcess[str] | None:
    """Run the command; None while the Librarian is not there yet."""
    ran = chelonia(cluster, "admin", "rebuild")
    return None if "network" in ran.stderr or "unavailable" in ran.stderr else ran
