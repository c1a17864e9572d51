"""Listings by the S3 door: keys in byte order, by prefix, delimiter and page, and bulk deletions.

A collection shows as a key that ends in a slash, unless it is implied: there only for the sake of the keys below it.
What the caller may not read below a bucket is left out.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Failure, Listing, Named, Remove
from chelonia.core.ports.librarian import TYPE_COLLECTION, TYPE_FILE
from chelonia.hosting.doors.s3.objects import removal
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, check_bucket, xml_answer
from chelonia.hosting.net.http_messages import HttpResponse, Whole, read_whole
from chelonia.wire.s3 import answers, requests
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
    items: list[Item] = []
    more = asked.limit > 0
    while more and len(items) <= asked.limit:
        count = min(asked.limit + 1 - len(items), bounds.PAGE_ENTRIES_MAX)
        page = await parts.plain.files.list(
            ask.exchange.call,
            Listing(ask.bucket, after, count, below=True, prefix=asked.prefix, delimiter=asked.delimiter),
        )
        shown = [item for item in map(_item, page.entries) if item is not None]
        shown += [Item(prefix, common=True) for prefix in page.prefixes]
        items += sorted(shown, key=lambda item: item.key.encode())
        after, more = page.after, bool(page.after)
    return items


def _item(entry: Named) -> Item | None:
    """What an entry shows as; None: as nothing."""
    known = entry.attributes
    if known.type == TYPE_FILE:
        return Item(entry.name, False, known.size, known.etag, known.modified_ns, known.owner)
    if known.type == TYPE_COLLECTION and not known.implied:
        return Item(f"{entry.name}/", False, 0, _EMPTY_ETAG, known.modified_ns, known.owner)
    return None


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
    outcomes: dict[str, CheloniaError | None] = {}
    changes: dict[str, Remove] = {}
    for key in names:
        try:
            changes[key] = removal(ask.bucket, key)
        except S3Error as error:  # what cannot be a name is not there
            outcomes[key] = error if error.code == "KeyTooLongError" else None
    answered = await parts.plain.files.apply(ask.exchange.call, tuple(changes.values()))
    for key, answer in zip(changes, answered, strict=True):
        gone = not isinstance(answer, Failure) or answer.kind is Kind.NOT_FOUND
        outcomes[key] = None if gone else answer.error("DeleteObjects")  # type: ignore[union-attr]
    return [(key, outcomes[key]) for key in names]
