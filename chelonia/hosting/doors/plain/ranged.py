"""The bytes of a file as an HTTP answer: all of them, one range, or several as a `multipart/byteranges`.

Source: RFC 9110 sections 14 and 15.3.7. Several doors answer by it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from chelonia.core.contents.extents import ByteRange
from chelonia.core.ports.files import Looked
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.hosting.transfer.file_reader import FileReader
from chelonia.wire.web.ranges import content_range, parse_range

Headers = tuple[tuple[str, str], ...]


def ranged(source: FileReader, there: Looked, headers: Headers, wanted: str) -> HttpResponse:
    """Answer a GET. `headers`: of the whole answer, `Content-Type` among them; `wanted`: a `Range`, "": all.

    Raises: BAD_RANGE.
    """
    size = there.attributes.size
    spans = parse_range(wanted, size) if wanted else ()
    if not spans:
        return HttpResponse(200, headers, source.body(there, ByteRange(0, size)), size)
    if len(spans) == 1:
        told = (*headers, ("Content-Range", content_range(spans[0], size)))
        return HttpResponse(206, told, source.body(there, spans[0]), spans[0].length)
    boundary = f"chelonia-{there.attributes.etag}"
    kind = next((value for name, value in headers if name == "Content-Type"), "application/octet-stream")
    heads = [
        f"\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {content_range(span, size)}\r\n\r\n".encode()
        for span in spans
    ]
    tail = f"\r\n--{boundary}--\r\n".encode()
    length = sum(len(head) + span.length for head, span in zip(heads, spans, strict=True)) + len(tail)
    others = tuple(field for field in headers if field[0] != "Content-Type")
    multipart = (*others, ("Content-Type", f"multipart/byteranges; boundary={boundary}"))
    return HttpResponse(206, multipart, _parts(source, there, heads, spans, tail), length)


async def _parts(
    source: FileReader, there: Looked, heads: list[bytes], spans: tuple[ByteRange, ...], tail: bytes
) -> AsyncGenerator[bytes, None]:
    parts, left = zip(heads, spans, strict=True), 0
    async for chunk in source.several(there, spans):
        out, rest = list[bytes](), chunk
        while rest:
            if not left:
                head, span = next(parts)
                out, left = [*out, head], span.length
            out.append(rest[:left])
            rest, left = rest[left:], left - len(out[-1])
        yield b"".join(out)
    yield tail
