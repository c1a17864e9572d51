"""A namespace from bytes alone: the decisions on each object of a snapshot and each record beside a replica. Pure.

A snapshot has the names as of its time; records show what was written since. A record is believed when the cluster's
seal on it is valid, or when the snapshot knows its blob and they agree. Any other blob, and one that has lost its name
to another, has no file until `mends` gives it one in `/lost+found`. A rebuild never orders an erasure. Reasoning:
docs/design/013-rebuild.md.

Invariants: a blob that the snapshot should know and does not was deleted, and stays so. A second application of the
same decision changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location, ReplicaFacts, ReplicaState
from chelonia.core.contents.uploads import PIECE_OF
from chelonia.core.ids import (
    BLOB_PREFIX,
    REBUILD_OBJECT,
    SERVICES_OBJECT,
    SNAPSHOTS_OBJECT,
    Guid,
    Ms,
    ObjectId,
    ServiceId,
    blob_object,
    is_guid,
)
from chelonia.core.metadata import TYPE_FILE, TYPE_TRASHED, Filter, Needed, StoredObject
from chelonia.core.names import entry_name
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.shepherd import ReplicaRecord
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import (
    FIRST_ORDINAL,
    NewBlob,
    facts_of,
    file_states,
    known_checksum_type,
    leave_blob,
    make_blob,
    owners_of,
)
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.metadata.elements import (
    add,
    as_read,
    check,
    drop,
    file_record,
    is_,
    isset,
    put,
    put_all,
    seconds,
    unset,
    version,
)
from chelonia.librarian.metadata.rebuild_record import AWAY, COMPLETE, SHEPHERDS, awaited
from chelonia.librarian.metadata.seal import sealed
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.quotas.decide import parse_account
from chelonia.librarian.namespace.summaries import dropped
from chelonia.librarian.namespace.tree import blobs_of, key_for, names_of, type_of
from chelonia.librarian.presence import registry
from chelonia.wire.snapshots import Manifest, named_measure

UPLOAD_MS: Final = 24 * 60 * 60 * 1000
"""The longest ticket there is (`ticket_lifetime_max_ms` of a Shepherd). A record has the date of its ticket; its file
may get a name so much later. So a younger blob need not have been deleted because a snapshot lacks it. The record of an
upload that took longer states its own limit."""
COMMIT_SLACK_MS: Final = 10 * 60 * 1000
"""Difference of hosts' clocks, and time for the last tries of a commit, after a ticket has ended."""


def through(basis: Basis, reported: Sequence[ServiceId], away: Sequence[ServiceId]) -> list[Element]:
    """Return the final records of a rebuild, for Shepherds that it was made without: the basis of its judgements, and
    the Shepherds that have reported."""
    noted = {"snapshot_ms": str(basis.begun_ms)} if basis.begun_ms is not None else {}
    holes = {"holes": "1"} if basis.holes else {}
    words: dict[str, str] = {**dict.fromkeys(reported, COMPLETE), **dict.fromkeys(away, AWAY)}
    return put_all(REBUILD_OBJECT, {"rebuild": {**noted, **holes}, SHEPHERDS: words})


def late_basis(stored: StoredObject, shepherd: ServiceId, record_key: str) -> Basis:
    """Return the basis for the records of a Shepherd that lists them after a rebuild, from the record of that."""
    snapshot_ms, sure = stored.value("rebuild", "snapshot_ms"), shepherd in awaited(stored)
    return Basis(
        record_key,
        Ms(int(snapshot_ms)) if snapshot_ms else None,
        holes=bool(stored.value("rebuild", "holes")),
        rebuilt_ms=Ms(int(stored.value("rebuild", "begun_ms", "0"))),
        sure=sure,
    )


def of_this_namespace(manifest: Manifest, generation: int, born_ms: Ms) -> bool:
    """Return whether a snapshot is of the very namespace that is being rebuilt, and so only knows restored objects.

    Args: `generation`, `born_ms`: generation of the A-Hash that is filled, and time of its first start.
    """
    return manifest.generation >= generation and manifest.begun_ms >= born_ms


