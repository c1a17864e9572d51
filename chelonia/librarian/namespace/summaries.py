"""The consequences of a change of names and files: summaries beside the names, stamps on the collections. Pure.

A decision (`tree`, `uploads`, `contents`) knows nothing of summaries. Its transact sets the summary of the changed file
beside each of its names, and rests on the version that was read. So a summary is never of another state than its file,
and two writers never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from chelonia.core.contents.summaries import NAMES_MAX, SECTION, SECTIONS, summary_of
from chelonia.core.ids import REPAIR_OBJECT, ObjectId
from chelonia.core.metadata import TYPE_FILE, StoredObject
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.librarian.metadata.elements import check, drop, put, version
from chelonia.librarian.namespace.tree import names_of, type_of

WRITTEN_TO: Final = "after"
"""Property of the repair object: the position of `leadership.summarising`."""
END: Final = "~"
"""The end of all ids: the pass has gone through every collection."""
Changed = tuple[StoredObject, StoredObject]
"""An entry that a transact changes: as read (version 0: it is made), and as the transact leaves it."""


def changes(elements: Sequence[Element], entries: Sequence[StoredObject]) -> list[Changed]:
    """Return entries as read, each with its state after the elements."""
    return [(entry, after(elements, entry)) for entry in entries]


def kept(elements: Sequence[Element], files: Sequence[Changed] = ()) -> list[Element]:
    """Return a transact, or a part of one, with its consequences for the summaries of files.

    Args: `files`: entries that it changes, each read with `summaries.SUMMARISED`; version 0: it is made.
    """
    assert len({file.id for file, _ in files}) == len(files), "each entry is changed once"
    extra: list[Element] = []
    for file, later in files:
        extra += _summaries(elements, file, later)
    # A name that one file loses to another is dropped before it is set.
    extra.sort(key=lambda element: element.change is not ChangeType.UNSET)
    return [*elements, *extra]


def dropped(file: StoredObject) -> list[Element]:
    """Drop the summaries of a file: its readers read the file."""
    return [drop(ObjectId(parent), SECTION, name) for parent, name in names_of(file)]


def none_missing() -> Element:
    """Note, as the namespace begins, that no summary is missing."""
    return put(REPAIR_OBJECT, SECTION, WRITTEN_TO, END)


def missed() -> Element:
    """Note that summaries may be missing: the repair leader goes through all collections once more."""
    return drop(REPAIR_OBJECT, SECTION, WRITTEN_TO)


def touched(elements: Sequence[Element], file: ObjectId) -> bool:
    """Return whether a transact changes the facts that the summary of a file is made of."""
    own = (e for e in elements if e.object == file and e.change is not ChangeType.CHECK)
    return any(e.section in SECTIONS or e.change is ChangeType.DELETE for e in own)


def _summaries(elements: Sequence[Element], file: StoredObject, later: StoredObject) -> list[Element]:
    assert file.id == later.id, "before and after are of one entry"
    if not touched(elements, file.id):
        return []
    before = names_of(file) if type_of(file) == TYPE_FILE else ()
    names = names_of(later) if type_of(later) == TYPE_FILE else ()
    if not before and not names:
        return []
    summary = summary_of(later)
    out = [check(file.id, version(file.version))] if file.version else []
    out += [drop(ObjectId(parent), SECTION, name) for parent, name in before if (parent, name) not in names]
    if summary:
        return out + [put(ObjectId(parent), SECTION, name, summary) for parent, name in names]
    return out + (dropped(file) if names and len(before) <= NAMES_MAX else [])


def after(elements: Sequence[Element], file: StoredObject) -> StoredObject:
    """Return the entry after these elements."""
    sections = {section: dict(properties) for section, properties in file.sections.items()}
    own = file.id
    for element in elements:
        if element.object != own:
            continue
        if element.change is ChangeType.SET:
            sections.setdefault(element.section, {})[element.property] = element.value
        elif element.change is ChangeType.DELETE:
            sections.clear()
        elif element.change is ChangeType.ADD:
            properties = sections.setdefault(element.section, {})
            properties[element.property] = str(int(properties.get(element.property, "0")) + int(element.value))
        elif element.change is ChangeType.UNSET:
            sections.get(element.section, {}).pop(element.property, None)
    return msgspec.structs.replace(file, sections=sections)


def stamps(elements: Sequence[Element], stamp: str) -> list[Element]:
    """Stamp each collection whose names change; `stamp`: of this change, `<ms> <8 hex digits>`."""
    assert len(stamp.partition(" ")[2]) == 8, "two changes in one millisecond have two stamps"
    changed = dict.fromkeys([e.object for e in elements if e.section == "entries" and e.change is not ChangeType.CHECK])
    return [put(collection, "tally", "changed", stamp) for collection in changed]
