"""The scrub of a store: it reports damaged pages and logs, but none that is being written, and delays nobody."""

import asyncio
import errno
import itertools
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.environment import PAGE_BYTES, BdbSettings
from chelonia.ahash.store.bdb.page_files import LOG_STEP_BYTES, LogFiles, PageFile
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.page_checksums import checksum, flaw
from chelonia.ahash.store.page_scrub import (
    AGAIN_MAX,
    AGAIN_MS,
    SPREAD,
    STEP_PAGES,
    LogLook,
    PageCheck,
    PageScrub,
    ScrubPace,
)
from chelonia.core.ids import Ms
from chelonia.core.ports.ahash import PagesSeen
from tests.sim.virtual_loop import run_virtual
from tests.support.ahash import SMALL, no_panic
from tests.support.clocks import VirtualClock

DAY_MS = 86_400_000
LEAF, OVERFLOW, FREED = 5, 7, 0
SHORT_LOGS = BdbSettings(
    cache_bytes=8 << 20, log_file_bytes=1 << 20, log_buffer_bytes=256 << 10, checkpoint_log_bytes=1 << 30
)


def filled(directory: Path, records: int = 3_000) -> Path:
    """A closed store with pages of every kind; returns its database file."""
    store, draw = BdbStore(directory, SMALL, no_panic), random.Random(1)
    for start in range(0, records, 500):
        keys = range(start, min(start + 500, records))
        store.commit({b"W%d" % draw.randrange(1 << 30): draw.randbytes(draw.randrange(10, 400)) for _ in keys}, ())
    store.commit({b"long": draw.randbytes(30_000), b"gone": draw.randbytes(50_000)}, ())
    store.commit({}, (b"gone",))
    store.close()
    return PageFile(directory).path


def pages_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES)]


def flip(path: Path, page: int, at: int = 4_000) -> None:
    flip_at(path, page * PAGE_BYTES + at)


