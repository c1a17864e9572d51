"""`chelonia admin jobs` for administrators."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ServiceId
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import Librarian, ServiceRecord
from chelonia.core.timing.jobs import JobView, NodeJobs
from chelonia.hosting.net.http_client import HttpClient, Received, Sending
from chelonia_clients.administrator import Administrator
from tests.support.admin_cli import run_as

CORE = NodeJobs("core", "p1", (
    JobView("librarian", "balance", "held", "this Librarian does not lead repair", "", 0, 200, True),
    JobView("librarian", "repair", "idle", "", "", 0, None, False),
))  # fmt: skip
FAILS = NodeJobs("s1", "p2", (JobView("shepherd", "scrub", "failing", "", "KeyError('X')", 3, 4_000, False),))


class PaperLibrarian:
    away = False

    async def services(self, _: Call) -> tuple[ServiceRecord, ...]:
        if self.away:
            raise CheloniaError(Kind.NETWORK, "services", cause="no Librarian answers")
        ids = ("https://core:1/Librarian", "https://core:2/Bartender", "https://s1:3/Shepherd", "", "https://h/service")
        return tuple(ServiceRecord(Role.LIBRARIAN, Dn("/CN=x"), ServiceId(each), True) for each in ids)


class PaperHttp:
    def __init__(self, **answers: NodeJobs | bytes | Kind) -> None:
        self._answers = answers

    async def request(self, sending: Sending) -> Received:
        assert (sending.method, sending.url.rpartition("/")[2]) == ("GET", "jobs")
        answer = self._answers[sending.url.removeprefix("https://").partition(":")[0]]
        if isinstance(answer, Kind):
            raise CheloniaError(answer, cause="it is gone")
        return Received(200, {}, answer if isinstance(answer, bytes) else msgspec.json.encode(answer))


async def run(http: PaperHttp, monkeypatch: pytest.MonkeyPatch, *, as_json: bool = False) -> tuple[int, str]:
    administrator = Administrator(
        cast(HttpClient, http),
        cast(Any, None),
        cast(Librarian, PaperLibrarian()),
        {"https://core:1/AHash": cast(AHash, None)},
    )
    said = await run_as(administrator, monkeypatch, "jobs", as_json=as_json)
    return said.code, said.stdout


async def test_each_process_is_shown_once_however_many_addresses_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = await run(PaperHttp(core=CORE, s1=FAILS), monkeypatch)
    assert code == 1, "a job fails"
    rows = [line.split() for line in text.splitlines()]
    assert rows[1][:6] == ["https://core:1", "librarian", "balance", "held", "0.2s", "yes"]
    assert rows[2] == ["https://core:1", "librarian", "repair", "idle"]
    assert rows[3] == ["https://s1:3", "shepherd", "scrub", "failing", "4.0s", "3", "KeyError('X')"]
    assert len(rows) == 4


async def test_a_job_that_is_held_shows_its_last_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    held = JobView("librarian", "snapshots", "held", "repair is paused", "no space for it", 0, 200, True)
    _, text = await run(PaperHttp(core=NodeJobs("core", "p1", (held,)), s1=FAILS), monkeypatch)
    assert text.splitlines()[1].endswith("  repair is paused; last error: no space for it")


async def test_a_node_that_does_not_answer_is_named_beside_what_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for trouble in (Kind.NETWORK, b"<html>"):
        code, text = await run(PaperHttp(core=CORE, s1=trouble), monkeypatch, as_json=True)
        told = json.loads(text)
        assert code not in (0, 1)
        jobs = [(job["url"], job["node"], job["job"]) for job in told["results"] if job["ok"]]
        assert jobs == [("https://core:1", "core", "balance"), ("https://core:1", "core", "repair")]
        assert [job["node"] for job in told["results"] if not job["ok"]] == ["https://s1:3"]


async def test_without_a_librarian_the_nodes_of_the_a_hash_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaperLibrarian, "away", True)
    code, text = await run(PaperHttp(core=CORE), monkeypatch)
    assert code not in (0, 1)
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["https://core:1", "librarian", "balance"], ["https://core:1", "librarian", "repair"],
    ]  # fmt: skip
