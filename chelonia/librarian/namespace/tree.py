"""The namespace as pure decisions: each operation, from objects as read, becomes the elements of one transact.

Nothing here reads or writes. A function raises the error that the objects already show (EXISTS, NOT_FOUND, NOT_EMPTY
...). Otherwise its elements carry, as conditions, every fact that the decision rests on. When such a condition fails
the caller reads and decides again: either the new facts name the error, or the operation goes through.

Invariants:
- An entry's `parents` and its parents' `entries` change together.
- A location, its Shepherd's `file` record and the erasure outbox change together.
- A changed collection that was closed is broken in the same transact.
- A move of a collection raises the tree epoch, so that crossing moves cannot make a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.contents.uploads import BeginPut
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, TREE_OBJECT, BlobId, Guid, Ms, ObjectId
from chelonia.core.metadata import (
    TYPE_COLLECTION,
    TYPE_FILE,
    TYPE_MOUNTPOINT,
    TYPE_PENDING,
    TYPE_SPECIAL,
    TYPE_SYMLINK,
    TYPE_TRASHED,
    Filter,
    Needed,
    Sections,
    StoredObject,
)
from chelonia.core.names import check_name, entry_key
from chelonia.core.ports.ahash import ChangeType, Condition, Element
from chelonia.core.ports.librarian import ChangeEntry, MakeEntry, MoveEntry, SetWanted, Undelete, Unlink
from chelonia.core.rights.policy import with_rules
from chelonia.core.timing.clock import stamp
from chelonia.librarian.metadata.blobs import A_FILE, want_copies
from chelonia.librarian.metadata.elements import (
    add,
    as_read,
    check,
    drop,
    empty,
    erase,
    expectations,
    is_,
    isnot,
    put,
    put_all,
    seconds,
    unset,
    version,
)
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.trash import drop_reservation

CLOSED_YES: Final = "yes"
CLOSED_BROKEN: Final = "broken"
GIVEN_SECTIONS: Final = frozenset(
    {"policy", "defaultPolicy", "metadata", "states", "mountpoint", "timestamps", "posix", "node"}
)
"""Sections a caller may give with a new entry; all others are the Librarian's own."""
MAKEABLE_TYPES: Final = (TYPE_FILE, TYPE_COLLECTION, TYPE_MOUNTPOINT, TYPE_SYMLINK, TYPE_SPECIAL)
MODIFIABLE_SECTIONS: Final = GIVEN_SECTIONS | {"locks"}
MEASURED_STATES: Final = frozenset({"size", "checksum", "checksumType", "etag"})
"""Facts about bytes: they change only with the bytes."""

assert GIVEN_SECTIONS.isdisjoint({"entry", "parents", "entries", "pending", "blobs", "content", "trashed"}), "its own"
assert {TYPE_PENDING, TYPE_TRASHED}.isdisjoint(MAKEABLE_TYPES), "nobody makes what readers do not see"

ENTRY: Final[Filter] = (Needed("entry"),)
_NOTHING: Final[Sections] = {}
_NO_SECTION: Final[Mapping[str, str]] = {}


class Slot(msgspec.Struct, frozen=True):
    """A name inside a collection as read: the parent (with `slot_filter`) and the entry that reserves the name."""

    parent: StoredObject
    name: str
    pending: StoredObject | None = None

    @property
    def child(self) -> Guid:
        """Entry under this name, or "" when there is none."""
        entries = self.parent.sections.get("entries", {})
        return Guid(entries.get(self.name + "/", "") or entries.get(self.name, ""))

    @property
    def reservation(self) -> str:
        """Raw pending value, `<GUID> <expires_ms>`, or ""."""
        return self.parent.value("pending", self.name)


def slot_filter(names: Iterable[str]) -> Filter:
    """Return the filter for reading a collection to decide about `names` in it."""
    keys = [Needed(*key) for name in names for key in (("entries", name), ("entries", name + "/"), ("pending", name))]
    return (Needed("entry"), Needed("states", "closed"), *keys)


