"""While the cluster is away: callers that can do without an answer wait for none, however long that lasts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from chelonia.core.errors import CheloniaError, Kind
from tests.unit.fuse.mounts import HOUR_S, Trial, names


@pytest.fixture
def pass_an_hour(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let an hour go by on the clock of this process."""
    clock, clock_ns = time.monotonic, time.monotonic_ns
    passed = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed[0])
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock_ns() + int(passed[0] * 1e9))

    def go_by() -> None:
        passed[0] += HOUR_S

    return go_by


async def use(trial: Trial) -> None:
    """Look up, look at, open and read a file whose bytes are here."""
    inode = await trial.find("f")
    await trial.system.refresh(inode)
    assert await trial.read("f") == b"here"


@pytest.mark.parametrize("why", [Kind.TIMEOUT, Kind.NETWORK, Kind.EXPIRED])
async def test_who_reads_what_is_here_waits_once_for_a_cluster_that_is_away(
    mount: Trial, pass_an_hour: Callable[[], None], why: Kind
) -> None:
    """Each unanswered call takes 10 to 30 s. It used to be one every 15 s, for all readers, as long as that lasted."""
    mount.network.why = why
    await mount.write("f", b"here")
    mount.network.away = True
    for _ in range(4):
        pass_an_hour()
        await use(mount)
    assert mount.network.failed == 1


async def test_a_listing_that_fails_tells_that_the_cluster_is_away(
    mount: Trial, pass_an_hour: Callable[[], None]
) -> None:
    await mount.write("f", b"here")
    mount.network.away = True
    with pytest.raises(CheloniaError, match="away"):
        await names(mount)
    pass_an_hour()
    await use(mount)
    assert mount.network.failed == 1


async def test_the_background_finds_out_that_the_cluster_is_back(
    mount: Trial, other: Trial, pass_an_hour: Callable[[], None]
) -> None:
    """Nothing waits to be committed here, so nobody else would."""
    await mount.write("f", b"here")
    mount.network.away = True
    pass_an_hour()
    await use(mount)
    for _ in range(2):
        await mount.committer.work_off()
    assert (mount.network.failed, mount.system._cluster.is_away) == (3, True)
    await other.write("f", b"new", flags=os.O_RDWR | os.O_TRUNC)
    mount.network.away = False
    await mount.committer.work_off()
    pass_an_hour()
    assert await mount.read("f") == b"new"
    mount.network.asked.clear()
    await mount.committer.work_off()
    assert mount.network.asked == []


async def test_the_end_of_a_mount_with_nothing_to_commit_waits_for_no_answer(mount: Trial) -> None:
    await mount.write("f", b"here")
    mount.network.away = True
    with pytest.raises(CheloniaError, match="away"):
        await names(mount)
    await mount.committer.drain(HOUR_S)
    assert mount.network.failed == 1


@pytest.mark.parametrize(("why", "is_away"), [(Kind.UNAVAILABLE, True), (Kind.DENIED, False)])
async def test_a_refusal_is_an_answer(mount: Trial, why: Kind, is_away: bool) -> None:
    """A mount that may not look any more shows nothing of what was here. A Bartender without an A-Hash refuses too."""
    await mount.write("f", b"here")
    mount.system._cluster.is_away = True
    mount.network.away, mount.network.why = True, why
    with pytest.raises(CheloniaError):
        await mount.find("none")
    assert mount.system._cluster.is_away is is_away


@pytest.mark.expect_log("will be committed later|is committed now")
@pytest.mark.parametrize("size", [5, 300_000])
async def test_a_close_after_a_commit_that_the_network_failed_waits_for_no_answer(
    mount: Trial, other: Trial, size: int
) -> None:
    """Each waited for a commit of its own, 15 to 21 s, as nothing was looked up or listed meanwhile."""
    opened = [await mount.open(name, os.O_CREAT | os.O_RDWR) for name in ("first", "second")]
    mount.network.away = True
    for handle in opened:
        before = mount.network.failed
        await mount.system.write(handle, 0, b"x" * size)
        await mount.close(handle)
    assert mount.network.failed == before
    mount.network.away = False
    await mount.committer.work_off()
    assert [len(await other.read(name)) for name in ("first", "second")] == [size, size]


async def test_a_call_without_an_answer_tells_nothing_where_the_cluster_answers_others(mount: Trial) -> None:
    """It may be the only one that takes too long."""
    await mount.write("f", b"here")
    handle = await mount.open("f")
    apply = mount.network.memory.apply

    async def late(*_: object) -> None:
        await names(mount)
        raise CheloniaError(Kind.TIMEOUT, cause="no answer")

    mount.network.memory.apply = late  # type: ignore[method-assign,assignment]
    await mount.system.write(handle, 0, b"more")
    with pytest.raises(CheloniaError, match="no answer"):
        await mount.system.sync(handle)
    assert not mount.system._cluster.is_away
    mount.network.memory.apply = apply  # type: ignore[method-assign]
    await mount.close(handle)
