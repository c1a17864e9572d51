"""How far healing is: rounds begun where they were left, their cursors stored, rate and forecast, all shown.

Decisions stand in `rounds`, `forecast` and `steering`. Cursors are written by the repair leader, all that moved in one
transact, at most once a leader's lease: that much is looked at again after a change of leader.
"""

from __future__ import annotations

from dataclasses import replace

from chelonia.core import bounds
from chelonia.core.healing import Exposed, HealControl, HealStatus, NodeCursor
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.placement import NODE_OFFLINE
from chelonia.librarian import forecast, steering
from chelonia.librarian.copies import Copies
from chelonia.librarian.footing import Footing
from chelonia.librarian.forecast import Rate, Seen
from chelonia.librarian.leading import Leading
from chelonia.librarian.rounds import Round
from chelonia.librarian.tally import Tally
from chelonia.librarian.worklist import Worklist


class Progress:
    """Of one Librarian's healing."""

    def __init__(self, footing: Footing, work: Worklist, tally: Tally, leading: Leading, copies: Copies) -> None:
        self._on = footing
        self._work = work
        self._tally = tally
        self._leading = leading
        self._copies = copies
        self._rate = Rate()
        self._ticked_ms = footing.now
        self._stored_ms = Ms(0)
        self._ordered = leading.record, steering.control_of(leading.record, footing.settings)

    def copied(self, size: int) -> None:
        """A copy of so many bytes was made."""
        self._rate.copied(size)
        self._tally.copied(size)

    def begin(self, shepherd: ServiceId) -> None:
        """Have all blobs of a Shepherd planned; of one that is lost, from where the last leader was."""
        stored = self._on.nodes.table.stored(shepherd)
        if stored is None or stored.state != NODE_OFFLINE:
            self._work.begin(Round(shepherd))
            return
        waited_for = max(stored.since_ms + self._on.settings.repair_delay_ms, stored.excused_until_ms)
        if self._on.wall < waited_for or self._on.now < self._on.nodes.table.awaited_ms(shepherd):
            self._work.begin(Round(shepherd, stored.since_ms))
            return
        if not self._work.goes_through(shepherd, stored.since_ms):
            loss, after = steering.cursors_of(self._leading.record).get(shepherd, (Ms(0), ""))
            self._work.begin(Round(shepherd, stored.since_ms, after if loss == stored.since_ms else "", kept=True))

    async def tick(self, now: Ms) -> None:
        """Learn from what was copied, and store how far the rounds are."""
        busy = now - self._ticked_ms if len(self._copies) or self._rate.unlearned else 0
        self._rate.tick(now, busy, (len(self._copies), self._copies.bytes))
        self._ticked_ms = now
        if self._leading.now and now - self._stored_ms >= self._on.settings.leader_lease_ms:
            self._stored_ms = now
            elements = steering.moved(steering.cursors_of(self._leading.record), self._work.cursors())
            if elements:
                await self._leading.apply(elements)

    @property
    def control(self) -> HealControl:
        """What is in force."""
        record = self._leading.record
        if record is not self._ordered[0]:  # asked at each heartbeat, read anew each tick
            self._ordered = record, steering.control_of(record, self._on.settings)
        return self._ordered[1]

    @property
    def cursors(self) -> tuple[NodeCursor, ...]:
        """Of every Shepherd that is being gone through."""
        return self._work.rounds()

    def status(self) -> HealStatus:
        """The whole picture, as far as this Librarian has it."""
        work, done = self._tally.work, self._tally.done
        control = self.control
        per_min, per_s = self._rate.recent(self._on.now)
        seen = Seen(work.copies, work.bytes, *done, self._work.unplanned, self._work.read_share)
        expected, cost = forecast.outlook(seen), None if control.paused else self._rate.cost
        until = forecast.forecast_ms(*expected, cost) if expected else forecast.UNKNOWN
        status = HealStatus(
            leader=self._leading.holder,
            is_leader=self._leading.now,
            control=control,
            exposed=tuple(Exposed(live, blobs) for live, blobs in work.by_live.items()),
            delayed=work.delayed,
            stuck=work.stuck,
            copies_to_go=work.copies,
            bytes_to_go=work.bytes,
            copies_done=done[0],
            bytes_done=done[1],
            copying=len(self._copies),
            copies_per_min=per_min,
            bytes_per_s=per_s,
            forecast_ms=until,
            queue=self._work.endangered(bounds.HEAL_QUEUE_SHOWN),
            cursors=self._work.rounds(),
            waits_for=self._leading.waits_for,
            nodes=self._copies.loads(),
        )
        return replace(status, forecast_ms=forecast.UNKNOWN) if status.at_rest else status
