"""Every A-Hash destroyed: the entries that come back from the Shepherds alone, those that stay away, and the report."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import CLUSTER_OBJECT, REBUILD_OBJECT, ROOT, SERVICES_OBJECT, BlobId, Dn, Guid, Ms, ServiceId
from chelonia.core.names import parse_ln
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import (
    Delete,
    MakeEntry,
    ModifyEntry,
    MoveEntry,
    RebuildStatus,
    ServiceRecord,
    SetWanted,
    Undelete,
    Unlink,
)
from chelonia.core.ports.shepherd import RecordPage
from chelonia.core.timing.clock import stamp
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import put_all
from chelonia.librarian.metadata.records import LibrarianIdentity, PlannedTransact
from chelonia.librarian.recovery.mends import LOST_FOUND
from chelonia.librarian.recovery.rebuild import act as rebuilding
from chelonia.librarian.recovery.rebuild import decide as rebuild
from chelonia.librarian.recovery.rebuild.act import Rebuilding
from chelonia.librarian.recovery.rebuild.decide import Basis
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.world import World
from chelonia.wire.snapshots import Manifest, encode_manifest, snapshot_name
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, EVE, HOUR, JOE, PaperVerifier
from tests.support.namespace_snapshot import broken
from tests.unit.librarian.keepers import KEY, SETTINGS, Keeper, Keepers, Kept, checksums, keepers, resealed
from tests.unit.librarian.namespace.test_trash import snapshot, trashed
from tests.unit.librarian.recovery.test_snapshots import times

BEFORE = replace(SETTINGS, record_key=KEY, trash_keep_ms=3_600_000)
NO_SNAPSHOTS = replace(BEFORE, snapshot_interval_ms=0)

MADE_UP = ("entries", "summaries", "tally")
"""Sections of collections that a rebuild derives from their children, or leaves to the next change."""


@asynccontextmanager
async def rebuilt(k: Keepers, settings: object = None, *wrong: str) -> AsyncIterator[tuple[Keepers, RebuildStatus]]:
    """A fresh A-Hash over the same disks, rebuilt once its Shepherds have been there for a while, but for `wrong`."""
    async with k.running(settings or BEFORE, generation=2):  # type: ignore[arg-type]
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)

        async def over() -> bool:
            return (await k.bench.service.rebuild(ADMIN, False)).stage in ("done", "failed")

        await k.until(over, 200_000)
        status = await k.bench.service.rebuild(ADMIN, False)
        assert (status.stage, status.cause) == ("done", "")
        assert [finding.rule for finding in broken(await snapshot(k.bench))] == list(wrong)
        yield k, status


def short_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is 10 s older than the snapshot which lacks it was deleted."""
    monkeypatch.setattr(rebuild, "UPLOAD_MS", 5_000)
    monkeypatch.setattr(rebuild, "COMMIT_SLACK_MS", 5_000)


async def next_snapshot(k: Keepers) -> None:
    """Wait until the present state is in a snapshot."""
    await times(k, 1)
    await asyncio.sleep(13)


def held(k: Keepers, blob: str) -> list[Kept]:
    return [kept for keeper in k.shepherds.values() for kept in keeper.disk.values() if kept.facts.blob == blob]


