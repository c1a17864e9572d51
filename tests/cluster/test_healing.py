"""Lost nodes and damaged replicas: noticed, replaced, and trimmed to exactly what was wanted."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import parse_location
from chelonia_clients.client import Client, new_call
from tests.cluster.harness import Away, Cluster
from tests.cluster.load import fetch, locations, put, until_live
from tests.support import damages
from tests.support.damages import Damage, record_of
from tests.support.polling import patience, poll_async

OFFLINE_S = 20.0
"""Dev settings: a lease of one second, and a tick; and what a busy machine may add."""


async def test_a_lost_shepherd_is_replaced_and_the_surplus_trimmed_when_it_returns(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False)
    files = {f"/heal/{number}": bytes([number]) * 200_000 for number in range(9)}
    async with cluster.client("user") as client:
        await client.make_collection("/heal")
        for ln, data in files.items():
            await put(client, ln, data)
        before = {ln: await until_live(client, ln, 2) for ln in files}
        victim = cluster.url("shepherd1")
        held = [ln for ln, places in before.items() if any(place.startswith(victim + " ") for place in places)]
        assert held, "the victim holds nothing"

        cluster.kill("shepherd1")

        async def offline() -> bool:
            states = await locations(client, held[0])
            return "offline" in states.values()

        await poll_async(offline, OFFLINE_S, tolerate=Away, what="its replicas are offline")
        for ln in held:
            expected = files[ln]
            await poll_async(lambda ln=ln: two_alive(client, ln), 60.0, tolerate=Away, what=f"{ln} again on two")  # type: ignore[misc]
            assert await fetch(client, ln) == expected

        cluster.start_node("shepherd1")
        await cluster.until_serving("shepherd1")
        for ln, data in files.items():
            await until_live(client, ln, 2, deadline=60.0)
            assert await fetch(client, ln) == data
        await poll_async(lambda: stored(cluster) == 2 * len(files), 60.0, what="the surplus is gone from the disks too")


async def test_a_shepherd_that_comes_back_with_damaged_and_missing_bytes_or_none_at_all(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False, small_as_files=True)
    cluster.expect_log("replica damaged|replica is invalid|replica missing")
    cluster.expect_log("the place of")  # the store that was accepted
    cluster.expect_log("another process is alive")  # a Shepherd that is back before it was missed waits until it is
    files = {f"/bad/{number}": bytes([number]) * 50_000 for number in range(9)}
    async with cluster.client("user") as client:
        await client.make_collection("/bad")
        for ln, data in files.items():
            await put(client, ln, data, 3)
        for ln in files:
            await until_live(client, ln, 3)
        cluster.kill("shepherd1")
        places = [place for ln in files for place in await locations(client, ln)]
        own = sorted(cluster.replica_file(place) for place in places if cluster.named(place) == "shepherd1")
        assert len(own) == len(files)
        own[0].unlink()
        own[1].write_bytes(own[1].read_bytes()[:1000])
        record_of(own[2]).unlink()
        record_of(own[3]).write_bytes(b"CHLRgarbage")
        own[4].unlink()
        record_of(own[4]).unlink()
        cluster.kill("shepherd2")
        shutil.rmtree(cluster.data_dir("shepherd2") / "replicas")
        cluster.accept_store("shepherd2")
        for name in ("shepherd1", "shepherd2"):
            cluster.start_node(name)
        await cluster.until_serving(*cluster.shepherd_names)
        for ln, data in files.items():
            await until_live(client, ln, 3, deadline=60.0)
            assert await fetch(client, ln) == data
        async with cluster.ports("admin") as ports:
            for name in cluster.shepherd_names:

                async def sound(name: str = name) -> bool:
                    return await ports.shepherds[name].scrub(Call(), ()) == 0

                # Damaged copies are kept for a while beside their replacements.
                await poll_async(sound, 60.0, interval=0.5, what=f"{name} holds nothing damaged")


HARMS: list[Damage] = [
    damages.flip, damages.truncate, damages.remove, damages.spoil_record, damages.remove_record, damages.other_bytes,
    damages.become_another, damages.full_directory, damages.dangling_symlink,
]  # fmt: skip


async def two_alive(client: object, ln: str) -> bool:
    return list((await locations(client, ln)).values()).count("alive") >= 2  # type: ignore[arg-type]


def replica_files(cluster: Cluster, name: str) -> list[Path]:
    """The replicas' bytes on a Shepherd's disk."""
    folder = cluster.data_dir(name) / "replicas"
    return [path for path in folder.glob("*/*") if path.suffix == ""]


async def beside(client: Client, place: str) -> str:
    """The place of /bystander on the same Shepherd."""
    shepherd, _, _ = place.partition(" ")
    return next(other for other in await locations(client, "/bystander") if other.split()[0] == shepherd)


def stored(cluster: Cluster) -> int:
    return sum(len(replica_files(cluster, name)) for name in cluster.shepherd_names)


async def test_a_requested_scrub_names_each_harm_and_all_are_repaired(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster(small_as_files=True)
    for name in cluster.shepherd_names:  # the round itself is kept out of it
        cluster.reconfigure(name, shepherd={"tuning": {"scrub_period_ms": 3_600_000}})
    await cluster.until_serving(*cluster.shepherd_names)
    cluster.expect_log("replica is invalid|replica missing")
    files = {f"/asked/{harm.__name__}": bytes(range(256)) * 100 + harm.__name__.encode() for harm in HARMS}
    async with cluster.client("user") as client:
        await client.make_collection("/asked")
        for ln, data in (files | {"/bystander": b"another file"}).items():
            await put(client, ln, data, 3)
        for ln in ("/bystander", *files):
            await until_live(client, ln, 3)
        for harm in HARMS:
            place = min(await locations(client, f"/asked/{harm.__name__}"))
            harm(cluster.replica_file(place), cluster.replica_file(await beside(client, place)))
        told = admin(cluster, "scrub", "--path", "/asked", "-r")
        assert told["damaged"] == len(HARMS), told
        assert told["checked"] == 3 * len(HARMS)
        for ln, data in files.items():
            await until_live(client, ln, 3, deadline=60.0)
            assert await fetch(client, ln) == data
        assert admin(cluster, "scrub", "--path", "/asked/flip", code=0)["damaged"] == 0


def segments_with(cluster: Cluster, name: str, data: bytes) -> list[tuple[Path, int]]:
    """The segments of a Shepherd that have these bytes, and where."""
    found = [(path, path.read_bytes().find(data)) for path in (cluster.data_dir(name) / "segments").glob("*.segment")]
    return [(path, at) for path, at in found if at >= 0]


async def test_damage_within_a_segment_is_found_by_a_scrub_and_costs_only_its_replica(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster, victim = own_cluster(), "shepherd1"
    cluster.reconfigure(victim, shepherd={"tuning": {"scrub_period_ms": 3_600_000}})  # the round is kept out of it
    await cluster.until_serving(*cluster.shepherd_names)
    cluster.expect_log("replica is invalid")
    files = {f"/small/{number}": f"small file {number}\n".encode() * 500 for number in range(5)}
    async with cluster.client("user") as client:
        await client.make_collection("/small")
        for ln, data in files.items():
            await put(client, ln, data, 3)
        before = {ln: set(await until_live(client, ln, 3)) for ln in files}
        harmed = "/small/2"
        [(segment, at)] = segments_with(cluster, victim, files[harmed])
        with segment.open("r+b") as file:
            file.seek(at + 1000)
            file.write(bytes([files[harmed][1000] ^ 1]))
        told = admin(cluster, "scrub", "--path", "/small", "-r")
        assert (told["damaged"], told["checked"]) == (1, 3 * len(files)), told

        async def given_up() -> bool:
            return not before[harmed] <= set(await locations(client, harmed))

        await poll_async(given_up, 60.0, tolerate=Away, what="the damaged replica has no place any more")
        for ln, data in files.items():
            places = await until_live(client, ln, 3)
            assert await fetch(client, ln) == data
            lost = {cluster.named(place) for place in before[ln] - set(places)}
            assert lost == ({victim} if ln == harmed else set()), ln
        assert admin(cluster, "scrub", "--path", "/small", "-r", code=0)["damaged"] == 0
        assert segments_with(cluster, victim, files[harmed]), "its new copy is small too"


async def test_small_replicas_that_are_files_move_into_segments_and_stay_what_they_are(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(small_as_files=True)
    small = {f"/moved/{number}": f"small file {number}\n".encode() * 500 for number in range(9)}
    files = small | {"/moved/large": bytes(range(250)) * 400}
    async with cluster.client("user") as client:
        await client.make_collection("/moved")
        for ln, data in files.items():
            await put(client, ln, data, 3)
        before = {ln: await until_live(client, ln, 3) for ln in files}
    assert all(cluster.replica_file(place).exists() for places in before.values() for place in places)
    assert not any(segments_with(cluster, name, b"") for name in cluster.shepherd_names)
    places = {parse_location(place).reference for found in before.values() for place in found}

    async def heard() -> bool:
        async with cluster.ports("admin") as ports:
            pages = [await shepherd.records(new_call(), "", 1_000) for shepherd in ports.shepherds.values()]
        return places <= {item.reference for page in pages for item in page.items if item.committed}

    await poll_async(heard, 60.0, what="the Shepherds have heard of every commit: what is not committed stays a file")
    assert cluster.stop() == 0
    cluster.small_as_files = False
    cluster.start()
    async with cluster.client("user") as client:
        for _ in ("while they move", "then"):
            for ln, data in files.items():
                assert await fetch(client, ln) == data

            def moved() -> bool:
                return not any(cluster.replica_file(place).exists() for ln in small for place in before[ln])

            await poll_async(moved, 120.0, interval=0.5, what="no small replica is a file")
        for ln in files:
            assert await until_live(client, ln, 3) == before[ln]
    assert all(cluster.replica_file(place).exists() for place in before["/moved/large"])
    assert all(segments_with(cluster, name, data) for name in cluster.shepherd_names for data in small.values())
    moving = [row for row in admin(cluster, "jobs", code=0)["results"] if row["job"] == "segments"]
    assert [row["bugs"] for row in moving] == [0] * len(cluster.shepherd_names), moving


def admin(cluster: Cluster, *words: str, code: int = 1) -> dict[str, Any]:
    """Run `chelonia admin` with --json."""
    argv = [sys.executable, "-m", "chelonia_clients.cli", "--cluster", str(cluster.root / "cluster.json")]
    ended = subprocess.run(
        [*argv, "--json", "admin", *words], capture_output=True, text=True, timeout=60 * patience(), check=False
    )
    assert ended.returncode == code, ended.stderr + ended.stdout
    told: dict[str, Any] = json.loads(ended.stdout)
    return told
