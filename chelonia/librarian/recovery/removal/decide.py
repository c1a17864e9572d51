"""The losses of a Shepherd's removal, and the change that removes it, one blob at a time. Pure.

A copy elsewhere counts only if it is verified and its Shepherd proven. An absent Shepherd may never come back either,
and one that has just come back may have lost its disk. A blob that would be lost is named, and goes only when an
administrator has accepted that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chelonia.core.cluster.healing import Loss
from chelonia.core.cluster.replicas import PROVEN, ReplicaState
from chelonia.core.ids import ReferenceId, ServiceId, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.blobs import facts_of, locations_of
from chelonia.librarian.metadata.elements import drop, on_version

CLAIMED = (ReplicaState.CREATING, ReplicaState.STALLED)
"""States of copies that nobody has reported: no loss, as long as the copies exist that they were to be made of."""

Proven = Callable[[ServiceId], bool]
"""Returns whether a Shepherd is heard now, with its disk compared with the metadata: its copies may replace others."""


@dataclass(frozen=True, slots=True)
class Parting:
    """One blob of the Shepherd: the change that removes its locations there, and the loss by it."""

    elements: tuple[Element, ...]
    loss: Loss | None


def part(blob: StoredObject, shepherd: ServiceId, proven: Proven) -> Parting:
    """Decide about a blob as read."""
    found = [(location, state) for location, state in locations_of(blob) if location.shepherd == shepherd]
    own = [location for location, _ in found]
    if not own:
        return Parting((), None)
    had_copy = any(state not in CLAIMED for _, state in found)
    good = [loc.shepherd for loc, state in locations_of(blob) if state in PROVEN and loc.shepherd != shepherd]
    facts = facts_of(blob)
    is_lost = (had_copy or not good) and not any(map(proven, good))
    loss = Loss(facts.guid, facts.name, facts.blob, tuple(dict.fromkeys(good))) if is_lost else None
    elements: list[Element] = []
    for location in own:
        elements += [drop(blob.id, "locations", str(location)), drop(blob.id, "claims", str(location))]
    return Parting(tuple(on_version(elements, blob)), loss)


def records_dropped(shepherd: ServiceId, references: Iterable[ReferenceId]) -> list[Element]:
    """Drop a Shepherd's own records of replicas."""
    return [drop(shepherd_object(shepherd), "file", reference) for reference in references]
