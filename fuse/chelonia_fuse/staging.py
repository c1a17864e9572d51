"""Local bytes of a file, changes to them, and the plan of their commit. Pure.

Decides which bytes have to be fetched and which were written. Decides whether a commit replaces all blobs of the file
by one, or lays one over a part of it. Never touches a file or the network.
Invariants: written bytes are here; no byte of the base beyond `kept` is shown again after a truncation to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from chelonia.core import bounds

WHOLE_BYTES_MAX: Final = 256 * 1024
"""Size up to which a file is written anew, as one blob with a checksum of the whole, after `LAID_MAX` commits over it.
While it has at most `SMALL_BYTES_MAX`, which travel in one message, that is done each time."""
SMALL_BYTES_MAX: Final = bounds.INLINE_BYTES_MAX
LAID_MAX: Final = 16
MERGED_BYTES_MIN: Final = 16 * 1024
"""Size up to which a last piece is written anew with bytes appended to it: that costs less than another blob."""
MERGED_BYTES_MAX: Final = 448 * 1024
"""Bytes beyond which last pieces of at most `WHOLE_BYTES_MAX` become one, which takes a ticket."""
PIECES_MAX: Final = bounds.SPLICE_EXTENTS_MAX // 2
"""Pieces of one commit; more are joined, with the bytes between them."""
Range = tuple[int, int]
"""Offset of the first byte, and of the byte after the last."""


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
        """Add [start, end)."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        """Remove [start, end)."""
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
        """Remove all offsets from `size` on."""
        self.remove(size, max(size, self.end))

    def clear(self) -> None:
        self._starts, self._ends = [], []

    def missing(self, start: int, end: int) -> list[Range]:
        """Return the parts of [start, end) that are not in it, in order."""
        out, at = [], start
        for first, last in self.within(start, end):
            if first > at:
                out.append((at, first))
            at = last
        if at < end:
            out.append((at, end))
        return out

    def within(self, start: int, end: int) -> list[Range]:
        """Return the parts of [start, end) that are in it, in order."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        pairs = zip(self._starts[first:last], self._ends[first:last], strict=True)
        return [(max(s, start), min(e, end)) for s, e in pairs]

    def covers(self, start: int, end: int) -> bool:
        """Whether all of [start, end) is in it."""
        return not self.missing(start, end)


@dataclass(frozen=True, slots=True)
class Plan:
    """A commit. `ranges`: the bytes to send, in order, as one blob; `whole`: nothing of the base stays. `resizes`: it
    cuts the base, or zeros follow on all bytes."""

    size: int
    ranges: tuple[Range, ...] = ()
    whole: bool = False
    resizes: bool = False

    @property
    def plain(self) -> bool:
        """Whether the bytes to send are the file, without a hole."""
        return self.whole and self.ranges == ((0, self.size),)

    @property
    def adds(self) -> bool:
        """Whether the bytes to send are laid over a base that stays, and where can be said in a record."""
        return not (self.whole or self.resizes) and 0 < len(self.ranges) <= bounds.PLACED_SPANS_MAX

    @property
    def length(self) -> int:
        return sum(end - start for start, end in self.ranges)


@dataclass(slots=True)
class Staged:
    """The local bytes of one version of a file, and changes to them.

    Args:
        etag: of that version; `base`: its size.
        size: of the file now.
        kept: bytes of the base that may still be shown.
        tails: offsets of the last pieces committed here, as far as they may be written anew.
        laid: commits laid over it here since it was of one blob.
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
        """Return a version of which no byte is here yet, without changes."""
        return cls(etag, size, size, size)

    @property
    def changed(self) -> bool:
        return bool(self.dirty) or self.size != self.base

    def missing(self, start: int, end: int) -> list[Range]:
        """Return the ranges to fetch before [start, end) can be read; bytes beyond the base are zeros, and here."""
        return self.valid.missing(start, min(end, self.size, self.kept))

    def fetched(self, start: int, end: int) -> Iterator[Range]:
        """Yield the ranges of fetched bytes that the caller is to store; each is noted as here afterwards."""
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
        """Truncate, or lengthen by zeros."""
        self.appended = self.appended and size >= self.base
        if size < self.size:
            self.valid.cut(size)
            self.dirty.cut(size)
            self.kept = min(self.kept, size)
        else:
            self.dirty.add(max(self.size, self.kept), min(size, self.base))  # the base's bytes must not come back
            self.valid.add(max(self.size, self.kept), size)
        self.size = size

    def plan(self, *, anew: bool = False) -> Plan:
        """Return the plan of a commit; `anew`: as one blob. Bytes that `valid` lacks have to be fetched first."""
        if self.size == 0:
            return Plan(0, whole=True)
        if anew:
            return Plan(self.size, ((0, self.size),), whole=True)
        many = self.size <= WHOLE_BYTES_MAX and self.laid >= LAID_MAX
        more = self.size <= SMALL_BYTES_MAX or 2 * self.dirty.total >= self.size
        if many or (more and not self.missing(0, self.size)):
            return Plan(self.size, ((0, self.size),), whole=True)
        ranges = self._with_tails(joined(list(self.dirty), PIECES_MAX))
        end = max([self.base, *(end for _, end in ranges)])
        return Plan(self.size, ranges, whole=self.kept == 0, resizes=self.size != end)

    def _with_tails(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """The ranges of a commit, with last pieces that are written anew with the appended bytes."""
        # These are pieces that travel in one message with the bytes behind them, and are at most twice as long as
        # those; and all pieces, once they are many bytes. So a byte is sent few times again.
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
        """Note that a plan became the version `etag`; later changes stay to be committed."""
        start, end = plan.ranges[-1] if plan.ranges else (plan.size, plan.size)
        most = min(plan.size, start) if end == plan.size else plan.size
        tails = [tail for tail in self.tails if plan.size - 2 * MERGED_BYTES_MAX <= tail < most]
        self.tails = [] if plan.whole else [*tails, start] if start < end == plan.size else tails
        self.laid = 0 if plan.plain else self.laid + 1
        self.etag, self.base, self.kept = etag, plan.size, min(plan.size, self.size)
        self.appended = True
        for start, end in plan.ranges:
            self.dirty.remove(start, end)

    def sent(self) -> Staged:
        """Return its state if all changes so far were committed. Later changes go to both; they share `valid`."""
        return Staged("", self.size, self.size, self.size, laid=self.laid + 1, valid=self.valid)

    def moved_on(self, etag: str, size: int) -> Staged:
        """Return its appended bytes behind another version, which another writer has committed, without the rest."""
        assert self.appended, "only what was appended can go elsewhere"
        shift = size - self.base
        dirty = Ranges((start + shift, end + shift) for start, end in self.dirty)
        valid = Ranges([(size, self.size + shift)])
        return Staged(etag, size, self.size + shift, size, laid=self.laid, valid=valid, dirty=dirty)


def joined(ranges: list[Range], most: int) -> tuple[Range, ...]:
    """Return at most `most` ranges, by joining those that are nearest to each other."""
    if len(ranges) <= most:
        return tuple(ranges)
    gaps = sorted(range(1, len(ranges)), key=lambda n: ranges[n][0] - ranges[n - 1][1])
    cuts = sorted(gaps[len(ranges) - most :])
    starts, ends = [0, *cuts], [*cuts, len(ranges)]
    return tuple((ranges[first][0], ranges[last - 1][1]) for first, last in zip(starts, ends, strict=True))
