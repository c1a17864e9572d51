"""The invariants of the metadata, stated once: what must hold after every transact, and what holds when all is quiet.

Pure: from stored objects to findings. Each rule looks at one object, or at one page of a wide section, and reads what
it must agree with through a `RuleContext`. So the same rules serve a snapshot in memory (simulator, tests) and a live
cluster read page by page (`fsck`). `mends` repairs findings.
Layout of every object: `docs/formats/metadata.md`; every rule explained: `docs/operate/fsck.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from chelonia.core.bounds import LN_DEPTH_MAX
from chelonia.core.cluster.replicas import Location, Readable, ReplicaState, readable
from chelonia.core.contents.parts import parse_mark, parse_upload
from chelonia.core.contents.summaries import SECTIONS, summary_of
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import (
    BLOB_PREFIX,
    CONTENT_PREFIX,
    PENDING_OBJECT,
    ROOT,
    TRASH_OBJECT,
    BlobId,
    ContentId,
    Guid,
    Ms,
    ObjectId,
    ReferenceId,
    ServiceId,
    blob_object,
    content_id,
    content_object,
    is_guid,
    shepherd_object,
)
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_PENDING, TYPE_TRASHED, StoredObject
from chelonia.core.names import entry_name
from chelonia.core.ports.librarian import Finding, Severity
from chelonia.librarian.metadata.blobs import A_CONTENT, OWNERS, Owner, blob_of, facts_of, locations_of, owners_of
from chelonia.librarian.metadata.contents import DISCARDED, OPEN, SEALED, content_of, parse_extent
from chelonia.librarian.metadata.elements import outbox_reference
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.tree import blobs_of, expired, key_for, names_of, type_of

_S, _D = Severity, Severity.DISAGREEMENT

NAME_DANGLING: Final = "name-dangling"
NAME_UNKNOWN: Final = "name-unknown"
NAME_FORM: Final = "name-form"
NAME_TWICE: Final = "name-twice"
SUMMARY_WRONG: Final = "summary-wrong"
PARENT_DANGLING: Final = "parent-dangling"
ORPHAN: Final = "orphan"
UNREACHABLE: Final = "unreachable"
TYPELESS: Final = "typeless"
RESERVATION_DANGLING: Final = "reservation-dangling"
UNRESERVED: Final = "unreserved"
DUE_MISSING: Final = "due-missing"
DUE_DANGLING: Final = "due-dangling"
BLOB_MISSING: Final = "blob-missing"
BLOB_UNOWNED: Final = "blob-unowned"
OWNERS_WRONG: Final = "owners-wrong"
BLOB_LOST: Final = "blob-lost"
BLOB_UNREACHABLE: Final = "blob-unreachable"
WANTED_DIFFERS: Final = "wanted-differs"
LOCATION_UNRECORDED: Final = "location-unrecorded"
CLAIM_MISSING: Final = "claim-missing"
CLAIM_STRAY: Final = "claim-stray"
RECORD_ORPHAN: Final = "record-orphan"
ERASE_LISTED: Final = "erase-listed"
ERASE_OTHER: Final = "erase-other"
MALFORMED: Final = "malformed"
STRANGE: Final = "strange"
CONTENT_MISSING: Final = "content-missing"
CONTENT_UNOWNED: Final = "content-unowned"
CONTENT_DIFFERS: Final = "content-differs"
EXTENT_WRONG: Final = "extent-wrong"
NAMED_WRONG: Final = "named-wrong"
PART_WRONG: Final = "part-wrong"
UPLOAD_UNLISTED: Final = "upload-unlisted"
UPLOAD_DANGLING: Final = "upload-dangling"
COPIES: Final = "copies"
ERASURES: Final = "erasures"
EXPIRED: Final = "expired"

SEVERITY: Final[Mapping[str, Severity]] = {
    **dict.fromkeys((BLOB_MISSING, BLOB_LOST, CONTENT_MISSING, EXTENT_WRONG, PART_WRONG), _S.DAMAGE),
    **dict.fromkeys((COPIES, ERASURES, EXPIRED, BLOB_UNREACHABLE), _S.WORK),
    **dict.fromkeys((NAME_DANGLING, NAME_UNKNOWN, NAME_FORM, NAME_TWICE, PARENT_DANGLING, ORPHAN, UNREACHABLE), _D),
    **dict.fromkeys((TYPELESS, RESERVATION_DANGLING, UNRESERVED, BLOB_UNOWNED, WANTED_DIFFERS), _D),
    **dict.fromkeys((LOCATION_UNRECORDED, CLAIM_MISSING, CLAIM_STRAY, RECORD_ORPHAN, ERASE_LISTED, ERASE_OTHER), _D),
    **dict.fromkeys((DUE_MISSING, DUE_DANGLING, MALFORMED, STRANGE), _D),
    **dict.fromkeys((CONTENT_UNOWNED, CONTENT_DIFFERS, NAMED_WRONG, SUMMARY_WRONG), _D),
    **dict.fromkeys((UPLOAD_UNLISTED, UPLOAD_DANGLING, OWNERS_WRONG), _D),
}
"""Severity of a violation, by rule."""

CLAIMED: Final = (ReplicaState.CREATING, ReplicaState.THIRDWHEEL)
"""States that always have a claim; `invalid` may have one (its beginning), others have none."""
ABOVE_MAX: Final = 10_000
"""Collections above one collection that the search for the root reads, at most."""

Item = tuple[str, str]
"""A property and its value, as in a page of a wide section."""


class RuleContext(Protocol):
    """The records that a rule may read beside its object. Unset is ""."""

    def section(self, object_id: ObjectId, section: str) -> Mapping[str, str]:
        """Return a whole narrow section, empty when there is none."""

    def value(self, object_id: ObjectId, section: str, prop: str) -> str:
        """Return one property of a wide section."""


# --- the namespace --------------------------------------------------------------------------------------------------


def entry_rules(look: RuleContext, entry: StoredObject) -> Iterator[Finding]:
    """Check an entry's own sections (`entry parents blobs states put`)."""
    assert is_guid(entry.id), "`object_rules` chooses by the id"
    kind = type_of(entry)
    if kind in (TYPE_PENDING, TYPE_TRASHED):
        yield from (_pending_rules if kind == TYPE_PENDING else _trashed_rules)(look, entry)
        return
    if not kind:
        yield _finding(entry.id, TYPELESS, "", "no entry/type")
    names = names_of(entry)
    for parent, name in names:
        leads = look.value(ObjectId(parent), "entries", key_for(name, kind)) == entry.id
        if not leads or Guid(entry.id) == ROOT:  # a name of the root would be a way from below to all
            text = f"parents names {parent}/{name}, which {'may' if leads else 'does'} not lead here"
            yield _finding(entry.id, PARENT_DANGLING, f"{parent}/{name}", text)
    if Guid(entry.id) != ROOT and not names:
        yield _finding(entry.id, ORPHAN, "", "no name leads to it")
    elif kind == TYPE_COLLECTION and not reachable(look, Guid(entry.id)):
        yield _finding(entry.id, UNREACHABLE, "", "its names do not lead up to the root")
    if kind == TYPE_FILE:
        yield from _file_rules(look, entry)


