"""Facts of an object: what an upload may say of it."""

import pytest

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import facts_from


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
