"""Healing: the jobs that plan repair and have it carried out.

Work comes from events (commits, reports, Shepherds coming and going, timers) and, slowly, from a survey of all known
blobs. This file receives the events and names the jobs.

Invariants:
- No byte moves and no replica is erased without a transact before it; only orders of the outbox erase.
- A failed step is planned again from what is stored, never from memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import HealControl, HealOrder, HealStatus
from chelonia.core.cluster.placement import NODE_OFFLINE
from chelonia.core.cluster.replicas import Location
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, Ms, ServiceId
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import HealthSummary
from chelonia.core.timing.jobs import BUSY, IDLE, Job, Jobs, Next, Wait, every
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.drills.act import LibrarianDrills
from chelonia.librarian.leadership import operator_controls
from chelonia.librarian.leadership.counting import Counting
from chelonia.librarian.leadership.detection import Detecting
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.leadership.summarising import Summarising
from chelonia.librarian.leadership.sweep import Expiring
from chelonia.librarian.metadata.records import LibrarianIdentity, PlannedTransact, Records
from chelonia.librarian.namespace.quotas.act import Quotas
from chelonia.librarian.namespace.uploads.act import FileUploads
from chelonia.librarian.presence.listening import WATCHES
from chelonia.librarian.presence.nodes import NodeTable
from chelonia.librarian.recovery.fsck import names_now
from chelonia.librarian.recovery.internal_blobs import InternalBlobs
from chelonia.librarian.recovery.pending_compares import PendingCompares
from chelonia.librarian.recovery.removal.act import NodeLife
from chelonia.librarian.recovery.snapshots import Snapshotting
from chelonia.librarian.repair.balance.act import Balancing
from chelonia.librarian.repair.claims.act import Renewing
from chelonia.librarian.repair.copies.act import Copier
from chelonia.librarian.repair.copies.under_way import Copies
from chelonia.librarian.repair.erase import Erasers
from chelonia.librarian.repair.forecast import Rate
from chelonia.librarian.repair.notify_leader import LeaderNotifier
from chelonia.librarian.repair.plan.act import Repairing, RepairParts
from chelonia.librarian.repair.plan.changed import to_plan
from chelonia.librarian.repair.plan.read import Planning
from chelonia.librarian.repair.progress.act import HealingProgress
from chelonia.librarian.repair.survey import Surveying
from chelonia.librarian.repair.tally import RepairTally
from chelonia.librarian.repair.trim import Trimming
from chelonia.librarian.repair.worklist import Worklist
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)


class Healer:
    """Repair in one Librarian. `run` keeps it going until cancelled."""

    def __init__(
        self, records: Records, nodes: NodeTable, uploads: FileUploads, identity: LibrarianIdentity, world: World
    ) -> None:
        on = self._on = LibrarianContext(records, nodes, world, identity.call())
        self._work = Worklist()
        self._wake = asyncio.Event()
        self._tally = RepairTally()
        self._refreshed_ms = Ms(0)
        self._leading = Leading(on, identity.service_id, began=self._began, ended=self._work.leave_nodes)
        self.detecting = Detecting(on, identity.service_id, self._leading)
        rate = Rate()
        self._copies = Copies(on, Copier(records, uploads, identity, world), self._copied, rate)
        planning = self._planning = Planning(on, self._copies.backing_off, self._tally)
        self._trimming = Trimming(on, planning, self._leading, self._work.blob_at)
        self._notifier = LeaderNotifier(on, self._leading)
        self._renewing = Renewing(on, self._leading)
        parts = RepairParts(
            self._work, self._tally, planning, self._leading, self._copies, self._trimming, self._notifier
        )
        self._repairing = Repairing(on, parts)
        self._balancing = Balancing(on, parts, self._repairing.act)
        self._progress = HealingProgress(on, parts, rate)
        self.drilling = LibrarianDrills(on, self._leading, planning, (self._tally, self._progress, self._trimming))
        self._surveying = Surveying(on, planning, self._tally, self._surveyed)
        quotas = Quotas(records, world)
        self._erasers = Erasers(records, nodes, identity, world)
        self._expiring = Expiring(on, self._leading, quotas)
        self._summarising = Summarising(on, self._leading)
        self._counting = Counting(on, self._leading, quotas)
        self._pending_compares = PendingCompares(on, self._leading)
        self.life = NodeLife(records, nodes, world)
        self.internal_blobs = InternalBlobs(on, uploads, world.carrier) if world.carrier else None
        self._snapshotting = Snapshotting(on, self._leading, self.internal_blobs) if self.internal_blobs else None
        self._held = False
        self.jobs = Jobs(world.clock, self._all_jobs())
        records.listen(self._applied)
        nodes.listen(self._node_changed)

    def summary(self) -> HealthSummary:
        """Return the state of repair, for administrators."""
        return HealthSummary(
            leader=self._leading.holder,
            is_leader=self._leading.now,
            position=self._on.records.position,
            exposed=self._tally.exposed,
            queued=len(self._work),
            copying=len(self._copies),
            erasing=self._erasers.waiting,
            replicas=self._tally.replicas,
            paused_by=self._progress.control.paused_by,
            paused_ms=self._progress.control.paused_ms,
            held_back=self._trimming.held_back,
            waits_for=self._leading.waits_for,
        )

    @property
    def control(self) -> HealControl:
        """The administrators' orders, as they are in force here."""
        return self._progress.control

    def own_status(self) -> HealStatus:
        """Return how far healing is, as far as this Librarian knows: its answer to another one."""
        return replace(self._progress.status(), drains=self._balancing.held)

    async def status(self) -> HealStatus:
        """Return how far healing is, by the leader if it answers, with the present names of lost files."""
        leader, found = self._leading.elsewhere, self.own_status()
        try:
            if leader is not None:
                found = await leader.heal_status(self._on.call)
            lost = found.lost_named
            names = await names_now(self._on.records, self._on.call, [each.blob for each in lost])
        except CheloniaError as error:
            _LOG.info("how far healing is, or what is lost, is not known in full: %s", error)
            return found
        return replace(found, lost_named=tuple(replace(e, name=n or e.name) for e, n in zip(lost, names, strict=True)))

    async def order(self, call: Call, order: HealOrder) -> HealStatus:
        """Store an administrator's order and apply it here. Raises: BAD_REQUEST."""
        await self._on.records.attempt(
            self._on.call, PlannedTransact(operator_controls.ordered(order, call.dn, self._on.wall))
        )
        _LOG.info("healing: %s by %s", order, call.dn)
        await self.heed()
        self._next(self._on.settings.copies_max)
        return replace(await self.status(), control=self.control)  # a leader elsewhere reads it a tick later

    # --- events -------------------------------------------------------------------------------------------------------

    async def heed(self) -> None:
        """Read who leads, whether a rebuild is under way and what administrators ordered, and apply it here."""
        await self._leading.keep(self._on.now)
        self._apply_controls()

    def _applied(self, elements: tuple[Element, ...]) -> None:
        """A transact applied here: plan the blobs it changed, look at the outboxes it filled."""
        touched = to_plan(elements, self._planning.nodes().health)
        self._work.mark(touched)
        self._erasers.flag(elements)
        if touched:
            self._wake.set()

    def _node_changed(self, shepherd: ServiceId) -> None:
        """A Shepherd came, went or changed: the leader plans its blobs, all plan the blobs that waited for a place."""
        if self._leading.led:
            self._progress.begin(shepherd)
        self._work.unstick()
        self._copies.retry(shepherd)
        self._planning.changed()
        self._erasers.wake(shepherd)
        self.life.look_again()
        self._remind(shepherd)
        self._wake.set()

    def _remind(self, shepherd: ServiceId) -> None:
        """Set timers for the ends of a Shepherd's excuses (repair delay, announced maintenance, our own start), and for
        when it counts as steady again."""
        stored = self._on.nodes.table.stored(shepherd)
        if stored is None:
            return
        excused = stored.since_ms + self._on.settings.repair_delay_ms if stored.state == NODE_OFFLINE else 0
        for until in (excused, stored.excused_until_ms):
            if until > self._on.wall and self._leading.led:
                self._work.node_at(Ms(self._on.now + until - self._on.wall), shepherd)
        table = self._on.nodes.table
        for due in (table.steady_from(shepherd), table.awaited_ms(shepherd)):
            if due > self._on.now and self._leading.led:
                self._work.node_at(due, shepherd)

    def _began(self) -> None:
        """This Librarian leads from now on: plan the blobs of every Shepherd."""
        self._pending_compares.look_again()
        for shepherd in self._on.nodes.table.shepherds():
            self._node_changed(shepherd)

    def _copied(self, size: int) -> None:
        """A copy has ended (`size` < 0: it failed): give its slots to those that wait."""
        if size < 0:
            self._planning.changed()
        else:
            self._progress.copied(size)
        self._next(self._on.settings.copies_max)
        self._progress.ended()

    def _next(self, limit: int) -> None:
        """Let waiting copies start, as far as there is room."""
        self._work.refill()
        self._work.unpark(limit, self._copies.room())
        self._wake.set()

    def consider(self, blobs: Sequence[BlobId]) -> None:
        """Plan these blobs: another Librarian has found something to do."""
        self._work.mark(blobs)
        self._wake.set()

    def _surveyed(self, blobs: Mapping[BlobId, Collection[Location]]) -> None:
        self._work.surveyed(blobs)
        self._wake.set()

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self.jobs.run()
        finally:
            await self._copies.stop()

    def _all_jobs(self) -> Iterator[Job]:
        """All background work. Only `lead`, `listen` and `detect` go on during a rebuild: missing is not yet lost."""
        settings = self._on.settings
        tick, seldom = settings.tick_ms, settings.sweep_interval_ms
        yield Job("lead", every(tick, self._tick), Wait(tick))
        yield Job("listen", every(settings.lease_ms // WATCHES, self._listen), Wait(tick))
        yield Job("detect", self.detecting.step, IDLE, news=self.detecting.news)
        yield Job("repair", self._repair, IDLE, news=self._wake, held=self._in_rebuild)
        yield self._leaders("trim", self._trimming.step, tick, ended=self._trimming.leave, pauses=True)
        yield self._leaders("erase", self._erase, tick)
        yield self._leaders("forget", self._sweep_forgotten, settings.services_interval_ms)
        yield Job("notify leader", every(tick, self._notifier.step), Wait(tick), held=self._in_rebuild)
        yield Job("renew claims", every(tick, self._renewing.step), Wait(tick), held=self._in_rebuild)
        yield self._survey()
        yield self._leaders("balance", self._balance, tick, ended=self._balancing.leave, pauses=True)
        yield self._leaders("drill", self.drilling.step, tick, ended=self.drilling.leave)
        yield self._leaders("sweep", self._expiring.sweep, seldom)
        yield self._leaders("summarise", self._summarising.step, seldom)
        yield self._leaders("count quotas", self._counting.step, tick)
        yield Job("ask to compare", every(seldom, self._pending_compares.step), Wait(seldom), held=self._in_rebuild)
        if self._snapshotting is not None:
            yield self._leaders("snapshot", self._snapshotting.step, seldom)

    def _survey(self) -> Job:
        again = Wait(self._on.settings.survey_interval_ms)  # a pass that broke off waits too: the next one reads all
        rest, held = Wait(self._on.settings.tick_ms), self._not_leading
        return Job("survey", self._surveying.step, rest, again, held=held, needs_lease=True)

    def _leaders(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        ms: int,
        *,
        ended: Callable[[], None] = lambda: None,
        pauses: bool = False,
    ) -> Job:
        """A job of the repair leader; `ended` drops its unfinished work when another Librarian leads."""

        def held() -> str:
            if not self._leading.now:
                ended()
            paused = "an administrator has paused healing" if pauses and self._copies.paused else ""
            return self._not_leading() or paused

        return Job(name, every(ms, work), Wait(ms), held=held, needs_lease=True)

    def _in_rebuild(self) -> str:
        return "the namespace is being rebuilt" if self._leading.rebuilding else ""

    def _not_leading(self) -> str:
        return self._in_rebuild() or ("" if self._leading.now else "this Librarian does not lead repair")

    async def _listen(self) -> None:
        self._on.nodes.table.listening.watch(self._on.now)

    async def _tick(self) -> None:
        """Keep the lease, record which Shepherds came and went, start what timers and room allow."""
        now = self._on.now
        await self.heed()
        if now - self._refreshed_ms >= self._on.settings.services_interval_ms:
            await self._on.records.refresh_position(self._on.call)
            await self._on.nodes.refresh(self._on.call)
            self._refreshed_ms = now
        if self._leading.now:
            await self.detecting.look(now)
            await self._leading.write_transitions(now)
        await self._progress.tick(now)
        for shepherd in self._work.ring(now):
            self._progress.begin(shepherd)
            self._remind(shepherd)
        self._repairing.tick()
        self._next(self._on.settings.copies_max)

    def _apply_controls(self) -> None:
        """Apply the administrators' orders, and notice the end of a rebuild."""
        held, self._held = self._held, self._leading.rebuilding
        if held and not self._held and self._leading.led:
            self._began()
        control = self.control
        before = self._copies.paused
        self._copies.steer(control)
        if control.paused != before:
            if control.paused:
                _LOG.warning(
                    "healing is paused by %s; nothing is copied or trimmed until it is resumed", control.paused_by
                )
            else:
                _LOG.info("healing goes on")
                if self._leading.led:
                    self._began()

    async def _repair(self) -> Next:
        if not self._repairing.ready or self._renewing.behind:
            return IDLE
        await self._repairing.step()
        return BUSY

    async def _balance(self) -> None:
        if not self._work.queued:
            await self._balancing.step()

    async def _erase(self) -> None:
        await self._erasers.dispatch(self._on.now, self._leading.check())

    async def _sweep_forgotten(self) -> None:
        await self.life.sweep(self._on.call, self._leading.check())
