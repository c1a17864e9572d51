"""Healing: the shell that keeps asking the planner what to do, and does it.

Work comes from events (commits, reports, Shepherds coming and going, timers) and, slowly, from an audit of all known
blobs. Every Librarian makes the copies its own events ask for, each claimed by a conditional transact before bytes
move; marking, trimming, erasing and writing who is away is left to the one that leads (`leader`), each write
conditional on the lease.

Invariants: no byte moves and nothing is erased without a transact before it; the erasure outbox is the only thing
that erases; whatever fails is planned again from what is stored, never from memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from chelonia.core import bounds
from chelonia.core.ahash import ChangeType, Element
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import (
    BLOB_PREFIX,
    REPAIR_OBJECT,
    BlobId,
    Ms,
    ReferenceId,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.librarian import HealthSummary
from chelonia.core.metadata import StoredObject
from chelonia.core.placement import NODE_OFFLINE
from chelonia.core.replicas import Location, ReplicaState
from chelonia.librarian import leader, repair
from chelonia.librarian.blobs import blob_of, facts_of, locations_of
from chelonia.librarian.copying import Copier, CopyJob
from chelonia.librarian.elements import LEASE, drop, outbox_record, put, version
from chelonia.librarian.erasing import Erasers
from chelonia.librarian.guard import Backoff, RateGuard, Slots
from chelonia.librarian.leader import Leadership
from chelonia.librarian.records import Draft, Identity, Records
from chelonia.librarian.repair import BlobPlan, Copy, NodeHealth, RepairPolicy
from chelonia.librarian.service_nodes import Nodes
from chelonia.librarian.service_uploads import Uploads
from chelonia.librarian.worklist import Worklist
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

PAGE = 500
"""References read at once when a Shepherd's section is paged through."""


@dataclass(slots=True)
class Tally:
    """What the audit counted in its last whole pass, and what it is counting now."""

    counted: dict[str, int]
    counting: dict[str, int]


