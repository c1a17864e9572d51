"""A Shepherd that comes back after a rebuild that was made without it: its own knowledge comes in, and no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import ANY

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    OVERWRITTEN_OBJECT,
    REBUILD_OBJECT,
    REPAIR_OBJECT,
    SERVICES_OBJECT,
    BlobId,
    ReferenceId,
    RequestKey,
    ServiceId,
    shepherd_object,
)
from chelonia.core.ports.librarian import Delete, RebuildStatus
from chelonia.core.ports.shepherd import RecordPage, ReplicaStatOutcome
from chelonia.core.values import replace
from chelonia.librarian.leadership.lease import decide as leader
from chelonia.librarian.metadata import rebuild_record
from chelonia.librarian.metadata.elements import drop, put
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, EVE, approved
from tests.unit.librarian.keepers import Keeper, Keepers, checksums, keepers, resealed
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, NO_SNAPSHOTS, held, next_snapshot, over, written

FOR_GOOD = replace(NO_SNAPSHOTS, trash_keep_ms=0)
"""A deleted file cannot be brought back."""


@asynccontextmanager
async def without(k: Keepers, *away: Keeper, settings: LibrarianSettings = FOR_GOOD) -> AsyncIterator[RebuildStatus]:
    """A rebuild without some Shepherds, which are back after it; Bartenders go on."""
    for keeper in away:
        keeper.up = False
    async with k.running(settings, generation=2):
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k), 200_000)
        status = await k.bench.service.rebuild(ADMIN, False)
        assert (status.stage, status.cause) == ("done", "")
        yield status


async def late(k: Keepers, keeper: Keeper) -> RebuildStatus:
    """Bring in the records that only this one has."""
    keeper.up = True
    await asyncio.sleep(2)
    await k.bench.service.rebuild(ADMIN, True, keeper.id)
    await k.until(lambda: over(k), 200_000)
    return await k.bench.service.rebuild(ADMIN, False)


async def forgotten(k: Keepers, keeper: Keeper) -> None:
    """Declare this one lost for good."""
    keeper.up, page = False, None
    await asyncio.sleep(10)
    while page is None or page.after:
        page = await k.bench.service.forget(ADMIN, keeper.id, page.after if page else "", False, True)
    assert page.forgotten


async def deleted(k: Keepers, path: str) -> None:
    await k.bench.service.delete(BARTENDER, Delete((await k.paths())[path]))  # type: ignore[arg-type]


async def remembered(k: Keepers) -> int:
    """The number of remembered deletions."""
    return len((await k.bench.ahash.scan(LIBRARIAN, OVERWRITTEN_OBJECT, "formerly", "", 1000)).items)


async def reported(k: Keepers) -> dict[str, str]:
    """The boot of each Shepherd's last report when its records had been taken in."""
    return dict((await k.bench.stored(REBUILD_OBJECT)).sections[rebuild_record.REPORTED])


def first(k: Keepers) -> Keeper:
    return next(iter(k.shepherds.values()))


@virtual
async def test_what_one_shepherd_alone_knew_is_found_when_it_is_back_and_told() -> None:
    k = await written()
    one = first(k)
    async with without(k, one) as status:
        assert set(await k.paths()) == {"/f"}
        assert any(f"chelonia admin rebuild --late {one.id}" in note for note in status.notes)
        assert await reported(k) == dict.fromkeys(k.shepherds, "0")
        has_reported = put(shepherd_object(one.id), "report", "boot", "77")
        await k.bench.ahash.transact(LIBRARIAN, RequestKey(""), (has_reported,))
        status = await late(k, one)
        assert (status.stage, status.cause, set(await k.paths())) == ("done", "", {"/f", "/alone"})
        assert status.counts["files written since the snapshot"] == 1
        assert await reported(k) == {**dict.fromkeys(k.shepherds, "0"), one.id: "77"}
        stored = await k.bench.stored(REBUILD_OBJECT)
        assert (rebuild_record.awaited(stored), rebuild_record.under_way(stored)) == ((), False)
        with pytest.raises(CheloniaError, match="has told all it knows"):
            await late(k, one)
        with pytest.raises(CheloniaError, match="has told all it knows"):
            await late(k, list(k.shepherds.values())[1])


