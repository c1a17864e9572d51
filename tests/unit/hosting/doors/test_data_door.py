"""TURLs over HTTP: uploads with resume, downloads with ranges, and their effects on the replica."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, Location, Receipt
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.core.ports.shepherd import Download, Turl, Upload, Uploaded
from chelonia.core.values import replace
from chelonia.hosting.doors.data_door import DataDoor
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import HttpClient, Received, Sending, raise_for_status
from chelonia.hosting.net.http_messages import HttpRequest, Peer, nothing
from chelonia.hosting.transfer.push import HttpTransfers
from tests.support.failing import fails
from tests.unit.hosting.listening import client_of, plain

CONTENT = bytes(range(256)) * 40
SUMS = Checksums(hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest())
BLOB = BlobId("22222222-2222-4222-8222-222222222222")
RECEIPT = Receipt(
    BLOB, Location(ServiceId("https://s/Shepherd"), ReferenceId("r1")), len(CONTENT), SUMS, 1, Ms(5), "signed"
)


@dataclass
class Replica:
    """A data plane with one replica to read (ticket `get`, `once`) and one upload (ticket `put`)."""

    kept: bytes = b""
    total: int = len(CONTENT)
    uploads: list[Upload] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    readable: int = len(CONTENT)
    receipts: tuple[Receipt, ...] = (RECEIPT, RECEIPT)
    spans: tuple[ByteRange, ...] = ()

    async def receive(self, call: Call, upload: Upload) -> Uploaded:
        if upload.turl != Turl("", ReferenceId("r1"), "put"):
            raise CheloniaError(Kind.BAD_TICKET, "PUT", cause="not a ticket to write")
        self.uploads.append(upload)
        if upload.offset != len(self.kept):
            raise CheloniaError(Kind.BAD_RANGE, "PUT", cause="not where it left off")
        async for chunk in upload.body:
            self.kept += chunk
        if len(self.kept) < self.total:
            return Uploaded(False, len(self.kept))
        return Uploaded(True, len(self.kept), self.receipts, "guid-1", SUMS)

    async def offset(self, call: Call, turl: Turl) -> int:
        if turl.ticket != "put":
            raise CheloniaError(Kind.BAD_TICKET, "HEAD", cause="not a ticket at all")
        return -1 if len(self.kept) == self.total else len(self.kept)

    async def open(self, call: Call, turl: Turl) -> Download:
        if turl.reference != "r1" or turl.ticket not in ("get", "once"):
            raise CheloniaError(Kind.BAD_TICKET, "GET", cause="not a ticket to read")
        return Download(len(CONTENT), SUMS, Ms(86_400_000), BLOB, Reader(self), turl.ticket == "once", self.spans)


class Reader:
    """Reads the replica in small chunks."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def read(self, span: ByteRange) -> AsyncIterator[bytes]:
        for start in range(span.offset, span.offset + span.length, 1000):
            if start >= self._replica.readable:
                raise CheloniaError(Kind.NOT_ALIVE, cause="truncated")
            yield CONTENT[start : min(start + 1000, span.offset + span.length)]

    async def checksums(self) -> Checksums:
        return replace(SUMS, crc64nvme="0123456789abcdef")

    async def close(self, *, complete: bool) -> None:
        self._replica.closed.append(complete)


@dataclass
class World:
    """A client, and the TURLs it holds."""

    client: HttpClient
    base: str
    replica: Replica

    def turl(self, ticket: str) -> str:
        return f"{self.base}/turl/r1?ticket={ticket}"

    async def get(self, ticket: str = "get", method: str = "GET", **headers: str) -> Received:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(Sending(method, self.turl(ticket), named))

    async def put(self, body: bytes, **headers: str) -> Received:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(Sending("PUT", self.turl("put"), named, body))


