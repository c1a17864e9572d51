"""Contents in the metadata: how the extents of a file of several blobs are spelled. Layout: `docs/formats/metadata.md`.

A file names its content in `content/id`; the object `content:<id>` has the extents by their last byte, so that the one
at an offset is the first record from there, and in `named` how many bytes of each blob they name.
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
"""States of a content: an upload in parts; the bytes of a file; nobody's, to be let go of page by page; those of a file
to be, which come page by page from another."""
LEFT: Final = "left_ms"
"""Of a file: with what time its content stood in `sys:pending` when it was sealed, for what is left of its parts."""

FOUND_PARTS: Final = "parts"
"""Of a content that a rebuild has put together, until it has a file: which parts of an upload it has."""


def content_of(file: StoredObject) -> ContentId:
    """The content of a file of several blobs, "" for any other."""
    return ContentId(file.value("content", "id"))


def last_byte_key(offset: int) -> str:
    """The property of the extent whose last byte is at `offset`; "" stands before all."""
    return f"{offset:016x}" if offset >= 0 else ""


def extent_record(extent: Extent) -> tuple[str, str]:
    """Property and value of an extent."""
    return last_byte_key(extent.end - 1), f"{extent.blob} {extent.skip} {extent.length}"


def parse_extent(key: str, value: str) -> Extent:
    """Read an extent. Raises: ValueError for what is none."""
    blob, skip, length = value.split(" ")
    extent = Extent(int(key, 16) + 1 - int(length), int(length), BlobId(blob), int(skip))
    if extent_record(extent) != (key, value) or min(extent.at, extent.skip, extent.length - 1) < 0:
        raise ValueError(f"no extent: {key} {value}")
    return extent
