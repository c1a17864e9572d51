"""Pages of the plain door beside the listing: the trash of a collection, and files shown as text and pictures."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote, urlencode

import pytest
from lxml import html

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.core.ports.bartender import (
    Bartender,
    DeletedEntry,
    ListDeletedOutcome,
    ListRequest,
    Outcome,
    UndeleteRequest,
)
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import pages
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.doors.plain.preview import TEXT_BYTES
from chelonia.hosting.metrics import Metrics
from tests.unit.hosting.doors.test_plain_door import JOE, Bench, Seen, listed
from tests.unit.hosting.doors.test_plain_tokens import asked, by

ODD = "<b>'\"&.txt"
OURS = {"Origin": "https://se:1", "Sec_Fetch_Site": "same-origin"}
"""A browser's header fields with a form of this site."""
OTHERS = ({"Origin": "https://evil"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}, {"X": "tells nothing"})


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
    bench.door = PlainDoor(replace(bench.parts, bartender=cast("Bartender", kept)), bench.door._call_of, Metrics())
    bench.ask("MKCOL", "/d")
    return bench


def pressed(bench: Bench, **headers: str) -> Seen:
    headers = headers or OURS
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
    answer = pressed(bench)
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
    for told in OTHERS:
        assert pressed(bench, **told).status == 403
    assert bench.ask("POST", "/d/?trash", b"guid=g", Content_Type="text/plain").status == 415
    assert kept.back == []


def test_links_and_nobody_see_no_trash(bench: Bench) -> None:
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    assert bench.ask("GET", "/d/?trash", dn=ANONYMOUS, **by(token)).status == 403
    assert "?trash" not in bench.ask("GET", f"/d/?authz={token}", dn=ANONYMOUS, Accept="text/html").text


def added(bench: Bench, name: str, data: bytes, path: str = "/d/", dn: Dn = JOE, **headers: str) -> Seen:
    """Send a file in the form of a collection's page, as a browser does."""
    head = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/x\r\n\r\n'
    body = head.encode() + data + b"\r\n--b--\r\n"
    headers = headers or OURS
    return bench.ask("POST", path, body, dn, Content_Type="multipart/form-data; boundary=b", **headers)


def test_a_file_is_added_without_a_script(bench: Bench) -> None:
    seen = bench.ask("GET", "/d/", Accept="text/html")
    assert "form-action 'self'" in seen.headers["Content-Security-Policy"]
    (form,) = html.fromstring(seen.text).xpath("//form[@enctype='multipart/form-data']")
    assert (form.method, form.get("action"), form.xpath(".//input/@name")) == ("POST", None, ["file"])
    answer = added(bench, "t\u00e4 <b>.txt", b"hello\r\n--c")
    assert (answer.status, answer.headers["Location"]) == (303, "/d/")
    assert bench.ask("GET", "/d/t\u00e4 <b>.txt").body == b"hello\r\n--c"
    for name in ("C:\\home\\old.txt", "/home/old.txt"):
        assert added(bench, name, b"").status in (303, 412)
    assert bench.ask("GET", "/d/old.txt").body == b""


def test_a_form_replaces_nothing_and_leaves_nothing_half(bench: Bench) -> None:
    bench.ask("PUT", "/d/f", b"old")
    answer = added(bench, "f", b"new", Accept="text/html", **OURS)
    assert (answer.status, "<h1>412" in answer.text) == (412, True)
    assert bench.ask("GET", "/d/f").body == b"old"
    kind = "multipart/form-data; boundary=b"
    broken = b'--b\r\nContent-Disposition: form-data; name="file"; filename="g"\r\n\r\nhalf'
    assert bench.ask("POST", "/d/", broken, Content_Type=kind, **OURS).status == 400
    for name in ("", "..", "a\x07"):
        assert added(bench, name, b"x").status == 400
    assert bench.ask("POST", "/d/", b"", Content_Type=kind, **OURS).status == 400
    assert listed(bench, "/d/") == ["f"]


def test_a_page_of_another_site_adds_nothing_and_makes_no_link(bench: Bench) -> None:
    for told in OTHERS:
        assert added(bench, "f", b"x", **told).status == 403
        assert bench.ask("POST", "/d/?link", Content_Type="application/x-www-form-urlencoded", **told).status == 403
    assert listed(bench, "/d/") == []


