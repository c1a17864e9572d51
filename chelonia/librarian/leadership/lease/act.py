"""What the Librarian that leads repair does besides repairing: keep the lease, and write which Shepherds came and went.

The lease itself is decided in `lease.decide`, who is there in `health`. Every write carries the lease as a condition: a
leader that has been replaced without knowing it writes nothing, and learns of it by that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from chelonia.core.ids import REBUILD_OBJECT, REPAIR_OBJECT, Ms, ServiceId, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element, TransactOutcome
from chelonia.core.ports.librarian import Librarian
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease import decide as leader
from chelonia.librarian.leadership.lease.decide import Leadership
from chelonia.librarian.metadata.elements import LEASE, put
from chelonia.librarian.metadata.rebuild_record import half_told, litter, under_way, waiting
from chelonia.librarian.metadata.records import PlannedTransact

_LOG = logging.getLogger(__name__)


class Leading:
    """One Librarian's leading of repair. `began` and `ended` are called when it begins and ends."""

    def __init__(
        self, context: LibrarianContext, me: ServiceId, *, began: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self._on = context
        self._leadership = Leadership(me, context.settings.leader_lease_ms)
        self._began, self._ended = began, ended
        self.led = False
        """Whether this Librarian led when the lease was last looked at."""
        self._term = ""
        self.record = StoredObject(REPAIR_OBJECT, 0)
        """The record of repair, as last read: beside the lease, what was ordered and how far rounds have come."""
        self._rebuild: StoredObject | None = None
        self._writing = asyncio.Lock()

    @property
    def holder(self) -> str:
        """Who leads, as last read."""
        return self._leadership.holder

    @property
    def elsewhere(self) -> Librarian | None:
        """The Librarian that leads, where that is another one that can be asked."""
        neighbours = self._on.world.neighbours
        if self.now or not self.holder or neighbours is None:
            return None
        return neighbours.librarian(ServiceId(self.holder))

    @property
    def rebuilding(self) -> bool:
        """Whether a rebuild of the namespace has begun and not ended well, as last read; True until it is read."""
        return self._rebuild is None or under_way(self._rebuild)

    @property
    def litter(self) -> Element | None:
        """When a rebuild has left a record of deleted blobs that is of no use to anybody, as last read: the condition
        that it is still so."""
        return litter(self._rebuild) if self._rebuild is not None else None

    @property
    def half_told(self) -> tuple[ServiceId, ...]:
        """The Shepherds of which a late rebuild takes in what they know, or did so until it broke off, as last read."""
        return half_told(self._rebuild) if self._rebuild is not None else ()

    @property
    def waits_for(self) -> str:
        """What all healing waits for though nobody has paused it, in words; "" when it does not."""
        return waiting(self._rebuild) if self._rebuild is not None else ""

    @property
    def now(self) -> bool:
        """Whether this Librarian leads at this moment."""
        return self._leadership.leading(self._on.now)

    def check(self) -> Element:
        """The condition that everything a leader writes carries."""
        return self._leadership.check()

    def heed(self, outcome: TransactOutcome) -> bool:
        """Note an unmet lease: somebody else leads. Returns whether the transact applied."""
        if outcome.unmet is not None and outcome.unmet.change_id == LEASE:
            self._leadership.lost()
        return outcome.applied

    async def apply(self, elements: Sequence[Element]) -> bool:
        """Apply what only the leader may. Returns whether it went through."""
        return self.heed(await self._on.records.attempt(self._on.call, PlannedTransact([self.check(), *elements])))

    async def keep(self, now: Ms) -> None:
        """Take, keep or notice the loss of the lease."""
        records, call = self._on.records, self._on.call
        self.record, self._rebuild = await records.get(call.strongly(), (REPAIR_OBJECT, REBUILD_OBJECT))
        records.heed(self._rebuild)
        self._leadership.observe(leader.parse(self.record), now)
        bid = self._leadership.bid(now, self._on.wall)
        if bid is not None and (await records.attempt(call, PlannedTransact(bid.elements(), cause="lease"))).applied:
            self._leadership.won(bid)
        before, self.led = self.led, self._leadership.leading(now)
        if self.led and (not before or self._term != self._leadership.term):
            _LOG.info("repair is led here from now on")
            self._term = self._leadership.term
            self._on.nodes.table.lead(now)
            self._began()
        elif before and not self.led:
            _LOG.info("repair is no longer led here")
            self._on.nodes.table.follow()
            self._ended()

    async def write_transitions(self, now: Ms) -> None:
        """Write which Shepherds came and went."""
        async with self._writing:
            for transition in self._on.nodes.table.transitions(now):
                wall, left_until = self._on.wall, self._on.nodes.left_until_ms() if transition.left else Ms(0)
                obj = shepherd_object(transition.shepherd)
                elements = [
                    put(obj, "node", "state", transition.state),
                    put(obj, "node", "since_ms", str(wall)),
                    put(obj, "node", "left_until_ms", str(left_until)),
                ]
                if not await self.apply(elements):
                    return
                _LOG.info("shepherd %s: %s -> %s", transition.shepherd, transition.before or "new", transition.state)
                self._on.nodes.written(transition, wall, left_until)
