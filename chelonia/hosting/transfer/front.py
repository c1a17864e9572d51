"""`core.ports.bytes.Bytes` over the pooled HTTP client: a front end that carries bytes for its clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.bytes import PATIENT, put_failure
from chelonia.core.ports.files import Arrived, Placed
from chelonia.core.ports.shepherd import Uploaded
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.pacing import Backoff
from chelonia.hosting.net.http_client import HttpClient, Streaming
from chelonia.hosting.net.http_messages import nothing
from chelonia.hosting.transfer.hedging import PATIENCE_MS, ReplicaChoice, opened
from chelonia.hosting.transfer.held_bytes import HeldBytes
from chelonia.hosting.transfer.push import HttpTransfers
from chelonia.hosting.transfer.stall_watch import StallWatch
from chelonia.wire import receipts
from chelonia.wire.crcs import Crc, hash_named
from chelonia.wire.web.digests import parse_digests
from chelonia.wire.web.ranges import PartsReader, range_of

_LOG = logging.getLogger(__name__)

COPIES_MS: Final = 15_000
"""How long a Shepherd that has all bytes is requested to go on with the copies still to be made."""
PAUSE_MS, PAUSE_MS_MAX = 100, 1_000


class HttpBytes:
    """Bytes over HTTPS, with the node's own certificate."""

    def __init__(self, client: HttpClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._transfers = HttpTransfers(client)
        self._wrong: dict[str, None] = {}

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = PATIENT) -> Arrived:
        """Send a body to the Shepherd where it was placed.

        A Shepherd that has all bytes, but finds none for the other copies, as all are busy, is requested to go on. The
        sender may not have the bytes any more.

        Raises: INCOMPLETE, errors of the Shepherd and of the body; UNAVAILABLE when the place has ended. CHECKSUM when
        other bytes are stored, TIMEOUT when the Shepherd neither takes bytes nor answers.
        """
        taken = _TakenBody(body)
        try:
            done = await self._pushed(placed.turl, taken, size, start)
        except CheloniaError as error:
            if error.kind is not Kind.UNAVAILABLE or not taken.whole:
                error = put_failure(error)
                raise error
            done = await self._gone_on(placed.turl, taken.size, start, error)
        if not done.complete:
            raise CheloniaError(Kind.INCOMPLETE, "PUT", cause=f"only {done.offset} bytes were kept; send it again")
        sent = taken.adler32.hexdigest()
        if any(receipt.checksums.adler32 not in (sent, "") for receipt in done.receipts):
            raise CheloniaError(Kind.CHECKSUM, "PUT", cause="other bytes were stored than were sent; send them again")
        return Arrived(placed.put, tuple(map(receipts.to_text, done.receipts)))

    async def _pushed(self, turl: str, body: _TakenBody, size: int, start: int, offset: int = 0) -> Uploaded:
        """The answer to a push, waiting while the Shepherd lives. Raises: TIMEOUT; errors of the push."""
        watch = StallWatch(self._client, self._clock, start, lambda: body.size, lambda: body.waits)
        push = self._transfers.push(turl, body.chunks(), size, offset, patient=True)
        return await watch.settled(asyncio.ensure_future(push), turl)

    async def _gone_on(self, turl: str, size: int, start: int, error: CheloniaError) -> Uploaded:
        """Request the rest of an upload whose bytes are all there. Raises: UNAVAILABLE, as last answered."""
        give_up_ms, backoff = self._clock.monotonic_ms() + COPIES_MS, Backoff(PAUSE_MS, PAUSE_MS_MAX)
        while self._clock.monotonic_ms() < give_up_ms:
            await self._clock.sleep(backoff.failed())
            try:
                return await self._pushed(turl, _TakenBody(nothing()), 0, start, size)
            except CheloniaError as again:
                if again.kind is Kind.UNAVAILABLE:
                    error = again
                elif again.kind is not Kind.CONFLICT:  # CONFLICT: it is still at work on it
                    raise error from again
        raise error

    async def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of `spans`, one after another, from as many sources as it takes.

        A whole blob is compared with its checksum before its last `bounds.READ_HELD_AT_DOORS_BYTES` are yielded. After
        wrong bytes another source goes on, if it begins with the bytes yielded. Raises: CHECKSUM; EXPIRED when other
        sources have to be requested.
        """
        reading, of_no_use = _Reading(spans), dict[str, None]()
        if not reading.left():
            return
        failure = CheloniaError(Kind.NO_REPLICA, "get", cause="no Shepherd was named to read it from")
        for patience_ms in PATIENCE_MS:
            left = [turl for turl in sources if turl not in of_no_use]
            choice = ReplicaChoice(sorted(left, key=lambda turl: _replica(turl) in self._wrong), patience_ms)
            while choice.turls:
                from_one = not reading.size
                try:
                    async with contextlib.aclosing(self._from(choice, reading)) as chunks:
                        async for chunk in chunks:
                            for piece in reading.take(chunk):
                                yield piece
                    reading.check()
                except CheloniaError as error:
                    failure = error
                    if error.kind is Kind.CHECKSUM:
                        of_no_use[choice.given] = None
                        if from_one and reading.is_whole:
                            self._is_wrong(_replica(choice.given))
                        reading.start_over()
                    continue
                for piece in reading.rest():
                    yield piece
                return
            if failure.kind is Kind.EXPIRED:  # as are the others, which were issued with it
                break
        raise failure

    async def _from(self, choice: ReplicaChoice, reading: _Reading) -> AsyncGenerator[bytes, None]:
        """Yield the missing bytes, from the first source that answers; never more than that."""
        left = reading.left()
        async with opened(self._client, choice, reading.asked()) as answer:
            if answer.status == 416:  # its body is none of the replica's
                raise CheloniaError(Kind.INCOMPLETE, "get", cause="a Shepherd has fewer bytes than were asked for")
            reading.answered(answer)
            several = PartsReader(left) if len(left) > 1 else None
            skip, missing = left[0].offset if answer.status != 206 else 0, sum(span.length for span in left)
            if several is not None and not answer.headers.get("Content-Type", "").startswith("multipart/byteranges"):
                raise CheloniaError(Kind.INCOMPLETE, "get", cause="a Shepherd does not answer with several ranges")
            async for chunk in answer.chunks():
                kept = chunk[skip:] if several is None else several.take(chunk)
                skip = max(0, skip - len(chunk))
                if kept:
                    yield kept[:missing]
                    missing -= min(len(kept), missing)
                if not missing:
                    return
        raise CheloniaError(Kind.INCOMPLETE, "get", cause="a Shepherd sent less than it has")

    def _is_wrong(self, replica: str) -> None:
        """Prefer other replicas to this one from now on; its Shepherd's scrub will find the damage."""
        if replica not in self._wrong:
            _LOG.warning("wrong bytes of a replica: others are asked first replica=%s", replica)
        self._wrong[replica] = None
        while len(self._wrong) > bounds.WRONG_REPLICAS_KEPT:
            del self._wrong[next(iter(self._wrong))]


