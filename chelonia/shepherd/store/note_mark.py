"""How far the notes of this store go: which report was the last to be sent when they were written.

A mark is durable before the report that it names goes out, and so is every note before it. After a start the namespace
says which report has told it something last: if that is the one of the mark, or the one before it, the notes tell all
that it believes of this store, and differences are enough. Whatever else it says means that this is not the disk, or
those are not the metadata, that the notes were written for: then the whole inventory is compared. The first report of a
boot tells nothing, and no mark names it: a start that dies before it has decided changes nothing of this. Pure.
Reasoning: docs/design/018-returning.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chelonia.core.errors import CheloniaError
from chelonia.core.ports.shepherd import ShepherdState
from chelonia.wire import records


@dataclass(frozen=True, slots=True)
class ToldReport:
    """A report that told the namespace something: any but the first of its boot. Boot 0: none, or nobody knows."""

    boot: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"report {self.number} of boot {self.boot}"


@dataclass(frozen=True, slots=True)
class NoteMark:
    """What is known when notes are written.

    Args:
        store: whose notes these are.
        generation: of the metadata that they speak of.
        sent: the last report that was sent.
        earlier: the last one of earlier boots that was accepted.
        settled: inventories were compared, and what differed is in the notes.
        compared_ms: wall clock of the last comparison of the whole inventory, 0 for none.
    """

    store: str
    generation: int
    sent: ToldReport
    earlier: ToldReport = ToldReport()
    settled: bool = False
    compared_ms: int = 0

    @property
    def before(self) -> ToldReport:
        """The last report that was accepted when the last one was sent."""
        return ToldReport(self.sent.boot, self.sent.number - 1) if self.sent.number > 2 else self.earlier


_FORMAT: Final = records.Format("mark", NoteMark, 1)


def encode(mark: NoteMark) -> bytes:
    """The note of a mark."""
    return _FORMAT.encode(mark)


def decode(note: bytes) -> NoteMark | None:
    """Read the note of a mark; None when there is none that can be read."""
    try:
        return _FORMAT.decode(note)
    except CheloniaError:
        return None


@dataclass(frozen=True, slots=True)
class Believed:
    """How far the namespace has believed a Shepherd before this start: the last report that told something, and the
    sequence of the newest order to erase that was confirmed, by metadata of this generation."""

    told: ToldReport
    obeyed: int
    generation: int


def why_whole(mark: NoteMark | None, believed: Believed, store: str, state: ShepherdState) -> str:
    """Why a start has to compare the whole inventory, "" when the differences from the notes are enough.

    Args:
        mark: as this start found it.
        store: what is there now.
        state: as this start found it, before it has obeyed anything.
    """
    if mark is None:
        return "there is no mark in its notes"
    if mark.store != store:
        return "its notes are of another store"
    if not mark.settled:
        return "the last comparison did not come to its end"
    if mark.generation != believed.generation:
        return "other metadata were put back"
    if believed.obeyed > _obeyed(state, believed):
        return "it has confirmed erasures that its state knows nothing of"
    if not believed.told.boot or believed.told not in (mark.sent, mark.before):
        return f"its notes go up to {mark.sent}, the cluster has taken {believed.told}"
    return ""


def may_have_erased(believed: Believed, state: ShepherdState) -> bool:
    """Whether the state that this start found has obeyed an order to erase that is not known to be confirmed."""
    return _obeyed(state, believed) > believed.obeyed


def _obeyed(state: ShepherdState, believed: Believed) -> int:
    return state.sequence if state.generation == believed.generation else 0


def age_ms(mark: NoteMark | None, now_ms: int) -> int:
    """How long ago the whole inventory was compared, -1 when nobody knows: never, or the clock was set back."""
    if mark is None or not mark.compared_ms or now_ms < mark.compared_ms:
        return -1
    return now_ms - mark.compared_ms
