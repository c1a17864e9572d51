"""The data door: PUT, GET and HEAD on TURLs, streamed both ways with back-pressure.

It speaks HTTP and never judges a ticket: the Shepherd does.
- PUT: 201 with `Chelonia-Receipts` when the upload is complete, 308 with `Chelonia-Offset` when more is to come
  (`Content-Range`, with the size of the whole)
- HEAD on a PUT ticket: `Chelonia-Offset`, where to continue; -1 when it is complete
- GET: Range (one or several), If-Range, ETag; a single-use ticket gives one whole body, and ignores Range
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from chelonia.core.contents.extents import ByteRange, within
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import Download, ShepherdData, Turl, Upload, Uploaded
from chelonia.hosting.doors.calls import call_of
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.ranged import Headers, Parts, ranged
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, error_answer, nothing, text_answer
from chelonia.wire import receipts
from chelonia.wire.tickets import NAME
from chelonia.wire.web.conditions import http_date, is_fresh, quoted, range_asked
from chelonia.wire.web.digests import digest_headers, parse_digests, wanted
from chelonia.wire.web.headers import GUID_HEADER, OFFSET_HEADER, RECEIPTS_HEADER
from chelonia.wire.web.ranges import parse_content_range, parse_range, unsatisfied_range

log = logging.getLogger("chelonia.data")

METHODS: Final = ("GET", "HEAD", "PUT")
BINARY: Final = "application/octet-stream"

NS_PER_MS: Final = 1_000_000
TOGETHER_BYTES: Final = 64 * 1024
"""Small parts of a body leave together, at this size at the latest."""


class DataDoor:
    """Serves the TURLs of one Shepherd."""

    def __init__(self, data: ShepherdData, registry: RoleRegistry, metrics: Metrics) -> None:
        self._data = data
        self._registry = registry
        self._metrics = metrics

    async def serve(self, request: HttpRequest) -> HttpResponse:
        """Answer one request on `/turl/<reference>?ticket=...`."""
        started = time.perf_counter()
        kind = ""
        try:
            match request.method:
                case "PUT":
                    return await self._put(request)
                case "GET":
                    return await self._get(request)
                case "HEAD":
                    return await self._head(request)
                case _:
                    return text_answer(405, "a TURL takes GET, HEAD and PUT\n", (("Allow", ", ".join(METHODS)),))
        except CheloniaError as error:
            kind = error.kind.value
            log.info(
                "refused %s path=%r request=%s who=%r error=%s",
                request.method, request.path, request.request_id, request.peer.dn, error,
            )  # fmt: skip
            return error_answer(error)
        finally:
            method = request.method if request.method in METHODS else "other"
            self._metrics.operation("turl", method, kind, time.perf_counter() - started)

    # --- PUT ---

    async def _put(self, request: HttpRequest) -> HttpResponse:
        call = await call_of(request, self._registry)
        done = await self._data.receive(call, self._upload(request))
        if not done.complete:
            return text_answer(308, f"{done.offset} bytes are kept\n", (*_offset(done.offset), *_kept(done.offset)))
        return text_answer(201, f"{done.offset} bytes stored\n", _stored(done))

    def _upload(self, request: HttpRequest) -> Upload:
        header = request.headers.get("Content-Range", "")
        length, offset, total = request.length, 0, -1
        if header:
            part = parse_content_range(header)
            total = part.total
            if total < 0:  # a piece would pass for the whole, and `bytes */*` for an empty file
                cause = "name the size of the whole after the slash; HEAD answers with the bytes that are kept"
                raise CheloniaError(Kind.BAD_RANGE, "PUT", cause=cause)
            offset = part.offset if part.length >= 0 else total  # `bytes */n`: no bytes, all of them should be there
            if length >= 0 and length != max(part.length, 0):
                cause = f"Content-Range says {max(part.length, 0)} bytes, Content-Length {length}"
                raise CheloniaError(Kind.BAD_RANGE, "PUT", cause=cause)
            length = max(part.length, 0)
        announced = parse_digests(
            content_md5="" if header else request.headers.get("Content-MD5", ""),
            digest=request.headers.get("Digest", ""),
            repr_digest=request.headers.get("Repr-Digest", ""),
        )
        return Upload(_turl(request), self._counted(request.body, "in"), length, offset, total, announced)

    # --- GET ---

    async def _get(self, request: HttpRequest) -> HttpResponse:
        download = await self._data.open(await call_of(request, self._registry), _turl(request))
        try:
            answer = self._content(request, download, await _describe(request, download))
            assert isinstance(answer.body, AsyncGenerator), "what can be read has a body that is read"
            await anext(answer.body)  # reads the first bytes: a failure then refuses, and cuts no answer off
            return answer
        except BaseException as error:  # a client that goes away meanwhile leaves no used ticket behind
            await download.reader.close(complete=False)
            if isinstance(error, CheloniaError) and error.kind is Kind.BAD_RANGE:
                refusal = error_answer(error)
                headers = (*refusal.headers, ("Content-Range", unsatisfied_range(download.size)))
                return HttpResponse(refusal.status, headers, refusal.body)
            raise

    def _content(self, request: HttpRequest, download: Download, headers: Headers) -> HttpResponse:
        def body(parts: Parts, tail: bytes) -> AsyncGenerator[bytes, None]:
            return _sent(download, self._chunks(download, parts, tail))

        if is_fresh(request.headers, download.blob, download.created_ms * NS_PER_MS):
            return HttpResponse(304, headers, body((), b""))
        spans = self._spans(request, download)
        if download.spans and not all(within(each, download.spans) for each in spans or (ByteRange(0, download.size),)):
            cause = "this TURL is for some bytes of the replica: ask for ranges of these, or for a new TURL"
            raise CheloniaError(Kind.BAD_TICKET, "GET", download.blob, cause)
        return ranged((*headers, ("Content-Type", BINARY)), spans, download.size, download.blob, body)

    def _spans(self, request: HttpRequest, download: Download) -> tuple[ByteRange, ...]:
        header = range_asked(request.headers, download.blob, download.created_ms * NS_PER_MS)
        return parse_range(header, download.size) if header and not download.single_use else ()

    async def _chunks(self, download: Download, parts: Parts, tail: bytes) -> AsyncGenerator[bytes, None]:
        held, size = list[bytes](), 0
        for head, span in parts:
            if head:
                held.append(head)
            if span.length:
                async for chunk in self._counted(download.reader.read(span), "out"):
                    held.append(chunk)
                    size += len(chunk)
                    if size >= TOGETHER_BYTES or len(parts) == 1:
                        yield b"".join(held)
                        held, size = [], 0
        if left := b"".join((*held, tail)):
            yield left

    # --- HEAD ---

    async def _head(self, request: HttpRequest) -> HttpResponse:
        call, turl = await call_of(request, self._registry), _turl(request)
        try:
            download = await self._data.open(call, turl)
        except CheloniaError as error:
            if error.kind is not Kind.BAD_TICKET:
                raise
            # A ticket to write, or none of ours at all: the upload side says which.
            return HttpResponse(200, _offset(await self._data.offset(call, turl)), b"", 0)
        try:
            headers = await _describe(request, download)
        finally:
            await download.reader.close(complete=False)
        return HttpResponse(200, (*headers, ("Content-Type", BINARY)), nothing(), download.size)

    async def _counted(self, chunks: AsyncIterator[bytes], direction: str) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in chunks:
                self._metrics.data(direction, len(chunk))
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()


async def _sent(download: Download, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield an empty piece once the first bytes are read, then the body. Closed after that, it releases its replica,
    and gives a single-use ticket back if the body was not sent whole."""
    first, complete = await anext(chunks, b""), False
    try:
        yield b""
        async with aclosing(chunks):
            if first:
                yield first
            async for chunk in chunks:
                yield chunk
        complete = True
    finally:
        await download.reader.close(complete=complete)


