"""The parts of a completed upload's object, as far as its bytes still show them: each is one extent of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.ports.files import Look, Looked, Want, good
from chelonia.hosting.doors.ranged import Headers
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, found, number_of, xml_answer
from chelonia.hosting.doors.s3.versions import version_fields
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import answers, facts
from chelonia.wire.s3.checksums import PREFIX, to_base64
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.web.conditions import http_date

_IN_PARTS: Final = re.compile(r"[0-9a-f]{32}-([0-9]{1,5})\Z")
PAGE: Final = 1000


async def made_of(parts: S3Parts, ask: Ask, entry: Looked) -> tuple[tuple[int, Mapping[str, str]], ...]:
    """Return bytes and checksums of each part; none of an object that was not made of parts."""
    file, out = entry.attributes, list[tuple[int, Mapping[str, str]]]()
    made = _IN_PARTS.match(file.etag)
    at = 0
    while made and at < file.size:
        look = Look(ask.place, Want.EXTENTS | Want.CHECKSUMS, ByteRange(at, file.size - at))
        (answer,) = await parts.plain.files.look(ask.exchange.call, (look,))
        page = good(answer, ask.operation)
        if page.attributes.etag != file.etag or page.told <= at:
            return ()
        out += [(extent.length, page.sums.get(extent.blob, {})) for extent in page.extents]
        at = page.told
    return tuple(out) if made and len(out) == int(made[1]) else ()


async def one_part(parts: S3Parts, ask: Ask, entry: Looked, headers: Headers) -> tuple[str, Headers]:
    """Return the range of `partNumber`, and the object's header fields with that part's values. Raises: S3Error."""
    number = number_of(ask.query["partNumber"], "partNumber", most=bounds.PARTS_MAX)
    pieces = await made_of(parts, ask, entry)
    if not 1 <= number <= max(len(pieces), 1):
        raise S3Error("InvalidPart", f"the object has {max(len(pieces), 1)} parts")
    start = sum(length for length, _ in pieces[: number - 1])
    length, sums = pieces[number - 1] if pieces else (entry.attributes.size, {})
    span = f"bytes={start}-{start + length - 1}" if length else ""
    if not pieces:
        return span, headers
    name, value = _checksum_of(facts.facts_of(entry.user).checksum[0], sums)
    own = {f"{PREFIX}{name}": value} if value else {}
    fields = [(field, own.get(field, text)) for field, text in headers if value or not field.startswith(PREFIX)]
    return span, (*fields, ("x-amz-mp-parts-count", str(len(pieces))))


def _checksum_of(name: str, sums: Mapping[str, str]) -> tuple[str, str]:
    """Return a part's checksum of the object's kind, in base64."""
    return name, to_base64(sums.get(name, ""))


async def attributes(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of an object's attributes."""
    wanted = {word.strip() for word in ask.header("x-amz-object-attributes").split(",")}
    if not wanted & {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}:
        raise S3Error("InvalidArgument", "x-amz-object-attributes names what is wanted: ETag, ObjectSize and others")
    ask, entry = await found(parts, ask, Want.USER)
    file, kept = entry.attributes, facts.facts_of(entry.user)
    pieces = await made_of(parts, ask, entry) if "ObjectParts" in wanted else ()
    after = number_of(ask.header("x-amz-part-number-marker") or "0", "x-amz-part-number-marker")
    limit = min(number_of(ask.header("x-amz-max-parts") or str(PAGE), "x-amz-max-parts"), PAGE)
    checksum = kept.checksum if kept.etag == file.etag else ("", "")
    listed = tuple((length, _checksum_of(checksum[0], sums)) for length, sums in pieces[after : after + limit])
    sizes = answers.PartSizes(len(pieces), after, limit, listed) if pieces else None
    body = answers.attributes(wanted, file.size, file.etag, checksum, sizes)
    return xml_answer(body, ("Last-Modified", http_date(file.modified_ns)), *version_fields(ask, entry))
