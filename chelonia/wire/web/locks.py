"""WebDAV's locks in bodies and header fields: LOCK, `If`, `Timeout`, `Lock-Token`, the lock properties. Pure.

Source: RFC 4918, sections 6, 9.10, 10.4 to 10.7, 14 and 15.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.rights.locks import Lock
from chelonia.wire import xml
from chelonia.wire.web.dav import BODY_BYTES_MAX, DAV, Property, href_of

SUPPORTED: Final = "".join(
    f"<D:lockentry><D:lockscope><D:{scope}/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>"
    for scope in ("exclusive", "shared")
)
IF_CONDITIONS_MAX: Final = 100
"""Conditions of one `If`: a client holds a few locks."""
IF_RESOURCES_MAX: Final = 20
"""Entries that one `If` may name: each costs a look."""
_PIECE: Final = re.compile(
    r"\s*(?:(?P<open>\()|(?P<close>\))|(?P<not>Not\b)|<(?P<uri>[^<>]*)>|\[(?P<etag>[^\]]*)\])", re.I
)
_ETAG: Final = re.compile(r'(?:W/)?"([^"]*)"')
_TIMEOUT: Final = re.compile(r"Second-([0-9]{1,10})", re.I)


@dataclass(frozen=True, slots=True)
class IfCondition:
    """One condition of an `If`: a lock token or an etag that an entry has, or (`negated`) has not."""

    token: str = ""
    etag: str = ""
    negated: bool = False

    def holds(self, tokens: Iterable[str], etag: str) -> bool:
        """Return whether it holds for an entry covered by these locks and with this etag ("": there is none)."""
        return (self.token in tokens if self.token else bool(etag) and self.etag == etag) is not self.negated


@dataclass(frozen=True, slots=True)
class IfList:
    """A list of an `If`, which holds when all its conditions do. `resource`: its URL; "": the request's."""

    resource: str
    conditions: tuple[IfCondition, ...]


def parse_if(header: str) -> tuple[IfList, ...]:
    """Read an `If`. Raises: BAD_REQUEST when it is malformed or has too many conditions."""
    lists: list[IfList] = []
    inside: list[IfCondition] | None = None
    resource, negated, at, count = "", False, 0, 0
    text = header.rstrip()
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise _malformed(text[at : at + 40])
        at, kind = found.end(), found.lastgroup
        if kind == "open" and inside is None:
            inside = []
        elif kind == "close" and inside and not negated:
            lists.append(IfList(resource, tuple(inside)))
            inside = None
        elif kind == "not" and inside is not None and not negated:
            negated = True
        elif kind == "uri" and inside is None and (resource or not lists):
            resource = found["uri"]
        elif kind in ("uri", "etag") and inside is not None:
            inside.append(_condition(found, negated=negated))
            negated, count = False, count + 1
        else:
            raise _malformed(found[0])
    if inside is not None or not lists or count > IF_CONDITIONS_MAX:
        raise _malformed(f"a list is open, or empty, or there are more than {IF_CONDITIONS_MAX} conditions")
    if len({each.resource for each in lists}) > IF_RESOURCES_MAX:
        raise _malformed(f"more than {IF_RESOURCES_MAX} resources")
    return tuple(lists)


def submitted(lists: Iterable[IfList]) -> tuple[str, ...]:
    """Return the lock tokens that a client submits with an `If`."""
    return tuple(dict.fromkeys(each.token for one in lists for each in one.conditions if each.token))


def lock_of(body: bytes, *, token: str, timeout: str, depth: str) -> Lock:
    """Return the lock that a LOCK asks for. Raises: BAD_XML, BAD_REQUEST, TOO_LARGE."""
    root = xml.parse(body, BODY_BYTES_MAX)
    parts = {xml.name_of(child): child for child in root}
    scope, kind = parts.get((DAV, "lockscope")), parts.get((DAV, "locktype"))
    scopes = [xml.name_of(child) for child in scope] if scope is not None else []
    kinds = [xml.name_of(child) for child in kind] if kind is not None else []
    if xml.name_of(root) != (DAV, "lockinfo") or kinds != [(DAV, "write")] or len(scopes) != 1:
        raise CheloniaError(Kind.BAD_REQUEST, "LOCK", cause="the body is no DAV:lockinfo of one write lock")
    if scopes[0] not in ((DAV, "exclusive"), (DAV, "shared")):
        raise CheloniaError(Kind.BAD_REQUEST, "LOCK", cause="a lock is exclusive or shared")
    if depth not in ("0", "infinity", ""):
        raise CheloniaError(Kind.BAD_REQUEST, "LOCK", cause="Depth is 0 or infinity")
    owner = parts.get((DAV, "owner"))
    note = xml.inside(owner).strip() if owner is not None else ""
    return Lock(
        token, shared=scopes[0] == (DAV, "shared"), deep=depth != "0", note=note, lasts_ms=parse_timeout(timeout)
    )


def parse_timeout(header: str) -> int:
    """Return the duration of a lock in ms: as requested up to `bounds.LOCK_MS_MAX`, which is also the default."""
    found = _TIMEOUT.search(header)
    return min(int(found[1]) * 1000, bounds.LOCK_MS_MAX) or 1000 if found else bounds.LOCK_MS_MAX


def parse_token(header: str) -> str:
    """Return the URI of a `Lock-Token`; brackets may be missing, as from npm's webdav. Raises: BAD_REQUEST."""
    text = header.strip()
    token = text[1:-1] if text[:1] == "<" and text[-1:] == ">" else text
    if not token or "<" in token or ">" in token:
        raise CheloniaError(Kind.BAD_REQUEST, "UNLOCK", cause="Lock-Token is <the token>, as LOCK has answered it")
    return token


def properties(locks: Iterable[Lock]) -> dict[Property, str]:
    """Return the live properties of locks: those that cover an entry, and the supported kinds."""
    return {(DAV, "lockdiscovery"): "".join(_active(lock) for lock in locks), (DAV, "supportedlock"): SUPPORTED}


def discovered(locks: Iterable[Lock]) -> bytes:
    """Return the body that answers a LOCK."""
    active = "".join(_active(lock) for lock in locks)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<D:prop xmlns:D="DAV:"><D:lockdiscovery>{active}</D:lockdiscovery></D:prop>\n'
    ).encode()


def _active(lock: Lock) -> str:
    owner = f"<D:owner>{xml.fragment(lock.note)}</D:owner>" if lock.note else ""  # another door may have written it
    root = xml.attribute(href_of(lock.root.parts, collection=False) or "/")
    return (
        "<D:activelock><D:locktype><D:write/></D:locktype>"
        f"<D:lockscope><D:{'shared' if lock.shared else 'exclusive'}/></D:lockscope>"
        f"<D:depth>{'infinity' if lock.deep else '0'}</D:depth>{owner}"
        f"<D:timeout>Second-{-(-lock.lasts_ms // 1000)}</D:timeout>"
        f"<D:locktoken><D:href>{xml.attribute(lock.token)}</D:href></D:locktoken>"
        f"<D:lockroot><D:href>{root}</D:href></D:lockroot></D:activelock>"
    )


def _condition(found: re.Match[str], *, negated: bool) -> IfCondition:
    if found.lastgroup == "uri":
        if not found["uri"]:
            raise _malformed("<>")
        return IfCondition(token=found["uri"], negated=negated)
    etag = _ETAG.fullmatch(found["etag"].strip())
    if etag is None:
        raise _malformed(f"[{found['etag']}]")
    return IfCondition(etag=etag[1], negated=negated)


def _malformed(text: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_REQUEST, "If", cause=f"malformed If: {text[:80]!a}")
