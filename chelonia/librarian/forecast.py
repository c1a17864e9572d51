"""How long healing will take: from what is to be copied, and from how long copying took lately. Pure, time passed in.

A copy costs a time that does not depend on its size and a time per byte; as many run at once as do, so both are times
of the whole Librarian, not of one copy. They are fitted (least squares, neither below 0) to what was seen, the latest
weighing most. Where all files seen were alike the two cannot be told apart: a copy is then taken to cost as much by
itself as `COPY_BYTES` more, as those to come may be others. What was learned is kept while nothing is copied. A copy
that is under way when it is looked at counts as half made: of the first sixteen that were begun together, the first one
to end is not all there was to see.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from chelonia.core.ids import Ms

KEEP: Final = 0.9
"""How much of its weight a slice keeps when the next one comes: ten slices are most of what is known."""
RECENT_MS: Final = 10_000
"""What `recent` looks back over."""
SHARE_MIN: Final = 0.02
"""Of a loss, before anything is said of the rest of it."""
UNKNOWN: Final = -1
"""A forecast that cannot be made."""
COPY_BYTES: Final = 2 * 1024 * 1024
"""Bytes that take about as long as what a copy costs without them: measured 9 ms a small copy and 3 to 4 ms per MiB
(docs/performance.md)."""
_RIDGE: Final = 1e-9
"""How much `COPY_BYTES` weighs beside what was seen: it decides only where that does not."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a copy: milliseconds each, and milliseconds per byte."""

    copy_ms: float
    byte_ms: float


def forecast_ms(copies: int, size: int, cost: Cost | None) -> int:
    """Milliseconds until so many copies of so many bytes in all are made; `UNKNOWN` without a known cost."""
    if not copies:
        return 0
    return UNKNOWN if cost is None else round(copies * cost.copy_ms + size * cost.byte_ms)


@dataclass(frozen=True, slots=True)
class Seen:
    """How much of a loss is known: copies to make and their bytes, those made already, blobs read and not yet planned,
    and how much of what was lost has been read (0 to 1)."""

    copies: int
    bytes: int
    copies_done: int
    bytes_done: int
    unplanned: int
    share: float


def outlook(seen: Seen) -> tuple[int, int] | None:
    """Copies to make in all and their bytes, what has not been seen taken to be as what has; None while too little is.

    Right after a loss only some of it is counted: a forecast from that alone would be far too short.
    """
    known = seen.copies + seen.copies_done
    if seen.unplanned > known or seen.share < SHARE_MIN:
        return None
    more = round((known + seen.unplanned) / seen.share) - known
    size = (seen.bytes + seen.bytes_done) / known if known else 0
    return seen.copies + more, seen.bytes + round(more * size)


class Rate:
    """What copying cost and costs."""

    def __init__(self) -> None:
        self._slice = (0, 0)
        self._slice_ms = 0
        self._running = (0, 0)
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._recent: deque[tuple[Ms, int, int]] = deque()

    def copied(self, size: int) -> None:
        """A copy has ended well."""
        copies, total = self._slice
        self._slice = (copies + 1, total + size)

    def tick(self, now: Ms, busy_ms: int, running: tuple[int, int] = (0, 0)) -> None:
        """So many milliseconds have passed in which copies were under way. `running`: copies that are now, and their
        bytes."""
        self._slice_ms += busy_ms
        copies, size = self._slice
        if not copies:
            return
        self._recent.append((now, copies, size))
        made, of_bytes = (
            ended + max((after - before) / 2, -ended / 2)  # those that failed are no longer under way either
            for ended, after, before in zip(self._slice, running, self._running, strict=True)
        )
        self._learn(made, of_bytes, max(self._slice_ms, 1))
        self._slice, self._slice_ms, self._running = (0, 0), 0, running

    @property
    def unlearned(self) -> bool:
        """Whether copies have ended since the last tick."""
        return self._slice[0] > 0

    @property
    def cost(self) -> Cost | None:
        """What a copy costs, None when none was seen."""
        nn, nb, bb, nt, bt = self._sums
        if not nn:
            return None
        scale = bb / nn or 1.0  # bytes of a typical copy, squared: makes both unknowns alike in size
        alike = COPY_BYTES / scale**0.5
        ridge = _RIDGE * nn / (1 + alike * alike)  # on (copy_ms - alike * byte_ms), squared
        a, b = nn + ridge, nb / scale**0.5 - ridge * alike
        c, d = bb / scale + ridge * alike * alike, bt / scale**0.5
        determinant = a * c - b * b
        copy_ms, byte_ms = (nt * c - d * b) / determinant, (d * a - nt * b) / determinant
        if copy_ms < 0:
            copy_ms, byte_ms = 0.0, d / c
        elif byte_ms < 0:
            copy_ms, byte_ms = nt / a, 0.0
        return Cost(copy_ms, byte_ms / scale**0.5)

    def recent(self, now: Ms) -> tuple[int, int]:
        """(copies per minute, bytes per second) of the last `RECENT_MS`."""
        while self._recent and now - self._recent[0][0] > RECENT_MS:
            self._recent.popleft()
        copies, size = (sum(item[place] for item in self._recent) for place in (1, 2))
        return copies * 60_000 // RECENT_MS, size * 1000 // RECENT_MS

    def _learn(self, copies: float, size: float, took_ms: int) -> None:
        fresh = (copies * copies, copies * size, size * size, copies * took_ms, size * took_ms)
        nn, nb, bb, nt, bt = (KEEP * old + new for old, new in zip(self._sums, fresh, strict=True))
        self._sums = (nn, nb, bb, nt, bt)
