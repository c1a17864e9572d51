"""Which blobs have to be planned after a transact: those it changed, but for what it made with all its copies. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chelonia.core.cluster.replicas import ReplicaState, parse_location
from chelonia.core.ids import BLOB_PREFIX, BlobId, ObjectId, ServiceId
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.librarian.metadata.elements import version
from chelonia.librarian.repair.plan.decide import NodeHealth

_NEW = version(0)


def to_plan(elements: Sequence[Element], health: Mapping[ServiceId, NodeHealth]) -> list[BlobId]:
    """The blobs that a transact has left something to do about, or may have: a new one with as many copies as wanted,
    each on another Shepherd that is well, has nothing. If one of these fails, all that it had is looked through."""
    changed: dict[ObjectId, list[Element]] = {}
    made = set[ObjectId]()
    for element in [element for element in elements if element.object.startswith(BLOB_PREFIX)]:
        if element.change is ChangeType.CHECK:
            if _NEW in element.conditions:
                made.add(element.object)
        elif element.change is not ChangeType.DELETE:
            changed.setdefault(element.object, []).append(element)
    return [
        BlobId(blob.removeprefix(BLOB_PREFIX))
        for blob, own in changed.items()
        if blob not in made or not _has_all(own, health)
    ]


def _has_all(own: Sequence[Element], health: Mapping[ServiceId, NodeHealth]) -> bool:
    wanted = next((int(e.value) for e in own if (e.section, e.property) == ("blob", "wanted")), -1)
    places = [e for e in own if e.section == "locations"]
    nodes = [health.get(shepherd) for shepherd in {parse_location(e.property).shepherd for e in places}]
    well = all(n is not None and n.present and n.steady and n.proven and not n.draining for n in nodes)
    return well and len(nodes) == len(places) == wanted and all(e.value == ReplicaState.ALIVE.value for e in places)