# --- objects of a snapshot ------------------------------------------------------------------------------------------


def restore(obj: StoredObject) -> tuple[list[Element], list[Element]]:
    """Return the changes that restore an entry or a blob: the object, and the names (or indexes) that lead to it.

    The first list applies only while the object does not exist; the second may fail alone, when a name is taken.
    """
    if obj.id.startswith(BLOB_PREFIX):
        return [check(obj.id, version(0)), *put_all(obj.id, obj.sections)], []
    if not is_guid(obj.id) or not type_of(obj):
        return [], []
    elements = [check(obj.id, unset("entry", "type")), *put_all(obj.id, obj.sections)]
    return elements, _index(obj) if type_of(obj) == TYPE_TRASHED else list(_names(obj))


def cut(elements: Sequence[Element], most: int) -> list[list[Element]]:
    """Cut the change that restores a large entry into pieces of `most` properties. The last one makes it an entry;
    until then each may be applied again."""
    absent, *properties = elements
    properties.sort(key=lambda element: element.section == "entry")
    return [[absent, *properties[at : at + most]] for at in range(0, len(properties), most)]


def restore_content(part: StoredObject) -> tuple[list[Element], list[Element]]:
    """Return the changes that restore a part of a content: a missing header; the records, under the same header."""
    header, splices = part.sections.get("content", {}), part.value("content", "splices")
    wide = {section: props for section, props in part.sections.items() if section != "content"}
    same = check(part.id, is_("content", "splices", splices))
    fresh = check(part.id, unset("content", "splices"))
    return [fresh, *put_all(part.id, {"content": header})], [same, *put_all(part.id, wide)]


def is_over(obj: StoredObject, wall: Ms) -> bool:
    """Return whether this is a deleted file that has expired: the sweep erases its bytes, or has."""
    return type_of(obj) == TYPE_TRASHED and int(obj.value("trashed", "until_ms", "0")) <= wall


def _names(entry: StoredObject) -> Iterator[Element]:
    for parent, name in names_of(entry):
        free = (unset("entries", name), unset("entries", name + "/"))
        yield put(ObjectId(parent), "entries", key_for(name, type_of(entry)), entry.id, *free)


def both_forms(key: str) -> Filter:
    """Return the filter for the holders of a name, as a collection or as anything else."""
    name = entry_name(key)
    return Needed("entries", name), Needed("entries", name + "/")


def of_the_later(named: Element, parent: StoredObject, holders: Sequence[StoredObject], begun_ms: Ms) -> list[Element]:
    """Return the change that gives an entry a name which others have; empty when one of them had it last.

    A snapshot reads entries in the order of their ids: the later of two with one name had it last. A holder that is
    newer than the snapshot got the name from a record, and keeps it.
    Args: `parent`: with `both_forms` of the name; `holders`: with their creation times.
    """
    if any(
        each.id > named.value or float(each.value("timestamps", "created", "0")) * 1000 >= begun_ms for each in holders
    ):
        return []
    entries = parent.sections.get("entries", {})
    assert len(entries) <= len(holders), "of each who has the name it is known when it was made"
    still = tuple(
        as_read("entries", need.property, entries.get(need.property, "")) for need in both_forms(named.property)
    )
    others = (key for key in entries if key != named.property)
    return [replace(named, conditions=still), *(drop(parent.id, "entries", key) for key in others)]


def _index(trashed: StoredObject) -> list[Element]:
    until, deleted = (Ms(int(trashed.value("trashed", prop, "0"))) for prop in ("until_ms", "deleted_ms"))
    return trash.find(trashed, until, deleted)


