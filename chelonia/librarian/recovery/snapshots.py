"""Snapshots of the namespace, written by the repair leader: the names that survive the loss of every A-Hash.

Every `snapshot_interval_ms` the leader reads all objects once, slowly, and cuts them into pages (`wire.snapshots`). It
refers to pages of an earlier snapshot, and writes the others into new segments. Segments and manifest are ordinary
replicated blobs of the object `sys:snapshots`. They lack locations (Shepherds know), names in collections (entries know
their parents), uploads under way, the record key. Reasoning: docs/design/013-rebuild.md.

A snapshot is no instant: entries are read one after the other while changes go on. Each is whole: with its content and
blobs, all as of one moment.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.cluster.replicas import PROVEN, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    BLOB_PREFIX,
    CONTENT_PREFIX,
    QUOTAS_OBJECT,
    ROOT,
    SERVICES_OBJECT,
    SNAPSHOTS_OBJECT,
    BlobId,
    Ms,
    ObjectId,
    blob_object,
    content_object,
    is_guid,
)
from chelonia.core.metadata import TYPE_PENDING, Filter, Needed, Sections, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.blobs import (
    OWNERS,
    NewBlob,
    discard_blob,
    facts_of,
    locations_of,
    make_blob,
    owners_of,
)
from chelonia.librarian.metadata.contents import OPEN, SEALED, content_of
from chelonia.librarian.metadata.elements import drop, put
from chelonia.librarian.namespace.quotas.decide import bounds_alone
from chelonia.librarian.namespace.tree import blobs_of, type_of
from chelonia.librarian.recovery.internal_blobs import InternalBlobs
from chelonia.wire.snapshots import (
    Manifest,
    PageLocation,
    Pager,
    Segments,
    SnapshotPage,
    decode_manifest,
    encode_manifest,
    kept_places,
    live_share,
    snapshot_name,
)

_LOG = logging.getLogger(__name__)

ENTRY_KEPT: Final = (
    "entry", "timestamps", "parents", "policy", "defaultPolicy", "metadata", "states", "blobs", "mountpoint", "trashed",
    "posix", "node", "content",
)  # fmt: skip
"""Sections of an entry that a snapshot keeps."""
CONTENT_KEPT: Final = ("content", "extents", "named")
"""Sections of a content that a snapshot keeps; the wide ones in parts of `PAGE`, each with the narrow one."""
BLOB_KEPT: Final = ("blob", OWNERS)
"""Sections of a blob that a snapshot keeps."""
_ROLES: Final = tuple(role.value for role in Role)
_READ: Final[Filter] = tuple(Needed(section) for section in (*ENTRY_KEPT, *BLOB_KEPT, *_ROLES))
PAGE: Final = 500
"""Objects read at once."""
TRIES: Final = 3
"""Reads of a file that changes, for one snapshot."""


def kept(obj: StoredObject) -> StoredObject | None:
    """Return the part of an object that a snapshot keeps, None for nothing."""
    sections: tuple[str, ...]
    if obj.id == QUOTAS_OBJECT:
        bounds_set = bounds_alone(obj.sections.get("tally", {}))
        return StoredObject(obj.id, obj.version, {"tally": bounds_set}) if bounds_set else None
    if is_guid(obj.id):
        sections = ENTRY_KEPT if type_of(obj) not in ("", TYPE_PENDING) else ()
    elif obj.id.startswith(CONTENT_PREFIX):
        sections = CONTENT_KEPT if obj.value("content", "state") == SEALED else ()
    elif obj.id.startswith(BLOB_PREFIX):
        sections = BLOB_KEPT if obj.value("blob", "file") not in ("", SNAPSHOTS_OBJECT) else ()
    else:
        sections = _ROLES if obj.id == SERVICES_OBJECT else ()
    found = {section: obj.sections[section] for section in sections if section in obj.sections}
    if found and obj.id.startswith(CONTENT_PREFIX):
        found |= _without_parts(found)
    return StoredObject(obj.id, obj.version, found) if found else None


def _without_parts(content: Sections) -> dict[str, dict[str, str]]:
    """A sealed content without the remains of its parts, which the sweep removes: no snapshot keeps these."""
    header = {name: fact for name, fact in content["content"].items() if name not in ("due_ms", "order")}
    named = {blob: count for blob, count in content.get("named", {}).items() if count != "0"}
    return {"content": header, **({"named": named} if "named" in content else {})}


class Snapshotting:
    """The snapshots of one Librarian, while it leads."""

    def __init__(self, context: LibrarianContext, leading: Leading, internal_blobs: InternalBlobs) -> None:
        self._on = context
        self._leading = leading
        self._internal_blobs = internal_blobs
        self._checked_ms = Ms(0)
        self._failed = 0

    async def step(self) -> None:
        """Take a snapshot if one is due. The next is due after the interval also when this one fails: it reads all."""
        every = self._on.settings.snapshot_interval_ms
        if not every or (self._checked_ms and self._on.now - self._checked_ms < every):
            return
        stored = await self._on.records.one(self._on.call, SNAPSHOTS_OBJECT)
        last = _last(stored)
        if not self._internal_blobs.ready or (not last and await self._empty()):
            return
        try:
            if self._checked_ms or not 0 <= self._on.wall - last < every:
                await self.take(stored)
            self._failed = 0
        except CheloniaError as error:
            self._failed += 1
            level = logging.WARNING if self._failed > 1 else logging.INFO
            _LOG.log(level, "no snapshot of the namespace for %d s: %s", self._failed * every // 1000, error)
        finally:
            self._checked_ms = self._on.now

    async def _empty(self) -> bool:
        """Whether there is no name at all: the A-Hash is fresh, and may stand in for a lost one."""
        return not (await self._on.records.scan(self._on.call, ObjectId(ROOT), "entries", "", 1)).items

    async def take(self, stored: StoredObject) -> None:
        """Take a snapshot; without changes it is only a manifest. Raises: NO_SHEPHERD, NO_REPLICA, CONFLICT."""
        began_ms, number = self._on.wall, Ms(max(self._on.wall, _last(stored) + 1))
        writing = _Writing(self, await self._newest(stored))
        try:
            manifest = await self._write(writing, began_ms)
            if manifest is None:
                return
            raw = encode_manifest(manifest, self._internal_blobs.record_key)
            new = await self._internal_blobs.store(raw, snapshot_name("manifest", number))
        except CheloniaError:
            await self._let_go(writing.written)
            raise
        await self._register(new, number, manifest)

    async def _write(self, writing: _Writing, began_ms: Ms) -> Manifest | None:
        """Read everything and store what is new; None when this Librarian must stop."""
        await writing.start()
        # Uploads come first: one that is sealed meanwhile has its blobs here, wherever its file is.
        for prefix, read in ((CONTENT_PREFIX, self._uploads), ("", self._entries)):
            async for ids in self._on.records.object_pages(self._on.call, prefix, PAGE):
                async for obj in read(ids):
                    await writing.take(obj)
                await self._on.world.clock.sleep(self._on.settings.survey_page_ms // 10)
                if not self._goes_on:
                    return None
        position = self._on.records.position
        return await writing.finish(position.cluster, position.generation, began_ms)

    async def _read(self, ids: Sequence[ObjectId]) -> Sequence[StoredObject]:
        return await self._on.records.get(self._on.call, ids, _READ)

    async def _uploads(self, ids: Sequence[ObjectId]) -> AsyncIterator[StoredObject]:
        """The blobs of contents that are uploads under way: no entry names them."""
        records, call = self._on.records, self._on.call
        for content in await records.get(call, ids, (Needed("content", "state"),)):
            if content.value("content", "state") == OPEN:
                async for items in records.pages(call, content.id, "named", PAGE):
                    for blob in await self._read([blob_object(BlobId(blob)) for blob, _ in items]):
                        yield blob

    async def _entries(self, ids: Sequence[ObjectId]) -> AsyncIterator[StoredObject]:
        """Entries, each followed by its content and blobs; and the system's own objects."""
        entries = await self._read([each for each in ids if not each.startswith((BLOB_PREFIX, CONTENT_PREFIX))])
        named = [blob_object(blob) for entry in entries for blob in blobs_of(entry)]
        blobs = {blob.id: blob for blob in await self._read(named)}
        for entry in entries:
            if entry.id == QUOTAS_OBJECT:
                async for items in self._on.records.pages(self._on.call, entry.id, "tally", PAGE):
                    yield msgspec.structs.replace(entry, sections={"tally": dict(items)})
                continue
            for obj in await self._whole(entry, blobs):
                yield obj

    async def _whole(self, entry: StoredObject, cached: Mapping[ObjectId, StoredObject]) -> Sequence[StoredObject]:
        """An entry, its content and their blobs; one that keeps changing is as of its last read, if need be without its
        content. A file that gets other bytes leaves the old ones: a blob that still is its owner's was so at every
        moment between."""
        objects: Sequence[StoredObject] = (entry,)
        for _ in range(TRIES):
            content, settled = await self._content(entry)
            counts = [item for part in content for item in part.sections.get("named", {}).items()]
            named = [BlobId(blob) for blob, count in counts if count != "0"] if content else blobs_of(entry)
            ids = [blob_object(blob) for blob in named]
            found = {blob.id: blob for blob in await self._read([each for each in ids if each not in cached])}
            blobs = [found.get(each) or cached[each] for each in ids]
            # The blobs in any case: those that a snapshot lacks count as deleted.
            objects = (entry, *content, *blobs) if settled else (entry, *blobs)
            owner = content_of(entry) or entry.id
            if settled and _is_its_own(entry, content) and all(owner in owners_of(blob) for blob in blobs):
                return objects
            entry, cached = await self._on.records.one(self._on.call, entry.id, _READ), {}
        _LOG.info("%s changes too often to be whole in this snapshot", entry.id)
        return objects

    async def _content(self, file: StoredObject) -> tuple[Sequence[StoredObject], bool]:
        """The content of a file in parts, and whether all are of one state: it may change meanwhile."""
        content = content_of(file)
        if not content:
            return (), True
        records, call, obj = self._on.records, self._on.call, content_object(content)
        header = await records.one(call, obj, (Needed("content"),))
        parts = [header]
        for section in CONTENT_KEPT[1:]:
            async for items in records.pages(call, obj, section, PAGE):
                parts.append(msgspec.structs.replace(header, sections={**header.sections, section: dict(items)}))
        now = await records.one(call, obj, (Needed("content"),))
        return parts, now.sections == header.sections

    @property
    def _goes_on(self) -> bool:
        return self._leading.now and not self._leading.rebuilding

    async def _newest(self, stored: StoredObject) -> Manifest | None:
        """The newest readable snapshot; None when there is none, and everything is written anew."""
        snapshots = stored.sections.get("snapshot", {})
        for number in sorted(snapshots, reverse=True):
            blob = await self._on.records.one(self._on.call, blob_object(BlobId(snapshots[number].split(" ")[0])))
            try:
                places = [location for location, _ in locations_of(blob)]
                return decode_manifest(
                    await self._internal_blobs.read(places, facts_of(blob)), self._internal_blobs.record_key
                )
            except (CheloniaError, ValueError) as error:
                _LOG.warning("snapshot %s cannot be read: %s", number, error)
        return None

    async def usable(self, manifest: Manifest) -> dict[int, BlobId]:
        """Return the segments of a snapshot that the next may use: with a verified copy, and enough bytes in use."""
        blobs = await self._on.records.get(self._on.call, [blob_object(blob) for blob in manifest.segments])
        sizes = {n: facts_of(blob).size for n, blob in enumerate(blobs) if _copies(blob, PROVEN)}
        share = live_share(manifest, sizes)
        return {n: manifest.segments[n] for n in sizes if share[n] >= bounds.SNAPSHOT_LIVE_SHARE_MIN}

    async def keep_segment(self, body: bytes, number: int) -> BlobId:
        """Store a segment and name it at once, so that it is nobody's orphan. Raises: CONFLICT when another leads."""
        new = await self._internal_blobs.store(body, snapshot_name("segment", self._on.wall))
        if not await self._leading.apply([*make_blob(new), _named(new)]):
            raise CheloniaError(Kind.CONFLICT, "snapshot", str(number), "repair is led elsewhere now")
        return new.facts.blob

    async def _register(self, new: NewBlob, number: Ms, manifest: Manifest) -> None:
        """Name the new snapshot, and drop those that are too old with what only they used."""
        stored = await self._on.records.one(self._on.call, SNAPSHOTS_OBJECT)
        uses = " ".join((new.facts.blob, *manifest.segments))
        snapshots = {**stored.sections.get("snapshot", {}), f"{number:013d}": uses}
        newest = await self._staying(snapshots, new)
        elements = [*make_blob(new), _named(new), put(SNAPSHOTS_OBJECT, "snapshot", f"{number:013d}", uses)]
        elements += [drop(SNAPSHOTS_OBJECT, "snapshot", old) for old in snapshots if old not in newest]
        used = dict.fromkeys(blob for each in newest for blob in snapshots[each].split(" "))
        stale = [BlobId(blob) for blob in stored.sections.get("blobs", {}) if blob not in used]
        if await self._leading.apply(elements):
            _LOG.info("namespace snapshot taken objects=%d pages=%d", manifest.objects, len(manifest.pages))
            await self._let_go(stale)

    async def _staying(self, snapshots: Mapping[str, str], new: NewBlob) -> Sequence[str]:
        """The newest snapshots; while none of these has all its copies, also the newest before them that has."""
        order = sorted(snapshots, reverse=True)
        newest, older = order[: bounds.SNAPSHOTS_KEPT], order[bounds.SNAPSHOTS_KEPT :]
        for each in order if older else ():
            if await self._has_copies(snapshots[each].split(" "), new):
                return newest if each in newest else (*newest, each)
        return newest

    async def _has_copies(self, uses: Sequence[str], new: NewBlob) -> bool:
        """Whether every blob of a snapshot has as many good copies as it wants; the new one's count as stored."""
        stored = [blob_object(BlobId(blob)) for blob in uses if blob != new.facts.blob]
        blobs = await self._on.records.get(self._on.call, stored)
        enough = all(blob.exists and _copies(blob, PROVEN) >= facts_of(blob).wanted for blob in blobs)
        return enough and (new.facts.blob not in uses or len(new.locations) >= new.facts.wanted)

    async def _let_go(self, stale: Sequence[BlobId]) -> None:
        """Drop blobs that no snapshot uses and have them erased; what has changed meanwhile waits for the next."""
        for start in range(0, len(stale), DISCARDED_MAX):
            ids = stale[start : start + DISCARDED_MAX]
            elements = [drop(SNAPSHOTS_OBJECT, "blobs", blob) for blob in ids]
            for blob in await self._on.records.get(self._on.call, [blob_object(blob) for blob in ids]):
                elements += discard_blob(blob, "snapshot", self._on.wall)
            await self._leading.apply(elements)