@pytest.mark.parametrize("knocked", [False, True])
@virtual
async def test_one_that_only_the_snapshot_names_is_missed_as_well(knocked: bool) -> None:
    """Each host's configuration may name its own services alone."""
    k = await written()
    one = first(k)
    one.up = False
    named = approved(*(shepherd for shepherd in k.shepherds if shepherd != one.id))
    async with k.running(replace(FOR_GOOD, bootstrap=named), generation=2):
        if not knocked:  # all begin with a heartbeat
            waiting = drop(SERVICES_OBJECT, "shepherd", f"{one.id} /CN={one.id}")
            await k.bench.ahash.transact(LIBRARIAN, RequestKey(""), (waiting,))
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k), 200_000)
        status = await k.bench.service.rebuild(ADMIN, False)
        assert f"{one.id} is away: what only it holds is not found" in status.notes
        assert rebuild_record.awaited(await k.bench.stored(REBUILD_OBJECT)) == (one.id,)
        await late(k, one)
        assert set(await k.paths()) == {"/f", "/alone"}


@virtual
async def test_one_that_was_declared_lost_or_is_not_approved_tells_nothing_and_the_refusal_says_what_to_do() -> None:
    k = await written()
    one = first(k)
    async with without(k, one):
        await forgotten(k, one)
        with fails(Kind.DENIED, match=r"admin node forget.*another id"):
            await late(k, one)
        with fails(Kind.NOT_FOUND, match="chelonia admin service approve"):
            await k.bench.service.rebuild(ADMIN, True, ServiceId("https://nobody/Shepherd"))


@virtual
async def test_what_was_deleted_since_the_rebuild_stays_deleted() -> None:
    """This holds also for files that the rebuild never listed on the absent Shepherd, without an order to erase
    there."""

    k = await written()
    async with k.running(NO_SNAPSHOTS):
        await k.upload("/g", copies=2)
    one = first(k)
    async with without(k, one):
        assert set(await k.paths()) == {"/f", "/g"}
        await deleted(k, "/f")
        await deleted(k, "/g")
        assert await remembered(k) == 4, "files and blobs"
        status = await late(k, one)
        assert (status.stage, set(await k.paths())) == ("done", {"/alone"})
        assert status.counts["replicas of deleted files"] == 2
        await k.until(lambda: nothing_remembered(k))
        await deleted(k, "/alone")
        assert (await remembered(k), await k.paths()) == (0, {})


async def nothing_remembered(k: Keepers) -> bool:
    return await remembered(k) == 0


@virtual
async def test_what_a_fast_clock_has_dated_after_the_rebuild_is_found_unless_it_was_deleted_since() -> None:
    """A Bartender's clock dates uploads; for blobs named by a transact each deletion is known."""

    k = await written()
    one = first(k)
    [alone] = [kept for kept in one.disk.values() if kept.facts.name == "/alone"]
    fast, tomorrow = "/fast", k.clock.now_ms() + 24 * 3_600_000
    for number, committed in enumerate((True, False), start=1):
        name = fast if committed else "/never"
        strange = resealed(alone.facts, blob=k.ids.uuid(), guid=k.ids.uuid(), name=name, created_ms=tomorrow)
        one.plant(number, strange, alone.data, committed=committed)
    async with without(k, one):
        one.up = True
        await k.upload("/since", copies=len(k.shepherds))
        [since] = [kept for kept in one.disk.values() if kept.facts.name == "/since"]
        await deleted(k, "/since")
        one.plant(3, since.facts, since.data)  # the order to erase it was not obeyed
        status = await late(k, one)
        assert (status.stage, set(await k.paths())) == ("done", {"/f", "/alone", fast})
        assert status.counts["replicas of deleted files"] == 2


