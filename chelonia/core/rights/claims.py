"""The rights that the claims of a verified token grant: the WLCG profile (`wlcg.ver`) and SciTokens. Pure.

A token stands for a subject of its issuer (`sub`), in groups of the issuer's own organisation. It is narrowed to the
paths that its scopes name below the issuer's base path; one of groups alone, of WLCG, reaches all of it. Never guesses:
a claim that cannot be read refuses the token, and any other token without a scope of storage. Never checks signatures.
Source: WLCG Common JWT Profiles 1.x, SciTokens claims and scopes 2.0, RFC 7519.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.names import check_name, parse_ln
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import ADDING, CHANGING, READING, Scope, Scopes

LEEWAY_S: Final = 60
"""Most that an issuer's clock may differ from this host's."""
ANYWHERE: Final = ("https://wlcg.cern.ch/jwt/v1/any", "ANY")
"""Audiences that mean every service: of WLCG, and of SciTokens."""
SCOPES_MAX: Final = 64
GROUPS_MAX: Final = 256
TEXT_MAX: Final = 256
"""Characters of a subject or group."""

_WLCG: Final[dict[str, tuple[Action, ...]]] = {
    "storage.read": READING,
    "storage.stage": READING,
    "storage.create": ADDING,
    "storage.modify": CHANGING,
}
_SCITOKENS: Final[dict[str, tuple[Action, ...]]] = {"read": READING, "write": CHANGING}
_EVERYTHING: Final = (*READING, *CHANGING)


class Organisation(msgspec.Struct, frozen=True):
    """The configured facts of an issuer.

    Args:
        url: its `iss`, to the letter; audience: names of this service in its tokens.
        base_path: the collection that its `/` means here.
        vo: groups count only at `/<vo>` and below; empty: none counts.
    """

    url: str
    audience: tuple[str, ...]
    base_path: str
    vo: str


class Claimed(msgspec.Struct, frozen=True):
    """The bearer of a token: his name at the issuer, groups, at least one scope that narrows him, and its end."""

    subject: str
    groups: tuple[str, ...]
    scopes: Scopes
    until_ms: Ms


def judge_claims(claims: Mapping[str, Any], organisation: Organisation, now_s: int) -> Claimed:
    """Return the bearer and rights of a token.

    Args: `claims`: of a token with a good signature; `now_s`: Unix seconds.
    Raises: EXPIRED; UNTRUSTED, naming the claim and the rule that it breaks.
    """
    _check_times(claims, now_s)
    _check_audience(claims, organisation)
    subject = _text(claims, "sub")
    if not subject.isprintable() or len(subject) > TEXT_MAX:
        raise _refused("sub", f"1 to {TEXT_MAX} printable characters")
    is_wlcg = "wlcg.ver" in claims
    _check_version(claims, is_wlcg=is_wlcg)
    groups = _groups(claims, organisation) if is_wlcg else ()
    words = _words(claims)
    scopes = _scopes(words, organisation, _WLCG if is_wlcg else _SCITOKENS)
    capable = any(word.partition(":")[0].partition(".")[0] in ("storage", "compute") for word in words)
    if not scopes and is_wlcg and groups and not capable:  # such a token carries groups alone
        scopes = (Scope(_EVERYTHING, parse_ln(organisation.base_path).parts),)
    if not scopes:
        accepted = ", ".join(f"{name}:/path" for name in (_WLCG if is_wlcg else _SCITOKENS))
        raise _refused("scope", f"it names no path of this storage; it takes {accepted}")
    _check_scopes(scopes, organisation)
    return Claimed(subject, groups, scopes, Ms(int((claims["exp"] + LEEWAY_S) * 1000)))


def _check_scopes(scopes: Scopes, organisation: Organisation) -> None:
    base = parse_ln(organisation.base_path).parts
    assert scopes, "a call without scopes is narrowed to nothing and may do all"
    assert all(scope.path[: len(base)] == base for scope in scopes), "nothing is reached but what is its issuer's"
    assert {action for scope in scopes for action in scope.actions} <= {*_EVERYTHING}, "no rights are given by one"


def _check_times(claims: Mapping[str, Any], now_s: int) -> None:
    instants = {}
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None and name != "exp":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
            raise _refused(name, "a time in Unix seconds")
        instants[name] = value
    if now_s >= instants["exp"] + LEEWAY_S:
        cause = f"the token has expired {int(now_s - instants['exp'])} s ago: get a new one from its issuer"
        raise CheloniaError(Kind.EXPIRED, "token", cause=cause)
    for name in ("nbf", "iat"):
        if instants.get(name, 0) > now_s + LEEWAY_S:
            raise _refused(name, "a time that has come; are the clocks right?")


def _check_audience(claims: Mapping[str, Any], organisation: Organisation) -> None:
    claim = claims.get("aud")
    audience = [claim] if isinstance(claim, str) else claim
    if not isinstance(audience, list) or not set(map(str, audience)) & {*organisation.audience, *ANYWHERE}:
        raise _refused("aud", f"one of {', '.join((*organisation.audience, *ANYWHERE))}")


def _check_version(claims: Mapping[str, Any], *, is_wlcg: bool) -> None:
    name = "wlcg.ver" if is_wlcg else "ver"
    version = str(claims.get(name, "scitokens:2.0"))
    supported = version.startswith("1.") if is_wlcg else version in ("scitoken:2.0", "scitokens:2.0", "scitoken:1.0")
    if not supported:
        raise _refused(name, "WLCG 1.x" if is_wlcg else "scitoken:2.0")


def _groups(claims: Mapping[str, Any], organisation: Organisation) -> tuple[str, ...]:
    """Return the groups of the organisation; an issuer's claims about another's groups do not count."""
    groups = claims.get("wlcg.groups", [])
    if not isinstance(groups, list) or len(groups) > GROUPS_MAX or not all(isinstance(group, str) for group in groups):
        raise _refused("wlcg.groups", f"a list of at most {GROUPS_MAX} groups")
    top = f"/{organisation.vo}"
    own = [group for group in groups if organisation.vo and (group == top or group.startswith(top + "/"))]
    return tuple(group for group in own if len(group) <= TEXT_MAX and group.isprintable())


def _words(claims: Mapping[str, Any]) -> list[str]:
    scope = claims.get("scope", "")
    if not isinstance(scope, str):
        raise _refused("scope", "words with blanks between")
    words = scope.split(" ")
    if len(words) > SCOPES_MAX:
        raise _refused("scope", f"at most {SCOPES_MAX} words")
    return words


def _scopes(words: list[str], organisation: Organisation, actions: Mapping[str, tuple[Action, ...]]) -> Scopes:
    base = parse_ln(organisation.base_path).parts
    found = []
    for word in words:
        name, colon, path = word.partition(":")
        if name in actions and colon:
            found.append(Scope(actions[name], (*base, *_components(word, path))))
    return tuple(found)


def _components(word: str, path: str) -> tuple[str, ...]:
    """Return the names of a scope's path. Raises: UNTRUSTED if it could mean another path: `..`, an encoded slash."""
    if not path.startswith("/"):
        raise _refused("scope", f"{word[:80]!a} has no path that begins with /")
    try:
        names = [unquote(part, errors="strict") for part in path.split("/")]
        return tuple(check_name(name) for name in names if name not in ("", "."))
    except (CheloniaError, UnicodeDecodeError):
        raise _refused("scope", f"{word[:80]!a} has a component that is no name") from None


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise _refused(name, "a text")
    return value


def _refused(claim: str, wanted: str) -> CheloniaError:
    return CheloniaError(Kind.UNTRUSTED, "token", cause=f"its claim {claim} is not what is wanted here: {wanted}")
