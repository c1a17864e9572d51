"""The names below a collection that a caller may know: pages of the Librarian's `below`, without the hidden ones.

A caller knows a name if he may read its collection, and all those between it and the top. A collection that he may not
read is an entry like any other, but not entered. The next request skips all below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry, Judge, is_visible
from chelonia.core import bounds
from chelonia.core.contents.below import Below, Leaf
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, StoredObject
from chelonia.core.names import LogicalName
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace

_WARY: Final = 16
"""Answers requested behind a closed collection: its neighbours are often closed, too."""


@dataclass(frozen=True, slots=True)
class RecursiveWalk:
    """A listing of the entries below `top`, for one caller."""

    ports: Ports
    turn: ElementCall
    judge: Judge
    top: FoundEntry
    open: dict[str, bool] = field(default_factory=lambda: {"": True})
    """Of each collection met, by path: whether the caller may know its contents."""

    async def page(self, ask: Below) -> tuple[list[Leaf], str]:
        """Return the next answers, and the path to go on after, "" at the end.

        `ask.needed` has at least `rights.RIGHTS`. Raises: TOO_LARGE once the call has read too much; BAD_REQUEST.
        """
        check_after(ask)
        found: list[Leaf] = []
        step = ask.limit
        while True:
            wanted = ask.limit - len(found)
            page = await self.ports.librarian.below(self.turn.service, replace(ask, limit=min(step, wanted)))
            self.turn.room.weigh(sum([len(leaf.summary) or leaf.weight for leaf in (*page.crossed, *page.leaves)]))
            for leaf in page.crossed:
                self._meet(leaf)
            hidden = self._take(page.leaves, found)
            if hidden:
                ask, step = replace(ask, after=hidden, past=True), _WARY
            elif not page.after or len(found) >= ask.limit:
                return found, page.after
            else:
                ask, step = replace(ask, after=page.after, past=False), min(step * 4, ask.limit)

    def found(self, path: str, stored: StoredObject) -> FoundEntry:
        """Return an entry of the listing, by its path."""
        ln = self.top.ln
        return FoundEntry(LogicalName(ln.start, (*ln.parts, *path.removesuffix("/").split("/"))), stored)

    def _take(self, leaves: Sequence[Leaf], found: list[Leaf]) -> str:
        """Keep what the caller may know, up to the first collection closed to him. Returns: its path, or ""."""
        for leaf in leaves:
            above = leaf.path[: leaf.path.rfind("/", 0, -1) + 1]
            if not self.open[above]:
                return self._closed(above)
            if leaf.object is None:
                found.append(leaf)
            elif is_visible(leaf.object):
                self._meet(leaf)
                found.append(leaf)
        return ""

    def _meet(self, leaf: Leaf) -> None:
        if leaf.path.endswith("/"):
            assert leaf.object is not None, "a collection is an object"
            above = leaf.path[: leaf.path.rfind("/", 0, -1) + 1]
            self.open[leaf.path] = self.open[above] and self._may_enter(leaf.path, leaf.object)

    def _may_enter(self, path: str, stored: StoredObject) -> bool:
        is_collection = is_visible(stored) and stored.value("entry", "type") == TYPE_COLLECTION
        return is_collection and self.judge.may(Action.READ, self.found(path, stored))

    def _closed(self, path: str) -> str:
        """Return the uppermost closed collection on a path."""
        end = path.find("/") + 1
        while self.open[path[:end]]:
            end = path.find("/", end) + 1
        return path[:end]


def check_after(ask: Below) -> None:
    """Refuse fields that could not be of any path. Raises: BAD_REQUEST."""
    for text, name in ((ask.after, "after"), (ask.prefix, "prefix"), (ask.delimiter, "delimiter")):
        long = len(text.encode("utf-8", "surrogatepass")) > bounds.LN_BYTES_MAX
        if "\0" in text or long or text.count("/") > bounds.LN_DEPTH_MAX:
            raise CheloniaError(Kind.BAD_REQUEST, subject=name, cause=f"not the `{name}` of a path that can be")
