"""SOAP over real mutual TLS: the A-Hash called through its stub, and answers to bad requests."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Horizon, Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ObjectId, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import ChangeStatus, ChangeType, Condition, ConditionType, Element
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.values import replace
from chelonia.hosting.doors import soap_door
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.routes import Readiness, Routes
from chelonia.hosting.doors.soap_door import SoapDoor, SoapParts
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_client import ClientLimits, HttpClient, Received, Sending
from chelonia.hosting.net.http_messages import Door, HttpRequest, HttpResponse, Peer, Whole, read_whole
from chelonia.hosting.net.rpc_client import Channel, Link, RetryLimits, remote_ahash, remote_librarian
from chelonia.hosting.net.tls import ClientCertificate
from chelonia.wire import soap
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from chelonia.wire.operations.table import Service
from tests.support.ahash import open_store, serving
from tests.support.failing import fails
from tests.support.polling import poll_async
from tests.unit.hosting.grid import JANE, Grid
from tests.unit.hosting.listening import client_of, plain, secure

SERVICE = "/O=Grid/OU=Hosts/CN=librarian"
OBJECT = ObjectId("11111111-1111-4111-8111-111111111111")


def set_value(value: str, *conditions: Condition) -> tuple[Element, ...]:
    return (Element(OBJECT, ChangeType.SET, "entry", "type", value, conditions),)


def parts(metrics: Metrics | None = None) -> SoapParts:
    roles = (Role.LIBRARIAN, Role.BARTENDER)
    known = [ServiceRecord(role, Dn(SERVICE), ServiceId("https://lib"), True) for role in roles]
    return SoapParts(RoleRegistry(known, None, SystemClock()), metrics or Metrics())


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


@asynccontextmanager
async def ahash_at(grid: Grid, tmp_path: Path) -> AsyncIterator[str]:
    """An A-Hash on a listener that demands certificates; gives its URL."""
    async with serving(open_store("memory", tmp_path)) as service:
        door = SoapDoor(AHASH, service, "https://x/AHash", parts())
        readiness = Readiness()
        readiness.held = ""
        routes = Routes({"ahash": door.serve}, readiness, None)
        async with secure(routes.serve, grid.server(), ClientCertificate.REQUIRED) as server:
            yield f"https://localhost:{server.port}/AHash"


def link(client: HttpClient) -> Link:
    return Link(client, SystemClock(), SystemIds())


async def test_a_registered_service_calls_the_port_as_if_it_were_local(grid: Grid, tmp_path: Path) -> None:
    store = grid.client(grid.user(SERVICE))
    async with ahash_at(grid, tmp_path) as url, client_of(store) as client:
        ahash = remote_ahash(link(client), (url,))
        assert [each.status for each in await ahash.change(Call(), set_value("file"))] == [ChangeStatus.SET]
        unmet = Condition(ConditionType.IS, "entry", "type", "collection", "c1")
        (refused,) = await ahash.change(Call(), set_value("other", unmet))
        assert (refused.status, refused.condition_id) == (ChangeStatus.CONDITION_NOT_MET, "c1")
        (found,) = await ahash.get(Call(), (OBJECT,))
        assert found.value("entry", "type") == "file"


async def test_a_user_is_denied_and_the_audit_log_says_so(
    grid: Grid, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chelonia.audit")
    async with ahash_at(grid, tmp_path) as url, client_of(grid.client(grid.user())) as client:
        with pytest.raises(CheloniaError) as caught:
            await remote_ahash(link(client), (url,)).get(Call(roles=(Role.LIBRARIAN,)), (OBJECT,))
    assert caught.value.kind is Kind.DENIED
    audited = [record.getMessage() for record in caplog.records if record.name == "chelonia.audit"]
    assert any(JANE in line and "refused" in line for line in audited)


async def test_health_needs_no_role(grid: Grid, tmp_path: Path) -> None:
    async with ahash_at(grid, tmp_path) as url, client_of(grid.client(grid.user())) as client:
        for path in ("/healthz", "/readyz"):
            assert (await client.request(Sending("GET", url.replace("/AHash", path)))).status == 200
        described = await client.request(Sending("GET", f"{url}?wsdl"))
        assert b"definitions" in described.body


# --- bad requests, without TLS ------------------------------------------------------------------------------------


class Port:
    """A port whose `get` is the test's function."""

    def __init__(self, get: Callable[[Call], Awaitable[Any]]) -> None:
        self._get = get

    async def get(self, call: Call, *args: Any) -> Any:
        return await self._get(call)


