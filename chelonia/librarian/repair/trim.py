"""Trimming: removes surplus, damaged and never completed copies, after those that stay have answered.

It reads and plans every offered blob anew. A heartbeat proves only that a Shepherd lived a lease ago, so trimming first
asks for every copy that a removal rests on (`stat`). One that does not answer, or is not whole, does not count
(`plan.decide.vouched`). Where a good copy goes, those that stay must prove to have the bytes (`proofs.act`). Only the
repair leader trims; a rate guard limits removals that nobody ordered, with an alarm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Location, ReplicaFacts, ReplicaState
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, Ms, ServiceId, blob_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.shepherd import ReplicaStatOutcome
from chelonia.core.timing.clock import within
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.blobs import CHECKSUM_TYPES, blob_of, facts_of, locations_of
from chelonia.librarian.metadata.elements import drop, on_version, outbox_record
from chelonia.librarian.metadata.records import PlannedTransact
from chelonia.librarian.repair.guard import MINUTE_MS, RateGuard
from chelonia.librarian.repair.plan import decide as repair
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.plan.read import Planning
from chelonia.librarian.repair.proofs import decide as proofs
from chelonia.librarian.repair.proofs.act import Proving

_LOG = logging.getLogger(__name__)

Later = Callable[[Ms, BlobId], None]
"""Has a blob planned again at a time."""


REMOVALS_AT_ONCE = 16
"""Transacts under way together: they share a commit of the A-Hash, and leave room for users' own."""


