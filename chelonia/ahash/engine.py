"""The change engine: applies `transact` and `change` over an overlay on the store. Pure: no I/O of its own.

`Overlay` holds uncommitted writes and reads through to the reader below. `TransactDraft` is the overlay of one
transact; the batch's overlay absorbs it only if the transact applies. Semantics:
- An object exists while it has a property, narrow or wide. Its version is 0 when it does not exist and 1 when made.
- A transact that changes a narrow section, even to an equal value, raises the version by one; wide sections do not.
- An object deleted and made anew in one transact continues its version. Made anew later it starts at 1, so never
  reuse an id that conditions name by version.
- `transact` evaluates all conditions of all elements before the first change. Unsetting an unset property or deleting
  a missing object changes nothing there; `change` answers `failed` and `deleted`, as the original did.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from chelonia.ahash.store import layout
from chelonia.ahash.store.port import Reader
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import WIDE_SECTIONS
from chelonia.core.ports.ahash import ChangeOutcome, ChangeStatus, ChangeType, Condition, ConditionType, Element, Unmet

FEW: Final = 3
"""Elements up to which checks of each are cheaper than one of all (CPU of 1: 1.4 and 2.9 us, of 4: 5.5 and 3.9)."""
INTEGER_MAX = 2**63 - 1
"""Largest magnitude that `add` reads or writes."""
# A global is read in half the time of an attribute of an enumeration, and each element and condition is compared.
_SET: Final = ChangeType.SET
_ADD: Final = ChangeType.ADD
_CHECK: Final = ChangeType.CHECK
_DELETE: Final = ChangeType.DELETE
_IS: Final = ConditionType.IS
_ISNOT: Final = ConditionType.ISNOT
_ISSET: Final = ConditionType.ISSET
_UNSET: Final = ConditionType.UNSET
_EMPTY: Final = ConditionType.EMPTY
_VERSION: Final = ConditionType.VERSION
_AT_MOST: Final = ConditionType.AT_MOST


class Overlay:
    """Writes not committed yet, over a reader. `objects` is how many objects they add (negative: remove)."""

    __slots__ = ("_below", "_fresh", "_keys", "objects", "pending")

    def __init__(self, below: Reader) -> None:
        self._below = below
        self._keys: list[bytes] = []
        self._fresh: list[bytes] = []
        """Keys added since `_keys` was last sorted."""
        self.pending: dict[bytes, bytes | None] = {}
        self.objects = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, with the pending writes applied."""
        if key in self.pending:
            return self.pending[key]
        return self._below.get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Scan as `Reader.scan` does, with the pending writes applied."""
        keys = self._keys
        if self._fresh:
            keys += self._fresh
            keys.sort()  # few behind many in order: one pass
            self._fresh = []
        assert len(keys) == len(self.pending), "each key that is written is in order once"
        first, last = bisect_left(keys, start), bisect_left(keys, end)
        if first == last:
            return self._below.scan(start, end, limit)
        touched = keys[first:last]
        merged = dict(self._below.scan(start, end, limit + len(touched)))
        for key in touched:
            value = self.pending[key]
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        return sorted(merged.items())[:limit]

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write `value`; None deletes."""
        if key not in self.pending:
            self._fresh.append(key)
        self.pending[key] = value

    def absorb(self, upper: Overlay) -> None:
        """Take over the writes of an overlay that reads through to this one."""
        assert upper._below is self, "what it read through is what it is laid on"
        self._fresh += [key for key in upper.pending if key not in self.pending]
        self.pending.update(upper.pending)
        self.objects += upper.objects


def transact(overlay: Overlay, elements: tuple[Element, ...]) -> Unmet | None:
    """Apply all elements to `overlay`, or none.

    Args: `elements` have passed `check_transact`.
    Returns: None when applied, else the first condition that did not hold.
    Raises: BAD_REQUEST (`add` to a value that is no integer), TOO_LARGE; both change nothing.
    """
    draft = TransactDraft(overlay)
    for element in elements:
        for condition in element.conditions:
            if not draft.holds(element.object, condition):
                return Unmet(element.change_id, condition.id)
    assert draft.unchanged, "all conditions are of the state before the first change"
    for element in elements:
        if element.change is _SET:  # most are
            draft.set(element, element.value)
        elif element.change is not _CHECK:
            draft.apply(element)
    overlay.absorb(draft.finish())
    return None


