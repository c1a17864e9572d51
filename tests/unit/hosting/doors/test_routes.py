"""A listener's pages about its node beside its doors, and their readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.hosting.doors.routes import Readiness, Routes
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Peer

JANE = Dn("/O=Grid/CN=Jane")


async def nothing() -> AsyncIterator[bytes]:
    for chunk in (b"",):
        yield chunk


async def ask(routes: Routes, path: str, dn: Dn) -> HttpResponse:
    return await routes.serve(HttpRequest("GET", path, {}, {}, Peer(dn), nothing(), 0, "r"))


def ready() -> Readiness:
    """The readiness of a node that has started."""
    readiness = Readiness()
    readiness.held = ""
    return readiness


async def unreachable() -> None:
    raise CheloniaError(Kind.NETWORK, cause="cannot connect to https://inside.example.org")


async def test_only_those_with_a_certificate_learn_why_a_node_is_not_ready() -> None:
    readiness = ready()
    readiness.add("librarian", unreachable)
    routes = Routes({}, readiness, None)
    stranger, known = await ask(routes, "/readyz", ANONYMOUS), await ask(routes, "/readyz", JANE)
    assert (stranger.status, stranger.body) == (503, b"librarian: not ready\n")
    assert known.status == 503
    assert isinstance(known.body, bytes)
    assert b"inside.example.org" in known.body


async def test_a_node_is_not_ready_before_all_it_hosts_has_started() -> None:
    readiness = Readiness()
    routes = Routes({}, readiness, None)
    found = await ask(routes, "/readyz", JANE)
    assert (found.status, found.body) == (503, b"node: it is starting\n")
    readiness.held = ""
    assert (await ask(routes, "/readyz", JANE)).status == 200


async def test_metrics_are_for_those_with_a_certificate() -> None:
    routes = Routes({}, Readiness(), Metrics())
    assert (await ask(routes, "/metrics", ANONYMOUS)).status == 403
    assert (await ask(routes, "/metrics", JANE)).status == 200


async def test_parts_are_asked_once_for_all_who_ask_at_the_same_time() -> None:
    asked = 0

    async def check() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)

    readiness = ready()
    readiness.add("shepherd", check)
    routes = Routes({}, readiness, None)
    answers = await asyncio.gather(*(ask(routes, "/readyz", ANONYMOUS) for _ in range(50)))
    assert [answer.status for answer in answers] == [200] * 50
    assert asked == 1
    await ask(routes, "/readyz", ANONYMOUS)
    assert asked == 2
