"""Deleted files: kept, found, brought back, and let go in time; uploads that were never completed."""

from __future__ import annotations

import pytest

from chelonia.core.caller import Call
from chelonia.core.contents.uploads import CommitFile, CopyFile
from chelonia.core.errors import Kind
from chelonia.core.ids import PENDING_OBJECT, ROOT, TRASH_OBJECT, BlobId, Guid, Ms, ObjectId, RequestKey
from chelonia.core.ports.ahash import Page
from chelonia.core.ports.librarian import Delete, MoveEntry, SetWanted, Undelete, Unlink, Unmake
from chelonia.core.values import replace
from chelonia.librarian.leadership import sweep as expiring
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.records import Records
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, HOUR, JOE, Bench, bench, shepherd_call
from tests.support.namespace_snapshot import NamespaceSnapshot, broken, unsettled
from tests.unit.librarian.test_healing import Paper, paper

KEPT = replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=HOUR)


async def trashed(made: Bench, under: str = "") -> list[tuple[str, str]]:
    """(name, GUID) of each entry in the trash."""
    page = await made.service.trash(BARTENDER, under, "", 0)
    assert not page.after
    return [(entry.name, entry.guid) for entry in page.entries]


async def snapshot(made: Bench) -> NamespaceSnapshot:
    ids = (await made.ahash.objects(LIBRARIAN)).ids
    return NamespaceSnapshot(await made.ahash.get(LIBRARIAN, ids))


# --- keeping --------------------------------------------------------------------------------------------------------


async def test_a_deleted_file_is_gone_and_kept() -> None:
    async with bench(settings=KEPT) as made:
        guid, blob = await made.file("f")
        await made.service.delete(BARTENDER, Delete(guid))
        assert await made.names() == {}
        [seen] = await made.service.get(BARTENDER, (guid,))
        assert not seen.exists
        assert len(await made.locations(blob)) == 2
        assert [await made.outbox(shepherd) for shepherd in made.shepherds] == [{}, {}, {}]
        [entry] = (await made.service.trash(BARTENDER, "", "", 0)).entries
        assert (entry.guid, entry.owner, entry.parent, entry.name, entry.size) == (guid, JOE, ROOT, "f", 7)
        assert entry.until_ms - entry.deleted_ms == HOUR
        assert broken(await snapshot(made)) == ()
        assert [finding.rule for finding in unsettled(await snapshot(made))] == []


async def test_the_last_name_takes_the_file_to_the_trash_and_no_other() -> None:
    async with bench(settings=KEPT) as made:
        guid, _ = await made.file("f")
        await made.service.move(BARTENDER, MoveEntry(guid, ROOT, "f", ROOT, "g", keep=True))
        await made.service.unlink(BARTENDER, Unlink(ROOT, "f", guid))
        assert await trashed(made) == []
        await made.service.unlink(BARTENDER, Unlink(ROOT, "g", guid))
        assert await trashed(made) == [("g", guid)]


async def test_deleting_with_many_names_finds_it_under_each() -> None:
    async with bench(settings=KEPT) as made:
        guid, _ = await made.file("f")
        await made.service.move(BARTENDER, MoveEntry(guid, ROOT, "f", ROOT, "g", keep=True))
        await made.service.delete(BARTENDER, Delete(guid))
        assert await trashed(made) == [("f", guid), ("g", guid)]
        await made.service.undelete(BARTENDER, Undelete(guid, ROOT, "g"))
        assert await made.names() == {"g": guid}
        assert await trashed(made) == []
        assert broken(await snapshot(made)) == ()


async def test_without_a_time_to_keep_nothing_is_kept() -> None:
    async with bench() as made:
        guid, blob = await made.file("f")
        await made.service.delete(BARTENDER, Delete(guid))
        assert await trashed(made) == []
        assert not await made.locations(blob)


async def test_what_is_overwritten_is_not_kept() -> None:
    async with bench(settings=KEPT) as made:
        guid, blob = await made.file("f")
        begin = made.begin("f", replaces=guid)
        begun = await made.service.begin_put(BARTENDER, begin)
        receipts = tuple(made.receipt(begun.blob, s) for s in made.shepherds[:2])
        await made.service.commit_file(BARTENDER, CommitFile(begin, begun, receipts))
        assert await trashed(made) == []
        assert await made.outbox(made.shepherds[0]) == {f"{blob}@{made.shepherds[0]}": "replaced"}


