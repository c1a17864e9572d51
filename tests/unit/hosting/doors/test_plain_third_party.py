"""Third-party copies at the plain door, with a fake for the other server."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from chelonia.core.caller import BY_LINK, Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Set
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import third_party
from chelonia.hosting.doors.plain.parts import apply
from chelonia.hosting.doors.plain.redirects import COPIER
from chelonia.hosting.doors.plain.third_party import ThirdParty
from chelonia.hosting.net.http_client import Sending
from chelonia.hosting.net.strangers import Strangers
from chelonia.wire.web.third_party import remote
from tests.support.failing import fails
from tests.unit.hosting.doors.test_plain_door import EVE, JOE, Bench

BYTES = b"from elsewhere"
ADLER = f"{zlib.adler32(BYTES):08x}"
OTHER = "https://other/x"


class Played:
    """An answer of the other server."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.status, self.headers, self.length = status, headers, len(body)
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def read(self, limit: int) -> bytes:
        return self._body[:limit]


class Other:
    """The other server: its requests, and its file."""

    def __init__(self) -> None:
        self.asked: list[Sending] = []
        self.stored = b""
        self.status, self.digest = 200, f"adler32={ADLER}"
        self.more: dict[str, str] = {}
        """Further header fields of its answers; `Content-Length`: not that of the body, "" for none."""
        self.takes = True
        """Whether it reads the body before it answers."""
        self.waits: asyncio.Event | None = None
        self.redirects = False
        self.shown: list[bytes] = []

    @asynccontextmanager
    async def showing(self, credential: bytes) -> AsyncIterator[Other]:
        self.shown.append(credential)
        yield self

    @asynccontextmanager
    async def stream(
        self, sending: Sending, body: Callable[[], AsyncIterator[bytes]] | None = None
    ) -> AsyncIterator[Played]:
        self.asked.append(sending)
        if self.waits is not None:
            await self.waits.wait()
        if self.redirects and body:
            async for _ in body():  # what has read it sends elsewhere: it begins anew there
                pass
        if sending.method == "PUT" and self.takes:
            self.stored = b"".join([chunk async for chunk in body()]) if body else cast(bytes, sending.body)
        digest = {"Digest": self.digest} if self.digest else {}
        status = 404 if sending.method == "HEAD" and not self.stored else self.status
        answer = Played(status, b"" if sending.method == "PUT" else BYTES, {**digest, **self.more})
        length = self.more.get("Content-Length")
        answer.length = answer.length if length is None else int(length or "-1")
        yield answer


@pytest.fixture
def other() -> Other:
    return Other()


@pytest.fixture
def bench(other: Other) -> Bench:
    return Bench(ThirdParty(cast(Strangers, other)))


async def opened(bench: Bench) -> None:
    """A collection that all may add to."""
    await bench.look("MKCOL", "/open")
    rules = {"ALL": "+read +addEntry"}
    await apply(bench.parts, Call(dn=JOE), Set(LogicalName(ROOT, ("open",)), policy=rules))


def test_a_file_is_fetched_from_another_server(bench: Bench, other: Other) -> None:
    answer = bench.ask("COPY", "/f", Source=OTHER, TransferHeaderAuthorization="Bearer x", TransferHeaderHost="evil")
    assert answer.status == 202
    assert f"Stripe Bytes Transferred: {len(BYTES)}\n" in answer.text
    assert answer.text.endswith("success: Created\n")
    assert bench.ask("GET", "/f").body == BYTES
    (asked,) = other.asked
    told = {"Want-Digest": "adler32,md5,sha-256", "Accept-Encoding": "identity", "User-Agent": COPIER}
    assert dict(asked.headers or {}) == {"Authorization": "Bearer x", **told}
    assert bench.ask("COPY", "/f", Source=OTHER, Overwrite="F").status == 412


