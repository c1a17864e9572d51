"""Safe repairs of broken invariants: a finding becomes the elements of one conditional transact, or nothing.

Pure. Every element rests on conditions that state the finding, so that a repair of what has changed applies nothing. No
repair takes a location from a blob or writes an order to erase. An entry without a name, and bytes without a file, get
a name in `/lost+found`, which belongs to the root's owner alone. A repair that would lose something, or needs a choice,
is left to a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chelonia.core.cluster.replicas import Checksums, Location, ReplicaState, parse_location
from chelonia.core.contents.parts import parse_mark, parse_upload
from chelonia.core.contents.summaries import SECTION
from chelonia.core.ids import (
    BLOB_PREFIX,
    CONTENT_PREFIX,
    PENDING_OBJECT,
    ROOT,
    SHEPHERD_PREFIX,
    TRASH_OBJECT,
    TREE_OBJECT,
    BlobId,
    ContentId,
    Guid,
    Ms,
    ObjectId,
    ReferenceId,
    ServiceId,
    blob_id,
    blob_object,
    content_id,
    content_object,
    shepherd_object,
)
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_PENDING, TYPE_TRASHED, StoredObject
from chelonia.core.names import entry_name
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.core.ports.librarian import Finding
from chelonia.librarian.metadata.blobs import (
    A_CONTENT,
    A_FILE,
    CHECKSUM_TYPES,
    FIRST_ORDINAL,
    OWNERS,
    Owner,
    known_checksum_type,
    owners_of,
    still_owner,
)
from chelonia.librarian.metadata.contents import COPYING, FOUND_PARTS, OPEN, SEALED
from chelonia.librarian.metadata.elements import (
    add,
    as_read,
    check,
    drop,
    empty,
    erase,
    is_,
    isnot,
    isset,
    put,
    put_all,
    seconds,
    unset,
    version,
)
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.summaries import missed
from chelonia.librarian.namespace.tree import expired, key_for, sweep_reservations
from chelonia.librarian.recovery import invariants
from chelonia.librarian.recovery.invariants import RuleContext

LOST_FOUND: Final = Guid("6c6f7374-2b66-4f75-8e64-000000000000")
"""The collection for entries and blobs without a name. Its GUID is fixed, so that nobody can make it beforehand."""
LOST_FOUND_NAME: Final = "lost+found"


@dataclass(frozen=True, slots=True)
class Mend:
    """A repair: the transact, and its effect in a few words."""

    elements: tuple[Element, ...]
    text: str

    def __post_init__(self) -> None:
        assert any(element.conditions for element in self.elements), "a repair rests on the finding"
        assert not any(map(_loses, self.elements)), "a repair loses no replica"


@dataclass(frozen=True, slots=True)
class Bench:
    """The records that a repair may read, and its time."""

    look: RuleContext
    now: Ms

    def entry(self, object_id: ObjectId) -> Mapping[str, str]:
        """Return the `entry` section of an object."""
        return self.look.section(object_id, "entry")

    def leads(self, parent: str, name: str, child: ObjectId) -> bool:
        """Return whether a name leads to an entry."""
        key = key_for(name, self.entry(child).get("type", ""))
        return self.look.value(ObjectId(parent), "entries", key) == child

    def sound_name(self, child: ObjectId) -> tuple[str, str] | None:
        """Return a (parent, name) of an entry that both sides agree on."""
        pairs = (key.partition("/") for key in sorted(self.look.section(child, "parents")))
        return next(((parent, name) for parent, _, name in pairs if self.leads(parent, name, child)), None)


def _loses(element: Element) -> bool:
    """Whether an element takes a location from a blob, orders an erasure, or erases a blob that has locations."""
    if element.change is ChangeType.DELETE and element.object.startswith(BLOB_PREFIX):
        return empty("locations") not in element.conditions
    wrong = ("locations", ChangeType.UNSET), ("erase", ChangeType.SET)
    return (element.section, element.change) in wrong


def mend(finding: Finding, look: RuleContext, now: Ms) -> Mend | None:
    """Return the safe repair of a finding as things stand, None when there is none."""
    repair = _MENDS.get(finding.rule)
    return repair(finding, Bench(look, now)) if repair else None


# --- names ----------------------------------------------------------------------------------------------------------


def _name_dangling(finding: Finding, bench: Bench) -> Mend | None:
    key = finding.subject
    guid = bench.look.value(finding.object, "entries", key)
    kind = bench.entry(ObjectId(guid)).get("type", "")
    if not guid or kind not in ("", TYPE_PENDING, TYPE_TRASHED):
        return None
    still = check(ObjectId(guid), as_read("entry", "type", kind))
    dropped = drop(finding.object, "entries", key, is_("entries", key, guid))
    return Mend((dropped, still), f"the name {entry_name(key)!r} was dropped")


def _name_form(finding: Finding, bench: Bench) -> Mend | None:
    key, name = finding.subject, entry_name(finding.subject)
    guid = bench.look.value(finding.object, "entries", key)
    kind = bench.entry(ObjectId(guid)).get("type", "")
    right = key_for(name, kind)
    if not kind or right == key or bench.look.value(finding.object, "entries", right):
        return None
    elements = (
        drop(finding.object, "entries", key, is_("entries", key, guid)),
        put(finding.object, "entries", right, guid, unset("entries", right)),
        check(ObjectId(guid), is_("entry", "type", kind)),
    )
    return Mend(elements, f"{name!r} is stored as a {kind}")


def _name_twice(finding: Finding, bench: Bench) -> Mend | None:
    """Give the file another name in the same place: it makes way for the collection."""
    name = finding.subject
    guid = ObjectId(bench.look.value(finding.object, "entries", name))
    fresh, old = f"{name}.{guid[:8]}", f"{finding.object}/{name}"
    link = bench.look.section(guid, "parents").get(old)
    if name.endswith("/") or not link or bench.entry(guid).get("type") in (TYPE_COLLECTION, TYPE_PENDING, None):
        return None
    elements = (
        drop(finding.object, "entries", name, is_("entries", name, guid), isset("entries", name + "/")),
        put(finding.object, "entries", fresh, guid, unset("entries", fresh), unset("entries", fresh + "/")),
        drop(guid, "parents", old, isset("parents", old)),
        put(guid, "parents", f"{finding.object}/{fresh}", "parent"),
    )
    return Mend(elements, f"the file is called {fresh!r} now")


def _name_unknown(finding: Finding, bench: Bench) -> Mend | None:
    key, name = finding.subject, entry_name(finding.subject)
    child = ObjectId(bench.look.value(finding.object, "entries", key))
    kind = bench.entry(child).get("type", "")
    if kind != TYPE_COLLECTION:
        parent = put(child, "parents", f"{finding.object}/{name}", "parent", is_("entry", "type", kind))
        return Mend((parent, check(finding.object, is_("entries", key, child))), f"it knows its name {name!r} now")
    dropped = drop(finding.object, "entries", key, is_("entries", key, child))
    if Guid(child) == ROOT:
        return Mend((dropped,), f"the name {name!r} was dropped: it led to the root")
    sound = bench.sound_name(child)
    if sound is not None:
        still = check(ObjectId(sound[0]), is_("entries", key_for(sound[1], kind), child))
        return Mend((dropped, still), f"the name {name!r} was dropped: the collection has another")
    if Guid(child) in invariants.above(bench.look, Guid(finding.object)):
        return None
    parent = put(child, "parents", f"{finding.object}/{name}", "parent", is_("entry", "type", kind))
    still = check(finding.object, is_("entries", key, child))
    return Mend((parent, still, _epoch(bench)), f"it knows its name {name!r} now")


def _parent_dangling(finding: Finding, bench: Bench) -> Mend | None:
    entry, (parent, _, name) = finding.object, finding.subject.partition("/")
    kind = bench.entry(entry).get("type", "")
    named = isset("parents", finding.subject)
    if Guid(entry) == ROOT:
        return Mend((drop(entry, "parents", finding.subject, named),), "dropped: the root has no name")
    sound = bench.sound_name(entry)
    if sound is not None:
        still = check(ObjectId(sound[0]), is_("entries", key_for(sound[1], kind), entry))
        return Mend((drop(entry, "parents", finding.subject, named), still), "it has another name; this one is gone")
    holder, key = ObjectId(parent), key_for(name, kind)
    taken = bench.look.value(holder, "entries", name) or bench.look.value(holder, "entries", name + "/")
    if not kind:
        return None
    if bench.entry(holder).get("type") == TYPE_COLLECTION and not taken and kind != TYPE_COLLECTION:
        free = (unset("entries", name), unset("entries", name + "/"), is_("entry", "type", TYPE_COLLECTION))
        return Mend((put(holder, "entries", key, entry, *free), check(entry, named)), f"the name {name!r} leads to it")
    elements = (drop(entry, "parents", finding.subject, named), *_shelter(bench, entry, kind))
    return Mend(elements, f"moved to /{LOST_FOUND_NAME}")


def _orphan(finding: Finding, bench: Bench) -> Mend | None:
    kind = bench.entry(finding.object).get("type", "")
    if kind in ("", TYPE_PENDING):
        return None
    return Mend(tuple(_shelter(bench, finding.object, kind)), f"moved to /{LOST_FOUND_NAME}")


def _typeless(finding: Finding, bench: Bench) -> Mend | None:
    """Make a collection anew, for the root's owner, whose names exist without it: a snapshot has lost it."""
    obj, sections = finding.object, ("entry", "blobs", "content", "states", "put", "mountpoint")
    if Guid(obj) == ROOT or any(bench.look.section(obj, section) for section in sections):
        return None
    made = _made_in_shelter(bench, obj, _new(bench, obj, TYPE_COLLECTION, {"closed": "no"}))
    return Mend((check(obj, unset("entry", "type")), *made), f"made a collection again in /{LOST_FOUND_NAME}")


