"""A replica whose files are damaged begins empty and is filled by the others; a good one never."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from berkeleydb import db as bdb

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb import damaged, environment
from chelonia.ahash.store.bdb.damaged import open_replica
from chelonia.ahash.store.bdb.environment import DAMAGED, PAGE_BYTES, BdbSettings
from chelonia.ahash.store.bdb.page_files import PageFile
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import Failed, Ready
from chelonia.core.errors import CheloniaError, Kind
from tests.support.ahash import SMALL, no_panic
from tests.support.failing import fails
from tests.support.polling import patience, poll
from tests.support.replicas import Wired
from tests.unit.ahash.store.bdb.test_replicated import (
    LOGS,
    caught_up,
    damage_a_page,
    damage_the_log,
    group,
    identity,
    put,
)

__all__ = ["group"]

KIND_AT, INNER, LEAF = 25, 3, 5
"""The offset of the kind in a tree's page, and the kinds."""


@pytest.fixture
def replica(group: Wired, tmp_path: Path) -> Path:
    """The directory of a replica that is down, a page of which is damaged."""
    for sequence in range(1, 9):
        put(group.engines[1], sequence, b"x" * 9000)
    caught_up(group, 8)
    group.close(3)
    damage_a_page(tmp_path / "3" / "db")
    return tmp_path / "3"


def reopen(directory: Path, settings: BdbSettings = SMALL, *, others: bool = True) -> ReplicatedStore:
    return open_replica(directory, settings, identity(3, "/CN=3"), others=others)


@pytest.mark.expect_log("ahash replica 3 is damaged: page . of .*its checksum does not fit")
@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 8")
def test_a_damaged_replica_begins_empty_and_is_filled(group: Wired, replica: Path) -> None:
    empty = reopen(replica)
    assert not empty.trusted()
    assert (replica / DAMAGED / "store.db").exists()
    empty.close()
    group.open(3)
    put(group.engines[1], 9)
    group.wait(3, Ready)
    assert not (replica / DAMAGED).exists()
    group.close(3)
    again = reopen(replica)
    assert again.trusted()
    again.close()


