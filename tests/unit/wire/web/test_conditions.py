"""HTTP's conditional header fields: the state a change requires, a reader's own copy, and whether a range counts."""

from __future__ import annotations

import pytest

from chelonia.core.ids import Dn, Guid
from chelonia.core.ports.files import Attributes
from chelonia.wire.web.conditions import NS_PER_S, http_date, is_fresh, range_asked, when_of

AT = 1_700_000_000
THERE = Attributes(Guid("g"), "file", 1, Dn("/CN=joe"), 5, "tag", AT * NS_PER_S + 7)
BEFORE, SAME, AFTER = (http_date((AT + seconds) * NS_PER_S) for seconds in (-1, 0, 1))
NEVER = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({}, True),
        ({"If-Match": '"other", "tag"'}, True),
        ({"If-Match": '"other"'}, False),
        ({"If-Match": 'W/"tag"'}, False),
        ({"If-Match": "*"}, True),
        ({"If-None-Match": '"other"'}, True),
        ({"If-None-Match": '"other", W/"tag"'}, False),
        ({"If-None-Match": "*"}, False),
        ({"If-Unmodified-Since": BEFORE}, False),
        ({"If-Unmodified-Since": SAME}, True),
        ({"If-Unmodified-Since": "no date"}, True),
        ({"If-Unmodified-Since": NEVER}, True),
        ({"If-Unmodified-Since": "Mon, 02 Jan 1950 00:00:00 GMT"}, False),
        ({"If-Unmodified-Since": BEFORE, "If-Match": '"tag"'}, True),
    ],
)
def test_what_a_change_must_hold(fields: dict[str, str], holds: bool) -> None:
    assert (when_of(fields).refusal(THERE) == "") is holds


@pytest.mark.parametrize(
    ("fields", "fresh"),
    [
        ({}, False),
        ({"If-None-Match": 'W/"tag"'}, True),
        ({"If-None-Match": '"other"', "If-Modified-Since": AFTER}, False),
        ({"If-Modified-Since": BEFORE}, False),
        ({"If-Modified-Since": SAME}, True),
        ({"If-Modified-Since": AFTER}, True),
        ({"If-Modified-Since": "no date"}, False),
        ({"If-Modified-Since": NEVER}, False),
    ],
)
def test_what_a_reader_has_already(fields: dict[str, str], fresh: bool) -> None:
    assert is_fresh(fields, THERE.etag, THERE.modified_ns) is fresh


def test_what_has_no_time_is_not_taken_for_old() -> None:
    assert not is_fresh({"If-Modified-Since": AFTER}, "tag", -1)


@pytest.mark.parametrize(
    ("condition", "counts"),
    [("", True), ('"tag"', True), ('W/"tag"', False), ('"other"', False), (SAME, True), (AFTER, False)],
)
def test_whether_a_range_counts(condition: str, counts: bool) -> None:
    fields = {"If-Range": condition, "Range": "bytes=0-1"}
    assert range_asked(fields, THERE.etag, THERE.modified_ns) == ("bytes=0-1" if counts else "")
