"""Namespace operations of the Librarian on the memory A-Hash: each is one transact, with the right error."""

import asyncio

import pytest
from msgspec import structs

from chelonia.core.caller import Call, Role
from chelonia.core.contents.below import Below
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, BlobId, Dn, Guid, ServiceId
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_MOUNTPOINT, Needed, Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Over
from chelonia.core.ports.librarian import (
    Delete,
    MakeEntry,
    ModifyEntry,
    MoveEntry,
    NewRequest,
    SetWanted,
    Unlink,
    Unmake,
)
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.world import World
from tests.support.failing import fails
from tests.support.librarian import (
    ADMIN,
    BARTENDER,
    EVE,
    HOUR,
    JOE,
    Bench,
    PaperVerifier,
    SequentialIds,
    bench,
    keyed,
    shepherd_call,
    sound,
)

NOWHERE = Guid("ffffffff-0000-4000-8000-000000000000")


def move(child: Guid, source: tuple[Guid, str], target: tuple[Guid, str], *, keep: bool = False) -> MoveEntry:
    return MoveEntry(child, *source, *target, keep)


async def traverse(b: Bench, ln: str):  # type: ignore[no-untyped-def]
    return (await b.service.traverse(BARTENDER, (parse_ln(ln),)))[0]


async def test_the_root_is_there_from_the_first_start_and_belongs_to_the_administrator() -> None:
    async with bench() as b:
        root = (await b.service.get(BARTENDER, (ROOT,)))[0]
        assert root.sections["entry"] == {"type": "collection", "GUID": "0", "owner": ADMIN.dn}
        assert root.value("states", "closed") == "no"
        assert root.value("policy", "ALL") == "+read +addEntry"
        before = root.version
        await b.service.start()
        assert (await b.service.get(BARTENDER, (ROOT,)))[0].version == before


async def test_make_entry_golden() -> None:
    """kept: makeCollection `/a`, again, `/x/y` -> done, LN exists, parent does not exist."""
    async with bench() as b:
        a = await b.collection("a")
        assert (await b.names()) == {"a": a}
        with fails(Kind.EXISTS):
            await b.collection("a")
        with fails(Kind.NO_PARENT):
            await b.collection("y", NOWHERE)
        file, _ = await b.file("f")
        with fails(Kind.NOT_A_COLLECTION):
            await b.collection("y", file)
        with fails(Kind.EXISTS):
            await b.collection("f")
        made = (await b.service.get(BARTENDER, (a,)))[0]
        assert made.sections["parents"] == {"0/a": "parent"}
        assert set(made.sections["timestamps"]) == {"created", "modified"}
        assert made.value("timestamps", "created") == "1700000000.000"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 256, "a\0b", "tab\t"])
async def test_the_name_law_holds_at_the_librarian_too(name: str) -> None:
    async with bench() as b:
        with fails(Kind.BAD_NAME):
            await b.collection(name)
        assert await b.names() == {}


async def test_what_is_taken_for_granted_of_a_name_is_read_when_it_is_otherwise() -> None:
    async with bench() as b:
        box = await b.collection("box")
        file, _ = await b.file("f", box)
        closed = ModifyEntry("m", box, "set", "states", "closed", "yes")
        await b.service.modify_metadata(BARTENDER, (closed,))
        await b.collection("in", box)
        assert (await b.stored(box)).value("states", "closed") == "broken"
        await b.service.modify_metadata(BARTENDER, (closed,))
        await b.service.delete(BARTENDER, Delete(file))
        assert (await b.stored(box)).value("states", "closed") == "broken"
        with fails(Kind.EXISTS):
            await b.collection("in", box)
        with fails(Kind.NO_PARENT):
            await b.collection("in", NOWHERE)
        with fails(Kind.NOT_FOUND):
            await b.service.unlink(BARTENDER, Unlink(ROOT, "in", box))


async def test_a_caller_cannot_give_the_librarians_own_sections() -> None:
    async with bench() as b:
        for section in ("entries", "parents", "entry", "blobs", "locations", "put", "pending"):
            request = MakeEntry(ROOT, "a", TYPE_COLLECTION, JOE, {section: {"x": "y"}})
            with fails(Kind.BAD_REQUEST):
                await b.service.make_entry(BARTENDER, request)


