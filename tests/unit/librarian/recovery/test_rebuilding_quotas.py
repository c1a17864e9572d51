"""A rebuild and quotas: a snapshot has the quotas that were set, and all are counted at the rebuild's end."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.cluster.quotas import EACH_USER, Quota
from chelonia.core.errors import Kind
from chelonia.core.ids import QUOTA_PREFIX, Dn, Guid
from chelonia.core.ports.librarian import Delete
from chelonia.core.values import replace
from chelonia.librarian.recovery import snapshots
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, EVE, JOE
from tests.unit.librarian.keepers import Keepers, keepers
from tests.unit.librarian.namespace.test_trash import snapshot
from tests.unit.librarian.recovery.test_rebuilding import BEFORE, next_snapshot


async def counts(k: Keepers, quota: Quota, files: int) -> bool:
    """Whether a quota is in force, with so many files counted."""
    [use] = await k.bench.service.quotas(ADMIN, quota.user, quota.tree)
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
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: done(k), 200_000)
        await k.until(lambda: counts(k, quota, 2))
        with fails(Kind.QUOTA):
            await k.upload("/c")


@pytest.mark.parametrize("page", [500, 1], ids=["in one part", "in many"])
@virtual
async def test_quotas_come_back_with_the_snapshot_and_count_what_came_back(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PAGE", page)

    k = keepers()
    async with k.running(BEFORE):
        data = await k.bench.collection("data")
        every = Quota(EACH_USER, Guid(""), files=2)
        mine, tree, today = Quota(EVE, Guid(""), files=7), Quota(Dn(""), data, bytes=10), Quota(JOE, Guid(""), files=3)
        for quota in (every, mine, tree, replace(today, files=9)):
            await k.bench.service.set_quota(ADMIN, quota)
        await k.upload("/data/a")
        await k.upload("/b")
        await next_snapshot(k)
    async with k.running(BEFORE, generation=2):
        await k.bench.service.set_quota(ADMIN, today)
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: done(k), 200_000)
        await k.until(lambda: counts(k, today, 2))
        await k.until(lambda: counts(k, tree, 1))
        told = {use.quota for use in await k.bench.service.quotas(ADMIN, Dn(""), Guid(""))}
        assert told == {every, mine, tree, today}
        with fails(Kind.QUOTA):
            await k.upload("/data/c")


@virtual
async def test_an_account_that_only_the_default_quota_has_made_stands_in_no_way() -> None:
    """A user has written in the empty namespace, and removed it again: that sets no quota for him."""
    k = keepers()
    mine, every = Quota(JOE, Guid(""), files=9), Quota(EACH_USER, Guid(""), files=2)
    async with k.running(BEFORE):
        await k.bench.service.set_quota(ADMIN, mine)
        for name in ("/a", "/b", "/c"):
            await k.upload(name)
        await next_snapshot(k)
    async with k.running(replace(BEFORE, trash_keep_ms=0)):  # begun without a word of what it was before
        await k.bench.service.set_quota(ADMIN, every)
        tried, _ = await k.upload("/tried")
        await k.bench.service.delete(BARTENDER, Delete(tried))
        assert {use.quota for use in await k.bench.service.quotas(ADMIN, Dn(""), Guid("")) if use.implied}
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: done(k), 200_000)
        await k.until(lambda: counts(k, mine, 3))
        told = {use.quota for use in await k.bench.service.quotas(ADMIN, Dn(""), Guid(""))}
        assert told == {every, mine}
        counters = {obj for obj in (await snapshot(k.bench)).objects if obj.startswith(QUOTA_PREFIX)}
        assert len(counters) == 2  # one of each account
