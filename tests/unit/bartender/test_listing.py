"""stat and list: visibility of entries, and paging that neither repeats nor skips."""

import asyncio
from typing import Any

import pytest

from chelonia.bartender.files import summarised
from chelonia.bartender.files.summarised import READ_TOGETHER
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.contents.below import Below
from chelonia.core.errors import Kind
from chelonia.core.ids import ROOT
from chelonia.core.metadata import TYPE_FILE, Filter, Needed, Sections, Triple, from_triples
from chelonia.core.ports.bartender import ListOutcome, ListRequest, MakeRequest, NameRequest
from chelonia.core.ports.files import Inline, Listing, Setting, Write
from chelonia.core.ports.librarian import MakeEntry
from tests.support.failing import fails
from tests.support.files_worlds import at
from tests.support.stage import ADMIN, EVE, JOE, Stage, scene

TREE = ["/a", "/a/b", "/a/b/c", "/a/d", "/z"]
FILES = ["/a.x", "/a/b/f", "/a/f", "/f", "/z/g", "/z/h"]
IN_ORDER = ["a.x", "a", "a/b", "a/b/c", "a/b/f", "a/d", "a/f", "f", "z", "z/g", "z/h"]
"""Byte order of the stored paths: `a.x` before `a/`."""


async def grow(stage: Stage) -> None:
    await stage.bartender.make_collection(JOE, tuple(MakeRequest(ln, ln) for ln in TREE))
    for ln in FILES:
        assert (await stage.put_file(ln, needed=0)).status == "done"


async def walk(
    stage: Stage, ln: str = "/", call: Call = JOE, *, after: str = "", limit: int = 0, needed: Filter = ()
) -> ListOutcome:
    return (await stage.bartender.list(call, (ListRequest("1", ln, after, limit),), needed, True))[0]


def names(outcome: ListOutcome) -> list[str]:
    return [entry.name for entry in outcome.entries]


@scene
async def test_list_answers(stage: Stage) -> None:
    await grow(stage)
    assert await stage.list("/") == ("found", ["a.x", "a", "f", "z"])
    assert await stage.list("/f") == ("is a file", [])
    assert await stage.list("/zz") == ("not found", [])
    assert await stage.list("/zz", EVE) == ("not found", [])
    assert await stage.list("/a", EVE) == ("denied", [])
    assert await stage.list("/f", EVE) == ("denied", [])


@scene
async def test_listings_at_once_of_more_rights_than_are_remembered_are_answered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summarised, "RIGHTS_KEPT", 2)
    await stage.add_shepherds("s1")
    for each in "ab":
        await stage.make(f"/{each}")
        for number in range(3):
            await stage.bartender.files.apply(JOE, (Write(at(f"/{each}/{number}"), inline=Inline(b"x", 1)),))
            await stage.modify(f"/{each}/{number}", "set", "policy", f"/CN={each}{number}", "+read")
    owners = [JOE.dn] * 3

    async def owners_in(ln: str) -> list[str]:
        found = await stage.bartender.files.list(JOE, Listing(at(ln)))
        return [entry.attributes.owner for entry in found.entries]

    async def another() -> None:
        assert await owners_in("/b") == owners

    async def rights_are_read() -> None:
        stage.between.before["get"] = another  # while what was pushed out is read itself

    stage.between.before["get"] = rights_are_read
    assert await owners_in("/a") == owners


