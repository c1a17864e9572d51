"""The jobs of all nodes, some of which are not there."""

from __future__ import annotations

import asyncio

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.net.http_client import HttpClient, Received, Sending
from chelonia.hosting.net.node_jobs import jobs_of_all
from tests.sim.virtual_loop import virtual

JOBS = NodeJobs("n", "process", ())


class Hosts(HttpClient):
    """Hosts of which one has lost its power: a connection to it neither succeeds nor fails."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    async def request(self, sending: Sending) -> Received:
        if sending.url.startswith("https://gone:"):
            await asyncio.Event().wait()
        return Received(200, {}, msgspec.json.encode(JOBS))


@virtual
async def test_a_host_that_is_gone_keeps_nobody_waiting_for_the_others() -> None:
    told = await jobs_of_all(Hosts(), ("https://gone:1", "https://here:1", "https://here:2"))
    assert told.pop("https://here:1") == JOBS
    gone = told.pop("https://gone:1")
    assert isinstance(gone, CheloniaError)
    assert (gone.kind, gone.subject) == (Kind.TIMEOUT, "https://gone:1")
    assert not told, "a process with two addresses is told once"
