"""The users' view of the namespace: stat and list.

stat needs `read` on the entry and shows it whole; list needs `read` on the collection. A child that the caller may not
read shows its type, size and times only, and is not entered. Listings come in byte order of the stored keys (`name/`
for collections). This makes a recursive walk one in order of path, which can go on after any: `after` is the path of
the last entry shown. The names inside children are never part of a listing.
"""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.bartender.below import RecursiveWalk
from chelonia.bartender.bulk import ElementCall, led
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, FoundEntry, Judge, existing, listable
from chelonia.core import bounds, status
from chelonia.core.contents.below import Below, Leaf
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Filter, Needed, Sections, StoredObject, Triple, selects, to_triples
from chelonia.core.names import entry_name, parse_ln
from chelonia.core.ports.bartender import ListedEntry, ListOutcome, ListRequest, NameRequest, StatOutcome
from chelonia.core.rights.policy import Action

HIDDEN = frozenset({"blobs", "content", "claims", "put", "pending", "file", "erase", "trashed", "tally", "summaries"})
"""Sections no user ever sees."""
_NOT_LISTED = HIDDEN | {"entries"}
_LISTABLE: Filter = (
    *RIGHTS, Needed("timestamps"), Needed("metadata"), Needed("locations"), Needed("mountpoint"),
)  # fmt: skip
_ALWAYS: Filter = (Needed("entry"), Needed("policy"))
"""Sections of each child that decide what the caller may see of it."""
_PUBLIC: Filter = (Needed("entry", "type"), Needed("states", "size"), Needed("timestamps"))
"""Properties that a listing shows of a child that the caller may not read."""


async def stat(ports: Ports, turn: ElementCall, request: NameRequest) -> StatOutcome:
    """Return all of an entry's metadata."""
    ln = parse_ln(request.ln)
    (walked,) = await led(ports, turn, ln)
    found = existing(ln, walked)
    Judge(turn.user, "stat").require(Action.READ, found)
    cause = ""
    if found.object.counts.get("entries"):
        cause = f"more than {bounds.SECTION_WHOLE_MAX} entries are not shown here; list it page by page (after, limit)"
    triples = to_triples(_visible_sections(found.object))
    turn.room.take(1, triples)
    return StatOutcome(request.request_id, triples, cause=cause)


def stat_refused(request: NameRequest, text: str, error: CheloniaError) -> StatOutcome:
    """Return the original's answers: nothing for a missing entry, an `error` triple for one that may not be read."""
    metadata: tuple[Triple, ...] = ()
    if error.kind is Kind.DENIED:
        metadata = (Triple("error", text, "you are not allowed to read"),)
    elif error.kind not in (Kind.NOT_FOUND, Kind.BAD_NAME, Kind.IN_MOUNTPOINT):
        metadata = (Triple("error", text, error.cause or error.kind.value),)
    return StatOutcome(request.request_id, metadata, error.kind.value, error.cause)


@dataclass(frozen=True, slots=True)
class CollectionListing:
    """One listing in progress: the caller's call, its collection, and the parts to show of each child."""

    ports: Ports
    turn: ElementCall
    judge: Judge
    top: FoundEntry
    needed: Filter
    picks: frozenset[tuple[str, str]]

    @property
    def fetched(self) -> Filter:
        """The parts to read of each child."""
        if not self.needed:
            return _LISTABLE
        return (*(need for need in self.needed if need.section not in _NOT_LISTED), *_ALWAYS)


async def list_collection(
    ports: Ports, needed: Filter, recursive: bool, turn: ElementCall, request: ListRequest
) -> ListOutcome:
    """List a collection, or everything below it."""
    ln = parse_ln(request.ln)
    (walked,) = await ports.librarian.traverse(turn.service, (ln,), (*RIGHTS, Needed("mountpoint")))
    found = existing(ln, walked)
    judge = Judge(turn.user, "list")
    judge.require(Action.READ, found)
    listable(found)
    if request.limit < 0:
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ln), cause="limit is 0 (whole) or a number of entries")
    limit = min(request.limit, bounds.PAGE_ENTRIES_MAX) or bounds.SECTION_WHOLE_MAX
    listing = CollectionListing(ports, turn, judge, found, needed, frozenset((n.section, n.property) for n in needed))
    entries, after = await _page(listing, recursive, request.after, limit)
    if after and not request.limit:
        cause = f"more than {bounds.SECTION_WHOLE_MAX} entries: list it page by page (after, limit)"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(ln), cause=cause)
    return ListOutcome(request.request_id, status.success("list"), entries, after)


async def _page(
    listing: CollectionListing, recursive: bool, after: str, limit: int
) -> tuple[tuple[ListedEntry, ...], str]:
    walk = RecursiveWalk(listing.ports, listing.turn, listing.judge, listing.top)
    ask = Below(ObjectId(listing.top.guid), after, deep=recursive, limit=limit, needed=listing.fetched)
    leaves, after = await walk.page(ask)
    return tuple(_listed(listing, walk, leaf) for leaf in leaves), after


def _listed(listing: CollectionListing, walk: RecursiveWalk, leaf: Leaf) -> ListedEntry:
    assert leaf.object is not None, "nothing is summed up without a delimiter"
    sections = _visible_sections(leaf.object, _NOT_LISTED)
    readable = listing.judge.may(Action.READ, walk.found(leaf.path, leaf.object))
    triples = tuple(
        triple
        for triple in to_triples(sections)
        if (not listing.picks or not listing.picks.isdisjoint(_names_of(triple)))
        and (readable or selects(_PUBLIC, triple.section, triple.property))
    )
    listing.turn.room.take(1, triples)
    return ListedEntry(entry_name(leaf.path), leaf.object.id, triples)


def _names_of(triple: Triple) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the names that a filter may use for this triple: itself, or its whole section."""
    return (triple.section, triple.property), (triple.section, "")


def _visible_sections(stored: StoredObject, hidden: frozenset[str] = HIDDEN) -> Sections:
    """Return an object as users see it: without the system's own sections, names bare."""
    sections = {section: dict(properties) for section, properties in stored.sections.items() if section not in hidden}
    if "entries" in sections:
        sections["entries"] = {entry_name(key): guid for key, guid in sections["entries"].items()}
    return sections
