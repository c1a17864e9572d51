"""The trust of a start in its notes, in every order of events.

Events are starts that die, lost answers, a late message, an image of the disk put back, older metadata put back. The
rules are the real ones: `mark.why_whole`, and a Librarian's records and answers. They drive a model of one Shepherd
with one replica, which has a newer version to report now and then. Reasoning: docs/design/018-returning.md, "The
invariant".
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import pytest

from chelonia.core.ids import Ms, ServiceId, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import Report
from chelonia.core.ports.shepherd import ShepherdState
from chelonia.librarian.presence import reports
from chelonia.shepherd.store import note_mark as marks
from chelonia.shepherd.store.note_mark import AcceptedReport, Believed, NoteMark, why_whole

SHEPHERD = ServiceId("https://s1/Shepherd")


class Namespace(NamedTuple):
    """`stored`: boot, number and `before` of the Shepherd's object; `listed`: the version believed to be there."""

    stored: tuple[tuple[str, str], ...] = ()
    listed: int = 0
    generation: int = 1


class Marked(NamedTuple):
    """A mark, in a form for fast lookups: two reports, boot and number each."""

    generation: int
    sent: tuple[int, int]
    earlier: tuple[int, int]
    settled: bool


class Disk(NamedTuple):
    """`has`: the version that is there; `noted`: the listed one by its notes, -1 where it may be any."""

    has: int = 0
    noted: int = -1
    mark: Marked | None = None


class Sent(NamedTuple):
    """A report: boot, number, and its version, -1 for none."""

    boot: int
    number: int
    tells: int = -1


class Process(NamedTuple):
    """A start. `by`: how it is reconciled, "" before it knows. `of`: the generation of that; `due`: whether a report is
    due."""

    boot: int
    generation: int
    accepted: int = 0
    flight: Sent | None = None
    by: str = ""
    of: int = 0
    due: bool = False
    earlier: tuple[int, int] = (0, 0)


class Everything(NamedTuple):
    namespace: Namespace = Namespace()
    disk: Disk = Disk()
    process: Process | None = None
    image: Disk | None = None
    backup: Namespace | None = None
    late: Sent | None = None
    boots: int = 0
    versions: int = 0
    restored: bool = False


# --- the namespace, by its own rules -------------------------------------------------------------------------------


