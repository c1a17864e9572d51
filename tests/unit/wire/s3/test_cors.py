"""CORS rules of a bucket: accepted ones, and their header fields in an answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.wire.s3 import answers, facts, requests
from chelonia.wire.s3.cors import RULES_MAX, CorsRule, allowed
from chelonia.wire.s3.errors import S3Error

RULES = (
    CorsRule(
        ("https://igv.org", "https://*.lab.org"), ("GET", "HEAD"), ("range", "x-amz-*"), ("ETag",), 600, "viewers"
    ),
    CorsRule(("*",), ("POST",)),
)


def document(*rules: str) -> bytes:
    return f"<CORSConfiguration>{''.join(rules)}</CORSConfiguration>".encode()


def rule(origin: str = "*", method: str = "GET", more: str = "") -> str:
    return f"<CORSRule><AllowedOrigin>{origin}</AllowedOrigin><AllowedMethod>{method}</AllowedMethod>{more}</CORSRule>"


def test_rules_go_and_come_back() -> None:
    assert requests.cors(answers.cors(RULES)) == RULES
    assert facts.facts_of(facts.stored(facts.Facts(cors=RULES))).cors == RULES


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (document(), "MalformedXML"),
        (document("<CORSRule><AllowedOrigin>*</AllowedOrigin></CORSRule>"), "MalformedXML"),
        (document(rule(more="<MaxAgeSeconds>-1</MaxAgeSeconds>")), "MalformedXML"),
        (document(*[rule()] * (RULES_MAX + 1)), "MalformedXML"),
        (document(rule(method="PATCH")), "InvalidRequest"),
        (document(rule(origin="https://*.*.org")), "InvalidRequest"),
        (document(rule(more="<ExposeHeader>x-*</ExposeHeader>")), "InvalidRequest"),
        (document(rule(more="<ExposeHeader>a&#13;&#10;Set-Cookie: b</ExposeHeader>")), "InvalidRequest"),
        (document(rule(origin="https://" + "a" * 20_000)), "InvalidRequest"),
    ],
)
def test_rules_that_mean_nothing_are_refused(body: bytes, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        requests.cors(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("origin", "method", "asked", "told"),
    [
        ("https://igv.org", "GET", None, "https://igv.org"),
        ("https://a.lab.org", "GET", ["Range", "X-Amz-Date"], "https://a.lab.org"),
        ("https://a.lab.org", "GET", ["Authorization"], ""),
        ("https://lab.org.evil.org", "GET", None, ""),
        ("https://.lab.org", "GET", None, "https://.lab.org"),
        ("https://igv.org", "PUT", None, ""),
        ("https://anybody.org", "POST", None, "*"),
        ("https://anybody.org", "POST", ["Range"], ""),
        ("null", "GET", None, ""),
    ],
)
def test_who_may_ask(origin: str, method: str, asked: list[str] | None, told: str) -> None:
    assert dict(allowed(RULES, origin, method, asked)).get("Access-Control-Allow-Origin", "") == told


def test_an_answer_says_what_the_rule_says_and_allows_no_credentials() -> None:
    assert dict(allowed(RULES, "https://igv.org", "GET", ["Range"])) == {
        "Access-Control-Allow-Origin": "https://igv.org",
        "Access-Control-Allow-Methods": "GET, HEAD",
        "Access-Control-Allow-Headers": "Range",
        "Access-Control-Expose-Headers": "ETag",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
    }


@given(
    st.text(alphabet="ab*", max_size=6).filter(lambda text: text.count("*") <= 1), st.text(alphabet="ab", max_size=8)
)
def test_a_star_stands_for_any_characters(pattern: str, origin: str) -> None:
    wanted = re.fullmatch(pattern.replace("*", ".*"), origin) is not None
    assert bool(allowed((CorsRule((pattern,), ("GET",)),), origin, "GET")) is wanted
