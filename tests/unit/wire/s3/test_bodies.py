"""Checksums, facts beside bytes, and the XML in both directions."""

from __future__ import annotations

import base64
import hashlib

import pytest
from lxml import etree

from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire.s3 import answers, facts, requests
from chelonia.wire.s3.answers import Asked, Item
from chelonia.wire.s3.checksums import ALGORITHMS, Measured, announced, named
from chelonia.wire.s3.errors import CODES, S3Error, code_of, error_body, status_of

NUMBERS = b"123456789"
CHECKED = {
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    "sha1": hashlib.sha1(NUMBERS).hexdigest(),
    "sha256": hashlib.sha256(NUMBERS).hexdigest(),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_checksums_are_those_of_their_catalogue(name: str) -> None:
    measured = Measured(checksum=name)
    measured.update(NUMBERS[:4])
    measured.update(NUMBERS[4:])
    assert base64.b64decode(measured.value).hex() == CHECKED[name]
    measured.check({f"x-amz-checksum-{name}": measured.value})
    with pytest.raises(S3Error) as caught:
        measured.check({f"x-amz-checksum-{name}": base64.b64encode(b"0" * 4).decode()})
    assert caught.value.code == "BadDigest"


def test_what_was_said_of_a_body_must_be_true() -> None:
    for said, code in (({"md5": b"x" * 16}, "BadDigest"), ({"sha256": "0" * 64}, "XAmzContentSHA256Mismatch")):
        measured = Measured(**said)  # type: ignore[arg-type]
        measured.update(NUMBERS)
        with pytest.raises(S3Error) as caught:
            measured.check({})
        assert caught.value.code == code


def test_one_checksum_at_a_time() -> None:
    with pytest.raises(S3Error):
        named({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-sha1": "A" * 28})
    with pytest.raises(S3Error):
        named({"x-amz-checksum-crc32": "AAAA"})
    assert announced("x-amz-checksum-crc64nvme") == "crc64nvme"
    for trailer in ("x-amz-checksum-md5", "x-amz-meta-a", "x-amz-checksum-crc32,x-amz-checksum-sha1"):
        with pytest.raises(S3Error):
            announced(trailer)


def test_facts_go_and_come_back() -> None:
    fields = [("Content-Type", "text/plain"), ("X-Amz-Meta-A", "ü"), ("x-amz-meta-a", "2"), ("Host", "h"),
              ("Content-Encoding", "aws-chunked, gzip")]  # fmt: skip
    kept = facts.facts_from(fields, {"t": "1"})
    assert kept.headers == {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    assert kept.user == {"a": "ü,2"}
    assert facts.facts_of(facts.stored(kept)) == kept
    assert facts.facts_of({"s3": "a user wrote this"}) == facts.NOTHING
    assert ("x-amz-meta-a", "ü,2") in facts.header_fields(kept)
    with pytest.raises(S3Error) as caught:
        facts.facts_from([("x-amz-meta-a", "x" * 2048)], {})
    assert caught.value.code == "MetadataTooLarge"


def test_a_bulk_deletion_is_read() -> None:
    body = b"<Delete><Quiet>true</Quiet><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key></Object></Delete>"
    doomed, quiet = requests.deletion(body)
    assert [each.key for each in doomed] == ["a&b", "c"]
    assert quiet
    many = b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>"
    for bad in (many, b"<Delete/>", b"<Other/>", b"no xml", b'<!DOCTYPE a [<!ENTITY b "c">]><Delete/>'):
        with pytest.raises(S3Error) as caught:
            requests.deletion(bad)
        assert caught.value.code == "MalformedXML"


def test_a_location_is_a_word() -> None:
    body = b"<CreateBucketConfiguration><LocationConstraint>%b</LocationConstraint></CreateBucketConfiguration>"
    assert (requests.new_bucket(b""), requests.new_bucket(body % b"eu-1")) == (("", {}), ("eu-1", {}))
    with pytest.raises(S3Error, match="LocationConstraint"):
        requests.new_bucket(body % b"a b")


def test_nobody_is_known_by_his_address() -> None:
    who = b"<Grantee><EmailAddress>joe@example.org</EmailAddress></Grantee><Permission>READ</Permission>"
    with pytest.raises(S3Error, match="DN"):
        requests.acl(b"<AccessControlPolicy><AccessControlList><Grant>%b</Grant></AccessControlList>"
                     b"</AccessControlPolicy>" % who)  # fmt: skip


def test_tags_are_bounded() -> None:
    assert requests.tags_of("a=1&b=") == {"a": "1", "b": ""}
    for bad in ("&".join(f"k{n}=v" for n in range(11)), "a=1&a=2", "=x", "k" * 129 + "=v", "k=" + "v" * 257):
        with pytest.raises((S3Error, ValueError)):
            requests.tags_of(bad)


def test_where_a_copy_comes_from() -> None:
    assert requests.copy_source("/b/a%20b/c?versionId=7") == ("b", "a b/c", "7")
    assert requests.copy_source("b/a+b%2Bc") == ("b", "a b+c", "")
    assert requests.copy_source("b/k") == ("b", "k", "")
    with pytest.raises(S3Error):
        requests.copy_source("b")


def test_a_listing_escapes_what_it_shows() -> None:
    items = [Item("a<&>b", size=3, etag="e", modified_ns=1_500_000_000), Item("c d/", common=True)]
    found = etree.fromstring(answers.listing(Asked("b", delimiter="/", encoded=True), items, "token"))
    space = {"s": "http://s3.amazonaws.com/doc/2006-03-01/"}
    assert found.findtext("s:Contents/s:Key", None, space) == "a%3C%26%3Eb"
    assert found.findtext("s:Contents/s:LastModified", None, space) == "1970-01-01T00:00:01.500Z"
    assert found.findtext("s:CommonPrefixes/s:Prefix", None, space) == "c%20d/"
    assert found.findtext("s:NextContinuationToken", None, space) == "token"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (("Host", "if-none-match"), "If-None-Match"),
        (("If-Match",), "If-Match"),
        (("X-Amz-Copy-Source-If-Unmodified-Since",), "x-amz-copy-source-If-Unmodified-Since"),
        (("If-Match", "x-amz-copy-source-if-match"), None),
        ((), None),
    ],
)
def test_a_condition_that_does_not_hold_is_named_as_clients_look_for_it(
    fields: tuple[str, ...], told: str | None
) -> None:
    error = CheloniaError(Kind.PRECONDITION, cause="its etag is x")
    found = etree.fromstring(error_body(error, "/a", "id", fields))
    assert found.findtext("Condition") == told
    message = found.findtext("Message")
    assert message == "At least one of the pre-conditions you specified did not hold: its etag is x"
    assert etree.fromstring(error_body(S3Error("NoSuchKey", "x"), "/a", "id", fields)).find("Condition") is None


def test_every_error_has_a_body() -> None:
    for code in CODES:
        told = etree.fromstring(error_body(S3Error(code, "why <not>"), "/a&b", "id"))
        assert (told.findtext("Code"), told.findtext("Resource")) == (code, "/a&b")
        assert str(told.findtext("Message")).endswith("why <not>")


@pytest.mark.parametrize(
    "kind",
    [
        Kind.TIMEOUT, Kind.INCOMPLETE, Kind.CHECKSUM, Kind.BAD_TICKET, Kind.EXPIRED, Kind.ALREADY_DONE, Kind.UNTRUSTED,
        Kind.WRONG_CLUSTER,
    ],
)  # fmt: skip
def test_trouble_of_the_cluster_is_no_fault_of_the_client(kind: Kind) -> None:
    """Bytes that went wrong between two nodes were answered as a body with a wrong digest, which no client repeats. A
    node whose certificate had ended answered 403."""
    assert status_of(code_of(CheloniaError(kind))) == 503


@pytest.mark.parametrize("code", ["BadDigest", "IncompleteBody", "RequestTimeout", "InvalidAccessKeyId"])
def test_a_fault_of_the_client_is_told_as_what_it_is(code: str) -> None:
    assert code_of(S3Error(code, "why")) == code
