"""A listener's pages about its node beside its doors, and their readers."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.hosting.doors import routes as routes_module
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


@pytest.mark.expect_log("a part cannot say whether it can serve")
async def test_a_part_that_breaks_is_named_and_takes_no_page_along(caplog: pytest.LogCaptureFixture) -> None:
    """An A-Hash whose disk is gone cannot say how much is free there: both pages were an internal failure. Each look
    at them logged it anew, with its stack: a balancer asks every second."""

    async def check() -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def other() -> None:
        metrics.gauge("librarian_said", "Of another part.", 7)

    readiness, metrics = ready(), Metrics()
    readiness.add("ahash", check)
    readiness.add("librarian", other)
    metrics.read_with(readiness.gauge(metrics))
    routes = Routes({}, readiness, metrics)
    answer = await ask(routes, "/readyz", JANE)
    assert (answer.status, answer.body) == (503, b"ahash: [Errno 5] Input/output error\n")
    told = _bytes(await ask(routes, "/metrics", JANE))
    assert b'chelonia_ready{part="ahash"} 0.0' in told
    assert b"chelonia_librarian_said 7.0" in told
    assert len(caplog.records) == 1


async def test_a_part_that_hangs_holds_up_no_answer_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator looks here first when a disk hangs: the pages waited for it, and said nothing."""
    monkeypatch.setattr(routes_module, "ANSWER_S", 0.05)
    monkeypatch.setattr(routes_module, "HANGS_S", 3600.0)
    go_on, asked, metrics = asyncio.Event(), list[str](), Metrics()
    go_on.set()

    async def check() -> None:
        asked.append("ahash")
        await go_on.wait()

    async def other() -> None:
        metrics.gauge("ahash_commits", "Of another part.", len(asked))

    readiness = ready()
    readiness.add("ahash", check)
    readiness.add("librarian", other)
    metrics.read_with(readiness.gauge(metrics))
    routes = Routes({}, readiness, metrics)
    assert (await ask(routes, "/readyz", JANE)).status == 200
    go_on.clear()
    assert (await ask(routes, "/readyz", JANE)).status == 200, "it may only be slow: what it said last counts"
    assert b'chelonia_ready{part="ahash"} 0.0' in _bytes(await ask(routes, "/metrics", JANE)), "its gauges are old"

    monkeypatch.setattr(routes_module, "HANGS_S", 0.0)
    answer = await ask(routes, "/readyz", JANE)
    assert answer.status == 503
    assert re.fullmatch(rb"ahash: it has not answered for \d+ s: what it waits for hangs\n", _bytes(answer))
    told = _bytes(await ask(routes, "/metrics", JANE))
    assert b'chelonia_ready{part="ahash"} 0.0' in told
    assert b'chelonia_ready{part="librarian"} 1.0' in told
    assert b"chelonia_ahash_commits 2.0" in told, "others are up to date"
    assert len(asked) == 2, "and nobody asks it again meanwhile"
    go_on.set()
    await asyncio.sleep(0)
    assert (await ask(routes, "/readyz", JANE)).status == 200
    assert b'chelonia_ready{part="ahash"} 1.0' in _bytes(await ask(routes, "/metrics", JANE))


def _bytes(answer: HttpResponse) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body
