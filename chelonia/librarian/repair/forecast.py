"""The forecast of healing: from the work left, and from the cost of copies so far. Pure, time passed in.

A copy costs a time that does not depend on its size and a time per byte, both of the whole Librarian. Copies that run
at once share the time that passes. Nothing is charged while nothing runs, but for a short gap in which more waits.
`Rate` remembers the latest `SAMPLES` small and the latest large copies, and fits both times to them (least squares of
relative errors).

Samples unlike those to come weigh less: those of an earlier burst, the first of a burst, and copies that ran alone
where many can. An outlier counts as at most `OUTLIER` times its like. A copy that runs far longer than expected is
taken to need as long again: no forecast promises that a stalled repair ends soon. Until samples show it, `COPY_BYTES`
relates the two costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chelonia.core.ids import Ms, ReferenceId
from chelonia.core.values import replace

SAMPLES: Final = 128
"""Small copies (below `COPY_BYTES`) remembered, and as many large ones."""
KEEP: Final = 0.98
"""Share of its weight that a sample keeps when the next of its kind comes: the last fifty or so carry most of it."""
IDLE_MS: Final = 1_000
"""Idle time that ends a burst; a shorter gap is charged to the copies around it, if more waited."""
EARLIER: Final = 0.25
"""Weight of a sample of an earlier burst."""
COLD: Final = 0.25
"""Weight of the first samples of a burst, as many as can run at once."""
OUTLIER: Final = 4.0
"""Largest ratio by which a sample counts as dearer or cheaper than its like."""
ENOUGH: Final = 4.0
"""Weight of the samples that allow a forecast, unless `ENOUGH_MS` are behind those of this burst."""
ENOUGH_MS: Final = 1_000
RECENT_MS: Final = 10_000
"""Time that `recent` looks back."""
SHARE_MIN: Final = 0.02
"""Share of a loss that must have been read before a forecast covers the rest."""
UNKNOWN: Final = -1
"""Value of a forecast that cannot be made."""
COPY_BYTES: Final = 2 * 1024 * 1024
"""Bytes that take about as long as a copy without bytes: measured 9 ms a small copy and 3 to 4 ms per MiB."""
PRIOR: Final = 1.0
"""Weight of `COPY_BYTES` in the fit, in samples."""
RATIO_MAX: Final = 64.0
"""Largest ratio between the two costs by that measure: a cost that no sample shows is not taken as free."""
ROUNDS: Final = 3
"""Rounds of finding outliers: one that is very far off spoils the first fit."""
UNDER_WAY: Final = 0.9
"""Largest share of a running copy that counts as made."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of copies: milliseconds each, and milliseconds per byte."""

    copy_ms: float
    byte_ms: float

    def of(self, copies: int, size: int) -> float:
        """Return the milliseconds for so many copies of so many bytes in all."""
        return copies * self.copy_ms + size * self.byte_ms


@dataclass(frozen=True, slots=True)
class KnownLoss:
    """The known part of a loss: copies to make, copies made, their bytes, and blobs read and not yet planned. `share`:
    of the lost Shepherds, as far as read (0 to 1)."""

    copies: int
    bytes: int
    copies_done: int
    bytes_done: int
    unplanned: int
    share: float


def outlook(loss: KnownLoss) -> tuple[int, int] | None:
    """Return all copies to make and their bytes, unseen blobs taken to be like seen ones; None while too few are seen.

    Right after a loss only some of it is counted: a forecast from that alone would be far too short.
    """
    assert 0 <= loss.share <= 1, "a share"
    counted = loss.copies + loss.copies_done
    if loss.unplanned > counted or loss.share < SHARE_MIN:
        return None
    more = round((counted + loss.unplanned) / loss.share) - counted
    assert more >= 0, "the whole loss is no smaller than its part"
    size = (loss.bytes + loss.bytes_done) / counted if counted else 0
    return loss.copies + more, loss.bytes + round(more * size)


def limited_ms(size: int, bytes_per_s: int, at_once: int) -> int:
    """Return the least milliseconds for so many bytes when `at_once` Shepherds each send `bytes_per_s` (0: any)."""
    assert at_once > 0, "somebody sends"
    return round(size * 1000 / (bytes_per_s * at_once)) if bytes_per_s else 0


