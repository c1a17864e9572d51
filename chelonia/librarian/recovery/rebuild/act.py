"""A rebuild at work: the newest readable snapshot, then every record on every Shepherd, then the invariants.

`rebuild.decide` decides; this shell reads in pieces and applies. Its memory grows with the number of pages of the
snapshots, not with the namespace. A rebuild may be begun again at any time: existing objects stay as they are. While it
runs repair waits, for a blob that is not found yet is not lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    BLOB_PREFIX,
    CLUSTER_OBJECT,
    CONTENT_PREFIX,
    OVERWRITTEN_OBJECT,
    QUOTAS_OBJECT,
    REBUILD_OBJECT,
    ROOT,
    SERVICES_OBJECT,
    BlobId,
    Dn,
    Guid,
    Ms,
    ObjectId,
    ReferenceId,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import NOBODY, Finding, RebuildStatus, Severity
from chelonia.core.ports.shepherd import ReplicaRecord
from chelonia.core.timing.clock import stamp
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata import rebuild_record
from chelonia.librarian.metadata.elements import drop, put
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.namespace.contents.act import Contents
from chelonia.librarian.namespace.names import Names
from chelonia.librarian.namespace.summaries import missed
from chelonia.librarian.presence.identity import BURNT
from chelonia.librarian.presence.reports import reached
from chelonia.librarian.recovery import invariants
from chelonia.librarian.recovery.fsck import Fsck
from chelonia.librarian.recovery.internal_blobs import InternalBlobs
from chelonia.librarian.recovery.rebuild import decide as rebuild
from chelonia.librarian.recovery.rebuild.decide import Basis, RecordContext, RecordVerdict
from chelonia.librarian.recovery.rebuild.listing import PAUSES_MS, Look, RecordListing
from chelonia.librarian.recovery.rebuild.naming import Naming
from chelonia.librarian.recovery.rebuild.pages import Manifests, SnapshotBlob, SnapshotPages, newest_first
from chelonia.librarian.recovery.rebuild.parts.act import PartAssembly
from chelonia.librarian.recovery.rebuild.pieces import decide as pieces
from chelonia.librarian.recovery.rebuild.pieces.act import PieceLaying
from chelonia.wire.snapshots import (
    Manifest,
    PageLocation,
    decode_manifest,
)

_LOG = logging.getLogger(__name__)

ELEMENTS_TOGETHER: Final = 1000
"""Changes applied in one transact, about."""
LISTED_TOGETHER: Final = ELEMENTS_TOGETHER // 2
"""Replicas listed in one transact: two changes each."""
NOTES_MAX: Final = 1000
"""Notes kept; counts go on beyond."""
HEEDED_TICKS: Final = 2
"""Ticks until every Librarian has read that a rebuild is under way, and keeps users out of half a namespace."""
CHECKS_MAX: Final = 6
"""Passes over the invariants at the end, at most: each mends what the one before brought to light."""
CONCERNING: Final = (RecordVerdict.CONFLICT, RecordVerdict.SHELTERED, RecordVerdict.DAMAGED)


@dataclass(slots=True)
class RebuildProgress:
    """The progress of a rebuild, and its findings."""

    stage: str = "idle"
    done: int = 0
    total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cause: str = ""

    def count(self, kind: str, number: int = 1) -> None:
        """Count something."""
        if number:
            self.counts[kind] = self.counts.get(kind, 0) + number

    def note(self, text: str) -> None:
        """Add a note for the administrator, and log it."""
        if len(self.notes) < NOTES_MAX and text not in self.notes[-10:]:
            self.notes.append(text)
        _LOG.info("rebuild: %s", text)

    def enter(self, stage: str, total: int = 0) -> None:
        """Begin a stage."""
        self.stage, self.done, self.total = stage, 0, total


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a rebuild. `heed`: has healing read that it must wait; `prompt`: records without patience, for
    callers that wait for an answer."""

    names: Names
    contents: Contents
    fsck: Fsck
    internal_blobs: InternalBlobs
    heed: Callable[[], Awaitable[None]]
    prompt: Records


