"""Where an answer stands in the history of the metadata, and the newest such place that a process has seen.

A position is a token: whoever shows it reads at least what stood there, so that callers see their own writes and never
go back, whichever replica they ask. It proves nothing and grants nothing.
Invariants: positions of different clusters are never compared; a horizon is raised by answers only, never by what a
caller claims, so that an absurd token costs nobody but its bearer.
"""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True):
    """Where in the history of which cluster an answer stands.

    `cluster` names the cluster, `generation` rises when a backup is restored, `sequence` counts commits within it.
    """

    cluster: str
    generation: int
    sequence: int


def later(claimed: Position | None, known: Position | None) -> Position | None:
    """The later of two positions; of two clusters' the known one: nothing can be read after another's history."""
    if claimed is None or known is None:
        return claimed or known
    if claimed.cluster != known.cluster:
        return known
    # Asked for each answer: not by the order of the class, which makes tuples of all fields.
    return claimed if (claimed.generation, claimed.sequence) > (known.generation, known.sequence) else known


class Horizon:
    """The newest position that the answers to one process have told of."""

    __slots__ = ("newest",)

    def __init__(self) -> None:
        self.newest: Position | None = None
        """The newest position seen, None before the first."""

    def saw(self, position: Position) -> None:
        """Note an answer's position. One of another cluster replaces what was known: that is who answers now."""
        if position is not self.newest:
            self.newest = later(self.newest, position)
