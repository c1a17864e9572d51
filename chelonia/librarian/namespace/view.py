"""The reader's view of an entry: without the stored layout's own records, its replicas as they are now. Pure.

`put`, `pending`, `uploads` and `summaries` are never shown; `blobs`, `content`, `locks` and `tally` only to a filter
that names them. Names in `entries` are bare. A file's `locations` are its blob's, of several blobs the worst one's; a
verified copy is `offline` while its Shepherd is away. An unfinished upload does not exist for readers. Blobs are read
only for a filter that includes `locations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chelonia.core.cluster.replicas import PROVEN, ReplicaState, parse_location
from chelonia.core.ids import BLOB_PREFIX, ServiceId
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.names import entry_name
from chelonia.core.ports.ahash import Linked
from chelonia.librarian.namespace.tree import visible

Present = Callable[[ServiceId], bool]
"""Returns whether a Shepherd is present now."""

Requested = Mapping[str, set[str]] | None
"""Requested properties by section, "" among them for the whole section; None: everything."""

HIDDEN = frozenset({"put", "pending", "uploads", "summaries"})
LOCATIONS = "locations"
BLOBS = "blobs"
NAMED_ONLY = frozenset({BLOBS, "content", "locks", "tally"})
"""Shown only to a filter that names the section."""
assert HIDDEN.isdisjoint(NAMED_ONLY), "what no filter shows needs none"
BLOBS_LINKED = Linked(BLOBS, BLOB_PREFIX, (Needed(LOCATIONS),))
"""Link from a file to the locations of its blobs."""
_VERIFIED = frozenset(state.value for state in PROVEN)
_OFFLINE = ReplicaState.OFFLINE.value


def asks_locations(needed: Filter) -> bool:
    """Return whether a reader's filter includes the locations of the bytes."""
    return not needed or any(part.section == LOCATIONS for part in needed)


def stored_filter(needed: Filter) -> Filter:
    """Return the filter for reading an entry that answers a reader's filter."""
    if not needed:
        return ()
    parts = [Needed("entry", "type")]
    if asks_locations(needed):
        parts += [Needed("blobs"), Needed("content")]
    for part in needed:
        if part.section == "entries" and part.property:
            parts += [part, Needed("entries", part.property + "/")]
        elif part.section != LOCATIONS and part.section not in HIDDEN:
            parts.append(part)
    return tuple(parts)


def requested(needed: Filter) -> Requested:
    """Return a reader's filter by section."""
    if not needed:
        return None
    found: dict[str, set[str]] = {}
    for part in needed:
        found.setdefault(part.section, set()).add(part.property)
    return found


def shown(entry: StoredObject, requested: Requested, locations: Mapping[str, str]) -> StoredObject:
    """Return the entry as readers see it; one that they may not see has version 0."""
    if not visible(entry):
        return StoredObject(entry.id, 0)
    sections = {**entry.sections, LOCATIONS: locations} if locations else entry.sections
    picked = {}
    for name, properties in sections.items():
        if name in HIDDEN or (name in NAMED_ONLY if requested is None else name not in requested):
            continue
        if name == "entries":
            properties = {entry_name(key): guid for key, guid in properties.items()}
        if requested is not None and "" not in requested[name]:
            properties = {each: properties[each] for each in properties if each in requested[name]}
        if properties:
            picked[name] = properties
    counts = {name: count for name, count in entry.counts.items() if name not in HIDDEN}
    return StoredObject(entry.id, entry.version, picked, counts)


def locations_of(blob: StoredObject, present: Present) -> dict[str, str]:
    """Return the locations of a blob; a verified one is `offline` where its Shepherd is away."""
    found: dict[str, str] = {}
    for key, state in sorted(blob.sections.get(LOCATIONS, {}).items()):
        away = state in _VERIFIED and not present(parse_location(key).shepherd)
        found[key] = _OFFLINE if away else state
    return found


def weakest_locations(blobs: Sequence[StoredObject], present: Present) -> dict[str, str]:
    """Return the locations of the blob that is worst off: a file is as safe as that one."""
    if len(blobs) == 1:
        return locations_of(blobs[0], present)
    return min((locations_of(blob, present) for blob in blobs), key=_live, default={})


def _live(locations: Mapping[str, str]) -> tuple[int, int]:
    states = list(locations.values())
    return states.count(ReplicaState.ALIVE.value), states.count(ReplicaState.OFFLINE.value)