@lru_cache(100_000)
def applied(stored: tuple[tuple[str, str], ...], boot: int, number: int) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Whether it is this report's turn, and the Shepherd's record then."""
    found, report = as_object(stored), Report(SHEPHERD, boot, number, ())
    if not reports.is_next(report, reports.reached(found)):
        return False, stored
    judged = reports.judge(report, reports.ReportContext(found, {}), Ms(0))
    return True, tuple(sorted({**dict(stored), **{each.property: each.value for each in judged.elements}}.items()))


@lru_cache(100_000)
def answered(stored: tuple[tuple[str, str], ...], boot: int) -> tuple[int, int]:
    """The answer to a first report, sent or repeated, by this record."""
    last, _ = reports.before(Report(SHEPHERD, boot, 1, ()), as_object(stored), 1)
    return last.boot, last.number


@lru_cache(100_000)
def reached(stored: tuple[tuple[str, str], ...]) -> tuple[int, int]:
    """The last report applied."""
    last = reports.reached(as_object(stored))
    return last.boot, last.number


def as_object(stored: tuple[tuple[str, str], ...]) -> StoredObject:
    return StoredObject(shepherd_object(SHEPHERD), 1, {"report": dict(stored)})


def told(namespace: Namespace, sent: Sent) -> Namespace:
    its_turn, stored = applied(namespace.stored, sent.boot, sent.number)
    listed = sent.tells if its_turn and sent.tells >= 0 else namespace.listed
    return namespace._replace(stored=stored, listed=listed)


# --- what can happen -----------------------------------------------------------------------------------------------


def steps(now: Everything) -> Iterator[tuple[str, Everything]]:
    """The possible next events."""
    if now.process is None:
        yield from while_down(now)
    else:
        yield from while_up(now, now.process)
    if now.late is not None:
        yield "a late report", now._replace(namespace=told(now.namespace, now.late), late=None)
    if now.backup is not None and not now.restored:
        older = now.backup._replace(generation=2)
        yield "older metadata", now._replace(namespace=older, restored=True)


def while_down(now: Everything) -> Iterator[tuple[str, Everything]]:
    boot = now.boots + 1
    yield f"start {boot}", now._replace(boots=boot, process=Process(boot, now.namespace.generation))
    if now.image is not None and now.image != now.disk:
        yield "put back", now._replace(disk=now.image)


def while_up(now: Everything, process: Process) -> Iterator[tuple[str, Everything]]:
    yield "crash", now._replace(process=None)
    if now.image is None:
        yield "image", now._replace(image=now.disk)
    if now.backup is None and now.namespace.stored:
        yield "backup", now._replace(backup=now.namespace)
    version = now.versions + 1
    disk = now.disk._replace(has=version)
    yield f"version {version}", now._replace(versions=version, disk=disk, process=process._replace(due=True))
    if process.generation != now.namespace.generation:
        yield "hears of older metadata", numbered_anew(now, process)
    if process.flight is None:
        yield from sends(now, process)
    else:
        yield from is_heard(now, process, process.flight)
    if process.by == "whole" and process.accepted > 1:
        yield "compares", compares(now, process)
    if process.by == "reconciled" and process.accepted > 1 and not process.due:
        number = process.flight.number if process.flight is not None else process.accepted
        yield "notes so", now._replace(disk=now.disk._replace(mark=mark_of(process, number)))


def numbered_anew(now: Everything, process: Process) -> Everything:
    due = process.due or (process.flight is not None and process.flight.tells >= 0)
    by = process.by and "whole"
    anew = Process(now.boots + 1, now.namespace.generation, by=by, of=process.of, due=due, earlier=process.earlier)
    return now._replace(boots=now.boots + 1, process=anew)


def sends(now: Everything, process: Process) -> Iterator[tuple[str, Everything]]:
    number = process.accepted + 1
    if number > 2 and not process.due:
        return
    tells = now.disk.has if process.due and number > 1 else -1
    flight = Sent(process.boot, number, tells)
    sending = now._replace(process=process._replace(flight=flight, due=process.due and tells < 0))
    if number == 1:
        yield "sends the first", sending
        return
    noted = -1 if tells >= 0 else now.disk.noted
    yield f"sends {number}", sending._replace(disk=now.disk._replace(noted=noted, mark=mark_of(process, number)))
    yield "sends without a mark", sending


def mark_of(process: Process, number: int) -> Marked:
    settled = process.by == "reconciled" and process.of == process.generation
    return Marked(process.generation, (process.boot, number), process.earlier, settled)


def is_heard(now: Everything, process: Process, flight: Sent) -> Iterator[tuple[str, Everything]]:
    if now.late is None and now.backup is not None and not now.restored:  # else it is as if it were applied, or never
        yield "is late", now._replace(late=flight)
    taken = now._replace(namespace=told(now.namespace, flight))
    if taken != now:
        yield "is applied, its answer lost", taken
    if reached(taken.namespace.stored) != flight[:2]:
        return  # of another past: that it will hear of
    if flight.number == 1:
        yield "is answered", begins(taken, process, answered(now.namespace.stored, process.boot))
        return
    after = process._replace(accepted=flight.number, flight=None)
    yield "is answered", taken._replace(process=after)
    if flight.tells >= 0 and flight.tells == taken.disk.has:
        yield "is answered and noted", taken._replace(process=after, disk=taken.disk._replace(noted=flight.tells))


@lru_cache(100_000)
def why(found: Marked | None, earlier: tuple[int, int], generation: int) -> str:
    """The reason of a start with this mark to compare everything, if the answer names this report as the last with
    contents."""
    mark = found and NoteMark(
        "store", found.generation, AcceptedReport(*found.sent), AcceptedReport(*found.earlier), found.settled
    )
    state = ShepherdState(boot=1, ticket_secret=b"", generation=generation)
    return marks.why_whole(mark, Believed(AcceptedReport(*earlier), 0, generation), "store", state)


def begins(now: Everything, process: Process, earlier: tuple[int, int]) -> Everything:
    heard = process._replace(accepted=1, flight=None, earlier=earlier)
    if process.by:
        return now._replace(process=heard)
    if why(now.disk.mark, earlier, process.generation):
        return now._replace(process=heard._replace(by="whole"))
    due = heard.due or now.disk.has != now.disk.noted
    return now._replace(process=heard._replace(by="reconciled", of=process.generation, due=due))


def compares(now: Everything, process: Process) -> Everything:
    """It goes through the listed replicas: a difference is noted as open, and due to be reported."""
    same = now.namespace.listed == now.disk.has
    disk = now.disk._replace(noted=now.disk.has if same else -1)
    after = process._replace(by="reconciled", of=process.generation, due=process.due or not same)
    return now._replace(disk=disk, process=after)


# --- what must hold ------------------------------------------------------------------------------------------------


def wrong(now: Everything) -> bool:
    """Whether a start has sent all reports due, and the namespace believes otherwise."""
    process = now.process
    if process is None or process.by != "reconciled" or process.due or process.flight is not None:
        return False
    return process.of == now.namespace.generation and now.namespace.listed != now.disk.has


FOR_A_LATER_START = ("image", "backup", "older metadata")
"""Events without effect on this start: it belongs to the generation of its beginning until it renumbers, which counts
as a later start."""


def search(boots: int, versions: int, never: tuple[str, ...]) -> tuple[int, list[str]]:
    """Go through all events of so many starts (and renumberings) and versions, except those in `never`. Returns how
    many states there are, and the way to a wrong one."""
    for rule in (applied, answered, reached, why):
        rule.cache_clear()
    came: dict[Everything, tuple[Everything, str] | None] = {Everything(): None}
    waiting = [Everything()]
    for now in waiting:
        if wrong(now):
            return len(came), way_to(now, came)
        for what, after in steps(now):
            over = after.boots == boots and (after.process is None or what in FOR_A_LATER_START)
            if over or what in never or after.boots > boots or after.versions > versions:
                continue
            step = (now, what)
            if came.setdefault(after, step) is step:
                waiting.append(after)
    return len(came), []


def way_to(now: Everything, came: dict[Everything, tuple[Everything, str] | None]) -> list[str]:
    way = list[str]()
    while (before := came[now]) is not None:
        now, what = before
        way.insert(0, what)
    return way


IMAGES = (3, 1, ("backup",))
RESTORED = (3, 1, ("image", "sends without a mark"))
BOTH = (3, 1, ("is late", "sends without a mark", "hears of older metadata"))


@pytest.mark.parametrize("limits", [IMAGES, RESTORED, BOTH], ids=["images", "older metadata", "both"])
def test_no_start_believes_notes_that_lie(limits: tuple[int, int, tuple[str, ...]]) -> None:
    states, way = search(*limits)
    assert way == []
    assert states > 1_000


def any_mark(found: NoteMark | None, believed: Believed, store: str, state: ShepherdState) -> str:
    return "" if found is not None else "there is no mark"


def any_first_report(found: NoteMark | None, believed: Believed, store: str, state: ShepherdState) -> str:
    first = found is not None and believed.accepted.number == 1
    return "" if first else why_whole(found, believed, store, state)


@pytest.mark.parametrize("believes", [any_mark, any_first_report])
def test_it_would_be_seen_if_one_did(monkeypatch: pytest.MonkeyPatch, believes: Callable[..., str]) -> None:
    """An earlier rule: the report reached last counted, also a first report."""
    monkeypatch.setattr(marks, "why_whole", believes)
    monkeypatch.setattr(reports, "last_news", reports.reached)
    _, way = search(*IMAGES)
    assert "put back" in way