def change(overlay: Overlay, elements: tuple[Element, ...]) -> tuple[ChangeOutcome, ...]:
    """Apply the elements of the original's `change` one by one, in order; each sees the changes before it."""
    return tuple(_change_one(overlay, element) for element in elements)


def check_transact(elements: tuple[Element, ...]) -> None:
    """Refuse elements that no store state could make right. Raises: BAD_REQUEST, TOO_LARGE."""
    _check_count(elements, bounds.TRANSACT_ELEMENTS_MAX, "transact")
    plain = len(elements) > FEW and _are_plain(elements)
    for element in elements:
        if not plain:
            _check_element(element, "transact")
        if element.change is _ADD:
            parse_integer(element.value, element.object)
        for condition in element.conditions:
            if not plain or condition.type not in _OLD_CONDITIONS:
                _check_condition(condition, "transact")


def _are_plain(elements: tuple[Element, ...]) -> bool:
    """Whether all names and values are short and ASCII, as nearly always; one check serves all elements."""
    names, values = set[str](), list[str]()
    for element in elements:
        names.add(element.object)
        if (change := element.change) is not _CHECK and change is not _DELETE:
            names |= {element.section, element.property}
            values.append(element.value)
        for condition in element.conditions:
            if condition.type in _OLD_CONDITIONS:
                names |= {condition.section, condition.property}
    all_names, longest = "".join(names), max(map(len, names), default=0)
    is_short = longest <= min(bounds.NAME_BYTES_MAX, bounds.PROPERTY_BYTES_MAX)
    is_plain = "" not in names and "\0" not in all_names and all_names.isascii() and "".join(values).isascii()
    return is_short and is_plain and max(map(len, values), default=0) <= bounds.VALUE_BYTES_MAX


def check_change(elements: tuple[Element, ...]) -> None:
    """Refuse elements of `change` that are out of bounds. Raises: BAD_REQUEST, TOO_LARGE."""
    _check_count(elements, bounds.BULK_ELEMENTS_MAX, "change")
    for element in elements:
        if element.change in _OLD_CHANGES:
            _check_element(element, "change")
            for condition in element.conditions:
                if condition.type in _OLD_CONDITIONS:
                    _check_condition(condition, "change")


