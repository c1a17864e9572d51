"""The repair leader's duties besides repair: keep the lease, and record which Shepherds came and went.

`lease.decide` decides the lease, `health` who is present. Every write carries the lease as a condition: a leader that
was replaced without knowing it writes nothing, and learns of it by that.
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
from chelonia.librarian.metadata.rebuild_record import half_reported, litter, under_way, waiting
from chelonia.librarian.metadata.records import PlannedTransact

_LOG = logging.getLogger(__name__)


class Leading:
    """The leadership of one Librarian. It calls `began` and `ended` when it begins and ends to lead."""

    def __init__(
        self, context: LibrarianContext, me: ServiceId, *, began: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self._on = context
        self._leadership = Leadership(me, context.settings.leader_lease_ms)
        self._began, self._ended = began, ended
        self.led = False
        """Whether this Librarian led when it last looked at the lease."""
        self._term = ""
        self.record = StoredObject(REPAIR_OBJECT, 0)
        """The repair record, as last read: the lease, the administrators' orders, the positions of rounds."""
        self._rebuild: StoredObject | None = None
        self._writing = asyncio.Lock()

    @property
    def holder(self) -> str:
        """Service id of the leader, as last read."""
        return self._leadership.holder

    @property
    def elsewhere(self) -> Librarian | None:
        """The leading Librarian, where it is another one and can be reached."""
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
        """The condition that a rebuild has left useless records of deletions, as last read; None when it has not."""
        return litter(self._rebuild) if self._rebuild is not None else None

    @property
    def half_reported(self) -> tuple[ServiceId, ...]:
        """Shepherds whose knowledge a late rebuild takes in, or did until it broke off; as last read."""
        return half_reported(self._rebuild) if self._rebuild is not None else ()

    @property
    def waits_for(self) -> str:
        """Reason, in words, why all healing waits though nobody has paused it; "" when it does not."""
        return waiting(self._rebuild) if self._rebuild is not None else ""

    @property
    def now(self) -> bool:
        """Whether this Librarian leads at this moment."""
        return self._leadership.leading(self._on.now)

    def check(self) -> Element:
        """Return the condition that everything a leader writes carries."""
        return self._leadership.check()

    def heed(self, outcome: TransactOutcome) -> bool:
        """Note an unmet lease: another Librarian leads. Returns whether the transact applied."""
        if outcome.unmet is not None and outcome.unmet.change_id == LEASE:
            self._leadership.lost()
        return outcome.applied

    async def apply(self, elements: Sequence[Element]) -> bool:
        """Apply a change that only the leader may make. Returns whether it applied."""
        return self.heed(await self._on.records.attempt(self._on.call, PlannedTransact([self.check(), *elements])))

    async def keep(self, now: Ms) -> None:
        """Take or keep the lease, or notice that it is lost."""
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
        """Record which Shepherds came and went."""
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
