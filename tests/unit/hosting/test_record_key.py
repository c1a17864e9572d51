"""The record key outlives the A-Hash: written once, read at every start, refused when it is another's."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace
from chelonia.hosting.record_key import load_record_key, save_record_key
from chelonia.librarian.settings import LibrarianSettings
from tests.support.failing import fails
from tests.support.librarian import ADMIN, bench

KEY = "5a" * 32


def test_it_is_written_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "record.key"
    assert load_record_key(str(path)) == ""
    save_record_key(str(path), KEY)
    save_record_key(str(path), "00" * 32)
    assert load_record_key(str(path)) == KEY
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["record.key"]


def test_its_name_is_on_stable_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[int](), os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr("os.fsync", noted)
    save_record_key(str(tmp_path / "record.key"), KEY)
    assert synced == [(tmp_path / "record.key").stat().st_ino, tmp_path.stat().st_ino]


def test_two_librarians_at_one_file_both_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync, pids = tmp_path / "record.key", os.fsync, itertools.count(1)

    def other_first(descriptor: int) -> None:
        monkeypatch.setattr("os.fsync", sync)
        save_record_key(str(path), KEY)  # another process at the same moment, as in `cheloniad dev`
        sync(descriptor)

    monkeypatch.setattr("os.getpid", lambda: next(pids))
    monkeypatch.setattr("os.fsync", other_first)
    save_record_key(str(path), KEY)
    assert load_record_key(str(path)) == KEY
    assert [each.name for each in tmp_path.iterdir()] == ["record.key"]


def test_without_a_file_nothing_is_read_or_written(tmp_path: Path) -> None:
    save_record_key("", KEY)
    assert load_record_key("") == ""


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.key"
    path.write_text("this is no key at all, is it?")
    path.chmod(0o600)
    with pytest.raises(CheloniaError, match="hex digits"):
        load_record_key(str(path))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheloniaError, match="record_key_file"):
        save_record_key(str(tmp_path / "none" / "record.key"), KEY)


def test_a_full_disk_is_left_without_a_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a daemon has another number, and a file of its own."""
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(CheloniaError, match="No space left"):
        save_record_key(str(tmp_path / "record.key"), KEY)
    assert not list(tmp_path.iterdir())


async def test_a_fresh_cluster_takes_the_key_and_another_cluster_is_refused() -> None:
    settings = replace(LibrarianSettings.dev(ADMIN.dn), record_key=KEY)
    async with bench(settings=settings) as made:
        assert made.service.record_key == KEY
        made.service._world = replace(made.service._world, settings=replace(settings, record_key="00" * 32))
        with fails(Kind.BAD_CONFIG):
            await made.service.start()
