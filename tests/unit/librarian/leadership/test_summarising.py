"""The repair leader writes missing summaries, once."""

import asyncio

from chelonia.core.ids import REPAIR_OBJECT, ROOT, Dn, ObjectId, RequestKey
from chelonia.core.ports.ahash import Element
from chelonia.librarian.leadership.summarising import Summarising
from chelonia.librarian.metadata.elements import drop
from chelonia.librarian.namespace.summaries import END, missed
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.namespace_snapshot import NamespaceSnapshot, broken
from tests.support.paper import Paper, paper

SWEEP_S = LibrarianSettings.dev(Dn("/CN=x")).sweep_interval_ms / 1000
NAMES = [f"f{number}" for number in range(5)]


async def summaries(p: Paper) -> dict[str, str]:
    return dict((await p.b.stored(ROOT)).sections.get("summaries", {}))


async def again(p: Paper) -> None:
    """Have the pass begin anew, as after a repair."""
    assert (await p.b.ahash.transact(LIBRARIAN, RequestKey(""), (missed(),))).applied
    await asyncio.sleep(3 * SWEEP_S)


@virtual
async def test_what_is_missing_is_written_and_what_is_there_is_left() -> None:
    async with paper(shepherds=3) as p:
        for name in NAMES:
            await p.upload(name)
        assert (await p.b.stored(REPAIR_OBJECT)).value("summaries", "after") == END, "a new store lacks none"
        before = await summaries(p)
        assert sorted(before) == NAMES
        await again(p)
        assert await summaries(p) == before, "nothing was missing"
        gone: tuple[Element, ...] = tuple(drop(ObjectId(ROOT), "summaries", name) for name in NAMES[1:4])
        assert (await p.b.ahash.transact(LIBRARIAN, RequestKey(""), gone)).applied
        healer = p.b.service._parts.healer
        await Summarising(healer._on, healer._leading).step()
        assert len(await summaries(p)) == 2, "another leader does not go through all that is there again"
        await again(p)
        assert await summaries(p) == before
        assert (await p.b.stored(REPAIR_OBJECT)).value("summaries", "after") == END
        ids = (await p.b.ahash.objects(LIBRARIAN)).ids
        assert broken(NamespaceSnapshot(await p.b.ahash.get(LIBRARIAN, ids))) == ()
