"""Uploads in parts that are completed: their facts, and the checksum combined from the parts'."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.contents.parts import PartPage, UploadedPart
from chelonia.core.ids import Dn, Guid, Ms
from chelonia.core.names import parse_ln
from chelonia.wire.crcs import NAMES
from chelonia.wire.s3 import facts
from chelonia.wire.s3.checksums import ALGORITHMS, InParts, in_parts, kind_of, of_upload
from chelonia.wire.s3.completion import completed
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import Facts
from chelonia.wire.s3.requests import CompletedPart, completion


def of(name: str, data: bytes) -> str:
    measured = ALGORITHMS[name]()
    measured.update(data)
    return measured.digest().hex()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.sampled_from(sorted(NAMES)))
def test_a_crc_of_the_whole_is_put_together_from_those_of_the_parts(parts: list[bytes], name: str) -> None:
    joined = InParts(name).joined([(of(name, part), len(part)) for part in parts])
    assert base64.b64decode(joined).hex() == of(name, b"".join(parts))


def test_a_composite_checksum_is_that_of_the_parts_checksums() -> None:
    parts = [b"one", b"two"]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    joined = InParts("sha256", composite=True).joined([(of("sha256", part), 3) for part in parts])
    assert joined == base64.b64encode(hashlib.sha256(digests).digest()).decode() + "-2"
    assert kind_of(joined) == "COMPOSITE"


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        (("", ""), InParts("crc64nvme", False, False)),
        (("CRC64NVME", ""), InParts("crc64nvme", False, True)),
        (("SHA1", ""), InParts("sha1", True, True)),
        (("CRC32", ""), InParts("crc32", True, True)),
        (("CRC32C", "FULL_OBJECT"), InParts("crc32c", False, True)),
    ],
)
def test_what_a_new_upload_asks_for_is_kept_with_it(asked: tuple[str, str], known: InParts) -> None:
    scheme = in_parts(*asked)
    assert scheme == known
    assert of_upload(scheme.kept) == scheme


@pytest.mark.parametrize("asked", [("SHA256", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), ("MD5", ""), ("", "X")])
def test_what_no_upload_can_have_is_refused(asked: tuple[str, str]) -> None:
    with pytest.raises(S3Error) as caught:
        in_parts(*asked)
    assert caught.value.code == "InvalidRequest"


PARTS = [b"first part", b"last"]


def arrived(scheme: InParts, *, known: bool = True) -> PartPage:
    checksums = [f"{scheme.name}:{of(scheme.name, data)}" if known else "" for data in PARTS]
    parts = tuple(
        UploadedPart(n, len(data), "e" * 32, Ms(1), checksum)
        for n, (data, checksum) in enumerate(zip(PARTS, checksums, strict=True), 1)
    )
    user = facts.stored(Facts(user={"a": "1"}, checksum=scheme.kept))
    return PartPage(parts, 0, parse_ln("/b/k"), Dn("/CN=joe"), Guid("g"), user)


def said(**second: str) -> tuple[CompletedPart, ...]:
    return CompletedPart(1, "e" * 32, {}), CompletedPart(2, "e" * 32, second)


def test_what_is_kept_of_the_object() -> None:
    scheme = in_parts("CRC32C", "FULL_OBJECT")
    whole = base64.b64encode(bytes.fromhex(of("crc32c", b"".join(PARTS)))).decode()
    fields = {"x-amz-checksum-crc32c": whole, "x-amz-mp-object-size": "14", "x-amz-checksum-type": "FULL_OBJECT"}
    kept = completed(fields, said(), "etag", arrived(scheme))
    assert kept == Facts(user={"a": "1"}, checksum=("crc32c", whole), etag="etag")


def test_a_composite_checksum_may_come_without_the_number_of_parts() -> None:
    scheme = in_parts("CRC32C", "")
    whole = scheme.joined([(of("crc32c", part), len(part)) for part in PARTS])
    for told in (whole, whole.removesuffix("-2")):
        kept = completed({"x-amz-checksum-crc32c": told}, said(), "etag", arrived(scheme))
        assert kept.checksum == ("crc32c", whole)


def test_an_object_has_no_checksum_unless_that_of_each_part_is_known() -> None:
    assert completed({}, said(), "etag", arrived(in_parts("SHA1", ""), known=False)).checksum == ("", "")
    assert completed({}, (*said(), CompletedPart(3, "x", {})), "etag", arrived(InParts())).checksum == ("", "")


@pytest.mark.parametrize("told", ["AAAAAA==", "AAAAAA==-2", ""])
def test_another_composite_checksum_is_refused(told: str) -> None:
    scheme = in_parts("CRC32C", "")
    whole = scheme.joined([(of("crc32c", part), len(part)) for part in PARTS])
    with pytest.raises(S3Error) as caught:
        completed({"x-amz-checksum-crc32c": told or whole.replace("-2", "-3")}, said(), "etag", arrived(scheme))
    assert caught.value.code == "BadDigest"


@pytest.mark.parametrize(
    ("fields", "second", "code"),
    [
        ({"x-amz-checksum-crc32c": "bad"}, {}, "BadDigest"),
        ({"x-amz-checksum-sha1": "bad"}, {}, "InvalidRequest"),
        ({"x-amz-checksum-type": "COMPOSITE"}, {}, "InvalidRequest"),
        ({"x-amz-mp-object-size": "15"}, {}, "InvalidRequest"),
        ({}, {"crc32c": "AAAAAA=="}, "InvalidPart"),
    ],
)
def test_what_is_said_and_not_so_is_refused(fields: dict[str, str], second: dict[str, str], code: str) -> None:
    with pytest.raises(S3Error) as caught:
        completed(fields, said(**second), "etag", arrived(in_parts("CRC32C", "FULL_OBJECT")))
    assert caught.value.code == code


def test_parts_are_named_with_their_checksums() -> None:
    part = "<Part><PartNumber>1</PartNumber><ETag>&quot;e&quot;</ETag><ChecksumSHA1>c2hh</ChecksumSHA1></Part>"
    body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>"
    assert completion(body.encode()) == (CompletedPart(1, "e", {"sha1": "c2hh"}),)
