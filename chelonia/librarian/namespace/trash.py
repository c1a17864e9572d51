"""The trash: deleted entries that are kept for a while, and the index of everything that expires. Pure.

A deleted entry stays as it was, with its blobs, but of type `trashed`, which no reader sees; `parents` has its former
names. `sys:trash` lists it in `due` by time of expiry, in `formerly` by former name. Repair treats its blobs like any
others. At its time the entry goes, with orders to erase its replicas. `sys:pending` `due` lists unfinished uploads and
discarded contents in the same way.
Reasoning: docs/design/012-trash.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from chelonia.core.ids import (
    CONTENT_PREFIX,
    PENDING_OBJECT,
    TRASH_OBJECT,
    Dn,
    Guid,
    Ms,
    ObjectId,
    content_id,
    content_object,
)
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_TRASHED, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import Trashed, former_key
from chelonia.librarian.metadata.blobs import blob_of, leave_blob
from chelonia.librarian.metadata.contents import DISCARDED, LEFT, content_of
from chelonia.librarian.metadata.elements import check, drop, empty, erase, is_, isnot, put, version

NAMES_FOUND: Final = 100
"""Former names by which the trash lists one file, at most; by its GUID it always does."""
_NOBODY: Final = "-"
"""Stands for an unknown owner: no value is empty."""


def due_key(until: Ms | int, guid: str) -> str:
    """Return the property of an index of expiry: ordered by time."""
    return f"{until:013d} {guid}"


def parse_due(key: str) -> tuple[Ms, Guid]:
    """Return the time and GUID of such a property. Raises: ValueError when malformed."""
    until, _, guid = key.partition(" ")
    return Ms(int(until)), Guid(guid)


def parse_former(key: str) -> tuple[Guid, str, Guid]:
    """Return the parent, name and GUID of a `former_key`. Raises: ValueError when malformed."""
    parent, name, rest = key.split("/")
    _, _, guid = rest.partition(" ")
    return Guid(parent), name, Guid(guid)


def keep(file: StoredObject, until: Ms, now: Ms) -> list[Element]:
    """Put an entry as read into the trash; the caller drops its names from its parents.

    A collection has to be empty. Trashed entries keep it as their parent: both can come back.
    """
    kind = file.value("entry", "type")
    assert kind in (TYPE_FILE, TYPE_COLLECTION), "nothing else comes back"
    assert until > now, "the trash keeps an entry for a while"
    facts = {"type": kind, "deleted_ms": str(now), "until_ms": str(until)}
    elements = [put(file.id, "entry", "type", TYPE_TRASHED, version(file.version))]
    elements += (
        [check(file.id, empty("entries"), empty("pending"), empty("uploads"))] if kind == TYPE_COLLECTION else []
    )
    elements += [put(file.id, "trashed", prop, value) for prop, value in facts.items()]
    return elements + find(file, until, now)


def find(file: StoredObject, until: Ms, deleted: Ms) -> list[Element]:
    """List a file in the indexes."""
    due = put(TRASH_OBJECT, "due", due_key(until, file.id), file.value("entry", "owner") or _NOBODY)
    return [due, *(put(TRASH_OBJECT, "formerly", key, file.id) for key in _former_keys(file, deleted))]


def forget(trashed: StoredObject) -> list[Element]:
    """Take a file out of the indexes: it comes back, or goes for good."""
    deleted, until = (int(trashed.value("trashed", prop, "0")) for prop in ("deleted_ms", "until_ms"))
    elements = [drop(TRASH_OBJECT, "due", due_key(until, trashed.id))]
    return elements + [drop(TRASH_OBJECT, "formerly", key) for key in _former_keys(trashed, Ms(deleted))]


def expire(trashed: StoredObject, blobs: Sequence[StoredObject], now: Ms) -> list[Element]:
    """Remove a file for good: the entry, its place in the trash, and (through the outboxes) every replica."""
    assert len(blobs) == len(trashed.sections.get("blobs", {})), "a blob left out would stay for ever"
    elements = [erase(trashed.id, version(trashed.version), is_("entry", "type", TYPE_TRASHED)), *forget(trashed)]
    return elements + leave_bytes(trashed, blobs, "deleted", now)


def described(trashed: StoredObject, parent: Guid, name: str) -> Trashed:
    """Return the description of a file in the trash under one of its former names."""
    size = trashed.value("states", "size")
    return Trashed(
        guid=Guid(trashed.id),
        owner=Dn(trashed.value("entry", "owner")),
        parent=parent,
        name=name,
        size=int(size) if size.isdecimal() else -1,
        deleted_ms=Ms(int(trashed.value("trashed", "deleted_ms", "0"))),
        until_ms=Ms(int(trashed.value("trashed", "until_ms", "0"))),
        type=trashed.value("trashed", "type") or TYPE_FILE,
    )


def _former_keys(file: StoredObject, deleted: Ms) -> list[str]:
    pairs = (key.partition("/") for key in sorted(file.sections.get("parents", {}))[:NAMES_FOUND])
    return [former_key(parent, name, deleted, file.id) for parent, _, name in pairs]


def leave_bytes(
    file: StoredObject, blobs: Sequence[StoredObject], reason: str, now: Ms, kept: Collection[str] = ()
) -> list[Element]:
    """Take a file off its bytes, but for blobs that are `kept`."""
    elements = discard_content(file, now)
    for blob in blobs:
        if blob_of(blob) not in kept:
            elements += leave_blob(blob, Guid(file.id), reason, now)
    return elements


def discard_content(file: StoredObject, now: Ms) -> list[Element]:
    """Discard the content of a file that goes or gets other bytes: the sweep drops its blobs page by page."""
    content = content_of(file)
    if not content:
        return []
    obj = content_object(content)
    # Not "is sealed": one that a rebuild did not find keeps no file from going, nor from other bytes.
    given_up = put(obj, "content", "state", DISCARDED, isnot("content", "state", DISCARDED))
    since, left = put(obj, "content", "due_ms", str(now)), file.value("content", LEFT)
    before = [drop(PENDING_OBJECT, "due", due_key(int(left), obj))] if left not in ("", str(now)) else []
    return [given_up, since, *before, put(PENDING_OBJECT, "due", due_key(now, obj), file.id)]


def let_go(content: ObjectId, blobs: Sequence[StoredObject], now: Ms) -> list[Element]:
    """Drop some blobs of a discarded content."""
    assert content.startswith(CONTENT_PREFIX), "only contents let go of their blobs page by page"
    elements = [check(content, is_("content", "state", DISCARDED))]
    for blob in blobs:
        elements += [drop(content, "named", blob_of(blob)), *leave_blob(blob, content_id(content), "deleted", now)]
    return elements


# --- unfinished uploads -----------------------------------------------------------------------------------------------


def expect_upload(reservation: str, parent: ObjectId, name: str) -> Element:
    """Note when to sweep a reservation (`<GUID> <expires_ms>`)."""
    return put(PENDING_OBJECT, "due", reserved_key(reservation), f"{parent}/{name}")


def drop_reservation(parent: ObjectId, name: str, reservation: str) -> list[Element]:
    """Free a reserved name, on condition that the reservation is as read."""
    freed = drop(parent, "pending", name, is_("pending", name, reservation))
    return [freed, drop(PENDING_OBJECT, "due", reserved_key(reservation))]


def reserved_key(reservation: str) -> str:
    """Return the property of the index of expiry for a reservation; a malformed one is overdue."""
    guid, _, expires = reservation.partition(" ")
    return due_key(int(expires) if expires.isdecimal() else 0, guid)
