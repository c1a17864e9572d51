"""WebDAV's bodies: PROPFIND, PROPPATCH, and the multistatus that answers them. Pure. Source: RFC 4918.

Live properties come from attributes; dead ones are user metadata called `d:<namespace> <name>`, text only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final
from urllib.parse import quote

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.ports.files import Attributes
from chelonia.core.timing.clock import iso_second
from chelonia.wire import xml
from chelonia.wire.web.conditions import NS_PER_S, http_date

DAV: Final = "DAV:"
DEAD: Final = "d:"
"""Prefix of the user metadata that hold dead properties."""
BODY_BYTES_MAX: Final = 256 * 1024
"""Bytes of a PROPFIND or PROPPATCH: some hundreds of properties."""
NAMES_BYTES_MAX: Final = 32 * 1024
"""Bytes of all property names in one request, with namespaces: the answer repeats them for every entry."""
MULTISTATUS: Final = 'application/xml; charset="utf-8"'
HEAD: Final = b'<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:">\n'
TAIL: Final = b"</D:multistatus>\n"

Property = tuple[str, str]
"""(namespace, local name)."""
_MARKS: Final = {name: chr(n) for n, name in enumerate(("href", "size", "etag", "created", "modified", "type"), 1)}
"""Placeholders in a pattern for the values that differ between entries: characters that XML cannot hold."""
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]+")
QUOTAS: Final[tuple[Property, ...]] = ((DAV, "quota-available-bytes"), (DAV, "quota-used-bytes"))
"""Properties that only a request by name gets. Source: RFC 4331."""


@dataclass(frozen=True, slots=True)
class PropfindRequest:
    """The properties that a PROPFIND asks for: these, `everything`, or only the `names` of all."""

    properties: tuple[Property, ...] = ()
    everything: bool = True
    names: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """The changes of a PROPPATCH, in order: dead properties with values, None removes one. `refused`: live ones."""

    changes: tuple[tuple[Property, str | None], ...]
    refused: tuple[Property, ...] = ()


def propfind(body: bytes) -> PropfindRequest:
    """Read a PROPFIND; an empty body asks for everything. Raises: BAD_XML, BAD_REQUEST, TOO_LARGE."""
    if not body.strip():
        return PropfindRequest()
    root = xml.parse(body, BODY_BYTES_MAX)
    if xml.name_of(root) != (DAV, "propfind"):
        raise CheloniaError(Kind.BAD_REQUEST, "PROPFIND", cause="the body is no DAV:propfind")
    kinds = {xml.name_of(child): child for child in root}
    if (DAV, "prop") in kinds:
        names = dict.fromkeys(name for name, _ in _named(kinds[DAV, "prop"]))
        return PropfindRequest(tuple(names), everything=False)
    if (DAV, "propname") in kinds:
        return PropfindRequest(names=True)
    if (DAV, "allprop") in kinds:
        return PropfindRequest()
    raise CheloniaError(Kind.BAD_REQUEST, "PROPFIND", cause="it asks for neither prop, allprop nor propname")


def proppatch(body: bytes) -> Patch:
    """Read a PROPPATCH. Raises: BAD_XML, BAD_REQUEST, TOO_LARGE."""
    root = xml.parse(body, BODY_BYTES_MAX)
    if xml.name_of(root) != (DAV, "propertyupdate"):
        raise CheloniaError(Kind.BAD_REQUEST, "PROPPATCH", cause="the body is no DAV:propertyupdate")
    changes: list[tuple[Property, str | None]] = []
    refused: list[Property] = []
    for step in root:
        sets = xml.name_of(step) == (DAV, "set")
        if not sets and xml.name_of(step) != (DAV, "remove"):
            continue
        for name, prop in _named(prop for holder in step if xml.name_of(holder) == (DAV, "prop") for prop in holder):
            if name[0] == DAV:
                refused.append(name)
            else:
                changes.append((name, "".join(prop.itertext()) if sets else None))
    return Patch(tuple(changes), tuple(refused))


def dead_key(prop: Property) -> str:
    """Return the name of the user metadata that hold a dead property."""
    return f"{DEAD}{prop[0]} {prop[1]}"


class EntryWriter:
    """Writes the entries of one multistatus, from a pattern for each kind of entry.

    Args: `covered`: live properties of an entry that has no locks of its own; `type_of`: media type of a file by name.
    """

    def __init__(
        self, request: PropfindRequest, covered: Mapping[Property, str], type_of: Callable[[str], str]
    ) -> None:
        self._request, self._covered, self._type_of = request, covered, type_of
        self._patterns: dict[tuple[bool, bool], tuple[str, Callable[[tuple[object, ...]], object]]] = {}

    def entry(
        self, href: str, attributes: Attributes, user: Mapping[str, str], more: Mapping[Property, str] | None = None
    ) -> str:
        """Return one entry.

        Args: `href`: its path, percent-encoded and so valid XML; `user`: its user metadata. `more`: live properties in
        place of `covered`.
        """
        kind, etag = (attributes.type == TYPE_COLLECTION, attributes.etag != ""), attributes.etag
        values = (
            href, attributes.size, etag if etag.replace("-", "").isalnum() else xml.attribute(etag),
            f"{iso_second(attributes.created_ns // NS_PER_S)}Z", http_date(attributes.modified_ns),
            self._type_of(href.rpartition("/")[2]),
        )  # fmt: skip
        if user or more is not None:
            live = _live(*kind, dict(zip(_MARKS, map(str, values), strict=True)))
            return _response(href, self._stats({**live, **(self._covered if more is None else more), **_dead(user)}))
        pattern = self._patterns.get(kind)
        if pattern is None:
            pattern = self._patterns[kind] = self._pattern(*kind)
        return pattern[0] % pattern[1](values)

    def _pattern(self, is_collection: bool, has_etag: bool) -> tuple[str, Callable[[tuple[object, ...]], object]]:
        """The pattern of a kind of entry, and the function that picks its values in order."""
        live = {**_live(is_collection, has_etag, _MARKS), **self._covered}
        text = _response(_MARKS["href"], self._stats(live)).replace("%", "%%")
        marks = re.compile(f"[{''.join(_MARKS.values())}]")
        order = [ord(mark) - 1 for mark in marks.findall(text)]
        return marks.sub("%s", text), itemgetter(*order)

    def _stats(self, values: Mapping[Property, str]) -> tuple[tuple[str, str], ...]:
        request = self._request
        if request.names:
            return (("200 OK", "".join(_element(prop, None) for prop in values)),)
        wanted = tuple(values) if request.everything else request.properties
        found = "".join(_element(prop, values[prop]) for prop in wanted if prop in values)
        missing = "".join(_element(prop, None) for prop in wanted if prop not in values)
        return (("200 OK", found), ("404 Not Found", missing))


def patched(href: str, patch: Patch) -> bytes:
    """Return the answer to a PROPPATCH, which applies all changes or none."""
    names = "".join(_element(prop, None) for prop, _ in patch.changes)
    refused = "".join(_element(prop, None) for prop in patch.refused)
    first = "424 Failed Dependency" if refused else "200 OK"
    return _response(xml.attribute(href), ((first, names), ("403 Forbidden", refused))).encode()


def href_of(parts: tuple[str, ...], *, collection: bool) -> str:
    """Return the encoded path of an entry; a collection's ends with a slash."""
    path = "".join([f"/{quoted_name(part)}" for part in parts])
    return path + "/" if collection else path


