"""Sets of byte ranges: which bytes of a file are here, which were written here. Pure.

Invariant: ranges are ordered, not empty, and neither overlap nor touch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""From the first byte up to, not including, the last offset."""


class Ranges:
    """A set of bytes by their offsets."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def total(self) -> int:
        """How many bytes there are."""
        return sum(self._ends) - sum(self._starts)

    @property
    def end(self) -> int:
        """The offset after the last byte; 0 when there is none."""
        return self._ends[-1] if self._ends else 0

    def add(self, start: int, end: int) -> None:
        """Take [start, end) in."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        """Take [start, end) out."""
        if start >= end:
            return
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if first >= last:
            return
        left = [(self._starts[first], start)] if self._starts[first] < start else []
        right = [(end, self._ends[last - 1])] if end < self._ends[last - 1] else []
        kept = left + right
        self._starts[first:last], self._ends[first:last] = [s for s, _ in kept], [e for _, e in kept]

    def cut(self, size: int) -> None:
        """Take out what is at `size` or beyond."""
        self.remove(size, max(size, self.end))

    def clear(self) -> None:
        """Take everything out."""
        self._starts, self._ends = [], []

    def missing(self, start: int, end: int) -> list[Range]:
        """The parts of [start, end) that are not in it, in order."""
        out, at = [], start
        for first, last in self.within(start, end):
            if first > at:
                out.append((at, first))
            at = last
        if at < end:
            out.append((at, end))
        return out

    def within(self, start: int, end: int) -> list[Range]:
        """The parts of [start, end) that are in it, in order."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        pairs = zip(self._starts[first:last], self._ends[first:last], strict=True)
        return [(max(s, start), min(e, end)) for s, e in pairs]

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is in it."""
        return not self.missing(start, end)
