"""Pushes replicas to other Shepherds over HTTPS: the other side of the data door."""

from __future__ import annotations

from collections.abc import AsyncIterator

from chelonia.core.bounds import CHUNK_BYTES, COPY_ANSWER_MS
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.shepherd import Uploaded
from chelonia.hosting.net.http_client import HttpClient, Received, Sending, raise_for_status
from chelonia.wire import receipts
from chelonia.wire.web.digests import parse_digests
from chelonia.wire.web.headers import GUID_HEADER, OFFSET_HEADER, RECEIPTS_HEADER
from chelonia.wire.web.ranges import content_range


class HttpTransfers:
    """`Transfers` and `Carrier` of `core.ports.shepherd` over the pooled client."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def push(
        self, turl: str, body: AsyncIterator[bytes], length: int, offset: int = 0, *, patient: bool = False
    ) -> Uploaded:
        """PUT `body` (of `length` bytes, -1 unknown, starting at `offset`) to `turl`.

        `patient`: wait for the answer however long it takes.
        Raises: errors of the other side and of `body`, NETWORK, TIMEOUT, UNTRUSTED.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if offset > 0:
            if length < 0:
                raise CheloniaError(Kind.BAD_REQUEST, "PUT", cause="a resumed upload must say how long it is")
            total = offset + length
            headers["Content-Range"] = content_range(ByteRange(offset, length), total) if length else f"bytes */{total}"
        sending = Sending("PUT", turl, headers, body, length, COPY_ANSWER_MS if patient else 0)
        answer = await self._client.request(sending)
        if answer.status == 308:
            return Uploaded(False, _offset(answer))
        raise_for_status(answer.status, answer.headers, answer.body, "PUT")
        return Uploaded(
            complete=True,
            offset=_offset(answer),
            receipts=receipts.from_header(answer.headers.get(RECEIPTS_HEADER, "")),
            guid=answer.headers.get(GUID_HEADER, ""),
            checksums=parse_digests(
                digest=answer.headers.get("Digest", ""), repr_digest=answer.headers.get("Repr-Digest", "")
            ),
        )

    async def offset(self, turl: str) -> int:
        answer = await self._client.request(Sending("HEAD", turl))
        raise_for_status(answer.status, answer.headers, answer.body, "HEAD")
        return _offset(answer)

    async def put(self, turl: str, body: bytes) -> tuple[Receipt, ...]:
        return (await self.push(turl, _chunks(body), len(body))).receipts

    async def get(self, turl: str, size_max: int) -> bytes:
        async with self._client.stream(Sending("GET", turl)) as answer:
            body = await answer.read(size_max)
            raise_for_status(answer.status, answer.headers, body, "GET")
            return body


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), CHUNK_BYTES):
        yield body[start : start + CHUNK_BYTES]


def _offset(answer: Received) -> int:
    try:
        return int(answer.headers.get(OFFSET_HEADER, ""))
    except ValueError:
        cause = f"HTTP {answer.status} without {OFFSET_HEADER}: this does not look like a Shepherd of ours"
        raise CheloniaError(Kind.NETWORK, "PUT", cause=cause) from None