@pytest.mark.parametrize(
    ("digest", "status", "verify", "why"),
    [
        ("adler32=00000001", 200, "true", "failure: 400"),
        ("", 200, "true", "RequireChecksumVerification"),
        ("adler32=x", 200, "false", "the other server: bad-request: malformed checksum 'x'"),
        (f"adler32={ADLER}", 206, "false", "HTTP 206: not the whole file"),
        (f"adler32={ADLER}", 204, "false", "HTTP 204: not the whole file"),
        (f"adler32={ADLER}", 302, "false", "HTTP 302: a redirect too many"),
        (f"adler32={ADLER}", 401, "false", "send TransferHeaderAuthorization, or Credential: gridsite"),
        (f"adler32={ADLER}", 404, "false", "failure: 404"),
        (f"adler32={ADLER}", 500, "false", "failure: 500"),
    ],
)
def test_what_fails_leaves_nothing(bench: Bench, other: Other, digest: str, status: int, verify: str, why: str) -> None:
    other.digest, other.status = digest, status
    told = bench.ask("COPY", "/f", Source=OTHER, RequireChecksumVerification=verify)
    assert told.status == 202
    assert why in told.text.splitlines()[-1]
    assert bench.ask("GET", "/f").status == 404


def test_what_may_be_a_part_is_taken_by_its_checksum_alone(bench: Bench, other: Other) -> None:
    other.more, other.digest = {"Content-Length": ""}, ""
    assert "neither how long it is nor" in bench.ask("COPY", "/f", Source=OTHER).text.splitlines()[-1]
    assert bench.ask("GET", "/f").status == 404
    other.digest = f"adler32={ADLER}"
    assert bench.ask("COPY", "/f", Source=OTHER).text.endswith("success: Created\n")
    other.more, other.digest = {"Content-Length": "", "Transfer-Encoding": "chunked"}, ""
    assert bench.ask("COPY", "/f", Source=OTHER).text.endswith("success: Created\n")


def test_what_the_other_server_says_is_passed_on_as_text(bench: Bench, other: Other) -> None:
    other.status, other.more = 429, {"Retry-After": "\x1b[31m\udcff120"}
    told = bench.ask("COPY", "/f", Source=OTHER).text.splitlines()[-1]
    assert told == f"failure: 503 the other server: busy: HTTP 429: (Retry-After: [31m\\udcff120) {BYTES.decode()}"


async def test_what_has_come_while_a_file_was_fetched_stays(bench: Bench, other: Other) -> None:
    other.waits = asyncio.Event()
    fetched = asyncio.ensure_future(bench.look("COPY", "/f", Source=OTHER, Overwrite="F"))
    while not other.asked:
        await asyncio.sleep(0)
    await bench.look("PUT", "/f", b"somebody else's")
    other.waits.set()
    assert (await fetched).text.splitlines()[-1].startswith("failure: 412")
    assert (await bench.look("GET", "/f")).body == b"somebody else's"


def test_a_file_is_sent_to_another_server(bench: Bench, other: Other) -> None:
    bench.ask("PUT", "/f", BYTES)
    told = bench.ask("COPY", "/f", Destination="davs://other/x", Overwrite="F", RequireChecksumVerification="true")
    assert told.text.endswith("success: Created\n")
    assert other.stored == BYTES
    look, put, head = other.asked
    assert (put.url, put.length, dict(put.headers or {})) == (OTHER, len(BYTES), {"If-None-Match": "*"})
    assert (look.method, head.method, put.expects) == ("HEAD", "HEAD", True)
    assert "failure: 412" in bench.ask("COPY", "/f", Destination=OTHER, Overwrite="F").text
    assert other.asked[-1].method == "HEAD", "many a server overwrites all the same"
    other.digest = "adler32=00000001"
    assert "failure: 400" in bench.ask("COPY", "/f", Destination=OTHER).text
    other.more = {"Content-Length": "1"}
    assert f"1 bytes of it are there, {len(BYTES)} were sent" in bench.ask("COPY", "/f", Destination=OTHER).text
    other.takes = False
    assert f"when 0 of {len(BYTES)} bytes had gone" in bench.ask("COPY", "/f", Destination=OTHER).text
    bench.ask("MKCOL", "/d")
    assert bench.ask("COPY", "/d", Destination=OTHER).status == 409


def test_a_file_that_is_sent_on_by_the_other_server_is_summed_once(bench: Bench, other: Other) -> None:
    bench.ask("PUT", "/f", BYTES)
    other.redirects = True
    told = bench.ask("COPY", "/f", Destination=OTHER, RequireChecksumVerification="true").text
    assert told.endswith("success: Created\n")
    assert f"Stripe Bytes Transferred: {len(BYTES)}\n" in told