@virtual
async def test_names_policies_metadata_links_trash_and_locations_come_back() -> None:
    k = keepers()
    async with k.running(BEFORE):
        service = k.bench.service
        data = await service.make_entry(
            BARTENDER,
            MakeEntry(ROOT, "data", "collection", JOE, {"policy": {EVE: "+read"}, "defaultPolicy": {"ALL": "+read"}}),
        )
        await service.modify_metadata(BARTENDER, (ModifyEntry("1", ROOT, "set", "policy", EVE, "+read"),))
        await service.modify_metadata(BARTENDER, (ModifyEntry("1", ROOT, "unset", "policy", "ALL", ""),))
        first, blob = await k.upload("/data/f", sections={"policy": {EVE: "-read"}, "metadata": {"k": "v"}})
        await service.move(BARTENDER, MoveEntry(first, data, "f", ROOT, "link", keep=True))
        await service.make_entry(
            BARTENDER, MakeEntry(ROOT, "m", "mountpoint", JOE, {"mountpoint": {"externalURL": "x:y"}})
        )
        gone, _ = await k.upload("/deleted")
        await service.delete(BARTENDER, Delete(gone))
        await service.approve(ADMIN, ServiceRecord(Role.BARTENDER, Dn("/CN=b9"), ServiceId("https://b9/B"), True))
        await service.approve(ADMIN, ServiceRecord(Role.BARTENDER, Dn("/CN=no"), ServiceId("https://no/B"), False))
        await next_snapshot(k)
        paths = await k.paths()
        before = {each: await k.bench.stored(each) for each in ("0", data, first, gone)}
        places = await k.bench.locations(blob)
        services = (await k.bench.stored(SERVICES_OBJECT)).sections
    async with rebuilt(k) as (k, status):
        assert await k.paths() == paths
        for each, was in before.items():
            now = await k.bench.stored(each)
            assert {s: p for s, p in now.sections.items() if s not in MADE_UP} == {
                s: p for s, p in was.sections.items() if s not in MADE_UP
            }
        assert set(await k.bench.locations(blob)) == set(places)
        assert (await k.bench.stored(SERVICES_OBJECT)).sections == services
        assert await trashed(k.bench) == [("deleted", gone)]
        await k.bench.service.undelete(BARTENDER, Undelete(gone, ROOT, "deleted"))
        assert (await k.bench.stored(CLUSTER_OBJECT)).value("cluster", "generation") == "2"
        assert k.bench.service._parts.records.position.generation == 2
        assert status.counts["replicas found"] >= 4
        assert "files without bytes" not in status.counts


@virtual
async def test_what_was_written_overwritten_and_made_since_the_snapshot_comes_back() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await k.bench.service.make_entry(
            BARTENDER, MakeEntry(ROOT, "d", "collection", JOE, {"defaultPolicy": {"ALL": "+read"}})
        )
        old, old_blob = await k.upload("/d/over", b"old bytes")
        await next_snapshot(k)
    async with k.running(replace(NO_SNAPSHOTS, record_key=KEY)):
        # The cluster as it was, with the same key: what follows is known to records alone.
        await k.bench.service.make_entry(BARTENDER, MakeEntry(ROOT, "d", "collection", JOE, {}))
        await k.bench.collection("new")
        new, new_blob = await k.upload("/new/f", b"new file")
        flat, _ = await k.upload("/d/g", b"g", owner=EVE)
        facts_blob = BlobId(k.ids.uuid())
        facts = resealed(
            held(k, new_blob)[0].facts, blob=facts_blob, guid=old, name="/d/over", size=9,
            checksums=checksums(b"NEW bytes"), created_ms=k.clock.now_ms(),
        )  # fmt: skip
        for number, keeper in enumerate(list(k.shepherds.values())[2:4]):
            keeper.plant(number, facts, b"NEW bytes")
    async with rebuilt(k) as (k, status):
        paths = await k.paths()
        assert {"/d", "/d/over", "/d/g", "/new", "/new/f"} <= set(paths)
        assert (paths["/d/over"], paths["/new/f"], paths["/d/g"]) == (old, new, flat)
        over = await k.bench.stored(old)
        assert over.sections["blobs"] == {"00000000": facts_blob}
        assert over.sections["states"]["size"] == "9"
        assert len(await k.bench.locations(facts_blob)) == 2
        made = await k.bench.stored(paths["/new"])
        assert (made.sections["entry"]["owner"], "policy" in made.sections) == (ADMIN.dn, False)
        g = await k.bench.stored(flat)
        assert (g.sections["entry"]["owner"], g.sections["policy"]) == (EVE, {"ALL": "+read"})
        assert status.counts["files written since the snapshot"] == 2
        assert status.counts["files overwritten since the snapshot"] == 1
        assert f"/lost+found/{old_blob}" in paths, "they may be a copy's whose name is lost"
        assert any("collection 'new'" in note for note in status.notes)
        begun = Ms(int((await k.bench.stored(REBUILD_OBJECT)).sections["rebuild"]["snapshot_ms"]))
        assert any(note.startswith(f"the snapshot used was begun at {stamp(begun)}: ") for note in status.notes)
        assert not any(str(begun) in note for note in status.notes), "a date, for people"