def type_of(entry: StoredObject) -> str:
    """Return `entry/type`, empty when the object is no entry."""
    return entry.sections.get("entry", _NO_SECTION).get("type", "")


def visible(entry: StoredObject) -> bool:
    """Return whether readers may see that this entry exists."""
    return type_of(entry) not in ("", TYPE_PENDING, TYPE_TRASHED)


def names_of(entry: StoredObject) -> tuple[tuple[Guid, str], ...]:
    """Return the (parent, name) pairs of an entry, in order."""
    pairs = []
    keys = entry.sections.get("parents", _NO_SECTION)
    for key in sorted(keys) if len(keys) > 1 else keys:
        parent, _, name = key.partition("/")
        pairs.append((Guid(parent), name))
    return tuple(pairs)


def blobs_of(entry: StoredObject) -> tuple[BlobId, ...]:
    """Return the blobs of a file, in order."""
    blobs = entry.sections.get("blobs", {})
    return tuple(BlobId(blobs[ordinal]) for ordinal in sorted(blobs))


# --- making ---------------------------------------------------------------------------------------------------------


def make_entry(
    request: MakeEntry, guid: Guid, slot: Slot | None, now: Ms, bytes_: Sections = _NOTHING
) -> list[Element]:
    """Make an entry and its name. `slot` None makes the root (or an entry without a name). `bytes_`: sections about a
    file's bytes, in place of given ones.

    Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME, BAD_REQUEST.
    """
    assert bytes_.keys().isdisjoint({"entry", "parents"}), "bytes make neither an identity nor a name"
    if request.type not in MAKEABLE_TYPES:
        raise CheloniaError(Kind.BAD_REQUEST, "makeEntry", request.name, f"{request.type!r} is no type of an entry")
    obj = ObjectId(guid)
    elements = expectations(request.expect)
    parents: dict[str, str] = {}
    if slot is not None:
        elements += take_name(slot, request.owner, now)
        elements.append(put(slot.parent.id, "entries", key_for(slot.name, request.type), guid))
        parents = {f"{slot.parent.id}/{slot.name}": "parent"}
    elements.append(check(obj, version(0)))
    elements += put_all(obj, {**new_sections(request, guid, parents, now), **bytes_})
    return elements


def make_file(begin: BeginPut, guid: Guid, slot: Slot, bytes_: Sections, now: Ms) -> list[Element]:
    """Make the entry of a file that comes with its bytes, and its name. Raises: as `make_entry`."""
    assert not begin.replaces, "what replaces a file makes no other"
    entry = MakeEntry(begin.parent, begin.name, TYPE_FILE, begin.owner, begin.sections, begin.expect)
    return make_entry(entry, guid, slot, now, bytes_)


def rewrite(begin: BeginPut, file: StoredObject, op: str) -> list[Element]:
    """Condition a file that gets other bytes to be as read. Raises: CONFLICT: all is decided anew."""
    if type_of(file) != TYPE_FILE:
        cause = "the file to write is not there any more; try again"
        raise CheloniaError(Kind.CONFLICT, op, str(begin.ln), cause)
    return [*expectations(begin.expect), check(file.id, is_("entry", "type", TYPE_FILE), version(file.version))]


def check_file(file: StoredObject, op: str, name: str, act: str) -> None:
    """Refuse an entry that is no file any more. Raises: NOT_FOUND, NOT_A_FILE."""
    if type_of(file) != TYPE_FILE:
        kind = Kind.NOT_A_FILE if visible(file) else Kind.NOT_FOUND
        raise CheloniaError(kind, op, name, f"the file to {act} is not there any more")


def given_anew(given: Sections, now: Ms) -> dict[str, Mapping[str, str]]:
    """Return the sections that a file gets beside other bytes: their time, given attributes and user metadata."""
    times = {"modified": seconds(now), **given.get("timestamps", {})}
    return {"timestamps": times, "metadata": given.get("metadata", {}), "posix": given.get("posix", {})}


