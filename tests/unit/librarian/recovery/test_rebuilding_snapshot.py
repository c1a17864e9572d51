"""The snapshot for a rebuild: it is waited for, may be on an absent Shepherd, and may meet a second run."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Guid, Ms, ReferenceId, ServiceId, blob_object
from chelonia.core.ports.librarian import Delete, SetWanted
from chelonia.core.ports.shepherd import GetRequest, RecordPage, ReplicaStatOutcome, TurlOutcome
from chelonia.core.rights.access import check_access
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.recovery.mends import LOST_FOUND
from chelonia.librarian.recovery.rebuild import decide as rebuild
from chelonia.librarian.recovery.rebuild.act import Rebuilding
from chelonia.librarian.recovery.rebuild.listing import PAUSES_MS
from chelonia.wire import snapshots
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, EVE, HOUR, shepherd_call
from tests.support.namespace_snapshot import broken
from tests.unit.librarian.keepers import KEY, Keeper, Keepers, checksums, keepers, resealed
from tests.unit.librarian.namespace.test_trash import snapshot
from tests.unit.librarian.recovery.test_rebuilding import (
    AWAY,
    BEFORE,
    NO_SNAPSHOTS,
    held,
    marked,
    next_snapshot,
    over,
    rebuilt,
    short_uploads,
)
from tests.unit.librarian.recovery.test_snapshots import another, lose_copies, newest

pytestmark = pytest.mark.expect_log("is lost, no verified copy is left", optional=True)


def unreadable(keeper: Keeper, times: int) -> None:
    """Have a Shepherd refuse bytes so often."""
    answer, left = keeper.get, [AWAY] * times

    async def get(call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        if left:
            raise left.pop()
        return await answer(call, requests)

    keeper.get = get  # type: ignore[method-assign]


@pytest.mark.parametrize("fails", [1, 2])
@virtual
async def test_a_snapshot_whose_shepherds_blink_is_asked_for_again(fails: int) -> None:
    """One failed answer of each hits its manifest, or after that its segment."""

    k = keepers()
    async with k.running(BEFORE):
        old, _ = await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await next_snapshot(k)
    for keeper in k.shepherds.values():
        unreadable(keeper, fails)
    async with rebuilt(k) as (k, status):
        assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}
        assert not any("lost" in note or "cannot be read" in note for note in status.notes), status.notes


def without_segments_for(keeper: Keeper, duration_ms: int) -> None:
    """Have a Shepherd refuse segments for so long, from the first request for one."""
    answer, clock, until_ms = keeper.get, keeper.cluster.clock, list[int]()

    async def get(call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        if any(" segment " in keeper.disk[request.reference].facts.name for request in requests):
            if not until_ms:
                until_ms.append(clock.monotonic_ms() + duration_ms)
            if clock.monotonic_ms() < until_ms[0]:
                raise AWAY
        return await answer(call, requests)

    keeper.get = get  # type: ignore[method-assign]


@virtual
async def test_a_segment_that_cannot_be_read_for_a_while_is_asked_for_again_in_the_end() -> None:
    """Its Shepherds take longer to start than the first wait, and are there again a moment later."""

    k = keepers()
    async with k.running(BEFORE):
        old, _ = await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await next_snapshot(k)
    for keeper in k.shepherds.values():
        without_segments_for(keeper, sum(PAUSES_MS) + 5_000)
    async with rebuilt(k) as (k, status):
        assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}
        assert not any("lost" in note for note in status.notes), status.notes


def handed_out(k: Keepers, kind: str) -> Counter[BlobId]:
    """Count from now on the fetches of each blob of a snapshot of this kind."""
    fetch, counts = k.get, Counter[BlobId]()

    async def get(turl: str, size_max: int) -> bytes:
        shepherd, reference = turl.split(" ")
        facts = k.shepherds[ServiceId(shepherd)].disk[ReferenceId(reference)].facts
        if f" {kind} " in facts.name:
            counts[facts.blob] += 1
        return await fetch(turl, size_max)

    k.get = get  # type: ignore[method-assign]
    return counts


@virtual
async def test_each_segment_is_fetched_once_though_their_pages_follow_each_other_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page ends after each object here; new objects lie among the older ones."""
    monkeypatch.setattr(snapshots, "CUT_MASK", 0)

    k = keepers()
    async with k.running(BEFORE):
        for number in range(4):
            await k.upload(f"/old{number}")
        await next_snapshot(k)
        for number in range(3):
            await k.upload(f"/new{number}")
        await next_snapshot(k)
        manifest, _ = await newest(k)
    turns = [place.segment for place in manifest.pages]
    assert len(manifest.segments) > 1
    assert sum(one != other for one, other in pairwise(turns)) >= len(manifest.segments), "they take turns"
    counts = handed_out(k, "segment")
    async with rebuilt(k) as (k, _):
        assert len(await k.paths()) == 7
        assert {segment: counts[segment] for segment in manifest.segments} == dict.fromkeys(manifest.segments, 1)