async def test_two_adds_to_one_collection_do_not_conflict() -> None:
    async with bench() as b:
        root = (await b.service.get(BARTENDER, (ROOT,)))[0]
        expect = ((ROOT, root.version),)
        requests = [MakeEntry(ROOT, f"c{n}", TYPE_COLLECTION, JOE, {}, expect) for n in range(30)]
        made = await asyncio.gather(*(b.service.make_entry(BARTENDER, request) for request in requests))
        assert await b.names() == {f"c{n}": guid for n, guid in enumerate(made)}


async def test_a_revoked_right_is_not_used() -> None:
    async with bench() as b:
        seen = (await b.service.get(BARTENDER, (ROOT,)))[0].version
        change = ModifyEntry("m", ROOT, "unset", "policy", "ALL", "")
        assert (await b.service.modify_metadata(BARTENDER, (change,)))[0].success == "unset"
        with fails(Kind.CONFLICT):
            await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "a", TYPE_COLLECTION, JOE, {}, ((ROOT, seen),)))
        assert await b.names() == {}


async def test_a_retry_may_come_through_another_bartender_and_librarian() -> None:
    async with bench() as b:
        request = MakeEntry(ROOT, "a", TYPE_COLLECTION, JOE, {})
        made = await b.service.make_entry(keyed("k"), request)
        world = World(b.directory, PaperVerifier(), b.clock, SequentialIds(7), b.settings)  # type: ignore[arg-type]
        other = LibrarianService(
            b.ahash, LibrarianIdentity(Dn("/CN=librarian two"), ServiceId("https://l2/Librarian")), world
        )
        again = structs.replace(keyed("k"), dn=Dn("/CN=bartender two"), service_id=ServiceId("https://b2/Bartender"))
        assert await other.make_entry(again, request) == made
        assert await other.recall(again) == made


async def test_a_key_that_a_shepherd_chose_answers_nobody_else() -> None:
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        receipts = tuple(b.receipt(begun.blob, shepherd) for shepherd in b.shepherds[:2])
        first, _, third = (structs.replace(shepherd_call(s), request_key=keyed("k").request_key) for s in b.shepherds)
        await b.service.commit_put(first, begun.guid, receipts)
        assert await b.service.recall(keyed("k")) is None
        with fails(Kind.NOT_FOUND):
            await b.service.commit_put(third, NOWHERE, (b.receipt(BlobId(NOWHERE), b.shepherds[2]),))


async def test_a_repeated_request_applies_once_and_answers_the_same() -> None:
    async with bench() as b:
        request = MakeEntry(ROOT, "a", TYPE_COLLECTION, JOE, {})
        made = await b.service.make_entry(keyed("k1"), request)
        assert await b.service.recall(keyed("k1")) == made
        assert await b.service.recall(keyed("k2")) is None
        assert await b.service.make_entry(keyed("k1"), request) == made
        with fails(Kind.EXISTS):
            await b.service.make_entry(keyed("k2"), request)
        assert await b.names() == {"a": made}


async def test_traversal_goes_as_far_as_it_leads() -> None:
    async with bench() as b:
        a = await b.collection("a")
        file, _ = await b.file("f", a)
        whole = await traverse(b, "/a/f")
        assert whole.complete
        assert whole.guid == file
        assert [(step.part, step.guid) for step in whole.steps] == [("", ROOT), ("a", a), ("f", file)]
        part = await traverse(b, "/a/x/y")
        assert (part.complete, part.guid, part.rest) == (False, a, ("x", "y"))
        below = await traverse(b, "/a/f/z")
        assert (below.complete, below.guid, below.rest) == (False, file, ("z",))
        direct = await traverse(b, f"{a}/f")
        assert [step.part for step in direct.steps] == [a, "f"]
        lost = await traverse(b, f"{NOWHERE}/f")
        assert (lost.steps, lost.complete, lost.last.version) == ((), False, 0)