class _TakenBody:
    """The bytes of a body: how many were taken, their Adler-32, and whether the sender owes the next ones (`waits`)."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = aiter(body)
        self.size, self.adler32 = 0, Crc("adler32")
        self.waits = self.whole = False

    async def chunks(self) -> AsyncIterator[bytes]:
        while (chunk := await self._next()) is not None:
            self.size += len(chunk)
            self.adler32.update(chunk)
            yield chunk
        self.whole = True

    async def _next(self) -> bytes | None:
        self.waits = True
        try:
            return await anext(self._body, None)
        finally:
            self.waits = False


class _Reading:
    """The bytes of `spans` from one or more replicas of a blob, verified where they are the whole blob."""

    def __init__(self, spans: tuple[ByteRange, ...]) -> None:
        self._spans = spans
        self._bytes = sum(span.length for span in spans)
        self.size = 0
        self._sum = self._digest = ""
        self._held: HeldBytes | None = None

    @property
    def is_whole(self) -> bool:
        return self.size == self._bytes

    @property
    def _begins(self) -> bool:
        """Whether the next bytes are the first of what may be a whole blob."""
        return not self.size and self._spans == (ByteRange(0, self._bytes),)

    def left(self) -> tuple[ByteRange, ...]:
        left, received = list[ByteRange](), self.size
        for span in self._spans:
            if span.length > received:
                left.append(ByteRange(span.offset + received, span.length - received))
            received = max(0, received - span.length)
        return tuple(left)

    def asked(self) -> dict[str, str]:
        """Return the header fields that request the missing bytes, and the CRC of a large blob."""
        # The CRC costs the Shepherd a read of the record.
        more = {"Want-Repr-Digest": "crc64nvme=10"} if self._begins and self._bytes >= bounds.CHUNK_BYTES else {}
        return {"Range": range_of(self.left())} | more

    def answered(self, answer: Streaming) -> None:
        """Take in the size and the checksum from a replica's answer."""
        head = answer.headers
        _, _, total = head.get("Content-Range", f"/{answer.length}").rpartition("/")
        if self._begins and total == str(self._bytes):
            digests = parse_digests(repr_digest=head.get("Repr-Digest", ""))
            self._sum = self._sum or ("crc64nvme" if digests.crc64nvme else "sha256" if digests.sha256 else "")
            if self._sum:
                self._held = self._held or HeldBytes("", bounds.READ_HELD_AT_DOORS_BYTES, hash_named(self._sum))
                self._digest = getattr(digests, self._sum) or self._digest

    def take(self, chunk: bytes) -> Iterator[bytes]:
        """Take the next bytes; yields those that may be handed over. Raises: CHECKSUM; then `chunk` does not count."""
        yield from (chunk,) if self._held is None else self._held.take(chunk)
        self.size += len(chunk)

    def check(self) -> None:
        """Check that all bytes are right. Raises: CHECKSUM."""
        if self._held is not None and self._held.digest() != self._digest:
            raise CheloniaError(Kind.CHECKSUM, "get", cause="the bytes do not have the checksum that was told of them")

    def start_over(self) -> None:
        """Expect the first bytes again."""
        self.size = 0
        if self._held is not None:
            self._held.start_over()

    def rest(self) -> Iterable[bytes]:
        """Return the bytes held back, once all are verified."""
        return () if self._held is None else self._held.rest()


def _replica(turl: str) -> str:
    """The URL of a TURL's replica, without the ticket."""
    return turl.partition("?")[0]