@virtual
async def test_deletions_are_remembered_for_nobody_once_the_shepherd_is_forgotten() -> None:
    k = await written()
    one = first(k)
    async with without(k, one):
        await deleted(k, "/f")
        assert await remembered(k) == 2
        await k.until(lambda: away(k, one))
        page = await k.bench.service.forget(ADMIN, one.id, "", False, True)
        assert page.forgotten
        await k.until(lambda: nothing_remembered(k))
        assert rebuild_record.awaited(await k.bench.stored(REBUILD_OBJECT)) == ()


async def away(k: Keepers, keeper: Keeper) -> bool:
    return any(node.shepherd == keeper.id and node.state == "offline" for node in await k.bench.service.nodes(ADMIN))


async def overwritten(k: Keepers) -> tuple[Keeper, str, BlobId, BlobId]:
    """A file whose newer bytes only one Shepherd has: that Shepherd, the GUID, the bytes in the snapshot, and the
    newer."""
    async with k.running(BEFORE):
        guid, old = await k.upload("/f", b"old")
        await next_snapshot(k)
    one, [kept, *_] = list(k.shepherds.values())[3], held(k, old)
    new = BlobId(k.ids.uuid())
    newer = {"checksums": checksums(b"newer"), "size": 5, "created_ms": k.clock.now_ms()}
    one.plant(1, resealed(kept.facts, blob=new, **newer), b"newer")
    return one, guid, old, new


@virtual
async def test_newer_bytes_of_a_file_take_its_name_and_those_it_had_since_are_sheltered() -> None:
    k = keepers()
    one, guid, old, new = await overwritten(k)
    async with without(k, one):
        assert list((await k.bench.stored(guid)).sections["blobs"].values()) == [old]
        status = await late(k, one)
        assert status.counts["files overwritten since the snapshot"] == 1
        assert list((await k.bench.stored(guid)).sections["blobs"].values()) == [new]
        assert await k.paths() == {"/f": guid, "/lost+found": ANY, f"/lost+found/{old}": old}


@pytest.mark.parametrize(
    ("settings", "gone"), [(FOR_GOOD, False), (FOR_GOOD, True), (NO_SNAPSHOTS, True)], ids=["there", "gone", "in trash"]
)
@virtual
async def test_bytes_that_users_have_overwritten_since_displace_nothing(
    settings: LibrarianSettings, gone: bool
) -> None:
    k = keepers()
    one, guid, _, _ = await overwritten(k)
    async with without(k, one, settings=settings):
        _, mine = await k.upload("/f", b"newest", replaces=guid)
        await k.until(lambda: away(k, one))
        if gone:
            await deleted(k, "/f")
        status = await late(k, one)
        assert status.counts[f"replicas of {'deleted' if gone else 'overwritten'} files"] == 1
        blobs = (await k.bench.stored(guid)).sections.get("blobs", {})
        assert list(blobs.values()) == ([] if gone and settings is FOR_GOOD else [mine])
        assert set(await k.paths()) == (set() if gone else {"/f"})


@virtual
async def test_names_that_were_taken_since_and_forged_records_go_to_lost_found() -> None:
    k = await written()
    one = first(k)
    [alone] = [kept for kept in one.disk.values() if kept.facts.name == "/alone"]
    forged = replace(alone.facts, blob=k.ids.uuid(), guid=k.ids.uuid(), name="/evil", owner=EVE)
    one.plant(1, forged, b"evil")
    damaged = resealed(alone.facts, blob=k.ids.uuid(), guid=k.ids.uuid(), name="/rotten")
    one.plant(2, damaged, b"rot", state=ReplicaState.INVALID)
    async with without(k, one):
        one.up = True
        mine, _ = await k.upload("/alone", b"other", copies=2)
        status = await late(k, one)
        paths = await k.paths()
        assert paths["/alone"] == mine
        lost = {path for path in paths if path.startswith("/lost+found/")}
        assert lost == {f"/lost+found/{forged.blob}", f"/lost+found/{alone.facts.blob}"}
        assert not {"/evil", "/rotten"} & set(paths)
        assert status.counts["damaged replicas or records"] == 1