def _pending_rules(look: RuleContext, entry: StoredObject) -> Iterator[Finding]:
    parent, name = entry.value("put", "parent"), entry.value("put", "name")
    reserved = look.value(ObjectId(parent), "pending", name) if parent and name else ""
    if reserved.partition(" ")[0] != entry.id:
        yield _finding(entry.id, UNRESERVED, "", f"an upload without its reservation {parent}/{name}")
    elif not look.value(PENDING_OBJECT, "due", trash.reserved_key(reserved)):
        yield _finding(entry.id, DUE_MISSING, "", "no index says when its reservation expires")


def _trashed_rules(look: RuleContext, entry: StoredObject) -> Iterator[Finding]:
    until = int(entry.value("trashed", "until_ms"))
    if not look.value(TRASH_OBJECT, "due", trash.due_key(until, entry.id)):
        yield _finding(entry.id, DUE_MISSING, "", "no index says when it leaves the trash")
    yield from _file_rules(look, entry)


def _file_rules(look: RuleContext, file: StoredObject) -> Iterator[Finding]:
    wanted = file.value("states", "neededReplicas")
    for blob in blobs_of(file):
        yield from _had(look, blob, file.id, Guid(file.id), wanted)
    yield from _content_named(look, file)


def _had(look: RuleContext, blob: BlobId, obj: ObjectId, owner: Owner, wanted: str) -> Iterator[Finding]:
    """Check a blob that a file or content names."""
    found = owned(look, blob)
    stored = found.value("blob", "wanted")
    more = OWNERS in found.sections and stored.isdecimal() and wanted.isdecimal() and int(stored) >= int(wanted)
    if "blob" not in found.sections:
        yield _finding(obj, BLOB_MISSING, blob, f"its blob {blob} does not exist")
        return
    if owner not in owners_of(found):
        yield _finding(obj, OWNERS_WRONG, blob, f"its blob {blob} is another's alone, and would go with that")
    if stored != wanted and not more:
        yield _finding(obj, WANTED_DIFFERS, blob, f"wants {wanted} replicas, its blob {blob} {stored or 'no number'}")