@asynccontextmanager
async def served(replica: Replica | None = None) -> AsyncIterator[World]:
    replica = replica or Replica()
    door = DataDoor(replica, RoleRegistry((), None, SystemClock()), Metrics())
    async with plain(door.serve) as server, client_of(None) as client:
        yield World(client, f"http://127.0.0.1:{server.port}", replica)


# --- GET -----------------------------------------------------------------------------------------------------------


async def test_a_browser_that_was_sent_here_saves_a_file_by_its_name() -> None:
    async with served() as world:
        assert "Content-Disposition" not in (await world.get()).headers
        answer = await world.get("get&name=a%0d%0a%22t%C3%A4.txt")
        saved = "attachment; filename*=UTF-8''a%0D%0A%22t%C3%A4.txt"
        assert (answer.headers["Content-Disposition"], answer.body) == (saved, CONTENT)


async def test_a_turl_for_some_bytes_is_refused_for_others_before_any_are_sent() -> None:
    async with served(Replica(spans=(ByteRange(0, 10), ByteRange(20, 5)))) as world:
        for span in ("", "bytes=0-10", "bytes=-5", "bytes=20-", "bytes=0-9,10-11"):
            answer = await world.get(**({"Range": span} if span else {}))
            assert (answer.status, answer.headers["Chelonia-Error"]) == (403, "bad-ticket"), span
        assert (await world.get(Range="bytes=20-24")).body == CONTENT[20:25]
        several = await world.get(Range="bytes=0-3,20-21")
        assert several.status == 206
        assert CONTENT[20:22] in several.body
    assert world.replica.closed == [False] * 5 + [True] * 2


async def test_a_whole_download_tells_what_it_is() -> None:
    async with served() as world:
        answer = await world.get()
        assert (answer.status, answer.body) == (200, CONTENT)
        assert answer.headers["ETag"] == f'"{BLOB}"'
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert answer.headers["Last-Modified"] == "Fri, 02 Jan 1970 00:00:00 GMT"
        assert "sha-256=:" in answer.headers["Repr-Digest"]
        assert world.replica.closed == [True]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_checksum_that_is_wanted_is_told_out_of_the_record(method: str) -> None:
    async with served() as world:
        wanted = await world.get(method=method, Want_Repr_Digest="crc64nvme=10")
        assert "sha-256=:" in wanted.headers["Repr-Digest"]
        assert "crc64nvme=:ASNFZ4mrze8=:" in wanted.headers["Repr-Digest"]
        for fields in ({}, {"Want_Repr_Digest": "crc64nvme=0"}, {"Want_Repr_Digest": "sha-256=1"}):
            unasked = await world.get(method=method, **fields)
            assert "crc64nvme" not in unasked.headers["Repr-Digest"]


async def test_who_goes_away_while_a_record_is_read_gives_a_single_use_ticket_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = asyncio.Event()

    async def for_ever(_: Reader) -> Checksums:
        reads.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Reader, "checksums", for_ever)
    replica = Replica()
    door = DataDoor(replica, RoleRegistry((), None, SystemClock()), Metrics())
    fields = {"Want-Repr-Digest": "crc64nvme=10"}
    asked = HttpRequest("GET", "/turl/r1", {"ticket": "once"}, fields, Peer(), nothing(), -1, "r")
    serving = asyncio.create_task(door.serve(asked))
    await reads.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert replica.closed == [False]


@pytest.mark.parametrize(
    ("asked", "first", "last"), [("0-0", 0, 0), ("5-9", 5, 9), ("10200-", 10200, 10239), ("-3", 10237, 10239)]
)
async def test_one_range(asked: str, first: int, last: int) -> None:
    async with served() as world:
        answer = await world.get(Range=f"bytes={asked}")
        assert (answer.status, answer.body) == (206, CONTENT[first : last + 1])
        assert answer.headers["Content-Range"] == f"bytes {first}-{last}/10240"


