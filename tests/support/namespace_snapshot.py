"""The whole metadata of one moment, and their faults by the rules of `librarian.recovery.invariants`.

`broken` has those that no moment may show, `unsettled` those that healing has still to mend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chelonia.core.ids import (
    BLOB_PREFIX,
    CONTENT_PREFIX,
    PENDING_OBJECT,
    SHEPHERD_PREFIX,
    TRASH_OBJECT,
    ObjectId,
    ServiceId,
    is_guid,
)
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import Finding
from chelonia.librarian.metadata.contents import SEALED, parse_extent
from chelonia.librarian.metadata.elements import outbox_reference
from chelonia.librarian.recovery import invariants


class NamespaceSnapshot:
    """All objects of one moment, whole (wide sections included). An `invariants.RuleContext` at itself."""

    def __init__(self, objects: Iterable[StoredObject]) -> None:
        found = {obj.id: obj for obj in objects}
        self.objects: Mapping[ObjectId, StoredObject] = {key: found[key] for key in sorted(found)}
        """In order of id."""

    def get(self, object_id: ObjectId) -> StoredObject:
        """An object; version 0 when there is none."""
        found = self.objects.get(object_id)
        return found if found is not None else StoredObject(object_id, 0)

    def section(self, object_id: ObjectId, section: str) -> Mapping[str, str]:
        return self.get(object_id).sections.get(section, {})

    def value(self, object_id: ObjectId, section: str, prop: str) -> str:
        return self.get(object_id).value(section, prop)

    def entries(self) -> list[StoredObject]:
        """Files, collections, mount points and pending uploads."""
        return [obj for key, obj in self.objects.items() if is_guid(key)]

    def blobs(self) -> list[StoredObject]:
        return [obj for key, obj in self.objects.items() if key.startswith(BLOB_PREFIX)]

    def shepherds(self) -> list[StoredObject]:
        return [obj for key, obj in self.objects.items() if key.startswith(SHEPHERD_PREFIX)]


def broken(snapshot: NamespaceSnapshot) -> tuple[Finding, ...]:
    """The faults that no moment may show, after any crash. A blob may lose its last copy with the disks, so that is
    none."""
    found: list[Finding] = []
    for obj in snapshot.objects.values():
        found += [finding for finding in invariants.object_rules(snapshot, obj) if finding.rule != invariants.BLOB_LOST]
    for entry in snapshot.entries():
        found += invariants.name_rules(snapshot, entry.id, entry.sections.get("entries", {}).items())
        found += invariants.summary_rules(snapshot, entry.id, entry.sections.get("summaries", {}).items())
        found += invariants.reservation_rules(snapshot, entry.id, entry.sections.get("pending", {}).items())
        found += invariants.upload_rules(snapshot, entry.id, entry.sections.get("uploads", {}))
    for content in (obj for key, obj in snapshot.objects.items() if key.startswith(CONTENT_PREFIX)):
        found += invariants.extent_rules(snapshot, content.id, sorted(content.sections.get("extents", {}).items()))
        found += invariants.named_rules(snapshot, content.id, content.sections.get("named", {}).items())
        found += sum_rules(content)
        found += invariants.part_rules(snapshot, content.id, content.sections.get("parts", {}).items())
    for shepherd in snapshot.shepherds():
        found += _shepherd_rules(snapshot, shepherd)
    for index in (TRASH_OBJECT, PENDING_OBJECT):
        for section in ("due", "formerly"):
            found += invariants.index_rules(snapshot, index, snapshot.section(index, section))
    return tuple(found)


def sum_rules(content: StoredObject) -> Iterator[Finding]:
    """Check that `named`, and the number of extents, sum up the extents of a whole content. fsck has no such rule, as
    it reads page by page."""
    if content.value("content", "state") != SEALED:
        return
    sums, extents = dict[str, int](), content.sections.get("extents", {})
    for key in extents:
        extent = parse_extent(key, extents[key])
        sums[extent.blob] = sums.get(extent.blob, 0) + extent.length
    told = {blob: int(count) for blob, count in content.sections.get("named", {}).items() if count != "0"}
    if sums != told or content.value("content", "extents") != str(len(extents)):
        rule, text = invariants.NAMED_WRONG, f"{told} are said to be named, {sums} are, in {len(extents)} extents"
        yield Finding(content.id, rule, "", invariants.SEVERITY[rule], text)


def _shepherd_rules(snapshot: NamespaceSnapshot, shepherd: StoredObject) -> Iterator[Finding]:
    name = ServiceId(shepherd.id.removeprefix(SHEPHERD_PREFIX))
    orders = shepherd.sections.get("erase", {})
    left = invariants.unlisted(snapshot, name, shepherd.sections.get("file", {}).items())
    yield from invariants.record_rules(name, left, {outbox_reference(key) for key in orders})
    yield from invariants.order_rules(snapshot, name, orders.items())


def unsettled(snapshot: NamespaceSnapshot) -> tuple[Finding, ...]:
    """The work left for healing: copies missing or surplus, claims running, erasures not confirmed."""
    found = [finding for blob in snapshot.blobs() for finding in invariants.object_work(blob)]
    for shepherd in snapshot.shepherds():
        name = ServiceId(shepherd.id.removeprefix(SHEPHERD_PREFIX))
        found += invariants.order_work(name, tuple(shepherd.sections.get("erase", {}).items()))
    return tuple(found)
