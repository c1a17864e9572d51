"""Verbs that remove: rm, delFile, unlink. They show the removed entries, at a terminal also before the removal.

At a terminal they ask for confirmation before more than the single named entry goes; scripts and --yes skip that.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT
from chelonia.core.names import parse_ln
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.client import Client, Metadata
from chelonia_clients.output import counted, human_size, original_status
from chelonia_clients.removal import REMOVALS, RemovalPlan, foresee, other_names, remove_tree
from chelonia_clients.session import Session, parallel_of
from chelonia_clients.verbs.namespace import each_name

SHOWN: Final = 20
"""Names shown before a removal, beside their number."""
ask = input
"""Prompt for a person at the terminal."""


async def unlink(session: Session, arguments: Arguments) -> None:
    """Drop single names (`unlink`)."""
    await each_name(session, arguments.operands, "unlink", "Unlinking", lambda ln: session.client().unlink(ln))


async def delete(session: Session, arguments: Arguments) -> None:
    """Remove files under all their names (`delFile`)."""
    for text in arguments.operands:
        try:
            if await _confirmed(session, arguments, text, all_names=True):
                await _delete_one(session, arguments, text)
        except CheloniaError as error:
            session.out.failure(error, f"{text}: {original_status('delFile', error)}.", ln=text)


async def _delete_one(session: Session, arguments: Arguments, text: str) -> None:
    ln, client, out = session.ln(text), session.client(), session.out
    metadata = await _metadata(client, ln)
    if arguments.has("--recursive") and metadata.get("entry", {}).get("type") == "collection":
        await _remove_tree(session, arguments, ln, all_names=True)
        return
    others = await other_names(client, ln, metadata.get("parents", {}))
    word = await client.del_file(ln)
    out.write(f"{text}: {word}.", *(f"{name}: {word}, it was the same file." for name in others))
    out.result(ln=text, status=word, **({"other_names": others} if others else {}))


async def remove(session: Session, arguments: Arguments) -> None:
    """Drop single names, with `-r` whole trees (`rm`)."""
    for text in arguments.operands:
        try:
            if await _confirmed(session, arguments, text, all_names=False):
                await _remove_one(session, arguments, text)
        except CheloniaError as error:
            if not (error.kind is Kind.NOT_FOUND and arguments.has("--force")):
                session.out.failure(error, ln=text)


async def _remove_one(session: Session, arguments: Arguments, text: str) -> None:
    """Drop a name, or a collection with all below it. Raises: NOT_A_FILE for a collection without -r."""
    ln, client = session.ln(text), session.client()
    if (await _metadata(client, ln)).get("entry", {}).get("type") == "collection":
        if not arguments.has("--recursive"):
            raise CheloniaError(Kind.NOT_A_FILE, "rm", ln, "it is a collection; -r removes it with all below it")
        await _remove_tree(session, arguments, ln, all_names=False)
        return
    await client.unlink(ln)
    session.out.write(f"{text}: deleted.")
    session.out.result(ln=text, status="deleted")


async def _metadata(client: Client, ln: str) -> Metadata:
    """The metadata of an entry; empty for one that may be removed but not read. Raises: NOT_FOUND."""
    try:
        return await client.stat(ln)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        return {}


async def _remove_tree(session: Session, arguments: Arguments, ln: str, *, all_names: bool) -> None:
    _refuse_root(ln)
    client, out, parallel = session.client(), session.out, parallel_of(arguments, REMOVALS)
    elsewhere = (await foresee(client, ln, all_names=True)).elsewhere if all_names else []
    failed = False
    async for done in remove_tree(client, ln.rstrip("/"), all_names=all_names, parallel=parallel):
        if done.error is not None:
            failed = True
            out.failure(done.error, ln=done.source, type=done.type)
            continue
        out.write(f"{done.source}: deleted.")
        out.result(ln=done.source, type=done.type, status="deleted")
    for name in elsewhere:
        if failed and await _is_there(client, name):
            continue
        out.write(f"{name}: deleted, it was the same file as one of these.")
        out.result(ln=name, type="file", status="deleted", elsewhere=True)


async def _is_there(client: Client, ln: str) -> bool:
    try:
        return await client.exists(ln) != ""
    except CheloniaError:
        return True


def _refuse_root(ln: str) -> None:
    name = parse_ln(ln)  # its GUID names it too
    if name.start == ROOT and not name.parts:
        raise UsageError("the root is not removed; name what is in it")


# --- before ---


async def _confirmed(session: Session, arguments: Arguments, text: str, *, all_names: bool) -> bool:
    """Whether a removal goes on: shows its plan, and asks for confirmation where needed; --dry-run only shows it."""
    recursive, dry = arguments.has("--recursive"), arguments.has("--dry-run")
    confirmed = arguments.has("--yes") or arguments.has("--force") or session.out.as_json or not at_a_terminal()
    if not dry and (confirmed or not (all_names or recursive)):
        return True
    ln = session.ln(text)
    if recursive:
        _refuse_root(ln)
    plan = await foresee(session.client(), ln, all_names=all_names)
    names = [*plan.names, *reversed(plan.collections)]
    if not dry and (len(names) + len(plan.elsewhere) <= 1 or (plan.collections and not recursive)):
        return True  # only the given name goes, or the removal will be refused
    if dry:
        session.out.write(*names, *_elsewhere(plan))
        session.out.result(ln=text, would_remove=names, other_names=plan.elsewhere)
        return False
    session.out.notify(*names[:SHOWN], *([f"... and {len(names) - SHOWN} more"] if len(names) > SHOWN else ()))
    session.out.notify(*_elsewhere(plan))
    if await agreed(f"Remove {_counts(plan)}?"):
        return True
    raise CheloniaError(Kind.CANCELLED, "rm", ln, "nothing was removed")


def _elsewhere(plan: RemovalPlan) -> list[str]:
    return [f"{name}  (another name of one of these files)" for name in plan.elsewhere]


def _counts(plan: RemovalPlan) -> str:
    parts = [f"{counted(len(plan.names), 'file')} ({human_size(plan.size)})"]
    for names, noun in ((plan.collections, "collection"), (plan.elsewhere, "other name")):
        parts += [counted(len(names), noun)] if names else []
    return ", ".join(parts)


async def agreed(question: str) -> bool:
    """Return whether a person says yes."""
    return (await asyncio.to_thread(ask, f"{question} [y/N] ")).strip().lower() in ("y", "yes")


def at_a_terminal() -> bool:
    """Whether there is a person at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()
