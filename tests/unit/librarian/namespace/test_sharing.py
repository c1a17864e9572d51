"""Copies by reference: a blob belongs to several files, and goes with the last of these and no sooner."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core import bounds
from chelonia.core.contents.uploads import CopyFile
from chelonia.core.errors import Kind
from chelonia.core.ids import PENDING_OBJECT, ROOT, BlobId, Dn, Guid, ObjectId, RequestKey
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import Delete, SetWanted, Undelete
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import A_FILE, want_copies
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.namespace.sharing import decide
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, HOUR, LIBRARIAN, Bench, bench, everything, keyed, sound, spliced
from tests.support.namespace_snapshot import NamespaceSnapshot, broken
from tests.support.paper import paper


async def copied(b: Bench, source: Guid, name: str, over: str = "", key: str = "", **facts: object) -> Guid:
    request = CopyFile(source, b.begin(name, replaces=Guid(over), **facts))
    return await b.service.copy_file(keyed(key) if key else BARTENDER, request)


async def owners(b: Bench, blob: BlobId) -> list[str]:
    return sorted((await b.stored(f"blob:{blob}")).sections.get("owners", {}))


async def erased(b: Bench) -> list[str]:
    """Blobs whose erasure is ordered."""
    orders = [shepherd.sections.get("erase", {}) for shepherd in (await everything(b)).shepherds()]
    return sorted({value.split(" ")[0] for each in orders for value in each.values()})


async def test_a_copy_has_the_bytes_of_its_source_and_nothing_else_of_it() -> None:
    async with bench() as b:
        source, blob = await b.file("f", sections={"metadata": {"note": "x"}})
        copy = await copied(b, source, "g", owner=Dn("/CN=eve"), sections={"metadata": {"other": "y"}})
        seen = await sound(b)
        stored, theirs = seen.get(ObjectId(copy)), seen.get(ObjectId(source))
        assert stored.sections["blobs"] == theirs.sections["blobs"] == {"00000000": blob}
        assert stored.sections["states"] == theirs.sections["states"]
        assert stored.sections["metadata"] == {"other": "y"}
        assert stored.value("entry", "owner") == "/CN=eve"
        assert await owners(b, blob) == sorted((source, copy))
        assert len(seen.blobs()) == 1


@pytest.mark.parametrize("first", [0, 1])
async def test_a_blob_goes_with_the_last_file_that_has_it(first: int) -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        both = [source, await copied(b, source, "g")]
        await b.service.delete(BARTENDER, Delete(both.pop(first)))
        await sound(b)
        assert await owners(b, blob) == both
        assert await erased(b) == []
        await b.service.delete(BARTENDER, Delete(both[0]))
        seen = await sound(b)
        assert seen.blobs() == []
        assert await erased(b) == [blob]


async def test_a_copy_of_a_copy_stays_when_both_before_it_are_written_anew() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        copy = await copied(b, source, "g")
        last = await copied(b, copy, "h")
        await b.file("f", replaces=source)
        await b.file("g", replaces=copy)
        seen = await sound(b)
        assert await owners(b, blob) == [last]
        assert len(seen.blobs()) == 3
        await b.file("h", replaces=last)
        await sound(b)
        assert await erased(b) == [blob]


async def test_a_copy_over_a_file_lets_go_of_what_it_had() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        target, old = await b.file("g", sections={"metadata": {"mine": "1"}})
        assert await copied(b, source, "g", target) == target
        await sound(b)
        assert await erased(b) == [old]
        assert "metadata" not in (await b.stored(target)).sections
        assert await copied(b, source, "g", target) == target
        await sound(b)
        assert await owners(b, blob) == sorted((source, target))


async def test_copy_and_write_and_delete_at_once_lose_no_bytes() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        copies = await asyncio.gather(*(copied(b, source, f"g{n}") for n in range(4)))
        await asyncio.gather(
            *(b.service.delete(BARTENDER, Delete(each)) for each in copies[:3]),
            copied(b, copies[3], "h"),
            b.file("f", replaces=source),
        )
        seen = await sound(b)
        assert len(await owners(b, blob)) == 2
        assert len(seen.blobs()) == 2
        assert await erased(b) == []


async def test_a_copy_asked_for_again_is_one() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        copy = await copied(b, source, "g", key="k")
        await b.service.delete(BARTENDER, Delete(source))
        assert await copied(b, source, "g", key="k") == copy
        assert await owners(b, blob) == [copy]


async def test_a_splice_of_one_leaves_the_other_as_it_is() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        copy = await copied(b, source, "g")
        await spliced(b, "g", copy, 7)
        seen = await sound(b)
        content = content_of(seen.get(ObjectId(copy)))
        assert await owners(b, blob) == sorted((source, content))
        assert seen.get(ObjectId(source)).sections["blobs"] == {"00000000": blob}
        await spliced(b, "g", copy, 0)  # nothing of the shared blob is left in it
        await sound(b)
        assert await owners(b, blob) == [source]
        assert blob not in await erased(b)
        await spliced(b, "f", source, 0)
        await sound(b)
        assert blob in await erased(b)


async def test_a_shared_blob_wants_as_many_copies_as_any_of_its_owners() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        copy = await copied(b, source, "g")
        await b.service.set_wanted(BARTENDER, SetWanted(copy, 3))
        await b.service.set_wanted(BARTENDER, SetWanted(source, 1))
        await sound(b)
        assert (await b.stored(f"blob:{blob}")).value("blob", "wanted") == "3"


async def test_the_last_owner_of_a_blob_may_want_fewer_copies() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        copy = await copied(b, source, "g")
        await b.service.set_wanted(BARTENDER, SetWanted(copy, 3))
        await b.service.delete(BARTENDER, Delete(copy))
        await sound(b)
        assert await owners(b, blob) == [source]
        await b.service.set_wanted(BARTENDER, SetWanted(source, 1))
        await sound(b)
        assert (await b.stored(f"blob:{blob}")).value("blob", "wanted") == "1"


async def test_a_copy_made_meanwhile_keeps_the_copies_that_it_wants() -> None:
    async with bench() as b:
        source, blob = await b.file("f")
        read = await b.stored(f"blob:{blob}")
        await copied(b, source, "g")
        fewer = want_copies(read, source, A_FILE, 1)
        assert not (await b.ahash.transact(LIBRARIAN, RequestKey(""), tuple(fewer))).applied


async def test_a_deleted_source_comes_back_while_its_copy_was_written_anew() -> None:
    async with bench(settings=replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=HOUR)) as b:
        source, blob = await b.file("f")
        copy = await copied(b, source, "g")
        await b.service.delete(BARTENDER, Delete(source))
        await sound(b)
        await b.file("g", replaces=copy)
        await sound(b)
        await b.service.undelete(BARTENDER, Undelete(source, ROOT, "back"))
        await sound(b)
        assert await owners(b, blob) == [source]
        assert (await b.stored(source)).sections["blobs"] == {"00000000": blob}


async def test_what_cannot_be_copied_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BLOB_OWNERS_MAX", 2)
    async with bench() as b:
        source, blob = await b.file("f")
        folder = await b.collection("d")
        for wrong, over, kind in (
            (folder, "", Kind.NOT_A_FILE),
            (Guid("00000000-0000-4000-8000-00000000dead"), "", Kind.NOT_FOUND),
            (source, source, Kind.BAD_REQUEST),
        ):
            with fails(kind):
                await copied(b, wrong, "x", Guid(over))
        await copied(b, source, "g")
        with fails(Kind.TOO_LARGE, match="copy the bytes"):
            await copied(b, source, "h")
        await sound(b)
        assert len(await owners(b, blob)) == 2


# --- files of many extents ------------------------------------------------------------------------------------------


async def test_many_extents_are_copied_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "COPY_PAGE", 2)
    async with bench() as b:
        source = await spliced(b, "f", Guid(""), 0, 7, 14, 30, 37)
        await spliced(b, "f", source, 3)
        before = await b.service.extents(BARTENDER, source, 0, 60)
        copy = await copied(b, source, "g")
        seen = await sound(b)
        after = await b.service.extents(BARTENDER, copy, 0, 60)
        assert (after.extents, after.size) == (before.extents, before.size)
        assert not seen.section(PENDING_OBJECT, "due")
        assert await copied(b, source, "g", copy) == copy
        await spliced(b, "g", copy, 0, 7, 14, 21)
        await sound(b)
        assert (await b.service.extents(BARTENDER, source, 0, 60)).extents == before.extents
        assert await erased(b) == []


async def test_the_copy_of_a_source_that_changes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Bartender's decision rests on the version: it decides anew."""
    monkeypatch.setattr(bounds, "COPY_PAGE", 1)
    async with bench() as b:
        source = await spliced(b, "f", Guid(""), 0, 7, 14)
        copying = asyncio.create_task(copied(b, source, "g"))
        while not _copying(await everything(b)):
            await asyncio.sleep(0)
        await spliced(b, "f", source, 3)
        with fails(Kind.CONFLICT):
            await copying
        assert not _copying(await sound(b))


