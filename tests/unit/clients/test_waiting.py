"""A command that waits says so once, says for what, and gives up where the event cannot come."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.bartender import NameRequest
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemIds
from chelonia.hosting.net.compact_client import CompactClient, PendingCall
from chelonia.hosting.net.http_client import HttpClient, Received, Sending, Unreachable, explain
from chelonia.hosting.net.rpc_client import Link, remote_bartender
from chelonia.hosting.transfer.upload import bytes_source, upload
from chelonia.wire import compact
from chelonia_clients import waiting, watch
from chelonia_clients.waiting import WaitingNotes
from chelonia_clients.watch import WatchedCompact
from tests.support.bartender import FakeBartender, Fault
from tests.support.clocks import QuickClock
from tests.unit.clients.faking import client_on

URL = "https://b.example.org:1/Bartender"
ASKED = (NameRequest("0", "/"),)


class Failing:
    """An HTTP client that always fails in one way."""

    def __init__(self, error: CheloniaError) -> None:
        self.error = error
        self.asked: list[str] = []

    async def request(self, sending: Sending) -> Received:
        self.asked.append(sending.url)
        raise self.error


def link_on(http: Failing, said: list[str]) -> Link:
    clock = QuickClock()
    return Link(cast(HttpClient, http), clock, SystemIds(), trouble=WaitingNotes(clock, said.append))


async def test_a_call_in_trouble_for_a_second_is_told_of_once() -> None:
    said: list[str] = []
    http = Failing(CheloniaError(Kind.NETWORK, cause="cannot connect to https://b.example.org:1: connection refused"))
    with pytest.raises(CheloniaError):
        await remote_bartender(link_on(http, said), (URL,)).stat(Call(), ASKED)
    assert len(http.asked) > 10
    assert said == ["chelonia: cannot connect to https://b.example.org:1: connection refused; still trying"]


async def test_short_trouble_is_not_told_of_and_new_trouble_is_told_of_again() -> None:
    clock, said = QuickClock(), list[str]()
    note = WaitingNotes(clock, said.append)
    note("x", "down")
    await clock.sleep(waiting.AFTER_MS - 1)
    note("x", "down")
    assert said == []
    await clock.sleep(1)
    for _ in range(2):
        note("x", "down")
    assert said == ["chelonia: x: down; still trying"]
    await clock.sleep(waiting.WELL_MS + 1)
    note("x", "down")
    assert len(said) == 1
    await clock.sleep(waiting.AFTER_MS)
    note("x", "down")
    assert len(said) == 2


async def test_many_that_wait_for_one_reason_are_one_line() -> None:
    clock, said = QuickClock(), list[str]()
    note = WaitingNotes(clock, said.append)
    for _ in range(2):
        for target in ("/a", "/b", "/c"):
            note(target, "the Shepherd does not answer")
        note("/d", "no space")
        await clock.sleep(waiting.AFTER_MS)
    assert said == ["chelonia: /a: the Shepherd does not answer; still trying", "chelonia: /d: no space; still trying"]


async def test_an_unknown_host_is_asked_once_unless_another_can_help() -> None:
    key = ConnectionKey("b.example.org", 1, True, True, None, None, None)
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    error = explain(aiohttp.ClientConnectorDNSError(key, unknown), "https://b.example.org:1")
    assert isinstance(error, Unreachable)
    assert (error.kind, "no host of that name" in error.cause) == (Kind.NETWORK, True)
    for urls in ((URL,), (URL, URL + "2")):
        http = Failing(error)
        with pytest.raises(CheloniaError):
            await remote_bartender(link_on(http, []), urls).stat(Call(), ASKED)
        assert sorted(http.asked) == sorted(urls)
    passing = explain(aiohttp.ClientConnectorDNSError(key, socket.gaierror(socket.EAI_AGAIN, "try again")), "https://b")
    assert not isinstance(passing, Unreachable)
    assert passing.cause.endswith("try again; does the name server answer?")


async def test_an_unknown_host_is_asked_once_in_the_compact_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def unknown(host: object, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said: list[str] = []
    link = link_on(Failing(CheloniaError(Kind.INTERNAL, cause="nobody asks by SOAP")), said)
    link = replace(link, compact=CompactClient(ssl.create_default_context()))
    with pytest.raises(CheloniaError, match="no host of that name"):
        await remote_bartender(link, (URL,)).stat(Call(), ASKED)
    assert (asked, said) == (["b.example.org"], [])


async def test_a_service_without_tls_is_asked_once() -> None:
    asked: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(10))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    context = ssl.create_default_context()
    async with server, HttpClient(lambda: context) as http:
        link = Link(http, QuickClock(), SystemIds())
        with pytest.raises(CheloniaError) as caught:
            await remote_bartender(link, (f"https://127.0.0.1:{port}/Bartender",)).stat(Call(), ASKED)
    assert "is this the right port?" in caught.value.cause
    assert len(asked) == 1


@pytest.mark.parametrize("status", [404, 405, 415])
async def test_another_door_is_no_name_that_is_not_there(status: int) -> None:
    """The A-Hash's port, the S3 door and the plain door answer so; scripts read exit code 3 as `no such name`."""
    asked: list[str] = []

    class Door:
        async def request(self, sending: Sending) -> Received:
            asked.append(sending.url)
            return Received(status, {}, b"this listener has: /ahash")

    link = Link(cast(HttpClient, Door()), QuickClock(), SystemIds())
    with pytest.raises(CheloniaError) as caught:
        await remote_bartender(link, (URL,)).stat(Call(), ASKED)
    error = caught.value
    assert (error.kind, error.subject) == (Kind.BAD_CONFIG, "https://b.example.org:1")
    assert "no bartender answers here; is this the right port?" in error.cause
    assert len(asked) == 1


