"""A rebuild's verdict on a record beside a replica."""

import pytest

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.ids import SERVICES_OBJECT, SNAPSHOTS_OBJECT, BlobId, Guid, Ms, ObjectId, ReferenceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.shepherd import ReplicaRecord
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import is_, put, unset
from chelonia.librarian.metadata.seal import seal
from chelonia.librarian.recovery.rebuild import decide as rebuild
from chelonia.librarian.recovery.rebuild.decide import Basis, RecordContext, RecordVerdict
from tests.support.librarian import HOUR, JOE

KEY = "5a" * 32


@pytest.mark.parametrize(
    ("hours_before", "becomes"),
    [
        (0.9, RecordVerdict.SHELTERED),
        (3, RecordVerdict.SHELTERED),
        (23, RecordVerdict.SHELTERED),
        (24.1, RecordVerdict.SHELTERED),  # clocks differ, and a commit is tried again
        (25, RecordVerdict.DELETED),
    ],
)
def test_what_may_have_been_on_its_way_when_the_snapshot_was_taken_is_not_called_deleted(
    hours_before: float, becomes: RecordVerdict
) -> None:
    """Bytes have the date of their ticket: an upload of hours, acknowledged after the snapshot, looks that much
    older."""
    blob, guid, begun = BlobId("00000000-0000-4000-9000-b00000000001"), Guid("g"), 100 * HOUR
    sealed = seal(KEY, blob, guid, name="/big", owner=JOE, wanted=2)
    created = Ms(int(begun - hours_before * HOUR))
    facts = ReplicaFacts(blob, guid, "/big", JOE, 1, Checksums(), 2, created, sealed)
    record = ReplicaRecord(ReferenceId("r"), ReplicaState.ALIVE, True, False, facts)
    unknown = RecordContext(StoredObject(ObjectId("-"), 0), StoredObject(ObjectId("-"), 0))
    assert rebuild.judge(record, unknown, Basis(KEY, Ms(begun))) is becomes


