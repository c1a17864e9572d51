"""The administrators' orders to healing: paused or not, and its limits. Stored for all Librarians, pure.

It stands beside the lease, which every Librarian reads each tick, so an order is in force everywhere a tick later.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.core import bounds
from chelonia.core.cluster.healing import KEEP, HealAction, HealControl, HealOrder, NodeCursor
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import REPAIR_OBJECT, Ms, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.elements import drop, put
from chelonia.librarian.settings import LibrarianSettings

CONTROL = "control"
CURSORS = "cursors"


def control_of(stored: StoredObject, settings: LibrarianSettings) -> HealControl:
    """Return the controls in force: as ordered, else as this Librarian is configured."""
    assert stored.id == REPAIR_OBJECT, "the orders were read"
    rate = _number(stored.value(CONTROL, "bytes_per_s"))
    copies = _number(stored.value(CONTROL, "copies_per_node"))
    return HealControl(
        bytes_per_s=settings.copy_bytes_per_s_max if rate is None else rate,
        copies_per_node=settings.copies_per_node_max if copies is None else copies,
        paused_by=stored.value(CONTROL, "paused_by"),
        paused_ms=Ms(_number(stored.value(CONTROL, "paused_ms")) or 0),
    )


def ordered(order: HealOrder, by: str, now: Ms) -> list[Element]:
    """Return the change that stores an order. Raises: BAD_REQUEST for limits out of range."""
    match order.action:
        case HealAction.PAUSE:
            return [put(REPAIR_OBJECT, CONTROL, "paused_by", by), put(REPAIR_OBJECT, CONTROL, "paused_ms", str(now))]
        case HealAction.RESUME:
            return [drop(REPAIR_OBJECT, CONTROL, "paused_by"), drop(REPAIR_OBJECT, CONTROL, "paused_ms")]
        case HealAction.RATE:
            return _limits(order)


def _limits(order: HealOrder) -> list[Element]:
    if order.bytes_per_s < KEEP:
        raise CheloniaError(Kind.BAD_REQUEST, "heal", cause="a rate is 0 (no limit) or a number of bytes per second")
    if order.copies_per_node != KEEP and not 1 <= order.copies_per_node <= bounds.COPIES_IN_FLIGHT_PER_NODE_MAX:
        cause = f"a Shepherd sends, and takes, 1 to {bounds.COPIES_IN_FLIGHT_PER_NODE_MAX} repair copies at once"
        raise CheloniaError(Kind.BAD_REQUEST, "heal", cause=cause)
    elements = []
    if order.bytes_per_s != KEEP:
        elements.append(put(REPAIR_OBJECT, CONTROL, "bytes_per_s", str(order.bytes_per_s)))
    if order.copies_per_node != KEEP:
        elements.append(put(REPAIR_OBJECT, CONTROL, "copies_per_node", str(order.copies_per_node)))
    if not elements:
        raise CheloniaError(Kind.BAD_REQUEST, "heal", cause="name a rate, a number of copies, or both")
    return elements


def cursors_of(stored: StoredObject) -> dict[ServiceId, tuple[Ms, str]]:
    """Return the stored cursors: by Shepherd, the time of its loss and the last reference planned."""
    assert stored.id == REPAIR_OBJECT, "the cursors were read"
    found = {}
    for shepherd, text in stored.sections.get(CURSORS, {}).items():
        loss, _, after = text.partition(" ")
        if loss.isdecimal() and after:
            found[ServiceId(shepherd)] = (Ms(int(loss)), after)
    return found


def moved(
    stored: Mapping[ServiceId, tuple[Ms, str]], present: Mapping[ServiceId, tuple[Ms, NodeCursor]]
) -> list[Element]:
    """Return the change that stores the present cursors; empty when they are stored."""
    elements = []
    for shepherd, (loss, cursor) in sorted(present.items()):
        if stored.get(shepherd) != (loss, cursor.after) and cursor.after:
            elements.append(put(REPAIR_OBJECT, CURSORS, shepherd, f"{loss} {cursor.after}"))
    return elements + [drop(REPAIR_OBJECT, CURSORS, shepherd) for shepherd in sorted(stored) if shepherd not in present]


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
