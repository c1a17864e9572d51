"""The stored record of a rebuild (`sys:rebuild`): whether one is under way, and which Shepherds it still lacks. Pure.

Every room asks this record before it acts on half a namespace. How a rebuild decides stands in
`recovery/rebuild/decide.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chelonia.core.ids import BLOB_PREFIX, OVERWRITTEN_OBJECT, REBUILD_OBJECT, ServiceId, is_guid
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.librarian.metadata.elements import as_read, check, is_, put, version

RUNNING: Final = "running"
"""The state of a rebuild, in its own record, from its beginning until it is through: also while it has broken off."""
DONE: Final = "done"
"""Its state from then on."""
RUN: Final = "run"
"""The property that says which run of a rebuild is the last one begun: no other changes anything any more."""
SHEPHERDS: Final = "shepherds"
"""The section of that record that says who has `TOLD` all it knows, and without whom it was made (`AWAY`): these may
come back with what nobody else knows."""
REPORTED: Final = "reported"
"""The section that says with which boot each Shepherd had reported when all it knew was taken in; of a late one, until
that is so, `EVERY_BOOT`."""
EVERY_BOOT: Final = str((1 << 63) - 1)
"""No boot is later: whenever such a Shepherd starts, something of what it had set aside may just have been listed."""
TOLD: Final = "told"
AWAY: Final = "away"
KEPT: Final = "kept"
"""Set while there may be a record of what has been deleted since it was begun."""
DELETED_FOR_GOOD: Final = "deleted"
"""The value of such a record."""


def under_way(stored: StoredObject) -> bool:
    """Whether a rebuild has begun and is not through, by its own record: half a namespace is no ground to act on."""
    return stored.value("rebuild", "state") == RUNNING


def begun(stored: StoredObject, run: str) -> Element:
    """Begin a run, if the record is as it was read: of two that begin at once one does."""
    still = [as_read("rebuild", prop, stored.value("rebuild", prop)) for prop in ("state", RUN)]
    return put(REBUILD_OBJECT, "rebuild", RUN, run, *still)


def to_be_made() -> Element:
    """One that nobody has begun yet counts as under way: the metadata begin again, and what they were is elsewhere."""
    return put(REBUILD_OBJECT, "rebuild", "state", RUNNING)


def to_begin(stored: StoredObject) -> bool:
    """Whether it is one that nobody has begun yet."""
    return under_way(stored) and not stored.value("rebuild", RUN)


def is_last(run: str) -> Element:
    """The condition that no other run has begun since."""
    return check(REBUILD_OBJECT, is_("rebuild", RUN, run), change_id=RUN)


def failure(stored: StoredObject) -> str:
    """Why a rebuild that is not through has stopped, by its own record; "": it has not said so."""
    return stored.value("rebuild", "cause") if under_way(stored) else ""


def awaited(stored: StoredObject) -> tuple[ServiceId, ...]:
    """The Shepherds that a rebuild was made without, by its own record."""
    return tuple(ServiceId(shepherd) for shepherd, word in sorted(_words(stored).items()) if word == AWAY)


def may_have_named(stored: StoredObject, shepherd: ServiceId, boot: int) -> bool:
    """Whether a rebuild may have listed what a Shepherd had set aside, that has told nothing since this boot."""
    return boot <= int(stored.value(REPORTED, shepherd, "-1"))


def still_named(stored: StoredObject, shepherd: ServiceId) -> Element:
    """The condition that `may_have_named` would say the same as when this was read."""
    return check(REBUILD_OBJECT, as_read(REPORTED, shepherd, stored.value(REPORTED, shepherd)))


def half_told(stored: StoredObject) -> tuple[ServiceId, ...]:
    """The Shepherds of which a late rebuild takes in what they know, or did so until it broke off."""
    reported = stored.sections.get(REPORTED, {})
    return tuple(ServiceId(shepherd) for shepherd, boot in sorted(reported.items()) if boot == EVERY_BOOT)


def has_told(stored: StoredObject, shepherd: ServiceId) -> bool:
    """Whether a Shepherd has told all it knew when a rebuild was made, then or later, by its own record."""
    return _words(stored).get(shepherd) == TOLD


def _words(stored: StoredObject) -> Mapping[str, str]:
    return stored.sections.get(SHEPHERDS, {})


def late_command(shepherd: ServiceId) -> str:
    """What brings in what only this Shepherd knew."""
    return f"chelonia admin rebuild --late {shepherd}"


def remembers(stored: StoredObject) -> bool:
    """Whether it is to be known what has been deleted since a rebuild was begun: it is not through, or somebody may
    come back with bytes of that."""
    return under_way(stored) or bool(awaited(stored))


def litter(stored: StoredObject) -> Element | None:
    """When there may be such a record for nobody: the condition that it is still so."""
    return (
        check(stored.id, version(stored.version)) if stored.value("rebuild", KEPT) and not remembers(stored) else None
    )


def tombstones(elements: Sequence[Element]) -> list[Element]:
    """The records of the blobs and entries that a change deletes: of a file that was overwritten before, somebody may
    have bytes that nobody else has."""
    deleted = (element.object for element in elements if element.change is ChangeType.DELETE)
    gone = (obj.removeprefix(BLOB_PREFIX) for obj in deleted if obj.startswith(BLOB_PREFIX) or is_guid(obj))
    return [put(OVERWRITTEN_OBJECT, "formerly", each, DELETED_FOR_GOOD) for each in gone]


def waiting(stored: StoredObject) -> str:
    """What healing waits for, in words; "" when there is no rebuild to wait for."""
    if not under_way(stored):
        return ""
    if to_begin(stored):
        return "the metadata were lost, and `chelonia admin rebuild` has not been given yet"
    cause = failure(stored)
    return f"a rebuild of the namespace has stopped: {cause}" if cause else "a rebuild of the namespace is not through"
