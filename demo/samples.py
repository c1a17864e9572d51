"""The demo's observations: the replicas of its ten files by state and Shepherd.

A sample is made from the `locations` section that any user may see with `chelonia stat`. So the demo sees the cluster
exactly as its users do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STATES = ("alive", "offline", "creating", "thirdwheel", "invalid")


@dataclass(frozen=True, slots=True)
class Sample:
    """Replica counts at one moment. `ms`: since the experiment began; `per_shepherd`: live replicas by service id."""

    ms: int
    alive: int
    offline: int
    creating: int
    thirdwheel: int
    invalid: int
    per_shepherd: Mapping[str, int]

    def as_json(self) -> dict[str, object]:
        """Its form in `build/demo.json`."""
        counts = {state: getattr(self, state) for state in STATES}
        return {"ms": self.ms, **counts, "per_shepherd": dict(self.per_shepherd)}

    @property
    def line(self) -> str:
        """One line for a terminal without a cursor."""
        return f"{self.ms / 1000:7.1f} s  " + "  ".join(f"{state} {getattr(self, state):>2}" for state in STATES)

    def same_counts(self, other: Sample) -> bool:
        """Whether nothing but the time differs."""
        return self.per_shepherd == other.per_shepherd and all(
            getattr(self, state) == getattr(other, state) for state in STATES
        )


def sample_of(ms: int, locations: Iterable[Mapping[str, str]], shepherds: Iterable[str]) -> Sample:
    """Count the replicas of some files.

    Args:
        locations: one `locations` section per file: `<service id> <reference>` -> state.
        shepherds: every service id, so that an empty Shepherd shows as 0.
    """
    counts = dict.fromkeys(STATES, 0)
    per_shepherd = dict.fromkeys(shepherds, 0)
    for section in locations:
        for place, state in section.items():
            counts[state] = counts.get(state, 0) + 1
            if state == "alive":
                service = place.split(" ")[0]
                per_shepherd[service] = per_shepherd.get(service, 0) + 1
    return Sample(
        ms,
        counts["alive"],
        counts["offline"],
        counts["creating"],
        counts["thirdwheel"],
        counts["invalid"],
        per_shepherd,
    )