def left_over(file: StoredObject, given: Sections, *, anew: bool) -> list[Element]:
    """Drop the users' metadata of an overwritten file beside those given; not `anew`: it keeps them."""
    stale = sorted(file.sections.get("metadata", {})) if anew else []
    return [drop(file.id, "metadata", name) for name in stale if name not in given.get("metadata", {})]


def ruled(file: StoredObject, rules: Mapping[str, str] | None) -> list[Element]:
    """Replace a file's rules by these, but for those of groups; None: it keeps them."""
    after = file.sections.get("policy", {}) if rules is None else with_rules(file.sections.get("policy", {}), rules)
    dropped = [subject for subject in sorted(file.sections.get("policy", {})) if subject not in after]
    return [*(drop(file.id, "policy", subject) for subject in dropped), *put_all(file.id, {"policy": rules or {}})]


def new_sections(request: MakeEntry, guid: Guid, parents: Mapping[str, str], now: Ms) -> dict[str, dict[str, str]]:
    """Return all sections of a new entry: the given ones and the Librarian's own."""
    given = given_sections(request.sections)
    times = {"created": seconds(now), "modified": seconds(now), **given.pop("timestamps", {})}
    if request.type == TYPE_COLLECTION:
        given["states"] = {"closed": "no", **given.get("states", {})}
    own = {"type": request.type, "GUID": guid, "owner": request.owner}
    return {"entry": own, "timestamps": times, "parents": dict(parents), **given}


def given_sections(sections: Sections) -> dict[str, dict[str, str]]:
    """Return the sections a caller gave. Raises: BAD_REQUEST when one of them is the Librarian's own."""
    for section in sections:
        if section not in GIVEN_SECTIONS:
            cause = f"section {section!r} is kept by the Librarian; give {', '.join(sorted(GIVEN_SECTIONS))}"
            raise CheloniaError(Kind.BAD_REQUEST, subject=section, cause=cause)
    return {section: dict(sections[section]) for section in sections if sections[section]}


def key_for(name: str, entry_type: str) -> str:
    """Return the property of `entries` for a name of an entry of this type."""
    return entry_key(name, entry_type == TYPE_COLLECTION)


def take_name(slot: Slot, owner: str, now: Ms) -> list[Element]:
    """Condition a name to be free and the parent to be a collection, superseding a reservation that no longer counts.

    A reservation is superseded by its own owner, and by anyone once it has expired.
    Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME.
    """
    check_name(slot.name)
    check_collection(slot.parent, slot.name)
    if slot.child:
        raise CheloniaError(Kind.EXISTS, subject=slot.name, cause="the name is taken")
    free = (unset("entries", slot.name), unset("entries", slot.name + "/"))
    if not slot.reservation:
        return content_change(slot.parent, *free, unset("pending", slot.name))
    return [*content_change(slot.parent, *free), *supersede(slot, owner, now)]


def supersede(slot: Slot, owner: str, now: Ms) -> list[Element]:
    """Remove a reservation that no longer counts. Raises: EXISTS when it is another's and has not expired."""
    assert slot.reservation, "only a reserved name is superseded"
    guid = slot.reservation.partition(" ")[0]
    assert slot.pending is None or slot.pending.id == guid, "an upload holds the name by its own reservation"
    is_own = slot.pending is not None and bool(owner) and slot.pending.value("entry", "owner") == owner
    if not is_own and not expired(slot.reservation, now):
        raise CheloniaError(Kind.EXISTS, subject=slot.name, cause=f"{_holds(slot.reservation)}; take another name")
    elements = drop_reservation(slot.parent.id, slot.name, slot.reservation)
    if slot.pending is not None and type_of(slot.pending) == TYPE_PENDING:
        elements.append(erase(ObjectId(guid), is_("entry", "type", TYPE_PENDING)))
    return elements


def _holds(reservation: str) -> str:
    """The cause of a refusal for a reserved name."""
    until = stamp(int(reservation.partition(" ")[2]))
    return f"an upload that is not complete holds it until {until}, or until its user uploads there again"


