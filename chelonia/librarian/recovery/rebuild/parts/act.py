"""Assembly of parts: taken in one by one as their records come, and laid when all records have been read.

Each part is in the metadata at once: a rebuild that breaks off and is begun again goes on with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location, ReplicaFacts
from chelonia.core.contents.parts import PartPlace
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BLOB_PREFIX, CONTENT_PREFIX, ObjectId, blob_object
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.namespace.parts.decide import Chosen, parse_part, part_key
from chelonia.librarian.recovery.rebuild.parts import decide

Attempt = Callable[[Sequence[Element]], Awaitable[bool]]
"""Applies elements; returns False when they do not apply."""


class PartAssembly:
    """The parts that a rebuild finds."""

    def __init__(self, context: LibrarianContext, attempt: Attempt) -> None:
        self._on = context
        self._attempt = attempt

    async def take(self, facts: ReplicaFacts, at: Location, *, surely: bool) -> bool:
        """Take a blob in as a part, if its record states one; False: it is a blob like any other."""
        place = decide.place_of(facts)
        return place is not None and await self._take(place, facts, decide.as_new(facts, at), surely=surely)

    async def _take(
        self, place: PartPlace, facts: ReplicaFacts, blob: Sequence[Element], *, surely: bool = True
    ) -> bool:
        key, records, call = part_key(place.number), self._on.records, self._on.call
        content = await records.one(
            call, decide.gathering(place, facts.owner), (Needed("content"), Needed("parts", key))
        )
        record = content.value("parts", key)
        before = await records.one(call, blob_object(parse_part(key, record).blob)) if record else None
        elements = decide.gather(facts, blob, content, before, surely=surely)
        return bool(elements) and await self._attempt(elements)

    async def take_known(self) -> None:
        """Take in the parts that the snapshot knows of uploads open at its time: the blobs, without the content."""
        records, call = self._on.records, self._on.call
        async for ids in records.object_pages(call, BLOB_PREFIX, bounds.PAGE_ENTRIES_MAX):
            blobs = await records.get(call, ids, (Needed("blob"), Needed("locations")))
            parts = [(place, blob) for blob in blobs if (place := decide.place_of_known(blob))]
            contents = list(dict.fromkeys(decide.opened_as(place) for place, _ in parts))
            found = await records.get(call, contents, (Needed("content", "state"),))
            absent = {each.id for each in found if not each.exists}
            for place, blob in parts:
                if decide.opened_as(place) in absent:
                    await self._take(place, facts_of(blob), decide.as_known(blob))

    async def lay(self) -> list[ObjectId]:
        """Lay the parts that were taken in. Returns: their contents, which have no file yet. Raises: CONFLICT."""
        records, call, done = self._on.records, self._on.call, list[ObjectId]()
        async for ids in records.object_pages(call, CONTENT_PREFIX, bounds.PAGE_ENTRIES_MAX):
            for content in await records.get(call, ids, (Needed("content"),)):
                if decide.is_gathering(content):
                    await self._lay(content)
                elif content.value("content", "order") != decide.LAID:
                    continue
                await self._forget(content.id)
                done.append(content.id)
        return done

    async def _lay(self, content: StoredObject) -> None:
        records, call, obj = self._on.records, self._on.call, content.id
        while (page := await records.scan(call, obj, "extents", "", bounds.DELETE_WIDE_MAX)).items:
            await self._apply(decide.clear(obj, [key for key, _ in page.items]))
        found = records.pages(call, obj, "parts", bounds.PAGE_ENTRIES_MAX)
        chosen = Chosen(tuple([parse_part(*item) async for items in found for item in items]), "")
        pages = [chosen.parts[at : at + bounds.PARTS_PAGE] for at in range(0, len(chosen.parts), bounds.PARTS_PAGE)]
        extents = chosen.extents
        for each in pages:
            await self._apply(decide.lay(obj, extents, each))
        await self._apply(decide.laid(content, chosen))

    async def _forget(self, obj: ObjectId) -> None:
        while (page := await self._on.records.scan(self._on.call, obj, "parts", "", bounds.PARTS_PAGE)).items:
            await self._apply(decide.forget(obj, [key for key, _ in page.items]))
        await self._apply(decide.finished(obj))

    async def _apply(self, elements: Sequence[Element]) -> None:
        if not await self._attempt(elements):
            cause = "its parts change while they are put together; begin the rebuild again"
            raise CheloniaError(Kind.CONFLICT, "rebuild", elements[0].object, cause)
