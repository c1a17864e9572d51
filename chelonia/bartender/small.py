"""Small bytes that go in messages are read from Shepherds, without a ticket."""

from __future__ import annotations

from collections.abc import Sequence

from chelonia.bartender.ports import Ports
from chelonia.bartender.shepherds import taken
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Location
from chelonia.core.ports.shepherd import FetchOutcome
from chelonia.core.timing.racing import Race, many


async def fetched(ports: Ports, call: Call, locations: Sequence[Location], size: int) -> bytes | None:
    """The bytes of a small blob of that size, from the first Shepherd that gives them; None when none does."""
    waiting, more = await ports.shepherds.nearest(call, locations), 1
    waiting.sort(key=lambda location: ports.shepherds.is_silent(location.shepherd))
    async with Race[Location, FetchOutcome](ports.clock) as race:
        while race.running or waiting:
            for location in taken(waiting, more):
                race.begin(location, ports.fetching.ask(call, location.shepherd, location.reference, size))
            ended = await race.ended(ports.settings.hedge_ms if waiting else ports.settings.shepherd_timeout_ms)
            if ended is not None and (data := ended[1].result().data) is not None:
                return data
            more = many(silent=ended is None, of_use=False)
    return None
