"""Trees at the plain door that make way for a COPY or MOVE."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import TABLE, CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Clone, Listed, Listing, Move, Over, Remove, Set
from chelonia.hosting.doors.plain import changes
from chelonia.hosting.doors.plain.parts import DoorParts, apply, place_of
from tests.unit.hosting.doors.test_plain_door import EVE, JOE, Bench
from tests.unit.hosting.doors.test_plain_locks import INFO


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_nothing_makes_way_for_what_its_mover_may_not_move(bench: Bench) -> None:
    rules = Set(LogicalName(ROOT, ()), policy={"ALL": "+read +addEntry"})
    await apply(bench.parts, Call(dn=JOE), rules)
    await bench.look("PUT", "/s", b"1")
    for path in ("/d", "/d/e"):
        assert (await bench.look("MKCOL", path, dn=EVE)).status == 201
    await bench.look("PUT", "/d/e/f", b"2", EVE)
    assert (await bench.look("MOVE", "/s", dn=EVE, Destination="https://se:1/d")).status == 403
    assert (await bench.look("GET", "/d/e/f", dn=EVE)).body == b"2"
    assert (await bench.look("MOVE", "/s", Destination="https://se:1/d")).status == 403, "it is hers"
    await bench.look("PUT", "/t", b"3", EVE)
    assert (await bench.look("MOVE", "/t", dn=EVE, Destination="https://se:1/d")).status == 204
    assert (await bench.look("GET", "/d", dn=EVE)).body == b"3"


async def test_a_copy_clears_no_tree_for_what_its_caller_may_not_read(bench: Bench) -> None:
    await apply(bench.parts, Call(dn=JOE), Set(LogicalName(ROOT, ()), policy={"ALL": "+read +addEntry"}))
    for path in ("/s", "/s/deep"):
        await bench.look("MKCOL", path)
        await apply(bench.parts, Call(dn=JOE), Set(place_of(path), policy={"ALL": "+read"}))
    await bench.look("PUT", "/s/deep/f", b"1")
    await bench.look("MKCOL", "/t", dn=EVE)
    await bench.look("PUT", "/t/kept", b"2", EVE)
    told = await bench.look("COPY", "/s", dn=EVE, Destination="https://se:1/t")
    assert (told.status, "lacks read on /s/deep/f" in told.text) == (403, True)
    assert (await bench.look("GET", "/t/kept", dn=EVE)).body == b"2"
    await apply(bench.parts, Call(dn=JOE), Set(place_of("/s/deep/f"), policy={"ALL": "+read"}))
    assert (await bench.look("COPY", "/s", dn=EVE, Destination="https://se:1/t")).status == 204
    assert (await bench.look("GET", "/t/deep/f", dn=EVE)).body == b"1"
    assert (await bench.look("GET", "/t/kept", dn=EVE)).status == 404


async def _with_trees(bench: Bench, owner: Dn = EVE) -> None:
    """A tree of Joe's, which Eve may read, and one of `owner` in its place, at a root where both may add names."""
    await apply(bench.parts, Call(dn=JOE), Set(LogicalName(ROOT, ()), policy={"ALL": "+read +addEntry"}))
    await bench.look("MKCOL", "/s")
    for path in ("/s/1", "/s/2"):
        await bench.look("PUT", path, b"new")
        await apply(bench.parts, Call(dn=JOE), Set(place_of(path), policy={"ALL": "+read"}))
    await apply(bench.parts, Call(dn=JOE), Set(place_of("/s"), policy={"ALL": "+read"}))
    await bench.look("MKCOL", "/t", dn=owner)
    await bench.look("PUT", "/t/kept", b"old", owner)


async def test_a_refused_copy_costs_no_tree_whose_entries_alone_its_caller_may_remove(bench: Bench) -> None:
    await _with_trees(bench, JOE)
    await apply(bench.parts, Call(dn=JOE), Set(place_of("/t"), policy={"ALL": "+read +removeEntry"}))
    assert (await bench.look("COPY", "/s", dn=EVE, Destination="/t")).status == 403
    assert bench.files.names() == ["/s", "/s/1", "/s/2", "/t", "/t/kept"]


@pytest.mark.parametrize("source", ["/s", "/s/1"])
async def test_a_refused_copy_costs_no_tree_where_its_caller_may_add_no_name(bench: Bench, source: str) -> None:
    await _with_trees(bench)
    await apply(bench.parts, Call(dn=JOE), Set(LogicalName(ROOT, ()), policy={"ALL": "+read"}))
    assert (await bench.look("COPY", source, dn=EVE, Destination="/t")).status == 403
    assert bench.files.names() == ["/s", "/s/1", "/s/2", "/t", "/t/kept"]


