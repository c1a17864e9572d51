"""A scan that has to wait for the disk requests its further pages together."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia.ahash.store.bdb import read_ahead
from chelonia.ahash.store.bdb.environment import PAGE_BYTES
from chelonia.ahash.store.bdb.store import BdbStore
from tests.support.ahash import SMALL, no_panic

ROWS = 30_000


def key(number: int) -> bytes:
    return b"W\0id\0entries\0%08d" % number


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pages requested ahead."""
    pages: list[int] = []

    def note(file: int, offset: int, size: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            pages.extend(range(offset // PAGE_BYTES, (offset + size) // PAGE_BYTES))

    monkeypatch.setattr(read_ahead.os, "posix_fadvise", note)
    return pages


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read counts as one from the disk."""
    counter = itertools.count()
    monkeypatch.setattr(read_ahead, "blocks_read", lambda: next(counter))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with keys that came in order, before one that sorts behind them."""
    directory = tmp_path_factory.mktemp("ahead") / "a"
    store = BdbStore(directory, SMALL, no_panic)
    store.commit({b"X\0": b"last"}, [])
    for first in range(0, ROWS, 2_000):
        store.commit({key(number): b"x" * 80 for number in range(first, first + 2_000)}, [])
    store.close()
    return directory


@pytest.fixture
def store(filled: Path) -> Iterator[BdbStore]:
    opened = BdbStore(filled, SMALL, no_panic)
    yield opened
    opened.close()


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("first", [0, 12_345, ROWS - 600])
def test_a_scan_that_waits_for_the_disk_asks_for_the_pages_of_its_other_rows(
    store: BdbStore, filled: Path, asked: list[int], first: int
) -> None:
    rows = store.scan(key(first), b"W\1", 500)
    assert [each[0] for each in rows] == [key(number) for number in range(first, first + 500)]
    data = (filled / "db" / "store.db").read_bytes()
    pages = {number: data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] for number in asked}
    assert all(any(row[0] in page for page in pages.values()) for row in rows[read_ahead.FIRST_ROWS :])
    assert len(asked) == len(pages) < 60, "those pages, and hardly any other"


@pytest.mark.usefixtures("cold")
def test_a_scan_asks_for_nothing_beyond_its_end(store: BdbStore, asked: list[int]) -> None:
    store.scan(key(100), key(130), 1_000)
    assert 1 <= len(asked) <= 4


@pytest.mark.usefixtures("cold")
def test_a_short_scan_asks_for_nothing(store: BdbStore, asked: list[int]) -> None:
    store.scan(key(100), b"W\1", read_ahead.FIRST_ROWS)
    assert not asked


def test_a_scan_of_what_is_in_memory_asks_for_nothing(store: BdbStore, asked: list[int]) -> None:
    store.scan(key(100), b"W\1", 1_000)
    asked.clear()
    store.scan(key(100), b"W\1", 1_000)
    assert not asked


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("wrong", [b"", bytes(PAGE_BYTES), b"\xff" * PAGE_BYTES, b"\3" * PAGE_BYTES])
def test_a_scan_answers_whatever_inner_pages_look_like_meanwhile(
    store: BdbStore, asked: list[int], monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    monkeypatch.setattr(read_ahead.os, "pread", lambda file, size, offset: wrong)
    assert len(store.scan(key(100), b"W\1", 1_000)) == 1_000
    assert not asked
