"""The bytes of a file as an HTTP answer: all of them, one range, or several as a `multipart/byteranges`.

Source: RFC 9110 sections 14 and 15.3.7.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

from chelonia.core.contents.extents import ByteRange
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.web.ranges import content_range, parse_range

if TYPE_CHECKING:
    from chelonia.core.ports.files import Looked
    from chelonia.hosting.transfer.file_reader import FileReader

Headers = tuple[tuple[str, str], ...]
Parts = tuple[tuple[bytes, ByteRange], ...]
MakeBody = Callable[[Parts, bytes], bytes | AsyncIterator[bytes]]
"""Makes a body of parts, each a head and a range, and a tail."""


def ranged(headers: Headers, spans: tuple[ByteRange, ...], size: int, name: str, body: MakeBody) -> HttpResponse:
    """Answer a GET of `size` bytes: with all of them, or with `spans`.

    Args: `headers`: of the whole answer, `Content-Type` among them; `name`: of these bytes alone, for the boundary.
    """
    if not spans:
        return HttpResponse(200, headers, body(((b"", ByteRange(0, size)),), b""), size)
    if len(spans) == 1:
        fields = (*headers, ("Content-Range", content_range(spans[0], size)))
        return HttpResponse(206, fields, body(((b"", spans[0]),), b""), spans[0].length)
    boundary = f"chelonia-{name}"
    kind = next((value for field, value in headers if field == "Content-Type"), "application/octet-stream")
    heads = [
        f"\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {content_range(span, size)}\r\n\r\n".encode()
        for span in spans
    ]
    tail = f"\r\n--{boundary}--\r\n".encode()
    length = sum(map(len, heads)) + sum(span.length for span in spans) + len(tail)
    others = tuple(field for field in headers if field[0] != "Content-Type")
    multipart = (*others, ("Content-Type", f"multipart/byteranges; boundary={boundary}"))
    return HttpResponse(206, multipart, body(tuple(zip(heads, spans, strict=True)), tail), length)


def ranged_file(source: FileReader, entry: Looked, headers: Headers, wanted: str) -> HttpResponse:
    """Answer a GET of a file. `wanted`: a `Range` (empty: all). Raises: BAD_RANGE."""
    attributes = entry.attributes
    spans = parse_range(wanted, attributes.size) if wanted else ()

    def body(parts: Parts, tail: bytes) -> bytes | AsyncIterator[bytes]:
        return _together(source, entry, parts, tail) if tail else source.body(entry, parts[0][1])

    return ranged(headers, spans, attributes.size, attributes.etag, body)


async def _together(source: FileReader, entry: Looked, parts: Parts, tail: bytes) -> AsyncGenerator[bytes, None]:
    following, left = iter(parts), 0
    async for chunk in source.several(entry, tuple(span for _, span in parts)):
        out, rest = list[bytes](), chunk
        while rest:
            if not left:
                head, span = next(following)
                out, left = [*out, head], span.length
            out.append(rest[:left])
            rest, left = rest[left:], left - len(out[-1])
        yield b"".join(out)
    yield tail
