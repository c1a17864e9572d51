"""Plans of blobs as read: `repair.plan` with the Shepherds as they are now and the rules of this Librarian."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from chelonia.core.ids import ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.librarian import repair
from chelonia.librarian.footing import Footing
from chelonia.librarian.repair import BlobPlan, NodeHealth, Nodes, RepairPolicy
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.tally import Tally

Spared = Callable[[ServiceId], bool]
"""Whether a Shepherd has just failed: it takes no copies for a while."""


def policy_of(settings: LibrarianSettings) -> RepairPolicy:
    """How patient repair is."""
    return RepairPolicy(
        settings.repair_delay_ms, settings.trim_grace_ms, settings.claim_ms, settings.claim_bytes_per_s_min
    )


class Planning:
    """Makes plans and keeps the tally of what they found."""

    def __init__(self, footing: Footing, spared: Spared, tally: Tally) -> None:
        self._on = footing
        self._spared = spared
        self._tally = tally
        self._policy = policy_of(footing.settings)

    def plans(self, blobs: Iterable[StoredObject]) -> tuple[BlobPlan, ...]:
        """Plan these blobs, most endangered first."""
        plans = repair.plan(map(repair.view_of, blobs), Nodes.of(self._node_health()), self._policy, self._on.wall)
        for plan in plans:
            self._tally.note(plan)
        return plans

    def _node_health(self) -> dict[ServiceId, NodeHealth]:
        """The nodes as the planner sees them."""
        nodes, out = self._on.nodes, {}
        for view in nodes.views():
            fit = view.accepting and not self._spared(view.shepherd)
            present, proven = nodes.present(view.shepherd), nodes.proven(view.shepherd)
            out[view.shepherd] = NodeHealth(replace(view, accepting=fit), present, proven)
        return out
