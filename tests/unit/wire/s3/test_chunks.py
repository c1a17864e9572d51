"""Bodies in chunks: decoded however they arrive, and refused where any of it differs from its signature."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.wire.s3.chunks import (
    LINE_BYTES_MAX,
    SIGNED,
    SIGNED_TRAILER,
    TRAILERS_MAX,
    UNSIGNED_TRAILER,
    ChunkDecoder,
    Signing,
)
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.sigv4 import sign, signing_key

SCOPE, STAMP, SEED = "20260101/us-east-1/s3/aws4_request", "20260101T000000Z", "0" * 64
KEY = signing_key("secret", SCOPE)
SIGNING = Signing(KEY, STAMP, SCOPE, SEED)
EMPTY = hashlib.sha256(b"").hexdigest()


def encoded(parts: list[bytes], payload: str, trailer: str = "") -> bytes:
    """A body as a client sends it."""
    out, seed = b"", SEED
    for part in [*parts, b""]:
        digest = hashlib.sha256(part).hexdigest()
        seed = sign(KEY, f"AWS4-HMAC-SHA256-PAYLOAD\n{STAMP}\n{SCOPE}\n{seed}\n{EMPTY}\n{digest}")
        signature = "" if payload == UNSIGNED_TRAILER else f";chunk-signature={seed}"
        out += f"{len(part):x}{signature}\r\n".encode() + part + (b"\r\n" if part else b"")
    if trailer:
        out += f"{trailer}\r\n".encode()
        if payload == SIGNED_TRAILER:
            digest = hashlib.sha256(f"{trailer}\n".encode()).hexdigest()
            told = sign(KEY, f"AWS4-HMAC-SHA256-TRAILER\n{STAMP}\n{SCOPE}\n{seed}\n{digest}")
            out += f"x-amz-trailer-signature:{told}\r\n".encode()
    return out + b"\r\n"


def decoded(body: bytes, payload: str, step: int = 1 << 20, length: int = -1) -> tuple[bytes, dict[str, str]]:
    decoder = ChunkDecoder(payload, length, SIGNING)
    out = b"".join(decoder.feed(body[start : start + step]) for start in range(0, len(body), step))
    decoder.end()
    return out, decoder.trailers


@pytest.mark.parametrize("payload", [SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER])
@given(parts=st.lists(st.binary(min_size=1, max_size=50), max_size=5), step=st.integers(1, 40))
def test_a_body_is_decoded_however_it_arrives(payload: str, parts: list[bytes], step: int) -> None:
    trailer = "" if payload == SIGNED else "x-amz-checksum-crc32:AAAAAA=="
    whole = b"".join(parts)
    got, trailers = decoded(encoded(parts, payload, trailer), payload, step, len(whole))
    assert got == whole
    assert trailers == ({"x-amz-checksum-crc32": "AAAAAA=="} if trailer else {})


@pytest.mark.parametrize("payload", [SIGNED, SIGNED_TRAILER])
def test_a_byte_that_changes_is_noticed(payload: str) -> None:
    trailer = "" if payload == SIGNED else "x-amz-checksum-crc32:AAAAAA=="
    body = encoded([b"first", b"second"], payload, trailer)
    for at in range(len(body) - 2):
        other = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        try:
            got, trailers = decoded(other, payload)
        except S3Error:
            continue
        assert (got, trailers) == decoded(body, payload), at  # a line's end may be written in two ways


def test_a_body_that_ends_too_early_is_refused() -> None:
    body = encoded([b"first", b"second"], SIGNED)
    for end in range(len(body) - 2):
        with pytest.raises(S3Error):
            decoded(body[:end], SIGNED)


def test_a_body_has_the_length_that_was_announced() -> None:
    body = encoded([b"12345"], UNSIGNED_TRAILER)
    for length in (4, 6):
        with pytest.raises(S3Error) as caught:
            decoded(body, UNSIGNED_TRAILER, length=length)
        assert caught.value.code == "IncompleteBody"


@pytest.mark.parametrize(
    "body",
    [b"zz\r\n", b"-1\r\n", b"5\r\n12345extra\r\n0\r\n\r\n", b"x" * 2000, b"0\r\nno colon\r\n\r\n", b"0\r\n\r\nmore",
     b"0\r\n" + b"a:b\r\n" * 20 + b"\r\n", b"ffffffffffffffffff\r\n", b"0\r\n\r\n" + b"\r\n" * 1024],
)  # fmt: skip
def test_what_is_no_chunk_is_refused(body: bytes) -> None:
    with pytest.raises(S3Error):
        decoded(body, UNSIGNED_TRAILER)


@pytest.mark.parametrize("trailing", [b"", b"x-amz-checksum-crc32c:AAAAAA==\r\n", b"x-amz-checksum-crc32:\r\n"])
def test_a_checksum_that_was_announced_comes(trailing: bytes) -> None:
    for announced in ("x-amz-checksum-crc32", ""):
        decoder = ChunkDecoder(UNSIGNED_TRAILER, 1, None)
        decoder.announced = announced
        assert decoder.feed(b"1\r\nx\r\n0\r\n" + trailing + b"\r\n") == b"x"
        with pytest.raises(S3Error, match="did not come") if announced else contextlib.nullcontext():
            decoder.end()


def test_chunks_are_not_all_tiny() -> None:
    few = b"1\r\nx\r\n" * 1000
    assert decoded(few + b"0\r\n\r\n", UNSIGNED_TRAILER)[0] == b"x" * 1000
    with pytest.raises(S3Error, match="on average"):
        decoded(few + b"1\r\nx\r\n" * 10 + b"0\r\n\r\n", UNSIGNED_TRAILER)
    larger = few + (b"100\r\n%b\r\n" % (b"x" * 256)) * 2000 + b"0\r\n\r\n"
    assert len(decoded(larger, UNSIGNED_TRAILER)[0]) == 513_000


@pytest.mark.parametrize(
    ("body", "length", "code"),
    [
        (b"2\r\n", 1, "IncompleteBody"),
        (b"0" * (LINE_BYTES_MAX + 1), -1, "InvalidRequest"),
        (b"0\r\n" + b"".join(b"%d:\r\n" % n for n in range(TRAILERS_MAX + 1)), -1, "InvalidRequest"),
    ],
    ids=["more than announced", "a line without end", "too many fields"],
)
def test_what_is_too_much_is_refused_as_it_comes(body: bytes, length: int, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        ChunkDecoder(UNSIGNED_TRAILER, length, None).feed(body)
    assert caught.value.code == code


def test_a_trailing_field_comes_only_where_the_coding_has_them() -> None:
    with pytest.raises(S3Error, match="no trailing field"):
        decoded(encoded([b"1"], SIGNED, "x-amz-checksum-crc32:AAAAAA=="), SIGNED)


def test_an_empty_line_may_stand_before_the_signature_of_what_trails() -> None:
    body = encoded([b"1"], SIGNED_TRAILER, "x-amz-checksum-crc32:AAAAAA==")
    assert decoded(body.replace(b"x-amz-trailer", b"\r\nx-amz-trailer"), SIGNED_TRAILER)[0] == b"1"


@pytest.mark.parametrize("end", [None, -100], ids=["whole", "broken off"])
def test_what_has_been_decoded_is_not_kept_until_garbage_is_collected(end: int | None) -> None:
    body = encoded([bytes(200_000)], SIGNED)[:end]
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(20):
            ChunkDecoder(SIGNED, 200_000, SIGNING).feed(body)
        assert tracemalloc.get_traced_memory()[0] < len(body)
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_signature_that_is_no_text_of_ours_is_wrong() -> None:
    with pytest.raises(S3Error) as caught:
        decoded(re.sub(rb"(trailer-signature:)[0-9a-f]", b"\\1\xe9", encoded([b"1"], SIGNED_TRAILER)), SIGNED_TRAILER)
    assert caught.value.code == "SignatureDoesNotMatch"


@given(st.binary(max_size=200), st.sampled_from([SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER]))
def test_nothing_that_is_sent_is_an_accident(body: bytes, payload: str) -> None:
    with contextlib.suppress(S3Error):
        decoded(body, payload, 7)
