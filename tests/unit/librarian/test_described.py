"""Changes that answer with the changed entry: it equals the stored one."""

from chelonia.core.contents.attributes import attributes_of
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.uploads import SpliceFile
from chelonia.core.ids import ROOT, Guid
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_SYMLINK, StoredObject, Triple
from chelonia.core.ports.files import Over
from chelonia.core.ports.librarian import ChangeEntry, MakeEntry, ModifyEntry, MoveEntry
from chelonia.core.values import replace
from tests.support.librarian import BARTENDER, JOE, Bench, bench, keyed, pieced


async def told(b: Bench, left: object) -> StoredObject:
    """The entry in an answer, which must equal the stored one."""
    assert isinstance(left, StoredObject)
    stored = await b.stored(left.id)
    assert attributes_of(left) == attributes_of(stored)
    return stored


def move(
    child: Guid,
    source: tuple[Guid, str],
    target: tuple[Guid, str],
    *,
    keep: bool = False,
    over: Over = Over.REFUSE,
    there: str = "",
) -> MoveEntry:
    return MoveEntry(child, *source, *target, keep, (), over.value, Guid(there), described=True)


async def test_what_is_told_of_an_entry_is_what_is_stored() -> None:
    async with bench() as b:
        box, other = await b.collection("box"), await b.collection("other")
        inside, _ = await b.file("inside", box)
        for kind in (TYPE_COLLECTION, TYPE_FILE, TYPE_SYMLINK):
            made = MakeEntry(ROOT, kind, kind, JOE, {"posix": {"mode": "420"}}, described=True)
            await told(b, await b.service.make_entry(BARTENDER, made))
        for n, guid in enumerate((box, inside, ROOT)):
            for put in (Triple("posix", "mode", "448"), Triple("timestamps", "modified", f"{n}.5")):
                await told(b, await b.service.change_entry(BARTENDER, ChangeEntry(guid, (put,), described=True)))
        closed = ModifyEntry("m", box, "set", "states", "closed", "yes")
        await b.service.modify_metadata(BARTENDER, (closed,))
        await told(b, await b.service.move(BARTENDER, move(inside, (box, "inside"), (ROOT, "f"), keep=True)))
        await told(b, await b.service.move(BARTENDER, move(inside, (ROOT, "f"), (ROOT, "g"))))
        await told(b, await b.service.move(BARTENDER, move(inside, (box, "inside"), (other, "x"))))
        await told(b, await b.service.move(BARTENDER, move(box, (ROOT, "box"), (other, "box"))))
        await told(b, await b.service.move(BARTENDER, move(box, (other, "box"), (other, "bax"))))
        over, _ = await b.file("over")
        exchange = move(over, (ROOT, "over"), (other, "bax"), over=Over.EXCHANGE, there=box)
        await told(b, await b.service.move(BARTENDER, exchange))
        replaced = move(over, (other, "bax"), (other, "x"), over=Over.REPLACE, there=inside)
        await told(b, await b.service.move(BARTENDER, replaced))
        assert await b.names(other) == {"x": over}


async def test_what_is_told_of_a_spliced_file_is_what_is_stored() -> None:
    async with bench() as b:
        file, small = Guid(""), (await b.file("small"))[0]
        for name, at in (("f", 0), ("f", 0), ("f", 7), ("small", 3)):
            begin, piece = await pieced(b, name, small if name == "small" else file)
            order = SpliceFile(begin, (piece,), (Extent(at, 7, piece.begun.blob),), described=True)
            key = keyed(f"{name} {at} {file}")
            left = await told(b, await b.service.splice(key, order))
            assert await b.service.splice(key, order) == left.id
            file = Guid(left.id)


async def test_what_an_earlier_try_has_left_is_not_told() -> None:
    async with bench() as b:
        box = await b.collection("box")
        change = ChangeEntry(box, (Triple("posix", "mode", "448"),), described=True)
        await told(b, await b.service.change_entry(keyed("c"), change))
        await b.service.change_entry(BARTENDER, replace(change, put=(Triple("posix", "mode", "1"),)))
        assert await b.service.change_entry(keyed("c"), change) is None
        made = MakeEntry(box, "a", TYPE_COLLECTION, JOE, {}, described=True)
        inside = await told(b, await b.service.make_entry(keyed("m"), made))
        assert await b.service.make_entry(keyed("m"), made) == inside.id
        moved = move(Guid(inside.id), (box, "a"), (ROOT, "b"))
        await told(b, await b.service.move(keyed("v"), moved))
        assert await b.service.move(keyed("v"), moved) is None
