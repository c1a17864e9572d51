"""How far the notes of this store go: which report was the last to be sent when they were written.

A mark is durable before the report that it names goes out, and so is every note before it. After a start the namespace
says which report it had accepted last: if it can only be that one, or the one before it, the notes tell all that it
believes of this store, and differences are enough. Whatever else it says means that this is not the disk, or those are
not the metadata, that the notes were written for: then the whole inventory is compared. Pure.
Reasoning: docs/design/018-returning.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.shepherd import State
from chelonia.wire import records


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known when notes are written.

    Args:
        store: whose notes these are.
        generation: of the metadata that they speak of.
        boot, number: of the last report sent; the one before it was accepted.
        starts: later starts, the newest first, whose first report, which is empty, may have been accepted.
        settled: inventories were compared, and what differed is in the notes.
        compared_ms: wall clock of the last comparison of the whole inventory, 0 for none.
    """

    store: str
    generation: int
    boot: int
    number: int
    starts: tuple[int, ...] = ()
    settled: bool = False
    compared_ms: int = 0


_FORMAT: Final = records.Format("mark", Mark, 1)


def encode(mark: Mark) -> bytes:
    """The note of a mark."""
    return _FORMAT.encode(mark)


def decode(note: bytes) -> Mark | None:
    """Read the note of a mark; None when there is none that can be read."""
    try:
        return _FORMAT.decode(note)
    except CheloniaError:
        return None


def started(mark: Mark, boot: int) -> Mark:
    """The mark once a start is about to send its first report."""
    return replace(mark, starts=(boot, *mark.starts)[: bounds.BOOTS_KEPT])


@dataclass(frozen=True, slots=True)
class Believed:
    """How far the namespace has believed a Shepherd before this start: boot and number of the last report, and the
    sequence of the newest order to erase that was confirmed."""

    boot: int
    number: int
    obeyed: int


def why_whole(mark: Mark | None, believed: Believed, store: str, state: State) -> str:
    """Why a start has to compare the whole inventory, "" when the differences from the notes are enough.

    Args:
        mark: as this start found it.
        store: what is there now.
        state: as this start found it, with the present generation.
    """
    if mark is None:
        return "there is no mark in its notes"
    if mark.store != store:
        return "its notes are of another store"
    if not mark.settled:
        return "the last comparison did not come to its end"
    if mark.generation != state.generation:
        return "other metadata were put back"
    if believed.obeyed > state.sequence:
        return "it has confirmed erasures that its state knows nothing of"
    last = believed.boot == mark.boot and believed.number in (mark.number - 1, mark.number)
    if not last and not (believed.number == 1 and believed.boot in mark.starts):
        known = f"report {mark.number} of boot {mark.boot}"
        return f"its notes go up to {known}, the cluster has taken report {believed.number} of boot {believed.boot}"
    return ""


def age_ms(mark: Mark | None, now_ms: int) -> int:
    """How long ago the whole inventory was compared, -1 when nobody knows: never, or the clock was set back."""
    if mark is None or not mark.compared_ms or now_ms < mark.compared_ms:
        return -1
    return now_ms - mark.compared_ms
