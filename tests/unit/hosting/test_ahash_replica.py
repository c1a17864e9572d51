"""A replica in a node: the directories it accepts, and its reports of itself."""

import asyncio
from pathlib import Path

import pytest

from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.store.bdb.environment import PAGE_BYTES, BdbSettings
from chelonia.ahash.store.bdb.files import read_lease
from chelonia.ahash.store.bdb.page_files import PageFile
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.ports.ahash import AHashStatus, PagesSeen, PeerView
from chelonia.core.values import replace
from chelonia.hosting import ahash_replica
from chelonia.hosting.ahash_replica import (
    HANGS_MS,
    UPKEEP_HANGS_MS,
    disk_watch,
    leave_group,
    outlive_grants,
    page_scrub,
    set_gauges,
    store_settings,
    unready,
)
from chelonia.hosting.config import AHashSection, problems_of
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from tests.support.ahash import LIBRARIAN, serving
from tests.support.failing import fails

VIEWS = (
    PeerView(1, Dn("/CN=1"), "h1:7", "follower", 3),
    PeerView(2, Dn("/CN=2"), "h2:7", "master", 0),
    PeerView(3, Dn("/CN=3"), "h3:7", "away", -1),
)
STATUS = AHashStatus(Position("c", 1, 9), "master", True, 5, 9, replica=2, term=4, lease_ms=371, replicas=VIEWS)


