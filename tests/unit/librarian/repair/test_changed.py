"""The blobs to plan after a transact."""

from __future__ import annotations

import pytest

from chelonia.core.cluster.replicas import Checksums, Location, ReplicaFacts
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.parts import UploadedPart
from chelonia.core.ids import BlobId, ContentId, Dn, Guid, Ms, ReferenceId, ServiceId, blob_object, content_object
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import NewBlob, make_blob
from chelonia.librarian.metadata.elements import drop, erase, put
from chelonia.librarian.namespace.parts.decide import Stored, lay_page
from chelonia.librarian.repair.plan.changed import to_plan
from chelonia.librarian.repair.plan.decide import NodeHealth

BLOB = BlobId("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
HEALTH = {
    ServiceId(f"s{n}"): NodeHealth(NodeView(ServiceId(f"s{n}"), Dn(""), "", Ms(0)), present=True) for n in (1, 2, 3)
}


def made(*shepherds: str, wanted: int = 2) -> list:  # type: ignore[type-arg]
    facts = ReplicaFacts(BLOB, Guid("g"), "/f", Dn("/CN=joe"), 5, Checksums("00"), wanted, Ms(1))
    places = tuple(Location(ServiceId(s), ReferenceId(f"r{n}")) for n, s in enumerate(shepherds))
    return make_blob(NewBlob(facts, places))


def test_a_new_blob_with_all_its_copies_needs_no_plan() -> None:
    assert to_plan(made("s1", "s2"), HEALTH) == []


@pytest.mark.parametrize("shepherds", [(), ("s1",), ("s1", "s1"), ("s1", "s2", "s3"), ("s1", "unknown")])
def test_one_with_more_or_fewer_is_planned(shepherds: tuple[str, ...]) -> None:
    assert to_plan(made(*shepherds), HEALTH) == [BLOB]


@pytest.mark.parametrize("trouble", ["present", "steady", "proven", "draining"])
def test_one_on_a_shepherd_that_is_not_well_is_planned(trouble: str) -> None:
    ill = replace(HEALTH[ServiceId("s1")], **{trouble: trouble == "draining"})
    assert to_plan(made("s1", "s2"), {**HEALTH, ServiceId("s1"): ill}) == [BLOB]


def test_one_that_was_there_is_planned_whatever_is_changed_of_it_but_for_one_that_goes() -> None:
    blob = blob_object(BLOB)
    assert to_plan(made("s1", "s2")[1:], HEALTH) == [BLOB]
    assert to_plan([drop(blob, "locations", "s1 r0")], HEALTH) == [BLOB]
    assert to_plan([*made("s1", "s2"), put(blob, "locations", "s3 r9", "creating")], HEALTH) == [BLOB]
    assert to_plan([erase(blob)], HEALTH) == []


def test_a_part_with_two_good_copies_is_planned_when_it_is_laid_as_a_file() -> None:
    content = content_object(ContentId("c0"))
    part = put(content, "parts", "00001", "of this blob")
    assert to_plan([*made("s1", "s2", wanted=3), part], HEALTH) == []
    assert to_plan([*made("s1", "s2", wanted=3)], HEALTH) == [BLOB]
    for shepherds in (("s1",), ("s1", "s1"), ("s1", "unknown")):
        assert to_plan([*made(*shepherds, wanted=3), part], HEALTH) == [BLOB]
    stored = [Stored(UploadedPart(1, 5, "e", Ms(1)), BLOB)]
    assert to_plan(lay_page(content, "o", {BLOB: Extent(0, 5, BLOB)}, stored), HEALTH) == [BLOB]
    assert to_plan(lay_page(content, "o", {}, stored), HEALTH) == [], "it was not chosen"
    assert to_plan([put(content, "named", BLOB, "5")], HEALTH) == [], "what is written is planned as it is made"
