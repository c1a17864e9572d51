"""Balancing: goes through the Shepherds that copies should leave, and makes one more copy where that lets one go.

`balance.decide` names the moves. A copy is claimed and made as any other, and trimming removes the old one once the new
one is verified. Only the repair leader moves, at a bounded rate, and only while repair has nothing to do. A pass that
finds nothing ends it until the Shepherds change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.cluster.healing import HeldDrain
from chelonia.core.cluster.placement import Place, takes
from chelonia.core.ids import BlobId, Ms, ServiceId, blob_object, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.timing.pacing import Pace
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.repair.balance import decide as balance
from chelonia.librarian.repair.balance.decide import Balance, BalanceMove
from chelonia.librarian.repair.guard import Relief
from chelonia.librarian.repair.plan import decide as repair
from chelonia.librarian.repair.plan.act import RepairParts, endangered
from chelonia.librarian.repair.plan.decide import ApprovedShepherds, BlobPlan

MOVES_SHARE = 2
"""Share of the unordered erasures, one in so many, that evening out may cause: the rest is for repair."""

Act = Callable[[BlobPlan, StoredObject], Awaitable[None]]
"""Carries out a plan."""
Places = tuple[tuple[ServiceId, Place], ...]
"""The present Shepherds and their places."""
Shape = tuple[tuple[object, ...], ...]
"""The facts that decide whether anything should move, too coarse to change with every file."""


@dataclass(slots=True)
class _BalanceLook:
    """The findings about some blobs: moves to make, blobs that hold a drain up, and the number that are not quiet."""

    moves: list[tuple[BlobId, BalanceMove]]
    held: list[tuple[BlobPlan, StoredObject]]
    unquiet: int = 0


class Balancing:
    """One Librarian's balancing."""

    def __init__(self, context: LibrarianContext, parts: RepairParts, act: Act) -> None:
        settings = context.settings
        self._on = context
        self._parts = parts
        self._act = act
        self._tick_ms = settings.tick_ms
        self._hysteresis = settings.balance_hysteresis_percent / 100
        self._even_pace = Pace(settings.balance_bytes_per_s_max)
        self._drain_pace = Pace(settings.drain_bytes_per_s_max)
        self._count = Pace(bounds.ERASURES_UNASKED_PER_MIN_MAX / MOVES_SHARE / 60)
        self._relief = Relief(2 * (settings.trim_grace_ms + settings.tick_ms))
        self._settled: Shape | None = None
        self._settled_places: Places | None = None
        self._look_ms = Ms(0)
        self._held: dict[ServiceId, HeldDrain] = {}

    @property
    def held(self) -> tuple[HeldDrain, ...]:
        """Blobs that cannot leave drained Shepherds, by the last whole look, ordered by service id."""
        return tuple(held for _, held in sorted(self._held.items()))

    async def step(self) -> None:
        """Make one pass over the Shepherds that copies should leave, if any."""
        nodes, balanced = self._parts.planning.nodes(), self._balance()
        shape, places = self._shape(nodes), _places(nodes)
        if shape == self._settled and self._on.now < self._look_ms:
            return
        found = balance.sources(nodes, balanced)
        if balanced.even_out and places != self._settled_places:
            found = tuple(dict.fromkeys((*found, *(shepherd for shepherd, _ in places))))
        moved = waiting = 0
        self._held = {shepherd: held for shepherd, held in self._held.items() if shepherd in found}
        for shepherd in found:
            here, unquiet = await self._leave(shepherd)
            moved, waiting = moved + here, waiting + unquiet
        if not self._leads():
            return  # an unfinished look finds nothing quiet
        if not moved and not waiting:
            self._settled_places = places
        soon = moved or waiting or any(node.draining for node in nodes.health.values())
        pause = self._on.settings.backoff_max_ms if soon else self._on.settings.survey_interval_ms
        self._settled, self._look_ms = shape, Ms(self._on.now + pause)

    def leave(self) -> None:
        """Drop the findings: another Librarian leads, and makes its own."""
        self._settled = self._settled_places = None
        self._held.clear()

    async def _leave(self, shepherd: ServiceId) -> tuple[int, int]:
        """Move copies off a Shepherd. Returns: how many copies were begun, and how many files were not quiet."""
        moved, waiting, after, held = 0, 0, "", HeldDrain(shepherd, 0)
        while self._leads():
            obj = shepherd_object(shepherd)
            page = await self._on.records.scan(self._on.call, obj, "file", after, bounds.REFERENCES_PAGE)
            blobs = list(dict.fromkeys(BlobId(blob) for _, blob in page.items))
            look = self._look(shepherd, await self._read(blobs))
            for blob, move in look.moves:
                moved += await self._turn(blob, move)
            waiting += look.unquiet
            held = _more(held, look.held)
            after = page.after
            if not after:
                self._hold(held)
                break
            await self._on.world.clock.sleep(self._on.settings.survey_page_ms)
        return moved, waiting

    async def _turn(self, blob: BlobId, planned: BalanceMove) -> bool:
        """Wait for this move's turn, look again, and begin it."""
        node = self._parts.planning.nodes().health.get(planned.leaving)
        if node is None or not self._leads():
            return False
        paces = (self._drain_pace,) if node.draining else (self._even_pace, self._count)
        while (pause := max(pace.wait_ms(self._on.now) for pace in paces)) or self._busy():
            if not self._leads():
                return False
            await self._on.world.clock.sleep(min(pause, self._tick_ms) or self._tick_ms)
        for stored in await self._read((blob,)):
            fresh = self._parts.planning.planned(stored)
            if fresh is None:
                continue
            view, plan = fresh
            move = balance.move(view, plan, self._parts.planning.nodes(), self._balance())
            if move is not None and self._leads():
                self._spend(plan.size, move, draining=node.draining)
                await self._act(replace(plan, copies=(move.copy,)), stored)
                return True
        return False

    def _leads(self) -> bool:
        """Whether this Librarian still leads: it may not after each wait."""
        return self._parts.leading.now

    def _spend(self, size: int, move: BalanceMove, *, draining: bool) -> None:
        now = self._on.now
        if draining:
            self._drain_pace.spend(size, now)
        else:
            self._even_pace.spend(size, now)
            self._count.spend(1, now)
        self._relief.add(move.leaving, size, now)

    def _busy(self) -> bool:
        """Whether repair needs the capacity of balancing, or an administrator has paused both."""
        return (
            self._parts.copies.paused
            or bool(self._parts.work.dirty)
            or len(self._parts.copies) >= max(self._on.settings.copies_max // 2, 1)
        )

    def _look(self, shepherd: ServiceId, stored: Sequence[StoredObject]) -> _BalanceLook:
        nodes, balanced, look = self._parts.planning.nodes(), self._balance(), _BalanceLook([], [])
        for blob in stored:
            planned = self._parts.planning.planned(blob)
            if planned is None:
                continue
            view, plan = planned
            move = balance.move(view, plan, nodes, balanced)
            look.unquiet += not plan.quiet
            if move is not None:
                look.moves.append((plan.blob, move))
            elif balance.held(view, plan, nodes, shepherd):
                look.held.append((plan, blob))
        return look

    def _hold(self, held: HeldDrain) -> None:
        """Take over the findings of a whole look at a Shepherd."""
        self._held.pop(held.shepherd, None)
        if held.blobs:
            self._held[held.shepherd] = held

    async def _read(self, blobs: Sequence[BlobId]) -> list[StoredObject]:
        objects = [blob_object(blob) for blob in blobs]
        return [blob for blob in await self._on.records.get(self._on.call, objects) if blob.exists]

    def _balance(self) -> Balance:
        """The rules now. A moved copy weighs on its old disk until trimming has had its time."""
        even_out = bool(self._on.settings.balance_bytes_per_s_max)
        return Balance(self._hysteresis, even_out, self._relief.bytes(self._on.now))

    def _shape(self, nodes: ApprovedShepherds) -> Shape:
        step = self._hysteresis / 2 or 1.0
        return tuple(
            (
                shepherd,
                nodes.fleet.place(shepherd),
                node.draining,
                takes(node.view, 0),
                repair.fullness(node.view) // step,
            )
            for shepherd, node in sorted(nodes.health.items())
            if node.present
        )


def _more(held: HeldDrain, found: Sequence[tuple[BlobPlan, StoredObject]]) -> HeldDrain:
    """The same with more blobs, the first of which are named."""
    room = bounds.DRAIN_EXAMPLES_SHOWN - len(held.examples)
    named = tuple(endangered(plan, blob) for plan, blob in found[:room])
    return HeldDrain(held.shepherd, held.blobs + len(found), held.examples + named)


def _places(nodes: ApprovedShepherds) -> Places:
    return tuple(
        (shepherd, nodes.fleet.place(shepherd)) for shepherd, node in sorted(nodes.health.items()) if node.present
    )
