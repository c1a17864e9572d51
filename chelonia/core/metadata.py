"""The metadata model: objects of sections of properties of string values, and the filters over them.

An object is `{section: {property: value}}`. Sections in `WIDE_SECTIONS` may hold millions of properties. The store
keeps one record per property of them; `scan` and point lookups read them, never whole beyond
`bounds.SECTION_WHOLE_MAX`. A change inside them does not bump the object's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from chelonia.core.ids import ObjectId

TYPE_FILE = "file"
TYPE_COLLECTION = "collection"
TYPE_MOUNTPOINT = "mountpoint"
TYPE_SYMLINK = "symlink"
"""A name for another name: its reader follows the text of `node/target`; no service does."""
TYPE_SPECIAL = "special"
"""A device, pipe or socket of a mount: `posix/mode` and `posix/device` say which."""
TYPE_PENDING = "pending"
"""`entry/type` of an upload that is not complete: nobody sees it."""
TYPE_TRASHED = "trashed"
"""`entry/type` of a deleted file that is kept for a while: only a look into the trash shows it."""

Sections = Mapping[str, Mapping[str, str]]
"""`{section: {property: value}}`."""

WIDE_SECTIONS = frozenset(
    {
        "entries", "pending", "file", "erase", "due", "formerly", "extents", "named", "parts", "uploads", "summaries",
        "tally",
    }
)  # fmt: skip
"""Sections stored one record per property. Of a collection: names, summaries, last change, and uploads in parts below
it. Of a Shepherd: replicas and erasure outbox. Expiries by time, and deleted files by former place. Of a content: its
extents, the blobs that these name, and the parts of its upload."""


class Triple(msgspec.Struct, frozen=True, order=True):
    """One `metadata` element of the wire: section, property, value."""

    section: str
    property: str
    value: str


class Needed(msgspec.Struct, frozen=True):
    """One `neededMetadataElement`: a whole section, or one property of it when `property` is not empty."""

    section: str
    property: str = ""


Filter = tuple[Needed, ...]
"""The parts of an object to return; an empty filter selects everything."""


class StoredObject(msgspec.Struct, frozen=True, gc=False):
    """An object as read from the A-Hash.

    - `version` is the hidden per-object version (0 when the object does not exist)
    - `sections` holds only the properties that the filter selects, without empty sections
    - `counts` holds, for each wide section too large to return whole, the number of properties counted (at most
      `bounds.SECTION_WHOLE_MAX` + 1: "more than that")
    """

    id: ObjectId
    version: int
    sections: Sections = msgspec.field(default_factory=dict)
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)

    def value(self, section: str, prop: str, default: str = "") -> str:
        """Return the value of one property, or `default` when unset."""
        return self.sections.get(section, {}).get(prop, default)

    @property
    def weight(self) -> int:
        """Characters of its properties and values: the cost of reading it."""
        return sum(len(p) + len(v) for section in self.sections.values() for p, v in section.items())

    @property
    def exists(self) -> bool:
        """Whether the object exists: its version is not 0."""
        return self.version > 0


def to_triples(sections: Sections) -> tuple[Triple, ...]:
    """Flatten to triples, ordered by section and property."""
    return tuple(Triple(s, p, v) for s in sorted(sections) for p, v in sorted(sections[s].items()))


def from_triples(triples: Iterable[Triple]) -> dict[str, dict[str, str]]:
    """Gather triples into sections; of two with the same section and property the last wins."""
    out: dict[str, dict[str, str]] = {}
    for triple in triples:
        out.setdefault(triple.section, {})[triple.property] = triple.value
    return out


def selects(needed: Filter, section: str, prop: str) -> bool:
    """Return whether the filter selects this property."""
    return not needed or any(n.section == section and n.property in ("", prop) for n in needed)