def stops(keeper: Keeper) -> None:
    """Take a Shepherd down."""
    keeper.up = False


def stops_when_it_has_told_its_records(keeper: Keeper) -> None:
    """Take a Shepherd down as soon as it has answered a rebuild."""
    records = keeper.records

    async def told(call: Call, after: str, limit: int) -> RecordPage:
        page = await records(call, after, limit)
        keeper.up, keeper.records = bool(page.after), told if page.after else records  # type: ignore[method-assign]
        return page

    keeper.records = told  # type: ignore[method-assign]


def starts_anew_when_it_has_told_its_records(keeper: Keeper) -> None:
    """Have a Shepherd restart as soon as it has answered a rebuild: it sends heartbeats, and refuses all else."""
    records = keeper.records

    async def told(call: Call, after: str, limit: int) -> RecordPage:
        page = await records(call, after, limit)
        if not page.after:
            keeper.up, keeper.starting, keeper.records = False, True, records  # type: ignore[method-assign]
        return page

    keeper.records = told  # type: ignore[method-assign]


@asynccontextmanager
async def without_the_snapshot(k: Keepers, leaves: Callable[[Keeper], None] = stops) -> AsyncIterator[list[Keeper]]:
    """A cluster whose only snapshot is on absent Shepherds, or on ones that soon will be, and its rebuild."""
    async with k.running(replace(BEFORE, snapshot_copies=1)):
        await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await next_snapshot(k)
    homes = [
        keeper
        for keeper in k.shepherds.values()
        if any(" segment " in kept.facts.name for kept in keeper.disk.values())
    ]
    for keeper in homes:
        leaves(keeper)
    async with k.running(replace(NO_SNAPSHOTS, lease_ms=1_000), generation=2):
        await asyncio.sleep(5)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k), 200_000)
        yield homes


@pytest.mark.parametrize(
    "leaves", [stops, stops_when_it_has_told_its_records, starts_anew_when_it_has_told_its_records]
)
@virtual
async def test_a_rebuild_stops_while_its_snapshot_may_be_on_a_shepherd_that_is_away(leaves, expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    k = keepers()
    async with without_the_snapshot(k, leaves) as homes:
        status = await k.bench.service.rebuild(ADMIN, False)
        assert (status.stage, homes[0].id in status.cause) == ("failed", True)
        assert await k.paths() == {}
        for keeper in homes:
            keeper.up, keeper.starting = True, False
        await asyncio.sleep(5)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        assert (await k.bench.service.rebuild(ADMIN, False)).stage == "done"
        old = (await k.paths())["/old"]
        assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}