async def test_an_answer_that_does_not_come_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told = asyncio.Event()
    said: list[str] = []

    class Slow:
        async def ask(self, url: str, asking: PendingCall) -> compact.IncomingAnswer:
            await told.wait()
            return compact.decode_answered(compact.encode_result(1, [], None)[4:])

    def tell(line: str) -> None:
        said.append(line)
        told.set()

    monkeypatch.setattr(watch, "SILENCE_MS", 10)
    watched = WatchedCompact(cast(CompactClient, Slow()), None, WaitingNotes(QuickClock(), tell).silent)
    words = compact.OutgoingCall(0, "bartender", "stat", "r", "", "", None, False, ())
    async with asyncio.timeout(60):
        await watched.ask(URL, PendingCall(words, 1000))
    assert said == ["chelonia: https://b.example.org:1: no answer for 2 s; still trying"]
    loop, notes = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    later = loop.call_later

    def noted(*what: Any) -> asyncio.TimerHandle:
        notes.append(later(*what))
        return notes[-1]

    monkeypatch.setattr(loop, "call_later", noted)
    await watched.ask(URL, PendingCall(words, 1000))  # this answer comes at once
    assert [note.cancelled() for note in notes] == [True]


async def test_a_trace_shows_a_call_in_the_compact_encoding_as_json() -> None:
    told = list[str]()

    class Answering:
        async def ask(self, url: str, asking: PendingCall) -> compact.IncomingAnswer:
            if asking.words.method == "stat":
                return compact.decode_answered(compact.encode_result(1, [{"request_id": "0"}], None)[4:])
            return compact.decode_answered(compact.encode_failure(1, CheloniaError(Kind.DENIED, cause="no"), None)[4:])

    watched = WatchedCompact(cast(CompactClient, Answering()), told.append, None)
    for method in ("stat", "list"):
        words = compact.OutgoingCall(0, "bartender", method, "r", "", "", None, False, (ASKED,))
        await watched.ask(URL, PendingCall(words, 1000))
    assert [line for line in told if line[0] in "<>"] == [
        f"> bartender.stat {URL}", "< ok", f"> bartender.list {URL}", "< failed",
    ]  # fmt: skip
    assert any('"ln": "/"' in line for line in told[: told.index("< ok")])
    assert '  "denied",' in told[told.index("< failed") :]


async def test_an_upload_that_starts_again_is_told_of(fake: FakeBartender) -> None:
    said: list[str] = []
    client = client_on(fake)
    client.trouble = WaitingNotes(client.clock, said.append)
    fake.store.faults = [Fault(after=1, kind=Kind.NETWORK)] * 4
    await upload(client, bytes_source(b"x" * 5000), "/f")
    [line] = said
    assert line.startswith("chelonia: /f: ")


async def test_a_busy_bartender_is_told_of(fake: FakeBartender) -> None:
    said: list[str] = []
    client = client_on(fake, retry_ms=10_000)
    client.trouble = WaitingNotes(client.clock, said.append)
    fake.failures = [Kind.UNAVAILABLE] * 20
    with pytest.raises(CheloniaError):
        await client.stat("/")
    [line] = said
    assert line.startswith("chelonia: the Bartender: ")