def owned(look: RuleContext, blob: BlobId) -> StoredObject:
    """Return a blob with its own facts and its owners."""
    obj = blob_object(blob)
    sections = {name: props for name in ("blob", OWNERS) if (props := look.section(obj, name))}
    return StoredObject(obj, 1, sections)


def names_it(look: RuleContext, owner: str, kind: str, blob: BlobId) -> bool:
    """Return whether an owner of a blob names it."""
    if kind == A_CONTENT:
        return bool(look.value(content_object(ContentId(owner)), "named", blob))
    return blob in look.section(ObjectId(owner), "blobs").values()


def _content_named(look: RuleContext, file: StoredObject) -> Iterator[Finding]:
    content = content_of(file)
    header = look.section(content_object(content), "content") if content else {}
    if content and (header.get("state"), header.get("file")) != (SEALED, file.id):
        text = f"its content {content} is {header.get('state') or 'not there'}, and of file {header.get('file') or '-'}"
        yield _finding(file.id, CONTENT_MISSING, content, text)
    elif content and (header.get("size"), header.get("splices")) != (
        file.value("states", "size"), file.value("content", "splices")
    ):  # fmt: skip
        yield _finding(file.id, CONTENT_DIFFERS, content, f"size and splices of its content {content} are others")


def reachable(look: RuleContext, guid: Guid) -> bool:
    """Return whether the names of a collection lead up to the root, by any way."""
    seen = {guid, *above(look, guid, upto=ROOT)}
    return ROOT in seen or len(seen) > ABOVE_MAX


def above(look: RuleContext, guid: Guid, upto: Guid | None = None) -> set[Guid]:
    """Return every collection above one, itself only when it is above itself; stop once `upto` is among them."""
    seen, level = set[Guid](), [guid]
    while level and upto not in seen and len(seen) <= ABOVE_MAX:
        parents = (Guid(key.partition("/")[0]) for each in level for key in look.section(ObjectId(each), "parents"))
        level = [parent for parent in dict.fromkeys(parents) if parent not in seen]
        seen.update(level)
    return seen


