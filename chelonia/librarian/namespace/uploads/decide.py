"""Uploads as pure decisions: a reserved name, and the one transact that turns durable bytes into a file.

The original's way reserves the name first (`pending`, invisible, expiring) and commits it when the bytes are durable.
The bytes-first way makes entry, name and blob at once. Overwriting swaps the blob in place: GUID, links and policy
stay. Conditions and errors work as in `tree`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaFacts
from chelonia.core.contents.uploads import BeginPut, Begun, CommitFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ObjectId, shepherd_object
from chelonia.core.metadata import TYPE_FILE, TYPE_PENDING, Sections, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import (
    CHECKSUM_TYPES,
    FIRST_ORDINAL,
    NewBlob,
    agreed,
    file_states,
    make_blob,
    measured,
    swap_blobs,
)
from chelonia.librarian.metadata.elements import (
    EXPECT,
    check,
    drop,
    erase,
    expectations,
    is_,
    isset,
    put,
    put_all,
    seconds,
    texts,
    unset,
    version,
)
from chelonia.librarian.namespace.trash import drop_reservation, expect_upload, leave_bytes
from chelonia.librarian.namespace.tree import (
    Slot,
    check_collection,
    check_file,
    content_change,
    given_anew,
    given_sections,
    left_over,
    make_file,
    ruled,
    supersede,
    take_name,
    type_of,
)


def begin_put(request: BeginPut, begun: Begun, slot: Slot, now: Ms) -> list[Element]:
    """Reserve a name for an upload: a pending entry, and `pending/<name>` in its parent.

    Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME, NOT_FOUND (the file to overwrite is gone).
    """
    elements = expectations(request.expect)
    elements += take_name(slot, request.owner, now) if not request.replaces else _hold_name(request, slot, now)
    reservation = f"{begun.guid} {request.expires_ms}"
    elements.append(put(slot.parent.id, "pending", slot.name, reservation))
    elements.append(expect_upload(reservation, slot.parent.id, slot.name))
    obj = ObjectId(begun.guid)
    own = {"type": TYPE_PENDING, "GUID": begun.guid, "owner": request.owner}
    sections = {"entry": own, "put": _put_section(request, begun), **given_sections(request.sections)}
    return [*elements, check(obj, version(0)), *put_all(obj, sections)]


def _hold_name(request: BeginPut, slot: Slot, now: Ms) -> list[Element]:
    """Condition the name to lead to the file to overwrite."""
    check_collection(slot.parent, slot.name)
    if slot.child != request.replaces:
        raise CheloniaError(Kind.NOT_FOUND, "beginPut", slot.name, "the file to overwrite is not there any more")
    still = is_("entries", slot.name, request.replaces)
    if slot.reservation:
        return [check(slot.parent.id, still), *supersede(slot, request.owner, now)]
    return [check(slot.parent.id, still, unset("pending", slot.name))]


def _put_section(request: BeginPut, begun: Begun) -> dict[str, str]:
    names = ("parent", "name", "ln", "replaces", "wanted", "expires_ms", "size")
    sums = {kind: getattr(request.checksums, kind) for kind in CHECKSUM_TYPES}
    return texts({**{name: getattr(request, name) for name in names}, **sums, "blob": begun.blob, "seal": begun.seal})


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A pending upload, read back from its entry object."""

    entry: StoredObject

    @property
    def parent(self) -> Guid:
        """Collection that holds the reservation."""
        return Guid(self.entry.value("put", "parent"))

    @property
    def name(self) -> str:
        """Reserved name."""
        return self.entry.value("put", "name")

    @property
    def replaces(self) -> Guid:
        """File to overwrite, or ""."""
        return Guid(self.entry.value("put", "replaces"))

    @property
    def blob(self) -> BlobId:
        """Blob whose bytes are awaited."""
        return BlobId(self.entry.value("put", "blob"))

    def new_blob(self, receipts: tuple[Receipt, ...], now: Ms) -> NewBlob:
        """Return the blob as the receipts show it. Raises: CHECKSUM, INCOMPLETE, BAD_REQUEST."""
        entry = self.entry
        checksums = Checksums(*(entry.value("put", kind) for kind in ("sha256", "md5", "adler32")))
        kept = agreed(receipts, self.blob, int(entry.value("put", "size", "-1")), checksums)
        facts = ReplicaFacts(
            blob=self.blob,
            guid=self.replaces or Guid(entry.id),
            name=entry.value("put", "ln"),
            owner=Dn(entry.value("entry", "owner")),
            size=kept[0].size,
            checksums=measured(kept),
            wanted=int(entry.value("put", "wanted", "0")),
            created_ms=now,
            seal=entry.value("put", "seal"),
        )
        return NewBlob(facts, tuple(receipt.location for receipt in kept))


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The file that an upload replaces, and its blobs, as read."""

    file: StoredObject
    blobs: tuple[StoredObject, ...]


def check_pending(pending: PendingUpload, slot: Slot) -> None:
    """Refuse to commit an upload that has lost its name. Raises: NOT_FOUND."""
    if type_of(pending.entry) != TYPE_PENDING or not _has_name(pending, slot):
        cause = "the upload's name was given up, superseded or has expired; begin again"
        raise CheloniaError(Kind.NOT_FOUND, "commitPut", pending.entry.id, cause)


def _has_name(pending: PendingUpload, slot: Slot) -> bool:
    return slot.reservation.partition(" ")[0] == pending.entry.id


def commit_new(pending: PendingUpload, slot: Slot, new: NewBlob, now: Ms) -> list[Element]:
    """Turn a pending entry into a file under its reserved name."""
    entry = pending.entry
    assert _has_name(pending, slot), "`check_pending` has seen it"
    assert not pending.replaces, "what was begun over a file makes no other"
    assert ObjectId(new.facts.guid) == entry.id, "a blob is the file's that names it"
    elements = [check(entry.id, version(entry.version), is_("entry", "type", TYPE_PENDING))]
    elements += [drop(entry.id, "put", prop) for prop in sorted(entry.sections.get("put", {}))]
    given = entry.sections.get("timestamps", {})
    sections: dict[str, Mapping[str, str]] = {
        "entry": {"type": TYPE_FILE},
        "timestamps": {"created": seconds(now), "modified": seconds(now), **given},
        "parents": {f"{slot.parent.id}/{slot.name}": "parent"},
        "states": file_states(entry.sections.get("states", {}), new),
        "blobs": {FIRST_ORDINAL: new.facts.blob},
    }
    elements += put_all(entry.id, sections)
    elements += [*content_change(slot.parent), *drop_reservation(slot.parent.id, slot.name, slot.reservation)]
    free = (unset("entries", slot.name), unset("entries", slot.name + "/"))
    elements.append(put(slot.parent.id, "entries", slot.name, entry.id, *free))
    return elements + taken_blob(new)


def taken_blob(new: NewBlob) -> list[Element]:
    """Make the blob of an upload, with the locations of its receipts."""
    return [*countable(new), *make_blob(new, received=True)]


def countable(new: NewBlob) -> list[Element]:
    """Return the condition that receipts count, beside those of `make_blob`: each Shepherd still has its key. One that
    another Librarian has forgotten meanwhile has lost the key by which its receipt was checked."""
    assert len({location.shepherd for location in new.locations}) == len(new.locations), "no Shepherd counts twice"
    has_key = isset("node", "verify_key")
    return [check(shepherd_object(location.shepherd), has_key, change_id=EXPECT) for location in new.locations]


def commit_over(pending: PendingUpload, slot: Slot, over: Overwritten, new: NewBlob, now: Ms) -> list[Element]:
    """Give the file that a pending entry replaces its new blob, and remove the pending entry."""
    entry = pending.entry
    assert _has_name(pending, slot), "`check_pending` has seen it"
    assert over.file.id == ObjectId(pending.replaces), "no other file is overwritten than the one it was begun over"
    elements = [erase(entry.id, version(entry.version)), *drop_reservation(slot.parent.id, slot.name, slot.reservation)]
    elements += left_over(over.file, entry.sections, anew=bool(entry.sections.get("metadata")))
    return elements + overwrite(over, new, entry.sections, now)


def overwrite(
    over: Overwritten, new: NewBlob, given: Sections, now: Ms, policy: Mapping[str, str] | None = None
) -> list[Element]:
    """Swap a file's bytes in place; its states, modification time, and given `metadata`, `posix` and `policy` follow.

    Raises: NOT_FOUND, NOT_A_FILE, CHECKSUM."""
    assert ObjectId(new.facts.guid) == over.file.id, "a blob is the file's that names it"
    check_file(over.file, "commitPut", new.facts.name, "overwrite")
    elements = [*countable(new), *swap_blobs(over.file, new), *leave_bytes(over.file, over.blobs, "replaced", now)]
    states = file_states(given.get("states", {}), new)
    elements += ruled(over.file, policy)
    return elements + put_all(over.file.id, {"states": states, **given_anew(given, now)})


def commit_file(request: CommitFile, slot: Slot, new: NewBlob, now: Ms) -> list[Element]:
    """Make the file of a bytes-first upload: entry, name and blob at once.

    Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME, CHECKSUM.
    """
    assert new.facts.blob == request.begun.blob, "what was begun is what becomes a file"
    states = file_states(request.begin.sections.get("states", {}), new)
    facts: Sections = {"states": states, "blobs": {FIRST_ORDINAL: new.facts.blob}}
    return [*make_file(request.begin, new.facts.guid, slot, facts, now), *taken_blob(new)]


def check_unused(shepherds: Sequence[StoredObject]) -> None:
    """Refuse receipts that have made a file before. Raises: ALREADY_DONE.

    Args: `shepherds`: with the `file` records of the replicas that the receipts name.
    """
    if any(shepherd.sections.get("file") for shepherd in shepherds):
        cause = "this upload was committed before; what has become of its file since stays: to write again, start again"
        raise CheloniaError(Kind.ALREADY_DONE, "commitPut", cause=cause)


def begun_blob(request: CommitFile, now: Ms) -> NewBlob:
    """Return the blob of a bytes-first upload as its receipts show it. Raises: CHECKSUM, INCOMPLETE, BAD_REQUEST."""
    begin, begun = request.begin, request.begun
    kept = agreed(request.receipts, begun.blob, begin.size, begin.checksums)
    facts, size, sums = begun.facts(begin, now), kept[0].size, measured(kept)
    if (facts.size, facts.checksums) != (size, sums):
        facts = replace(facts, size=size, checksums=sums)
    return NewBlob(facts, tuple([receipt.location for receipt in kept]))
