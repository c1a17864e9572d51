"""`chelonia admin rebuild`: begins a rebuild of the namespace, watches it, and reports its findings.

The Librarian works by itself. The command, given again, goes on watching, or reports the findings once more; a rebuild
that has failed it begins again. With `--late` it is about one Shepherd that was away during a rebuild and is back.
"""

from __future__ import annotations

from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import RebuildStatus
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.client import new_call
from chelonia_clients.output import table
from chelonia_clients.progress import Bar
from chelonia_clients.session import Session

POLL_MS: Final = 500
ENDED: Final = ("done", "failed")
IDLE: Final = "idle"
"""The stage of a Librarian that has begun no rebuild since its start."""
FAILED: Final = 1


async def rebuild(session: Session, arguments: Arguments) -> None:
    """Begin a rebuild, or watch a running one, to its end; report one that has ended again.

    Raises: NOT_EMPTY, NOT_SUPPORTED, CANCELLED when the Librarian was started again meanwhile; for a late Shepherd also
        NOT_FOUND, DENIED, CONFLICT.
    """
    late = ServiceId(arguments.value("--late"))
    if arguments.has("--late") and not late:
        raise UsageError("--late takes the id of a Shepherd, as `chelonia admin node list` shows it")
    status = await (session.administrator().librarian.rebuild(new_call(), True, late) if late else _begun(session))
    while status.stage not in ENDED:
        status = await _stage(session, status)
        if status.stage == IDLE:
            cause = "the Librarian was started again meanwhile; give the command again, what is there is left as it is"
            raise CheloniaError(Kind.CANCELLED, "rebuild", cause=cause)
    _report(session, status, late)


async def _begun(session: Session) -> RebuildStatus:
    """Begin a rebuild, or return the status of the one that has made the present namespace."""
    librarian = session.administrator().librarian
    try:
        return await librarian.rebuild(new_call(), True)
    except CheloniaError as error:
        if error.kind is not Kind.NOT_EMPTY:
            raise
        status = await librarian.rebuild(new_call(), False)
        if status.stage not in ENDED:
            raise
        session.out.notify("the namespace has been rebuilt; this is what was found then")
        return status


async def _stage(session: Session, status: RebuildStatus) -> RebuildStatus:
    stage, shown = status.stage, 0
    with Bar(stage, beside=session.bars, unit="objects") as bar:
        while status.stage == stage:
            bar.expect(status.total or -1)
            bar.advance(status.done - shown)
            shown = status.done
            await session.administrator().clock.sleep(POLL_MS)
            status = await session.administrator().librarian.rebuild(new_call(), False)
    return status


def _report(session: Session, status: RebuildStatus, late: ServiceId) -> None:
    out = session.out
    for note in status.notes:
        out.write(f"- {note}")
        out.result(note=note)
    rows = [("FOUND", "NUMBER"), *((kind, str(number)) for kind, number in sorted(status.counts.items()))]
    out.write(*table(rows, frozenset({1})))
    out.document.update(stage=status.stage, counts=dict(status.counts), cause=status.cause)
    if status.stage == "failed":
        out.write(f"the rebuild has stopped: {status.cause}; it can be begun again")
        out.exit_code = out.exit_code or FAILED
    else:
        done = f"{late} has told all it knows" if late else "rebuilt"
        out.write(f"{done}; `chelonia admin fsck` shows what is left to do")
