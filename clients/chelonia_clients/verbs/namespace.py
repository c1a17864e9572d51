"""Verbs on names: stat, list, collections, mount points, move, link, delete. The original's lines, to the letter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Needed
from chelonia.core.replicas import PROVEN, ReplicaState
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.client import SHORT, Client, Listed
from chelonia_clients.output import original_status, table
from chelonia_clients.session import Session, parallel_of
from chelonia_clients.transfers import PARALLEL, remove_tree

WHY: Final = {
    " LOST": "no good copy is left anywhere; an administrator may know of a disk that has one (what-was-lost.md)",
    " unreachable": "it is not lost, all Shepherds with a good copy are away now",
}
LINES_AT_ONCE = 1000
"""Entries aligned together: a long listing starts to show before it is whole."""


async def stat(session: Session, arguments: Arguments) -> None:
    """The verb `stat`."""
    out = session.out
    for text in arguments.operands:
        try:
            metadata = await session.client().stat(session.ln(text))
        except CheloniaError as error:
            line = f"'{text}': {'not found' if error.kind is Kind.NOT_FOUND else original_status('stat', error)}"
            out.failure(error, line, ln=text)
            continue
        out.say(f"'{text}': found")
        for section in sorted(metadata):
            out.say(f"  {section}")
            for name, value in sorted(metadata[section].items()):
                out.say(f"    {name}: {value}")
        if why := unreadable(metadata):
            out.tell(f"'{text}':{why}: {WHY[why]}")
        out.result(ln=text, metadata=metadata)


async def list_(session: Session, arguments: Arguments) -> None:
    """The verb `list`."""
    for text in arguments.operands:
        try:
            await _list_one(session, arguments, text)
        except CheloniaError as error:
            session.out.failure(error, f"'{text}': {original_status('list', error)}", ln=text)


async def ls(session: Session, arguments: Arguments) -> None:
    """The verb `ls`: like `list`, but what is no collection shows itself, and without a name the root is meant."""
    for text in arguments.operands or ("/",):
        try:
            await _list_one(session, arguments, text)
        except CheloniaError as error:
            if error.kind not in (Kind.NOT_A_COLLECTION, Kind.IN_MOUNTPOINT):
                session.out.failure(error, ln=text)
                continue
            await _list_itself(session, arguments, text)


async def _list_one(session: Session, arguments: Arguments, text: str) -> None:
    ln, out = session.ln(text), session.out
    needed = (*SHORT, Needed("locations")) if arguments.has("--long") else SHORT
    facts: list[dict[str, object]] = []
    waiting: list[Listed] = []
    headed = False
    async for entry in session.client().list(ln, recursive=arguments.has("--recursive"), needed=needed):
        if not headed:
            out.say(f"'{text}': collection")
            headed = True
        if out.as_json:
            facts.append(_facts(entry))
            continue
        waiting.append(entry)
        if len(waiting) >= LINES_AT_ONCE:
            _show(session, arguments, waiting)
            waiting = []
    if not headed:
        out.say(f"'{text}': collection")
        out.say("    empty.")
    _show(session, arguments, waiting)
    out.result(ln=text, type="collection", entries=facts)


async def _list_itself(session: Session, arguments: Arguments, text: str) -> None:
    try:
        metadata = await session.client().stat(session.ln(text))
    except CheloniaError as error:
        session.out.failure(error, ln=text)
        return
    entry = Listed(text, metadata.get("entry", {}).get("GUID", ""), metadata)
    _show(session, arguments, [entry])
    session.out.result(ln=text, type=entry.type, entries=[_facts(entry)])


def _show(session: Session, arguments: Arguments, entries: Sequence[Listed]) -> None:
    if not entries:
        return
    if arguments.has("--long"):
        lines = table([_long(entry) for entry in entries], frozenset({0, 1}))
    else:
        lines = table([(entry.name, f"<{entry.type}>") for entry in entries])
    for line in lines:
        session.out.say(f"  {line}")


def _long(entry: Listed) -> tuple[str, ...]:
    states = entry.metadata.get("states", {})
    alive = sum(state == "alive" for state in entry.metadata.get("locations", {}).values())
    is_file = entry.type == "file"
    copies = f"{alive}/{states.get('neededReplicas', '?')}{unreadable(entry.metadata)}" if is_file else "-"
    seconds = entry.modified_s
    stamp = "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (str(entry.size) if is_file and entry.size >= 0 else "-", copies, stamp, f"<{entry.type}>", entry.name)


def unreadable(metadata: Mapping[str, Mapping[str, str]]) -> str:
    """` LOST` or ` unreachable` for a file that nobody can read now, by the states of its copies; else ""."""
    states = set(metadata.get("locations", {}).values())
    if metadata.get("entry", {}).get("type") != "file" or states & {state.value for state in PROVEN}:
        return ""
    return " unreachable" if ReplicaState.OFFLINE.value in states else " LOST"


def _facts(entry: Listed) -> dict[str, object]:
    return {
        "name": entry.name,
        "type": entry.type,
        "guid": entry.guid,
        "size": entry.size if entry.size >= 0 else None,
        "modified": entry.modified_s,
        "metadata": entry.metadata,
    }


async def make_collection(session: Session, arguments: Arguments) -> None:
    """The verb `makeCollection`."""

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

    await _each(session, arguments.operands, "makeCollection", "Creating collection '{}': {}", make)


async def unmake_collection(session: Session, arguments: Arguments) -> None:
    """The verb `unmakeCollection`."""

    async def unmake(ln: str) -> str:
        return await session.client().unmake_collection(ln)

    await _each(session, arguments.operands, "unmakeCollection", "Removing collection '{}': {}", unmake)


async def make_mountpoint(session: Session, arguments: Arguments) -> None:
    """The verb `makeMountPoint`."""
    text, url = arguments.operands

    async def make(ln: str) -> str:
        return await session.client().make_mountpoint(ln, url)

    await _each(session, (text,), "makeMountpoint", "Creating mountpoint '{}': {}", make)


async def unmake_mountpoint(session: Session, arguments: Arguments) -> None:
    """The verb `unmakeMountPoint`."""

    async def unmake(ln: str) -> str:
        return await session.client().unmake_mountpoint(ln)

    await _each(session, arguments.operands, "unmakeMountpoint", "Removing mountpoint '{}': {}", unmake)


async def unlink(session: Session, arguments: Arguments) -> None:
    """The verb `unlink`."""

    async def drop(ln: str) -> str:
        return await session.client().unlink(ln)

    await _each(session, arguments.operands, "unlink", "Unlinking '{}': {}", drop)


async def delete(session: Session, arguments: Arguments) -> None:
    """The verb `delFile`."""
    if arguments.has("--recursive"):
        await _remove_trees(session, arguments, all_names=True)
        return

    async def drop(ln: str) -> str:
        return await session.client().del_file(ln)

    await _each(session, arguments.operands, "delFile", "{}: {}.", drop)


async def remove(session: Session, arguments: Arguments) -> None:
    """The verb `rm`."""
    if arguments.has("--recursive"):
        await _remove_trees(session, arguments, all_names=False)
        return
    for text in arguments.operands:
        try:
            await _remove_name(session.client(), session.ln(text))
        except CheloniaError as error:
            if not (error.kind is Kind.NOT_FOUND and arguments.has("--force")):
                session.out.failure(error, ln=text)
            continue
        session.out.say(f"{text}: deleted.")
        session.out.result(ln=text, status="deleted")


async def _remove_name(client: Client, ln: str) -> None:
    """Drop one name of a file. Raises: NOT_A_FILE for a collection, and as `Client.unlink`."""
    try:
        kind = await client.exists(ln)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        kind = ""  # it may be removed without being read
    if kind == "collection":
        raise CheloniaError(Kind.NOT_A_FILE, "rm", ln, "it is a collection; -r removes it with all below it")
    await client.unlink(ln)


async def _remove_trees(session: Session, arguments: Arguments, *, all_names: bool) -> None:
    for text in arguments.operands:
        try:
            await _remove_whole(session, arguments, text, all_names)
        except CheloniaError as error:
            missing_is_fine = error.kind is Kind.NOT_FOUND and not all_names and arguments.has("--force")
            if not missing_is_fine:
                session.out.failure(error, ln=text)


async def _remove_whole(session: Session, arguments: Arguments, text: str, all_names: bool) -> None:
    ln, client, out = session.ln(text), session.client(), session.out
    if ln.strip("/") == "":
        raise UsageError("the root is not removed; name what is in it")
    if await client.exists(ln) == "file":
        await (client.del_file(ln) if all_names else client.unlink(ln))
        out.say(f"{text}: deleted.")
        out.result(ln=text, status="deleted")
        return
    async for done in remove_tree(
        client, ln.rstrip("/"), all_names=all_names, parallel=parallel_of(arguments, PARALLEL)
    ):
        if done.error is not None:
            out.failure(done.error, ln=done.source, type=done.type)
            continue
        out.say(f"{done.source}: deleted.")
        out.result(ln=done.source, type=done.type, status="deleted")


async def move(session: Session, arguments: Arguments) -> None:
    """The verb `move`."""
    source, target, *rest = arguments.operands
    if rest and rest[0].lower() != "preserve":
        raise UsageError(f"the third word of move is `preserve`, not {rest[0]!r}")
    await _move(session, source, target, preserve=bool(rest))


async def mv(session: Session, arguments: Arguments) -> None:
    """The verb `mv`: into a collection when the target is one."""
    *sources, target = arguments.operands
    into = target.endswith("/") or await session.is_collection(session.ln(target))
    if len(sources) > 1 and not into:
        raise UsageError(f"{target} is no collection, so only one name can be moved to it")
    for source in sources:
        await _move(session, source, target.rstrip("/") + "/" if into else target, preserve=False)


async def link(session: Session, arguments: Arguments) -> None:
    """The verb `ln`."""
    source, target = arguments.operands
    into = target.endswith("/") or await session.is_collection(session.ln(target))
    await _move(session, source, target.rstrip("/") + "/" if into else target, preserve=True, doing="Linking")


async def _move(session: Session, source: str, target: str, *, preserve: bool, doing: str = "Moving") -> None:
    head = f"{doing} '{source}' to '{target}': "
    facts = {"ln": source, "target": target, "preserve": preserve}
    try:
        word = await session.client().move(session.ln(source), session.ln(target), preserve=preserve)
    except CheloniaError as error:
        session.out.failure(error, head + original_status("move", error), **facts)
        return
    session.out.say(head + ("linked" if doing == "Linking" else word))
    session.out.result(**facts, status=word)


async def _each(
    session: Session, operands: Sequence[str], op: str, form: str, act: Callable[[str], Awaitable[str]]
) -> None:
    """Do the same with each name; say each outcome in the original's form."""
    for text in operands:
        try:
            word = await act(session.ln(text))
        except CheloniaError as error:
            session.out.failure(error, form.format(text, original_status(op, error)), ln=text)
            continue
        session.out.say(form.format(text, word))
        session.out.result(ln=text, status=word)
