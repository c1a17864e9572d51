"""A rebuild and quotas: none are in a snapshot, and those that were set before it is through count what it brings."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.cluster.quotas import Quota
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Guid
from tests.sim.virtual_loop import virtual
from tests.support.librarian import ADMIN, BARTENDER, JOE
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot


async def counts(k: Keepers, quota: Quota, files: int) -> bool:
    """Whether a quota is in force, and so many files are counted by it."""
    [use] = await k.bench.service.quotas(BARTENDER, quota.user, quota.tree)
    return use.counted and use.files == files


async def done(k: Keepers) -> bool:
    return (await k.bench.service.rebuild(ADMIN, False)).stage == "done"


@virtual
async def test_a_quota_that_was_set_in_the_empty_namespace_counts_what_came_back() -> None:
    k = keepers()
    async with k.running(BEFORE):
        for name in ("/a", "/b"):
            await k.upload(name)
        await next_snapshot(k)
    quota = Quota(JOE, Guid(""), files=2)
    async with k.running(BEFORE, generation=2):
        await k.bench.service.set_quota(ADMIN, quota)
        await k.until(lambda: counts(k, quota, 0))
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: done(k), 200_000)
        await k.until(lambda: counts(k, quota, 2))
        with pytest.raises(CheloniaError) as caught:
            await k.upload("/c")
        assert caught.value.kind is Kind.QUOTA
