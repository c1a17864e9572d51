"""Uploads in parts by the S3 door: opened, filled, listed, completed in one step for readers, or given up.

A part is a blob of its own: nothing is copied when they become a file. The etag is S3's for such objects, the MD5 of
the parts' MD5s and how many they are.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.parts import AFTER_KEY, PartPage, UploadId, listing_mark
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import ANY, Done, Drop, Open, Part, Placing, Seal, UploadParts, Uploads, Want
from chelonia.core.ports.shepherd import ByteRange
from chelonia.hosting.doors.plain.parts import Exchange, apply
from chelonia.hosting.doors.plain.sending import sent
from chelonia.hosting.doors.s3.objects import AGAIN_MAX, RACES, carried, check_source, conditions, ready, source_of
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, check_bucket, found, seen, xml_answer
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole
from chelonia.wire.s3 import answers, facts, requests
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.web.conditions import quoted
from chelonia.wire.web.ranges import parse_range

PART_BYTES_MIN: Final = 5 * 1024 * 1024
"""All parts but the last have as many: Amazon's bound."""
PAGE: Final = 1000


async def create(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST with `uploads`."""
    if ask.marks:
        raise S3Error("InvalidObjectName", "a key that ends in a slash is a collection here and has no bytes")
    kept = facts.facts_from(ask.exchange.request.headers.items(), requests.tags_of(ask.header("x-amz-tagging")))
    place, copies, _ = await ready(parts, ask)
    done = await apply(
        parts.plain, ask.exchange.call, Open(place, ask.bucket, copies, user=facts.stored(kept), parents=True)
    )
    return xml_answer(answers.upload_created(ask.target.bucket, ask.target.key, done.upload))


async def put_part(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT with `uploadId`."""
    request, number = ask.exchange.request, _number(ask)
    if request.length < 0:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
    await _page(parts, ask, limit=1)
    placing = Placing(ask.place, request.length, wanted=parts.plain.copies, parents=True, piece=True, measure_md5=True)
    _, arrived = await sent(parts.plain, _at(ask), placing)
    measured = ask.measured
    done = await _applied(parts, ask, Part(ask.place, _upload(ask), number, arrived))
    if done.etag != measured.etag:
        raise S3Error("InternalError", "the part was stored with another MD5 than it came with; send it again")
    told = ((f"x-amz-checksum-{measured.checksum}", measured.told),) if measured.checksum else ()
    return HttpResponse(200, (("ETag", quoted(done.etag)), *told), b"", 0)


async def copy_part(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT with `uploadId` and a source."""
    number, source = _number(ask), source_of(parts, ask)
    await _page(parts, ask, limit=1)
    there = await found(parts, source, Want.SOURCES)
    check_source(ask, there)
    size, text = there.attributes.size, ask.header("x-amz-copy-source-range")
    span = ByteRange(0, size)
    if text:
        spans = parse_range(text, size)
        if len(spans) != 1 or not text.endswith(f"-{spans[0].offset + spans[0].length - 1}"):
            raise S3Error("InvalidArgument", f"x-amz-copy-source-range is bytes=first-last within {size} bytes")
        span = spans[0]
    placing = Placing(ask.place, span.length, wanted=parts.plain.copies, parents=True, piece=True, measure_md5=True)
    arrived = await carried(parts, source, there, span, placing)
    done = await _applied(parts, ask, Part(ask.place, _upload(ask), number, arrived))
    return xml_answer(answers.copied(done.etag, parts.clock.now_ms() * 1_000_000, "CopyPartResult"))


async def complete(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST with `uploadId`: the parts are the object from now on, or nothing has changed."""
    order = requests.completion(await read_whole(ask.exchange.request, Whole(requests.BODY_BYTES_MAX)))
    etag = _etag(order)
    there = await seen(parts, ask, ask.place)
    when = await conditions(parts, ask, there)
    seal = Seal(ask.place, _upload(ask), order, PART_BYTES_MIN, parents=True, when=when)
    try:
        await _applied(parts, ask, seal)
    except CheloniaError as error:
        # A client that has not heard the answer asks again.
        again = await seen(parts, ask, ask.place) if error.kind is Kind.NOT_FOUND and when == ANY else None
        if again is None or again.attributes.etag != etag:
            raise _refusal(error, order) from error
    return xml_answer(answers.completed(ask.target.bucket, ask.target.key, etag))


async def abort(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE with `uploadId`."""
    await _applied(parts, ask, Drop(ask.place, _upload(ask)))
    return HttpResponse(204)


async def list_parts(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET with `uploadId`."""
    limit, after = _count(ask, "max-parts"), _count(ask, "part-number-marker", 0)
    page = await _page(parts, ask, after, max(limit, 1))
    told = page if limit else PartPage((), 0, page.place, page.owner, page.within)
    return xml_answer(answers.parts(ask.target.bucket, ask.target.key, _upload(ask), told, (limit, after)))


async def list_uploads(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket with `uploads`."""
    if await check_bucket(parts, ask) is None:
        raise S3Error("AccessDenied", "Access Denied")
    query = ask.query
    prefix, delimiter, limit = query.get("prefix", ""), query.get("delimiter", ""), _count(ask, "max-uploads")
    key, upload = query.get("key-marker", ""), query.get("upload-id-marker", "")
    after = (listing_mark(key, upload) if upload else f"{key}{AFTER_KEY}") if key else ""
    asked = answers.UploadsAsked(ask.target.bucket, prefix, delimiter, limit, key, upload,
                                 query.get("encoding-type") == "url")  # fmt: skip
    shown: list[answers.UploadShown] = []
    more = limit > 0
    while more and len(shown) <= limit:
        page = await parts.plain.files.uploads(ask.exchange.call, Uploads(ask.bucket, prefix, after, 0))
        for each in page.uploads:
            item = answers.upload_shown(each, prefix, delimiter)
            if not shown or shown[-1] != item or not item.common:
                shown.append(item)
        after, more = page.after, bool(page.after)
    return xml_answer(answers.uploads(asked, shown[:limit], more=len(shown) > limit))


def _at(ask: Ask) -> Exchange:
    return replace(ask.exchange, place=ask.place)


def _upload(ask: Ask) -> UploadId:
    return UploadId(ask.query.get("uploadId", ""))


def _number(ask: Ask) -> int:
    text = ask.query.get("partNumber", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= bounds.PARTS_MAX):
        raise S3Error("InvalidArgument", f"Part number must be an integer between 1 and {bounds.PARTS_MAX}, inclusive")
    return int(text)


def _count(ask: Ask, name: str, otherwise: int = PAGE) -> int:
    text = ask.query.get(name, "") or str(otherwise)
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise S3Error("InvalidArgument", f"{name} is a number from 0")
    return min(int(text), max(PAGE, bounds.PARTS_MAX))


async def _page(parts: S3Parts, ask: Ask, after: int = 0, limit: int = 0) -> PartPage:
    """Parts of the upload that is asked about. Raises: NoSuchUpload."""
    try:
        asked = UploadParts(ask.place, _upload(ask), after, min(limit, PAGE))
        return await parts.plain.files.parts(ask.exchange.call, asked)
    except CheloniaError as error:
        raise _refusal(error, ()) from error


async def _applied(parts: S3Parts, ask: Ask, change: Part | Seal | Drop) -> Done:
    """Apply a change of an upload, again while others change the same name. Raises: NoSuchUpload; as it fails."""
    for left in range(AGAIN_MAX, -1, -1):
        try:
            return await apply(parts.plain, ask.exchange.call, change)
        except CheloniaError as error:
            if error.kind not in RACES or not left:
                raise error if isinstance(change, Seal) else _refusal(error, ()) from error
    raise AssertionError("the last try returns or raises")


def _etag(order: tuple[tuple[int, str], ...]) -> str:
    """S3's etag of an object in parts."""
    try:
        digests = b"".join(bytes.fromhex(etag) for _, etag in order)
    except ValueError:
        return ""
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(order)}"


def _refusal(error: CheloniaError, order: tuple[tuple[int, str], ...]) -> CheloniaError:
    """What S3 calls a refusal about parts."""
    if error.kind is Kind.NOT_FOUND:
        cause = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted"
        return S3Error("NoSuchUpload", f"{cause} or completed.")
    if error.kind is Kind.INCOMPLETE and order:
        return S3Error("InvalidPart", error.cause)
    if error.kind is Kind.BAD_REQUEST and error.subject.startswith("part ") and order:
        rises = all(one < other for (one, _), (other, _) in pairwise(order))
        return S3Error("EntityTooSmall" if rises else "InvalidPartOrder", error.cause)
    return error