@dataclass(frozen=True, slots=True)
class _Sample:
    """A copy with its cost. `beside`: copies that ran at once, itself included, on average; `nth` of its burst."""

    size: int
    cost_ms: float
    beside: float
    burst: int
    nth: int


_Point = tuple[float, float, float]
"""A sample for the fit: its size in `COPY_BYTES`, its cost, and its weight."""


@dataclass(frozen=True, slots=True)
class _Running:
    size: int
    began_ms: Ms
    charged_before: float
    burst: int
    nth: int


class Rate:
    """The cost of copies, past and present."""

    def __init__(self) -> None:
        self._running: dict[ReferenceId, _Running] = {}
        self._small: deque[_Sample] = deque(maxlen=SAMPLES)
        self._large: deque[_Sample] = deque(maxlen=SAMPLES)
        self._recent: deque[tuple[Ms, int]] = deque()
        self._charged = 0.0
        self._charged_at = Ms(0)
        self._waits_from: Ms | None = None
        self._overhead_ms = 0.0
        self._burst = self._started = 0

    def began(self, copy: ReferenceId, size: int, now: Ms) -> None:
        """Note that a copy begins."""
        assert copy not in self._running, "a copy begins once"
        self._charge(now)
        if not self._running:
            self._anew(now)
        self._running[copy] = _Running(size, now, self._charged, self._burst, self._started)
        self._started += 1

    def ended(self, copy: ReferenceId, now: Ms, *, copied: bool) -> None:
        """Note that a copy has ended; the cost of a failed one is charged to those around it."""
        self._charge(now)
        sample = self._sample(self._running.pop(copy), now)
        if not copied:
            self._add_overhead(sample.cost_ms)
            return
        overhead = self._overhead_ms / (len(self._running) + 1)
        self._overhead_ms -= overhead
        assert self._overhead_ms >= 0, "no more is charged than there was"
        like = self._large if sample.size >= COPY_BYTES else self._small
        like.append(replace(sample, cost_ms=sample.cost_ms + overhead))
        self._recent.append((now, sample.size))
        self._forget(now)

    def waits(self, now: Ms) -> None:
        """Note that no copy runs any more, though some remain."""
        self._waits_from = now

    def recent(self, now: Ms) -> tuple[int, int]:
        """Return copies per minute and bytes per second of the last `RECENT_MS`."""
        self._forget(now)
        size = sum(size for _, size in self._recent)
        return len(self._recent) * 60_000 // RECENT_MS, size * 1000 // RECENT_MS

    def forecast_ms(self, copies: int, size: int, now: Ms, at_once: int) -> int:
        """Return the milliseconds until so many copies of so many bytes are made, running ones included; `UNKNOWN`
        while too little is known of their cost. `at_once`: copies that can run at once, 1 at least."""
        if not copies:
            return 0
        assert at_once > 0, "one copy can run"
        charged = self._charged_by(now)
        over = not self._running and now - self._charged_at >= IDLE_MS
        cost = self._cost(min(at_once, copies), self._burst + over)
        if cost is None:
            return UNKNOWN
        left, late = cost.of(copies, size), 0
        for run in self._running.values():
            so_far, usual = charged - run.charged_before, cost.of(1, run.size)
            left -= min(so_far, UNDER_WAY * usual)
            if so_far > OUTLIER * usual:
                late = max(late, now - run.began_ms)
        return round(max(left, late))

    # --- charges ------------------------------------------------------------------------------------------------------

    def _charge(self, now: Ms) -> None:
        if self._running:
            self._charged, self._charged_at = self._charged_by(now), now

    def _charged_by(self, now: Ms) -> float:
        """The charge by now of a copy that has run ever since."""
        if not self._running:
            return self._charged
        return self._charged + max(now - self._charged_at, 0) / len(self._running)

    def _anew(self, now: Ms) -> None:
        """Begin after an idle time: a new burst, unless it was short."""
        assert not self._running, "nothing is idle while a copy runs"
        idle = now - self._charged_at
        if not self._burst or idle >= IDLE_MS:
            self._burst, self._started, self._overhead_ms = self._burst + 1, 0, 0.0
        elif self._waits_from is not None:
            self._add_overhead(now - self._waits_from)
        self._charged_at, self._waits_from = now, None

    def _add_overhead(self, cost_ms: float) -> None:
        self._overhead_ms = min(self._overhead_ms + cost_ms, IDLE_MS)

    def _sample(self, found: _Running, now: Ms) -> _Sample:
        cost = max(self._charged - found.charged_before, 1e-3)
        return _Sample(found.size, cost, max((now - found.began_ms) / cost, 1.0), found.burst, found.nth)

    def _forget(self, now: Ms) -> None:
        while self._recent and now - self._recent[0][0] > RECENT_MS:
            self._recent.popleft()

    # --- fitting ------------------------------------------------------------------------------------------------------

    def _cost(self, at_once: int, burst: int) -> Cost | None:
        points, behind_ms = [], 0.0
        for samples in (self._small, self._large):
            for age, sample in enumerate(reversed(samples)):
                weight = KEEP**age * _weight(sample, at_once, burst)
                points.append((sample.size / COPY_BYTES, sample.cost_ms, weight))
                behind_ms += weight * sample.cost_ms if sample.burst == burst else 0.0
        if sum(weight for _, _, weight in points) < ENOUGH and behind_ms < ENOUGH_MS:
            return None
        copy_ms, unit_ms = _fitted(points)
        return Cost(copy_ms, unit_ms / COPY_BYTES)


