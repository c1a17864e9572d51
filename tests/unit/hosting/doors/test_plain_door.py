"""The plain door on a cluster in memory, for HTTP and WebDAV clients."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import parse_qsl

import pytest
from lxml import etree
from multidict import CIMultiDict

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.quotas import Quota, QuotaUse
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Guid
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    Arrived,
    Attributes,
    Change,
    Done,
    Failure,
    Listed,
    Listing,
    Look,
    Looked,
    Move,
    Named,
    Placed,
    Placing,
    Set,
    Space,
    Want,
)
from chelonia.core.values import replace
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.plain import changes, measuring, patches, properties
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, place_of
from chelonia.hosting.doors.plain.redirects import COPIER
from chelonia.hosting.doors.plain.third_party import ThirdParty
from chelonia.hosting.doors.tokens.bearer import Bearers
from chelonia.hosting.doors.tokens.issuers import Issuers
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_messages import HttpRequest, Peer
from tests.support.cluster import MemoryCluster
from tests.support.door_parts import door_parts
from tests.support.stage import GIB, KEY
from tests.support.strength import noted

JOE, EVE = Dn("/CN=joe"), Dn("/CN=eve")
DAV = "{DAV:}"


class MemoryBytes:
    """Bytes straight to Shepherds. `unreached`, `broken`: so many sends fail before one succeeds, before and after
    their first byte."""

    def __init__(self, files: MemoryCluster) -> None:
        self._files = files
        self.broken = self.unreached = 0
        self.asked: list[tuple[ByteRange, ...]] = []

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = 0) -> Arrived:
        if self.unreached:
            self.unreached -= 1
            raise CheloniaError(Kind.TIMEOUT, cause="no connection in time")
        data = b"".join([chunk async for chunk in body])
        if self.broken:
            self.broken -= 1
            raise CheloniaError(Kind.NETWORK, cause="the Shepherd died")
        assert size in (-1, len(data))
        return self._files.arrive(placed, data)

    async def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        source, *_ = sources
        self.asked.append(spans)
        for span in spans:
            yield self._files.bytes_of(source)[span.offset : span.offset + span.length]


@dataclass
class Seen:
    """An answer, whole."""

    status: int
    headers: CIMultiDict[str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Bench:
    """A door with an empty cluster, and one way to send requests."""

    def __init__(self, third: ThirdParty | None = None) -> None:
        self.files = MemoryCluster(JOE)
        self.bytes = MemoryBytes(self.files)
        self.parts = door_parts(self.files, self.bytes, Dn("/CN=front"), 2, third=third)
        self.clock = SystemClock()
        registry = RoleRegistry((), None, self.clock)
        self.revoked: set[str] = set()
        kept, other = AsyncMock(), Issuers((), self.clock).call_of
        month_ms, revoked = 30 * 24 * 3_600_000, self.revoked.__contains__
        self.bearers = Bearers(registry, KEY, self.clock, month_ms, revoked, kept, other)
        self.door = PlainDoor(self.parts, self.bearers.call_of, Metrics())

    def ask(self, method: str, path: str, body: bytes = b"", dn: Dn = JOE, **headers: str) -> Seen:
        return asyncio.run(self.look(method, path, body, dn, **headers))

    def exchange(self, method: str, path: str, dn: Dn = JOE, **headers: str) -> Exchange:
        return Exchange(self._request(method, path, b"", dn, headers), Call(dn=dn), place_of(path))

    def _request(self, method: str, path: str, body: bytes, dn: Dn, headers: dict[str, str]) -> HttpRequest:
        async def chunks() -> AsyncIterator[bytes]:
            if body:
                yield body

        path, _, query = path.partition("?")
        fields = CIMultiDict({"Host": "se:1", **{name.replace("_", "-"): value for name, value in headers.items()}})
        asked = dict(parse_qsl(query, keep_blank_values=True))
        return HttpRequest(
            method, path, asked, fields, Peer(dn), chunks(), len(body), "request"
        )  # fmt: skip

    async def look(self, method: str, path: str, body: bytes = b"", dn: Dn = JOE, **headers: str) -> Seen:
        answer = await self.door.serve(self._request(method, path, body, dn, headers))
        told: Any = answer.body
        whole = told if isinstance(told, bytes) else b"".join([chunk async for chunk in told])
        return Seen(answer.status, CIMultiDict(answer.headers), whole)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_one_front_end_has_acknowledged_the_next_one_tells(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid job stores by one of several hosts of one name, and looks, moves and compares by the next."""
    strong, target = noted(bench.files, monkeypatch), "https://se:1/d/g"
    for method, path in [
        ("MKCOL", "/d"), ("PUT", "/d/f"), ("HEAD", "/d/f"), ("GET", "/d/f"), ("GET", "/d"), ("PROPFIND", "/d"),
        ("COPY", "/d/f"), ("MOVE", "/d/f"), ("LOCK", "/d/new"), ("DELETE", "/d"),
    ]:  # fmt: skip
        before = len(strong)
        assert bench.ask(method, path, b"x" if method == "PUT" else b"", Destination=target).status != 500
        assert strong[before:], (method, path)
        assert all(strong[before:]), (method, path)


