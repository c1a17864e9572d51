"""The objects of requests: paths and hosts, and lawful names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.names import parse_ln
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.keys import Target, apart_of, check_key, collection_of, home_of, is_bucket_name, target_of
from chelonia.wire.s3.operations import operation_of

BUCKET = parse_ln("/lab")


@pytest.mark.parametrize(
    ("path", "host", "expected"),
    [
        ("/", "h:1", Target()),
        ("/lab", "h:1", Target("lab")),
        ("/lab/", "h:1", Target("lab")),
        ("/lab/a/b%20c", "h:1", Target("lab", "a/b c")),
        ("/lab//x", "h", Target("lab", "/x")),
        ("/a/b", "lab.s3.example.org:443", Target("lab", "a/b")),
        ("/", "lab.s3.example.org", Target("lab")),
        ("/lab/a", "s3.example.org", Target("lab", "a")),
    ],
)
def test_bucket_and_key(path: str, host: str, expected: Target) -> None:
    assert target_of(path, host, "s3.example.org") == expected


@pytest.mark.parametrize("name", ["abc", "a.b-c9", "1.2.3", "x" * 63])
def test_names_of_buckets(name: str) -> None:
    assert is_bucket_name(name)


@pytest.mark.parametrize(
    "name", ["", "ab", "x" * 64, "Abc", "a_b", "-ab", "ab-", "a..b", "1.2.3.4", "1.2.3.400", "xn--a", "a.-b"]
)
def test_what_is_no_name_of_a_bucket(name: str) -> None:
    assert not is_bucket_name(name)


@pytest.mark.parametrize("key", ["a//b", "/a", "a/./b", "a/../b", "a\x01", "x" * 256, "/", "a/" * 300 + "b"])
def test_keys_that_are_no_names_are_kept_apart(key: str) -> None:
    assert home_of(BUCKET, key) is None
    assert parse_ln(str(apart_of(BUCKET, key))) == apart_of(BUCKET, key)


@pytest.mark.parametrize(
    ("key", "inside"),
    [("k", ""), ("d/k", "d"), ("d/e/", "d/e"), ("d/e//k", "d/e"), ("/k", ""), ("d/../k", "d"), ("d/\n/k", "d"),
     ("d/※/k", "d/※"), ("※versions/k", ""), ("d/" * 400 + "k", "d/" * 254 + "d")],
)  # fmt: skip
def test_a_key_is_in_a_collection_as_far_as_it_names_one(key: str, inside: str) -> None:
    assert collection_of(BUCKET, key) == parse_ln(f"/lab/{inside}".removesuffix("/"))


def test_a_key_that_is_too_long_says_so() -> None:
    with pytest.raises(S3Error) as caught:
        check_key("x/" * 512 + "x")
    assert caught.value.code == "KeyTooLongError"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/\u203b"),
                        min_size=1, max_size=20), min_size=1, max_size=5))  # fmt: skip
def test_a_key_is_the_path_below_its_bucket(parts: list[str]) -> None:
    if any(part in (".", "..") for part in parts):
        return
    home = home_of(BUCKET, "/".join(parts))
    assert home is not None
    assert home.parts == ("lab", *parts)


def test_operations_by_method_and_subresource() -> None:
    bucket, key = Target("lab"), Target("lab", "k")
    assert operation_of("GET", Target(), {}, copies=False) == ("ListBuckets", "")
    assert operation_of("GET", bucket, {"list-type": "2"}, copies=False) == ("ListObjects", "")
    assert operation_of("GET", bucket, {"location": ""}, copies=False) == ("GetBucketLocation", "location")
    assert operation_of("PUT", key, {}, copies=True)[0] == "CopyObject"
    assert (
        operation_of("PUT", key, {"partNumber": "1", "uploadId": "u", "x-id": "UploadPart"}, copies=False)[0]
        == "UploadPart"
    )
    assert operation_of("GET", bucket, {"policy": ""}, copies=False) == ("GetBucketSetting", "policy")
    assert operation_of("OPTIONS", key, {"uploadId": ""}, copies=False) == ("PreflightRequest", "")
    for method, target, query in (("PUT", bucket, "policy"), ("GET", key, "torrent"), ("POST", key, "select")):
        with pytest.raises(S3Error) as caught:
            operation_of(method, target, {query: ""}, copies=False)
        assert caught.value.code == "NotImplemented"
    with pytest.raises(S3Error):
        operation_of("PATCH", key, {}, copies=False)