def name_rules(look: RuleContext, collection: ObjectId, names: Iterable[Item]) -> Iterator[Finding]:
    """Check a page of a collection's `entries`."""
    for key, guid in names:
        child, name = ObjectId(guid), entry_name(key)
        kind = look.section(child, "entry").get("type", "")
        if look.value(collection, "entries", name if key.endswith("/") else name + "/"):
            yield _finding(collection, NAME_TWICE, key, f"two entries are called {name!r}")
        if kind in ("", TYPE_PENDING, TYPE_TRASHED):
            yield _finding(collection, NAME_DANGLING, key, f"{name!r} leads to {guid}, which is no entry")
        elif key != key_for(name, kind):
            yield _finding(collection, NAME_FORM, key, f"{name!r} is stored as {key!r}, but is a {kind}")
        elif not look.section(child, "parents").get(f"{collection}/{name}"):
            yield _finding(collection, NAME_UNKNOWN, key, f"{name!r} leads to {guid}, which does not know it")


def summary_rules(look: RuleContext, collection: ObjectId, summaries: Iterable[Item]) -> Iterator[Finding]:
    """Check a page of a collection's `summaries`."""
    for name, summary in summaries:
        child = ObjectId(summary.partition(" ")[0])
        file = StoredObject(child, 1, {section: look.section(child, section) for section in sorted(SECTIONS)})
        if look.value(collection, "entries", name) != child:
            yield _finding(collection, SUMMARY_WRONG, name, f"what listings tell of {name!r} is of another entry")
        elif summary_of(file) != summary:
            yield _finding(collection, SUMMARY_WRONG, name, f"listings tell of {name!r} what it is not")


def reservation_rules(look: RuleContext, collection: ObjectId, reservations: Iterable[Item]) -> Iterator[Finding]:
    """Check a page of a collection's `pending`."""
    for name, value in reservations:
        holder = value.partition(" ")[0]
        if look.section(ObjectId(holder), "entry").get("type", "") != TYPE_PENDING:
            text = f"{name!r} is reserved by {holder}, which is no upload"
            yield _finding(collection, RESERVATION_DANGLING, name, text)


def reservation_work(collection: ObjectId, reservations: Iterable[Item], now: Ms) -> Iterator[Finding]:
    """Find reservations that have expired and still exist."""
    for name, value in reservations:
        if expired(value, now):
            yield _finding(collection, EXPIRED, name, f"the reservation of {name!r} has expired")


def index_rules(look: RuleContext, index: ObjectId, keys: Iterable[str]) -> Iterator[Finding]:
    """Check a page of an index of expiry (`due`, `formerly`)."""
    for key in keys:
        guid = ObjectId(trash.parse_former(key)[2] if "/" in key else trash.parse_due(key)[1])
        if guid.startswith(CONTENT_PREFIX):
            due = look.section(guid, "content").get("due_ms", "")
            matches = bool(due) and key == trash.due_key(int(due), guid)
        else:
            kind = look.section(guid, "entry").get("type")
            matches = kind == (TYPE_TRASHED if index == TRASH_OBJECT else TYPE_PENDING)
        if not matches:
            yield _finding(index, DUE_DANGLING, key, f"leads to {guid}, which is not kept here")


def index_work(index: ObjectId, keys: Iterable[str], now: Ms) -> Iterator[Finding]:
    """Find keys of an index that have expired."""
    for key in keys:
        if "/" not in key and trash.parse_due(key)[0] <= now:
            yield _finding(index, EXPIRED, key, f"the time of {trash.parse_due(key)[1]} is over")


# --- the bytes ------------------------------------------------------------------------------------------------------