async def test_a_copy_that_fails_halfway_costs_no_tree(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await _with_trees(bench)
    copied = changes.cloned

    async def full(parts: DoorParts, call: Call, change: Clone) -> Any:
        if change.source.name == "2":
            raise CheloniaError(Kind.QUOTA, cause="the quota of /CN=eve is full")
        return await copied(parts, call, change)

    monkeypatch.setattr(changes, "cloned", full)
    assert (await bench.look("COPY", "/s", dn=EVE, Destination="/t")).status == 507
    assert bench.files.names() == ["/s", "/s/1", "/s/2", "/t", "/t/kept"]


@pytest.mark.parametrize("kind", [Kind.CONFLICT, Kind.DENIED, Kind.UNAVAILABLE, Kind.INTERNAL, Kind.TIMEOUT])
async def test_what_may_have_its_name_yet_is_not_cleared_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    await _with_trees(bench)
    applied = changes.apply

    async def late(parts: DoorParts, call: Call, change: Any) -> Any:
        if isinstance(change, Move):
            raise CheloniaError(kind)
        return await applied(parts, call, change)

    monkeypatch.setattr(changes, "apply", late)
    assert (await bench.look("COPY", "/s", dn=EVE, Destination="/t")).status == TABLE[kind].http
    names = bench.files.names()
    assert names[-5:] == ["/s", "/s/1", "/s/2", "/t", "/t/kept"]
    copied = [] if kind in (Kind.CONFLICT, Kind.DENIED) else ["", "/1", "/2"]
    assert [name[len("/.replaced-0123456789abcdef") :] for name in names[:-5]] == copied


@pytest.mark.parametrize("method", ["COPY", "MOVE"])
async def test_of_a_tree_that_was_replaced_stays_what_its_caller_may_not_remove(bench: Bench, method: str) -> None:
    await _with_trees(bench)
    await bench.look("MKCOL", "/own", dn=EVE)
    await apply(bench.parts, Call(dn=EVE), Set(place_of("/t"), policy={"ALL": "+read +addEntry"}))
    await bench.look("MKCOL", "/t/his")
    await bench.look("PUT", "/t/his/f", b"his")
    await apply(bench.parts, Call(dn=JOE), Set(place_of("/t/his"), policy={"ALL": "+read"}))
    seen = await bench.look(method, "/own", dn=EVE, Destination="/t")
    assert seen.status == 403
    assert "/t has what was asked for" in seen.text
    left = next(name for name in bench.files.names() if name.endswith("/his/f"))
    assert left.removesuffix("/his/f") in seen.text
    assert bench.files.data(left) == b"his"
    assert (await bench.look("PROPFIND", "/t", dn=EVE, Depth="1")).text.count("<D:response>") == 1


@pytest.mark.parametrize(("method", "source"), [("COPY", "/s"), ("COPY", "/s/1"), ("MOVE", "/own")])
async def test_a_tree_in_which_another_holds_a_lock_does_not_make_way(bench: Bench, method: str, source: str) -> None:
    await _with_trees(bench)
    await bench.look("MKCOL", "/own", dn=EVE)
    await apply(bench.parts, Call(dn=EVE), Set(place_of("/t"), policy={"ALL": "+read +addEntry"}))
    await bench.look("PUT", "/t/locked", b"his")
    await apply(bench.parts, Call(dn=JOE), Set(place_of("/t/locked"), policy={"ALL": "+read"}))
    held = (await bench.look("LOCK", "/t/locked", INFO % b"exclusive")).headers["Lock-Token"]
    assert (await bench.look(method, source, dn=EVE, Destination="/t")).status == 423
    assert bench.files.names() == ["/own", "/s", "/s/1", "/s/2", "/t", "/t/kept", "/t/locked"]
    await bench.look("UNLOCK", "/t/locked", Lock_Token=held)
    held = (await bench.look("LOCK", "/t/kept", INFO % b"exclusive", EVE)).headers["Lock-Token"]
    assert (await bench.look(method, source, dn=EVE, Destination="/t")).status == 423
    assert (await bench.look(method, source, dn=EVE, Destination="/t", If=f"</t/kept> ({held})")).status == 204
    assert "/t/kept" not in bench.files.names()


async def test_a_move_that_is_refused_late_leaves_the_tree_in_its_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _with_trees(bench)
    await bench.look("MKCOL", "/own", dn=EVE)
    applied = changes.apply

    async def late(parts: DoorParts, call: Call, change: Any) -> Any:
        if isinstance(change, Move) and change.source.name == "own" and change.over is Over.REFUSE:
            raise CheloniaError(Kind.NOT_FOUND, cause="it has gone meanwhile")
        return await applied(parts, call, change)

    monkeypatch.setattr(changes, "apply", late)
    assert (await bench.look("MOVE", "/own", dn=EVE, Destination="/t")).status == 404
    assert bench.files.names() == ["/own", "/s", "/s/1", "/s/2", "/t", "/t/kept"]


@pytest.mark.parametrize(("method", "status"), [("DELETE", 204), ("COPY", 201)])
@pytest.mark.parametrize("gone", ["/t/a", "/t/f"])
async def test_what_goes_from_a_tree_meanwhile_is_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, status: int, gone: str
) -> None:
    for path in ("/t", "/t/a", "/t/z"):
        await bench.look("MKCOL", path)
    for path in ("/t/f", "/t/z/f"):
        await bench.look("PUT", path, b"bytes")
    listing = changes.list_pages

    async def late(parts: DoorParts, call: Call, ask: Listing) -> AsyncIterator[Listed]:
        async for page in listing(parts, call, ask):
            if ask.place == place_of("/t"):
                bench.files.change(Remove(place_of(gone)))
            yield page

    monkeypatch.setattr(changes, "list_pages", late)
    assert (await bench.look(method, "/t", Destination="/u")).status == status
    copied = [] if method == "DELETE" else ["/t", "/t/a", "/t/f", "/t/z", "/t/z/f"]
    copied = [name for name in copied if name != gone]
    assert bench.files.names() == [*copied, *(f"/u{name.removeprefix('/t')}" for name in copied)]


