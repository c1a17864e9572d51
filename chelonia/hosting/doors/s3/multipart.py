"""Uploads in parts by the S3 door: opened, filled, listed, completed in one step for readers, or aborted.

A part is a blob of its own: completion copies nothing. The etag is S3's for such objects: the MD5 of the parts' MD5s,
and their number.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from msgspec import structs

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.contents.parts import AFTER_KEY, PartPage, PartPlace, PartsUpload, UploadId, etag_of, listing_mark
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Guid
from chelonia.core.ports.files import (
    ANY,
    Done,
    Drop,
    Failure,
    Look,
    Looked,
    Open,
    Part,
    Placing,
    Seal,
    UploadParts,
    Uploads,
    UserValues,
    Want,
    When,
)
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import apply
from chelonia.hosting.doors.plain.sending import sent
from chelonia.hosting.doors.s3 import acls, narrowed, versions
from chelonia.hosting.doors.s3.objects import (
    RACES,
    SOURCE_OWNER,
    WriteReady,
    carried,
    check_source,
    check_unversioned,
    conditions,
    raced,
    ready,
    source_of,
)
from chelonia.hosting.doors.s3.parts import (
    MOVES_MAX,
    Ask,
    S3Parts,
    apply_again,
    found,
    in_own_name,
    number_of,
    read_xml,
    seen_to_change,
    url_of,
    xml_answer,
)
from chelonia.hosting.doors.s3.parts import kept as kept_versions
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import answers, apart, checksums, completion, facts, keys, pages, requests
from chelonia.wire.s3.answers import Asked, Item
from chelonia.wire.s3.checksums import PREFIX, InParts, Measured
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.versions import NULL
from chelonia.wire.web.conditions import quoted

PART_BYTES_MIN: Final = 5 * 1024 * 1024
"""Smallest size of all parts but the last: Amazon's bound."""
PAGE: Final = 1000
_RANGE: Final = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})\Z", re.ASCII)
_CONTROLS: Final = re.compile(r"[\0-\x1f]")
"""Characters that no name has, and that sort before all that names have."""
_APART: Final = "k"
"""Prefix of the id of an upload whose object is to be kept apart."""