@pytest.mark.parametrize("url", ["https://[bad/x", "https://se\u2100/x"])
def test_what_is_no_url_is_the_clients_mistake(bench: Bench, url: str) -> None:
    bench.ask("PUT", "/f", b"x")
    form = {"Content_Type": "multipart/form-data; boundary=b", "Origin": url}
    assert bench.ask("COPY", "/f", Destination=url).status == 400
    assert bench.ask("MOVE", "/f", Destination=url).status == 400
    assert bench.ask("PUT", "/f", b"y", If=f"<{url}> (<urn:a>)").status == 412
    assert bench.ask("POST", "/", b"", **form).status == 400


def test_a_refusal_may_quote_bytes_that_are_not_utf_8(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"x")
    answer = bench.ask("MOVE", "/f", Destination="https://\udcff/")
    assert answer.status == 409
    assert b"is on \\udcff" in answer.body


def test_a_path_that_is_no_text_is_not_another_name(bench: Bench) -> None:
    """The server decodes only UTF-8, so that `%ff` and `%25ff` came as the same path."""
    for target, status in (("/%25ff", 201), ("/%ff", 400), ("/%25ff?a=%ff", 204), ("/%ff/x", 400)):
        request = replace(bench._request("PUT", "/%ff", b"x", JOE, {}), target=target)
        assert asyncio.run(bench.door.serve(request)).status == status


def listed(bench: Bench, path: str) -> list[str]:
    return bench.ask("GET", path, User_Agent="curl/8").text.split("\n")[:-1]


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_a_file_is_put_and_got(bench: Bench) -> None:
    made = bench.ask("PUT", "/f", b"hello")
    assert made.status == 201
    got = bench.ask("GET", "/f")
    assert (got.status, got.body, got.headers["ETag"]) == (200, b"hello", made.headers["ETag"])
    assert bench.ask("PUT", "/f", b"again").status == 204
    assert bench.ask("HEAD", "/f").body == b""


def test_ranges_come_in_the_order_asked(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"0123456789")
    one = bench.ask("GET", "/f", Range="bytes=2-4")
    assert (one.status, one.body, one.headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    several = bench.ask("GET", "/f", Range="bytes=7-9, 0-1")
    assert several.status == 206
    assert several.text.index("bytes 7-9/10") < several.text.index("bytes 0-1/10")
    beyond = bench.ask("GET", "/f", Range="bytes=10-")
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, "bytes */10")
    etag = bench.ask("HEAD", "/f").headers["ETag"]
    assert bench.ask("GET", "/f", Range="bytes=0-0", If_Range=etag).status == 206
    assert bench.ask("GET", "/f", Range="bytes=0-0", If_Range='"other"').status == 200


def test_a_part_is_put_over_a_file_or_appended_to_it(bench: Bench) -> None:
    whole = bench.ask("PUT", "/f", b"0123456789").headers["ETag"].strip('"')
    etag = bench.ask("PUT", "/f", b"XY", Content_Range="bytes 4-5/10").headers["ETag"]
    assert bench.ask("GET", "/f").body == b"0123XY6789"
    assert bench.ask("PUT", "/f", b"ab", Content_Range="bytes 10-11/*", If_Match=etag).status == 204
    assert bench.ask("PUT", "/f", b"ab", Content_Range="bytes 12-13/*", If_Match=etag).status == 412
    assert bench.ask("PUT", "/f", b"!", Content_Range="bytes 15-15/16").status == 204
    got = bench.ask("GET", "/f")
    assert got.body == b"0123XY6789ab\0\0\0!"
    assert bench.ask("GET", "/f", Range="bytes=11-14").body == b"b\0\0\0"
    assert bench.ask("GET", "/f", Range="bytes=3-4,14-15").text.count("Content-Range") == 2
    bench.ask("COPY", "/f", Destination="https://se:1/g")
    assert bench.ask("GET", "/g").body == got.body
    recorded = [asked.facts.name for each in bench.files.stage.shepherds.values() for asked in each.puts.values()]
    assert {name for name in recorded if "+2: " in name} == {f"piece of {whole}-0 of 10 bytes at 4+2: /f"}
    made = bench.ask("PUT", "/new", b"end", Content_Range="bytes 5-7/8")
    assert (made.status, bench.ask("GET", "/new").body) == (201, b"\0\0\0\0\0end")


def test_a_part_whose_place_is_not_said_is_laid_nowhere(bench: Bench) -> None:
    """In chunked encoding, `bytes */n` gives only the length of the body: the part was laid over the beginning."""
    bench.ask("PUT", "/f", b"0123456789")
    request = bench._request("PUT", "/f", b"XY", JOE, {"Content-Range": "bytes */10"})
    assert asyncio.run(bench.door.serve(replace(request, length=-1))).status == 400
    assert bench.ask("GET", "/f").body == b"0123456789"


