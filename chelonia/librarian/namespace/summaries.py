"""What every change of names and files brings along: summaries beside the names, and stamps on the collections. Pure.

A decision (`tree`, `uploads`, `contents`) knows nothing of summaries. Here its elements are carried out on the file as
it was read, and the summary of the result is set beside each of its names in the same transact. That transact rests on
the version that was read. So a summary is never of another state than its file, and two writers never mix.
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
"""The property of the repair object that tells how far `leadership.summarising` is."""
END: Final = "~"
"""Stands for the end of all ids: every collection was gone through."""
Changed = tuple[StoredObject, StoredObject]
"""An entry that a transact changes: as read (version 0: it is made), and as the transact leaves it."""


def changes(elements: Sequence[Element], entries: Sequence[StoredObject]) -> list[Changed]:
    """What a transact makes of entries as read."""
    return [(entry, after(elements, entry)) for entry in entries]


def kept(elements: Sequence[Element], files: Sequence[Changed] = ()) -> list[Element]:
    """A transact, or a part of one, with what follows from it for the summaries of files.

    Args: `files`: entries that it changes, each read with `summaries.SUMMARISED`; version 0: it is made.
    """
    extra: list[Element] = []
    for file, later in files:
        extra += _summaries(elements, file, later)
    # A name that one file loses to another is dropped before it is set.
    extra.sort(key=lambda element: element.change is not ChangeType.UNSET)
    return [*elements, *extra]


def dropped(file: StoredObject) -> list[Element]:
    """Do without the summaries of a file: its readers read the file."""
    return [drop(ObjectId(parent), SECTION, name) for parent, name in names_of(file)]


def none_missing() -> Element:
    """The namespace begins: nothing is there of which a summary could be missing."""
    return put(REPAIR_OBJECT, SECTION, WRITTEN_TO, END)


def missed() -> Element:
    """Some may be missing from here on: the repair leader goes through all collections once more."""
    return drop(REPAIR_OBJECT, SECTION, WRITTEN_TO)


def touched(elements: Sequence[Element], file: ObjectId) -> bool:
    """Whether a transact changes what the summary of a file is made of."""
    own = (e for e in elements if e.object == file and e.change is not ChangeType.CHECK)
    return any(e.section in SECTIONS or e.change is ChangeType.DELETE for e in own)


def _summaries(elements: Sequence[Element], file: StoredObject, later: StoredObject) -> list[Element]:
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
    """The entry once these elements are carried out."""
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
    """Note on each collection whose names change that they do; `stamp`: of this change, `<ms> <8 hex digits>`."""
    changed = dict.fromkeys(e.object for e in elements if e.section == "entries" and e.change is not ChangeType.CHECK)
    return [put(collection, "tally", "changed", stamp) for collection in changed]
