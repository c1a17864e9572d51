"""Quotas at the Librarian: the files of each, exact under many writers, and counted during changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chelonia.core.cluster.quotas import EACH_USER, UNCHANGED, Quota, QuotaUse, narrowest
from chelonia.core.contents.parts import parse_upload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import QUOTAS_OBJECT, ROOT, Dn, Guid, ObjectId, RequestKey, content_object
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import Delete, MoveEntry, Undelete, Unlink, Unmake
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import add, drop, put
from chelonia.librarian.namespace.quotas.act import Quotas
from chelonia.librarian.namespace.quotas.decide import (
    QuotaAccount,
    bounds_alone,
    counter_object,
    log_object,
    parse_account,
    parse_accounts,
)
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, JOE, Bench, spliced
from tests.support.paper import paper
from tests.unit.librarian.namespace.test_parts import filled, seal
from tests.unit.librarian.namespace.test_parts import put as put_part

KEPT = replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=3_600_000)
OTHER = Dn("/CN=other")
SIZE = 7
"""Bytes of every file of the bench."""


def of_joe(size: int = -1, files: int = -1) -> Quota:
    return Quota(JOE, Guid(""), size, files)


def of_each(size: int = -1, files: int = -1) -> Quota:
    return Quota(EACH_USER, Guid(""), size, files)


def of_tree(tree: Guid, size: int = -1, files: int = -1) -> Quota:
    return Quota(Dn(""), tree, size, files)


async def used(b: Bench, owner: Dn = JOE, within: str = "") -> tuple[int, int]:
    """Bytes and files of the only quota in the answer."""
    [use] = await b.service.quotas(BARTENDER, owner, Guid(within))
    return use.bytes, use.files


async def set_and_counted(b: Bench, quota: Quota) -> QuotaUse:
    """Set a quota, and wait until the present files are counted."""
    await b.service.set_quota(ADMIN, quota)
    return await counted(b, quota)


async def counted(b: Bench, quota: Quota) -> QuotaUse:
    while True:
        [use] = await b.service.quotas(BARTENDER, quota.user, quota.tree)
        if use.counted:
            return use
        await asyncio.sleep(0.05)


async def refused(doing: Awaitable[Any], kind: Kind = Kind.QUOTA) -> str:
    with fails(kind) as caught:
        await doing
    return caught.value.cause


def played(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    @virtual
    async def whole() -> None:
        async with paper(shepherds=3, settings=KEPT) as p:
            await test(p.b)

    return whole


@played
async def test_a_file_counts_for_its_owner_while_it_has_a_name(b: Bench) -> None:
    await b.file("before")
    await b.file("of another", owner=OTHER)
    assert await set_and_counted(b, of_joe(100, 10)) == QuotaUse(of_joe(100, 10), SIZE, 1, counted=True, name=JOE)
    data = await b.collection("data")
    guid, _ = await b.file("f", data)
    assert await used(b) == (2 * SIZE, 2)
    await b.service.move(BARTENDER, MoveEntry(guid, data, "f", ROOT, "g", keep=False))
    await b.service.move(BARTENDER, MoveEntry(guid, ROOT, "g", data, "link", keep=True))
    assert await used(b) == (2 * SIZE, 2), "names cost nothing"
    await b.service.unlink(BARTENDER, Unlink(ROOT, "g", guid))
    assert await used(b) == (2 * SIZE, 2)
    await b.service.delete(BARTENDER, Delete(guid))
    assert await used(b) == (SIZE, 1), "what is in the trash does not count"
    await b.service.undelete(BARTENDER, Undelete(guid, data, "back"))
    assert await used(b) == (2 * SIZE, 2)


@played
async def test_what_does_not_fit_is_refused_with_the_quota_and_what_is_used(b: Bench) -> None:
    await set_and_counted(b, of_joe(2 * SIZE))
    await b.file("a")
    guid, _ = await b.file("b")
    cause = await refused(b.file("c"))
    assert cause.startswith(f"the quota of {JOE} would be exceeded: 14 of 14 bytes are in use")
    await b.file("of another", owner=OTHER)
    await b.file("b", replaces=guid)
    assert await used(b) == (14, 2), "an overwrite by as much takes nothing"
    assert "this takes 7 bytes more" in await refused(spliced(b, "b", guid, SIZE))
    await spliced(b, "b", guid, size=3)
    assert await used(b) == (10, 2), "a truncation gives back"
    await spliced(b, "b", guid, 0)
    assert await used(b) == (14, 2)


@played
async def test_files_are_bound_too_and_undelete_needs_room(b: Bench) -> None:
    await set_and_counted(b, of_joe(files=1))
    guid, _ = await b.file("a")
    assert "1 of 1 files" in await refused(b.file("b"))
    await b.service.delete(BARTENDER, Delete(guid))
    await b.file("b")
    assert "1 of 1 files" in await refused(b.service.undelete(BARTENDER, Undelete(guid, ROOT, "a")))


@played
async def test_a_default_quota_too_small_for_an_owners_first_file_refuses_it(b: Bench) -> None:
    guid, _ = await b.file("a")
    await b.service.delete(BARTENDER, Delete(guid))
    await b.service.set_quota(ADMIN, of_each(SIZE - 1))
    await all_counted(b)
    cause = await refused(b.service.undelete(BARTENDER, Undelete(guid, ROOT, "a")))
    assert cause.startswith(f"the quota of {JOE} would be exceeded: 0 of {SIZE - 1} bytes are in use")
    await b.service.set_quota(ADMIN, of_each(SIZE))
    await b.service.undelete(BARTENDER, Undelete(guid, ROOT, "a"))
    assert await used(b) == (SIZE, 1)


@played
async def test_a_hole_of_any_size_fills_no_counter_for_others(b: Bench) -> None:
    await set_and_counted(b, of_joe(files=10))
    for name in "ab":
        guid, _ = await b.file(name)
        await spliced(b, name, guid, size=2**63 - 1)
    await b.file("c")
    assert await used(b) == (2 * 2**50 + SIZE, 3)


@played
async def test_a_size_is_refused_before_the_bytes_are_sent(b: Bench) -> None:
    await set_and_counted(b, of_joe(100))
    await b.service.begin_put(BARTENDER, b.begin("a", size=100))
    assert "this takes 101 bytes more" in await refused(b.service.begin_put(BARTENDER, b.begin("a", size=101)))
    data = await b.collection("data")
    await set_and_counted(b, of_tree(data, 50))
    await b.service.begin_put(BARTENDER, b.begin("a", size=60))
    await refused(b.service.begin_put(BARTENDER, b.begin("a", data, size=60)))


@played
async def test_an_empty_file_needs_a_file_and_no_bytes(b: Bench) -> None:
    await set_and_counted(b, of_joe(SIZE, files=2))
    await b.file("a")
    await refused(b.service.begin_put(BARTENDER, b.begin("b", size=-1)))
    await b.service.begin_put(BARTENDER, b.begin("b", size=0))
    await set_and_counted(b, of_joe(SIZE, files=1))
    assert "1 of 1 files" in await refused(b.service.begin_put(BARTENDER, b.begin("c", size=0)))


@played
async def test_a_quota_that_another_librarian_raised_refuses_nobody(b: Bench) -> None:
    await set_and_counted(b, of_joe(10))
    quotas = b.service._parts.names.quotas
    remembered = quotas._table
    await b.service.set_quota(ADMIN, of_joe(100))
    quotas._table = remembered  # the table of a Librarian without the notification
    await b.service.begin_put(BARTENDER, b.begin("a", size=11))
    quotas._table = remembered
    assert "101 bytes more" in await refused(b.service.begin_put(BARTENDER, b.begin("b", size=101)))


@played
async def test_a_quota_that_another_librarian_removed_keeps_no_collection(b: Bench) -> None:
    """An S3 bucket could not be removed until a file changed through the same Librarian."""
    tree = await b.collection("c")
    await b.service.set_quota(ADMIN, of_tree(tree, 100))
    quotas = b.service._parts.names.quotas
    await quotas.table(LIBRARIAN)
    remembered = quotas._table
    await refused(b.service.unmake(BARTENDER, Unmake(tree, spares=True)), Kind.NOT_EMPTY)
    await b.service.set_quota(ADMIN, of_tree(tree))
    quotas._table = remembered
    await b.service.unmake(BARTENDER, Unmake(tree, spares=True))
    tree = await b.collection("c")
    await quotas.table(LIBRARIAN)
    remembered = quotas._table
    await b.service.set_quota(ADMIN, of_tree(tree, 100))
    quotas._table = remembered
    await refused(b.service.unmake(BARTENDER, Unmake(tree, spares=True)), Kind.NOT_EMPTY)


@played
async def test_a_bound_that_is_set_leaves_the_other_as_it_is(b: Bench) -> None:
    """The command read one and wrote both: of two administrators one lost his bound unseen."""
    one, other = of_joe(100, UNCHANGED), of_joe(UNCHANGED, 5)
    told = await asyncio.gather(*(b.service.set_quota(ADMIN, each) for each in (one, other)))
    assert told[-1].quota == of_joe(100, 5)
    assert (await b.service.set_quota(ADMIN, of_joe(-1, UNCHANGED))).quota == of_joe(-1, 5)
    assert (await b.service.set_quota(ADMIN, of_joe(UNCHANGED, -1))).quota == of_joe(), "nothing is left"
    for nothing in (of_joe(UNCHANGED, -1), of_joe(UNCHANGED, UNCHANGED)):
        await refused(b.service.set_quota(ADMIN, nothing), Kind.NOT_FOUND)
    assert (await b.service.set_quota(ADMIN, one)).quota == of_joe(100)
    await b.service.set_quota(ADMIN, of_each(SIZE, 9))
    await b.file("f", owner=OTHER)
    own = await b.service.set_quota(ADMIN, Quota(OTHER, Guid(""), 2 * SIZE, UNCHANGED))
    assert (own.quota, own.implied) == (Quota(OTHER, Guid(""), 2 * SIZE, 9), False)


@played
async def test_a_full_quota_of_files_does_not_speak_of_bytes(b: Bench) -> None:
    await set_and_counted(b, of_joe(10**6, files=0))
    told = await refused(b.service.begin_put(BARTENDER, b.begin("a", size=300)))
    assert "0 of 0 files are in use;" in told, "it said that 300 bytes more were too many"


@played
async def test_the_parts_of_an_upload_count_from_their_arrival(b: Bench) -> None:
    early, _ = await filled(b, 1)
    assert (await set_and_counted(b, of_joe(30))).bytes == SIZE, "an open upload is found by counting"
    upload, order = await filled(b, 1, 2)
    assert await used(b) == (3 * SIZE, 0)
    await put_part(b, upload, 2, size=9)
    assert await used(b) == (3 * SIZE + 2, 0), "a part in place of another counts the difference"
    assert "this takes 8 bytes more" in await refused(put_part(b, upload, 3, size=8))
    order = (order[0], await put_part(b, upload, 2))
    await b.service.drop_upload(BARTENDER, early)
    assert await used(b) == (2 * SIZE, 0)
    await seal(b, upload, order[:1])
    assert await used(b) == (SIZE, 1), "what was sealed counts, and the part that was left out does not"
    upload, order = await filled(b, 1, 2)
    file = Guid((await b.names())["f"])
    await seal(b, upload, order, replaces=file)
    assert await used(b) == (2 * SIZE, 1)
    await filled(b, 1)
    await asyncio.sleep(100)
    assert await used(b) == (2 * SIZE, 1), "what has expired counts no more"


@played
async def test_parts_of_an_upload_are_counted_from_what_is_known_of_them(b: Bench) -> None:
    for n in range(40):
        await b.file(f"f{n}")
    empty, _ = await filled(b)
    await put_part(b, empty, 1, size=0)
    await b.service.set_quota(ADMIN, of_joe(1000))
    await put_part(b, empty, 2, size=3)
    assert (await counted(b, of_joe())).bytes == 40 * SIZE + 3
    older, _ = await filled(b, 1)  # before parts were counted
    uncounted = drop(content_object(parse_upload(older)[1]), "tally", "bytes")
    await b.ahash.transact(LIBRARIAN, RequestKey(""), (uncounted,))
    await put_part(b, older, 1, size=2)
    known = await b.ahash.get(LIBRARIAN, (content_object(parse_upload(older)[1]),))
    assert known[0].value("tally", "bytes", "0") == "0"


@played
async def test_a_tree_counts_what_lies_below_it_once(b: Bench) -> None:
    atlas = await b.collection("atlas")
    run = await b.collection("run", atlas)
    other = await b.collection("other")
    await b.file("there before", run)
    assert (await set_and_counted(b, of_tree(atlas, 21))).bytes == SIZE
    guid, _ = await b.file("f", run, owner=OTHER)
    await b.service.move(BARTENDER, MoveEntry(guid, run, "f", atlas, "second name", keep=True))
    assert await used(b, Dn(""), run) == (14, 2)
    assert (await b.service.quotas(BARTENDER, Dn(""), other)) == ()
    outside, _ = await b.file("g", other)
    await b.service.move(BARTENDER, MoveEntry(outside, other, "g", atlas, "g", keep=False))
    assert await used(b, Dn(""), run) == (21, 3)
    assert "the quota of /atlas would be exceeded" in await refused(b.file("too much", run))
    late, _ = await b.file("h", other)
    await refused(b.service.move(BARTENDER, MoveEntry(late, other, "h", run, "h", keep=False)))
    await b.service.move(BARTENDER, MoveEntry(outside, atlas, "g", ROOT, "g", keep=False))
    assert await used(b, Dn(""), run) == (14, 2)


@played
async def test_a_collection_crosses_to_other_quotas_only_when_it_is_empty(b: Bench) -> None:
    atlas, run = await b.collection("atlas"), await b.collection("run")
    await set_and_counted(b, of_tree(atlas, 100))
    await b.file("f", run)
    into = MoveEntry(run, ROOT, "run", atlas, "run", keep=False)
    assert "other quotas count" in await refused(b.service.move(BARTENDER, into), Kind.OTHER_TREE)
    empty = await b.collection("empty")
    await b.service.move(BARTENDER, MoveEntry(empty, ROOT, "empty", atlas, "empty", keep=False))
    await b.file("in it", empty)
    assert await used(b, Dn(""), atlas) == (SIZE, 1)
    inner = await b.collection("inner", atlas)
    await b.service.move(BARTENDER, MoveEntry(empty, atlas, "empty", inner, "empty", keep=False))
    await b.file("more", empty)
    assert await used(b, Dn(""), atlas) == (2 * SIZE, 2), "within a tree it goes where it likes"


@played
async def test_a_collection_that_is_undeleted_elsewhere_counts_there(b: Bench) -> None:
    atlas, run = await b.collection("atlas"), await b.collection("run")
    await set_and_counted(b, of_tree(atlas, 100))
    guid, _ = await b.file("f", run)
    await b.service.unlink(BARTENDER, Unlink(run, "f", guid))
    await b.service.unmake(BARTENDER, Unmake(run))
    await b.service.undelete(BARTENDER, Undelete(run, atlas, "run"))
    await b.file("g", run)
    assert await used(b, Dn(""), atlas) == (SIZE, 1)


@played
async def test_many_writers_fill_a_quota_to_the_byte_and_no_further(b: Bench) -> None:
    await set_and_counted(b, of_joe(20 * SIZE + 3))
    done = await asyncio.gather(*(b.file(f"f{n}") for n in range(30)), return_exceptions=True)
    kinds = [one.kind for one in done if isinstance(one, CheloniaError)]
    assert kinds == [Kind.QUOTA] * 10, "nobody lost for want of tries"
    assert await used(b) == (20 * SIZE, 20)


@played
async def test_counting_is_exact_while_files_come_and_go(b: Bench) -> None:
    files = [(f"f{n}", *(await b.file(f"f{n}"))) for n in range(40)]
    uploads = [(await filled(b, 1))[0] for _ in range(10)]
    await b.service.set_quota(ADMIN, of_joe(1000))

    async def change(number: int, name: str, guid: Guid) -> None:
        if number % 4 == 0:
            await b.service.delete(BARTENDER, Delete(guid))
        elif number % 4 == 1:
            await spliced(b, name, guid, SIZE)
        elif number % 4 == 2:
            await b.file(f"{name} too")
        elif number % 8 == 3:
            await b.service.drop_upload(BARTENDER, uploads.pop())
        else:
            await put_part(b, uploads[0], number)

    for number, (name, guid, _) in enumerate(files):
        await change(number, name, guid)
        await asyncio.sleep(0.05)
    use = await counted(b, of_joe())
    assert (use.bytes, use.files) == (60 * SIZE, 40)
    assert not [o for o in (await b.ahash.objects(LIBRARIAN)).ids if str(o).endswith(":before")]


@played
async def test_a_log_that_a_leader_left_behind_as_it_ended_goes_with_the_next_counting(b: Bench) -> None:
    """It stayed for ever: nothing led to it any more."""
    left = log_object("of a quota that counts")
    records: tuple[Element, ...] = (put(left, "named", "a file", "-"), put(left, "named", "another", "7"))
    await b.ahash.transact(LIBRARIAN, RequestKey(""), records)
    await set_and_counted(b, of_joe(1000))
    assert not (await b.stored(left)).exists


@pytest.mark.expect_log("quota-wrong: that of /CN=joe said 19 bytes and 2 files, not 14 and 2")
@played
async def test_a_counter_that_is_wrong_is_set_right_by_counting_again(b: Bench) -> None:
    await b.file("f")
    await set_and_counted(b, of_joe(1000))
    [(key, value)] = (await b.ahash.scan(LIBRARIAN, QUOTAS_OBJECT, "tally")).items
    counter = counter_object(parse_account(key, value).counter)
    wrong: tuple[Element, ...] = (add(counter, "tally", "bytes", 5),)
    await b.ahash.transact(LIBRARIAN, RequestKey(""), wrong)
    assert await used(b) == (SIZE + 5, 1)
    await b.service.recount_quotas(ADMIN)
    for number in range(5):
        await b.file(f"meanwhile {number}")
        await asyncio.sleep(1)
    assert await used(b) == (6 * SIZE, 6)
    assert not (await b.stored(counter)).exists


@played
async def test_without_quotas_a_change_costs_one_condition_and_is_never_stale(b: Bench) -> None:
    await b.file("f")
    assert not (await b.stored(QUOTAS_OBJECT)).exists
    await set_and_counted(b, of_joe(1000))
    assert (await b.service.set_quota(ADMIN, of_joe())).counted
    assert await b.service.quotas(BARTENDER, Dn(""), Guid("")) == ()
    ids = (await b.ahash.objects(LIBRARIAN)).ids
    assert [o for o in ids if str(o).startswith("sys:quota")] == [QUOTAS_OBJECT]
    await b.file("g")


async def all_counted(b: Bench) -> dict[str, tuple[int, int, bool]]:
    """The usage of each quota, and whether it is by the default, once all is counted."""
    while True:
        uses = await b.service.quotas(BARTENDER, Dn(""), Guid(""))
        if all(use.counted for use in uses):
            break
        await asyncio.sleep(0.05)
    return {use.name: (use.bytes, use.files, use.implied) for use in uses}


@played
async def test_the_default_quota_binds_who_has_none_of_his_own(b: Bench) -> None:
    await b.file("there before", owner=OTHER)
    await set_and_counted(b, of_joe(5 * SIZE))
    await b.service.set_quota(ADMIN, of_each(2 * SIZE))
    assert await all_counted(b) == {JOE: (0, 0, False), EACH_USER: (0, 0, False), OTHER: (SIZE, 1, True)}
    await b.file("a", owner=OTHER)
    assert f"the quota of {OTHER} would be exceeded: 14 of 14" in await refused(b.file("b", owner=OTHER))
    late = Dn("/CN=late")
    assert await used(b, late) == (0, 0), "whoever has nothing yet is told what will bind him"
    assert "this takes 15 bytes more" in await refused(
        b.service.begin_put(BARTENDER, b.begin("c", size=15, owner=late))
    )
    await b.file("c", owner=late)
    assert (await all_counted(b))[late] == (SIZE, 1, True), "counted from his first file on"
    for name in "def":
        await b.file(name)
    await b.service.set_quota(ADMIN, of_each(3 * SIZE, 3))
    await b.file("b", owner=OTHER)
    assert "3 of 3 files" in await refused(b.file("g", owner=OTHER))


@played
async def test_a_quota_of_his_own_takes_the_place_of_the_default_and_gives_it_back(b: Bench) -> None:
    await b.file("a")
    await b.service.set_quota(ADMIN, of_each(SIZE))
    await all_counted(b)
    assert (await b.service.set_quota(ADMIN, of_joe(3 * SIZE))).counted, "what is known counts on"
    await b.file("b")
    back = await b.service.set_quota(ADMIN, of_joe())
    assert (back.quota, back.implied, back.bytes) == (of_joe(SIZE), True, 2 * SIZE)
    await refused(b.file("c"))
    await refused(b.service.set_quota(ADMIN, of_joe()), Kind.NOT_FOUND)


@played
async def test_the_first_files_of_many_users_at_once_all_count(b: Bench) -> None:
    await b.service.set_quota(ADMIN, of_each(SIZE))
    await all_counted(b)
    owners = [Dn(f"/CN=user {n}") for n in range(12)]
    done = await asyncio.gather(
        *(b.file(f"{n} {owner[1:]}", owner=owner) for owner in owners for n in range(2)), return_exceptions=True
    )
    assert [one.kind for one in done if isinstance(one, CheloniaError)] == [Kind.QUOTA] * 12
    told = await all_counted(b)
    assert {owner: told[owner] for owner in owners} == dict.fromkeys(owners, (SIZE, 1, True))


@played
async def test_owners_are_found_while_files_come_and_go(b: Bench) -> None:
    owners = [Dn(f"/CN=user {n}") for n in range(5)]
    files = [(await b.file(f"f{n}", owner=owners[n % 5]))[0] for n in range(40)]
    await b.service.set_quota(ADMIN, of_each(1000))
    for number, guid in enumerate(files[:20]):
        if number % 4:
            await b.service.delete(BARTENDER, Delete(guid))
        else:
            await b.file(f"f{number} too", owner=Dn(f"/CN=new {number}"))
        await asyncio.sleep(0.01)
    told = await all_counted(b)
    assert sum(files for _, files, _ in told.values()) == 40 - 15 + 5
    assert all(size == SIZE * files for size, files, _ in told.values())
    await b.service.recount_quotas(ADMIN)
    assert await all_counted(b) == told


@played
async def test_without_a_default_quota_nothing_is_left_of_it(b: Bench) -> None:
    for n in range(3):
        await b.file(f"f{n}", owner=Dn(f"/CN=user {n}"))
    await b.service.set_quota(ADMIN, of_each(SIZE))
    await all_counted(b)
    await b.service.set_quota(ADMIN, of_each())
    await b.file("more", owner=Dn("/CN=user 0"))
    ids = (await b.ahash.objects(LIBRARIAN)).ids
    assert [o for o in ids if str(o).startswith("sys:quota")] == [QUOTAS_OBJECT]
    await refused(b.service.set_quota(ADMIN, of_each()), Kind.NOT_FOUND)


def test_a_removal_of_the_default_quota_that_broke_off_can_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default was gone, so that it could not be removed; the accounts of all users stayed, unseen, and counted."""

    @played
    async def whole(b: Bench) -> None:
        for n in range(3):
            await b.file(f"f{n}", owner=Dn(f"/CN=user {n}"))
        await b.service.set_quota(ADMIN, of_each(SIZE))
        await all_counted(b)

        async def die(*_: Any) -> None:
            raise CheloniaError(Kind.UNAVAILABLE, "disenrol")

        with monkeypatch.context() as broken:
            broken.setattr(Quotas, "_disenrol", die)
            await refused(b.service.set_quota(ADMIN, of_each()), Kind.UNAVAILABLE)
        assert (await b.service.set_quota(ADMIN, of_each())).quota == of_each()
        ids = (await b.ahash.objects(LIBRARIAN)).ids
        assert [o for o in ids if str(o).startswith("sys:quota")] == [QUOTAS_OBJECT]
        await refused(b.service.set_quota(ADMIN, of_each()), Kind.NOT_FOUND)

    whole()


