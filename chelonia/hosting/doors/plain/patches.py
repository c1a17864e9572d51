"""PUT with `Content-Range`: bytes laid over a part of a file, or appended to it (RFC 9110, section 14.5).

It decides where the piece begins: an append also writes a small tail anew, so that small appends do not pile up blobs.
It never takes a part for the whole.
"""

from __future__ import annotations

import hashlib
from typing import Final

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Arrived, Content, Done, Look, Placed, Placing, Setting, Splice, Want, When, good
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, carrying, reader, seen
from chelonia.hosting.doors.plain.sending import KEPT_BYTES_MAX, TRIES, kept_sent, sent
from chelonia.hosting.net.http_messages import Whole, read_whole
from chelonia.wire.web.digests import parse_digests
from chelonia.wire.web.ranges import ContentRange, parse_content_range

TAIL_BYTES_MAX: Final = 256 * 1024
"""A last extent shorter than this is written anew with the appended bytes."""


async def patch(parts: DoorParts, exchange: Exchange, setting: Setting, copies: int) -> Done:
    """Lay the body over the file. Raises: BAD_RANGE, CHECKSUM; BAD_REQUEST when it is not as long as its range."""
    request = exchange.request
    span = parse_content_range(exchange.header("Content-Range"))
    if span.length < 0 or span.length != request.length:
        cause = f"the body has {request.length} bytes, its range {span.length}; say how long it is, and rightly"
        raise CheloniaError(Kind.BAD_REQUEST, "PUT", str(exchange.place), cause)
    announced = parse_digests(content_md5=exchange.header("Content-MD5"), digest="", repr_digest="")
    placing = Placing(exchange.place, span.length, announced, copies, piece=True)
    if span.length > KEPT_BYTES_MAX:
        when, _ = await _still(parts, exchange, span)
        placing = replace(placing, at=(ByteRange(span.offset, span.length),))
        content = _content(await sent(parts, exchange, placing), span.offset, span.length)
        return await apply(parts, exchange.call, Splice(exchange.place, content, setting, when=when))
    body = await read_whole(request, Whole(KEPT_BYTES_MAX))
    if announced.md5 and announced.md5 != hashlib.md5(body, usedforsecurity=False).hexdigest():
        raise CheloniaError(Kind.CHECKSUM, "PUT", str(exchange.place), "Content-MD5 is of other bytes; send it again")
    for left in range(TRIES, -1, -1):
        when, size = await _still(parts, exchange, span)
        tail, version = await _tail(parts, exchange, size) if 0 < size == span.offset else (b"", -1)
        whole, ask = tail + body, placing
        if tail:
            ask, when = replace(placing, size=len(whole), checksums=Checksums()), replace(when, version=version)
        at = span.offset - len(tail)
        ask = replace(ask, at=(ByteRange(at, len(whole)),))
        content = _content(await kept_sent(parts, exchange, ask, whole), at, len(whole))
        try:
            return await apply(parts, exchange.call, Splice(exchange.place, content, setting, when=when))
        except CheloniaError as error:
            if error.kind is not Kind.PRECONDITION or not tail or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _still(parts: DoorParts, exchange: Exchange, span: ContentRange) -> tuple[When, int]:
    """Return the conditions, which hold now, and the file's size. Raises: PRECONDITION; BAD_REQUEST when the file would
    have another size than the range says."""
    when = exchange.when
    entry = await seen(parts, exchange.call, exchange.place)
    when.require(exchange.place, entry.attributes if entry else None)
    size = entry.attributes.size if entry else 0
    after = max(size, span.offset + span.length)
    if span.total not in (-1, after):
        cause = f"with it the file would have {after} bytes, not {span.total}; look at it again, or say *"
        raise CheloniaError(Kind.BAD_REQUEST, "PUT", str(exchange.place), cause)
    return when, size


async def _tail(parts: DoorParts, exchange: Exchange, size: int) -> tuple[bytes, int]:
    """Return the last extent of a file of `size` bytes and the file's version; b"" and -1 when it is not short."""
    place, call = exchange.place, carrying(parts, exchange.call)
    (answer,) = await parts.files.look(call, (Look(place, Want.SOURCES | Want.EXTENTS, ByteRange(size - 1, 1)),))
    entry = good(answer, "PUT")
    last = entry.extents[-1] if entry.extents else None
    if last is None or not last.end == size == entry.attributes.size or last.length >= TAIL_BYTES_MAX:
        return b"", -1
    chunks = [chunk async for chunk in reader(parts, exchange.call, place).get(entry, ByteRange(last.at, last.length))]
    return b"".join(chunks), entry.attributes.version


def _content(piece: tuple[Placed, Arrived], at: int, length: int) -> Content:
    placed, arrived = piece
    return Content((Extent(at, length, placed.blob),), (arrived,))
