"""The listing of Shepherds' records, page by page: which Shepherds to wait for, and which to pass over.

- A Shepherd that answers with errors gets more tries for half a minute, one that keeps silent for a minute.
- One that reports that it is starting gets a quarter of an hour in all, beside that.
- One that lists more pages than its stated inventory fills, or the same page again, would go on for ever. It is passed
  over as if it were away.

So each holds up a rebuild for that time and a minute for each page of its stated inventory, at most. One that states
too much holds it up until it is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import SNAPSHOTS_OBJECT, Guid, Ms, ObjectId, ServiceId, is_guid, is_uuid
from chelonia.core.ports.shepherd import RecordPage, ReplicaRecord, Shepherd, ShepherdStatus
from chelonia.core.timing.clock import within
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

PAUSES_MS: Final = (1_000, 2_000, 4_000, 8_000, 16_000)
"""Pauses between tries to read from a Shepherd, its records or a snapshot: a restart is no reason to lose it."""
ANSWER_MS: Final = 60_000
"""Time for one answer (a page is read from a disk that may be busy), and for all tries for it, about."""
START_MS: Final = 15 * 60_000
"""Time in all to wait, beside that, for a Shepherd that reports that it is starting. After a night without power it may
read a record for each of a million replicas."""
PAGES_SPARE: Final = 8
"""Pages allowed beyond twice the inventory: the last ones may be empty, and bytes may still arrive."""

Look = Callable[[ServiceId, Sequence[ReplicaRecord]], Awaitable[None]]
"""Listener that gets each page of a Shepherd's records."""


class RecordListing:
    """The records of all Shepherds. `note`: takes notes. `answering`: Shepherds that list their records, or have."""

    def __init__(self, context: LibrarianContext, note: Callable[[str], None]) -> None:
        self._on = context
        self._note = note
        self.answering: set[ServiceId] = set()
        self._endless: set[ServiceId] = set()
        self._status: dict[ServiceId, ShepherdStatus] = {}
        self._starting_ms: dict[ServiceId, int] = {}

    def begin(self) -> None:
        """Ask again the Shepherds that were passed over."""
        self._endless.clear()
        self._starting_ms.clear()

    async def each_page(self, look: Look) -> None:
        """Go through the records of every present Shepherd; note the others."""
        for shepherd in self._on.nodes.table.shepherds():
            if shepherd in self._endless:
                continue
            if not self._on.nodes.present(shepherd) and shepherd not in self.answering:
                self._note(f"{shepherd} is away: what only it holds is not found")
                continue
            why = await self._pages(shepherd, look)
            if why:
                self.answering.discard(shepherd)
                self._note(f"{shepherd} {why}: what only it holds is not found")

    async def of(self, shepherd: ServiceId, look: Look) -> str:
        """Go through the records of one that was away before; returns the reason of a failure, "" for none."""
        self.begin()
        return await self._pages(shepherd, look) if self._on.nodes.present(shepherd) else "is away"

    def readmissions_max(self, shepherd: ServiceId) -> int:
        """Return how often to ask a Shepherd, at most, to bring back the quarantine that it states."""
        status = self._status.get(shepherd)
        return (status.quarantined if status is not None else 0) // bounds.READMITTED_MAX + 2

    async def _pages(self, shepherd: ServiceId, look: Look) -> str:
        """Go through the records of one; returns why it was given up, "" when it listed all."""
        call, after = self._on.call, ""
        try:
            status = self._status[shepherd] = await self._answer(shepherd, lambda port: port.status(call))
            for _ in range(2 * (status.replicas + status.quarantined) // bounds.REFERENCES_PAGE + PAGES_SPARE):
                page = await self._answer(shepherd, partial(_records, call=call, after=after))
                self.answering.add(shepherd)
                await look(shepherd, [_readable(item) for item in page.items])
                if not page.after:
                    return ""
                if shepherd not in self._on.nodes.table.shepherds():
                    return "was withdrawn while it told its records"
                if page.after == after:
                    break
                after = page.after
        except _SilentError as silent:
            return f"stopped answering ({silent.cause})"
        self._endless.add(shepherd)
        return f"does not come to the end of the {status.replicas + status.quarantined} records it says it has"

    async def _answer(self, shepherd: ServiceId, request: Callable[[Shepherd], Coroutine[Any, Any, T]]) -> T:
        """An answer of a Shepherd, after waiting for it. Raises: _SilentError."""
        cause, world, start = "", self._on.world, self._on.now
        for pause_ms in (*PAUSES_MS, 0):
            start = Ms(start + await self._started(shepherd))
            try:
                return await within(world.clock, ANSWER_MS, request(world.directory.shepherd(shepherd)))
            except CheloniaError as error:
                _LOG.info("the records of %s are not told: %s", shepherd, error)
                cause = error.cause
            if self._on.now - start >= ANSWER_MS:
                break
            await world.clock.sleep(pause_ms)
        raise _SilentError(cause)

    async def _started(self, shepherd: ServiceId) -> int:
        """Wait for a Shepherd that reports that it is starting, within its time; returns the milliseconds waited."""
        nodes, start, before_ms = self._on.nodes, self._on.now, self._starting_ms.get(shepherd, 0)
        while nodes.present(shepherd) and nodes.table.last_beat(shepherd).starting:
            waited_ms = self._starting_ms[shepherd] = before_ms + self._on.now - start
            if waited_ms >= START_MS:
                break
            if not waited_ms:
                self._note(f"{shepherd} is starting: it is waited for")
            await self._on.world.clock.sleep(PAUSES_MS[0])
        return self._on.now - start


class _SilentError(Exception):
    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


def _readable(item: ReplicaRecord) -> ReplicaRecord:
    """A record without its facts where they are malformed: a replica listed with those would harm its blob. A GUID that
    nothing can have, which nobody could look up, is none."""
    facts = item.facts
    named = is_uuid(item.reference) and facts is not None and is_uuid(facts.blob)
    if facts is None or not (named and 0 <= facts.size <= bounds.FILE_BYTES_MAX):
        return replace(item, facts=None)
    known = is_guid(facts.guid) or ObjectId(facts.guid) == SNAPSHOTS_OBJECT
    return item if known else replace(item, facts=replace(facts, guid=Guid("")))


def _records(port: Shepherd, *, call: Call, after: str) -> Coroutine[Any, Any, RecordPage]:
    return port.records(call, after, bounds.REFERENCES_PAGE)
