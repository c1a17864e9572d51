"""Bytes by the plain door: GET and HEAD of files and collections, PUT of files.

Large files may go straight from and to a Shepherd (`redirects`); this node serves all others, from any replica that
answers. An upload is invisible until its last byte is on stable storage and its conditions hold. Users' bodies are
sandboxed: a browser runs nothing in them.
"""

from __future__ import annotations

from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE
from chelonia.core.names import check_name
from chelonia.core.ports.files import Done, Looked, Placing, Setting, Want, When, Write
from chelonia.core.rights.locks import check_held
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import cluster_page, frame, measuring, pages, preview, redirects
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, apply, carrying, look, reader, seen_or_hidden
from chelonia.hosting.doors.plain.patches import patch
from chelonia.hosting.doors.plain.sending import file_in, for_write
from chelonia.hosting.doors.ranged import ranged_file
from chelonia.hosting.doors.tokens.bearer import query_of
from chelonia.hosting.net.http_messages import HttpResponse, error_answer
from chelonia.wire.s3.forms import FormDecoder, boundary_of
from chelonia.wire.web.conditions import NS_PER_S, http_date, is_fresh, quoted, range_asked, when_of
from chelonia.wire.web.dav import href_of
from chelonia.wire.web.digests import digest_headers, parse_digests
from chelonia.wire.web.ranges import unsatisfied_range