@pytest.mark.parametrize("owners", [bounds.BLOB_OWNERS_MAX, 1])
async def test_a_copy_is_of_one_state_of_its_source(bench: Bench, monkeypatch: pytest.MonkeyPatch, owners: int) -> None:
    monkeypatch.setattr(bounds, "BLOB_OWNERS_MAX", owners)
    await bench.look("PUT", "/f", b"short")
    cloned = changes.cloned

    async def late(parts: DoorParts, call: Call, change: Clone) -> Any:
        await bench.look("PUT", "/f", b"not as short")
        done = await cloned(parts, call, change)
        await bench.look("PUT", "/f", b"long, so long")
        return done

    monkeypatch.setattr(changes, "cloned", late)
    assert (await bench.look("COPY", "/f", Destination="/g")).status == 201
    assert bench.files.data("/g") == (b"not as short" if owners > 1 else b"long, so long")
    etag = (await bench.look("HEAD", "/f")).headers["ETag"]
    assert (await bench.look("COPY", "/f", Destination="/h", If_Match=etag)).status == 412
    assert bench.files.names() == ["/f", "/g"]


@pytest.mark.parametrize(("overwrite", "status", "last"), [("T", 201, b"moved"), ("F", 409, b"late")])
async def test_of_two_that_move_to_one_free_name_the_last_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, overwrite: str, status: int, last: bytes
) -> None:
    await bench.look("PUT", "/part", b"moved")
    applied = changes.apply

    async def late(parts: DoorParts, call: Call, change: Any) -> Any:
        await bench.look("PUT", "/f", b"late")
        return await applied(parts, call, change)

    monkeypatch.setattr(changes, "apply", late)
    assert (await bench.look("MOVE", "/part", Destination="/f", Overwrite=overwrite)).status == status
    assert bench.files.data("/f") == last


@pytest.mark.parametrize("path", ["/b", "/d"])
async def test_a_collection_that_has_another_name_keeps_what_is_in_it(bench: Bench, path: str) -> None:
    for each in ("/a", "/d"):
        await bench.look("MKCOL", each)
    await bench.look("PUT", "/a/f", b"bytes")
    for each in ("/b", "/d/c"):
        bench.files.change(Move(place_of("/a"), place_of(each), keep=True))
    assert (await bench.look("DELETE", path)).status == 204
    left = ["/b", "/b/f", "/d", "/d/c", "/d/c/f"]
    assert bench.files.names() == ["/a", "/a/f", *(name for name in left if not name.startswith(path))]
