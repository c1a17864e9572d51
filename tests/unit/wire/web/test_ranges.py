"""Byte ranges, against the plain meaning of RFC 9110."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire.web import ranges
from chelonia.wire.web.ranges import ContentRange, PartsReader, content_range
from tests.support.failing import fails


@pytest.mark.parametrize(
    ("header", "size", "spans"),
    [
        ("bytes=0-9", 100, [(0, 10)]),
        ("bytes=90-", 100, [(90, 10)]),
        ("bytes=-10", 100, [(90, 10)]),
        ("bytes=-1000", 100, [(0, 100)]),
        ("bytes=50-1000", 100, [(50, 50)]),
        ("bytes=99-99", 100, [(99, 1)]),
        ("Bytes = 0-0 , ,5-5", 100, [(0, 1), (5, 1)]),
        ("bytes=0-4,5-9", 100, [(0, 5), (5, 5)]),
        ("bytes=5-9, 0-4", 100, [(5, 5), (0, 5)]),
        ("bytes=0-9,3-5,8-20", 100, [(0, 10), (3, 3), (8, 13)]),
        ("bytes=0-0,200-300", 100, [(0, 1)]),
        ("bytes=0-0,-1", 100, [(0, 1), (99, 1)]),
        ("bytes=" + "0-0," * 200, 100, [(0, 1)] * 200),
        ("bytes=" + "0-0," * 201, 100, []),
    ],
)
def test_ranges_asked_for(header: str, size: int, spans: list[tuple[int, int]]) -> None:
    assert ranges.parse_range(header, size) == tuple(ByteRange(*span) for span in spans)


@pytest.mark.parametrize(
    "header",
    ["", "bytes", "bytes=", "bytes=,", "bytes=-", "bytes=x-1", "bytes=5-4", "items=0-1", "bytes=0-1;2", "bytes=--1",
     "bytes=+0-1", "bytes=0x0-1", "bytes=\u0660-1", "bytes=0-" + "9" * 30, "bytes=1-2,5-4"],
)  # fmt: skip
def test_what_is_not_understood_is_ignored(header: str) -> None:
    assert ranges.parse_range(header, 100) == ()


@pytest.mark.parametrize(("header", "size"), [("bytes=100-", 100), ("bytes=-0", 100), ("bytes=0-", 0), ("bytes=-5", 0)])
def test_what_cannot_be_satisfied_is_refused(header: str, size: int) -> None:
    with fails(Kind.BAD_RANGE):
        ranges.parse_range(header, size)


def test_too_many_separate_ranges_are_refused() -> None:
    header = "bytes=" + ",".join(f"{n * 2}-{n * 2}" for n in range(bounds.RANGES_MAX + 1))
    with fails(Kind.BAD_RANGE):
        ranges.parse_range(header, 10_000)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=8), st.integers(1, 30))
def test_ranges_are_served_as_asked_within_twice_the_body(pairs: list[tuple[int, int]], size: int) -> None:
    specs = [(min(pair), max(pair)) for pair in pairs]
    wanted = [range(first, min(last + 1, size)) for first, last in specs if first < size]
    header = "bytes=" + ",".join(f"{first}-{last}" for first, last in specs)
    if not wanted:
        with pytest.raises(CheloniaError):
            ranges.parse_range(header, size)
        return
    spans = [range(span.offset, span.offset + span.length) for span in ranges.parse_range(header, size)]
    assert spans == (wanted if sum(map(len, wanted)) <= 2 * size else [])


@given(st.text(max_size=30), st.integers(0, 100))
def test_any_text_as_range_raises_nothing_else(text: str, size: int) -> None:
    try:
        ranges.parse_range(f"bytes={text}", size)
    except CheloniaError as error:
        assert error.kind is Kind.BAD_RANGE  # noqa: PT017 - either outcome is right


@given(st.integers(0, 2**40), st.integers(1, 2**40), st.integers(0, 2**40) | st.none())
def test_content_range_round_trips(offset: int, length: int, beyond: int | None) -> None:
    total = -1 if beyond is None else offset + length + beyond
    text = ranges.content_range(ByteRange(offset, length), total)
    assert ranges.parse_content_range(text) == ContentRange(offset, length, total)


@pytest.mark.parametrize(
    ("header", "meaning"),
    [
        ("bytes 0-99/200", ContentRange(0, 100, 200)),
        ("bytes 100-199/*", ContentRange(100, 100, -1)),
        ("bytes */200", ContentRange(0, -1, 200)),
        (ranges.unsatisfied_range(7), ContentRange(0, -1, 7)),
        ("bytes */*", ContentRange(0, -1, -1)),
    ],
)
def test_content_ranges_read(header: str, meaning: ContentRange) -> None:
    assert ranges.parse_content_range(header) == meaning


@pytest.mark.parametrize(
    "header", ["", "bytes", "bytes 5-4/9", "bytes 0-9/9", "bytes 0-/9", "items 0-1/2", "bytes 0-1/2 x"]
)
def test_malformed_content_ranges_are_refused(header: str) -> None:
    with fails(Kind.BAD_RANGE):
        ranges.parse_content_range(header)


def parts_of(spans: tuple[ByteRange, ...], data: bytes, more: str = "") -> bytes:
    body = b""
    for span in spans:
        told = content_range(span, len(data))
        body += f"\r\n--b\r\n{more}Content-Range: {told}\r\n\r\n".encode() + data[span.offset :][: span.length]
    return body + b"\r\n--b--\r\n"


@pytest.mark.parametrize("at_once", [1, 2, 7, 64, 100_000])
def test_known_ranges_are_taken_out_of_the_parts_that_have_them(at_once: int) -> None:
    data = b"--b\r\n\r\nContent-Range: bytes 0-3/9\r\n\r\n" * 20  # bytes that look like heads
    spans = (ByteRange(300, 200), ByteRange(0, 7), ByteRange(5, 500), ByteRange(0, 1))
    reader, body = PartsReader(spans), parts_of(spans, data, "Content-Type: text/plain\r\n")
    got = b"".join(reader.take(body[at : at + at_once]) for at in range(0, len(body), at_once))
    assert got == b"".join(data[span.offset : span.offset + span.length] for span in spans)
    assert reader.span is None


def test_another_part_or_an_endless_head_is_refused() -> None:
    other = parts_of((ByteRange(0, 4),), bytes(9))
    endless = b"Content-Range: bytes 0-2/9\r\n" + b"x" * 2000
    for body in (other, b"x" * 2000, endless, other.replace(b"0-3", b"10-13")):
        with fails(Kind.BAD_RANGE):
            PartsReader((ByteRange(0, 3),)).take(body)
