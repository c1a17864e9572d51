"""Acts of administrators beside everything else: drain Shepherds and undo it, announce absences, pause, resume and slow
healing.

At the end only drains last, and a draining Shepherd must become empty.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import HealAction, HealOrder
from chelonia.core.cluster.placement import DRAINED
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, RequestKey, ServiceId
from tests.sim.network import Channel, Faults
from tests.sim.world import ADMIN, SimShepherd, World

DRAINS_MAX = 2
"""So many Shepherds drain at once at most: every site keeps one that takes copies."""
PAUSE_MS = 12_000
ABSENCE_MS = 15_000
_REQUEST = "admin"

ACCEPT_MS = 60_000
"""After so long the losses that come with a Shepherd are accepted."""


async def forget(world: World, shepherd: SimShepherd) -> None:
    """Declare a Shepherd that is down lost for good. Try again while it counts as alive, or while its last copies may
    still be copied."""
    at = world.client("keeper")
    librarian = Channel("librarian", world.librarians(ADMIN, at), at, world.ids)
    since_ms, after = world.clock.monotonic_ms(), ""
    while True:
        accept = world.clock.monotonic_ms() - since_ms > ACCEPT_MS
        call = structs.replace(ADMIN, request_key=RequestKey(world.ids.uuid()))
        try:
            page = await librarian.forget(call, shepherd.service_id, after, False, accept)
        except CheloniaError as error:
            world.note(f"FORGET {error}")
            if error.kind is Kind.NOT_FOUND:
                return
            after = ""
        else:
            after = page.after
            if page.forgotten:
                return
        if not after:
            await world.clock.sleep(2_000)


class Acts:
    """The acts of one run. `drained`: the Shepherds to empty, by answered requests."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._at = world.client("admin")
        self.drained: dict[ServiceId, None] = {}
        self._undecided: dict[ServiceId, None] = {}

    async def run(self) -> None:
        """Do one act after the other, until cancelled. Nobody repeats one that fails."""
        while True:
            await self._world.clock.sleep(self._rng.randint(500, PAUSE_MS))
            act: Callable[[], Awaitable[None]] = self._rng.choice(
                (self._drain, self._drain, self._undrain, self._maintenance, self._pause, self._resume, self._slow)
            )
            try:
                await act()
            except CheloniaError as error:
                self._world.note(f"ADMIN {error}")

    async def settle(self) -> None:
        """End all pauses and absences, and repeat every request without an answer. It first waits for requests given up
        after their time, and for late transacts of theirs: carried out later, they would come last."""
        while self._world.network.flying(_REQUEST):
            await self._world.clock.sleep(200)
        await self._world.clock.sleep(Faults().late_ms_max)
        await self._order(HealOrder(HealAction.RESUME))
        await self._order(HealOrder(HealAction.RATE, copies_per_node=4))
        for shepherd in self._world.shepherds:
            await self._librarian().maintenance(self._call(), shepherd.service_id, Ms(0))
        for shepherd in list(self._undecided):
            await self._set_drain(shepherd, on=False)

    def forgotten(self) -> None:
        """Older metadata were put back: nobody knows which drains they have."""
        self.drained.clear()
        self._undecided = dict.fromkeys(shepherd.service_id for shepherd in self._world.shepherds)

    def given_up(self, shepherd: ServiceId) -> None:
        """A Shepherd is lost for good: no act concerns it any more."""
        self.drained.pop(shepherd, None)
        self._undecided.pop(shepherd, None)

    async def left(self) -> list[ServiceId]:
        """The draining Shepherds that the Librarian does not report as empty yet."""
        views = {view.shepherd: view for view in await self._librarian().nodes(self._call().strongly())}
        return [shepherd for shepherd in self.drained if views[shepherd].drain != DRAINED]

    async def empty(self) -> list[ServiceId]:
        """The Shepherds that the Librarian reports as empty now."""
        return [view.shepherd for view in await self._librarian().nodes(self._call()) if view.drain == DRAINED]

    # --- acts -------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        free = [s.service_id for s in self._world.shepherds if s.service_id not in self.drained]
        if len({**self.drained, **self._undecided}) < DRAINS_MAX:
            await self._set_drain(self._rng.choice(free), on=True)

    async def _undrain(self) -> None:
        if self.drained:
            await self._set_drain(self._rng.choice(list(self.drained)), on=False)

    async def _set_drain(self, shepherd: ServiceId, *, on: bool) -> None:
        self.drained.pop(shepherd, None)
        self._undecided[shepherd] = None
        self._world.note(f"ADMIN drain {shepherd} {on}")
        await self._librarian().drain(self._call(), shepherd, on)
        if shepherd in self._undecided:  # else it was given up meanwhile
            del self._undecided[shepherd]
            self.drained.update({shepherd: None} if on else {})

    async def _maintenance(self) -> None:
        shepherd = self._rng.choice(self._world.shepherds)
        self._world.note(f"ADMIN maintenance {shepherd.node.name}")
        until_ms = Ms(self._at.clock.now_ms() + ABSENCE_MS)
        await self._librarian().maintenance(self._call(), shepherd.service_id, until_ms)

    async def _pause(self) -> None:
        await self._order(HealOrder(HealAction.PAUSE))

    async def _resume(self) -> None:
        await self._order(HealOrder(HealAction.RESUME))

    async def _slow(self) -> None:
        await self._order(HealOrder(HealAction.RATE, copies_per_node=self._rng.randint(1, 4)))

    async def _order(self, order: HealOrder) -> None:
        self._world.note(f"ADMIN heal {order.action.value} {order.copies_per_node}")
        await self._librarian().heal_order(self._call(), order)

    # --- ways -------------------------------------------------------------------------------------------------------

    def _librarian(self) -> Channel:
        return Channel("librarian", self._world.librarians(ADMIN, self._at), self._at, self._world.ids)

    def _call(self) -> Call:
        return structs.replace(ADMIN, request_id=_REQUEST, request_key=RequestKey(self._world.ids.uuid()))
