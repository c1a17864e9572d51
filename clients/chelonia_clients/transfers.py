"""Whole trees: uploaded, downloaded, copied and removed, several files at once, each with a result of its own.

Results come in the order of the walk, whatever finishes first. One file's failure is its own result and the rest goes
on; only a collection that cannot be made takes what is below it along. Modification times are kept, empty directories
too; symbolic links and special files are skipped with a note. At most `parallel` files move at a time and a bounded
number of results wait, so a tree of any size takes little memory.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.transfer.download import download, read
from chelonia.hosting.transfer.requester import Progress
from chelonia.hosting.transfer.upload import UploadOptions, stream_source, upload
from chelonia_clients.client import SHORT, Client, Listed
from chelonia_clients.local_files import Found, Sort, local_error, printable, scan, sizes_in, to_ln, to_local
from chelonia_clients.local_sources import file_source

PARALLEL = 6
"""Files moved at a time: enough to hide the latency of small ones."""
AHEAD = 8
"""Results kept waiting for their turn, for each file moved at a time."""


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """How to move files. `replace`: overwrite what is there; `progress`: as for one file, called for all of them."""

    parallel: int = PARALLEL
    replicas: int = bounds.REPLICAS_DEFAULT
    replace: bool = False
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one name. `type`: file or collection; `note` says why it was skipped; `error` why it failed."""

    type: str
    source: str
    target: str
    size: int = 0
    note: str = ""
    error: CheloniaError | None = None


Job = Callable[[], Awaitable[Done]]


async def put_file(client: Client, source: Path, ln: str, options: TreeOptions) -> Done:
    """Upload one local file; failures are in the result."""
    try:
        mtime = (await asyncio.to_thread(os.stat, source)).st_mtime
        wish = UploadOptions(options.replicas, options.replace, mtime, progress=options.progress)
        stored = await upload(client, await asyncio.to_thread(file_source, source), ln, wish)
        return Done("file", printable(str(source)), ln, stored.size)
    except OSError as error:
        return Done("file", printable(str(source)), ln, error=local_error(error, "put", source))
    except CheloniaError as error:
        return Done("file", printable(str(source)), ln, error=error)


async def get_file(client: Client, ln: str, target: Path, options: TreeOptions, mtime_s: float | None = None) -> Done:
    """Download one file; failures are in the result. `mtime_s`: its modification time, where it is known."""
    try:
        got = await download(client, ln, target, overwrite=options.replace, progress=options.progress)
        if mtime_s is not None:
            await asyncio.to_thread(os.utime, target, (mtime_s, mtime_s))
        return Done("file", ln, printable(str(target)), got.size)
    except OSError as error:
        return Done("file", ln, printable(str(target)), error=local_error(error, "get", target))
    except CheloniaError as error:
        return Done("file", ln, printable(str(target)), error=error)


async def copy_file(client: Client, source: str, target: str, options: TreeOptions, mtime_s: float | None) -> Done:
    """Copy one file inside the cluster, through this machine; failures are in the result."""
    wish = UploadOptions(options.replicas, options.replace, mtime_s)
    try:
        stored = await upload(client, stream_source(read(client, source, options.progress)), target, wish)
        return Done("file", source, target, stored.size)
    except CheloniaError as error:
        return Done("file", source, target, error=error)


async def put_tree(client: Client, source: Path, ln: str, options: TreeOptions) -> AsyncGenerator[Done, None]:
    """Upload a directory as the collection `ln`, which is made when it is not there."""
    async with aclosing(_in_order(_uploads(client, source, ln, options), options.parallel)) as results:
        async for done in results:
            yield done


async def get_tree(client: Client, ln: str, target: Path, options: TreeOptions) -> AsyncGenerator[Done, None]:
    """Download a collection as the directory `target`, which is made when it is not there.

    Raises: what listing raises (NOT_FOUND, NOT_A_COLLECTION, DENIED, NETWORK).
    """
    async with aclosing(_in_order(_downloads(client, ln, target, options), options.parallel)) as results:
        async for done in results:
            yield done


async def copy_tree(client: Client, source: str, target: str, options: TreeOptions) -> AsyncGenerator[Done, None]:
    """Copy a collection inside the cluster. Raises: as `get_tree`."""
    async with aclosing(_in_order(_copies(client, source, target, options), options.parallel)) as results:
        async for done in results:
            yield done


async def local_sizes(source: Path) -> AsyncGenerator[int, None]:
    """The sizes of the files that `put_tree` will send, a sum for each directory; those it cannot read are left out."""
    waiting = [source]
    while waiting:
        size, below = await asyncio.to_thread(sizes_in, waiting.pop())
        waiting.extend(below)
        yield size


async def listed_sizes(client: Client, ln: str) -> AsyncGenerator[int, None]:
    """The sizes of the files that `get_tree` and `copy_tree` will move. Raises: as `get_tree`."""
    async with aclosing(client.list(ln, recursive=True, needed=SHORT)) as entries:
        async for entry in entries:
            if entry.type == "file":
                yield entry.size


async def remove_tree(
    client: Client, ln: str, *, all_names: bool, parallel: int = PARALLEL
) -> AsyncGenerator[Done, None]:
    """Remove a collection and all below it, deepest first; `all_names` removes files under their other names too.

    Raises: as `get_tree`.
    """
    collections = [ln]
    failed = False
    async with aclosing(_in_order(_removals(client, ln, collections, all_names), parallel)) as results:
        async for done in results:
            failed = failed or done.error is not None
            yield done
    for each in reversed(collections):
        done = await _removed(client.unmake_collection, "collection", each)
        if not (failed and done.error is not None and done.error.kind is Kind.NOT_EMPTY):
            yield done


