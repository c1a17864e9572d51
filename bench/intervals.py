"""Medians with intervals that assume nothing about the distribution: order statistics and the binomial law.

The median of n independent samples lies between the k-th smallest and the k-th largest with a probability that depends
on n and k alone. Of twelve blocks the 3rd and the 10th hold it with 96 %. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

CONFIDENCE = 0.95
Side = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and where it lies with `coverage` (at least 0.95 from six samples on)."""

    median: float
    low: float
    high: float
    coverage: float
    samples: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} .. {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Check:
    """A bar, and whether the whole interval is on its good side."""

    name: str
    side: Side
    bar: float
    interval: Interval
    counts: bool
    """False when there were fewer than ten blocks: shown, but no evidence."""

    @property
    def met(self) -> bool:
        """Whether even the worse end of the interval is on the good side of the bar."""
        return self.interval.high <= self.bar if self.side == "at most" else self.interval.low >= self.bar

    def __str__(self) -> str:
        verdict = ("met" if self.met else "NOT MET") if self.counts else "too few blocks to count"
        return f"{self.name}: {self.interval}, {self.side} {self.bar:g}: {verdict}"

    def figures(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def median_interval(samples: Sequence[float]) -> Interval:
    """The median of at least one sample, with its interval."""
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    coverage = 1 - 2 * _below(len(ordered), rank)
    return Interval(statistics.median(ordered), ordered[rank], ordered[-1 - rank], coverage, len(ordered))


def check(name: str, side: Side, bar: float, samples: Sequence[float]) -> Check:
    """Hold `samples` (one ratio a block) against a bar."""
    return Check(name, side, bar, median_interval(samples), len(samples) >= 10)


def _rank(count: int) -> int:
    """The most extreme order statistics (from 0) that together still reach the confidence, or the outermost."""
    rank = 0
    while rank + 1 < (count + 1) // 2 and 1 - 2 * _below(count, rank + 1) >= CONFIDENCE:
        rank += 1
    return rank


def _below(count: int, rank: int) -> float:
    """The probability that at most `rank` of `count` samples are below the median."""
    return float(sum(math.comb(count, k) for k in range(rank + 1)) / 2**count)
