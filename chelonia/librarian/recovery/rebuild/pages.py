"""The snapshots that a rebuild has found, and the pages of the one that it uses, wherever they can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chelonia.core.cluster.replicas import Location, ReplicaFacts
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, Ms, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.wire.snapshots import Manifest, PageLocation, decode_page, parse_snapshot_name, same_pages

Manifests = dict[BlobId, Manifest | None]
"""Manifests that a rebuild has tried to read; None: unreadable."""


@dataclass(slots=True)
class SnapshotBlob:
    """A blob of a snapshot by its records: its facts, its locations, and the Shepherds with it in quarantine."""

    facts: ReplicaFacts
    locations: list[Location] = field(default_factory=list)
    aside: list[ServiceId] = field(default_factory=list)


def newest_first(found: Mapping[BlobId, SnapshotBlob]) -> list[tuple[Ms, SnapshotBlob]]:
    """Return the manifests among the blobs found, with their numbers, newest first."""
    parsed = ((parse_snapshot_name(each.facts.name), each) for each in found.values())
    manifests = [(name[1], each) for name, each in parsed if name is not None and name[0] == "manifest"]
    return sorted(manifests, key=lambda pair: pair[0], reverse=True)


class SnapshotPages:
    """The pages of one snapshot; an unreadable one is read where another snapshot has the very same."""

    def __init__(
        self,
        manifests: Callable[[SnapshotBlob], Awaitable[Manifest]],
        read: Callable[[SnapshotBlob], Awaitable[bytes]],
        found: Mapping[BlobId, SnapshotBlob],
        manifest: Manifest,
        known: Manifests,
    ) -> None:
        self._manifests, self._read, self._known = manifests, read, known
        self._found, self._manifest = found, manifest
        self._elsewhere: Mapping[str, Sequence[tuple[BlobId, PageLocation]]] | None = None
        self._last = BlobId(""), b""
        self._lost: set[BlobId] = set()

    async def objects(self, place: PageLocation) -> list[StoredObject]:
        """Return the objects of a page. Raises: CHECKSUM when it cannot be read anywhere; NOT_SUPPORTED."""
        try:
            return await self._at(self._manifest.segments[place.segment], place)
        except CheloniaError as error:
            for segment, other in await self._others(place):
                with contextlib.suppress(CheloniaError):
                    return await self._at(segment, other)
            raise error

    async def _at(self, segment: BlobId, place: PageLocation) -> list[StoredObject]:
        body = await self._body(segment)
        return list(decode_page(body[place.offset : place.offset + place.length], place.digest))

    def ask_again(self) -> None:
        """Try unreadable blobs again: their Shepherds may only have been starting."""
        self._lost.clear()
        self._known = {blob: manifest for blob, manifest in self._known.items() if manifest is not None}
        self._elsewhere = None

    async def _body(self, segment: BlobId) -> bytes:
        """The bytes of a segment; b"" when a read, which takes long and is tried once until `ask_again`, has failed."""
        if segment in self._lost or segment not in self._found:
            return b""
        if self._last[0] != segment:
            try:
                self._last = segment, await self._read(self._found[segment])
            except CheloniaError:
                self._lost.add(segment)
                return b""
        return self._last[1]

    async def _others(self, place: PageLocation) -> Sequence[tuple[BlobId, PageLocation]]:
        if self._elsewhere is None:
            every = [await self._manifest_of(each) for _, each in newest_first(self._found)]
            self._elsewhere = same_pages(self._manifest, [each for each in every if each is not None])
        return self._elsewhere.get(place.digest, ())

    async def _manifest_of(self, each: SnapshotBlob) -> Manifest | None:
        """The manifest; None when a read, which takes long and is tried once until `ask_again`, has failed."""
        blob = each.facts.blob
        if blob not in self._known:
            try:
                self._known[blob] = await self._manifests(each)
            except CheloniaError:
                self._known[blob] = None
        return self._known[blob]
