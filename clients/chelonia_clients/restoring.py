"""Brings whole trees back from the trash, under the names they had."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.bartender import DeletedEntry
from chelonia.hosting.transfer.call_batches import CALL_FILES_MAX, CALLS_AT_ONCE
from chelonia_clients.client import Client
from chelonia_clients.paths import Paths
from chelonia_clients.steps import Job, TransferResult, in_order

RESTORED_AT_ONCE: Final = CALLS_AT_ONCE * CALL_FILES_MAX
"""Files of a collection restored at a time: they fill the calls that they share."""


async def undelete_tree(client: Client, ln: str) -> AsyncGenerator[TransferResult, None]:
    """Bring back a collection, unless it is there, and all entries that were deleted below it.

    Of several that had a name, the one deleted last comes back. Missing collections above come back too, alone. Of each
    collection the files come first, many at a time, then the collections in it.
    Raises: NOT_FOUND when nothing of that name is kept, DENIED.
    """
    name = parse_ln(ln)
    if not name.parts:
        raise CheloniaError(
            Kind.BAD_REQUEST, "undelete", ln, "name the collection to bring back, not the root or a GUID"
        )
    for depth in range(1, len(name.parts)):
        above = LogicalName(name.start, name.parts[:depth])
        if not await client.exists(str(above)):
            if (deleted := await _last(client, above)) is None:
                raise _nothing(above)
            yield await _restored(client, deleted, str(above))
    gone = await _last(client, name)
    if await client.exists(str(name)) != "collection":
        if gone is None:
            raise _nothing(name)
        done = await _restored(client, gone, str(name))
        yield done
        if done.error is not None or gone.type != "collection":
            return
    sources = [(await client.stat(str(name)))["entry"]["GUID"]]
    if gone is not None and gone.guid not in sources:  # one has been made in its place
        sources.append(gone.guid)
    async for done in _below(client, str(name), sources):
        yield done


async def _below(client: Client, ln: str, sources: Sequence[str]) -> AsyncGenerator[TransferResult, None]:
    """Bring back into `ln` entries deleted from the collections, by GUID, that have or had its name."""
    newest: dict[str, DeletedEntry] = {}
    for source in sources:
        async for entry in client.list_deleted(source):
            latest = newest.get(entry.name)
            if latest is None or entry.deleted_ms >= latest.deleted_ms:
                newest[entry.name] = entry
    named = [(f"{ln}/{name}", entry) for name, entry in sorted(newest.items())]
    async with aclosing(in_order(_restorings(client, named), RESTORED_AT_ONCE)) as results:
        async for done in results:
            yield done
    for target, entry in named:
        if entry.type != "collection":
            continue
        inner = [entry.guid]
        if await client.exists(target) == "collection":
            inner.insert(0, (await client.stat(target))["entry"]["GUID"])
        else:
            done = await _restored(client, entry, target)
            yield done
            if done.error is not None:
                continue
        async for done in _below(client, target, inner):
            yield done


async def _restorings(client: Client, named: Sequence[tuple[str, DeletedEntry]]) -> AsyncGenerator[Job, None]:
    for target, entry in named:
        if entry.type != "collection":
            yield partial(_restored, client, entry, target)


async def _restored(client: Client, entry: DeletedEntry, target: str) -> TransferResult:
    try:
        await client.undelete(entry.guid, target)
        return TransferResult(entry.type, entry.guid, target, max(0, entry.size))
    except CheloniaError as error:
        named = CheloniaError(error.kind, error.op, target, error.cause)  # the error names its GUID
        return TransferResult(entry.type, entry.guid, target, error=named)


async def _last(client: Client, name: LogicalName) -> DeletedEntry | None:
    found = [e async for e in client.list_deleted(str(name.parent)) if e.name == name.name]
    return max(found, key=lambda entry: entry.deleted_ms, default=None)


def _nothing(name: LogicalName) -> CheloniaError:
    cause = "nothing of yours that had this name is kept; `undelete --list` shows what is"
    return CheloniaError(Kind.NOT_FOUND, "undelete", str(name), cause)


async def former_names(client: Client, entries: Sequence[DeletedEntry]) -> list[str]:
    """Return the full names that deleted entries had, given all of them; `<GUID>/name` where that is not known."""
    gone = {entry.guid: entry.name for entry in entries if entry.type == "collection"}
    paths, known = Paths(client), dict[str, str]()

    async def of(name: str) -> str:
        above, _, last = name.rpartition("/")
        if not above:
            return name
        if above not in known:
            known[above] = above
            known[above] = await of(gone[above]) if above in gone else await paths.of(above)
        return f"{known[above]}/{last}"

    return [await of(entry.name) for entry in entries]