@scene
async def test_of_the_files_of_a_page_with_equal_rights_one_is_read(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    await stage.make("/a")
    for mode in (0o400, 0o600, 0o640):
        setting = Setting(mode=mode)
        await stage.bartender.files.apply(JOE, (Write(at(f"/a/{mode}"), setting=setting, inline=Inline(b"x", 1)),))
    stage.between.calls.clear()
    found = await stage.bartender.files.list(JOE, Listing(at("/a")))
    assert {entry.attributes.mode for entry in found.entries} == {0o400, 0o600, 0o640}
    assert [len(guids) for _, guids, _ in stage.between.named("get")] == [1]


@scene
async def test_a_page_of_files_with_long_policies_ends_early(stage: Stage) -> None:
    """One listing read as much as 128 MB at once, for everybody who listed the collection, and kept it in memory."""
    await stage.add_shepherds("s1")
    names = [f"f{number:03}" for number in range(2 * READ_TOGETHER + 3)]
    for each in names:
        policy = {f"/CN={each} {rule} {'x' * 1500}": "+read" for rule in range(80)}
        await stage.bartender.files.apply(JOE, (Write(at(f"/{each}"), inline=Inline(b"x", 1), policy=policy),))
    got, after, pages = list[str](), "", 0
    while pages == 0 or after:
        stage.between.calls.clear()
        page = await stage.bartender.files.list(JOE, Listing(at("/"), after))
        read = [len(guids) for _, guids, _ in stage.between.named("get")]
        assert sum(read) <= 2 * READ_TOGETHER
        assert max(read) <= READ_TOGETHER
        got += [entry.name for entry in page.entries]
        assert {entry.attributes.owner for entry in page.entries} == {JOE.dn}
        after, pages = page.after, pages + 1
    assert (got, pages) == (names, 2)
    assert not stage.bartender.files._rights.by_name


@scene
async def test_list_does_not_leak_what_children_hide(stage: Stage) -> None:
    """The original checked `read` on the collection only and gave away the children's metadata and policies."""
    await grow(stage)
    await stage.modify("/", "set", "policy", EVE.dn, "+read")
    await stage.modify("/f", "set", "policy", EVE.dn, "-delete")
    await stage.modify("/f", "set", "metadata", "secret", "s")
    await stage.modify("/a.x", "set", "policy", EVE.dn, "+read")
    shown = await stage.listed("/", EVE)
    assert from_triples(shown["a.x"].metadata).keys() >= {"entry", "states", "policy", "parents"}
    hidden = from_triples(shown["f"].metadata)
    assert hidden.keys() == {"entry", "states", "timestamps"}
    assert hidden["entry"] == {"type": "file"}
    assert hidden["states"] == {"size": "5"}
    asked = await stage.listed("/", EVE, (Needed("policy"), Needed("metadata"), Needed("entry", "owner")))
    assert asked["f"].metadata == ()
    assert "policy" in from_triples(asked["a.x"].metadata)


@scene
async def test_list_shows_what_the_filter_asks_for(stage: Stage) -> None:
    await grow(stage)
    only_type = await stage.listed("/", needed=(Needed("entry", "type"),))
    assert {name: from_triples(entry.metadata) for name, entry in only_type.items()} == {
        "a.x": {"entry": {"type": "file"}}, "a": {"entry": {"type": "collection"}},
        "f": {"entry": {"type": "file"}}, "z": {"entry": {"type": "collection"}},
    }  # fmt: skip
    everything = from_triples((await stage.listed("/"))["a"].metadata)
    assert everything.keys() == {"entry", "states", "timestamps", "parents"}  # never the names inside
    assert (await stage.listed("/"))["a"].guid == await stage.guid("/a")
    for section in ("entries", "blobs", "put", "pending"):
        assert (await stage.listed("/", ADMIN, (Needed(section),)))["a"].metadata == ()


@scene
async def test_list_recursive(stage: Stage) -> None:
    await grow(stage)
    outcome = await walk(stage)
    assert (outcome.status, outcome.after, names(outcome)) == ("found", "", IN_ORDER)
    assert names(await walk(stage, "/a/b")) == ["c", "f"]
    assert names(await walk(stage, "/a/b/c")) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 10, 11, 12])
@scene
async def test_recursive_pages_neither_repeat_nor_skip(stage: Stage, limit: int) -> None:
    await grow(stage)
    seen, after = [], ""
    for _ in range(20):
        page = await walk(stage, after=after, limit=limit)
        assert len(page.entries) <= limit
        seen += names(page)
        after = page.after
        if not after:
            break
    assert seen == IN_ORDER


