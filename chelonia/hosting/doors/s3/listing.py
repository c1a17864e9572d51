"""Listings by the S3 door: keys in byte order, by prefix, delimiter and page, and bulk deletions.

A collection shows as a key that ends in a slash, unless it is implied: there only for the sake of the keys below it.
What the caller may not read below a bucket is left out. Keys that are kept apart come from a listing of their own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import replace
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Attributes, Failure, Listing, Look, Named, Remove
from chelonia.core.ports.librarian import TYPE_COLLECTION, TYPE_FILE
from chelonia.hosting.doors.s3.objects import GONE, removals
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, check_bucket, xml_answer
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole
from chelonia.wire.s3 import answers, apart, keys, pages, requests
from chelonia.wire.s3.answers import Asked, Item
from chelonia.wire.s3.errors import S3Error

KEYS_MAX: Final = 1000
"""Keys and prefixes of one page."""
DELETED_AT_ONCE: Final = 200
"""Keys of a bulk deletion in one call."""
_EMPTY_ETAG: Final = "d41d8cd98f00b204e9800998ecf8427e"


async def list_objects(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket: either version of the call."""
    if await check_bucket(parts, ask) is None:
        raise S3Error("AccessDenied", "Access Denied")
    asked = asked_of(ask)
    after = _after(asked.token or "") or asked.after
    items = await _found(parts, ask, asked, after)
    more = len(items) > asked.limit
    page = items[: asked.limit]
    return xml_answer(answers.listing(asked, page, _token(page[-1].key) if more else ""))


async def list_versions(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket with `versions`: every key has the one it has."""
    if await check_bucket(parts, ask) is None:
        raise S3Error("AccessDenied", "Access Denied")
    asked = replace(asked_of(ask), v2=False, after=ask.query.get("key-marker", ""))
    items = await _found(parts, ask, asked, asked.after)
    return xml_answer(answers.versions(asked, items[: asked.limit], more=len(items) > asked.limit))


def asked_of(ask: Ask) -> Asked:
    """What a listing is asked for. Raises: S3Error."""
    query = ask.query
    v2 = query.get("list-type") == "2"
    limit = query.get("max-keys", "") or str(KEYS_MAX)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 10):
        raise S3Error("InvalidArgument", "max-keys is a number from 0")
    if query.get("encoding-type", "url") not in ("url", ""):
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request: url is offered")
    return Asked(
        bucket=ask.target.bucket,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=min(int(limit), KEYS_MAX),
        after=query.get("start-after" if v2 else "marker", ""),
        token=query.get("continuation-token") if v2 else None,
        encoded=query.get("encoding-type") == "url",
        owner=not v2 or query.get("fetch-owner", "").lower() == "true",
        v2=v2,
    )


def _token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _after(token: str) -> str:
    """The key at which a page ended. Raises: S3Error for a token that is none of ours."""
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError) as error:
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect") from error


async def _found(parts: S3Parts, ask: Ask, asked: Asked, after: str) -> list[Item]:
    """Keys and common prefixes behind a key, in byte order: one more than is asked for, where there are more."""
    if not asked.limit:
        return []
    names, others = await asyncio.gather(_names(parts, ask, asked, after), _kept_apart(parts, ask, asked, after))
    return pages.merged(names, others, asked.limit + 1) if others else names


async def _names(parts: S3Parts, ask: Ask, asked: Asked, after: str) -> list[Item]:
    """The part of a listing that other doors show as it is."""
    items: list[Item] = []
    more = not asked.prefix.startswith(apart.RESERVED)
    while more and len(items) <= asked.limit:
        count = min(asked.limit + 1 - len(items), bounds.PAGE_ENTRIES_MAX)
        page = await parts.plain.files.list(
            ask.exchange.call,
            Listing(ask.bucket, after, count, below=True, prefix=asked.prefix, delimiter=asked.delimiter),
        )
        shown = [item for item in map(_item, page.entries) if item is not None]
        shown += [Item(prefix, common=True) for prefix in page.prefixes if not prefix.startswith(apart.RESERVED)]
        items += sorted(shown, key=lambda item: item.key.encode())
        after, more = page.after, bool(page.after)
        if after.startswith(apart.RESERVED):
            after = apart.RESERVED + apart.AFTER
    return items


async def _kept_apart(parts: S3Parts, ask: Ask, asked: Asked, after: str) -> list[Item]:
    """The part of a listing that is kept apart."""
    place, prefix = ask.bucket.child(apart.COLLECTION), apart.prefix_of(asked.prefix)
    items: list[Item] = []
    behind, more = apart.prefix_of(after), True
    while more and len(items) <= asked.limit:
        try:
            page = await parts.plain.files.list(ask.exchange.call, Listing(place, behind, below=True, prefix=prefix))
        except CheloniaError as error:
            if error.kind in (Kind.NOT_FOUND, Kind.DENIED):
                return []
            raise
        known = [(apart.key_of(entry.name), entry.attributes) for entry in page.entries]
        found = [_file_item(key, each) for key, each in known if key is not None and each.type == TYPE_FILE]
        items += pages.summed_up(found, asked, items[-1].key if items else after)
        behind, more = page.after, bool(page.after)
        if more and items and items[-1].common:
            behind = max(behind, apart.prefix_of(items[-1].key + apart.AFTER), key=str.encode)
    return items


def _item(entry: Named) -> Item | None:
    """What an entry shows as; None: as nothing."""
    known = entry.attributes
    if entry.name.startswith(apart.RESERVED):
        return None
    if known.type == TYPE_FILE:
        return _file_item(entry.name, known)
    if known.type == TYPE_COLLECTION and not known.implied:
        return Item(f"{entry.name}/", False, 0, _EMPTY_ETAG, known.modified_ns, known.owner)
    return None


def _file_item(key: str, known: Attributes) -> Item:
    """What an object shows as."""
    return Item(key, False, known.size, known.etag, known.modified_ns, known.owner)


async def delete_objects(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST of a bulk deletion."""
    body = await read_whole(ask.exchange.request, Whole(requests.BODY_BYTES_MAX))
    doomed, quiet = requests.deletion(body)
    await check_bucket(parts, ask)
    outcomes: list[tuple[str, CheloniaError | None]] = []
    for start in range(0, len(doomed), DELETED_AT_ONCE):
        outcomes += await _deleted(parts, ask, [each.key for each in doomed[start : start + DELETED_AT_ONCE]])
    return xml_answer(answers.deleted(outcomes, quiet=quiet))


async def _deleted(parts: S3Parts, ask: Ask, names: list[str]) -> list[tuple[str, CheloniaError | None]]:
    """What became of keys that were to go."""
    (there,) = await parts.plain.files.look(ask.exchange.call, (Look(ask.bucket.child(apart.COLLECTION)),))
    none_apart = isinstance(there, Failure) and there.kind is Kind.NOT_FOUND
    outcomes: dict[str, CheloniaError | None] = dict.fromkeys(names)
    changes: list[tuple[str, Remove]] = []
    for key in outcomes:
        try:
            found = removals(ask.bucket, keys.check_key(key))
        except S3Error as error:
            outcomes[key] = error
        else:
            changes += [(key, change) for change in (found[:1] if none_apart else found)]
    answered = await parts.plain.files.apply(ask.exchange.call, tuple(change for _, change in changes))
    for (key, _), answer in zip(changes, answered, strict=True):
        if isinstance(answer, Failure) and answer.kind not in GONE:
            outcomes[key] = answer.error("DeleteObjects")
    return [(key, outcomes[key]) for key in names]
