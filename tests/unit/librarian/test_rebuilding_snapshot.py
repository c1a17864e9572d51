"""The snapshot that a rebuild rests on: waited for, maybe with somebody who is away, and met by a second run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.shepherd import GetRequest, TurlOutcome
from chelonia.librarian import rebuild
from chelonia.librarian.rebuilding import Rebuilding
from chelonia.librarian.seal import seal
from tests.sim.virtual_loop import run_virtual
from tests.support.librarian import ADMIN, EVE
from tests.unit.librarian.keepers import Keeper, Keepers, keepers
from tests.unit.librarian.test_rebuilding import AWAY, BEFORE, KEY, NO_SNAPSHOTS, held, next_snapshot, over, rebuilt
from tests.unit.librarian.test_snapshotting import times


def unreadable(keeper: Keeper, times: int) -> None:
    """Have a Shepherd refuse to hand out bytes so often."""
    answer, left = keeper.get, [AWAY] * times

    async def get(call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        if left:
            raise left.pop()
        return await answer(call, requests)

    keeper.get = get  # type: ignore[method-assign]


@pytest.mark.parametrize("fails", [1, 2])
def test_a_snapshot_whose_shepherds_blink_is_asked_for_again(fails: int) -> None:
    """One failed answer of each is met by its manifest, or after that by its segment."""

    async def scenario() -> None:
        k = keepers()
        async with k.running(BEFORE):
            old, _ = await k.upload("/old", sections={"policy": {EVE: "+read"}})
            await times(k, 1)
            await next_snapshot(k)
        for keeper in k.shepherds.values():
            unreadable(keeper, fails)
        async with rebuilt(k) as (k, status):
            assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}
            assert not any("lost" in note or "cannot be read" in note for note in status.notes), status.notes

    run_virtual(scenario())


@asynccontextmanager
async def without_the_snapshot(k: Keepers) -> AsyncIterator[list[Keeper]]:
    """A cluster whose only snapshot is on Shepherds that are away, in front of its rebuild."""
    async with k.running(replace(BEFORE, snapshot_copies=1)):
        await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await times(k, 1)
        await next_snapshot(k)
    homes = [
        keeper
        for keeper in k.shepherds.values()
        if any(" segment " in kept.facts.name for kept in keeper.disk.values())
    ]
    for keeper in homes:
        keeper.up = False
    async with k.running(replace(NO_SNAPSHOTS, lease_ms=1_000), generation=2):
        await asyncio.sleep(5)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        yield homes


def test_a_rebuild_stops_while_its_snapshot_may_be_on_a_shepherd_that_is_away(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    async def scenario() -> None:
        k = keepers()
        async with without_the_snapshot(k) as homes:
            status = await k.bench.service.rebuild(ADMIN, False)
            assert (status.stage, homes[0].id in status.cause) == ("failed", True)
            assert await k.paths() == {}
            for keeper in homes:
                keeper.up = True
            await asyncio.sleep(5)
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
            assert (await k.bench.service.rebuild(ADMIN, False)).stage == "done"
            old = (await k.paths())["/old"]
            assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}

    run_virtual(scenario())


def test_a_rebuild_goes_on_without_the_snapshot_when_who_may_have_it_is_withdrawn(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    async def scenario() -> None:
        k = keepers()
        async with without_the_snapshot(k) as homes:
            for record in k.bench.settings.bootstrap:
                if record.service_id in {keeper.id for keeper in homes}:
                    await k.bench.service.approve(ADMIN, replace(record, approved=False))
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
            status = await k.bench.service.rebuild(ADMIN, False)
            assert (status.stage, "/old" in await k.paths()) == ("done", True)
            assert any("no snapshot was found" in note for note in status.notes)

    run_virtual(scenario())


def test_files_of_a_lost_page_are_not_taken_for_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "UPLOAD_MS", 10_000)

    async def scenario() -> None:
        k = keepers()
        async with k.running(BEFORE):
            _, blob = await k.upload("/f")
            await asyncio.sleep(30)  # longer than any upload takes
            await k.upload("/g")
            await next_snapshot(k)
            await next_snapshot(k)
        for keeper in k.shepherds.values():
            for kept in keeper.disk.values():
                if " segment " in kept.facts.name:
                    kept.data = bytes(len(kept.data))
        async with rebuilt(k) as (k, status):
            assert f"/lost+found/{blob}" in await k.paths()
            assert any("a page of the snapshot is lost" in note for note in status.notes)

    run_virtual(scenario())


def test_a_rebuild_begun_again_leaves_what_gave_way_where_it_is(expect_log) -> None:  # type: ignore[no-untyped-def]
    """Bytes that newer ones have replaced come back neither as a file nor in /lost+found."""
    expect_log("the rebuild has stopped")

    async def scenario() -> None:
        k = keepers()
        async with k.running(BEFORE):
            guid, old = await k.upload("/f", b"old bytes")
            await times(k, 1)
            await next_snapshot(k)
        async with k.running(replace(NO_SNAPSHOTS, record_key=KEY)):
            _, new = await k.upload("/f", b"new bytes")
        for kept in held(k, new):
            sealed = seal(KEY, new, guid, name="/f", owner=kept.facts.owner, wanted=kept.facts.wanted)
            kept.facts = replace(kept.facts, guid=guid, seal=sealed)
        async with k.running(BEFORE, generation=2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Rebuilding, "_check", refused)
                await k.bench.service.rebuild(ADMIN, True)
                await k.until(lambda: over(k))
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
            assert await k.paths() == {"/f": guid}
            assert (await k.bench.stored(guid)).sections["blobs"] == {"00000000": new}
            assert not (await k.bench.stored(f"blob:{old}")).exists

    run_virtual(scenario())


async def refused(self: Rebuilding) -> None:
    raise CheloniaError(Kind.NO_SPACE, "rebuild", cause="no room")
