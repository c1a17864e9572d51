"""Pages of a snapshot that cannot be read at their place are read wherever other snapshots have the very same."""

from __future__ import annotations

import pytest

from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, BlobId, Dn, Ms
from chelonia.librarian.recovery.rebuild.pages import SnapshotBlob, SnapshotPages
from chelonia.wire.snapshots import Manifest, PageLocation, encode_page, snapshot_name

PAGE = encode_page([("a", {"entry": {"type": "file"}})])
OURS, LOST, LEFT = BlobId("ours"), BlobId("of another snapshot, lost too"), BlobId("of a third, left")


def named(name: str, blob: BlobId) -> SnapshotBlob:
    return SnapshotBlob(ReplicaFacts(blob, ROOT, name, Dn(""), 1, Checksums(), 1, Ms(0)))


def manifest(number: int, segment: BlobId) -> Manifest:
    return Manifest("c", 1, number, 1, (segment,), (PageLocation(PAGE.digest, 0, 3, len(PAGE.body)),))


@pytest.mark.parametrize("left", [True, False])
async def test_a_lost_page_is_looked_for_in_every_other_snapshot(left: bool) -> None:
    manifests = {number: manifest(number, blob) for number, blob in ((3, OURS), (2, LOST), (1, LEFT))}
    found = {
        BlobId(f"m{number}"): named(snapshot_name("manifest", number), BlobId(f"m{number}")) for number in (3, 2, 1)
    }
    found |= {blob: named(snapshot_name("segment", 1), blob) for blob in (OURS, LOST, LEFT)}
    asked = list[BlobId]()

    async def manifest_of(each: SnapshotBlob) -> Manifest:
        return manifests[int(each.facts.blob[1:])]

    async def read(each: SnapshotBlob) -> bytes:
        asked.append(each.facts.blob)
        if each.facts.blob == LEFT and left:
            return b"xyz" + PAGE.body
        raise CheloniaError(Kind.NO_REPLICA, "read")

    pages = SnapshotPages(manifest_of, read, found, manifests[3], {})
    (place,) = manifests[3].pages
    if left:
        assert [each.id for each in await pages.objects(place)] == ["a"]
    else:
        with pytest.raises(CheloniaError) as lost:
            await pages.objects(place)
        assert lost.value.kind is Kind.CHECKSUM
    assert asked == [OURS, LOST, LEFT]