class Rebuilding:
    """The rebuild of one Librarian."""

    def __init__(self, context: LibrarianContext, tools: Tools) -> None:
        self._on = context
        self._tools = tools
        self._progress = RebuildProgress()
        self._task: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._total = 0
        self._begun_ms = Ms(0)
        self._holes = False
        self._late = NOBODY
        self._parts = PartAssembly(context, self._attempt)
        self._pieces = PieceLaying(context, tools.contents, self._attempt)
        self._naming = Naming(context, tools.names, self._attempt, self._report)
        self._listing = RecordListing(context, self._note)
        self._readmitted: set[ServiceId] = set()
        self._aside: dict[ServiceId, ReferenceId] = {}

    def _note(self, text: str) -> None:
        self._progress.note(text)

    def _report(self, kind: str, text: str) -> None:
        self._progress.count(kind)
        self._progress.note(text)

    async def status(self) -> RebuildStatus:
        """Return the progress; for a rebuild that another process began, the reason why it has stopped."""
        p = self._progress
        if self._task is None:
            cause = rebuild_record.failure(await self._tools.prompt.one(self._on.call, REBUILD_OBJECT))
            p = RebuildProgress("failed", cause=cause) if cause else p
        return RebuildStatus(p.stage, p.done, p.total, dict(p.counts), tuple(p.notes), p.cause)

    async def begin(self, dn: Dn, late: ServiceId = NOBODY) -> None:
        """Begin a rebuild unless it runs, or, with `late`, bring in what that Shepherd alone knows. Raises: NOT_EMPTY,
        CONFLICT; with `late` NOT_FOUND, DENIED (declared lost for good), CONFLICT."""
        async with self._beginning:
            await (self._begin_late(dn, late) if late else self._begin(dn))

    async def _begin_late(self, dn: Dn, shepherd: ServiceId) -> None:
        marker = await self._tools.prompt.one(self._on.call.strongly(), REBUILD_OBJECT)
        busy = self._task is not None and not self._task.done()
        if busy and self._late == shepherd:
            return
        if busy or marker.value("rebuild", "state") != rebuild_record.DONE:
            cause = (
                "one is under way"
                if busy or rebuild_record.under_way(marker)
                else "this namespace is none that was rebuilt"
            )
            raise CheloniaError(Kind.CONFLICT, "rebuild", shepherd, cause)
        if rebuild_record.has_reported(marker, shepherd):
            raise CheloniaError(Kind.CONFLICT, "rebuild", shepherd, "it has told all it knows already")
        if shepherd in self._on.nodes.registry.forgotten():
            raise CheloniaError(Kind.DENIED, "rebuild", shepherd, BURNT)
        if shepherd not in self._on.nodes.table.shepherds():
            cause = (
                "no such Shepherd is approved; `chelonia admin service list` shows all that are known, and "
                "`chelonia admin service approve` takes one in"
            )
            raise CheloniaError(Kind.NOT_FOUND, "rebuild", shepherd, cause)
        every = put(REBUILD_OBJECT, rebuild_record.REPORTED, shepherd, rebuild_record.EVERY_BOOT)
        await self._enter(marker, every)
        self._late = shepherd
        self._aside.clear()
        self._progress = RebuildProgress("beginning")
        _LOG.info("what only %s knows is brought in by=%s", shepherd, dn)
        self._task = asyncio.create_task(self._run_late(rebuild.late_basis(marker, shepherd, self._record_key)))

    async def _begin(self, dn: Dn) -> None:
        if self._task is not None and not self._task.done():
            return
        prompt = self._tools.prompt
        marker = await prompt.one(self._on.call.strongly(), REBUILD_OBJECT)
        inside = await prompt.scan(self._on.call, ObjectId(ROOT), "entries", "", 1)
        if inside.items and not rebuild_record.under_way(marker):
            cause = "this namespace has entries; a rebuild is for an A-Hash that has lost everything"
            raise CheloniaError(Kind.NOT_EMPTY, "rebuild", "/", cause)
        self._holes = False
        self._listing.begin()
        self._readmitted.clear()
        self._aside.clear()
        self._late = NOBODY
        await self._enter(marker, *self._marked(rebuild_record.RUNNING))
        await self._tools.heed()
        _LOG.info("the namespace is rebuilt from the Shepherds by=%s; repair waits", dn)
        self._progress = RebuildProgress("beginning")
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the work; it can be begun again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _enter(self, marker: StoredObject, *elements: Element) -> None:
        """Begin a run: any other ends with its next change. Raises: CONFLICT."""
        run = self._on.world.ids.uuid()
        plan = PlannedTransact([rebuild_record.begin(marker, run), *elements])
        if not (await self._tools.prompt.attempt(self._on.call, plan)).applied:
            cause = "another Librarian has just begun one, or come to its end: give the command again"
            raise CheloniaError(Kind.CONFLICT, "rebuild", cause=cause)
        self._on.records.run = run

    def _marked(self, state: str) -> list[Element]:
        return [
            put(REBUILD_OBJECT, "rebuild", "state", state),
            put(REBUILD_OBJECT, "rebuild", "begun_ms", str(self._on.wall)),
            put(REBUILD_OBJECT, "rebuild", rebuild_record.KEPT, "1"),
            drop(REBUILD_OBJECT, "rebuild", "cause"),
            missed(),
        ]

    async def _run(self) -> None:
        try:
            await self._on.world.clock.sleep(HEEDED_TICKS * self._on.settings.tick_ms)
            basis = await self._work()
            noted = [*self._noted(basis), *await self._reported(self._on.nodes.table.shepherds())]
            through = PlannedTransact([*self._marked(rebuild_record.DONE), *noted])
            await self._on.records.attempt(self._on.call, through)
            self._tools.prompt.rebuilding = False  # other Librarians read it a tick later
            self._progress.stage = "done"
        except CheloniaError as error:
            _LOG.error("the rebuild has stopped, begin it again; nothing is repaired until it is through: %s", error)
            await self._record_failure(str(error))
            self._progress.stage, self._progress.cause = "failed", str(error)
        except BaseException as error:
            self._progress.stage, self._progress.cause = "failed", f"it broke off: {error!r}"
            raise

    def _noted(self, basis: Basis) -> list[Element]:
        """The record of which Shepherds have reported all they know; notes the cure for the others."""
        shepherds, answering = self._on.nodes.table.shepherds(), self._listing.answering
        away = [shepherd for shepherd in shepherds if shepherd not in answering]
        for shepherd in away:
            self._progress.note(
                f"what only {shepherd} knows comes when it is back: `{rebuild_record.late_command(shepherd)}`"
            )
        return rebuild.through(basis, [shepherd for shepherd in shepherds if shepherd in answering], away)

    async def _reported(self, shepherds: Sequence[ServiceId]) -> list[Element]:
        """The record of the boots in which these have reported. Differences reported after their next start do not
        cover bytes in quarantine, some of which may be listed now."""
        objects = [shepherd_object(shepherd) for shepherd in shepherds]
        found = await self._on.records.get(self._on.call.strongly(), objects, (Needed("report", "boot"),))
        boots = zip(shepherds, map(reached, found), strict=True)
        return [put(REBUILD_OBJECT, rebuild_record.REPORTED, shepherd, str(last.boot)) for shepherd, last in boots]

    async def _run_late(self, basis: Basis) -> None:
        """Bring in what one Shepherd alone knows, while the namespace is in use."""
        shepherd = self._late
        if not basis.sure:
            self._progress.note(
                f"{shepherd} was not missed by the rebuild: what of its was deleted since is not known, so what only "
                "it knows is in /lost+found"
            )
        try:
            for late in (False, True):
                await self._read_late(shepherd, replace(basis, late=late))
            await self._have_compared()
            await self._tools.names.quotas.recount(self._on.call)
            noted = put(REBUILD_OBJECT, rebuild_record.SHEPHERDS, shepherd, rebuild_record.COMPLETE), missed()
            await self._on.records.attempt(self._on.call, PlannedTransact([*noted, *await self._reported([shepherd])]))
            self._progress.stage = rebuild_record.DONE
        except CheloniaError as error:
            _LOG.info("what only %s knows is not all brought in: %s", shepherd, error)
            await self._have_compared()
            self._progress.stage, self._progress.cause = "failed", str(error)
        except BaseException as error:
            self._progress.stage, self._progress.cause = "failed", f"it broke off: {error!r}"
            raise

    async def _read_late(self, shepherd: ServiceId, basis: Basis) -> None:
        self._progress.enter("reading records again" if basis.late else "reading records", self._total)
        why = await self._listing.of(shepherd, self._counted(partial(self._take, basis)))
        if why:
            cause = f"it {why}; give the command again when it is there"
            raise CheloniaError(Kind.UNAVAILABLE, "rebuild", shepherd, cause)
        self._total = self._progress.done

    async def _record_failure(self, cause: str) -> None:
        """Record why it has stopped, for every Librarian and a later start of this one."""
        try:
            elements = put(REBUILD_OBJECT, "rebuild", "cause", cause), rebuild_record.is_last(self._on.records.run)
            await self._tools.prompt.attempt(self._on.call, PlannedTransact(elements))
            await self._tools.heed()
        except CheloniaError as error:
            _LOG.info("that the rebuild has stopped is known to this Librarian alone: %s", error)

    @property
    def _record_key(self) -> str:
        return self._tools.internal_blobs.record_key

    async def _work(self) -> Basis:
        """Rebuild everything; returns the basis by which the records were judged."""
        found = await self._find_snapshots()
        manifests: Manifests = {}
        manifest = await self._choose(found, manifests)
        begun_ms = Ms(manifest.begun_ms) if manifest is not None else None
        if manifest is not None:
            await self._restore(manifest, found, manifests)
        basis = Basis(self._record_key, begun_ms, holes=self._holes)
        for late in (False, True):
            await self._read_records(replace(basis, late=late))
        await self._put_together()
        await self._lay_pieces()
        await self._have_compared()
        await self._check()
        await self._tools.names.quotas.recount(self._on.call, forget=True)  # those of an empty namespace, if any
        return basis

    # --- the snapshot -----------------------------------------------------------------------------------------------

    async def _find_snapshots(self) -> dict[BlobId, SnapshotBlob]:
        """Find and count the blobs of snapshots by going through all records."""
        self._progress.enter("looking for snapshots")
        found: dict[BlobId, SnapshotBlob] = {}
        key = self._record_key

        async def look(shepherd: ServiceId, items: Sequence[ReplicaRecord]) -> None:
            for item in items:
                facts = item.facts
                if facts is not None and rebuild.of_snapshot(facts) and rebuild.genuine(facts, key):
                    at = Location(shepherd, item.reference)
                    found.setdefault(facts.blob, SnapshotBlob(facts)).locations.append(at)
                    if item.aside:
                        found[facts.blob].aside.append(shepherd)

        await self._each_page(look)
        self._total = self._progress.done
        return found

    async def _each_page(self, look: Look) -> None:
        await self._listing.each_page(self._counted(look))

    def _counted(self, look: Look) -> Look:
        async def counted(shepherd: ServiceId, items: Sequence[ReplicaRecord]) -> None:
            await look(shepherd, items)
            self._progress.done += len(items)

        return counted

    async def _choose(self, found: dict[BlobId, SnapshotBlob], manifests: Manifests) -> Manifest | None:
        """The newest snapshot from before the loss with a readable manifest and all segments listed somewhere.
        `manifests`: gets those that were read."""
        cluster = await self._on.records.one(self._on.call, CLUSTER_OBJECT)
        generation, born = self._tools.prompt.position.generation, Ms(int(cluster.value("cluster", "created_ms")))
        for number, each in newest_first(found):
            try:
                manifest = await self._read_manifest(each)
            except CheloniaError as error:
                manifests[each.facts.blob] = None
                self._pass_over(f"the snapshot of {stamp(number)} cannot be read: {error.cause}")
                continue
            manifests[each.facts.blob] = manifest
            if rebuild.of_this_namespace(manifest, generation, born):
                self._progress.note(f"the snapshot of {stamp(number)} was taken after the loss: it is passed over")
                continue
            missing = sum(segment not in found for segment in manifest.segments)
            if missing:
                self._pass_over(f"the snapshot of {stamp(number)} lacks {missing} of {len(manifest.segments)} segments")
                continue
            self._progress.note(
                f"the snapshot used was begun at {stamp(manifest.begun_ms)}: {manifest.objects} objects"
            )
            await self._keep(each, number, manifest, found)
            return manifest
        self._pass_over("no snapshot was found: policies, moves and deletions are not known")
        return None

    def _pass_over(self, lack: str) -> None:
        """Note the lack of a snapshot or a part of it. Raises: UNAVAILABLE while a Shepherd that may have it is away or
        starting. Without it, names, owners and policies would come back wrong, and nothing corrects that later."""
        self._progress.note(lack)
        away = [each for each in self._on.nodes.table.shepherds() if not self._has_listed(each)]
        if away:
            cure = (
                "start them and give the command again when they have started, or `chelonia admin service withdraw` "
                "what is lost for good"
            )
            cause = f"{lack}; {', '.join(away)} are away, starting, or do not tell their records: {cure}"
            raise CheloniaError(Kind.UNAVAILABLE, "rebuild", cause=cause)

    def _has_listed(self, shepherd: ServiceId) -> bool:
        """Whether a Shepherd has listed its records, and is still present; one that is starting refuses requests."""
        nodes = self._on.nodes
        here = nodes.present(shepherd) and not nodes.table.last_beat(shepherd).starting
        return here and shepherd in self._listing.answering

    async def _read_manifest(self, each: SnapshotBlob) -> Manifest:
        return decode_manifest(await self._read(each), self._record_key)

    async def _read(self, each: SnapshotBlob) -> bytes:
        """The bytes of a snapshot's blob, after waiting for its holders. Raises: NO_REPLICA."""
        for pause_ms in PAUSES_MS:
            await self._readmit([shepherd for shepherd in each.aside if shepherd not in self._readmitted])
            try:
                return await self._tools.internal_blobs.read(each.locations, each.facts)
            except CheloniaError as error:
                _LOG.info("%s is asked for again: %s", each.facts.name, error)
            await self._on.world.clock.sleep(pause_ms)
        return await self._tools.internal_blobs.read(each.locations, each.facts)

    async def _readmit(self, shepherds: Sequence[ServiceId]) -> None:
        """Have Shepherds bring back their quarantine; one that does not counts as away until it does."""
        for shepherd in shepherds:
            try:
                await self._readmit_all(shepherd)
                self._readmitted.add(shepherd)
                self._listing.answering.add(shepherd)
            except CheloniaError as error:
                self._listing.answering.discard(shepherd)
                _LOG.info("what %s has set aside is not back: %s", shepherd, error)

    async def _readmit_all(self, shepherd: ServiceId) -> None:
        for _ in range(self._listing.readmissions_max(shepherd)):
            if await self._on.world.directory.shepherd(shepherd).readmit(self._on.call) < bounds.READMITTED_MAX:
                return
        raise CheloniaError(Kind.CONFLICT, "readmit", shepherd, "it brings back more than it says it has set aside")

    async def _keep(
        self, chosen: SnapshotBlob, number: Ms, manifest: Manifest, found: dict[BlobId, SnapshotBlob]
    ) -> None:
        uses = " ".join((chosen.facts.blob, *manifest.segments))
        for blob in dict.fromkeys((*manifest.segments, chosen.facts.blob)):
            each = found[blob]
            named = uses if each is chosen else ""
            await self._attempt(rebuild.snapshot_blob(each.facts, each.locations, named, number))

    async def _restore(self, manifest: Manifest, found: dict[BlobId, SnapshotBlob], manifests: Manifests) -> None:
        self._progress.enter("restoring names", manifest.objects)
        self._begun_ms = Ms(manifest.begun_ms)
        pages = SnapshotPages(self._read_manifest, self._read, found, manifest, manifests)
        left: Sequence[PageLocation] = manifest.pages
        for last in (False, True):
            left = await self._restore_pages(pages, left, last=last)
            pages.ask_again()
        # the snapshot may name Shepherds that nothing else does: the absent among them are missed
        await self._on.nodes.refresh(self._on.call, self._on.records)

    async def _restore_pages(
        self, pages: SnapshotPages, places: Sequence[PageLocation], *, last: bool
    ) -> Sequence[PageLocation]:
        """Restore the readable pages by segment, to fetch each once. Returns: the other pages, lost the `last` time."""
        left = list[PageLocation]()
        for place in sorted(places, key=lambda page: (page.segment, page.offset)):
            try:
                objects = await pages.objects(place)
            except CheloniaError as error:
                left.append(place)
                if last:
                    self._lose_page(error)
                continue
            await self._restore_page([obj for obj in objects if not rebuild.is_over(obj, self._on.wall)])
            self._progress.done += len(objects)
        return left

    def _lose_page(self, error: CheloniaError) -> None:
        """Note a lost page. Raises: as `_pass_over`."""
        self._holes = True
        self._progress.count("pages of the snapshot lost")
        self._pass_over(f"a page of the snapshot is lost, and all names in it: {error.cause}")

    async def _restore_page(self, objects: Sequence[StoredObject]) -> None:
        batch: list[tuple[list[Element], list[Element]]] = []
        size = 0
        for obj in objects:
            if obj.id in _SPECIAL:
                await self._restore_special(obj, _SPECIAL[obj.id])
                continue
            if obj.id.startswith(CONTENT_PREFIX):
                await self._restore_content(obj)
                continue
            elements, names = rebuild.restore(obj)
            if len(elements) > ELEMENTS_TOGETHER:
                *before, elements = rebuild.cut(elements, LISTED_TOGETHER)
                for piece in before:
                    await self._attempt(piece)
            if size + len(elements) + len(names) > ELEMENTS_TOGETHER:
                await self._restore_batch(batch)
                batch, size = [], 0
            batch.append((elements, names))
            size += len(elements) + len(names)
        await self._restore_batch(batch)

    async def _restore_content(self, obj: StoredObject) -> None:
        header, records = rebuild.restore_content(obj)
        await self._attempt(header)
        restored = await self._attempt(records)
        self._progress.count("objects restored" if restored else "objects there already")

    async def _restore_special(
        self, obj: StoredObject, decide: Callable[[StoredObject, StoredObject], list[Element]]
    ) -> None:
        """Restore an object that may exist today too; of a wide section only the snapshot's properties matter."""
        wide = tuple(Needed("tally", key) for key in obj.sections.get("tally", {}))
        elements = decide(obj, await self._on.records.one(self._on.call, obj.id, wide))
        for start in range(0, len(elements), ELEMENTS_TOGETHER):
            await self._attempt(elements[start : start + ELEMENTS_TOGETHER])

    async def _restore_batch(self, batch: Sequence[tuple[list[Element], list[Element]]]) -> None:
        """Restore all at once; one by one when an object exists or a name is taken."""
        whole = [element for objects, names in batch for element in (*objects, *names)]
        if await self._attempt(whole):
            self._progress.count("objects restored", len(batch))
            return
        for objects, names in batch:
            restored = await self._attempt([*objects, *names])
            if not restored and (restored := await self._attempt(objects)):
                for named in names:
                    await self._attempt(await self._of_the_later(named))
            self._progress.count("objects restored" if restored else "objects there already")

    async def _of_the_later(self, named: Element) -> list[Element]:
        parent = await self._on.records.one(self._on.call, named.object, rebuild.both_forms(named.property))
        ids = [ObjectId(holder) for holder in parent.sections.get("entries", {}).values()]
        holders = await self._on.records.get(self._on.call, ids, (Needed("timestamps", "created"),))
        return rebuild.of_the_later(named, parent, holders, self._begun_ms)

    async def _attempt(self, elements: Sequence[Element]) -> bool:
        """Apply; False when it does not apply. An object that cannot be stored at all is noted and passed over."""
        if not elements:
            return True
        try:
            return (await self._on.records.attempt(self._on.call, PlannedTransact(elements))).applied
        except CheloniaError as error:
            if error.kind not in (Kind.BAD_REQUEST, Kind.TOO_LARGE, Kind.BAD_NAME):
                raise
            self._progress.note(f"{elements[0].object} cannot be stored: {error.cause}")
            return False

    # --- the records ------------------------------------------------------------------------------------------------

    async def _read_records(self, basis: Basis) -> None:
        """Take in all records, those that are `rebuild.decide.is_late` in a second round."""
        self._progress.enter("reading records again" if basis.late else "reading records", self._total)
        await self._each_page(partial(self._take, basis))

    async def _take(self, basis: Basis, shepherd: ServiceId, every: Sequence[ReplicaRecord]) -> None:
        """Take in a page of records. In use, replicas of known blobs in their place are not listed: their Shepherd
        reports them, unless it has an order to erase them."""
        sealed = [rebuild.as_sealed(item, basis.record_key) for item in every]
        items = [item for item in sealed if rebuild.is_late(item, basis) is basis.late]
        ids = [blob_object(item.facts.blob) for item in items if item.facts]
        blobs = {obj.id: obj for obj in await self._on.records.get(self._on.call, list(dict.fromkeys(ids)))}
        listed: list[tuple[ReplicaRecord, Location, list[Element]]] = []
        for item in items:
            at = Location(shepherd, item.reference)
            if item.aside:
                self._aside[shepherd] = item.reference
            blob = blobs.get(blob_object(item.facts.blob)) if item.facts else None
            context = RecordContext(blob or rebuild.NOTHING, rebuild.NOTHING)
            exists = context.blob.exists and item.facts and rebuild.judge(item, context, basis) is RecordVerdict.LISTED
            if exists and item.facts and not (basis.in_use and item.aside):
                listed.append((item, at, [] if basis.in_use else rebuild.list_location(blob, item.facts, at)))
            else:
                await self._take_one(item, at, basis)
        for start in range(0, len(listed), LISTED_TOGETHER):
            await self._list(listed[start : start + LISTED_TOGETHER], basis)

    async def _list(self, some: Sequence[tuple[ReplicaRecord, Location, list[Element]]], basis: Basis) -> None:
        """List replicas of blobs that were known when their page was read; one by one when one blob has gone since."""
        if await self._attempt([element for _, _, elements in some for element in elements]):
            self._progress.count(RecordVerdict.LISTED.value, len(some))
            return
        for item, at, _ in some:
            await self._take_one(item, at, basis)

    async def _take_one(self, item: ReplicaRecord, at: Location, basis: Basis) -> None:
        context = await self._context(item, at if basis.in_use else None)
        verdict = rebuild.judge(item, context, basis)
        facts = item.facts
        if facts is not None:
            match verdict:
                case RecordVerdict.LISTED if not context.deleted:
                    await self._attempt(rebuild.list_location(context.blob, facts, at))
                case RecordVerdict.FILE if not await self._naming.file(facts, at, surely=basis.surely):
                    verdict = RecordVerdict.SHELTERED
                case RecordVerdict.VERSION if not await self._attempt(rebuild.new_version(facts, at, context)):
                    verdict = RecordVerdict.SHELTERED  # the file changes meanwhile: it keeps the bytes it has
                case RecordVerdict.SNAPSHOT:
                    await self._attempt(rebuild.snapshot_blob(facts, (at,)))
                case _:
                    pass
            if rebuild.is_of_file(item, verdict, basis):  # noted first: once a blob is there, it is only listed
                await self._attempt([pieces.note(facts, sure=rebuild.surely_committed(item, verdict))])
            if verdict is RecordVerdict.SHELTERED and not await self._is_part(facts, at, basis):
                await self._attempt(rebuild.unowned(facts, at))
            if basis.in_use and verdict in (RecordVerdict.VERSION, RecordVerdict.SHELTERED):
                await self._shelter([blob_object(facts.blob), *(blob.id for blob in context.current)])
        self._progress.count(verdict.value)
        if verdict in CONCERNING:
            name = facts.name if facts else "no readable record"
            self._progress.note(f"{verdict.value}: {name!r} at {at}")

    async def _is_part(self, facts: ReplicaFacts, at: Location, basis: Basis) -> bool:
        """Whether it was gathered with other parts of its upload: sealed by the cluster, and not in a late rebuild."""
        believed = not basis.in_use and rebuild.genuine(facts, basis.record_key)
        return believed and await self._parts.take(facts, at, surely=not basis.late)

    async def _put_together(self) -> None:
        """Give the parts that were found of each upload one file in `/lost+found`."""
        await self._parts.take_known()
        laid = await self._parts.lay()
        found = await self._tools.fsck.of(self._on.call, laid)
        await self._mend([each for each in found if each.rule == invariants.CONTENT_UNOWNED])

    async def _lay_pieces(self) -> None:
        """Lay the pieces since the snapshot over their files. None while bytes between two may be missing."""
        if self._holes or not self._listing.answering.issuperset(self._on.nodes.table.shepherds()):
            return
        laid = await self._pieces.lay()
        self._progress.count("pieces laid over their files", laid)
        sheltered = self._progress.counts.get(RecordVerdict.SHELTERED.value, 0)
        self._progress.count(RecordVerdict.SHELTERED.value, -min(laid, sheltered))

    async def _have_compared(self) -> None:
        """Ask Shepherds for quarantined replicas that may be listed now: lacking one, they compare their inventory."""
        for shepherd, reference in self._aside.items():
            try:
                port = self._on.world.directory.shepherd(shepherd)
                await port.stat(self._on.call, ((reference, reference),))
            except CheloniaError as error:
                _LOG.info("%s compares later what it has set aside: %s", shepherd, error)

    async def _context(self, item: ReplicaRecord, at: Location | None) -> RecordContext:
        """The context of a record: its blob and file, and whether its erasure is ordered `at` a Shepherd."""
        if item.facts is None:
            return RecordContext(rebuild.NOTHING, rebuild.NOTHING)
        blob = await self._on.records.one(self._on.call, blob_object(item.facts.blob))
        file = await self._on.records.one(self._on.call, ObjectId(item.facts.guid or "-"))
        current = await self._on.records.get(self._on.call, rebuild.blob_objects(file))
        file_id = "-" if blob.exists else item.facts.guid or "-"  # an existing blob may be another file's, too
        formerly = (Needed("formerly", item.facts.blob), Needed("formerly", file_id))
        passed = await self._on.records.one(self._on.call, OVERWRITTEN_OBJECT, formerly)
        for_good = rebuild_record.DELETED_FOR_GOOD in passed.sections.get("formerly", {}).values()
        deleted = for_good or (at is not None and await self._has_record(at))
        return RecordContext(blob, file, current, deleted=deleted)

    async def _has_record(self, at: Location) -> bool:
        """Whether the metadata have a record of a replica, which goes when its erasure is confirmed."""
        obj, needed = shepherd_object(at.shepherd), (Needed("file", at.reference),)
        return bool((await self._on.records.one(self._on.call, obj, needed)).value("file", at.reference))

    async def _shelter(self, blobs: Sequence[ObjectId]) -> None:
        """Give blobs that no file names one in `/lost+found`, with their ids as GUIDs."""
        ids = [*blobs, *(ObjectId(blob.removeprefix(BLOB_PREFIX)) for blob in blobs)]
        for _ in range(CHECKS_MAX):
            found = await self._tools.fsck.of(self._on.call, ids)
            if not await self._mend([each for each in found if each.mendable and each.severity is not Severity.WORK]):
                return

    # --- the invariants ---------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Check everything until nothing is left to mend; note the losses."""
        mended, remaining = await self._check_all()
        passes = 1
        while mended and passes < CHECKS_MAX:
            mended, remaining = await self._check_all()
            passes += 1
        for finding in remaining:
            await self._note_lost(finding)

    async def _check_all(self) -> tuple[int, list[Finding]]:
        """One pass: the number of repairs, and the findings without one."""
        self._progress.enter("checking")
        mended, left, cursor = 0, list[Finding](), ""
        while True:
            page = await self._tools.fsck.check(self._on.call, Guid(""), cursor)
            faults = [finding for finding in page.findings if finding.severity is not Severity.WORK]
            mended += await self._mend([finding for finding in faults if finding.mendable])
            left += [finding for finding in faults if not finding.mendable][: NOTES_MAX - len(left)]
            self._progress.done, self._progress.total = self._progress.done + page.examined, page.objects
            cursor = page.cursor
            if not cursor:
                return mended, left

    async def _mend(self, findings: Sequence[Finding]) -> int:
        answers = await self._tools.fsck.mend(self._on.call, findings)
        for finding, answer in zip(findings, answers, strict=True):
            if answer.done:
                self._progress.count(f"mended: {finding.rule}")
                self._progress.note(f"{finding}: {answer.what}")
        return sum(answer.done for answer in answers)

    async def _note_lost(self, finding: Finding) -> None:
        if finding.rule != invariants.BLOB_LOST:
            self._progress.count(f"left: {finding.rule}")
            self._progress.note(str(finding))
            return
        name = (await self._on.records.one(self._on.call, finding.object)).value("blob", "name")
        self._progress.count("files without bytes")
        self._progress.note(f"no replica was found of {name!r} ({finding.object})")


_SPECIAL: Final = {
    ObjectId(ROOT): rebuild.restore_root,
    SERVICES_OBJECT: rebuild.restore_services,
    QUOTAS_OBJECT: rebuild.restore_quotas,
}
"""Restoring functions for objects that exist from the first start on, or may."""