async def test_system_objects_cannot_be_named() -> None:
    async with bench() as b:
        for name in ("sys:cluster", "blob:1", "1", "", "sys:services"):
            with fails(Kind.BAD_NAME):
                await b.service.get(BARTENDER, (Guid(name),))
            outcome = await b.service.modify_metadata(
                BARTENDER, (ModifyEntry("m", Guid(name), "set", "metadata", "a", "b"),)
            )
            assert outcome[0].success.startswith("failed")
        made = await b.service.new(
            BARTENDER, (NewRequest("n", (Triple("entry", "type", "file"), Triple("entry", "GUID", "sys:tree"))),)
        )
        assert made[0].success.startswith("failed")


async def test_readers_see_bare_names_and_no_records_of_ours() -> None:
    async with bench() as b:
        a = await b.collection("a")
        file, _ = await b.file("f")
        root, shown = await b.service.get(BARTENDER, (ROOT, file))
        assert root.sections["entries"] == {"a": a, "f": file}
        assert set(shown.sections) == {"entry", "locations", "parents", "states", "timestamps"}
        one = (await b.service.get(BARTENDER, (ROOT,), (Needed("entries", "a"),)))[0]
        assert one.sections == {"entries": {"a": a}}


async def test_listing_pages_in_stored_order_and_filters() -> None:
    async with bench() as b:
        for name in ("b", "a", "a.txt", "c"):
            await b.collection(name)
        page = await b.service.below(BARTENDER, Below(ROOT, limit=3, deep=False, needed=(Needed("entry", "type"),)))
        assert [leaf.path for leaf in page.leaves] == ["a.txt/", "a/", "b/"]
        assert page.leaves[0].object.sections == {"entry": {"type": "collection"}}
        rest = await b.service.below(BARTENDER, Below(ROOT, page.after, limit=3, deep=False))
        assert [leaf.path for leaf in rest.leaves] == ["c/"]
        assert rest.after == ""
        with fails(Kind.NOT_FOUND):
            await b.service.below(BARTENDER, Below(NOWHERE))


# --- closed collections ----------------------------------------------------------------------------------------------


async def test_a_closed_collection_is_broken_by_a_change_of_its_content_golden() -> None:
    """kept: putFile into closed `/a` succeeds and `closed` becomes `broken`; unlinking breaks it as well."""
    async with bench() as b:
        for name in ("a", "c"):
            made = await b.collection(name)
            inside, _ = await b.file("inside", made)
            await b.service.modify_metadata(BARTENDER, (ModifyEntry("m", made, "set", "states", "closed", "yes"),))
            if name == "a":
                await b.file("n", made)
            else:
                await b.service.unlink(BARTENDER, Unlink(made, "inside", inside))
            assert (await b.service.get(BARTENDER, (made,)))[0].value("states", "closed") == "broken"


# --- removing ---------------------------------------------------------------------------------------------------------


async def test_unlinking_the_last_name_takes_the_file_and_orders_its_replicas_erased() -> None:
    async with bench() as b:
        file, blob = await b.file("f")
        await b.service.move(BARTENDER, move(file, (ROOT, "f"), (ROOT, "g"), keep=True))
        await b.service.unlink(BARTENDER, Unlink(ROOT, "f", file))
        assert await b.names() == {"g": file}
        assert await b.outbox(b.shepherds[0]) == {}
        with fails(Kind.NOT_FOUND):
            await b.service.unlink(BARTENDER, Unlink(ROOT, "f", file))
        await b.service.unlink(BARTENDER, Unlink(ROOT, "g", file))
        assert await b.names() == {}
        assert not (await b.stored(f"blob:{blob}")).exists
        assert await b.outbox(b.shepherds[0]) == {f"{blob}@{b.shepherds[0]}": "unlinked"}
        assert await b.outbox(b.shepherds[1]) == {f"{blob}@{b.shepherds[1]}": "unlinked"}
        assert await b.outbox(b.shepherds[2]) == {}


