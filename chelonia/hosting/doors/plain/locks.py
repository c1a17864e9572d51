"""LOCK and UNLOCK by the plain door, and the `If` of any request. Source: RFC 4918, sections 6 to 10.

Every change of this door carries the tokens that its client shows; the Bartender refuses changes that others' locks
forbid. Locks are kept with their entries: every Bartender sees them, and they outlive its restart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Failure, Inline, Listing, Look, Looked, Set, Want, When, Write
from chelonia.core.rights.locks import Lock, check_beside, check_new
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import (
    DoorParts,
    Exchange,
    apply,
    gone_since,
    is_here,
    list_pages,
    look,
    own_call,
    place_of,
    seen,
    split_url,
)
from chelonia.hosting.doors.reading import while_connected
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Whole, read_whole, text_answer
from chelonia.wire.web import dav, locks

Check = Callable[[tuple[Lock, ...]], None]
"""Refuses what the locks of an entry forbid. Raises: LOCKED."""
_XML: Final = ("Content-Type", dav.MULTISTATUS)


async def lock(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Take a lock, or (without a body) refresh one. A name without an entry gets an empty file."""
    body = await read_whole(exchange.request, Whole(dav.BODY_BYTES_MAX))
    if not body.strip():
        return await _refresh(parts, exchange)
    wanted = locks.lock_of(
        body,
        token=f"urn:uuid:{uuid4()}",
        timeout=exchange.header("Timeout"),
        depth=exchange.header("Depth").strip().lower(),
    )
    check_new(wanted)
    entry, made = await seen(parts, exchange.call, exchange.place), False
    exchange.when.require(exchange.place, entry.attributes if entry else None)
    if entry is None:
        made = await _made(parts, exchange)
    await apply(parts, exchange.call, Set(exchange.place, when=exchange.when if entry else When(), locks=(wanted,)))
    if entry is not None and entry.attributes.type == TYPE_COLLECTION and wanted.deep:
        await _keep_alone(parts, exchange, wanted)
    taken = await _covering(parts, exchange.call, exchange.place, wanted.token)
    return HttpResponse(201 if made else 200, (_XML, ("Lock-Token", f"<{wanted.token}>")), locks.discovered((taken,)))