async def test_several_ranges_come_as_parts_of_the_declared_length() -> None:
    async with served() as world:
        answer = await world.get(Range="bytes=0-4,100-104")
        assert answer.status == 206
        kind, _, boundary = answer.headers["Content-Type"].partition("; boundary=")
        assert kind == "multipart/byteranges"
        parts = answer.body.split(f"--{boundary}".encode())[1:-1]
        assert [part.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n") for part in parts] == [
            CONTENT[:5],
            CONTENT[100:105],
        ]
        assert int(answer.headers["Content-Length"]) == len(answer.body)


async def test_a_range_beyond_the_end_is_416_and_gives_the_ticket_back() -> None:
    async with served() as world:
        answer = await world.get(Range="bytes=99999-")
        assert answer.status == 416
        assert answer.headers["Content-Range"] == "bytes */10240"
        assert world.replica.closed == [False]


@pytest.mark.parametrize(("condition", "status"), [(f'"{BLOB}"', 206), ('"other"', 200)])
async def test_if_range_decides_between_part_and_whole(condition: str, status: int) -> None:
    async with served() as world:
        assert (await world.get(Range="bytes=0-4", If_Range=condition)).status == status


@pytest.mark.parametrize("span", ["", "bytes=0-4", "bytes=99999-"])
async def test_a_known_entity_is_not_sent_again(span: str) -> None:
    """This holds for a part of it, too (RFC 9110, section 13.2.2)."""
    async with served() as world:
        answer = await world.get(If_None_Match=f'W/"x", "{BLOB}"', **({"Range": span} if span else {}))
        assert (answer.status, answer.body) == (304, b"")
        assert world.replica.closed == [False]


async def test_a_ticket_for_one_full_body_has_no_ranges() -> None:
    async with served() as world:
        answer = await world.get("once", Range="bytes=0-4")
        assert (answer.status, answer.body) == (200, CONTENT)


async def test_a_truncated_replica_cuts_the_answer_and_is_released_as_incomplete() -> None:
    async with served(Replica(readable=2000)) as world:
        with fails(Kind.NETWORK):
            await world.get()
        assert world.replica.closed == [False]


@pytest.mark.parametrize("asked", [{}, {"Range": "bytes=0-4"}, {"Range": "bytes=0-4,7-8"}])
async def test_a_replica_that_cannot_be_read_is_refused_before_anything_is_sent(asked: dict[str, str]) -> None:
    async with served(Replica(readable=0)) as world:
        answer = await world.get(**asked)
        assert (answer.status, answer.headers["Chelonia-Error"]) == (503, "not-alive")
        assert answer.headers["Retry-After"] == "1"
        assert world.replica.closed == [False]


async def test_head_describes_without_using_the_ticket_up() -> None:
    async with served() as world:
        answer = await world.get("once", "HEAD")
        assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "10240")
        assert world.replica.closed == [False]


# --- PUT -----------------------------------------------------------------------------------------------------------


async def test_a_whole_upload_answers_with_receipts() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield CONTENT[:5000]
        yield CONTENT[5000:]

    async with served() as world:
        done = await HttpTransfers(world.client).push(world.turl("put"), body(), len(CONTENT))
        assert world.replica.kept == CONTENT
        assert done == Uploaded(True, len(CONTENT), (RECEIPT, RECEIPT), "guid-1", SUMS)
        assert await HttpTransfers(world.client).offset(world.turl("put")) == -1


async def test_receipts_of_all_copies_there_may_be_reach_the_sender() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield CONTENT

    signed = replace(RECEIPT, signature="s" * 684)  # by an RSA key of 4 096 bits
    async with served(Replica(receipts=(signed,) * bounds.RECEIPTS_MAX)) as world:
        done = await HttpTransfers(world.client).push(world.turl("put"), body(), len(CONTENT))
        assert done.receipts == world.replica.receipts


