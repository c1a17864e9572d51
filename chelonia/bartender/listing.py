"""What users see of the namespace: stat and list.

stat needs `read` on the entry and shows it whole; list needs `read` on the collection. A child the caller may not
read shows its type, size and times only, and is not walked into. Listings come in byte order of the stored keys
(`name/` for collections), so a recursive walk is in the order of its path and can go on after any of them: `after`
is the path of the last entry shown. The names inside children are never part of a listing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chelonia.bartender.bulk import Turn
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, Found, Judge, existing, is_visible
from chelonia.core import bounds, status
from chelonia.core.bartender import ListedEntry, ListOutcome, ListRequest, NameRequest, StatOutcome
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Guid
from chelonia.core.librarian import TYPE_COLLECTION, TYPE_MOUNTPOINT, Entry, EntryPage
from chelonia.core.metadata import Filter, Needed, Sections, StoredObject, Triple, selects, to_triples
from chelonia.core.names import LogicalName, entry_key, entry_name, parse_ln
from chelonia.core.policy import Action

HIDDEN = frozenset({"blobs", "content", "claims", "put", "pending", "file", "erase", "trashed"})
"""Sections no user ever sees."""
_NOT_LISTED = HIDDEN | {"entries"}
_LISTABLE: Filter = (
    *RIGHTS, Needed("timestamps"), Needed("metadata"), Needed("locations"), Needed("mountpoint"),
)  # fmt: skip
_ALWAYS: Filter = (Needed("entry"), Needed("policy"))
"""Needed of each child to decide what may be shown of it."""
_PUBLIC: Filter = (Needed("entry", "type"), Needed("states", "size"), Needed("timestamps"))
"""What a listing shows of a child the caller may not read."""


async def stat(ports: Ports, turn: Turn, request: NameRequest) -> StatOutcome:
    """Return all of an entry's metadata."""
    ln = parse_ln(request.ln)
    (walked,) = await ports.librarian.traverse(turn.service, (ln,))
    found = existing(ln, walked)
    Judge(turn.user, "stat").require(Action.READ, found)
    cause = ""
    if found.object.counts.get("entries"):
        cause = f"more than {bounds.SECTION_WHOLE_MAX} entries are not shown here; list it page by page (after, limit)"
    triples = to_triples(_shown(found.object))
    turn.room.take(1, triples)
    return StatOutcome(request.request_id, triples, cause=cause)


def stat_refused(request: NameRequest, text: str, error: CheloniaError) -> StatOutcome:
    """The original's answers: nothing for what is not there, an `error` triple for what may not be read."""
    metadata: tuple[Triple, ...] = ()
    if error.kind is Kind.DENIED:
        metadata = (Triple("error", text, "you are not allowed to read"),)
    elif error.kind not in (Kind.NOT_FOUND, Kind.BAD_NAME, Kind.IN_MOUNTPOINT):
        metadata = (Triple("error", text, error.cause or error.kind.value),)
    return StatOutcome(request.request_id, metadata, error.kind.value, error.cause)


@dataclass(frozen=True, slots=True)
class Listing:
    """One listing in progress: for whom, of what, how much of each child."""

    ports: Ports
    turn: Turn
    judge: Judge
    top: Found
    needed: Filter
    picks: frozenset[tuple[str, str]]

    @property
    def fetched(self) -> Filter:
        """What to ask of each child."""
        if not self.needed:
            return _LISTABLE
        return (*(need for need in self.needed if need.section not in _NOT_LISTED), *_ALWAYS)


async def list_collection(
    ports: Ports, needed: Filter, recursive: bool, turn: Turn, request: ListRequest
) -> ListOutcome:
    """List a collection, or everything below it."""
    ln = parse_ln(request.ln)
    (walked,) = await ports.librarian.traverse(turn.service, (ln,), (*RIGHTS, Needed("mountpoint")))
    found = existing(ln, walked)
    judge = Judge(turn.user, "list")
    judge.require(Action.READ, found)
    if found.type == TYPE_MOUNTPOINT:
        place = found.object.value("mountpoint", "externalURL")
        raise CheloniaError(Kind.IN_MOUNTPOINT, subject=str(ln), cause=f"it is a mount point, which stands for {place}")
    if found.type != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(ln), cause=f"it is a {found.type}")
    if request.limit < 0:
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(ln), cause="limit is 0 (whole) or a number of entries")
    limit = min(request.limit, bounds.PAGE_ENTRIES_MAX) or bounds.SECTION_WHOLE_MAX
    listing = Listing(ports, turn, judge, found, needed, frozenset((n.section, n.property) for n in needed))
    walk = _everything_below if recursive else _children
    entries, after = await walk(listing, request.after, limit)
    if after and not request.limit:
        cause = f"more than {bounds.SECTION_WHOLE_MAX} entries: list it page by page (after, limit)"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(ln), cause=cause)
    return ListOutcome(request.request_id, status.success("list"), entries, after)


