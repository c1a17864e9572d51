"""The rights to see and bring back deleted files."""

from __future__ import annotations

from typing import Any

import pytest

from chelonia.bartender import bulk
from chelonia.bartender.bulk import AnswerRoom
from chelonia.core.caller import Call
from chelonia.core.ids import Dn
from chelonia.core.metadata import StoredObject, Triple
from chelonia.core.ports.bartender import DeletedEntry, ListRequest, UndeleteRequest
from chelonia.core.ports.librarian import Undelete
from tests.support.stage import ADMIN, JOE, Stage, keyed, scene

EVE = Call(Dn("/O=Grid/CN=eve"))


async def undelete(stage: Stage, ln: str, target: str = "", call: Call = JOE) -> str:
    return (await stage.bartender.undelete(call, (UndeleteRequest("1", ln, target),)))[0].status


async def listed(stage: Stage, ln: str = "", call: Call = JOE) -> list[DeletedEntry]:
    (outcome,) = await stage.bartender.list_deleted(call, (ListRequest("1", ln),))
    assert outcome.status == "found"
    return list(outcome.entries)


async def deleted(stage: Stage, *names: str, call: Call = JOE) -> None:
    if not stage.shepherds:
        await stage.add_shepherds("a", "b", "c")
    for name in names:
        await stage.file(name, call)
        assert await stage.name_op("unlink", name, call) == "unset"


@scene
async def test_the_owner_brings_back_what_he_deleted(stage: Stage) -> None:
    await stage.make("/d")
    await deleted(stage, "/d/f")
    assert not await stage.exists("/d/f")
    assert await undelete(stage, "/d/f") == "restored"
    assert await stage.exists("/d/f")
    assert (await stage.get_file("/d/f")).status == "done"
    assert await undelete(stage, "/d/f") == "no such LN"


@scene
async def test_the_last_of_several_comes_back_and_any_by_its_guid(stage: Stage) -> None:
    await deleted(stage, "/f")
    await stage.clock.sleep(10)
    await deleted(stage, "/f")
    first, second = [entry.guid for entry in await listed(stage)]
    assert await undelete(stage, "/f") == "restored"
    assert await stage.guid("/f") == second
    assert await undelete(stage, first) == "LN exists"
    assert await undelete(stage, first, "/first") == "restored"
    assert await stage.guid("/first") == first
    assert await listed(stage) == []


@scene
async def test_a_listing_reads_nothing_of_what_users_wrote(stage: Stage) -> None:
    """It read all entries of a page whole, other users' too: of a thousand files as much as 128 MB."""
    await stage.make("/d", metadata=(Triple("metadata", "k", "v" * 50_000),))
    assert await stage.name_op("unmakeCollection", "/d") == "removed"
    get, read = stage.ahash.get, list[StoredObject]()

    async def noted(*args: Any) -> tuple[StoredObject, ...]:
        found = await get(*args)
        read.extend(found)
        return found

    stage.ahash.get = noted  # type: ignore[method-assign]
    (entry,) = await listed(stage)
    assert (entry.name, entry.owner, entry.type) == ("/d", JOE.dn, "collection")
    assert sum(stored.weight for stored in read) < 1000


@scene
async def test_a_listing_shows_where_and_until_when(stage: Stage) -> None:
    await stage.make("/d")
    await deleted(stage, "/d/f", "/g")
    by_name = {entry.name: entry for entry in await listed(stage)}
    assert set(by_name) == {f"{await stage.guid('/d')}/f", "/g"}
    assert by_name["/g"].until_ms - by_name["/g"].deleted_ms == 24 * 3_600_000
    assert (by_name["/g"].size, by_name["/g"].owner) == (5, JOE.dn)
    assert [entry.name for entry in await listed(stage, "/d")] == ["f"]
    (outcome,) = await stage.bartender.list_deleted(JOE, (ListRequest("1", "/none"),))
    assert (outcome.status, outcome.kind) == ("not found", "not-found")


@scene
async def test_to_others_it_does_not_exist_whatever_the_policy_says(stage: Stage) -> None:
    await stage.add_shepherds("a", "b", "c")
    await stage.file("/f")
    await stage.modify("/f", "set", "policy", "ALL", "+read +delete")
    assert await stage.name_op("delFile", "/f", EVE) == "deleted"
    assert await listed(stage, call=EVE) == []
    assert await undelete(stage, "/f", call=EVE) == "no such LN"
    guid = (await listed(stage))[0].guid
    assert await undelete(stage, guid, call=EVE) == "no such LN"
    assert await undelete(stage, "/f") == "restored"


@scene
async def test_administrators_bring_back_for_others(stage: Stage) -> None:
    await deleted(stage, "/f")
    assert [entry.owner for entry in await listed(stage, call=ADMIN)] == [JOE.dn]
    assert await undelete(stage, "/f", call=ADMIN) == "restored"
    assert (await stage.stat("/f", ADMIN))["entry"]["owner"] == JOE.dn


@scene
async def test_where_it_comes_back_takes_the_right_to_add(stage: Stage) -> None:
    await stage.modify("/", "set", "policy", EVE.dn, "+read +addEntry")
    await deleted(stage, "/f", call=EVE)
    await stage.make("/closed")
    assert await undelete(stage, "/f", "/closed/f", EVE) == "denied"
    assert await undelete(stage, "/f", "/none/f", EVE) == "parent does not exist"
    assert await undelete(stage, "/f", "/g", EVE) == "restored"