async def test_an_upload_goes_on_where_it_broke_off() -> None:
    async def rest() -> AsyncIterator[bytes]:
        yield CONTENT[4000:]

    async with served() as world:
        first = await world.put(CONTENT[:4000], Content_Range="bytes 0-3999/10240")
        assert (first.status, first.headers["Chelonia-Offset"], first.headers["Range"]) == (308, "4000", "bytes=0-3999")
        transfers = HttpTransfers(world.client)
        assert await transfers.offset(world.turl("put")) == 4000
        done = await transfers.push(world.turl("put"), rest(), 6240, 4000)
        assert done.complete
        assert world.replica.kept == CONTENT
        assert [(u.offset, u.length, u.total) for u in world.replica.uploads] == [(0, 4000, 10240), (4000, 6240, 10240)]


async def test_a_resume_from_the_wrong_place_is_refused() -> None:
    async with served() as world:
        answer = await world.put(CONTENT[4000:], Content_Range="bytes 4000-10239/10240")
        with fails(Kind.BAD_RANGE):
            raise_for_status(answer.status, answer.headers, answer.body)


@pytest.mark.parametrize("claimed", ["bytes 0-9/10240", "bytes 9-0/20", "chars 0-9/10", "bytes */10240"])
async def test_a_content_range_that_does_not_fit_its_body_is_refused(claimed: str) -> None:
    async with served() as world:
        answer = await world.put(b"five!", Content_Range=claimed)
        assert answer.status == 416
        assert not world.replica.uploads


@pytest.mark.parametrize(("claimed", "body"), [("bytes 0-4/*", b"five!"), ("bytes */*", b"")])
async def test_a_piece_of_a_whole_of_unknown_size_does_not_complete_an_upload(claimed: str, body: bytes) -> None:
    """It would be the whole file, for a TURL of unknown size; without bytes an empty one."""
    async with served() as world:
        answer = await world.put(body, Content_Range=claimed)
        assert (answer.status, answer.headers["Chelonia-Error"]) == (416, "bad-range")
        assert not world.replica.uploads


async def test_checksums_sent_along_reach_the_shepherd() -> None:
    async with served() as world:
        md5 = "sQqNsWTgdUEFt6mb5y4/5Q=="
        await world.put(CONTENT, Content_MD5=md5, Digest="adler32=46dacfdc")
        (upload,) = world.replica.uploads
        assert upload.announced == Checksums(md5="b10a8db164e0754105b7a99be72e3fe5", adler32="46dacfdc")
        assert (await world.put(CONTENT, Content_MD5="rubbish")).status == 400


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "status"), [("GET", 403), ("HEAD", 403), ("PUT", 403), ("DELETE", 405), ("POST", 405)]
)
async def test_a_wrong_ticket_or_method_is_refused_by_status(method: str, status: int) -> None:
    async with served() as world:
        for ticket in ("", "nonsense"):
            answer = await world.client.request(Sending(method, world.turl(ticket)))
            assert answer.status == status
            assert b"nonsense" not in answer.body


async def test_the_log_never_shows_a_ticket(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with served() as world:
        await world.get("s3cret")
    assert "refused GET path='/turl/r1" in caplog.text
    assert "s3cret" not in caplog.text


class Busy(Replica):
    """A Shepherd without a place for one more repair copy."""

    async def receive(self, call: Call, upload: Upload) -> Uploaded:
        raise CheloniaError(Kind.BUSY, "PUT", "https://s/Shepherd", "it has 4 repair copies under way")


@pytest.mark.parametrize("pause_s", [0, 0.02], ids=["fast", "paced"])
async def test_who_pushes_a_large_copy_is_told_that_the_other_is_busy(pause_s: float) -> None:
    """An error of a broken connection would have counted as a failed copy."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(400):
            yield bytes(1 << 16)
            await asyncio.sleep(pause_s)

    async with served(Busy()) as world:
        with fails(Kind.BUSY):
            await HttpTransfers(world.client).push(world.turl("put"), body(), 400 << 16)
