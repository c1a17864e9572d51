"""Rounds: going through all replicas of a Shepherd page by page, and how far that has come. Pure.

A page is called by the reference it was read after. All are read once; then, one at a time, those in which something
was left for later, the most endangered first: what is whole by then is not read again. A round's cursor is the first
page with anything open: what is before it is as wanted, or waits for what is not to be had now. A round that begins at
a stored cursor therefore misses nothing, whoever leads it.

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
"""The cursor of a round that is done: after every reference."""


@dataclass(slots=True)
class _RoundPage:
    """One with something open or left. `upto`: where it ended; `left`: the fewest verified copies of what was left."""

    upto: str = ""
    open: int = 0
    left: int | None = None


class RepairRound:
    """One Shepherd's. `loss`: since when its state is what it is; `kept`: the cursor is worth storing, for nothing that
    is only waited for today can be due tomorrow."""

    def __init__(self, shepherd: ServiceId, loss: Ms = NO_LOSS, after: str = "", *, kept: bool = False) -> None:
        self.shepherd = shepherd
        self.loss = loss
        self.kept = kept
        self.after = after
        self.read = after == END
        self._begun = _position(after)
        self._whole = self.read
        self._until = END
        self._stuck: str | None = None
        self._pages: dict[str, _RoundPage] = {}
        self._left: list[tuple[int, str]] = []

    def took(self, last: str) -> None:
        """The page after `after` was read, up to `last` ("": it was the last one)."""
        assert not self.read, "what was read is not read again, unless it was left"
        assert not last or last > self.after, "a page goes on behind the one before"
        if self.after in self._pages:
            self._pages[self.after].upto = max(self._pages[self.after].upto, last or END)
        self.after = last or END
        self.read = self.after >= self._until
        self._whole = self._whole or self.read

    def opened(self, page: str) -> None:
        """A blob of this page is looked into."""
        self._pages.setdefault(page, _RoundPage()).open += 1

    def closed(self, page: str) -> None:
        """One of them is as wanted."""
        found = self._pages[page]
        assert found.open > 0, "a blob is closed once"
        found.open -= 1
        if not found.open and found.left is None:
            del self._pages[page]

    def leave(self, page: str, live: int) -> None:
        """One of them, with so many verified copies, is left for later: the page will be read again."""
        found = self._pages[page]
        if found.left is None or live < found.left:
            found.left = live
            heappush(self._left, (live, page))
        self.closed(page)

    def stick(self, page: str) -> None:
        """One of them cannot be helped now; what helps it will begin a new round."""
        self.closed(page)
        self._stuck = page if self._stuck is None else min(self._stuck, page)

    def again(self, live: int | None) -> bool:
        """Once everything was read, go back to the page with the most endangered that was left.

        Args: live: only to one with fewer verified copies than these; None: whatever was left.
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
        """Those of these references that it will come to, or come back to: it finds itself what they lack."""
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
        """How much of what it goes through has been read once, 0 to 1: references are random, so by their place."""
        return 1.0 if self._whole else (_position(self.after) - self._begun) / (1 - self._begun)

    @property
    def cursor(self) -> NodeCursor:
        """How far it has come."""
        marks = [*self._pages, *([] if self._stuck is None else [self._stuck])]
        after = min(marks if self.read else [self.after, *marks], default=END)
        return NodeCursor(self.shepherd, after, self.read and not self._pages)


def _position(reference: str) -> float:
    """Where a reference is among all there could be, 0 to 1; 0 for what is no UUID."""
    if reference == END:
        return 1.0
    digits = reference[:8]
    return int(digits, 16) / 16 ** len(digits) if set(digits) <= set(hexdigits) and digits else 0.0
