"""The mark of a store's notes: the last report that was sent when they were written.

A mark is durable before the report that it names goes out, and so is every note before it. After a start the namespace
names the last report with content that it accepted. If that is the mark's report or the one before, the notes hold all
that the namespace has of this store: differences are enough. Any other answer means that the notes belong to
another disk or other metadata; then the whole inventory is compared. The first report of a boot has no content, and no
mark names it: a start that dies before it has decided changes nothing. Pure.
Reasoning: docs/design/018-returning.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chelonia.core.errors import CheloniaError
from chelonia.core.ports.shepherd import ShepherdState
from chelonia.wire import records


@dataclass(frozen=True, slots=True)
class AcceptedReport:
    """A report with content: any but the first of its boot. Boot 0: none, or not known."""

    boot: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"report {self.number} of boot {self.boot}"


@dataclass(frozen=True, slots=True)
class NoteMark:
    """State of the reports when notes are written.

    Args:
        store: the store that the notes belong to.
        generation: of the metadata that they describe.
        sent: the last report that was sent.
        earlier: the last one of earlier boots that was accepted.
        settled: inventories were compared, and the notes hold the differences.
        compared_ms: wall clock of the last comparison of the whole inventory, 0 for none.
    """

    store: str
    generation: int
    sent: AcceptedReport
    earlier: AcceptedReport = AcceptedReport()
    settled: bool = False
    compared_ms: int = 0

    @property
    def before(self) -> AcceptedReport:
        """The report accepted last when `sent` went out."""
        return AcceptedReport(self.sent.boot, self.sent.number - 1) if self.sent.number > 2 else self.earlier


_FORMAT: Final = records.Format("mark", NoteMark, 1)


def encode(mark: NoteMark) -> bytes:
    """Encode a mark as a note."""
    return _FORMAT.encode(mark)


def decode(note: bytes) -> NoteMark | None:
    """Decode the note of a mark; None when it cannot be read."""
    try:
        return _FORMAT.decode(note)
    except CheloniaError:
        return None


@dataclass(frozen=True, slots=True)
class Believed:
    """State of the namespace about a Shepherd before this start, by metadata of this `generation`.

    `accepted`: the last report with content that it took; `obeyed`: the sequence of the newest confirmed erasure."""

    accepted: AcceptedReport
    obeyed: int
    generation: int


def why_whole(mark: NoteMark | None, believed: Believed, store: str, state: ShepherdState) -> str:
    """Return why a start has to compare the whole inventory, "" when the differences from the notes are enough.

    Args:
        mark: as this start found it.
        store: the id of the store that is there now.
        state: as this start found it, before it has obeyed any order.
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
    if not believed.accepted.boot or believed.accepted not in (mark.sent, mark.before):
        return f"its notes go up to {mark.sent}, the cluster has taken {believed.accepted}"
    return ""


def may_have_erased(believed: Believed, state: ShepherdState) -> bool:
    """Whether the state found by this start has obeyed an erasure that is not known to be confirmed."""
    return _obeyed(state, believed) > believed.obeyed


def _obeyed(state: ShepherdState, believed: Believed) -> int:
    return state.sequence if state.generation == believed.generation else 0


def age_ms(mark: NoteMark | None, now_ms: int) -> int:
    """Return how many ms ago the whole inventory was compared, -1 when never, or when the clock was set back."""
    if mark is None or not mark.compared_ms or now_ms < mark.compared_ms:
        return -1
    return now_ms - mark.compared_ms