def blob_rules(look: RuleContext, blob: StoredObject) -> Iterator[Finding]:
    """Check a blob's own sections (`blob locations claims`)."""
    assert blob.id.startswith(BLOB_PREFIX), "`object_rules` chooses by the id"
    owners = owners_of(blob)
    strange = [owner for owner in owners if not names_it(look, owner, owners[owner], blob_of(blob))]
    for owner in strange[:1] if len(strange) == len(owners) else strange:
        rule = BLOB_UNOWNED if len(strange) == len(owners) else OWNERS_WRONG
        yield _finding(blob.id, rule, owner, f"its {owners[owner]} {owner} does not name it")
    locations = locations_of(blob)
    if readable((state, True) for _, state in locations) is Readable.LOST:
        yield _finding(blob.id, BLOB_LOST, "", f"lost, no verified copy is left: {_copies_of(look, blob)}")
    claims = blob.sections.get("claims", {})
    for location, state in locations:
        yield from _location_rules(look, blob, location, state)
    for key in claims:
        if key not in blob.sections.get("locations", {}):
            yield _finding(blob.id, CLAIM_STRAY, key, f"a claim for {key}, which is no location")


def unreachable(look: RuleContext, blob: StoredObject, present: Callable[[ServiceId], bool]) -> Iterator[Finding]:
    """Find out that a blob cannot be read now, though it is not lost: every Shepherd with a verified copy is away."""
    assert blob.id.startswith(BLOB_PREFIX), "only blobs have copies"
    if readable((state, present(location.shepherd)) for location, state in locations_of(blob)) is Readable.AWAY:
        yield _finding(blob.id, BLOB_UNREACHABLE, "", f"its Shepherds are away now: {_copies_of(look, blob)}")


def _copies_of(look: RuleContext, blob: StoredObject) -> str:
    """The copies and the file of a blob, in words."""
    copies = ", ".join(f"{state.value} at {place.shepherd}" for place, state in locations_of(blob)) or "none at all"
    path, file = path_of_blob(look, blob_of(blob)), blob.value("blob", "file")
    return f"{copies}; file {path or file}, written as {blob.value('blob', 'name')}"


def path_of_blob(look: RuleContext, blob: BlobId) -> str:
    """Return a Logical Name of a file that has a blob now, "" while none leads up to the root."""
    found = owned(look, blob)
    files = [Guid(found.value("blob", "file"))]
    for owner, kind in found.sections.get(OWNERS, {}).items():
        header = look.section(content_object(ContentId(owner)), "content") if kind == A_CONTENT else {"file": owner}
        files.append(Guid(header.get("file", "")))
    return next((path for file in files if file and (path := path_of(look, file))), "")


def path_of(look: RuleContext, guid: Guid) -> str:
    """Return a Logical Name of an entry now, "" while none leads up to the root."""
    words: list[str] = []
    while guid != ROOT and len(words) < LN_DEPTH_MAX:
        parent, _, name = min(look.section(ObjectId(guid), "parents"), default="").partition("/")
        if not name:
            return ""
        words.append(name)
        guid = Guid(parent)
    return "/" + "/".join(reversed(words)) if guid == ROOT else ""


def _location_rules(
    look: RuleContext, blob: StoredObject, location: Location, state: ReplicaState
) -> Iterator[Finding]:
    record = look.value(shepherd_object(location.shepherd), "file", location.reference)
    key = str(location)
    if record != blob_of(blob):
        text = f"{location} is {state.value}, but its Shepherd's record says {record or 'nothing'}"
        yield _finding(blob.id, LOCATION_UNRECORDED, key, text)
    claim = blob.value("claims", key)
    if state in CLAIMED and not claim:
        yield _finding(blob.id, CLAIM_MISSING, key, f"{location} is {state.value}, claims say nothing")
    elif claim and state not in (*CLAIMED, ReplicaState.INVALID):
        yield _finding(blob.id, CLAIM_STRAY, key, f"{location} is {state.value}, claims say {claim}")


def blob_work(blob: StoredObject) -> Iterator[Finding]:
    """Find work that healing still has with a blob."""
    assert blob.id.startswith(BLOB_PREFIX), "only blobs have copies"
    states = [state.value for _, state in locations_of(blob)]
    nodes = {location.shepherd for location, _ in locations_of(blob)}
    facts = facts_of(blob)
    wanted = max(facts.wanted, 1)
    if states and (set(states) != {"alive"} or not len(states) == len(nodes) == wanted):
        text = f"{', '.join(states)} on {len(nodes)} Shepherds, wanted {wanted}: {facts.name or 'no name'}"
        yield _finding(blob.id, COPIES, "", text)


