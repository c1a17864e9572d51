"""Changes of the namespace by the plain door: MKCOL, DELETE, MOVE, COPY.

WebDAV removes, replaces and copies whole trees (RFC 4918 sections 9.6, 9.8, 9.9). A removal goes entry by entry, leaves
first: an error in the middle leaves the rest, and every entry is whole or gone. A MOVE to a free name is one transact.
A tree that makes way keeps its entries, beside its name, until the other has the name: a refusal costs none of them.
"""

from __future__ import annotations

import contextlib
import secrets
from functools import partial
from typing import Final

from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    ANY,
    Attributes,
    Change,
    Clone,
    Failure,
    Listing,
    Looked,
    Make,
    Move,
    Over,
    Placing,
    Remove,
    Removing,
    Setting,
    Want,
    Write,
    good,
)
from chelonia.core.rights.locks import check_held
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import locks, third_party
from chelonia.hosting.doors.plain.parts import (
    DoorParts,
    Exchange,
    apply,
    apply_all,
    carrying,
    cloned,
    destination,
    elsewhere,
    gone_since,
    list_pages,
    look,
    reader,
    seen,
    seen_or_hidden,
)
from chelonia.hosting.net.http_messages import HttpResponse, nothing, text_answer

TREE_DEPTH_MAX: Final = 256
"""Levels of a tree that is removed or copied: as deep as a name can be."""
_IN_THE_WAY: Final = (Kind.NOT_EMPTY, Kind.NOT_A_COLLECTION, Kind.NOT_A_FILE)
"""Errors of a move that only the target's entry causes: POSIX replaces no tree, and an entry only by its like."""


