"""The names below an object in ordered pages: request and answer of `below`, of A-Hash and Librarian.

The path of a name is the properties that lead to it, one after the other. Those of collections end in `/`, so that
byte order of paths is the order of a walk, depth first. A page may begin and end at any path.
"""

from __future__ import annotations

import msgspec

from chelonia.core import bounds
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Filter, StoredObject


class Below(msgspec.Struct, frozen=True):
    """A request for a page of the names below `start`.

    Args:
        after: the path that the page follows (exclusive; empty: from the start).
        past: it also follows everything that begins with `after`.
        prefix: only paths that begin with it.
        delimiter: paths with it behind the prefix are grouped: one answer has what they share, up to the delimiter.
        deep: walk into collections; else answer only with the names that `start` itself holds.
        limit: answers, at most `bounds.BELOW_ENTRIES_MAX`; fewer come where they are large.
        needed: the parts of each named object to return.
        summaries: return the summary beside a file's name instead of reading the file, where there is one
            without any of `marks` (`core.contents.summaries`).
    """

    start: ObjectId
    after: str = ""
    past: bool = False
    prefix: str = ""
    delimiter: str = ""
    deep: bool = True
    limit: int = bounds.PAGE_ENTRIES_MAX
    needed: Filter = ()
    summaries: bool = False
    marks: str = ""


class Leaf(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One answer: a path with its object or that object's summary; with neither, the common start of several paths."""

    path: str
    object: StoredObject | None = None
    summary: str = ""

    @property
    def weight(self) -> int:
        """Characters of the answer, its path not counted."""
        return self.object.weight if self.object is not None else len(self.summary)

    @property
    def sums_up(self) -> bool:
        """Whether it stands for all paths that begin with its path."""
        return self.object is None and not self.summary


class BelowPage(msgspec.Struct, frozen=True):
    """Answers in order of their paths.

    `crossed`: collections on the way that are not among the answers of this page, each before its contents.
    `after` continues it; empty when this is the last page.
    """

    leaves: tuple[Leaf, ...]
    crossed: tuple[Leaf, ...] = ()
    after: str = ""


def lowest(ask: Below) -> bytes:
    """Return the lowest path that a page may have, in bytes."""
    start = b""
    if ask.after:
        common = common_prefix(ask.after, ask.prefix, ask.delimiter)
        start = beyond(common or ask.after) if common or ask.past else ask.after.encode() + b"\0"
    least = max(start, ask.prefix.encode())
    assert not ask.after or least > ask.after.encode(), "a page begins behind the one before"
    return least


def common_prefix(path: str, prefix: str, delimiter: str) -> str:
    """Return the start of a path up to the delimiter, which stands for it; empty: it stands for itself."""
    if not delimiter or not path.startswith(prefix):
        return ""
    found = path.find(delimiter, len(prefix))
    return path[: found + len(delimiter)] if found >= 0 else ""


def beyond(text: str) -> bytes:
    """Return the lowest bytes above every text that begins with `text` (not empty): no byte of UTF-8 is 255."""
    assert text, "everything begins with nothing"
    data = text.encode()
    return data[:-1] + bytes((data[-1] + 1,))
