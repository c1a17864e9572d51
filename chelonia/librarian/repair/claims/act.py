"""Renewing: keeps up the claims of copies whose bytes arrive, as `claims.decide` says.

Every Librarian renews that hears the Shepherd which takes a copy: so a copy outlives the Librarian that ordered it, and
the repair leader. Where clocks differ, the leader's counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chelonia.core.cluster.replicas import Location
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, blob_object
from chelonia.core.ports.librarian import Arriving
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership import operator_controls
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.records import PlannedTransact
from chelonia.librarian.repair.claims import decide as claims

_AWAY: Final = (Kind.NETWORK, Kind.UNAVAILABLE, Kind.TIMEOUT, Kind.OUTCOME_UNKNOWN, Kind.READ_ONLY)
"""Failures that show only that the metadata are out of reach."""


class Renewing:
    """One Librarian's renewing of claims. `behind`: the metadata have been out of reach since it last renewed claims,
    so that no plan may rest on stored claims."""

    def __init__(self, context: LibrarianContext, leading: Leading) -> None:
        self._on = context
        self._leading = leading
        self._arrivals = claims.Arrivals(context.settings.claim_ms)
        self._late = False
        self.behind = False

    async def step(self) -> None:
        """Count arrived bytes, and renew the claims that have earned it. A failed renewal stays due."""
        settings = self._on.settings
        ordered = operator_controls.control_of(self._leading.record, settings).bytes_per_s
        rate = claims.rate_min(settings.claim_bytes_per_s_min, ordered)
        due = self._arrivals.due(self._on.nodes.table.arriving(), rate, self._on.now)
        try:
            if due:
                await self._renew(due)
        except CheloniaError as error:
            self.behind = error.kind in _AWAY
            raise
        self.behind = False

    async def _renew(self, due: Mapping[Location, Arriving]) -> None:
        anyhow, self._late = self._leading.now or self._late, True
        ids = [blob_object(copy.blob) for copy in due.values()]
        blobs = await self._on.records.get(self._on.call.strongly(), ids)
        span = self._on.wall, Ms(self._on.wall + self._on.settings.claim_ms)
        for blob, (place, copy) in zip(blobs, due.items(), strict=True):
            element = claims.renewal(blob, place, copy.here, span, anyhow=anyhow)
            if element is not None:
                await self._on.records.attempt(self._on.call, PlannedTransact((element,)))
            self._arrivals.written(place)
        self._late = False
