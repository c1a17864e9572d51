"""Turns between callers: equal shares, nobody refused without need, no place lost."""

import asyncio

import pytest

from chelonia.bartender.queues import Places
from chelonia.core import bounds
from chelonia.core.caller import BY_LINK, Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.limits import LimitCounts
from chelonia.core.timing.turns import TurnOutcome, Turns
from tests.sim.virtual_loop import run_virtual, virtual
from tests.support.clocks import VirtualClock


def test_whoever_is_furthest_behind_goes_next_and_equals_take_turns() -> None:
    turns: Turns[str] = Turns(2, 10)
    assert [turns.came("a", f"a{n}") for n in range(4)] == [
        TurnOutcome.GOES,
        TurnOutcome.GOES,
        TurnOutcome.WAITS,
        TurnOutcome.WAITS,
    ]
    assert [turns.came("b", f"b{n}") for n in range(2)] == [TurnOutcome.WAITS, TurnOutcome.WAITS]
    assert turns.came("c", "c0") is TurnOutcome.WAITS
    assert [turns.left() for _ in range(7)] == ["b0", "c0", "a2", "b1", "a3", None, None]
    assert turns.came("d", "d0") is TurnOutcome.GOES


def test_too_many_of_one_caller_are_refused_and_nobody_elses() -> None:
    turns: Turns[str] = Turns(1, 2)
    assert [turns.came("a", f"a{n}") for n in range(4)] == [
        TurnOutcome.GOES,
        TurnOutcome.WAITS,
        TurnOutcome.WAITS,
        TurnOutcome.REFUSED,
    ]
    assert turns.came("b", "b0") is TurnOutcome.WAITS
    turns.gave_up("a", "a1")
    assert turns.came("a", "a4") is TurnOutcome.WAITS
    assert [turns.left() for _ in range(4)] == ["b0", "a2", "a4", None]


def test_who_was_away_has_saved_nothing_up() -> None:
    turns: Turns[str] = Turns(1, 100)
    for _ in range(50):
        turns.came("a", "before")
        turns.left()
    assert [turns.came(of, of) for of in "abababb"] == [TurnOutcome.GOES] + [TurnOutcome.WAITS] * 6
    assert [turns.left() for _ in range(6)] == ["b", "a", "b", "a", "b", "b"]


def test_32_callers_get_equal_shares_however_many_calls_they_make_at_once() -> None:
    """Jain's index of fairness, as in the Cumulus paper, of the calls served for each: 1 is equal."""
    served = dict.fromkeys(range(32), 0)

    async def client(number: int, places: Places, until: float) -> None:
        call, limits = Call(Dn(f"/CN={number}")), LimitCounts()
        while asyncio.get_running_loop().time() < until:
            async with places.one(call, limits, VirtualClock()):
                await asyncio.sleep(0.005 + 0.001 * (served[number] % 3))
            served[number] += 1

    async def scenario() -> None:
        places, until = Places(16), asyncio.get_running_loop().time() + 10
        await asyncio.gather(*(client(n, places, until) for n in range(32) for _ in range(50 if n % 2 else 1)))

    run_virtual(scenario())
    shares = list(served.values())
    assert sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)) >= 0.99
    assert sum(shares) > 16 * 10 / 0.007, "no place stands empty"


@virtual
async def test_who_goes_away_leaves_his_place_and_his_turn() -> None:
    places, limits, call = Places(1, 2), LimitCounts(), Call(Dn("/CN=a"))

    async def hold(seconds: float) -> None:
        async with places.one(call, limits, VirtualClock()):
            await asyncio.sleep(seconds)

    first, second, third = (asyncio.create_task(hold(1)) for _ in range(3))
    await asyncio.sleep(0.1)
    with pytest.raises(CheloniaError) as busy:
        await hold(1)
    assert (busy.value.kind, limits.reached) == (Kind.BUSY, {"elements_waiting": 1})
    second.cancel()
    await asyncio.wait((first,))
    third.cancel()
    await asyncio.wait((second, third))
    await asyncio.wait_for(hold(0.1), 0.2)
    assert first.done()


@virtual
async def test_who_comes_by_a_link_does_not_keep_its_giver_waiting() -> None:
    places, limits, giver = Places(1, 2), LimitCounts(), Call(Dn("/CN=a"))
    guest = Call(Dn("/CN=a"), address="192.0.2.1", via=f"{BY_LINK}1")

    async def hold(call: Call) -> None:
        async with places.one(call, limits, VirtualClock()):
            await asyncio.sleep(1)

    held = [asyncio.create_task(hold(guest)) for _ in range(3)]
    await asyncio.sleep(0.1)
    with pytest.raises(CheloniaError):
        await hold(guest)
    await asyncio.wait_for(hold(giver), 2.5)
    await asyncio.wait(held)


async def test_calls_that_are_cancelled_together_give_all_places_back() -> None:
    """Those at work leave while the waiting ones are cancelled but have not run yet."""
    places, limits, call = Places(4, 100), LimitCounts(), Call(Dn("/CN=Joe"))

    async def element() -> None:
        async with places.one(call, limits, VirtualClock()):
            await asyncio.Event().wait()

    elements = [asyncio.ensure_future(element()) for _ in range(16)]
    await asyncio.sleep(0)
    for each in elements:
        each.cancel()
    await asyncio.gather(*elements, return_exceptions=True)
    async with asyncio.timeout(20):
        for _ in range(8):
            async with places.one(call, limits, VirtualClock()):
                pass


@virtual
async def test_who_waits_too_long_for_his_turn_is_told_to_ask_elsewhere() -> None:
    places, limits, waits = Places(1, 10), LimitCounts(), bounds.TURN_WAIT_MS_MAX / 1000

    async def hold(who: str, seconds: float) -> None:
        async with places.one(Call(Dn(who)), limits, VirtualClock()):
            await asyncio.sleep(seconds)

    first = asyncio.create_task(hold("/CN=a", waits + 1))
    await asyncio.sleep(0.1)
    with pytest.raises(CheloniaError, match="another") as busy:
        await hold("/CN=b", 1)
    assert (busy.value.kind, limits.reached) == (Kind.BUSY, {"turn_waited": 1})
    await first
    await asyncio.wait_for(hold("/CN=b", 0.1), 0.2)