@scene
async def test_recursive_paging_goes_on_where_the_tree_has_changed(stage: Stage) -> None:
    await grow(stage)
    page = await walk(stage, limit=5)
    assert page.after == "a/b/f"
    await stage.move("/a/b", "/moved")
    assert names(await walk(stage, after=page.after)) == [
        "a/d",
        "a/f",
        "f",
        "moved",
        "moved/c",
        "moved/f",
        "z",
        "z/g",
        "z/h",
    ]


@scene
async def test_recursion_does_not_enter_what_may_not_be_read(stage: Stage) -> None:
    await grow(stage)
    for ln in ("/", "/z"):
        await stage.modify(ln, "set", "policy", EVE.dn, "+read")
    assert names(await walk(stage, call=EVE)) == ["a.x", "a", "f", "z", "z/g", "z/h"]
    assert names(await walk(stage, call=EVE, after="a/b/c/")) == ["f", "z", "z/g", "z/h"]
    assert names(await walk(stage, call=EVE, after="a/")) == ["f", "z", "z/g", "z/h"]


@scene
async def test_mount_points_are_listed_and_not_entered(stage: Stage) -> None:
    await stage.mount("/m", "gsiftp://se.example.org/data")
    assert names(await walk(stage)) == ["m"]
    refused = await walk(stage, "/m")
    assert (refused.kind, "gsiftp://se.example.org/data" in refused.cause) == (Kind.IN_MOUNTPOINT.value, True)


@scene
async def test_links_to_collections_are_walked_under_each_name(stage: Stage) -> None:
    await grow(stage)
    assert await stage.move("/z", "/a/d/link", ADMIN, link=True) == "moved"
    found = names(await walk(stage))
    assert found.count("a/d/link/g") == 1
    assert found.count("z/g") == 1


@pytest.mark.parametrize("recursive", [False, True])
@scene
async def test_a_large_collection_is_listed_by_page(stage: Stage, recursive: bool) -> None:
    ids = [f"/big/{number:04}" for number in range(1001)]
    await stage.make("/big")
    for start in (0, 1000):
        await stage.bartender.make_collection(JOE, tuple(MakeRequest(ln, ln) for ln in ids[start : start + 1000]))
    (whole,) = await stage.bartender.list(JOE, (ListRequest("1", "/big"),), (Needed("entry", "type"),), recursive)
    assert whole.kind == "too-large"
    assert whole.status == "internal error (more than 1000 entries: list it page by page (after, limit))"
    assert whole.entries == ()
    seen: list[str] = []
    after = ""
    while True:
        request = ListRequest("1", "/big", after, 400)
        (page,) = await stage.bartender.list(JOE, (request,), (Needed("entry", "type"),), recursive)
        assert page.status == "found"
        seen += names(page)
        after = page.after
        if not after:
            break
    assert seen == [ln.removeprefix("/big/") for ln in ids]
    (stat,) = await stage.bartender.stat(JOE, (NameRequest("1", "/big"),))
    assert from_triples(stat.metadata)["entry"]["type"] == "collection"
    assert (stat.kind, "page by page" in stat.cause) == ("", True)


@scene
async def test_a_thousand_entries_are_still_listed_whole(stage: Stage) -> None:
    await stage.bartender.make_collection(JOE, tuple(MakeRequest("1", f"/{number}") for number in range(1000)))
    assert len((await stage.list("/"))[1]) == 1000
    (negative,) = await stage.bartender.list(JOE, (ListRequest("1", "/", "", -1),), (), False)
    assert negative.kind == "bad-request"


@pytest.mark.parametrize("after", ["/" * 300, "no/such/path/", "\ud800", "a//b", "../x", "x" * 300])
@scene
async def test_any_after_is_answered(stage: Stage, after: str) -> None:
    await grow(stage)
    assert (await walk(stage, after=after)).status in ("found", "internal error (bad-request)", "not found")


