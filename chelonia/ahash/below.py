"""Listing the paths below an object: one ordered page over many collections, of one state. Pure, over a `Reader`.

A seek skips, unread, the rows that a delimiter sums up and those before the page or beyond the prefix.
Invariants: paths rise; each row read is an answer, or belongs to a chunk that a seek has cut short.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chelonia.ahash.reads import read_object
from chelonia.ahash.store import layout
from chelonia.ahash.store.port import Reader
from chelonia.core import bounds
from chelonia.core.contents import summaries
from chelonia.core.contents.below import Below, BelowPage, Leaf, beyond, common_prefix, lowest
from chelonia.core.ids import ObjectId

CHUNK_FIRST: Final = 16
"""Rows of the first chunk of a collection, and of the first after a seek; each later chunk has four times as many."""
_SECTION: Final = "entries"
_SLASH: Final = b"/"
_PLAIN: Final = b" f "
"""Text that follows the GUID in the complete summary of a file (`core.contents.summaries`)."""


@dataclass(slots=True)
class _OpenCollection:
    """A collection being listed: its path below the start, and the rows read but not yet listed."""

    path: bytes
    id: ObjectId
    head: bytes
    start: bytes
    end: bytes
    rows: list[tuple[bytes, bytes]] = field(default_factory=list)
    at: int = 0
    chunk: int = CHUNK_FIRST
    ended: bool = False
    summaries: dict[bytes, bytes] | None = None
    """Those beside `rows`; None: not read yet."""


def read_below(reader: Reader, ask: Below) -> BelowPage:
    """Return one page of the paths below `ask.start`."""
    return _BelowWalk(reader, ask).page()


class _BelowWalk:
    def __init__(self, reader: Reader, ask: Below) -> None:
        self._reader, self._ask = reader, ask
        self._prefix, self._low = ask.prefix.encode(), lowest(ask)
        self._levels = [self._level(b"", ask.start)]
        self._leaves: list[Leaf] = []
        self._crossed: list[Leaf] = []
        self._weight = 0
        self._scans = 0

    def page(self) -> BelowPage:
        """Walk the tree until the page is full or the tree ends."""
        assert self._ask.limit > 0, "a page has room for a path"
        more = False
        while self._levels:
            self._list_files(self._levels[-1])
            row = self._next(self._levels[-1])
            if row is None:
                self._levels.pop()
                continue
            path, child = self._levels[-1].path + row[0], ObjectId(layout.decode_value(row[1]))
            if path < self._low:  # the page begins inside this collection
                self._enter(path, child, listed=False)
            elif not path.startswith(self._prefix) or (more := self._full()):
                break
            else:
                self._list(path, child)
        assert self._leaves or not more, "a page that another follows says where"
        return BelowPage(tuple(self._leaves), tuple(self._crossed), self._leaves[-1].path if more else "")

    def _list_files(self, level: _OpenCollection) -> None:
        """List the next files that have complete summaries: nearly all of most listings."""
        # The delimiter "/" sums up no file of a collection that has been entered; another delimiter may.
        ask, rows, above, begin = self._ask, level.rows, level.path, len(level.head)
        if level.at >= len(rows) or rows[level.at][0].endswith(_SLASH):
            return
        within = above.startswith(self._prefix[: len(above)]) and above + rows[level.at][0][begin:] >= self._low
        if not (within and ask.summaries and ask.delimiter in ("", "/")):
            return
        stored, text, rest = self._summaries_of(level), above.decode(), self._prefix[len(above) :]
        for n in range(level.at, min(len(rows), level.at + ask.limit - len(self._leaves))):
            key, value = rows[n]
            name = key[begin:]
            found = stored.get(name, b"")
            plain = found.startswith(value + _PLAIN) and name.startswith(rest)
            if not plain or self._weight >= bounds.PAGE_BYTES_MAX:
                break
            summary = layout.decode_value(found)
            self._leaves.append(Leaf(text + name.decode(), None, summary))
            self._weight += len(summary)
            level.at = n + 1

    def _full(self) -> bool:
        """Whether the page takes no more. It takes at least one path, however large or deep that is."""
        count = len(self._leaves)
        costly = self._weight >= bounds.PAGE_BYTES_MAX or self._scans >= bounds.BELOW_SCANS_MAX
        return count >= self._ask.limit or (costly and count > 0)

    def _list(self, path: bytes, child: ObjectId) -> None:
        text = path.decode()
        common = common_prefix(text, self._ask.prefix, self._ask.delimiter) if self._ask.delimiter else ""
        if common:
            self._leaves.append(Leaf(common))
            self._skip(common.encode(), beyond(common))
            return
        is_collection = path.endswith(_SLASH)
        summary = "" if is_collection or not self._ask.summaries else self._summary(path, child)
        leaf = Leaf(text, None if summary else read_object(self._reader, child, self._ask.needed), summary)
        self._weight += len(summary) or leaf.weight
        self._leaves.append(leaf)
        if is_collection:
            self._enter(path, child, listed=True)

    def _summary(self, path: bytes, child: ObjectId) -> str:
        """The summary stored beside a name; empty if it is another entry's or bears one of the marks in `ask`."""
        level = self._levels[-1]
        data = self._summaries_of(level).get(path[len(level.path) :])
        found = "" if data is None else layout.decode_value(data)
        guid, _, rest = found.partition(" ")
        if guid != child:
            return ""
        borne = rest.partition(" ")[0]
        return "" if len(borne) > 1 and any(mark in borne for mark in self._ask.marks) else found

    def _summaries_of(self, level: _OpenCollection) -> dict[bytes, bytes]:
        """The stored summaries beside the rows of a collection, by name."""
        if level.summaries is not None:
            return level.summaries
        assert level.rows, "summaries stand beside names that were read"
        self._scans += 1
        head = layout.wide_range(level.id, summaries.SECTION)[0]
        start, end = (head + level.rows[n][0][len(level.head) :] for n in (0, -1))
        rows = self._reader.scan(start, end + b"\0", 2 * len(level.rows))
        begin = len(head)
        level.summaries = {key[begin:]: value for key, value in rows}
        return level.summaries

    def _enter(self, path: bytes, child: ObjectId, *, listed: bool) -> None:
        if not self._ask.deep or not path.endswith(_SLASH) or len(self._levels) >= bounds.LN_DEPTH_MAX:
            return
        if not listed:
            crossed = Leaf(path.decode(), read_object(self._reader, child, self._ask.needed))
            self._weight += crossed.weight
            self._crossed.append(crossed)
        self._levels.append(self._level(path, child))

    def _skip(self, common: bytes, low: bytes) -> None:
        """Continue at `low`, after every path that begins with `common`."""
        assert low > max(common, self._low), "a seek goes forward, and leaves behind what is summed up"
        self._low = low
        while self._levels and self._levels[-1].path.startswith(common):
            self._levels.pop()
        if self._levels:
            level = self._levels[-1]
            edge = level.head + low[len(level.path) :]
            while level.at < len(level.rows) and level.rows[level.at][0] < edge:
                level.at += 1
            level.start, level.chunk = max(level.start, edge), CHUNK_FIRST

    def _level(self, path: bytes, child: ObjectId) -> _OpenCollection:
        """Open a collection at the place where the page begins in it."""
        head, end = layout.wide_range(child, _SECTION)
        start = head
        if self._low.startswith(path):
            rest = self._low[len(path) :]
            name, slash, _ = rest.partition(_SLASH)
            start += name + slash if self._ask.deep else rest
        return _OpenCollection(path, child, head, start, end)

    def _next(self, level: _OpenCollection) -> tuple[bytes, bytes] | None:
        """The next row of a collection as (name, value); None at its end."""
        if level.at >= len(level.rows):
            if level.ended:
                return None
            self._scans += 1
            level.rows, level.at = self._reader.scan(level.start, level.end, level.chunk), 0
            assert len(level.rows) <= level.chunk, "a scan returns what was asked for at most"
            level.ended = len(level.rows) < level.chunk
            if not level.rows:
                return None
            level.start, level.summaries = level.rows[-1][0] + b"\0", None
            lacking = self._ask.limit - len(self._leaves) - len(level.rows) + 1
            level.chunk = min(level.chunk * 4, max(lacking, CHUNK_FIRST), bounds.PAGE_ENTRIES_MAX)
        key, value = level.rows[level.at]
        level.at += 1
        return key[len(level.head) :], value
