"""Blobs in the metadata: made from receipts, named by a file, swapped for another, discarded.

Pure, like `tree`: from objects as read to the elements of one transact. A receipt is one Shepherd's own word for its
own copy; `uploads.act` has checked its signature before.

Invariants: a blob object is made once, in the transact that names it. Its locations, the Shepherds' `file` records and
the erasure outboxes change together. A blob goes with its last owner. Each removes only itself, on the version that
was read: of two who leave at once one sees that it is the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from chelonia.core.bounds import REPLICAS_WANTED_MAX
from chelonia.core.cluster.replicas import (
    Checksums,
    Location,
    Receipt,
    ReplicaFacts,
    ReplicaState,
    parse_location,
    state_of,
)
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BLOB_PREFIX, BlobId, ContentId, Guid, Ms, ObjectId, blob_id, blob_object
from chelonia.core.metadata import TYPE_FILE, StoredObject
from chelonia.core.ports.ahash import Condition, Element
from chelonia.librarian.metadata.elements import (
    check,
    drop,
    empty,
    erase,
    file_record,
    is_,
    isset,
    outbox_record,
    put,
    put_all,
    texts,
    version,
)

FIRST_ORDINAL = "00000000"
_STORED = ("size", "wanted", "created_ms", "name", "owner", "seal")
"""Facts that are stored under their own names."""
_UNKNOWN = {"name": "", "owner": "", "size": -1, "wanted": 0, "created_ms": 0}
CHECKSUM_TYPES = ("sha256", "md5", "adler32")
DEFAULT_CHECKSUM_TYPE = "md5"
SUMS = "sums"
"""Property with further checksums of a blob, `<name>:<hex>` with blanks between."""
OWNERS = "owners"
"""Section with the owners of a blob that has had more than one: GUIDs of files and ids of contents."""
assert DEFAULT_CHECKSUM_TYPE in CHECKSUM_TYPES, "what a reader gets by default may be known"
A_FILE, A_CONTENT = "file", "content"
"""Kinds of an owner, each also the property of a blob that names its only owner."""

Owner = Guid | ContentId


class NewBlob(msgspec.Struct, frozen=True):
    """A blob that has just become durable, with everything that the metadata record of it."""

    facts: ReplicaFacts
    locations: tuple[Location, ...]

    @property
    def object(self) -> ObjectId:
        """A-Hash object of the blob."""
        return blob_object(self.facts.blob)


def agreed(receipts: Sequence[Receipt], blob: BlobId, size: int, checksums: Checksums) -> tuple[Receipt, ...]:
    """Return the receipts for `blob`, one per Shepherd, when they agree with each other and with the declaration.

    Args:
        size, checksums: as declared before the bytes came (-1 and empty where not known).
    Raises: INCOMPLETE (no receipt), CHECKSUM (size or checksum differs), BAD_REQUEST (another blob).
    """
    first: dict[str, Receipt] = {}
    for receipt in receipts:
        if receipt.blob != blob:
            raise CheloniaError(Kind.BAD_REQUEST, subject=receipt.blob, cause=f"a receipt for another blob than {blob}")
        first.setdefault(receipt.location.shepherd, receipt)
    kept = tuple(first.values())
    if not kept:
        raise CheloniaError(Kind.INCOMPLETE, subject=blob, cause="no Shepherd has given a receipt for the bytes")
    for receipt in kept:
        if size not in (-1, receipt.size) or receipt.size != kept[0].size:
            cause = f"{receipt.location.shepherd} has {receipt.size} bytes, not {kept[0].size if size < 0 else size}"
            raise CheloniaError(Kind.CHECKSUM, subject=blob, cause=cause)
        if receipt.checksums.conflicts(checksums) or receipt.checksums.conflicts(kept[0].checksums):
            cause = f"the bytes on {receipt.location.shepherd} have another checksum than declared"
            raise CheloniaError(Kind.CHECKSUM, subject=blob, cause=cause)
    return kept


def measured(receipts: Sequence[Receipt]) -> Checksums:
    """Return all checksums that agreeing receipts know."""
    assert receipts, "no bytes are known without a receipt"
    first = receipts[0].checksums.noted
    if all(receipt.checksums == first for receipt in receipts):
        return first
    sums = {kind: next((c for r in receipts if (c := getattr(r.checksums, kind))), "") for kind in CHECKSUM_TYPES}
    found = Checksums(**sums)
    assert not any(receipt.checksums.conflicts(found) for receipt in receipts), "these receipts agree"
    return found


def make_blob(new: NewBlob, *, received: bool = False) -> list[Element]:
    """Make the blob object, its locations (`alive`) and the Shepherds' `file` records.

    `received`: its receipts must not have made a file before.
    """
    # The use of a receipt records the replica, and the record outlives the file until the bytes are erased.
    facts = new.facts
    sums = {kind: getattr(facts.checksums, kind) for kind in CHECKSUM_TYPES}
    props = texts({**{name: getattr(facts, name) for name in _STORED}, **sums, "file": facts.guid})
    obj, alive = new.object, ReplicaState.ALIVE.value
    locations = {str(location): alive for location in new.locations}
    elements = [check(obj, version(0)), *put_all(obj, {"blob": props, "locations": locations})]
    return elements + [file_record(location, facts.blob, anew=received) for location in new.locations]


def sums_of(blob: StoredObject) -> dict[str, str]:
    """Return the further checksums of a blob: name -> hex."""
    return dict(word.split(":", 1) for word in blob.value("blob", SUMS).split(" ") if ":" in word)


def swap_blobs(file: StoredObject, new: NewBlob) -> list[Element]:
    """Give a file another blob in place of those it has."""
    assert Guid(file.id) == new.facts.guid, "a blob is the file's that names it"
    ordinals = file.sections.get("blobs", {})
    elements = [check(file.id, is_("entry", "type", TYPE_FILE), version(file.version))]
    elements += make_blob(new, received=True)
    elements += [drop(file.id, "blobs", ordinal) for ordinal in sorted(ordinals) if ordinal != FIRST_ORDINAL]
    elements += [drop(file.id, "content", prop) for prop in sorted(file.sections.get("content", {}))]
    return [*elements, put(file.id, "blobs", FIRST_ORDINAL, new.facts.blob)]


# --- owners of a blob -------------------------------------------------------------------------------------------------


def owners_of(blob: StoredObject) -> Mapping[str, str]:
    """Return the kinds of a blob's owners, by owner."""
    content = blob.value("blob", "content")
    return blob.sections.get(OWNERS) or ({content: A_CONTENT} if content else {blob.value("blob", "file"): A_FILE})