FORM_FILE: Final = "multipart/form-data"
SANDBOX: Final = (("Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
                  ("X-Content-Type-Options", "nosniff"))  # fmt: skip

SAVED: Final = ("Content-Disposition", "attachment")
"""For a document, read by a link, that is not the link giver's: it could report its URL, which has the token. Also for
a large file: the page's `view` shows what a browser can lay out."""

_ALL: Final = Want.CHECKSUMS | Want.SOURCES | Want.BYTES
_GUARDS: Final = ("If-Match", "If-Unmodified-Since")
"""The conditions of a GET that are not about the client's own copy."""

Headers = tuple[tuple[str, str], ...]


async def get(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer GET or HEAD."""
    request = exchange.request
    if not exchange.place.parts and cluster_page.CLUSTER in request.query:  # before the look: it shows what is away
        return await cluster_page.answer(parts, exchange)
    want = Want.CHECKSUMS if request.method == "HEAD" else _ALL
    entry = await look(parts, carrying(parts, exchange.call), exchange.place, want)
    attributes = entry.attributes
    if guards := {name: request.headers[name] for name in _GUARDS if name in request.headers}:
        when_of(guards).require(exchange.place, attributes)
    if attributes.type == TYPE_COLLECTION:
        return await pages.collection(parts, exchange)
    if attributes.type != TYPE_FILE:
        cause = f"it is a {attributes.type}" + (f" for {attributes.target}" if attributes.target else "")
        raise CheloniaError(Kind.NOT_A_FILE, request.method, str(exchange.place), cause)
    if preview.VIEW in request.query:
        return await preview.page(parts, exchange, attributes)
    if is_fresh(request.headers, attributes.etag, attributes.modified_ns):
        return HttpResponse(304, _described(exchange, entry))
    checksums = await measuring.checksums(parts, exchange, entry)
    headers = _described(exchange, entry if checksums is entry.checksums else replace(entry, checksums=checksums))
    if request.method == "HEAD":
        return HttpResponse(
            200, (*headers, ("Content-Type", preview.type_of(exchange.place.name))), b"", attributes.size
        )
    if entry.sources and (elsewhere := await redirects.download(parts, exchange, attributes)):
        return elsewhere
    return _content(parts, exchange, entry, headers)


def _described(exchange: Exchange, entry: Looked) -> Headers:
    attributes = entry.attributes
    fixed = (
        ("ETag", quoted(attributes.etag)), ("Last-Modified", http_date(attributes.modified_ns)),
        ("Accept-Ranges", "bytes"), ("Cache-Control", "private, no-cache"),
    )  # fmt: skip
    return (*fixed, *digest_headers(entry.checksums), *SANDBOX)


def _content(parts: DoorParts, exchange: Exchange, entry: Looked, headers: Headers) -> HttpResponse:
    """Answer with the bytes, or the requested ranges of them."""
    request, attributes = exchange.request, entry.attributes
    wanted = range_asked(request.headers, attributes.etag, attributes.modified_ns)
    try:
        fields = (*headers, ("Content-Type", kind := preview.type_of(exchange.place.name)))
        is_document = kind == "text/html" or kind.endswith("xml")
        is_others = is_document and query_of(request) and attributes.owner != exchange.call.dn
        is_large = attributes.size >= redirects.REDIRECTED_BYTES_MIN and redirects.is_bound(exchange)
        if is_others or (is_large and frame.is_browser(request)):
            fields = (*fields, SAVED)
        return ranged_file(reader(parts, exchange.call, exchange.place), entry, fields, wanted)
    except CheloniaError as error:
        refusal = error_answer(error)
        unsatisfied = ("Content-Range", unsatisfied_range(attributes.size))
        return HttpResponse(refusal.status, (*refusal.headers, unsatisfied), refusal.body)


async def put(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer PUT: 201 for a new file, 204 for new bytes of one."""
    request, place = exchange.request, exchange.place
    if request.path.endswith("/") or not place.parts:
        raise CheloniaError(Kind.NOT_A_FILE, "PUT", str(place), "a file's name has no slash at its end")
    when = exchange.when
    entry, hidden = await seen_or_hidden(parts, exchange.call, place, Want.LOCKS)
    if not hidden:  # else only the transact can judge
        when.require(place, entry.attributes if entry else None)
    check_held(entry.locks if entry else (), exchange.tokens, exchange.call.dn)  # before the bytes travel
    mtime = exchange.header("X-OC-Mtime")
    setting = Setting(modified_ns=_mtime(mtime)) if mtime else Setting()
    elsewhere = await redirects.upload(parts, exchange, entry, setting)
    if elsewhere is not None:
        return elsewhere
    copies = entry.attributes.wanted if entry and entry.attributes.wanted else parts.copies
    if exchange.header("Content-Range"):  # RFC 9110 section 14.4: a part must not be taken for the whole
        done = await patch(parts, exchange, setting, copies)
    else:
        done = await _written(parts, exchange, when, setting, copies)
    etag = (("ETag", quoted(done.attributes.etag)),) if done.attributes else ()
    accepted = (("X-OC-Mtime", "accepted"),) if mtime else ()
    return HttpResponse(201 if done.made else 204, (*etag, *accepted))


async def add(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer the form of a collection's page with a new file, under its own name, and a 303 to the page.

    Raises: DENIED to a form of another site, PRECONDITION where the name is taken, and as PUT.
    """
    frame.require_own(exchange)
    decoder = FormDecoder(boundary_of(exchange.header("Content-Type")))
    body = await file_in(exchange.request.body, decoder)
    name = decoder.base_name
    if not name:
        raise CheloniaError(Kind.BAD_REQUEST, "POST", str(exchange.place), "choose a file first")
    place = exchange.place.child(check_name(name))
    whole = replace(exchange, request=replace(exchange.request, body=body, length=-1), place=place)
    await _written(parts, whole, replace(exchange.free, absent=True), Setting(), parts.copies)
    to = href_of(exchange.place.parts, collection=True) + query_of(exchange.request)
    return HttpResponse(303, (("Location", to), ("Cache-Control", "no-store")), b"", 0)


async def _written(parts: DoorParts, exchange: Exchange, when: When, setting: Setting, copies: int) -> Done:
    announced = parse_digests(
        content_md5=exchange.header("Content-MD5"),
        digest=exchange.header("Digest"),
        repr_digest=exchange.header("Repr-Digest"),
    )
    if announced != announced.noted:
        body = measuring.agreeing(exchange.request.body, announced)
        exchange = replace(exchange, request=replace(exchange.request, body=body))
    placing = Placing(exchange.place, exchange.request.length, announced.noted, copies)
    arrived, inline = await for_write(parts, exchange, placing)
    return await apply(parts, exchange.call, Write(exchange.place, arrived, setting, when=when, inline=inline))


def _mtime(text: str) -> int:
    """Return `X-OC-Mtime`, Unix seconds, in ns. Raises: BAD_REQUEST."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise CheloniaError(Kind.BAD_REQUEST, "PUT", cause="X-OC-Mtime is Unix time in whole seconds")
    return int(text) * NS_PER_S
