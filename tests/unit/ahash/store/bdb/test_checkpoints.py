"""The times of checkpoints, and the writes of their pages before them."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from berkeleydb import db as bdb

from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.checkpoints import OVERDUE, SLICES, CheckpointPace, Checkpoints, PageWriter
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.gate import Gate
from tests.support.polling import poll

SETTINGS = BdbSettings(8 << 20, checkpoint_log_bytes=100_000, checkpoint_interval_ms=30_000)
MANY = {b"k%d" % number: b"x" * 1_000 for number in range(100)}


class Library:
    """An environment that counts writes of pages, and pauses within each slice until it may go on."""

    def __init__(self) -> None:
        self.slices: list[int] = []
        self.go_on = threading.Semaphore(0)

    def memp_trickle(self, percent: int) -> int:
        self.slices.append(percent)
        assert self.go_on.acquire(timeout=20)
        return 1


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / environment.TREE
    path.touch()
    return path


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Any]:
    found = environment.make_environment(SETTINGS, lambda *_: None)
    flags = bdb.DB_CREATE | bdb.DB_INIT_TXN | bdb.DB_INIT_LOG | bdb.DB_INIT_MPOOL | bdb.DB_INIT_LOCK
    found.open(str(tmp_path), flags | bdb.DB_THREAD | bdb.DB_PRIVATE, 0o600)
    yield found
    found.close()


def dirty(env: Any) -> int:
    return int(env.memp_stat()[0]["page_dirty"])


def test_one_is_due_after_so_many_bytes_or_so_long_after_a_change() -> None:
    pace = CheckpointPace(SETTINGS, 0.0)
    assert not pace.is_due(1_000.0), "nothing was changed"
    pace.changed({b"k": b"v"})
    assert not pace.is_due(29.9)
    assert pace.is_due(30.0)
    pace.made(30.0)
    assert not pace.is_due(1_000.0)
    pace.changed(MANY)
    assert pace.is_due(30.0)
    assert not pace.is_overdue
    for _ in range(OVERDUE - 1):
        pace.changed(MANY)
    assert pace.is_overdue


def test_changed_pages_are_written_first_and_commits_go_on_meanwhile(env: Any, tmp_path: Path) -> None:
    tree = environment.new_tree(env)
    tree.open(environment.TREE, dbtype=bdb.DB_BTREE, flags=bdb.DB_CREATE | bdb.DB_THREAD | bdb.DB_AUTO_COMMIT)
    pages = PageWriter(tmp_path / environment.TREE, nullcontext(), lambda: env)
    told: list[bool] = []
    checkpoints = Checkpoints(SETTINGS, pages, lambda: told.append(checkpoints.is_due()))
    txn = env.txn_begin()
    environment.write(tree, txn, MANY, ())
    txn.commit()
    checkpoints.changed(MANY)
    assert dirty(env) > 10
    assert not checkpoints.is_due(), "pages are written first"
    poll(checkpoints.is_due, 20, what="a checkpoint to be made")
    assert told == [False], "others are told once, before"
    assert dirty(env) == 0
    checkpoints.made()
    assert not checkpoints.is_due()
    pages.close()
    tree.close()


def test_whoever_has_to_be_alone_with_the_library_gets_in_between(tree: Path) -> None:
    library, gate = Library(), Gate()
    pages = PageWriter(tree, gate, lambda: library)
    asked = pages.request()
    poll(lambda: library.slices, 20, what="the first slice")
    came_in: list[int] = []

    def alone() -> None:
        with gate.exclusive():
            came_in.append(len(library.slices))

    other = threading.Thread(target=alone)
    other.start()
    for begun in range(1, SLICES + 1):
        library.go_on.release()
        poll(lambda begun=begun: len(library.slices) > begun or pages.has_done(asked), 20, what="the next slice")
    other.join(20)
    assert library.slices == list(range(2, 101, 2))
    assert came_in[0] < SLICES
    pages.close()


def test_who_asks_while_pages_are_written_shares_that(tree: Path) -> None:
    library = Library()
    pages = PageWriter(tree, nullcontext(), lambda: library)
    asked = [pages.request() for _ in range(3)]
    for _ in range(SLICES):
        library.go_on.release()
    poll(lambda: pages.has_done(max(asked)), 20, what="all of them")
    assert len(library.slices) == SLICES
    pages.close()


def test_closing_waits_for_one_slice_at_most(tree: Path) -> None:
    library = Library()
    pages = PageWriter(tree, nullcontext(), lambda: library)
    pages.request()
    poll(lambda: library.slices, 20, what="the first slice")
    closing = threading.Thread(target=pages.close)
    closing.start()

    def is_closed() -> bool:
        library.go_on.release()  # also of a slice that began before the release
        closing.join(0.01)
        return not closing.is_alive()

    poll(is_closed, 20, what="the end")
    assert len(library.slices) < SLICES
    pages.close()


@pytest.mark.parametrize("trouble", [bdb.DBError(5, "no"), OSError(5, "no")])
def test_what_cannot_be_written_is_left_to_the_checkpoint(tree: Path, trouble: Exception) -> None:
    def broken() -> Any:
        raise trouble

    pages = PageWriter(tree, nullcontext(), broken)
    for _ in range(2):
        asked = pages.request()
        poll(lambda asked=asked: pages.has_done(asked), 20, what="giving up")
    pages.close()


def test_a_checkpoint_is_not_put_off_for_ever(tree: Path) -> None:
    library = Library()
    pages = PageWriter(tree, nullcontext(), lambda: library)
    checkpoints = Checkpoints(SETTINGS, pages)
    for _ in range(OVERDUE):
        assert not checkpoints.is_due()
        checkpoints.changed(MANY)
    assert checkpoints.is_due(), "though pages are still being written"
    for _ in range(SLICES):
        library.go_on.release()
    pages.close()