def quoted_names(names: Sequence[str]) -> list[str]:
    """Return names as parts of encoded paths, all at once."""
    return quote("\n".join(names), safe="\n").split("\n")  # no name has a line break


def quoted_name(name: str) -> str:
    """Return a name as a part of an encoded path."""
    return name if _UNRESERVED.fullmatch(name) else quote(name, safe="")


def _response(href: str, stats: tuple[tuple[str, str], ...]) -> str:
    """One entry; `href` as XML."""
    propstats = "".join(
        f"<D:propstat><D:prop>{props}</D:prop><D:status>HTTP/1.1 {status}</D:status></D:propstat>"
        for status, props in stats
        if props
    )
    propstats = propstats or "<D:propstat><D:prop/><D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
    return f"<D:response><D:href>{href}</D:href>{propstats}</D:response>\n"


def _live(is_collection: bool, has_etag: bool, values: Mapping[str, str]) -> dict[Property, str]:
    """The live properties of an entry, as XML."""
    live = {
        (DAV, "resourcetype"): "<D:collection/>" if is_collection else "",
        (DAV, "creationdate"): values["created"],
        (DAV, "getlastmodified"): values["modified"],
    }
    if has_etag:
        live[DAV, "getetag"] = f"&quot;{values['etag']}&quot;"
    if not is_collection:
        live[DAV, "getcontentlength"] = values["size"]
        live[DAV, "getcontenttype"] = values["type"]  # RFC 4918 section 15.5: as GET says it
    return live


def _dead(user: Mapping[str, str]) -> dict[Property, str]:
    dead = {}
    for key, value in user.items():
        if key.startswith(DEAD):
            namespace, _, name = key.removeprefix(DEAD).rpartition(" ")
            text, is_valid = xml.escape(value), xml.is_name(name) and xml.escape(namespace) is not None
            if is_valid and text is not None and namespace != DAV:  # else a user wrote it by another door
                dead[namespace, name] = text
    return dead


def _element(prop: Property, value: str | None) -> str:
    """A property with its content (as XML), or empty."""
    namespace, name = prop
    tag, declared = (f"D:{name}", "") if namespace == DAV else (name, f' xmlns="{xml.attribute(namespace)}"')
    return f"<{tag}{declared}/>" if not value else f"<{tag}{declared}>{value}</{tag}>"


def _named(nodes: Iterable[xml.Node]) -> Iterator[tuple[Property, xml.Node]]:
    """Properties with their names. Raises: TOO_LARGE."""
    left = NAMES_BYTES_MAX
    for node in nodes:
        name = xml.name_of(node)
        left -= len(name[0]) + len(name[1])
        if left < 0:
            raise CheloniaError(
                Kind.TOO_LARGE, cause=f"names of properties have at most {NAMES_BYTES_MAX} bytes in all"
            )
        yield name, node