def test_what_is_appended_to_a_short_tail_is_what_was_announced(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"0123456789")
    told = {"Content_Range": "bytes 10-11/*", "Content_MD5": base64.b64encode(hashlib.md5(b"ab").digest()).decode()}
    assert bench.ask("PUT", "/f", b"aX", **told).text.startswith("checksum: ")
    assert bench.ask("GET", "/f").body == b"0123456789"
    assert bench.ask("PUT", "/f", b"ab", **told).status == 204
    assert bench.ask("GET", "/f").body == b"0123456789ab"


async def test_an_append_that_another_has_overtaken_is_laid_over_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.look("PUT", "/f", b"0123")
    sent, others = patches.kept_sent, [b"other bytes"]

    async def late(*args: Any) -> tuple[Placed, Arrived]:
        if others:
            await bench.look("PUT", "/f", others.pop(), Content_Range="bytes 4-14/*")
        return await sent(*args)

    monkeypatch.setattr(patches, "kept_sent", late)
    assert (await bench.look("PUT", "/f", b"own", Content_Range="bytes 4-6/*")).status == 204
    assert bench.files.data("/f") == b"0123owner bytes"


def test_many_appends_leave_few_blobs_and_many_extents_are_read_in_pages(bench: Bench) -> None:
    whole = b"".join(b"line %d\n" % n for n in range(200))
    for line in whole.splitlines(keepends=True):
        at = len(bench.ask("GET", "/log").body) if line != b"line 0\n" else 0
        where = f"bytes {at}-{at + len(line) - 1}/*"
        assert bench.ask("PUT", "/log", line, Content_Range=where).status in (201, 204)
    assert bench.ask("GET", "/log").body == whole
    assert len(bench.files.looked("/log", Want.EXTENTS).extents) == 1
    for at in range(0, 200, 2):
        assert bench.ask("PUT", "/log", b"#", Content_Range=f"bytes {at}-{at}/*").status == 204
    assert len(bench.files.looked("/log", Want.EXTENTS).extents) == bounds.EXTENTS_PAGE < 200
    assert bench.ask("GET", "/log").body == bytes(b if n % 2 or n >= 200 else 35 for n, b in enumerate(whole))
    assert bench.ask("GET", "/log", Range="bytes=150-160").body == bytes(
        b if n % 2 else 35 for n, b in enumerate(whole)
    )[150:161]  # fmt: skip


@pytest.mark.parametrize("value", ["", " ", ","])
@pytest.mark.parametrize("name", ["If_Match", "If_None_Match"])
def test_a_condition_that_names_nothing_is_no_leave_to_overwrite(bench: Bench, name: str, value: str) -> None:
    bench.ask("PUT", "/f", b"1")
    assert bench.ask("PUT", "/f", b"2", **{name: value}).status == 400
    assert bench.ask("GET", "/f").body == b"1"


def test_conditions(bench: Bench) -> None:
    etag = bench.ask("PUT", "/f", b"1").headers["ETag"]
    assert bench.ask("GET", "/f", If_None_Match=etag).status == 304
    assert bench.ask("GET", "/f", If_Match='"other"').status == 412
    assert bench.ask("PUT", "/f", b"2", If_None_Match="*").status == 412
    assert bench.ask("PUT", "/f", b"2", If_Match='"other"').status == 412
    assert bench.ask("PUT", "/g", b"2", If_Match="*").status == 412
    assert bench.ask("PUT", "/f", b"2", If_Match=f"W/{etag}").status == 412, "RFC 9110 section 13.1.1"
    assert bench.ask("PUT", "/f", b"2", If_Match=etag).status == 204
    assert bench.ask("DELETE", "/f", If_Match=etag).status == 412
    assert bench.ask("GET", "/f").body == b"2"


@pytest.mark.parametrize("method", ["COPY", "MOVE"])
def test_conditions_of_a_copy_or_move_are_about_its_source(bench: Bench, method: str) -> None:
    etag = bench.ask("PUT", "/f", b"1").headers["ETag"]
    bench.ask("PUT", "/g", b"2")
    for refused in ({"If_Match": '"other"'}, {"If_None_Match": etag}):
        assert bench.ask(method, "/f", Destination="/g", **refused).status == 412, refused
        assert bench.ask("GET", "/g").body == b"2", "nothing has made way for it"
    assert bench.ask(method, "/f", Destination="/g", If_Match=etag).status == 204


def test_a_crc_that_is_sent_is_compared(bench: Bench) -> None:
    for wrong, right in (
        ({"Digest": "crc32c=9a71bb4d"}, {"Digest": "crc32c=9a71bb4c"}),
        ({"Repr_Digest": "crc64nvme=:M3eFcAZSQlY=:"}, {"Repr_Digest": "crc64nvme=:M3eFcAZSQlc=:"}),
    ):
        assert bench.ask("PUT", "/f", b"hello", **wrong).text.startswith("checksum: "), wrong
        assert bench.ask("GET", "/f").status == 404
        assert bench.ask("PUT", "/f", b"hello", **right).status == 201
        bench.ask("DELETE", "/f")