def expired(reservation: str, now: Ms) -> bool:
    """Return whether a pending value `<GUID> <expires_ms>` no longer holds its name; a malformed one does not."""
    _, _, expires = reservation.partition(" ")
    return not expires.isdecimal() or int(expires) <= now


def check_collection(parent: StoredObject, name: str) -> None:
    """Refuse a parent that is no collection. Raises: NO_PARENT, NOT_A_COLLECTION."""
    if not visible(parent):
        raise CheloniaError(Kind.NO_PARENT, subject=name, cause="the parent collection does not exist")
    if type_of(parent) != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, subject=name, cause=f"the parent is a {type_of(parent)}")


def content_change(parent: StoredObject, *more: Condition) -> list[Element]:
    """Note that a collection's content changes: it must still be a collection, and the change breaks a closed one.
    `more`: further conditions on it."""
    is_collection = is_("entry", "type", TYPE_COLLECTION)
    if parent.value("states", "closed") == CLOSED_YES:
        closed = is_("states", "closed", CLOSED_YES)
        return [put(parent.id, "states", "closed", CLOSED_BROKEN, is_collection, closed, *more)]
    return [check(parent.id, is_collection, isnot("states", "closed", CLOSED_YES), *more)]


# --- removing -------------------------------------------------------------------------------------------------------


class Removable(msgspec.Struct, frozen=True):
    """An entry that may go, as read: itself, its parents (with `slot_filter` of its names) and its blobs."""

    entry: StoredObject
    parents: Mapping[Guid, StoredObject]
    blobs: tuple[StoredObject, ...] = ()


def unlink(request: Unlink, removable: Removable, now: Ms, keep_ms: int = 0) -> list[Element]:
    """Drop one name; the last name takes the entry with it (a collection only when it is empty).

    Args: `keep_ms`: time that the trash keeps a file.
    Raises: NOT_FOUND.
    """
    assert Guid(removable.entry.id) == request.child, "the entry that was asked for was read"
    slot = Slot(removable.parents[request.parent], request.name)
    if not visible(removable.entry) or slot.child != request.child:
        raise CheloniaError(Kind.NOT_FOUND, "unlink", request.name, "no such name for this entry")
    elements = expectations(request.expect)
    others = [pair for pair in names_of(removable.entry) if pair != (request.parent, request.name)]
    if not others:
        return elements + remove_entry(removable, "unlinked", now, keep_ms)
    elements += drop_name(slot, type_of(removable.entry), request.child)
    parents_key = f"{request.parent}/{request.name}"
    elements.append(drop(removable.entry.id, "parents", parents_key, version(removable.entry.version)))
    return elements


def remove_entry(removable: Removable, reason: str, now: Ms, keep_ms: int = 0) -> list[Element]:
    """Remove an entry, every name that still leads to it, and (through the outboxes) every replica of its blobs.

    A file is kept with its bytes in the trash for `keep_ms`, unless that is 0; so is a collection, which is empty.
    """
    entry, kind = removable.entry, type_of(removable.entry)
    kept = kind in (TYPE_FILE, TYPE_COLLECTION) and keep_ms > 0
    whole = kind != TYPE_FILE or len(removable.blobs) == len(blobs_of(entry))
    assert kept or whole, "a file that goes takes all its blobs along: one left out would stay for ever"
    conditions: list[Condition] = [version(entry.version)]
    if kind == TYPE_COLLECTION:
        conditions += [empty("entries"), empty("pending"), empty("uploads")]
    elements = trash.keep(entry, Ms(now + keep_ms), now) if kept else [erase(entry.id, *conditions)]
    for parent, name in names_of(entry):
        slot = Slot(removable.parents.get(parent, StoredObject(ObjectId(parent), 0)), name)
        if slot.child == Guid(entry.id):
            elements += drop_name(slot, kind, Guid(entry.id))
    elements += [] if kept else trash.leave_bytes(entry, removable.blobs, reason, now)
    if len(elements) > bounds.TRANSACT_ELEMENTS_MAX:
        cause = f"removing it takes {len(elements)} changes; unlink some of its names first"
        raise CheloniaError(Kind.TOO_LARGE, subject=entry.id, cause=cause)
    return elements