async def test_the_trash_is_found_by_collection_name_and_guid() -> None:
    async with bench(settings=KEPT) as made:
        data = await made.collection("data")
        first, _ = await made.file("f", data)
        await made.service.delete(BARTENDER, Delete(first))
        made.clock.advance(5)
        second, _ = await made.file("f", data)
        other, _ = await made.file("f2", data)
        for guid in (second, other):
            await made.service.delete(BARTENDER, Delete(guid))
        outside, _ = await made.file("f")
        await made.service.delete(BARTENDER, Delete(outside))
        assert await trashed(made, f"{data}/") == [("f", first), ("f", second), ("f2", other)]
        assert await trashed(made, f"{data}/f/") == [("f", first), ("f", second)]
        assert await trashed(made, second) == [("f", second)]
        assert await trashed(made, data) == []
        page = await made.service.trash(BARTENDER, f"{data}/", "", 2)
        rest = await made.service.trash(BARTENDER, f"{data}/", page.after, 2)
        assert [entry.guid for entry in (*page.entries, *rest.entries)] == [first, second, other]
        assert not rest.after


# --- bringing back --------------------------------------------------------------------------------------------------


async def test_what_comes_back_is_the_file_it_was() -> None:
    async with bench(settings=KEPT) as made:
        sections = {"policy": {"/CN=eve": "+read"}, "metadata": {"k": "v"}}
        guid, blob = await made.file("f", sections=sections)
        before = await made.stored(guid)
        await made.service.delete(BARTENDER, Delete(guid))
        await made.service.undelete(BARTENDER, Undelete(guid, ROOT, "f"))
        after = await made.stored(guid)
        assert after.sections == before.sections
        assert await made.names() == {"f": guid}
        assert len(await made.locations(blob)) == 2
        await made.service.set_wanted(BARTENDER, SetWanted(guid, 3))
        assert broken(await snapshot(made)) == ()


async def test_a_name_taken_meanwhile_is_told_and_another_will_do() -> None:
    async with bench(settings=KEPT) as made:
        guid, _ = await made.file("f")
        await made.service.delete(BARTENDER, Delete(guid))
        again, _ = await made.file("f")
        with fails(Kind.EXISTS):
            await made.service.undelete(BARTENDER, Undelete(guid, ROOT, "f"))
        await made.service.undelete(BARTENDER, Undelete(guid, ROOT, "old"))
        assert await made.names() == {"f": again, "old": guid}


