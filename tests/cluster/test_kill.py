"""kill -9 and SIGSTOP of every kind of process under a running upload load: nothing acknowledged is lost."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import started
from tests.cluster.harness import Cluster
from tests.cluster.load import Load, fetch, put


@pytest.fixture(scope="module")
def battered(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A cluster whose processes die, and are started again."""
    yield from started(pytestconfig, Cluster(tmp_path_factory.mktemp("battered")))


@pytest.mark.parametrize("victim", ["shepherd1", "core"])
async def test_kill_of_a_process_loses_nothing_acknowledged(battered: Cluster, victim: str) -> None:
    async with Load(battered, f"/killed-{victim}") as load:
        for _ in range(2):
            await load.until_acknowledged(8)
            old = await asyncio.to_thread(battered.kill, victim)
            await asyncio.to_thread(battered.wait_restarted, victim, old)
        await load.until_acknowledged(8)
    await battered.until_alive()
    await load.judge()


async def test_kill_of_everything_at_once_loses_nothing_acknowledged(battered: Cluster) -> None:
    async with Load(battered, "/killed-all", retry_ms=0) as load:
        await load.until_acknowledged(15)
        await asyncio.to_thread(battered.crash)
        await load.finish()
    await asyncio.to_thread(battered.start)
    await load.judge()


async def test_a_frozen_shepherd_holds_up_neither_reads_nor_writes(battered: Cluster) -> None:
    async with battered.client("user") as client:
        await client.make_collection("/frozen")
        for number in range(6):
            await put(client, f"/frozen/{number}", bytes([number]) * 300_000)
        async with Load(battered, "/frozen-load") as load:
            await load.until_acknowledged(4)
            battered.signal("shepherd2", signal.SIGSTOP)
            try:
                await load.until_acknowledged(20)
                for number in range(6):
                    assert await fetch(client, f"/frozen/{number}") == bytes([number]) * 300_000
            finally:
                battered.signal("shepherd2", signal.SIGCONT)
    await battered.until_alive()
    await load.judge()