async def _children(listing: Listing, after: str, limit: int) -> tuple[tuple[ListedEntry, ...], str]:
    shown: list[ListedEntry] = []
    while True:
        page = await _page(listing, listing.top.guid, after, limit - len(shown))
        shown += [_listed(listing, entry, entry.name) for entry in page.entries if is_visible(entry.object)]
        after = page.after
        if not after or len(shown) >= limit:
            return tuple(shown), after


async def _page(listing: Listing, guid: Guid, after: str, limit: int) -> EntryPage:
    """Some children of a collection, at most `limit`; fewer where they are large."""
    page = await listing.ports.librarian.entries(listing.turn.service, guid, after, limit, listing.fetched)
    listing.turn.room.read(entry.object for entry in page.entries)
    return page


@dataclass(slots=True)
class _Level:
    """One collection on the way of a recursive walk: its path below the top (`a/b/`), and where reading it stands."""

    path: str
    guid: Guid
    after: str = ""
    waiting: deque[Entry] = field(default_factory=deque)
    exhausted: bool = False


async def _everything_below(listing: Listing, after: str, limit: int) -> tuple[tuple[ListedEntry, ...], str]:
    """Walk depth first from after the path `after`, without recursion: a deep tree is a long list of levels."""
    levels = await _resume(listing, after)
    shown: list[ListedEntry] = []
    last = ""
    while levels:
        level = levels[-1]
        if not level.waiting and not level.exhausted:
            await _read_on(listing, level, limit - len(shown) + 1)
        if not level.waiting:
            if level.exhausted:
                levels.pop()
            continue
        if len(shown) == limit:
            return tuple(shown), last
        entry = level.waiting.popleft()
        is_collection = entry.object.value("entry", "type") == TYPE_COLLECTION
        last = level.path + entry_key(entry.name, is_collection)
        shown.append(_listed(listing, entry, level.path + entry.name))
        if is_collection and len(levels) < bounds.LN_DEPTH_MAX and listing.judge.may(Action.READ, _child(entry)):
            levels.append(_Level(last, Guid(entry.object.id)))
    return tuple(shown), ""


async def _read_on(listing: Listing, level: _Level, limit: int) -> None:
    page = await _page(listing, level.guid, level.after, min(limit, bounds.PAGE_ENTRIES_MAX))
    level.waiting.extend(entry for entry in page.entries if is_visible(entry.object))
    level.after = page.after
    level.exhausted = not page.after


async def _resume(listing: Listing, after: str) -> list[_Level]:
    """The levels of a walk whose last shown path was `after`; ends early where the tree has changed since."""
    names = [name for name in after.split("/") if name]
    if len(names) > bounds.LN_DEPTH_MAX:
        raise CheloniaError(Kind.BAD_REQUEST, subject="after", cause="not the `after` of an earlier answer")
    keys = [name + "/" for name in names]
    if names and not after.endswith("/"):
        keys[-1] = names[-1]
    levels = [_Level("", listing.top.guid, after=keys[0] if keys else "")]
    inside = [key for key in keys if key.endswith("/")]
    ln = LogicalName(listing.top.guid, tuple(entry_name(key) for key in inside))
    if not inside:
        return levels
    (walked,) = await listing.ports.librarian.traverse(listing.turn.service, (ln,), RIGHTS)
    guids = tuple(step.guid for step in walked.steps[1:])
    for index, stored in enumerate(await listing.ports.librarian.get(listing.turn.service, guids, RIGHTS)):
        found = Found(listing.top.ln, stored)
        if not is_visible(stored) or found.type != TYPE_COLLECTION or not listing.judge.may(Action.READ, found):
            break
        path = "".join(inside[: index + 1])
        levels.append(_Level(path, found.guid, after=keys[index + 1] if index + 1 < len(keys) else ""))
    return levels


def _listed(listing: Listing, entry: Entry, name: str) -> ListedEntry:
    sections = _shown(entry.object, _NOT_LISTED)
    readable = listing.judge.may(Action.READ, _child(entry))
    triples = tuple(
        triple
        for triple in to_triples(sections)
        if (not listing.picks or not listing.picks.isdisjoint(_names_of(triple)))
        and (readable or selects(_PUBLIC, triple.section, triple.property))
    )
    listing.turn.room.take(1, triples)
    return ListedEntry(name, entry.object.id, triples)


def _names_of(triple: Triple) -> tuple[tuple[str, str], tuple[str, str]]:
    """What a filter may call this triple: itself, or its whole section."""
    return (triple.section, triple.property), (triple.section, "")


def _child(entry: Entry) -> Found:
    return Found(LogicalName(Guid(entry.object.id), ()), entry.object)


def _shown(stored: StoredObject, hidden: frozenset[str] = HIDDEN) -> Sections:
    """An object as users see it: without the system's own sections, names bare."""
    shown = {section: dict(properties) for section, properties in stored.sections.items() if section not in hidden}
    if "entries" in shown:
        shown["entries"] = {entry_name(key): guid for key, guid in shown["entries"].items()}
    return shown