async def unlock(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Give up a lock, by the name it was taken on or one below."""
    token = locks.parse_token(exchange.header("Lock-Token"))
    try:
        held = await _covering(parts, exchange.call, exchange.place, token)
        await apply(parts, exchange.call, Set(held.root, locks=(Lock(token),)))
    except CheloniaError as error:
        if error.kind is Kind.PRECONDITION:
            return text_answer(409, "no lock of this token covers this: it may have ended\n")
        raise
    return HttpResponse(204)


async def submitted(
    parts: DoorParts, request: HttpRequest, call: Call, place: LogicalName
) -> tuple[tuple[str, ...], str]:
    """Return the lock tokens that a request shows, and the etag that its `If` wants of its own entry ("": any).

    Raises: PRECONDITION when no list of its `If` holds; BAD_REQUEST.
    """
    header = request.headers.get("If", "")
    if not header:
        return (), ""
    lists = locks.parse_if(header)
    facts: dict[str, tuple[tuple[str, ...], str]] = {}
    for each in lists:
        if each.resource not in facts:
            facts[each.resource] = await _facts(parts, call, _named(each.resource, request, place))
        tokens, etag = facts[each.resource]
        if all(condition.holds(tokens, etag) for condition in each.conditions):
            named = [one.etag for one in each.conditions if one.etag and not one.negated]
            is_own = named and _named(each.resource, request, place) == place
            return locks.submitted(lists), named[0] if is_own else ""
    raise CheloniaError(Kind.PRECONDITION, "If", str(place), "none of its lists holds: look at locks and etags again")


def _named(resource: str, request: HttpRequest, place: LogicalName) -> LogicalName | None:
    """Return the entry of a tagged list, None when it is not on this server."""
    if not resource:
        return place
    try:
        parsed = split_url(resource)
        if parsed.netloc and not is_here(parsed, request.headers.get("Host", "")):
            return None
        return place_of(unquote(parsed.path, errors="strict"))
    except (CheloniaError, UnicodeDecodeError):
        return None


async def _facts(parts: DoorParts, call: Call, place: LogicalName | None) -> tuple[tuple[str, ...], str]:
    """Return the tokens of the locks that cover a name, even without an entry, and its entry's etag."""
    if place is None:
        return (), ""
    names, present, absent = place.parts, 0, len(place.parts) + 1  # so many parts have an entry, so many have none
    tried, entry = len(names), None
    while entry is None or present + 1 < absent:
        (answer,) = await parts.files.look(call, (Look(LogicalName(place.start, names[:tried]), Want.LOCKS),))
        if isinstance(answer, Failure) and answer.kind is Kind.NOT_FOUND and tried:
            absent = tried
        else:
            present, entry = tried, answer
        # A name without an entry is mostly right below one that has an entry.
        tried = absent - 1 if absent == len(names) else (present + absent) // 2
    if isinstance(entry, Failure):
        raise entry.error("If")
    covering = entry.locks if present == len(names) else tuple(lock for lock in entry.locks if lock.deep)
    return tuple(lock.token for lock in covering), entry.attributes.etag if present == len(names) else ""


async def _refresh(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Refresh a lock whose token the client shows."""
    entry = await look(parts, exchange.call, exchange.place, Want.LOCKS)
    held = next((lock for lock in entry.locks if lock.token in exchange.tokens), None)
    if held is None:
        cause = "to refresh a lock, show the token of one that covers this in If; to take one, send a DAV:lockinfo"
        raise CheloniaError(Kind.PRECONDITION, "LOCK", str(exchange.place), cause)
    renewed = replace(held, lasts_ms=locks.parse_timeout(exchange.header("Timeout")))
    await apply(parts, exchange.call, Set(held.root, locks=(renewed,)))
    return HttpResponse(200, (_XML,), locks.discovered((await _covering(parts, exchange.call, held.root, held.token),)))


async def _covering(parts: DoorParts, call: Call, place: LogicalName, token: str) -> Lock:
    """Return the lock of this token that covers an entry. Raises: PRECONDITION when there is none."""
    entry = await look(parts, call, place, Want.LOCKS)
    for held in entry.locks:
        if held.token == token:
            return held
    raise CheloniaError(Kind.PRECONDITION, "lock", str(place), "no lock of this token covers it: it may have ended")


async def _made(parts: DoorParts, exchange: Exchange) -> bool:
    """Make an empty file (RFC 4918, section 7.3), for a caller who may lock it then. Raises: DENIED."""
    # Any other caller would leave the file, and meet it again after signing in upon the refusal.
    call, place = exchange.call, exchange.place
    able = call.dn != ANONYMOUS  # its file would be nobody's
    if call.scopes:
        needed = (Action.DELETE, Action.MODIFY_METADATA)
        able = any(scope.covers(each, place) for scope in call.scopes for each in needed)
    if not able:
        cause = "you may add it, and not lock it then: add it without a lock"
        raise CheloniaError(Kind.DENIED, "LOCK", str(place), cause)
    when = When(absent=True, tokens=exchange.tokens)
    return (await apply(parts, exchange.call, Write(exchange.place, when=when, inline=Inline(b"", parts.copies)))).made


async def _keep_alone(parts: DoorParts, exchange: Exchange, taken: Lock) -> None:
    """Keep the lock of a tree that holds no lock of others, else release it. Raises: as `check_below`."""
    # After it was taken: whoever locks something below from now on meets it.
    try:
        await check_below(parts, exchange, exchange.place, partial(check_beside, taken), most=bounds.LOCKED_BELOW_MAX)
    except CheloniaError:
        with contextlib.suppress(CheloniaError):
            await apply(parts, exchange.call, Set(exchange.place, locks=(Lock(taken.token),)))
        raise


async def check_below(parts: DoorParts, exchange: Exchange, place: LogicalName, check: Check, *, most: int = 0) -> None:
    """Check the locks of each entry below a collection, also of those that the caller may not read, until its client
    goes. `most`: entries; 0: any number.

    Raises: as `check`, without a word of whose and where to a caller who may not read the entry; TOO_LARGE, CANCELLED.
    """
    await while_connected(_check_below(parts, exchange.call, place, check, most), exchange.request.when_closed)


async def _check_below(parts: DoorParts, call: Call, place: LogicalName, check: Check, most: int) -> None:
    checked = 0
    with gone_since():
        async for page in list_pages(parts, own_call(parts, call), Listing(place, want=Want.LOCKS, below=True)):
            for entry in page.entries:
                try:
                    check(entry.locks)
                except CheloniaError:
                    inside = LogicalName(place.start, (*place.parts, *entry.name.split("/")))
                    (answer,) = await parts.files.look(call, (Look(inside),))
                    if isinstance(answer, Looked):
                        raise
                    cause = "somebody has locked an entry in it; wait, or ask its owner"
                    raise CheloniaError(Kind.LOCKED, subject=str(place), cause=cause) from None
            checked += len(page.entries)
            if 0 < most < checked:
                cause = f"more than {most} entries are below it; lock what you change, with Depth: 0"
                raise CheloniaError(Kind.TOO_LARGE, "LOCK", str(place), cause)
