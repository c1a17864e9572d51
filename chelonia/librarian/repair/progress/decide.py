"""Rounds: going through all replicas of a Shepherd page by page, and their progress. Pure.

The name of a page is the reference it was read after. All pages are read once. Then, one at a time, those in which
blobs were left for later are read again, the most endangered first; the others are not. A round's cursor is the first
page with anything open: all blobs before it are as wanted, or wait for Shepherds. A round that begins at a stored
cursor therefore misses nothing, whoever leads it.

Invariant: the cursor never passes a blob that still lacks a copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from string import hexdigits
from typing import Final

from chelonia.core.cluster.healing import NodeCursor
from chelonia.core.ids import Ms, ServiceId

NO_LOSS: Final = Ms(0)
END: Final = "~"
"""Cursor of a round that is done: after every reference."""


@dataclass(slots=True)
class _RoundPage:
    """A page with open or left blobs. `upto`: its end; `left`: the fewest verified copies of a blob that was left."""

    upto: str = ""
    open: int = 0
    left: int | None = None


class RepairRound:
    """A round through one Shepherd. `loss`: time since which it has its state; `kept`: the cursor is worth storing, for
    no blob is skipped today that would be due tomorrow."""

    def __init__(self, shepherd: ServiceId, loss: Ms = NO_LOSS, after: str = "", *, kept: bool = False) -> None:
        self.shepherd = shepherd
        self.loss = loss
        self.kept = kept
        self.after = after
        self.read = after == END
        self._start = _position(after)
        self._whole = self.read
        self._until = END
        self._stuck: str | None = None
        self._pages: dict[str, _RoundPage] = {}
        self._left: list[tuple[int, str]] = []

    def took(self, last: str) -> None:
        """Note that the page after `after` was read, up to `last` ("": it was the last one)."""
        assert not self.read, "what was read is not read again, unless it was left"
        assert not last or last > self.after, "a page goes on behind the one before"
        if self.after in self._pages:
            self._pages[self.after].upto = max(self._pages[self.after].upto, last or END)
        self.after = last or END
        self.read = self.after >= self._until
        self._whole = self._whole or self.read

    def opened(self, page: str) -> None:
        """Note that a blob of this page is being handled."""
        self._pages.setdefault(page, _RoundPage()).open += 1

    def closed(self, page: str) -> None:
        """Note that one of them is as wanted."""
        found = self._pages[page]
        assert found.open > 0, "a blob is closed once"
        found.open -= 1
        if not found.open and found.left is None:
            del self._pages[page]

    def leave(self, page: str, live: int) -> None:
        """Leave one of them, with so many verified copies, for later: the page will be read again."""
        found = self._pages[page]
        if found.left is None or live < found.left:
            found.left = live
            heappush(self._left, (live, page))
        self.closed(page)

    def stick(self, page: str) -> None:
        """Note that one of them cannot be helped now; the event that helps it will begin a new round."""
        self.closed(page)
        self._stuck = page if self._stuck is None else min(self._stuck, page)

    def again(self, live: int | None) -> bool:
        """Go back, once everything was read, to the left page with the most endangered blob.

        Args: live: only to one with fewer verified copies than these; None: to any.
        Returns: whether there is one.
        """
        while self._left and not self._is_left(*self._left[0]):
            heappop(self._left)
        if not self.read or not self._left or (live is not None and self._left[0][0] >= live):
            return False
        _, self.after = heappop(self._left)
        page = self._pages[self.after]
        assert page.upto, "a page that was left was read to its end"
        self.read, self._until, page.left = False, page.upto, None
        if not page.open:
            del self._pages[self.after]
        return True

    def ahead(self, references: Iterable[str]) -> set[str]:
        """Return those of these references that it will come to, or come back to: it finds their needs by itself."""
        left = sorted((after, page.upto) for after, page in self._pages.items() if page.left is not None)
        ahead: set[str] = set()
        for reference in references:
            before = bisect_left(left, (reference, ""))
            unread = not self.read and self.after < reference <= self._until
            if unread or (before and reference <= left[before - 1][1]):
                ahead.add(reference)
        return ahead

    def _is_left(self, live: int, page: str) -> bool:
        return page in self._pages and self._pages[page].left == live

    @property
    def share(self) -> float:
        """Share that has been read once, 0 to 1, by place: references are random, and nearly all are UUIDs."""
        return 1.0 if self._whole else max(_position(self.after) - self._start, 0.0) / (1 - self._start)

    @property
    def cursor(self) -> NodeCursor:
        """The first place with anything open."""
        marks = [*self._pages, *([] if self._stuck is None else [self._stuck])]
        after = min(marks if self.read else [self.after, *marks], default=END)
        return NodeCursor(self.shepherd, after, self.read and not self._pages)


def _position(reference: str) -> float:
    """The place of a reference among all possible ones, 0 to 1; 0 for what is no UUID."""
    if reference == END:
        return 1.0
    digits = reference[:8]
    return int(digits, 16) / 16 ** len(digits) if set(digits) <= set(hexdigits) and digits else 0.0