def test_what_is_refused_at_once(bench: Bench, other: Other) -> None:
    for url in ("http://other/x", "file:///etc/passwd", "https://joe@other/x", "https://", "https://[x"):
        assert bench.ask("COPY", "/f", Source=url).status == 400, url
    bench.ask("PUT", "/f", b"1")
    assert bench.ask("MOVE", "/f", Destination=OTHER).status == 409


def test_nobody_and_who_may_not_copy_has_the_node_speak_to_no_other_server(bench: Bench, other: Other) -> None:
    """The request went out before the refusal: anyone could make the node send anything anywhere."""
    asyncio.run(opened(bench))
    bench.ask("PUT", "/open/f", b"1")
    assert bench.ask("COPY", "/f", Source=OTHER, dn=EVE).status == 403
    for field in ("Source", "Destination"):
        assert bench.ask("COPY", "/open/f", dn=ANONYMOUS, **{field: OTHER}).status == 401
        assert bench.ask("COPY", "/open/g", dn=ANONYMOUS, **{field: OTHER}).status == 401
    assert other.asked == []
    assert bench.ask("COPY", "/open/g", Source=OTHER, dn=EVE).text.endswith("success: Created\n")
    assert other.asked != []


async def test_a_copy_ends_when_its_client_goes(bench: Bench, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third_party, "MARKER_S", 0.0)
    other.waits = asyncio.Event()
    await opened(bench)
    bodies = []
    shares = []
    for user in range(6):
        began = len(bodies)
        with fails(Kind.BUSY):
            while True:
                ask = bench.exchange("COPY", "/open/f", dn=Dn(f"/CN={user}"), Source=OTHER)
                body: Any = (await third_party.pull(bench.parts, ask)).body
                assert b"Stripe Bytes Transferred: 0" in await anext(body)
                bodies.append(body)
        shares.append(len(bodies) - began)
    assert shares == [16, 8, 4, 2, 1, 0], "two users had them all once"
    for body in bodies:
        await body.aclose()
    assert bench.parts.third is not None
    assert bench.parts.third.running.total() == 0
    assert bench.parts.third.delegations.limits.reached == {"copies_of_other_servers": 6}
    other.waits.set()
    assert (await bench.look("GET", "/open/f")).status == 404


async def test_the_holder_of_a_link_takes_none_of_its_giver_s_places(bench: Bench, other: Other) -> None:
    other.waits = asyncio.Event()
    by_link = Call(dn=JOE, via=f"{BY_LINK}abc", address="192.0.2.1")
    bodies = []
    with fails(Kind.BUSY):
        while True:
            ask = replace(bench.exchange("COPY", "/f", Source=OTHER), call=by_link)
            bodies.append((await third_party.pull(bench.parts, ask)).body)
    bodies.append((await third_party.pull(bench.parts, bench.exchange("COPY", "/f", Source=OTHER))).body)
    for body in bodies:
        await body.aclose()  # type: ignore[union-attr]
    assert bench.parts.third is not None
    assert not bench.parts.third.running


async def test_a_copy_ends_at_once_when_its_client_s_connection_does(bench: Bench, other: Other) -> None:
    other.waits = asyncio.Event()
    gone: list[Callable[[], None]] = []
    exchange = bench.exchange("COPY", "/f", Source=OTHER)
    request = replace(exchange.request, when_closed=lambda key, told: gone.append(told))
    body: Any = (await third_party.pull(bench.parts, replace(exchange, request=request))).body
    marking = asyncio.ensure_future(anext(body))
    await asyncio.sleep(0)
    gone[0]()
    async with asyncio.timeout(third_party.MARKER_S / 2):
        with pytest.raises(ConnectionError):
            await marking
    await body.aclose()
    other.waits.set()
    assert (await bench.look("GET", "/f")).status == 404


def test_too_many_fields_for_the_other_server_are_refused() -> None:
    with pytest.raises(CheloniaError):
        remote(OTHER, [(f"TransferHeaderX{n}", "") for n in range(21)])
