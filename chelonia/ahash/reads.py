"""Reading objects from a store: whole or filtered, along paths, by page. Pure functions over a `Reader`.

No operation here reads more of a wide section than its bound. Named properties and walks take point lookups; a whole
section takes one bounded scan.
"""

from __future__ import annotations

from collections.abc import Iterable

from chelonia.ahash.store import layout
from chelonia.ahash.store.port import Reader
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import WIDE_SECTIONS, Filter, StoredObject
from chelonia.core.ports.ahash import Linked, ObjectPage, Page, Walk, WalkOutcome, WalkStep


def read_object(reader: Reader, object_id: ObjectId, needed: Filter) -> StoredObject:
    """Read one object, filtered; one that does not exist has version 0 and no sections.

    Raises: TOO_LARGE when the filter names a wide section of more than `bounds.SECTION_WHOLE_MAX` properties.
    """
    data = reader.get(layout.header_key(object_id))
    if data is None:
        return StoredObject(object_id, 0)
    version, sections = layout.decode_header(data)
    if needed:
        sections = _select(sections, needed)
        counts: dict[str, int] = {}
        _add_wide_needed(reader, object_id, needed, sections)
    else:
        counts = _add_wide_whole(reader, object_id, sections)
    return StoredObject(object_id, version, sections, counts)


def read_walks(reader: Reader, walks: Iterable[Walk], needed: Filter) -> tuple[WalkOutcome, ...]:
    """Follow paths as far as they go, in one state; read a step or end that several share once."""
    steps: dict[tuple[ObjectId, str, tuple[str, ...]], WalkStep | None] = {}
    ends: dict[tuple[ObjectId, Linked | None], tuple[StoredObject, tuple[StoredObject, ...]]] = {}
    found = list[WalkOutcome]()
    for walk in walks:
        object_id, section, taken = walk.start, walk.section, list[WalkStep]()
        for candidates in walk.steps:
            key = (object_id, section, candidates)
            if key not in steps:
                steps[key] = _step(reader, object_id, section, candidates)
            step = steps[key]
            if step is None:
                break
            taken.append(step)
            object_id = step.object
        end = object_id, walk.linked
        if end not in ends:
            ends[end] = read_object(reader, object_id, needed), _linked(reader, object_id, walk.linked)
        found.append(WalkOutcome(tuple(taken), *ends[end]))
    return tuple(found)


def read_page(reader: Reader, object_id: ObjectId, section: str, after: str, limit: int) -> Page:
    """Read the page of a section after the property `after` (exclusive), in byte order of property."""
    assert limit > 0, "a page has an entry"
    if section in WIDE_SECTIONS:
        start, end = layout.wide_range(object_id, section)
        if after:
            start = layout.wide_key(object_id, section, after) + b"\0"
        rows = reader.scan(start, end, limit + 1)
        assert len(rows) <= limit + 1, "a scan returns what was asked for at most"
        items = [(layout.wide_name(key)[1], layout.decode_value(value)) for key, value in rows]
    else:
        data = reader.get(layout.header_key(object_id))
        properties = {} if data is None else layout.decode_header(data)[1].get(section, {})
        edge = after.encode()
        later = [item for item in properties.items() if item[0].encode() > edge]
        items = sorted(later, key=lambda item: item[0].encode())
    return Page(tuple(items[:limit]), len(items) > limit)


def read_ids(reader: Reader, after: str, limit: int) -> ObjectPage:
    """Read the page of all object ids after `after` (exclusive), in byte order."""
    assert limit > 0, "a page has an id"
    start = layout.header_key(ObjectId(after)) + b"\0" if after else layout.HEADERS[0]
    rows = reader.scan(start, layout.HEADERS[1], limit + 1)
    return ObjectPage(tuple(layout.header_id(key) for key, _ in rows[:limit]), len(rows) > limit)


def _select(sections: layout.MutableSections, needed: Filter) -> layout.MutableSections:
    chosen: layout.MutableSections = {}
    for need in needed:
        properties = sections.get(need.section)
        if not properties:
            continue
        if not need.property:
            chosen.setdefault(need.section, {}).update(properties)
        elif need.property in properties:
            chosen.setdefault(need.section, {})[need.property] = properties[need.property]
    return chosen


def _add_wide_needed(reader: Reader, object_id: ObjectId, needed: Filter, sections: layout.MutableSections) -> None:
    for need in needed:
        if need.section not in WIDE_SECTIONS:
            continue
        if need.property:
            data = reader.get(layout.wide_key(object_id, need.section, need.property))
            if data is not None:
                sections.setdefault(need.section, {})[need.property] = layout.decode_value(data)
            continue
        rows = reader.scan(*layout.wide_range(object_id, need.section), bounds.SECTION_WHOLE_MAX + 1)
        if len(rows) > bounds.SECTION_WHOLE_MAX:
            cause = (
                f"'{need.section}' holds more than {bounds.SECTION_WHOLE_MAX} properties: read it page by page (scan)"
            )
            raise CheloniaError(Kind.TOO_LARGE, "get", object_id[:80], cause)
        _add_rows(rows, sections)


def _add_wide_whole(reader: Reader, object_id: ObjectId, sections: layout.MutableSections) -> dict[str, int]:
    limit = bounds.SECTION_WHOLE_MAX + 1
    rows = reader.scan(*layout.wide_range(object_id), limit)
    if len(rows) < limit:
        _add_rows(rows, sections)
        return {}
    counts: dict[str, int] = {}
    for section in sorted(WIDE_SECTIONS):
        rows = reader.scan(*layout.wide_range(object_id, section), limit)
        if len(rows) < limit:
            _add_rows(rows, sections)
        else:
            counts[section] = limit
    return counts


def _linked(reader: Reader, target: ObjectId, linked: Linked | None) -> tuple[StoredObject, ...]:
    if linked is None:
        return ()
    values = read_page(reader, target, linked.section, "", bounds.LINKED_MAX).items
    ids = [ObjectId(linked.prefix + value) for _, value in values]
    return tuple(read_object(reader, object_id, linked.needed) for object_id in ids)


def _add_rows(rows: list[tuple[bytes, bytes]], sections: layout.MutableSections) -> None:
    for key, value in rows:
        section, prop = layout.wide_name(key)
        sections.setdefault(section, {})[prop] = layout.decode_value(value)


def _step(reader: Reader, object_id: ObjectId, section: str, candidates: tuple[str, ...]) -> WalkStep | None:
    if section not in WIDE_SECTIONS:
        data = reader.get(layout.header_key(object_id))
        properties = {} if data is None else layout.decode_header(data)[1].get(section, {})
        found = next((prop for prop in candidates if prop in properties), None)
        return None if found is None else WalkStep(found, ObjectId(properties[found]))
    for prop in candidates:
        data = reader.get(layout.wide_key(object_id, section, prop))
        if data is not None:
            return WalkStep(prop, ObjectId(layout.decode_value(data)))
    return None
