"""Asking after copies whose receipts are old, or of another start than the one heard of now.

A receipt may be committed long after it was given (an A-Hash that took nothing meanwhile). Its Shepherd may have set
the bytes aside as nobody's: Bartenders take none that are too old, but by clocks that may be wrong. If it has started
again since, with an older image of its disk or another disk, it has compared its inventory too soon to miss the copy.
Asked for one that it does not have, it compares again. This Librarian may not have heard of that start yet: what was
written since the Shepherd was last heard is asked for as soon as another start is heard; of one that is not heard here
for long, before it is too much to remember. Who does not answer is asked again some times: one that runs, and has
compared, would not miss the copy for a day.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.timing.clock import within
from chelonia.librarian.presence.health import HealthTable
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

LATE_MS: Final = 30_000
"""A receipt so old is late: a name comes a moment after the bytes. Shepherds keep them for more than ten minutes."""
TRIES_MAX: Final = 5
"""How often a Shepherd that does not answer is asked for the same copies, a lease apart."""


class ReceiptAudit:
    """One Librarian's questions after copies it has just written down. `table`: which starts it has heard of, and when;
    `_written`: receipts of the start it knows, each with the time at which it was committed, oldest first."""

    def __init__(self, world: World, call: Call, table: HealthTable) -> None:
        self._world = world
        self._call = call
        self._table = table
        self._written: dict[ServiceId, deque[tuple[Ms, Receipt]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def written(self, receipts: Iterable[Receipt]) -> None:
        """These receipts have been committed. What a Shepherd answers it acts on itself; one that is silent now is
        asked again later, and compares when it starts again."""
        old: dict[ServiceId, list[Receipt]] = {}
        for receipt in receipts:
            shepherd = receipt.location.shepherd
            is_late = self._world.clock.now_ms() - receipt.issued_ms >= LATE_MS
            if self._table.boot(shepherd) in (0, receipt.boot) and not is_late:
                self._remember(receipt)
            else:
                old.setdefault(shepherd, []).append(receipt)
        if old:
            await asyncio.gather(*(self._ask(shepherd, late) for shepherd, late in old.items()))

    def _remember(self, receipt: Receipt) -> None:
        shepherd = receipt.location.shepherd
        waiting = self._written.setdefault(shepherd, deque())
        waiting.append((self._world.clock.monotonic_ms(), receipt))
        heard_ms = self._table.heard_ms(shepherd)
        settled_ms = -1 if heard_ms is None else heard_ms - self._world.settings.lease_ms  # it may have been on its way
        while waiting[0][0] < settled_ms:
            waiting.popleft()
        if len(waiting) >= bounds.BULK_ELEMENTS_MAX:
            del self._written[shepherd]
            self._begin_asking(shepherd, [receipt for _, receipt in waiting])

    def heard(self, shepherd: ServiceId) -> None:
        """A Shepherd was heard again, perhaps of another start: ask for what was written before that was known."""
        boot, written = self._table.boot(shepherd), self._written.get(shepherd)
        if not boot or not written:
            return
        self._written[shepherd] = deque(each for each in written if each[1].boot == boot)
        old = [receipt for _, receipt in written if receipt.boot != boot]
        if old:
            self._begin_asking(shepherd, old)

    def _begin_asking(
        self, shepherd: ServiceId, receipts: Sequence[Receipt], tries: int = TRIES_MAX, after_ms: int = 0
    ) -> None:
        task = asyncio.ensure_future(self._ask_later(shepherd, receipts, tries, after_ms))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_later(self, shepherd: ServiceId, receipts: Sequence[Receipt], tries: int, after_ms: int) -> None:
        if after_ms:
            await self._world.clock.sleep(after_ms)
        await self._ask(shepherd, receipts, tries)

    async def _ask(self, shepherd: ServiceId, receipts: Sequence[Receipt], tries: int = TRIES_MAX) -> None:
        """Ask one Shepherd for these copies, at most `bounds.BULK_ELEMENTS_MAX`; without an answer so many tries in all
        are made."""
        references = [receipt.location.reference for receipt in receipts]
        port = self._world.directory.shepherd(shepherd)
        asked = port.stat(self._call, tuple((reference, reference) for reference in references))
        try:
            await within(self._world.clock, self._world.settings.lease_ms, asked)
        except CheloniaError as error:
            _LOG.info("shepherd %s does not answer for %d copies: %s", shepherd, len(references), error)
            if tries > 1:
                self._begin_asking(shepherd, receipts, tries - 1, self._world.settings.lease_ms)
