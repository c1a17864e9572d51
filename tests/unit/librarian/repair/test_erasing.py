"""Orders to erase that cannot be carried out."""

import asyncio
from itertools import pairwise
from typing import Any

from chelonia.core.caller import Call
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.librarian import Delete
from chelonia.core.ports.shepherd import DeleteOutcome
from chelonia.core.values import replace
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN, BARTENDER
from tests.support.paper import paper


@virtual
async def test_what_is_in_the_way_of_one_erasure_is_asked_for_ever_more_rarely_and_holds_up_no_other() -> None:
    settings = replace(LibrarianSettings.dev(ADMIN.dn), backoff_max_ms=20_000)
    async with paper(1, settings) as p:
        stuck, blob = await p.upload("stuck", copies=1)
        others = [(await p.upload(f"other{number}", copies=1))[0] for number in range(20)]
        (one,) = p.b.shepherds
        reference, tries = ReferenceId(f"{blob}@{one}"), list[float]()
        erase = p.shepherds[one].delete

        async def in_the_way(call: Call, asked: Any, authority: Any) -> tuple[DeleteOutcome, ...]:
            outcomes = list(await erase(call, asked, authority))
            for at, (key, wanted) in enumerate(asked):
                if wanted == reference:
                    tries.append(asyncio.get_running_loop().time())
                    outcomes[at] = DeleteOutcome(key, "nosuchfile: a directory is in its place")
            return tuple(outcomes)

        p.shepherds[one].delete = in_the_way  # type: ignore[method-assign]
        await p.b.service.delete(BARTENDER, Delete(stuck))
        for other in others:
            await p.b.service.delete(BARTENDER, Delete(other))
            await asyncio.sleep(3)
        assert await p.b.outbox(one) == {reference: "deleted"}
        pauses = [later - before for before, later in pairwise(tries)]
        assert len(tries) < 12, "it was asked for as often as others came"
        assert pauses[-1] >= 10.0, f"not ever more rarely: {pauses}"
        p.shepherds[one].delete = erase  # type: ignore[method-assign]

        async def drained() -> bool:
            return not await p.b.outbox(one)

        await p.until(drained, 40_000)
        assert (await p.b.service.health(ADMIN)).erasing == 0
