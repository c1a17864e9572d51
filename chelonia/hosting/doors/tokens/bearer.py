"""Identifies the caller of the plain door: by the request's token, else its connection's certificate, else ANONYMOUS.

A token comes as `Authorization: Bearer`, as `authz` in the query (in links), or as the password of `Authorization:
Basic`. Any name goes with that (RFC 7617: file managers want both). A token that does not hold refuses the request,
whatever certificate there is. Tokens narrow: they never carry a role to another door.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from chelonia.core.caller import BY_LINK, Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.ports.access_keys import LINK_PREFIX, SealedKey
from chelonia.core.timing.clock import Clock
from chelonia.hosting.doors.calls import call_of
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.wire import shares

AUTHZ: Final = "authz"
"""The name of a token in a query; clients of dCache and XRootD use it too."""
_BEARER: Final = "bearer "
_BASIC: Final = "basic "


@dataclass(frozen=True, slots=True)
class Bearers:
    """The check of tokens.

    Args:
        key: the Bartenders' token key; clock: this host's.
        lifetime_ms_max: the longest life of a share link, whatever it says.
        revoked: whether a certificate (`Call.credential`) is revoked by now.
        kept: returns the record of the share link of an id, None when it was revoked.
        other: returns a call narrowed by another issuer's token. Raises: UNTRUSTED, EXPIRED.
    """

    registry: RoleRegistry
    key: bytes
    clock: Clock
    lifetime_ms_max: int
    revoked: Callable[[str], bool]
    kept: Callable[[str], Awaitable[SealedKey | None]]
    other: Callable[[str, Call], Awaitable[Call]]

    async def call_of(self, request: HttpRequest) -> Call:
        """Return the context of `request`. Raises: BAD_TICKET, EXPIRED, UNTRUSTED for a token that does not hold."""
        # Strong: clients of HTTP cannot say how new an answer has to be, and may ask another front end next.
        call, token = (await call_of(request, self.registry)).strongly(), token_of(request)
        if not token:
            return call
        nobody = msgspec.structs.replace(call, roles=(), attributes=(), credential="")
        if "." not in token:
            return await self._shared(token, nobody)
        return await self.other(token, nobody)

    async def _shared(self, text: str, call: Call) -> Call:
        """Return a call by a share link: its giver's, narrowed."""
        now_ms = self.clock.now_ms()
        token = await self._verified(text, now_ms)
        ends_ms = Ms(token.issued_ms + self.lifetime_ms_max)
        if now_ms >= ends_ms:
            cause = f"share links are good for {self.lifetime_ms_max // 1000} s here by now: ask for a new one"
            raise CheloniaError(Kind.EXPIRED, "token", cause=cause)
        if token.credential and self.revoked(token.credential):
            cause = f"the certificate with which the share link {token.id} was given is revoked"
            raise CheloniaError(Kind.UNTRUSTED, "token", cause=cause)
        link = token.id.removeprefix(LINK_PREFIX)
        if link != token.id and await self.kept(token.id) is None:
            raise CheloniaError(Kind.UNTRUSTED, "token", cause=f"the share link {link} was revoked")
        issuer = Dn(token.credential.partition(" ")[2])
        grant = await self.registry.grant(token.dn, issuer=issuer)
        return msgspec.structs.replace(
            call, dn=token.dn, roles=grant.roles, scopes=(token.scope,), via=f"{BY_LINK}{link}",
            until_ms=min(token.expires_ms, ends_ms),
        )  # fmt: skip

    async def _verified(self, text: str, now_ms: Ms) -> shares.ShareToken:
        link = shares.id_of_password(text)
        if not link:
            return shares.verify(self.key, text, now_ms)
        kept = await self.kept(LINK_PREFIX + link)
        return shares.verify_password(self.key, text, kept.secret if kept is not None else "", now_ms)


def token_of(request: HttpRequest) -> str:
    """Return the token that a request carries, "" for none."""
    text = request.headers.get("Authorization", "")
    if signs_in(request):
        return _password(text[len(_BASIC) :])
    if not text.lower().startswith(_BEARER):
        text = request.query.get(AUTHZ, "")
    return text[len(_BEARER) :].strip() if text.lower().startswith(_BEARER) else text.strip()


def signs_in(request: HttpRequest) -> bool:
    """Return whether a request carries a name and a password."""
    return request.headers.get("Authorization", "").lower().startswith(_BASIC)


def _password(encoded: str) -> str:
    """Return the password of Basic credentials; malformed ones stay as they are, which is no token."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2].strip()
    except ValueError:
        return encoded


def query_of(request: HttpRequest) -> str:
    """Return the query for links on a page that was opened by a share link; "" when the URL has no token."""
    token = request.query.get(AUTHZ, "")
    return f"?{AUTHZ}={quote(token, safe='')}" if token else ""