JointPart = tuple[Sequence[Element], Sequence[StoredObject]]
"""A decision that is part of a joint transact: its elements, and the entries that they change, as read."""


def unlink_together(
    requests: Mapping[int, Unlink], removables: Sequence[Removable], now: Ms, keep_ms: int
) -> dict[int, JointPart]:
    """Return the names that can go in one transact, by number: each the only one of an entry that is no collection. No
    blob is touched twice, and there is room for the consequences of each. `removables`: the entries, in their order."""
    parts: dict[int, JointPart] = {}
    used: set[ObjectId] = set()
    size = 0
    for (number, request), each in zip(requests.items(), removables, strict=True):
        touched = {each.entry.id, *(blob.id for blob in each.blobs)}
        if size < bounds.TRANSACT_ELEMENTS_MAX // 2 and touched.isdisjoint(used) and _is_only_name(request, each):
            parts[number] = unlink(request, each, now, keep_ms), (each.entry,)
            size += len(parts[number][0])
            used |= touched
    assert size <= bounds.TRANSACT_ELEMENTS_MAX, "what has room is within what a transact may hold"
    return parts


def _is_only_name(request: Unlink, removable: Removable) -> bool:
    """Whether an entry that is no collection goes with this name."""
    only = names_of(removable.entry) == ((request.parent, request.name),)
    return only and visible(removable.entry) and type_of(removable.entry) != TYPE_COLLECTION


def checked_once(elements: Sequence[Element]) -> list[Element]:
    """Return the same transact, with each condition that several parts share checked once."""
    checks = dict.fromkeys([element for element in elements if element.change is ChangeType.CHECK])
    return [*checks, *[element for element in elements if element.change is not ChangeType.CHECK]]


def undelete(request: Undelete, trashed: StoredObject, slot: Slot, now: Ms) -> list[Element]:
    """Bring an entry back from the trash under one name. Raises: NOT_FOUND, EXISTS, NO_PARENT, NOT_A_COLLECTION."""
    assert Guid(trashed.id) == request.guid, "the entry that was asked for was read"
    kind = trashed.value("trashed", "type")
    if type_of(trashed) != TYPE_TRASHED or not kind:
        raise CheloniaError(Kind.NOT_FOUND, "undelete", request.guid, "no such file is kept in the trash")
    elements = [*expectations(request.expect), *take_name(slot, trashed.value("entry", "owner"), now)]
    assert slot.parent.id != trashed.id, "nothing comes back below itself"
    elements.append(put(slot.parent.id, "entries", key_for(slot.name, kind), trashed.id))
    elements.append(put(trashed.id, "entry", "type", kind, version(trashed.version)))
    elements += [add(TREE_OBJECT, "epoch", "tree", 1)] if kind == TYPE_COLLECTION else []  # it may lie elsewhere now
    elements += [drop(trashed.id, "trashed", prop) for prop in sorted(trashed.sections.get("trashed", {}))]
    name = f"{slot.parent.id}/{slot.name}"
    elements += [drop(trashed.id, "parents", pair) for pair in trashed.sections.get("parents", {}) if pair != name]
    return [*elements, put(trashed.id, "parents", name, "parent"), *trash.forget(trashed)]


def drop_name(slot: Slot, entry_type: str, child: Guid) -> list[Element]:
    """Take a name out of a collection, conditional on its still leading to `child`."""
    assert child, "a name leads to an entry"
    key = key_for(slot.name, entry_type)
    return [*content_change(slot.parent), drop(slot.parent.id, "entries", key, is_("entries", key, child))]


def check_removable(entry: StoredObject) -> None:
    """Refuse to delete a collection. Raises: NOT_FOUND, NOT_A_FILE."""
    if not visible(entry):
        raise CheloniaError(Kind.NOT_FOUND, "delete", entry.id, "no such entry")
    if type_of(entry) == TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_FILE, "delete", entry.id, "it is a collection; unmake it")