def parse_integer(text: str, subject: str) -> int:
    """Read a decimal integer of at most 63 bits. Raises: BAD_REQUEST."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19) or abs(int(text)) > INTEGER_MAX:
        raise CheloniaError(Kind.BAD_REQUEST, "transact", subject[:80], f"{text[:40]!r} is not an integer of 63 bits")
    return int(text)


def check_text(text: str, limit: int, label: str) -> None:
    """Refuse a name that the store cannot key by. Raises: BAD_REQUEST (empty, NUL, not UTF-8), TOO_LARGE."""
    if text.isascii() and 0 < len(text) <= limit and "\0" not in text:
        return  # the hot path: every name of every read comes here
    if not text or "\0" in text:
        raise CheloniaError(Kind.BAD_REQUEST, "ahash", ascii(text[:80]), f"{label} is not empty and has no NUL")
    check_size(text, limit, label)


def check_size(text: str, limit: int, label: str) -> None:
    """Refuse text that cannot be stored. Raises: BAD_REQUEST (not UTF-8), TOO_LARGE (`limit` in bytes)."""
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise CheloniaError(Kind.BAD_REQUEST, "ahash", ascii(text[:80]), f"{label} is valid UTF-8") from error
    if size > limit:
        raise CheloniaError(Kind.TOO_LARGE, "ahash", ascii(text[:80]), f"{label} has at most {limit} bytes")


class _DraftObject(msgspec.Struct):
    """An object as one draft sees it; `base` is its version when the draft began."""

    base: int
    sections: layout.MutableSections
    properties: int
    narrow_changed: bool = False
    wide_added: bool = False
    wide_removed: bool = False


class TransactDraft:
    """The writes of one transact, over the batch's overlay."""

    __slots__ = ("_objects", "_overlay", "_removed")

    def __init__(self, below: Overlay) -> None:
        self._overlay = Overlay(below)
        self._objects: dict[ObjectId, _DraftObject] = {}
        self._removed = 0

    @property
    def unchanged(self) -> bool:
        """Whether nothing was written."""
        return not self._overlay.pending

    def holds(self, object_id: ObjectId, condition: Condition) -> bool:
        kind = condition.type
        if kind is _VERSION:
            return self._open(object_id).base == int(condition.value)
        if kind is _EMPTY:
            return self.is_empty(object_id, condition.section)
        stored = self.value(object_id, condition.section, condition.property)
        if kind is _UNSET:
            return stored is None
        if kind is _ISSET:
            return stored is not None
        if kind is _IS:
            return stored == condition.value
        if kind is _ISNOT:
            return stored != condition.value
        assert kind is _AT_MOST, kind
        return (0 if stored is None else parse_integer(stored, object_id)) <= int(condition.value)

    def value(self, object_id: ObjectId, section: str, prop: str) -> str | None:
        """Return the value of a property; None when unset."""
        if section in WIDE_SECTIONS:
            data = self._overlay.get(layout.wide_key(object_id, section, prop))
            return None if data is None else layout.decode_value(data)
        opened = self._objects.get(object_id) or self._open(object_id)
        return opened.sections.get(section, {}).get(prop)

    def is_empty(self, object_id: ObjectId, section: str) -> bool:
        """Whether the section holds no property."""
        if section in WIDE_SECTIONS:
            return not self._overlay.scan(*layout.wide_range(object_id, section), 1)
        return section not in self._open(object_id).sections

    def apply(self, element: Element) -> bool:
        """Make one change. Return whether there was anything to change. Raises: BAD_REQUEST, TOO_LARGE."""
        match element.change:
            case ChangeType.SET:
                self.set(element, element.value)
            case ChangeType.ADD:
                before = self.value(element.object, element.section, element.property)
                stored = 0 if before is None else parse_integer(before, element.object)
                total = stored + parse_integer(element.value, element.object)
                self.set(element, str(parse_integer(str(total), element.object)))
            case ChangeType.UNSET:
                return self._unset(element)
            case ChangeType.DELETE:
                return self._delete(element.object)
            case ChangeType.CHECK:
                return False
        return True

    def finish(self) -> Overlay:
        """Write the headers. Return the overlay with all changes of this draft. Raises: TOO_LARGE."""
        for object_id, opened in self._objects.items():
            if opened.narrow_changed or opened.wide_added or opened.wide_removed:
                self._finish(object_id, opened)
        return self._overlay

    def _finish(self, object_id: ObjectId, opened: _DraftObject) -> None:
        assert opened.properties == sum(map(len, opened.sections.values())), "properties are counted as they change"
        key = layout.header_key(object_id)
        if not self._has_properties(object_id, opened):
            if opened.base:
                self._overlay.put(key, None)
                self._overlay.objects -= 1
                assert self._overlay.objects >= -len(self._objects), "an object goes once"
        elif opened.narrow_changed or not opened.base:
            data = layout.encode_header(opened.base + 1, opened.sections)
            if len(data) > bounds.OBJECT_BYTES_MAX:
                cause = f"its narrow sections exceed {bounds.OBJECT_BYTES_MAX} bytes"
                raise CheloniaError(Kind.TOO_LARGE, "transact", object_id[:80], cause)
            self._overlay.put(key, data)
            self._overlay.objects += not opened.base

    def _has_properties(self, object_id: ObjectId, opened: _DraftObject) -> bool:
        if opened.sections or (opened.base and not opened.narrow_changed and not opened.wide_removed):
            return True
        return bool(self._overlay.scan(*layout.wide_range(object_id), 1))

    def _open(self, object_id: ObjectId) -> _DraftObject:
        opened = self._objects.get(object_id)
        if opened is None:
            data = self._overlay.get(layout.header_key(object_id))
            version, sections = (0, {}) if data is None else layout.decode_header(data)
            assert (version > 0) is (data is not None), "what exists has a version, and nothing else has"
            opened = _DraftObject(version, sections, sum(map(len, sections.values())))
            self._objects[object_id] = opened
        return opened

    def set(self, element: Element, value: str) -> None:
        """Set the property of an element to `value`. Raises: TOO_LARGE."""
        opened = self._objects.get(element.object) or self._open(element.object)
        section, prop = element.section, element.property
        if section in WIDE_SECTIONS:
            self._overlay.put(layout.wide_key(element.object, section, prop), layout.encode_value(value))
            opened.wide_added = True
            return
        properties = opened.sections.get(section)
        if properties is None:
            properties = opened.sections[section] = {}
        opened.properties += prop not in properties
        properties[prop] = value
        opened.narrow_changed = True
        assert opened.properties >= len(properties), "a new property is counted"
        if opened.properties > bounds.OBJECT_PROPERTIES_MAX:
            cause = f"an object has at most {bounds.OBJECT_PROPERTIES_MAX} properties in narrow sections"
            raise CheloniaError(Kind.TOO_LARGE, "transact", element.object[:80], cause)

    def _unset(self, element: Element) -> bool:
        if self.value(element.object, element.section, element.property) is None:
            return False
        opened = self._open(element.object)
        if element.section in WIDE_SECTIONS:
            self._overlay.put(layout.wide_key(element.object, element.section, element.property), None)
            opened.wide_removed = True
            return True
        properties = opened.sections[element.section]
        del properties[element.property]
        if not properties:
            del opened.sections[element.section]
        opened.properties -= 1
        opened.narrow_changed = True
        assert opened.properties >= len(opened.sections), "one that goes was counted; no section is empty"
        return True

    def _delete(self, object_id: ObjectId) -> bool:
        opened = self._open(object_id)
        room = bounds.DELETE_WIDE_MAX - self._removed
        records = self._overlay.scan(*layout.wide_range(object_id), room + 1)
        if len(records) > room:
            cause = f"more than {bounds.DELETE_WIDE_MAX} properties in wide sections: unset them first, page by page"
            raise CheloniaError(Kind.TOO_LARGE, "transact", object_id[:80], cause)
        if not records and not opened.sections:
            return False
        for key, _ in records:
            self._overlay.put(key, None)
        self._removed += len(records)
        assert self._removed <= bounds.DELETE_WIDE_MAX, self._removed
        opened.sections = {}
        opened.properties = 0
        opened.narrow_changed = True
        return True


