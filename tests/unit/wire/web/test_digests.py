"""Checksums in header fields, as grid tools and browsers write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import Kind
from chelonia.wire.web.digests import digest_headers, parse_digests, wanted
from tests.support.failing import fails

HELLO = Checksums(
    sha256="2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    md5="5d41402abc4b2a76b9719d911017c592",
    adler32="062c0215",
)
DIGEST = "adler32=062c0215,md5=XUFAKrxLKna5cZ2REBfFkg==,sha-256=LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="
REPR = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:, md5=:XUFAKrxLKna5cZ2REBfFkg==:"


def test_what_a_client_wants() -> None:
    assert wanted("adler32", "") == ("adler32",)
    assert wanted("md5;q=0.3, sha-256;q=1, unixsum", "") == ("md5", "sha256")
    assert wanted("adler32;q=0", "sha-256=1, md5=0") == ("sha256",)
    assert wanted("", "") == ()


def test_headers_of_hello() -> None:
    assert digest_headers(HELLO) == (("Digest", DIGEST), ("Repr-Digest", REPR))
    assert digest_headers(Checksums(adler32="062c0215")) == (("Digest", "adler32=062c0215"),)
    assert digest_headers(Checksums()) == ()


def test_headers_are_read() -> None:
    assert parse_digests(digest=DIGEST) == HELLO
    assert parse_digests(repr_digest=REPR) == Checksums(HELLO.sha256, HELLO.md5)
    assert parse_digests(content_md5="XUFAKrxLKna5cZ2REBfFkg==") == Checksums(md5=HELLO.md5)
    assert parse_digests(content_md5="XUFAKrxLKna5cZ2REBfFkg==", digest=DIGEST, repr_digest=REPR) == HELLO
    assert parse_digests() == Checksums()


def test_crc32c_is_hex_in_the_old_field_and_base64_in_the_new_one() -> None:
    dog = Checksums(crc32c="0a72a4df")  # the example of RFC 5843
    assert digest_headers(dog) == (("Digest", "crc32c=0a72a4df"), ("Repr-Digest", "crc32c=:CnKk3w==:"))
    assert parse_digests(digest="crc32c=A72A4DF") == parse_digests(repr_digest="crc32c=:CnKk3w==:") == dog
    assert wanted("crc32c", "") == ("crc32c",)


def test_liberties_and_unknown_algorithms() -> None:
    assert parse_digests(digest="ADLER32=62C0215 , sha=abc, unixsum=3;q=1") == Checksums(adler32="062c0215")
    assert parse_digests(repr_digest="adler=:BiwCFQ==:;x=1, sha-512=:AA==:") == Checksums(adler32="062c0215")


@pytest.mark.parametrize(
    ("content_md5", "digest", "repr_digest"),
    [
        ("x", "", ""),
        ("AAAA", "", ""),
        ("", "md5=", ""),
        ("", "md5=AAAA", ""),
        ("", "adler32=xyz", ""),
        ("", "adler32=123456789", ""),
        ("", "sha-256=é", ""),
        ("", "", "sha-256=LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="),
        ("", "", "md5=:"),
        ("AAAAAAAAAAAAAAAAAAAAAA==", DIGEST, ""),
        ("", "adler32=1,adler32=2", ""),
    ],
)
def test_malformed_and_contradicting_fields_are_refused(content_md5: str, digest: str, repr_digest: str) -> None:
    with fails(Kind.BAD_REQUEST):
        parse_digests(content_md5=content_md5, digest=digest, repr_digest=repr_digest)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16), st.binary(min_size=4, max_size=4))
def test_checksums_round_trip(sha256: bytes, md5: bytes, adler32: bytes) -> None:
    sums = Checksums(sha256.hex(), md5.hex(), adler32.hex())
    headers = dict(digest_headers(sums))
    assert parse_digests(digest=headers["Digest"], repr_digest=headers["Repr-Digest"]) == sums