def _unreachable(finding: Finding, bench: Bench) -> Mend | None:
    """Take a collection that is above itself out of the circle; one below another lost one waits for that."""
    entry = finding.object
    if Guid(entry) not in invariants.above(bench.look, Guid(entry)):
        return None
    elements: list[Element] = []
    for pair in sorted(bench.look.section(entry, "parents")):
        parent, _, name = pair.partition("/")
        elements.append(drop(entry, "parents", pair))
        if bench.leads(parent, name, entry):
            elements.append(drop(ObjectId(parent), "entries", name + "/", is_("entries", name + "/", entry)))
    elements += [*_shelter(bench, entry, TYPE_COLLECTION), _epoch(bench)]
    return Mend(tuple(elements), f"taken out of its circle, moved to /{LOST_FOUND_NAME}")


def _summary_wrong(finding: Finding, bench: Bench) -> Mend | None:
    """Drop the summary: listings read the file, until the repair leader or the next change writes a new one."""
    summary = bench.look.value(finding.object, SECTION, finding.subject)
    dropped = drop(finding.object, SECTION, finding.subject, is_(SECTION, finding.subject, summary))
    return Mend((dropped, missed()), "listings read the file itself again") if summary else None


def _reservation_dangling(finding: Finding, bench: Bench) -> Mend | None:
    value = bench.look.value(finding.object, "pending", finding.subject)
    dropped = drop(finding.object, "pending", finding.subject, is_("pending", finding.subject, value))
    holder = ObjectId(value.partition(" ")[0])
    still = (check(holder, isnot("entry", "type", TYPE_PENDING)),) if holder else ()
    return Mend((dropped, *still), "the reservation was dropped")


