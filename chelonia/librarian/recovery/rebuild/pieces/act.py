"""Pieces noted and laid: each in a transact of its own, which rests on its file's version.

A rebuild that breaks off and is begun again goes on with the pieces that are left.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import groupby

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    OVERWRITTEN_OBJECT,
    BlobId,
    ContentId,
    Guid,
    ObjectId,
    blob_id,
    blob_object,
    content_object,
)
from chelonia.core.metadata import TYPE_FILE, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.namespace.contents.act import Contents
from chelonia.librarian.namespace.contents.decide import lay_found
from chelonia.librarian.namespace.tree import blobs_of, type_of
from chelonia.librarian.recovery.rebuild.pieces import decide
from chelonia.librarian.recovery.rebuild.pieces.decide import FoundPiece

_LOG = logging.getLogger(__name__)
_STAYS = (Kind.NO_REPLICA, Kind.TOO_LARGE, Kind.CONFLICT)
"""Errors at which a file stays as it is: its own bytes are missing or damaged, or it has too many extents."""

Attempt = Callable[[Sequence[Element]], Awaitable[bool]]
"""Applies elements; returns False when they do not apply."""


class PieceLaying:
    """The pieces of files that a rebuild has noted."""

    def __init__(self, context: LibrarianContext, contents: Contents, attempt: Attempt) -> None:
        self._on = context
        self._contents = contents
        self._attempt = attempt

    async def lay(self) -> int:
        """Lay the pieces that surely follow on their files. Returns: how many."""
        return sum([await self._lay(guid, notes) async for guid, notes in self._files()])

    async def _files(self) -> AsyncIterator[tuple[Guid, dict[BlobId, bool]]]:
        """The notes, file by file: blob -> whether it is sure."""
        last, notes = Guid(""), dict[BlobId, bool]()
        records, most = self._on.records, bounds.PAGE_ENTRIES_MAX
        async for items in records.pages(self._on.call, OVERWRITTEN_OBJECT, "formerly", most, after=decide.NOTED):
            found = ((*decide.parse_note(key), value) for key, value in items)
            for guid, of_it in groupby(found, key=lambda note: note[0]):
                if guid != last and notes:
                    yield last, notes
                    notes = {}
                last = guid
                notes |= {blob: value == decide.SURE for _, blob, value in of_it}
        if notes:
            yield last, notes

    async def _lay(self, guid: Guid, notes: dict[BlobId, bool]) -> int:
        file = await self._on.records.one(self._on.call, ObjectId(guid))
        own = await self._blobs([*blobs_of(file), *await self._named(file)])
        if type_of(file) != TYPE_FILE or not own:
            return 0
        found = [decide.found_piece(guid, blob, sure=notes[blob_id(blob.id)]) for blob in await self._blobs([*notes])]
        pieces, laid = decide.following(decide.found_base(file, own), found), 0
        fresh = ContentId(self._on.world.ids.uuid())
        for piece, state in zip(pieces, decide.states_after(pieces, fresh), strict=True):
            if not await self._one(guid, piece, state):
                break
            laid += 1
        return laid

    async def _one(self, guid: Guid, piece: FoundPiece, state: tuple[ContentId, int]) -> bool:
        """Lay a piece; False if the file stays as it is."""
        request = decide.request_for(guid, piece)
        try:
            current = await self._contents.current(self._on.call, request, guid)
            blobs = await self._blobs([piece.blob])
            elements = lay_found(request, current, blobs, state, piece.created_ms)
        except CheloniaError as error:
            if error.kind not in _STAYS:
                raise
            _LOG.info("rebuild: piece %s is not laid over %s: %s", piece.blob, guid, error)
            return False
        return await self._attempt([decide.laid_once(guid, piece.blob), *elements])

    async def _named(self, file: StoredObject) -> list[BlobId]:
        """The blobs of a file of several."""
        content = content_of(file)
        if not content:
            return []
        pages = self._on.records.pages(self._on.call, content_object(content), "named", bounds.PAGE_ENTRIES_MAX)
        return [BlobId(blob) async for items in pages for blob, _ in items]

    async def _blobs(self, blobs: Sequence[BlobId]) -> Sequence[StoredObject]:
        return await self._on.records.get(self._on.call, [blob_object(blob) for blob in blobs])