@virtual
async def test_of_one_that_was_not_missed_nothing_is_believed_but_what_it_knows_is_not_lost() -> None:
    """It was withdrawn as lost for good, and is approved again: no deletions were remembered for it."""

    k = await written()
    one = first(k)
    async with without(k, one):
        not_missed = (drop(REBUILD_OBJECT, rebuild_record.SHEPHERDS, one.id),)
        await k.bench.ahash.transact(LIBRARIAN, RequestKey(""), not_missed)
        [alone] = [kept.facts.blob for kept in one.disk.values() if kept.facts.name == "/alone"]
        status = await late(k, one)
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{alone}"}
        assert any("is in /lost+found" in note for note in status.notes)


@virtual
async def test_what_it_has_set_aside_it_is_asked_for_once_it_is_listed() -> None:
    k = await written()
    one = first(k)
    asked = asked_of(k)
    told = one.records

    async def aside(call: Call, after: str, limit: int) -> RecordPage:
        page = await told(call, after, limit)
        return RecordPage(tuple(replace(item, aside=True) for item in page.items), page.after)

    one.records = aside  # type: ignore[method-assign]
    async with without(k, one):
        assert (await late(k, one)).stage == "done"
        assert "/alone" in await k.paths()
        assert one.id in asked


@pytest.mark.parametrize("starts_anew", [False, True])
@virtual
async def test_one_that_goes_in_mid_way_is_to_compare_everything_when_it_is_back(
    starts_anew: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its quarantine may be listed already, also after it has started anew and reported."""
    caplog.set_level(logging.ERROR)

    k = await written()
    one = first(k)
    told = one.records

    async def has_reported(boot: int) -> None:
        reports = put(shepherd_object(one.id), "report", "boot", str(boot))
        await k.bench.ahash.transact(LIBRARIAN, RequestKey(""), (reports,))

    async def and_goes(call: Call, after: str, limit: int) -> RecordPage:
        page = await told(call, after, limit)
        if starts_anew:
            await has_reported(78)
        one.up = False
        return page

    async with without(k, one):
        await has_reported(77)
        one.records = and_goes  # type: ignore[method-assign]
        status = await late(k, one)
        assert (status.stage, "/alone" in await k.paths()) == ("failed", True)
        marker, boot = await k.bench.stored(REBUILD_OBJECT), 78 if starts_anew else 77
        assert rebuild_record.may_have_named(marker, one.id, boot)
        assert not rebuild_record.may_have_named(marker, next(s for s in k.shepherds if s != one.id), 1)
        assert rebuild_record.awaited(marker) == (one.id,)
        one.records = told  # type: ignore[method-assign]
        assert (await late(k, one)).stage == "done"
        assert await reported(k) == {**dict.fromkeys(k.shepherds, "0"), one.id: str(boot)}


@virtual
async def test_one_that_tells_only_a_part_is_asked_for_what_it_has_set_aside_of_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)

    k = await written()
    one = first(k)
    asked = asked_of(k)
    told, page = one.records, list[RecordPage]()

    async def once(call: Call, after: str, limit: int) -> RecordPage:
        if page:
            raise CheloniaError(Kind.UNAVAILABLE, "records", one.id)
        page.append(await told(call, after, limit))
        return RecordPage(tuple(replace(item, aside=True) for item in page[0].items), page[0].after)

    one.records = once  # type: ignore[method-assign]
    async with without(k, one):
        assert (await late(k, one)).stage == "failed"
        assert "/alone" in await k.paths()
        assert one.id in asked


@virtual
async def test_one_is_asked_for_what_it_has_set_aside_by_the_next_librarian_when_one_ends_in_mid_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Some of it is listed already, and nobody else would query it for a day."""
    caplog.set_level(logging.ERROR)

    k = await written()
    one = first(k)
    asked = asked_of(k)
    told, listed = one.records, asyncio.Event()

    async def no_more(call: Call, after: str, limit: int) -> RecordPage:
        if listed.is_set():
            await asyncio.Event().wait()
        listed.set()
        page = await told(call, after, limit)
        return RecordPage(tuple(replace(item, aside=True) for item in page.items), page.after)

    async with without(k, one):
        one.up, one.records = True, no_more  # type: ignore[method-assign]
        await asyncio.sleep(2)
        await k.bench.service.rebuild(ADMIN, True, one.id)
        await k.until(lambda: is_listed(k))
        await k.bench.service.stop()
        one.up = False
        async with k.another(FOR_GOOD, generation=2):
            await asyncio.sleep(20)
            assert not asked, "it is not there"
            one.up = True
            await k.until(lambda: has_any(asked))
            await asyncio.sleep(20)
            assert asked == [one.id], "once, and nobody else"
            one.records = told  # type: ignore[method-assign]
            assert (await late(k, one)).stage == "done"
        asked.clear()
        async with k.another(FOR_GOOD, generation=2):
            await asyncio.sleep(20)
            assert not asked, "it has told all"


@virtual
async def test_one_is_asked_for_what_it_has_set_aside_by_who_leads_next_when_a_librarian_ends_in_mid_way() -> None:
    k = await written()
    one = first(k)
    asked = asked_of(k)
    async with without(k):
        await asyncio.sleep(20)
        half = put(REBUILD_OBJECT, rebuild_record.REPORTED, one.id, rebuild_record.EVERY_BOOT)
        await k.bench.ahash.transact(LIBRARIAN, RequestKey(""), (half,))
        await asyncio.sleep(20)
        assert not asked, "another Librarian is at it, and will ask"
        before = leader.parse(await k.bench.stored(REPAIR_OBJECT))
        gone = leader.LeaderLease("https://other/Librarian", before.until_ms, "another's term")
        taken = leader.Bid(before, gone, k.clock.monotonic_ms()).elements()
        assert (await k.bench.ahash.transact(LIBRARIAN, RequestKey(""), tuple(taken))).applied
        await k.until(lambda: has_any(asked))
        assert asked == [one.id]


def asked_of(k: Keepers) -> list[ServiceId]:
    """The Shepherds that get a query about a replica that they do not have, as it goes on."""
    asked: list[ServiceId] = []

    def asking(keeper: Keeper) -> None:
        async def stat(call: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
            if not keeper.up:
                raise CheloniaError(Kind.UNAVAILABLE, "stat", keeper.id)
            asked.append(keeper.id)
            return tuple(ReplicaStatOutcome(name, reference, found=False) for name, reference in references)

        keeper.stat = stat  # type: ignore[attr-defined]

    for keeper in k.shepherds.values():
        asking(keeper)
    return asked


async def is_listed(k: Keepers) -> bool:
    return "/alone" in await k.paths()


async def has_any(some: list[ServiceId]) -> bool:
    return bool(some)


@virtual
async def test_a_shepherd_that_is_not_there_is_awaited_on_and_nonsense_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)

    k = await written()
    one = first(k)
    async with without(k, one):
        service = k.bench.service
        await k.until(lambda: away(k, one))
        await service.rebuild(ADMIN, True, one.id)
        await k.until(lambda: over(k), 200_000)
        status = await service.rebuild(ADMIN, False)
        assert (status.stage, "give the command again" in status.cause) == ("failed", True)
        assert rebuild_record.awaited(await k.bench.stored(REBUILD_OBJECT)) == (one.id,)
        with fails(Kind.NOT_FOUND):
            await service.rebuild(ADMIN, True, ServiceId("https://nobody/Shepherd"))
    async with k.running(BEFORE):
        with fails(Kind.CONFLICT):
            await k.bench.service.rebuild(ADMIN, True, one.id)