def _unreserved(finding: Finding, bench: Bench) -> Mend | None:
    facts = bench.look.section(finding.object, "put")
    parent, name = ObjectId(facts.get("parent", "")), facts.get("name", "")
    elements = [erase(finding.object, is_("entry", "type", TYPE_PENDING))]
    if parent and name:
        elements.append(check(parent, as_read("pending", name, bench.look.value(parent, "pending", name))))
    return Mend(tuple(elements), "the upload, which could not be completed, was given up")


def _due_missing(finding: Finding, bench: Bench) -> Mend | None:
    """Put an expiring thing where the sweep will find it."""
    kind, entry = bench.entry(finding.object).get("type", ""), finding.object
    if entry.startswith(CONTENT_PREFIX):
        due = bench.look.section(entry, "content").get("due_ms", "0")
        same = check(entry, is_("content", "due_ms", due))
        return Mend((put(PENDING_OBJECT, "due", trash.due_key(int(due), entry), "-"), same), "its time is known again")
    still = check(entry, is_("entry", "type", kind))
    if kind == TYPE_TRASHED:
        until = bench.look.section(entry, "trashed").get("until_ms", "0")
        indexed = put(TRASH_OBJECT, "due", trash.due_key(int(until), entry), "-")
        return Mend((indexed, still), "its time is known again")
    facts = bench.look.section(entry, "put")
    parent, name = ObjectId(facts.get("parent", "")), facts.get("name", "")
    reservation = bench.look.value(parent, "pending", name)
    return Mend((trash.expect_upload(reservation, parent, name), still), "its time is known again")