_OLD_CHANGES = (ChangeType.SET, ChangeType.UNSET, ChangeType.DELETE)
_OLD_CONDITIONS = (ConditionType.IS, ConditionType.ISNOT, ConditionType.ISSET, ConditionType.UNSET)


def _change_one(overlay: Overlay, element: Element) -> ChangeOutcome:
    if element.change not in _OLD_CHANGES:
        return ChangeOutcome(element.change_id, ChangeStatus.INVALID)
    draft = TransactDraft(overlay)
    for condition in element.conditions:
        if condition.type not in _OLD_CONDITIONS or not draft.holds(element.object, condition):
            return ChangeOutcome(element.change_id, ChangeStatus.CONDITION_NOT_MET, condition.id)
    try:
        changed = draft.apply(element)
        overlay.absorb(draft.finish())
    except CheloniaError as error:
        if error.kind not in (Kind.TOO_LARGE, Kind.BAD_REQUEST):
            raise
        return ChangeOutcome(element.change_id, ChangeStatus.FAILED)
    assert element.change in _CHANGED, "each change of the original has its word"
    status = _CHANGED[element.change] if changed or element.change is ChangeType.DELETE else ChangeStatus.FAILED
    return ChangeOutcome(element.change_id, status)


_CHANGED = {
    ChangeType.SET: ChangeStatus.SET,
    ChangeType.UNSET: ChangeStatus.UNSET,
    ChangeType.DELETE: ChangeStatus.DELETED,
}


def _check_count(elements: tuple[Element, ...], limit: int, op: str) -> None:
    if len(elements) > limit:
        raise CheloniaError(Kind.TOO_LARGE, op, "", f"{len(elements)} elements, at most {limit} in one call")


def _check_element(element: Element, op: str) -> None:
    check_text(element.object, bounds.PROPERTY_BYTES_MAX, "an object id")
    if element.change in (ChangeType.SET, ChangeType.UNSET, ChangeType.ADD):
        check_text(element.section, bounds.NAME_BYTES_MAX, f"{op}: a section")
        check_text(element.property, bounds.PROPERTY_BYTES_MAX, f"{op}: a property")
        check_size(element.value, bounds.VALUE_BYTES_MAX, f"{op}: a value")


def _check_condition(condition: Condition, op: str) -> None:
    match condition.type:
        case ConditionType.VERSION:
            parse_integer(condition.value, "version")
        case ConditionType.EMPTY:
            check_text(condition.section, bounds.NAME_BYTES_MAX, f"{op}: a section")
        case _:
            if condition.type is ConditionType.AT_MOST:
                parse_integer(condition.value, "at most")
            check_text(condition.section, bounds.NAME_BYTES_MAX, f"{op}: a section")
            check_text(condition.property, bounds.PROPERTY_BYTES_MAX, f"{op}: a property")
