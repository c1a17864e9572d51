"""The progress of healing: rounds begun where they were left, their stored cursors, rate and forecast, all shown.

`progress.decide`, `forecast` and `operator_controls` decide. The repair leader writes the moved cursors in one
transact, at most once a leader's lease: a new leader reads that much again.
"""

from __future__ import annotations

from chelonia.core import bounds
from chelonia.core.cluster.healing import Exposed, HealControl, HealStatus, NodeCursor
from chelonia.core.cluster.placement import NODE_OFFLINE
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership import operator_controls
from chelonia.librarian.repair import forecast
from chelonia.librarian.repair.forecast import KnownLoss, Rate, outlook
from chelonia.librarian.repair.plan.act import RepairParts
from chelonia.librarian.repair.progress.decide import RepairRound


class HealingProgress:
    """The progress of one Librarian's healing."""

    def __init__(self, context: LibrarianContext, parts: RepairParts, rate: Rate) -> None:
        self._on = context
        self._work = parts.work
        self._tally = parts.tally
        self._leading = parts.leading
        self._copies = parts.copies
        self._rate = rate
        self._stored_ms = Ms(0)
        self._ordered = self._leading.record, operator_controls.control_of(self._leading.record, context.settings)

    def copied(self, size: int) -> None:
        """Note that a copy of so many bytes was made."""
        self._tally.copied(size)

    def ended(self) -> None:
        """Note that a copy has ended, well or not."""
        if not len(self._copies) and len(self._work) > self._work.stuck:
            self._rate.waits(self._on.now)

    def begin(self, shepherd: ServiceId) -> None:
        """Have all blobs of a Shepherd planned; for a lost one, from where the last leader was."""
        stored = self._on.nodes.table.stored(shepherd)
        if stored is None or stored.state != NODE_OFFLINE:
            self._work.begin(RepairRound(shepherd))
            return
        waited_for = max(stored.since_ms + self._on.settings.repair_delay_ms, stored.excused_until_ms)
        if self._on.wall < waited_for or self._on.now < self._on.nodes.table.awaited_ms(shepherd):
            self._work.begin(RepairRound(shepherd, stored.since_ms))
            return
        if not self._work.goes_through(shepherd, stored.since_ms):
            loss, after = operator_controls.cursors_of(self._leading.record).get(shepherd, (Ms(0), ""))
            self._work.begin(
                RepairRound(shepherd, stored.since_ms, after if loss == stored.since_ms else "", kept=True)
            )

    async def tick(self, now: Ms) -> None:
        """Store the cursors of the rounds."""
        if self._leading.now and now - self._stored_ms >= self._on.settings.leader_lease_ms:
            self._stored_ms = now
            elements = operator_controls.moved(operator_controls.cursors_of(self._leading.record), self._work.cursors())
            if elements:
                await self._leading.apply(elements)

    @property
    def control(self) -> HealControl:
        """The controls in force."""
        record = self._leading.record
        if record is not self._ordered[0]:  # used at each heartbeat, read anew each tick
            self._ordered = record, operator_controls.control_of(record, self._on.settings)
        return self._ordered[1]

    @property
    def cursors(self) -> tuple[NodeCursor, ...]:
        """Cursors of rounds through Shepherds, and of Shepherds still listened for, which may get one."""
        rounds, unsure = self._work.rounds(), self._on.nodes.table.unsure(self._on.now)
        return (*rounds, *(NodeCursor(shepherd, "", False) for shepherd in unsure))

    def status(self) -> HealStatus:
        """Return the whole status, as far as this Librarian knows it."""
        work, done = self._tally.work, self._tally.done
        control = self.control
        per_min, per_s = self._rate.recent(self._on.now)
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
            forecast_ms=self._forecast_ms(),
            queue=self._work.endangered(bounds.HEAL_QUEUE_SHOWN),
            cursors=self.cursors,
            waits_for=self._leading.waits_for,
            nodes=self._copies.loads(),
            lost=self._tally.lost,
            lost_named=self._tally.lost_named,
            unreachable=self._tally.unreachable,
        )
        return replace(status, forecast_ms=forecast.UNKNOWN) if status.at_rest else status

    def _forecast_ms(self) -> int:
        """Milliseconds until all is copied; -1 when unknown."""
        work = self._tally.work
        expected = outlook(
            KnownLoss(work.copies, work.bytes, *self._tally.done, self._work.unplanned, self._work.read_share)
        )
        if expected is None or (self.control.paused and expected[0]):
            return forecast.UNKNOWN
        at_once = self._copies.at_once
        until = self._rate.forecast_ms(*expected, self._on.now, at_once)
        least = forecast.limited_ms(expected[1], self.control.bytes_per_s, min(len(self._copies.ends) or 1, at_once))
        return until if until == forecast.UNKNOWN else max(until, least)