DISCARDED_MAX: Final = 50
"""Blobs dropped in one transact."""


def _last(stored: StoredObject) -> int:
    """The name of the newest snapshot: when it was begun, but later than the one before; 0 when there is none."""
    return int(max(stored.sections.get("snapshot", {}), default="0"))


def _is_its_own(file: StoredObject, content: Sequence[StoredObject]) -> bool:
    """Whether a content as read is the one that its file names, if any."""
    if not content_of(file):
        return True
    header = content[0].sections.get("content", {}) if content else {}
    expected = SEALED, file.id, file.value("content", "splices")
    return (header.get("state"), header.get("file"), header.get("splices")) == expected


def _copies(blob: StoredObject, states: Collection[ReplicaState]) -> int:
    return sum(state in states for _, state in locations_of(blob))


def _named(new: NewBlob) -> Element:
    return put(SNAPSHOTS_OBJECT, "blobs", new.facts.blob, new.facts.blob)


class _Writing:
    """A snapshot in progress: it refers to pages known before, and gathers others into segments."""

    def __init__(self, owner: Snapshotting, before: Manifest | None) -> None:
        self._owner = owner
        self._before = before
        self._known: Mapping[str, PageLocation] = {}
        self._segments: dict[BlobId, int] = {}
        self._gathered = Segments.empty()
        self._pager = Pager()
        self._pages: list[str] = []
        self._new: dict[str, PageLocation] = {}
        self.written: list[BlobId] = []

    async def start(self) -> None:
        """Find the pages of the snapshot before that can be used again."""
        if self._before is None:
            return
        usable = await self._owner.usable(self._before)
        self._segments = {blob: number for number, blob in enumerate(usable.values())}
        renumbered = {old: self._segments[blob] for old, blob in usable.items()}
        self._known = {
            digest: PageLocation(digest, renumbered[place.segment], place.offset, place.length)
            for digest, place in kept_places(self._before, usable).items()
        }

    async def take(self, obj: StoredObject) -> None:
        """Add an object."""
        found = kept(obj)
        page = self._pager.take(found) if found is not None else None
        if page is not None:
            await self._add(page)

    async def _add(self, page: SnapshotPage) -> None:
        self._pages.append(page.digest)
        if page.digest not in self._known and page.digest not in self._new and self._gathered.add(page):
            await self._flush()

    async def _flush(self) -> None:
        number = len(self._segments)
        body, places = self._gathered.seal(number)
        self._new.update((place.digest, place) for place in places)
        blob = await self._owner.keep_segment(body, number)
        self.written.append(blob)
        self._segments[blob] = number

    async def finish(self, cluster: str, generation: int, began_ms: Ms) -> Manifest:
        """Return the manifest, a new one also without changes: deletions since the last show only in its beginning."""
        rest = self._pager.rest()
        if rest is not None:
            await self._add(rest)
        if self._gathered.places:
            await self._flush()
        pages = tuple(self._known.get(digest) or self._new[digest] for digest in self._pages)
        return Manifest(cluster, generation, began_ms, self._pager.objects, tuple(self._segments), pages)
