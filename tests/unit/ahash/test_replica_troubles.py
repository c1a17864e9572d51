"""A replica in which something unexpected breaks logs it and ends, instead of living on as half a replica."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.replicated_port import LogPosition, SyncedCommit
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.ahash import TransactOutcome
from tests.support.group import Group, group_of
from tests.support.polling import patience, poll_async
from tests.unit.ahash.group.test_service import value_at, write


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with group_of(tmp_path) as made:
        yield made


def engine_of(group: Group, replica: int) -> ReplicatedStore:
    return cast(ReplicatedStore, group.engines[replica])


def broken(*_: Any) -> Any:
    raise OSError(5, "Input/output error")


async def ended(group: Group, replica: int) -> str:
    """The last message of a replica, which must end soon."""
    await asyncio.wait((group.running[replica],), timeout=10 * patience())
    assert group.running[replica].done()
    failure = group.running[replica].exception()
    assert isinstance(failure, CheloniaError)
    return failure.cause


async def written(group: Group, key: str) -> TransactOutcome:
    """Write at any running replica, as a client would, and go on to the next until one has done it."""

    async def attempt() -> TransactOutcome | None:
        for replica, task in group.running.items():
            if not task.done():
                return await write(group, replica, key, key)
        return None

    return cast(TransactOutcome, await poll_async(attempt, 20, tolerate=CheloniaError, what="a write"))


@pytest.mark.expect_log("work of the replicated A-Hash failed")
async def test_a_master_that_can_commit_no_more_ends_and_another_takes_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = group.master()
    monkeypatch.setattr(engine_of(group, master), "free_bytes", broken)
    with pytest.raises(CheloniaError):
        await write(group, master, "unlucky", "x")
    assert "Input/output error" in await ended(group, master)
    await group.close(master)
    assert (await written(group, "next")).applied


async def test_a_follower_whose_replication_breaks_ends(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = group.followers()[0]
    monkeypatch.setattr(engine_of(group, follower), "_look_after_logs", broken)
    assert "Input/output error" in await ended(group, follower)
    assert (await written(group, "next")).applied


@pytest.mark.expect_log("cannot go on|Exception in callback")
async def test_a_mistake_of_the_protocol_ends_the_replica(group: Group) -> None:
    master = group.master()
    mastership = group.masterships[master]
    gap = SyncedCommit(10**6, LogPosition(mastership.replica.term, 9, 9))
    with pytest.raises(AssertionError):
        mastership._event(gap)
    assert "internal failure" in await ended(group, master)


async def test_a_follower_whose_copy_stands_still_says_nothing_old(group: Group) -> None:
    """Its master's heartbeats show which commits are durable; its copy lacks them, so it may not answer."""
    await written(group, "old")
    follower = group.followers()[0]
    await poll_async(lambda: value_at_is(group, follower, "old"), 10, what="the follower has the first value")
    go_on = threading.Event()
    engine_of(group, follower)._work.put(lambda: assert_waited(go_on))
    try:
        await written(group, "new")
        await poll_async(lambda: value_at_is(group, follower, "new"), 10, what="the newest value, from wherever")
    finally:
        go_on.set()


async def value_at_is(group: Group, replica: int, value: str) -> bool:
    return await value_at(group, replica) == value


def assert_waited(event: threading.Event) -> None:
    assert event.wait(30)


async def test_a_backup_made_across_a_change_of_master_is_refused(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = group.followers()[0]
    engine, copied = engine_of(group, follower), environment.copy_environment

    def slowly(env: Any, target: Path) -> None:
        copied(env, target)
        engine._refills += 1  # as when the library asks for the whole store anew

    def mixed(home: Path) -> None:
        raise CheloniaError(Kind.INTERNAL, "backup", str(home), "pages of one history with the log of another")

    monkeypatch.setattr(environment, "copy_environment", slowly)
    monkeypatch.setattr(environment, "_recover", mixed)
    with pytest.raises(CheloniaError) as caught:
        await asyncio.to_thread(engine.backup, str(tmp_path / "backup"))
    assert caught.value.kind is Kind.UNAVAILABLE, "not the fault of its disk"
    assert not (tmp_path / "backup").exists()
