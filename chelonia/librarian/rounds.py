"""Rounds: going through all replicas of a Shepherd page by page, and how far that has come. Pure.

A page is called by the reference it was read after. A round's cursor is the first page with anything open: what is
before it is as wanted, or waits for what is not to be had now. A round that begins at a stored cursor therefore misses
nothing, whoever leads it.

Invariant: the cursor never passes a blob that still lacks a copy.
"""

from __future__ import annotations

from string import hexdigits
from typing import Final

from chelonia.core.healing import NodeCursor
from chelonia.core.ids import Ms, ServiceId

NO_LOSS: Final = Ms(0)
END: Final = "~"
"""The cursor of a round that is done: after every reference."""


class Round:
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
        self._left: str | None = None
        self._stuck: str | None = None
        self._open: dict[str, int] = {}

    def took(self, last: str) -> None:
        """The page after `after` was read, up to `last` ("": it was the last one)."""
        self.after = last or END
        self.read = not last
        self._whole = self._whole or self.read

    def opened(self, page: str) -> None:
        """A blob of this page is looked into."""
        self._open[page] = self._open.get(page, 0) + 1

    def closed(self, page: str) -> None:
        """One of them is as wanted."""
        self._open[page] -= 1
        if not self._open[page]:
            del self._open[page]

    def leave(self, page: str) -> None:
        """One of them is left for later: the page will be read again."""
        self.closed(page)
        self._left = page if self._left is None else min(self._left, page)

    def stick(self, page: str) -> None:
        """One of them cannot be helped now; what helps it will begin a new round."""
        self.closed(page)
        self._stuck = page if self._stuck is None else min(self._stuck, page)

    def again(self) -> bool:
        """Go back to the first page that was left, once everything was read. Returns whether there is one."""
        if not self.read or self._left is None:
            return False
        self.after, self.read, self._left = self._left, False, None
        return True

    @property
    def share(self) -> float:
        """How much of what it goes through has been read once, 0 to 1: references are random, so by their place."""
        return 1.0 if self._whole else (_position(self.after) - self._begun) / (1 - self._begun)

    @property
    def cursor(self) -> NodeCursor:
        """How far it has come."""
        marks = [mark for mark in (self._left, self._stuck) if mark is not None] + list(self._open)
        after = min(marks if self.read else [self.after, *marks], default=END)
        return NodeCursor(self.shepherd, after, self.read and not self._open)


def _position(reference: str) -> float:
    """Where a reference is among all there could be, 0 to 1; 0 for what is no UUID."""
    if reference == END:
        return 1.0
    digits = reference[:8]
    return int(digits, 16) / 16 ** len(digits) if set(digits) <= set(hexdigits) and digits else 0.0
