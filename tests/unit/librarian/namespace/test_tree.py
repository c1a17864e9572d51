"""The namespace under random operations: names and parents always agree, nothing is lost, no cycle ever forms."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, TREE_OBJECT, Dn, Guid, Ms, ObjectId
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, StoredObject
from chelonia.core.ports.librarian import Delete, MakeEntry, MoveEntry, Unlink, Unmake
from chelonia.librarian.namespace import tree
from chelonia.librarian.namespace.tree import MoveView, Removable, Slot
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import BARTENDER, JOE, Bench, bench

NOW = Ms(1_000)
A, B = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
EXPECTED = {Kind.EXISTS, Kind.NOT_FOUND, Kind.NOT_EMPTY, Kind.NO_PARENT, Kind.INVALID_TARGET, Kind.CONFLICT}


def collection(guid: str = "0", closed: str = "no", **sections: dict[str, str]) -> StoredObject:
    entry = {"type": TYPE_COLLECTION, "GUID": guid, "owner": JOE}
    return StoredObject(ObjectId(guid), 3, {"entry": entry, "states": {"closed": closed}, **sections})


# --- pure decisions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reservation", "owner", "kind"),
    [
        ("", JOE, None),
        (f"{A} 2000", JOE, None),
        (f"{A} 2000", "/CN=eve", Kind.EXISTS),
        (f"{A} 1000", "/CN=eve", None),
        (f"{A} garbled", "/CN=eve", None),
        (f"{A} 2000", "", Kind.EXISTS),
    ],
)
def test_who_may_take_a_reserved_name(reservation: str, owner: str, kind: Kind | None) -> None:
    parent = collection(pending={"f": reservation} if reservation else {})
    pending = StoredObject(ObjectId(A), 1, {"entry": {"type": "pending", "owner": JOE}}) if reservation else None
    slot = Slot(parent, "f", pending)
    if kind is None:
        elements = tree.take_name(slot, owner, NOW)
        assert any(e.object == A for e in elements) == bool(reservation)
    else:
        with fails(kind, match="holds it until 1970-01-01 00:00:02Z"):
            tree.take_name(slot, owner, NOW)


@pytest.mark.parametrize(("closed", "after"), [("no", None), ("yes", "broken"), ("broken", None), ("0", None)])
def test_a_closed_collection_is_broken_in_the_same_transact(closed: str, after: str | None) -> None:
    changes = [e for e in tree.content_change(collection(closed=closed)) if e.section == "states"]
    assert [e.value for e in changes] == ([after] if after else [])


def test_removal_takes_a_name_only_where_it_still_leads_to_the_entry() -> None:
    parents = {f"0/{name}": "parent" for name in ("mine", "others")}
    entry = StoredObject(ObjectId(A), 5, {"entry": {"type": TYPE_FILE}, "parents": parents})
    root = collection(entries={"mine": A, "others": B})
    elements = tree.remove_entry(Removable(entry, {ROOT: root}), "deleted", NOW)
    dropped = [e.property for e in elements if e.section == "entries"]
    assert dropped == ["mine"]
    kept = next(e for e in elements if e.section == "entries")
    assert [(c.type.value, c.value) for c in kept.conditions] == [("is", A)]


def test_a_move_of_a_collection_rests_on_the_epoch_it_has_read() -> None:
    root = collection(entries={"a/": A})
    view = MoveView(collection(A, parents={"0/a": "parent"}), Slot(root, "a"), Slot(root, "b"), "7", frozenset({ROOT}))
    elements = tree.move(MoveEntry(Guid(A), ROOT, "a", ROOT, "b", False), view, NOW)
    bump = next(e for e in elements if e.object == TREE_OBJECT)
    assert [(c.type.value, c.value) for c in bump.conditions] == [("is", "7")]
    assert (bump.change.value, bump.value) == ("add", "1")


# --- random operations ------------------------------------------------------------------------------------------------


class Walker:
    """Makes random changes, several at a time, and remembers every entry ever made."""

    def __init__(self, b: Bench, seed: int) -> None:
        self.b = b
        self.chance = random.Random(seed)
        self.made: dict[Guid, str] = {ROOT: TYPE_COLLECTION}

    def somewhere(self) -> Guid:
        return self.chance.choice([guid for guid, kind in self.made.items() if kind == TYPE_COLLECTION])

    async def something(self) -> tuple[Guid, str, Guid] | None:
        """A (parent, name, child) that was there just now."""
        parent = self.somewhere()
        try:
            names = await self.b.names(parent)
        except CheloniaError:
            return None
        if not names:
            return None
        name = self.chance.choice(sorted(names))
        return parent, name, Guid(names[name])

    async def step(self) -> None:
        found = await self.something()
        work = await self._choose(found)
        try:
            await work
        except CheloniaError as error:
            if error.kind not in EXPECTED:
                raise

    async def _choose(self, found: tuple[Guid, str, Guid] | None) -> Coroutine[Any, Any, Any]:
        service, chance = self.b.service, self.chance
        pick = chance.random()
        if found is None or pick < 0.4:
            return self.make()
        parent, name, child = found
        if pick < 0.75:
            target, new = self.somewhere(), chance.choice("abcd")
            return service.move(BARTENDER, MoveEntry(child, parent, name, target, new, chance.random() < 0.4))
        if pick < 0.9:
            return service.unlink(BARTENDER, Unlink(parent, name, child))
        if self.made[child] == TYPE_FILE:
            return service.delete(BARTENDER, Delete(child))
        return service.unmake(BARTENDER, Unmake(child))

    async def make(self) -> None:
        kind = self.chance.choice((TYPE_FILE, TYPE_COLLECTION))
        request = MakeEntry(self.somewhere(), self.chance.choice("abcd"), kind, Dn("/CN=x"), {})
        self.made[await self.b.service.make_entry(BARTENDER, request)] = kind

    async def check(self) -> None:
        """Every name has its parent record and the other way round; everything is below the root, exactly once each."""
        alive = {g: o for g in self.made if (o := (await self.b.stored(g))).exists}
        names, parents = set(), set()
        for guid, stored in alive.items():
            page = await self.b.ahash.scan(LIBRARIAN, ObjectId(guid), "entries")
            for key, child in page.items:
                assert key.endswith("/") == (self.made[Guid(child)] == TYPE_COLLECTION)
                names.add((guid, key.removesuffix("/"), Guid(child)))
            parents |= {(parent, name, guid) for parent, name in tree.names_of(stored)}
        assert names == parents
        below, level = {ROOT}, [ROOT]
        while level:
            level = [child for parent, _, child in names if parent in level and child not in below]
            below.update(level)
        assert below == set(alive)
        assert not self._cycle(names)

    def _cycle(self, names: set[tuple[Guid, str, Guid]]) -> bool:
        left = set(names)
        while left:
            inner = {edge for edge in left if any(other[0] == edge[2] for other in left)}
            if inner == left:
                return True
            left = inner
        return False


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
@virtual
async def test_random_concurrent_operations_keep_the_tree_whole(seed: int) -> None:
    async with bench(shepherds=1) as b:
        walker = Walker(b, seed)
        for _ in range(12):
            await asyncio.gather(*(walker.step() for _ in range(5)))
            await walker.check()