@virtual
async def test_bytes_that_newer_ones_replaced_do_not_come_back_under_the_name_of_their_upload() -> None:
    """`putFile` over a file writes the id of its upload, which no entry has by then."""

    k = keepers()
    async with k.running(BEFORE):
        file, replaced = await k.upload("/over", b"old bytes")
        await next_snapshot(k)
        kept = held(k, replaced)
    upload, newer = Guid("00000000-0000-4000-9000-f00000000009"), BlobId("00000000-0000-4000-9000-b00000000009")
    for one in kept:
        one.facts = resealed(one.facts, guid=upload)
    facts = resealed(
        kept[0].facts, blob=newer, guid=file, checksums=checksums(b"NEW bytes"), created_ms=k.clock.now_ms()
    )
    next(iter(k.shepherds.values())).plant(0, facts, b"NEW bytes")
    async with rebuilt(k) as (k, status):
        assert set(await k.paths()) == {"/over", "/lost+found", f"/lost+found/{replaced}"}
        assert (await k.bench.stored(file)).sections["blobs"] == {"00000000": newer}
        assert "files without bytes" not in status.counts


@pytest.mark.parametrize("came_ms", [0, 1_000_000], ids=["at once", "for longer than usual"])
@virtual
async def test_what_was_deleted_before_the_snapshot_stays_deleted(
    monkeypatch: pytest.MonkeyPatch, came_ms: int
) -> None:
    """But bytes that came over a very long time may have got their name after it."""
    short_uploads(monkeypatch)

    k = keepers()
    async with k.running(replace(BEFORE, trash_keep_ms=0)):
        guid, blob = await k.upload("/f")
        copy = [replace(kept) for kept in held(k, blob)]
        await asyncio.sleep(30)  # longer than any upload takes
        await k.bench.service.delete(BARTENDER, Delete(guid))
        await k.upload("/g")
        await next_snapshot(k)
        await next_snapshot(k)
    # A Shepherd that was away when its order to erase was written:
    list(k.shepherds.values())[3].plant(1, replace(copy[0].facts, commit_within_ms=came_ms), copy[0].data)
    async with rebuilt(k) as (k, status):
        assert [path for path in await k.paths() if not path.startswith("/lost+found")] == ["/g"]
        assert status.counts.get("replicas of deleted files", 0) == (0 if came_ms else 1)


@virtual
async def test_what_was_made_and_deleted_between_two_snapshots_stays_deleted_also_when_all_is_quiet_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_uploads(monkeypatch)

    k = keepers()
    async with k.running(replace(BEFORE, trash_keep_ms=0)):
        await k.upload("/g")
        await next_snapshot(k)
        guid, blob = await k.upload("/f")
        copy = [replace(kept) for kept in held(k, blob)]
        await k.bench.service.delete(BARTENDER, Delete(guid))
        await asyncio.sleep(30)
    # A Shepherd that was away when its order to erase was written:
    list(k.shepherds.values())[3].plant(1, copy[0].facts, copy[0].data)
    async with rebuilt(k) as (k, status):
        assert [*await k.paths()] == ["/g"]
        assert status.counts["replicas of deleted files"] == 1


@virtual
async def test_deleted_files_whose_time_is_over_by_now_do_not_come_back_as_lost() -> None:
    k = keepers()
    async with k.running(BEFORE):
        guid, blob = await k.upload("/f")
        await k.upload("/g")
        await k.bench.service.delete(BARTENDER, Delete(guid))
        await next_snapshot(k)
    for keeper in k.shepherds.values():  # swept since, and the loss came before the next snapshot
        keeper.disk = {at: kept for at, kept in keeper.disk.items() if kept.facts.blob != blob}
    k.clock.step_ms = 2 * HOUR
    async with rebuilt(k) as (k, status):
        assert set(await k.paths()) == {"/g"}
        assert await trashed(k.bench) == []
        assert not (await k.bench.stored(f"blob:{blob}")).exists
        assert not any("lost" in note for note in status.notes), status.notes


