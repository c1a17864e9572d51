"""Makes a collection the same as a local directory, or a directory the same as a collection.

Only differences are moved, so the next `sync` continues a broken one. With `delete`, entries that are no longer at the
source are removed from the target, if everything else went well. Entries that the choice leaves out stay as they are.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace
from chelonia_clients.client import Client, unlisted
from chelonia_clients.local_files import Sort, local_error, scan, to_ln
from chelonia_clients.output import printable
from chelonia_clients.removal import drop_of, removed
from chelonia_clients.steps import Job, TransferResult, in_order, known
from chelonia_clients.transfers import PLAIN, TreeOptions, get_tree, put_tree

Emptied = list[Job]
"""Removals of collections or directories that are empty once all files are gone, the topmost first."""


async def sync_up(
    client: Client, source: Path, ln: str, options: TreeOptions = PLAIN, *, delete: bool = False
) -> AsyncGenerator[TransferResult, None]:
    """Make the collection `ln` the same as the directory `source`; results of removals have an empty `target`.

    Raises: CONFLICT when names are to be removed and the directory is another one by then.
    """
    emptied: Emptied = []
    top = _Top(source, await asyncio.to_thread(_identity, source))
    work = put_tree(client, source, ln, replace(options, replace=True))
    extras = _extra_names(client, top, ln, options, emptied) if delete else None
    async with aclosing(_both(work, extras, emptied, options)) as results:
        async for done in results:
            yield done


def sync_down(
    client: Client, ln: str, target: Path, options: TreeOptions = PLAIN, *, delete: bool = False
) -> AsyncGenerator[TransferResult, None]:
    """Make the directory `target` the same as the collection `ln`; results of removals have an empty `target`.

    Raises: as a listing (NOT_FOUND, NOT_A_COLLECTION, DENIED, NETWORK).
    """
    emptied: Emptied = []
    work = get_tree(client, ln, target, replace(options, replace=True))
    extras = _extra_files(client, ln, target, options, emptied) if delete else None
    return _both(work, extras, emptied, options)


async def _both(
    work: AsyncGenerator[TransferResult, None],
    extras: AsyncGenerator[Job, None] | None,
    emptied: Emptied,
    options: TreeOptions,
) -> AsyncGenerator[TransferResult, None]:
    failed = False
    async with aclosing(work):
        async for done in work:
            failed = failed or done.error is not None
            yield done
    if extras is None or failed:
        return
    async with aclosing(in_order(extras, options.parallel)) as results:
        async for done in results:
            yield done
    for job in reversed(emptied):
        done = await job()
        if done.error is None or done.error.kind is not Kind.NOT_EMPTY:  # entries left out keep their collection
            yield done


@dataclass(frozen=True, slots=True)
class _Top:
    """A directory, and its device and inode when it was first looked at."""

    path: Path
    identity: tuple[int, int] | None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def _extra_names(
    client: Client, top: _Top, ln: str, options: TreeOptions, emptied: Emptied
) -> AsyncGenerator[Job, None]:
    """Removals of entries that are in the collection and not in the directory; none if the collection is not there."""
    shared = ""
    try:
        async for entry in client.names(ln, recursive=True):
            if shared and entry.name.startswith(shared):
                continue
            names, is_collection = entry.name.split("/"), entry.type == "collection"
            if not options.choice.takes_below(names, collection=is_collection):
                continue
            if entry.closed:
                error = unlisted("sync", to_ln(ln, names))
                yield known(TransferResult("collection", error.subject, "", error=error))
            if not await asyncio.to_thread(_is_gone, top, names):
                continue
            shared = f"{entry.name}/" if entry.is_shared else ""
            job: Job = partial(removed, drop_of(client, entry), entry.type, to_ln(ln, names))
            job = known(TransferResult(entry.type, to_ln(ln, names), "")) if options.dry_run else job
            if is_collection:
                emptied.append(job)
            else:
                yield job
    except CheloniaError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise


def _is_gone(top: _Top, names: Sequence[str]) -> bool:
    """Whether a directory has no such path. A path behind a link, which is skipped, does not count as gone.

    Raises: CheloniaError where that cannot be seen, as when the disk has been unmounted.
    """
    source, path = top.path, top.path.joinpath(*names)
    try:
        path.lstat()
    except OSError as error:
        if any(source.joinpath(*names[:depth]).is_symlink() for depth in range(1, len(names))):
            return False
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise local_error(error, "sync", path) from error
        if _identity(source) != top.identity:
            cause = "the local directory is gone, or another one by now; nothing more is removed"
            raise CheloniaError(Kind.CONFLICT, "sync", printable(str(source)), cause) from error
        return True
    return False


async def _extra_files(
    client: Client, ln: str, target: Path, options: TreeOptions, emptied: Emptied
) -> AsyncGenerator[Job, None]:
    """Removals of files that are in the directory and not in the collection. Raises: DENIED where it is not listed."""
    listed = set[str]()
    async for entry in client.names(ln, recursive=True):
        if entry.closed and options.choice.takes_below(entry.name.split("/"), collection=True):
            raise unlisted("sync", to_ln(ln, entry.name.split("/")))
        listed.add(entry.name)
    waiting: list[tuple[Path, tuple[str, ...]]] = [(target, ())]
    while waiting:
        directory, above = waiting.pop()
        try:
            found = await asyncio.to_thread(scan, directory)
        except FileNotFoundError:  # a dry run has not made it
            continue
        for each in found:
            names, path, is_directory = (*above, each.name), directory / each.name, each.sort is Sort.DIRECTORY
            if not options.choice.takes(names, collection=is_directory):
                continue
            if is_directory:
                waiting.append((path, names))
            if "/".join(names) in listed:
                continue
            done = TransferResult("collection" if is_directory else "file", printable(str(path)), "")
            remove = Path.rmdir if is_directory else Path.unlink
            job = known(done) if options.dry_run else partial(_gone, path, remove, done)
            if is_directory:
                emptied.append(job)
            else:
                yield job


async def _gone(path: Path, remove: Callable[[Path], None], done: TransferResult) -> TransferResult:
    try:
        await asyncio.to_thread(remove, path)
        return done
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return replace(done, error=CheloniaError(Kind.NOT_EMPTY, "sync", done.source))
        return replace(done, error=local_error(error, "sync", path))
