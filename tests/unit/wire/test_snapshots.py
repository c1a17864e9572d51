"""Snapshots as bytes: their contents, the segments that a change touches, and rejected ones."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ObjectId
from chelonia.core.metadata import StoredObject
from chelonia.wire import snapshots
from chelonia.wire.snapshots import Manifest, PageLocation, Pager, Segments, SnapshotPage
from tests.support.failing import fails

KEY, OTHER = "00" * 32, "11" * 32
MANIFEST = Manifest("c", 2, 1_700_000_000_000, 3, (BlobId("s1"), BlobId("s2")), (PageLocation("ab" * 20, 0, 0, 9),))


def objects(count: int, changed: int = -1) -> list[StoredObject]:
    return [
        StoredObject(ObjectId(f"{n:08x}"), 7, {"entry": {"type": "file", "owner": "/CN=é" if n != changed else "x"}})
        for n in range(count)
    ]


def cut(stored: list[StoredObject]) -> list[SnapshotPage]:
    pager = Pager()
    pages = [page for obj in stored if (page := pager.take(obj))]
    rest = pager.rest()
    assert pager.objects == len(stored)
    return [*pages, rest] if rest else pages


@given(st.lists(st.text("0123456789abcdef-:", min_size=1, max_size=8), unique=True).map(sorted))
def test_objects_come_back_in_order(ids: list[str]) -> None:
    stored = [StoredObject(ObjectId(each), 1, {"s": {"p": each}}) for each in ids]
    assert [obj for page in cut(stored) for obj in snapshots.decode_page(page.body, page.digest)] == stored


def test_one_change_one_more_or_one_less_touches_one_page() -> None:
    before = {page.digest for page in cut(objects(20_000))}
    assert len(before) > 200
    others = (objects(20_000, changed=777), objects(20_000)[:500] + objects(20_000)[501:], objects(20_001))
    for after in others:
        assert len({page.digest for page in cut(after)} - before) == 1


def test_pages_are_bounded_whatever_the_ids() -> None:
    stored = [obj for obj in objects(200_000) if snapshots.hashlib.sha256(obj.id.encode()).digest()[0] & 0x3F]
    assert max(len(list(snapshots.decode_page(p.body, p.digest))) for p in cut(stored[:2000])) == 512


def test_a_manifest_comes_back_and_is_believed_only_under_its_key() -> None:
    raw = snapshots.encode_manifest(MANIFEST, KEY)
    assert snapshots.decode_manifest(raw, KEY) == MANIFEST
    for bad in (raw[:-1], raw[:40] + b"x" + raw[41:], b"", b"CHLM" + raw[4:20]):
        with fails(Kind.CHECKSUM):
            snapshots.decode_manifest(bad, KEY)
    with pytest.raises(CheloniaError, match="record key"):
        snapshots.decode_manifest(raw, OTHER)


def test_another_page_than_the_manifest_names_is_refused() -> None:
    one, two = snapshots.encode_page([("a", {})]), snapshots.encode_page([("b", {})])
    with fails(Kind.CHECKSUM):
        list(snapshots.decode_page(two.body, one.digest))


def test_what_inflates_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots.bounds, "SNAPSHOT_INFLATED_BYTES_MAX", 1000)
    body = snapshots.PAGE_MAGIC + zlib.compress(bytes(100_000))
    with fails(Kind.TOO_LARGE):
        list(snapshots.decode_page(body, snapshots.page_digest(body)))


def test_pages_are_gathered_into_segments_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots.bounds, "SNAPSHOT_SEGMENT_BYTES", 3000)
    gathered, bodies, places = Segments.empty(), [], []
    pages = cut(objects(5000))
    for page in pages:
        if gathered.add(page):
            body, new = gathered.seal(len(bodies))
            bodies.append(body)
            places += new
    body, new = gathered.seal(len(bodies))
    bodies.append(body)
    places += new
    assert len(bodies) > 3
    for page, place in zip(pages, places, strict=True):
        assert bodies[place.segment][place.offset : place.offset + place.length] == page.body
    manifest = Manifest("c", 1, 0, 5000, (), tuple(places[: len(places) // 2]))
    shares = snapshots.live_share(manifest, {n: len(body) for n, body in enumerate(bodies)})
    assert shares[0] == 1.0
    assert shares[len(bodies) - 1] == 0.0
    assert set(snapshots.kept_places(manifest, {0})) == {place.digest for place in places if place.segment == 0}


@pytest.mark.parametrize(
    "name", ["snapshot manifest x", "snapshot manifest", "snapshot manifest 1 5", "/a/b", "snapshot other 1", ""]
)
def test_other_names_are_no_snapshots(name: str) -> None:
    assert snapshots.parse_snapshot_name(name) is None


def test_the_name_of_a_snapshot_says_what_and_when() -> None:
    plain = snapshots.snapshot_name("segment", 17)
    assert (snapshots.parse_snapshot_name(plain), snapshots.named_measure(plain)) == (("segment", 17), None)
    name = snapshots.measured_name(plain, 5, "ab" * 32)
    assert (snapshots.parse_snapshot_name(name), snapshots.named_measure(name)) == (("segment", 17), (5, "ab" * 32))


def test_a_page_has_the_bytes_of_the_document() -> None:
    document = (Path(__file__).parents[3] / "docs/formats/snapshots.md").read_text("utf-8")
    page = snapshots.encode_page([("0", {"entry": {"type": "collection"}})])
    assert f"`{zlib.decompress(page.body[4:]).hex(' ')}`" in document
