"""The blobs to plan after a transact: those it changed, but for new ones with all their copies. Pure.

A part of an upload needs only the copies that were durable when it was taken, if these are two or more. Further ones
would take disks and network from the parts to come, and are in vain if the upload is given up. They are made when the
parts are laid as a file; if a Librarian ends before, the survey finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chelonia.core.cluster.replicas import ReplicaState, parse_location
from chelonia.core.ids import BLOB_PREFIX, CONTENT_PREFIX, BlobId, ObjectId, ServiceId
from chelonia.core.ports.ahash import ChangeType, Condition, Element
from chelonia.librarian.metadata.elements import version
from chelonia.librarian.repair.plan.decide import NodeHealth

_NEW = version(0)
_CHECK: Final = ChangeType.CHECK
_ALIVE: Final = ReplicaState.ALIVE.value
PART_COPIES: Final = 2
"""Good copies of a part that are enough until it belongs to a file."""


def to_plan(elements: Sequence[Element], health: Mapping[ServiceId, NodeHealth]) -> list[BlobId]:
    """Return the blobs that may need work after a transact. A new one needs none with as many copies as wanted, each on
    another Shepherd that is well. If one of these fails, a round goes through all its replicas."""
    changed: dict[ObjectId, list[Element]] = {}
    made, part, laid = set[ObjectId](), False, False
    for element in elements:  # one pass: every transact that applies comes here
        if element.object.startswith(BLOB_PREFIX):
            if element.change is _CHECK:
                if _NEW in element.conditions:
                    made.add(element.object)
            elif element.change is not ChangeType.DELETE:
                changed.setdefault(element.object, []).append(element)
        elif element.section == "parts":
            part = True
        elif element.change is _CHECK and element.object.startswith(CONTENT_PREFIX):
            laid = laid or _lays(element.conditions)
    plain = [
        BlobId(blob.removeprefix(BLOB_PREFIX))
        for blob, own in changed.items()
        if blob not in made or not _has_enough(own, health, part=part)
    ]
    return plain + _laid(elements) if laid else plain


def _has_enough(own: Sequence[Element], health: Mapping[ServiceId, NodeHealth], *, part: bool) -> bool:
    wanted, places, shepherds = -1, 0, set[ServiceId]()
    for element in own:
        if element.section == "locations":
            if element.value != _ALIVE:
                return False
            places += 1
            shepherds.add(parse_location(element.property).shepherd)
        elif element.property == "wanted" and element.section == "blob":
            wanted = int(element.value)
    for shepherd in shepherds:
        node = health.get(shepherd)
        if node is None or not node.present or not node.steady or not node.proven or node.draining:
            return False
    count = len(shepherds)
    assert count <= places, "a place is at one Shepherd"
    return count == places and (count == wanted or (part and PART_COPIES <= count < wanted))


def _lays(conditions: Sequence[Condition]) -> bool:
    """Whether these are of the transact in which a file gets the bytes of parts (`parts.decide.lay_page`)."""
    return any(condition.property == "order" and condition.section == "content" for condition in conditions)


def _laid(elements: Sequence[Element]) -> list[BlobId]:
    """The parts whose bytes belong to a file from now on."""
    return [BlobId(each.property) for each in elements if each.section == "named" and each.value not in ("", "0")]
