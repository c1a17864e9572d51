"""Short constructors of the A-Hash's elements and conditions, so that a namespace operation reads as a list of facts.

Two records that several operations share stand here too: a Shepherd's `file` record and its erasure outbox. Layout:
`docs/formats/metadata.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from chelonia.core.cluster.replicas import Location
from chelonia.core.contents.uploads import Expect
from chelonia.core.ids import BlobId, Ms, ObjectId, ReferenceId, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import ChangeType, Condition, ConditionType, Element
from chelonia.core.values import replace

EXPECT: Final = "expect"
"""Change id of the elements that carry the caller's expectations: unmet means CONFLICT, never a silent retry."""
LEASE: Final = "lease"
"""Change id of the element that carries the repair leader's lease: unmet means that another Librarian leads."""


def put(obj: ObjectId, section: str, prop: str, value: str, *conditions: Condition) -> Element:
    """Set one property."""
    return Element(obj, ChangeType.SET, section, prop, value, conditions)


def drop(obj: ObjectId, section: str, prop: str, *conditions: Condition) -> Element:
    """Unset one property."""
    return Element(obj, ChangeType.UNSET, section, prop, "", conditions)


def erase(obj: ObjectId, *conditions: Condition) -> Element:
    """Delete a whole object."""
    return Element(obj, ChangeType.DELETE, conditions=conditions)


def check(obj: ObjectId, *conditions: Condition, change_id: str = "") -> Element:
    """Change nothing; the conditions must hold."""
    assert conditions, "an element that changes nothing requires something"
    return Element(obj, ChangeType.CHECK, conditions=conditions, change_id=change_id)


def add(obj: ObjectId, section: str, prop: str, amount: int, *conditions: Condition) -> Element:
    """Add to an integer property."""
    return Element(obj, ChangeType.ADD, section, prop, str(amount), conditions)


def put_all(obj: ObjectId, sections: Mapping[str, Mapping[str, str]]) -> list[Element]:
    """Set every property of `sections`, in order."""
    kind = ChangeType.SET
    return [Element(obj, kind, section, *item) for section, props in sections.items() for item in props.items()]


def texts(facts: Mapping[str, object]) -> dict[str, str]:
    """Return the properties that store these facts; an empty text is not stored."""
    return {name: str(value) for name, value in facts.items() if value != ""}


def is_(section: str, prop: str, value: str) -> Condition:
    """Require that the property has this value."""
    return Condition(ConditionType.IS, section, prop, value)


def isnot(section: str, prop: str, value: str) -> Condition:
    """Require that the property is unset or has another value."""
    return Condition(ConditionType.ISNOT, section, prop, value)


def isset(section: str, prop: str) -> Condition:
    """Require that the property is set."""
    return Condition(ConditionType.ISSET, section, prop)


def unset(section: str, prop: str) -> Condition:
    """Require that the property is not set."""
    return Condition(ConditionType.UNSET, section, prop)


def empty(section: str) -> Condition:
    """Require that the section holds no property."""
    return Condition(ConditionType.EMPTY, section)


def version(number: int) -> Condition:
    """Require that the object has exactly this version (0: it does not exist)."""
    return Condition(ConditionType.VERSION, value=str(number))


def on_version(elements: Sequence[Element], read: StoredObject) -> list[Element]:
    """Return the same change on condition that its object has the version that was read."""
    assert elements, "a change changes something"
    first = elements[0]
    assert first.object == read.id, "a change of an object begins with the object"
    return [replace(first, conditions=(*first.conditions, version(read.version))), *elements[1:]]


def as_read(section: str, prop: str, value: str) -> Condition:
    """Require that the property is as it was read (`value` empty: unset)."""
    return is_(section, prop, value) if value else unset(section, prop)


def expectations(expect: Expect) -> list[Element]:
    """Return the caller's (entry, version) pairs as condition-only elements."""
    return [check(ObjectId(guid), version(number), change_id=EXPECT) for guid, number in expect]


def file_record(location: Location, blob: BlobId, *, anew: bool = False) -> Element:
    """Note on the Shepherd's object that it has (or will have) this replica; `anew`: it must have no note of it yet."""
    conditions = (unset("file", location.reference),) if anew else ()
    return put(shepherd_object(location.shepherd), "file", location.reference, blob, *conditions)


def outbox_key(location: Location, now: Ms) -> str:
    """Return the property of an erasure record: records sort by the time of their decision."""
    assert 0 <= now < 10**13, "keys of 13 digits sort by time"
    return f"{now:013d} {location.reference}"


def outbox_reference(key: str) -> ReferenceId:
    """Return the replica that an erasure record names."""
    return ReferenceId(key.partition(" ")[2])


def outbox_record(location: Location, blob: BlobId, reason: str, now: Ms) -> Element:
    """Order the erasure of one replica. The `file` record stays until the Shepherd has confirmed it."""
    assert reason, "an order to erase says why"
    return put(shepherd_object(location.shepherd), "erase", outbox_key(location, now), f"{blob} {reason}")


def seconds(now: Ms) -> str:
    """Return an instant in the original's form: Unix seconds with three decimals."""
    return f"{now // 1000}.{now % 1000:03d}"