def restore_root(stored: StoredObject, now: StoredObject) -> list[Element]:
    """Return the change that restores the root, which exists from the first start with the configured policy."""
    stale = [
        drop(now.id, section, prop)
        for section in ("policy", "defaultPolicy", "metadata", "states", "posix", "node")
        for prop in now.sections.get(section, {})
        if prop not in stored.sections.get(section, {})
    ]
    return [*stale, *put_all(now.id, {name: props for name, props in stored.sections.items() if name != "parents"})]


def restore_services(stored: StoredObject, now: StoredObject) -> list[Element]:
    """Return the change that restores identities not decided on today; a refusal in the snapshot stays in force."""
    elements = []
    for role, identities in stored.sections.items():
        for identity, word in identities.items():
            today = now.value(role, identity)
            refused = word not in (registry.APPROVED, registry.WAITING) and today != registry.FORGOTTEN
            if today in ("", registry.WAITING) or (refused and today != word):
                elements.append(put(SERVICES_OBJECT, role, identity, word))
    return elements


def restore_quotas(stored: StoredObject, now: StoredObject) -> list[Element]:
    """Return the change that restores quotas; those set today go before, but for accounts of the default quota alone.

    All are counted at the end of the rebuild. Args: `now`: with its values of the same properties.
    """
    changed, elements = add(now.id, "quotas", "number", 1), list[Element]()
    for key, record in stored.sections["tally"].items():
        today, account = now.value("tally", key), parse_account(key, record)
        current = parse_account(key, today) if today else account
        if not today or current.implied:
            restored = replace(account, counter=current.counter, counting=current.counting)
            elements.append(put(now.id, "tally", key, restored.record, as_read("tally", key, today)))
    return [changed, *elements] if elements else []


# --- records beside replicas ----------------------------------------------------------------------------------------


class RecordVerdict(enum.Enum):
    """The value of a record beside a replica."""

    LISTED = "replicas found"
    """A location of a known blob."""
    FILE = "files written since the snapshot"
    VERSION = "files overwritten since the snapshot"
    SHELTERED = "blobs in /lost+found"
    DELETED = "replicas of deleted files"
    """Older than the snapshot, which does not know the blob."""
    OVERWRITTEN = "replicas of overwritten files"
    SNAPSHOT = "replicas of snapshots"
    UNCOMMITTED = "replicas never committed"
    DAMAGED = "damaged replicas or records"
    CONFLICT = "replicas that contradict another record"


NOTHING: Final = StoredObject(ObjectId("-"), 0)
TAKEN_IN: Final = (RecordVerdict.FILE, RecordVerdict.VERSION, RecordVerdict.SHELTERED, RecordVerdict.SNAPSHOT)
"""Verdicts by which a blob becomes part of the namespace."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The basis for judging records.

    - `record_key`: the cluster's key
    - `begun_ms`: time when the snapshot was begun (None: there is none)
    - `late`: the second round, after all records of committed, sealed replicas. A Shepherd learns of a commit a moment
      after its user does: a replica that it believes uncommitted may be acknowledged. It gives way to committed ones.
    - `holes`: pages of the snapshot are lost, so a blob that it lacks need not have been deleted
    - `rebuilt_ms`: end of the rebuild, since when the namespace is in use (None: it is at work)
    - `sure`: all deletions since are known
    """

    record_key: str
    begun_ms: Ms | None
    late: bool = False
    holes: bool = False
    rebuilt_ms: Ms | None = None
    sure: bool = True

    @property
    def in_use(self) -> bool:
        """Whether users are at work in the namespace."""
        return self.rebuilt_ms is not None

    @property
    def surely(self) -> bool:
        """Whether a record believed now was committed, and may take a name that an entry has."""
        return not (self.late or self.in_use)


@dataclass(frozen=True, slots=True)
class RecordContext:
    """The objects to judge a record by: its blob (which may not exist), its file, and the blobs of this file.

    `deleted`: it or its file was deleted since the rebuild was begun, or its erasure on this Shepherd is ordered.
    """

    blob: StoredObject
    file: StoredObject
    current: Sequence[StoredObject] = ()
    deleted: bool = False