@scene
async def test_a_repeat_is_answered_as_the_first_time(stage: Stage) -> None:
    await deleted(stage, "/f")
    call = keyed(JOE, "again")
    assert await undelete(stage, "/f", call=call) == "restored"
    assert await undelete(stage, "/f", call=call) == "restored"


@scene
async def test_unlike_files_mount_points_are_gone(stage: Stage) -> None:
    await stage.mount("/m")
    assert await stage.name_op("unmakeMountpoint", "/m") == "removed"
    assert await listed(stage) == []


@scene
async def test_a_collection_comes_back_as_it_was_and_what_was_in_it_finds_it(stage: Stage) -> None:
    await stage.make("/d")
    await stage.modify("/d", "set", "policy", "ALL", "+read")
    before = await stage.guid("/d")
    await deleted(stage, "/d/f")
    assert await stage.name_op("unmakeCollection", "/d") == "removed"
    assert [(entry.name, entry.type) for entry in await listed(stage, "/")] == [("d", "collection")]
    assert [(entry.name, entry.type) for entry in await listed(stage, before)] == [("f", "file")]
    assert await undelete(stage, "/d/f") == "no such LN"
    assert await undelete(stage, "/d") == "restored"
    assert await stage.guid("/d") == before
    assert (await stage.stat("/d"))["policy"] == {"ALL": "+read"}
    assert await undelete(stage, "/d/f") == "restored"
    assert await stage.exists("/d/f")


@scene
async def test_what_was_in_a_collection_that_is_gone_is_told_to_nobody_else(stage: Stage) -> None:
    await stage.make("/d")
    before = await stage.guid("/d")
    await deleted(stage, "/d/f")
    await stage.name_op("unmakeCollection", "/d")
    (outcome,) = await stage.bartender.list_deleted(EVE, (ListRequest("1", before),))
    assert (outcome.kind, outcome.entries) == ("not-found", ())


@scene
async def test_several_come_back_at_once_and_what_is_below_another_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"/d/f{number}" for number in range(10)]
    await stage.make("/d")
    await deleted(stage, *names)
    assert await stage.name_op("unmakeCollection", "/d") == "removed"
    by_name = {each.name.rpartition("/")[2]: each.guid for each in await listed(stage)}
    at_work, most = 0, 0
    undeleted = stage.librarian.undelete

    async def slowly(call: Call, request: Undelete) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await stage.clock.sleep(10)
        await undeleted(call, request)
        at_work -= 1

    monkeypatch.setattr(stage.between, "undelete", slowly, raising=False)
    wanted = [UndeleteRequest(name, by_name[name.rpartition("/")[2]], name) for name in ("/d", *names)]
    outcomes = await stage.bartender.undelete(keyed(JOE, "all"), tuple(wanted))
    assert {outcome.status for outcome in outcomes} == {"restored"}
    assert [await stage.exists(name) for name in names] == [True] * len(names)
    assert most == len(names), "the collection first, then all that was in it"


@scene
async def test_a_page_of_deleted_entries_goes_on_without_a_word_of_others(stage: Stage) -> None:
    """It went on from the name of the last one, whoever had deleted it: pages of one told all of them."""
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry +removeEntry")
    await deleted(stage, "/a-secret", "/c-secret")
    await deleted(stage, "/b-hers", "/d-hers", call=EVE)
    found, after = list[str](), ""
    for bartender in (stage.bartender, stage.another_bartender(stage.settings)) * 3:
        (page,) = await bartender.list_deleted(EVE, (ListRequest("1", "", after, 1),))
        assert page.status == "found"
        assert "secret" not in page.after
        found, after = [*found, *(entry.name for entry in page.entries)], page.after
        if not after:
            break
    assert found == ["/b-hers", "/d-hers"]
    (page,) = await stage.bartender.list_deleted(EVE, (ListRequest("1", "", "0/c", 9),))
    assert [entry.name for entry in page.entries] == ["/d-hers"], "the mark of a Bartender of before"


@scene
async def test_a_page_of_deleted_entries_counts_none_of_others(stage: Stage) -> None:
    """It was full of them: by marks of his own making somebody found out their names, letter by letter."""
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry +removeEntry")
    await deleted(stage, "/a-secret", "/c-secret")
    await deleted(stage, "/b-hers", call=EVE)
    for mark in ("", "0/a-r", "0/a-s", "0/a-t"):
        (page,) = await stage.bartender.list_deleted(EVE, (ListRequest("1", "", mark, 1),))
        assert ([entry.name for entry in page.entries], page.after) == (["/b-hers"], ""), mark


@scene
async def test_a_listing_of_deleted_entries_reads_no_more_than_any_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' count as well: a call has a thousand listings, and each may read thousands that it does not show."""
    await deleted(stage, "/secret")
    monkeypatch.setattr(bulk, "AnswerRoom", lambda: AnswerRoom(unread=100))
    first, *others = await stage.bartender.list_deleted(EVE, (ListRequest("1", ""),) * 3)
    assert (first.status, first.entries) == ("found", ())
    assert {each.kind for each in others} == {"too-large"}