def check_unmakable(entry: StoredObject) -> None:
    """Refuse to unmake an entry that is no collection. Raises: NOT_FOUND, NOT_A_COLLECTION, DENIED for the root."""
    if not visible(entry):
        raise CheloniaError(Kind.NOT_FOUND, "unmake", entry.id, "no such entry")
    if type_of(entry) != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, "unmake", entry.id, f"it is a {type_of(entry)}")
    if Guid(entry.id) == ROOT:
        raise CheloniaError(Kind.DENIED, "unmake", entry.id, "the root collection stays")


def leading_to(entry: StoredObject) -> dict[Guid, StoredObject]:
    """Return the collections of an entry's names as they nearly always are: open, and the names lead to it. Decisions
    on them carry that as conditions (`drop_name`)."""
    keys: dict[Guid, dict[str, str]] = {}
    for parent, name in names_of(entry):
        keys.setdefault(parent, {})[key_for(name, type_of(entry))] = entry.id
    return {parent: _open_collection(parent, entries) for parent, entries in keys.items()}


def free_slot(parent: Guid, name: str) -> Slot:
    """Return a name as it nearly always is where one is made: free, in an open collection. Decisions on it carry that
    as conditions (`take_name`)."""
    return Slot(_open_collection(parent, {}), name)


def _open_collection(guid: Guid, entries: Mapping[str, str]) -> StoredObject:
    return StoredObject(ObjectId(guid), 1, {"entry": {"type": TYPE_COLLECTION}, "entries": entries})


def sweep_reservations(collection: ObjectId, reservations: Iterable[tuple[str, str]], now: Ms) -> list[Element]:
    """Remove a collection's expired reservations, so that it can be empty. Raises: NOT_EMPTY when one still holds."""
    elements: list[Element] = []
    for name, value in reservations:
        if not expired(value, now):
            raise CheloniaError(Kind.NOT_EMPTY, "unmake", collection, f"the name {name!r} in it: {_holds(value)}")
        guid = value.partition(" ")[0]
        elements += drop_reservation(collection, name, value)
        elements.append(erase(ObjectId(guid), isnot("entry", "type", TYPE_FILE)))
    return elements


# --- moving ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveView:
    """The facts that a move rests on, as read: the child, both names, and the `holder` whose name it may take.
    Of a collection the tree epoch (read first) and every collection `above` the target, its parent included. Of an
    exchange also those `above_source`."""

    child: StoredObject
    source: Slot
    target: Slot
    epoch: str = ""
    above: frozenset[Guid] = frozenset()
    holder: Removable | None = None
    above_source: frozenset[Guid] = frozenset()


def move(request: MoveEntry, view: MoveView, now: Ms, keep_ms: int = 0) -> list[Element]:
    """Give an entry another name, or (`keep`) one more; an entry that has the name goes as by `unlink`.

    Args: `keep_ms`: time that the trash keeps a file that goes.
    Raises: NOT_FOUND, EXISTS, NO_PARENT, NOT_A_COLLECTION, NOT_A_FILE, INVALID_TARGET (a cycle, or the root),
        TOO_LARGE.
    """
    child, kind = view.child, type_of(view.child)
    _check_read(request, view)
    if not visible(child) or (view.source.child != request.child and request.child != ROOT):
        raise CheloniaError(Kind.NOT_FOUND, "move", request.source_name, "no such name for this entry")
    _check_no_cycle(request.child, kind, view.above, request.target_name)
    elements = [*expectations(request.expect)]
    if view.holder is None:
        elements += take_name(view.target, "", now)
    else:
        elements += _clear_name(request, view, view.holder, now, keep_ms)
    elements.append(put(view.target.parent.id, "entries", key_for(request.target_name, kind), child.id))
    elements += _source_name(request, view.source, kind)
    elements += _parents(request, child)
    if not request.keep:
        elements += _unlocked(child)
    if kind == TYPE_COLLECTION:
        elements.append(_next_epoch(view))
    return elements