async def test_copies_of_one_source_at_the_same_time_are_all_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "COPY_PAGE", 1)
    async with bench() as b:
        source = await spliced(b, "f", Guid(""), 0, 7, 14)
        copies = await asyncio.gather(*(copied(b, source, name) for name in "ghijk"))
        seen = await sound(b)
        assert len([key for key in seen.objects if key.startswith("content:")]) == 1 + len(copies)


@virtual
async def test_what_a_copy_that_broke_off_has_goes_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "COPY_PAGE", 2)
    monkeypatch.setattr(bounds, "BLOBS_PAGE", 2)
    monkeypatch.setattr(bounds, "COPY_OPEN_MS", 60_000)  # an hour of a cluster's background work takes long

    def broken_off(*_: object) -> None:
        raise asyncio.CancelledError

    async with paper() as p:
        source = await spliced(p.b, "f", Guid(""), 0, 7, 14, 21)
        with monkeypatch.context() as patched:
            patched.setattr(decide, "seal_copy", broken_off)
            patched.setattr(decide, "break_off", broken_off)  # as when the process dies
            with pytest.raises(asyncio.CancelledError):
                await copied(p.b, source, "g")
        await sound(p.b)
        assert _copying(await everything(p.b))
        await asyncio.sleep(bounds.COPY_OPEN_MS / 1000)

        async def gone() -> bool:
            seen = await everything(p.b)
            assert broken(seen) == ()
            return len([key for key in seen.objects if key.startswith("content:")]) == 1

        await p.until(gone, 120_000)
        assert len((await everything(p.b)).blobs()) == 4


def _copying(seen: NamespaceSnapshot) -> list[StoredObject]:
    return [obj for obj in seen.objects.values() if obj.value("content", "state") == "copying"]
