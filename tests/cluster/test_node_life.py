"""Nodes that leave: drained and gone, dead and forgotten, through the command line, on real daemons."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chelonia_clients.client import Client
from tests.cluster.harness import Away, Cluster
from tests.cluster.load import fetch, locations, put, until_live
from tests.support.polling import patience, poll_async

COMMAND = str(Path(sys.executable).parent / "chelonia")


async def admin(cluster: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    """`chelonia admin <words> --json`: exit code and document."""
    command = [COMMAND, "--cluster", str(cluster.root / "cluster.json"), "--json", "admin", *words]
    longest_s = 90 * patience()
    run = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=longest_s, env=dict(os.environ))
    return run.returncode, json.loads(run.stdout)


async def test_a_node_is_drained_stopped_and_forgotten(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False)
    cluster.expect_log("refused by the cluster: this Shepherd was declared lost for good")
    files = {f"/out/{number}": bytes([number]) * 100_000 for number in range(12)}
    files |= {f"/out/empty{number}": b"" for number in range(6)}  # whose moves cost the Librarian its process once
    victim = cluster.url("shepherd1")
    async with cluster.client("user") as client:
        await client.make_collection("/out")
        for ln, data in files.items():
            await put(client, ln, data)
        for ln in files:
            await until_live(client, ln, 2)
        code, refused = await admin(cluster, "node", "forget", victim)
        assert (code, refused["error"]["kind"]) == (5, "conflict")

        code, told = await admin(cluster, "node", "drain", victim, "--wait")
        assert (code, told["results"][0]["drain"]) == (0, "drained")
        assert not [path for path in (cluster.data_dir("shepherd1") / "replicas").rglob("*") if path.is_file()]
        for ln, data in files.items():
            places = await until_live(client, ln, 2)
            assert not any(place.startswith(victim + " ") for place in places)
            assert await fetch(client, ln) == data

        cluster.kill("shepherd1")
        await poll_async(lambda: state_is(cluster, victim, "offline"), 40.0, tolerate=Away, what="it is called away")
        code, told = await admin(cluster, "node", "forget", victim)
        assert (code, told["results"][0]["forgotten"], told["results"][0]["losses"]) == (0, True, [])
        _, listed = await admin(cluster, "node", "list")
        assert victim not in [node["shepherd"] for node in listed["results"]]

        cluster.start_node("shepherd1")
        await poll_async(lambda: said(cluster, "declared lost for good"), 60.0, what="it is told why it is refused")
        _, listed = await admin(cluster, "node", "list")
        assert victim not in [node["shepherd"] for node in listed["results"]]


async def test_a_dead_node_with_only_copies_is_forgotten_only_when_the_loss_is_accepted(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False)
    cluster.expect_log("is lost with|is lost, no verified copy")
    async with cluster.client("user") as client:
        for number in range(6):
            await put(client, f"/{number}", bytes([number]) * 1000, 1)
        places = {f"/{number}": next(iter(await until_live(client, f"/{number}", 1))) for number in range(6)}
        victim = next(iter(places.values())).partition(" ")[0]
        only = sorted(ln for ln, place in places.items() if place.startswith(victim + " "))
        cluster.kill(cluster.named(victim))
        await poll_async(lambda: state_is(cluster, victim, "offline"), 40.0, tolerate=Away, what="it is called away")
        code, told = await admin(cluster, "node", "forget", victim)
        assert code == 5
        lost = sorted(loss["ln"] for loss in told["results"][0]["losses"])
        assert lost
        assert set(lost) <= set(only), "a put whose Shepherd was slow has a second copy elsewhere, which is found"
        away = {places[lost[0]]: "offline"}
        await poll_async(lambda: located(client, lost[0], away), 40.0, what="its copy is out of reach")
        code, told = await admin(cluster, "node", "forget", victim, "--accept-loss")
        assert (code, told["results"][0]["forgotten"]) == (0, True)
        await poll_async(lambda: located(client, lost[0], {}), 40.0, what="its copy is no more listed")
        kept = sorted(set(places) - set(lost))
        assert all([await fetch(client, ln) == bytes([int(ln[1:])]) * 1000 for ln in kept])


async def located(client: Client, ln: str, places: dict[str, str]) -> bool:
    return await locations(client, ln) == places


async def state_is(cluster: Cluster, shepherd: str, state: str) -> bool:
    _, listed = await admin(cluster, "node", "list")
    return {node["shepherd"]: node["state"] for node in listed["results"]}[shepherd] == state


async def said(cluster: Cluster, what: str) -> bool:
    return what in cluster.log_of("shepherd1")