# --- contents -------------------------------------------------------------------------------------------------------


def content_rules(look: RuleContext, content: StoredObject) -> Iterator[Finding]:
    """Check a content's own section."""
    assert content.id.startswith(CONTENT_PREFIX), "`object_rules` chooses by the id"
    state, file = content.value("content", "state"), ObjectId(content.value("content", "file"))
    due = content.value("content", "due_ms")
    if (due or state != SEALED) and not look.value(PENDING_OBJECT, "due", trash.due_key(int(due), content.id)):
        yield _finding(content.id, DUE_MISSING, "", "no index says when it is to be seen to")
    if state == SEALED and content_object(ContentId(look.section(file, "content").get("id", ""))) != content.id:
        yield _finding(content.id, CONTENT_UNOWNED, file, f"its file {file} does not name it")
    within, listed = content.value("content", "within"), content.value("content", "listed")
    if state == OPEN and not look.value(ObjectId(within), "uploads", listed):
        yield _finding(content.id, UPLOAD_UNLISTED, within, f"an open upload, which {within} does not list")


def upload_rules(look: RuleContext, collection: ObjectId, marks: Iterable[str]) -> Iterator[Finding]:
    """Check a page of a collection's `uploads`."""
    for mark in marks:
        key, upload = parse_mark(mark)
        content = content_object(parse_upload(upload)[1])
        header = look.section(content, "content")
        if (header.get("state"), header.get("within"), header.get("listed")) != (OPEN, collection, mark):
            yield _finding(collection, UPLOAD_DANGLING, mark, f"{key!r} is listed as an upload, and is none")


def part_rules(look: RuleContext, content: ObjectId, parts: Iterable[Item]) -> Iterator[Finding]:
    """Check a page of the `parts` of an open upload."""
    if look.section(content, "content").get("state") != OPEN:
        return
    for key, value in parts:
        blob = value.partition(" ")[0]
        if not look.value(content, "named", blob):
            yield _finding(content, PART_WRONG, key, f"the blob {blob} of part {key} is not counted as named")


def extent_rules(look: RuleContext, content: ObjectId, extents: Iterable[Item], after: str = "") -> Iterator[Finding]:
    """Check a page of a content's `extents`, which goes on `after` the last byte of the page before."""
    header = look.section(content, "content")
    if header.get("state") != SEALED:
        return
    size, last = int(header.get("size", "0")), after
    for key, value in extents:
        extent = parse_extent(key, value)
        if last and extent.at <= int(last, 16):
            yield _finding(content, EXTENT_WRONG, last, f"it overlaps {extent}")
        if extent.end > size:
            yield _finding(content, EXTENT_WRONG, key, f"{extent} ends beyond {size} bytes")
        if not look.value(content, "named", extent.blob):
            yield _finding(content, EXTENT_WRONG, key, f"its blob {extent.blob} is not counted as named")
        last = key


def named_rules(look: RuleContext, content: ObjectId, named: Iterable[Item]) -> Iterator[Finding]:
    """Check a page of a content's `named`."""
    header = look.section(content, "content")
    if header.get("state") == DISCARDED:
        return
    owner = content_id(content)
    wanted, left = header.get("wanted", ""), "due_ms" in header
    if header.get("state") == SEALED:
        wanted = look.section(ObjectId(header.get("file", "")), "states").get("neededReplicas", "")
    for blob, count in named:
        yield from _had(look, BlobId(blob), content, owner, wanted)
        if int(count) < (0 if left else 1):
            yield _finding(content, NAMED_WRONG, blob, f"{count} bytes of {blob} are said to be named")