def test_who_has_a_link_to_add_adds_by_the_form_too(bench: Bench) -> None:
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD,UPLOAD")
    answer = added(bench, "f", b"x", f"/d/?authz={token}", ANONYMOUS)
    assert (answer.status, answer.headers["Location"]) == (303, f"/d/?authz={token}")
    reader = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    assert added(bench, "g", b"x", f"/d/?authz={reader}", ANONYMOUS).status == 403
    assert listed(bench, "/d/") == ["f"]


def test_a_link_is_made_without_a_script(bench: Bench) -> None:
    bench.ask("PUT", "/d/f", b"x")
    (form,) = page(bench, "/d/").xpath("//form[@action='?link']")
    assert form.method == "POST"
    made = bench.ask("POST", "/d/?link", Content_Type="application/x-www-form-urlencoded", **OURS)
    assert (made.status, made.headers["Cache-Control"]) == (200, "no-store")
    (link,) = html.fromstring(made.text).xpath("//main//a/@href")
    assert bench.ask("GET", f"/d/f?{link.partition('?')[2]}", dn=ANONYMOUS).body == b"x"
    assert bench.ask("PUT", f"/d/g?{link.partition('?')[2]}", b"x", dn=ANONYMOUS).status == 403


def test_a_text_is_shown_as_text(bench: Bench) -> None:
    bench.ask("PUT", "/d/a.html", b"<script>alert(1)</script>")
    listing = html.fromstring(bench.ask("GET", "/d/", Accept="text/html").text)
    assert listing.xpath("//a[.='view']/@href") == ["a.html?view"]
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


def page(bench: Bench, path: str, dn: Dn = JOE, **headers: str) -> Any:
    return html.fromstring(bench.ask("GET", path, dn=dn, Accept="text/html", **headers).text)


def test_a_page_has_a_heading_that_is_read_aloud_and_names_that_stay_as_they_are(bench: Bench) -> None:
    odd = "  two  blanks \u202egpj.txt"
    bench.ask("PUT", f"/d/{odd}", b"x")
    shown = page(bench, "/d/")
    (heading,) = shown.xpath("//h1")
    assert (heading.text, heading.get("hidden")) == ("/d", None)
    assert shown.xpath("//td/a/bdi/text()") == [odd], "a mark within a name turns nothing around it"
    assert shown.xpath("//table/@aria-label") == ["Entries of /d"]


def test_who_comes_by_a_link_is_led_to_nothing_that_it_does_not_open(bench: Bench) -> None:
    bench.ask("MKCOL", "/d/e")
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    for path in (f"/d/?authz={token}", f"/d/e/?authz={token}"):
        shown = page(bench, path, ANONYMOUS)
        assert shown.xpath("//nav/a[.='Chelonia']") == []
        assert all(token in href for href in shown.xpath("//a/@href"))
    assert page(bench, "/d/").xpath("//nav/a/@href")[0] == "/"


@pytest.mark.parametrize("path", ["/d/", "/d/?trash", "/d/f.txt?view", "/d/none"])
def test_no_page_is_framed_sniffed_or_tells_others_where_its_readers_come_from(bench: Bench, path: str) -> None:
    bench.ask("PUT", "/d/f.txt", b"x")
    told = bench.ask("GET", path, Accept="text/html").headers
    rules = told["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"} <= set(rules)
    assert (told["X-Content-Type-Options"], told["Referrer-Policy"]) == ("nosniff", "same-origin")
    assert "Set-Cookie" not in told


def test_a_large_collection_comes_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROWS_MAX", 2)
    names = ["a", "b & c", "d#", "e+", "f"]
    for name in names:
        bench.ask("PUT", f"/d/{name}", b"x")
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    for dn, query in ((JOE, ""), (ANONYMOUS, f"?authz={token}")):
        seen, counts, path = list[str](), list[int](), f"/d/{query}"
        while path:
            shown = page(bench, path, dn)
            rows = shown.xpath("//td/a/bdi/text()")
            seen, counts = [*seen, *rows], [*counts, len(rows)]
            path = next((f"/d/{href}" for href in shown.xpath("//a[@rel='next']/@href")), "")
            assert bool(shown.xpath("//a[.='the first']")) == (len(counts) > 1)
        assert (seen, counts) == (names, [2, 2, 1])
    assert listed(bench, "/d/") == names, "programs get all at once"


