"""Tokens of issuers (JWT, RFC 7519): checks the issuer and the signature, and makes a call the holder's.

`iss` chooses one of the configured issuers; then its keys alone count, in algorithms of public keys alone.
`core.rights.claims` decides what claims allow. A token carries no role: administrators come with certificates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
import msgspec
from jwt.types import Options

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.rights.claims import Organisation, judge_claims
from chelonia.core.timing.clock import Clock
from chelonia.hosting.net.identity import escape_value
from chelonia.hosting.net.key_sets import Jwk, KeySet, KeySource

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms in which only the holder of a private key can sign: neither `none` nor a shared secret."""
_SIGNATURE_ALONE: Final[Options] = {
    "verify_signature": True, "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False,
    "verify_iss": False, "verify_sub": False, "verify_jti": False,
}  # fmt: skip
_UNCHECKED: Final[Options] = {**_SIGNATURE_ALONE, "verify_signature": False}


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer of tokens, as configured.

    Args:
        issuer: the `iss` of its tokens, to the letter.
        audience: names of this service in its tokens, mostly the URL of this plain door.
        base_path: the collection that a scope's `/` stands for.
        keys, ca_file: the place of its keys, as in `KeySource`.
        identity: a holder's DN is this and `/CN=<sub>`; empty: `/O=Token/OU=<issuer without https://>`.
        subjects: DNs of holders who have another one, by `sub`.
        vo: groups (`wlcg.groups`) count at `/<vo>` and below; empty: none counts.
    """

    issuer: str
    audience: tuple[str, ...]
    base_path: str = "/"
    keys: str = ""
    ca_file: str = ""
    identity: str = ""
    subjects: Mapping[str, str] = field(default_factory=dict)
    vo: str = ""

    def dn_of(self, subject: str) -> Dn:
        """Return a holder's DN here."""
        if subject in self.subjects:
            return Dn(self.subjects[subject])
        organisation = escape_value(self.issuer.removeprefix("https://").rstrip("/"))
        return Dn(f"{self.identity or f'/O=Token/OU={organisation}'}/CN={escape_value(subject)}")


class Issuers:
    """Reads tokens of the configured issuers."""

    def __init__(self, issuers: Sequence[Issuer], clock: Clock) -> None:
        self._issuers = {
            each.issuer: (each, KeySet(KeySource(each.issuer, each.keys, each.ca_file), clock)) for each in issuers
        }
        self._clock = clock

    async def call_of(self, token: str, call: Call) -> Call:
        """Return `call` as the token's holder's. Raises: UNTRUSTED, EXPIRED; UNAVAILABLE when there are no keys."""
        try:
            header = jwt.get_unverified_header(token)
            claimed = jwt.decode(token, options=_UNCHECKED)
        except (jwt.PyJWTError, UnicodeEncodeError, RecursionError) as error:
            raise _refused(f"it is no JWT ({error})") from None
        algorithm, kid, name = header.get("alg"), header.get("kid", ""), claimed.get("iss")
        if algorithm not in ALGORITHMS or "crit" in header:
            raise _refused(f"it is signed by {str(algorithm)[:20]!a}; taken are {', '.join(ALGORITHMS)}")
        if not isinstance(name, str) or name not in self._issuers:
            raise _refused(f"its issuer {str(name)[:120]!a} is not known here ([[bartender.issuers]])")
        issuer, keys = self._issuers[name]
        claims = _verified(token, await keys.find(str(kid)), str(algorithm), name)
        organisation = Organisation(issuer.issuer, issuer.audience, issuer.base_path, issuer.vo)
        found = judge_claims(claims, organisation, self._clock.now_ms() // 1000)
        via = f"token of {issuer.issuer}"
        return msgspec.structs.replace(
            call, dn=issuer.dn_of(found.subject), attributes=found.groups, scopes=found.scopes, via=via,
            until_ms=found.until_ms,
        )  # fmt: skip


def _verified(token: str, key: Jwk, algorithm: str, issuer: str) -> dict[str, Any]:
    """Return the claims of a token that this key has signed. Raises: UNTRUSTED."""
    if key.get("alg", algorithm) != algorithm:
        raise _refused(f"its key is for {str(key['alg'])[:20]!a}, it is signed by {algorithm}")
    try:
        public = jwt.PyJWK(dict(key), algorithm)
        return jwt.decode(token, public, algorithms=[algorithm], options=_SIGNATURE_ALONE)
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise _refused(f"its signature is not of {issuer} ({error})") from None


def _refused(cause: str) -> CheloniaError:
    return CheloniaError(Kind.UNTRUSTED, "token", cause=cause)
