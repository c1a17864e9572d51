"""Listings by the S3 door: keys in byte order, by prefix, delimiter and page, and bulk deletions.

A collection shows as a key that ends in a slash, unless it is implied: there only for the sake of the keys below it.
Listings leave out what the caller may not read. Keys that are kept apart come from a listing of their own.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from itertools import chain
from typing import Final

from msgspec import structs

from chelonia.core import bounds
from chelonia.core.contents.below import common_prefix
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE
from chelonia.core.ports.files import Attributes, Failure, Listing, Look, Named, Remove, Want, When
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import apply_all
from chelonia.hosting.doors.s3 import narrowed
from chelonia.hosting.doors.s3 import versions as versioning
from chelonia.hosting.doors.s3.objects import GONE, removals, removed
from chelonia.hosting.doors.s3.parts import (
    Ask,
    S3Parts,
    check_bucket,
    is_kept,
    lost,
    no_bucket,
    number_of,
    read_xml,
    seen,
    version_in,
    version_of,
    xml_answer,
)
from chelonia.hosting.doors.s3.parts import kept as kept_of
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.wire.s3 import answers, apart, facts, keys, pages, requests, versions
from chelonia.wire.s3.answers import Asked, Item, KeyRemoved
from chelonia.wire.s3.errors import S3Error

KEYS_MAX: Final = 1000
"""Keys and prefixes of one page."""
DELETED_AT_ONCE: Final = 256
"""Keys of a bulk deletion in one call; the calls go side by side."""
KEYS_AT_ONCE: Final = 16
"""Keys of one that are removed one by one, side by side: by version or etag, or where versions are kept."""
LISTED_AGAIN: Final = 2
"""Times that versions are listed while keys get new ones."""
_NO_BUCKET: Final = (Kind.NOT_FOUND, Kind.NOT_A_COLLECTION, Kind.IN_MOUNTPOINT)
_EMPTY_ETAG: Final = "d41d8cd98f00b204e9800998ecf8427e"


async def list_objects(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket, in either version of the call."""
    asked = asked_of(ask)
    after = _after(asked.token or "") or asked.after
    items = await _found(parts, ask, asked, after)
    more = len(items) > asked.limit
    page = items[: asked.limit]
    token = base64.urlsafe_b64encode(page[-1].key.encode()).decode() if more else ""
    return xml_answer(answers.listing(asked, page, token))