async def test_of_two_who_unmake_a_collection_one_hears_that_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the trash then: the second caller must not take it from there."""
    async with bench(settings=KEPT) as made:
        data = await made.collection("data")
        others, scan = [Unmake(data)], Records.scan

        async def meanwhile(records: Records, call: Call, obj: ObjectId, section: str, after: str, limit: int) -> Page:
            if section == "entries" and others:
                await made.service.unmake(BARTENDER, others.pop())
            return await scan(records, call, obj, section, after, limit)

        monkeypatch.setattr(Records, "scan", meanwhile)
        with fails(Kind.NOT_FOUND):
            await made.service.unmake(BARTENDER, Unmake(data))
        assert broken(await snapshot(made)) == ()
        await made.service.undelete(BARTENDER, Undelete(data, ROOT, "data"))
        assert await made.names() == {"data": data}


async def test_what_was_in_a_collection_that_is_gone_comes_back_elsewhere() -> None:
    async with bench(settings=KEPT) as made:
        data = await made.collection("data")
        guid, _ = await made.file("f", data)
        await made.service.delete(BARTENDER, Delete(guid))
        await made.service.unmake(BARTENDER, Unmake(data))
        with fails(Kind.NO_PARENT):
            await made.service.undelete(BARTENDER, Undelete(guid, data, "f"))
        await made.service.undelete(BARTENDER, Undelete(guid, ROOT, "f"))
        assert broken(await snapshot(made)) == ()


@pytest.mark.parametrize("which", ["a file", "nothing"])
async def test_only_what_is_in_the_trash_comes_back(which: str) -> None:
    async with bench(settings=KEPT) as made:
        guid = (await made.file("f"))[0] if which == "a file" else Guid("11111111-1111-4111-8111-111111111111")
        with fails(Kind.NOT_FOUND):
            await made.service.undelete(BARTENDER, Undelete(guid, ROOT, "g"))


# --- letting go -----------------------------------------------------------------------------------------------------


@virtual
async def test_its_bytes_stay_until_its_time_is_over_and_then_go() -> None:
    async with paper(settings=replace(KEPT, trash_keep_ms=20_000)) as p:
        guid, blob = await p.upload("f", copies=3)
        _, other = await p.upload("other", copies=3)
        await p.b.service.delete(BARTENDER, Delete(guid))
        until = (await p.b.service.trash(BARTENDER, "", "", 0)).entries[0].until_ms
        p.shepherds[p.b.shepherds[0]].up = False
        await p.until(lambda: three_live_copies(p, blob))  # what is in the trash is repaired like anything else
        p.shepherds[p.b.shepherds[0]].up = True

        async def erased() -> bool:
            return not p.holding(blob)

        await p.until(erased, 60_000)
        assert until <= p.b.clock.now_ms() < until + 5_000
        assert not (await p.b.stored(guid)).exists
        assert not (await p.b.stored(TRASH_OBJECT)).exists
        assert len(p.holding(other)) == 3
        assert broken(await snapshot(p.b)) == ()


async def three_live_copies(p: Paper, blob: BlobId) -> bool:
    return sum(state == "alive" for state in (await p.b.locations(blob)).values()) == 4


@virtual
async def test_many_that_expire_at_once_all_go() -> None:
    async with paper(settings=replace(KEPT, trash_keep_ms=1_000)) as p:
        for number in range(expiring.PAGE + 5):
            guid, _ = await p.upload(f"f{number}", copies=1)
            await p.b.service.delete(BARTENDER, Delete(guid))

        async def empty() -> bool:
            return not any(shepherd.replicas for shepherd in p.shepherds.values())

        await p.until(empty)
        assert await trashed(p.b) == []


@virtual
async def test_copies_that_expire_together_take_their_bytes_along() -> None:
    async with paper(settings=replace(KEPT, trash_keep_ms=1_000)) as p:
        guid, blob = await p.upload("f", copies=1)
        copies = [await p.b.service.copy_file(BARTENDER, CopyFile(guid, p.b.begin(name))) for name in "ghijk"]
        for each in (guid, *copies):
            await p.b.service.delete(BARTENDER, Delete(each))

        async def erased() -> bool:
            return not p.holding(blob)

        assert await p.until(erased) < 5_000, "all of them go in one sweep"
        assert not (await p.b.stored(f"blob:{blob}")).exists
        assert broken(await snapshot(p.b)) == ()


@virtual
async def test_an_upload_that_is_never_completed_is_given_up_wherever_it_is() -> None:
    async with paper() as p:
        data = await p.b.collection("data")
        until = Ms(p.b.clock.now_ms() + 5_000)
        begun = await p.b.service.begin_put(BARTENDER, p.b.begin("f", data, named=True, expires_ms=until))

        async def swept() -> bool:
            return not (await p.b.stored(begun.guid)).exists

        await p.until(swept)
        assert until <= p.b.clock.now_ms() < until + 3_000
        assert (await p.b.ahash.scan(LIBRARIAN, ObjectId(data), "pending")).items == ()
        assert not (await p.b.stored(PENDING_OBJECT)).exists


@virtual
async def test_a_key_that_leads_to_nothing_is_struck_off() -> None:
    async with paper() as p:
        guid, _ = await p.upload("f")
        stale = [put(index, "due", key, "-") for index in INDEXES for key in (f"{1:013d} {guid}", "0 x", "0")]
        assert (await p.b.ahash.transact(LIBRARIAN, RequestKey(""), tuple(stale))).applied

        async def struck_off() -> bool:
            return not any([(await p.b.stored(index)).exists for index in INDEXES])

        await p.until(struck_off)
        assert (await p.b.stored(guid)).exists


INDEXES = (TRASH_OBJECT, PENDING_OBJECT)


async def test_an_upload_that_is_superseded_or_completed_leaves_no_trace_in_the_index() -> None:
    async with bench() as made:
        for _ in range(2):
            begun = await made.service.begin_put(BARTENDER, made.begin("f", named=True))
            made.clock.advance(5)
        assert len((await made.ahash.scan(LIBRARIAN, PENDING_OBJECT, "due")).items) == 1
        receipt = made.receipt(begun.blob, made.shepherds[0])
        await made.service.commit_put(shepherd_call(made.shepherds[0]), begun.guid, (receipt,))
        assert not (await made.stored(PENDING_OBJECT)).exists