def _due_dangling(finding: Finding, bench: Bench) -> Mend | None:
    key = finding.subject
    former = "/" in key
    guid = ObjectId(trash.parse_former(key)[2] if former else trash.parse_due(key)[1])
    still = check(guid, as_read("entry", "type", bench.entry(guid).get("type", "")))
    if guid.startswith(CONTENT_PREFIX):
        still = check(guid, as_read("content", "due_ms", bench.look.section(guid, "content").get("due_ms", "")))
    return Mend((drop(finding.object, "formerly" if former else "due", key), still), "struck off")


def _expired(finding: Finding, bench: Bench) -> Mend | None:
    if finding.object in (TRASH_OBJECT, PENDING_OBJECT):
        return None
    value = bench.look.value(finding.object, "pending", finding.subject)
    if not expired(value, bench.now):
        return None  # the name was reserved anew
    swept = sweep_reservations(finding.object, ((finding.subject, value),), bench.now)
    return Mend(tuple(swept), "the reservation was dropped")


def _shelter(bench: Bench, entry: ObjectId, kind: str) -> list[Element]:
    """Give an entry a name in `/lost+found`: its GUID."""
    assert kind, "an entry without a type is no entry yet"
    assert Guid(entry) != ROOT, "all lies below the root, and it below nothing"
    holder, name = _place(bench, entry)
    parent = put(entry, "parents", f"{holder}/{name}", "parent", is_("entry", "type", kind))
    return [*_named(bench, entry, kind, holder, name), parent]


def _place(bench: Bench, entry: ObjectId, name: str = "") -> tuple[ObjectId, str]:
    """The place and name of an entry that has lost its own: in `/lost+found`, and of this itself in the root."""
    if Guid(entry) == LOST_FOUND:
        return ObjectId(ROOT), _free_name(bench)
    return ObjectId(LOST_FOUND), name or entry


def _named(bench: Bench, entry: ObjectId, kind: str, holder: ObjectId, name: str) -> list[Element]:
    """Give an entry a name alone, at its `_place`."""
    assert holder != entry, "nothing lies in itself"
    free = unset("entries", name), unset("entries", name + "/")
    named = put(holder, "entries", key_for(name, kind), entry, *free)
    return [*(_lost_found(bench) if Guid(holder) == LOST_FOUND else ()), named]


def _made_in_shelter(
    bench: Bench, entry: ObjectId, sections: dict[str, dict[str, str]], name: str = ""
) -> list[Element]:
    """Make an entry of these sections, at its `_place`."""
    assert "parents" not in sections, "it has this name alone"
    holder, name = _place(bench, entry, name)
    named = _named(bench, entry, sections["entry"]["type"], holder, name)
    return [*named, *put_all(entry, sections), put(entry, "parents", f"{holder}/{name}", "parent")]


def _new(bench: Bench, entry: ObjectId, kind: str, states: dict[str, str]) -> dict[str, dict[str, str]]:
    """Sections of every entry made here: it belongs to the root's owner."""
    assert kind in (TYPE_FILE, TYPE_COLLECTION), "nothing else is put together from what is left"
    now = seconds(bench.now)
    return {
        "entry": {"type": kind, "GUID": entry, "owner": bench.entry(ObjectId(ROOT)).get("owner", "")},
        "timestamps": {"created": now, "modified": now},
        "states": states,
    }


