"""The verb `undelete`: show what was deleted and is kept for a while, and bring it back."""

from __future__ import annotations

from chelonia.core.errors import CheloniaError
from chelonia.core.timing.clock import stamp
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.output import human_size, original_status, table
from chelonia_clients.session import Session


async def undelete(session: Session, arguments: Arguments) -> None:
    """The verb `undelete`."""
    if arguments.has("--list"):
        if len(arguments.operands) > 1:
            raise UsageError("undelete --list takes one collection, or none for everything")
        await _list(session, "".join(arguments.operands))
        return
    if not arguments.operands:
        raise UsageError("undelete takes the name of what was deleted; --list shows what is kept")
    await _bring_back(session, *arguments.operands)


async def _bring_back(session: Session, text: str, target: str = "") -> None:
    facts = {"ln": text, **({"target": target} if target else {})}
    head = f"Restoring '{text}'" + (f" as '{target}'" if target else "") + ": "
    try:
        word = await session.client().undelete(session.ln(text), session.ln(target) if target else "")
    except CheloniaError as error:
        session.out.failure(error, head + original_status("undelete", error), **facts)
        return
    session.out.say(head + word)
    session.out.result(**facts, status=word)


async def _list(session: Session, text: str) -> None:
    rows = [("DELETED", "KEPT UNTIL", "SIZE", "GUID", "NAME")]
    async for entry in session.client().list_deleted(session.ln(text) if text else ""):
        size = human_size(entry.size) if entry.size >= 0 else "-"
        rows.append((stamp(entry.deleted_ms), stamp(entry.until_ms), size, entry.guid, entry.name))
        session.out.result(
            name=entry.name,
            guid=entry.guid,
            owner=entry.owner,
            size=entry.size,
            deleted_ms=entry.deleted_ms,
            until_ms=entry.until_ms,
        )
    if len(rows) == 1:
        session.out.say("nothing that was deleted is kept")
        return
    for line in table(rows, frozenset({2})):
        session.out.say(line)