async def list_versions(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket with `versions`: of each key its current version, then the older ones."""
    bucket = await narrowed.open_bucket(parts, ask)
    # A caller who may read a part alone sees current versions: older ones lie beside all parts.
    keeps = not narrowed.tops(ask.exchange.call, ask.bucket)
    ask = replace(ask, versioning=facts.facts_of(bucket.user).versioning if keeps else "")
    mark = ask.query.get("version-id-marker", "")
    asked = replace(asked_of(ask), v2=False, after=ask.query.get("key-marker", ""), mark=mark)
    if mark and not asked.after:
        raise S3Error("InvalidArgument", "A version-id marker cannot be specified without a key marker.")
    items = await _versions(parts, ask, asked) if asked.limit else []
    page = items[: asked.limit]
    return xml_answer(answers.versions(asked, page, more=len(items) > asked.limit))


async def _versions(parts: S3Parts, ask: Ask, asked: Asked) -> list[Item]:
    """Return versions, markers and common prefixes behind a key, or a version of it: one more than requested."""
    order = await _order_of(parts, ask, asked.after, asked.mark) if asked.mark and ask.versioning else None
    gone = asked.mark if order is None else ""
    now, before, kept = await _newest(parts, ask, asked, gone), list[Item](), list[Item]()
    for _ in range(LISTED_AGAIN if ask.versioning else 0):
        before, kept = now, await _kept_versions(parts, ask, asked, order)
        now = await _newest(parts, ask, asked, gone)  # a version that moves to or from its key is in one of the three
        if now == before:
            break
    earlier = [structs.replace(item, order="" if item.common else " ") for item in before]  # behind what came after it
    whole = {(item.key, item.version): item for item in (*earlier, *reversed(kept), *now)}
    return sorted(whole.values(), key=lambda item: (item.key.encode(), item.order))[: asked.limit + 1]


async def _order_of(parts: S3Parts, ask: Ask, key: str, version: str) -> str | None:
    """Return the order of what comes behind a version of a key, "" behind the current one; None: that is gone."""
    about = _about(ask, key)
    for each in await kept_of(parts, about):
        if each.version == version:
            return each.place.name.rpartition(" ")[2]
    try:
        now, _ = await seen(parts, about, Want.USER)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        return None
    return "" if now.current == version else None


def _about(ask: Ask, key: str) -> Ask:
    return replace(ask, target=replace(ask.target, key=keys.check_key(key)))


async def _newest(parts: S3Parts, ask: Ask, asked: Asked, gone: str) -> list[Item]:
    """Return the current versions of a listing. Where the version `gone`, the end of the last page, is gone, an older
    one has its key."""
    items = await _found(parts, ask, asked, asked.after, Want.USER)
    if not versions.instant_of(gone):
        return items
    try:
        now, entry = await seen(parts, _about(ask, asked.after), Want.USER)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        return items  # the caller may know neither its owner nor its time
    if entry is not None and not now.marks:
        made = versions.instant_of(now.current) or versioning.written_ns(parts, entry.attributes)
        if made < versions.instant_of(gone):
            items.insert(0, _object(asked.after, entry.attributes, now.current))
    return items


async def _kept_versions(parts: S3Parts, ask: Ask, asked: Asked, order: str | None) -> list[Item]:
    """Return the older versions of a listing; `order`: of the one behind which it goes on."""
    place, after, items = ask.bucket.child(versions.COLLECTION), asked.after, list[Item]()
    summed = common_prefix(after, asked.prefix, asked.delimiter)
    behind = versions.begins(summed + apart.AFTER) if summed else versions.behind(after)
    if mark := asked.mark:  # a version that is gone mostly had its id as its order: what came before it is kept in that
        order = order if order is not None else mark[:-1] if versions.instant_of(mark) else ""
        behind = f"{versions.begins(after)} {order}"
    more = True
    while more and len(items) <= asked.limit:
        want = Listing(place, behind, 0, Want.USER, below=True, prefix=versions.begins(asked.prefix))
        try:
            page = await parts.plain.files.list(ask.exchange.call, want)
        except CheloniaError as error:
            if error.kind is Kind.NOT_FOUND:
                return []
            raise
        for entry in filter(is_kept, page.entries):
            item = _version_item(entry)
            if mark and (item.key, item.version) == (after, mark):
                continue
            summary = pages.summed_up([item], asked, "")
            if summary and not (summary[0].common and (summary[0].key <= after or summary[0] in items[-1:])):
                items += summary
        behind, more = page.after, bool(page.after)
        if more and items and items[-1].common:
            behind = max(behind, versions.begins(items[-1].key + apart.AFTER), key=str.encode)
    return items


def _version_item(entry: Named) -> Item:
    attributes, (key, order) = entry.attributes, versions.named(entry.name) or ("", "")
    removed = attributes.type != TYPE_FILE
    return structs.replace(_file_item(key, entry), version=version_in(entry), order=order, removed=removed)


def asked_of(ask: Ask) -> Asked:
    """Return the parameters of a listing. Raises: S3Error."""
    query = ask.query
    v2 = query.get("list-type") == "2"
    limit = number_of(query.get("max-keys", "") or str(KEYS_MAX), "max-keys")
    if query.get("encoding-type", "url") not in ("url", ""):
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request: url is offered")
    return Asked(
        bucket=ask.target.bucket,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=min(limit, KEYS_MAX),
        after=query.get("start-after" if v2 else "marker", ""),
        token=query.get("continuation-token") if v2 else None,
        encoded=query.get("encoding-type") == "url",
        owner=not v2 or query.get("fetch-owner", "").lower() == "true",
        v2=v2,
    )


def _after(token: str) -> str:
    """Return the key at which a page ended. Raises: S3Error for a token that is none of ours."""
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError) as error:
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect") from error


async def _found(parts: S3Parts, ask: Ask, asked: Asked, after: str, want: Want = Want.NOTHING) -> list[Item]:
    """Return keys and common prefixes behind a key, in byte order: one more than requested, where there are more.

    Raises: NoSuchBucket, AccessDenied.
    """
    if not asked.limit:
        return await _nothing(parts, ask)
    if tops := narrowed.tops(ask.exchange.call, ask.bucket):
        await _nothing(parts, ask)
        found = [await _top(parts, ask, asked, (after, top), want) for top in tops]
        return pages.merged(chain.from_iterable(found), (), asked.limit + 1)
    names, others = await asyncio.gather(
        _names(parts, ask, asked, after, want), _kept_apart(parts, ask, asked, after, want)
    )
    return pages.merged(names, others, asked.limit + 1) if others else names


async def _nothing(parts: S3Parts, ask: Ask) -> list[Item]:
    """Return no items, of a bucket that exists. Raises: NoSuchBucket, AccessDenied."""
    await narrowed.open_bucket(parts, ask)
    return []


async def _top(parts: S3Parts, ask: Ask, asked: Asked, where: tuple[str, str], want: Want) -> list[Item]:
    """Return the part of a listing to which the caller is narrowed: an object, or a collection and what is below it.
    `where`: the key behind which to list, and a path of `narrowed.tops`."""
    after, top = where
    if not (asked.prefix.startswith(top) or top.startswith(asked.prefix)):
        return []
    (answer,) = await parts.plain.files.look(ask.exchange.call, (Look(narrowed.at(ask.bucket, top), want),))
    if isinstance(answer, Failure):
        if answer.kind is Kind.NOT_FOUND:
            return []
        raise answer.error(ask.operation)
    itself = _item(Named(top[:-1], answer.attributes, answer.user))
    items = [] if itself is None else [itself]
    if answer.attributes.type == TYPE_COLLECTION:
        one = bool(common_prefix(top, asked.prefix, asked.delimiter))  # all below is summed up as one
        inner = replace(asked, prefix=max(asked.prefix, top, key=len), limit=0 if one else asked.limit)
        items += await _names(parts, ask, inner, after, want, top)
    return pages.summed_up(items, asked, after)


async def _names(parts: S3Parts, ask: Ask, asked: Asked, after: str, want: Want, top: str = "") -> list[Item]:
    """Return the part of a listing that other doors show as it is. Raises: NoSuchBucket, AccessDenied."""
    if asked.prefix.startswith(apart.RESERVED) or keys.followable(asked.prefix) != asked.prefix:
        return await _nothing(parts, ask)
    items: list[Item] = []
    more, behind, after = True, after, keys.followable(after)
    is_cut, delimiter = after != behind, asked.delimiter
    delimiter = delimiter if keys.followable(delimiter) == delimiter else ""  # then no name has it
    while more and len(items) <= asked.limit:
        count = min(asked.limit + 1 - len(items), bounds.BELOW_ENTRIES_MAX)
        want_page = Listing(ask.bucket, after, count, want, True, asked.prefix, delimiter)
        try:
            page = await narrowed.page(parts, ask.exchange.call, want_page, top)
        except CheloniaError as error:
            raise no_bucket(ask) if error.kind in _NO_BUCKET else error from None
        shown = [item for item in map(_item, page.entries) if item is not None]
        if page.prefixes:
            shown += [Item(each, common=True) for each in page.prefixes if not each.startswith(apart.RESERVED)]
            shown.sort(key=lambda item: item.key.encode())
        items += [each for each in shown if each.key.encode() > behind.encode()] if is_cut else shown
        after, more = page.after, bool(page.after)
        if after.startswith(apart.RESERVED):
            after = apart.RESERVED + apart.AFTER
    return items


async def _kept_apart(parts: S3Parts, ask: Ask, asked: Asked, after: str, want: Want) -> list[Item]:
    """Return the part of a listing that is kept apart."""
    place, prefix = ask.bucket.child(apart.COLLECTION), apart.prefix_of(asked.prefix)
    items: list[Item] = []
    summed = common_prefix(after, asked.prefix, asked.delimiter)
    behind, more = apart.prefix_of(summed + apart.AFTER if summed else after), True
    while more and len(items) <= asked.limit:
        wanted = Listing(place, behind, 0, want, below=True, prefix=prefix)
        try:
            page = await parts.plain.files.list(ask.exchange.call, wanted)
        except CheloniaError as error:
            if error.kind in _NO_BUCKET:  # or the bucket has nothing apart: `_names` finds out
                return []
            raise
        pairs = [(apart.key_of(entry.name), entry) for entry in page.entries if entry.attributes.type == TYPE_FILE]
        found = [_file_item(key, each) for key, each in pairs if key is not None]
        items += pages.summed_up(found, asked, items[-1].key if items else after)
        behind, more = page.after, bool(page.after)
        if more and items and items[-1].common:
            behind = max(behind, apart.prefix_of(items[-1].key + apart.AFTER), key=str.encode)
    return items


def _item(entry: Named) -> Item | None:
    """Return the item for an entry; None: it shows as nothing."""
    attributes = entry.attributes
    if entry.name.startswith(apart.RESERVED):
        return None
    if attributes.type == TYPE_FILE:
        return _file_item(entry.name, entry)
    if attributes.type == TYPE_COLLECTION and not attributes.implied:
        return Item(f"{entry.name}/", False, 0, _EMPTY_ETAG, attributes.modified_ns, attributes.owner)
    return None


def _file_item(key: str, entry: Named) -> Item:
    return _object(key, entry.attributes, version_of(entry.user) if entry.user else versions.NULL)


def _object(key: str, attributes: Attributes, version: str) -> Item:
    return Item(key, False, attributes.size, attributes.etag, attributes.modified_ns, attributes.owner, version)


async def delete_objects(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST of a bulk deletion."""
    deletions, quiet = await read_xml(ask, requests.deletion)
    await check_bucket(parts, ask)
    state = await versioning.state_of(parts, ask)
    if state or any(each.version not in ("", versions.NULL) or each.etag for each in deletions):
        return xml_answer(answers.deleted(await _each_deleted(parts, ask, state, deletions), quiet=quiet))
    names, some = list(dict.fromkeys(each.key for each in deletions)), DELETED_AT_ONCE
    calls = [_deleted(parts, ask, names[start : start + some]) for start in range(0, len(names), some)]
    errors = {key: error for batch in await asyncio.gather(*calls) for key, error in batch.items()}
    return xml_answer(
        answers.deleted([KeyRemoved(each.key, each.version, errors[each.key]) for each in deletions], quiet=quiet)
    )


async def _each_deleted(
    parts: S3Parts, ask: Ask, state: str, deletions: Sequence[requests.BulkDeletion]
) -> list[KeyRemoved]:
    """Return the outcome of each deletion: those of one key in turn, some keys side by side."""
    outcomes: dict[int, KeyRemoved] = {}
    places, of_key = asyncio.Semaphore(KEYS_AT_ONCE), dict[str, list[int]]()
    for number, each in enumerate(deletions):
        of_key.setdefault(each.key, []).append(number)

    async def removed_in_turn(numbers: list[int]) -> None:
        async with places:
            for number in numbers:
                outcomes[number] = await _one_deleted(parts, ask, state, deletions[number])

    await asyncio.gather(*map(removed_in_turn, of_key.values()))
    return [outcomes[number] for number in range(len(deletions))]


async def _one_deleted(parts: S3Parts, ask: Ask, state: str, deletion: requests.BulkDeletion) -> KeyRemoved:
    """Return the outcome of one deletion, where the bucket keeps versions or it names a version or an etag."""
    when = When(present=deletion.etag == "*", etags=(deletion.etag,) if deletion.etag not in ("", "*") else ())
    about = replace(ask, target=replace(ask.target, key=deletion.key))
    try:
        keys.check_key(deletion.key)
        done = await removed(parts, about, state, deletion.version, when)
        return replace(done, version=done.version or deletion.version)
    except CheloniaError as error:
        gone = error.kind is Kind.NO_PARENT  # the bucket, since its state was read
        error = no_bucket(ask) if gone else lost(error, conditional=deletion.etag != "")
        return KeyRemoved(deletion.key, deletion.version, error)


async def _deleted(parts: S3Parts, ask: Ask, names: list[str]) -> dict[str, CheloniaError | None]:
    """Remove keys; return the error of each, None: it is gone."""
    (collection,) = await parts.plain.files.look(ask.exchange.call, (Look(ask.bucket.child(apart.COLLECTION)),))
    none_apart = isinstance(collection, Failure) and collection.kind is Kind.NOT_FOUND
    outcomes: dict[str, CheloniaError | None] = dict.fromkeys(names)
    changes: list[tuple[str, Remove]] = []
    for key in outcomes:
        try:
            found = removals(ask, keys.check_key(key))
        except S3Error as error:
            outcomes[key] = error
        else:
            changes += [(key, change) for change in (found[:1] if none_apart else found)]
    answered = await apply_all(parts.plain, ask.exchange.call, tuple(change for _, change in changes))
    for (key, _), answer in zip(changes, answered, strict=True):
        if isinstance(answer, Failure) and answer.kind not in GONE:
            outcomes[key] = answer.error("DeleteObjects")
    return outcomes
