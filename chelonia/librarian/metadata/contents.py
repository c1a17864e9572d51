"""Contents in the metadata: the records of the extents of a file of several blobs. Layout: `docs/formats/metadata.md`.

A file names its content in `content/id`. The object `content:<id>` keys each extent by its last byte: the one at an
offset is the first record from there. Its `named` counts the bytes of each blob that the extents name.
"""

from __future__ import annotations

from typing import Final

from chelonia.core.contents.extents import Extent
from chelonia.core.ids import BlobId, ContentId
from chelonia.core.metadata import StoredObject

OPEN: Final = "open"
SEALED: Final = "sealed"
DISCARDED: Final = "discarded"
COPYING: Final = "copying"
"""States of a content: of an upload in parts, of a file, of nobody (the sweep erases it), and of a file to come. The
last takes the extents of another."""
LEFT: Final = "left_ms"
"""Property of a file: the time of its content's `sys:pending` record at sealing, for what is left of its parts."""

FOUND_PARTS: Final = "parts"
"""Property of a content that a rebuild has put together, until it has a file: the parts of an upload that it has."""


def content_of(file: StoredObject) -> ContentId:
    """Return the content of a file of several blobs, "" for any other."""
    return ContentId(file.value("content", "id"))


def last_byte_key(offset: int) -> str:
    """Return the property of the extent whose last byte is at `offset`; "", before all others, for -1."""
    return f"{offset:016x}" if offset >= 0 else ""


def extent_record(extent: Extent) -> tuple[str, str]:
    """Return the property and value of an extent."""
    return last_byte_key(extent.end - 1), f"{extent.blob} {extent.skip} {extent.length}"


def parse_extent(key: str, value: str) -> Extent:
    """Read an extent. Raises: ValueError when malformed."""
    blob, skip, length = value.split(" ")
    extent = Extent(int(key, 16) + 1 - int(length), int(length), BlobId(blob), int(skip))
    if extent_record(extent) != (key, value) or min(extent.at, extent.skip, extent.length - 1) < 0:
        raise ValueError(f"no extent: {key} {value}")
    return extent