def is_late(record: ReplicaRecord, basis: Basis) -> bool:
    """Return whether a replica waits for the second round: it is not known to be committed, or its record lacks a valid
    seal. Another replica of the blob may have one."""
    return not record.committed or (record.facts is not None and not genuine(record.facts, basis.record_key))


def judge(record: ReplicaRecord, context: RecordContext, basis: Basis) -> RecordVerdict:
    """Decide what becomes of one replica. In a namespace in use, a replica dated since the rebuild was made in it: if
    its blob is unknown, it was deleted. Dates come from somebody's clock. So they decide only where deletions are not
    known one by one: for uncommitted replicas, for snapshots, or unless `sure`."""
    verdict = _judge(record, context, basis)
    _check_verdict(verdict, record, context, basis)
    if basis.rebuilt_ms is None or verdict not in TAKEN_IN or record.facts is None:
        return verdict
    trusted = record.committed and basis.sure and verdict is not RecordVerdict.SNAPSHOT
    if (record.facts.created_ms >= basis.rebuilt_ms and not trusted) or type_of(context.file) == TYPE_TRASHED:
        return RecordVerdict.DELETED
    return verdict if basis.sure or verdict is RecordVerdict.SNAPSHOT else RecordVerdict.SHELTERED


def _check_verdict(verdict: RecordVerdict, record: ReplicaRecord, context: RecordContext, basis: Basis) -> None:
    """Assert the invariants of a verdict, whatever a record says."""
    facts = record.facts
    if facts is None or verdict not in TAKEN_IN:
        assert verdict not in TAKEN_IN, "what cannot be read becomes nothing"
        return
    assert not context.blob.exists, "a blob is taken in once"
    assert not context.deleted or of_snapshot(facts), "what was deleted stays so"
    assert record.committed or verdict is not RecordVerdict.VERSION, "what nobody committed displaces nothing"
    named = verdict is not RecordVerdict.SHELTERED
    assert not named or genuine(facts, basis.record_key), "what the cluster has not sealed names nothing"


def _judge(record: ReplicaRecord, context: RecordContext, basis: Basis) -> RecordVerdict:
    facts = record.facts
    if facts is None or record.state is not ReplicaState.ALIVE:
        return RecordVerdict.DAMAGED
    if context.blob.exists:
        return RecordVerdict.LISTED if _agree(facts, context.blob) else RecordVerdict.CONFLICT
    if context.deleted and not of_snapshot(facts):
        return RecordVerdict.DELETED
    true = genuine(facts, basis.record_key)
    if not record.committed:
        recent = basis.begun_ms is None or not _long_before(facts, basis.begun_ms)
        verdict = _judge_genuine(facts, context, basis)
        believed = true and basis.late and not _never_named(facts, basis)
        return _uncommitted(verdict, recent=recent) if believed else RecordVerdict.UNCOMMITTED
    if not true:
        return RecordVerdict.SHELTERED
    verdict = RecordVerdict.SNAPSHOT if of_snapshot(facts) else _judge_genuine(facts, context, basis)
    # They may be a copy's, too, whose name is lost. In a namespace in use, users may have overwritten them.
    replaced = verdict is RecordVerdict.OVERWRITTEN and not basis.in_use
    return RecordVerdict.SHELTERED if replaced else verdict


def _long_before(facts: ReplicaFacts, begun_ms: Ms) -> bool:
    """Whether a snapshot begun then would know the blob of such a record, were it still named."""
    return facts.created_ms + max(UPLOAD_MS, facts.commit_within_ms) + COMMIT_SLACK_MS < begun_ms


def _never_named(facts: ReplicaFacts, basis: Basis) -> bool:
    """Whether a transact that named the blob would have come before the snapshot, which lacks it. That a replica is in
    quarantine proves nothing: its Shepherd may have asked a Librarian with older metadata."""
    if basis.begun_ms is None or basis.holes or not facts.commit_within_ms:
        return False
    return facts.created_ms + facts.commit_within_ms + COMMIT_SLACK_MS < basis.begun_ms


