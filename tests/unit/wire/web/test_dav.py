"""Answers to PROPFIND: entries written after patterns equal those written one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chelonia.core.errors import Kind
from chelonia.core.ports.files import Attributes
from chelonia.wire import xml
from chelonia.wire.web import dav, locks
from tests.support.failing import fails

SECOND = 1_000_000_000
TRICKY = (dav.DAV, "getetag"), ("http://h/%20(size)s%25", "size"), (dav.DAV, "getcontentlength")


@pytest.mark.parametrize(
    "asked", [dav.PropfindRequest(), dav.PropfindRequest(names=True), dav.PropfindRequest(TRICKY, everything=False)]
)
@pytest.mark.parametrize("kind", ["file", "collection"])
@pytest.mark.parametrize("etag", ["", "5a&<%(href)s"])
def test_entries_after_a_pattern_are_as_those_by_themselves(asked: dav.PropfindRequest, kind: str, etag: str) -> None:
    covered = locks.properties(())
    writer = dav.EntryWriter(asked, covered, str.upper)
    for number, name in enumerate(["a", "b %(etag)s%", "ü & <"]):
        there = Attributes("g", kind, 0, "/O=x", number, etag, number * SECOND, created_ns=7 * number * SECOND)  # type: ignore[arg-type]
        href = dav.href_of(("box", name), collection=kind == "collection")
        told = writer.entry(href, there, {})
        assert told == writer.entry(href, there, {}, covered)
        seen = xml.parse(told.encode().replace(b"<D:response>", b'<D:response xmlns:D="DAV:">', 1), 10_000)
        assert next(iter(seen)).text == href


@pytest.mark.parametrize(
    "key",
    ["d:n x><D:href>/forged</D:href", "d:n a b", "d:n 1", "d:\x01 a", "d:n ", "d:n a:b", "d:n {m}a", "d:n \u00b2"],
)
def test_a_property_that_a_user_named_by_another_door_forges_nothing(key: str) -> None:
    told = dav.EntryWriter(dav.PropfindRequest(), {}, str.upper).entry(
        "/f", Attributes("g", "file", 0, "/O=x"), {key: "v", "d:n a": "v"}
    )  # type: ignore[arg-type]
    seen = xml.parse(told.encode().replace(b"<D:response>", b'<D:response xmlns:D="DAV:">', 1), 10_000)
    assert [xml.local_name(each) for each in seen] == ["href", "propstat"]
    assert [each.text for each in seen.iter("{n}a")] == ["v"]


FIND, PATCH = (
    "<D:propfind %s><D:prop>%s</D:prop></D:propfind>",
    "<D:propertyupdate %s><D:set><D:prop>%s</D:prop></D:set></D:propertyupdate>",
)


@pytest.mark.parametrize(("read", "form"), [(dav.propfind, FIND), (dav.proppatch, PATCH)])
def test_a_request_names_no_more_than_can_be_said_of_every_entry(read: Callable[[bytes], object], form: str) -> None:
    """The answer to 90 KB of names in one long namespace had 200 MB, of each entry."""
    spaces = f'xmlns:D="DAV:" xmlns:x="{"u" * 1000}"'
    read((form % (spaces, "".join(f"<x:a{n}/>" for n in range(30)))).encode())
    with fails(Kind.TOO_LARGE):
        read((form % (spaces, "".join(f"<x:a{n}/>" for n in range(40)))).encode())
