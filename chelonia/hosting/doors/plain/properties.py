"""WebDAV properties by the plain door: PROPFIND of an entry or a collection, streamed; PROPPATCH of dead ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.ports.files import Listing, Looked, Set, Want
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, list_pages, look
from chelonia.hosting.doors.plain.preview import type_of
from chelonia.hosting.net.http_messages import HttpResponse, Whole, joined, read_whole
from chelonia.wire.web import dav, locks

FINITE: Final = b'<?xml version="1.0"?>\n<D:error xmlns:D="DAV:"><D:propfind-finite-depth/></D:error>\n'
TOGETHER_BYTES: Final = 256 * 1024
"""Size at which entries leave together: the properties and locks of one may be large."""
_XML: Final = (("Content-Type", dav.MULTISTATUS),)


async def propfind(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer with the properties of an entry and (`Depth: 1`) of those in it, a page at a time."""
    depth = exchange.header("Depth").strip().lower() or "infinity"
    if depth not in ("0", "1"):
        if depth != "infinity":
            raise CheloniaError(Kind.BAD_REQUEST, "PROPFIND", str(exchange.place), "Depth is 0 or 1")
        alone = await look(parts, exchange.call, exchange.place)
        if alone.attributes.type == TYPE_COLLECTION:  # of a file it is the same as 0
            return HttpResponse(403, _XML, FINITE)
    request = dav.propfind(await read_whole(exchange.request, Whole(dav.BODY_BYTES_MAX)))
    want = Want.USER if request.everything or any(space != dav.DAV for space, _ in request.properties) else Want.NOTHING
    want |= Want.LOCKS if request.everything or (dav.DAV, "lockdiscovery") in request.properties else Want.NOTHING
    entry = await look(parts, exchange.call, exchange.place, want)
    live = {**locks.properties(entry.locks), **await _quotas(parts, exchange, request, entry)}
    return await _answer(_responses(parts, exchange, request, (entry, want, depth == "1"), live))


async def _answer(pieces: AsyncIterator[bytes]) -> HttpResponse:
    """Answer with the pieces, and with their length when they are few."""
    # A client that parses them to their end, and no further, keeps the connection only then: rclone, after each PUT.
    start = b""
    async for piece in pieces:
        start += piece
        if len(start) >= TOGETHER_BYTES:
            return HttpResponse(207, _XML, joined(start, pieces))
    return HttpResponse(207, _XML, start, len(start))


async def _quotas(
    parts: DoorParts, exchange: Exchange, request: dav.PropfindRequest, entry: Looked
) -> Mapping[dav.Property, str]:
    """Return the quota properties of a collection, if the request names them (RFC 4331, section 2)."""
    if entry.attributes.type != TYPE_COLLECTION or not any(each in request.properties for each in dav.QUOTAS):
        return {}
    total, free = (await parts.files.space(exchange.call, exchange.place)).of_files(parts.copies)
    return dict(zip(dav.QUOTAS, (str(free), str(total - free)), strict=True))


async def _responses(
    parts: DoorParts,
    exchange: Exchange,
    request: dav.PropfindRequest,
    top: tuple[Looked, Want, bool],
    live: Mapping[dav.Property, str],
) -> AsyncIterator[bytes]:
    target, want, inside = top
    is_collection, path = target.attributes.type == TYPE_COLLECTION, exchange.place.parts
    own = dav.href_of(path, collection=is_collection) or "/"
    deep = tuple(lock for lock in target.locks if lock.deep)
    writer = dav.EntryWriter(request, locks.properties(deep), type_of)
    yield dav.HEAD + writer.entry(own, target.attributes, target.user, live).encode()
    above = dav.href_of(path, collection=True)
    if inside and is_collection:
        async for page in list_pages(parts, exchange.call, Listing(exchange.place, want=want)):
            lines, size = list[str](), 0
            names = dav.quoted_names([entry.name for entry in page.entries])
            for entry, name in zip(page.entries, names, strict=False):  # there is a name even without entries
                attributes = entry.attributes
                href = f"{above}{name}/" if attributes.type == TYPE_COLLECTION else above + name
                covering = locks.properties((*entry.locks, *deep)) if entry.locks else None
                lines.append(writer.entry(href, attributes, entry.user, covering))
                size += len(lines[-1])
                if size >= TOGETHER_BYTES:
                    yield "".join(lines).encode()
                    lines, size = [], 0
            yield "".join(lines).encode()
    yield dav.TAIL


async def proppatch(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Set and remove dead properties, all or none; refuse live ones."""
    patch = dav.proppatch(await read_whole(exchange.request, Whole(dav.BODY_BYTES_MAX)))
    entry = await look(parts, exchange.call, exchange.place)
    if patch.changes and not patch.refused:
        values: Mapping[str, str | None] = {dav.dead_key(prop): value for prop, value in patch.changes}
        await apply(parts, exchange.call, Set(exchange.place, user=values, when=exchange.when))
    href = dav.href_of(exchange.place.parts, collection=entry.attributes.type == TYPE_COLLECTION) or "/"
    return HttpResponse(207, _XML, dav.HEAD + dav.patched(href, patch) + dav.TAIL)