async def create(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST with `uploads`."""
    given = facts.facts_from(ask.exchange.request.headers.items(), requests.tags_of(ask.header("x-amz-tagging")))
    scheme = checksums.in_parts(ask.header("x-amz-checksum-algorithm"), ask.header("x-amz-checksum-type"))
    given = acls.kept(ask, structs.replace(given, checksum=scheme.kept))
    prepared = (await ready(parts, ask)).with_bytes
    ask = prepared.ask
    opened = Open(ask.place, ask.bucket, prepared.copies, user=facts.stored(given), parents=True)
    done = await apply(parts.plain, ask.exchange.call, opened)
    upload_id = f"{_APART if ask.place == ask.apart else ''}{done.upload}"
    named = (("x-amz-checksum-algorithm", scheme.name.upper()), ("x-amz-checksum-type", scheme.kind))
    created = answers.upload_created(ask.target.bucket, ask.target.key, upload_id)
    return xml_answer(created, *(named if scheme.asked else ()))


async def put_part(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT with `uploadId`."""
    request, number, ask = ask.exchange.request, _number(ask), _of_upload(ask)
    if request.length < 0:
        raise S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
    scheme, measured = _scheme(await _page(parts, ask, limit=1)), ask.measured
    if scheme.asked and measured.checksum not in ("", scheme.name):
        cause = f"Checksum Type mismatch occurred, expected checksum Type: {scheme.name}, actual checksum Type: "
        raise S3Error("InvalidRequest", cause + measured.checksum)
    measured.want(scheme.name)
    place = PartPlace(_upload(ask), number)
    placing = Placing(ask.place, request.length, wanted=parts.plain.copies, parents=True, piece=True, part=place)
    placing = replace(placing, within=ask.bucket)
    _, arrived = await sent(parts.plain, ask.exchange, placing)
    checksum = measured.hex(scheme.name)
    change = Part(ask.place, _upload(ask), number, arrived, f"{scheme.name}:{checksum}", measured.etag)
    etag = (await _applied(parts, ask, change)).etag or measured.etag  # "": a try before applied, its answer was lost
    fields = {f"{PREFIX}{scheme.name}": checksums.to_base64(checksum)} if scheme.asked else {}
    fields |= {f"{PREFIX}{measured.checksum}": measured.value} if measured.checksum else {}
    return HttpResponse(200, (("ETag", quoted(etag)), *fields.items()), b"", 0)


async def copy_part(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT with `uploadId` and a source."""
    number, ask = _number(ask), _of_upload(ask)
    scheme, measured = _scheme(await _page(parts, ask, limit=1)), Measured()
    measured.want(scheme.name)
    await narrowed.check_owner(parts, source_of(parts, ask), SOURCE_OWNER)
    source, entry = await found(parts, source_of(parts, ask), Want.USER | Want.SOURCES)
    check_source(ask, entry)
    size, text = entry.attributes.size, ask.header("x-amz-copy-source-range")
    span = ByteRange(0, size)
    if text:
        named = _RANGE.match(text)
        first, last = (int(named[1]), int(named[2])) if named else (0, -1)
        if not first <= last < size:
            code = "InvalidRange" if named else "InvalidArgument"
            raise S3Error(code, f"x-amz-copy-source-range is bytes=first-last within {size} bytes")
        span = ByteRange(first, last - first + 1)
    place = PartPlace(_upload(ask), number)
    placing = Placing(ask.place, span.length, wanted=parts.plain.copies, parents=True, piece=True, part=place)
    placing = replace(placing, within=ask.bucket)
    arrived = await carried(parts, source, entry, span, placing, measured)
    checksum = measured.hex(scheme.name)
    change = Part(ask.place, _upload(ask), number, arrived, f"{scheme.name}:{checksum}", measured.etag)
    etag = (await _applied(parts, ask, change)).etag or measured.etag
    encoded = (scheme.name, checksums.to_base64(checksum)) if scheme.asked else ("", "")
    copied = answers.copied(etag, parts.clock.now_ms() * 1_000_000, "CopyPartResult", encoded)
    return xml_answer(copied, *versions.copied_fields(source, entry))


async def complete(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST with `uploadId`: the parts become the object, or nothing changes."""
    listed = await read_xml(ask, requests.completion)
    order = tuple((part.number, part.etag) for part in listed)
    etag = etag_of(etag for _, etag in order)
    now, entry = await seen_to_change(parts, ask, writes=True)
    prepared = WriteReady(now, 0, await conditions(parts, now, entry), entry).with_bytes
    now, when, entry, ask = prepared.ask, prepared.when, prepared.entry, _of_upload(ask)
    final = await versions.staged(parts, now, entry, _tag(ask))
    first, version = ANY if final.final else when, versions.Headers()
    try:
        arrived = await _all_parts(parts, ask)
        if not final.versioning:  # there are up to ten thousand
            await check_unversioned(parts, ask)
        fields = {name.lower(): value for name, value in ask.exchange.request.headers.items()}
        done = completion.completed(fields, listed, etag, arrived)
        rules = await acls.rules(parts, final, entry, acls.of_upload(done))
        kept = structs.replace(done, version=final.version, acl="", grants=())
        seal = Seal(final.place, _upload(ask), order, PART_BYTES_MIN, True, first, facts.stored(kept), rules)
        seal = replace(seal, default_of=final.default_of, within=ask.bucket)
        stored = _guid(await _applied(parts, final, seal), etag)
        version = await _settled(parts, replace(final, guid=stored), when, entry)
    except CheloniaError as error:
        # A client that has lost the answer sends the request again.
        lost = error.kind is Kind.NOT_FOUND and when == ANY
        again = await _sealed(parts, now, etag, _tag(ask)) if lost else None
        if again is None:
            error = _refusal(await raced(parts, final, error), order)
            raise error
        kept, version = facts.facts_of(again[1]), await versions.settled(parts, again[0], shared=True)
    checksum = kept.checksum if kept.etag == etag else ("", "")
    body = answers.completed(url_of(parts, ask), ask.target.bucket, ask.target.key, etag, checksum)
    return xml_answer(body, *version)


def _guid(done: Done, etag: str) -> Guid:
    """Return the GUID of the sealed file while it waits for its key; else the root's, which waits nowhere."""
    # Another completion of the upload has given it its key by now, or it was erased.
    return done.attributes.guid if done.attributes is not None and done.attributes.etag == etag else ROOT


async def _settled(parts: S3Parts, final: Ask, when: When, entry: Looked | None) -> versions.Headers:
    """Give the sealed file its key. Raises: ConditionalRequestConflict: then the upload is gone, as at Amazon."""
    try:
        return await versions.settled(parts, final, when, entry, shared=True)
    except CheloniaError as error:
        if error.kind not in (Kind.PRECONDITION, Kind.NOT_FOUND):
            raise
        cause = "the key was changed while the upload was completed: begin another one"
        raise S3Error("ConditionalRequestConflict", cause) from error


async def _sealed(parts: S3Parts, ask: Ask, etag: str, tag: str) -> tuple[Ask, UserValues] | None:
    """Return place and metadata of what an upload became before: it has its key, has had it, or waits for it."""
    before = None
    for _ in range(MOVES_MAX):
        now, entry = await seen_to_change(parts, ask)
        kept, moved = await kept_versions(parts, in_own_name(parts, now)) if now.versioning else [], False
        found = [(now.current, now.place, entry.attributes.guid)] if entry is not None else []
        found += [(each.version, each.place, each.guid) for each in kept]
        # A null version of these bytes may be a copy of what the upload became, which counts first.
        for _, place, guid in sorted(
            filter(lambda each: _is_of(each[0], tag), found), key=lambda each: each[0] == NULL
        ):
            (answer,) = await parts.plain.files.look(now.exchange.call, (Look(place, Want.USER),))
            if isinstance(answer, Failure) and answer.kind is Kind.DENIED:
                continue  # it is another's
            # An erasure of the current version may have exchanged it with this one, and both may have these bytes.
            is_same = isinstance(answer, Looked) and answer.attributes.guid == guid
            if isinstance(answer, Looked) and is_same and answer.attributes.etag == etag:
                waits = place.name.endswith(tag) and answer.attributes.owner == ask.exchange.call.dn
                final = ask.place if waits and place != now.place else None
                now = replace(now.at(place), final=final, guid=guid)
                return replace(now, version=facts.facts_of(answer.user).version), answer.user
            moved = moved or not is_same
        # It may have had its key only while the others were listed.
        if not moved and before == (now.current, kept):
            return None
        before = now.current, kept
    return None


def _is_of(version: str, tag: str) -> bool:
    """Return whether this may be the version of an upload."""
    return version == NULL or version.endswith(tag)


async def abort(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE with `uploadId`."""
    ask = _of_upload(ask)
    await _applied(parts, ask, Drop(ask.place, _upload(ask)))
    return HttpResponse(204)


async def list_parts(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET with `uploadId`."""
    limit, after, ask = _count(ask, "max-parts"), _count(ask, "part-number-marker", 0), _of_upload(ask)
    page = await _page(parts, ask, after, max(limit, 1))
    listed = page if limit else PartPage((), 0, page.place, page.owner, page.within)
    upload_id = ask.query.get("uploadId", "")
    target = ask.target.bucket, ask.target.key
    return xml_answer(answers.parts(target, upload_id, listed, (limit, after), _scheme(page)))


async def list_uploads(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket with `uploads`."""
    await narrowed.open_bucket(parts, ask)
    tops = narrowed.tops(ask.exchange.call, ask.bucket)
    query, limit = ask.query, _count(ask, "max-uploads")
    asked = Asked(
        bucket=ask.target.bucket,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=limit,
        after=query.get("key-marker", ""),
        mark=query.get("upload-id-marker", ""),
        encoded=query.get("encoding-type") == "url",
    )
    items: list[Item] = []
    if limit:
        some = (_named_uploads,) if tops else (_named_uploads, _uploads_apart)
        streams = [await opened(parts, ask, asked) for opened in some]
        for item in heapq.merge(*streams, key=_in_order):
            if not item.common or not (items and items[-1] == item):
                items.append(item)
    return xml_answer(answers.uploads(asked, items[:limit], more=len(items) > limit))


async def _named_uploads(parts: S3Parts, ask: Ask, asked: Asked) -> list[Item]:
    """Return open uploads of keys that are names."""
    upload, items = asked.mark, list[Item]()
    name = _CONTROLS.split(asked.after, maxsplit=1)[0]  # no name goes on as the key does: this is before, or behind it
    is_named = name == asked.after and upload and not upload.startswith(_APART)
    follows = listing_mark(name, upload) if is_named else f"{name}{AFTER_KEY}"
    for prefix in narrowed.upload_prefixes(ask.exchange.call, ask.bucket) if not _CONTROLS.search(asked.prefix) else ():
        if prefix.startswith(asked.prefix) or asked.prefix.startswith(prefix):
            where = max(asked.prefix, prefix, key=len), follows if name else ""
            items += await _opened(parts, narrowed.above(ask), asked, where, _is_named)
    return sorted(items, key=_in_order)


def _is_named(each: PartsUpload) -> PartsUpload | None:
    return None if each.key.startswith(apart.RESERVED) else each


def _in_order(item: Item) -> tuple[bytes, str]:
    return item.key.encode(), item.version


async def _uploads_apart(parts: S3Parts, ask: Ask, asked: Asked) -> list[Item]:
    """Return open uploads of keys that are kept apart: of one key they follow the others."""
    key, upload = "/".join(apart.path_of(asked.after)), asked.mark
    follows = listing_mark(key, upload.removeprefix(_APART) if upload.startswith(_APART) else "")
    follows = follows if upload else f"{key}{AFTER_KEY}"
    prefix = f"{apart.COLLECTION}/{apart.prefix_of(asked.prefix)}"
    return await _opened(parts, ask, asked, (prefix, follows if asked.after else ""), _kept_apart)


def _kept_apart(each: PartsUpload) -> PartsUpload | None:
    key = apart.key_of(each.key.removeprefix(f"{apart.COLLECTION}/"))
    return None if key is None else replace(each, key=key, upload=UploadId(f"{_APART}{each.upload}"))


async def _opened(
    parts: S3Parts,
    ask: Ask,
    asked: Asked,
    where: tuple[str, str],
    accept: Callable[[PartsUpload], PartsUpload | None],
) -> list[Item]:
    """Return items of open uploads, one more than requested, where there are more; `where`: prefix and mark."""
    items: list[Item] = []
    (prefix, after), more = where, True
    while more and len(items) <= asked.limit:
        page = await parts.plain.files.uploads(ask.exchange.call, Uploads(ask.bucket, prefix, after, 0))
        for each in filter(None, map(accept, page.uploads)):
            own = Item(each.key, owner=each.owner, modified_ns=each.opened_ms * 1_000_000, version=each.upload)
            for item in pages.summed_up([own], asked, ""):
                if not (item.common and (item.key.encode() <= asked.after.encode() or items[-1:] == [item])):
                    items.append(item)
        after, more = page.after, bool(page.after)
    return items


def _upload(ask: Ask) -> UploadId:
    return UploadId(ask.query.get("uploadId", "").removeprefix(_APART))


def _tag(ask: Ask) -> str:
    """Return the end of the order of the version that an upload becomes, by which it is found while it waits."""
    return f"{zlib.crc32(_upload(ask).encode()):08x}"


def _of_upload(ask: Ask) -> Ask:
    """Return the same request, about the place for which its upload was opened."""
    home = keys.home_of(ask.bucket, ask.target.key)
    is_apart = home is None or ask.query.get("uploadId", "").startswith(_APART)
    return ask.at(ask.apart if home is None or is_apart else home)


def _number(ask: Ask) -> int:
    return number_of(ask.query.get("partNumber", ""), "partNumber", 1, bounds.PARTS_MAX)


def _count(ask: Ask, name: str, otherwise: int = PAGE) -> int:
    return min(number_of(ask.query.get(name, "") or str(otherwise), name), max(PAGE, bounds.PARTS_MAX))


def _scheme(page: PartPage) -> InParts:
    return checksums.of_upload(facts.facts_of(page.user).checksum)


async def _all_parts(parts: S3Parts, ask: Ask) -> PartPage:
    """Return all parts of an upload, in one page. Raises: NOT_FOUND."""
    page = await parts.plain.files.parts(ask.exchange.call, UploadParts(ask.place, _upload(ask), 0, PAGE))
    found = list(page.parts)
    while page.after:
        page = await parts.plain.files.parts(ask.exchange.call, UploadParts(ask.place, _upload(ask), page.after, PAGE))
        found += page.parts
    return replace(page, parts=tuple(found))


async def _page(parts: S3Parts, ask: Ask, after: int = 0, limit: int = 0) -> PartPage:
    """Return parts of the request's upload. Raises: NoSuchUpload."""
    try:
        wanted = UploadParts(ask.place, _upload(ask), after, min(limit, PAGE))
        return await parts.plain.files.parts(ask.exchange.call, wanted)
    except CheloniaError as error:
        error = _refusal(error, ())
        raise error


async def _is_open(parts: S3Parts, ask: Ask) -> bool:
    try:
        await _page(parts, _of_upload(ask), limit=1)
    except S3Error:
        return False
    return True


async def _applied(parts: S3Parts, ask: Ask, change: Part | Seal | Drop) -> Done:
    """Apply a change of an upload; try again while others change the name. Raises: NoSuchUpload, and as it fails."""

    async def again(error: CheloniaError) -> bool:
        # NOT_FOUND may be of the file to be replaced, removed meanwhile.
        gone = isinstance(change, Seal) and error.kind is Kind.NOT_FOUND
        return error.kind in RACES or (gone and await _is_open(parts, ask))

    try:
        return await apply_again(parts, ask, change, again)
    except CheloniaError as error:
        error = error if isinstance(change, Seal) else _refusal(error, ())
        raise error


def _refusal(error: CheloniaError, order: tuple[tuple[int, str], ...]) -> CheloniaError:
    """Return S3's error for a refusal about parts."""
    if error.kind is Kind.NOT_FOUND:
        cause = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted"
        return S3Error("NoSuchUpload", f"{cause} or completed.")
    if error.kind is Kind.INCOMPLETE and order:
        return S3Error("InvalidPart", error.cause)
    if error.kind is Kind.BAD_REQUEST and error.subject.startswith("part ") and order:
        rises = all(one < other for (one, _), (other, _) in pairwise(order))
        return S3Error("EntityTooSmall" if rises else "InvalidPartOrder", error.cause)
    return error
