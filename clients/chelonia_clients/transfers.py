"""Whole trees: uploaded, downloaded and copied, several files at once, each with a result of its own.

Results come in the order of the walk, whatever finishes first. One file's failure is its own result, and the rest goes
on; only below a collection that cannot be made nothing is moved. A file that is there already is not moved again, so
the same call continues a tree that broke off. Modification times are kept, empty directories too; symbolic links and
special files are skipped with a note. Memory is bounded: few files move at a time, and few results wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import LEAVE, UNSHARED, Clone, Done, Setting, When
from chelonia.hosting.transfer.call_batches import CALL_FILES_MAX, CALLS_AT_ONCE
from chelonia.hosting.transfer.download import download, read
from chelonia.hosting.transfer.landing import Landing
from chelonia.hosting.transfer.requester import Progress
from chelonia.hosting.transfer.upload import Source, UploadOptions, UploadResult, upload
from chelonia_clients.choosing import EVERYTHING, Choice
from chelonia_clients.client import Client, DirectoryEntry, described, unlisted
from chelonia_clients.comparing import Verdict, compare, kept_time
from chelonia_clients.local_files import Sort, local_error, scan, sizes_in, to_ln, to_local
from chelonia_clients.local_sources import Stream, file_source
from chelonia_clients.output import human_size, printable
from chelonia_clients.parted import upload_local
from chelonia_clients.resuming import PARTED_BYTES, upload_in_parts
from chelonia_clients.steps import PARALLEL, Job, TransferResult, in_order, known

SMALL_AT_ONCE: Final = 2 * CALLS_AT_ONCE * CALL_FILES_MAX // PARALLEL
"""Small files sent at a time for each larger one: twice as many as calls carry, for stored ones are still to be
named."""
LOOKED_AT_ONCE: Final = 2 * CALLS_AT_ONCE * bounds.LOOKED_TOGETHER_MAX // PARALLEL
"""The same for downloads, of which a call carries more: arrived files are still to be written and synced."""


class TreeOptions(msgspec.Struct, frozen=True):
    """Options for moving files.

    Args:
        parallel: files at a time; `SMALL_AT_ONCE` times as many small ones beside them, or `LOOKED_AT_ONCE`.
        replicas: wanted copies; None: the default, or those of the source for a copy inside the cluster.
        replace: overwrite existing files that differ.
        progress: as for one file, called for all of them.
        choice: the entries of a tree to move.
        checksum: compare existing files by checksum, whatever their times.
        dry_run: move nothing, only yield the results.
        listed: pass over collections that the user may not read, whose content cannot be compared.
    """

    parallel: int = PARALLEL
    replicas: int | None = None
    replace: bool = False
    progress: Progress | None = None
    choice: Choice = EVERYTHING
    checksum: bool = False
    dry_run: bool = False
    listed: bool = False

    @property
    def wanted(self) -> int:
        """Wanted copies of an upload."""
        return bounds.REPLICAS_DEFAULT if self.replicas is None else self.replicas


Place = Callable[[int], contextlib.AbstractAsyncContextManager[object]]
"""Returns the context in which a file of so many bytes waits for its turn."""
BRANCHES_AHEAD: Final = 6
"""Collections of a tree listed, or made, at a time: each takes a round trip or two."""
LISTED_MAX: Final = 100_000
"""Entries listed ahead, some 27 MiB, beyond which no more are: at each depth of a tree some are left."""
LISTED_MS: Final = 30_000
"""Age at which a listing made ahead is made again: others may have changed the collection."""
PLAIN: Final = TreeOptions()
"""Everything of a tree, with the defaults."""
_CURE: Final = "a tree goes below a collection: name another one, or remove it first"


async def put_file(
    client: Client, source: Path, ln: str, options: TreeOptions, place: Place = lambda size: contextlib.nullcontext()
) -> TransferResult:
    """Upload one local file; failures are in the result. `place`: as `Place`."""
    try:
        found, made = await asyncio.to_thread(lambda: (source.stat(), file_source(source)))
        wish = UploadOptions(options.wanted, options.replace, kept_time(found), progress=options.progress)
        async with place(found.st_size):
            stored = await _stored(client, source, made, ln, wish)
        return TransferResult("file", printable(str(source)), ln, stored.size, remark=stored.note)
    except (OSError, CheloniaError) as error:
        return TransferResult("file", printable(str(source)), ln, error=_failure_of(error, "put", source))


async def _stored(client: Client, path: Path, source: Source | Stream, ln: str, wish: UploadOptions) -> UploadResult:
    """Upload a local file, a large one in parts."""
    if isinstance(source, Source) and source.size >= PARTED_BYTES:
        return await upload_in_parts(client, path, ln, wish)
    return await upload_local(client, source, ln, wish)


async def get_file(
    client: Client,
    ln: str,
    target: Path,
    options: TreeOptions,
    mtime_s: float | None = None,
    landing: Landing | None = None,
    size: int = -1,
) -> TransferResult:
    """Download one file; failures are in the result. `mtime_s`, `size`: if they are known."""
    progress = options.progress
    try:
        downloaded = await download(
            client,
            ln,
            target,
            overwrite=options.replace,
            progress=progress,
            mtime_s=mtime_s,
            landing=landing,
            size=size,
        )
        remark = (
            f"{ln}: {human_size(downloaded.had)} of {human_size(downloaded.size)} had arrived before"
            if downloaded.had
            else ""
        )
        return TransferResult("file", ln, printable(str(target)), downloaded.size, remark=remark)
    except (OSError, CheloniaError) as error:
        return TransferResult("file", ln, printable(str(target)), error=_failure_of(error, "get", target))


async def copy_file(
    client: Client, source: str, target: str, options: TreeOptions, mtime_s: float | None
) -> TransferResult:
    """Copy one file inside the cluster, with its users' metadata: by reference, else through this machine. Failures are
    in the result."""
    try:
        size = await _cloned(client, source, target, options, mtime_s)
        if size is not None:
            _counted(size, options)
            return TransferResult("file", source, target, size)
        metadata = await client.stat(source)
        wanted = options.replicas or int(metadata.get("states", {}).get("neededReplicas", options.wanted))
        wish = UploadOptions(wanted, options.replace, mtime_s, metadata.get("metadata", {}), progress=options.progress)
        stored = await upload(client, Source(lambda: read(client, source), -1), target, wish)
        return TransferResult("file", source, target, stored.size, remark=stored.note)
    except CheloniaError as error:
        return TransferResult("file", source, target, error=error)


async def _cloned(client: Client, source: str, target: str, options: TreeOptions, mtime_s: float | None) -> int | None:
    """Copy a file by reference; returns its size, None where its bytes have to be copied. Raises: EXISTS and others."""
    setting = LEAVE if mtime_s is None else Setting(modified_ns=round(mtime_s * 1e9))
    clone = Clone(parse_ln(target), parse_ln(source), setting, when=When(absent=not options.replace))
    (answer,) = await client.files.apply(client.new_call(), (clone,))
    if isinstance(answer, Done):
        size, wanted = (
            (answer.attributes.size, answer.attributes.wanted) if answer.attributes else (0, options.replicas)
        )
        if options.replicas not in (None, wanted):
            await client.modify(target, "set", Triple("states", "neededReplicas", str(options.replicas)))
        return size
    if answer.kind in UNSHARED:
        return None
    if answer.kind is Kind.PRECONDITION:
        raise CheloniaError(Kind.EXISTS, "cp", target, "it is there already; -f overwrites it")
    raise answer.error("cp")


def put_tree(
    client: Client, source: Path, ln: str, options: TreeOptions = PLAIN
) -> AsyncGenerator[TransferResult, None]:
    """Upload a directory as the collection `ln`, which is made when it is not there."""
    return in_order(_uploads(client, source, ln, options), SMALL_AT_ONCE * options.parallel)


def get_tree(
    client: Client, ln: str, target: Path, options: TreeOptions = PLAIN
) -> AsyncGenerator[TransferResult, None]:
    """Download a collection as the directory `target`, which is made when it is not there.

    Raises: as a listing (NOT_FOUND, NOT_A_COLLECTION, DENIED, NETWORK).
    """
    return in_order(_downloads(client, ln, target, options), LOOKED_AT_ONCE * options.parallel)


def copy_tree(client: Client, source: str, target: str, options: TreeOptions) -> AsyncGenerator[TransferResult, None]:
    """Copy a collection inside the cluster. Raises: as `get_tree`."""
    return in_order(_copies(client, source, target, options), options.parallel)


async def local_sizes(source: Path) -> AsyncGenerator[tuple[int, int], None]:
    """Yield number and bytes of the files that `put_tree` will send, by directory, without unreadable directories."""
    waiting = [source]
    while waiting:
        sizes, below = await asyncio.to_thread(sizes_in, waiting.pop())
        waiting.extend(below)
        yield sizes


async def listed_sizes(client: Client, ln: str) -> AsyncGenerator[tuple[int, int], None]:
    """Yield number (1) and bytes of each file that `get_tree` and `copy_tree` will move. Raises: as `get_tree`."""
    async with aclosing(client.names(ln, recursive=True)) as entries:
        async for entry in entries:
            if entry.type == "file":
                yield 1, entry.size


# --- the walks ---


class _WalkedDirectory(msgspec.Struct, eq=False):
    """A directory to be walked. `is_new`: its collection was not there; `listing`: of that one, requested at
    `asked_ms`."""

    directory: Path
    collection: str
    names: tuple[str, ...] = ()
    is_new: bool = False
    listing: asyncio.Task[dict[str, DirectoryEntry] | None] | None = None
    asked_ms: int = 0


async def _uploads(client: Client, source: Path, ln: str, options: TreeOptions) -> AsyncGenerator[Job, None]:
    waiting, large = [_WalkedDirectory(source, ln)], asyncio.Semaphore(options.parallel)
    try:
        async with aclosing(_branches(_Tree(client, options, large), waiting)) as jobs:
            async for job in jobs:
                yield job
    finally:
        listings = [branch.listing for branch in waiting if branch.listing is not None]
        for task in listings:
            task.cancel()
        await asyncio.gather(*listings, return_exceptions=True)


async def _branches(tree: _Tree, waiting: list[_WalkedDirectory]) -> AsyncGenerator[Job, None]:
    client, options, listed = tree.client, tree.options, 0

    def came(task: asyncio.Task[dict[str, DirectoryEntry] | None]) -> None:
        nonlocal listed
        listed += 0 if task.cancelled() or task.exception() else len(task.result() or ())

    while waiting:
        now_ms = client.clock.monotonic_ms()
        for branch in waiting[-(BRANCHES_AHEAD if listed < LISTED_MAX else 1) :]:
            if branch.listing is None:
                branch.listing, branch.asked_ms = asyncio.create_task(_entries(client, branch, options)), now_ms
                branch.listing.add_done_callback(came)
        branch = waiting.pop()
        directory, collection = branch.directory, branch.collection
        try:
            assert branch.listing is not None, "it is the last, and so was asked for"
            entries = await branch.listing
            listed -= len(entries or ())
            if now_ms - branch.asked_ms >= LISTED_MS:
                entries = await _entries(client, branch, options)
            found = await asyncio.to_thread(scan, directory)
        except (CheloniaError, OSError) as error:
            if options.listed and isinstance(error, CheloniaError) and error.kind is Kind.DENIED:
                continue
            failure = _failure_of(error, "walk", directory)
            yield known(TransferResult("collection", printable(str(directory)), collection, error=failure))
            continue
        yield known(TransferResult("collection", printable(str(directory)), collection))
        below: list[_WalkedDirectory] = []
        for each in found:
            path, inner = directory / each.name, (*branch.names, each.name)
            if not options.choice.takes(inner, collection=each.sort is Sort.DIRECTORY):
                continue
            try:
                target = to_ln(collection, [each.name])
            except CheloniaError as error:
                refused = CheloniaError(error.kind, "put", printable(str(path)), error.cause)
                kind = "collection" if each.sort is Sort.DIRECTORY else "file"
                yield known(TransferResult(kind, printable(str(path)), collection, error=refused))
                continue
            if each.sort is Sort.DIRECTORY:
                below.append(_WalkedDirectory(path, target, inner, is_new=entries is None))
            elif each.sort is Sort.FILE:
                yield partial(_upload_needed, tree, path, target, (entries or {}).get(each.name))
            else:
                yield known(TransferResult("file", printable(str(path)), target, note=f"{each.sort.value}: skipped"))
        waiting.extend(reversed(below))


async def _entries(client: Client, branch: _WalkedDirectory, options: TreeOptions) -> dict[str, DirectoryEntry] | None:
    """The entries of a collection; None for one that was not there and is made. Raises: as `Client.make_collection`;
    DENIED with `listed`."""
    ln = branch.collection
    if branch.is_new:
        with contextlib.suppress(CheloniaError):  # the steps below report failures better
            if not options.dry_run:
                await client.make_collection(ln)
            return None
    try:
        return {entry.name: entry async for entry in client.names(ln)}
    except CheloniaError as error:
        if error.kind is Kind.NOT_A_COLLECTION:
            raise CheloniaError(error.kind, "put", ln, f"{error.cause}; {_CURE}") from error
        if error.kind not in (Kind.NOT_FOUND, Kind.DENIED) or (error.kind is Kind.DENIED and options.listed):
            raise
        if not options.dry_run:  # one that may not be read may still take files
            await _ensure_collection(client, ln)
        return None if error.kind is Kind.NOT_FOUND else {}


class _Tree(msgspec.Struct, frozen=True):
    """State that all transfers of a tree share. `large`: places for files that are not small; `made`: new directories,
    in which nothing is to be compared."""

    client: Client
    options: TreeOptions
    large: asyncio.Semaphore
    landing: Landing = msgspec.field(default_factory=Landing)
    made: set[Path] = msgspec.field(default_factory=set)

    def place(self, size: int) -> contextlib.AbstractAsyncContextManager[object]:
        """Return the context in which a file waits for its turn; a small one does not, as it shares its call."""
        is_small = 0 <= size <= bounds.INLINE_BYTES_MAX
        return contextlib.nullcontext() if is_small else self.large


async def _upload_needed(tree: _Tree, path: Path, ln: str, existing: DirectoryEntry | None) -> TransferResult:
    """Upload a file unless it is there already."""
    source, client, options = printable(str(path)), tree.client, tree.options
    try:
        verdict = (
            Verdict.OTHER if existing is None else await compare(client, path, ln, existing, checksum=options.checksum)
        )
        if verdict is Verdict.OTHER and existing is not None and existing.type == "file" and not options.replace:
            return TransferResult("file", source, ln, error=_differs("put", ln, source))
        if verdict is Verdict.OTHER and not options.dry_run:
            return await put_file(client, path, ln, options, tree.place)
        found = await asyncio.to_thread(os.stat, path)
        if verdict is Verdict.OTHER:
            return TransferResult("file", source, ln, found.st_size, over=existing is not None)
        if verdict is Verdict.RETIMED and options.replace and not options.dry_run:
            await client.modify(ln, "set", Triple("timestamps", "modified", f"{kept_time(found):.3f}"))
    except (OSError, CheloniaError) as error:
        return TransferResult("file", source, ln, error=_failure_of(error, "put", path))
    _counted(found.st_size, options)
    return TransferResult("file", source, ln, found.st_size, same=True)


async def _downloads(client: Client, ln: str, target: Path, options: TreeOptions) -> AsyncGenerator[Job, None]:
    top, tree = True, _Tree(client, options, asyncio.Semaphore(options.parallel))
    async for entry in client.names(ln, recursive=True):
        if top:
            made = await _directory(ln, target, tree)
            yield known(made)
            if made.error is not None:
                return  # everything below it would fail
            top = False
        names = entry.name.split("/")
        if not options.choice.takes_below(names, collection=entry.type == "collection"):
            continue
        source = to_ln(ln, names)
        try:
            path = to_local(target, entry.name)
        except CheloniaError as error:
            yield known(TransferResult(entry.type, source, printable(str(target)), error=error))
            continue
        yield await _download_job(tree, entry, source, path)
    if top:
        yield known(await _directory(ln, target, tree))


async def _download_job(tree: _Tree, entry: DirectoryEntry, source: str, path: Path) -> Job:
    match entry.type:
        case "collection" if entry.closed:
            return known(TransferResult("collection", source, printable(str(path)), error=unlisted("get", source)))
        case "collection":
            return known(await _directory(source, path, tree))
        case "file":
            return partial(_download_needed, tree, entry, source, path)
        case other:
            return known(TransferResult("file", source, printable(str(path)), note=f"{other}: skipped"))


async def _download_needed(tree: _Tree, entry: DirectoryEntry, source: str, path: Path) -> TransferResult:
    """Download a file unless it is there already."""
    target, options = printable(str(path)), tree.options
    verdict, exists = Verdict.OTHER, False
    if path.parent not in tree.made:
        try:
            verdict = await compare(tree.client, path, source, entry, checksum=options.checksum)
            exists = True
        except CheloniaError as error:
            return TransferResult("file", source, target, error=error)
        except OSError:
            pass  # it is not there, or the download reports the error
    if verdict is Verdict.OTHER and exists and not options.replace:
        return TransferResult("file", source, target, error=_differs("get", target, source))
    if verdict is Verdict.OTHER and options.dry_run:
        return TransferResult("file", source, target, entry.size)
    if verdict is Verdict.OTHER:
        async with tree.place(entry.size):
            return await get_file(tree.client, source, path, options, entry.modified_s, tree.landing, entry.size)
    if verdict is Verdict.RETIMED and options.replace and not options.dry_run and entry.modified_s is not None:
        try:
            await asyncio.to_thread(os.utime, path, (entry.modified_s, entry.modified_s))
        except OSError as error:
            return TransferResult("file", source, target, error=local_error(error, "get", path))
    _counted(entry.size, options)
    return TransferResult("file", source, target, entry.size, same=True)


def _differs(op: str, target: str, source: str) -> CheloniaError:
    return CheloniaError(Kind.EXISTS, op, target, f"it is there, and differs from {source}; -f overwrites it")


def _counted(size: int, options: TreeOptions) -> None:
    if options.progress is not None:
        options.progress(size)


async def _copies(client: Client, source: str, target: str, options: TreeOptions) -> AsyncGenerator[Job, None]:
    yield known(await _copied_collection(client, source, target))
    async for entry in client.names(source, recursive=True):
        old, new = to_ln(source, entry.name.split("/")), to_ln(target, entry.name.split("/"))
        if entry.closed:
            yield known(TransferResult("collection", old, new, error=unlisted("cp", old)))
        elif entry.type == "collection":
            yield known(await _copied_collection(client, old, new))
        elif entry.type == "file":
            yield partial(copy_file, client, old, new, options, entry.modified_s)
        else:
            yield known(TransferResult("file", old, new, note=f"{entry.type}: skipped"))


# --- single steps ---


async def _ensure_collection(client: Client, ln: str) -> None:
    try:
        await client.make_collection(ln)
    except CheloniaError as error:
        existing = await client.exists(ln) if error.kind in (Kind.EXISTS, Kind.INVALID_TARGET) else ""
        if not existing:
            raise
        if existing != "collection":
            raise CheloniaError(Kind.NOT_A_COLLECTION, error.op, ln, f"it is a {existing}; {_CURE}") from error


async def _copied_collection(client: Client, source: str, target: str) -> TransferResult:
    try:
        await _ensure_collection(client, target)
        return TransferResult("collection", source, target)
    except CheloniaError as error:
        return TransferResult("collection", source, target, error=error)


async def _directory(ln: str, path: Path, tree: _Tree) -> TransferResult:
    try:
        if not tree.options.dry_run and await asyncio.to_thread(_made, path):
            tree.made.add(path)
        return TransferResult("collection", ln, printable(str(path)))
    except OSError as error:
        return TransferResult("collection", printable(str(path)), ln, error=local_error(error, "walk", path))


def _made(path: Path) -> bool:
    """Make a directory; returns False when it was there. Raises: OSError."""
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    return True


def _failure_of(error: CheloniaError | OSError, op: str, path: Path) -> CheloniaError:
    return local_error(error, op, path) if isinstance(error, OSError) else error


async def facts_of(client: Client, ln: str) -> DirectoryEntry:
    """Return type, size and modification time of an entry, without them when they cannot be seen."""
    try:
        return described(ln, "", await client.stat(ln))
    except CheloniaError:
        return DirectoryEntry(ln)
