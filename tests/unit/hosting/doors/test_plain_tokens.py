"""Tokens at the plain door: share links and macaroon requests, their rights and their refusals."""

from __future__ import annotations

import base64
import json

import pytest
from lxml import html
from msgspec import structs

from chelonia.core.caller import Call, Role
from chelonia.core.ids import ANONYMOUS, Dn, Ms, ServiceId
from chelonia.core.ports.access_keys import AccessKey, SealedKey
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import ADDING, READING, Scope
from chelonia.core.values import replace
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.metrics import Metrics
from chelonia.wire.shares import ShareToken, issue, kept_of, password_of
from tests.support.stage import KEY
from tests.unit.hosting.doors.test_plain_door import EVE, JOE, Bench

REQUEST = "application/macaroon-request"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    for name in ("/lab", "/lab/run1", "/lab/run10"):
        assert bench.ask("MKCOL", name).status == 201
    for name in ("/lab/run1/f", "/lab/run10/f"):
        assert bench.ask("PUT", name, b"bytes").status == 201
    return bench


def asked(bench: Bench, path: str, *caveats: str, dn: Dn = JOE, validity: str = "PT1H") -> str:
    """The token that a client gets."""
    body = json.dumps({"caveats": caveats, "validity": validity}).encode()
    answer = bench.ask("POST", path, body, dn, Content_Type=REQUEST)
    assert answer.status == 200, answer.text
    told = json.loads(answer.body)
    assert told["uri"]["targetWithMacaroon"].endswith(f"?authz={told['macaroon']}")
    return str(told["macaroon"])