def _check_read(request: MoveEntry, view: MoveView) -> None:
    """Assert that the caller has read what a move rests on."""
    assert Guid(view.child.id) == request.child, "the entry that was asked for was read"
    assert view.source.name == request.source_name, "the name that goes was read"
    assert view.target.name == request.target_name, "the name that comes was read"
    known = type_of(view.child) != TYPE_COLLECTION or Guid(view.target.parent.id) in view.above
    assert known, "what is above its target is known of a collection, the target itself included"


def _clear_name(request: MoveEntry, view: MoveView, holder: Removable, now: Ms, keep_ms: int) -> list[Element]:
    """Take the name from the entry that has it, for another of its kind (POSIX rename)."""
    kind, other = type_of(view.child), type_of(holder.entry)
    assert view.target.child == Guid(holder.entry.id), "who gives way has the name"
    assert holder.entry.id != view.child.id, "an entry does not give way to itself"
    if kind == TYPE_COLLECTION and other != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, "move", request.target_name, f"what has the name is a {other}")
    if other == TYPE_COLLECTION and kind != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_FILE, "move", request.target_name, "what has the name is a collection")
    check_collection(view.target.parent, request.target_name)
    name = Unlink(request.target_parent, request.target_name, Guid(holder.entry.id))
    return unlink(name, holder, now, keep_ms)


def exchange(request: MoveEntry, view: MoveView) -> list[Element]:
    """Exchange the names of two entries in one transact. Raises: NOT_FOUND, INVALID_TARGET (a cycle, or the root)."""
    assert view.holder is not None, "both entries of an exchange were read"
    one, other = view.child, view.holder.entry
    assert one.id != other.id, "an exchange is of two entries"
    _check_read(request, view)
    known = type_of(other) != TYPE_COLLECTION or Guid(view.source.parent.id) in view.above_source
    assert known, "what is above its new name is known of a collection, that place included"
    for entry, slot in ((one, view.source), (other, view.target)):
        if not visible(entry) or slot.child != Guid(entry.id):
            raise CheloniaError(Kind.NOT_FOUND, "move", slot.name, "no such name for this entry")
    _check_no_cycle(Guid(one.id), type_of(one), view.above, request.target_name)
    _check_no_cycle(Guid(other.id), type_of(other), view.above_source, request.source_name)
    elements = [*expectations(request.expect)]
    for entry, slot in ((one, view.source), (other, view.target)):
        elements += drop_name(slot, type_of(entry), Guid(entry.id))
    for entry, old, new in ((one, view.source, view.target), (other, view.target, view.source)):
        elements.append(put(new.parent.id, "entries", key_for(new.name, type_of(entry)), entry.id))
        same = is_("entry", "type", type_of(entry))
        elements.append(drop(entry.id, "parents", f"{old.parent.id}/{old.name}", same))
        elements.append(put(entry.id, "parents", f"{new.parent.id}/{new.name}", "parent"))
        elements += _unlocked(entry)
    if TYPE_COLLECTION in (type_of(one), type_of(other)):
        elements.append(_next_epoch(view))
    return elements


def _unlocked(entry: StoredObject) -> list[Element]:
    """End the locks of an entry that loses its name: a lock is of the name too (RFC 4918, section 7.5)."""
    return [drop(entry.id, "locks", token) for token in entry.sections.get("locks", {})]


def _check_no_cycle(child: Guid, kind: str, above: frozenset[Guid], name: str) -> None:
    if child == ROOT or (kind == TYPE_COLLECTION and child in above):
        cause = "a collection cannot be put below itself" if child != ROOT else "the root stays"
        raise CheloniaError(Kind.INVALID_TARGET, "move", name, cause)


def _next_epoch(view: MoveView) -> Element:
    return add(TREE_OBJECT, "epoch", "tree", 1, as_read("epoch", "tree", view.epoch))


def _source_name(request: MoveEntry, source: Slot, kind: str) -> list[Element]:
    if not request.keep:
        return drop_name(source, kind, request.child)
    key = key_for(source.name, kind)
    return [check(source.parent.id, is_("entries", key, request.child))]