def _lost_found(bench: Bench) -> list[Element]:
    """Make `/lost+found` unless it exists, anew where it is in the trash."""
    shelter, root = ObjectId(LOST_FOUND), ObjectId(ROOT)
    kind = bench.entry(shelter).get("type")
    if kind == TYPE_COLLECTION:
        return [check(shelter, is_("entry", "type", TYPE_COLLECTION))]
    name = _free_name(bench)
    sections = _new(bench, shelter, TYPE_COLLECTION, {"closed": "no"})
    sections["parents"] = {f"{ROOT}/{name}": "parent"}
    free = (unset("entries", name), unset("entries", name + "/"))
    named = put(root, "entries", name + "/", LOST_FOUND, *free)
    absent = [check(shelter, version(0))]
    if kind == TYPE_TRASHED:
        removed = {section: bench.look.section(shelter, section) for section in ("entry", "parents", "trashed")}
        gone = erase(shelter, is_("entry", "type", TYPE_TRASHED))
        absent = [gone, *trash.forget(StoredObject(shelter, 1, removed))]
    return [*absent, *put_all(shelter, sections), named]


def _free_name(bench: Bench) -> str:
    """A name for `/lost+found` in the root that nobody has."""
    root, names = ObjectId(ROOT), (LOST_FOUND_NAME, f"{LOST_FOUND_NAME}.1")
    taken = (bench.look.value(root, "entries", n) or bench.look.value(root, "entries", n + "/") for n in names)
    free_names = (name for name, holder in zip(names, taken, strict=True) if not holder)
    return next(free_names, f"{LOST_FOUND_NAME}.{bench.now}")  # a name that nobody can have taken beforehand


def _epoch(bench: Bench) -> Element:
    """Raise the tree epoch: no move that was decided before may be applied after."""
    epoch = bench.look.section(TREE_OBJECT, "epoch").get("tree", "")
    return add(TREE_OBJECT, "epoch", "tree", 1, as_read("epoch", "tree", epoch))


# --- bytes ----------------------------------------------------------------------------------------------------------


def _wanted_differs(finding: Finding, bench: Bench) -> Mend | None:
    """Take the larger number: surplus copies are given up later, but too few copies lose bytes at once."""
    blob, file = blob_object(BlobId(finding.subject)), finding.object
    owned = still_owner(invariants.owned(bench.look, BlobId(finding.subject)), *_owner(file))
    if file.startswith(CONTENT_PREFIX):
        header = bench.look.section(file, "content")
        if header.get("state") in (OPEN, COPYING):
            wants = is_("content", "wanted", header.get("wanted", ""))
            corrected = put(blob, "blob", "wanted", header.get("wanted", ""), *owned)
            return Mend((corrected, check(file, wants)), "its upload says how many replicas are wanted")
        file = ObjectId(bench.look.section(file, "content").get("file", ""))
    of_file = bench.look.section(file, "states").get("neededReplicas", "")
    of_blob = bench.look.section(blob, "blob").get("wanted", "")
    numbers = [int(number) for number in (of_file, of_blob) if number.isdecimal()]
    if not numbers:
        return None
    wanted = str(max(numbers))
    elements = (
        put(file, "states", "neededReplicas", wanted, as_read("states", "neededReplicas", of_file)),
        put(blob, "blob", "wanted", wanted, as_read("blob", "wanted", of_blob), *owned),
    )
    return Mend(elements, f"{wanted} replicas are wanted")


