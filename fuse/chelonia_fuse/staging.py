"""What is here of a file's bytes, what was changed here, and how the change is committed. Pure.

Decides which bytes have to be fetched, which were written, and whether a commit gives the file one new blob in place of
all it had or lays one over a part of it. Never touches a file or the network.
Invariants: what was written is here; no byte of the base beyond `kept` is shown again after the file was cut to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from chelonia.core import bounds

WHOLE_BYTES_MAX: Final = 256 * 1024
"""A file up to this size is written anew, as one blob with a checksum of the whole, after `LAID_MAX` commits were laid
over it; and each time while it is of at most `SMALL_BYTES_MAX`, which travel in one message."""
SMALL_BYTES_MAX: Final = bounds.INLINE_BYTES_MAX
LAID_MAX: Final = 16
MERGED_BYTES_MIN: Final = 16 * 1024
"""A last piece up to this size is written anew with what is appended to it: that costs less than a blob more."""
MERGED_BYTES_MAX: Final = 448 * 1024
"""Beyond so many bytes last pieces of at most `WHOLE_BYTES_MAX` become one, which takes a ticket."""
PIECES_MAX: Final = bounds.SPLICE_EXTENTS_MAX // 2
"""Pieces of one commit; more are joined, with what lies between them."""
Range = tuple[int, int]
"""From the first byte up to, not including, the last offset."""


class Ranges:
    """A set of bytes by their offsets. Its ranges are in order, not empty, and neither overlap nor touch."""

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


@dataclass(frozen=True, slots=True)
class Plan:
    """A commit. `ranges`: the bytes to send, in order, as one blob; `whole`: nothing of the base stays."""

    size: int
    ranges: tuple[Range, ...] = ()
    whole: bool = False

    @property
    def plain(self) -> bool:
        """Whether the bytes to send are the file, without a hole."""
        return self.whole and self.ranges == ((0, self.size),)

    @property
    def length(self) -> int:
        return sum(end - start for start, end in self.ranges)


@dataclass(slots=True)
class Staged:
    """The bytes of one version of a file, as far as they are here, and what was changed of them.

    Args:
        etag: of the version they are of; `base`: its size.
        size: of the file now.
        kept: how many bytes of the base may still be shown.
        tails: where the last pieces that were committed here begin, as far as they may be written anew.
        laid: how many commits were laid over it here since it was of one blob.
        appended: every write since the last commit was an append.
    """

    etag: str
    base: int
    size: int = 0
    kept: int = 0
    tails: list[int] = field(default_factory=list)
    laid: int = 0
    appended: bool = True
    valid: Ranges = field(default_factory=Ranges)
    dirty: Ranges = field(default_factory=Ranges)

    @classmethod
    def of(cls, etag: str, size: int) -> Staged:
        """Nothing here yet, nothing changed."""
        return cls(etag, size, size, size)

    @property
    def changed(self) -> bool:
        return bool(self.dirty) or self.size != self.base

    def missing(self, start: int, end: int) -> list[Range]:
        """What has to be fetched before [start, end) can be read. What the base never had is zeros, and here."""
        return self.valid.missing(start, min(end, self.size, self.kept))

    def fetched(self, start: int, end: int) -> Iterator[Range]:
        """Of bytes of the base that came those that are to be kept: noted as here when the caller has kept them."""
        for first, last in self.valid.missing(start, min(end, self.kept)):
            yield first, last
            self.valid.add(first, last)

    def wrote(self, start: int, end: int, *, append: bool) -> None:
        self.appended = self.appended and append and start >= self.base
        if start > self.size:
            self.resize(start)
        self.valid.add(start, end)
        self.dirty.add(start, end)
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        """Cut, or lengthen by zeros."""
        self.appended = self.appended and size >= self.base
        if size < self.size:
            self.valid.cut(size)
            self.dirty.cut(size)
            self.kept = min(self.kept, size)
        else:
            self.dirty.add(max(self.size, self.kept), min(size, self.base))  # the base's bytes are not to come back
            self.valid.add(max(self.size, self.kept), size)
        self.size = size

    def plan(self, *, anew: bool = False) -> Plan:
        """How to commit what was changed; `anew`: as one blob. Bytes that `valid` lacks have to be fetched first."""
        if self.size == 0:
            return Plan(0, whole=True)
        if anew:
            return Plan(self.size, ((0, self.size),), whole=True)
        many = self.size <= WHOLE_BYTES_MAX and self.laid >= LAID_MAX
        more = self.size <= SMALL_BYTES_MAX or 2 * self.dirty.total >= self.size
        if many or (more and not self.missing(0, self.size)):
            return Plan(self.size, ((0, self.size),), whole=True)
        return Plan(self.size, self._with_tails(joined(list(self.dirty), PIECES_MAX)), whole=self.kept == 0)

    def _with_tails(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """Last pieces are written anew with what is appended: as far as all travels in one message each that is at most
        twice as long as what comes behind it; and all, once they are many bytes. So a byte is sent few times again."""
        start, end = ranges[0] if len(ranges) == 1 else (0, 0)
        if not (0 < start <= self.base and end == self.size):
            return ranges
        few = many = start
        for tail in reversed([tail for tail in self.tails if tail < start]):
            if many - tail > WHOLE_BYTES_MAX:
                break
            short = many - tail <= max(2 * (end - few), MERGED_BYTES_MIN) and end - tail <= SMALL_BYTES_MAX
            few, many = tail if short and few == many else few, tail
        merged = many if end - many > MERGED_BYTES_MAX else few
        return ((merged, end),) if self.valid.covers(merged, end) else ranges

    def committed(self, plan: Plan, etag: str) -> None:
        """Take note that a plan became the version `etag`; what was written meanwhile stays to be committed."""
        start, end = plan.ranges[-1] if plan.ranges else (plan.size, plan.size)
        most = min(plan.size, start) if end == plan.size else plan.size
        tails = [tail for tail in self.tails if plan.size - 2 * MERGED_BYTES_MAX <= tail < most]
        self.tails = [] if plan.whole else [*tails, start] if start < end == plan.size else tails
        self.laid = 0 if plan.plain else self.laid + 1
        self.etag, self.base, self.kept = etag, plan.size, min(plan.size, self.size)
        self.appended = True
        for start, end in plan.ranges:
            self.dirty.remove(start, end)

    def moved_on(self, etag: str, size: int) -> int:
        """Take note that what was appended goes behind another version, which somebody else committed; what is here of
        the old one goes. Returns: by how many bytes it moves."""
        assert self.appended, "only what was appended can go elsewhere"
        shift = size - self.base
        self.dirty = Ranges((start + shift, end + shift) for start, end in self.dirty)
        self.valid, self.size = Ranges([(size, self.size + shift)]), self.size + shift
        self.etag, self.base, self.kept, self.tails = etag, size, size, []
        return shift


def joined(ranges: list[Range], most: int) -> tuple[Range, ...]:
    """At most so many ranges, by joining those that are nearest to each other."""
    if len(ranges) <= most:
        return tuple(ranges)
    gaps = sorted(range(1, len(ranges)), key=lambda n: ranges[n][0] - ranges[n - 1][1])
    cuts = sorted(gaps[len(ranges) - most :])
    starts, ends = [0, *cuts], [*cuts, len(ranges)]
    return tuple((ranges[first][0], ranges[last - 1][1]) for first, last in zip(starts, ends, strict=True))
