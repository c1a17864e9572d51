"""Browser forms: fields and file however the bytes are cut, and policies that allow what they name alone."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.forms import FormClaim, FormDecoder, boundary_of, check_policy, claim_of

FILE = b"bytes\r\n--B is not yet the end\r\n"
FORM = (
    b'--BB\r\nContent-Disposition: form-data; name="key"\r\n\r\na/${filename}\r\n'
    b'--BB\r\nContent-Disposition: form-data; name="Empty"\r\n\r\n\r\n'
    b'--BB\r\nContent-Disposition: form-data; name="file"; filename="\xc3\xa9.txt"\r\nContent-Type: x/y\r\n\r\n'
    + FILE
    + b"\r\n--BB--\r\n"
)


def decoded(pieces: list[bytes]) -> tuple[FormDecoder, bytes]:
    decoder = FormDecoder(boundary_of('multipart/form-data; boundary="BB"'))
    data = b"".join([decoder.feed(piece) for piece in pieces])
    decoder.end()
    return decoder, data


def test_a_large_file_may_come_with_its_fields() -> None:
    assert decoded([FORM.replace(FILE, FILE * 2000)])[1] == FILE * 2000


@given(st.lists(st.integers(0, len(FORM)), max_size=12))
def test_a_form_comes_apart_however_it_is_cut(cuts: list[int]) -> None:
    at = sorted({0, len(FORM), *cuts})
    decoder, data = decoded([FORM[a:b] for a, b in pairwise(at)])
    assert (decoder.fields, decoder.filename, data) == ({"key": "a/${filename}", "empty": ""}, "é.txt", FILE)


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (FORM[:200], "InvalidArgument"),
        (FORM[:-10], "IncompleteBody"),
        (b"no form at all", "MalformedPOSTRequest"),
        (FORM.replace(b"Empty", b"key"), "MalformedPOSTRequest"),
        (b"--BB\r\n" + b"x" * 30_000, "MaxMessageLengthExceeded"),
        (
            b"".join(
                b'--BB\r\nContent-Disposition: form-data; name="f%d"\r\n\r\n%b\r\n' % (n, b"x" * 9000) for n in range(3)
            )
            + FORM,
            "MaxMessageLengthExceeded",
        ),
        (b"--BB--\r\n", "MalformedPOSTRequest"),
    ],
)
def test_what_is_no_form_is_refused(form: bytes, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        decoded([form])
    assert caught.value.code == code


def policy(*conditions: object, expiration: str = "2030-01-01T00:00:00Z") -> str:
    return base64.b64encode(json.dumps({"expiration": expiration, "conditions": conditions}).encode()).decode()


FIELDS = {"key": "a/b", "bucket": "lab", "policy": "", "x-amz-signature": "", "acl": "private"}
ALLOWED = ({"bucket": "lab"}, ["starts-with", "$key", "a/"], ["eq", "$acl", "private"])


def test_a_policy_allows_what_it_names() -> None:
    assert check_policy(policy(*ALLOWED), FIELDS, 0) == (0, -1)
    assert check_policy(policy(*ALLOWED, ["content-length-range", 1, "9"]), FIELDS, 0) == (1, 9)
    ranges = (["content-length-range", 1, 9], ["content-length-range", 0, 7])
    assert check_policy(policy(*ALLOWED, *ranges), FIELDS, 0) == (1, 7)
    assert check_policy(policy(*ALLOWED), FIELDS | {"x-ignore-me": "x"}, 0) == (0, -1)


@pytest.mark.parametrize(
    ("text", "fields", "code"),
    [
        (policy(*ALLOWED, expiration="1969-01-01T00:00:00Z"), FIELDS, "AccessDenied"),
        (policy(*ALLOWED), FIELDS | {"key": "b"}, "AccessDenied"),
        (policy(*ALLOWED), FIELDS | {"bucket": "other"}, "AccessDenied"),
        (policy(*ALLOWED[1:]), FIELDS, "AccessDenied"),
        (policy(*ALLOWED), FIELDS | {"x-amz-meta-a": "1"}, "AccessDenied"),
        (policy(*ALLOWED, ["like", "$key", "a"]), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, {"key": 1}), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, ["content-length-range", "x", 1]), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, ["content-length-range", -1, 1]), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, ["content-length-range", 0, [1]]), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, ["eq", 1, "a"]), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, [["eq"], {}, "a"]), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, expiration="2030-01-01T00:00:00"), FIELDS, "InvalidPolicyDocument"),
        (policy(*ALLOWED, expiration="soon"), FIELDS, "InvalidPolicyDocument"),
        ("!", FIELDS, "InvalidPolicyDocument"),
        (base64.b64encode(b"[]").decode(), FIELDS, "InvalidPolicyDocument"),
        (base64.b64encode(b"[" * 10_000).decode(), FIELDS, "InvalidPolicyDocument"),
    ],
)
def test_a_policy_that_does_not_hold_refuses(text: str, fields: dict[str, str], code: str) -> None:
    with pytest.raises(S3Error) as caught:
        check_policy(text, fields, 0)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"key": "b"}, '["starts-with", "$key", "a/"]'), ({"bucket": "other"}, '["eq", "$bucket", "lab"]')],
)
def test_the_condition_that_does_not_hold_is_told_as_amazon_tells_it(fields: dict[str, str], rule: str) -> None:
    with pytest.raises(S3Error) as caught:
        check_policy(policy(*ALLOWED), FIELDS | fields, 0)
    assert str(caught.value).endswith(f"Invalid according to Policy: Policy Condition failed: {rule}")


def test_a_signature_is_any_text_and_wrong() -> None:
    with pytest.raises(S3Error) as caught:
        FormClaim("key", "20300101/r/s3/aws4_request", "policy", "\u00e9").verify("secret")
    assert caught.value.code == "SignatureDoesNotMatch"


def test_version_2_is_refused_and_no_policy_is_nobody() -> None:
    assert claim_of({"key": "a"}) is None
    for fields in ({"awsaccesskeyid": "x", "signature": "y"}, {"policy": "x"}):
        with pytest.raises(S3Error):
            claim_of(fields)
