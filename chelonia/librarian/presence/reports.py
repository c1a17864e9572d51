"""A Shepherd's report as pure decisions: whether it is its turn, and the changes of each replica in it.

Reports are numbered within a boot. The transact that applies one conditions on the number before, so that a lost,
repeated or overtaken report changes nothing it should not (docs/design/002-protocols.md, Reports). A replica's state
changes only along `replicas.TRANSITIONS`; an impossible change is ignored.

Invariants: nothing is erased for being unknown. A replica whose erasure is in the outbox (it has a `file` record but no
location) does not come back. Own records are found by exact id, never by prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import PROVEN, Cause, Location, ReplicaState, next_state
from chelonia.core.ids import SHEPHERD_PREFIX, BlobId, Ms, ReferenceId, ServiceId, is_uuid, shepherd_object
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import Report, ReportedReplica
from chelonia.librarian.metadata.blobs import facts_of, locations_of
from chelonia.librarian.metadata.elements import as_read, check, drop, file_record, is_, isset, put, unset

CAUSES = {
    ReplicaState.ALIVE: Cause.VERIFIED,
    ReplicaState.INVALID: Cause.DAMAGED,
    ReplicaState.STALLED: Cause.LATE,
    ReplicaState.DELETED: Cause.ERASED,
}
"""The event behind a reported state; a report of another state changes nothing."""


@dataclass(frozen=True, slots=True)
class ReportPosition:
    """The last report applied for a Shepherd (boot 0: none yet)."""

    boot: int
    number: int


@dataclass(frozen=True, slots=True)
class ReportContext:
    """The records to judge a report by: the Shepherd's `report` and `file` records, and the blobs named."""

    shepherd: StoredObject
    blobs: Mapping[BlobId, StoredObject]

    def blob_of(self, replica: ReportedReplica) -> BlobId:
        """Return the blob of a replica: by the record kept, else as reported."""
        return BlobId(self.shepherd.value("file", replica.reference)) or replica.blob


@dataclass(slots=True)
class Judged:
    """The result of a report at `now`: elements of the transact, references of unknown replicas, references that it
    newly lists, and notes for the log."""

    now: Ms
    elements: list[Element] = field(default_factory=list)
    unknown: list[ReferenceId] = field(default_factory=list)
    unlisted: list[ReferenceId] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Entries that cannot be true, and change nothing: such a Shepherd is broken or lies."""
    fresh: set[BlobId] = field(default_factory=set)
    """Blobs of which this report lists a copy."""
    removed: set[Location] = field(default_factory=set)
    """Copies whose locations this report removes."""


def records_needed(report: Report) -> Filter:
    """Return the filter of the Shepherd's object for a report."""
    return (Needed("report"), *(Needed("file", replica.reference) for replica in report.replicas))


def reached(shepherd: StoredObject) -> ReportPosition:
    """Return the last report applied, as stored."""
    assert shepherd.id.startswith(SHEPHERD_PREFIX), "a Shepherd was read: no other object has reported"
    return ReportPosition(int(shepherd.value("report", "boot", "0")), int(shepherd.value("report", "number", "0")))


def still_of(shepherd: ServiceId, boot: int) -> Element:
    """Return the condition that this boot is still the last that a Shepherd has reported in (0: none)."""
    return check(shepherd_object(shepherd), as_read("report", "boot", str(boot) if boot else ""))


def is_next(report: Report, last: ReportPosition) -> bool:
    """Return whether this report is the one to apply now: the next of its boot, or the first of a newer boot."""
    if report.boot == last.boot:
        return report.number == last.number + 1
    return report.boot > last.boot and report.number == 1


def accepted(report: Report, last: ReportPosition) -> int:
    """Return the number reached for the report's boot: the sender repeats from there."""
    return last.number if report.boot == last.boot else 0


def has_obeyed(shepherd: ServiceId, authority: Position) -> Element:
    """Record that a Shepherd has confirmed the erasures ordered with this authority."""
    obeyed = f"{authority.generation} {authority.sequence}"
    return put(shepherd_object(shepherd), "report", "obeyed", obeyed)


def last_news(shepherd: StoredObject) -> ReportPosition:
    """Return the last report applied that was not the first of its boot, which carries no news; boot 0: none, or
    unknown. A first report keeps it in `before`, with its own boot; older software leaves another boot there."""
    last = reached(shepherd)
    boot, number, kept_by = map(int, shepherd.value("report", "before", "0 0 0").split())
    if last.number > 1:
        return last
    return ReportPosition(boot, number) if kept_by == last.boot else ReportPosition(0, 0)


def before(report: Report, shepherd: StoredObject, generation: int) -> tuple[ReportPosition, int]:
    """Return, for the answer to a report, how far its Shepherd was believed before. To the first report of a boot: the
    last one with news, and the sequence of the newest confirmed order of this generation. To a first report of an
    earlier boot: the boot that has reported, and number 0. To any other: zeros."""
    last = reached(shepherd)
    if report.number == 1 and report.boot < last.boot:
        return ReportPosition(last.boot, 0), 0
    if report.number != 1 or not (is_next(report, last) or last == ReportPosition(report.boot, 1)):
        return ReportPosition(0, 0), 0
    ordered, sequence = map(int, shepherd.value("report", "obeyed", "0 0").split())
    return last_news(shepherd), sequence if ordered == generation else 0


