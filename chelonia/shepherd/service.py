"""The Shepherd service: the control operations and the data plane of one storage node, put together from its parts.

`start` raises the boot number durably and builds the index from notes and records. `run` keeps heartbeats, reports,
scrub and expiry going until cancelled. `stop` ends the tasks that requests left running. Bytes move on tickets alone,
but for small blobs in messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.drills import ShepherdDrill
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import SNAPSHOTS_OBJECT, ObjectId, ReferenceId
from chelonia.core.operations.shepherd import SHEPHERD
from chelonia.core.ports.shepherd import (
    Authority,
    Challenge,
    CopyOrder,
    DeleteOutcome,
    Download,
    FetchOutcome,
    GetRequest,
    MeasuredOutcome,
    PutRequest,
    RecordPage,
    ReplicaStatOutcome,
    ScrubOrder,
    ScrubPage,
    ShepherdStatus,
    SmallBlob,
    StoredReplica,
    StoreOutcome,
    Turl,
    TurlOutcome,
    Upload,
    Uploaded,
)
from chelonia.core.rights.access import guarded
from chelonia.core.timing.jobs import Job, Jobs, Wait, every
from chelonia.core.values import replace
from chelonia.shepherd.drilling import ShepherdDrills
from chelonia.shepherd.node import ShepherdNode, ShepherdPorts
from chelonia.shepherd.proving import check_challenge, proof
from chelonia.shepherd.reports.rebuild_listing import records_page
from chelonia.shepherd.reports.reporting import Reporting
from chelonia.shepherd.reports.stock import Stock
from chelonia.shepherd.rules import authority as authorities
from chelonia.shepherd.scrubber import Scrubber
from chelonia.shepherd.settings import ShepherdSettings
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.transfers.downloads import Downloads, checksum_of
from chelonia.shepherd.transfers.forwarding import push_copy
from chelonia.shepherd.transfers.small import SmallBlobs
from chelonia.shepherd.transfers.uploads import ShepherdUploads
from chelonia.shepherd.waiting import settled

log = logging.getLogger(__name__)

ERASED_TOGETHER: Final = 64
"""Replicas erased at once; the authority is checked again before each of them."""
ASIDE_PAGE: Final = 200
"""Replicas in quarantine whose records are read at once: some tens of milliseconds."""
READMITTED = "readmitted"
"""Key in `ShepherdState.extra` of the generation under which the quarantine was last gone through."""


@dataclass(slots=True)
class _Aside:
    """Bytes to be reclaimed. `quarantined`: uncommitted replicas and when each was first seen there (monotonic ms)."""

    quarantined: dict[ReferenceId, int]
    counted_ms: int = 0
    quarantined_bytes: int = 0
    unfinished_bytes: int = 0


@guarded(SHEPHERD)
class ShepherdService:
    """One Shepherd. Implements `core.ports.shepherd.Shepherd` and `core.ports.shepherd.ShepherdData`."""

    def __init__(self, ports: ShepherdPorts, settings: ShepherdSettings) -> None:
        self._node = ShepherdNode(ports, settings)
        self._uploads = ShepherdUploads(self._node)
        self._downloads = Downloads(self._node)
        self._small = SmallBlobs(self._node, self._uploads)
        self._stock = Stock(self._node)
        self._reporting = Reporting(self._node, self._uploads, self._stock)
        self._scrubber = Scrubber(self._node)
        self._drilling = ShepherdDrills(self._node, self)
        self._aside = _Aside({})
        self._left: dict[ReferenceId, None] = {}
        """Ended uploads whose remaining bytes are to be erased."""
        self._readmitted_to = ReferenceId("")
        pause = settings.tidy_ms
        tidying = Job("tidy", every(pause, self.tidy), Wait(pause), loud=True)
        self.jobs = Jobs(ports.clock, (*self._reporting.jobs(), self._scrubber.job(), tidying))
        self.erasures_failed = 0
        """Erasures ordered that failed, each try counted."""

    # --- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raise the boot number and build the index, with heartbeats while that takes long.

        Raises: BAD_CONFIG when the state file is unusable, or the cluster knows this Shepherd with another store.
        """
        await self._node.boot()
        taking = asyncio.ensure_future(self._take_stock())
        beating = asyncio.ensure_future(self._reporting.starting_loop())
        try:
            await asyncio.wait((taking, beating), return_when=asyncio.FIRST_COMPLETED)
            await (taking if taking.done() else beating)
        finally:
            await settled(beating)
            await settled(taking)

    async def _take_stock(self) -> None:
        await self._stock.take()
        await self._count_aside()
        self._node.ready = True

    async def run(self) -> None:
        """Keep heartbeats, reports, scrub and expiry going until cancelled."""
        await self.jobs.run()

    async def leave(self) -> None:
        """Announce to the Librarians that this process ends: it counts as away at once, and is expected back soon."""
        await self._reporting.leave()

    async def stop(self) -> None:
        """End tasks that requests left running, and save notes for the next start. Call after `run` has ended."""
        await self._reporting.stop()
        await self._node.background.stop()
        if await self._node.disk.look():
            unsettled = await self._settle()
            if unsettled is None:
                await self._stock.note()
            await self._scrubber.save_cursor()
            if unsettled is not None:
                raise unsettled

    @property
    def lease_ms(self) -> int:
        """Milliseconds of silence before it counts as away, by the last heartbeat answer; 0 before the first."""
        return self._reporting.lease_ms

    @property
    def inventory_pages(self) -> int:
        """Pages of its inventory compared with the namespace since the start."""
        return self._reporting.pages

    @property
    def unready(self) -> str:
        """Reason why it accepts no bytes, "" when it does."""
        return self._node.disk.unready

    async def beat(self) -> None:
        """Send one heartbeat now."""
        await self._reporting.beat()

    async def tidy(self) -> None:
        """Forget expired tickets, and erase bytes that nobody acknowledged once their time is over."""
        if not await self._node.disk.look():
            return
        try:
            await self._tidy()
        except CheloniaError:
            if await self._node.disk.look():  # else it has gone meanwhile, which the disk logs
                raise

    async def _tidy(self) -> None:
        node = self._node
        await self._stock.measure()
        left = await self._erase_left()
        self._downloads.expire()
        unsettled = await self._settle()
        now_ms, settings = node.ports.clock.monotonic_ms(), node.settings
        # Looking through the quarantine costs a read per record, so it is done rarely, compared with how long it keeps.
        if now_ms - self._aside.counted_ms >= min(settings.unknown_grace_ms, settings.quarantine_keep_ms) // 20:
            await self._count_aside()
        await self._readmit_once()
        if self._reporting.agrees:  # else the namespace may name it by now, as after a rebuild, and it is brought back
            await self._purge(now_ms - settings.quarantine_keep_ms)
        if unsettled is None:  # else the notes would say what the records do not
            await self._stock.note()  # after the steps that make room
        await self._scrubber.save_cursor()
        await self._stock.put_in_order()
        if failure := left or unsettled:  # it has held up nothing else
            raise failure

    async def _settle(self) -> CheloniaError | None:
        """Have the store note which replicas are committed; returns the failure, which holds up nothing else."""
        try:
            await self._node.settle()
        except CheloniaError as error:
            return error
        return None

    async def _erase_left(self) -> CheloniaError | None:
        """Erase the bytes of ended uploads; returns the last failure. The next call tries again those that failed."""
        self._left |= dict.fromkeys(self._uploads.expire())
        failure = None
        for reference in tuple(self._left):
            busy = self._uploads.pending(reference) is not None or reference in self._node.index
            try:
                if not busy:  # else it has a new ticket
                    await self._node.ports.blobs.erase(reference)
                del self._left[reference]
            except CheloniaError as error:
                failure = error
        return failure

    async def _readmit_once(self) -> None:
        node = self._node  # metadata of another generation (restored from a backup) may know what was unknown
        generation = str(node.state.generation)
        if not node.state.generation or node.state.extra.get(READMITTED) == generation:
            return
        if READMITTED in node.state.extra and await self._readmit() >= bounds.READMITTED_MAX:
            return  # there is more
        await node.save(lambda now: replace(now, extra={**now.extra, READMITTED: generation}))

    async def _count_aside(self) -> None:
        node = self._node
        now_ms = node.ports.clock.monotonic_ms()
        quarantined = await node.ports.blobs.quarantined()
        unacknowledged = [stored.reference for stored in quarantined if not stored.committed]
        ended_ms = now_ms + node.settings.unknown_grace_ms
        late = [
            held.size for held in map(node.index.get, node.index.uncommitted) if held and held.keep_until_ms <= ended_ms
        ]
        seen = self._aside.quarantined
        self._aside = _Aside(
            {reference: seen.get(reference, now_ms) for reference in unacknowledged},
            now_ms,
            sum(max(stored.size, 0) for stored in quarantined),
            sum(late),
        )
        node.reclaimable_bytes = self._aside.quarantined_bytes + self._aside.unfinished_bytes

    async def _purge(self, before_ms: int) -> None:
        seen = self._aside.quarantined
        for reference, since_ms in list(seen.items()):
            busy = self._uploads.pending(reference) is not None or reference in self._node.index
            if since_ms <= before_ms and not busy:
                del seen[reference]
                await self._node.ports.blobs.discard(reference)
                log.info("unacknowledged bytes erased reference=%s", reference)

    # --- control operations ---------------------------------------------------------------------------------------

    async def get(self, call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        return self._downloads.offer(requests)

    async def put(self, call: Call, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Reserve space and issue write tickets. Raises: DENIED, BAD_REQUEST, BUSY for a repair copy."""
        return await self._uploads.offer(requests)

    async def store(self, call: Call, blobs: tuple[SmallBlob, ...]) -> tuple[StoreOutcome, ...]:
        return await self._small.store(blobs)

    async def fetch(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[FetchOutcome, ...]:
        return await self._small.fetch(references)

    async def sums(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[MeasuredOutcome, ...]:
        return tuple([await self._small.sums(reference) for reference in references])

    async def stat(self, call: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
        await self._node.disk.require(hard=True)  # other copies are given up on this word
        return tuple(self._stat_one(request_id, reference) for request_id, reference in references)

    async def delete(
        self, call: Call, references: tuple[tuple[str, ReferenceId], ...], authority: Authority | None
    ) -> tuple[DeleteOutcome, ...]:
        node = self._node
        refusal = authorities.refusal(node.state, authority)
        if refusal or authority is None:
            log.warning("erasure refused replicas=%d by=%s: %s", len(references), call.dn, refusal)
            return tuple(DeleteOutcome(request_id, f"nosuchfile: {refusal}") for request_id, _ in references)
        await node.disk.require()  # a replica on a disk that is away would count as erased
        position = authority.position
        if authorities.obeyed(node.state, position) != node.kept:
            await node.save(lambda now: authorities.obeyed(now, position))
        outcomes = await self._delete_all(references, position)
        await node.disk.require(hard=True)  # a disk that has gone meanwhile answered like one that held nothing
        with contextlib.suppress(CheloniaError):
            await self._stock.note(durably=True)  # else a start soon after this is confirmed takes it for a loss
        return outcomes

    async def toggle_report(self, call: Call, on: bool) -> bool:
        self._reporting.on = on
        self._node.news.set()
        log.info("reporting is %s by=%s", "on" if on else "off", call.dn)
        return on

    async def prove(self, call: Call, challenge: Challenge) -> tuple[str, ...]:
        check_challenge(challenge)
        await self._node.disk.require(hard=True)  # other copies are given up on this word
        return tuple([await proof(self._node, challenge.nonce, question) for question in challenge.questions])

    async def drill(self, call: Call, order: ShepherdDrill) -> int:
        return await self._drilling.obey(call, order)

    async def copy(self, call: Call, order: CopyOrder) -> Receipt:
        async with self._node.sending.one("copy"):
            held = self._node.index.get(order.reference)
            if held is None or not held.alive:
                self._node.doubt(order.reference)
                raise CheloniaError(Kind.NOT_ALIVE, "copy", order.reference, "file is not alive")
            receipt = await push_copy(self._node, order.turl, held, paced=True)
        log.info("replica copied reference=%s blob=%s to=%s", held.reference, held.blob, receipt.location.shepherd)
        return receipt

    async def scrub(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        return await self._scrubber.check_now(references)

    async def scrub_page(self, call: Call, order: ScrubOrder) -> ScrubPage:
        return await self._scrubber.page(order)

    async def discard(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        await self._node.disk.require()
        count = 0
        for reference in dict.fromkeys(references):
            if reference not in self._node.index and await self._node.ports.blobs.discard(reference):
                count += 1
                log.info("quarantined bytes discarded reference=%s by=%s", reference, call.dn)
        await self._count_aside()
        return count

    async def readmit(self, call: Call) -> int:
        await self._node.disk.require()
        return await self._readmit()

    async def _readmit(self) -> int:
        """Bring back whole replicas, at most `bounds.READMITTED_MAX`, from where the last call ended; returns how many.
        Fewer than that: it has come to the end of the quarantine."""
        count = 0
        async for stored in self._around_aside(self._readmitted_to):
            if count >= bounds.READMITTED_MAX:
                return count
            self._readmitted_to = stored.reference
            count += await self._readmit_one(stored)
        self._readmitted_to = ReferenceId("")
        return count

    async def _around_aside(self, start: ReferenceId) -> AsyncIterator[StoredReplica]:
        """Replicas in quarantine, page by page: those behind `begun`, then the rest."""
        for after, upto in ((start, ""), (ReferenceId(""), start)) if start else ((start, ""),):
            while page := await self._node.ports.blobs.quarantined(after, ASIDE_PAGE):
                after = page[-1].reference
                for stored in page:
                    if upto and stored.reference > upto:
                        return
                    yield stored

    async def _readmit_one(self, stored: StoredReplica) -> bool:
        node = self._node  # nothing is offered or reported of it before its bytes have been checked
        facts = stored.facts
        whole = facts is not None and stored.size == facts.size
        # Its Shepherds hear late that a snapshot is named, and it may be all that is left of a namespace.
        named = stored.committed or (facts is not None and ObjectId(facts.guid) == SNAPSHOTS_OBJECT)
        if not (named and whole) or stored.reference in node.index:
            return False
        brought = await node.ports.blobs.reinstate(stored.reference)
        if brought is None:
            return False
        node.index.put(lifecycle.unproven(lifecycle.found(brought, 0)))
        try:
            held = await self._scrubber.check(stored.reference)
        except BaseException:  # the next calls leave it out, as it is in the index
            node.suspect(stored.reference)
            raise
        if held is not None and not held.alive:
            await node.set_aside(held)
            return False
        node.report(stored.reference)
        self._aside.quarantined_bytes = max(self._aside.quarantined_bytes - stored.size, 0)
        node.reclaimable_bytes = self._aside.quarantined_bytes + self._aside.unfinished_bytes
        log.info("asked for again from quarantine reference=%s", stored.reference)
        return True

    async def status(self, call: Call) -> ShepherdStatus:
        node = self._node
        here = await node.disk.look()
        free, total = await node.ports.blobs.space() if here else (0, 0)
        return ShepherdStatus(
            shepherd=node.id,
            boot=node.state.boot,
            replicas=len(node.index),
            free_bytes=free,
            total_bytes=total,
            reporting=self._reporting.on,
            quarantined=await node.ports.blobs.count_quarantined() if here else 0,
            scrubbed=self._scrubber.scrubbed,
            damaged=self._scrubber.damaged,
            store=node.disk.identity.store,
            trouble=node.disk.trouble or node.disk.refused,
            quarantined_bytes=self._aside.quarantined_bytes,
            unfinished_bytes=self._aside.unfinished_bytes,
        )

    async def records(self, call: Call, after: str, limit: int) -> RecordPage:
        return await records_page(self._node, after, min(max(limit, 1), bounds.REFERENCES_PAGE))

    # --- the data plane -------------------------------------------------------------------------------------------

    async def receive(self, call: Call, upload: Upload) -> Uploaded:
        return await self._uploads.receive(call, upload)

    async def offset(self, call: Call, turl: Turl) -> int:
        return await self._uploads.offset(call, turl)

    async def open(self, call: Call, turl: Turl) -> Download:
        return await self._downloads.open(call, turl)

    # --- single elements ------------------------------------------------------------------------------------------

    def _stat_one(self, request_id: str, reference: ReferenceId) -> ReplicaStatOutcome:
        held = self._node.index.get(reference)
        if self._uploads.pending(reference) is None:
            self._node.doubt(reference)
        if held is not None:
            name, value = checksum_of(held)
            return ReplicaStatOutcome(
                request_id, reference, True, held.state.value, name, value,
                size=held.size, guid=held.guid, local_id=reference,
            )  # fmt: skip
        pending = self._uploads.pending(reference)
        if pending is None:
            return ReplicaStatOutcome(request_id, reference, found=False)
        facts = pending.request.facts
        return ReplicaStatOutcome(
            request_id, reference, True, "creating", "md5", facts.checksums.md5,
            size=facts.size, guid=facts.guid, local_id=reference,
        )  # fmt: skip

    async def _delete_all(
        self, references: tuple[tuple[str, ReferenceId], ...], position: Position
    ) -> tuple[DeleteOutcome, ...]:
        outcomes = list[DeleteOutcome]()
        for start in range(0, len(references), ERASED_TOGETHER):
            batch = references[start : start + ERASED_TOGETHER]
            outcomes += await asyncio.gather(*(self._delete_one(*each, position) for each in batch))
        return tuple(outcomes)

    async def _delete_one(self, request_id: str, reference: ReferenceId, position: Position) -> DeleteOutcome:
        if revoked := authorities.revoked(self._node.state, position):  # older metadata were put back meanwhile
            log.warning("erasure refused reference=%s: %s", reference, revoked)
            return DeleteOutcome(request_id, f"nosuchfile: {revoked}")
        self._uploads.withdraw(reference)
        try:
            await self._node.erase(reference)
        except CheloniaError as error:
            self.erasures_failed += 1
            log.warning("erasure failed reference=%s error=%s", reference, error)
            return DeleteOutcome(request_id, f"nosuchfile: {error}", error.kind.value)
        return DeleteOutcome(request_id, "deleted")
