"""The stored record of a rebuild (`sys:rebuild`): its state, and the Shepherds that it still lacks. Pure.

Every room reads this record before it acts on half a namespace. The decisions of a rebuild stand in
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
"""State of a rebuild from its beginning until its end, also while it has broken off."""
DONE: Final = "done"
"""State of a rebuild that has ended well."""
RUN: Final = "run"
"""Property that names the run begun last; no other run changes anything any more."""
SHEPHERDS: Final = "shepherds"
"""Section of that record: the Shepherds that have reported all they know (`COMPLETE`), and those that the rebuild was
made without (`AWAY`). The latter may come back with bytes that nobody else knows."""
REPORTED: Final = "reported"
"""Section of that record: by Shepherd, the boot that had reported when the rebuild took in all it knew. `EVERY_BOOT`
stands for a late one until then. One that did not answer for a copy committed late, or lacked it, is there, too."""
EVERY_BOOT: Final = str((1 << 63) - 1)
"""No boot is later: whenever such a Shepherd starts, the rebuild may just have listed bytes of its quarantine."""
COMPLETE: Final = "told"
AWAY: Final = "away"
KEPT: Final = "kept"
"""Property that is set while there may be records of deletions since the rebuild was begun."""
DELETED_FOR_GOOD: Final = "deleted"
"""Value of such a record."""


def under_way(stored: StoredObject) -> bool:
    """Return whether a rebuild has begun and not ended: half a namespace is no ground to act on."""
    assert stored.id == REBUILD_OBJECT, "its record was read: any other object says that there is none"
    return stored.value("rebuild", "state") == RUNNING


def begin(stored: StoredObject, run: str) -> Element:
    """Begin a run, on condition that the record is as read: of two that begin at once one applies."""
    assert run, "a run has a name: without one it counts as not begun"
    still = [as_read("rebuild", prop, stored.value("rebuild", prop)) for prop in ("state", RUN)]
    return put(REBUILD_OBJECT, "rebuild", RUN, run, *still)


def to_be_made() -> Element:
    """Mark a rebuild as due. It counts as under way before anybody begins it: the metadata that were are elsewhere."""
    return put(REBUILD_OBJECT, "rebuild", "state", RUNNING)


def to_begin(stored: StoredObject) -> bool:
    """Return whether a rebuild is due that nobody has begun."""
    return under_way(stored) and not stored.value("rebuild", RUN)


def is_last(run: str) -> Element:
    """Return the condition that no other run has begun since."""
    assert run, "a run has a name"
    return check(REBUILD_OBJECT, is_("rebuild", RUN, run), change_id=RUN)


def failure(stored: StoredObject) -> str:
    """Return the recorded reason why an unfinished rebuild has stopped; "" when there is none."""
    return stored.value("rebuild", "cause") if under_way(stored) else ""


def awaited(stored: StoredObject) -> tuple[ServiceId, ...]:
    """Return the Shepherds that a rebuild was made without."""
    return tuple(ServiceId(shepherd) for shepherd, word in sorted(_words(stored).items()) if word == AWAY)


def may_have_named(stored: StoredObject, shepherd: ServiceId, boot: int) -> bool:
    """Return whether a rebuild or a late commit may have listed the quarantine of a Shepherd that last reported in this
    boot."""
    assert stored.id == REBUILD_OBJECT, "its record was read"
    return boot <= int(stored.value(REPORTED, shepherd, "-1"))


def still_named(stored: StoredObject, shepherd: ServiceId) -> Element:
    """Return the condition that `may_have_named` still has the answer of this record."""
    return check(REBUILD_OBJECT, as_read(REPORTED, shepherd, stored.value(REPORTED, shepherd)))


def to_compare(stored: StoredObject, shepherd: ServiceId, boot: int) -> Element:
    """Have the next start of a Shepherd compare everything. `boot`: the last that it has reported in. On condition that
    the record is as read."""
    assert boot, "who has never reported compares anyway"
    assert not may_have_named(stored, shepherd, boot), "it is to do so already"
    as_it_was = as_read(REPORTED, shepherd, stored.value(REPORTED, shepherd))
    return put(REBUILD_OBJECT, REPORTED, shepherd, str(boot), as_it_was)


def half_reported(stored: StoredObject) -> tuple[ServiceId, ...]:
    """Return the Shepherds whose knowledge a late rebuild takes in, or did so until it broke off."""
    assert stored.id == REBUILD_OBJECT, "its record was read"
    reported = stored.sections.get(REPORTED, {})
    return tuple(ServiceId(shepherd) for shepherd, boot in sorted(reported.items()) if boot == EVERY_BOOT)


def has_reported(stored: StoredObject, shepherd: ServiceId) -> bool:
    """Return whether a Shepherd has reported all it knew to a rebuild, then or later."""
    return _words(stored).get(shepherd) == COMPLETE


def _words(stored: StoredObject) -> Mapping[str, str]:
    assert stored.id == REBUILD_OBJECT, "its record was read"
    return stored.sections.get(SHEPHERDS, {})


def late_command(shepherd: ServiceId) -> str:
    """Return the command that brings in what only this Shepherd knows."""
    return f"chelonia admin rebuild --late {shepherd}"


def remembers(stored: StoredObject) -> bool:
    """Return whether to record deletions: a rebuild has not ended, or an absent Shepherd may bring back such bytes."""
    return under_way(stored) or bool(awaited(stored))


def litter(stored: StoredObject) -> Element | None:
    """Return the condition that deletion records may exist and nobody needs them; None when it does not hold."""
    return (
        check(stored.id, version(stored.version)) if stored.value("rebuild", KEPT) and not remembers(stored) else None
    )


def tombstones(elements: Sequence[Element]) -> list[Element]:
    """Return a record of each blob and entry that a change deletes: a Shepherd may hold a file's earlier bytes."""
    deleted = (element.object for element in elements if element.change is ChangeType.DELETE)
    ids = (obj.removeprefix(BLOB_PREFIX) for obj in deleted if obj.startswith(BLOB_PREFIX) or is_guid(obj))
    return [put(OVERWRITTEN_OBJECT, "formerly", each, DELETED_FOR_GOOD) for each in ids]


def waiting(stored: StoredObject) -> str:
    """Return what healing waits for, in words; "" when there is no rebuild to wait for."""
    if not under_way(stored):
        return ""
    if to_begin(stored):
        return "the metadata were lost, and `chelonia admin rebuild` has not been given yet"
    cause = failure(stored)
    return f"a rebuild of the namespace has stopped: {cause}" if cause else "a rebuild of the namespace is not through"