def judge(report: Report, context: ReportContext, now: Ms) -> Judged:
    """Decide everything that a report in its turn changes at `now`, its number included."""
    last = reached(context.shepherd)
    assert is_next(report, last) or last == ReportPosition(report.boot, report.number), "it is its turn, or a repeat"
    judged = Judged(now)
    obj = shepherd_object(report.shepherd)
    boot, number = context.shepherd.value("report", "boot"), context.shepherd.value("report", "number")
    conditions = (as_read("report", "boot", boot), as_read("report", "number", number))
    judged.elements.append(put(obj, "report", "boot", str(report.boot), *conditions))
    judged.elements.append(put(obj, "report", "number", str(report.number)))
    if report.number == 1:
        news = last_news(context.shepherd)
        # as the answer says (`before`)
        so_far = as_read("report", "obeyed", context.shepherd.value("report", "obeyed"))
        judged.elements.append(put(obj, "report", "before", f"{news.boot} {news.number} {report.boot}", so_far))
    replicas = {replica.reference: replica for replica in report.replicas}.values()
    for replica in sorted(replicas, key=lambda replica: replica.state is not ReplicaState.DELETED):  # may make place
        _judge_one(Location(report.shepherd, replica.reference), replica, context, judged)
    assert all(element.section != "erase" for element in judged.elements), "no report orders an erasure"
    assert set(judged.unknown).isdisjoint(judged.unlisted), "a replica is unknown, or listed from now on"
    return judged


def _judge_one(location: Location, replica: ReportedReplica, context: ReportContext, judged: Judged) -> None:
    record = context.shepherd.value("file", replica.reference)
    blob_id = context.blob_of(replica)
    blob = context.blobs.get(blob_id)
    cause = CAUSES.get(replica.state)
    if why := _impossible(replica, record):
        judged.refused.append(f"{location}: {why}")
        return
    if blob is None or not blob.exists:
        if cause is Cause.ERASED and record:
            judged.elements.append(_forget(location, record))
        elif cause is not Cause.ERASED and not record:
            judged.unknown.append(replica.reference)
        return
    if cause is Cause.VERIFIED and _contradicts(replica, blob):
        judged.notes.append(f"{location}: reported alive, but not with the bytes of {blob_id}")
        cause = Cause.DAMAGED
    stored = blob.value("locations", str(location))
    if not stored:
        _judge_unlisted(location, cause, record, blob, judged, blob_id)
    elif cause is not None:
        _change(location, ReplicaState(stored), cause, blob, judged)


def _impossible(replica: ReportedReplica, record: str) -> str:
    """The reason why a reported replica cannot be, "" when it can."""
    if not record and not (is_uuid(replica.reference) and (is_uuid(replica.blob) or not replica.blob)):
        return "neither a reference nor a blob is called so"
    sums = replica.checksums
    if replica.state is ReplicaState.ALIVE and (replica.size < 0 or not (sums.sha256 or sums.md5 or sums.adler32)):
        return "it is called alive without its size or a checksum"
    return ""


def _has_another(location: Location, blob: StoredObject, judged: Judged, blob_id: BlobId) -> bool:
    """Whether a Shepherd that reports one more copy of a blob has a verified one: it keeps one of each."""
    listed = (place.shepherd for place, state in locations_of(blob) if state in PROVEN and place not in judged.removed)
    return blob_id in judged.fresh or location.shepherd in listed


def _judge_unlisted(
    location: Location, cause: Cause | None, record: str, blob: StoredObject, judged: Judged, blob_id: BlobId
) -> None:
    """Judge a replica of a known blob that is not among its locations: new, to be erased, or none of ours."""
    assert not blob.value("locations", str(location)), "what is listed changes its state"
    if cause is Cause.ERASED and record:
        judged.elements.append(_forget(location, record))
    elif cause is Cause.VERIFIED and not record and _has_another(location, blob, judged, blob_id):
        # Honest: an abandoned upload, or a copy by order, came late. Judged again later: the other may be gone then.
        judged.notes.append(f"{location}: not listed, this Shepherd has a copy of {blob_id} already")
        judged.unknown.append(location.reference)
    elif cause is Cause.VERIFIED and not record:
        judged.fresh.add(blob_id)
        judged.unlisted.append(location.reference)
        fresh = (unset("locations", str(location)), isset("blob", "file"))
        judged.elements.append(put(blob.id, "locations", str(location), ReplicaState.ALIVE.value, *fresh))
        judged.elements.append(file_record(location, blob_id, anew=True))
    elif cause is not Cause.ERASED and not record:
        judged.unknown.append(location.reference)


def _change(location: Location, state: ReplicaState, cause: Cause, blob: StoredObject, judged: Judged) -> None:
    after = next_state(state, cause)
    key = str(location)
    if after is None:
        judged.notes.append(f"{location}: {cause.value} cannot happen to a replica that is {state.value}")
        return
    if after is state:
        return
    judged.notes.append(f"{location}: {state.value} -> {after.value}")
    as_it_was = is_("locations", key, state.value)
    if after is ReplicaState.DELETED:
        judged.removed.add(location)
        judged.elements.append(drop(blob.id, "locations", key, as_it_was))
        judged.elements.append(drop(shepherd_object(location.shepherd), "file", location.reference))
    else:
        judged.elements.append(put(blob.id, "locations", key, after.value, as_it_was))
    if after is ReplicaState.INVALID:
        judged.elements.append(put(blob.id, "claims", key, str(judged.now)))
    elif blob.value("claims", key):
        judged.elements.append(drop(blob.id, "claims", key))


def _forget(location: Location, record: str) -> Element:
    """Drop a `file` record whose replica is gone; the Shepherd confirms the outbox record, if any, by itself."""
    return drop(shepherd_object(location.shepherd), "file", location.reference, is_("file", location.reference, record))


def _contradicts(replica: ReportedReplica, blob: StoredObject) -> bool:
    facts = facts_of(blob)
    wrong_size = replica.size not in (-1, facts.size)
    return wrong_size or replica.checksums.conflicts(facts.checksums)
