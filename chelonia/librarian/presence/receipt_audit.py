"""The audit of committed receipts: asks Shepherds for copies whose receipts are old, or of another start than known.

An A-Hash that takes no changes can delay the commit of a receipt. Meanwhile its Shepherd may have:

- quarantined the bytes as nobody's (Bartenders refuse receipts that are too old, but by clocks that may be wrong)
- started again, with an older image of its disk or another disk, and compared its inventory too soon to miss the copy

A Shepherd that lacks the copy compares again. This Librarian may not know of the new start yet. So it asks for copies
committed since the Shepherd was last heard as soon as it hears another start, or when they become too many. It repeats
an unanswered question a few times: a Shepherd that runs and has compared would not miss the copy for a day. Nor would
one that starts again, for differences do not name what was never reported. Where the answer is that a copy is not
there, or none comes, the next start compares everything (`rebuild_record.to_compare`). That is noted in the metadata,
which outlive this Librarian.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import REBUILD_OBJECT, Ms, ServiceId, shepherd_object
from chelonia.core.metadata import Needed
from chelonia.core.timing.clock import within
from chelonia.librarian.metadata.rebuild_record import REPORTED, may_have_named, to_compare
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.presence.health import HealthTable
from chelonia.librarian.presence.reports import reached, still_of
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

LATE_MS: Final = 30_000
"""Age of a late receipt: a name comes a moment after the bytes. Shepherds keep them for more than ten minutes."""
TRIES_MAX: Final = 5
"""Tries to ask a Shepherd that does not answer for the same copies, a lease apart."""


class ReceiptAudit:
    """One Librarian's audit of the copies that it has just committed. `table`: the starts it has heard; `_written`:
    receipts of the known start with their times of commit, oldest first."""

    def __init__(self, records: Records, world: World, call: Call, table: HealthTable) -> None:
        self._records = records
        self._world = world
        self._call = call
        self._table = table
        self._written: dict[ServiceId, deque[tuple[Ms, Receipt]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def written(self, receipts: Iterable[Receipt]) -> None:
        """Audit committed receipts. A Shepherd that lacks a copy compares by itself, at its next start at the latest. A
        silent one gets the question again, and compares when it starts."""
        old: dict[ServiceId, list[Receipt]] = {}
        now_ms, written_ms = self._world.clock.now_ms(), self._world.clock.monotonic_ms()
        for receipt in receipts:
            shepherd = receipt.location.shepherd
            is_late = now_ms - receipt.issued_ms >= LATE_MS
            if self._table.last_beat(shepherd).boot in (0, receipt.boot) and not is_late:
                self._remember(receipt, written_ms)
            else:
                old.setdefault(shepherd, []).append(receipt)
        if old:
            await asyncio.gather(*(self._ask(shepherd, late) for shepherd, late in old.items()))

    def _remember(self, receipt: Receipt, written_ms: Ms) -> None:
        shepherd = receipt.location.shepherd
        waiting = self._written.get(shepherd)
        if waiting is None:
            waiting = self._written[shepherd] = deque()
        waiting.append((written_ms, receipt))
        heard_ms = self._table.heard_ms(shepherd)
        settled_ms = -1 if heard_ms is None else heard_ms - self._world.settings.lease_ms  # it may have been on its way
        while waiting[0][0] < settled_ms:
            waiting.popleft()
        if len(waiting) >= bounds.BULK_ELEMENTS_MAX:
            del self._written[shepherd]
            self._begin(self._ask(shepherd, [receipt for _, receipt in waiting]))

    def audit(self, shepherd: ServiceId) -> None:
        """Ask a Shepherd heard again, perhaps of another start, for copies committed before that was known."""
        boot, written = self._table.last_beat(shepherd).boot, self._written.get(shepherd)
        if not boot or not written:
            return
        self._written[shepherd] = deque(each for each in written if each[1].boot == boot)
        old = [receipt for _, receipt in written if receipt.boot != boot]
        if old:
            self._begin(self._ask(shepherd, old))

    def _begin(self, asking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, shepherd: ServiceId, receipts: Sequence[Receipt], tries: int = TRIES_MAX) -> None:
        """Ask one Shepherd for these copies, at most `bounds.BULK_ELEMENTS_MAX`, with `tries` in all."""
        assert tries > 0, "the last try was the last word"
        references = [receipt.location.reference for receipt in receipts]
        port = self._world.directory.shepherd(shepherd)
        request = port.stat(self._call, tuple((reference, reference) for reference in references))
        try:
            outcomes = await within(self._world.clock, self._world.settings.lease_ms, request)
        except CheloniaError as error:
            _LOG.info("shepherd %s does not answer for %d copies: %s", shepherd, len(references), error)
            self._begin(self._ask_again(shepherd, receipts, tries))
            return
        # One that lacks a copy compares soon, unless it ends before it has noted why.
        if not (all(outcome.found for outcome in outcomes) or await self._has_noted(shepherd)):
            self._begin(self._ask_again(shepherd, receipts, tries))

    async def _ask_again(self, shepherd: ServiceId, receipts: Sequence[Receipt], tries: int) -> None:
        """Have a Shepherd compare at its next start, and ask it again later: a silent one may not start for long."""
        left = tries - 1 if await self._has_noted(shepherd) else tries
        if left:
            await self._world.clock.sleep(self._world.settings.lease_ms)
            await self._ask(shepherd, receipts, left)

    async def _has_noted(self, shepherd: ServiceId) -> bool:
        """Note that the next start of a Shepherd is to compare everything. Returns whether that is on record."""
        objects = (shepherd_object(shepherd), REBUILD_OBJECT)
        needed = (Needed("report", "boot"), Needed(REPORTED, shepherd))

        async def build() -> PlannedTransact:
            stored, record = await self._records.get(self._call.strongly(), objects, needed)
            boot = reached(stored).boot
            # Without a report its first start compares everything, or it is forgotten.
            if not boot or may_have_named(record, shepherd, boot):
                return PlannedTransact(())
            return PlannedTransact((to_compare(record, shepherd, boot), still_of(shepherd, boot)))

        try:
            await self._records.apply(self._call, build)
        except CheloniaError as error:
            _LOG.info("it is not noted yet that shepherd %s is to compare when it starts: %s", shepherd, error)
            return False
        return True
