"""The view above its parts for an access key that is narrowed to parts of a bucket.

Such a key sees that a bucket exists, and its own parts in it, if the key's owner may read the bucket. The port judges
what is below the parts.
"""

from __future__ import annotations

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.contents.parts import listing_mark
from chelonia.core.ids import ROOT
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Attributes, Listed, Listing, Look, Looked
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, check_bucket, readable_bucket
from chelonia.wire.s3.errors import S3Error


def tops(call: Call, place: LogicalName) -> tuple[str, ...]:
    """Return the paths below a place to which the caller's reading is narrowed, each with a slash at its end, in order.
    Empty: the caller may read all that is there, or nothing."""
    reading = [scope for scope in call.scopes if Action.READ in scope.actions]
    if place.start != ROOT or any(scope.holds(place) for scope in reading):
        return ()
    deep = len(place.parts)
    return tuple(sorted({f"{'/'.join(scope.path[deep:])}/" for scope in reading if scope.path[:deep] == place.parts}))


def upload_prefixes(call: Call, bucket: LogicalName) -> list[str]:
    """Return the prefixes (`listing_mark`) of the bucket's open uploads that the caller may see."""
    prefixes = list[str]()
    for top in tops(call, bucket) or ("",):
        if not (prefixes and top.startswith(prefixes[-1])):
            prefixes += [listing_mark(top[:-1], ""), top] if top else [""]
    return prefixes


def at(bucket: LogicalName, top: str) -> LogicalName:
    """Return the place of a path of `tops`; "": the bucket itself."""
    return LogicalName(bucket.start, (*bucket.parts, *filter(None, top.split("/"))))


def above(ask: Ask) -> Ask:
    """Return the same request as the key owner's, if the key is narrowed to parts of the bucket."""
    call = ask.exchange.call
    if not tops(call, ask.bucket):
        return ask
    return replace(ask, exchange=replace(ask.exchange, call=structs.replace(call, scopes=())))


async def open_bucket(parts: S3Parts, ask: Ask) -> Looked:
    """Return the bucket of a request, of which the caller may read a part. Raises: NoSuchBucket, AccessDenied."""
    return await readable_bucket(parts, above(ask))


async def check_owner(parts: S3Parts, ask: Ask, field: str = "x-amz-expected-bucket-owner") -> None:
    """Refuse a request whose client expects another owner of the bucket. Raises: AccessDenied."""
    expected = ask.header(field)
    if expected and ask.target.bucket and ask.operation != "CreateBucket":
        bucket = await check_bucket(parts, above(ask))
        if bucket is None or bucket.attributes.owner != expected:
            raise S3Error("AccessDenied", "Access Denied: the bucket is not the expected owner's")


async def buckets(parts: S3Parts, call: Call, listing: Listing) -> dict[str, Attributes]:
    """Return the collections in which the caller may read parts, behind a name and with a prefix."""
    names = sorted({top.partition("/")[0] for top in tops(call, parts.root)})
    named = [name for name in names if name.startswith(listing.prefix) and f"{name}/" > listing.after]
    looks = tuple([Look(parts.root.child(name)) for name in named])
    answers = await parts.plain.files.look(structs.replace(call, scopes=()), looks)
    return {name: each.attributes for name, each in zip(named, answers, strict=True) if isinstance(each, Looked)}


async def page(parts: S3Parts, call: Call, listing: Listing, top: str) -> Listed:
    """Return a page of a bucket's listing below a path of `tops` ("": all), with which `listing.prefix` begins."""
    if not top:
        return await parts.plain.files.list(call, listing)
    if not listing.after.startswith(top) and listing.after.encode() > top.encode():
        return Listed(())
    after = listing.after[len(top) :] if listing.after.startswith(top) else ""
    inner = structs.replace(listing, place=at(listing.place, top), after=after, prefix=listing.prefix[len(top) :])
    listed = await parts.plain.files.list(call, inner)
    return Listed(
        tuple([structs.replace(entry, name=top + entry.name) for entry in listed.entries]),
        listed.after and top + listed.after,
        tuple([top + prefix for prefix in listed.prefixes]),
    )
