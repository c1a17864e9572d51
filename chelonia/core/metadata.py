"""The metadata model: objects of sections of properties of string values, and the filters over them.

An object is `{section: {property: value}}`. Sections in `WIDE_SECTIONS` may hold millions of properties: they are
stored one record per property, are read by `scan` and point lookups, never whole beyond `bounds.SECTION_WHOLE_MAX`,
and a change inside them does not bump the object's version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from chelonia.core.ids import ObjectId

TYPE_FILE = "file"
TYPE_COLLECTION = "collection"
TYPE_MOUNTPOINT = "mountpoint"
TYPE_SYMLINK = "symlink"
"""A name for another name: `node/target` is the text that the reader of it follows; nothing here does."""
TYPE_SPECIAL = "special"
"""A device, pipe or socket of a mount: `posix/mode` and `posix/device` say which."""
TYPE_PENDING = "pending"
"""`entry/type` of an upload that is not complete: seen by nobody."""
TYPE_TRASHED = "trashed"
"""`entry/type` of a deleted file that is kept for a while: seen by nobody, unless asked for in the trash."""

Sections = Mapping[str, Mapping[str, str]]
"""`{section: {property: value}}`."""

WIDE_SECTIONS = frozenset(
    {
        "entries", "pending", "file", "erase", "due", "formerly", "extents", "named", "parts", "uploads", "summaries",
        "tally",
    }
)  # fmt: skip
"""Sections stored one record per property: a collection's names, what listings tell of them, its last change, and the
uploads in parts below it; a Shepherd's replicas and erasure outbox; what expires, by when; what was deleted, by where
it was; a content's extents, the blobs that these name, and the parts that it was uploaded in."""


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
"""What to return of an object; empty means everything."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object as read from the A-Hash.

    - `version` is the hidden per-object version (0 when the object does not exist)
    - `sections` holds only what the filter asked for, without empty sections
    - `counts` holds, for each wide section too large to return whole, the number of properties counted (at most
      `bounds.SECTION_WHOLE_MAX` + 1: "more than that")
    """

    id: ObjectId
    version: int
    sections: Sections = msgspec.field(default_factory=dict)
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)

    def value(self, section: str, prop: str, default: str = "") -> str:
        """The value of one property, or `default` when unset."""
        return self.sections.get(section, {}).get(prop, default)

    @property
    def weight(self) -> int:
        """Characters of its properties and values: what reading it costs."""
        return sum(len(p) + len(v) for section in self.sections.values() for p, v in section.items())

    @property
    def exists(self) -> bool:
        """Whether the object has ever been made and not deleted."""
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
    """Whether the filter asks for this property."""
    return not needed or any(n.section == section and n.property in ("", prop) for n in needed)
