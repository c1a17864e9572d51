"""A door's reads from Shepherds: it verifies all bytes of a blob, and continues on another replica after a wrong
one."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import pytest
from awscrt import checksums

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Location, Receipt
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.core.ports.files import Placed
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import ClientLimits, HttpClient, Received, RoundTrips, Sending
from chelonia.hosting.transfer.front import HttpBytes
from chelonia.wire import receipts
from chelonia.wire.web.digests import digest_headers
from chelonia.wire.web.headers import ERROR_HEADER, OFFSET_HEADER, RECEIPTS_HEADER
from chelonia.wire.web.ranges import content_range, parse_range
from tests.sim.virtual_loop import virtual
from tests.support.clocks import VirtualClock
from tests.support.failing import fails

DATA = bytes(range(256)) * 5_000
NOTED = Checksums(sha256=hashlib.sha256(DATA).hexdigest())
RECORDED = replace(NOTED, crc64nvme=f"{checksums.crc64nvme(DATA):016x}")
SOURCES = ("https://s1/turl/a?ticket=1", "https://s2/turl/b?ticket=2")
WHOLE = ByteRange(0, len(DATA))


@dataclass
class Replicas:
    """Replicas behind TURLs, with faults by replica. `pieces`: bytes of one chunk.

    `bad`: the place of a wrong byte.
    `breaks`: it breaks off after so many bytes.
    `old`: only noted checksums are known.
    `without`: it refuses the range as missing.
    """

    bad: dict[str, int] = field(default_factory=dict)
    breaks: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    old: tuple[str, ...] = ()
    pieces: dict[str, int] = field(default_factory=dict)
    round_trips: RoundTrips = field(default_factory=RoundTrips)
    without: tuple[str, ...] = ()

    @asynccontextmanager
    async def stream(self, sending: Sending) -> AsyncIterator[Answer]:
        name = sending.url[8:10]
        self.asked.append(name)
        data = bytearray(DATA)
        if name in self.bad:
            data[self.bad[name]] ^= 1
        spans = parse_range(sending.headers["Range"], len(data))
        wants = sending.headers.get("Want-Repr-Digest", "").startswith("crc64nvme=") and name not in self.old
        sums = RECORDED if wants else NOTED
        status = 416 if name in self.without else 206
        data = bytearray(b"no such range, says a Shepherd") if status == 416 else data
        yield Answer(bytes(data), spans, self.breaks.pop(name, len(DATA)), sums, self.pieces.get(name, 50_000), status)


@dataclass
class Answer:
    data: bytes
    spans: tuple[ByteRange, ...]
    breaks: int
    sums: Checksums
    piece: int
    status: int = 206

    @property
    def headers(self) -> Mapping[str, str]:
        told = dict(digest_headers(self.sums))
        if len(self.spans) > 1:
            return told | {"Content-Type": "multipart/byteranges; boundary=b"}
        return told | {"Content-Range": content_range(self.spans[0], len(self.data))}

    @property
    def length(self) -> int:
        return len(self.body())

    def body(self) -> bytes:
        parts = [(span, self.data[span.offset : span.offset + span.length]) for span in self.spans]
        if len(parts) == 1:
            return parts[0][1]
        heads = [f"\r\n--b\r\nContent-Range: {content_range(span, len(self.data))}\r\n\r\n" for span, _ in parts]
        return b"".join([h.encode() + data for h, (_, data) in zip(heads, parts, strict=True)]) + b"\r\n--b--\r\n"

    async def chunks(self) -> AsyncIterator[bytes]:
        body = self.body()
        for at in range(0, len(body), self.piece):
            if at >= self.breaks:
                raise CheloniaError(Kind.INCOMPLETE)
            yield body[at : at + self.piece]


async def test_several_ranges_are_asked_for_at_once_and_what_is_missing_of_another() -> None:
    spans = tuple(ByteRange(at, 10_000) for at in (600_000, 0, 5_000, 300_000, 100_000, 200_000, 400_000))
    wanted = b"".join(DATA[span.offset : span.offset + span.length] for span in spans)
    for breaks in ({}, {"s1": 50_000}, {"s1": 50_000, "s2": 0}):
        replicas, got = Replicas(breaks=dict(breaks)), b""
        async for chunk in HttpBytes(cast(HttpClient, replicas), SystemClock()).get(SOURCES, *spans):
            got += chunk
        assert got == wanted
        assert len(replicas.asked) == 1 + len(breaks), "not one question for each range"


async def test_what_a_shepherd_says_of_a_range_that_it_has_not_is_no_byte_of_it() -> None:
    replicas, got = Replicas(without=("s1",)), b""
    async for chunk in HttpBytes(cast(HttpClient, replicas), SystemClock()).get(SOURCES, ByteRange(0, 10)):
        got += chunk
    assert (got, replicas.asked) == (DATA[:10], ["s1", "s2"])


async def test_tickets_that_have_expired_are_not_shown_again_and_again() -> None:
    class Expired(Replicas):
        @asynccontextmanager
        async def stream(self, sending: Sending) -> AsyncIterator[Answer]:
            self.asked.append(sending.url[8:10])
            raise CheloniaError(Kind.EXPIRED)
            yield

    replicas = Expired()
    with fails(Kind.EXPIRED):
        await read(replicas)
    assert replicas.asked == ["s1", "s2"]


async def read(replicas: Replicas, span: ByteRange = WHOLE, transfers: HttpBytes | None = None) -> bytes:
    transfers = transfers or HttpBytes(cast(HttpClient, replicas), SystemClock())
    got = bytearray()
    async for chunk in transfers.get(SOURCES, span):
        got += chunk
        assert DATA[span.offset :].startswith(bytes(got)), "a wrong byte was handed over"
    return bytes(got)


@pytest.mark.parametrize("at", [len(DATA) - 1, len(DATA) - bounds.READ_HELD_AT_DOORS_BYTES])
async def test_a_wrong_end_is_never_handed_over_and_another_replica_goes_on(
    at: int, expect_log: Callable[..., None]
) -> None:
    expect_log("wrong bytes of a replica.* replica=https://s1/turl/a$")
    for old in ((), ("s1",), ("s2",), ("s1", "s2")):
        assert await read(Replicas({"s1": at}, old=old)) == DATA
        both = Replicas({"s1": at}, {"s2": 100_000}, old=old)
        assert await read(both) == DATA, "the other one broke off meanwhile"


@pytest.mark.parametrize("piece", [50_000, len(DATA)])
async def test_who_gave_wrong_bytes_is_asked_last_from_then_on(expect_log: Callable[..., None], piece: int) -> None:
    """A byte that was sent cannot be taken back, but the next request gets right ones."""
    expect_log("wrong bytes of a replica.* replica=https://s1/turl/a$")
    replicas = Replicas({"s1": 0}, pieces={"s2": piece})
    transfers = HttpBytes(cast(HttpClient, replicas), SystemClock())
    with pytest.raises(CheloniaError, match="read it anew"):
        async for _ in transfers.get(SOURCES, WHOLE):
            pass
    assert replicas.asked == ["s1", "s2"]
    assert await read(replicas, transfers=transfers) == DATA
    assert replicas.asked[2:] == ["s2"]


async def test_where_all_are_wrong_the_bytes_break_off(expect_log: Callable[..., None]) -> None:
    expect_log("wrong bytes of a replica")
    replicas = Replicas({"s1": len(DATA) - 1, "s2": len(DATA) - 2})
    with fails(Kind.CHECKSUM):
        await read(replicas)


async def test_a_part_comes_as_it_is_and_goes_on_elsewhere_where_it_breaks_off() -> None:
    span = ByteRange(100, 200_000)
    assert await read(Replicas(breaks={"s1": 100_000}), span) == DATA[100:200_100]
    assert await read(Replicas(), ByteRange(100, 0)) == b""


@dataclass
class Taker:
    """A Shepherd that accepts bodies. `refusals`: its first answers, and after how many bytes; then all is well."""

    refusals: list[tuple[Kind, int]]
    asked: list[str] = field(default_factory=list)
    round_trips: RoundTrips = field(default_factory=RoundTrips)

    async def request(self, sending: Sending) -> Received:
        self.asked.append(sending.headers.get("Content-Range", ""))
        kind, enough = self.refusals.pop(0) if self.refusals else (None, len(DATA))
        taken = 0
        assert sending.body is not None
        async for chunk in sending.body:
            taken += len(chunk)
            if taken >= enough and kind is not None and enough < len(DATA):
                break
        if kind is not None:
            return Received(503, {ERROR_HEADER: kind.value}, b"not enough copies")
        return Received(201, {OFFSET_HEADER: str(len(DATA))}, b"")


PLACED = Placed("https://s1/turl/a?ticket=1", "token")


async def chunks() -> AsyncIterator[bytes]:
    for at in range(0, len(DATA), 100_000):
        yield DATA[at : at + 100_000]


async def put(taker: Taker) -> None:
    transfers = HttpBytes(cast(HttpClient, taker), VirtualClock())
    await transfers.put(PLACED, chunks(), len(DATA))


class Stored(Taker):
    """A Shepherd whose receipt has `adler32` of the stored bytes."""

    adler32 = ""

    async def request(self, sending: Sending) -> Received:
        answer, where = await super().request(sending), Location(ServiceId("s"), ReferenceId("r"))
        receipt = Receipt(BlobId("b"), where, len(DATA), Checksums(adler32=self.adler32), 1, Ms(1))
        told = {**answer.headers, RECEIPTS_HEADER: receipts.to_header((receipt,))}
        return Received(answer.status, told, answer.body)


async def test_bytes_that_are_stored_otherwise_than_they_were_sent_are_refused() -> None:
    stored = Stored([])
    for right in (f"{zlib.adler32(DATA):08x}", ""):
        stored.adler32 = right
        await put(stored)
    stored.adler32 = f"{zlib.adler32(DATA[1:]):08x}"
    with fails(Kind.CHECKSUM):
        await put(stored)


@virtual
async def test_who_has_all_bytes_and_not_enough_copies_is_asked_to_go_on() -> None:
    """The client of a door cannot send the bytes again without failing its request."""
    taker = Taker([(Kind.UNAVAILABLE, len(DATA)), (Kind.CONFLICT, 0), (Kind.UNAVAILABLE, 0)])
    await put(taker)
    assert taker.asked == ["", *[f"bytes */{len(DATA)}"] * 3]


@virtual
async def test_a_refusal_in_the_middle_or_for_good_is_told() -> None:
    for refusals, kind, asked in (
        ([(Kind.UNAVAILABLE, 200_000)], Kind.UNAVAILABLE, 1),
        ([(Kind.NO_SPACE, len(DATA))], Kind.NO_SPACE, 1),
        ([(Kind.BAD_TICKET, len(DATA))], Kind.UNAVAILABLE, 1),
        ([(Kind.EXPIRED, 0)], Kind.UNAVAILABLE, 1),
        ([(Kind.UNAVAILABLE, len(DATA)), (Kind.BAD_RANGE, 0)], Kind.UNAVAILABLE, 2),
        ([(Kind.UNAVAILABLE, len(DATA))] * 1000, Kind.UNAVAILABLE, 19),
        ([(Kind.UNAVAILABLE, len(DATA)), *[(Kind.CONFLICT, 0)] * 1000], Kind.UNAVAILABLE, 19),
    ):
        taker = Taker(list(refusals))
        with pytest.raises(CheloniaError) as refused:
            await put(taker)
        assert (refused.value.kind, len(taker.asked)) == (kind, asked)


@dataclass
class Frozen:
    """Reads no byte; `lives`: it answers probes all the same. `for_s`: after that it goes on."""

    lives: bool = False
    for_s: float = 1e6
    questions: int = 0
    round_trips: RoundTrips = field(default_factory=RoundTrips)

    async def request(self, sending: Sending) -> Received:
        if sending.method == "HEAD":
            self.questions += 1
            await asyncio.sleep(0 if self.lives else self.for_s)
            return Received(404, {}, b"")
        await asyncio.sleep(self.for_s)
        return await Taker([]).request(sending)


async def sent_to(frozen: Frozen, body: AsyncIterator[bytes], start: int) -> int:
    """Send; milliseconds until it has ended."""
    began = asyncio.get_running_loop().time()
    with suppress(CheloniaError):
        await HttpBytes(cast(HttpClient, frozen), VirtualClock()).put(PLACED, body, len(DATA), start)
        assert frozen.lives
    return round(1000 * (asyncio.get_running_loop().time() - began))


@virtual
async def test_a_shepherd_that_takes_nothing_and_says_nothing_is_not_waited_for() -> None:
    assert [await sent_to(Frozen(), chunks(), start) for start in range(3)] == [500, 2_000, 8_000]
    busy = Frozen(lives=True, for_s=20)
    assert await sent_to(busy, chunks(), 0) == 20_000
    assert busy.questions > 1


@dataclass
class Dumb:
    """Refuses for want of copies when it has all bytes, and then freezes."""

    asked: int = 0
    round_trips: RoundTrips = field(default_factory=RoundTrips)

    async def request(self, sending: Sending) -> Received:
        self.asked += 1
        if self.asked == 1:
            return await Taker([(Kind.UNAVAILABLE, len(DATA))]).request(sending)
        await asyncio.sleep(1e6)
        raise AssertionError("nobody waits for so long")


@virtual
async def test_a_shepherd_that_freezes_when_it_is_to_go_on_is_not_waited_for() -> None:
    """Another front end, or another try of the client, may find a live one."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(CheloniaError) as failed:
        await HttpBytes(cast(HttpClient, Dumb()), VirtualClock()).put(PLACED, chunks(), len(DATA))
    assert failed.value.kind is Kind.UNAVAILABLE, "what it said last"
    assert asyncio.get_running_loop().time() - began < 10


@dataclass
class Copying:
    """Has all bytes, and answers when the other copies are made: after `for_s`, if the connection still stands."""

    for_s: float
    round_trips: RoundTrips = field(default_factory=RoundTrips)

    async def request(self, sending: Sending) -> Received:
        if sending.method == "HEAD":
            return Received(404, {}, b"")
        answer = await Taker([]).request(sending)
        if self.for_s * 1000 > (sending.read_idle_ms or ClientLimits().read_idle_ms):
            raise CheloniaError(Kind.TIMEOUT)
        await asyncio.sleep(self.for_s)
        return answer


@virtual
async def test_copies_may_take_as_long_as_they_like_while_their_shepherd_lives() -> None:
    """5 GB went to a spare, and the client that had sent them got an error that no Shepherd answered."""
    await HttpBytes(cast(HttpClient, Copying(600)), VirtualClock()).put(PLACED, chunks(), len(DATA))


@virtual
async def test_a_slow_client_is_no_silence_of_its_shepherd() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        async for chunk in chunks():
            await asyncio.sleep(10)
            yield chunk

    taker = Frozen(lives=True, for_s=0)
    assert await sent_to(taker, slowly(), 0) == 10_000 * -(-len(DATA) // 100_000)
    assert taker.questions == 0