async def test_delete_removes_all_names_golden() -> None:
    """kept: a file with two `parents` entries loses both names to delFile; a collection is not deleted."""
    async with bench() as b:
        a = await b.collection("a")
        file, blob = await b.file("f", a)
        await b.service.move(BARTENDER, move(file, (a, "f"), (ROOT, "lnk"), keep=True))
        assert len((await b.service.get(BARTENDER, (file,)))[0].sections["parents"]) == 2
        with fails(Kind.NOT_A_FILE):
            await b.service.delete(BARTENDER, Delete(a))
        await b.service.delete(BARTENDER, Delete(file))
        assert await b.names() == {"a": a}
        assert await b.names(a) == {}
        assert await b.outbox(b.shepherds[0]) == {f"{blob}@{b.shepherds[0]}": "deleted"}
        with fails(Kind.NOT_FOUND):
            await b.service.delete(BARTENDER, Delete(file))


async def test_unmake_golden() -> None:
    """kept: unmakeCollection empty / non-empty; changed: the root cannot be unmade, for it always exists."""
    async with bench() as b:
        a = await b.collection("a")
        file, _ = await b.file("f", a)
        with fails(Kind.NOT_EMPTY):
            await b.service.unmake(BARTENDER, Unmake(a))
        with fails(Kind.NOT_A_COLLECTION):
            await b.service.unmake(BARTENDER, Unmake(file))
        await b.service.delete(BARTENDER, Delete(file))
        await b.service.unmake(BARTENDER, Unmake(a))
        assert await b.names() == {}
        with fails(Kind.NOT_FOUND):
            await b.service.unmake(BARTENDER, Unmake(a))
        with fails(Kind.DENIED):
            await b.service.unmake(BARTENDER, Unmake(ROOT))


async def test_a_collection_with_an_upload_in_it_is_not_empty_until_that_expires() -> None:
    async with bench() as b:
        a = await b.collection("a")
        begun = await b.service.begin_put(BARTENDER, b.begin("f", a, named=True))
        with fails(Kind.NOT_EMPTY):
            await b.service.unmake(BARTENDER, Unmake(a))
        b.clock.advance(HOUR)
        await b.service.unmake(BARTENDER, Unmake(a))
        assert await b.names() == {}
        assert not (await b.stored(begun.guid)).exists


async def test_adding_while_the_collection_is_unmade_never_loses_the_new_entry() -> None:
    async with bench() as b:
        for n in range(10):
            a = await b.collection(f"a{n}")
            done = await asyncio.gather(
                b.service.unmake(BARTENDER, Unmake(a)), b.collection("x", a), return_exceptions=True
            )
            alive = (await b.service.get(BARTENDER, (a,)))[0].exists
            assert alive == (not isinstance(done[1], CheloniaError))
            assert alive == isinstance(done[0], CheloniaError)


async def test_the_last_name_of_a_collection_goes_only_when_it_is_empty() -> None:
    async with bench() as b:
        a = await b.collection("a")
        inside = await b.collection("inside", a)
        with fails(Kind.NOT_EMPTY):
            await b.service.unlink(BARTENDER, Unlink(ROOT, "a", a))
        await b.service.unlink(BARTENDER, Unlink(a, "inside", inside))
        await b.service.unlink(BARTENDER, Unlink(ROOT, "a", a))
        assert await b.names() == {}


# --- moving -----------------------------------------------------------------------------------------------------------


async def test_moves_golden() -> None:
    """kept: `/f` -> `/a` target exists; `/f` -> `/a/f` moved. kept: `/a` -> `/a/b` invalid target; a link has two
    parents."""
    async with bench() as b:
        a = await b.collection("a")
        file, _ = await b.file("f")
        with fails(Kind.EXISTS):
            await b.service.move(BARTENDER, move(file, (ROOT, "f"), (ROOT, "a")))
        await b.service.move(BARTENDER, move(file, (ROOT, "f"), (a, "f")))
        assert (await b.names(), await b.names(a)) == ({"a": a}, {"f": file})
        assert (await b.service.get(BARTENDER, (file,)))[0].sections["parents"] == {f"{a}/f": "parent"}
        with fails(Kind.INVALID_TARGET):
            await b.service.move(BARTENDER, move(a, (ROOT, "a"), (a, "b")))
        with fails(Kind.NOT_FOUND):
            await b.service.move(BARTENDER, move(file, (ROOT, "q"), (ROOT, "r")))
        with fails(Kind.NO_PARENT):
            await b.service.move(BARTENDER, move(file, (a, "f"), (NOWHERE, "such")))
        with fails(Kind.INVALID_TARGET):
            await b.service.move(BARTENDER, move(ROOT, (ROOT, ""), (a, "root")))
        await b.service.move(BARTENDER, move(file, (a, "f"), (ROOT, "lnk"), keep=True))
        parents = (await b.service.get(BARTENDER, (file,)))[0].sections["parents"]
        assert parents == {f"{a}/f": "parent", "0/lnk": "parent"}


