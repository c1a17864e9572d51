"""Element descriptions that several services share: positions, objects, filters, checksums, receipts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chelonia.core import bounds
from chelonia.core.cluster.position import Position
from chelonia.core.ids import ROOT, ObjectId
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.names import LogicalName, parse_ln
from chelonia.wire.schema import INT, Form, ListOf, Many, Metadata, One, Part, Record, record, shaped


def needed(attr: str = "needed") -> ListOf:
    """Describe the filter: `neededMetadataList/neededMetadataElement*{section,property}`; absent or empty: all."""
    element = record(Needed, "section property")
    return ListOf("neededMetadataList", Many("neededMetadataElement", attr, element))


def bulk(operation: str, attr: str, element: Record, *, element_name: str = "") -> ListOf:
    """Describe the list of a bulk request: `<operation>RequestList/<operation>RequestElement*`."""
    name = element_name or f"{operation}RequestElement"
    return ListOf(f"{operation}RequestList", Many(name, attr, element, bounds.BULK_ELEMENTS_MAX), required=True)


def answers(operation: str, element: Record) -> Record:
    """Describe the list of a bulk answer: `<operation>ResponseList/<operation>ResponseElement*`; a tuple."""
    listed = ListOf(f"{operation}ResponseList", Many(f"{operation}ResponseElement", "results", element))
    return shaped(lambda values: values, lambda values: (values,), listed)


def extra(name: str, attr: str, default: Any = "", **more: Form) -> One:
    """Describe an element that the original did not have: optional, and left out at its default."""
    return One(name, attr, default=default, omit=True, **more)


POSITION: Final = record(Position, "cluster generation sequence")


_COUNT = shaped(lambda *pair: pair, lambda pair: pair, One("section", "section"), One("number", "number", INT))
COUNTS: Final = shaped(
    dict, lambda counts: (tuple(counts.items()),), ListOf("countList", Many("count", "counts", _COUNT))
)


def stored_object(id_name: str, *before: Part) -> Record:
    """Describe a `StoredObject`: its id under `id_name`, metadata, version and counts.

    An original service sends no version: an object with metadata then counts as version 1, one without as absent.
    """

    def make(ident: str, sections: Mapping[str, Any], version: int, counts: Mapping[str, int] | None) -> Any:
        known = version if version >= 0 else int(bool(sections))
        return StoredObject(ObjectId(ident), known, sections, counts or {})

    def take(item: StoredObject) -> tuple[Any, ...]:
        return item.id, item.sections, item.version, item.counts or None

    return shaped(
        make,
        take,
        One(id_name, "id"),
        Metadata("sections", sections=True),
        One("version", "version", INT, default=-1),
        One("counts", "counts", COUNTS, None, omit=True),
    )


CHECKSUMS: Final[tuple[One, ...]] = (extra("sha256", "sha256"), extra("md5", "md5"), extra("adler32", "adler32"))
"""Three optional elements; read and written by hand-made records through `Checksums`."""


def _write_ln(name: LogicalName) -> str:
    """Canonical text, with the trailing slash that means "into"; the bare root is empty, for `/` would say "into"."""
    if name.start == ROOT and not name.parts:
        return "/" if name.into else ""
    return f"{name}/" if name.into else str(name)


LN: Final = Form("string", _write_ln, parse_ln)
"""A Logical Name; reading may raise BAD_NAME."""
