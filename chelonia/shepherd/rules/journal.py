"""The journal: a queue of changed replicas to report, and the one report in flight. Pure; time is passed in.

Reports are numbered from 1 within a boot. A report is repeated with the same number and content until the answer's
`accepted` is exactly that number. Any other answer than that or the number before means that the two sides disagree
about the past (restored metadata, an old disk image). Then the content is renumbered after the answered number, and the
whole inventory is compared again. So reports neither vanish nor overtake.

The first report of a boot is empty: until it is accepted, a late one of an earlier boot still could be. A second one
follows at once, for the first names nothing and proves nothing about this start. Under metadata put back from a backup,
whose numbers are older, reports are numbered as of a later boot: no number comes twice.

A receipt for a replica advances the numbers too, if need be by an empty report. So a disk image from before the receipt
is recognised when it is put back (docs/design/018-returning.md).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.ids import BlobId, ReferenceId, ServiceId
from chelonia.core.ports.librarian import Report, ReportedReplica
from chelonia.core.values import replace
from chelonia.shepherd.store.lifecycle import gone

Describe = Callable[[ReferenceId], ReportedReplica | None]
"""The present state of a replica, None when it is no longer here."""


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """The effect of an answer. `done`: the report applied, None when it must be repeated. `first_try`: it was sent
    once, so the answer's `unknown` covers all of it. `diverged`: compare the inventory."""

    done: Report | None
    first_try: bool = False
    diverged: bool = False