@virtual
async def test_bytes_of_the_trash_whose_time_is_over_by_now_are_sheltered_as_they_may_have_been_taken_back() -> None:
    k = keepers()
    async with k.running(BEFORE):
        guid, _ = await k.upload("/f")
        await k.upload("/g")
        await k.bench.service.delete(BARTENDER, Delete(guid))
        await next_snapshot(k)
    k.clock.step_ms = 2 * HOUR
    async with rebuilt(k) as (k, status):
        assert await trashed(k.bench) == []
        [found] = set(await k.paths()) - {"/g", "/lost+found"}
        assert found.startswith("/lost+found/")
        assert "files without bytes" not in status.counts


@virtual
async def test_forged_unsigned_and_damaged_records_and_taken_names_get_no_name_of_their_choice() -> None:
    k = keepers()
    async with k.running(BEFORE):
        _, blob = await k.upload("/mine")
        await next_snapshot(k)
        facts = held(k, blob)[0].facts
    keeper, data = list(k.shepherds.values())[3], facts_data(k, blob)
    later = k.clock.now_ms()

    def genuine(number: int, name: str) -> ReplicaFacts:
        own = BlobId(f"00000000-0000-4000-9000-b0000000000{number}")
        file = Guid(f"00000000-0000-4000-9000-f0000000000{number}")
        return resealed(facts, blob=own, guid=file, name=name, created_ms=later)

    keeper.plant(1, replace(genuine(1, "/forged"), seal="00" * 32), data)
    keeper.plant(2, replace(genuine(2, "/unsigned"), seal=""), data)
    keeper.plant(3, replace(genuine(3, "/u"), name="/uncommitted"), data, committed=False)
    keeper.plant(8, genuine(8, "/acknowledged"), data, committed=False)
    keeper.plant(4, genuine(4, "/damaged"), data, state=ReplicaState.INVALID)
    keeper.plant(5, genuine(5, "/mine"), data)
    keeper.plant(6, genuine(6, "no/name"), data)
    keeper.plant(7, replace(facts, size=1), b"x")
    async with rebuilt(k) as (k, status):
        paths = await k.paths()
        top = {path for path in paths if path.count("/") == 1}
        assert top == {"/mine", "/acknowledged", "/lost+found"}
        sheltered = {path.removeprefix("/lost+found/") for path in paths if path.startswith("/lost+found/")}
        assert sheltered == {f"00000000-0000-4000-9000-b0000000000{n}" for n in (1, 2, 5, 6)}
        shelter = await k.bench.stored(LOST_FOUND)
        assert (shelter.sections["entry"]["owner"], "policy" in shelter.sections) == (ADMIN.dn, False)
        one = await k.bench.stored("00000000-0000-4000-9000-b00000000001")
        assert one.sections["metadata"] == {"was": "/forged", "wasOwnedBy": JOE}
        assert one.sections["entry"]["owner"] == ADMIN.dn
        assert status.counts["blobs in /lost+found"] == 4
        assert status.counts["replicas never committed"] == 1
        assert status.counts["damaged replicas or records"] == 1
        assert status.counts["replicas that contradict another record"] == 1
        assert len(await k.bench.locations(blob)) == 2


@virtual
async def test_what_is_not_known_to_be_committed_displaces_nothing() -> None:
    """A Shepherd learns of a commit a moment after the user: its record without one proves nothing."""

    k = keepers()
    async with k.running(NO_SNAPSHOTS):
        guid, blob = await k.upload("/f", b"committed")
        await k.upload("/g", b"acknowledged")
    disks = [keeper.disk for keeper in k.shepherds.values()]
    for disk in disks:
        for kept in disk.values():
            kept.committed = kept.facts.blob == blob
    newer, stale, other = BlobId(k.ids.uuid()), BlobId(k.ids.uuid()), Guid(k.ids.uuid())
    facts, later = held(k, blob)[0].facts, k.clock.now_ms() + 5
    for number, (each, file) in enumerate(((newer, guid), (stale, other))):
        made = resealed(facts, blob=each, guid=file, created_ms=later)
        next(iter(k.shepherds.values())).plant(number, made, b"committed", committed=False)
    async with rebuilt(k) as (k, status):
        paths = await k.paths()
        assert (paths["/f"], set(paths)) == (
            guid,
            {"/f", "/g", "/lost+found", *(f"/lost+found/{b}" for b in (newer, stale))},
        )
        assert (await k.bench.stored(guid)).sections["blobs"] == {"00000000": blob}
        assert status.counts["blobs in /lost+found"] == 2


