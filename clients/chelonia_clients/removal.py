"""Removal of whole trees, and a plan of the names that go with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Filter, Needed
from chelonia.hosting.transfer.call_batches import CALLS_AT_ONCE
from chelonia_clients.client import SHORT, Client, DirectoryEntry, Metadata
from chelonia_clients.local_files import to_ln
from chelonia_clients.paths import Paths
from chelonia_clients.steps import PARALLEL, Job, TransferResult, in_order

WITH_PARENTS: Filter = (*SHORT, Needed("parents"))
REMOVALS = CALLS_AT_ONCE * bounds.REMOVED_TOGETHER_MAX
"""Names removed at a time: they fill the calls that they share."""


@dataclass(slots=True)
class RemovalPlan:
    """Entries that go with the removal of one name.

    Args:
        names: of files, at or below the removed name.
        collections: names of collections, the topmost first.
        elsewhere: other names of these files, which would go too.
        size: bytes of the files.
    """

    names: list[str] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    size: int = 0


async def foresee(client: Client, ln: str, *, all_names: bool) -> RemovalPlan:
    """Plan `remove_tree`, or the removal of one file; `all_names` as there.

    Raises: NOT_FOUND, DENIED.
    """
    metadata, paths, shared = await client.stat(ln), Paths(client), list[str]()
    if metadata.get("entry", {}).get("type") != "collection":
        elsewhere = await other_names(client, ln, metadata.get("parents", {})) if all_names else []
        return RemovalPlan([ln], elsewhere=elsewhere, size=int(metadata.get("states", {}).get("size", "0") or 0))
    plan = RemovalPlan(collections=[ln])
    if is_shared(metadata):
        return plan
    named = client.list(ln, recursive=True, needed=WITH_PARENTS) if all_names else client.names(ln, recursive=True)
    async for entry in going(named):
        name = to_ln(ln, entry.name.split("/"))
        if entry.type == "collection":
            plan.collections.append(name)
            continue
        plan.names.append(name)
        plan.size += max(0, entry.size)
        if all_names and len(entry.metadata.get("parents", {})) > 1:
            shared += await paths.all_of(entry.metadata)
    plan.elsewhere = sorted(set(shared) - set(plan.names))
    return plan


def is_shared(metadata: Metadata) -> bool:
    """Return whether an entry has several names."""
    return len(metadata.get("parents", {})) > 1


async def going(entries: AsyncIterable[DirectoryEntry]) -> AsyncGenerator[DirectoryEntry, None]:
    """Yield the entries of a recursive listing that go with its collection. One that has another name keeps its own."""
    kept = ""
    async for entry in entries:
        if not (kept and entry.name.startswith(kept)):
            kept = f"{entry.name}/" if entry.is_shared else ""
            yield entry


def drop_of(client: Client, entry: DirectoryEntry) -> Callable[[str], Awaitable[str]]:
    """Return the removal of one name of an entry, of a collection once it is empty."""
    if entry.is_shared:
        return client.unlink
    return {"collection": client.unmake_collection, "mountpoint": client.unmake_mountpoint}.get(
        entry.type, client.unlink
    )


async def other_names(client: Client, ln: str, parents: Iterable[str]) -> list[str]:
    """Return the full names of a file other than `ln`, from its parents `<GUID>/<name>`."""
    pairs = list(parents)
    if len(pairs) < 2:
        return []
    names = await Paths(client).all_of({"parents": dict.fromkeys(pairs, "")})
    return [name for name in names if name != ln] if ln in names else names[1:]


async def remove_tree(
    client: Client, ln: str, *, all_names: bool = False, parallel: int = REMOVALS
) -> AsyncGenerator[TransferResult, None]:
    """Remove a collection and all below it, deepest first; `all_names` removes files under their other names too. Of a
    collection that has another name, here or below, only this name goes.

    Raises: as `get_tree`.
    """
    if is_shared(await client.stat(ln)):
        yield await removed(client.unlink, "collection", ln)
        return
    levels: dict[int, list[str]] = {-1: [ln]}
    failed = False
    async with aclosing(in_order(_removals(client, ln, levels, all_names), parallel)) as results:
        async for done in results:
            failed = failed or done.error is not None
            yield done
    for depth in sorted(levels, reverse=True):
        async with aclosing(in_order(_unmakings(client, levels[depth]), PARALLEL)) as results:
            async for done in results:
                if not (failed and done.error is not None and done.error.kind is Kind.NOT_EMPTY):
                    yield done


async def _unmakings(client: Client, collections: list[str]) -> AsyncGenerator[Job, None]:
    for each in collections:
        yield partial(removed, client.unmake_collection, "collection", each)


async def _removals(
    client: Client, ln: str, levels: dict[int, list[str]], all_names: bool
) -> AsyncGenerator[Job, None]:
    """Removals of entries that are no collections; collections are added to `levels`, by depth."""
    drop = client.del_file if all_names else client.unlink
    async for entry in going(client.names(ln, recursive=True)):
        name = to_ln(ln, entry.name.split("/"))
        match entry.type:
            case "collection" if not entry.is_shared:
                levels.setdefault(entry.name.count("/"), []).append(name)
            case "collection" | "mountpoint":
                yield partial(removed, drop_of(client, entry), entry.type, name)
            case "file":
                yield partial(removed, drop, "file", name)
            case _:  # `delFile` is for files alone
                yield partial(removed, client.unlink, entry.type, name)


async def removed(drop: Callable[[str], Awaitable[str]], kind: str, ln: str) -> TransferResult:
    """Remove one name, which may be gone already; a failure is in the result."""
    try:
        await drop(ln)
    except CheloniaError as error:
        if error.kind is not Kind.NOT_FOUND:
            return TransferResult(kind, ln, "", error=error)
    return TransferResult(kind, ln, "")
