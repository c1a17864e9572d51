"""The survey: a slow, repeated look at every blob, those included that no Shepherd lists.

It finds work that no event reported, and counts replicas by state. Only the repair leader surveys. It plans blobs and
marks them for repair; blobs that a round through a Shepherd will come to are left to that (`worklist`). It changes
nothing, and asks Shepherds about `stalled` copies, so that none stays listed that never came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.ids import BLOB_PREFIX, BlobId, ObjectId
from chelonia.core.timing.jobs import Next, Wait
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import blob_of, locations_of
from chelonia.librarian.repair.ask_after import ask_after
from chelonia.librarian.repair.plan.read import Planning
from chelonia.librarian.repair.tally import RepairTally

Found = Callable[[Mapping[BlobId, Collection[Location]]], None]
"""Listener that gets blobs with work to do, each with its places if it wants a copy."""


class Surveying:
    """One Librarian's survey. `found` gets the blobs to repair."""

    def __init__(self, context: LibrarianContext, planning: Planning, tally: RepairTally, found: Found) -> None:
        self._on = context
        self._planning = planning
        self._tally = tally
        self._found = found

    async def step(self) -> Next:
        """Survey all blobs once."""
        settings, start = self._on.settings, self._on.now
        await self._survey()
        self._tally.end()
        return Wait(max(settings.survey_interval_ms - (self._on.now - start), settings.tick_ms))

    async def _survey(self) -> None:
        self._tally.begin()
        async for blobs in self._on.records.object_pages(self._on.call, BLOB_PREFIX, bounds.REFERENCES_PAGE):
            await self._look_at(blobs)
            await self._on.world.clock.sleep(self._on.settings.survey_page_ms)

    async def _look_at(self, objects: Sequence[ObjectId]) -> None:
        stored = [blob for blob in await self._on.records.get(self._on.call, objects) if blob.exists]
        present = self._on.nodes.present
        plans = {plan.blob: plan for plan in self._planning.plans(stored)}
        found: dict[BlobId, Collection[Location]] = {}
        stalled: list[Location] = []
        for blob in stored:
            plan = plans.get(blob_of(blob))
            if plan is None:
                continue
            places = locations_of(blob)
            for location, state in places:
                self._tally.count(state.value if present(location.shepherd) else ReplicaState.OFFLINE.value)
            stalled += [location for location, state in places if state is ReplicaState.STALLED]
            if not plan.idle:
                found[plan.blob] = [location for location, _ in places] if plan.copies else []
        self._found(found)
        await ask_after(self._on, stalled)