class Healer:
    """Repair in one Librarian. `run` keeps it going until cancelled."""

    def __init__(self, records: Records, nodes: Nodes, uploads: Uploads, identity: Identity, world: World) -> None:
        settings = world.settings
        self._records = records
        self._nodes = nodes
        self._world = world
        self._call = identity.call()
        self._policy = RepairPolicy(
            settings.repair_delay_ms, settings.trim_grace_ms, settings.claim_ms, settings.claim_bytes_per_s_min
        )
        self._leadership = Leadership(identity.service_id, settings.leader_lease_ms)
        self._led = False
        self._term = ""
        self._work = Worklist()
        self._wake = asyncio.Event()
        self._guard = RateGuard(bounds.ERASURES_UNASKED_PER_MIN_MAX)
        self._alarmed = False
        self._slots = Slots(bounds.COPIES_IN_FLIGHT_PER_NODE_MAX, settings.copies_max)
        self._backoff = Backoff(settings.backoff_ms, settings.backoff_max_ms)
        self._copier = Copier(records, uploads, identity, world, self._policy)
        self._erasers = Erasers(records, nodes, identity, world)
        self._copies: dict[ReferenceId, asyncio.Task[None]] = {}
        self._exposed: dict[BlobId, int] = {}
        self._tally = Tally({}, {})
        self._refreshed_ms = Ms(0)
        records.listen(self._applied)
        nodes.listen(self._node_changed)

    # --- what it is told --------------------------------------------------------------------------------------------

    def _applied(self, elements: tuple[Element, ...]) -> None:
        """A transact applied here: blobs it changed are planned, outboxes it filled are looked at."""
        touched = [
            BlobId(element.object.removeprefix(BLOB_PREFIX))
            for element in elements
            if element.object.startswith(BLOB_PREFIX) and element.change not in (ChangeType.DELETE, ChangeType.CHECK)
        ]
        self._work.mark(touched)
        self._erasers.flag(elements)
        if touched:
            self._wake.set()

    def _node_changed(self, shepherd: ServiceId) -> None:
        """A Shepherd came, went or changed: the leader plans its blobs, all plan what waited for a place."""
        if self._led:
            self._work.page(shepherd)
        self._work.unstick()
        self._backoff.worked(shepherd)
        self._erasers.wake(shepherd)
        self._remind(shepherd)
        self._wake.set()

    def _remind(self, shepherd: ServiceId) -> None:
        """Look again when an absence ends being excused: by the repair delay or by announced maintenance."""
        stored = self._nodes.table.stored(shepherd)
        if stored is None:
            return
        now, wall = self._world.clock.monotonic_ms(), self._world.clock.now_ms()
        excused = stored.since_ms + self._policy.repair_delay_ms if stored.state == NODE_OFFLINE else 0
        for until in (excused, stored.maintenance_until_ms):
            if until > wall and self._led:
                self._work.node_at(Ms(now + until - wall), shepherd)

    def summary(self) -> HealthSummary:
        """The state of repair, for administrators."""
        return HealthSummary(
            leader=self._leadership.holder,
            is_leader=self.leading(),
            position=self._records.position,
            exposed=len(self._exposed),
            queued=len(self._work),
            copying=len(self._copies),
            erasing=self._erasers.waiting,
            replicas=dict(self._tally.counted),
        )

    def leading(self) -> bool:
        """Whether this Librarian leads repair now."""
        return self._leadership.leading(self._world.clock.monotonic_ms())

    # --- loops ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep healing until cancelled."""
        loops = (
            self._every(self._world.settings.tick_ms, self.tick),
            self._plan_loop(),
            self._every(self._world.settings.tick_ms, self._erase),
            self._audit_loop(),
        )
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await asyncio.gather(*tasks)
        finally:
            running = [*tasks, *self._copies.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _every(self, pause_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._tolerant(work)
            await self._world.clock.sleep(pause_ms)

    async def _tolerant(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do a piece of work; what others could not do now is tried again later. Returns whether it went through."""
        try:
            await work()
        except CheloniaError as error:
            _LOG.info("healing waits: %s", error)
            return False
        return True

    async def tick(self) -> None:
        """Keep the lease, write who came and went, let timers and waiting blobs go on."""
        now = self._world.clock.monotonic_ms()
        await self._lead(now)
        if now - self._refreshed_ms >= self._world.settings.services_interval_ms:
            await self._nodes.refresh(self._call)
            self._refreshed_ms = now
        if self.leading():
            await self._write_transitions(now)
        self._work.ring(now)
        self._work.unpark(self._world.settings.plan_batch)
        self._wake.set()

    async def _plan_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work.dirty or self._work.next_page():
                if not await self._tolerant(self.step):
                    break

    async def _erase(self) -> None:
        if self.leading():
            await self._erasers.dispatch(self._world.clock.monotonic_ms(), self._leadership.check())

    # --- leading ----------------------------------------------------------------------------------------------------

    async def _lead(self, now: Ms) -> None:
        """Take, keep or notice the loss of the lease."""
        self._leadership.observe(leader.parse(await self._records.one(self._call.strongly(), REPAIR_OBJECT)), now)
        bid = self._leadership.bid(now, self._world.clock.now_ms())
        if bid is not None and (await self._records.attempt(self._call, Draft(bid.elements()))).applied:
            self._leadership.won(bid)
        leads = self._leadership.leading(now)
        if leads and (not self._led or self._term != self._leadership.term):
            _LOG.info("repair is led here from now on")
            self._led, self._term = True, self._leadership.term
            self._nodes.table.lead(now)
            for shepherd in self._nodes.table.shepherds():
                self._node_changed(shepherd)
        elif self._led and not leads:
            _LOG.info("repair is no longer led here")
            self._nodes.table.follow()
            self._work.leave_nodes()
        self._led = leads

    async def _write_transitions(self, now: Ms) -> None:
        wall = self._world.clock.now_ms()
        for transition in self._nodes.table.transitions(now):
            obj = shepherd_object(transition.shepherd)
            elements = [
                self._leadership.check(),
                put(obj, "node", "state", transition.state),
                put(obj, "node", "since_ms", str(wall)),
            ]
            if not await self._lead_only(elements):
                return
            _LOG.info("shepherd %s: %s -> %s", transition.shepherd, transition.before or "new", transition.state)
            self._nodes.written(transition, wall)

    async def _lead_only(self, elements: Sequence[Element]) -> bool:
        """Apply what only the leader may; an unmet lease means that somebody else leads."""
        outcome = await self._records.attempt(self._call, Draft(elements))
        if outcome.unmet is not None and outcome.unmet.change_id == LEASE:
            self._leadership.lost()
        return outcome.applied

    # --- planning ---------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Plan one batch of blobs and act on it."""
        if not self._work.dirty:
            await self._read_page()
        batch = self._work.take(self._world.settings.plan_batch)
        try:
            await self._plan(batch)
        except CheloniaError:
            self._work.mark(batch)
            raise

    async def _read_page(self) -> None:
        page = self._work.next_page()
        if page is None:
            return
        shepherd, after = page
        found = await self._records.scan(self._call, shepherd_object(shepherd), "file", after, PAGE)
        self._work.mark(dict.fromkeys(BlobId(blob) for _, blob in found.items))
        self._work.paged(shepherd, after, found.items[-1][0] if found.more and found.items else "")

    async def _plan(self, batch: Sequence[BlobId]) -> None:
        call = self._call.strongly() if self.leading() else self._call  # the leader trims on what it reads here
        stored = await self._records.get(call, [blob_object(blob) for blob in batch])
        found = {blob_of(blob): blob for blob in stored if blob.exists}
        for gone in batch:
            if gone not in found:
                self._exposed.pop(gone, None)
        wall = self._world.clock.now_ms()
        views = [repair.view_of(blob) for blob in found.values()]
        for plan in repair.plan(views, self._node_health(), self._policy, wall):
            self._note(plan, wall)
            if not plan.idle:
                await self._act(plan, found[plan.blob], wall)

    def _node_health(self) -> dict[ServiceId, NodeHealth]:
        """The nodes as the planner sees them: one that has just failed takes no copies for a while."""
        now = self._world.clock.monotonic_ms()
        out = {}
        for view in self._nodes.views():
            fit = view.accepting and not self._backoff.spared(view.shepherd, now)
            present, proven = self._nodes.present(view.shepherd), self._nodes.proven(view.shepherd)
            out[view.shepherd] = NodeHealth(replace(view, accepting=fit), present, proven)
        return out

    def _note(self, plan: BlobPlan, wall: Ms) -> None:
        if plan.live < plan.wanted:
            self._exposed[plan.blob] = plan.live
        else:
            self._exposed.pop(plan.blob, None)
        if plan.short and self._work.stick(plan.blob):
            pause = self._world.settings.backoff_max_ms
            self._work.blob_at(Ms(self._world.clock.monotonic_ms() + pause), plan.blob)
        if plan.revisit_ms:
            self._work.blob_at(Ms(self._world.clock.monotonic_ms() + plan.revisit_ms - wall), plan.blob)

    async def _act(self, plan: BlobPlan, blob: StoredObject, wall: Ms) -> None:
        """Claim, mark and remove in one transact on the blob's version; then let the copies run."""
        jobs = self._jobs(plan, blob, wall)
        elements = [element for job in jobs for element in job.claim()]
        if self.leading() and (plan.removals or plan.marks):
            elements += self._tidying(plan, wall)
        if not elements:
            return
        elements[0] = _conditional(elements[0], blob.version)
        applied = False
        try:
            outcome = await self._records.attempt(self._call, Draft(elements))
            applied = outcome.applied
            if outcome.unmet is not None and outcome.unmet.change_id == LEASE:
                self._leadership.lost()
        finally:
            for job in jobs:
                if applied:
                    self._copies[job.target.reference] = asyncio.create_task(self._copy(job))
                else:
                    self._slots.release(job.shepherds)
            if not applied:
                self._work.mark((plan.blob,))

    def _tidying(self, plan: BlobPlan, wall: Ms) -> list[Element]:
        """The leader's part of a plan: marks, and removals as far as the rate guard lets them."""
        obj = blob_object(plan.blob)
        elements: list[Element] = []
        for mark in plan.marks:
            key = str(mark.location)
            elements.append(put(obj, "locations", key, mark.state.value))
            if mark.state is ReplicaState.THIRDWHEEL:
                elements.append(put(obj, "claims", key, str(wall)))
            else:
                elements.append(drop(obj, "claims", key))
            _LOG.info("blob %s at %s: %s", plan.blob, key, mark.state.value)
        for removal in self._guarded(plan):
            key = str(removal.location)
            elements += [drop(obj, "locations", key), drop(obj, "claims", key)]
            elements.append(outbox_record(removal.location, plan.blob, removal.reason, wall))
            _LOG.info("blob %s at %s: removed, %s", plan.blob, key, removal.reason)
        return [*elements, self._leadership.check()] if elements else []

    def _guarded(self, plan: BlobPlan) -> tuple[repair.Removal, ...]:
        now = self._world.clock.monotonic_ms()
        if self._guard.take(len(plan.removals), now):
            self._alarmed = self._alarmed and not plan.removals
            return plan.removals
        if not self._alarmed:
            self._alarmed = True
            _LOG.error(
                "more than %d replicas would be erased in a minute without a user's deletion; trimming waits",
                bounds.ERASURES_UNASKED_PER_MIN_MAX,
            )
        self._work.blob_at(Ms(now + self._world.settings.backoff_max_ms), plan.blob)
        return ()

    # --- copying ----------------------------------------------------------------------------------------------------

    def _jobs(self, plan: BlobPlan, blob: StoredObject, wall: Ms) -> list[CopyJob]:
        """The copies of a plan that can begin now; for the others the blob waits its turn."""
        jobs = []
        for copy in plan.copies:
            source = self._source(copy)
            if source is None or not self._slots.free(copy.target):
                self._work.park(plan.blob, plan.danger)
                continue
            target = Location(copy.target, ReferenceId(self._world.ids.uuid()))
            job = CopyJob(blob, source, target, Ms(wall + self._policy.copy_ms(facts_of(blob).size)))
            self._slots.take(job.shepherds)
            jobs.append(job)
        return jobs

    def _source(self, copy: Copy) -> Location | None:
        now = self._world.clock.monotonic_ms()
        fit = (s for s in copy.sources if self._slots.free(s.shepherd) and not self._backoff.spared(s.shepherd, now))
        return next(fit, None)

    async def _copy(self, job: CopyJob) -> None:
        try:
            failed = await self._copier.copy(job)
            if failed is None:
                for shepherd in job.shepherds:
                    self._backoff.worked(shepherd)
            else:
                self._backoff.failed(failed, self._world.clock.monotonic_ms())
        except CheloniaError as error:
            _LOG.info("copy of %s to %s is left to its claim: %s", blob_of(job.blob), job.target, error)
        finally:
            self._slots.release(job.shepherds)
            del self._copies[job.target.reference]
            self._work.unpark(bounds.COPIES_IN_FLIGHT_PER_NODE_MAX)
            self._wake.set()

    # --- audit ------------------------------------------------------------------------------------------------------

    async def _audit_loop(self) -> None:
        """Slowly, again and again: look at every blob any Shepherd is said to have."""
        settings = self._world.settings
        while True:
            begun = self._world.clock.monotonic_ms()
            if self.leading() and await self._tolerant(self._audit):
                self._tally = Tally(self._tally.counting, {})
            spent = self._world.clock.monotonic_ms() - begun
            pause = settings.audit_interval_ms - spent if self.leading() else settings.tick_ms
            await self._world.clock.sleep(max(pause, settings.tick_ms))

    async def _audit(self) -> None:
        self._tally.counting = {}
        for shepherd in self._nodes.table.shepherds():
            after = ""
            while True:
                page = await self._records.scan(self._call, shepherd_object(shepherd), "file", after, PAGE)
                await self._audit_page(shepherd, [BlobId(blob) for _, blob in page.items])
                if not page.more:
                    break
                after = page.items[-1][0]
                await self._world.clock.sleep(self._world.settings.audit_page_ms)

    async def _audit_page(self, shepherd: ServiceId, blobs: Sequence[BlobId]) -> None:
        stored = await self._records.get(self._call, [blob_object(blob) for blob in dict.fromkeys(blobs)])
        found = [blob for blob in stored if blob.exists]
        present, counting = self._nodes.present(shepherd), self._tally.counting
        for blob in found:
            for location, state in locations_of(blob):
                if location.shepherd == shepherd:
                    seen = state.value if present else ReplicaState.OFFLINE.value
                    counting[seen] = counting.get(seen, 0) + 1
        wall = self._world.clock.now_ms()
        plans = repair.plan(map(repair.view_of, found), self._node_health(), self._policy, wall)
        self._work.mark(plan.blob for plan in plans if not plan.idle)
        for plan in plans:
            self._note(replace(plan, short=0, revisit_ms=Ms(0)), wall)
        self._wake.set()


def _conditional(element: Element, number: int) -> Element:
    """The first element of a plan carries the blob's version: what was decided on is what is changed."""
    assert element.object.startswith(BLOB_PREFIX), "a plan's first element is about its blob"
    return replace(element, conditions=(*element.conditions, version(number)))
