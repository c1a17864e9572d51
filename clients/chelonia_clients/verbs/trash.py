"""The verb `undelete`: lists deleted entries that are kept for a while, and brings them back, whole trees too."""

from __future__ import annotations

from contextlib import suppress

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.clock import stamp
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.output import counted, human_size, original_status, record_facts, table
from chelonia_clients.restoring import former_names, undelete_tree
from chelonia_clients.session import Session


async def undelete(session: Session, arguments: Arguments) -> None:
    """List deleted entries that are kept, or bring them back (`undelete`)."""
    if arguments.has("--list"):
        if len(arguments.operands) > 1:
            raise UsageError("undelete --list takes one collection, or none for everything")
        await _list(session, "".join(arguments.operands))
        return
    if not arguments.operands:
        raise UsageError("undelete takes the name of what was deleted; --list shows what is kept")
    if arguments.has("--recursive"):
        if len(arguments.operands) > 1:
            raise UsageError("undelete -r brings a tree back under the names it had; move it then")
        await _bring_tree_back(session, arguments.operands[0])
        return
    await _bring_back(session, *arguments.operands)


async def _bring_back(session: Session, text: str, target: str = "") -> None:
    facts = {"ln": text, **({"target": target} if target else {})}
    head = f"Restoring '{text}'" + (f" as '{target}'" if target else "") + ": "
    try:
        word = await session.client().undelete(session.ln(text), session.ln(target) if target else "")
    except CheloniaError as error:
        above = session.ln(text).rstrip("/").rpartition("/")[0] if error.kind is Kind.NOT_FOUND else ""
        if above and not await session.client().exists(above):
            error = _gone(error, above)
        session.out.failure(error, head + original_status("undelete", error), **facts)
        return
    session.out.write(head + word)
    session.out.result(**facts, status=word)
    await _hint_entries(session, target or text)


def _gone(error: CheloniaError, above: str) -> CheloniaError:
    """Return the error with the command for a collection that is missing, for it may have been deleted too."""
    cause = f"there is no {above}; if it was deleted, `undelete -r {above}` restores it and its entries"
    return CheloniaError(Kind.NOT_FOUND, error.op, error.subject, cause)


async def _hint_entries(session: Session, text: str) -> None:
    """Name the command for the entries of a collection that came back without them."""
    with suppress(CheloniaError):  # it is back, whether or not this can be looked up
        ln = session.ln(text)
        if await session.client().exists(ln) == "collection":
            async for _ in session.client().list_deleted(ln):
                session.out.notify(f"its entries are still deleted; `chelonia undelete -r {text}` restores them")
                return


async def _bring_tree_back(session: Session, text: str) -> None:
    out, files, collections = session.out, 0, 0
    async for done in undelete_tree(session.client(), session.ln(text)):
        facts = {"ln": done.target, "guid": done.source, "type": done.type}
        if done.error is not None:
            out.failure(done.error, **facts)
            continue
        files, collections = files + (done.type == "file"), collections + (done.type == "collection")
        out.write(f"{done.target}: restored.")
        out.result(**facts, status="restored")
    out.write(f"{counted(files, 'file')} and {counted(collections, 'collection')} restored")


async def _list(session: Session, text: str) -> None:
    rows = [("DELETED", "KEPT UNTIL", "SIZE", "GUID", "NAME")]
    try:
        entries = [entry async for entry in session.client().list_deleted(session.ln(text) if text else "")]
    except CheloniaError as error:
        if error.kind is not Kind.NOT_FOUND or not text:
            raise
        raise _gone(error, session.ln(text)) from error  # by S3 a collection goes with its last object
    names = [entry.name for entry in entries] if text else await former_names(session.client(), entries)
    for name, entry in zip(names, entries, strict=True):
        size = human_size(entry.size) if entry.size >= 0 else "-"
        shown = name + "/" * (entry.type == "collection")
        rows.append((stamp(entry.deleted_ms), stamp(entry.until_ms), size, entry.guid, shown))
        session.out.result(**{**record_facts(entry), "name": name})
    if len(rows) == 1:
        all_of_it = "; `chelonia undelete --list` shows what is kept of other collections" if text else ""
        session.out.write(f"nothing that was deleted {f'from {text} ' if text else ''}is kept{all_of_it}")
        return
    session.out.write(*table(rows, frozenset({2})))