# --- Shepherds ------------------------------------------------------------------------------------------------------


def unlisted(look: RuleContext, shepherd: ServiceId, records: Iterable[Item]) -> tuple[Item, ...]:
    """Return the records of a page of a Shepherd's `file` whose blob does not list them: the outbox must."""
    return tuple(
        (reference, blob)
        for reference, blob in records
        if not _lists(look, BlobId(blob), Location(shepherd, ReferenceId(reference)))
    )


def record_rules(shepherd: ServiceId, unlisted: Iterable[Item], ordered: Collection[str]) -> Iterator[Finding]:
    """Check records that are `unlisted`, given the references that the outbox names."""
    for reference, blob in unlisted:
        if reference not in ordered:
            text = f"{reference} of {blob} is neither a location nor to be erased"
            yield _finding(shepherd_object(shepherd), RECORD_ORPHAN, reference, text)


def order_rules(look: RuleContext, shepherd: ServiceId, orders: Iterable[Item]) -> Iterator[Finding]:
    """Check a page of a Shepherd's `erase`."""
    obj = shepherd_object(shepherd)
    for key, value in orders:
        reference, blob = outbox_reference(key), value.partition(" ")[0]
        record = look.value(obj, "file", reference)
        location = Location(shepherd, reference)
        for listed in dict.fromkeys((blob, record)):
            if listed and _lists(look, BlobId(listed), location):
                text = f"{reference} is to be erased, and still a location of {listed}"
                yield _finding(obj, ERASE_LISTED, key, text)
        if record not in ("", blob):
            yield _finding(obj, ERASE_OTHER, key, f"{reference} is to be erased as {blob}, but recorded as {record}")


def order_work(shepherd: ServiceId, orders: Sequence[Item]) -> Iterator[Finding]:
    """Find unconfirmed erasures of one page."""
    if orders:
        text = f"{len(orders)} erasures are not confirmed"
        yield _finding(shepherd_object(shepherd), ERASURES, orders[0][0], text)


def _lists(look: RuleContext, blob: BlobId, location: Location) -> bool:
    return str(location) in look.section(blob_object(blob), "locations")


# --- any object -----------------------------------------------------------------------------------------------------


def object_rules(look: RuleContext, obj: StoredObject) -> tuple[Finding, ...]:
    """Check an object's narrow sections, whatever its kind."""
    if is_guid(obj.id):
        return guarded(obj.id, lambda: entry_rules(look, obj))
    if obj.id.startswith(BLOB_PREFIX):
        return guarded(obj.id, lambda: blob_rules(look, obj))
    if obj.id.startswith(CONTENT_PREFIX):
        return guarded(obj.id, lambda: content_rules(look, obj))
    if not obj.id.startswith("sys:"):
        return (_finding(obj.id, STRANGE, "", "no entry, blob, content nor the system's"),)
    return ()


def object_work(obj: StoredObject) -> tuple[Finding, ...]:
    """Find work that healing still has with an object; none for one that cannot be read."""
    found = guarded(obj.id, lambda: blob_work(obj)) if obj.id.startswith(BLOB_PREFIX) else ()
    return tuple(finding for finding in found if finding.rule != MALFORMED)


def guarded(object_id: ObjectId, rules: Callable[[], Iterable[Finding]]) -> tuple[Finding, ...]:
    """Return the findings of `rules`; a value that cannot be read is one finding."""
    try:
        found = tuple(rules())
    except (CheloniaError, ValueError) as error:
        return (_finding(object_id, MALFORMED, "", f"cannot be read: {error}"),)
    assert all(finding.object == object_id for finding in found), "rules speak of the object that they look at"
    return found


def _finding(object_id: ObjectId, rule: str, subject: str, text: str) -> Finding:
    assert text, "a finding says what is wrong"
    return Finding(object_id, rule, subject, SEVERITY[rule], text)