def _weight(sample: _Sample, at_once: int, burst: int) -> float:
    assert sample.beside >= 1, "a copy runs beside itself at least"
    alone = min(1.0, sample.beside / at_once)
    return alone * (EARLIER if sample.burst != burst else COLD if sample.nth < at_once else 1.0)


def _fitted(points: Sequence[_Point]) -> tuple[float, float]:
    """Milliseconds of a copy by itself and of `COPY_BYTES`; outliers are drawn nearer to their like."""
    a, b = _least_squares(points, 1.0)
    for _ in range(ROUNDS):
        like = _median([(cost_ms / (a + b * units), weight) for units, cost_ms, weight in points])
        nearer = []
        for units, cost_ms, weight in points:
            usual = like * (a + b * units)
            nearer.append((units, min(max(cost_ms, usual / OUTLIER), usual * OUTLIER), weight))
        a, b = _least_squares(nearer, b / a)
    assert min(a, b) > 0, "a copy takes time, and so does a byte"
    return a, b


def _median(weighed: Sequence[tuple[float, float]]) -> float:
    assert weighed, "there is a middle of something"
    half = sum(weight for _, weight in weighed) / 2
    for value, weight in sorted(weighed):
        half -= weight
        if half <= 0:
            return value
    return max(weighed)[0]


def _least_squares(points: Sequence[_Point], shape: float) -> tuple[float, float]:
    """Fit a + b * units by least squares of errors relative to the cost by `shape`, an estimate of b / a."""
    aa, ab, bb, at, bt = PRIOR, -PRIOR, PRIOR, 0.0, 0.0
    for units, cost_ms, weight in points:
        share = weight * ((1 + shape) / (1 + shape * units)) ** 2
        more = share * units
        aa, ab, bb = aa + share, ab + more, bb + more * units
        at, bt = at + share * cost_ms, bt + more * cost_ms
    determinant = aa * bb - ab * ab
    assert determinant > 0, "the prior and one sample decide both costs"
    a, b = (at * bb - bt * ab) / determinant, (aa * bt - ab * at) / determinant
    if a * RATIO_MAX < b:
        a = (at + RATIO_MAX * bt) / (aa + 2 * RATIO_MAX * ab + RATIO_MAX * RATIO_MAX * bb)
        b = a * RATIO_MAX
    elif b * RATIO_MAX < a:
        b = (bt + RATIO_MAX * at) / (bb + 2 * RATIO_MAX * ab + RATIO_MAX * RATIO_MAX * aa)
        a = b * RATIO_MAX
    return a, b
