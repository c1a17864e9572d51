"""Verbs on names: collections, mount points, move, link. The original's lines, to the letter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from chelonia.core.errors import CheloniaError, Kind
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.session import Session


async def make_collection(session: Session, arguments: Arguments) -> None:
    """Make collections (`makeCollection`)."""

    async def make(ln: str) -> str:
        if arguments.has("--parents"):
            await session.client().make_collections(ln)
            return "done"
        try:
            return await session.client().make_collection(ln)
        except CheloniaError as error:
            if error.kind is not Kind.NO_PARENT:
                raise
            cause = f"{error.cause or 'its parent is missing'}; -p makes all that is missing"
            raise CheloniaError(error.kind, error.op, error.subject, cause) from error

    await each_name(session, arguments.operands, "makeCollection", "Creating collection", make)


async def unmake_collection(session: Session, arguments: Arguments) -> None:
    """Remove empty collections (`unmakeCollection`)."""

    async def drop(ln: str) -> str:
        return await session.client().unmake_collection(ln)

    await each_name(session, arguments.operands, "unmakeCollection", "Removing collection", drop)


async def make_mountpoint(session: Session, arguments: Arguments) -> None:
    """Make a mount point (`makeMountPoint`)."""
    text, url = arguments.operands

    async def make(ln: str) -> str:
        return await session.client().make_mountpoint(ln, url)

    await each_name(session, (text,), "makeMountpoint", "Creating mountpoint", make)


async def unmake_mountpoint(session: Session, arguments: Arguments) -> None:
    """Remove a mount point (`unmakeMountPoint`)."""

    async def drop(ln: str) -> str:
        return await session.client().unmake_mountpoint(ln)

    await each_name(session, arguments.operands, "unmakeMountpoint", "Removing mountpoint", drop)


async def move(session: Session, arguments: Arguments) -> None:
    """Rename or move an entry, or link it with `preserve` (`move`)."""
    source, target, *rest = arguments.operands
    if rest and rest[0].lower() != "preserve":
        raise UsageError(f"the third word of move is `preserve`, not {rest[0]!r}")
    await _move(session, source, target, preserve=bool(rest))


async def mv(session: Session, arguments: Arguments) -> None:
    """Rename an entry, or move entries into a collection (`mv`)."""
    *sources, target = arguments.operands
    into = target.endswith("/") or await session.is_collection(session.ln(target))
    if len(sources) > 1 and not into:
        raise UsageError(f"{target} is no collection, so only one name can be moved to it")
    for source in sources:
        await _move(session, source, target.rstrip("/") + "/" if into else target, preserve=False)


async def link(session: Session, arguments: Arguments) -> None:
    """Give a file another name (`ln`)."""
    source, target = arguments.operands
    into = target.endswith("/") or await session.is_collection(session.ln(target))
    await _move(session, source, target.rstrip("/") + "/" if into else target, preserve=True, doing="Linking")


async def _move(session: Session, source: str, target: str, *, preserve: bool, doing: str = "Moving") -> None:
    head = f"{doing} '{source}' to '{target}': "
    facts = {"ln": source, "target": target, "preserve": preserve}
    with session.out.trying(head, "move", **facts):
        word = await session.client().move(session.ln(source), session.ln(target), preserve=preserve)
        session.out.write(head + ("linked" if doing == "Linking" else word))
        session.out.result(**facts, status=word)


async def each_name(
    session: Session, operands: Sequence[str], op: str, doing: str, act: Callable[[str], Awaitable[str]]
) -> None:
    """Call `act` for each name, and print each outcome in the original's form."""
    for text in operands:
        head = f"{doing} '{text}': "
        with session.out.trying(head, op, ln=text):
            word = await act(session.ln(text))
            session.out.write(head + word)
            session.out.result(ln=text, status=word)
