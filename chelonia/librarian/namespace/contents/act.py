"""Splices carried out, and the extents of a file listed: reads what `decide` needs, and applies its transact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.attributes import etag_of
from chelonia.core.contents.extents import Extent, ExtentPage, Placement
from chelonia.core.contents.uploads import SpliceFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ContentId, Guid, ObjectId, blob_object, content_object
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import SetWanted
from chelonia.librarian.metadata.blobs import SUMS, NewBlob, blob_of, sums_of
from chelonia.librarian.metadata.contents import content_of, last_byte_key, parse_extent
from chelonia.librarian.metadata.elements import check, is_
from chelonia.librarian.metadata.records import TRIES, PlannedTransact, Records
from chelonia.librarian.namespace import tree, view
from chelonia.librarian.namespace.contents import decide
from chelonia.librarian.namespace.contents.decide import FileContent, Span
from chelonia.librarian.namespace.names import Names, entry_id, fresh, noted, noted_guid
from chelonia.librarian.namespace.uploads.act import FileUploads
from chelonia.librarian.world import World

_SIZED: Final[Filter] = (Needed("entry"), Needed("states"), Needed("content"))


class Contents:
    """Changes and lists the contents of files."""

    def __init__(
        self, records: Records, world: World, names: Names, uploads: FileUploads, present: view.Present
    ) -> None:
        self._records = records
        self._world = world
        self._names = names
        self._uploads = uploads
        self._present = present

    async def splice(self, call: Call, request: SpliceFile) -> Guid | StoredObject:
        """Lay extents over a file, or make a file of them."""
        begin = request.begin
        tree.check_wanted(begin.wanted)
        for piece in request.pieces:
            self._uploads.check_begun(call, piece)
        decide.span_of(request, 0)
        guid, content = begin.replaces or Guid(self._world.ids.uuid()), ContentId(self._world.ids.uuid())

        async def build(first: bool) -> PlannedTransact:
            pieces = [blob_object(piece.begun.blob) for piece in request.pieces]
            for found in await self._records.get(call, pieces, (Needed("blob"),)):
                if found.exists:  # under its request key a repeat gets its first answer all the same
                    cause = "this piece is part of a file already; place the bytes anew"
                    raise CheloniaError(Kind.BAD_REQUEST, "splice", str(begin.ln), cause)
            if not begin.replaces:
                # The Bartender has just read the collection: read it again only when the transact finds it otherwise.
                slot = await self._names.slot(call, begin.parent, begin.name, presumed=first)
                new = self._new(request, guid, begin.wanted)
                made = decide.make(request, slot, new, content, guid, self._world.clock.now_ms())
                return noted(await self._names.draft(call, made, guid, fresh(guid)))
            current = await self.current(call, request, guid)
            new = self._new(request, guid, decide.wanted_of(current.file, begin))
            spliced = decide.splice(request, current, new, content, self._world.clock.now_ms())
            return noted(await self._names.draft(call, spliced, guid, current.file))

        outcome, left = await self._records.carry_out(call, build)
        await self._uploads.receipt_audit.written(each for piece in request.pieces for each in piece.receipts)
        return left[0] if request.described and left else noted_guid(outcome.memo)

    def _new(self, request: SpliceFile, guid: Guid, wanted: int) -> list[NewBlob]:
        return [self._uploads.begun_blob(each, guid, wanted, each.begin.recorded_place) for each in request.pieces]

    async def current(self, call: Call, request: SpliceFile, guid: Guid) -> FileContent:
        """A file as far as a splice may change it, of one state. Raises: NO_REPLICA, CONFLICT, TOO_LARGE."""
        for _ in range(TRIES):
            file = await self._records.one(call, entry_id(guid))
            current = await self._read(call, request, file)
            if not content_of(file) or decide.is_of_one_state(current):
                return current
            if (await self._records.one(call, entry_id(guid), tree.ENTRY)).version == file.version:
                cause = "records of its extents are damaged: `chelonia admin fsck` says more; write it anew"
                raise CheloniaError(Kind.NO_REPLICA, "splice", str(request.begin.ln), cause)
        raise CheloniaError(Kind.CONFLICT, "splice", str(request.begin.ln), "the file keeps changing; try again")

    async def _read(self, call: Call, request: SpliceFile, file: StoredObject) -> FileContent:
        content = content_of(file)
        if not content:
            blobs = await self._names.blobs(call, file)
            if any(not blob.exists for blob in blobs):
                cause = "bytes of it are not known to the metadata: `chelonia admin fsck` says more; write it anew"
                raise CheloniaError(Kind.NO_REPLICA, "splice", str(request.begin.ln), cause)
            extents = decide.extents_of(blobs)
            return FileContent(file, StoredObject(ObjectId(""), 0), extents[-1].end if extents else 0, extents, blobs)
        size = int(file.value("states", "size", "0"))
        span = decide.span_of(request, size)
        if decide.begins_anew(request, span):
            return FileContent(file, StoredObject(content_object(content), 0), size)
        extents = await self._extents(call, content, span)
        ids = list(dict.fromkeys(extent.blob for extent in extents))
        header = await self._header(call, content, ids)
        return FileContent(
            file, header, size, extents, await self._records.get(call, [blob_object(blob) for blob in ids])
        )

    async def _extents(self, call: Call, content: ContentId, span: Span) -> tuple[Extent, ...]:
        """The extents that meet a span. Raises: TOO_LARGE when one transact cannot change so many."""
        out, after, more = list[Extent](), last_byte_key(span.at - 1), span.at < span.end
        while more:
            page = await self._records.scan(call, content_object(content), "extents", after, bounds.PAGE_ENTRIES_MAX)
            found = [extent for item in page.items if (extent := parse_extent(*item)).at < span.end]
            out += found
            after, more = page.after, bool(page.after) and len(found) == len(page.items)
            if len(out) > bounds.TRANSACT_ELEMENTS_MAX:
                cause = f"the bytes {span.at} to {span.end} have too many extents for one change; change less at once"
                raise CheloniaError(Kind.TOO_LARGE, subject="extents", cause=cause)
        return tuple(out)

    async def _header(self, call: Call, content: ContentId, blobs: Sequence[BlobId]) -> StoredObject:
        """The header of a content, and the bytes that it names of some blobs."""
        needed, most = [Needed("content"), *(Needed("named", blob) for blob in blobs)], bounds.FILTER_MAX
        obj, starts = content_object(content), range(0, len(needed), most)
        first, *more = [await self._records.one(call, obj, tuple(needed[at : at + most])) for at in starts]
        named = {blob: count for page in (first, *more) for blob, count in page.sections.get("named", {}).items()}
        return msgspec.structs.replace(first, sections={**first.sections, "named": named})

    async def extents(self, call: Call, guid: Guid, at: int, end: int) -> ExtentPage:
        """Return the extents of a file in a span; read again while it changes."""
        for _ in range(TRIES):
            file = await self._records.one(call, entry_id(guid), _SIZED)
            if not tree.visible(file):
                raise CheloniaError(Kind.NOT_FOUND, "extents", guid, "no such file")
            page = await self._page(call, file, at, end)
            if (await self._records.one(call, entry_id(guid), tree.ENTRY)).version == file.version:
                return page
        raise CheloniaError(Kind.CONFLICT, "extents", guid, "the file keeps changing; read it again")

    async def _page(self, call: Call, file: StoredObject, at: int, end: int) -> ExtentPage:
        content, size = content_of(file), int(file.value("states", "size") or "0")
        end = min(end, size)
        if not content or not 0 <= at < end:
            return ExtentPage(etag_of(file) if content else "", size, end, (), ())
        obj, limit = content_object(content), bounds.EXTENTS_PAGE
        page = await self._records.scan(call, obj, "extents", last_byte_key(at - 1), limit)
        found = [extent for item in page.items if (extent := parse_extent(*item)).at < end]
        until = min(end, found[-1].end) if page.more and len(found) == len(page.items) else end
        ids = [blob_object(blob) for blob in dict.fromkeys(extent.blob for extent in found)]
        blobs = await self._records.get(call, ids, (*view.BLOBS_LINKED.needed, Needed("blob", SUMS)))
        places = [Placement(blob_of(blob), view.locations_of(blob, self._present), sums_of(blob)) for blob in blobs]
        return ExtentPage(etag_of(file), size, until, tuple(found), tuple(places))

    async def set_wanted(self, call: Call, request: SetWanted) -> None:
        """Change how many copies a file and its blobs want; blobs beyond one transact follow page by page. A crash may
        leave some of these out; fsck finds and mends that."""
        content, wanted = await self._names.set_wanted(call, request), str(request.wanted)
        still = check(entry_id(request.guid), is_("states", "neededReplicas", wanted), is_("content", "id", content))
        if not content:
            return
        async for items in self._records.pages(call, content_object(content), "named", bounds.PAGE_ENTRIES_MAX):
            elements = await self._names.wanting(call, content, items, request.wanted)
            outcome = await self._records.attempt(self._world.step(call), PlannedTransact([still, *elements]))
            if not outcome.applied:  # a splice meanwhile has dropped a blob of the page
                await self._one_by_one(call, still, elements)

    async def _one_by_one(self, call: Call, still: Element, elements: Sequence[Element]) -> None:
        for element in elements:
            await self._records.attempt(self._world.step(call), PlannedTransact([still, element]))
