"""The S3 door on a cluster in memory, for pages of other origins, by a bucket's CORS rules."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Done, Set
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, Door, Heard, door

__all__ = ["door"]

PAGE = "https://igv.org"
RULES = (
    f"<CORSConfiguration><CORSRule><AllowedOrigin>{PAGE}</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"
    "<AllowedMethod>PUT</AllowedMethod><AllowedHeader>*</AllowedHeader></CORSRule></CORSConfiguration>"
)
ALLOWED = "Access-Control-Allow-Origin"


@pytest.fixture
def ruled(door: Door) -> Door:
    assert door.ask("PUT", "/lab?cors", RULES).status == 200
    door.put("k", b"reads")
    return door


def preflight(door: Door, target: str = "/lab/k", method: str = "GET", **more: str) -> Heard:
    return door.ask("OPTIONS", target, Origin=PAGE, Access_Control_Request_Method=method, **more)


def test_rules_are_told_to_who_may_read_the_bucket_and_taken_away(ruled: Door) -> None:
    assert ruled.ask("GET", "/lab?cors").texts("AllowedOrigin") == [PAGE]
    assert ruled.ask("GET", "/lab?cors", who=EVE).status == 403
    assert ruled.ask("PUT", "/lab?cors", RULES, who=EVE).status == 403
    assert ruled.ask("DELETE", "/lab?cors").status == 204
    assert ruled.ask("GET", "/lab?cors").texts("Code") == ["NoSuchCORSConfiguration"]
    assert preflight(ruled).status == 403


def test_a_browser_is_told_whether_a_page_may_ask_before_anybody_has_signed(ruled: Door) -> None:
    answer = preflight(ruled, "/lab/k?X-Amz-Signature=of-a-PUT", "PUT", Access_Control_Request_Headers="x-a, range")
    assert (answer.status, answer.body) == (200, b"")
    assert (answer.headers[ALLOWED], answer.headers["Access-Control-Allow-Headers"]) == (PAGE, "x-a, range")
    assert preflight(ruled, method="DELETE").status == 403
    assert preflight(ruled, "/no-such-bucket/k").texts("Code") == ["AccessForbidden"], "as one without rules"
    assert ruled.ask("OPTIONS", "/lab/k").status == 400


@pytest.mark.parametrize(
    ("who", "target", "status"), [(JOE, "/lab/k", 200), (EVE, "/lab/k", 403), (JOE, "/lab/no", 404)]
)
def test_a_page_may_read_the_answer_also_of_what_is_refused(ruled: Door, who: Dn, target: str, status: int) -> None:
    answer = ruled.ask("GET", target, who=who, Origin=PAGE)
    assert (answer.status, answer.headers[ALLOWED]) == (status, PAGE)
    refused = ruled.ask("GET", target, who=who, Origin="https://evil.org").headers
    assert ALLOWED not in refused
    assert refused["Vary"] == answer.headers["Vary"], "a cache must not show it to a page that may read it"
    assert ALLOWED not in ruled.ask("GET", target, who=who).headers


@pytest.mark.parametrize("name", ["..", ".", "a%00b", "A_", "x" * 300, "%FF", "a%2Fb"])
def test_a_bucket_that_cannot_be_is_refused_to_a_page_too(ruled: Door, name: str) -> None:
    for method in ("GET", "OPTIONS"):
        answer = ruled.ask(method, f"/{name}/k", Origin=PAGE, Access_Control_Request_Method="GET")
        assert answer.status in (400, 403, 404)


def test_rules_that_another_door_wrote_put_nothing_into_an_answer(ruled: Door) -> None:
    rules = '{"cors":[{"origins":["*"],"methods":["GET"],"exposed":["a\\r\\nSet-Cookie: b"]}]}'
    change = Set(LogicalName(ROOT, ("lab",)), user={"s3": rules})
    (done,) = asyncio.run(ruled.files.apply(Call(dn=JOE), (change,)))
    assert isinstance(done, Done)
    assert ALLOWED not in ruled.ask("GET", "/lab/k", Origin=PAGE).headers
