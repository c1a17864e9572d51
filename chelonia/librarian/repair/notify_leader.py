"""Notices to the repair leader about blobs of which only another Librarian has heard.

The Librarian that applies a commit or a report is the one to hear of it, but marks and removals are the leader's. So a
Librarian names a blob to the leader, once, when its plan has something for the leader, now or when it is ripe. It also
names one for which it knows no place: not every Shepherd reports to every Librarian, and the leader may know a place.
The survey finds blobs whose notices are lost.
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
    """One Librarian's notices to the leader: `planned` gathers blobs, `step` sends them."""

    def __init__(self, context: LibrarianContext, leading: Leading) -> None:
        self._on = context
        self._leading = leading
        self._blobs: dict[BlobId, None] = {}
        self._short: dict[BlobId, None] = {}
        """Blobs that were named for want of a place: they are planned again and again here."""

    def planned(self, plan: BlobPlan) -> None:
        """Gather a blob that has something for the leader; beyond the bound of one call the survey finds it."""
        news = plan.short > 0 and plan.blob not in self._short and len(self._short) < STUCK_MAX
        if not plan.short:
            self.gone(plan.blob)
        if (plan.ripening or news) and len(self._blobs) < bounds.BULK_ELEMENTS_MAX:
            self._blobs[plan.blob] = None
            if news:
                self._short[plan.blob] = None

    def gone(self, blob: BlobId) -> None:
        """Drop a blob that is gone, or has all the places it needs."""
        self._short.pop(blob, None)

    async def step(self) -> None:
        """Send the leader the blobs gathered."""
        blobs, self._blobs = tuple(self._blobs), {}
        leader = self._leading.elsewhere
        if not blobs or leader is None:
            return
        request = leader.consider(self._on.call, blobs)
        try:
            await within(self._on.world.clock, self._on.settings.lease_ms, request)
        except CheloniaError as error:
            _LOG.info("the leader was not told of %d blobs, its survey will find them: %s", len(blobs), error)
