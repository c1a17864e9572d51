"""Uploads in parts carried out: reads what `decide` needs, and applies its transacts.

Sealing takes several transacts: extents are laid page by page into the content, which nobody can see, and one more
gives it to the file. An upload that breaks off in between is still open, and can be sealed again.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.parts import (
    PartPage,
    PartPlace,
    PartsUpload,
    UploadId,
    UploadPage,
    etag_of,
    parse_mark,
    parse_upload,
    upload_id,
)
from chelonia.core.contents.uploads import OpenUpload, PutPart, SealUpload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ContentId, Dn, Guid, Ms, ObjectId, blob_object, content_object
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.names import parse_ln
from chelonia.core.ports.ahash import Element
from chelonia.core.values import replace
from chelonia.librarian.metadata.contents import SEALED, content_of
from chelonia.librarian.metadata.records import TRIES, PlannedTransact, Records
from chelonia.librarian.namespace import tree
from chelonia.librarian.namespace.names import Names, entry_id, fresh, noted, noted_guid
from chelonia.librarian.namespace.parts import decide
from chelonia.librarian.namespace.parts.decide import Before, Chosen, Opened, Stored
from chelonia.librarian.namespace.uploads.act import FileUploads
from chelonia.librarian.namespace.uploads.decide import Overwritten
from chelonia.librarian.world import World

HEADER: Filter = (Needed("content"), Needed("tally"), *(Needed(section) for section in decide.KEPT_FOR_FILE))
"""Sections of a content that identify an upload."""


class PartUploads:
    """Opens, fills, seals, gives up and lists uploads in parts."""

    def __init__(self, records: Records, world: World, names: Names, uploads: FileUploads) -> None:
        self._records = records
        self._world = world
        self._names = names
        self._uploads = uploads

    async def open(self, call: Call, request: OpenUpload) -> UploadId:
        begin = request.begin
        tree.check_wanted(begin.wanted)
        content, guid = ContentId(self._world.ids.uuid()), begin.replaces or Guid(self._world.ids.uuid())
        upload = upload_id(self._now(), content)

        async def build() -> PlannedTransact:
            within = await self._records.one(call, entry_id(request.within), tree.slot_filter(()))
            elements = decide.open_upload(
                request, upload, content_object(content), guid=guid, within=within, now=self._now()
            )
            return PlannedTransact(elements, memo=upload)

        return UploadId((await self._records.apply(call, build)).memo)

    async def put(self, call: Call, request: PutPart) -> str:
        """Store a piece as a part. Returns: its etag."""
        decide.check_number(request.number)
        decide.check_sums(request)
        self._uploads.check_begun(call, request.piece)
        obj = content_object(parse_upload(request.upload)[1])
        key, blob = decide.part_key(request.number), blob_object(request.piece.begun.blob)

        async def build() -> PlannedTransact:
            upload = decide.opened(await self._records.one(call, obj, HEADER), request.piece.begin)
            part, found = await self._records.get(call, (obj, blob), (Needed("parts", key), Needed("blob")))
            if found.exists:  # under its request key a repeat gets its first answer all the same
                cause = "this piece is part of a file already; place the bytes anew"
                raise CheloniaError(Kind.BAD_REQUEST, "part", str(request.piece.begin.ln), cause)
            before, record = Before(), part.value("parts", key)
            if record:
                old = await self._records.one(call, blob_object(decide.parse_part(key, record).blob))
                before = Before(record, old)
            name = replace(request.piece.begin, part=PartPlace(request.upload, request.number)).recorded_place
            new = self._uploads.begun_blob(request.piece, upload.file, upload.wanted, name)
            elements = decide.put_part(upload, request, new, before, self._now())
            return await self._names.draft(call, elements, decide.etag_of_part(request, new), upload.content)

        etag = (await self._records.apply(call, build)).memo
        await self._uploads.receipt_audit.written(request.piece.receipts)
        return etag

    async def drop(self, call: Call, upload: UploadId) -> None:
        """Give an upload up."""
        obj = content_object(parse_upload(upload)[1])

        async def build() -> PlannedTransact:
            found = decide.opened(await self._records.one(call, obj, HEADER))
            return await self._names.draft(call, decide.give_up(found, self._now()), upload, found.content)

        await self._records.apply(call, build)

    # --- sealing ----------------------------------------------------------------------------------------------------

    async def seal(self, call: Call, request: SealUpload) -> Guid | StoredObject:
        """Make parts the content of a file; read an upload again that changes meanwhile."""
        decide.check_order(request)
        content = parse_upload(request.upload)[1]
        for _ in range(TRIES):
            header = await self._records.one(call, content_object(content), HEADER)
            done = await self._already(call, request, header)
            if done:
                return done
            upload = decide.opened(header, request.begin, any_name=True)
            stored = await self._stored(call, header.id)
            chosen = decide.choose(request, stored)
            laid = await self._lay(call, upload, chosen, stored)
            given = await self._give(call, request, content, chosen, laid) if laid else None
            if given is not None:
                return given
        raise CheloniaError(Kind.CONFLICT, "seal", str(request.begin.ln), "its parts keep changing; try again")

    async def _already(self, call: Call, request: SealUpload, header: StoredObject) -> Guid:
        """The file, when this upload was sealed for it before, of these parts, or by this very call; "" otherwise."""
        file = Guid(header.value("content", "file"))
        if header.value("content", "state") != SEALED:
            return Guid("")
        before = await self._records.recall(call)
        if before is not None and before.applied:
            return noted_guid(before.memo)
        if request.begin.replaces != file:
            return Guid("")
        stored = await self._records.one(call, entry_id(file), (Needed("content"), Needed("states", "etag")))
        is_same = stored.value("states", "etag").partition(" ")[0] == etag_of(etag for _, etag in request.order)
        return file if is_same and content_object(content_of(stored)) == header.id else Guid("")

    async def _stored(self, call: Call, obj: ObjectId) -> dict[int, Stored]:
        pages = self._records.pages(call, obj, "parts", bounds.PAGE_ENTRIES_MAX)
        found = [decide.parse_part(*item) async for items in pages for item in items]
        return {each.part.number: each for each in found}

    async def _lay(self, call: Call, upload: Opened, chosen: Chosen, stored: Mapping[int, Stored]) -> str:
        """Lay the extents of the chosen parts, page by page. Returns: their order, "" when a change got in between."""
        obj, order = upload.content.id, upload.fact("order")

        async def applied(elements: list[Element]) -> bool:
            return (await self._records.attempt(self._world.step(call), PlannedTransact(elements))).applied

        if not chosen.is_in(order):
            # Clear only while there is no order: a concurrent sealing may be laying extents for one.
            if order:
                await applied(decide.no_order(obj, order))
                return ""
            while (page := await self._records.scan(call, obj, "extents", "", bounds.DELETE_WIDE_MAX)).items:
                if not await applied(decide.clear_extents(obj, [key for key, _ in page.items])):
                    return ""
            order = decide.order_of(upload, chosen)
            if not await applied(decide.begin_order(upload, order)):
                return ""
        parts, extents = list(stored.values()), chosen.extents
        for start in range(0, len(parts), bounds.PARTS_PAGE):
            if not await applied(decide.lay_page(obj, order, extents, parts[start : start + bounds.PARTS_PAGE])):
                return ""
        return order

    async def _give(
        self, call: Call, request: SealUpload, content: ContentId, chosen: Chosen, laid: str
    ) -> Guid | StoredObject | None:
        """Give a file the content that is laid for an order; None when a change got in between."""
        begin, obj = request.begin, content_object(content)
        changed = False

        async def build(_: bool) -> PlannedTransact:
            nonlocal changed
            header = await self._records.one(call, obj, HEADER)
            changed = header.value("content", "order") != laid
            if changed:
                return PlannedTransact(())
            upload = decide.opened(header, begin, any_name=True)
            if begin.replaces:
                file = await self._records.one(call, entry_id(begin.replaces))
                over = Overwritten(file, await self._names.blobs(call, file))
                elements = decide.seal_over(request, upload, chosen, over, self._now())
                return noted(await self._names.draft(call, elements, begin.replaces, file, header))
            guid = upload.fresh or Guid(self._world.ids.uuid())
            slot = await self._names.slot(call, begin.parent, begin.name)
            elements = decide.seal_new(request, upload, chosen, slot=slot, guid=guid, now=self._now())
            return noted(await self._names.draft(call, elements, guid, fresh(guid), header))

        outcome, left = await self._records.carry_out(call, build)
        if changed:
            return None
        return left[0] if request.described and left else noted_guid(outcome.memo)

    # --- listing ------------------------------------------------------------------------------------------------------

    async def uploads(self, call: Call, within: Guid, prefix: str, after: str, limit: int) -> UploadPage:
        """Return a page of the open uploads that a collection lists."""
        start = max(after, prefix, key=str.encode)
        page = await self._records.scan(call, entry_id(within), "uploads", start, _limit(limit))
        marks = [mark for mark, _ in page.items if mark.startswith(prefix)]
        ids = [content_object(parse_upload(parse_mark(mark)[1])[1]) for mark in marks]
        found = await self._records.get(call, ids, (Needed("content", "owner"), Needed("content", "opened_ms")))
        uploads = []
        for mark, header in zip(marks, found, strict=True):
            if header.exists:
                owner, opened = header.value("content", "owner"), Ms(int(header.value("content", "opened_ms", "0")))
                uploads.append(PartsUpload(*parse_mark(mark), Dn(owner), opened))
        return UploadPage(tuple(uploads), marks[-1] if page.more and len(marks) == len(page.items) else "")

    async def parts(self, call: Call, upload: UploadId, after: int, limit: int) -> PartPage:
        """Return a page of the parts of an open upload."""
        obj = content_object(parse_upload(upload)[1])
        found = decide.opened(await self._records.one(call, obj, (Needed("content"), Needed("metadata"))))
        start = decide.part_key(after) if after > 0 else ""
        page = await self._records.scan(call, obj, "parts", start, _limit(limit))
        parts = [decide.parse_part(*item).part for item in page.items]
        return PartPage(
            tuple(parts),
            parts[-1].number if page.more else 0,
            parse_ln(found.fact("ln")),
            Dn(found.fact("owner")),
            Guid(found.fact("within")),
            found.content.sections.get("metadata", {}),
        )

    def _now(self) -> Ms:
        return self._world.clock.now_ms()


def _limit(limit: int) -> int:
    return min(limit if limit > 0 else bounds.PAGE_ENTRIES_MAX, bounds.PAGE_ENTRIES_MAX)