def by(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def made(scope: Scope, dn: Dn = JOE, credential: str = "", issued_ms: int = 0, expires_ms: int = 2**52) -> str:
    return issue(KEY, ShareToken("id", dn, credential, scope, Ms(issued_ms), Ms(expires_ms)))


def test_a_token_reads_what_it_names_and_no_more(bench: Bench) -> None:
    token = asked(bench, "/lab/run1", "activity:DOWNLOAD,LIST")
    for path in ("/lab/run1/f", f"/lab/run1/f?authz={token}", f"/lab/run1/f?authz=Bearer%20{token}"):
        fields = {} if "?" in path else by(token)
        assert bench.ask("GET", path, dn=ANONYMOUS, **fields).body == b"bytes"
    assert bench.ask("GET", "/lab/run1/", dn=ANONYMOUS, Accept="text/plain", **by(token)).text == "f\n"
    for path in ("/lab/run10/f", "/lab/", "/", "/lab/run1/../run10/f", "/missing"):
        refused = bench.ask("GET", path, dn=ANONYMOUS, **by(token))
        assert refused.status in (400, 403), path
    assert "the token allows read on /lab/run1" in bench.ask("GET", "/lab/run10/f", dn=ANONYMOUS, **by(token)).text
    for method in ("PUT", "DELETE", "MKCOL"):
        assert bench.ask(method, "/lab/run1/new", dn=ANONYMOUS, **by(token)).status in (403, 404), method
    assert bench.ask("GET", "/lab/run1/new").status == 404


@pytest.mark.parametrize(("name", "saved"), [("a.html", True), ("a.svg", True), ("a.txt", False), ("a.png", False)])
def test_a_link_is_not_told_by_what_another_has_put_where_it_leads(bench: Bench, name: str, saved: bool) -> None:
    """A page may contain `<meta name=referrer content=unsafe-url>`: then a click sends its whole URL."""
    token = made(Scope(READING, ("lab",)), issued_ms=bench.clock.now_ms())
    assert bench.ask("PUT", f"/lab/{name}", b"<a>").status == 201
    assert "Content-Disposition" not in bench.ask("GET", f"/lab/{name}?authz={token}", dn=ANONYMOUS).headers
    bench.files.allow("/lab", **{EVE: "+addEntry"})
    assert bench.ask("DELETE", f"/lab/{name}").status == 204
    assert bench.ask("PUT", f"/lab/{name}", b"<a>", EVE).status == 201
    bench.files.allow(f"/lab/{name}", ALL="+read")
    got = bench.ask("GET", f"/lab/{name}?authz={token}", dn=ANONYMOUS)
    assert (got.status, "Content-Disposition" in got.headers) == (200, saved)
    assert "Content-Disposition" not in bench.ask("GET", f"/lab/{name}", dn=JOE).headers


def test_a_token_counts_in_place_of_the_certificate(bench: Bench) -> None:
    token = asked(bench, "/lab/run1/f", "activity:DOWNLOAD")
    assert bench.ask("GET", "/lab/run1/f", dn=EVE).status == 403
    assert bench.ask("GET", "/lab/run1/f", dn=EVE, **by(token)).status == 200
    assert bench.ask("DELETE", "/lab/run1/f", dn=JOE, **by(token)).status == 403


def test_adding_needs_its_own_word(bench: Bench) -> None:
    token = asked(bench, "/lab/run1", "activity:UPLOAD")
    assert bench.ask("PUT", "/lab/run1/new", b"new", ANONYMOUS, **by(token)).status == 201
    assert bench.ask("PUT", "/lab/run1/new", b"again", ANONYMOUS, **by(token)).status == 403
    assert bench.ask("GET", "/lab/run1/new", dn=ANONYMOUS, **by(token)).status == 403
    assert bench.ask("GET", "/lab/run1/new").body == b"new"


def test_who_may_change_and_not_read_replaces(bench: Bench) -> None:
    token = asked(bench, "/lab/run1", "activity:UPLOAD,DELETE")
    assert bench.ask("PUT", "/lab/run1/f", b"again", ANONYMOUS, **by(token)).status == 204
    assert bench.ask("PUT", "/lab/run1/f", b"more", ANONYMOUS, If_None_Match="*", **by(token)).status == 412
    assert bench.ask("GET", "/lab/run1/f").body == b"again"


def test_who_may_remove_and_not_read_removes(bench: Bench) -> None:
    token = asked(bench, "/lab/run1", "activity:DELETE")
    etag = bench.ask("HEAD", "/lab/run1/f").headers["ETag"]
    assert bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **by(token)).status == 403
    assert bench.ask("DELETE", "/lab/run1/f", dn=ANONYMOUS, If_Match='"other"', **by(token)).status == 412
    assert bench.ask("DELETE", "/lab/run1/none", dn=ANONYMOUS, **by(token)).status == 404
    assert bench.ask("DELETE", "/lab/run10/f", dn=ANONYMOUS, **by(token)).status == 403
    assert bench.ask("DELETE", "/lab/run1/f", dn=ANONYMOUS, If_Match=etag, **by(token)).status == 204
    assert bench.ask("PUT", "/lab/run1/g", b"bytes").status == 201
    assert bench.ask("DELETE", "/lab/run1", dn=ANONYMOUS, **by(token)).status == 409, "what is in it is not told"
    assert bench.ask("GET", "/lab/run1/g").status == 200


def test_caveats_narrow(bench: Bench) -> None:
    token = asked(bench, "/", "path:/lab/run1", "activity:DOWNLOAD", "activity:DOWNLOAD,UPLOAD", "before:2100-01-01")
    assert bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **by(token)).status == 200
    assert bench.ask("GET", "/lab/run10/f", dn=ANONYMOUS, **by(token)).status == 403
    assert bench.ask("PUT", "/lab/run1/new", b"x", ANONYMOUS, **by(token)).status == 403


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"caveats": ["activity:EVERYTHING"]}',
        b'{"caveats": ["ip:10.0.0.0/8"]}',
        b'{"caveats": ["path:/lab/run10"]}',
        b'{"caveats": ["path:/lab/run1/../run10"]}',
        b'{"x": ' + b"[" * 10_000 + b"}",
        b'{"validity": "\xff"}',
        b'{"validity": "1h"}',
        b'{"validity": "P"}',
        b'{"caveats": ["before:tomorrow"]}',
        b'{"caveats": ["before:\xff"]}',
    ],
)
def test_what_a_caveat_cannot_hold_is_refused(bench: Bench, body: bytes) -> None:
    assert bench.ask("POST", "/lab/run1", body, Content_Type=REQUEST).status == 400


