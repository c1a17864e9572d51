"""Fetches bytes of files: those that a program reads and, for sequential readers, the next ones.

Large spans come in parts side by side. When a file has changed meanwhile, its local bytes are dropped, unless some of
them were written here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import Final

from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Looked, Want
from chelonia.core.timing.pacing import Backoff
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.copies import Cache, CachedCopy, Fetch
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.inodes import Inode
from chelonia_fuse.staging import Staged

PART_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one request to a Shepherd."""
PARTS_MAX: Final = 4
"""Requests side by side for one file."""
SMALL_BYTES: Final = 1024 * 1024
"""Size up to which a file is fetched whole."""
BLOCKS: Final = (1024 * 1024, 256 * 1024, 64 * 1024)
"""Blocks of random reads: the largest of which a quarter is here already is fetched, else the smallest. A request costs
as much as the transfer of 64 KiB, and a program that reads much of a region will read the rest."""
WINDOW_MIN: Final = 512 * 1024
"""Least bytes fetched ahead."""
SOURCE_MS: Final = 5 * 60 * 1000
"""How long sources are used: half the default lifetime of a read ticket."""
READABLE: Final = Want.SOURCES | Want.BYTES
"""Request of a look before a file is read: its sources, or its bytes."""
TRIES: Final = 9
PAUSE_MS: Final = 200
PAUSE_MS_MAX: Final = 2_000
"""Pause between two tries; together they cover the time in which dead Shepherds are back."""
GIVE_UP_S: Final = 30.0
"""Time after which no further try is begun."""


def around(staged: Staged, start: int, end: int) -> tuple[int, int]:
    """Return the span to fetch where [start, end) is missing: it has the whole block (`BLOCKS`)."""
    for size in BLOCKS:
        first, last = start // size * size, min(-(-end // size) * size, staged.kept)
        here = last - first - sum(b - a for a, b in staged.missing(first, last))
        if last - first == size and 4 * here >= size:
            return first, last
    return start // size * size, min(-(-end // size) * size, max(staged.kept, end))


def _parts(start: int, end: int) -> range:
    """Offsets at which the requests for [start, end) begin."""
    return range(start, end, PART_BYTES)[:PARTS_MAX]