def flip_at(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
        os.fsync(file.fileno())


# --- one page --------------------------------------------------------------------------------------------------------


def test_the_checksum_is_that_of_berkeley_db() -> None:
    """`__ham_func4` of some bytes, by hand: h = 33 h + byte, in 32 bits."""
    assert checksum(b"") == 0
    assert checksum(b"ab") == 33 * 97 + 98
    long = 0
    for byte in b"chelonia" * 2_000:
        long = (33 * long + byte) & 0xFFFF_FFFF
    assert checksum(b"chelonia" * 2_000) == long


def test_pages_that_the_engine_wrote_are_sound_and_a_changed_bit_of_any_kind_of_page_is_found(tmp_path: Path) -> None:
    pages = pages_of(filled(tmp_path / "store"))
    assert [flaw(page, number) for number, page in enumerate(pages)] == [""] * len(pages)
    kinds = {page[25]: number for number, page in enumerate(pages) if number and any(page)}
    assert kinds.keys() >= {LEAF, OVERFLOW, FREED}
    draw = random.Random(2)
    for number in kinds.values():
        for at in [0, 8, 28, 31, PAGE_BYTES - 1, *(draw.randrange(PAGE_BYTES) for _ in range(20))]:
            changed = bytearray(pages[number])
            changed[at] ^= 1 << draw.randrange(8)
            assert flaw(bytes(changed), number), (number, at)
    for at in (0, 12, 72, 492, 511):
        assert "checksum" in flaw(pages[0][:at] + bytes([pages[0][at] ^ 4]) + pages[0][at + 1 :], 0)


def test_a_page_in_the_wrong_place_is_found_and_one_that_was_never_written_is_none(tmp_path: Path) -> None:
    pages = pages_of(filled(tmp_path / "store"))
    assert flaw(pages[7], 8) == "it is page 7, written to the wrong place"
    assert flaw(bytes(PAGE_BYTES), 8) == ""
    assert "checksum" in flaw(bytes(100) + pages[7][100:], 7)


def test_pages_of_a_store_of_an_earlier_release_are_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PAGE_BYTES", 2 * PAGE_BYTES)
    path = filled(tmp_path / "store", 500)
    monkeypatch.undo()
    pages = PageFile(tmp_path / "store")
    assert pages.look(0, 1000) == PageCheck(path.stat().st_size // (2 * PAGE_BYTES), {})
    assert pages.page_bytes == 2 * PAGE_BYTES
    flip(path, 7)
    assert list(pages.look(0, 1000).flaws) == [3]
    BdbStore(tmp_path / "store", SMALL, no_panic).close()


def test_a_first_page_that_the_disk_cannot_read_is_damaged_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "store", 500)
    pread = os.pread

    def rotten(fd: int, length: int, at: int) -> bytes:
        if at < PAGE_BYTES:
            raise OSError(errno.EIO, "no")
        return pread(fd, length, at)

    monkeypatch.setattr(os, "pread", rotten)
    assert list(PageFile(tmp_path / "store").look(0, 1000).flaws) == [0]


# --- logs ------------------------------------------------------------------------------------------------------------


def with_logs(directory: Path) -> BdbStore:
    """An open store with three log files and more, and one record longer than one read of the scrub."""
    store, draw = BdbStore(directory, SHORT_LOGS, no_panic), random.Random(1)
    for _ in range(12):
        store.commit({b"W%d" % draw.randrange(1 << 30): draw.randbytes(3_000) for _ in range(100)}, ())
    assert len(LogFiles(directory).names()) > 3
    return store


def log_flaw(directory: Path, name: str) -> tuple[str, int]:
    """The flaw of a log file, and the number of looks for it."""
    logs, at, looks = LogFiles(directory), 0, 0
    while True:
        looks += 1
        look = logs.look(name, at)
        if look.then is None:
            return look.flaw, looks
        assert look.then > at
        at = look.then


def test_logs_that_the_engine_wrote_are_sound_and_a_changed_bit_anywhere_is_found(tmp_path: Path) -> None:
    with_logs(tmp_path / "store").close()
    names = LogFiles(tmp_path / "store").names()
    assert [log_flaw(tmp_path / "store", name)[0] for name in names] == [""] * len(names)
    assert log_flaw(tmp_path / "store", names[0])[1] > 8, "little by little"
    path, draw = tmp_path / "store" / "db" / names[0], random.Random(2)
    for at in [0, 4, 8, 12, 27, 28, 32, 36, *(draw.randrange(1_000_000) for _ in range(20))]:
        flip_at(path, at)
        assert log_flaw(tmp_path / "store", names[0])[0], at
        flip_at(path, at)
    assert log_flaw(tmp_path / "store", names[0])[0] == ""


def test_a_log_that_is_cut_or_zeroed_is_found_and_what_may_still_be_written_is_not_judged(tmp_path: Path) -> None:
    with_logs(tmp_path / "store").close()
    names = LogFiles(tmp_path / "store").names()
    path = tmp_path / "store" / "db" / names[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:500_000])
    assert "middle of a record" in log_flaw(tmp_path / "store", names[1])[0]
    path.write_bytes(whole[:499_712] + bytes(4_096) + whole[503_808:])
    assert log_flaw(tmp_path / "store", names[1])[0]
    path.write_bytes(bytes(len(whole)))
    assert log_flaw(tmp_path / "store", names[1])[0] == "at 0 there is no record"
    path.unlink()
    assert log_flaw(tmp_path / "store", names[1])[0] == ""
    flip_at(tmp_path / "store" / "db" / names[-1], 100)
    assert log_flaw(tmp_path / "store", names[-1]) == ("", 1), "the newest"


@pytest.mark.expect_log("is damaged")
async def test_a_damaged_log_is_found_while_the_store_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = with_logs(tmp_path)
    try:
        name = LogFiles(tmp_path).names()[1]
        flip_at(tmp_path / "db" / name, 600_000)
        assert (await scrubbed(tmp_path)).damaged == 1
        store.commit({b"A": b"goes on"}, ())
    finally:
        store.close()
    told = next(record.message for record in caplog.records if "is damaged" in record.message)
    assert told.startswith(f"{name} of the A-Hash's store is damaged: at ")


# --- a file that is written meanwhile --------------------------------------------------------------------------------


