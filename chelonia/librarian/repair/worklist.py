"""The healer's worklist: dirty blobs, blobs that wait for a copy, rounds through Shepherds, and timers.

In memory only, for it can always be derived again; small state machines with monotonic time passed in. The queue is
ordered by danger (fewest verified copies, then age) and bounded. A round leaves out blobs less endangered than all that
wait, and comes back to them page by page when the queue runs low. The survey leaves blobs to the rounds that will come
to them. So memory does not grow with the loss, and the cursor of a round moves on while it is worked through.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from chelonia.core import bounds
from chelonia.core.cluster.healing import Endangered, NodeCursor
from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import BlobId, Ms, ServiceId
from chelonia.librarian.repair.progress.decide import END, RepairRound

STUCK_MAX = 100_000
"""Blobs remembered for want of a target, and blobs that events found endangered; the survey finds any beyond."""
UNPARK_SCAN = 64
"""Places in the queue searched for a copy that can begin now, when the first ones' Shepherds are busy."""

Danger = tuple[int, int, Ms, BlobId]
"""Sort key of the queue: fewest verified copies first, then rounds in their order, then age."""


@dataclass(frozen=True, slots=True)
class QueuedBlob:
    """A blob in the queue. `ways`: the copies planned, as (target, sources)."""

    endangered: Endangered
    ways: tuple[tuple[ServiceId, tuple[ServiceId, ...]], ...]


