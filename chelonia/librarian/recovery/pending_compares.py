"""Compares that are pending because a Librarian ended in the middle of a late rebuild (`rebuild --late`).

A late rebuild lists the Shepherd's quarantine too. At its end it makes the Shepherd compare, which brings those bytes
back. From its first page to its last the record of the rebuild names the Shepherd (`rebuild_record.half_reported`). A
Librarian that finds such a record when it starts, or begins to lead, asks: the author may be gone. Where the late
rebuild still runs, at another Librarian, the Shepherd compares once too often, no more.
"""

from __future__ import annotations

import logging

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.core.timing.clock import within
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading

_LOG = logging.getLogger(__name__)


class PendingCompares:
    """The compares that one Librarian found pending."""

    def __init__(self, context: LibrarianContext, leading: Leading) -> None:
        self._on = context
        self._leading = leading
        self._found: set[ServiceId] | None = None

    def look_again(self) -> None:
        """Take the pending compares for abandoned, for the former leader may be gone."""
        self._found = None

    async def step(self) -> None:
        """Ask the present Shepherds; the answer to an absent one's next first report makes it compare
        (`rebuild_record.may_have_named`)."""
        still = self._leading.half_reported
        self._found = set(still) if self._found is None else self._found & set(still)
        for shepherd in sorted(self._found):
            if self._on.nodes.present(shepherd) and await self._has_answered(shepherd):
                self._found.discard(shepherd)

    async def _has_answered(self, shepherd: ServiceId) -> bool:
        """Ask for a replica that nobody has: a Shepherd that lacks a requested one compares its inventory."""
        nobodys = ReferenceId(self._on.world.ids.uuid())
        request = self._on.world.directory.shepherd(shepherd).stat(self._on.call, ((nobodys, nobodys),))
        try:
            await within(self._on.world.clock, self._on.settings.lease_ms, request)
        except CheloniaError as error:
            _LOG.info("%s compares later what a late rebuild that broke off has listed: %s", shepherd, error)
            return False
        _LOG.info("%s is asked to compare: a late rebuild of what it knows has broken off", shepherd)
        return True