async def scrubbed(directory: Path, rounds: int = 1) -> PagesSeen:
    """The result of so many rounds of a scrub at full speed."""
    files = (PageFile(directory), LogFiles(directory))
    scrub = PageScrub(*files, VirtualClock(), ScrubPace(1, 1 << 40), asyncio.to_thread)
    task = asyncio.create_task(scrub.run("the cure", 0.0))
    ended = 0
    last = Ms(0)
    while ended < rounds and not task.done():
        await asyncio.sleep(0.002)
        seen = scrub.seen()
        assert seen is not None
        ended, last = ended + (seen.ended_ms != last), seen.ended_ms
    assert not task.done(), task.exception()
    task.cancel()
    return seen


async def test_a_store_that_is_written_all_the_time_shows_no_damage(tmp_path: Path) -> None:
    store, over = BdbStore(tmp_path, SHORT_LOGS, no_panic), threading.Event()
    draw = random.Random(3)

    def write() -> None:
        while not over.is_set():
            store.commit({b"W%04d" % draw.randrange(2_000): draw.randbytes(300) for _ in range(100)}, ())
            store.upkeep()  # a checkpoint: pages go to the disk

    store.commit({b"W%04d" % number: bytes(300) for number in range(2_000)}, ())
    store.upkeep()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = await scrubbed(tmp_path, rounds=5)
    finally:
        over.set()
        writer.join()
        store.close()
    assert seen.damaged == 0
    assert seen.pages > 50


@pytest.mark.expect_log("is damaged")
async def test_a_damaged_page_that_nobody_reads_is_found_and_the_store_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(tmp_path)
    store = BdbStore(tmp_path, SMALL, no_panic)
    leaf = next(number for number, page in enumerate(pages_of(path)) if number > 20 and page[25] == LEAF)
    flip(path, leaf)
    try:
        assert (await scrubbed(tmp_path)).damaged == 1
        store.commit({b"A": b"goes on"}, ())
        assert store.get(b"A") == b"goes on"
    finally:
        store.close()
    told = next(record.message for record in caplog.records if "is damaged" in record.message)
    assert told.startswith(f"page {leaf} of the A-Hash's store is damaged: its checksum")
    assert told.endswith("the cure")


# --- when, and how fast ----------------------------------------------------------------------------------------------


@dataclass
class PaperPages:
    """Fake pages: the flawed ones, and for how many looks."""

    clock: VirtualClock
    count: int = 64
    flaws: dict[int, int] = field(default_factory=dict)
    looks: list[tuple[int, int, int]] = field(default_factory=list)
    gone: bool = False
    logs: "PaperLogs" = field(init=False)

    page_bytes = 8_192

    def look(self, first: int, count: int) -> PageCheck:
        if self.gone:
            raise FileNotFoundError("store.db")
        self.looks.append((self.clock.monotonic_ms(), first, count))
        flawed = [number for number in range(first, first + count) if self.flaws.get(number, 0) > 0]
        for number in flawed:
            self.flaws[number] -= 1
        return PageCheck(self.count, dict.fromkeys(flawed, "torn"))


@dataclass
class PaperLogs:
    """Two fake log files of four steps each: the flaws of the second, and for how many looks."""

    clock: VirtualClock
    flaws: int = 0
    looks: list[tuple[int, str, int]] = field(default_factory=list)

    step_bytes = LOG_STEP_BYTES

    def names(self) -> tuple[str, ...]:
        return ("log.1", "log.2")

    def look(self, name: str, at: int) -> LogLook:
        self.looks.append((self.clock.monotonic_ms(), name, at))
        if name == "log.2" and at == LOG_STEP_BYTES and self.flaws > 0:
            self.flaws -= 1
            return LogLook(None, "torn")
        return LogLook(at + LOG_STEP_BYTES if at < 3 * LOG_STEP_BYTES else None, "")


