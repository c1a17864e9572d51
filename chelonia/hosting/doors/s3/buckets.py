"""Buckets by the S3 door: collections right below the configured one, and their settings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Attributes, Done, Listing, Make, Remove, Removing, When
from chelonia.hosting.doors.plain.parts import apply, apply_all, list_pages
from chelonia.hosting.doors.s3 import acls, narrowed, versions
from chelonia.hosting.doors.s3.parts import (
    REGION,
    Ask,
    S3Parts,
    check_bucket,
    no_bucket,
    note_facts,
    number_of,
    read_xml,
    xml_answer,
)
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import answers, facts, keys, requests
from chelonia.wire.s3.acls import Grant
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.operations import EMPTY, UNSET
from chelonia.wire.s3.versions import COLLECTION

BUCKETS_MAX: Final = 10_000
"""Buckets of one page: as many as Amazon's."""


async def list_all(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of the service: the buckets that the caller may read."""
    call = ask.exchange.call
    if call.dn == ANONYMOUS:
        raise S3Error("AccessDenied", "Access Denied: sign the request")
    query, limit = ask.query, number_of(ask.query.get("max-buckets", "") or str(BUCKETS_MAX), "max-buckets", 1)
    out: list[tuple[str, int]] = []
    listing = Listing(parts.root, query.get("continuation-token", ""), prefix=query.get("prefix", ""))
    async for name, attributes in _readable(parts, call, listing):
        if attributes.type == TYPE_COLLECTION and keys.is_bucket_name(name):
            if len(out) == min(limit, BUCKETS_MAX):
                return xml_answer(answers.buckets(call.dn, out, f"{out[-1][0]}/"))
            out.append((name, attributes.created_ns))
    return xml_answer(answers.buckets(call.dn, out))


async def _readable(parts: S3Parts, call: Call, listing: Listing) -> AsyncIterator[tuple[str, Attributes]]:
    """Yield the entries in the collection of buckets that the caller may read, or may read parts of."""
    if narrowed.tops(call, parts.root):
        for name, attributes in (await narrowed.buckets(parts, call, listing)).items():
            yield name, attributes
        return
    async for page in list_pages(parts.plain, call, listing):
        for entry in page.entries:
            if entry.attributes.owner:  # the listing shows none of entries that the caller may not read
                yield entry.name, entry.attributes


async def create(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of a bucket; the caller's own bucket of that name stays unchanged, its rights too."""
    # rclone sends this, with `private`, before it uploads a single file.
    where, tags = await read_xml(ask, requests.new_bucket)
    call = ask.exchange.call
    if call.dn == ANONYMOUS:
        raise S3Error("AccessDenied", "Access Denied: sign the request")
    new, grants = facts.Facts(location=where, tags=tags), acls.header_grants(ask)
    user = facts.stored(new) if new != facts.Facts() else {}
    try:
        made = await apply(parts.plain, call, Make(ask.bucket, TYPE_COLLECTION, user=user))
    except CheloniaError as error:
        if error.kind is not Kind.EXISTS and not (error.kind is Kind.DENIED and narrowed.tops(call, ask.bucket)):
            raise
        try:
            bucket = await check_bucket(parts, narrowed.above(ask))
        except S3Error:  # it is no collection
            bucket = None
        if bucket is None or bucket.attributes.owner != call.dn:
            cause = "The requested bucket name is not available: all users of the cluster share the names of buckets"
            raise S3Error("BucketAlreadyExists", cause) from error
    else:
        if grants is not None:
            await _granted(parts, ask, made, grants)
    return HttpResponse(200, (("Location", f"/{ask.target.bucket}"),), b"", 0)


async def _granted(parts: S3Parts, ask: Ask, made: Done, grants: tuple[Grant, ...]) -> None:
    """Give a new bucket its list. One without it goes again: a client that repeats its request would be told that it
    is done."""
    try:
        await acls.apply_grants(parts, ask, grants)
    except CheloniaError:
        if made.attributes is not None:
            removal = Remove(ask.bucket, Removing.COLLECTION, when=When(guid=made.attributes.guid))
            with contextlib.suppress(CheloniaError):
                await apply(parts.plain, ask.exchange.call, removal)
        raise


async def head(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer HEAD of a bucket."""
    bucket = await narrowed.open_bucket(parts, ask)
    return HttpResponse(200, (("x-amz-bucket-region", facts.facts_of(bucket.user).location or REGION),), b"", 0)


async def delete(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE of a bucket."""
    # The collection of versions may be there, empty.
    await apply_all(parts.plain, ask.exchange.call, (Remove(ask.bucket.child(COLLECTION), Removing.MARK),))
    removal = Remove(ask.bucket, Removing.COLLECTION)
    try:
        await apply(parts.plain, ask.exchange.call, removal)
    except CheloniaError as error:
        if error.kind in (Kind.NOT_FOUND, Kind.NOT_A_COLLECTION):
            raise no_bucket(ask) from error
        if error.kind is not Kind.NOT_EMPTY:
            raise
        if not await _swept(parts, ask):
            cause = "The bucket you tried to delete is not empty: older versions and delete markers count as well"
            raise S3Error("BucketNotEmpty", cause, ask.target.bucket) from error
        await apply(parts.plain, ask.exchange.call, removal)
    return HttpResponse(204)


async def _swept(parts: S3Parts, ask: Ask) -> bool:
    """Remove the implied collections of a bucket that has nothing else; return whether there were any.

    A write that breaks off leaves those that were made for it."""
    below = list[LogicalName]()
    async for page in list_pages(parts.plain, ask.exchange.call, Listing(ask.bucket, below=True)):
        if not all(entry.attributes.implied for entry in page.entries):
            return False
        below += [LogicalName(ask.bucket.start, (*ask.bucket.parts, *entry.name.split("/"))) for entry in page.entries]
    # A removal takes implied collections above along. A listing has a collection before its entries.
    for place in reversed(below):
        await versions.remove_implied(parts, ask, place)
    return bool(below)


async def location(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket's location: as its maker gave it, else the empty name of the first region."""
    return xml_answer(answers.location(facts.facts_of((await narrowed.open_bucket(parts, ask)).user).location))


async def setting(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a setting that is never there."""
    await narrowed.open_bucket(parts, ask)
    if ask.subresource in EMPTY:
        return xml_answer(answers.plain(EMPTY[ask.subresource]))
    raise S3Error(UNSET[ask.subresource], f"the bucket has no {ask.subresource} setting")


async def no_setting(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE of a setting that is never there."""
    await narrowed.open_bucket(parts, ask)
    return HttpResponse(204)


async def versioning(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of whether a bucket keeps versions."""
    return xml_answer(answers.versioning(facts.facts_of((await narrowed.open_bucket(parts, ask)).user).versioning))


async def set_versioning(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of whether a bucket keeps versions."""
    await note_facts(parts, ask, versioning=await read_xml(ask, requests.versioning))
    parts.states.clear()  # reads by this front end see it at once
    return HttpResponse(200, (), b"", 0)


async def payment(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of the payer of requests."""
    await narrowed.open_bucket(parts, ask)
    return xml_answer(answers.payer())


async def get_tags(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket's tags."""
    bucket = await check_bucket(parts, ask)
    tags = facts.facts_of(bucket.user).tags if bucket is not None else {}
    if not tags:
        raise S3Error("NoSuchTagSet", "The TagSet does not exist")
    return xml_answer(answers.tags(tags))


async def put_tags(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of a bucket's tags."""
    await note_facts(parts, ask, tags=await read_xml(ask, requests.tagging))
    return HttpResponse(204, (), b"", 0)


async def delete_tags(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE of a bucket's tags."""
    await note_facts(parts, ask, tags={})
    return HttpResponse(204, (), b"", 0)
