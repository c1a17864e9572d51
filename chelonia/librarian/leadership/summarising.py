"""Summaries that are missing: those of files of an older store, and those that a repair has dropped.

The repair leader goes through all collections once, and writes each missing summary on the version of the file that it
read. The repair record holds its position, and the end too: an older store pays for this once, a new one never. A
repair that drops a summary clears the position (`missed`), as a rebuild does: the pass begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.below import Below, Leaf
from chelonia.core.contents.summaries import SECTION, SUMMARISED, summary_of
from chelonia.core.ids import REPAIR_OBJECT, ObjectId, is_guid
from chelonia.core.metadata import TYPE_COLLECTION, Needed
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.elements import as_read, check, is_, put, version
from chelonia.librarian.namespace.summaries import END, WRITTEN_TO
from chelonia.librarian.namespace.tree import type_of

TOGETHER: Final = 100
"""Summaries written in one transact."""


class Summarising:
    """One Librarian's pass over the collections."""

    def __init__(self, context: LibrarianContext, leading: Leading) -> None:
        self._on = context
        self._leading = leading

    async def step(self) -> None:
        """Go on from where the last step ended, perhaps another Librarian's; at the end do nothing."""
        after = self._leading.record.value(SECTION, WRITTEN_TO)
        while after != END and self._leading.now:
            page = await self._on.records.objects(self._on.call, after, bounds.REFERENCES_PAGE)
            for collection in await self._collections(page.ids):
                await self._fill(collection)
            here, after = as_read(SECTION, WRITTEN_TO, after), page.after or END
            if not await self._leading.apply([put(REPAIR_OBJECT, SECTION, WRITTEN_TO, after, here)]):
                return  # a repair dropped a summary meanwhile, perhaps behind this page
            if page.more:
                await self._on.world.clock.sleep(self._on.settings.survey_page_ms)

    async def _collections(self, ids: Sequence[ObjectId]) -> list[ObjectId]:
        entries = [each for each in ids if is_guid(each)]
        kinds = await self._on.records.get(self._on.call, entries, (Needed("entry", "type"),))
        return [each.id for each in kinds if type_of(each) == TYPE_COLLECTION]

    async def _fill(self, collection: ObjectId) -> None:
        """Write the missing summaries of a collection."""
        after, more = "", True
        while more and self._leading.now:
            ask = Below(collection, after, deep=False, needed=SUMMARISED, summaries=True)
            page = await self._on.records.below(self._on.call, ask)
            missing = [made for leaf in page.leaves if (made := _missing(collection, leaf))]
            for start in range(0, len(missing), TOGETHER):
                await self._write(missing[start : start + TOGETHER])
            after, more = page.after, bool(page.after)

    async def _write(self, some: Sequence[list[Element]]) -> None:
        """Write together; where one file has changed, which wrote its summary, write the others one by one."""
        if not await self._leading.apply([element for elements in some for element in elements]):
            for elements in some:
                await self._leading.apply(elements)


def _missing(collection: ObjectId, leaf: Leaf) -> list[Element]:
    """The change that writes the missing summary of an entry; empty when none is missing."""
    file = leaf.object
    summary = summary_of(file) if file is not None else ""
    if file is None or not summary:
        return []
    still = is_("entries", leaf.path, file.id)
    return [check(file.id, version(file.version)), put(collection, SECTION, leaf.path, summary, still)]
