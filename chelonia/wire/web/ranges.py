"""HTTP byte ranges: those of a GET, and the place of a resumed PUT's body.

A malformed `Range` is ignored, as RFC 9110 section 14.2 wants: the door sends the whole body. A `Range` outside the
body is refused. Others are served as requested. But ranges of more than twice the body's bytes get the whole body, so
that no request costs much more than a plain one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind

PART_HEAD_BYTES_MAX: Final = 1024
"""Bytes of the head of one part of a `multipart/byteranges`."""
_SPEC = re.compile(r"(?a:(\d{0,19})-(\d{0,19}))")
_CONTENT = re.compile(r"bytes +(?a:(?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ContentRange:
    """A `Content-Range`: `length` bytes from `offset`; `total` -1: not stated. `length` -1: none (`bytes */n`)."""

    offset: int
    length: int
    total: int = -1


def parse_range(header: str, size: int) -> tuple[ByteRange, ...]:
    """Read the value of a `Range` header for a body of `size` bytes.

    Returns: the ranges as requested, in their order and not merged (uproot identifies parts by it). Empty: send the
        whole body, also when they hold more than twice its bytes.
    Raises: BAD_RANGE when no range can be satisfied, or there are more than `bounds.RANGES_MAX`.
    Source: RFC 9110 section 14.
    """
    specs = _specs(header)
    if not specs:
        return ()
    if len(specs) > bounds.RANGES_MAX:
        raise CheloniaError(Kind.BAD_RANGE, "", "", f"{len(specs)} ranges, at most {bounds.RANGES_MAX} are served")
    spans = tuple(span for span in (_resolve(first, last, size) for first, last in specs) if span.length > 0)
    if not spans:
        raise CheloniaError(Kind.BAD_RANGE, "", header[:80], f"the file has {size} bytes")
    return spans if sum(span.length for span in spans) <= 2 * size else ()


def range_of(spans: tuple[ByteRange, ...]) -> str:
    """Return the value of `Range` for these spans, none of which is empty."""
    return "bytes=" + ",".join([f"{span.offset}-{span.offset + span.length - 1}" for span in spans])


def content_range(span: ByteRange, total: int) -> str:
    """Return the value of `Content-Range` for a part of a body of `total` bytes (-1: unknown)."""
    assert span.length > 0, "an empty part has no Content-Range"
    return f"bytes {span.offset}-{span.offset + span.length - 1}/{total if total >= 0 else '*'}"


def unsatisfied_range(total: int) -> str:
    """Return the value of `Content-Range` beside a 416."""
    return f"bytes */{total}"


def parse_content_range(header: str) -> ContentRange:
    """Read a `Content-Range` of a request or an answer. Raises: BAD_RANGE when it is not well-formed."""
    found = _CONTENT.fullmatch(header.strip())
    if not found:
        raise CheloniaError(Kind.BAD_RANGE, "", header[:80], "expected: bytes <first>-<last>/<total or *>")
    first, last, total = found.groups()
    whole = -1 if total == "*" else int(total)
    if first is None:
        return ContentRange(0, -1, whole)
    if int(last) < int(first) or (whole >= 0 and int(last) >= whole):
        raise CheloniaError(Kind.BAD_RANGE, "", header[:80], "the last byte lies before the first or beyond the total")
    return ContentRange(int(first), int(last) - int(first) + 1, whole)


class PartsReader:
    """Takes the bytes of known ranges out of a `multipart/byteranges` that has them in the requested order.

    Source: RFC 9110 section 14.6; of a part's fields it checks only `Content-Range`.
    """

    def __init__(self, spans: tuple[ByteRange, ...]) -> None:
        self._spans = iter(spans)
        self._head = b""
        self._next()

    def _next(self) -> None:
        self.span = next(self._spans, None)
        self._left = -1  # of the part, once its head is read

    def take(self, chunk: bytes) -> bytes:
        """Take the next bytes of the body. Return those that belong to the ranges. Raises: BAD_RANGE (another part)."""
        out, chunk, self._head = list[bytes](), self._head + chunk, b""
        while chunk and self.span is not None:
            if self._left < 0:
                head, end, rest = chunk.partition(b"\r\n\r\n")
                if not end and len(head) <= PART_HEAD_BYTES_MAX:
                    self._head = chunk
                    break
                wanted = content_range(self.span, -1).removesuffix("*").encode()
                if not end or wanted not in head[:PART_HEAD_BYTES_MAX]:
                    raise CheloniaError(Kind.BAD_RANGE, cause=f"no part {wanted.decode()} where it was to come")
                chunk, self._left = rest, self.span.length
            out.append(chunk[: self._left])
            chunk, self._left = chunk[self._left :], self._left - len(out[-1])
            if not self._left:
                self._next()
        return b"".join(out)


def _specs(header: str) -> list[tuple[str, str]]:
    """The (first, last) texts of a well-formed header in bytes; empty otherwise."""
    unit, equals, rest = header.strip().partition("=")
    if not equals or unit.strip().lower() != "bytes":
        return []
    specs = []
    for text in rest.split(","):
        if not text.strip():
            continue
        found = _SPEC.fullmatch(text.strip())
        if not found or found.groups() == ("", ""):
            return []
        if found[1] and found[2] and int(found[2]) < int(found[1]):
            return []
        specs.append((found[1], found[2]))
    return specs


def _resolve(first: str, last: str, size: int) -> ByteRange:
    """The span in a body of `size`; length 0 or less when it is outside."""
    if not first:
        length = min(int(last), size)
        return ByteRange(size - length, length)
    end = min(int(last) + 1, size) if last else size
    return ByteRange(int(first), end - int(first))