@scene
async def test_work_in_a_collection_does_not_read_its_names(stage: Stage) -> None:
    await grow(stage)
    stage.between.calls.clear()
    await stage.make("/a/new")
    await stage.list("/a")
    await stage.move("/a/f", "/z/f2")
    for args in stage.between.named("traverse"):
        assert args[2]
        assert not any(need.section == "entries" for need in args[2])


@scene
async def test_stat_shows_names_bare_and_hides_what_is_the_systems(stage: Stage) -> None:
    await grow(stage)
    found = await stage.stat("/a")
    assert sorted(found["entries"]) == ["b", "d", "f"]
    assert found["parents"] == {"0/a": "parent"}
    assert {"entry", "states", "timestamps", "entries", "parents"} == set(found)


@scene
async def test_stat_many_at_once(stage: Stage) -> None:
    await grow(stage)
    requests = tuple(NameRequest(ln, ln) for ln in ("/a", "/zz", "/f", "bad", "/a"))
    outcomes = await stage.bartender.stat(EVE, requests)
    assert [(outcome.request_id, outcome.kind) for outcome in outcomes] == [
        ("/a", "denied"), ("/zz", "not-found"), ("/f", "denied"), ("bad", "bad-name"), ("/a", "denied"),
    ]  # fmt: skip


