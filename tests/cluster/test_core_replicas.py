"""A cluster whose A-Hash has three replicas, with two Librarians and two Bartenders: any one of their nodes may die."""

import asyncio
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import Kind
from chelonia.core.ports.ahash import AHashStatus
from chelonia.hosting.config import parse_config, render_config
from chelonia.hosting.net.rpc_client import RetryLimits, remote_librarian
from tests.cluster.conftest import started
from tests.cluster.harness import Away, Cluster, Ports
from tests.cluster.load import Load
from tests.support.failing import fails
from tests.support.polling import poll_async

SDK_WRITERS = 6
"""The others write the original's way: nothing repeats a plain HTTP client's request after a failure."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Its core nodes are killed, and started again."""
    yield from started(pytestconfig, Cluster(tmp_path_factory.mktemp("group"), replicas=3))


async def until_whole(group: Cluster) -> None:
    """Wait until every replica follows."""

    async def look() -> bool:
        async with group.ports("admin") as ports:
            status = await ports.ahash.status(Call().strongly())
            return all(view.role in ("master", "follower") and view.lag >= 0 for view in status.replicas)

    await poll_async(look, 60.0, tolerate=Away, what="every replica follows")


@pytest.mark.parametrize("victim", ["core1", "core2", "core3"])
async def test_any_node_of_the_core_may_die_and_no_user_sees_an_error(group: Cluster, victim: str) -> None:
    await until_whole(group)
    await group.until_alive()
    async with Load(group, f"/killed-{victim}", retry_ms=10_000) as load:
        await load.until_acknowledged(12)
        old = await asyncio.to_thread(group.kill, victim)
        await asyncio.to_thread(group.wait_restarted, victim, old)
        await load.until_acknowledged(12)
    refused = [ln for ln in load.refused if int(ln.rpartition("/w")[2].partition("-")[0]) >= 8 - SDK_WRITERS]
    assert not refused, load.reasons
    await until_whole(group)
    await group.until_serving(*group.shepherd_names)
    await load.judge()


async def test_a_user_sees_his_own_writes_at_whichever_bartender(group: Cluster) -> None:
    await until_whole(group)
    async with group.client("user") as client:
        await client.make_collection("/own")
        for turn in range(30):
            await client.make_collection(f"/own/{turn}")
            channel = client.bartender.channel  # type: ignore[attr-defined]
            channel._current = turn % 2  # the next call goes to the other one
            assert await client.exists(f"/own/{turn}") == "collection"


async def test_an_approved_librarian_that_a_shepherd_does_not_name_hears_of_it(group: Cluster) -> None:
    path = group.root / "conf" / "shepherd1.toml"
    config = tomllib.loads(path.read_text())
    named, other = config["shepherd"]["librarians"]
    config["shepherd"]["librarians"] = [named]
    path.write_text(render_config(parse_config(config)))
    await asyncio.to_thread(group.wait_restarted, "shepherd1", await asyncio.to_thread(group.kill, "shepherd1"))

    async def heard() -> bool:
        async with group.ports("admin") as ports:
            nodes = await remote_librarian(ports.link, (other,), RetryLimits(retry_ms=0)).nodes(Call())
        [node] = [node for node in nodes if node.shepherd == group.url("shepherd1")]
        return node.state == "alive" and node.accepting and node.boot > 1

    await poll_async(heard, 60.0, tolerate=Away, what="it knows how much room there is")


async def test_a_core_that_starts_alone_tells_what_it_waits_for(own_cluster: Callable[..., Cluster]) -> None:
    """It is as after a power cut of all hosts when one is back: its administrator gets answers, users go elsewhere.
    Before, it loses its majority: the page of the cluster shows what it knows."""
    cluster = own_cluster(restart=False, replicas=3)
    # On a busy machine the others wait for longer than they keep quiet about it.
    cluster.expect_log("registry unreachable for|no Librarian has answered a heartbeat")
    for name in ("core2", "core3"):
        cluster.kill(name)
    for path, status in (("", 503), ("?cluster", 200)):  # the page of the cluster is for just this

        def answered(url: str = f"{cluster.files_url}/{path}", wanted: int = status) -> str:
            answer = cluster.request("GET", url, "admin")
            return answer.text if answer.status == wanted else ""

        broken = (OSError, HTTPException)  # a listing that has begun breaks off with the last master
        page = await poll_async(partial(asyncio.to_thread, answered), 60.0, tolerate=broken, what=f"{path} {status}")
    assert [f"<caption>{title}" in page for title in ("Healing", "Shepherds", "Background work")] == [True] * 3
    assert cluster.url("shepherd1") in page
    cluster.kill("core1")
    cluster.start_node("core1")
    call = Call()

    async def seen(ports: Ports) -> AHashStatus:
        return await ports.ahash.status(call)

    async with cluster.ports("admin") as ports:
        status = await poll_async(partial(seen, ports), 60.0, tolerate=Away, what="core1's A-Hash answers")
        assert [view.role for view in status.replicas] == ["follower", "away", "away"]
        with fails(Kind.UNAVAILABLE, match="it is starting"):
            await remote_librarian(ports.link, cluster.urls("librarian")[:1], RetryLimits(retry_ms=0)).nodes(call)
    told = cluster.request("GET", cluster.url("ahash").rpartition("/")[0] + "/readyz", who="admin")
    assert told.status == 503
    assert "node: it is starting" in told.text
    cluster.start_node("core2")
    await cluster.until_alive()
