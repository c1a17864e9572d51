"""Facts of an object that an upload may state."""

import pytest

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import NOTHING, PROPERTY, Facts, facts_from, facts_of, stored


@pytest.mark.parametrize(
    "field",
    [
        ("x-amz-meta-note", "two\r\nlines"),
        ("Content-Type", "text/html\r\nSet-Cookie: a=b"),
        ("x-amz-meta-a\r\nset-cookie: z", "v"),
        ("x-amz-meta-", "v"),
    ],
)
def test_what_no_header_field_can_hold_is_refused(field: tuple[str, str]) -> None:
    with pytest.raises(S3Error, match="header field"):
        facts_from([field], {})


@pytest.mark.parametrize(
    "written",
    [
        Facts(headers={"Set-Cookie": "a=b"}),
        Facts(headers={"Transfer-Encoding": "chunked"}),
        Facts(headers={"Content-Type": "a\r\nb: c"}),
        Facts(user={"a\r\nb": "c"}),
        Facts(user={"a": "b\x01"}),
        Facts(checksum=("crc32><a", "AAAA")),
        Facts(checksum=("crc32", "a\r\nb")),
        Facts(version="a\r\nb"),
        Facts(location="a b"),
    ],
)
def test_what_a_user_wrote_in_its_place_by_another_door_is_none(written: Facts) -> None:
    assert facts_of(stored(written)) == NOTHING
    assert facts_of({PROPERTY: "[" * 50_000}) == NOTHING


def test_what_this_door_wrote_is_read_again() -> None:
    written = Facts(
        {"Content-Type": "text/\u00e9", "Expires": "a\tb"}, {"a-b": "c d"}, {"t": "\n"}, ("crc64nvme", "aA+/0=-2"), "e",
        "7fffffff00000000-", "Enabled", "eu-1",
    )  # fmt: skip
    assert facts_of(stored(written)) == written