def called_by_a_librarian(door: SoapDoor) -> Door:
    """The door, for callers without TLS."""
    return lambda request: door.serve(replace(request, peer=Peer(Dn(SERVICE))))


async def post(port: Port, body: bytes | AsyncIterator[bytes], **headers: str) -> Received:
    door = SoapDoor(AHASH, port, "https://x/AHash", parts())
    async with plain(called_by_a_librarian(door)) as server, client_of(None) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.request(Sending("POST", f"http://127.0.0.1:{server.port}/AHash", named, body))


def fault(answer: Received) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        soap.decode_response(AHASH, "get", answer.body)
    return caught.value


async def never(call: Call) -> Any:
    raise AssertionError("the port must not be reached")


GET = soap.encode_request(AHASH, "get", ((), ()))
BOMB = b'<!DOCTYPE a [<!ENTITY b "c">]>' + GET.partition(b"?>")[2]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Kind.BAD_XML),
        (b"not xml", Kind.BAD_XML),
        (GET[:-20], Kind.BAD_XML),
        (BOMB, Kind.BAD_XML),
        (GET.replace(b"ahash:get", b"ahash:explode"), Kind.UNKNOWN_OPERATION),
    ],
)
async def test_an_unreadable_request_is_a_fault(body: bytes, kind: Kind) -> None:
    answer = await post(Port(never), body)
    assert answer.status == 500
    assert fault(answer).kind is kind


async def test_a_deeply_nested_request_is_413_with_a_fault() -> None:
    answer = await post(Port(never), b"<a>" * 1000 + b"</a>" * 1000)
    assert answer.status == 413
    assert fault(answer).kind is Kind.TOO_LARGE