async def inline(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def over_days(
    days: int, rate: int, begin: float = 0.5, log_flaws: int = 0, **facts: Any
) -> tuple[PaperPages, PageScrub]:
    async def scenario() -> tuple[PaperPages, PageScrub]:
        pages = PaperPages(VirtualClock(), **facts)
        pages.logs = PaperLogs(pages.clock, log_flaws)
        scrub = PageScrub(pages, pages.logs, pages.clock, ScrubPace(DAY_MS, rate), inline)
        task = asyncio.create_task(scrub.run("the cure", begin))
        await asyncio.sleep(days * DAY_MS / 1000)
        assert not task.done()
        task.cancel()
        return pages, scrub

    return run_virtual(scenario())


def test_it_begins_daily_some_time_after_the_start_and_keeps_to_its_rate() -> None:
    pages, scrub = over_days(3, rate=8_192)
    begins = [at for at, first, _ in pages.looks if first == 0]
    assert [at - begins[0] for at in begins] == [0, DAY_MS, 2 * DAY_MS]
    assert begins[0] - DAY_MS // SPREAD // 2 in range(-1, 100_000)
    first_round = [at for at, _, _ in pages.looks[: 64 // STEP_PAGES]]
    assert [later - at for at, later in itertools.pairwise(first_round)] == [STEP_PAGES * 1000] * 7
    assert scrub.seen() == PagesSeen(64, 64, scrub.seen().ended_ms, 0)  # type: ignore[union-attr]


def test_logs_come_after_the_pages_at_the_same_rate() -> None:
    pages, _ = over_days(1, rate=65_536)
    looks = pages.logs.looks
    assert [name for _, name, _ in looks] == ["log.1"] * 4 + ["log.2"] * 4
    assert [at for _, _, at in looks] == [step * LOG_STEP_BYTES for step in range(4)] * 2
    assert pages.looks[-1][0] <= looks[0][0]
    assert [later[0] - sooner[0] for sooner, later in itertools.pairwise(looks)] == [1000] * 7


@pytest.mark.expect_log("log.2 .* is damaged: torn")
def test_a_damaged_log_is_told_when_it_stays_so_until_it_is_whole_again() -> None:
    for flaws, damaged in ((AGAIN_MAX, 0), (1 << 30, 1)):
        _, scrub = over_days(1, rate=1 << 20, log_flaws=flaws)
        assert scrub.seen().damaged == damaged  # type: ignore[union-attr]
    _, scrub = over_days(2, rate=1 << 20, log_flaws=1 + AGAIN_MAX)
    assert scrub.seen().damaged == 0  # type: ignore[union-attr]


def test_a_page_that_was_being_written_is_looked_at_again_and_is_none() -> None:
    pages, scrub = over_days(1, rate=1 << 20, flaws={9: AGAIN_MAX})
    assert scrub.seen().damaged == 0  # type: ignore[union-attr]
    looks = [at for at, first, _ in pages.looks if first == 8]
    assert [later - at for at, later in itertools.pairwise(looks)] == [AGAIN_MS] * AGAIN_MAX


@pytest.mark.expect_log("is damaged")
def test_a_disk_with_damage_all_over_is_gone_through_all_the_same() -> None:
    """The scrub looks at the flaws of a step again together: each alone would make a round as long as the interval."""
    pages, scrub = over_days(1, rate=1 << 20, flaws=dict.fromkeys(range(64), 1 << 30))
    assert scrub.seen().damaged == 64  # type: ignore[union-attr]
    took = pages.looks[-1][0] - pages.looks[0][0]
    assert took < 64 // STEP_PAGES * (AGAIN_MS * AGAIN_MAX + 1_000)


@pytest.mark.expect_log("page 9 .* is damaged")
def test_what_is_damaged_is_told_in_every_round_until_it_is_whole_again() -> None:
    pages, scrub = over_days(1, rate=1 << 20, flaws={9: 1 << 30})
    assert scrub.seen().damaged == 1  # type: ignore[union-attr]
    pages, scrub = over_days(2, rate=1 << 20, flaws={9: 1 + AGAIN_MAX})
    assert scrub.seen().damaged == 0  # type: ignore[union-attr]
    assert len([first for _, first, count in pages.looks if first == 0]) == 2


@pytest.mark.expect_log("cannot be read")
def test_a_file_that_is_away_costs_a_round_and_no_more() -> None:
    _, scrub = over_days(2, rate=1 << 20, gone=True)
    assert scrub.seen() == PagesSeen(0, 0, Ms(0), 0)


@pytest.mark.parametrize("pace", [ScrubPace(0, 1), ScrubPace(1, 0)])
def test_it_can_be_switched_off(pace: ScrubPace) -> None:
    scrub = PageScrub(PaperPages(VirtualClock()), PaperLogs(VirtualClock()), VirtualClock(), pace, inline)
    assert not scrub.on
    assert scrub.seen() is None
