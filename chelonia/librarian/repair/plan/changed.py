"""The blobs to plan after a transact: those it changed, but for new ones with all their copies. Pure.

A part of an upload needs only the copies that were durable when it was taken, if these are two or more. Further ones
would take disks and network from the parts to come, and are in vain if the upload is given up. They are made when the
parts are laid as a file; if a Librarian ends before, the survey finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chelonia.core.cluster.replicas import ReplicaState, parse_location
from chelonia.core.ids import BLOB_PREFIX, BlobId, ObjectId, ServiceId
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.librarian.metadata.elements import version
from chelonia.librarian.repair.plan.decide import NodeHealth

_NEW = version(0)
PART_COPIES: Final = 2
"""Good copies of a part that are enough until it belongs to a file."""


def to_plan(elements: Sequence[Element], health: Mapping[ServiceId, NodeHealth]) -> list[BlobId]:
    """Return the blobs that may need work after a transact. A new one needs none with as many copies as wanted, each on
    another Shepherd that is well. If one of these fails, a round goes through all its replicas."""
    changed: dict[ObjectId, list[Element]] = {}
    made = set[ObjectId]()
    for element in [element for element in elements if element.object.startswith(BLOB_PREFIX)]:
        if element.change is ChangeType.CHECK:
            if _NEW in element.conditions:
                made.add(element.object)
        elif element.change is not ChangeType.DELETE:
            changed.setdefault(element.object, []).append(element)
    part = any(element.section == "parts" for element in elements)
    plain = [
        BlobId(blob.removeprefix(BLOB_PREFIX))
        for blob, own in changed.items()
        if blob not in made or not _has_enough(own, health, part=part)
    ]
    return plain + _laid(elements)


def _has_enough(own: Sequence[Element], health: Mapping[ServiceId, NodeHealth], *, part: bool) -> bool:
    wanted = next((int(e.value) for e in own if (e.section, e.property) == ("blob", "wanted")), -1)
    places = [e for e in own if e.section == "locations"]
    nodes = [health.get(shepherd) for shepherd in {parse_location(e.property).shepherd for e in places}]
    well = all(n is not None and n.present and n.steady and n.proven and not n.draining for n in nodes)
    is_spread = well and len(nodes) == len(places) and all(e.value == ReplicaState.ALIVE.value for e in places)
    return is_spread and (len(nodes) == wanted or (part and PART_COPIES <= len(nodes) < wanted))


def _laid(elements: Sequence[Element]) -> list[BlobId]:
    """The parts whose bytes belong to a file from now on (`parts.decide.lay_page`)."""
    checks = [each for each in elements if each.change is ChangeType.CHECK]
    properties = {(condition.section, condition.property) for each in checks for condition in each.conditions}
    if ("content", "order") not in properties:
        return []
    return [BlobId(each.property) for each in elements if each.section == "named" and each.value not in ("", "0")]
