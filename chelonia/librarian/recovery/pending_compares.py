"""Compares that are pending because a Librarian ended in the middle of a late rebuild (`rebuild --late`).

A late rebuild lists the Shepherd's quarantine too. At its end it makes the Shepherd compare, which brings those bytes
back. From its first page to its last the record of the rebuild names the Shepherd (`rebuild_record.half_reported`). A
Librarian that finds such a record when it starts, or begins to lead, asks: the author may be gone. Where the late
rebuild still runs, at another Librarian, the Shepherd compares once too often, no more.
"""

from __future__ import annotations

import logging

from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.repair.ask_after import ask_one

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
            nobodys = ReferenceId(self._on.world.ids.uuid())  # a Shepherd that lacks a requested one compares
            if self._on.nodes.present(shepherd) and await ask_one(self._on, shepherd, (nobodys,)):
                _LOG.info("%s is asked to compare: a late rebuild of what it knows has broken off", shepherd)
                self._found.discard(shepherd)
