"""What is named below an object, as ordered pages: the question and the answer of the A-Hash's and Librarian's `below`.

The path of a name is the properties that lead to it, one after the other; those of collections end in `/`, so that
byte order of paths is the order of a walk, depth first. A page begins and ends anywhere in it.
"""

from __future__ import annotations

import msgspec

from chelonia.core import bounds
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Filter, StoredObject


class Below(msgspec.Struct, frozen=True):
    """A page of what is named below `start`.

    Args:
        after: the path that the page follows (exclusive; empty: from the start).
        past: it also follows everything that begins with `after`.
        prefix: only paths that begin with it.
        delimiter: paths that have it behind the prefix are told by what they have in common up to it, once.
        deep: collections are gone through; else only what `start` itself names is told.
        limit: answers, at most `bounds.BELOW_ENTRIES_MAX`; fewer come where they are large.
        needed: what to tell of each object named.
        summaries: a file is told by the summary beside its name, where there is one, and not read;
        marks: unless its summary bears one of these (`core.contents.summaries`).
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
    """One answer: a path, and the object that it leads to or its summary; neither: what several paths begin with."""

    path: str
    object: StoredObject | None = None
    summary: str = ""

    @property
    def weight(self) -> int:
        """Characters of what it tells, but for its path."""
        return self.object.weight if self.object is not None else len(self.summary)

    @property
    def sums_up(self) -> bool:
        """Whether it stands for all paths that begin so."""
        return self.object is None and not self.summary


class BelowPage(msgspec.Struct, frozen=True):
    """Answers in order of their paths.

    `crossed`: the collections on the way to them that are no answers of this page, each before what is in it.
    `after` continues it; empty when this is the last page.
    """

    leaves: tuple[Leaf, ...]
    crossed: tuple[Leaf, ...] = ()
    after: str = ""


def lowest(ask: Below) -> bytes:
    """The lowest path that a page may tell, in bytes."""
    start = b""
    if ask.after:
        common = common_prefix(ask.after, ask.prefix, ask.delimiter)
        start = beyond(common or ask.after) if common or ask.past else ask.after.encode() + b"\0"
    least = max(start, ask.prefix.encode())
    assert not ask.after or least > ask.after.encode(), "a page begins behind the one before"
    return least


def common_prefix(path: str, prefix: str, delimiter: str) -> str:
    """What stands for a path where there is a delimiter; empty: it stands for itself."""
    if not delimiter or not path.startswith(prefix):
        return ""
    found = path.find(delimiter, len(prefix))
    return path[: found + len(delimiter)] if found >= 0 else ""


def beyond(text: str) -> bytes:
    """The lowest bytes above every text that begins with `text`, which is not empty: no byte of UTF-8 is 255."""
    assert text, "everything begins with nothing"
    data = text.encode()
    return data[:-1] + bytes((data[-1] + 1,))