def facts_data(k: Keepers, blob: str) -> bytes:
    return held(k, blob)[0].data


@virtual
async def test_without_a_snapshot_records_alone_bring_files_back() -> None:
    k = keepers()
    async with k.running(NO_SNAPSHOTS):
        await k.bench.collection("d")
        guid, blob = await k.upload("/d/f", copies=3)
    for kept in held(k, blob):  # bytes first: without a request for another checksum than SHA-256
        kept.facts = replace(kept.facts, checksums=Checksums(kept.facts.checksums.sha256))
    async with rebuilt(k) as (k, status):
        assert (await k.paths())["/d/f"] == guid
        assert len(await k.bench.locations(blob)) == 3
        states = (await k.bench.stored(guid)).sections["states"]
        assert (states["checksumType"], len(states["checksum"])) == ("sha256", 64)
        assert any("no snapshot was found" in note for note in status.notes)


@virtual
async def test_without_the_key_nothing_is_believed_and_nothing_is_lost() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f", copies=2)
        await times(k, 1)
    async with rebuilt(k, replace(NO_SNAPSHOTS, record_key="")) as (k, status):
        paths = await k.paths()
        assert {path for path in paths if path.count("/") == 1} == {"/lost+found"}
        kept = [await k.bench.stored(guid) for guid in paths.values()]
        assert [each.value("metadata", "was") for each in kept].count("/f") == 1
        assert status.counts["blobs in /lost+found"] >= 1


@virtual
async def test_a_snapshot_that_is_damaged_gives_way_to_the_one_before_it() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f")
        await next_snapshot(k)
        await k.upload("/g")
        await next_snapshot(k)
    manifests = sorted(
        (kept.facts.name, kept)
        for keeper in k.shepherds.values()
        for kept in keeper.disk.values()
        if " manifest " in kept.facts.name
    )  # fmt: skip
    newest = manifests[-1][0]
    for name, kept in manifests:
        if name == newest:
            kept.data = kept.data[:-3]
    async with rebuilt(k) as (k, status):
        assert {"/f", "/g"} <= set(await k.paths())
        assert any("cannot be read" in note for note in status.notes)


@virtual
async def test_the_last_snapshot_is_used_although_the_clock_was_set_back_before_it() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f")
        await next_snapshot(k)
        k.clock.step_ms = -HOUR
        await k.upload("/g")
        guid = (await k.bench.names())["f"]
        await k.bench.service.move(BARTENDER, MoveEntry(guid, ROOT, "f", ROOT, "moved", keep=False))
        await next_snapshot(k)
    async with rebuilt(k) as (k, _):
        assert {"/g", "/moved"} <= set(await k.paths())
        assert "/f" not in await k.paths()


@virtual
async def test_a_file_whose_bytes_are_nowhere_is_named_as_lost() -> None:
    k = keepers()
    async with k.running(BEFORE):
        _, blob = await k.upload("/f")
        await next_snapshot(k)
    for keeper in k.shepherds.values():
        keeper.disk = {ref: kept for ref, kept in keeper.disk.items() if kept.facts.blob != blob}
    async with rebuilt(k) as (k, status):
        assert "/f" in await k.paths()
        assert status.counts["files without bytes"] == 1
        assert any("no replica was found of '/f'" in note for note in status.notes)


@virtual
async def test_a_shepherd_that_is_away_is_told_and_its_replicas_come_with_the_next_rebuild() -> None:
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f", copies=2)
        await next_snapshot(k)
    first = next(iter(k.shepherds.values()))
    first.up = False
    k_settings = replace(NO_SNAPSHOTS, lease_ms=1_000)
    async with k.running(k_settings, generation=2):
        await asyncio.sleep(5)
        service = k.bench.service
        await service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        status = await service.rebuild(ADMIN, False)
        assert any("is away" in note for note in status.notes)
        with fails(Kind.NOT_EMPTY):
            await service.rebuild(ADMIN, True)


def failing(keeper: Keeper, times: int, error: Exception) -> None:
    """Have a Shepherd's next answers with records fail."""
    answer, left = keeper.records, [error] * times

    async def records(call: Call, after: str, limit: int) -> RecordPage:
        if left:
            raise left.pop()
        return await answer(call, after, limit)

    keeper.records = records  # type: ignore[method-assign]


