"""Small bytes that travel in messages: stored on Shepherds, and read from them, without a ticket.

All copies that are wanted are stored at once; what is durable often enough is answered after a short grace for the
rest, which repair makes then. A Shepherd that refuses or keeps silent has the next one asked in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from chelonia.bartender.ports import Ports
from chelonia.bartender.shepherds import taken
from chelonia.core.caller import Call
from chelonia.core.cluster.placement import Demand
from chelonia.core.cluster.replicas import Location, Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.ports.shepherd import FetchOutcome, SmallBlob, StoreOutcome
from chelonia.core.timing.racing import Race, many


async def candidates(ports: Ports, call: Call, size: int, wanted: int) -> tuple[NodeView, ...]:
    """Shepherds for a small blob, best first. Raises: NO_SHEPHERD when it could not be durable on them."""
    durable = min(ports.settings.durable_copies, wanted)
    demand = Demand(count=max(durable + ports.settings.spares, wanted), size=size)
    return await ports.shepherds.candidates(call, demand, durable)


async def stored(ports: Ports, call: Call, blob: SmallBlob, nodes: Sequence[NodeView]) -> tuple[Receipt, ...]:
    """Store a blob on as many of these Shepherds as copies are wanted.

    Returns: receipts of enough Shepherds for it to be durable. Raises: NO_SHEPHERD, CHECKSUM.
    """
    wanted, settings = blob.facts.wanted, ports.settings
    durable = min(settings.durable_copies, wanted)
    waiting, given, refused = list(nodes), dict[ServiceId, Receipt](), list[StoreOutcome]()
    more = max(durable, min(wanted, sum(not ports.shepherds.is_silent(node.shepherd) for node in waiting)))
    begun_ms, give_up_ms = ports.clock.monotonic_ms(), -1
    async with Race[ServiceId, StoreOutcome](ports.clock) as race:
        while len(given) < wanted and (race.running or (waiting and len(given) < durable)):
            for node in taken(waiting, more):
                race.begin(node.shepherd, ports.storing.ask(call, node.shepherd, blob, len(blob.data)))
            now_ms = ports.clock.monotonic_ms()
            ended = await race.ended(settings.hedge_ms if give_up_ms < 0 else max(0, give_up_ms - now_ms))
            receipt = None
            if ended is not None:
                outcome = ended[1].result()
                receipt = outcome.receipt
                if receipt is None:
                    refused.append(outcome)
                else:
                    given[ended[0]] = receipt
            elif give_up_ms >= 0:
                break
            if len(given) >= durable and give_up_ms < 0:
                now_ms = ports.clock.monotonic_ms()
                give_up_ms = now_ms + max(settings.fallback_grace_ms, now_ms - begun_ms)  # the rest is as busy
            more = 0 if give_up_ms >= 0 else many(silent=ended is None, of_use=receipt is not None)
    if len(given) < durable:
        raise _too_few(refused)
    return tuple(given.values())


async def fetched(ports: Ports, call: Call, locations: Sequence[Location], size: int) -> bytes | None:
    """The bytes of a small blob of that size, from the first Shepherd that gives them; None when none does."""
    order = await ports.shepherds.nearest(call, locations)
    waiting, more = sorted(order, key=lambda location: ports.shepherds.is_silent(location.shepherd)), 1
    async with Race[Location, FetchOutcome](ports.clock) as race:
        while race.running or waiting:
            for location in taken(waiting, more):
                race.begin(location, ports.fetching.ask(call, location.shepherd, location.reference, size))
            ended = await race.ended(ports.settings.hedge_ms if waiting else ports.settings.shepherd_timeout_ms)
            if ended is not None and (data := ended[1].result().data) is not None:
                return data
            more = many(silent=ended is None, of_use=False)
    return None


def _too_few(refused: Sequence[StoreOutcome]) -> CheloniaError:
    full = sum(outcome.kind == Kind.NO_SPACE.value for outcome in refused)
    why = f"no space: {full} Shepherds have not enough for it" if full else "too few Shepherds answered"
    return CheloniaError(Kind.NO_SHEPHERD, cause=f"{why}; try again in a moment")