async def mkcol(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Make a collection."""
    if exchange.request.length:
        return text_answer(415, "MKCOL takes no body\n")
    try:
        await apply(parts, exchange.call, Make(exchange.place, TYPE_COLLECTION, when=exchange.when))
    except CheloniaError as error:
        if error.kind is Kind.EXISTS:
            return text_answer(405, "there is an entry of this name\n")
        raise
    return HttpResponse(201)


async def delete(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Remove a file, or a collection with all below it."""
    place, when = exchange.place, exchange.when
    if not place.parts:
        raise CheloniaError(Kind.DENIED, "DELETE", str(place), "the root stays")
    entry, _ = await seen_or_hidden(parts, exchange.call, place)
    if entry is not None:  # else only the transact can judge
        when.require(place, entry.attributes)
        if _goes_whole(entry.attributes):
            await remove_below(parts, exchange, place)
            when = exchange.free  # its etag has changed with its entries
    await apply(parts, exchange.call, Remove(place, Removing.NAME, when))
    return HttpResponse(204)


async def move(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Give an entry another name."""
    source, target = exchange.place, destination(exchange)
    _check_disjoint(source, target)
    when, moved = exchange.when, (await look(parts, exchange.call, source)).attributes
    when.require(source, moved)
    existing = await seen(parts, exchange.call, target)
    _check_overwrite(exchange, target, existing)
    if existing is not None and existing.attributes.guid == moved.guid:
        await apply(parts, exchange.call, Remove(source, when=when))  # POSIX would leave an entry with both its names
        return HttpResponse(204)
    await _check_unlocked(parts, exchange, source, moved)
    change = Move(source, target, Over.REFUSE if exchange.keeps_target else Over.REPLACE, when=when)
    try:
        await apply(parts, exchange.call, change)
    except CheloniaError as error:
        if existing is None or error.kind not in _IN_THE_WAY:
            raise
        await _check_unlocked(parts, exchange, target, existing.attributes)
        await _move_over(parts, exchange, replace(change, over=Over.REFUSE))
    return HttpResponse(201 if existing is None else 204)


async def copy(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Copy a file, or a collection with all below it (`Depth: 0`: by itself); from or to another server one file."""
    if exchange.header("Source"):
        return await third_party.pull(parts, exchange)
    if elsewhere(exchange):
        return await third_party.push(parts, exchange)
    source, target = exchange.place, destination(exchange)
    _check_disjoint(source, target)
    if (depth := exchange.header("Depth").strip().lower()) not in ("", "0", "infinity"):
        raise CheloniaError(Kind.BAD_REQUEST, "COPY", str(source), "Depth is 0 or infinity")
    entry = await look(parts, exchange.call, source, Want.USER)
    exchange.when.require(source, entry.attributes)
    before = await seen(parts, exchange.call, target)
    _check_overwrite(exchange, target, before)
    if before is None or entry.attributes.type == before.attributes.type == TYPE_FILE:
        await _copy_tree(parts, exchange, entry, (source, target), deep=depth != "0")
    else:
        await _check_unlocked(parts, exchange, target, before.attributes)
        await _copy_over(parts, exchange, entry, (source, target), deep=depth != "0")
    return HttpResponse(201 if before is None else 204)


def _check_disjoint(source: LogicalName, target: LogicalName) -> None:
    """Raises: DENIED where one is the other, or lies in it: clearing the target would remove the source (403)."""
    shorter = min(len(source.parts), len(target.parts))
    if source.parts[:shorter] == target.parts[:shorter]:
        raise CheloniaError(Kind.DENIED, "", str(target), "source and Destination are one, or one lies in the other")


def _check_overwrite(exchange: Exchange, target: LogicalName, existing: Looked | None) -> None:
    """Raises: PRECONDITION where `Overwrite` keeps the entry that has the name."""
    if existing is not None and exchange.keeps_target:
        raise CheloniaError(Kind.PRECONDITION, exchange.request.method, str(target), "there is an entry of this name")


async def _check_unlocked(parts: DoorParts, exchange: Exchange, place: LogicalName, there: Attributes) -> None:
    """Refuse to move or replace a tree in which others hold locks. Raises: as `locks.check_below`."""
    if there.type == TYPE_COLLECTION:
        check = partial(check_held, tokens=exchange.tokens, dn=exchange.call.dn)
        await locks.check_below(parts, exchange, place, check)


def _beside(target: LogicalName) -> LogicalName:
    """Return a name that nobody else has, in the same collection."""
    return target.parent.child(f".replaced-{secrets.token_hex(8)}")


async def _move_over(parts: DoorParts, exchange: Exchange, change: Move) -> None:
    """Move in place of a tree, or of an entry of another type."""
    target, beside = change.target, _beside(change.target)
    await apply(parts, exchange.call, Move(target, beside, when=exchange.free))
    try:
        await apply(parts, exchange.call, change)
    except CheloniaError:
        with contextlib.suppress(CheloniaError):
            await apply(parts, exchange.call, Move(beside, target))
        raise
    await _drop_replaced(parts, exchange, target, beside)


async def _copy_over(
    parts: DoorParts, exchange: Exchange, original: Looked, names: tuple[LogicalName, LogicalName], *, deep: bool
) -> None:
    """Copy in place of a tree, or of an entry of another type: the copy is whole before it gets the name."""
    source, target = names
    beside, is_sure = _beside(target), True
    try:
        await _copy_tree(parts, exchange, original, (source, beside), deep=deep)
        is_sure = False
        await apply(parts, exchange.call, Move(beside, target, Over.EXCHANGE, when=exchange.free))
    except CheloniaError as error:
        refused = error.meaning.http < 500 and (error.kind is Kind.CONFLICT or not error.meaning.retryable)
        if is_sure or refused:  # else the two may have exchanged names, or do so yet
            with contextlib.suppress(CheloniaError):
                await _clear(parts, exchange, beside)
        raise
    await _drop_replaced(parts, exchange, target, beside)


async def _drop_replaced(parts: DoorParts, exchange: Exchange, target: LogicalName, beside: LogicalName) -> None:
    """Remove the tree that made way. Raises: as an entry of it stays, saying where."""
    try:
        await _clear(parts, exchange, beside)
    except CheloniaError as error:
        cause = f"{target} has what was asked for; of what it had before, some stays in {beside}: {error.cause}"
        raise CheloniaError(error.kind, exchange.request.method, str(beside), cause) from error


async def _clear(parts: DoorParts, exchange: Exchange, place: LogicalName) -> None:
    """Remove the entry of a name, with all that is in it."""
    entry = await seen(parts, exchange.call, place)
    if entry is not None and _goes_whole(entry.attributes):
        await remove_below(parts, exchange, place)
    if entry is not None:
        await apply(parts, exchange.call, Remove(place, when=exchange.free))


def _goes_whole(attributes: Attributes) -> bool:
    """Whether an entry is a collection that goes with this name: one with other names keeps what is in it."""
    return attributes.type == TYPE_COLLECTION and attributes.links <= 1


async def remove_below(parts: DoorParts, exchange: Exchange, place: LogicalName, depth: int = 0) -> None:
    """Remove all that is in a collection. Raises: the error of the first entry that stays."""
    if depth > TREE_DEPTH_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "DELETE", str(place), f"deeper than {TREE_DEPTH_MAX} levels")
    with gone_since():
        async for page in list_pages(parts, exchange.call, Listing(place)):
            for entry in page.entries:
                if _goes_whole(entry.attributes):
                    await remove_below(parts, exchange, place.child(entry.name), depth + 1)
            removals: tuple[Change, ...] = tuple(
                Remove(place.child(entry.name), when=exchange.free) for entry in page.entries
            )
            for answer in await apply_all(parts, exchange.call, removals) if removals else ():
                if isinstance(answer, Failure) and answer.kind is not Kind.NOT_FOUND:
                    raise answer.error("DELETE")


async def _copy_tree(
    parts: DoorParts, exchange: Exchange, original: Looked, names: tuple[LogicalName, LogicalName], *, deep: bool
) -> None:
    source, target = names
    if original.attributes.type != TYPE_COLLECTION:
        await _copy_entry(parts, exchange, original, names)
        return
    await apply(parts, exchange.call, Make(target, TYPE_COLLECTION, user=original.user, when=exchange.free))
    if not deep:
        return
    async for page in list_pages(parts, exchange.call, Listing(source)):
        for entry in page.entries:
            inside = source.child(entry.name)
            with gone_since():
                child = await look(parts, exchange.call, inside, Want.USER)
                await _copy_tree(parts, exchange, child, (inside, target.child(entry.name)), deep=True)


async def _copy_entry(
    parts: DoorParts, exchange: Exchange, original: Looked, names: tuple[LogicalName, LogicalName]
) -> None:
    file, (source, target) = original.attributes, names
    when = replace(exchange.free, absent=exchange.keeps_target)
    if file.type != TYPE_FILE:
        made = Make(target, file.type, user=original.user, target=file.target, when=when)
        await apply(parts, exchange.call, made)
        return
    setting = Setting(modified_ns=file.modified_ns)
    of = exchange.when if source == exchange.place else ANY
    if await cloned(parts, exchange.call, Clone(target, source, setting, when=when, of=of)) is not None:
        return
    original = await look(parts, carrying(parts, exchange.call), source, Want.USER | Want.SOURCES)
    file = original.attributes  # of the bytes that follow
    of.require(source, file)
    if file.type != TYPE_FILE:
        raise CheloniaError(Kind.CONFLICT, "COPY", str(source), f"it is a {file.type} by now; copy it again")
    copies = file.wanted or parts.copies
    (placed,) = await parts.files.place(carrying(parts, exchange.call), (Placing(target, file.size, wanted=copies),))
    body = reader(parts, exchange.call, source).get(original, ByteRange(0, file.size)) if file.size else nothing()
    arrived = await parts.bytes.put(good(placed, "COPY"), body, file.size)
    setting = Setting(modified_ns=file.modified_ns)
    await apply(parts, exchange.call, Write(target, arrived, setting, original.user, when=when))