class Trimming:
    """One Librarian's trimming. `later` gets the blobs to plan again."""

    def __init__(self, context: LibrarianContext, planning: Planning, leading: Leading, later: Later) -> None:
        self._on = context
        self._planning = planning
        self._leading = leading
        self._later = later
        self._proving = Proving(context)
        self._offered: dict[BlobId, None] = {}
        self._guard = RateGuard(bounds.ERASURES_UNASKED_PER_MIN_MAX)
        self._held_back: dict[BlobId, None] = {}

    @property
    def held_back(self) -> int:
        """Blobs whose surplus the rate guard holds back now."""
        return len(self._held_back)

    def offer(self, blob: BlobId) -> None:
        """Offer a blob of which copies may have to go."""
        self._offered[blob] = None

    async def step(self) -> None:
        """Trim the blobs offered."""
        while self._offered and self._leading.now:
            batch = list(islice(self._offered, min(self._on.settings.plan_batch, bounds.BULK_ELEMENTS_MAX)))
            for blob in batch:
                del self._offered[blob]
            try:
                await self._trim(batch)
            except CheloniaError:  # after a mistake the next survey finds the batch again: it holds up no others
                self._offered = {**dict.fromkeys(batch), **self._offered}
                raise

    def leave(self) -> None:
        """Drop all offers: another Librarian leads, and gets its own."""
        self._offered.clear()
        self._held_back.clear()

    async def _trim(self, batch: Sequence[BlobId]) -> None:
        stored = await self._on.records.get(self._on.call.strongly(), [blob_object(blob) for blob in batch])
        found = {blob_of(blob): blob for blob in stored if blob.exists}
        plans = [plan for plan in self._planning.plans(found.values()) if plan.removals]
        surplus = {plan.blob for plan in plans}
        for blob in [blob for blob in batch if blob not in surplus]:
            self._held_back.pop(blob, None)
        plans = self._let_through(plans)
        answered = await self._ask(plans, found)
        unproven = await self._unproven(plans, found)
        going: list[tuple[BlobPlan, StoredObject]] = []
        for plan in plans:
            vouched = repair.vouched(plan, answered - unproven)
            if vouched.removals and not self._guard.take(self._unasked(vouched), self._on.now):
                self._hold_back(plan.blob)
            elif vouched.removals:
                going.append((vouched, found[plan.blob]))
            if len(vouched.removals) < len(plan.removals):
                _LOG.info("blob %s: nothing is removed now, for not all other copies answer", plan.blob)
                self._again(plan.blob)
        await self._remove_all(going)

    async def _remove_all(self, plans: Sequence[tuple[BlobPlan, StoredObject]]) -> None:
        for start in range(0, len(plans), REMOVALS_AT_ONCE):
            removing = [self._remove(plan, blob) for plan, blob in plans[start : start + REMOVALS_AT_ONCE]]
            for error in await asyncio.gather(*removing, return_exceptions=True):
                if error is not None:
                    raise error

    async def _remove(self, plan: BlobPlan, blob: StoredObject) -> None:
        """Remove locations and order their bytes erased, in one transact on the blob's version."""
        elements: list[Element] = []
        for removal in plan.removals:
            key = str(removal.location)
            elements += [drop(blob.id, "locations", key), drop(blob.id, "claims", key)]
            elements.append(outbox_record(removal.location, plan.blob, removal.reason, self._on.wall))
        draft = PlannedTransact([*on_version(elements, blob), self._leading.check()])
        if self._leading.heed(await self._on.records.attempt(self._on.call, draft)):
            for removal in plan.removals:
                _LOG.info("blob %s at %s: removed, %s", plan.blob, removal.location, removal.reason)
        else:
            self._again(plan.blob)

    def _let_through(self, plans: Sequence[BlobPlan]) -> list[BlobPlan]:
        """The plans for which the rate guard has room now; the others come again about when it is their turn."""
        through, room = [], self._guard.room(self._on.now)
        for plan in plans:
            unasked = self._unasked(plan)
            if unasked <= room:
                room -= unasked
                self._held_back.pop(plan.blob, None)
                through.append(plan)
            else:
                self._hold_back(plan.blob)
        return through

    def _unasked(self, plan: BlobPlan) -> int:
        """How many removals nobody has ordered: all but those off a draining Shepherd."""
        health = self._planning.nodes().health
        nodes = [health.get(removal.location.shepherd) for removal in plan.removals]
        return sum(node is None or not node.draining for node in nodes)

    def _hold_back(self, blob: BlobId) -> None:
        if not self._held_back:
            _LOG.error(
                "more than %d replicas would be erased in a minute without a user's deletion; trimming waits",
                bounds.ERASURES_UNASKED_PER_MIN_MAX,
            )
        self._held_back[blob] = None
        turn_ms = MINUTE_MS * len(self._held_back) // bounds.ERASURES_UNASKED_PER_MIN_MAX
        self._later(Ms(self._on.now + max(self._on.settings.backoff_max_ms, turn_ms)), blob)

    def _again(self, blob: BlobId) -> None:
        self._later(Ms(self._on.now + self._on.settings.backoff_max_ms), blob)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def answering(self, blob: StoredObject) -> list[Location]:
        """Return the verified copies of a blob, as stored, that their Shepherds now report to have whole."""
        facts, good = facts_of(blob), [loc for loc, state in locations_of(blob) if state is ReplicaState.ALIVE]
        answers = await asyncio.gather(*(self._stat(location.shepherd, [(location, facts)]) for location in good))
        return [location for answer in answers for location in answer]

    async def _unproven(self, plans: Sequence[BlobPlan], blobs: Mapping[BlobId, StoredObject]) -> frozenset[Location]:
        """Of plans that give a good copy up, the witnesses that have not proven to have the bytes."""
        doubtful = [plan for plan in plans if proofs.needed(plan)]
        proven = await self._proving.proven(doubtful, blobs) if doubtful else frozenset()
        return frozenset(location for plan in doubtful for location in plan.witnesses) - proven

    async def _ask(self, plans: Sequence[BlobPlan], blobs: Mapping[BlobId, StoredObject]) -> frozenset[Location]:
        """The witnesses of these plans that answer, and have what they should."""
        copies: dict[ServiceId, list[tuple[Location, ReplicaFacts]]] = {}
        for plan in plans:
            facts = facts_of(blobs[plan.blob])
            for location in plan.witnesses:
                copies.setdefault(location.shepherd, []).append((location, facts))
        answers = await asyncio.gather(*(self._stat(shepherd, batch) for shepherd, batch in copies.items()))
        return frozenset(location for answer in answers for location in answer)

    async def _stat(self, shepherd: ServiceId, copies: Sequence[tuple[Location, ReplicaFacts]]) -> list[Location]:
        """Those that one Shepherd has whole; none when it is silent for a lease."""
        queries = tuple((str(number), location.reference) for number, (location, _) in enumerate(copies))
        stat = self._on.world.directory.shepherd(shepherd).stat(self._on.call, queries)
        try:
            outcomes = await within(self._on.world.clock, self._on.settings.lease_ms, stat)
        except CheloniaError as error:
            _LOG.info("shepherd %s does not answer for its copies: %s", shepherd, error)
            return []
        by_reference = {outcome.reference: outcome for outcome in outcomes}
        return [location for location, facts in copies if is_whole(by_reference.get(location.reference), facts)]


def is_whole(outcome: ReplicaStatOutcome | None, facts: ReplicaFacts) -> bool:
    """Return whether a Shepherd reports to have all of a blob."""
    if outcome is None or not outcome.found or outcome.state != ReplicaState.ALIVE.value:
        return False
    if outcome.checksum_type not in CHECKSUM_TYPES:
        return False
    reported = Checksums(**{outcome.checksum_type: outcome.checksum})
    return outcome.size == facts.size and facts.checksums.agrees(reported)