AWAY = CheloniaError(Kind.NETWORK, "records", "s", "connection refused")


async def written() -> Keepers:
    """A cluster with a file with a copy on one Shepherd alone, its first, written after the last snapshot."""
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f", copies=2)
        await next_snapshot(k)
    async with k.running(NO_SNAPSHOTS):
        await k.upload("/alone", copies=1)
    return k


@virtual
async def test_a_shepherd_that_blinks_is_asked_again() -> None:
    k = await written()
    failing(next(iter(k.shepherds.values())), 3, AWAY)
    async with rebuilt(k) as (k, status):
        assert set(await k.paths()) == {"/f", "/alone"}
        assert not any("stopped answering" in note for note in status.notes)


@virtual
async def test_a_shepherd_that_was_there_and_restarts_between_two_passes_is_waited_for() -> None:
    k = await written()
    first = next(iter(k.shepherds.values()))
    answer, asked = first.records, [0]

    async def back() -> None:
        await asyncio.sleep(8)
        first.up = True

    async def records(call: Call, after: str, limit: int) -> RecordPage:
        page = await answer(call, after, limit)
        asked[0] += 1
        if asked[0] == 1:
            first.up = False
            waiting.append(asyncio.create_task(back()))
            await asyncio.sleep(3)  # the pass over the others takes as long: it counts as away meanwhile
        return page

    waiting: list[asyncio.Task[None]] = []
    first.records = records  # type: ignore[method-assign]
    async with rebuilt(k, replace(BEFORE, lease_ms=1_000)) as (k, status):
        assert set(await k.paths()) == {"/f", "/alone"}
        assert not any("is away" in note for note in status.notes)


@virtual
async def test_a_shepherd_that_stops_answering_is_told_and_ends_nothing() -> None:
    k = await written()
    failing(next(iter(k.shepherds.values())), 1_000, AWAY)
    async with rebuilt(k) as (k, status):
        assert set(await k.paths()) == {"/f"}
        assert any("stopped answering" in note for note in status.notes)