class Worklist:
    """Blobs to plan, in the order in which they became known, each at most once."""

    def __init__(self, queue_max: int = bounds.HEAL_QUEUE_MAX) -> None:
        self._queue_max = queue_max
        self._dirty: dict[BlobId, None] = {}
        self._queue: list[tuple[Danger, QueuedBlob]] = []
        self._queued: dict[BlobId, Danger] = {}
        self._generation = 0
        self._let_go: dict[BlobId, QueuedBlob] = {}
        self._stuck: dict[BlobId, None] = {}
        self._rounds: dict[ServiceId, RepairRound] = {}
        self._origin: dict[BlobId, tuple[RepairRound, str]] = {}
        self._timers: list[tuple[Ms, str, str]] = []
        self._set: dict[tuple[str, str], Ms] = {}

    def __len__(self) -> int:
        return len(self._dirty) + len(self._queue) + len(self._stuck)

    @property
    def dirty(self) -> int:
        """Blobs that can be planned now."""
        return len(self._dirty)

    @property
    def queued(self) -> int:
        """Blobs that wait for a free slot."""
        return len(self._queue)

    @property
    def stuck(self) -> int:
        """Blobs that wait for another node."""
        return len(self._stuck)

    @property
    def full(self) -> bool:
        """Whether the queue holds as many blobs as it may: from now on those found are mostly only counted."""
        return len(self._queue) >= self._queue_max

    @property
    def ample(self) -> bool:
        """Whether the queue is more than half full: one that leaves it is no reason to read on at once."""
        return 2 * len(self._queue) > self._queue_max

    # --- blobs ------------------------------------------------------------------------------------------------------

    def mark(self, blobs: Iterable[BlobId]) -> None:
        """Mark blobs that must be planned."""
        for blob in blobs:
            self._dirty[blob] = None
            self._stuck.pop(blob, None)

    def surveyed(self, blobs: Mapping[BlobId, Collection[Location]]) -> None:
        """Take over the blobs that the survey has found; each that wants a copy has its places.

        A blob that wants a copy is left to a round that will come to one of its places. A round keeps to the size of
        the queue, while a survey finds all that is lost as a few queuefuls of it are healed. The others must be
        planned.
        """
        at: dict[ServiceId, dict[str, BlobId]] = {}
        for blob, places in blobs.items():
            for place in places:
                at.setdefault(place.shepherd, {})[place.reference] = blob
        left: set[BlobId] = set()
        for shepherd, found in at.items():
            if shepherd in self._rounds:
                left.update(found[reference] for reference in self._rounds[shepherd].ahead(found))
        self.mark(blob for blob in blobs if blob not in left)

    def unmark(self, blob: BlobId) -> None:
        """Unmark a blob: the change to it is this Librarian's own."""
        self._dirty.pop(blob, None)

    def take(self, limit: int) -> list[BlobId]:
        """Take the next blobs to plan."""
        out = list(islice(self._dirty, limit))
        for blob in out:
            del self._dirty[blob]
        return out

    def settle(self, blob: BlobId) -> None:
        """Settle a blob: it is as wanted, gone, or lacks only copies that are waited for."""
        self._unqueue(blob)
        origin = self._origin.pop(blob, None)
        if origin is not None:
            origin[0].closed(origin[1])

    def stick(self, blob: BlobId) -> bool:
        """Have a blob wait for another node, or for its source, to come; False when too many do."""
        self._unqueue(blob)
        origin = self._origin.pop(blob, None)
        if origin is not None:
            origin[0].stick(origin[1])
        if len(self._stuck) >= STUCK_MAX:
            return False
        self._stuck[blob] = None
        assert len(self._stuck) <= STUCK_MAX, "beyond that the survey finds them"
        return True

    def unstick(self) -> None:
        """Mark all stuck blobs: the nodes have changed."""
        self._dirty.update(self._stuck)
        self._stuck.clear()

    # --- the queue --------------------------------------------------------------------------------------------------

    def park(self, waiting: QueuedBlob) -> None:
        """Have a blob wait for a free slot, or leave it to a later page of its round if others are more endangered."""
        blob = waiting.endangered.blob
        self._unqueue(blob)
        danger = (waiting.endangered.live, self._generation, waiting.endangered.created_ms, blob)
        if blob not in self._origin:
            if len(self._queue) >= STUCK_MAX:
                return
        elif self.full:
            worst = self._queue[-1]
            if danger[0] >= worst[0][0] or worst[1].endangered.blob not in self._origin:
                return self._leave(waiting.endangered)
            self._leave(worst[1].endangered)
        self._queued[blob] = danger
        insort(self._queue, (danger, waiting), key=itemgetter(0))
        assert len(self._queued) == len(self._queue) <= max(self._queue_max, STUCK_MAX), "each waits once, in bounds"

    def unpark(self, limit: int, fits: Callable[[QueuedBlob], bool]) -> None:
        """Let the most endangered blobs be planned again for which a copy can begin now, at most `limit` of them.

        Args:
            fits: takes room for a blob, False if there is none; called first for blobs let go before and not planned
                yet.
        """
        for waiting in self._let_go.values():
            fits(waiting)
        chosen: list[QueuedBlob] = []
        for _, waiting in self._queue[:UNPARK_SCAN]:
            if len(chosen) < limit and fits(waiting):
                chosen.append(waiting)
        for waiting in chosen:
            blob = waiting.endangered.blob
            self._unqueue(blob)
            self._let_go[blob] = waiting
            self._dirty[blob] = None
            assert blob not in self._queued, "what goes on waits no more"

    def planned(self, blob: BlobId) -> None:
        """Note that a blob was planned: its copies have their slots, or wait again."""
        self._let_go.pop(blob, None)

    def endangered(self, limit: int) -> tuple[Endangered, ...]:
        """Return the first blobs that wait."""
        return tuple(waiting.endangered for _, waiting in self._queue[:limit])

    def _unqueue(self, blob: BlobId) -> None:
        danger = self._queued.pop(blob, None)
        if danger is not None:
            _, waiting = self._queue.pop(bisect_left(self._queue, danger, key=itemgetter(0)))
            assert waiting.endangered.blob == blob, "the queue is in order: no other blob is lost in its place"
        assert len(self._queued) == len(self._queue), "each that waits is found by its blob"

    def _leave(self, endangered: Endangered) -> None:
        self._unqueue(endangered.blob)
        within, page = self._origin.pop(endangered.blob)
        assert self._rounds[within.shepherd] is within, "a round that comes back to it goes on"
        within.leave(page, endangered.live)

    # --- rounds -----------------------------------------------------------------------------------------------------

    def begin(self, fresh: RepairRound) -> None:
        """Begin a round through a Shepherd, in place of any that was under way."""
        before = self._rounds.pop(fresh.shepherd, None)
        if before is not None:
            self._origin = {blob: at for blob, at in self._origin.items() if at[0] is not before}
        self._rounds[fresh.shepherd] = fresh

    def goes_through(self, shepherd: ServiceId, loss: Ms) -> bool:
        """Return whether a round for this loss goes on already, past the time of waiting (`kept`)."""
        found = self._rounds.get(shepherd)
        return found is not None and found.kept and found.loss == loss

    def next_page(self) -> tuple[ServiceId, str] | None:
        """Return the Shepherd to read next, lost ones first, and the reference to read after."""
        unread = [found for found in self._rounds.values() if not found.read]
        first = next((found for found in unread if found.kept), unread[0] if unread else None)
        return (first.shepherd, first.after) if first else None

    def paged(self, shepherd: ServiceId, read_after: str, blobs: Iterable[BlobId], last: str) -> None:
        """Take in a page, read up to `last` ("" at the end): its blobs must be planned, unless the round began anew."""
        found = self._rounds.get(shepherd)
        if found is None or found.read or found.after != read_after:
            return
        for blob in blobs:
            if blob not in self._origin:
                self._origin[blob] = (found, read_after)
                found.opened(read_after)
            self.mark((blob,))
        found.took(last)

    def refill(self) -> None:
        """Go back to a page that was left, when the queue runs low or others are more endangered than its first."""
        low = len(self._queue) <= self._queue_max // 4
        assert low or self._queue, "a queue that is not low has a first one"
        first = None if low else self._queue[0][0][0]
        again = [found.again(first) for found in self._rounds.values()]
        self._generation += any(again)

    def cursors(self) -> dict[ServiceId, tuple[Ms, NodeCursor]]:
        """Return the cursors that are worth storing, each with the time of its loss."""
        return {found.shepherd: (found.loss, found.cursor) for found in self._rounds.values() if found.kept}

    def rounds(self) -> tuple[NodeCursor, ...]:
        """Return the cursors of all rounds that are not done, ordered by service id."""
        found = (self._rounds[shepherd].cursor for shepherd in sorted(self._rounds))
        return tuple(cursor for cursor in found if not (cursor.read and cursor.after == END))

    @property
    def read_share(self) -> float:
        """Share of the lost Shepherds that has been read, 0 to 1."""
        shares = [found.share for found in self._rounds.values() if found.kept]
        return sum(shares) / len(shares) if shares else 1.0

    @property
    def unplanned(self) -> int:
        """Blobs of lost Shepherds that were read and not planned yet."""
        lost = (blob for blob in self._dirty if blob not in self._let_go and blob in self._origin)
        return sum(self._origin[blob][0].kept for blob in lost)

    def leave_nodes(self) -> None:
        """Drop all rounds: another Librarian goes through Shepherds from now on."""
        self._rounds.clear()
        self._origin.clear()
        self._timers = [timer for timer in self._timers if timer[1] == "blob"]
        heapq.heapify(self._timers)
        self._set = {key: due for key, due in self._set.items() if key[0] == "blob"}
        assert len(self._set) <= len(self._timers), "the timers of blobs stay"

    # --- timers -----------------------------------------------------------------------------------------------------

    def blob_at(self, due: Ms, blob: BlobId) -> None:
        """Plan a blob at a time."""
        self._at(due, "blob", blob)

    def node_at(self, due: Ms, shepherd: ServiceId) -> None:
        """Go through a Shepherd at a time."""
        self._at(due, "node", shepherd)

    def _at(self, due: Ms, kind: str, key: str) -> None:
        """Set a timer; one that would ring earlier for the same thing is enough, for it sets the next."""
        if self._set.get((kind, key), due + 1) > due:
            self._set[(kind, key)] = due
            heapq.heappush(self._timers, (due, kind, key))
        assert len(self._set) <= len(self._timers), "whatever is set has a timer that will ring"

    def ring(self, now: Ms) -> tuple[ServiceId, ...]:
        """Mark the blobs that are due. Returns the Shepherds to go through now."""
        due_nodes: dict[ServiceId, None] = {}
        while self._timers and self._timers[0][0] <= now:
            due, kind, key = heapq.heappop(self._timers)
            if self._set.get((kind, key)) == due:
                del self._set[(kind, key)]
            if kind == "blob":
                self.mark((BlobId(key),))
            else:
                due_nodes[ServiceId(key)] = None
        assert len(self._set) <= len(self._timers), "what is still set has not lost its timer"
        return tuple(due_nodes)