def _blob_unowned(finding: Finding, bench: Bench) -> Mend | None:
    """Give the bytes to a file in `/lost+found`; drop a blob without any."""
    blob = finding.object
    facts, locations = bench.look.section(blob, "blob"), bench.look.section(blob, "locations")
    owned, shared = as_read("blob", "file", facts.get("file", "")), bench.look.section(blob, OWNERS)
    if not locations:
        return Mend((erase(blob, owned, empty("locations")),), "it has no bytes: forgotten")
    if shared:
        # None of these names it; so it is as good as a file's of its own.
        dropped = [drop(blob, OWNERS, owner, is_(OWNERS, owner, kind)) for owner, kind in shared.items()]
        still = [_names_not(bench, owner, kind, blob_id(blob)) for owner, kind in shared.items()]
        return Mend((*dropped, *still), "none of its owners' any more")
    guid = ObjectId(blob.removeprefix(BLOB_PREFIX))
    if content := facts.get("content", ""):
        # Its content, if there is one, does not name it; so it is as good as a file of its own.
        cleared = drop(blob, "blob", "content", is_("blob", "content", content))
        return Mend((cleared, check(content_object(ContentId(content)), unset("named", guid))), "no content's any more")
    if bench.entry(guid):
        return None  # if it names the blob, that is found of it, and mended
    checksums = Checksums(*(facts.get(kind, "") for kind in CHECKSUM_TYPES))
    kind = known_checksum_type(checksums)
    states = {
        "size": facts.get("size", ""),
        "checksum": facts.get(kind, ""),
        "checksumType": kind,
        "neededReplicas": facts.get("wanted", "1"),
    }
    sections = _new(bench, guid, TYPE_FILE, states)
    sections["blobs"] = {FIRST_ORDINAL: guid}
    sections["metadata"] = {"was": facts.get("name", "") or "-", "wasOwnedBy": facts.get("owner", "") or "-"}
    return _found_file(bench, guid, sections, put(blob, "blob", "file", guid, owned))


def _found_file(
    bench: Bench, guid: ObjectId, sections: dict[str, dict[str, str]], *takes: Element, name: str = ""
) -> Mend:
    """A new file in `/lost+found` that takes bytes, named by its GUID unless `name` is given."""
    assert takes, "a file is made for the bytes that it takes"
    assert "blobs" in sections or "content" in sections, "it names these bytes"
    elements = (check(guid, version(0)), *_made_in_shelter(bench, guid, sections, name), *takes)
    return Mend(elements, f"a file in /{LOST_FOUND_NAME} has the bytes")


def _owners_wrong(finding: Finding, bench: Bench) -> Mend | None:
    """Make whatever names a blob an owner; remove owners that do not name it, as long as others do."""
    if not finding.object.startswith(BLOB_PREFIX):
        return _owner_missing(finding, bench)
    blob, owner = blob_id(finding.object), finding.subject
    owners = bench.look.section(finding.object, OWNERS)
    kind, others = owners.get(owner, ""), [other for other in owners if other != owner]
    if not kind or not any(invariants.names_it(bench.look, each, owners[each], blob) for each in others):
        return None
    dropped = drop(finding.object, OWNERS, owner, *(isset(OWNERS, other) for other in others))
    return Mend((dropped, _names_not(bench, owner, kind, blob)), f"{owner} is not among its owners any more")


def _owner_missing(finding: Finding, bench: Bench) -> Mend | None:
    """Add what names a blob to its owners."""
    obj, blob = blob_object(BlobId(finding.subject)), BlobId(finding.subject)
    owner, kind = _owner(finding.object)
    found = invariants.owned(bench.look, blob)
    if "blob" not in found.sections or not invariants.names_it(bench.look, owner, kind, blob):
        return None
    facts = [as_read("blob", name, found.value("blob", name)) for name in ("file", "content")]
    elements = [put(obj, OWNERS, owner, kind, isset("blob", "file"), *facts)]
    if not found.sections.get(OWNERS):
        elements[0] = put(obj, OWNERS, owner, kind, empty(OWNERS), *facts)
        before = owners_of(found).items()
        elements += [put(obj, OWNERS, o, of) for o, of in before if invariants.names_it(bench.look, o, of, blob)]
    if kind == A_CONTENT:
        still = check(finding.object, isset("named", blob))
    else:
        ordinals = bench.look.section(finding.object, "blobs")
        still = check(finding.object, *(is_("blobs", key, blob) for key, held in ordinals.items() if held == blob))
    return Mend((*elements, still), "it is among its owners now")


def _owner(obj: ObjectId) -> tuple[Owner, str]:
    """An owner of blobs by its object, and its kind."""
    return (content_id(obj), A_CONTENT) if obj.startswith(CONTENT_PREFIX) else (Guid(obj), A_FILE)


