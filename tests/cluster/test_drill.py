"""Drills on real daemons: one Shepherd silent, one copy damaged, and all whole again by itself."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lxml import html

from chelonia.core.caller import Call
from chelonia.core.cluster.drills import DrillAction, DrillOrder, DrillStage
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.values import replace
from tests.cluster.harness import Away, Cluster
from tests.cluster.load import fetch, locations, put
from tests.support.failing import fails
from tests.support.polling import patience, poll_async

LEASE_MS = 4_000
"""A busy machine makes a Shepherd miss the one second that tests usually have. Then files have a fourth copy for a
while: a silence exposes none of them, or the drill is called off."""
SILENCE = "240s"
"""However slow the machine is, all is whole before it ends by itself; being whole ends it."""
FILES = {f"/drill/{number}": bytes([number]) * 300_000 for number in range(12)}


def drill(cluster: Cluster, *words: str, code: int = 0) -> dict[str, Any]:
    """Run `chelonia admin drill` with --json."""
    argv = [sys.executable, "-m", "chelonia_clients.cli", "--cluster", str(cluster.root / "cluster.json")]
    argv += ["--json", "admin", "drill", *words]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=300 * patience(), check=False)
    assert ran.returncode == code, ran.stderr + ran.stdout
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


async def fill(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await client.make_collection("/drill")
        for ln, data in FILES.items():
            await put(client, ln, data, 3)
    await whole(cluster)


async def whole(cluster: Cluster) -> None:
    """Wait until one look sees all files with exactly their copies, and readable."""
    async with cluster.client("user") as client:

        async def exact() -> bool:
            return all([sorted((await locations(client, ln)).values()) == ["alive"] * 3 for ln in FILES])

        await poll_async(exact, 60.0, interval=0.1, tolerate=Away, what="all files have three copies")
        for ln, data in FILES.items():
            assert await fetch(client, ln) == data


async def may_begin(cluster: Cluster, order: DrillOrder) -> None:
    """Wait until the repair leader would begin a drill; until then its answer names the obstacle."""
    async with cluster.ports("admin") as ports:

        async def willing() -> bool:
            return bool((await ports.librarian.drill(Call(), replace(order, check_only=True))).drill.files)

        await poll_async(willing, 60.0, tolerate=CheloniaError, what="a drill may begin")


def seen_by_page(cluster: Cluster) -> dict[str, str]:
    """Return the texts of the tables of the page of the cluster, by caption."""
    shown = html.fromstring(cluster.request("GET", f"{cluster.files_url}/?cluster", "admin").text)
    return {table.findtext("caption"): table.text_content() for table in shown.iter("table")}


async def test_a_silence_and_a_damaged_copy_heal_and_leave_their_curves(
    own_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = own_cluster(shepherds=5)
    cluster.expect_log("DRILL|replica is invalid")
    cluster.reconfigure("core", librarian={"tuning": {"lease_ms": LEASE_MS}})
    await cluster.until_alive(*cluster.shepherd_names)
    await fill(cluster)
    await may_begin(cluster, DrillOrder(DrillAction.SILENCE, ServiceId(cluster.url("shepherd1"))))

    files = [str(tmp_path / name) for name in ("silence.csv", "silence.svg")]
    curves = [word for file in files for word in ("--curve", file)]
    words = ("silence", cluster.url("shepherd1"), "--for", SILENCE, "--yes", *curves)
    ran, pages = asyncio.create_task(asyncio.to_thread(drill, cluster, *words)), []
    while not ran.done():
        pages.append(await asyncio.to_thread(seen_by_page, cluster))
    told = (await ran)["results"][0]
    pages.append(seen_by_page(cluster))
    assert "Resulthealed" in pages[-1]["The last drill"]
    assert all("denied" not in page["Background work"] and "librarian" in page["Background work"] for page in pages)
    assert told["stage"] == "healed", told
    assert told["began_ms"] < told["noticed_ms"] <= told["whole_ms"] <= told["ended_ms"] < told["deadline_ms"], told
    assert told["files"] == told["touched"] > 0, told
    assert told["recalled_ms"] < told["until_ms"], "it came back because all was whole, not because its time was over"
    assert Path(files[0]).read_text().startswith("ms,whole")
    assert "<svg" in Path(files[1]).read_text()
    log = cluster.log_of("shepherd1")
    assert "is silent for 240000 ms" in log
    await whole(cluster)
    await may_begin(cluster, DrillOrder(DrillAction.CORRUPT))

    told = drill(cluster, "corrupt", "--yes")["results"][0]
    assert (told["stage"], told["files"]) == ("healed", 1), told
    name = cluster.named(told["shepherd"])
    assert f"replica is invalid reference={told['reference']}" in cluster.log_of(name)
    place = f"{told['shepherd']} {told['reference']}"
    async with cluster.client("user") as client:
        assert await fetch(client, told["name"]) == FILES[told["name"]]

        async def dropped() -> bool:
            return place not in await locations(client, told["name"])

        await poll_async(dropped, 40.0, what="the damaged copy is gone")
    await whole(cluster)


async def test_a_silent_shepherd_comes_back_with_nobody_left_to_call_it(
    own_cluster: Callable[..., Cluster],
) -> None:
    """The Librarian dies and the client is gone while a Shepherd is silent: the silence has its own end."""
    cluster = own_cluster(shepherds=4, restart=False)
    cluster.expect_log("DRILL")
    await fill(cluster)
    one = ServiceId(cluster.url("shepherd1"))
    async with cluster.ports("admin") as ports:
        order = DrillOrder(DrillAction.SILENCE, one, duration_ms=6_000)

        async def begun() -> bool:
            return (await ports.librarian.drill(Call(), order)).drill.running

        await poll_async(begun, 60.0, tolerate=CheloniaError, what="the drill begins")
        with fails(Kind.UNAVAILABLE):
            await ports.shepherds["shepherd1"].status(Call())
        cluster.kill("core")

        async def answers() -> bool:
            return (await ports.shepherds["shepherd1"].status(Call())).reporting

        await poll_async(answers, 40.0, tolerate=Away, what="shepherd1 answers again")
        cluster.start_node("core")

        async def over() -> bool:  # of a Librarian that has just begun to lead there is none yet
            ended = (await ports.librarian.drill_status(Call())).drill
            return ended.stage in (DrillStage.HEALED, DrillStage.CALLED_OFF)

        await poll_async(over, 60.0, tolerate=Away, what="the next leader has ended the drill")
    await whole(cluster)
