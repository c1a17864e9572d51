"""What a record beside a replica is worth to a rebuild."""

import pytest

from chelonia.core.ids import BlobId, Guid, Ms, ObjectId, ReferenceId
from chelonia.core.metadata import StoredObject
from chelonia.core.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.shepherd import ReplicaRecord
from chelonia.librarian.metadata.seal import seal
from chelonia.librarian.recovery.rebuild import decide as rebuild
from chelonia.librarian.recovery.rebuild.decide import Basis, Known, Verdict
from tests.support.librarian import HOUR, JOE

KEY = "5a" * 32


@pytest.mark.parametrize(
    ("hours_before", "becomes"),
    [(0.9, Verdict.SHELTERED), (3, Verdict.SHELTERED), (23, Verdict.SHELTERED), (25, Verdict.DELETED)],
)
def test_what_may_have_been_on_its_way_when_the_snapshot_was_taken_is_not_called_deleted(
    hours_before: float, becomes: Verdict
) -> None:
    """Bytes are dated by their ticket: an upload of hours, acknowledged after the snapshot, looks that much older."""
    blob, guid, begun = BlobId("00000000-0000-4000-9000-b00000000001"), Guid("g"), 100 * HOUR
    sealed = seal(KEY, blob, guid, name="/big", owner=JOE, wanted=2)
    created = Ms(int(begun - hours_before * HOUR))
    facts = ReplicaFacts(blob, guid, "/big", JOE, 1, Checksums(), 2, created, sealed)
    record = ReplicaRecord(ReferenceId("r"), ReplicaState.ALIVE, True, False, facts)
    unknown = Known(StoredObject(ObjectId("-"), 0), StoredObject(ObjectId("-"), 0))
    assert rebuild.judge(record, unknown, Basis(KEY, Ms(begun))) is becomes


@pytest.mark.parametrize(
    ("hours_before", "committed", "becomes"),
    [(0.1, False, Verdict.SHELTERED), (25, False, Verdict.UNCOMMITTED), (0.1, True, Verdict.OVERWRITTEN)],
)
def test_bytes_whose_upload_began_before_another_was_committed_may_be_the_last_of_their_file(
    hours_before: float, committed: bool, becomes: Verdict
) -> None:
    """Their commit came after the snapshot, and the Shepherd has not heard of it."""
    blob, guid, begun = BlobId("00000000-0000-4000-9000-b00000000001"), Guid("g"), 100 * HOUR
    sealed = seal(KEY, blob, guid, name="/f", owner=JOE, wanted=2)
    facts = ReplicaFacts(blob, guid, "/f", JOE, 1, Checksums(), 2, Ms(int(begun - hours_before * HOUR)), sealed)
    record = ReplicaRecord(ReferenceId("r"), ReplicaState.ALIVE, committed, False, facts)
    file = StoredObject(ObjectId(guid), 1, {"entry": {"type": "file"}})
    other = StoredObject(ObjectId("blob:other"), 1, {"blob": {"file": guid, "created_ms": str(begun - 1)}})
    known = Known(StoredObject(ObjectId("-"), 0), file, (other,))
    assert rebuild.judge(record, known, Basis(KEY, Ms(begun), late=True)) is becomes
