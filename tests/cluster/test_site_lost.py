"""A site of three is lost: a replica of the A-Hash, a Librarian, a Bartender and two Shepherds. The runbook is
followed.

The test gives the commands of docs/operate/site-lost.md to real daemons.
"""

import signal
import tomllib
from collections.abc import Callable, Sequence

import pytest

from chelonia.hosting.config import parse_config, render_config
from chelonia_clients.client import Client
from tests.cluster.harness import Away, Cluster, runs
from tests.cluster.load import fetch, put, until_live
from tests.cluster.test_node_life import admin
from tests.support.polling import poll, poll_async

pytestmark = pytest.mark.long

SITES = {"shepherd1": "ams", "shepherd2": "ams", "shepherd3": "lon", "shepherd4": "lon", "shepherd5": "par"}
LOST = "ams"
DATA = b"chelonia" * 10_000


async def test_a_lost_site_costs_only_what_was_nowhere_else(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster(shepherds=len(SITES), replicas=3, restart=False)
    cluster.expect_log("is lost with|is lost, no verified copy")
    await spread(cluster)
    away = [cluster.url(name) for name, site in SITES.items() if site == LOST]
    async with cluster.client("user") as client:
        files = [f"/f{number}" for number in range(6)]
        for ln in files:
            await put(client, ln, DATA, 3)
            await until_live(client, ln, 3)
        only = await put_at(client, away)

        lose(cluster)
        for ln in files:
            assert await fetch(client, ln) == DATA
        await put(client, "/after", DATA, 2)
        for ln in files:
            await until_live(client, ln, 3)
        await poll_async(lambda: exposed(cluster, {"0": 1}), 60.0, tolerate=Away, what="only the lost file is exposed")

        assert await forgotten(cluster, away) == [only]
        await poll_async(lambda: exposed(cluster, {}), 60.0, what="nothing is left that healing could wait for")
        for service in ("librarian", "bartender", "ahash"):
            code, _ = await admin(cluster, "service", "withdraw", cluster.info[service][0]["url"])
            assert code == 0
        _, checked = await admin(cluster, "fsck")
        assert [found["rule"] for found in checked["results"] if found["severity"] == "damage"] == ["blob-lost"]
        assert any(f"written as {only}" in found["text"] for found in checked["results"])
        await client.del_file(only)
        await poll_async(lambda: clean(cluster), 60.0, tolerate=Away, what="the trash has let go of it")

    before = compared(cluster)
    await restart(cluster, "shepherd3")  # the Librarian that it asks first is gone
    await poll_async(lambda: compared(cluster) > before, 60.0, what="it has compared its inventory with the other's")


async def spread(cluster: Cluster) -> None:
    """Give every Shepherd its site, and start it again by hand."""
    for name, site in SITES.items():
        path = cluster.root / "conf" / f"{name}.toml"
        config = tomllib.loads(path.read_text())
        config["shepherd"]["tuning"]["domain"] = f"{site}/{name}"
        path.write_text(render_config(parse_config(config)))
    for pid in [cluster.signal(name, signal.SIGTERM) for name in SITES]:
        poll(lambda pid=pid: not runs(pid), 60.0, what="it has ended")  # type: ignore[misc]
    for name in SITES:
        cluster.start_node(name)

    async def placed() -> bool:
        nodes = await cluster.nodes()
        return all(node.domain == f"{SITES[name]}/{name}" and node.state == "alive" for name, node in nodes.items())

    await poll_async(placed, 60.0, tolerate=Away, what="every Shepherd is at its site")


async def put_at(client: Client, shepherds: Sequence[str]) -> str:
    """Store files with one copy until one has it there; returns its name."""
    for number in range(50):
        await put(client, f"/one{number}", DATA, 1)
        (place,) = await until_live(client, f"/one{number}", 1)
        if place.partition(" ")[0] in shepherds:
            return f"/one{number}"
        await client.del_file(f"/one{number}")
    raise AssertionError("none of fifty was stored there")


def lose(cluster: Cluster) -> None:
    """kill -9 of all processes of the site."""
    cluster.kill("core1")
    for name, site in SITES.items():
        if site == LOST:
            cluster.by_hand[name].kill()
            cluster.by_hand[name].wait()


async def exposed(cluster: Cluster, files: dict[str, int]) -> bool:
    """Whether so many files, by copies left, have too few, and nothing can be copied now."""
    _, told = await admin(cluster, "heal", "status")
    found = told["results"][0]
    return found["exposed"] == files and found["copying"] == 0 and found["stuck"] == sum(files.values())


async def clean(cluster: Cluster) -> bool:
    """Whether fsck finds nothing."""
    return (await admin(cluster, "fsck"))[0] == 0


async def forgotten(cluster: Cluster, shepherds: Sequence[str]) -> list[str]:
    """Forget Shepherds; returns the names of the files that are given up with them."""
    lost = []
    for shepherd in shepherds:
        code, told = await admin(cluster, "node", "forget", shepherd)
        if code:
            lost += [loss["ln"] for loss in told["results"][0]["losses"]]
            code, told = await admin(cluster, "node", "forget", shepherd, "--accept-loss")
        assert (code, told["results"][0]["forgotten"]) == (0, True)
    return lost


async def restart(cluster: Cluster, name: str) -> None:
    """kill -9 a Shepherd and start it again."""
    cluster.by_hand[name].kill()
    cluster.by_hand[name].wait()
    cluster.start_node(name)


def compared(cluster: Cluster) -> int:
    """How often that Shepherd has compared its inventory."""
    return cluster.log_of("shepherd3").count("inventory compared")