def _names_not(bench: Bench, owner: str, kind: str, blob: BlobId) -> Element:
    """The condition that an owner still does not name a blob."""
    if kind == A_CONTENT:
        return check(content_object(ContentId(owner)), unset("named", blob))
    ordinals = dict.fromkeys((FIRST_ORDINAL, *bench.look.section(ObjectId(owner), "blobs")))
    return check(ObjectId(owner), *(isnot("blobs", key, blob) for key in ordinals))


def _content_unowned(finding: Finding, bench: Bench) -> Mend | None:
    """Give a content that has lost its file to a file in `/lost+found`; its GUID is the content's id."""
    content, guid = finding.object, ObjectId(finding.object.removeprefix(CONTENT_PREFIX))
    header = bench.look.section(content, "content")
    if bench.entry(guid) or not header.get("splices"):
        return None
    wanted, parts = header.get("wanted", "1"), header.get(FOUND_PARTS, "")
    sections = _new(bench, guid, TYPE_FILE, {"size": header.get("size", ""), "neededReplicas": wanted})
    sections["content"] = {"id": guid, "splices": header["splices"]}
    if parts:
        sections["metadata"] = {"was": f"parts {parts} of {header['ln']}", "wasOwnedBy": header["owner"]}
    owned = is_("content", "file", header.get("file", "")), is_("content", "splices", header["splices"])
    takes = put(content, "content", "file", guid, *owned, is_("content", "state", SEALED))
    dropped = [drop(content, "content", fact) for fact in ("ln", "owner", "wanted", FOUND_PARTS) if fact in header]
    return _found_file(bench, guid, sections, takes, *dropped, name=f"{guid}.parts-{parts}" if parts else "")


def _upload_unlisted(finding: Finding, bench: Bench) -> Mend | None:
    """List the upload in its collection again, if that exists."""
    within, header = ObjectId(finding.subject), bench.look.section(finding.object, "content")
    if bench.entry(within).get("type") != TYPE_COLLECTION:
        return None
    still = check(finding.object, is_("content", "state", OPEN), is_("content", "listed", header.get("listed", "")))
    exists = is_("entry", "type", TYPE_COLLECTION)
    listed = put(within, "uploads", header.get("listed", ""), header.get("opened_ms", "-"), exists)
    return Mend((listed, still), "it is listed again")


def _upload_dangling(finding: Finding, bench: Bench) -> Mend | None:
    """Drop a line of a listing that leads to no open upload."""
    content = content_object(parse_upload(parse_mark(finding.subject)[1])[1])
    header = bench.look.section(content, "content")
    still = check(content, *(as_read("content", fact, header.get(fact, "")) for fact in ("state", "within", "listed")))
    return Mend((drop(finding.object, "uploads", finding.subject), still), "it is not listed any more")


def _content_differs(finding: Finding, bench: Bench) -> Mend | None:
    """Take the content's size, which changes with its extents."""
    file, content = finding.object, content_object(ContentId(finding.subject))
    header = bench.look.section(content, "content")
    size, splices = header.get("size", ""), header.get("splices", "")
    if not size or not splices:
        return None
    still = check(content, is_("content", "size", size), is_("content", "splices", splices))
    elements = (
        put(file, "states", "size", size, is_("content", "id", finding.subject)),
        put(file, "content", "splices", splices),
        still,
    )
    return Mend(elements, f"it has {size} bytes, as its content says")


def _location_unrecorded(finding: Finding, bench: Bench) -> Mend | None:
    location = parse_location(finding.subject)
    obj, blob = shepherd_object(location.shepherd), BlobId(finding.object.removeprefix(BLOB_PREFIX))
    if bench.look.value(obj, "file", location.reference):
        return None
    record = put(obj, "file", location.reference, blob, unset("file", location.reference))
    return Mend((record, check(finding.object, isset("locations", finding.subject))), "recorded with its Shepherd")


def _claim_missing(finding: Finding, bench: Bench) -> Mend | None:
    state = bench.look.section(finding.object, "locations").get(finding.subject, "")
    claim = "0" if state == ReplicaState.CREATING.value else str(bench.now)
    conditions = (unset("claims", finding.subject), is_("locations", finding.subject, state))
    return Mend((put(finding.object, "claims", finding.subject, claim, *conditions),), "repair decides about it anew")


