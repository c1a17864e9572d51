"""The parts that an object was completed of, as far as its bytes still show them: each is one extent of the file."""

from __future__ import annotations

import re
from typing import Final

from chelonia.core import bounds
from chelonia.core.ports.files import Look, Looked, Want
from chelonia.core.ports.shepherd import ByteRange
from chelonia.hosting.doors.plain.parts import good
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, found, xml_answer
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import answers, facts
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.web.conditions import http_date

_IN_PARTS: Final = re.compile(r"[0-9a-f]{32}-([0-9]{1,5})\Z")
PAGE: Final = 1000


async def sizes(parts: S3Parts, ask: Ask, there: Looked) -> tuple[int, ...]:
    """Bytes of each part; none of an object that was not made of parts."""
    known, out = there.attributes, list[int]()
    made = _IN_PARTS.match(known.etag)
    at = 0
    while made and at < known.size:
        look = Look(ask.place, Want.EXTENTS, ByteRange(at, known.size - at))
        (answer,) = await parts.plain.files.look(ask.exchange.call, (look,))
        page = good(answer, ask.operation)
        if page.attributes.etag != known.etag or page.told <= at:
            return ()
        out += [extent.length for extent in page.extents]
        at = page.told
    return tuple(out) if made and len(out) == int(made[1]) else ()


async def span_of(parts: S3Parts, ask: Ask, there: Looked) -> tuple[str, int]:
    """The range that `partNumber` asks for, and how many parts there are (0: not made of parts). Raises: S3Error."""
    number = _number(ask.query["partNumber"], "partNumber")
    lengths = await sizes(parts, ask, there)
    if not 1 <= number <= max(len(lengths), 1):
        raise S3Error("InvalidPart", f"the object has {max(len(lengths), 1)} parts")
    start = sum(lengths[: number - 1])
    length = lengths[number - 1] if lengths else there.attributes.size
    return f"bytes={start}-{start + length - 1}" if length else "", len(lengths)


async def attributes(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of an object's attributes."""
    wanted = {word.strip() for word in ask.header("x-amz-object-attributes").split(",")}
    if not wanted & {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}:
        raise S3Error("InvalidArgument", "x-amz-object-attributes names what is wanted: ETag, ObjectSize and others")
    ask, there = await found(parts, ask, Want.USER)
    known, kept = there.attributes, facts.facts_of(there.user)
    lengths = await sizes(parts, ask, there) if "ObjectParts" in wanted else ()
    after = _number(ask.header("x-amz-part-number-marker") or "0", "x-amz-part-number-marker")
    limit = min(_number(ask.header("x-amz-max-parts") or str(PAGE), "x-amz-max-parts"), PAGE)
    told = answers.PartSizes(len(lengths), after, limit, lengths[after : after + limit]) if lengths else None
    checksum = kept.checksum if kept.etag == known.etag else ("", "")
    answer = xml_answer(answers.attributes(wanted, known.size, known.etag, checksum, told))
    return HttpResponse(200, (*answer.headers, ("Last-Modified", http_date(known.modified_ns))), answer.body)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= bounds.PARTS_MAX):
        raise S3Error("InvalidArgument", f"{name} is a number up to {bounds.PARTS_MAX}")
    return int(text)