@pytest.mark.parametrize("over", [Over.REPLACE, Over.EXCHANGE])
async def test_an_entry_does_not_take_a_name_from_itself(over: Over) -> None:
    async with bench() as b:
        file, _ = await b.file("f")
        await b.service.move(BARTENDER, move(file, (ROOT, "f"), (ROOT, "g"), keep=True))
        for name in ("f", "g"):
            with fails(Kind.INVALID_TARGET):
                itself = structs.replace(move(file, (ROOT, "f"), (ROOT, name)), over=over.value, there=file)
                await b.service.move(BARTENDER, itself)
        assert await b.names() == {"f": file, "g": file}
        await sound(b)


async def test_a_rename_within_a_collection_keeps_identity() -> None:
    async with bench() as b:
        a = await b.collection("a")
        await b.service.move(BARTENDER, move(a, (ROOT, "a"), (ROOT, "b")))
        assert await b.names() == {"b": a}
        assert (await b.service.get(BARTENDER, (a,)))[0].sections["parents"] == {"0/b": "parent"}


async def test_hard_links_of_collections_cannot_make_a_cycle() -> None:
    """changed: the original accepts linking `/b` into `/c` and then `/c` into `/b`."""
    async with bench() as b:
        one, two = await b.collection("b"), await b.collection("c")
        await b.service.move(BARTENDER, move(one, (ROOT, "b"), (two, "b"), keep=True))
        with fails(Kind.INVALID_TARGET):
            await b.service.move(BARTENDER, move(two, (ROOT, "c"), (one, "c"), keep=True))
        assert await b.names(one) == {}


async def test_crossing_moves_cannot_make_a_cycle() -> None:
    async with bench() as b:
        for n in range(20):
            one, two = await b.collection(f"x{n}"), await b.collection(f"y{n}")
            done = await asyncio.gather(
                b.service.move(BARTENDER, move(one, (ROOT, f"x{n}"), (two, "in"))),
                b.service.move(BARTENDER, move(two, (ROOT, f"y{n}"), (one, "in"))),
                return_exceptions=True,
            )
            refused = [error for error in done if isinstance(error, CheloniaError)]
            assert [error.kind for error in refused] == [Kind.INVALID_TARGET]
            left = {f"x{n}", f"y{n}"} & set(await b.names())
            assert len(left) == 1


async def test_moving_bumps_the_tree_epoch_only_for_collections() -> None:
    async with bench() as b:
        a = await b.collection("a")
        file, _ = await b.file("f")
        await b.service.move(BARTENDER, move(file, (ROOT, "f"), (a, "f")))
        assert (await b.stored("sys:tree")).value("epoch", "tree") == ""
        await b.service.move(BARTENDER, move(a, (ROOT, "a"), (ROOT, "b")))
        assert (await b.stored("sys:tree")).value("epoch", "tree") == "1"


# --- changing ---------------------------------------------------------------------------------------------------------


async def test_modify_metadata_words() -> None:
    async with bench() as b:
        a = await b.collection("a")

        async def modify(word: str, value: str = "", prop: str = "p", section: str = "metadata") -> str:
            request = ModifyEntry("m", a, word, section, prop, value)
            return (await b.service.modify_metadata(BARTENDER, (request,)))[0].success

        assert await modify("set", "1") == "set"
        assert await modify("add", "2") == "condition failed"
        assert await modify("setifvalue=0", "3") == "condition failed"
        assert await modify("setifvalue=1", "3") == "set"
        assert await modify("unset") == "unset"
        assert await modify("setifvalue=", "3") == "condition failed", (
            "what is unset has no value, not even an empty one"
        )
        assert await modify("set", "") == "set"
        assert await modify("add", "2") == "condition failed", "an empty value is one"
        assert await modify("setifvalue=", "2") == "set"
        assert await modify("unset") == "unset"
        assert await modify("add", "2") == "set"
        assert (await modify("smash")).startswith("failed")
        for section, prop in (("entry", "owner"), ("entries", "x"), ("parents", "x"), ("states", "size")):
            assert (await modify("set", "x", prop, section)).startswith("failed")
        assert (await b.service.get(BARTENDER, (a,)))[0].sections["metadata"] == {"p": "2"}


