"""Positions of answers in the history of the metadata, and the newest position that a process has seen.

A position is a token: a read that carries it sees at least the state of that position. So callers see their own writes
and never go back, whichever replica answers. It proves nothing and grants nothing.
Invariants: positions of different clusters are never compared; only answers raise a horizon, never a caller's claim. An
absurd token harms nobody but its bearer.
"""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in the history of one cluster's metadata.

    `cluster` names the cluster, `generation` rises when a backup is restored, `sequence` counts commits within it.
    """

    cluster: str
    generation: int
    sequence: int


def later(claimed: Position | None, known: Position | None) -> Position | None:
    """Return the later of two positions; of two clusters' the known one: a read cannot follow another's history."""
    if claimed is None or known is None:
        return claimed or known
    if claimed.cluster != known.cluster:
        return known
    # Called for each answer, so it does not use the order of the class, which makes tuples of all fields.
    return claimed if (claimed.generation, claimed.sequence) > (known.generation, known.sequence) else known


class Horizon:
    """The newest position that answers to one process have carried."""

    __slots__ = ("newest",)

    def __init__(self) -> None:
        self.newest: Position | None = None
        """The newest position seen, None before the first."""

    def saw(self, position: Position) -> None:
        """Note an answer's position. One of another cluster replaces the known one: that cluster answers now."""
        if position is not self.newest:
            self.newest = later(self.newest, position)