async def test_an_oversized_request_is_413_with_a_fault() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(bounds.SOAP_BODY_BYTES_MAX // 1_000_000 + 1):
            yield b" " * 1_000_000

    answer = await post(Port(never), body())
    assert answer.status == 413
    assert fault(answer).kind is Kind.TOO_LARGE


@pytest.mark.parametrize("field", [{"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}])
async def test_a_page_that_a_browser_shows_calls_nothing_with_its_readers_certificate(field: dict[str, str]) -> None:
    answer = await post(Port(never), GET, Content_Type="text/plain", **field)
    assert fault(answer).kind is Kind.DENIED


async def test_a_malformed_request_key_is_a_fault() -> None:
    answer = await post(Port(never), GET, Chelonia_Request_Key="x" * 200)
    assert fault(answer).kind is Kind.BAD_REQUEST


@pytest.mark.expect_log("failed service=ahash op=get")
async def test_an_unexpected_failure_is_a_fault_that_names_the_request_only() -> None:
    async def fail(call: Call) -> Any:
        raise RuntimeError("secret detail")

    answer = await post(Port(fail), GET, X_Request_Id="abc-1")
    error = fault(answer)
    assert error.kind is Kind.INTERNAL
    assert "abc-1" in error.cause
    assert b"secret" not in answer.body


@pytest.mark.parametrize("kind", [Kind.DENIED, Kind.CONFLICT, Kind.OUTCOME_UNKNOWN])
async def test_an_error_arrives_as_it_left(kind: Kind) -> None:
    async def refuse(call: Call) -> Any:
        raise CheloniaError(kind, "get", "the subject", "the cause & cure")

    error = fault(await post(Port(refuse), GET))
    assert (error.kind, error.op, error.subject, error.cause) == (kind, "get", "the subject", "the cause & cure")


async def test_operations_are_counted_by_outcome() -> None:
    async def refuse(call: Call) -> Any:
        raise CheloniaError(Kind.DENIED)

    metrics = Metrics()
    door = SoapDoor(AHASH, Port(refuse), "https://x/AHash", parts(metrics))
    async with plain(called_by_a_librarian(door)) as server, client_of(None) as client:
        await client.request(Sending("POST", f"http://127.0.0.1:{server.port}/", body=GET))
    text = (await metrics.expose()).decode()
    assert 'chelonia_requests_total{operation="get",outcome="denied",service="ahash"} 1.0' in text


# --- several instances --------------------------------------------------------------------------------------------


async def test_a_channel_goes_on_to_an_instance_that_answers_and_stays_there() -> None:
    calls: list[Call] = []

    async def answer(call: Call) -> Any:
        calls.append(call)
        raise CheloniaError(Kind.NOT_FOUND)

    door = SoapDoor(AHASH, Port(answer), "https://x/AHash", parts())
    async with plain(called_by_a_librarian(door)) as gone:
        dead = f"http://127.0.0.1:{gone.port}/AHash"
    async with plain(called_by_a_librarian(door)) as server, client_of(None) as client:
        alive = f"http://127.0.0.1:{server.port}/AHash"
        for urls in ((dead, alive), (alive, dead)):
            channel = Channel(link(client), AHASH, urls)
            for _ in range(2):
                with fails(Kind.NOT_FOUND):
                    await channel.call(Call(request_id="r1"), "get", (), ())
    assert [call.request_id for call in calls] == ["r1"] * 4


async def test_a_repeated_change_keeps_its_request_key() -> None:
    keys: list[str] = []

    class Once:
        async def remove(self, call: Call, requests: Any) -> Any:
            keys.append(call.request_key)
            raise CheloniaError(Kind.OUTCOME_UNKNOWN if len(keys) < 3 else Kind.DENIED)

    door = SoapDoor(LIBRARIAN, Once(), "https://x/Librarian", parts())
    async with plain(called_by_a_librarian(door)) as server, client_of(None) as client:
        urls, patience = (f"http://127.0.0.1:{server.port}/",), RetryLimits(retry_ms=5000, pause_ms=1)
        with pytest.raises(CheloniaError) as caught:
            await remote_librarian(link(client), urls, patience).remove(Call(), ())
    assert caught.value.kind is Kind.DENIED
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0]


@pytest.mark.parametrize(("method", "tries"), [("change", 1), ("get", 2)])
async def test_what_has_no_key_is_never_repeated(method: str, tries: int) -> None:
    count = 0

    class Failing:
        async def change(self, call: Call, elements: Any) -> Any:
            nonlocal count
            count += 1
            raise CheloniaError(Kind.UNAVAILABLE)

        async def get(self, call: Call, *args: Any) -> Any:
            nonlocal count
            count += 1
            raise CheloniaError(Kind.UNAVAILABLE if count < 2 else Kind.DENIED)

    door = SoapDoor(AHASH, Failing(), "https://x/AHash", parts())
    async with plain(called_by_a_librarian(door)) as server, client_of(None) as client:
        ahash = remote_ahash(
            link(client), (f"http://127.0.0.1:{server.port}/",), RetryLimits(retry_ms=5000, pause_ms=1)
        )
        argument: Any = set_value("x") if method == "change" else (OBJECT,)
        with pytest.raises(CheloniaError):
            await getattr(ahash, method)(Call(), argument)
    assert count == tries


WELL = (StoredObject(OBJECT, 1, {}),)


async def test_an_instance_that_is_killed_in_the_middle_of_its_answer_is_one_that_is_gone() -> None:
    """Its lost answer may be that a change was made; the same request key asks another whether it was."""

    async def half() -> AsyncIterator[bytes]:
        yield b"<Envelope>"

    async def killed(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), half(), 2000)

    class Well:
        async def get(self, call: Call, *args: Any) -> tuple[StoredObject, ...]:
            return WELL

    well = SoapDoor(AHASH, Well(), "https://x/AHash", parts())
    async with plain(killed) as one, plain(called_by_a_librarian(well)) as other, client_of(None) as client:
        urls = [f"http://127.0.0.1:{server.port}/" for server in (one, other)]
        for _ in range(8):  # the first one to try is drawn
            assert await remote_ahash(link(client), urls, RetryLimits(retry_ms=0)).get(Call(), ()) == WELL


async def test_a_definite_failure_is_an_answer_while_another_instance_is_silent() -> None:
    never = asyncio.Event()

    class Silent:
        async def get(self, call: Call, *args: Any) -> tuple[StoredObject, ...]:
            await never.wait()
            return WELL

    class Definite:
        async def get(self, call: Call, *args: Any) -> tuple[StoredObject, ...]:
            raise CheloniaError(Kind.DENIED, "get")

    silent = SoapDoor(AHASH, Silent(), "https://x/AHash", parts())
    definite = SoapDoor(AHASH, Definite(), "https://x/AHash", parts())
    async with plain(silent.serve) as one, plain(definite.serve) as other, client_of(None) as client:
        urls = [f"http://127.0.0.1:{server.port}/" for server in (one, other)]
        for _ in range(8):  # a stub begins anywhere
            with fails(Kind.DENIED):
                async with asyncio.timeout(60):
                    await remote_ahash(link(client), urls, RetryLimits(retry_ms=0, hedge_ms=50)).get(Call(), ())
        never.set()


async def test_a_read_is_asked_of_another_sooner_than_a_change() -> None:
    asked: list[str] = []
    frozen = asyncio.Event()

    class Instance:
        async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: object) -> tuple[StoredObject, ...]:
            asked.append("get")
            if asked.count("get") == 1:
                await frozen.wait()
            return ()

        async def remove(self, call: Call, requests: object) -> tuple[()]:
            asked.append("remove")
            await frozen.wait()
            return ()

    named = {each: SoapDoor(each, Instance(), "https://x/X", parts()) for each in (AHASH, LIBRARIAN)}

    async def serve(request: HttpRequest) -> HttpResponse:
        door = named[LIBRARIAN if request.path == "/Librarian" else AHASH]
        return await called_by_a_librarian(door)(request)

    async with plain(serve) as one, plain(serve) as other, client_of(None) as client:
        urls = [f"http://127.0.0.1:{server.port}/" for server in (one, other)]
        patience = RetryLimits(retry_ms=0, hedge_ms=60_000, hedge_read_ms=50)
        librarians = [f"{url}Librarian" for url in urls]
        removed = asyncio.create_task(remote_librarian(link(client), librarians, patience).remove(Call(), ()))
        await poll_async(lambda: asked == ["remove"], what="the change is asked for")
        assert await remote_ahash(link(client), urls, patience).get(Call(), ()) == ()
        assert asked.count("get") == 2
        assert asked.count("remove") == 1
        frozen.set()
        await removed


async def test_without_patience_a_dead_service_is_known_at_once() -> None:
    async with plain(lambda request: asyncio.sleep(0)) as gone:  # type: ignore[arg-type,return-value]
        url = f"http://127.0.0.1:{gone.port}/"
    async with client_of(None) as client:
        with pytest.raises(CheloniaError) as caught:
            await remote_ahash(link(client), (url,), RetryLimits(retry_ms=0)).get(Call(), ())
    assert caught.value.kind is Kind.NETWORK


async def test_large_messages_on_their_way_are_bounded_and_small_ones_pass(grid: Grid, tmp_path: Path) -> None:
    hold = asyncio.Event()

    async def dripping() -> AsyncIterator[bytes]:
        yield b" " * (bounds.SOAP_SMALL_BYTES + 1)
        await hold.wait()
        yield b" "

    store = grid.client(grid.user(SERVICE))
    async with ahash_at(grid, tmp_path) as url, client_of(store, ClientLimits(connections_per_target_max=64)) as client:

        async def large() -> Received:
            return await client.request(Sending("POST", url, body=dripping()))

        many = [asyncio.create_task(large()) for _ in range(bounds.SOAP_LARGE_BODIES_MAX + 1)]
        done, waiting = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        assert [b"unavailable" in task.result().body for task in done] == [True]
        assert await remote_ahash(link(client), (url,)).get(Call(), ()) == ()
        hold.set()
        assert [b"bad-xml" in answer.body for answer in await asyncio.gather(*waiting)] == [True] * len(waiting)
        assert b"bad-xml" in (await large()).body


async def test_a_caller_without_a_role_sends_little_and_is_denied_before_his_arguments(
    grid: Grid, tmp_path: Path
) -> None:
    torn = re.sub(rb"<ahash:get>.*</ahash:get>", b"<ahash:change/>", GET)
    large = torn.replace(b"<ahash:change/>", b"<ahash:change/><!--" + b"x" * bounds.SOAP_SMALL_BYTES + b"-->")
    async with ahash_at(grid, tmp_path) as url, client_of(grid.client(grid.user())) as client:
        for body in (torn, large):
            answer = await client.request(Sending("POST", url, body=body))
            assert b"<c:kind>denied</c:kind>" in answer.body
            assert (b"what it sends has at most" in answer.body) is (body is large)
    async with ahash_at(grid, tmp_path) as url, client_of(grid.client(grid.user(SERVICE))) as client:
        answer = await client.request(Sending("POST", url, body=torn))
        assert b"<c:kind>bad-xml</c:kind>" in answer.body


async def test_a_large_message_is_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[int] = []

    def decode(*args: Any) -> soap.InformationRequest:
        where.append(threading.get_ident())
        return soap.InformationRequest()

    monkeypatch.setattr(soap, "decode_request", decode)
    door = SoapDoor(AHASH, object(), "https://x/AHash", parts())
    for size in (1000, bounds.SOAP_DECODED_AT_ONCE_BYTES + 1):
        body = pieces_of(b" " * size)
        answer = await door.serve(HttpRequest("POST", "/", {}, {}, Peer(Dn(SERVICE)), body, size, "r"))
        assert answer.status == 200
    assert [thread == threading.get_ident() for thread in where] == [True, False]


async def test_who_shows_no_certificate_sends_little_at_once() -> None:
    metrics, size = Metrics(), bounds.SOAP_SMALL_BYTES + 1
    door = SoapDoor(BARTENDER, object(), "https://x/B", parts(metrics))
    answers = {}
    for dn in (Peer().dn, Dn(SERVICE)):
        body = pieces_of(b" " * size)
        answers[dn] = await door.serve(HttpRequest("POST", "/", {}, {}, Peer(dn), body, size, "r"))
    refused, taken = answers.values()
    assert (refused.status, taken.status) == (413, 500)
    assert isinstance(refused.body, bytes)
    assert b"show one" in refused.body
    assert metrics.limits.reached == {"bytes of a message without a certificate": 1}


@pytest.mark.parametrize("padding", [0, bounds.SOAP_DECODED_AT_ONCE_BYTES])
async def test_a_message_of_too_many_parts_is_refused_and_counted(padding: int) -> None:
    deep = bounds.XML_DEPTH_MAX + 1
    metrics, body = Metrics(), b"<a>" * deep + b" " * padding + b"</a>" * deep
    door = SoapDoor(BARTENDER, object(), "https://x/B", parts(metrics))
    request = HttpRequest("POST", "/", {}, {}, Peer(Dn(SERVICE)), pieces_of(body), len(body), "r")
    assert (await door.serve(request)).status == 413
    assert metrics.limits.reached == {"parts of a message": 1}


async def pieces_of(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_a_message_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    def request() -> HttpRequest:
        return HttpRequest("POST", "/", {}, {}, Peer(), dripping(), -1, "r")

    with fails(Kind.TIMEOUT):
        await read_whole(request(), Whole(1000, deadline_ms=50))
    metrics = Metrics()
    monkeypatch.setattr(soap_door, "Whole", lambda limit, large: Whole(limit, 50, large))
    assert (await SoapDoor(BARTENDER, object(), "https://x/B", parts(metrics)).serve(request())).status == 408
    assert metrics.limits.reached == {"time of a message": 1}


# --- positions ----------------------------------------------------------------------------------------------------


class Told:
    """A port that notes its callers' read strength, and answers from the test's position."""

    def __init__(self, horizon: Horizon) -> None:
        self.horizon = horizon
        self.stands: Position | None = None
        self.calls: list[Call] = []

    async def get(self, call: Call, *args: Any) -> tuple[StoredObject, ...]:
        self.calls.append(call)
        if self.stands is not None:
            self.horizon.saw(self.stands)
        return ()


@asynccontextmanager
async def telling(service: Service = AHASH) -> AsyncIterator[tuple[Told, Channel, HttpClient, str]]:
    """A port at the end of a channel, whose calls can also be made by hand."""
    told = Told(Horizon())
    door = SoapDoor(service, told, "https://x/AHash", replace(parts(), horizon=told.horizon))
    async with plain(called_by_a_librarian(door)) as server, client_of(None) as client:
        url = f"http://127.0.0.1:{server.port}/AHash"
        yield told, Channel(link(client), service, (url,)), client, url


async def test_a_session_reads_after_the_newest_answer_it_has_seen() -> None:
    async with telling() as (told, channel, _, _):
        for told.stands in (None, Position("c", 1, 7), Position("c", 1, 9), Position("c", 2, 1)):
            await channel.call(Call(), "get", (), ())
        await channel.call(Call(), "get", (), ())
    wanted = [call.read_after for call in told.calls]
    assert wanted == [None, None, Position("c", 1, 7), Position("c", 1, 9), Position("c", 2, 1)]


async def test_a_call_that_carries_a_later_position_sends_that_one_and_only_for_itself() -> None:
    async with telling() as (told, channel, _, _):
        told.stands = Position("c", 1, 7)
        for after in (None, Position("c", 1, 99), Position("c", 1, 3), Position("d", 9, 9)):
            await channel.call(Call(read_after=after), "get", (), ())
    wanted = [call.read_after for call in told.calls]
    assert wanted == [None, Position("c", 1, 99), Position("c", 1, 7), Position("c", 1, 7)]


async def test_what_a_caller_claims_is_told_to_nobody_else() -> None:
    async with telling() as (told, _, client, url):
        told.stands = Position("c", 1, 7)
        absurd = {"Chelonia-Read-After": "9.999999999999999999.c"}
        answer = await client.request(Sending("POST", url, absurd | {"Content-Type": "text/xml"}, GET))
        assert answer.headers["Chelonia-Position"] == "1.7.c"
    assert told.calls[0].read_after == Position("c", 9, 999999999999999999)


async def test_a_strong_call_arrives_strong() -> None:
    async with telling() as (told, channel, _, _):
        await channel.call(Call(), "get", (), ())
        await channel.call(Call().strongly(), "get", (), ())
    assert [call.strong for call in told.calls] == [False, True]


async def test_a_link_may_make_every_call_strong() -> None:
    async with telling() as (told, _, client, url):
        await Channel(replace(link(client), strong=True), AHASH, (url,)).call(Call(), "get", (), ())
    assert [call.strong for call in told.calls] == [True]


async def test_a_malformed_position_is_refused() -> None:
    answer = await post(Port(never), GET, Content_Type="text/xml", Chelonia_Read_After="soon")
    assert fault(answer).kind is Kind.BAD_REQUEST


async def test_shepherds_are_not_believed_about_positions() -> None:
    shepherds = replace(AHASH, name="shepherd", table=replace(AHASH.table, name="shepherd"))
    async with telling(shepherds) as (told, channel, _, _):
        told.stands = Position("c", 9, 99)
        await channel.call(Call(), "get", (), ())
        await channel.call(Call(), "get", (), ())
    assert [call.read_after for call in told.calls] == [None, None]


async def test_a_strangers_messages_take_turns_and_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Dn] = []

    def decode(service: Service, body: bytes, may: Callable[[str], None]) -> soap.InformationRequest:
        decoded.append(Dn(body.decode()))
        return soap.InformationRequest()

    monkeypatch.setattr(soap, "decode_request", decode)
    metrics = Metrics()
    door = SoapDoor(BARTENDER, object(), "https://x/B", parts(metrics=metrics))
    peers = [Peer(address="10.0.0.1")] * 20 + [Peer(Dn(JANE), "10.0.0.1")]
    asked = [HttpRequest("POST", "/", {}, {}, who, pieces_of(who.dn.encode()), -1, "r") for who in peers]
    assert [answer.status for answer in await asyncio.gather(*map(door.serve, asked))] == [200] * 21
    assert decoded.index(Dn(JANE)) <= 1
    assert set(metrics.limits.reached) == {"messages of strangers at once"}


# --- a client that goes -----------------------------------------------------------------------------------------------


class Slow:
    """A Bartender whose calls last until the test ends them."""

    def __init__(self) -> None:
        self.begun, self.done, self.ended = asyncio.Event(), asyncio.Event(), list[str]()

    async def _last(self, what: str) -> tuple[()]:
        self.begun.set()
        try:
            await asyncio.wait_for(self.done.wait(), 60)
        except asyncio.CancelledError:
            self.ended.append(f"{what} cancelled")
            raise
        self.ended.append(f"{what} done")
        return ()

    async def list(self, call: Call, requests: object, needed: object, recursive: object) -> tuple[()]:
        return await self._last("list")

    async def move(self, call: Call, requests: object) -> tuple[()]:
        return await self._last("move")


@pytest.mark.parametrize(("method", "ends"), [("list", "cancelled"), ("move", "done")])
async def test_what_only_reads_ends_with_its_client_and_a_change_does_not(method: str, ends: str) -> None:
    port, metrics, gone = Slow(), Metrics(), asyncio.Event()
    door = SoapDoor(BARTENDER, port, "https://x/Bartender", parts(metrics))

    async def serve(request: HttpRequest) -> HttpResponse:
        request.when_closed("test", gone.set)
        return await door.serve(request)

    args: tuple[Any, ...] = ((), (), False) if method == "list" else ((),)
    body = soap.encode_request(BARTENDER, BARTENDER.by_method[method].name, args)
    async with plain(serve) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /Bartender HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await asyncio.wait_for(port.begun.wait(), 60)
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 60)
        if method == "move":
            port.done.set()
        await poll_async(lambda: bool(port.ended), 60.0, what="the call has ended")
        assert port.ended == [f"{method} {ends}"]
        await poll_async(lambda: bool(metrics.limits.reached) or method == "move", 60.0, what="it is counted")
        assert metrics.limits.reached == ({"readers_gone": 1} if method == "list" else {})