def _parents(request: MoveEntry, child: StoredObject) -> list[Element]:
    if request.keep and len(child.sections.get("parents", {})) >= bounds.PARENTS_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "move", request.target_name, f"it has {bounds.PARENTS_MAX} names already")
    same = is_("entry", "type", type_of(child))
    elements = [put(child.id, "parents", f"{request.target_parent}/{request.target_name}", "parent", same)]
    if not request.keep:
        elements.append(drop(child.id, "parents", f"{request.source_parent}/{request.source_name}"))
    return elements


# --- changing -------------------------------------------------------------------------------------------------------


def change_entry(request: ChangeEntry, entry: StoredObject, now: Ms) -> list[Element]:
    """Set and unset several properties of one entry. Raises: NOT_FOUND, BAD_REQUEST (not a caller's to change)."""
    assert Guid(entry.id) == request.guid, "the entry that was asked for was read"
    if not visible(entry):
        raise CheloniaError(Kind.NOT_FOUND, "changeEntry", request.guid, "no such entry")
    for section, prop in (*((t.section, t.property) for t in request.put), *request.drop):
        check_modifiable(section, prop)
        if section == "states":
            cause = "states have operations of their own"
            raise CheloniaError(Kind.BAD_REQUEST, "changeEntry", f"{section}/{prop}", cause)
    elements = [*expectations(request.expect), check(entry.id, is_("entry", "GUID", request.guid))]
    elements += [put(entry.id, triple.section, triple.property, triple.value) for triple in request.put]
    elements += [drop(entry.id, section, prop) for section, prop in request.drop]
    if any((t.section, t.property) == ("timestamps", "modified") for t in request.put):
        elements += time_set(entry)
    return [*elements, put(entry.id, "timestamps", "changed", seconds(now))]


def time_set(entry: StoredObject) -> list[Element]:
    """Let the modification time of a collection stay as set until its names change again; others need nothing."""
    changed = entry.value("tally", "changed", "-")
    return [put(entry.id, "timestamps", "set", changed)] if type_of(entry) == TYPE_COLLECTION else []


def set_wanted(request: SetWanted, file: StoredObject, blobs: Iterable[StoredObject]) -> list[Element]:
    """Change the number of wanted replicas on a file and all its blobs. Raises: NOT_FOUND, NOT_A_FILE, BAD_REQUEST."""
    assert Guid(file.id) == request.guid, "the file that was asked for was read: it owns the blobs"
    if not visible(file):
        raise CheloniaError(Kind.NOT_FOUND, "setWanted", request.guid, "no such entry")
    if type_of(file) != TYPE_FILE:
        raise CheloniaError(Kind.NOT_A_FILE, "setWanted", request.guid, f"it is a {type_of(file)}")
    check_wanted(request.wanted)
    elements = expectations(request.expect)
    elements.append(put(file.id, "states", "neededReplicas", str(request.wanted), version(file.version)))
    for blob in blobs:
        elements += want_copies(blob, request.guid, A_FILE, request.wanted)
    return elements


def check_wanted(wanted: int) -> None:
    """Refuse a number of copies out of bounds. Raises: BAD_REQUEST."""
    if not 0 <= wanted <= bounds.REPLICAS_WANTED_MAX:
        cause = f"wanted replicas: 0 to {bounds.REPLICAS_WANTED_MAX}, not {wanted}"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(wanted), cause=cause)


def check_modifiable(section: str, prop: str) -> None:
    """Refuse to modify what is not a caller's to change. Raises: BAD_REQUEST."""
    if section not in MODIFIABLE_SECTIONS or not prop:
        cause = f"only {', '.join(sorted(MODIFIABLE_SECTIONS))} can be modified, one property at a time"
        raise CheloniaError(Kind.BAD_REQUEST, "modifyMetadata", f"{section}/{prop}", cause)
    if section == "states" and prop in MEASURED_STATES:
        cause = "size and checksum are measured; they change only with the bytes"
        raise CheloniaError(Kind.BAD_REQUEST, "modifyMetadata", f"{section}/{prop}", cause)