@scene
async def test_one_call_answers_no_more_than_one_message_can_hold(stage: Stage) -> None:
    """A thousand copies of one wide answer would exhaust the memory; those beyond the limit get an error with the
    reason."""
    await stage.make("/a")
    for prop in ("k", "l"):
        await stage.modify("/a", "set", "metadata", prop, "x" * (bounds.USER_METADATA_BYTES_MAX // 2 - 1000))
    many = 1 + bounds.SOAP_BODY_BYTES_MAX // (bounds.USER_METADATA_BYTES_MAX - 10_000)
    stats = await stage.bartender.stat(JOE, (NameRequest("1", "/a"),) * many)
    assert stats[0].kind == ""
    assert stats[-1].kind == "too-large"
    lists = await stage.bartender.list(JOE, (ListRequest("1", "/"),) * many, (), False)
    assert lists[0].kind == ""
    assert lists[-1].kind == "too-large"
    assert "limit" in lists[-1].cause


@scene
async def test_a_filter_without_measure_is_refused(stage: Stage) -> None:
    needed = tuple(Needed("metadata", str(n)) for n in range(bounds.FILTER_MAX + 1))
    with fails(Kind.TOO_LARGE):
        await stage.bartender.list(JOE, (ListRequest("1", "/"),), needed, False)
    assert (await stage.bartender.list(JOE, (ListRequest("1", "/"),), needed[:-1], False))[0].status == "found"
    assert stage.bartender.limits.reached == {"filter": 1}


# --- what a listing costs ---

NOTHING = (Needed("metadata", "no such property"),)


async def fat(stage: Stage, entries: int = 40) -> None:
    """Entries of 120 KB metadata and 990 policy rules, as older releases allowed."""
    service = stage.bartender._ports.settings
    call = JOE.as_service(service.dn, Role.BARTENDER, service.service_id)
    policy = {f"/CN=user {n:060}": "+read" for n in range(990)}
    sections: Sections = {"metadata": {"k": "v" * 50_000, "l": "v" * 50_000}, "policy": policy}
    for n in range(entries):
        made = MakeEntry(ROOT, f"f{n:04}", TYPE_FILE, JOE.dn, sections)
        await stage.librarian.make_entry(call, made)


@scene
async def test_a_listing_is_charged_for_what_it_reads_though_it_shows_nothing(stage: Stage) -> None:
    """64 elements of one 7 KB call kept a node busy for half a minute and took 500 MB."""
    await fat(stage)
    stage.between.calls.clear()
    requests = tuple(ListRequest(str(n), "/") for n in range(64))
    outcomes = await stage.bartender.list(JOE, requests, NOTHING, False)
    kinds = [outcome.kind for outcome in outcomes]
    assert kinds.count("too-large") > 50
    assert "32 MiB" in outcomes[-1].cause
    read = sum([len(args) > 0 for args in stage.between.named("entries")])
    assert read < 20, "each reads some 4 MiB at most"
    assert stage.bartender.limits.reached == {"read_bytes": 1}
    assert (await stage.list("/z")) == ("not found", []), "the next call has room of its own"


@pytest.mark.parametrize("limit", [0, 25, 39])
@scene
async def test_a_page_of_large_entries_ends_early_and_a_listing_goes_on(stage: Stage, limit: int) -> None:
    await fat(stage)
    service = stage.bartender._ports.settings
    call = JOE.as_service(service.dn, Role.BARTENDER, service.service_id)
    page = await stage.librarian.below(call, Below(ROOT, limit=40, deep=False))
    assert 16 <= len(page.leaves) < 40
    assert page.after == page.leaves[-1].path
    rest = await stage.librarian.below(call, Below(ROOT, page.after, limit=40, deep=False))
    assert rest.leaves[0].path > page.after
    (outcome,) = await stage.bartender.list(JOE, (ListRequest("1", "/", "", limit),), (Needed("entry"),), False)
    assert [entry.name for entry in outcome.entries] == [f"f{n:04}" for n in range(limit or 40)]
    assert outcome.after == (f"f{limit - 1:04}" if limit else "")


@scene
async def test_a_policy_has_so_many_rules_and_larger_ones_of_before_may_only_shrink(stage: Stage) -> None:
    rules = tuple(Triple("policy", f"/CN=u{n}", "+read") for n in range(bounds.POLICY_RULES_MAX + 1))
    refused = await stage.make("/c", metadata=rules)
    assert refused.kind == "too-large"
    assert "101 rules" in refused.cause
    assert stage.bartender.limits.reached == {"too_large": 1}
    assert (await stage.make("/c", metadata=rules[1:])).status == "done"
    assert (await stage.modify("/c", "set", "policy", "/CN=u1", "+delete")) == "set"
    assert (await stage.modify("/c", "set", "policy", "/CN=more", "+read")) != "set"
    await fat(stage, 1)
    assert len((await stage.stat("/f0000"))["policy"]) == 990
    assert (await stage.modify("/f0000", "set", "metadata", "k", "w")) == "set"
    rule = f"/CN=user {0:060}"
    assert (await stage.modify("/f0000", "set", "policy", rule, "-read")) == "set"
    assert (await stage.modify("/f0000", "unset", "policy", rule)) == "unset"
    assert (await stage.modify("/f0000", "set", "policy", rule, "+read")) != "set"


@scene
async def test_a_caller_has_so_many_listings_at_work_and_no_other_waits_for_them(stage: Stage) -> None:
    await grow(stage)
    release, begun = asyncio.Event(), list[str]()
    ends = stage.librarian.below

    async def slow(call: Call, *args: Any) -> Any:
        begun.append(call.request_id)
        await release.wait()
        return await ends(call, *args)

    stage.librarian.below = slow  # type: ignore[method-assign]
    lists = [asyncio.ensure_future(stage.list("/")) for _ in range(5)]
    await asyncio.sleep(1)
    assert len(begun) == bounds.LISTS_PER_CALLER_MAX
    other = asyncio.ensure_future(stage.list("/", ADMIN))
    await asyncio.sleep(1)
    assert len(begun) == bounds.LISTS_PER_CALLER_MAX + 1
    lists[0].cancel()
    lists[3].cancel()
    release.set()
    answers = await asyncio.gather(*lists, other, return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, asyncio.CancelledError)] == [0, 3]
    assert stage.bartender.limits.reached == {"lists_per_caller": 3}
    assert not stage.bartender._ports.lists._queues
