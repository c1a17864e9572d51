"""The choice of Shepherds to query about copies of unknown state."""

import asyncio

from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import ReferenceId
from chelonia.librarian.repair.ask_after import ask_after
from tests.sim.virtual_loop import virtual
from tests.support.paper import paper


@virtual
async def test_who_is_away_is_not_asked_and_holds_up_nobody() -> None:
    async with paper(2) as p:
        here, away = p.shepherds.values()
        away.silent_until_s = 3600

        async def is_away() -> bool:
            return not p.b.service._parts.nodes.present(away.id)

        await p.until(is_away)
        away.silent_until_s, away.broken = 0, "frozen"
        begun = asyncio.get_running_loop().time()
        places = [Location(shepherd.id, ReferenceId("r")) for shepherd in (away, here)]
        await ask_after(p.b.service._parts.healer._on, places)
        assert (here.asked_for, away.asked_for) == (1, 0)
        assert asyncio.get_running_loop().time() - begun < 1