def test_checksums_that_are_asked_for_are_measured(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"hello")
    for method in ("HEAD", "GET"):
        told = bench.ask(method, "/f", Want_Digest="adler32, crc32c, md5;q=0.5, crc;q=1")
        assert "crc32c=9a71bb4c" in told.headers["Digest"]
        assert "adler32=062c0215" in told.headers["Digest"]
        assert "md5=XUFAKrxLKna5cZ2REBfFkg==" in told.headers["Digest"]
    told = bench.ask("HEAD", "/f", Want_Repr_Digest="md5=1")
    assert "md5=:XUFAKrxLKna5cZ2REBfFkg==:" in told.headers["Repr-Digest"]


async def test_a_checksum_is_of_the_bytes_that_the_etag_names(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.look("PUT", "/f", b"hello")
    looked = measuring.look

    async def late(parts: DoorParts, call: Call, place: LogicalName, want: Want) -> Looked:
        if want is Want.SOURCES:
            await bench.look("PUT", "/f", b"world")
        return await looked(parts, call, place, want)

    monkeypatch.setattr(measuring, "look", late)
    before = (await bench.look("HEAD", "/f")).headers
    after = (await bench.look("HEAD", "/f", Want_Digest="crc32c")).headers
    assert (after["ETag"], after["Digest"]) == (before["ETag"], before["Digest"])


async def test_an_upload_whose_answer_is_late_has_not_the_etag_of_others_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = bench.files.apply

    async def repeated(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        monkeypatch.setattr(bench.files, "apply", apply)
        await apply(call, changes)
        await bench.look("PUT", "/f", b"others")
        return await apply(call, changes)

    monkeypatch.setattr(bench.files, "apply", repeated)
    told = await bench.look("PUT", "/f", b"own")
    assert (told.status, told.headers.get("ETag"), bench.files.data("/f")) == (204, None, b"others")


def test_several_ranges_of_a_blob_are_one_question(bench: Bench) -> None:
    large = bytes(range(256)) * 400
    bench.ask("PUT", "/f", large)
    got = bench.ask("GET", "/f", Range="bytes=100000-100002,0-1,-3")
    assert got.status == 206
    assert [part[:-2].partition(b"\r\n\r\n")[2] for part in got.body.split(b"--chelonia-")[1:-1]] == [
        large[100000:100003], large[:2], large[-3:],
    ]  # fmt: skip
    assert len(got.body) == int(got.headers.get("Content-Length", len(got.body)))
    assert bench.ask("GET", "/f", Range="bytes=" + ",".join(["-1"] * 600)).body.count(large[-1:] + b"\r\n--") == 600
    assert [len(spans) for spans in bench.bytes.asked] == [3, 256, 256, 88], "as many as one request may name"


def test_an_upload_that_is_kept_outlives_a_shepherd_that_fails(bench: Bench) -> None:
    kept = bytes(bounds.INLINE_BYTES_MAX + 1)
    bench.bytes.broken = 2
    assert bench.ask("PUT", "/f", kept).status == 201
    bench.bytes.broken = 3
    assert bench.ask("PUT", "/g", kept).status == 502
    assert listed(bench, "/") == ["f"]


def test_an_upload_is_kept_while_it_is_sent_on_as_far_as_there_is_room(bench: Bench) -> None:
    part = secrets.token_bytes(bounds.KEPT_AT_DOORS_BYTES)
    bench.bytes.broken = 2
    assert bench.ask("PUT", "/f", part).status == 201
    assert bench.ask("GET", "/f?proxy").body == part
    bench.bytes.broken = 1
    bench.parts.room.free = len(part) - 1
    assert bench.ask("PUT", "/g", part).status == 502
    assert listed(bench, "/") == ["f"]
    assert bench.parts.room.free == len(part) - 1, "what was kept is let go"


def test_a_large_upload_goes_elsewhere_until_its_first_byte_is_taken(bench: Bench) -> None:
    large = bytes(bounds.KEPT_AT_DOORS_BYTES + 1)
    bench.bytes.unreached = 2
    assert bench.ask("PUT", "/f", large).status == 201
    bench.bytes.broken = 1
    assert bench.ask("PUT", "/g", large).status == 502
    bench.bytes.unreached = 3
    assert bench.ask("PUT", "/g", large).status == 408
    assert listed(bench, "/") == ["f"]


def test_small_files_need_no_connection_of_their_own(bench: Bench) -> None:
    bench.bytes.broken = 1
    assert bench.ask("PUT", "/f", b"hello").status == 201
    got = bench.ask("GET", "/f", Range="bytes=1-2")
    assert (got.status, got.body) == (206, b"el")
    assert bench.ask("GET", "/f").body == b"hello"
    assert bench.bytes.broken == 1


def test_large_files_go_straight_to_who_follows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.ask("PUT", "/big", b"x" * 300_000)
    bench.files.allow("/big", ANONYMOUS="+read")
    asked, look = list[tuple[Dn, Dn]](), bench.files.look

    async def looked(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        asked.append((call.dn, call.carrier))
        return await look(call, asks)

    monkeypatch.setattr(bench.files, "look", looked)
    assert bench.ask("GET", "/big").status == 307
    assert asked[-1] == (JOE, ""), "the ticket is bound to his certificate"
    for path, agent in (("/big", "libdavix/0.8"), ("/big?redirect", "curl/8")):
        sent = bench.ask("GET", path, dn=ANONYMOUS, User_Agent=agent)
        assert (sent.status, sent.headers["Location"].endswith("&name=big")) == (307, True)
        assert asked[-1] == (ANONYMOUS, ANONYMOUS), "it is good for whoever has it"
    assert bench.ask("GET", "/big?proxy", dn=ANONYMOUS, User_Agent="libdavix/0.8").status == 200
    assert bench.ask("GET", "/big", User_Agent="curl/8").status == 200
    assert bench.ask("GET", "/big", User_Agent=COPIER).status == 200
    assert bench.ask("GET", "/big?proxy").status == 200
    assert bench.ask("GET", "/big", dn=ANONYMOUS).status == 200


@pytest.mark.parametrize("change", [("DELETE", b""), ("PUT", b"y", "bytes 0-0/*"), ("PUT", b"y" * 300_000)])
def test_a_file_that_changes_while_its_reader_is_sent_on_is_an_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, change: tuple[Any, ...]
) -> None:
    """Between the two looks a writer removed or overwrote it, or laid a part over it. Then no single TURL has its bytes
    any more."""
    etag = bench.ask("PUT", "/big", b"x" * 300_000).headers["ETag"]
    look, tries = bench.files.look, 0

    async def looked(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        nonlocal tries
        tries += 1
        if tries == 2:
            more = {"Content_Range": change[2]} if len(change) > 2 else {}
            await bench.look(change[0], "/big", change[1], **more)
        return await look(call, asks)

    monkeypatch.setattr(bench.files, "look", looked)
    got = bench.ask("GET", "/big", If_Match=etag, Range="bytes=0-1")
    assert (got.status, got.body[:2]) == ((404, b"no") if change[0] == "DELETE" else (206, b"xx")), (
        "as it was asked for"
    )


def test_a_large_upload_goes_straight_to_a_shepherd_of_who_follows_and_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    big, waits = b"x" * 300_000, {"Expect": "100-continue"}
    asked, place = list[tuple[Dn, Placing]](), bench.files.place

    async def placed(call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        asked.extend((call.carrier, ask) for ask in asks)
        return await place(call, asks)

    monkeypatch.setattr(bench.files, "place", placed)
    sent = bench.ask("PUT", "/new", big, User_Agent="libdavix/0.8", X_OC_Mtime="12", **waits)
    assert sent.status == 307
    assert asked == [("", Placing(place_of("/new"), 300_000, wanted=2, reserving=asked[0][1].reserving))], "his own"
    bench.files.arrive(Placed(sent.headers["Location"], ""), big)
    told = bench.ask("HEAD", "/new").headers
    assert (told["Last-Modified"], bench.ask("GET", "/new?proxy").body) == ("Thu, 01 Jan 1970 00:00:12 GMT", big)
    bench.files.allow("/", ANONYMOUS="+addEntry")
    assert bench.ask("PUT", "/nobodys", big, dn=ANONYMOUS, User_Agent="ARC", **waits).status == 307
    assert asked[-1][0] == ANONYMOUS, "the ticket is good for whoever has it"
    bench.files.allow("/", ANONYMOUS=None)
    assert bench.ask("PUT", "/new?redirect", big, User_Agent="curl/8", **waits).status == 307
    for path, body, headers in (
        ("/small", b"x", {"User_Agent": "ARC", **waits}),
        ("/proxied?proxy", big, {"User_Agent": "ARC", **waits}),
        ("/at-once", big, {"User_Agent": "ARC"}),
        ("/curl", big, {"User_Agent": "curl/8", **waits}),
    ):
        assert bench.ask("PUT", path, body, **headers).status == 201
    assert bench.ask("PUT", "/new", big, dn=ANONYMOUS, User_Agent="ARC", **waits).status == 401
    assert bench.ask("PUT", "/small", big, User_Agent="ARC", **waits).status == 307
    for condition in ({"If_Match": "*"}, {"If_None_Match": '"x"'}):
        assert bench.ask("PUT", "/small", big, User_Agent="ARC", **condition, **waits).status == 204
    bench.ask("LOCK", "/small", LOCKED)
    assert bench.ask("PUT", "/small", big, User_Agent="ARC", **waits).status == 423


def test_who_wants_no_other_file_overwritten_is_sent_on_for_a_name_that_is_free_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone may make it after the look: the Shepherd that commits the bytes would not know of the condition."""
    place = bench.files.place

    async def placed(call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        monkeypatch.setattr(bench.files, "place", place)
        await bench.look("PUT", "/new", b"theirs")
        return await place(call, asks)

    monkeypatch.setattr(bench.files, "place", placed)
    headers = {"User_Agent": "ARC", "Expect": "100-continue", "If_None_Match": "*"}
    assert bench.ask("PUT", "/new", b"x" * 300_000, **headers).status == 412
    assert bench.ask("GET", "/new").body == b"theirs"


LOCKED = (
    b"<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockinfo>"
)


def test_what_cannot_be_put(bench: Bench) -> None:
    bench.ask("MKCOL", "/d")
    assert bench.ask("PUT", "/f", b"x", Content_Range="bytes 0-0/2").status == 400
    assert bench.ask("PUT", "/f", b"x", Content_Range="bytes 0-1/2").status == 400
    assert bench.ask("PUT", "/f", b"x", Content_Range="bytes */2").status == 400
    assert bench.ask("PUT", "/f", b"x", Content_Range="lines 0-0/*").status == 416
    assert bench.ask("PUT", "/f", b"x", Content_Range=f"bytes {2**63}-{2**63}/*").status == 400
    assert bench.ask("PUT", "/f/", b"x").status == 409
    assert bench.ask("PUT", "/d", b"x").status == 409
    assert bench.ask("PUT", "/no/f", b"x").status == 409
    assert bench.ask("PUT", "/f", b"x", dn=EVE).status == 403
    assert listed(bench, "/") == ["d/"]


def test_a_hole_of_any_size_is_read_in_part_copied_and_gone(bench: Bench) -> None:
    size = 2**63 - 1
    assert bench.ask("PUT", "/f", b"abc", Content_Range=f"bytes {size - 3}-{size - 1}/*").status == 201
    assert bench.ask("PUT", "/f", b"d", Content_Range=f"bytes {size}-{size}/*").status == 400
    assert bench.ask("COPY", "/f", Destination="https://se:1/g").status == 201
    for name in ("/f", "/g"):
        told = bench.ask("GET", name, Range="bytes=-5", Want_Digest="sha-256,adler32")
        assert (told.status, told.body, told.headers.get("Digest")) == (206, b"\0\0abc", None)
        assert told.headers["Content-Range"] == f"bytes {size - 5}-{size - 1}/{size}"
        assert str(size) in bench.ask("PROPFIND", name, Depth="0").text
        assert bench.ask("DELETE", name).status == 204


def test_bodies_of_users_run_nowhere(bench: Bench) -> None:
    bench.ask("PUT", "/evil.html", b"<script>alert(1)</script>")
    got = bench.ask("GET", "/evil.html")
    assert got.headers["Content-Security-Policy"].startswith("sandbox")
    assert got.headers["X-Content-Type-Options"] == "nosniff"


# --- the namespace --------------------------------------------------------------------------------------------------


def test_trees_are_moved_copied_and_removed(bench: Bench) -> None:
    for path in ("/a", "/a/b"):
        assert bench.ask("MKCOL", path).status == 201
    bench.ask("PUT", "/a/b/f", b"bytes")
    assert bench.ask("COPY", "/a", Destination="https://se:1/c/").status == 201
    assert bench.ask("GET", "/c/b/f").body == b"bytes"
    assert bench.ask("MOVE", "/a", Destination="/c").status == 204
    assert listed(bench, "/") == ["c/"]
    assert bench.ask("MOVE", "/c", Destination="/c/b/inside").status == 403
    assert bench.ask("DELETE", "/c").status == 204
    assert listed(bench, "/") == []
    assert bench.ask("DELETE", "/").status == 403


@pytest.mark.parametrize(
    ("host", "server"), [("se", "https://SE:443"), ("se:443", "https://se"), ("se", "http://se:80")]
)
def test_a_default_port_may_be_said_or_not(bench: Bench, host: str, server: str) -> None:
    bench.ask("PUT", "/f", b"bytes")
    assert bench.ask("COPY", "/f", Host=host, Destination=f"{server}/g").status == 201
    assert bench.ask("MOVE", "/g", Host=host, Destination=f"{server}/h").status == 201
    etag = bench.ask("GET", "/h").headers["ETag"]
    assert bench.ask("PUT", "/f", b"other", Host=host, If=f"<{server}/h> ([{etag}])").status == 204
    assert bench.ask("MOVE", "/h", Host=host, Destination="https://se:80/i").status == 409


@pytest.mark.parametrize("method", ["COPY", "MOVE"])
def test_what_is_in_the_destination_is_not_cleared_away_for_it(bench: Bench, method: str) -> None:
    bench.ask("MKCOL", "/a")
    bench.ask("PUT", "/a/f", b"bytes")
    bench.ask("PUT", "/a/g", b"beside it")
    assert bench.ask(method, "/a/f", Destination="/a").status == 403
    assert listed(bench, "/a/") == ["f", "g"]


async def test_a_file_that_moves_to_another_of_its_names_has_that_alone(bench: Bench) -> None:
    await bench.look("PUT", "/f", b"bytes")
    await apply(bench.parts, Call(dn=JOE), Move(place_of("/f"), place_of("/g"), keep=True))
    assert (await bench.look("MOVE", "/f", Destination="/g")).status == 204
    assert (await bench.look("GET", "/g")).body == b"bytes"
    assert (await bench.look("GET", "/f")).status == 404


def test_a_copy_moves_no_bytes_unless_it_has_to(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.ask("PUT", "/a", b"bytes")
    bench.bytes.broken = 1
    assert bench.ask("COPY", "/a", Destination="https://se:1/b").status == 201
    assert bench.bytes.broken == 1
    bench.ask("DELETE", "/a")
    assert bench.ask("GET", "/b").body == b"bytes"

    monkeypatch.setattr(bounds, "BLOB_OWNERS_MAX", 1)
    bench.bytes.broken = 0
    assert bench.ask("COPY", "/b", Destination="https://se:1/c").status == 201
    assert bench.ask("GET", "/c").body == b"bytes"


def test_overwrite_is_the_clients_to_forbid(bench: Bench) -> None:
    bench.ask("PUT", "/a", b"a")
    bench.ask("PUT", "/b", b"b")
    for method in ("COPY", "MOVE"):
        assert bench.ask(method, "/a", Destination="/b", Overwrite="F").status == 412
    assert bench.ask("GET", "/b").body == b"b"
    assert bench.ask("COPY", "/a", Destination="davs://se:1/b").status == 204
    assert bench.ask("GET", "/b").body == b"a"


async def test_a_copy_goes_over_nothing_that_has_come_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.look("PUT", "/a", b"a")
    copied = changes._copy_tree

    async def late(*asked: Any, **more: Any) -> None:
        await bench.look("PUT", "/b", b"b")
        await copied(*asked, **more)

    monkeypatch.setattr(changes, "_copy_tree", late)
    assert (await bench.look("COPY", "/a", Destination="/b", Overwrite="F")).status == 412
    assert (await bench.look("GET", "/b")).body == b"b"


def test_what_mkcol_refuses(bench: Bench) -> None:
    assert bench.ask("MKCOL", "/a/b").status == 409
    assert bench.ask("MKCOL", "/a", b"<x/>").status == 415
    assert bench.ask("MKCOL", "/a", If_Match="*").status == 412
    bench.ask("MKCOL", "/a")
    assert bench.ask("MKCOL", "/a").status == 405
    assert bench.ask("COPY", "/a", Destination="/b", Depth="1").status == 400


@pytest.mark.parametrize("target", ["", "https://other:1/b", "https://\udcff/b", "https://se:1/b?x=1", "/%ff", "/../b"])
def test_destinations_that_are_refused(bench: Bench, target: str) -> None:
    bench.ask("PUT", "/a", b"a")
    assert 400 <= bench.ask("MOVE", "/a", Destination=target).status < 500
    assert listed(bench, "/") == ["a"]


@pytest.mark.parametrize("path", ["/../etc", "/a/../b", "/a\x00b", "/a\nb", "/" + "x" * 256])
def test_names_that_are_none(bench: Bench, path: str) -> None:
    assert bench.ask("PUT", path, b"x").status == 400
    assert bench.ask("GET", path).status == 400


def test_a_path_never_names_an_entry_by_its_guid(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"x")
    assert bench.ask("GET", f"/{bench.files.guid('/f')}").status == 404


# --- properties and pages -------------------------------------------------------------------------------------------


def responses(seen: Seen) -> dict[str, etree._Element]:
    assert seen.status == 207, seen
    root = etree.fromstring(seen.body)
    return {r.findtext(f"{DAV}href") or "": r for r in root}


@pytest.mark.parametrize("together", [1, properties.TOGETHER_BYTES])
def test_propfind_tells_an_entry_or_a_collection(bench: Bench, monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(properties, "TOGETHER_BYTES", together)
    bench.ask("MKCOL", "/d")
    bench.ask("PUT", "/d/a&b", b"12345")
    found = responses(bench.ask("PROPFIND", "/d", Depth="1"))
    assert list(found) == ["/d/", "/d/a%26b"]
    assert found["/d/a%26b"].findtext(f".//{DAV}getcontentlength") == "5"
    assert found["/d/"].find(f".//{DAV}resourcetype/{DAV}collection") is not None
    assert found["/d/"].find(f".//{DAV}getcontenttype") is None
    for name in ("a&b", "t.HTML", "t.tar.gz", "no.such"):
        bench.ask("PUT", f"/d/{name}", b"1")
        ((_, told),) = responses(bench.ask("PROPFIND", f"/d/{name}", Depth="0")).items()
        assert told.findtext(f".//{DAV}getcontenttype") == bench.ask("GET", f"/d/{name}").headers["Content-Type"]
    assert list(responses(bench.ask("PROPFIND", "/d", Depth="0"))) == ["/d/"]
    assert bench.ask("PROPFIND", "/d").status == 403
    assert bench.ask("PROPFIND", "/no", Depth="0").status == 404


def test_quota_properties_are_told_of_collections_where_they_are_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ask("MKCOL", "/d")
    names = "<D:quota-available-bytes/><D:quota-used-bytes/>"
    asked = f'<D:propfind xmlns:D="DAV:"><D:prop>{names}</D:prop></D:propfind>'.encode()

    def told(path: str, body: bytes = asked) -> list[str | None]:
        (found,) = responses(bench.ask("PROPFIND", path, body, Depth="0")).values()
        return [found.findtext(f".//{DAV}quota-{which}-bytes") for which in ("available", "used")]

    assert told("/d") == [str(3 * GIB // 2), str(9 * GIB // 2)], "half of all, with two copies"
    used = (QuotaUse(Quota(JOE, Guid(""), 100), 40, 1, counted=True),)
    monkeypatch.setattr(bench.files, "space", AsyncMock(return_value=Space(1 << 40, 1 << 40, used)))
    assert told("/d") == ["60", "40"]
    assert told("/d", b"") == [None, None], "RFC 4331: not among all properties"


def test_dead_properties_are_kept_and_live_ones_refused(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"x")
    value = b'<x xmlns="urn:n">a &lt; b</x>'
    set_one = b'<D:propertyupdate xmlns:D="DAV:"><D:set><D:prop>%b</D:prop></D:set></D:propertyupdate>' % value
    assert "200 OK" in bench.ask("PROPPATCH", "/f", set_one).text
    asked = b'<D:propfind xmlns:D="DAV:"><D:prop><x xmlns="urn:n"/><y xmlns="urn:n"/></D:prop></D:propfind>'
    (found,) = responses(bench.ask("PROPFIND", "/f", asked, Depth="0")).values()
    assert found.findtext(".//{urn:n}x") == "a < b"
    live = set_one.replace(value, b"<D:getetag>x</D:getetag>")
    assert "403 Forbidden" in bench.ask("PROPPATCH", "/f", live).text
    bench.files.change(Set(place_of("/f"), user={"d:DAV: getcontentlength": "7"}))  # by another door
    (found,) = responses(bench.ask("PROPFIND", "/f", Depth="0")).values()
    assert found.findtext(f".//{DAV}getcontentlength") == "1"
    bomb = b'<!DOCTYPE x [<!ENTITY a "aa">]><x>&a;</x>'
    assert bench.ask("PROPFIND", "/f", bomb, Depth="0").status == 400


def test_a_page_shows_names_as_text(bench: Bench) -> None:
    bench.ask("PUT", "/<img src=x onerror=alert(1)>", b"x")
    bench.ask("PUT", "/javascript:alert(1)", b"x")
    page = bench.ask("GET", "/", Accept="text/html")
    assert "<img" not in page.text
    assert 'href="javascript%3Aalert%281%29"' in page.text
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    bench.ask("MKCOL", "/d")
    answer = asyncio.run(bench.door.serve(bench._request("HEAD", "/d/", b"", JOE, {})))
    assert answer.length < 0, "HEAD says no length that GET does not have"
    assert (bench.ask("GET", "/d").status, bench.ask("GET", "/d").headers["Location"]) == (301, "/d/")


def test_depth_infinity_is_refused_of_collections_alone(bench: Bench) -> None:
    bench.ask("PUT", "/f", b"x")
    assert bench.ask("PROPFIND", "/f").status == 207
    assert bench.ask("PROPFIND", "/", Depth="infinity").status == 403


def test_methods_that_there_are_not(bench: Bench) -> None:
    assert bench.ask("PATCH", "/f", b"x").status == 405
    assert "PROPFIND" in bench.ask("OPTIONS", "/f").headers["Allow"]


@pytest.mark.parametrize("depth", ["0", "1"])
async def test_a_small_collection_is_answered_with_its_length(bench: Bench, depth: str) -> None:
    """rclone sends one after each PUT, and loses its connection over an answer in chunks."""
    answer = await properties.propfind(bench.parts, bench.exchange("PROPFIND", "/", Depth=depth))
    assert isinstance(answer.body, bytes)
    assert answer.length == len(answer.body) > 0


async def test_a_large_collection_is_answered_page_by_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, listed = 20, 0
    known = Attributes(Guid("0"), "file", 1, JOE, 5, "etag", 10**18, created_ns=10**18)

    async def page(call: Call, ask: Listing) -> Listed:
        nonlocal listed
        listed += 1
        entries = tuple(Named(f"{listed}-{n}", known) for n in range(1000))
        return Listed(entries, str(listed) if listed < pages else "")

    monkeypatch.setattr(bench.files, "list", page)
    answer = await properties.propfind(bench.parts, bench.exchange("PROPFIND", "/", Depth="1"))
    body: Any = answer.body
    size, told = 0, 0
    async for chunk in body:
        assert len(chunk) < 2 * properties.TOGETHER_BYTES
        assert listed <= told // 1000 + 1, "a page is asked for when the one before is on its way"
        told += chunk.count(b"<D:response>")
        size += len(chunk)
    assert (listed, told) == (pages, 1 + 1000 * pages)
    assert size > 5_000_000
