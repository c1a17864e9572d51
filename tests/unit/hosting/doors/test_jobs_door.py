"""`GET /jobs`: its readers, and its contents."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from chelonia.core.caller import Role
from chelonia.core.ids import ANONYMOUS, Dn, ServiceId
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.timing.jobs import JobView, NodeJobs
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.routes import serve_jobs
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Peer

ADMIN, LIBRARIAN, BARTENDER, JANE = Dn("/CN=admin"), Dn("/CN=librarian"), Dn("/CN=bartender"), Dn("/CN=Jane")
KNOWN = (
    ServiceRecord(Role.ADMINISTRATOR, ADMIN, ServiceId(""), True),
    ServiceRecord(Role.LIBRARIAN, LIBRARIAN, ServiceId("l"), True),
    ServiceRecord(Role.BARTENDER, BARTENDER, ServiceId("b"), True),
)
TOLD = NodeJobs("core1", "p", (JobView("librarian", "balance", "failing", "", "KeyError('X')", 3, 2_000, True),))


async def nothing() -> AsyncIterator[bytes]:
    for chunk in (b"",):
        yield chunk


async def ask(dn: Dn, method: str = "GET") -> HttpResponse:
    request = HttpRequest(method, "/jobs", {}, {}, Peer(dn), nothing(), 0, "r")
    return await serve_jobs(RoleRegistry(KNOWN, None, SystemClock()), lambda: TOLD, request)


@pytest.mark.parametrize("dn", [ANONYMOUS, JANE, LIBRARIAN])
async def test_jobs_are_for_administrators_and_who_shows_them_to_these(dn: Dn) -> None:
    assert (await ask(dn)).status == 403


@pytest.mark.parametrize("dn", [ADMIN, BARTENDER])
async def test_administrators_are_told_all(dn: Dn) -> None:
    answer = await ask(dn)
    assert isinstance(answer.body, bytes)
    assert (answer.status, msgspec.json.decode(answer.body, type=NodeJobs)) == (200, TOLD)
    assert (await ask(ADMIN, "POST")).status == 405


async def test_a_counter_that_a_service_keeps_is_read_when_it_is_asked_for() -> None:
    metrics, kept = Metrics(), dict[tuple[str, ...], float]()
    metrics.keep("transacts", "By cause.", ("cause",), lambda: kept)
    assert b"chelonia_transacts_total{" not in await metrics.expose()
    kept["balance",] = 3
    assert b'chelonia_transacts_total{cause="balance"} 3.0' in await metrics.expose()
