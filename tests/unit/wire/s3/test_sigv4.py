"""Signatures: botocore's are accepted, and nothing else is."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.sigv4 import (
    ALGORITHM,
    Claim,
    Signable,
    canonical_request,
    claim_of,
    query_fields,
    sign,
    signing_key,
    stamp_ms,
    verify,
)

ID, SECRET = "AKIDEXAMPLE0000000000", "a secret/with+signs"
CREDENTIALS = Credentials(ID, SECRET)


def signed(
    method: str = "GET", url: str = "https://host:1/bucket/key", body: bytes = b"", expires: int = 0, **headers: str
) -> Signable:
    """A request as botocore signs it, in the header field or (`expires`) in the query."""
    request = AWSRequest(method, url, {k.replace("_", "-"): v for k, v in headers.items()}, body)
    auth = S3SigV4QueryAuth(CREDENTIALS, "s3", "us-east-1", expires) if expires else S3SigV4Auth(
        CREDENTIALS, "s3", "us-east-1"
    )  # fmt: skip
    auth.add_auth(request)
    parts = urlsplit(request.url if expires else request.prepare().url)
    fields = [(name, value) for name, value in request.headers.items()]
    return Signable(method, parts.path, parts.query, (*fields, ("Host", parts.netloc)))


def now_ms() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)


def check(request: Signable, secret: str = SECRET, at_ms: int | None = None) -> Claim:
    claim = claim_of(request)
    assert claim is not None
    verify(request, claim, signing_key(secret, claim.scope), at_ms or now_ms())
    return claim


def code(request: Signable, secret: str = SECRET, at_ms: int | None = None) -> str:
    with pytest.raises(S3Error) as caught:
        check(request, secret, at_ms)
    return caught.value.code


URLS = [
    "https://host:1/",
    "https://host:1/bucket?list-type=2&prefix=a%20b%2Fc&delimiter=%2F&encoding-type=url",
    "https://host:1/bucket/key?uploads",
    "https://host:1/bucket/a%20b%2B%C3%BC/~x",
    "https://host:1/bucket/k?partNumber=1&uploadId=x%2By%3D%3D",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("expires", [0, 60])
def test_what_botocore_signs_is_taken(url: str, expires: int) -> None:
    claim = check(signed("PUT", url, b"" if expires else b"body", expires))
    assert claim.access_key == ID
    assert claim.presigned is bool(expires)


def test_blanks_in_values_are_signed_as_one() -> None:
    check(signed(x_amz_meta_note="  two   blanks "))


def test_who_signs_nothing_is_anonymous() -> None:
    assert claim_of(Signable("GET", "/b/k", "", (("Host", "h"),))) is None


def changed(request: Signable, **changes: object) -> Signable:
    values = {name: getattr(request, name) for name in ("method", "path", "query", "fields")}
    return Signable(**(values | changes))  # type: ignore[arg-type]


def test_whatever_is_changed_breaks_the_signature() -> None:
    request = signed("PUT", "https://host:1/bucket/key?x=1", b"body", x_amz_meta_a="1")
    for other in (
        changed(request, method="GET"),
        changed(request, path="/bucket/other"),
        changed(request, query="x=2"),
        changed(request, fields=tuple((n, "2" if n == "x-amz-meta-a" else v) for n, v in request.fields)),
        changed(request, fields=(*request.fields, ("x-amz-meta-a", "2"))),
    ):
        assert code(other) == "SignatureDoesNotMatch"
    assert code(request, "another secret") == "SignatureDoesNotMatch"


@pytest.mark.parametrize("expires", [0, 60])
@pytest.mark.parametrize(
    ("signed_host", "sent_host", "good"),
    [
        ("host", "host:60007", True),
        ("[2001:db8::1]", "[2001:db8::1]:60007", True),
        ("host:60007", "host", False),
        ("host:60007", "host:60008", False),
        ("host", "other:60007", False),
        ("[2001:db8:", "[2001:db8::1]", False),
    ],
)
def test_a_host_may_be_signed_without_its_port(signed_host: str, sent_host: str, good: bool, expires: int) -> None:
    request = signed(url="https://host:1/bucket/key", expires=expires)
    claim = claim_of(request)
    assert claim is not None
    key = signing_key(SECRET, claim.scope)

    def with_host(host: str) -> Signable:
        fields = tuple((name, host if name == "Host" else value) for name, value in request.fields)
        return changed(request, fields=fields)

    text = canonical_request(with_host(signed_host), claim, request.path)
    digest = hashlib.sha256(text.encode()).hexdigest()
    claim = structs.replace(claim, signature=sign(key, f"{ALGORITHM}\n{claim.stamp}\n{claim.scope}\n{digest}"))
    with contextlib.nullcontext() if good else pytest.raises(S3Error, match="does not match"):
        verify(with_host(sent_host), claim, key, now_ms())


def test_a_field_that_was_added_on_the_way_is_refused() -> None:
    request = signed("PUT", "https://host:1/bucket/key")
    assert code(changed(request, fields=(*request.fields, ("x-amz-acl", "public-read")))) == "AccessDenied"


@pytest.mark.parametrize(("minutes", "good"), [(-16, False), (-14, True), (14, True), (16, False)])
def test_a_clock_may_be_off_by_a_quarter_of_an_hour(minutes: int, good: bool) -> None:
    request, then = signed(), now_ms() + minutes * 60_000
    if good:
        check(request, at_ms=then)
    else:
        assert code(request, at_ms=then) == "RequestTimeTooSkewed"


def test_a_url_is_good_until_it_expires() -> None:
    request = signed(expires=60)
    check(request, at_ms=now_ms() + 55_000)
    assert code(request, at_ms=now_ms() + 62_000) == "AccessDenied"
    assert code(request, at_ms=now_ms() - 16 * 60_000) == "AccessDenied"
    assert code(signed(expires=8 * 24 * 3600)) == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("AWS AKID:signature=", "InvalidRequest"),
        ("Basic abc", "InvalidArgument"),
        ("AWS4-HMAC-SHA256 ", "AuthorizationHeaderMalformed"),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=host",
            "AuthorizationHeaderMalformed",
        ),
        ("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=" + "0" * 64, "AuthorizationHeaderMalformed"),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260102/r/s3/aws4_request, SignedHeaders=host, Signature=" + "0" * 64,
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260101/r/ec2/aws4_request, SignedHeaders=host, Signature=" + "0" * 64,
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=x, Signature=" + "0" * 64,
            "AuthorizationHeaderMalformed",
        ),
    ],
)
def test_what_is_malformed_is_said_to_be(field: str, expected: str) -> None:
    fields = (("Host", "h"), ("Authorization", field), ("x-amz-date", "20260101T000000Z"),
              ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"))  # fmt: skip
    with pytest.raises(S3Error) as caught:
        claim_of(Signable("GET", "/", "", fields))
    assert caught.value.code == expected


def test_version_2_is_refused_with_the_cure() -> None:
    with pytest.raises(S3Error, match="AWS4-HMAC-SHA256") as caught:
        claim_of(Signable("GET", "/b/k", "AWSAccessKeyId=a&Expires=1&Signature=x", (("Host", "h"),)))
    assert caught.value.code == "InvalidRequest"


def test_a_date_in_the_old_form_is_taken() -> None:
    assert stamp_ms("20150830T123600Z") == 1440938160000


def test_the_canonical_request_is_as_the_documents_have_it() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    fields = (("Host", "examplebucket.s3.amazonaws.com"), ("X-Amz-Date", "20130524T000000Z"),
              ("x-amz-content-sha256", empty))  # fmt: skip
    claim = Claim("a", "s", "d", ("host", "x-amz-content-sha256", "x-amz-date"), "0", empty)
    lines = canonical_request(Signable("GET", "/", "prefix=J&max-keys=2&acl", fields), claim, "/").split("\n")
    assert lines == [
        "GET", "/", "acl=&max-keys=2&prefix=J", "host:examplebucket.s3.amazonaws.com", f"x-amz-content-sha256:{empty}",
        "x-amz-date:20130524T000000Z", "", "host;x-amz-content-sha256;x-amz-date", empty,
    ]  # fmt: skip


TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


@given(TEXT, TEXT, TEXT)
def test_nothing_that_is_sent_is_an_accident(authorization: str, query: str, date: str) -> None:
    fields = (("Host", "h"), ("Authorization", f"AWS4-HMAC-SHA256 {authorization}"), ("x-amz-date", date),
              ("x-amz-content-sha256", "x"))  # fmt: skip
    for request in (Signable("GET", "/", query, fields), Signable("GET", "/", f"X-Amz-Algorithm=x&{query}", ())):
        try:
            claim = claim_of(request)
            assert claim is not None
            verify(request, claim, signing_key(SECRET, claim.scope), now_ms())
        except S3Error:
            continue
        raise AssertionError("nobody signed this")


@given(st.binary(max_size=60))
def test_any_query_is_read(raw: bytes) -> None:
    query_fields(raw.decode("latin-1"))