def _claim_stray(finding: Finding, bench: Bench) -> Mend | None:
    state = bench.look.section(finding.object, "locations").get(finding.subject, "")
    condition = as_read("locations", finding.subject, state)
    return Mend((drop(finding.object, "claims", finding.subject, condition),), "the claim was dropped")


def _record_orphan(finding: Finding, bench: Bench) -> Mend | None:
    """List the replica of an existing blob again, to be proven; else drop the record: the Shepherd quarantines it."""
    shepherd, reference = ServiceId(finding.object.removeprefix(SHEPHERD_PREFIX)), ReferenceId(finding.subject)
    blob = BlobId(bench.look.value(finding.object, "file", reference))
    location, recorded = Location(shepherd, reference), is_("file", reference, blob)
    if bench.look.section(blob_object(blob), "blob"):
        fresh = (unset("locations", str(location)), isset("blob", "file"))
        stalled = put(blob_object(blob), "locations", str(location), ReplicaState.STALLED.value, *fresh)
        return Mend((stalled, check(finding.object, recorded)), "listed again, to be proven by its Shepherd")
    absent = check(blob_object(blob), unset("blob", "file"))
    return Mend((drop(finding.object, "file", reference, recorded), absent), "its Shepherd sets the bytes aside")


def _order_doubtful(finding: Finding, bench: Bench) -> Mend | None:
    value = bench.look.value(finding.object, "erase", finding.subject)
    return Mend((drop(finding.object, "erase", finding.subject, is_("erase", finding.subject, value)),), "not erased")


_MENDS: Final[Mapping[str, Callable[[Finding, Bench], Mend | None]]] = {
    invariants.NAME_DANGLING: _name_dangling,
    invariants.NAME_FORM: _name_form,
    invariants.NAME_TWICE: _name_twice,
    invariants.SUMMARY_WRONG: _summary_wrong,
    invariants.NAME_UNKNOWN: _name_unknown,
    invariants.PARENT_DANGLING: _parent_dangling,
    invariants.ORPHAN: _orphan,
    invariants.UNREACHABLE: _unreachable,
    invariants.TYPELESS: _typeless,
    invariants.RESERVATION_DANGLING: _reservation_dangling,
    invariants.UNRESERVED: _unreserved,
    invariants.EXPIRED: _expired,
    invariants.DUE_MISSING: _due_missing,
    invariants.DUE_DANGLING: _due_dangling,
    invariants.WANTED_DIFFERS: _wanted_differs,
    invariants.BLOB_UNOWNED: _blob_unowned,
    invariants.OWNERS_WRONG: _owners_wrong,
    invariants.CONTENT_UNOWNED: _content_unowned,
    invariants.CONTENT_DIFFERS: _content_differs,
    invariants.UPLOAD_UNLISTED: _upload_unlisted,
    invariants.UPLOAD_DANGLING: _upload_dangling,
    invariants.LOCATION_UNRECORDED: _location_unrecorded,
    invariants.CLAIM_MISSING: _claim_missing,
    invariants.CLAIM_STRAY: _claim_stray,
    invariants.RECORD_ORPHAN: _record_orphan,
    invariants.ERASE_LISTED: _order_doubtful,
    invariants.ERASE_OTHER: _order_doubtful,
}
"""Rules with a safe repair."""
UNMENDED: Final = frozenset(
    {
        invariants.BLOB_MISSING, invariants.BLOB_LOST, invariants.CONTENT_MISSING, invariants.EXTENT_WRONG,
        invariants.PART_WRONG, invariants.NAMED_WRONG, invariants.MALFORMED, invariants.STRANGE,
        invariants.COPIES, invariants.ERASURES, invariants.BLOB_UNREACHABLE,
    }
)  # fmt: skip
"""Rules without one: a person has to decide, or healing does the work."""
assert UNMENDED.isdisjoint(_MENDS), "what has a repair is mended"
assert UNMENDED | _MENDS.keys() == invariants.SEVERITY.keys(), "of every rule it is said whether it can be mended"
