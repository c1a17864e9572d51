"""`If`, LOCK bodies and lock properties by RFC 4918, and refused ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn, Ms
from chelonia.core.names import LogicalName
from chelonia.core.rights.locks import Lock, from_text, to_text
from chelonia.wire.web import locks
from chelonia.wire.web.locks import IfCondition, IfList
from tests.support.failing import fails

INFO = b"""<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:%s/></D:lockscope><D:locktype><D:write/></D:locktype>
<D:owner><D:href>http://example.org/~ejw</D:href> &amp; co</D:owner></D:lockinfo>"""


def test_the_forms_of_if() -> None:
    assert locks.parse_if('(<urn:a> ["I am an ETag"]) (["another"])') == (
        IfList("", (IfCondition(token="urn:a"), IfCondition(etag="I am an ETag"))),
        IfList("", (IfCondition(etag="another"),)),
    )
    assert locks.parse_if("(Not <urn:a> <urn:b>)")[0].conditions == (
        IfCondition("urn:a", negated=True),
        IfCondition("urn:b"),
    )
    tagged = locks.parse_if('</x> (<urn:a>)([W/"e"]) <https://h/y>(Not<DAV:no-lock>)')
    assert [each.resource for each in tagged] == ["/x", "/x", "https://h/y"]
    assert locks.submitted(tagged) == ("urn:a", "DAV:no-lock")


def test_what_a_condition_says() -> None:
    assert IfCondition("urn:a").holds(("urn:a",), "e")
    assert not IfCondition("urn:a", negated=True).holds(("urn:a",), "e")
    assert IfCondition(etag="e").holds((), "e")
    assert not IfCondition(etag="").holds((), "")
    assert IfCondition("DAV:no-lock", negated=True).holds((), "")


@pytest.mark.parametrize(
    "text",
    ["", "()", "(<urn:a>", "<urn:a>", "<>", "(<>)", "[x]", "([x])", "(Not)", "(Not Not <a>)", "((<a>))",
     "(<a>) </x> (<b>)", "(<a>)x", ")", "(<a>) " * 101, "".join(f"</{n}> (<a>) " for n in range(21))],
)  # fmt: skip
def test_a_malformed_if_is_refused(text: str) -> None:
    with fails(Kind.BAD_REQUEST):
        locks.parse_if(text)


@given(st.text(alphabet='(<>[]") Not\ta/:-W', max_size=60))
def test_any_if_is_read_or_refused(text: str) -> None:
    try:
        assert locks.parse_if(text)
    except CheloniaError as error:
        assert error.kind is Kind.BAD_REQUEST  # noqa: PT017


def test_what_lock_asks_for() -> None:
    lock = locks.lock_of(INFO % b"shared", token="urn:t", timeout="Infinite, Second-30", depth="0")
    assert (lock.shared, lock.deep, lock.lasts_ms) == (True, False, 30_000)
    assert "http://example.org/~ejw" in lock.note
    assert lock.note.endswith("&amp; co")
    whole = locks.lock_of(INFO % b"exclusive", token="urn:t", timeout="Second-4100000000", depth="")
    assert (whole.shared, whole.deep, whole.lasts_ms) == (False, True, bounds.LOCK_MS_MAX)
    for body, depth in ((INFO % b"private", "0"), (b"<lockinfo/>", "0"), (INFO % b"shared", "1")):
        with pytest.raises(CheloniaError):
            locks.lock_of(body, token="urn:t", timeout="", depth=depth)


def test_a_lock_is_shown_as_it_was_taken() -> None:
    lock = Lock(
        "urn:<t>", Dn("/CN=joe"), shared=True, deep=True, note="<x/>", lasts_ms=1500, root=LogicalName(ROOT, ("a b",))
    )
    shown = etree.fromstring(locks.discovered((lock,)))
    told = {node.tag: node.text for node in shown.iter()}
    dav = {tag.removeprefix("{DAV:}"): text for tag, text in told.items()}
    assert (dav["depth"], dav["timeout"], "shared" in dav) == ("infinity", "Second-2", True)
    assert [node.text for node in shown.iter("{DAV:}href")] == ["urn:<t>", "/a%20b"]


def test_what_is_stored_of_a_lock() -> None:
    lock = Lock("urn:t", Dn("/CN=joe a"), deep=True, note="a\nb", lasts_ms=1000, root=LogicalName(ROOT, ("x",)))
    text = to_text(lock, Ms(5000))
    assert text == "exclusive infinity 6000\n/CN=joe a\na\nb"
    assert from_text("urn:t", text, Ms(5000), lock.root) == lock
    assert from_text("urn:t", text, Ms(6000), lock.root) is None
    assert from_text("urn:t", "something else", Ms(0), lock.root) is None


@pytest.mark.parametrize("note", ["</D:owner><D:locktoken/>", "<D:href>", "</a><b/><a>", "&x;", "\x01", "<!DOCTYPE a>"])
def test_what_an_owner_said_by_another_door_is_text(note: str) -> None:
    told = locks.discovered((Lock("urn:a", Dn("/CN=joe"), note=note, lasts_ms=1000),))
    ((active,),) = etree.fromstring(told)
    assert [etree.QName(each).localname for each in active].count("locktoken") == 1
    assert active.findtext("{DAV:}owner") in (note, "", None)


@pytest.mark.parametrize("field", ["<urn:t>", " <urn:t> ", "urn:t"])
def test_who_unlocks_may_leave_the_brackets_out(field: str) -> None:
    assert locks.parse_token(field) == "urn:t"


@pytest.mark.parametrize("field", ["", "<>", "<", "<urn:t", "urn:t>", "<a>, <b>"])
def test_what_is_no_token_is_refused(field: str) -> None:
    with fails(Kind.BAD_REQUEST):
        locks.parse_token(field)
