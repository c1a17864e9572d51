"""Share tokens: rights of a user that any bearer may use in his name, signed with the Bartenders' token key.

A token is base64url of version byte (1) | msgpack array of the fields of `ShareToken`, in order | HMAC-SHA256. The HMAC
covers `chelonia share 1` NUL and all before it. Any altered character is refused; comparison is in constant time.
The password of a link is the last 12 characters of its id, a hyphen and base64url of the first 16 bytes of the HMAC.
The cluster keeps the token without its HMAC. A token grants nothing by itself: every use checks its giver's rights.
Golden text: `docs/formats/share-token.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.rights.scopes import Scope
from chelonia.wire import armour
from chelonia.wire.records import Format

MAC_BYTES: Final = 32
TOKEN_BYTES_MAX: Final = 8 * 1024
"""Largest token: a URL with one fits into a request line, and the name of a shared entry has some 4 KiB at most."""
PASSWORD_MAC_BYTES: Final = 16
_PASSWORD: Final = re.compile(r"([0-9a-f]{12})-([A-Za-z0-9_-]{22})")
_CONTEXT: Final = b"chelonia share 1\0"
_MARK_CONTEXT: Final = b"chelonia share mark 1"
_MARK_BYTES: Final = 6


class ShareToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a token. The order of the fields is the format.

    Args:
        id: identifies the token in logs.
        dn: its giver; credential: serial number and issuer of the certificate that he used.
        scope: the part of his rights that it passes on.
        issued_ms, expires_ms: not valid at the latter and after.
    """

    id: str
    dn: Dn
    credential: str
    scope: Scope
    issued_ms: Ms
    expires_ms: Ms


_FORMAT: Final = Format("share token", ShareToken, 1)


def issue(key: bytes, token: ShareToken) -> str:
    """Sign a token. Raises: TOO_LARGE when the name in its scope does not fit."""
    body = _FORMAT.encode(token)
    text = armour.to_text(body + _mac(key, body))
    if len(text) > TOKEN_BYTES_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "share", cause="the name is too long for a link; share a collection above")
    return text


def verify(key: bytes, text: str, now_ms: int) -> ShareToken:
    """Read a token that this cluster signed and that is still valid. Raises: BAD_TICKET, EXPIRED."""
    raw = armour.from_text(text) if len(text) <= TOKEN_BYTES_MAX else None
    if raw is None or len(raw) <= MAC_BYTES:
        raise _refused("it is neither a token nor a password of this cluster: copy it whole")
    return _verified(key, raw[:-MAC_BYTES], raw[-MAC_BYTES:], now_ms)


def password_of(text: str) -> str:
    """Return the password for the token of a kept link: programs accept no password as long as a token."""
    raw = armour.from_text(text)
    assert raw is not None, "a token that was given"
    mac = raw[-MAC_BYTES:][:PASSWORD_MAC_BYTES]
    return f"{_FORMAT.decode(raw[:-MAC_BYTES]).id[-12:]}-{armour.to_text(mac)}"


def kept_of(text: str) -> str:
    """Return the part of a token that the cluster keeps: all but its signature, so that nobody can use it."""
    raw = armour.from_text(text)
    assert raw is not None, "a token that was given"
    return armour.to_text(raw[:-MAC_BYTES])


def mark_of(key: bytes) -> str:
    """Return a mark that identifies the links of one token key, and reveals nothing of it."""
    return hmac.digest(key, _MARK_CONTEXT, hashlib.sha256)[:_MARK_BYTES].hex()


def id_of_password(text: str) -> str:
    """Return the id of the link whose password this may be; "" for other text."""
    match = _PASSWORD.fullmatch(text)
    return match[1] if match else ""


def verify_password(key: bytes, text: str, kept: str, now_ms: int) -> ShareToken:
    """Verify a password as `verify` does a token; `kept`: see `kept_of`. Raises: BAD_TICKET, EXPIRED."""
    match, body = _PASSWORD.fullmatch(text), armour.from_text(kept)
    mac = armour.from_text(match[2]) if match else None
    if not body or not mac:
        raise _refused("it is no password of a link: sign in with the whole token")
    return _verified(key, body, mac, now_ms)


def _verified(key: bytes, body: bytes, mac: bytes, now_ms: int) -> ShareToken:
    """Args: `mac`: the first bytes of the signature, as many as the caller has."""
    assert len(mac) in (PASSWORD_MAC_BYTES, MAC_BYTES), "a signature is long enough"
    if not hmac.compare_digest(mac, _mac(key, body)[: len(mac)]):
        raise _refused("its signature is wrong: altered, or not from this cluster")
    try:
        token = _FORMAT.decode(body)
    except CheloniaError as error:
        raise _refused(error.cause) from None
    if now_ms >= token.expires_ms:
        cause = f"the share link {token.id} has expired {(now_ms - token.expires_ms) // 1000} s ago: ask for a new one"
        raise CheloniaError(Kind.EXPIRED, "token", cause=cause)
    return token


def id_of(text: str) -> str:
    """Return the id in a token, unverified; "" for text that is no token."""
    raw = armour.from_text(text) if len(text) <= TOKEN_BYTES_MAX else None
    try:
        return _FORMAT.decode(raw[:-MAC_BYTES]).id if raw else ""
    except CheloniaError:
        return ""


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _CONTEXT + body, hashlib.sha256)


def _refused(cause: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_TICKET, "token", cause=cause)