@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 8")
@pytest.mark.parametrize("theirs", [2 * PAGE_BYTES, PAGE_BYTES // 2])
def test_who_is_filled_has_pages_as_large_as_those_of_the_others(
    tmp_path: Path, theirs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group may be of an earlier release, or of a later one."""
    monkeypatch.setattr(environment, "PAGE_BYTES", theirs)
    wired = Wired(tmp_path, SMALL)
    wired.engines[1].found()
    wired.wait(3, Ready)
    for sequence in range(1, 9):
        put(wired.engines[1], sequence, b"x" * 9000)
    caught_up(wired, 8)
    wired.close(3)
    shutil.rmtree(tmp_path / "3" / "db")
    monkeypatch.undo()
    wired.open(3)
    put(wired.engines[1], 9)
    wired.wait(3, Ready)
    put(wired.engines[1], 10, b"x" * 9000)
    caught_up(wired, 10)
    wired.close_all()
    pages = PageFile(tmp_path / "3")
    assert not pages.look(0, 1000).flaws
    assert pages.page_bytes == theirs
    BdbStore(tmp_path / "3", SMALL, no_panic).close()


@pytest.mark.expect_log("ahash replica 3 is damaged: log.0000000001: at [0-9]+ ")
@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 30")
def test_so_does_one_with_a_damaged_log_that_it_needs(tmp_path: Path) -> None:
    wired = Wired(tmp_path, LOGS)
    wired.engines[1].found()
    for replica in (2, 3):
        wired.wait(replica, Ready)
    for sequence in range(1, 31):
        put(wired.engines[1], sequence, b"x" * 90_000)
    caught_up(wired, 30)
    wired.close(3)
    damage_the_log(tmp_path / "3" / "db")
    reopen(tmp_path / "3", LOGS).close()
    wired.open(3)
    put(wired.engines[1], 31)
    caught_up(wired, 31)
    wired.close_all()


@pytest.fixture
def with_old_keys(group: Wired) -> Wired:
    """All have pages that the log no longer changes."""
    old = {b"old%04d" % n: b"x" * 500 for n in range(500)}
    group.engines[1].commit(old | {layout.META_STATE: layout.encode_state(StoreState(1, 0))}, [])
    group.engines[1].upkeep()
    put(group.engines[1], 2)
    caught_up(group, 2)
    return group


def leaf_of(database: Path, key: bytes) -> int:
    """The offset of a key's page."""
    data = (database / "store.db").read_bytes()
    pages = range(0, len(data), PAGE_BYTES)
    return next(at for at in pages if data[at + KIND_AT] == LEAF and key in data[at : at + PAGE_BYTES])


def emptied(database: Path) -> None:
    """Make a page all zero, as a disk may return lost data."""
    with (database / "store.db").open("r+b") as file:
        file.seek(leaf_of(database, b"old0250"))
        file.write(bytes(PAGE_BYTES))


def test_one_whose_pages_are_cut_off_ends(with_old_keys: Wired, tmp_path: Path) -> None:
    """Else it would fail every request for such a page, for ever, while its peers have the data."""
    engine = opened_anew(with_old_keys, 3)
    os.truncate(tmp_path / "3" / "db" / "store.db", leaf_of(tmp_path / "3" / "db", b"old0250"))
    with pytest.raises(CheloniaError, match="panicked"):
        engine.get(b"old0250")
    assert isinstance(with_old_keys.wait(3, Failed), Failed)


def opened_anew(group: Wired, replica: int) -> ReplicatedStore:
    """A follower with an empty cache."""
    group.close(replica)
    engine = group.open(replica)
    group.wait(replica, Ready)
    return engine


@pytest.mark.expect_log("ahash replica 3 is damaged: ")
@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 2")
def test_one_that_comes_to_an_empty_page_ends_and_is_filled_anew(with_old_keys: Wired, tmp_path: Path) -> None:
    """No checksum detects it: such a page looks like one never written."""
    group = with_old_keys
    engine = opened_anew(group, 3)
    emptied(tmp_path / "3" / "db")
    with pytest.raises(CheloniaError, match="panicked"):
        engine.scan(b"old0000", b"old9999", 501)
    assert isinstance(group.wait(3, Failed), Failed)
    group.close(3)
    reopen(tmp_path / "3").close()
    group.open(3)
    put(group.engines[1], 3)
    caught_up(group, 3)
    assert len(group.engines[3].scan(b"old0000", b"old9999", 501)) == 500


@pytest.mark.expect_log("ahash replica 3 is damaged: ")
@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 2")
def test_one_that_was_killed_while_a_page_is_empty_is_filled_anew(with_old_keys: Wired, tmp_path: Path) -> None:
    """Berkeley DB loops for ever in a search that reaches such a page, until the watchdog kills the process."""
    with_old_keys.close(3)
    emptied(tmp_path / "3" / "db")
    (tmp_path / "3" / "lock").write_text("123\n")  # left by a process that did not end in order
    empty = reopen(tmp_path / "3")
    assert not empty.trusted()
    assert (tmp_path / "3" / DAMAGED / "store.db").exists()
    empty.close()


@pytest.mark.expect_log("ahash replica 3 is damaged: ")
@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 2")
def test_a_start_that_fails_does_not_forget_that_it_was_killed(
    with_old_keys: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages have not been read yet: the next start would take its end for an orderly one."""
    with_old_keys.close(3)
    emptied(tmp_path / "3" / "db")
    (tmp_path / "3" / "lock").write_text("123\n")

    def full(*_: object) -> None:
        raise bdb.DBNoSpaceError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(environment, "open_environment", full)
    with pytest.raises(CheloniaError, match="no space left"):
        reopen(tmp_path / "3")
    monkeypatch.undo()
    empty = reopen(tmp_path / "3")
    assert not empty.trusted()
    empty.close()


def test_one_that_ended_in_order_reads_no_pages_first(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start would take longer, the more it holds."""
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(3)
    monkeypatch.setattr(environment, "LOOK_BYTES", "none")
    group.open(3)
    group.wait(3, Ready)


def opened_by_a_process(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.ahash.opening", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120 * patience(), check=False)


@pytest.mark.parametrize("lost", [LEAF, INNER])
def test_one_that_ended_in_order_and_comes_to_an_empty_page_at_its_start_is_filled_anew(
    group: Wired, tmp_path: Path, lost: int
) -> None:
    """Its search for the end of the log loops in a page that no check had found to be empty, for ever and silently."""
    entries = {b"old%05d" % n: b"x" * 500 for n in range(2_000)}
    group.engines[1].commit(entries | {layout.META_STATE: layout.encode_state(StoreState(1, 0))}, [])
    group.engines[1].upkeep()
    put(group.engines[1], 2)
    caught_up(group, 2)
    group.close(3)
    with (tmp_path / "3" / "db" / "store.db").open("r+b") as file:
        data = file.read()
        for at in range(2 * PAGE_BYTES, len(data), PAGE_BYTES):  # the first has the root
            if data[at + KIND_AT] == lost and (lost == INNER or layout.META_STATE in data[at : at + PAGE_BYTES]):
                file.seek(at)
                file.write(bytes(PAGE_BYTES))
    ended = opened_by_a_process(tmp_path / "3")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "goes round in a search" in ended.stderr
    assert opened_by_a_process(tmp_path / "3").stdout == "to be filled\n"
    assert (tmp_path / "3" / DAMAGED / "store.db").exists()


@pytest.mark.expect_log("ahash replica 3 is damaged: ")
@pytest.mark.expect_log("replica 3 recovered commit 0, but vouched for 2")
def test_one_whose_root_is_empty_is_filled_anew(with_old_keys: Wired, tmp_path: Path) -> None:
    """A search begins there, and reads something other than its records."""
    with_old_keys.close(3)
    with (tmp_path / "3" / "db" / "store.db").open("r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))
    empty = reopen(tmp_path / "3")
    assert not empty.trusted()
    empty.close()


@pytest.mark.parametrize("pages", [1, 3, 256, 300])
def test_an_empty_page_is_found_wherever_it_is(tmp_path: Path, pages: int) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"x" * PAGE_BYTES * pages)
    assert not environment._has_empty_page(path)
    for at in {0, pages // 2, min(pages - 1, 255), pages - 1}:
        path.write_bytes(b"x" * PAGE_BYTES * at + bytes(PAGE_BYTES) + b"x" * PAGE_BYTES * (pages - at - 1))
        assert environment._has_empty_page(path)


def test_a_page_that_cannot_be_read_is_looked_at_as_an_empty_one(tmp_path: Path) -> None:
    """Else no start of a killed one would get far enough to be given up, and filled by the others."""
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "store.db").symlink_to("/proc/self/mem")  # of which the first byte is an EIO

    class Tree:
        def stat(self) -> None:
            raise bdb.DBError(errno.EIO, "Input/output error")

    with pytest.raises(environment.DamagedTree):
        environment.clear_suspicion(tmp_path, Tree(), killed=True)


def test_one_that_was_killed_before_its_pages_were_written_is_whole(with_old_keys: Wired, tmp_path: Path) -> None:
    """The file grows before its pages come: an empty page outside the tree is no damage."""
    with_old_keys.close(3)
    with (tmp_path / "3" / "db" / "store.db").open("ab") as file:
        file.write(bytes(3 * PAGE_BYTES))
    (tmp_path / "3" / "lock").write_text("123\n")
    again = reopen(tmp_path / "3")
    assert again.trusted()
    assert not (tmp_path / "3" / "suspect").exists()
    again.close()
    assert not (tmp_path / "3" / "lock").read_text(), "the next start reads no pages first"


def nobody_else(directory: Path) -> bool:
    return False


def one_is_kept(directory: Path) -> bool:
    (directory / DAMAGED).mkdir()
    return True


def it_is_a_backup(directory: Path) -> bool:
    (directory / "restored").touch()
    return True


def it_vouched_for_nothing(directory: Path) -> bool:
    (directory / "acked").unlink()
    return True


@pytest.mark.parametrize("spoil", [nobody_else, one_is_kept, it_is_a_backup, it_vouched_for_nothing])
def test_what_nobody_may_be_able_to_fill_is_not_given_up(replica: Path, spoil: Callable[[Path], bool]) -> None:
    others = spoil(replica)
    with fails(Kind.INTERNAL):
        reopen(replica, others=others)
    assert (replica / "db" / "store.db").exists()


def test_one_that_cannot_be_opened_for_another_reason_is_not_given_up(
    tmp_path: Path, group: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache too large for the host makes the library fail just so, on all hosts at once."""
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(3)

    def fails(*_: object) -> ReplicatedStore:
        raise CheloniaError(Kind.INTERNAL, "ahash", "", "recovery failed")

    monkeypatch.setattr(damaged, "ReplicatedStore", fails)
    with pytest.raises(CheloniaError):
        reopen(tmp_path / "3")
    assert (tmp_path / "3" / "db" / "store.db").exists()


def test_one_that_panics_before_it_takes_part_says_so_when_it_does(with_old_keys: Wired, tmp_path: Path) -> None:
    """It first reads the end of its log. Nothing reported a panic then, and the process hung for good."""
    with_old_keys.close(3)

    def looked(engine: ReplicatedStore) -> None:
        os.truncate(tmp_path / "3" / "db" / "store.db", leaf_of(tmp_path / "3" / "db", b"old0250"))
        with pytest.raises(CheloniaError, match="panicked"):
            engine.get(b"old0250")

    with_old_keys.open(3, looked)
    assert isinstance(with_old_keys.wait(3, Failed), Failed)


class Unclosable:
    """An environment that cannot be closed."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def close(self) -> None:
        self._env.close()
        raise bdb.DBError(errno.EINVAL, "Invalid argument")


@pytest.mark.expect_log("replica 3 has vouched for nothing .* it is opened again")
def test_one_that_cannot_be_closed_to_be_opened_again_ends(group: Wired) -> None:
    """Each call of it fails from then on: it would never follow a master again."""
    put(group.engines[1], 1)
    caught_up(group, 1)
    engine = group.engines[3]
    engine._env = Unclosable(engine._env)
    for _ in range(2):  # the first looks, the second finds that nothing has moved
        engine.rouse(10_000)
        poll(lambda: not engine._rousing, what="the replication thread has looked")
    assert isinstance(group.wait(3, Failed), Failed)