@pytest.mark.parametrize("accept", [{}, {"Accept": "*/*", "User_Agent": "Wget/1.21"}])
def test_a_program_finds_links_to_all_entries_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, accept: dict[str, str]
) -> None:
    """`wget -r` would fetch every other link too: the views of texts, the trash, the next page and the one above."""
    monkeypatch.setattr(pages, "ROWS_MAX", 2)
    for name in ("a%20b.txt", "c%23", "e"):
        bench.ask("PUT", f"/d/{unquote(name)}", b"x")
    bench.ask("MKCOL", "/d/f")
    token = asked(bench, "/d", "activity:LIST,DOWNLOAD")
    for dn, query in ((JOE, ""), (ANONYMOUS, f"?authz={token}")):
        got = bench.ask("GET", f"/d/{query}", dn=dn, **accept)
        assert got.headers["Content-Type"].startswith("text/html")
        shown = html.fromstring(got.text)
        assert shown.xpath("//@href") == [f"{href}{query}" for href in ("a%20b.txt", "c%23", "e", "f/")]
        assert not shown.xpath("//form|//script")


def test_who_wants_text_gets_a_name_a_line(bench: Bench) -> None:
    bench.ask("PUT", "/d/a b", b"x")
    for told in ({"Accept": "text/plain"}, {"Accept": "*/*", "User_Agent": "curl/8"}):
        got = bench.ask("GET", "/d/", **told)
        assert (got.text, got.headers["Content-Type"]) == ("a b\n", "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    ("path", "dn", "status", "told"),
    [("/d/none", JOE, 404, "not-found"), ("/d/", ANONYMOUS, 403, "no certificate"),
     ("/d/?authz=v1.x.y", ANONYMOUS, 401, "whole"), ("/d/a\0b", JOE, 400, "name")],
)  # fmt: skip
def test_a_browser_is_told_of_an_error_by_a_page_that_names_the_cure(
    bench: Bench, path: str, dn: Dn, status: int, told: str
) -> None:
    plain, seen = bench.ask("GET", path, dn=dn), bench.ask("GET", path, dn=dn, Accept="text/html,*/*;q=0.8")
    assert (plain.status, plain.headers["Content-Type"]) == (
        401 if dn == ANONYMOUS else status,
        "text/plain; charset=utf-8",
    )
    assert (seen.status, seen.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    shown = html.fromstring(seen.text)
    assert plain.text.strip() in shown.text_content()
    assert told in shown.xpath("string(//main)")
    assert str(status) in shown.xpath("string(//h1)")
    assert shown.xpath("//script") == []
    assert "default-src 'none'" in seen.headers["Content-Security-Policy"]
    assert seen.headers["Chelonia-Error"] == plain.headers["Chelonia-Error"]


def test_every_kind_of_error_has_a_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in Kind:

        async def failing(*_: object, kind: Kind = kind) -> None:
            raise CheloniaError(kind, cause="<b>")

        monkeypatch.setattr(bench.parts.files, "look", failing)
        seen = bench.ask("GET", "/d/", Accept="text/html")
        assert (seen.headers["Chelonia-Error"], "<p>" in seen.text, "<b>" in seen.text) == (kind.value, True, False)


def test_a_browser_needs_no_other_server_than_this(bench: Bench) -> None:
    """At a Shepherd's port it would ask for the certificate again, and may know neither the CA nor the way."""
    big, page = b"x" * 300_000, {"Accept": "text/html,*/*;q=0.8"}
    bench.ask("PUT", "/big.pdf", big)
    bench.ask("PUT", "/small.pdf", b"x")
    saved = bench.ask("GET", "/big.pdf", **page)
    assert (saved.status, saved.body) == (200, big)
    assert saved.headers["Content-Disposition"] == "attachment"
    assert "Content-Disposition" not in bench.ask("GET", "/small.pdf", **page).headers
    assert bench.ask("GET", "/big.pdf?redirect", **page).status == 307
    # A link that is to be saved, as that of `?view`: Chromium 156 accepts anything then.
    link = {"User-Agent": "Mozilla/5.0", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}
    assert (bench.ask("GET", "/big.pdf", **link).status, bench.ask("GET", "/big.pdf").status) == (200, 307)
