"""Looks at entries and listings of collections, for the port `Files`.

A look needs `read` on the entry, one before a write also `delete`, or `addEntry` where the name is free yet. A listing
needs `read` on the collection. A child that the caller may not read shows its type, size and times only, as in the
Bartender's own `list`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chelonia.bartender.below import RecursiveWalk
from chelonia.bartender.bulk import ElementCall, together
from chelonia.bartender.files import inlined, measured
from chelonia.bartender.files.attributes import DESCRIBED, checksums_of, user_triples
from chelonia.bartender.files.locking import above, locks_of
from chelonia.bartender.files.summarised import ReadableCollection, RightsCache, public
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry, Judge, existing, is_visible, listable, parent_of_new
from chelonia.bartender.transfers import read_turls
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.placement import NODE_ALIVE
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.attributes import attributes_of, is_empty
from chelonia.core.contents.below import Below, Leaf
from chelonia.core.contents.extents import ByteRange, Extent, named_spans
from chelonia.core.contents.summaries import MARK_LOCKS, MARK_USER
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Guid, Ms, ObjectId
from chelonia.core.metadata import TYPE_FILE, Filter, Needed, StoredObject
from chelonia.core.names import LogicalName, entry_name
from chelonia.core.ports.files import Listed, Listing, Look, Looked, Named, Space, Want
from chelonia.core.ports.librarian import Traversal
from chelonia.core.rights.locks import Lock
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace


@dataclass(frozen=True, slots=True)
class _LookPlan:
    """The wants of a look, each a flag of its own: reading them from a `Want` costs more than many of them."""

    needed: Filter
    user: bool
    policy: bool
    checksums: bool
    locks: bool
    measured: bool
    write: bool
    bytes: bool
    sources: bool
    extents: bool


async def look(ports: Ports, turn: ElementCall, ask: Look) -> Looked:
    """Look at one entry. Raises: NOT_FOUND, IN_MOUNTPOINT, DENIED; with SOURCES also NO_REPLICA."""
    walked = turn.walked.get(ask.place)
    try:
        return await _looked(ports, turn, ask, walked)
    except CheloniaError as error:
        if error.kind is not Kind.NOT_FOUND or error.subject == str(ask.place):
            raise
    # The file has gone since, and its name may lead to another, which existed all the time.
    return await _looked(ports, turn, ask, None)


async def _looked(ports: Ports, turn: ElementCall, ask: Look, walked: Traversal | None) -> Looked:
    plan = _plan(ask.want)
    if walked is None:
        (walked,) = await ports.librarian.traverse(_reading(turn.service, plan), (ask.place,), plan.needed)
    judge = Judge(turn.user, "look")
    if plan.write and walked.rest:
        judge.require(Action.ADD_ENTRY, parent_of_new(ask.place, walked))
    found = existing(ask.place, walked)
    judge.require(Action.READ, found)
    if plan.write:
        judge.require(Action.DELETE, found)
    user = dict(found.section("metadata")) if plan.user else {}
    turn.room.take(1, user_triples(user))
    attributes, is_file = attributes_of(found.object), found.type == TYPE_FILE
    data = await inlined.data_of(ports, turn, found, attributes.size) if is_file and plan.bytes else None
    seen = Looked(
        attributes,
        user,
        dict(found.section("policy")) if plan.policy else {},
        checksums_of(found.object) if plan.checksums else Checksums(),
        locks=await _covering(ports, turn, ask.place, walked) if plan.locks else (),
        data=data,
    )
    if is_file and plan.measured:
        seen = replace(seen, checksums=await measured.checksums(ports, turn, found, checksums_of(found.object)))
    if data is not None or not is_file or not (plan.sources or plan.extents) or is_empty(found.object):
        return seen
    if found.section("content"):
        return await _spanned(ports, turn, ask, seen)
    sources = await _sources(ports, turn, found) if plan.sources else ()
    blobs = [BlobId(blob) for _, blob in sorted(found.section("blobs").items())] if plan.extents else []
    size = attributes.size
    return replace(seen, sources=sources, extents=tuple(Extent(0, size, blob) for blob in blobs if size), told=size)


async def walked(ports: Ports, service: Call, asks: Sequence[Look]) -> dict[LogicalName, Traversal]:
    """Walk the names together, reading all that any of the looks wants."""
    plans = [_plan(want) for want in dict.fromkeys([ask.want for ask in asks])]
    needed = tuple(dict.fromkeys([each for plan in plans for each in plan.needed]))
    service = next((call for plan in plans if (call := _reading(service, plan)).strong), service)
    return await together(ports, service, [ask.place for ask in asks], needed)


def _reading(service: Call, plan: _LookPlan) -> Call:
    """Return a strong call where the answer has a ticket or bytes, so that no revoked policy gives one."""
    return service.strongly() if plan.sources or plan.bytes else service


async def listed(ports: Ports, cache: RightsCache, turn: ElementCall, ask: Listing) -> Listed:
    """Return a page of a collection. Raises: NOT_FOUND, DENIED, NOT_A_COLLECTION, IN_MOUNTPOINT, BAD_REQUEST."""
    if ask.limit < 0:
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause="limit is 0 or a number of entries")
    (walked,) = await ports.librarian.traverse(turn.service, (ask.place,), DESCRIBED)
    found = existing(ask.place, walked)
    judge = Judge(turn.user, "list")
    judge.require(Action.READ, found)
    listable(found)
    limit = min(ask.limit or bounds.PAGE_ENTRIES_MAX, bounds.BELOW_ENTRIES_MAX)
    walk = RecursiveWalk(ports, turn, judge, found)
    marks = "".join(mark for flag, mark in ((Want.USER, MARK_USER), (Want.LOCKS, MARK_LOCKS)) if flag in ask.want)
    needed = _plan(ask.want).needed
    below = Below(
        ObjectId(found.guid), ask.after, False, ask.prefix, ask.delimiter, ask.below, limit, needed, True, marks
    )
    leaves, after = await walk.page(below)
    learned = await cache.learn(walk, leaves, needed)
    if len(learned.leaves) < len(leaves):
        leaves, after = list(learned.leaves), learned.leaves[-1].path
    turn.room.take(len(leaves), ())
    readable = ReadableCollection(walk, learned.rights)
    now = ports.clock.now_ms()
    entries = tuple(
        [readable.named(leaf.path, words) if words else _named(walk, ask, leaf, now) for leaf, words in learned.entries]
    )
    return Listed(entries, after, tuple([leaf.path for leaf in leaves if leaf.sums_up]) if ask.delimiter else ())


async def space(ports: Ports, turn: ElementCall, ask: Look) -> Space:
    """Return the space of all Shepherds, and the quotas that count the caller's bytes below an entry. If he cannot read
    it, return only his own."""
    (walked,) = await ports.librarian.traverse(turn.service, (ask.place,), DESCRIBED)
    exists = walked.complete and is_visible(walked.last)
    readable = exists and Judge(turn.user, "space").may(Action.READ, existing(ask.place, walked))
    within = Guid(walked.last.id) if readable else Guid("")
    quotas = await ports.librarian.quotas(turn.service, turn.user.dn, within)
    alive = [node for node in await ports.shepherds.nodes(turn.service) if node.state == NODE_ALIVE]
    free = sum(node.free_bytes for node in alive if node.accepting)
    return Space(sum(node.total_bytes for node in alive), free, quotas)


def _named(walk: RecursiveWalk, ask: Listing, leaf: Leaf, now: Ms) -> Named:
    stored, name = leaf.object, entry_name(leaf.path)
    assert stored is not None, "what has no summary is read"
    child, attributes = walk.found(leaf.path, stored), attributes_of(stored)
    if not walk.judge.may(Action.READ, child):
        return Named(name, public(attributes))
    user = dict(child.section("metadata")) if Want.USER in ask.want else {}
    walk.turn.room.take(0, user_triples(user))
    return Named(name, attributes, user, locks_of(stored, now, child.ln) if Want.LOCKS in ask.want else ())


@lru_cache
def _plan(want: Want) -> _LookPlan:
    more = ((Want.USER, "metadata"), (Want.SOURCES | Want.BYTES | Want.MEASURED, "locations"))
    return _LookPlan(
        (*DESCRIBED, *(Needed(section) for flags, section in more if flags & want)),
        user=Want.USER in want,
        policy=Want.POLICY in want,
        checksums=Want.CHECKSUMS in want,
        locks=Want.LOCKS in want,
        measured=Want.MEASURED in want,
        write=Want.WRITE in want,
        bytes=Want.BYTES in want,
        sources=Want.SOURCES in want,
        extents=Want.EXTENTS in want,
    )


async def _covering(ports: Ports, turn: ElementCall, place: LogicalName, walked: Traversal) -> tuple[Lock, ...]:
    """Return all locks that cover an entry, its own first."""
    inherited, _ = await above(ports, turn, place, walked)
    own = locks_of(walked.last, ports.clock.now_ms(), place)
    return (*own, *(lock for lock in inherited if lock.deep))


async def _spanned(ports: Ports, turn: ElementCall, ask: Look, seen: Looked) -> Looked:
    """Add the extents of a file of several blobs in a span, and TURLs of each blob. Raises: NO_REPLICA, BAD_REQUEST."""
    span, attributes = ask.span or ByteRange(0, seen.attributes.size), seen.attributes
    if span.offset < 0 or span.length < 0:
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ask.place), cause=f"{span} has no negative numbers")
    at, end = (min(offset, attributes.size) for offset in (span.offset, span.offset + span.length))
    page = await ports.librarian.extents(turn.service.strongly(), attributes.guid, at, end)
    if page.etag != attributes.etag:
        raise CheloniaError(Kind.CONFLICT, subject=str(ask.place), cause="it has just changed; look at it again")
    sources = []
    if Want.SOURCES in ask.want:
        stored = [StoredObject(ObjectId(place.blob), 1, {"locations": place.locations}) for place in page.blobs]
        found = [FoundEntry(ask.place, each) for each in stored]
        # Bytes cut off or written over are still in their blob, but no longer the file's.
        spans = named_spans(page.extents)
        sources = await asyncio.gather(*(_sources(ports, turn, each, spans[BlobId(each.object.id)]) for each in found))
    blobs = {place.blob: turls for place, turls in zip(page.blobs, sources, strict=False)}
    sums = {place.blob: place.sums for place in page.blobs if place.sums} if Want.CHECKSUMS in ask.want else {}
    return replace(seen, extents=page.extents, told=page.until, blobs=blobs, sums=sums)


async def _sources(
    ports: Ports, turn: ElementCall, found: FoundEntry, spans: tuple[ByteRange, ...] = ()
) -> tuple[str, ...]:
    """Return TURLs of whole replicas, nearest first, for `spans` or, if empty, all bytes. Raises: NO_REPLICA."""
    return tuple([answer.turl for answer in await read_turls(ports, turn, found, spans)])
