"""Limits on repair copies under way, and the fate of one for which there is no place."""

import asyncio

import pytest

from chelonia.core.ids import ServiceId
from chelonia.core.values import replace
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN
from tests.support.paper import paper


@pytest.mark.parametrize("busy", ["busy sending", "busy taking", "has it"])
@virtual
async def test_a_shepherd_that_is_busy_is_asked_again_soon_and_has_not_failed(busy: str) -> None:
    """Another Librarian, or the former leader, has as many copies under way there as it bears."""

    settings = replace(LibrarianSettings.dev(ADMIN.dn), backoff_max_ms=600_000)
    async with paper(3, settings) as p:
        await asyncio.sleep(1)
        blobs = [(await p.upload(f"f{n}", copies=2))[1] for n in range(10)]
        one, *rest = p.shepherds.values()
        for shepherd in rest:
            shepherd.broken = busy
        one.up = False
        await asyncio.sleep(60)
        asked = rest[1].put_calls
        await asyncio.sleep(60)
        assert 10 < rest[1].put_calls - asked < 10 * 60, "it is asked again, not again and again"
        for shepherd in rest:
            shepherd.broken = ""
        assert await p.until(lambda: p.held_twice(*blobs)) < 3_000


@virtual
async def test_one_refusal_holds_up_no_other_file_for_longer_than_that_shepherd_is_spared() -> None:
    """Of three Shepherds one refuses one copy: a file uploaded just then soon has its third copy as well."""

    settings = replace(LibrarianSettings.dev(ADMIN.dn), backoff_max_ms=600_000)
    async with paper(3, settings) as p:
        await asyncio.sleep(1)
        *_, spare = p.shepherds.values()
        spare.broken = "put"
        blobs = [(await p.upload("refused", wanted=3))[1]]
        await p.until(lambda: _is(spare.put_calls > 0))
        spare.broken = ""
        blobs += [(await p.upload(f"f{n}", wanted=3))[1] for n in range(5)]
        assert await p.until(lambda: p.settled(*blobs, copies=3)) < 5_000


@virtual
async def test_a_shepherd_that_is_configured_to_bear_fewer_copies_is_given_no_more() -> None:
    async with paper(shepherds=5) as p:
        for number in range(40):
            await p.upload(f"f{number}", copies=3)
        one, weak, *_ = p.shepherds.values()
        weak.copies_at_once_max = 1
        await asyncio.sleep(1)
        quiet = (await p.b.service.heal_status(ADMIN)).nodes
        assert [(load.shepherd, load.copies, load.copies_max) for load in quiet] == [(weak.id, 0, 1)]
        one.up = False
        most: dict[ServiceId, int] = {}

        async def whole() -> bool:
            status = await p.b.service.heal_status(ADMIN)
            for load in status.nodes:
                most[load.shepherd] = max(most.get(load.shepherd, 0), load.copies)
                assert load.copies <= load.copies_max
            return bool(most) and status.copies_done == 40

        await p.until(whole)
        assert most[weak.id] == 1
        assert max(most.values()) == p.b.settings.copies_per_node_max


@pytest.mark.parametrize(("broken", "who"), [("copy", "source"), ("put", "target"), ("busy sending", "source")])
@virtual
async def test_a_copy_that_was_refused_leaves_nothing_behind(broken: str, who: str) -> None:
    """No location and no record of a copy that never was, however often it is tried."""

    async with paper(3) as p:
        await asyncio.sleep(1)
        _, blob = await p.upload("f", copies=2)
        one, other, spare = p.shepherds.values()
        (other if who == "source" else spare).broken = broken
        one.up = False
        for _ in range(600):
            await asyncio.sleep(0.1)
            stored = (await p.b.stored(f"blob:{blob}")).sections["locations"]
            assert len({place.split()[0] for place in stored}) == len(stored), "two locations on one Shepherd"
        records = (await p.b.everything())[f"{spare.id} file"]
        assert len(records) <= 1, "only a try that goes on just now"
        assert not spare.erased, "what never was is not erased"
        (other if who == "source" else spare).broken = ""
        assert await p.until(lambda: p.held_twice(blob)) < 20_000


@pytest.mark.parametrize("target", ["there", "away"])
@virtual
async def test_a_copy_of_which_nobody_knows_whether_it_came_is_asked_after(target: str) -> None:
    """Its source is cut off amid the push and found rotten: a copy that never came does not stay listed as
    `stalled`."""

    async with paper(3) as p:
        await asyncio.sleep(1)
        _, blob = await p.upload("f", copies=2)
        one, other, spare = p.shepherds.values()
        spare.compares_in_doubt = True
        other.broken = "cut off, and rotten"
        one.up = False

        async def stalled() -> bool:
            return (await p.b.locations(blob)).get(spare.id) == "stalled"

        if target == "away":
            other.copy_s = 5
            await p.until(lambda: _is(bool(other.in_flight)))
            spare.up = False
            await p.until(stalled)
            await asyncio.sleep(30)
            assert await stalled(), "nobody there to ask"
            spare.up = True

        async def nothing_left() -> bool:
            listed, records = await p.b.locations(blob), (await p.b.everything()).get(f"{spare.id} file", {})
            return listed == {one.id: "alive", other.id: "invalid"} and not records

        await p.until(nothing_left, 30_000)


async def _is(value: bool) -> bool:
    return value
