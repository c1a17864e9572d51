"""Copies by reference carried out: reads what `decide` needs, and applies its transacts.

One transact copies a file that names its blobs itself. The extents of any other are copied page by page into a content
that nobody can see; one more transact gives it to the file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.attributes import is_empty
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.uploads import CopyFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ContentId, Guid, blob_object, content_object
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.blobs import OWNERS
from chelonia.librarian.metadata.contents import COPYING, content_of, parse_extent
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.namespace.names import Names, entry_id, fresh, noted, noted_guid
from chelonia.librarian.namespace.sharing import decide
from chelonia.librarian.namespace.uploads.decide import Overwritten
from chelonia.librarian.world import World

_HEADER = (Needed("content"),)


class Sharing:
    """Copies files by reference."""

    def __init__(self, records: Records, world: World, names: Names) -> None:
        self._records = records
        self._world = world
        self._names = names

    async def copy(self, call: Call, request: CopyFile) -> Guid | StoredObject:
        """Give a file the bytes of another."""
        guid, begin = request.begin.replaces or Guid(self._world.ids.uuid()), request.begin
        before = await self._records.recall(call)
        if before is not None and before.applied:
            return noted_guid(before.memo)
        source = await self._source(call, request)
        if not begin.replaces:
            await self._names.quotas.check_room(call, begin.owner, begin.ln, int(source.value("states", "size", "0")))
        return await (self._paged if content_of(source) else self._named)(call, request, guid)

    async def _source(self, call: Call, request: CopyFile) -> StoredObject:
        source = await self._records.one(call, entry_id(request.source))
        decide.check_source(request, source)
        return source

    async def _named(self, call: Call, request: CopyFile, guid: Guid) -> Guid | StoredObject:

        async def build(_: bool) -> PlannedTransact:
            source = await self._source(call, request)
            blobs = await self._names.blobs(call, source)
            if content_of(source):
                cause = "it was written to in the middle just now; try again"
                raise CheloniaError(Kind.CONFLICT, "copyFile", str(request.begin.ln), cause)
            if not (blobs or is_empty(source)):
                raise CheloniaError(Kind.NO_REPLICA, "copyFile", str(request.begin.ln), "it has no bytes yet")
            self._note_full(blobs)
            rest = decide.at_once(source, blobs, guid)
            return await self._transact(call, request, source, ContentId(""), guid, rest)

        return await self._carried_out(call, request, build)

    async def _transact(
        self, call: Call, request: CopyFile, source: StoredObject, content: ContentId, guid: Guid, rest: list[Element]
    ) -> PlannedTransact:
        """The transact that makes the file of a copy, or gives it its bytes."""
        begin, now = request.begin, self._world.clock.now_ms()
        if not begin.replaces:
            slot = await self._names.slot(call, begin.parent, begin.name)
            made = decide.new_file(request, source, content, slot=slot, guid=guid, now=now)
            return noted(await self._names.draft(call, [*made, *rest], guid, fresh(guid)))
        file = await self._records.one(call, entry_id(guid))
        over = Overwritten(file, await self._names.blobs(call, file))
        elements = decide.over_file(request, source, content, over, now)
        return noted(await self._names.draft(call, [*elements, *rest], guid, file))

    async def _carried_out(
        self, call: Call, request: CopyFile, build: Callable[[bool], Awaitable[PlannedTransact]]
    ) -> Guid | StoredObject:
        outcome, left = await self._records.carry_out(call, build)
        return left[0] if request.described and left else noted_guid(outcome.memo)

    def _note_full(self, blobs: Sequence[StoredObject]) -> None:
        for blob in filter(decide.is_full, blobs):
            self._world.limits.met("blob_owners", blob.id, "its copy by reference was refused")

    # --- page by page -----------------------------------------------------------------------------------------------

    async def _paged(self, call: Call, request: CopyFile, guid: Guid) -> Guid | StoredObject:
        """Copy a file of extents. Raises: CONFLICT when it changes meanwhile."""
        step, content = self._world.step, ContentId(self._world.ids.uuid())
        source = await self._source(call, request)
        opened = decide.open_copy(source, content, guid, self._world.clock.now_ms())
        await self._records.attempt(step(call), PlannedTransact(opened))
        try:
            extents = await self._laid(call, source, content)
            return await self._sealed(call, request, source, content, guid, extents)
        except (CheloniaError, asyncio.CancelledError):
            copied = await self._records.one(call, content_object(content), _HEADER)
            if copied.value("content", "state") == COPYING:
                broken_off = decide.break_off(copied, self._world.clock.now_ms())
                await self._records.attempt(step(call), PlannedTransact(broken_off))
            raise

    async def _laid(self, call: Call, source: StoredObject, content: ContentId) -> int:
        """Lay the extents of a file; returns their number. Raises: CONFLICT when the file has changed since."""
        obj, laid, named = content_object(content_of(source)), 0, Counter[BlobId]()
        async for items in self._records.pages(call, obj, "extents", bounds.COPY_PAGE):
            extents = [parse_extent(*item) for item in items]
            for extent in extents:
                named[extent.blob] += extent.length
            page_call = self._world.step(call)
            await self._records.apply(page_call, partial(self._page, call, source, content, extents, named))
            laid += len(extents)
        return laid

    async def _page(
        self, call: Call, source: StoredObject, content: ContentId, extents: Sequence[Extent], named: Counter[BlobId]
    ) -> PlannedTransact:
        ids = [blob_object(blob) for blob in dict.fromkeys(extent.blob for extent in extents)]
        blobs = await self._records.get(call, ids, (Needed("blob"), Needed(OWNERS)))
        self._note_full(blobs)
        return PlannedTransact(decide.copy_page(source, content, extents, blobs, named))

    async def _sealed(
        self, call: Call, request: CopyFile, source: StoredObject, content: ContentId, guid: Guid, extents: int
    ) -> Guid | StoredObject:

        async def build(_: bool) -> PlannedTransact:
            copied = await self._records.one(call, content_object(content), _HEADER)
            rest = decide.seal_copy(copied, guid, extents)
            return await self._transact(call, request, source, content, guid, rest)

        return await self._carried_out(call, request, build)