class Journal:
    """Changed replicas not yet accepted by the namespace."""

    def __init__(self, shepherd: ServiceId, boot: int) -> None:
        self._shepherd = shepherd
        self.boot = boot
        self._due: dict[ReferenceId, int] = {}
        self._heap: list[tuple[int, ReferenceId]] = []
        self._gone: dict[ReferenceId, ReportedReplica] = {}
        self._flight: Report | None = None
        self._flight_due = 0
        self._tries = 0
        self._taken_ms = 0
        self._stale_ms: int | None = None
        self.accepted = 0
        self.rejected = 0
        """Answers in a row that did not accept the report."""

    def __len__(self) -> int:
        return len(self._due) + (len(self._flight.replicas) if self._flight else 0)

    def note(self, reference: ReferenceId, due_ms: int) -> None:
        """Report this replica, in its state by then, at `due_ms` (monotonic) or earlier."""
        old = self._due.get(reference)
        if old is None or due_ms < old:
            self._due[reference] = due_ms
            heapq.heappush(self._heap, (due_ms, reference))

    def note_gone(self, reference: ReferenceId, blob: BlobId, due_ms: int) -> None:
        """Report that a replica the namespace expects here is not here."""
        self._gone[reference] = gone(reference, blob)
        self.note(reference, due_ms)

    def may_be_reported(self, reference: ReferenceId) -> bool:
        """Whether a report that names this replica may still be applied: the one in flight, or one of an earlier boot.
        The latter can be applied until one of this boot is accepted."""
        flying = self._flight.replicas if self._flight is not None else ()
        return not self.accepted or any(r.reference == reference for r in flying)

    def erased(self, reference: ReferenceId, blob: BlobId, due_ms: int) -> bool:
        """Forget a replica erased by order; returns whether it will be reported as gone."""
        self.forget(reference)
        # Else a report that says it is alive could be applied after the order was closed, and have the last word.
        followed = self.may_be_reported(reference)
        if followed:
            self.note_gone(reference, blob, due_ms)
        return followed

    def reports_gone(self, reference: ReferenceId) -> bool:
        """Whether a report that this replica is missing is still to be accepted."""
        assert reference not in self._gone or reference in self._due, "what is gone is told when it is due"
        flying = self._flight.replicas if self._flight is not None else ()
        return reference in self._gone or any(r.reference == reference for r in flying)

    def outdated(self, now_ms: int, interval_ms: int) -> None:
        """Send a report, empty if nothing is due, now or `interval_ms` after the last new one: a receipt was given."""
        if self._stale_ms is None:
            self._stale_ms = max(now_ms, self._taken_ms + interval_ms)

    @property
    def sent(self) -> int:
        """The number of the last report taken, accepted or not."""
        return self.accepted if self._flight is None else self._flight.number

    def forget(self, reference: ReferenceId) -> None:
        """Drop this replica from the queue: the namespace has learned of it in another way."""
        self._due.pop(reference, None)
        self._gone.pop(reference, None)

    def next_due(self) -> int | None:
        """Return when the next report should be sent (monotonic ms; 0 when one is in flight), None when never."""
        if self._flight is not None:
            return 0
        due = [each for each in (self._earliest(), self._stale_ms) if each is not None]
        return min(due) if due else None

    def _earliest(self) -> int | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def all_accepted(self, until_ms: int) -> bool:
        """Whether all that was due by `until_ms` (monotonic) has been accepted, the first report of the boot too."""
        if not self.accepted or (self._flight is not None and self._flight_due <= until_ms):
            return False
        due = self._earliest()
        return due is None or due > until_ms

    def take(self, now_ms: int, limit: int, describe: Describe) -> Report | None:
        """Return the report to send now: the one in flight, else a new one of at most `limit` due replicas, else None.
        The first of a boot names no replicas."""
        if self._flight is None:
            due = self._earliest()
            self._flight_due = now_ms if due is None else due
            replicas = self._gather(now_ms, limit, describe) if self.accepted else ()
            stale = self._stale_ms is not None and self._stale_ms <= now_ms
            if not replicas and self.accepted and not stale:
                return None
            self._stale_ms, self._taken_ms = None, now_ms
            assert len(replicas) <= limit, (len(replicas), limit)
            assert self.accepted or not replicas, "the first report of a boot names nothing"
            self._flight = Report(self._shepherd, self.boot, self.accepted + 1, replicas)
            self._tries = 0
        self._tries += 1
        return self._flight

    def answered(self, accepted: int) -> ReportOutcome:
        """Take in the answer to the report in flight."""
        flight = self._flight
        assert flight is not None, "an answer without a report in flight"
        assert flight.number == self.accepted + 1, "numbers have no gaps"
        if accepted == flight.number:
            self.accepted, self._flight, self.rejected = accepted, None, 0
            if accepted == 1:
                self._stale_ms = self._taken_ms
            return ReportOutcome(flight, first_try=self._tries == 1)
        self.rejected += 1
        if accepted == flight.number - 1:
            return ReportOutcome(None)
        self._go_on_after(accepted)
        return ReportOutcome(None, diverged=True)

    def begin_anew(self, boot: int) -> None:
        """Number from 1 as of this later boot; the replicas in flight are reported after the first, empty report."""
        assert boot > self.boot, (boot, self.boot)
        self.boot, self.rejected = boot, 0
        self._go_on_after(0)

    def _go_on_after(self, accepted: int) -> None:
        """Renumber the report in flight as the next one; where that is 1, an empty one, its replicas are due again."""
        flight, self._flight = self._flight, None
        self.accepted, self._tries = accepted, 0
        if flight is not None and accepted:
            self._flight = replace(flight, number=accepted + 1)
            return
        for replica in flight.replicas if flight is not None else ():
            if replica.state is ReplicaState.DELETED:
                self._gone[replica.reference] = replica
            self.note(replica.reference, self._flight_due)

    def _gather(self, now_ms: int, limit: int, describe: Describe) -> tuple[ReportedReplica, ...]:
        replicas: list[ReportedReplica] = []
        while len(replicas) < limit:
            due = self._earliest()
            if due is None or due > now_ms:
                break
            _, reference = heapq.heappop(self._heap)
            del self._due[reference]
            missing = self._gone.pop(reference, None)
            replica = describe(reference) or missing
            if replica is not None:
                replicas.append(replica)
        return tuple(replicas)