def _uncommitted(verdict: RecordVerdict, *, recent: bool) -> RecordVerdict:
    """The verdict on a replica that may never have been acknowledged: it becomes a file only where none is. Its date is
    of its ticket, the file's of a commit: one that looks overwritten, if recent, may have been committed last."""
    if verdict is RecordVerdict.FILE:
        return verdict
    sheltered = verdict in (RecordVerdict.VERSION, RecordVerdict.SHELTERED) or (
        verdict is RecordVerdict.OVERWRITTEN and recent
    )
    return RecordVerdict.SHELTERED if sheltered else RecordVerdict.UNCOMMITTED


def _judge_genuine(facts: ReplicaFacts, context: RecordContext, basis: Basis) -> RecordVerdict:
    newest = max((facts_of(blob).created_ms for blob in context.current if blob.exists), default=Ms(-1))
    if type_of(context.file) == TYPE_FILE and facts.created_ms < newest:
        return RecordVerdict.OVERWRITTEN
    if basis.begun_ms is not None and _long_before(facts, basis.begun_ms) and not basis.holes:
        return RecordVerdict.DELETED
    if basis.begun_ms is not None and facts.created_ms < basis.begun_ms:
        return RecordVerdict.SHELTERED
    if facts.name.startswith(PIECE_OF) or content_of(context.file):  # `pieces` lays these, after all records
        return RecordVerdict.SHELTERED
    if type_of(context.file) == TYPE_FILE:
        return RecordVerdict.VERSION
    return RecordVerdict.SHELTERED if type_of(context.file) else RecordVerdict.FILE


def of_snapshot(facts: ReplicaFacts) -> bool:
    """Return whether these are bytes of a snapshot."""
    return ObjectId(facts.guid) == SNAPSHOTS_OBJECT


def genuine(facts: ReplicaFacts, record_key: str) -> bool:
    """Return whether the cluster has sealed these facts. For a snapshot, size and checksum must be those in its name:
    with false ones no true copy could be read."""
    name, owner, wanted = facts.name, facts.owner, facts.wanted
    if not sealed(record_key, facts.seal, facts.blob, facts.guid, name=name, owner=owner, wanted=wanted):
        return False
    measure = named_measure(name) if of_snapshot(facts) else None
    return measure in (None, (facts.size, facts.checksums.sha256))


def as_sealed(record: ReplicaRecord, record_key: str) -> ReplicaRecord:
    """Return a record with the number of copies that its seal covers: a copy made after a change states the new one."""
    if record.facts is None or genuine(record.facts, record_key):
        return record
    every = (replace(record.facts, wanted=wanted) for wanted in range(bounds.REPLICAS_WANTED_MAX + 1))
    facts = next((facts for facts in every if genuine(facts, record_key)), record.facts)
    assert facts == replace(record.facts, wanted=facts.wanted), "nothing else of a record is altered"
    return replace(record, facts=facts)


def _agree(facts: ReplicaFacts, blob: StoredObject) -> bool:
    stored = facts_of(blob)
    return facts.size == stored.size and not facts.checksums.conflicts(stored.checksums)


def is_of_file(record: ReplicaRecord, verdict: RecordVerdict, basis: Basis) -> bool:
    """Return whether bytes that get no name may be of a file all the same: a piece, or all its bytes for a while.
    Damaged ones may, if the snapshot cannot know them."""
    facts = record.facts
    if facts is None or basis.in_use or not is_guid(facts.guid) or not genuine(facts, basis.record_key):
        return False
    lost = verdict is RecordVerdict.DAMAGED and facts.created_ms >= (basis.begun_ms or 0)
    return lost or verdict is RecordVerdict.SHELTERED


def surely_committed(record: ReplicaRecord, verdict: RecordVerdict) -> bool:
    """Return whether bytes were committed, and are whole."""
    return record.committed and verdict is not RecordVerdict.DAMAGED