def is_shared(blob: StoredObject) -> bool:
    """Return whether a blob has several owners."""
    return len(owners_of(blob)) > 1


def leave_blob(blob: StoredObject, owner: Owner, reason: str, now: Ms) -> list[Element]:
    """Take an owner off a blob as read; the last one to leave discards the blob."""
    owners = owners_of(blob)
    if owner not in owners:  # another's blob stays
        return []
    if len(owners) == 1:
        return discard_blob(blob, reason, now)
    return [drop(blob.id, OWNERS, owner, version(blob.version))]


def share_blob(blob: StoredObject, owner: Owner, other: Owner, kind: str) -> list[Element]:
    """Add `other` as an owner of a blob that `owner` has and keeps in the same transact; `kind`: of both."""
    assert owner != other, "nobody shares with himself"
    shared = blob.sections.get(OWNERS, {})
    if other in shared:
        return []
    elements = [put(blob.id, OWNERS, other, kind, *still_owner(blob, owner, kind))]
    return elements if shared else [*elements, put(blob.id, OWNERS, owner, kind)]


def hand_over(blob: StoredObject, file: Guid, content: ContentId) -> list[Element]:
    """Replace a file by a content as an owner of a blob."""
    if not blob.sections.get(OWNERS):
        return [put(blob.id, "blob", "content", content, version(blob.version))]
    return [drop(blob.id, OWNERS, file, version(blob.version)), put(blob.id, OWNERS, content, A_CONTENT)]


def want_copies(blob: StoredObject, owner: Owner, kind: str, wanted: int) -> list[Element]:
    """Set how many copies a blob wants; a shared one keeps the highest count that any owner has asked for."""
    assert 0 <= wanted <= REPLICAS_WANTED_MAX, "`tree.check_wanted` has seen it"
    if len(owners_of(blob)) > 1 and wanted <= facts_of(blob).wanted:
        return []
    as_it_was = [version(blob.version)] if blob.sections.get(OWNERS) else []
    return [put(blob.id, "blob", "wanted", str(wanted), *still_owner(blob, owner, kind), *as_it_was)]


def still_owner(blob: StoredObject, owner: Owner, kind: str) -> tuple[Condition, ...]:
    """Return the conditions that a blob still is this owner's, and his alone where it never was shared."""
    return (isset(OWNERS, owner),) if blob.sections.get(OWNERS) else (empty(OWNERS), is_("blob", kind, owner))


def discard_blob(blob: StoredObject, reason: str, now: Ms) -> list[Element]:
    """Remove a blob's object as read and order the erasure of every replica."""
    assert blob.id.startswith(BLOB_PREFIX), "nothing but a blob is erased as one"
    if not blob.exists:
        return []
    elements = [erase(blob.id, version(blob.version))]
    return elements + [outbox_record(loc, blob_of(blob), reason, now) for loc, _ in locations_of(blob)]


def file_states(states: Mapping[str, str], new: NewBlob) -> dict[str, str]:
    """Return a file's `states` once its bytes are known; a checksum type that nobody measured stays as given.

    Raises: CHECKSUM when a given checksum is not the measured one.
    """
    kind = (states.get("checksumType") or DEFAULT_CHECKSUM_TYPE).lower()
    declared = states.get("checksum", "")
    value = getattr(new.facts.checksums, kind) if kind in CHECKSUM_TYPES else declared
    if declared and value and declared.lower() != value:
        cause = f"declared {kind} {declared[:80]}, measured {value}"
        raise CheloniaError(Kind.CHECKSUM, subject=new.facts.name, cause=cause)
    own = {"size": str(new.facts.size), "checksumType": kind, "neededReplicas": str(new.facts.wanted)}
    return {**states, **own, "checksum": value or declared}


def known_checksum_type(checksums: Checksums) -> str:
    """Return the checksum type to report when a reader names none: the original's if it was measured."""
    order = (DEFAULT_CHECKSUM_TYPE, *CHECKSUM_TYPES)
    return next((kind for kind in order if getattr(checksums, kind)), DEFAULT_CHECKSUM_TYPE)


# --- reading blob objects -------------------------------------------------------------------------------------------


def blob_of(blob: StoredObject) -> BlobId:
    """Return the id of a blob object."""
    return blob_id(blob.id)


def locations_of(blob: StoredObject) -> tuple[tuple[Location, ReplicaState], ...]:
    """Return the locations of a blob's replicas with their stored states, ordered by location."""
    stored = blob.sections.get("locations", {})
    return tuple([(parse_location(key), state_of(stored[key])) for key in sorted(stored)])


def facts_of(blob: StoredObject) -> ReplicaFacts:
    """Return the immutable facts of a blob as stored."""
    stored = blob.sections.get("blob", {})
    own = {**_UNKNOWN, **stored, "blob": blob_of(blob), "guid": stored.get("file", ""), "checksums": stored}
    return msgspec.convert(own, ReplicaFacts, strict=False)
