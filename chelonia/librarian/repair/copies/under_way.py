"""The copies under way: which planned ones can begin now, which Shepherds are free or spared, and what runs.

Every copy holds a slot of both its ends from the moment it is chosen; a Shepherd that failed is left alone for a while.
One that is busy with others' orders has not failed: it gets another try soon, and can still be chosen. `copies.act`
makes one copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from chelonia.core.cluster.healing import HealControl, NodeCopies
from chelonia.core.cluster.replicas import Location
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms, ReferenceId, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import blob_of, facts_of
from chelonia.librarian.repair.copies.act import Copier, CopyJob
from chelonia.librarian.repair.forecast import Rate
from chelonia.librarian.repair.guard import Backoffs, Flow, Slots, Throttle
from chelonia.librarian.repair.plan.decide import BlobPlan, Copy
from chelonia.librarian.repair.worklist import QueuedBlob

_LOG = logging.getLogger(__name__)

COPIES_MIN: Final = 2
"""Copies in flight, at least, however late the process runs."""
BUSY_DOUBLINGS: Final = 3
"""Doublings of the pause for a busy Shepherd. It may be busy for hours with large copies, and each question costs some
changes of the metadata."""


class Copies:
    """The copies of one Librarian. `ended`: called at the end of each with the bytes copied, -1 when it failed or its
    outcome is unknown. `rate` learns the cost of each."""

    def __init__(self, context: LibrarianContext, copier: Copier, ended: Callable[[int], None], rate: Rate) -> None:
        settings = context.settings
        self._on = context
        self._copier = copier
        self._ended = ended
        self._rate = rate
        table = context.nodes.table
        self._slots = Slots(
            settings.copies_per_node_max, settings.copies_max, lambda node: table.last_beat(node).copies_at_once_max
        )
        self._throttle = Throttle(COPIES_MIN, settings.copies_max)
        self._sent, self._taken = Flow(), Flow()
        self.paused = False
        self._backoff = Backoffs(settings.backoff_ms, settings.backoff_max_ms)
        self._busy = Backoffs(settings.backoff_ms, settings.backoff_ms << BUSY_DOUBLINGS)
        self._running: dict[ReferenceId, tuple[CopyJob, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def at_once(self) -> int:
        """Copies that can run at once between these Shepherds, each with two of them: 1 at least."""
        bear = sum(self._slots.most(shepherd) for shepherd in self.ends)
        return max(min(self._slots.total_max, bear // 2), 1)

    @property
    def ends(self) -> tuple[ServiceId, ...]:
        """The Shepherds that copies can come from and go to."""
        return tuple(shepherd for shepherd in self._on.nodes.table.shepherds() if self._on.nodes.present(shepherd))

    def backing_off(self, shepherd: ServiceId) -> bool:
        """Return whether a Shepherd has just failed and is left alone."""
        return self._backoff.active(shepherd, self._on.now)

    def retry_in_ms(self) -> int:
        """Return the milliseconds until the first present Shepherd left alone is tried again; 0 when there is none."""
        left = (self._backoff.remaining_ms(shepherd, self._on.now) for shepherd in self.ends)
        return min(filter(None, left), default=0)

    def steer(self, control: HealControl) -> None:
        """Apply limits; running copies go on (Shepherds slow down by themselves)."""
        self.paused = control.paused
        self._slots.per_node_max = control.copies_per_node
        self._sent.bytes_per_s_max = self._taken.bytes_per_s_max = control.bytes_per_s

    def retry(self, shepherd: ServiceId) -> None:
        """Try a Shepherd again that has been heard anew."""
        self._worked(shepherd)

    def loads(self) -> tuple[NodeCopies, ...]:
        """Return the load of each Shepherd with copies, or with a lower limit than others; ordered by service id."""
        used, table = self._slots.used(), self._on.nodes.table
        loads = (NodeCopies(s, used.get(s, 0), self._slots.most(s)) for s in sorted({*table.shepherds(), *used}))
        return tuple(load for load in loads if load.copies or load.copies_max < self._slots.per_node_max)

    def take(self, plan: BlobPlan, blob: StoredObject) -> list[CopyJob]:
        """Return the copies of a plan that can begin now, with their slots taken: start or drop each."""
        jobs = []
        size = facts_of(blob).size
        until = Ms(self._on.wall + self._on.settings.claim_ms)
        for copy in plan.copies:
            source = self._source(copy)
            if source is None or not self._takes(copy.target):
                continue
            target = Location(copy.target, ReferenceId(self._on.world.ids.uuid()))
            assert source.shepherd != copy.target, "a copy has two ends"
            job = CopyJob(blob, source, target, until)
            self._slots.take(job.shepherds)
            self._rate.began(target.reference, size, self._on.now)
            self._sent.spend(source.shepherd, size, self._on.now)
            self._taken.spend(copy.target, size, self._on.now)
            jobs.append(job)
        return jobs

    def start(self, job: CopyJob) -> None:
        """Start a claimed copy."""
        assert job.target.reference not in self._running, "a copy begins once"
        self._running[job.target.reference] = job, asyncio.create_task(self._run(job))

    def drop(self, job: CopyJob) -> None:
        """Drop a copy that could not be claimed."""
        assert job.target.reference not in self._running, "what runs gives back its slots itself"
        self._slots.release(job.shepherds)
        self._rate.ended(job.target.reference, self._on.now, copied=False)

    async def stop(self) -> None:
        """Stop waiting for running copies; one that still arrives keeps its claim up, and is reported."""
        running = [task for _, task in self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def room(self) -> Callable[[QueuedBlob], bool]:
        """Return a function that answers for one blob after another whether a copy can begin beside those before."""
        if self._on.world.loop_lag is not None:
            self._throttle.look(self._on.world.loop_lag(), self._on.now)
            self._slots.total_max = self._throttle.allowed
        left = self._slots.copy()

        def fits(waiting: QueuedBlob) -> bool:
            for target, sources in waiting.ways:
                source = next((s for s in sources if left.free(s) and self._gives(s)), None)
                if source is not None and left.free(target) and self._takes(target):
                    left.take((source, target))
                    return True
            return False

        return fits

    def _source(self, copy: Copy) -> Location | None:
        return next((s for s in copy.sources if self._gives(s.shepherd)), None)

    def _gives(self, shepherd: ServiceId) -> bool:
        return self._free(shepherd) and self._sent.free(shepherd, self._on.now) and not self.backing_off(shepherd)

    def _takes(self, shepherd: ServiceId) -> bool:
        return self._free(shepherd) and self._taken.free(shepherd, self._on.now)

    def _free(self, shepherd: ServiceId) -> bool:
        return self._slots.free(shepherd) and not self.paused and not self._busy.active(shepherd, self._on.now)

    def _worked(self, *shepherds: ServiceId) -> None:
        for shepherd in shepherds:
            self._backoff.worked(shepherd)
            self._busy.worked(shepherd)

    async def _run(self, job: CopyJob) -> None:
        copied = -1
        try:
            held_up = await self._copier.copy(job)
            if held_up is None:
                copied = facts_of(job.blob).size
                self._worked(*job.shepherds)
            else:
                (self._busy if held_up.busy else self._backoff).failed(held_up.shepherd, self._on.now)
        except CheloniaError as error:
            _LOG.info("copy of %s to %s is left to its claim: %s", blob_of(job.blob), job.target, error)
        finally:
            self._slots.release(job.shepherds)
            self._rate.ended(job.target.reference, self._on.now, copied=copied >= 0)
            del self._running[job.target.reference]
            self._ended(copied)