def test_tokens_are_given_to_certificates_alone(bench: Bench) -> None:
    assert bench.ask("POST", "/lab/run1", dn=ANONYMOUS, Content_Type=REQUEST).status == 401
    token = asked(bench, "/lab/run1", "activity:LIST")
    assert bench.ask("POST", "/lab/run1", dn=ANONYMOUS, Content_Type=REQUEST, **by(token)).status == 403
    assert bench.ask("POST", "/lab/run1", Content_Type="application/x-www-form-urlencoded").status == 415


def test_a_token_that_does_not_hold_is_refused_by_name(bench: Bench) -> None:
    bench.revoked.add("5f /CN=CA")
    reader = Scope(READING, ("lab",))
    now_ms = bench.clock.now_ms()
    refusals = {
        made(reader, issued_ms=now_ms - 2_000, expires_ms=now_ms - 1_000): "has expired",
        made(reader, issued_ms=now_ms - 365 * 24 * 3_600_000): "are good for 2592000 s here",
        made(reader, credential="5f /CN=CA", issued_ms=now_ms): "is revoked",
        made(reader, issued_ms=now_ms)[:-4] + "AAAA": "its signature is wrong",
        "nonsense": "neither a token nor a password of this cluster",
        "a.b.c": "it is no JWT",
    }
    for token, why in refusals.items():
        answer = bench.ask("GET", "/lab/run1/f", dn=JOE, **by(token))
        assert (answer.status, why in answer.text) == (401, True), (token, answer)
        assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


async def test_a_call_by_a_link_knows_when_that_ends(bench: Bench) -> None:
    most, now = bench.bearers.lifetime_ms_max, bench.clock.now_ms()
    for lifetime in (5_000, most + 5_000):
        token = made(Scope(READING, ("lab",)), issued_ms=now, expires_ms=now + lifetime)
        assert (await bench.bearers._shared(token, Call())).until_ms == now + min(lifetime, most)


def test_a_token_of_an_issuer_takes_nothing_from_the_certificate_beside_it(bench: Bench) -> None:
    seen = list[Call]()

    async def other(token: str, call: Call) -> Call:
        seen.append(call)
        return structs.replace(call, scopes=(Scope(READING, ("lab",)),), via="token")

    registry = RoleRegistry((ServiceRecord(Role.ADMINISTRATOR, JOE, ServiceId(""), True),), None, bench.clock)
    bench.door = PlainDoor(bench.parts, replace(bench.bearers, registry=registry, other=other).call_of, Metrics())
    bench.ask("GET", "/lab/run1/f", dn=JOE, **by("a.b.c"))
    (call,) = seen
    assert (call.roles, call.attributes, call.credential) == ((), (), "")


def signing_in(password: str, name: str = "jane") -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def test_a_token_is_the_password_of_programs_that_ask_for_one(bench: Bench) -> None:
    token = asked(bench, "/lab/run1", "activity:LIST,DOWNLOAD")
    for shown in (signing_in(token), signing_in(token, ""), signing_in(f" {token}\n")):
        assert bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **shown).body == b"bytes"
        narrowed = bench.ask("PUT", "/lab/run1/new", b"x", ANONYMOUS, **shown)
        assert (narrowed.status, "WWW-Authenticate" in narrowed.headers) == (403, False), (
            "who has signed in is not asked"
        )
    for wrong in (signing_in("secret"), {"Authorization": "Basic %%%"}, signing_in(token[:-4] + "AAAA")):
        refused = bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **wrong)
        told = refused.headers.getall("WWW-Authenticate")
        assert (refused.status, [each.split()[0] for each in told]) == (401, ["Bearer", "Basic"])