async def test_the_wanted_count_changes_on_the_file_and_on_its_blob() -> None:
    async with bench() as b:
        file, blob = await b.file("f")
        await b.service.set_wanted(BARTENDER, SetWanted(file, 3))
        assert (await b.service.get(BARTENDER, (file,)))[0].value("states", "neededReplicas") == "3"
        assert (await b.stored(f"blob:{blob}")).value("blob", "wanted") == "3"
        change = ModifyEntry("m", file, "set", "states", "neededReplicas", "1")
        assert (await b.service.modify_metadata(BARTENDER, (change,)))[0].success == "set"
        assert (await b.stored(f"blob:{blob}")).value("blob", "wanted") == "1"
        for wanted, kind in ((-1, Kind.BAD_REQUEST), (33, Kind.BAD_REQUEST)):
            with fails(kind):
                await b.service.set_wanted(BARTENDER, SetWanted(file, wanted))
        with fails(Kind.NOT_A_FILE):
            await b.service.set_wanted(BARTENDER, SetWanted(ROOT, 1))


# --- the original's new and remove ------------------------------------------------------------------------------------


async def test_new_and_remove_golden() -> None:
    """kept: `new` without a type, twice with one GUID; `remove`."""
    async with bench() as b:
        typed = (Triple("entry", "type", "file"), Triple("entry", "owner", JOE), Triple("metadata", "a", "b"))
        none, made = await b.service.new(BARTENDER, (NewRequest("1", ()), NewRequest("2", typed)))
        assert none.success == "failed: no type given"
        assert made.success == "success"
        again = NewRequest("3", (*typed, Triple("entry", "GUID", made.guid)))
        assert (await b.service.new(BARTENDER, (again,)))[0].success == "failed: entry exists"
        entry = (await b.service.get(BARTENDER, (Guid(made.guid),)))[0]
        assert (entry.value("entry", "owner"), entry.value("metadata", "a")) == (JOE, "b")
        assert (await b.service.remove(BARTENDER, (("r", Guid(made.guid)),)))[0].success == "removed"
        assert (await b.service.remove(BARTENDER, (("r", Guid(made.guid)),)))[0].success.startswith("failed")
        assert not (await b.service.get(BARTENDER, (Guid(made.guid),)))[0].exists


async def test_a_mount_point_keeps_its_url_and_is_deleted_like_a_file() -> None:
    async with bench() as b:
        sections = {"mountpoint": {"externalURL": "gsiftp://elsewhere/"}}
        made = await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "m", TYPE_MOUNTPOINT, EVE, sections))
        assert (await traverse(b, "/m/x")).last.value("mountpoint", "externalURL") == "gsiftp://elsewhere/"
        await b.service.delete(BARTENDER, Delete(made))
        assert await b.names() == {}


async def test_a_file_that_wants_no_replicas_is_an_entry_without_bytes_golden() -> None:
    """kept: putFile with neededReplicas 0 makes the entry."""
    async with bench() as b:
        sections = {"states": {"neededReplicas": "0", "size": "7"}}
        made = await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "f", TYPE_FILE, JOE, sections))
        assert "locations" not in (await b.service.get(BARTENDER, (made,)))[0].sections


async def test_only_bartenders_change_the_namespace() -> None:
    async with bench() as b:
        for role in (Role.SHEPHERD, Role.LIBRARIAN, Role.AHASH, Role.ADMINISTRATOR):
            with fails(Kind.DENIED):
                await b.collection("a", call=Call(Dn("/CN=x"), (role,)))
        with fails(Kind.DENIED):
            await b.collection("a", call=structs.replace(BARTENDER, roles=()))