def _turl(request: HttpRequest) -> Turl:
    ticket = request.query.get("ticket", "")
    if not ticket:
        raise CheloniaError(
            Kind.BAD_TICKET, request.method, cause="no ticket in the query: use the TURL as it was given"
        )
    return Turl("", ReferenceId(request.path.strip("/").partition("/")[2]), ticket)


def _offset(offset: int) -> Headers:
    return ((OFFSET_HEADER, str(offset)),)


def _kept(offset: int) -> Headers:
    return (("Range", f"bytes=0-{offset - 1}"),) if offset > 0 else ()


def _stored(done: Uploaded) -> Headers:
    signed = ((RECEIPTS_HEADER, receipts.to_header(done.receipts)),) if done.receipts else ()
    guid = ((GUID_HEADER, done.guid),) if done.guid else ()
    return (*_offset(done.offset), *signed, *guid, *digest_headers(done.checksums))


async def _describe(request: HttpRequest, download: Download) -> Headers:
    # A blob never changes, so its id is a strong validator.
    etag, modified = quoted(download.blob), http_date(download.created_ms * NS_PER_MS)
    fixed: Headers = (("Accept-Ranges", "bytes"), ("ETag", etag), ("Last-Modified", modified))
    if name := request.query.get(NAME, ""):
        fixed = (*fixed, ("Content-Disposition", f"attachment; filename*=UTF-8''{quote(name, safe='')}"))
    sums = download.checksums
    if any(not getattr(sums, name) for name in wanted("", request.headers.get("Want-Repr-Digest", ""))):
        sums = await download.reader.checksums()
    return (*fixed, *digest_headers(sums))