@virtual
async def test_a_rebuild_that_breaks_off_for_whatever_reason_says_so(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("exception was never retrieved")

    k = await written()
    failing(next(iter(k.shepherds.values())), 1, ValueError("nobody expects this"))
    async with k.running(BEFORE, generation=2):
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        status = await k.bench.service.rebuild(ADMIN, False)
        assert (status.stage, "nobody expects this" in status.cause) == ("failed", True)
        assert (await k.bench.service.rebuild(ADMIN, True)).stage == "beginning"
        await k.until(lambda: over(k))
        assert set(await k.paths()) == {"/f", "/alone"}


@virtual
async def test_why_a_rebuild_has_stopped_is_known_to_every_librarian_until_it_is_begun_again(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    k = await written()
    async with k.running(BEFORE, generation=2):
        service = k.bench.service
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Rebuilding, "_work", _refused)
            await service.rebuild(ADMIN, True)
            await k.until(lambda: over(k))
        assert "no room" in (await service.health(ADMIN)).waits_for
        assert "no room" in (await service.heal_status(ADMIN)).waits_for
        world = World(k, PaperVerifier(), k.clock, k.ids, k.bench.settings, carrier=k)  # type: ignore[arg-type]
        other = LibrarianService(
            k.bench.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian")), world
        )
        status = await other.rebuild(ADMIN, False)
        assert (status.stage, "no room" in status.cause) == ("failed", True)
        await service.rebuild(ADMIN, True)
        assert (await other.rebuild(ADMIN, False)).stage == "idle"
        await k.until(lambda: over(k))
        await k.until(lambda: heals(k))


async def _refused(self: Rebuilding) -> None:
    raise CheloniaError(Kind.NO_SPACE, "rebuild", cause="no room")


async def heals(k: Keepers) -> bool:
    return not (await k.bench.service.heal_status(ADMIN)).waits_for


async def over(k: Keepers) -> bool:
    return (await k.bench.service.rebuild(ADMIN, False)).stage in ("done", "failed")


def manifests(k: Keepers) -> set[str]:
    """The names of the snapshots whose manifests are on disks."""
    kept = (kept.facts.name for keeper in k.shepherds.values() for kept in keeper.disk.values())
    return {name for name in kept if " manifest " in name}


@virtual
async def test_a_fresh_namespace_takes_no_snapshot_in_place_of_the_last_good_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_uploads(monkeypatch)

    k = keepers()
    async with k.running(BEFORE):
        for name in ("/a", "/b", "/c"):
            await k.upload(name)
        await next_snapshot(k)
        await asyncio.sleep(30)
        paths, before = await k.paths(), manifests(k)
    async with rebuilt(k) as (k, status):
        assert await k.paths() == paths
        assert "replicas of deleted files" not in status.counts
        assert before & manifests(k)


@virtual
async def test_a_snapshot_taken_after_the_loss_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    short_uploads(monkeypatch)

    k = keepers()
    async with k.running(BEFORE):
        old, _ = await k.upload("/old")
        await next_snapshot(k)
        await asyncio.sleep(30)
    async with k.running(BEFORE, generation=2):
        begun = k.clock.now_ms()
        late = encode_manifest(Manifest("test", 2, begun, 0, (), ()), KEY)
        kept = k.bench.service._parts.healer.internal_blobs
        assert kept is not None
        await kept.store(late, snapshot_name("manifest", begun))
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        status = await k.bench.service.rebuild(ADMIN, False)
        assert await k.paths() == {"/old": old}
        assert any("taken after the loss" in note for note in status.notes)


@virtual
async def test_while_a_rebuild_is_under_way_nobody_repairs_and_collections_keep_their_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Objects come back in order of their ids: a name before its collection, which for a while looks like none."""
    monkeypatch.setattr(rebuilding, "ELEMENTS_TOGETHER", 20)
    refused: list[Kind] = []

    async def repair(k: Keepers) -> None:
        found = await k.bench.service.fsck(ADMIN, Guid(""), "")
        with pytest.raises(CheloniaError, match="rebuild") as caught:
            await k.bench.service.mend(ADMIN, tuple(each for each in found.findings if each.mendable))
        refused.append(caught.value.kind)

    k = keepers()
    chance = random.Random(5)
    k.ids.uuid = lambda: str(uuid.UUID(int=chance.getrandbits(128), version=4))  # type: ignore[method-assign]
    async with k.running(BEFORE):
        for outer in range(6):
            above = await k.bench.collection(f"d{outer}")
            for inner in range(3):
                await k.bench.collection(f"s{inner}", above)
        await next_snapshot(k)
        paths = await k.paths()
    real = Rebuilding._restore_batch

    async def batch(self: Rebuilding, elements: Sequence[tuple[list[Element], list[Element]]]) -> None:
        await real(self, elements)
        await repair(k)

    monkeypatch.setattr(Rebuilding, "_restore_batch", batch)
    async with rebuilt(k) as (k, status):
        assert await k.paths() == paths
        owners = {(await k.bench.stored(each)).value("entry", "owner") for each in paths.values()}
        assert (owners, set(refused)) == ({JOE}, {Kind.CONFLICT})
        assert "objects there already" not in status.counts
        assert await k.bench.service.mend(ADMIN, ()) == ()


@pytest.mark.expect_log("a rebuild is not through")  # for a Librarian that starts meanwhile
@virtual
async def test_while_a_rebuild_is_under_way_no_librarian_lets_users_at_half_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f")
        await next_snapshot(k)
        paths = await k.paths()
    answers: list[Kind | None] = []
    async with k.running(BEFORE, generation=2):
        world = World(k, PaperVerifier(), k.clock, k.ids, k.bench.settings, carrier=k)  # type: ignore[arg-type]
        second = LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l2/Librarian"))
        other, starts = (LibrarianService(k.bench.ahash, second, world) for _ in range(2))
        await other.start()
        running, librarians = asyncio.create_task(other.run()), [k.bench.service, other]

        async def ask() -> None:
            for each in librarians:
                for asked in (
                    each.make_entry(BARTENDER, MakeEntry(ROOT, "f", "collection", JOE, {})),
                    each.traverse(BARTENDER, (parse_ln("/f"),)),
                ):
                    try:
                        await asked
                        answers.append(None)
                    except CheloniaError as error:
                        answers.append(error.kind)
                assert len(await each.nodes(BARTENDER)) == len(k.shepherds)

        real, work = Rebuilding._restore_batch, Rebuilding._work

        async def from_the_first(self: Rebuilding) -> Basis:
            await starts.start()
            librarians.append(starts)
            await ask()
            librarians.remove(starts)
            return await work(self)

        async def batch(self: Rebuilding, elements: Sequence[tuple[list[Element], list[Element]]]) -> None:
            await ask()
            await real(self, elements)

        monkeypatch.setattr(Rebuilding, "_work", from_the_first)
        monkeypatch.setattr(Rebuilding, "_restore_batch", batch)
        await asyncio.sleep(2.5 * k.bench.settings.tick_ms / 1000)  # it is begun between two ticks
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k), 200_000)
        assert set(answers) == {Kind.UNAVAILABLE}
        await asyncio.sleep(2)
        answers.clear()
        await ask()
        assert answers == [Kind.EXISTS, None] * 2
        assert await k.paths() == paths
        await other.stop()
        await running


@virtual
async def test_a_snapshot_is_used_although_the_generation_was_not_raised() -> None:
    k = keepers()
    async with k.running(BEFORE):
        old, _ = await k.upload("/old", sections={"policy": {EVE: "+read"}})
        await next_snapshot(k)
    async with k.running(BEFORE):
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k))
        assert (await k.bench.stored(old)).sections["policy"] == {EVE: "+read"}


@virtual
async def test_while_a_rebuild_has_broken_off_nothing_is_repaired_and_no_snapshot_taken(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("a rebuild is not through")

    k = keepers()
    async with k.running(BEFORE):
        guid, blob = await k.upload("/f", copies=1)
        await marked(k, "running")
        await k.bench.service.start()
        await asyncio.sleep(1)  # until it is heeded
        await k.bench.service._parts.contents.set_wanted(LIBRARIAN, SetWanted(Guid(guid), 3))
        await asyncio.sleep(60)
        assert (len(held(k, blob)), manifests(k)) == (1, set())
        await k.bench.service.rebuild(ADMIN, True)

        async def healed() -> bool:
            return len(held(k, blob)) == 3 and len(manifests(k)) == 1

        await k.until(healed)


async def marked(k: Keepers, state: str) -> None:
    """Write the state of a rebuild, as of a Librarian that is gone."""
    left = PlannedTransact(put_all(REBUILD_OBJECT, {"rebuild": {"state": state, "run": "r"}}))
    await k.bench.service._parts.records.attempt(LIBRARIAN, left)


@virtual
async def test_a_namespace_with_entries_is_not_rebuilt() -> None:
    k = keepers()
    async with k.running(NO_SNAPSHOTS):
        await k.upload("/f")
        with fails(Kind.NOT_EMPTY):
            await k.bench.service.rebuild(ADMIN, True)
        with fails(Kind.DENIED):
            await k.bench.service.rebuild(BARTENDER, False)


@virtual
async def test_after_a_rebuild_everything_is_repaired_and_snapshots_go_on() -> None:
    k = keepers(5)
    async with k.running(BEFORE):
        guid, blob = await k.upload("/f", copies=2)
        await k.bench.service.set_wanted(BARTENDER, SetWanted(guid, 3))
        await next_snapshot(k)
    victim = next(keeper for keeper in k.shepherds.values() if any(x.facts.blob == blob for x in keeper.disk.values()))
    victim.disk.clear()
    async with rebuilt(k, BEFORE) as (k, _):

        async def whole() -> bool:
            return list((await k.bench.locations(blob)).values()) == ["alive"] * 3

        await k.until(whole)
        await next_snapshot(k)


@virtual
async def test_the_names_of_a_deleted_link_are_free() -> None:
    k = keepers()
    async with k.running(BEFORE):
        guid, _ = await k.upload("/f")
        await k.bench.service.move(BARTENDER, MoveEntry(guid, ROOT, "f", ROOT, "g", keep=True))
        await k.bench.service.unlink(BARTENDER, Unlink(ROOT, "f", guid))
        await next_snapshot(k)
    async with rebuilt(k) as (k, _):
        assert await k.paths() == {"/g": guid}
