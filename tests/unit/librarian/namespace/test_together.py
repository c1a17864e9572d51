"""Names removed in one transact: the allowed ones, each of them whole, and the answer to a second try."""

from __future__ import annotations

from chelonia.core import bounds
from chelonia.core.cluster.quotas import Quota
from chelonia.core.contents.uploads import CopyFile
from chelonia.core.ids import ROOT, Guid
from chelonia.core.ports.librarian import MakeEntry, MoveEntry, Undelete, Unlink
from chelonia.core.values import replace
from chelonia.librarian.settings import LibrarianSettings
from tests.support.librarian import ADMIN, BARTENDER, JOE, Bench, bench, keyed, sound

KEPT = replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=3_600_000)


async def files(b: Bench, count: int) -> list[Unlink]:
    return [Unlink(ROOT, f"f{n}", (await b.file(f"f{n}"))[0]) for n in range(count)]


async def gone(b: Bench, *orders: Unlink | None, key: str = "") -> tuple[int, ...]:
    return await b.service.unlink_all(keyed(key) if key else BARTENDER, orders)


async def test_files_go_in_one_transact_and_come_back_each_by_itself() -> None:
    async with bench(settings=KEPT) as b:
        orders = await files(b, bounds.REMOVED_TOGETHER_MAX)
        before = sum(b.service.written.values())
        assert await gone(b, *orders) == tuple(range(len(orders)))
        assert sum(b.service.written.values()) == before + 1
        assert await b.names() == {}
        await sound(b)
        await b.service.undelete(BARTENDER, Undelete(orders[3].child, ROOT, "f3"))
        await sound(b)
        assert await b.names() == {"f3": orders[3].child}


async def test_without_a_trash_their_bytes_are_ordered_erased() -> None:
    async with bench() as b:
        orders = await files(b, 5)
        assert await gone(b, *orders) == (0, 1, 2, 3, 4)
        seen = await sound(b)
        assert seen.blobs() == []
        assert sum(len(shepherd.sections.get("erase", {})) for shepherd in seen.shepherds()) == 10


async def test_of_two_files_that_have_one_blob_one_goes_by_itself() -> None:
    async with bench() as b:
        (first, other) = await files(b, 2)
        copy = await b.service.copy_file(BARTENDER, CopyFile(first.child, b.begin("copy")))
        assert await gone(b, first, Unlink(ROOT, "copy", copy), other) == (0, 2)
        assert await gone(b, Unlink(ROOT, "copy", copy)) == (0,)
        assert (await sound(b)).blobs() == []


async def test_what_has_other_names_or_holds_names_stays() -> None:
    async with bench(settings=KEPT) as b:
        linked, lone = await files(b, 2)
        await b.service.move(BARTENDER, MoveEntry(linked.child, ROOT, "f0", ROOT, "second", keep=True))
        collection = await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "c", "collection", JOE, {}))
        assert isinstance(collection, str)
        link = await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "link", "symlink", JOE, {"node": {"target": "x"}}))
        assert isinstance(link, str)
        both = linked, replace(linked, name="second")
        wrong = Unlink(ROOT, "f1", linked.child), replace(lone, name="other"), Unlink(ROOT, "no", Guid(ROOT))
        orders = (*both, Unlink(ROOT, "c", collection), *wrong, None, lone, lone, Unlink(ROOT, "link", link))
        assert await gone(b, *orders) == (7, 9)
        await sound(b)
        assert sorted(await b.names()) == ["c", "f0", "second"]


async def test_all_stay_where_one_is_not_as_it_was_seen() -> None:
    async with bench(settings=KEPT) as b:
        orders = await files(b, 3)
        stale = replace(orders[1], expect=((orders[1].child, 99),))
        assert await gone(b, orders[0], stale, orders[2]) == ()
        assert len(await b.names()) == 3


async def test_a_second_try_is_told_what_the_first_did() -> None:
    async with bench(settings=KEPT) as b:
        orders = await files(b, 4)
        assert await gone(b, None, *orders[:3], key="k") == (1, 2, 3)
        again, _ = await b.file("f1")
        assert await gone(b, None, *orders[:3], key="k") == (1, 2, 3)
        assert await gone(b, orders[3], None, Unlink(ROOT, "f1", again), key="k") == (1, 2, 3)
        assert sorted(await b.names()) == ["f1", "f3"]
        assert await b.service.recall(keyed("k")) == "1 2 3"


async def test_what_goes_together_is_counted_by_quotas_together() -> None:
    async with bench(settings=KEPT) as b:
        await b.service.set_quota(ADMIN, Quota(JOE, Guid(""), 100, 10))
        orders = await files(b, 3)
        table = await b.service.quotas(BARTENDER, JOE, Guid(""))
        assert await gone(b, *orders[:2]) == (0, 1)
        now = await b.service.quotas(BARTENDER, JOE, Guid(""))
        assert (table[0].files - now[0].files, table[0].bytes - now[0].bytes) == (2, 14)
