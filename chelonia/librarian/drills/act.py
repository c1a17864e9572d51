"""Drills in one Librarian: the repair leader begins one, watches it, and calls it off when something else goes wrong.

`decide` says what may begin and how far a drill is. The leader stores the drill, under its lease, before it sends the
Shepherd the order: its successor finds the drill and goes on watching. The harm ends without anybody: a silent Shepherd
comes back by itself, and repair replaces a damaged copy as it does any other.
Invariant: a drill whose Shepherd may be silent is running. It ends once the Shepherd has confirmed that it answers, or
is late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.drills import Drill, DrillAction, DrillOrder, DrillStage, DrillStatus, ShepherdDrill
from chelonia.core.cluster.healing import Exposed
from chelonia.core.cluster.placement import NODE_OFFLINE
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import REPAIR_OBJECT, BlobId, Ms, ReferenceId, ServiceId, blob_object, shepherd_object
from chelonia.core.timing.clock import within
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.drills import decide as drills
from chelonia.librarian.drills.decide import DRILL, DrillView, Holding, Scene
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.metadata.elements import check, isnot
from chelonia.librarian.repair.plan.read import Planning
from chelonia.librarian.repair.progress.act import HealingProgress
from chelonia.librarian.repair.tally import RepairTally
from chelonia.librarian.repair.trim import Trimming

_LOG = logging.getLogger(__name__)

SETTLE_MS = 3_000
"""Longest wait until all is whole: on a busy cluster a file that was just stored has a copy under way."""
OBEY_MS = 10_000
"""Time that a Shepherd gets to obey, at least: its disk may be busy."""
_UNKNOWN = frozenset({Kind.NETWORK, Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN, Kind.INTERNAL})
"""Failures of an order after which the Shepherd may have obeyed, or do so yet."""


class LibrarianDrills:
    """The drills of one Librarian. Call `step` every tick."""

    def __init__(
        self,
        context: LibrarianContext,
        leading: Leading,
        planning: Planning,
        counts: tuple[RepairTally, HealingProgress, Trimming],
    ) -> None:
        self._on = context
        self._leading = leading
        self._planning = planning
        self._tally, self._progress, self._trimming = counts
        self._drill: Drill | None = None
        self._watching = ""
        self._stopped = ""
        self._answered = ("", Ms(0))
        """The drill whose Shepherd has confirmed that it answers, and does nothing more of it; and when."""
        self._busy = asyncio.Lock()

    # --- orders -------------------------------------------------------------------------------------------------------

    async def order(self, call: Call, order: DrillOrder) -> DrillStatus:
        """Begin a drill, check whether one may begin, or call one off; every Librarian passes this on to the leader. An
        order repeated under its request key returns the status of its drill."""
        if not call.has(Role.LIBRARIAN):
            order = replace(order, by=call.dn)
        drills.check_order(order, self._on.settings)
        leader = self._leading.elsewhere
        if not self._leading.now:
            if call.has(Role.LIBRARIAN) or leader is None:
                cause = "nobody leads repair at the moment; try again in a few seconds"
                raise CheloniaError(Kind.UNAVAILABLE, "drill", cause=cause)
            return await leader.drill(self._on.call.keyed(call.request_key), order)
        async with self._busy:
            drill_id = drills.order_id(order.by, call.request_key) or self._on.world.ids.uuid()
            if drill_id in (self._current().id, self._stopped):
                return self.own_status()
            if order.action is not DrillAction.STOP:
                return await self._begin(drill_id, order)
            stopped = await self._stop(order)
            self._stopped = drill_id
            return stopped

    def own_status(self) -> DrillStatus:
        """Return the present or last drill as this Librarian knows it."""
        drill = self._current()
        work = self._tally.watched if drill.running and self._watching == drill.id else {}
        return DrillStatus(drill, self._on.wall, tuple(Exposed(live, blobs) for live, blobs in sorted(work.items())))

    async def status(self) -> DrillStatus:
        """Return the present or last drill, by the leader if it answers, else as this Librarian knows it."""
        leader = self._leading.elsewhere
        if leader is None:
            return self.own_status()
        try:
            return await leader.drill_status(self._on.call)
        except CheloniaError as error:
            _LOG.info("the leader does not say how far a drill is: %s", error)
            return self.own_status()

    def _current(self) -> Drill:
        stored = drills.stored_drill(self._leading.record)  # newer where a beginning failed, but was stored
        return stored if self._drill is None or stored.number > self._drill.number else self._drill

    # --- beginning --------------------------------------------------------------------------------------------------

    async def _begin(self, drill_id: str, order: DrillOrder) -> DrillStatus:
        scene = await self._settled()
        if reasons := drills.unready(scene):
            raise _refusal(order, reasons)
        shepherd, holdings = await self._chosen(order, scene)
        made = Drill(drill_id, shepherd=shepherd, files=len(holdings), began_ms=self._on.wall)
        if order.action is DrillAction.CORRUPT:
            target = await self._target(shepherd, drills.spare_copies(holdings, scene, shepherd))
            made = replace(made, reference=target.reference, blob=target.blob, name=target.name, files=1)
            holdings = [target]
        drill = drills.begin(order, self._current(), made, self._on.settings)
        if order.check_only:
            return DrillStatus(replace(drill, stage=DrillStage.NONE), self._on.wall)
        await self._store_first(drill)
        self._watch(drill, holdings)
        _LOG.warning(
            "DRILL %s begins by order of %s: %s of %s, %d files; what is missing or damaged there meanwhile is meant",
            drill.id, drill.by, drill.action.value, shepherd, drill.files,
        )  # fmt: skip
        try:
            await self._send(drill, drill.action)
        except CheloniaError as error:
            off = drills.called_off(drill, str(error), self._on.wall)
            cause = "it is called off, and over once it is known that the Shepherd does not obey"
            if error.kind not in _UNKNOWN:
                off = replace(drill, stage=DrillStage.CALLED_OFF, ended_ms=self._on.wall, why=str(error))
                cause = "it is called off, the Shepherd does not obey"
            if not await self._store(off):
                cause = "another Librarian leads repair now, and goes on with it"
            # never a kind that callers retry unseen
            raise CheloniaError(Kind.CONFLICT, "drill", drill.shepherd, f"{cause}: {error}") from error
        return self.own_status()

    async def _chosen(self, order: DrillOrder, scene: Scene) -> tuple[ServiceId, list[Holding]]:
        """The first Shepherd that is fit for this drill, and its blobs. Raises: CONFLICT when none is."""
        refusals = []
        for shepherd in drills.candidates(order, scene)[: bounds.DRILL_TRIES]:
            holdings = await self._holdings(shepherd, order.files_max + 1)
            reasons = drills.unsafe(order, shepherd, holdings, scene)
            if not reasons:
                return shepherd, holdings
            refusals.append(_refusal(order, reasons))
        raise refusals[0]

    async def _settled(self) -> Scene:
        """The cluster once a drill may begin, or as it is after `SETTLE_MS`."""
        until, scene = self._on.now + SETTLE_MS, self._scene()
        while drills.unready(scene) and not scene.running and self._on.now < until:
            await self._on.world.clock.sleep(self._on.settings.tick_ms)
            scene = self._scene()
        return scene

    def _scene(self) -> Scene:
        running = self._current()
        return Scene(
            nodes=self._planning.nodes().health,
            control=self._progress.control,
            exposed=self._tally.exposed,
            held_back=self._trimming.held_back,
            running=running.id if running.running else "",
        )

    async def _holdings(self, shepherd: ServiceId, limit: int) -> list[Holding]:
        """The first `limit` blobs that a Shepherd holds, in order of reference."""
        call, nodes, holdings, after = self._on.call.strongly(), self._planning.nodes().health, list[Holding](), ""
        while len(holdings) < limit:
            size = min(limit - len(holdings), bounds.BULK_ELEMENTS_MAX)
            page = await self._on.records.scan(call, shepherd_object(shepherd), "file", after, size)
            blobs = await self._on.records.get(call, [blob_object(BlobId(blob)) for _, blob in page.items])
            for (reference, _), blob in zip(page.items, blobs, strict=True):
                if blob.exists:
                    holdings.append(drills.holding(blob, ReferenceId(reference), shepherd, nodes))
            after = page.after
            if not after:
                break
        return holdings

    async def _target(self, shepherd: ServiceId, candidates: Sequence[Holding]) -> Holding:
        """One copy to damage, whose fellows have just answered a `stat`. Raises: CONFLICT when none do."""
        start = int(self._on.world.ids.uniform() * len(candidates))
        for item in (*candidates[start:], *candidates[:start])[: bounds.DRILL_TRIES]:
            blob = await self._on.records.one(self._on.call.strongly(), blob_object(item.blob))
            answered = await self._trimming.answering(blob)
            if len({location.shepherd for location in answered} - {shepherd}) >= item.elsewhere:
                return item
        cause = f"the other copies of what {shepherd} holds do not answer: `chelonia admin scrub`, then try again"
        raise CheloniaError(Kind.CONFLICT, "drill", shepherd, cause)

    async def _send(self, drill: Drill, action: DrillAction) -> None:
        """Send the Shepherd its order. Raises: the Shepherd's errors, NETWORK, TIMEOUT."""
        position = await self._on.records.refresh_position(self._on.call.strongly())
        order = ShepherdDrill(
            action, drill.id, position, drill.until_ms - drill.began_ms, drill.reference, drill.blob,
            drill.deadline_ms,
        )  # fmt: skip
        request = self._on.world.directory.shepherd(drill.shepherd).drill(self._on.call, order)
        await within(self._on.world.clock, max(self._on.settings.lease_ms, OBEY_MS), request)

    async def _store_first(self, drill: Drill) -> None:
        """Store a drill that begins. Raises: CONFLICT when another runs or another Librarian leads."""
        free = check(REPAIR_OBJECT, isnot(DRILL, "stage", DrillStage.RUNNING.value))
        if not await self._leading.apply([free, *drills.storing(drill)]):
            raise CheloniaError(Kind.CONFLICT, "drill", cause="another drill has just begun, or another leads repair")
        self._drill = drill

    async def _store(self, drill: Drill) -> bool:
        """Store the drill, and go by it once it is stored. Return whether it is: else another leads repair."""
        stored = await self._leading.apply(drills.storing(drill))
        self._drill = drill if stored else self._drill
        return stored

    # --- watching ---------------------------------------------------------------------------------------------------

    async def _stop(self, order: DrillOrder) -> DrillStatus:
        drill = self._current()
        if not drill.running:
            raise CheloniaError(Kind.CONFLICT, "drill", cause="no drill is running")
        await self._changed(drill, drills.called_off(drill, f"stopped by {order.by}", self._on.wall))
        if not self._current().recalled_ms:
            raise CheloniaError(Kind.UNAVAILABLE, "drill", cause="another Librarian leads repair now: try again")
        return self.own_status()

    def leave(self) -> None:
        """Stop watching: another Librarian leads."""
        self._drill, self._watching, self._answered = None, "", ("", Ms(0))

    async def step(self) -> None:
        """Look at the drill that runs, if any."""
        async with self._busy:
            drill = self._drill = self._current()
            if not drill.running:
                return
            if self._watching != drill.id:
                self._watch(drill, [] if drill.blob else await self._holdings(drill.shepherd, bounds.DRILL_FILES_MAX))
            with suppress(CheloniaError):  # tried again at the next look
                await self._recall(drill)
            await self._changed(drill, drills.progressed(drill, await self._view(drill), self._on.wall))

    def _watch(self, drill: Drill, holdings: Sequence[Holding]) -> None:
        self._tally.watch(frozenset([drill.blob] if drill.blob else [item.blob for item in holdings]))
        self._watching = drill.id

    async def _changed(self, before: Drill, after: Drill) -> None:
        """Store the changed drill; a Shepherd that it newly recalls gets the order to end its part."""
        if after == before or not await self._store(after):
            return
        if not before.recalled_ms:
            try:
                await self._recall(after)
            except CheloniaError as error:
                _LOG.info("drill %s: %s has not ended its part, it is told again: %s", after.id, after.shepherd, error)
        if not after.running:
            took = f"noticed after {_since(after, after.noticed_ms)}, whole after {_since(after, after.whole_ms)}"
            _LOG.warning("DRILL %s is over: %s, %s; %s", after.id, after.stage.value, took, after.why or "all is well")

    async def _recall(self, drill: Drill) -> None:
        """Have a Shepherd end its part, if it is to and has not confirmed that it did. Raises: as `_send`."""
        if drill.recalled_ms and self._answered[0] != drill.id:
            await self._send(drill, DrillAction.STOP)
            self._answered = drill.id, self._on.wall

    async def _view(self, drill: Drill) -> DrillView:
        searching = any(cursor.shepherd == drill.shepherd and not cursor.read for cursor in self._progress.cursors)
        present, tally = self._on.nodes.present(drill.shepherd), self._tally
        (answered, at_ms), away = self._answered, self._others_away(drill)
        answered_ms = at_ms if answered == drill.id else 0
        view = DrillView(present, tally.watched, tally.touched, searching, away, answered_ms=answered_ms)
        if not drill.blob:
            return view
        blob = await self._on.records.one(self._on.call, blob_object(drill.blob))
        if not blob.exists:
            return replace(view, wanted=0)
        location = str(Location(drill.shepherd, drill.reference))
        state = blob.value("locations", location)
        good = drills.holding(blob, drill.reference, drill.shepherd, self._planning.nodes().health).elsewhere
        return replace(
            view, state=ReplicaState(state) if state else None, good=good, wanted=max(facts_of(blob).wanted, 1)
        )  # fmt: skip

    def _others_away(self, drill: Drill) -> tuple[ServiceId, ...]:
        """Other Shepherds that have been away for a lease or longer."""
        settings, table, away = self._on.settings, self._on.nodes.table, list[ServiceId]()
        for shepherd in table.shepherds():
            stored = table.stored(shepherd)
            if shepherd == drill.shepherd or stored is None or self._on.nodes.present(shepherd):
                continue
            if stored.state == NODE_OFFLINE and self._on.wall - stored.since_ms >= settings.lease_ms:
                away.append(shepherd)
        return tuple(away)


def _refusal(order: DrillOrder, reasons: Sequence[str]) -> CheloniaError:
    return CheloniaError(Kind.CONFLICT, "drill", order.shepherd, "; ".join(reasons))


def _since(drill: Drill, at_ms: int) -> str:
    return f"{at_ms - drill.began_ms} ms" if at_ms else "-"