class CopyReader:
    """Fetches into copies."""

    def __init__(self, cluster: MountedCluster, cache: Cache) -> None:
        self._cluster = cluster
        self._cache = cache

    async def ensure(self, inode: Inode, start: int, end: int) -> None:
        """Return once the bytes of [start, end) are here. Raises: PRECONDITION when the version with local changes is
        gone; NO_REPLICA, NETWORK, ..."""
        copy = self._cache.of(inode)
        while missing := copy.staged.missing(start, end):
            first, last = missing[0]
            fetch = next((each for each in copy.fetching if each.start < last and each.end > first), None)
            if fetch is not None:
                await fetch.reached(min(last, fetch.end))
                continue
            if copy.staged.base <= SMALL_BYTES:
                whole = 0, copy.staged.kept
            else:
                whole = around(copy.staged, first, last)
            parts = [self._begin(inode, copy, at, min(at + PART_BYTES, whole[1])) for at in _parts(*whole)]
            fetch = next(each for each in parts if each.end > first)
            await fetch.reached(min(last, fetch.end))
            if fetch.task.done() and copy.staged.missing(first, min(last, fetch.end)):
                fetch.task.result()  # raises; failures beyond the requested bytes are ignored

    def ahead(self, inode: Inode, copy: CachedCopy, start: int, window: int) -> None:
        """Begin to fetch the window ahead of a reader; its last part only once that is worth a request."""
        end, least = min(start + window, copy.staged.kept), min(window // 2, PART_BYTES)
        for first, last in copy.staged.missing(start, end):
            for at in range(first, last, PART_BYTES):
                if len(copy.fetching) >= PARTS_MAX:
                    return
                until = min(at + PART_BYTES, last)
                if until - at < least and until == end < copy.staged.kept:
                    return
                if not any(each.start < until and each.end > at for each in copy.fetching):
                    self._begin(inode, copy, at, until)

    def _begin(self, inode: Inode, copy: CachedCopy, start: int, end: int) -> Fetch:
        fetch = Fetch(start, end)
        fetch.task = asyncio.create_task(self._fetch(inode, copy, fetch))
        copy.fetching.append(fetch)

        def over(task: asyncio.Task[None]) -> None:
            copy.fetching.remove(fetch)
            fetch.came(end)
            if not task.cancelled():
                task.exception()  # retrieved: `ensure` tries again and raises

        fetch.task.add_done_callback(over)
        return fetch

    async def _fetch(self, inode: Inode, copy: CachedCopy, fetch: Fetch) -> None:
        staged = copy.staged
        ends, backoff = time.monotonic() + GIVE_UP_S, Backoff(PAUSE_MS, PAUSE_MS_MAX)
        for left in range(TRIES - 1, -1, -1):
            missing = staged.missing(fetch.start, fetch.end)
            if not missing or copy.staged is not staged:
                return
            try:
                await self._part(inode, copy, fetch, missing[0][0])
                return
            except CheloniaError as error:
                copy.source = None
                if error.kind not in AGAIN or not left or time.monotonic() > ends:
                    raise
            await asyncio.sleep(backoff.failed() / 1000)

    async def _part(self, inode: Inode, copy: CachedCopy, fetch: Fetch, at: int) -> None:
        staged, place, end = copy.staged, LogicalName(inode.guid, ()), fetch.end
        looked = await self._source(inode, copy, at, end)
        if copy.staged is not staged:
            return
        async with contextlib.aclosing(self._cluster.read(place, looked, ByteRange(at, end - at))) as chunks:
            async for chunk in chunks:
                if copy.staged is not staged:
                    return
                took = 0
                for first, last in staged.fetched(at, at + len(chunk)):
                    self._cache.with_room(partial(copy.store, first, memoryview(chunk)[first - at : last - at]))
                    took += last - first
                at += len(chunk)
                self._cache.took(took)  # once all is noted: it may drop bytes of this file
                fetch.came(at)

    async def _source(self, inode: Inode, copy: CachedCopy, start: int, end: int) -> Looked:
        """The look with sources to read from; that of a file of several blobs is for one span only."""
        now_ms = time.monotonic_ns() // 1_000_000
        source = copy.source
        if source is not None and now_ms - copy.source_ms < SOURCE_MS:
            return source
        again = False
        while True:
            looked = await self._cluster.look(LogicalName(inode.guid, ()), READABLE, ByteRange(start, end - start))
            if looked.attributes.etag == copy.staged.etag:
                break
            if copy.saving is not None:
                await asyncio.wait([copy.saving])  # it may be the version that is being committed here
            elif looked.attributes.version >= inode.attributes.version:
                break
            elif again:
                cause = "the cluster tells of an older version than this mount has seen; if that stays, mount anew"
                raise CheloniaError(Kind.UNAVAILABLE, "read", inode.guid, cause)
            else:
                again = True  # a commit from here may have come after the request
        if looked.attributes.etag != copy.staged.etag:
            self.changed(inode, copy, looked)
        if looked.sources or looked.data is not None:
            copy.source, copy.source_ms = looked, now_ms
        return looked

    def changed(self, inode: Inode, copy: CachedCopy, looked: Looked) -> None:
        """Switch to another version. Raises: PRECONDITION when the old one has local changes."""
        if copy.changed:
            cause = "somebody else has changed the file while it was changed here; both are kept when it is closed"
            raise CheloniaError(Kind.PRECONDITION, "read", inode.guid, cause)
        inode.learn(looked.attributes)
        inode.shown = ""
        copy.restart(Staged.of(looked.attributes.etag, looked.attributes.size))

    def follow(self, inode: Inode, copy: CachedCopy) -> None:
        """Switch to the version known by now, as the reader of a file that grows elsewhere expects."""
        if not (copy.owned or copy.pinned or inode.gone):
            inode.shown = ""
            copy.restart(Staged.of(inode.attributes.etag, inode.attributes.size))
