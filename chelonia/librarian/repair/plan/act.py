"""Plan and act: reads the blobs on the worklist, plans them, and carries the plans out.

Every Librarian claims and makes the copies for its own events. Marks are the leader's, and so are removals, which
`trim` decides again. One transact on the blob's version carries a whole plan: the change is of the very state that was
decided on. A failed plan is made again from what is stored, never from memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.cluster.healing import Endangered
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, Ms, blob_object, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.blobs import blob_of, facts_of
from chelonia.librarian.metadata.elements import drop, on_version, put
from chelonia.librarian.metadata.records import PlannedTransact
from chelonia.librarian.repair.ask_after import ask_after
from chelonia.librarian.repair.copies.under_way import Copies
from chelonia.librarian.repair.notify_leader import LeaderNotifier
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.plan.read import Planning
from chelonia.librarian.repair.tally import RepairTally
from chelonia.librarian.repair.trim import Trimming
from chelonia.librarian.repair.worklist import QueuedBlob, Worklist

_LOG = logging.getLogger(__name__)

PLANS_AT_ONCE = 10
"""Blobs planned without a pause: about a millisecond."""


@dataclass(frozen=True, slots=True)
class RepairParts:
    """The parts that repair works with."""

    work: Worklist
    tally: RepairTally
    planning: Planning
    leading: Leading
    copies: Copies
    trimming: Trimming
    notifier: LeaderNotifier


class Repairing:
    """Plans and acts, a batch at a time."""

    def __init__(self, context: LibrarianContext, parts: RepairParts) -> None:
        self._on = context
        self._work = parts.work
        self._tally = parts.tally
        self._planning = parts.planning
        self._leading = parts.leading
        self._copies = parts.copies
        self._trimming = parts.trimming
        self._notifier = parts.notifier
        self._looked = False

    @property
    def ready(self) -> bool:
        """Whether there are blobs to plan, or a page to read: only one a tick while the queue is ample."""
        return bool(self._work.dirty or (self._work.next_page() and not (self._work.ample and self._looked)))

    def tick(self) -> None:
        """Allow another page: a tick has passed."""
        self._looked = False

    async def step(self) -> None:
        """Plan one batch of blobs and act on it."""
        if not self._work.dirty:
            await self._read_page()
            self._looked = True
        batch = self._work.take(self._on.settings.plan_batch)
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
        found = await self._on.records.scan(
            self._on.call, shepherd_object(shepherd), "file", after, bounds.REFERENCES_PAGE
        )
        blobs = dict.fromkeys(BlobId(blob) for _, blob in found.items)
        self._work.paged(shepherd, after, blobs, found.after)

    async def _plan(self, batch: Sequence[BlobId]) -> None:
        # The leader trims on what it reads here.
        call = self._on.call.strongly() if self._leading.now else self._on.call
        stored = await self._on.records.get(call, [blob_object(blob) for blob in batch])
        found = {blob_of(blob): blob for blob in stored if blob.exists}
        plans = await self._plans(list(found.values()))
        for blob in set(batch).difference(
            plan.blob for plan in plans
        ):  # gone, lost to the last copy, or not to be read
            self._notifier.gone(blob)
            (self._tally.left_out if blob in found else self._tally.gone)(blob)
            self._work.planned(blob)
            self._work.settle(blob)
        for plan in plans:
            self._work.planned(plan.blob)
            self._look_again(plan)
            if not self._leading.now:
                self._notifier.planned(plan)
            if not plan.idle:
                await self.act(plan, found[plan.blob])

    async def _plans(self, blobs: Sequence[StoredObject]) -> list[BlobPlan]:
        """The plans, most endangered blob first. Other tasks run in between: users do not wait for a batch."""
        plans: list[BlobPlan] = []
        for start in range(0, len(blobs), PLANS_AT_ONCE):
            plans += self._planning.plans(blobs[start : start + PLANS_AT_ONCE])
            await self._on.world.clock.sleep(0)
        return sorted(plans, key=lambda plan: plan.danger)

    def _look_again(self, plan: BlobPlan) -> None:
        """Decide when to plan a blob again though no event names it."""
        if not plan.copies and not plan.short and plan.live + plan.waited >= plan.wanted:
            self._work.settle(plan.blob)
        if plan.short and self._work.stick(plan.blob):
            settings = self._on.settings
            # A spared Shepherd may be the place that it lacks; the planner sees it again at the next tick.
            pause = self._copies.retry_in_ms() or settings.backoff_max_ms
            self._work.blob_at(Ms(self._on.now + pause + settings.tick_ms), plan.blob)
        if plan.revisit_ms:
            self._work.blob_at(Ms(self._on.now + plan.revisit_ms - self._on.wall), plan.blob)

    # --- acting -----------------------------------------------------------------------------------------------------

    async def act(self, plan: BlobPlan, blob: StoredObject) -> None:
        """Claim and mark in one transact on the blob's version, then start the copies. Trimming does the removals."""
        jobs = self._copies.take(plan, blob)
        if len(jobs) < len(plan.copies):
            self._work.park(_waiting(plan, blob))
        if self._copies.paused:
            return  # everything is planned again when healing goes on
        elements = [element for job in jobs for element in job.claim()]
        if self._leading.now and plan.removals:
            self._trimming.offer(plan.blob)
        if self._leading.now and plan.marks:
            elements += self._marks(plan)
        if not elements:
            return
        elements = on_version(elements, blob)
        applied = False
        try:
            applied = self._leading.heed(await self._on.records.attempt(self._on.call, PlannedTransact(elements)))
        finally:
            for job in jobs:
                if applied:
                    self._work.unmark(plan.blob)  # by this very claim; the end of the copy marks it again
                    self._copies.start(job)
                else:
                    self._copies.drop(job)
            if not applied:
                self._work.mark((plan.blob,))
        if applied and self._leading.now:
            await ask_after(self._on, [mark.location for mark in plan.marks if mark.state is ReplicaState.STALLED])

    def _marks(self, plan: BlobPlan) -> list[Element]:
        """The leader's part of a plan that erases nothing."""
        obj = blob_object(plan.blob)
        elements: list[Element] = []
        for mark in plan.marks:
            key = str(mark.location)
            elements.append(put(obj, "locations", key, mark.state.value))
            if mark.state is ReplicaState.THIRDWHEEL:
                elements.append(put(obj, "claims", key, str(self._on.wall)))
            else:
                elements.append(drop(obj, "claims", key))
            _LOG.info("blob %s at %s: %s", plan.blob, key, mark.state.value)
        return [*elements, self._leading.check()]


def endangered(plan: BlobPlan, blob: StoredObject) -> Endangered:
    """Return the description, for people, of a blob that waits for a copy."""
    facts = facts_of(blob)
    return Endangered(plan.blob, facts.name, plan.live, plan.wanted, facts.size, facts.created_ms)


def _waiting(plan: BlobPlan, blob: StoredObject) -> QueuedBlob:
    ways = tuple((copy.target, tuple(source.shepherd for source in copy.sources)) for copy in plan.copies)
    return QueuedBlob(endangered(plan, blob), ways)