def list_location(blob: StoredObject | None, facts: ReplicaFacts, location: Location) -> list[Element]:
    """Add a location to an existing blob."""
    obj = blob_object(facts.blob)
    assert blob is None or blob.id == obj, "a copy is of its own blob"
    alive = put(obj, "locations", str(location), ReplicaState.ALIVE.value, isset("blob", "file"))
    return [alive, file_record(location, facts.blob)]


def unowned(facts: ReplicaFacts, location: Location) -> list[Element]:
    """Make a blob that no file names. A record without a seal may say that it wants any number of copies."""
    wanted = min(max(facts.wanted, 0), bounds.REPLICAS_WANTED_MAX)
    return make_blob(NewBlob(replace(facts, wanted=wanted), (location,)))


def new_file(
    facts: ReplicaFacts, location: Location, parent: StoredObject, name: str, user: Mapping[str, str]
) -> list[Element]:
    """Make a file that was written after the snapshot, under its name of then; `user`: metadata known from that name.
    Its policy is its collection's default, for its own is unknown."""
    new = NewBlob(facts, (location,))
    sections: dict[str, Mapping[str, str]] = {
        "entry": {"type": TYPE_FILE, "GUID": facts.guid, "owner": facts.owner},
        "timestamps": {"created": seconds(facts.created_ms), "modified": seconds(facts.created_ms)},
        "parents": {f"{parent.id}/{name}": "parent"},
        "policy": parent.sections.get("defaultPolicy", {}),
        "metadata": user,
        "states": file_states({"checksumType": known_checksum_type(facts.checksums)}, new),
        "blobs": {FIRST_ORDINAL: facts.blob},
    }
    obj = ObjectId(facts.guid)
    free = (unset("entries", name), unset("entries", name + "/"))
    named = put(parent.id, "entries", name, facts.guid, *free)
    return [check(obj, unset("entry", "type")), *put_all(obj, sections), named, *make_blob(new)]


def new_version(facts: ReplicaFacts, location: Location, context: RecordContext) -> list[Element]:
    """Give a file of the snapshot the bytes that it got since. The old blob stays without a file: a copy by reference
    may have it, known to the snapshot or not."""
    file, new = context.file, NewBlob(facts, (location,))
    assert type_of(file) == TYPE_FILE, "`judge` has seen it"
    assert not content_of(file), "which bytes of a file a piece is cannot be told"
    elements = [check(file.id, version(file.version)), *make_blob(new), *dropped(file)]
    elements += [drop(file.id, "blobs", ordinal) for ordinal in file.sections.get("blobs", {})]
    elements.append(put(file.id, "blobs", FIRST_ORDINAL, facts.blob))
    states = file_states({"checksumType": known_checksum_type(facts.checksums)}, new)
    elements += put_all(file.id, {"states": states, "timestamps": {"modified": seconds(facts.created_ms)}})
    for blob in context.current:
        if len(owners_of(blob)) > 1:
            elements += leave_blob(blob, Guid(file.id), "replaced", facts.created_ms)
    assert all(element.section != "erase" for element in elements), "a rebuild orders nothing to be erased"
    return elements


def snapshot_blob(facts: ReplicaFacts, locations: Sequence[Location], uses: str = "", number: int = 0) -> list[Element]:
    """Name a blob of a snapshot again; a manifest also with the segments that it uses (`uses`). These spare the next
    snapshot from beginning with nothing; it drops the others."""
    assert of_snapshot(facts), "`judge` has seen it"
    named = put(SNAPSHOTS_OBJECT, "blobs", facts.blob, facts.blob)
    elements = [*make_blob(NewBlob(facts, tuple(locations))), named]
    return [*elements, put(SNAPSHOTS_OBJECT, "snapshot", f"{number:013d}", uses)] if uses else elements


def blob_objects(file: StoredObject) -> list[ObjectId]:
    """Return the blobs of a file, as objects."""
    return [blob_object(blob) for blob in blobs_of(file)]
