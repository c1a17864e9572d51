"""What the repair leader has to do about blobs that only another Librarian has heard of.

Events (commits, reports) are heard by the Librarian that applied them; marks and removals are the leader's. So whoever
plans a blob that the leader has something to do about, now or when it is ripe, names it to the leader, once. So does
whoever knows no place for a copy, as long as it knows none: not every Shepherd reports to every Librarian, and the
leader may know one. What does not arrive is found by the survey.
"""

from __future__ import annotations

import logging

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId
from chelonia.core.timing.clock import within
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.worklist import STUCK_MAX

_LOG = logging.getLogger(__name__)


class LeaderNotifier:
    """One Librarian's word to the leader. `planned` notes what it should look at; `step` sends it."""

    def __init__(self, context: LibrarianContext, leading: Leading) -> None:
        self._on = context
        self._leading = leading
        self._blobs: dict[BlobId, None] = {}
        self._short: dict[BlobId, None] = {}
        """Those of which the leader was told for want of a place: they are planned again and again here."""

    def planned(self, plan: BlobPlan) -> None:
        """Note the blob if the leader has something to do about it. Beyond the bound of one call it is left to the
        survey."""
        news = plan.short > 0 and plan.blob not in self._short and len(self._short) < STUCK_MAX
        if not plan.short:
            self.gone(plan.blob)
        if (plan.ripening or news) and len(self._blobs) < bounds.BULK_ELEMENTS_MAX:
            self._blobs[plan.blob] = None
            if news:
                self._short[plan.blob] = None

    def gone(self, blob: BlobId) -> None:
        """This blob is no more, or has all the places it needs."""
        self._short.pop(blob, None)

    async def step(self) -> None:
        """Tell the leader what was noted."""
        blobs, self._blobs = tuple(self._blobs), {}
        leader = self._leading.elsewhere
        if not blobs or leader is None:
            return
        told = leader.consider(self._on.call, blobs)
        try:
            await within(self._on.world.clock, self._on.settings.lease_ms, told)
        except CheloniaError as error:
            _LOG.info("the leader was not told of %d blobs, its survey will find them: %s", len(blobs), error)
