"""A mistake in any one job of a Librarian: the others go on, users are served, and the mistake is seen."""

import asyncio
from collections.abc import Sequence

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId
from chelonia.core.timing.jobs import FAILING, Next
from tests.sim.virtual_loop import virtual
from tests.support.paper import Paper, paper

NAMES = (
    "lead", "listen", "detect", "repair", "trim", "erase", "forget", "notify leader", "renew claims", "survey",
    "balance", "drill", "sweep", "summarise", "count quotas", "ask to compare",
)  # fmt: skip
UNNEEDED = (
    "trim", "erase", "forget", "notify leader", "survey", "balance", "drill", "sweep", "summarise", "count quotas",
    "ask to compare",
)  # fmt: skip
"""Jobs without which copies are made all the same."""


async def mistake() -> Next:
    raise KeyError("https://h/Shepherd")


def broken(p: Paper, name: str) -> None:
    next(job for job in p.b.service.jobs if job.name == name).step = mistake


@pytest.mark.expect_log("job failed")
@pytest.mark.parametrize("name", NAMES)
@virtual
async def test_a_mistake_in_one_job_leaves_the_others_and_the_users_alone(name: str) -> None:
    async with paper(shepherds=4) as p:
        broken(p, name)
        await asyncio.sleep(5)
        _, blob = await p.upload("f")
        if name in UNNEEDED:
            await asyncio.sleep(1)
            next(p.shepherds[s] for s in p.holding(blob)).up = False
            await p.until(lambda: p.held_twice(blob))
        await asyncio.sleep(30)
        views = {view.name: view for view in p.b.service.jobs.views("librarian")}
        assert tuple(views) == NAMES
        if name != "detect":  # which nothing has woken
            assert views[name].bugs >= 2
            assert (views[name].state, views[name].last_error) == (FAILING, "KeyError('https://h/Shepherd')")
        assert [view.name for view in views.values() if view.bugs] in ([name], [])


@virtual
async def test_a_blob_that_trimming_fails_on_holds_no_other_up() -> None:
    async with paper(shepherds=3) as p:
        await asyncio.sleep(5)
        trimming, trimmed = p.b.service._parts.healer._trimming, list[list[str]]()
        errors = [CheloniaError(Kind.UNAVAILABLE), KeyError("planted")]

        async def trim(batch: Sequence[BlobId]) -> None:
            trimmed.append(list(batch))
            if errors:
                raise errors.pop(0)

        trimming._trim = trim  # type: ignore[method-assign]
        trimming.offer(BlobId("poison"))
        for expected in (CheloniaError, KeyError):
            with pytest.raises(expected):
                await trimming.step()
        trimming.offer(BlobId("other"))
        await trimming.step()
        assert trimmed == [["poison"], ["poison"], ["other"]], "what services may raise is tried again"