@pytest.mark.parametrize(
    ("hours_before", "committed", "becomes"),
    [
        (0.1, False, RecordVerdict.SHELTERED),
        (25, False, RecordVerdict.UNCOMMITTED),
        (0.1, True, RecordVerdict.SHELTERED),  # a copy of the file may have them, too, whose name is lost
    ],
)
def test_bytes_whose_upload_began_before_another_was_committed_may_be_the_last_of_their_file(
    hours_before: float, committed: bool, becomes: RecordVerdict
) -> None:
    """Their commit came after the snapshot, and the Shepherd does not know it."""
    blob, guid, begun = BlobId("00000000-0000-4000-9000-b00000000001"), Guid("g"), 100 * HOUR
    sealed = seal(KEY, blob, guid, name="/f", owner=JOE, wanted=2)
    facts = ReplicaFacts(blob, guid, "/f", JOE, 1, Checksums(), 2, Ms(int(begun - hours_before * HOUR)), sealed)
    record = ReplicaRecord(ReferenceId("r"), ReplicaState.ALIVE, committed, False, facts)
    file = StoredObject(ObjectId(guid), 1, {"entry": {"type": "file"}})
    other = StoredObject(ObjectId("blob:other"), 1, {"blob": {"file": guid, "created_ms": str(begun - 1)}})
    known = RecordContext(StoredObject(ObjectId("-"), 0), file, (other,))
    assert rebuild.judge(record, known, Basis(KEY, Ms(begun), late=True)) is becomes


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize(
    ("minutes_before", "within_ms", "how", "becomes"),
    [
        (75, HOUR, {}, RecordVerdict.UNCOMMITTED),
        (65, HOUR, {}, RecordVerdict.SHELTERED),  # clocks differ, and a commit is tried again
        (75, 2 * HOUR, {}, RecordVerdict.SHELTERED),
        (75, 0, {}, RecordVerdict.SHELTERED),  # nobody knows for how long
        (75, HOUR, {"holes": True}, RecordVerdict.SHELTERED),
        (75, HOUR, {"begun_ms": None}, RecordVerdict.FILE),
        (-5, HOUR, {}, RecordVerdict.FILE),
    ],
)
def test_what_a_transact_would_have_named_before_the_snapshot_was_never_committed(
    minutes_before: int, within_ms: int, how: dict[str, object], becomes: RecordVerdict, aside: bool
) -> None:
    """A record not known as committed is left out only if its commit was no longer allowed before the snapshot, which
    lacks it. So an acknowledged file is never left out."""
    blob, guid, begun = BlobId("00000000-0000-4000-9000-b00000000001"), Guid("g"), Ms(100 * HOUR)
    sealed = seal(KEY, blob, guid, name="/f", owner=JOE, wanted=2)
    created = Ms(begun - minutes_before * HOUR // 60)
    facts = ReplicaFacts(blob, guid, "/f", JOE, 1, Checksums(), 2, created, sealed, within_ms)
    record = ReplicaRecord(ReferenceId("r"), ReplicaState.ALIVE, False, aside, facts)
    unknown = RecordContext(StoredObject(ObjectId("-"), 0), StoredObject(ObjectId("-"), 0))
    basis = replace(Basis(KEY, begun, late=True), **how)  # type: ignore[arg-type]
    assert rebuild.judge(record, unknown, basis) is becomes
    assert rebuild.judge(replace(record, committed=True), unknown, basis) is not RecordVerdict.UNCOMMITTED
    listed = replace(unknown, blob=StoredObject(ObjectId("-"), 1, {"blob": {"file": guid, "size": "1"}}))
    assert rebuild.judge(record, listed, basis) is RecordVerdict.LISTED


def test_what_no_snapshot_can_be_called_is_told_from_one_by_its_seal() -> None:
    """A made-up size with more digits than Python parses ended every rebuild."""
    name = f"snapshot manifest 0000000000001 {'9' * 5000} {'0' * 64}"
    blob, guid = BlobId("00000000-0000-4000-9000-b00000000001"), Guid(SNAPSHOTS_OBJECT)
    assert not rebuild.genuine(ReplicaFacts(blob, guid, name, JOE, 1, Checksums(), 2, Ms(1), "a seal"), KEY)


@pytest.mark.parametrize(
    ("holder", "created", "taken"),
    [("a", "9.000", True), ("a", "", True), ("c", "9.000", False), ("a", "10.000", False)],
    ids=["read before", "of no known age", "read later", "written since"],
)
def test_an_entry_takes_its_name_from_one_that_was_read_before_it_alone(holder: str, created: str, taken: bool) -> None:
    """A later read says nothing about the entries of a record before the rebuild was begun again."""
    named = put(ObjectId("p"), "entries", "n/", "b", unset("entries", "n"), unset("entries", "n/"))
    parent = StoredObject(ObjectId("p"), 1, {"entries": {"n": holder}})
    there = StoredObject(ObjectId(holder), 1, {"timestamps": {"created": created}} if created else {})
    elements = rebuild.of_the_later(named, parent, (there,), Ms(10_000))
    assert [(each.property, each.value) for each in elements] == ([("n/", "b"), ("n", "")] if taken else [])
    assert all(each.conditions == (is_("entries", "n", holder), unset("entries", "n/")) for each in elements[:1])


@pytest.mark.parametrize(
    ("then", "today", "becomes"),
    [
        ("approved", "", "approved"),
        ("withdrawn", "approved", "withdrawn"),
        ("approved", "withdrawn", ""),
        ("forgotten", "withdrawn", "forgotten"),
        ("withdrawn", "forgotten", ""),
    ],
)
def test_an_identity_that_was_refused_stays_so(then: str, today: str, becomes: str) -> None:
    """One declared lost for good while a rebuild had stopped is not taken for a withdrawn one, which may come back."""
    identity = "https://s1/Shepherd /CN=s1"
    stored = StoredObject(SERVICES_OBJECT, 1, {"shepherd": {identity: then}})
    now = StoredObject(SERVICES_OBJECT, 1, {"shepherd": {identity: today}} if today else {})
    assert [each.value for each in rebuild.restore_services(stored, now)] == ([becomes] if becomes else [])
