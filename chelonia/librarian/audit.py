"""The invariants of the metadata, stated once: what must hold after every transact, and what holds when all is quiet.

Pure: from the objects as stored to what is wrong with them. `broken` looks at rules that no moment may break, whatever
crashed; `unsettled` at work that healing has still to do. The simulator watches both; no command runs them.
Layout of every object: `docs/formats/metadata.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from chelonia.core.ids import (
    BLOB_PREFIX,
    ROOT,
    SHEPHERD_PREFIX,
    BlobId,
    Guid,
    ObjectId,
    blob_object,
    is_guid,
    shepherd_object,
)
from chelonia.core.librarian import TYPE_COLLECTION, TYPE_FILE, TYPE_PENDING
from chelonia.core.metadata import StoredObject
from chelonia.core.names import entry_name
from chelonia.core.replicas import Location, ReplicaState, parse_location
from chelonia.librarian.blobs import blob_of, facts_of, locations_of
from chelonia.librarian.elements import outbox_reference
from chelonia.librarian.tree import blobs_of, key_for, names_of, type_of

_CLAIMED = (ReplicaState.CREATING, ReplicaState.THIRDWHEEL)
"""States that always have a claim; `invalid` may have one (since when), others have none."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong: with which object, and what."""

    object: ObjectId
    what: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.object}: {self.what}"