@pytest.mark.parametrize(
    ("quota", "kind"),
    [
        (Quota(), Kind.BAD_REQUEST),
        (Quota(JOE, ROOT, 1), Kind.BAD_REQUEST),
        (of_joe(-3), Kind.BAD_REQUEST),
        (Quota(Dn("x" * 3000), Guid(""), 1), Kind.BAD_REQUEST),
        (of_tree(Guid("00000000-0000-4000-8000-000000000999"), 1), Kind.NOT_FOUND),
        (of_joe(), Kind.NOT_FOUND),
    ],
)
def test_what_is_no_quota_is_refused(quota: Quota, kind: Kind) -> None:
    async def scenario(b: Bench) -> None:
        await refused(b.service.set_quota(ADMIN, quota), kind)

    played(scenario)()


@played
async def test_a_quota_is_an_administrators_to_set(b: Bench) -> None:
    await refused(b.service.set_quota(BARTENDER, of_joe(1)), Kind.DENIED)


def test_an_account_reads_as_it_is_written() -> None:
    account = QuotaAccount(Quota(Dn("/CN=a b"), Guid(""), 5, -1), "", "c")
    assert parse_account(account.key, account.record) == account
    assert (account.key, account.record) == ("user /CN=a b", "- c 5 -1")
    mine = QuotaAccount(Quota(Dn("/CN=a"), Guid(""), 7, 8), "c", implied=True)
    assert (mine.key, mine.record) == ("user /CN=a", "c - - -")
    assert parse_accounts({"user *": "d - 7 8", mine.key: mine.record})[mine.key] == mine
    with pytest.raises(ValueError, match="no quota"):
        parse_account("what /CN=x", account.record)


def test_a_snapshot_has_the_bounds_that_somebody_has_set() -> None:
    """The default's own accounts come back with the counted files."""
    own = {f"user {JOE}": "c d 5 -1"}
    assert bounds_alone(own | {f"user {OTHER}": "e - - -"}) == {f"user {JOE}": "- - 5 -1"}


def test_the_narrowest_is_the_one_with_least_left() -> None:
    wide, close = QuotaUse(of_joe(100), 10, 1, counted=True), QuotaUse(of_tree(ROOT, 50), 45, 1, counted=True)
    full = QuotaUse(of_joe(files=1), 10, 1, counted=True)
    assert narrowest((wide, close)) == close
    assert narrowest((wide, close, full)) == full
    assert narrowest((replace(full, files=0),)) is None
    assert narrowest((replace(full, counted=False),)) is None, "it refuses nothing yet"
    assert ObjectId("sys:quotas") == QUOTAS_OBJECT
