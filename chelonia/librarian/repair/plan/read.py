"""Plans of blobs as read: `plan.decide.plan` with the Shepherds as they are now and the rules of this Librarian.

The Shepherds are read once a tick, and again when one comes, goes or fails. Preparing them for a thousand choices costs
more than one choice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from chelonia.core.cluster.healing import Endangered
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms, ObjectId, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.repair.plan import decide as repair
from chelonia.librarian.repair.plan.decide import ApprovedShepherds, BlobPlan, BlobView, NodeHealth, RepairPolicy
from chelonia.librarian.repair.tally import RepairTally

_LOG = logging.getLogger(__name__)

UNREADABLE_LOGGED_MAX: Final = 1000
"""Unreadable records that are logged, each once, at most: fsck finds them all."""

BackingOff = Callable[[ServiceId], bool]
"""Returns whether a Shepherd has just failed: it takes no copies for a while."""


class Planning:
    """Makes plans and keeps the tally of their findings."""

    def __init__(self, context: LibrarianContext, backing_off: BackingOff, tally: RepairTally) -> None:
        settings = context.settings
        self._on = context
        self._backing_off = backing_off
        self._tally = tally
        self._policy = RepairPolicy(settings.repair_delay_ms, settings.trim_grace_ms, settings.claim_ms)
        self._nodes = ApprovedShepherds.of({})
        self._fresh_until = Ms(0)
        self._unreadable: dict[ObjectId, int] = {}

    def plans(self, blobs: Iterable[StoredObject]) -> tuple[BlobPlan, ...]:
        """Plan these blobs, most endangered first; log and leave out those with malformed records.

        A blob without even a damaged copy is left out too, and counted as lost: only a report, or a person, can change
        that.
        """
        plans = repair.plan(self._views(blobs), self.nodes(), self._policy, self._on.wall)
        for plan in plans:
            self._tally.note(plan)
        return plans

    def planned(self, blob: StoredObject) -> tuple[BlobView, BlobPlan] | None:
        """Return a blob as read and its plan; None where `plans` leaves it out."""
        for view in self._views((blob,)):
            plan = repair.plan_blob(view, self.nodes(), self._policy, self._on.wall)
            self._tally.note(plan)
            return view, plan
        return None

    def _views(self, blobs: Iterable[StoredObject]) -> Iterator[BlobView]:
        for stored in blobs:
            try:
                view = repair.view_of(stored)
                self._lost(view, stored)
                if view.replicas:
                    yield view
            except (CheloniaError, ValueError) as error:
                if stored.version != self._unreadable.get(stored.id) and len(self._unreadable) < UNREADABLE_LOGGED_MAX:
                    self._unreadable[stored.id] = stored.version
                    _LOG.error("%s is not healed, it cannot be read (see `chelonia admin fsck`): %s", stored.id, error)

    def _lost(self, view: BlobView, stored: StoredObject) -> None:
        """Note whether a blob is lost; log it when it is new."""
        if not view.lost:
            self._tally.found(view.blob)
            return
        facts = facts_of(stored)
        if self._tally.lose(Endangered(view.blob, facts.name, 0, view.wanted, facts.size, facts.created_ms)):
            _LOG.error("blob %s is lost, no verified copy is left: file %.200s", view.blob, facts.name)

    def nodes(self) -> ApprovedShepherds:
        """Return the Shepherds as the planner sees them."""
        if self._on.now >= self._fresh_until:
            health = self._node_health()
            if health != self._nodes.health:  # else what was made ready of them is good for another tick
                self._nodes = ApprovedShepherds.of(health)
            self._fresh_until = Ms(self._on.now + self._on.settings.tick_ms)
        return self._nodes

    def changed(self) -> None:
        """Read the Shepherds again: one came, went or failed."""
        self._fresh_until = Ms(0)

    def _node_health(self) -> dict[ServiceId, NodeHealth]:
        nodes, out = self._on.nodes, {}
        unsteady = nodes.table.unsteady(self._on.now)
        for view in nodes.views():
            fit = view.accepting and not self._backing_off(view.shepherd)
            present, proven = nodes.present(view.shepherd), nodes.proven(view.shepherd)
            steady = view.shepherd not in unsteady
            seen = view if fit == view.accepting else replace(view, accepting=fit)
            starting = self._on.now < nodes.table.awaited_ms(view.shepherd)
            out[view.shepherd] = NodeHealth(seen, present, proven, steady, bool(view.drain), starting)
        return out
