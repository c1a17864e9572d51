"""Pages of the plain door beside the listing: the trash of a collection, and files shown as text and pictures."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from lxml import html

from chelonia.core.caller import Call
from chelonia.core.errors import Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.ports.bartender import DeletedEntry, ListDeletedOutcome, ListRequest, Outcome, UndeleteRequest
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.doors.plain.preview import TEXT_BYTES
from chelonia.hosting.metrics import Metrics
from tests.unit.hosting.doors.test_plain_door import Bench, Seen
from tests.unit.hosting.doors.test_plain_tokens import asked, by

ODD = "<b>'\"&.txt"


class Kept:
    """A trash with one file, which comes back once."""

    def __init__(self) -> None:
        self.back: list[UndeleteRequest] = []

    async def list_deleted(self, call: Call, requests: tuple[ListRequest, ...]) -> tuple[ListDeletedOutcome, ...]:
        (request,) = requests
        if request.ln == "/of-others":
            return (ListDeletedOutcome("0", "", (), "" if request.after else "b/c2"),)
        if request.after:
            return (ListDeletedOutcome("0", "", (DeletedEntry("older", "h", call.dn, 0, 0, 1, "collection"),)),)
        return (ListDeletedOutcome("0", "", (DeletedEntry(ODD, "g", call.dn, 1234, 0, 1),), "a/b"),)

    async def undelete(self, call: Call, requests: tuple[UndeleteRequest, ...]) -> tuple[Outcome, ...]:
        if self.back:
            return (Outcome("0", "", Kind.EXISTS.value, "there is one again"),)
        self.back += requests
        return (Outcome("0", ""),)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def bench(kept: Kept) -> Bench:
    bench = Bench()
    bench.door = PlainDoor(replace(bench.parts, trash=kept), bench.door._who, Metrics())
    bench.ask("MKCOL", "/d")
    return bench


def pressed(bench: Bench, **headers: str) -> Seen:
    form = urlencode({"guid": "g", "name": ODD}).encode()
    return bench.ask("POST", "/d/?trash", form, Content_Type="application/x-www-form-urlencoded", **headers)


def test_what_was_deleted_is_shown_with_a_button_that_brings_it_back(bench: Bench, kept: Kept) -> None:
    listing = html.fromstring(bench.ask("GET", "/d/", Accept="text/html").text)
    assert "?trash" in {link.get("href") for link in listing.iter("a")}
    seen = bench.ask("GET", "/d/?trash", Accept="text/html")
    assert "form-action 'self'" in seen.headers["Content-Security-Policy"]
    shown = html.fromstring(seen.text)
    assert not shown.xpath("//script | //b"), "a name is text"
    (form,) = shown.forms
    assert (form.method, form.get("action"), dict(form.form_values())) == ("POST", "?trash", {"guid": "g", "name": ODD})
    (more,) = shown.xpath("//a[.='more']/@href")
    assert "older/" in bench.ask("GET", f"/d/{more}", Accept="text/html").text
    answer = pressed(bench, Origin="https://se:1", Sec_Fetch_Site="same-origin")
    assert (answer.status, answer.headers["Location"]) == (303, "/d/")
    assert kept.back == [UndeleteRequest("0", "g", f"/d/{ODD}")]
    again = pressed(bench)
    assert (again.status, "there is one again" in again.text) == (409, True)


def test_a_page_of_what_others_deleted_does_not_say_that_nothing_is_kept(bench: Bench) -> None:
    bench.ask("MKCOL", "/of-others")
    first = bench.ask("GET", "/of-others/?trash", Accept="text/html").text
    (more,) = html.fromstring(first).xpath("//a[.='more']/@href")
    assert "Nothing of yours on this page" in first
    last = bench.ask("GET", f"/of-others/{more}", Accept="text/html").text
    assert "Nothing of yours on this page" in last
    assert "is kept" not in first + last


def test_a_page_of_another_site_brings_nothing_back(bench: Bench, kept: Kept) -> None:
    for told in ({"Origin": "https://evil"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
        assert pressed(bench, **told).status == 403
    assert bench.ask("POST", "/d/?trash", b"guid=g", Content_Type="text/plain").status == 415
    assert kept.back == []


def test_links_and_nobody_see_no_trash(bench: Bench) -> None:
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    assert bench.ask("GET", "/d/?trash", dn=ANONYMOUS, **by(token)).status == 403
    assert "?trash" not in bench.ask("GET", f"/d/?authz={token}", dn=ANONYMOUS, Accept="text/html").text


def test_a_text_is_shown_as_text(bench: Bench) -> None:
    bench.ask("PUT", "/d/a.html", b"<script>alert(1)</script>")
    listing = html.fromstring(bench.ask("GET", "/d/", Accept="text/html").text)
    assert listing.xpath("//a[.='view']/@href") == ["./a.html?view"]
    seen = bench.ask("GET", "/d/a.html?view")
    shown = html.fromstring(seen.text)
    assert not shown.xpath("//script")
    assert shown.xpath("string(//pre)") == "<script>alert(1)</script>"
    assert "script-src" not in seen.headers["Content-Security-Policy"]
    bench.ask("PUT", "/d/long.log", b"x" * (TEXT_BYTES - 1) + "\u00e9".encode() + b"end")
    long = html.fromstring(bench.ask("GET", "/d/long.log?view").text)
    assert long.xpath("string(//pre)") == "x" * (TEXT_BYTES - 1), "and no half of a character"
    assert "its beginning" in long.text_content()
    bench.ask("PUT", "/d/odd.txt", b"\xff\x00")
    assert "no preview" in bench.ask("GET", "/d/odd.txt?view").text
    assert bench.ask("HEAD", "/d/a.html?view").body == b""


def test_a_picture_is_loaded_as_one(bench: Bench) -> None:
    bench.ask("PUT", "/d/a b.svg", b"<svg/>")
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    seen = bench.ask("GET", f"/d/a b.svg?view&authz={token}", dn=ANONYMOUS)
    assert "img-src 'self'" in seen.headers["Content-Security-Policy"]
    (source,) = html.fromstring(seen.text).xpath("//img/@src")
    assert source == f"./a%20b.svg?proxy&authz={token}"
    assert bench.ask("GET", f"/d/a b.svg?proxy&authz={token}", dn=ANONYMOUS).body == b"<svg/>"