class Snapshot:
    """All objects of one moment, whole (wide sections included)."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        self.objects: Mapping[ObjectId, StoredObject] = {obj.id: obj for obj in objects}

    def get(self, object_id: ObjectId) -> StoredObject:
        """An object; version 0 when there is none."""
        return self.objects.get(object_id, StoredObject(object_id, 0))

    def entries(self) -> list[StoredObject]:
        """Files, collections, mount points and pending uploads."""
        return [obj for key, obj in sorted(self.objects.items()) if is_guid(key)]

    def blobs(self) -> list[StoredObject]:
        """Blob objects."""
        return [obj for key, obj in sorted(self.objects.items()) if key.startswith(BLOB_PREFIX)]

    def shepherds(self) -> list[StoredObject]:
        """Objects of Shepherds."""
        return [obj for key, obj in sorted(self.objects.items()) if key.startswith(SHEPHERD_PREFIX)]


def broken(snapshot: Snapshot) -> tuple[Finding, ...]:
    """What no moment may show: names, parents, blobs, locations, records and outboxes that do not agree."""
    found: list[Finding] = []
    for entry in snapshot.entries():
        rules = _pending_rules(snapshot, entry) if type_of(entry) == TYPE_PENDING else _entry_rules(snapshot, entry)
        found += [Finding(entry.id, what) for what in rules]
    for blob in snapshot.blobs():
        found += [Finding(blob.id, what) for what in _blob_rules(snapshot, blob)]
    for shepherd in snapshot.shepherds():
        found += [Finding(shepherd.id, what) for what in _shepherd_rules(snapshot, shepherd)]
    return tuple(found)


def unsettled(snapshot: Snapshot) -> tuple[Finding, ...]:
    """What healing has still to do: copies missing or surplus, claims running, erasures not confirmed."""
    found = []
    for blob in snapshot.blobs():
        states = [state.value for _, state in locations_of(blob)]
        nodes = {location.shepherd for location, _ in locations_of(blob)}
        wanted = max(facts_of(blob).wanted, 1)
        if states != ["alive"] * wanted or len(nodes) != wanted:
            found.append(Finding(blob.id, f"{states} on {len(nodes)} Shepherds, wanted {wanted}"))
    for shepherd in snapshot.shepherds():
        waiting = len(shepherd.sections.get("erase", {}))
        if waiting:
            found.append(Finding(shepherd.id, f"{waiting} erasures are not confirmed"))
    return tuple(found)


# --- the namespace --------------------------------------------------------------------------------------------------


def _entry_rules(snapshot: Snapshot, entry: StoredObject) -> Iterator[str]:
    kind = type_of(entry)
    if not kind:
        yield "no entry/type"
    for parent, name in names_of(entry):
        holder = snapshot.get(ObjectId(parent))
        if holder.value("entries", key_for(name, kind)) != entry.id:
            yield f"parents names {parent}/{name}, which does not lead here"
    if Guid(entry.id) != ROOT and not entry.sections.get("parents"):
        yield "no name leads to it"
    if kind == TYPE_COLLECTION:
        yield from _content_rules(snapshot, entry)
    if kind == TYPE_FILE:
        yield from _file_rules(snapshot, entry)


def _content_rules(snapshot: Snapshot, collection: StoredObject) -> Iterator[str]:
    names: dict[str, str] = {}
    for key, guid in collection.sections.get("entries", {}).items():
        child, name = snapshot.get(ObjectId(guid)), entry_name(key)
        if name in names:
            yield f"two entries are called {name!r}"
        names[name] = guid
        if type_of(child) in ("", TYPE_PENDING):
            yield f"{name!r} leads to {guid}, which is no entry"
        elif key != key_for(name, type_of(child)):
            yield f"{name!r} is stored as {key!r}, but is a {type_of(child)}"
        elif not child.value("parents", f"{collection.id}/{name}"):
            yield f"{name!r} leads to {guid}, which does not know it"
    for name, value in collection.sections.get("pending", {}).items():
        held = snapshot.get(ObjectId(value.partition(" ")[0]))
        if type_of(held) != TYPE_PENDING:
            yield f"{name!r} is reserved by {held.id}, which is no upload"


def _pending_rules(snapshot: Snapshot, entry: StoredObject) -> Iterator[str]:
    parent, name = entry.value("put", "parent"), entry.value("put", "name")
    reserved = snapshot.get(ObjectId(parent)).value("pending", name)
    if reserved.partition(" ")[0] != entry.id:
        yield f"an upload without its reservation {parent}/{name}"


def _file_rules(snapshot: Snapshot, file: StoredObject) -> Iterator[str]:
    for blob in blobs_of(file):
        found = snapshot.get(blob_object(blob))
        if not found.exists:
            yield f"its blob {blob} does not exist"
        elif found.value("blob", "wanted") != file.value("states", "neededReplicas"):
            yield f"wants {file.value('states', 'neededReplicas')} replicas, its blob {blob} another number"


# --- the bytes ------------------------------------------------------------------------------------------------------


def _blob_rules(snapshot: Snapshot, blob: StoredObject) -> Iterator[str]:
    file = snapshot.get(ObjectId(blob.value("blob", "file")))
    if type_of(file) != TYPE_FILE or blob_of(blob) not in blobs_of(file):
        yield f"its file {file.id} does not name it"
    claims = blob.sections.get("claims", {})
    for location, state in locations_of(blob):
        record = snapshot.get(shepherd_object(location.shepherd)).value("file", location.reference)
        if record != blob_of(blob):
            yield f"{location} is {state.value}, but its Shepherd's record says {record or 'nothing'}"
        if state is not ReplicaState.INVALID and (state in _CLAIMED) != (str(location) in claims):
            yield f"{location} is {state.value}, claims say {claims.get(str(location), 'nothing')}"
    for key in claims:
        if key not in blob.sections.get("locations", {}):
            yield f"a claim for {key}, which is no location"


def _shepherd_rules(snapshot: Snapshot, shepherd: StoredObject) -> Iterator[str]:
    name = shepherd.id.removeprefix(SHEPHERD_PREFIX)
    records = shepherd.sections.get("file", {})
    ordered = {outbox_reference(key): value.split(" ")[0] for key, value in shepherd.sections.get("erase", {}).items()}
    for reference, blob in records.items():
        location = parse_location(f"{name} {reference}")
        listed = _lists(snapshot, BlobId(blob), location)
        if listed and reference in ordered:
            yield f"{reference} is to be erased, and still a location of {blob}"
        if not listed and reference not in ordered:
            yield f"{reference} of {blob} is neither a location nor to be erased"
    for reference, blob in ordered.items():
        if records.get(reference, blob) != blob:
            yield f"{reference} is to be erased as {blob}, but recorded as {records[reference]}"


def _lists(snapshot: Snapshot, blob: BlobId, location: Location) -> bool:
    return bool(snapshot.get(blob_object(blob)).value("locations", str(location)))