def test_the_directory_of_a_replica_is_not_opened_alone(tmp_path: Path) -> None:
    leave_group(tmp_path / "not there yet")
    for name in ("replica", "acked"):
        (tmp_path / name).touch()
    with pytest.raises(CheloniaError, check=lambda error: error.kind is Kind.BAD_CONFIG):
        leave_group(tmp_path)
    (tmp_path / "restored").touch()
    leave_group(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["restored"]


def test_a_replica_without_a_master_is_not_ready_and_says_whom_it_does_not_see() -> None:
    unready(STATUS)
    lost = replace(STATUS, role="alone", replicas=tuple(replace(view, role="away") for view in VIEWS))
    with fails(Kind.UNAVAILABLE, match="1, 2, 3"):
        unready(lost)


@pytest.mark.parametrize(
    ("commit_ms", "upkeep_ms", "ends"),
    [
        (HANGS_MS - 1, 0, ""),
        (HANGS_MS, 0, "has not taken a change for 60 s"),
        (0, UPKEEP_HANGS_MS - 1, ""),
        (0, UPKEEP_HANGS_MS, "has not taken a checkpoint for 300 s"),
    ],
)
async def test_a_master_whose_disk_takes_no_change_or_checkpoint_ends(
    monkeypatch: pytest.MonkeyPatch, commit_ms: int, upkeep_ms: int, ends: str
) -> None:
    """Its heartbeats would go on, and the others would follow it for as long as the disk hangs."""
    told: list[str] = []
    monkeypatch.setattr(ahash_replica, "leave", told.append)
    await disk_watch(lambda: commit_ms, lambda: upkeep_ms).step()
    assert len(told) == bool(ends)
    assert ends in "".join(told)


async def test_what_was_granted_for_longer_is_outlived_before_a_start(tmp_path: Path) -> None:
    """Else a replica with a shorter lease could help another master while the first may still answer."""
    path, near, far = tmp_path / "lease", ProtocolPeriods(), ProtocolPeriods.over(300)
    slept: list[tuple[int, int | None]] = []

    class Sleeper(SystemClock):
        async def sleep(self, duration_ms: int) -> None:
            slept.append((duration_ms, read_lease(path)))

    for pace, expected in (
        (near, []),
        (far, []),
        (far, []),
        (near, [(far.lease_ms, far.lease_ms)]),
        (near, []),
    ):
        await outlive_grants(path, pace, Sleeper())
        assert slept == expected, "and what is written says so until it is over, lest one that is killed forgets it"
        assert read_lease(path) == pace.lease_ms
        slept.clear()
    for damaged in (b"", b"chelonia-lease 2 340\n", b"\xff\xfe", b"chelonia-lease 1 x\n"):
        path.write_bytes(damaged)
        await outlive_grants(path, far, Sleeper())
        assert slept == [(ProtocolPeriods.over(1000).lease_ms, None)], "it may have been any"
        slept.clear()


def section(tmp_path: Path, **tuning: object) -> AHashSection:
    return AHashSection("https://a/AHash", str(tmp_path), tuning=tuning)


def test_a_store_has_the_page_cache_that_is_configured(tmp_path: Path) -> None:
    """Berkeley DB adds a quarter to a small one, for its own use."""
    for given, tuning in ((128 << 20, {}), (64 << 20, {"cache_bytes": 64 << 20}), (1 << 30, {"cache_bytes": 1 << 30})):
        store = BdbStore(tmp_path, store_settings(section(tmp_path, **tuning)), pytest.fail)
        gigabytes, more, _ = store._env.get_cachesize()
        store.close()
        assert given <= (gigabytes << 30) + more < given * 1.3


def test_a_page_cache_that_does_not_fit_into_memory_is_refused_before_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chelonia.hosting.config.memory_bytes", lambda: 4 << 30)
    assert store_settings(section(tmp_path, cache_bytes=3 << 30)).cache_bytes == 3 << 30
    with fails(Kind.BAD_CONFIG) as caught:
        store_settings(section(tmp_path, cache_bytes=(3 << 30) + 1))
    assert "3221225472 (3072 MiB)" in caught.value.cause
    store_settings(section(tmp_path))
    monkeypatch.setattr("chelonia.hosting.config.memory_bytes", lambda: 100 << 20)
    assert store_settings(section(tmp_path)).cache_bytes == 128 << 20, "the default is nobody's mistake"


def test_check_config_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.hosting.config.memory_bytes", lambda: 4 << 30)
    text = (Path(__file__).parents[3] / "conf" / "ahash.toml").read_text()
    path = tmp_path / "ahash.toml"
    path.write_text(text.replace("cache_bytes = 134217728", "cache_bytes = 4294967296"))
    assert [f"{path}: ahash.tuning.cache_bytes"] == [p.subject for p in problems_of(path) if "cache" in p.subject]


async def test_gauges_of_the_scrub_of_pages() -> None:
    metrics = Metrics()
    set_gauges(metrics, replace(STATUS, pages=PagesSeen(413, 40, Ms(1_700_000_000_000), 2)))
    told = (await metrics.expose()).decode()
    for line in (
        "chelonia_ahash_pages 413.0",
        "chelonia_ahash_pages_checked 40.0",
        "chelonia_ahash_pages_checked_seconds 1.7e+09",
        "chelonia_ahash_pages_damaged 2.0",
    ):
        assert line in told


async def test_a_scrub_that_has_not_ended_since_the_start_raises_no_alarm() -> None:
    metrics = Metrics()
    set_gauges(metrics, replace(STATUS, pages=PagesSeen(413, 40, Ms(0), 0)))
    told = (await metrics.expose()).decode()
    assert "chelonia_ahash_pages_checked 40.0" in told
    assert "chelonia_ahash_pages_checked_seconds" not in told


@pytest.mark.expect_log("page 1 of the A-Hash's store is damaged")
async def test_an_a_hash_tells_of_a_damaged_page_in_its_status_and_serves_on(tmp_path: Path) -> None:
    tuning = {"page_scrub_interval_ms": 1, "page_scrub_bytes_per_s_max": 1 << 40}
    scrub = page_scrub(section(tmp_path, **tuning), SystemClock())
    store = BdbStore(tmp_path, BdbSettings(), pytest.fail)
    async with serving(store) as ahash:
        ahash.pages_seen = scrub.seen
        store.upkeep()
        with PageFile(tmp_path).path.open("r+b") as file:
            file.seek(PAGE_BYTES + 100)
            file.write(b"damage")
        task = asyncio.create_task(scrub.run("", 0.0))
        while (seen := (await ahash.status(LIBRARIAN)).pages) is not None and not seen.ended_ms:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        assert seen is not None
        assert seen.damaged == 1


async def test_gauges_of_a_master() -> None:
    metrics = Metrics()
    set_gauges(metrics, STATUS)
    told = (await metrics.expose()).decode()
    for line in (
        "chelonia_ahash_master 1.0",
        "chelonia_ahash_term 4.0",
        "chelonia_ahash_lease_seconds 0.371",
        'chelonia_ahash_lag_commits{replica="1"} 3.0',
        'chelonia_ahash_lag_commits{replica="2"} 0.0',
        "chelonia_ahash_replicas_away 1.0",
    ):
        assert line in told
    assert 'replica="3"' not in told


async def test_a_replica_that_is_gone_has_no_figures() -> None:
    """This holds for one that left the group, one that is away, and the others' lag when it is master no more."""
    metrics = Metrics()
    near, far = (replace(view, round_trip_ms=ms) for view, ms in zip(STATUS.replicas[:2], (2, 40), strict=True))
    set_gauges(metrics, replace(STATUS, replicas=(near, far)))
    told = (await metrics.expose()).decode()
    assert f'chelonia_ahash_round_trip_seconds{{replica="{far.replica}"}} 0.04' in told
    set_gauges(metrics, replace(STATUS, replicas=(near, replace(far, round_trip_ms=-1, lag=-1))))
    told = (await metrics.expose()).decode()
    assert f'replica="{far.replica}"' not in told
    assert f'chelonia_ahash_round_trip_seconds{{replica="{near.replica}"}} 0.002' in told
    set_gauges(metrics, replace(STATUS, replicas=()))
    assert 'replica="' not in (await metrics.expose()).decode()


async def test_what_is_told_of_no_more_has_no_figure() -> None:
    """A state without any replica does not keep its last number."""
    metrics = Metrics()
    for told in ({"alive": 2, "invalid": 1}, {"alive": 3}):
        metrics.gauges("replicas", "Replicas by state.", "state", told)
    text = (await metrics.expose()).decode()
    assert 'chelonia_replicas{state="alive"} 3.0' in text
    assert "invalid" not in text