# --- the walks ---


async def _uploads(client: Client, source: Path, ln: str, options: TreeOptions) -> AsyncGenerator[Job, None]:
    waiting = [(source, ln)]
    while waiting:
        directory, collection = waiting.pop()
        try:
            await _ensure_collection(client, collection)
            found = await asyncio.to_thread(scan, directory)
        except (CheloniaError, OSError) as error:
            yield _known(_failed("collection", directory, collection, error))
            continue
        yield _known(Done("collection", printable(str(directory)), collection))
        below: list[tuple[Path, str]] = []
        for each in found:
            path = directory / each.name
            try:
                target = to_ln(collection, [each.name])
            except CheloniaError as error:
                refused = CheloniaError(error.kind, "put", printable(str(path)), error.cause)
                yield _known(Done(_type_of(each), printable(str(path)), collection, error=refused))
                continue
            if each.sort is Sort.DIRECTORY:
                below.append((path, target))
            elif each.sort is Sort.FILE:
                yield partial(put_file, client, path, target, options)
            else:
                yield _known(Done("file", printable(str(path)), target, note=f"{each.sort.value}: skipped"))
        waiting.extend(reversed(below))


async def _downloads(client: Client, ln: str, target: Path, options: TreeOptions) -> AsyncGenerator[Job, None]:
    top = True
    async for entry in client.list(ln, recursive=True, needed=SHORT):
        if top:
            yield _known(await _directory(ln, target))
            top = False
        source = to_ln(ln, entry.name.split("/"))
        try:
            path = to_local(target, entry.name)
        except CheloniaError as error:
            yield _known(Done(entry.type, source, printable(str(target)), error=error))
            continue
        yield await _download_job(client, entry, source, path, options)
    if top:
        yield _known(await _directory(ln, target))


async def _download_job(client: Client, entry: Listed, source: str, path: Path, options: TreeOptions) -> Job:
    match entry.type:
        case "collection":
            return _known(await _directory(source, path))
        case "file":
            return partial(get_file, client, source, path, options, entry.modified_s)
        case other:
            return _known(Done("file", source, printable(str(path)), note=f"{other}: skipped"))


async def _copies(client: Client, source: str, target: str, options: TreeOptions) -> AsyncGenerator[Job, None]:
    yield _known(await _copied_collection(client, source, target))
    async for entry in client.list(source, recursive=True, needed=SHORT):
        old, new = to_ln(source, entry.name.split("/")), to_ln(target, entry.name.split("/"))
        if entry.type == "collection":
            yield _known(await _copied_collection(client, old, new))
        elif entry.type == "file":
            yield partial(copy_file, client, old, new, options, entry.modified_s)
        else:
            yield _known(Done("file", old, new, note=f"{entry.type}: skipped"))


async def _removals(client: Client, ln: str, collections: list[str], all_names: bool) -> AsyncGenerator[Job, None]:
    drop = client.del_file if all_names else client.unlink
    async for entry in client.list(ln, recursive=True, needed=SHORT):
        name = to_ln(ln, entry.name.split("/"))
        match entry.type:
            case "collection":
                collections.append(name)
            case "mountpoint":
                yield partial(_removed, client.unmake_mountpoint, "mountpoint", name)
            case _:
                yield partial(_removed, drop, "file", name)


# --- single steps ---


async def _ensure_collection(client: Client, ln: str) -> None:
    try:
        await client.make_collection(ln)
    except CheloniaError as error:
        if error.kind not in (Kind.EXISTS, Kind.INVALID_TARGET) or await client.exists(ln) != "collection":
            raise


async def _copied_collection(client: Client, source: str, target: str) -> Done:
    try:
        await _ensure_collection(client, target)
        return Done("collection", source, target)
    except CheloniaError as error:
        return Done("collection", source, target, error=error)


async def _directory(ln: str, path: Path) -> Done:
    try:
        await asyncio.to_thread(path.mkdir, exist_ok=True)
        return Done("collection", ln, printable(str(path)))
    except OSError as error:
        return _failed("collection", path, ln, error)


async def _removed(drop: Callable[[str], Awaitable[str]], kind: str, ln: str) -> Done:
    try:
        await drop(ln)
        return Done(kind, ln, "")
    except CheloniaError as error:
        return Done(kind, ln, "", error=error)


def _failed(kind: str, path: Path, ln: str, error: CheloniaError | OSError) -> Done:
    if isinstance(error, OSError):
        error = local_error(error, "get" if kind == "file" else "walk", path)
    return Done(kind, printable(str(path)), ln, error=error)


def _type_of(found: Found) -> str:
    return "collection" if found.sort is Sort.DIRECTORY else "file"


def _known(done: Done) -> Job:
    async def job() -> Done:
        return done

    return job


async def _in_order(jobs: AsyncGenerator[Job, None], parallel: int) -> AsyncGenerator[Done, None]:
    """Run jobs, at most `parallel` at a time, and yield their results in the order of the jobs."""
    gate = asyncio.Semaphore(parallel)
    waiting: deque[asyncio.Task[Done]] = deque()

    async def run(job: Job) -> Done:
        async with gate:
            return await job()

    try:
        async with aclosing(jobs):
            async for job in jobs:
                waiting.append(asyncio.create_task(run(job)))
                while waiting and (waiting[0].done() or len(waiting) > AHEAD * parallel):
                    yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def facts_of(client: Client, ln: str) -> Listed:
    """Type, size and modification time of an entry, without them when they cannot be seen."""
    try:
        return Listed(ln, "", await client.stat(ln))
    except CheloniaError:
        return Listed(ln, "", {})