def test_a_link_that_is_kept_has_a_short_password(bench: Bench) -> None:
    now_ms, link = bench.clock.now_ms(), "link-a1b2c3d4e5f6"
    scope = Scope(READING, ("lab", "run1"))
    token = issue(KEY, ShareToken(link, JOE, "", scope, Ms(now_ms), Ms(now_ms + 10**6)))
    key = AccessKey(link, JOE, Ms(now_ms), Ms(now_ms + 10**6))
    links = {key.id: SealedKey(key, kept_of(token))}

    async def kept(link: str) -> SealedKey | None:
        return links.get(link)

    bench.door = PlainDoor(bench.parts, replace(bench.bearers, kept=kept).call_of, Metrics())
    password = password_of(token)
    assert len(password) == 35
    assert token not in str(links), "what is kept is of no use by itself"
    assert bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **signing_in(password)).body == b"bytes"
    assert bench.ask("GET", "/lab/run10/f", dn=ANONYMOUS, **signing_in(password)).status == 403
    for wrong in (password[:-2] + "AA", "b" + password[1:], f"{password[:13]}{'A' * 22}"):
        assert bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **signing_in(wrong)).status == 401
    links.clear()
    assert bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, **signing_in(password)).status == 401


@pytest.mark.parametrize("shown", [{}, signing_in(""), signing_in("", "")], ids=["nothing", "a name", "blanks"])
def test_programs_that_show_nothing_are_asked_to_sign_in_and_browsers_get_a_page(
    bench: Bench, shown: dict[str, str]
) -> None:
    for method in ("PROPFIND", "GET", "PUT"):
        asked_for = bench.ask(method, "/lab/run1/f", dn=ANONYMOUS, **shown)
        assert asked_for.status == 401
        assert asked_for.headers["WWW-Authenticate"].startswith("Basic ")
    page = bench.ask("GET", "/lab/run1/f", dn=ANONYMOUS, Accept="text/html", **shown)
    assert (page.status, "WWW-Authenticate" in page.headers) == (403, False)
    assert bench.ask("GET", "/lab/run1/f", dn=EVE).status == 403, "who has a certificate has signed in"


def test_a_givers_lost_right_is_lost_to_the_link(bench: Bench) -> None:
    token = made(Scope(READING, ("lab",)), EVE, issued_ms=bench.clock.now_ms())
    answer = bench.ask("GET", "/lab/run1/f", dn=JOE, **by(token))
    assert answer.status == 403
    assert "whose token this is (link id) lacks read" in answer.text or "lacks read" in answer.text


def test_pages_by_link_lead_on_by_link(bench: Bench) -> None:
    token = asked(bench, "/lab", "activity:LIST,DOWNLOAD")
    moved = bench.ask("GET", f"/lab/run1?authz={token}", dn=ANONYMOUS)
    assert moved.headers["Location"] == f"/lab/run1/?authz={token}"
    page = html.fromstring(bench.ask("GET", f"/lab/run1/?authz={token}", dn=ANONYMOUS, Accept="text/html").text)
    links = [link.get("href") for link in page.iter("a")]
    assert links == [
        f"/lab/?authz={token}",
        f"/lab/run1/?authz={token}",
        f"../?authz={token}",
        f"f?authz={token}",
    ]
    assert page.get_element_by_id("drop", None) is None
    top = html.fromstring(bench.ask("GET", f"/lab/?authz={token}", dn=ANONYMOUS, Accept="text/html").text)
    assert "../" not in {link.get("href") for link in top.iter("a")}
    assert JOE not in top.text_content()


def test_a_link_to_upload_has_a_place_to_drop(bench: Bench) -> None:
    token = made(Scope((*READING, *ADDING), ("lab",)), issued_ms=bench.clock.now_ms())
    page = html.fromstring(bench.ask("GET", f"/lab/?authz={token}", dn=ANONYMOUS, Accept="text/html").text)
    assert page.get_element_by_id("drop", None) is not None
    assert page.get_element_by_id("share", None) is None
    own = html.fromstring(bench.ask("GET", "/lab/", Accept="text/html").text)
    assert own.get_element_by_id("share", None) is not None
    assert Action.DELETE not in (*READING, *ADDING)
