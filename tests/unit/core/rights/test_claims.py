"""Claims of tokens: the rights they give, and each way in which they are invalid."""

from __future__ import annotations

from typing import Any

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.rights.claims import Organisation, judge_claims
from chelonia.core.rights.policy import Action
from tests.support.failing import fails

NOW_S = 1_800_000_000
HERE = Organisation("https://wlcg.example/", ("https://se.example:60006",), "/atlas", "atlas")
GOOD = {
    "iss": "https://wlcg.example/",
    "sub": "b3a9",
    "aud": "https://se.example:60006",
    "exp": NOW_S + 600,
    "nbf": NOW_S - 10,
    "iat": NOW_S - 10,
    "wlcg.ver": "1.0",
    "scope": "openid storage.read:/run1 storage.create:/run1/out",
}
SCITOKEN = {**{k: v for k, v in GOOD.items() if k != "wlcg.ver"}, "ver": "scitoken:2.0", "scope": "read:/ write:/out"}


def allowed(claims: dict[str, Any], action: Action, name: str) -> bool:
    found = judge_claims(claims, HERE, NOW_S)
    assert found.scopes, "a token is always narrowed"
    return any(scope.covers(action, parse_ln(name)) for scope in found.scopes)


def test_wlcg_scopes_are_paths_below_the_base() -> None:
    assert judge_claims(GOOD, HERE, NOW_S).subject == "b3a9"
    assert allowed(GOOD, Action.READ, "/atlas/run1/f")
    assert allowed(GOOD, Action.ADD_ENTRY, "/atlas/run1/out/f")
    for action, name in (
        (Action.READ, "/atlas/run10/f"),
        (Action.READ, "/run1/f"),
        (Action.READ, "/atlas"),
        (Action.DELETE, "/atlas/run1/out/f"),
        (Action.ADD_ENTRY, "/atlas/run1/f"),
        (Action.MODIFY_POLICY, "/atlas/run1"),
    ):
        assert not allowed(GOOD, action, name), (action, name)


@pytest.mark.parametrize(
    ("scope", "action", "name"),
    [
        ("storage.stage:/", Action.READ, "/atlas/f"),
        ("storage.modify:/d", Action.DELETE, "/atlas/d/f"),
        ("storage.modify:/d", Action.ADD_ENTRY, "/atlas/d/f"),
        ("storage.read:/My%20Data/", Action.READ, "/atlas/My Data/f"),
        ("storage.read://a/./b", Action.READ, "/atlas/a/b"),
    ],
)
def test_what_scopes_mean(scope: str, action: Action, name: str) -> None:
    assert allowed(GOOD | {"scope": scope}, action, name)


def test_scitokens_read_and_write() -> None:
    assert allowed(SCITOKEN, Action.READ, "/atlas/x")
    assert allowed(SCITOKEN, Action.DELETE, "/atlas/out/x")
    assert not allowed(SCITOKEN, Action.DELETE, "/atlas/x")
    assert judge_claims(SCITOKEN | {"wlcg.groups": ["/atlas"]}, HERE, NOW_S).groups == ()


def test_groups_are_those_of_the_organisation() -> None:
    told = ["/atlas", "/atlas/prod", "/atlasx", "/cms", "atlas", "/atlas/" + "x" * 300]
    claims = GOOD | {"wlcg.groups": told}
    assert judge_claims(claims, HERE, NOW_S).groups == ("/atlas", "/atlas/prod")
    nameless = Organisation(HERE.url, HERE.audience, "/", "")
    assert judge_claims(claims, nameless, NOW_S).groups == ()


def test_a_token_of_groups_alone_reaches_the_base_path() -> None:
    claims = GOOD | {"wlcg.groups": ["/atlas"], "scope": "openid"}
    assert allowed(claims, Action.DELETE, "/atlas/f")
    assert not allowed(claims, Action.READ, "/cms/f")
    assert not allowed(claims, Action.MODIFY_POLICY, "/atlas/f")
    for scope in ("compute.create", "storage.poll:/"):
        with pytest.raises(CheloniaError, match="names no path of this storage"):
            judge_claims(claims | {"scope": scope}, HERE, NOW_S)


@pytest.mark.parametrize("audience", [["x", "https://se.example:60006"], "https://wlcg.cern.ch/jwt/v1/any", "ANY"])
def test_audiences_that_mean_this_service(audience: object) -> None:
    assert judge_claims(GOOD | {"aud": audience}, HERE, NOW_S)


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": float("nan")}, "exp"),
        ({"nbf": NOW_S + 3600}, "nbf"),
        ({"iat": NOW_S + 3600}, "iat"),
        ({"aud": None}, "aud"),
        ({"aud": "https://se.example:60006.evil"}, "aud"),
        ({"aud": []}, "aud"),
        ({"sub": ""}, "sub"),
        ({"sub": None}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": 7}, "sub"),
        ({"wlcg.ver": "2.0"}, "wlcg.ver"),
        ({"wlcg.groups": "/atlas"}, "wlcg.groups"),
        ({"wlcg.groups": [1]}, "wlcg.groups"),
        ({"scope": ""}, "scope"),
        ({"scope": ["storage.read:/"]}, "scope"),
        ({"scope": "storage.read"}, "scope"),
        ({"scope": "storage.readx:/"}, "scope"),
        ({"scope": "read:/"}, "scope"),
        ({"scope": "storage.read:run1"}, "scope"),
        ({"scope": "storage.read:/run1/../.."}, "scope"),
        ({"scope": "storage.read:/%2e%2e/cms"}, "scope"),
        ({"scope": "storage.read:/a%2fb"}, "scope"),
        ({"scope": "storage.read:/%ff"}, "scope"),
        ({"scope": "storage.read:/ok storage.read:/a%00"}, "scope"),
        ({"scope": " ".join(["storage.read:/a"] * 65)}, "scope"),
    ],
)
def test_a_claim_that_does_not_hold_is_named(change: dict[str, Any], claim: str) -> None:
    with fails(Kind.UNTRUSTED, match=f"its claim {claim} "):
        judge_claims(GOOD | change, HERE, NOW_S)


def test_an_expired_token_says_so() -> None:
    with fails(Kind.EXPIRED):
        judge_claims(GOOD | {"exp": NOW_S - 61}, HERE, NOW_S)
    assert judge_claims(GOOD | {"exp": NOW_S - 59}, HERE, NOW_S), "clocks differ a little"