@virtual
async def test_a_rebuild_goes_on_without_the_snapshot_when_who_may_have_it_is_withdrawn(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

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


@virtual
async def test_files_of_a_lost_page_are_not_taken_for_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    short_uploads(monkeypatch)

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


@pytest.mark.parametrize("torn", ["newest", "both"])
@virtual
async def test_a_lost_page_is_read_where_an_older_snapshot_has_the_very_same(torn: str, caplog) -> None:  # type: ignore[no-untyped-def]
    """A segment presumed lost was written anew: its pages are in two."""
    caplog.set_level(logging.ERROR)

    k = keepers()
    async with k.running(BEFORE):
        old, _ = await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await next_snapshot(k)
        before, objects = await newest(k)
        for segment in before.segments:
            await lose_copies(k, segment)
        await another(k)
        after, again = await newest(k)
        assert (again, {*after.segments} & {*before.segments}) == (objects, set())
    for segment in (*after.segments, *(before.segments if torn == "both" else ())):
        for kept in held(k, segment):
            kept.data = bytes(len(kept.data))
    fetched = handed_out(k, "manifest")
    async with rebuilt(k) as (k, status):
        assert set(fetched.values()) == {1}, "also the one that was chosen"
        assert len(fetched) > 1
        lost = any("a page of the snapshot is lost" in note for note in status.notes)
        policy = (await k.bench.stored(old)).sections.get("policy")
        assert (lost, policy) == ((True, None) if torn == "both" else (False, {EVE: "+read"}))


@virtual
async def test_bytes_that_gave_way_take_nothing_with_them_that_their_shepherd_told_on_the_same_page() -> None:
    """A rebuild lists many replicas of a Shepherd at once. One whose blob got newer bytes since the read of the page
    must not keep the others out."""

    k = keepers()
    async with k.running(BEFORE):
        file, replaced = await k.upload("/over", b"old bytes", copies=1)
        _, whole = await k.upload("/whole", copies=1)
        await next_snapshot(k)
    newer = BlobId("00000000-0000-4000-9000-b00000000009")
    facts = resealed(
        held(k, replaced)[0].facts, blob=newer, checksums=checksums(b"NEW bytes"), created_ms=k.clock.now_ms()
    )
    first = next(iter(k.shepherds.values()))
    assert {replaced, whole} <= {kept.facts.blob for kept in first.disk.values()}
    first.plant(0, facts, b"NEW bytes")
    async with rebuilt(k) as (k, status):
        assert (await k.bench.stored(file)).sections["blobs"] == {"00000000": newer}
        assert len(await k.bench.locations(whole)) == 1
        assert "files without bytes" not in status.counts


@virtual
async def test_a_rebuild_begun_again_leaves_newer_bytes_where_they_are(expect_log) -> None:  # type: ignore[no-untyped-def]
    """Bytes that newer ones have replaced come back under no name but one in /lost+found."""
    expect_log("the rebuild has stopped")

    k = keepers()
    async with k.running(BEFORE):
        guid, old = await k.upload("/f", b"old bytes")
        await next_snapshot(k)
    async with k.running(replace(NO_SNAPSHOTS, record_key=KEY)):
        _, new = await k.upload("/f", b"new bytes")
    for kept in held(k, new):
        kept.facts = resealed(kept.facts, guid=guid)
    async with k.running(BEFORE, generation=2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Rebuilding, "_check", refused)
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        assert await k.paths() == {"/f": guid, "/lost+found": LOST_FOUND, f"/lost+found/{old}": old}
        assert (await k.bench.stored(guid)).sections["blobs"] == {"00000000": new}


@virtual
async def test_a_rebuild_begun_again_leaves_bytes_with_their_file_in_lost_and_found(expect_log) -> None:  # type: ignore[no-untyped-def]
    """Their time in the trash is over; the rebuild that broke off has given them a file there."""
    expect_log("the rebuild has stopped")

    k = keepers()
    async with k.running(BEFORE):
        guid, blob = await k.upload("/f")
        await k.upload("/g")
        await k.bench.service.delete(BARTENDER, Delete(guid))
        await next_snapshot(k)
    k.clock.step_ms = 2 * HOUR
    async with k.running(BEFORE, generation=2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Rebuilding, "_noted", broken_off)
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
        before = await k.bench.stored(f"blob:{blob}")
        assert (before.value("blob", "file"), f"/lost+found/{blob}" in await k.paths()) == (blob, True)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        assert (await k.bench.service.rebuild(ADMIN, False)).stage == "done"
        assert (await k.bench.stored(f"blob:{blob}")).sections == before.sections
        assert broken(await snapshot(k.bench)) == ()


def setting_aside(keeper: Keeper, aside: set[str]) -> list[str]:
    """Have a Shepherd quarantine the replicas with one of these words in their names. Returns: the requests about
    them."""
    answer, records, asked = keeper.get, keeper.records, list[str]()

    def apart(reference: ReferenceId) -> bool:
        return any(word in keeper.disk[reference].facts.name for word in aside)

    async def get(call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        if any(apart(request.reference) for request in requests):
            return tuple(TurlOutcome(request.request_id, error="no such replica") for request in requests)
        return await answer(call, requests)

    async def told(call: Call, after: str, limit: int) -> RecordPage:
        page = await records(call, after, limit)
        return replace(page, items=tuple(replace(item, aside=apart(item.reference)) for item in page.items))

    async def stat(call: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
        asked.append("stat")
        return tuple(ReplicaStatOutcome(request_id, reference, False) for request_id, reference in references)

    async def readmit(call: Call) -> int:
        check_access(call, "shepherd", "readmit")
        asked.append("readmit")
        aside.clear()
        return 1

    keeper.get, keeper.records = get, told  # type: ignore[method-assign]
    keeper.stat, keeper.readmit = stat, readmit  # type: ignore[attr-defined]
    return asked


@virtual
async def test_a_snapshot_that_was_set_aside_for_being_unknown_is_brought_back() -> None:
    """A fresh namespace knows nothing: after their grace, small Shepherds set everything aside."""

    k = keepers()
    async with k.running(BEFORE):
        old, _ = await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await next_snapshot(k)
    asked = [setting_aside(keeper, {" manifest ", " segment "}) for keeper in k.shepherds.values()]
    async with rebuilt(k) as (k, _):
        assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}
    assert [words for words in asked if "readmit" in words]


@virtual
async def test_a_rebuild_stops_while_a_snapshot_that_was_set_aside_is_not_brought_back(expect_log) -> None:  # type: ignore[no-untyped-def]
    """Bytes in quarantine are read whole before they come back: that may take longer than the wait for the answer."""
    expect_log("the rebuild has stopped")

    async def slow(call: Call) -> int:
        raise CheloniaError(Kind.TIMEOUT, "readmit")

    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/old")
        await next_snapshot(k)
    for keeper in k.shepherds.values():
        setting_aside(keeper, {" manifest ", " segment "})
        keeper.readmit = slow  # type: ignore[attr-defined]
    async with k.running(NO_SNAPSHOTS, generation=2):
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        status = await k.bench.service.rebuild(ADMIN, False)
        assert (status.stage, "are away" in status.cause) == ("failed", True)
        assert await k.paths() == {}


@virtual
async def test_a_shepherd_compares_again_when_it_has_set_aside_what_is_listed_now(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/old")
        await next_snapshot(k)
    asked = [setting_aside(keeper, {"/old"}) for keeper in k.shepherds.values()]
    async with k.running(NO_SNAPSHOTS, generation=2):
        await asyncio.sleep(20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Rebuilding, "_check", refused)
            await k.bench.service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
    assert [words.count("stat") for words in asked] == [1, 1, 0, 0]


@virtual
async def test_nothing_is_called_unknown_while_a_rebuild_is_not_through() -> None:
    """A replica called unknown is set aside, and cannot be read when its turn to be listed comes."""

    k = keepers()
    async with k.running(NO_SNAPSHOTS):
        shepherd, stranger = next(iter(k.shepherds)), (BlobId(k.ids.uuid()), k.ids.uuid(), ReplicaState.ALIVE)
        await marked(k, "running")
        with fails(Kind.UNAVAILABLE):
            await k.bench.report(shepherd, stranger, number=1)
        await marked(k, "done")
        assert (await k.bench.report(shepherd, stranger, number=1)).unknown == (stranger[1],)


@virtual
async def test_a_replica_with_a_seal_of_other_facts_waits_for_one_that_is_believed() -> None:
    """As of an upload by a reserved name that replaced a file: it must not cost the file its name."""

    k = keepers()
    async with k.running(NO_SNAPSHOTS):
        guid, blob = await k.upload("/f")
    doubted = held(k, blob)[0]
    doubted.facts = replace(doubted.facts, guid=Guid(k.ids.uuid()))
    async with rebuilt(k, NO_SNAPSHOTS) as (k, _):
        assert await k.paths() == {"/f": guid}
        assert len(await k.bench.locations(blob)) == 2


@virtual
async def test_copies_made_after_a_change_of_the_wanted_number_have_the_name_too() -> None:
    k = keepers(5)
    async with k.running(NO_SNAPSHOTS):
        guid, blob = await k.upload("/f")
        await k.bench.service.set_wanted(BARTENDER, SetWanted(guid, 3))

        async def healed() -> bool:
            return len(held(k, blob)) == 3

        await k.until(healed)
    for keeper in list(k.shepherds.values())[:2]:  # which it was uploaded to
        keeper.disk.clear()
    assert [kept.facts.wanted for kept in held(k, blob)] == [3]
    async with rebuilt(k, NO_SNAPSHOTS) as (k, _):
        assert await k.paths() == {"/f": guid}
        assert (await k.bench.stored(blob_object(blob))).value("blob", "wanted") == "2"


@virtual
async def test_what_overwrites_through_a_reserved_name_is_sealed_as_its_shepherds_and_the_metadata_write_it_down() -> (
    None
):
    k = keepers()
    async with k.running(NO_SNAPSHOTS):
        service = k.bench.service
        old, _ = await k.upload("/f")
        begin = k.bench.begin("f", named=True, replaces=old)
        begun = await service.begin_put(BARTENDER, begin)
        sealed = ReplicaFacts(
            begun.blob, begun.guid, str(begin.ln), begin.owner, 7, Checksums(), begin.wanted, Ms(0), begun.seal
        )
        assert rebuild.genuine(sealed, KEY)
        first, second = list(k.shepherds)[:2]
        receipts = tuple(k.bench.receipt(begun.blob, shepherd) for shepherd in (first, second))
        done = await service.commit_put(shepherd_call(first), begun.guid, receipts)
        assert (done.guid, begun.guid != old) == (old, True)
        assert rebuild.genuine(facts_of(await k.bench.stored(f"blob:{begun.blob}")), KEY)


def broken_off(self: Rebuilding, basis: object) -> None:
    raise CheloniaError(Kind.UNAVAILABLE, "rebuild", cause="no A-Hash")


async def refused(self: Rebuilding) -> None:
    raise CheloniaError(Kind.NO_SPACE, "rebuild", cause="no room")
