"""What repair knows by number: which blobs are exposed, and how many replicas are in which state.

In memory only; every plan corrects it, and the survey counts anew from what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.core.ids import BlobId
from chelonia.librarian.repair import BlobPlan


class Tally:
    """The numbers of one Librarian."""

    def __init__(self) -> None:
        self._exposed: dict[BlobId, int] = {}
        self._counted: dict[str, int] = {}
        self._counting: dict[str, int] = {}
        self._unseen: dict[BlobId, None] = {}

    # --- exposed blobs ----------------------------------------------------------------------------------------------

    @property
    def exposed(self) -> int:
        """Blobs with fewer verified copies than wanted."""
        return len(self._exposed)

    def note(self, plan: BlobPlan) -> None:
        """Take over what was counted for a plan."""
        self._unseen.pop(plan.blob, None)
        if plan.live < plan.wanted:
            self._exposed[plan.blob] = plan.live
        else:
            self._exposed.pop(plan.blob, None)

    def gone(self, blob: BlobId) -> None:
        """This blob is no more."""
        self._exposed.pop(blob, None)

    # --- replicas by state ------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> Mapping[str, int]:
        """Replicas by state, as the last whole survey counted them."""
        return dict(self._counted)

    def begin(self) -> None:
        """A survey begins."""
        self._counting = {}
        self._unseen = dict.fromkeys(self._exposed)

    def count(self, state: str) -> None:
        """The survey has met a replica in this state."""
        self._counting[state] = self._counting.get(state, 0) + 1

    def end(self) -> None:
        """The survey has seen everything: an exposed blob that it has not met is gone, by another Librarian's hand."""
        self._counted = self._counting
        for blob in self._unseen:
            self.gone(blob)
