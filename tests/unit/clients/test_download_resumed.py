"""Downloads of large files that break off: the next one to the same place begins with the bytes so far."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.transfer.download import Downloaded, download
from chelonia_clients.local_files import scan
from tests.support.bartender import FakeBartender, Fault
from tests.unit.clients.faking import Command, client_on

DATA = bytes(range(256)) * 80


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.hosting.transfer.download.KEPT_BYTES", 10_000)


async def interrupted(fake: FakeBartender, target: Path, *, after: int = 3000) -> None:
    """A download interrupted after so many bytes."""
    had = 0

    def moved(size: int) -> None:
        nonlocal had
        had += size
        if had >= after:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await download(client_on(fake), "/f", target, progress=moved)


async def again(fake: FakeBartender, target: Path) -> Downloaded:
    fake.store.asked.clear()
    moved: list[int] = []
    got = await download(client_on(fake), "/f", target, progress=moved.append)
    assert target.read_bytes() == fake.data("/f")
    assert sum(moved) == got.size
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    return got


async def test_it_goes_on_where_it_was_interrupted(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    await interrupted(fake, tmp_path / "f")
    (part,) = tmp_path.iterdir()
    assert part.name != "f"
    had = part.stat().st_size
    assert had >= 3000
    assert scan(tmp_path) == []  # no upload takes it for a file, and no sync removes it
    got = await again(fake, tmp_path / "f")
    assert got.had == had
    assert fake.store.asked == [("GET", "s1", f"bytes={had}-")]


async def test_it_goes_on_after_the_network_was_away(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(after=3000, kind=Kind.NETWORK)] + [Fault(kind=Kind.NETWORK)] * 30
    with pytest.raises(CheloniaError):
        await download(client_on(fake), "/f", tmp_path / "f")
    fake.store.faults = []
    assert (await again(fake, tmp_path / "f")).had == 3000


async def test_what_was_left_is_checked_with_the_rest(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    await interrupted(fake, tmp_path / "f")
    (part,) = tmp_path.iterdir()
    left = part.read_bytes()
    part.write_bytes(b"rot" + left[3:])
    await again(fake, tmp_path / "f")
    assert fake.store.asked == [("GET", "s1", f"bytes={len(left)}-"), ("GET", "s2", "")]


@pytest.mark.parametrize("left", [len(DATA), len(DATA) + 1])
async def test_all_of_it_or_more_may_have_been_left(fake: FakeBartender, tmp_path: Path, left: int) -> None:
    fake.add_file("/f", DATA)
    await interrupted(fake, tmp_path / "f")
    (part,) = tmp_path.iterdir()
    part.write_bytes((DATA + b"!")[:left])
    await again(fake, tmp_path / "f")


async def test_what_was_left_of_other_bytes_goes(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    await interrupted(fake, tmp_path / "f")
    fake.add_file("/f", DATA[::-1])
    assert (await again(fake, tmp_path / "f")).had == 0


@pytest.mark.parametrize("size", [9_000, len(DATA)])
async def test_what_is_overwritten_keeps_its_permissions_and_is_never_seen_by_others(
    fake: FakeBartender, tmp_path: Path, size: int
) -> None:
    fake.add_file("/f", DATA[:size])
    (tmp_path / "f").write_bytes(b"private")
    (tmp_path / "f").chmod(0o600)
    modes: set[int] = set()

    def moved(_: int) -> None:
        modes.update(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())

    await download(client_on(fake), "/f", tmp_path / "f", overwrite=True, progress=moved)
    assert (tmp_path / "f").read_bytes() == DATA[:size]
    assert modes | {(tmp_path / "f").stat().st_mode & 0o777} == {0o600}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("size", [9_000, len(DATA)])
async def test_a_file_that_appears_during_a_download_is_not_written_over(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, links: bool
) -> None:
    fake.add_file("/f", DATA[:size])
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "no hard links here")))
    with pytest.raises(FileExistsError):
        await download(client_on(fake), "/f", tmp_path / "f", progress=lambda _: (tmp_path / "f").touch())
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b""
    await download(client_on(fake), "/f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == DATA[:size]
    assert (tmp_path / "g").stat().st_nlink == 1


@pytest.mark.parametrize("size", [9_000, len(DATA)])
async def test_what_is_overwritten_is_not_seen_by_others_for_a_moment_either(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    fake.add_file("/f", DATA[:size])
    (tmp_path / "f").write_bytes(b"private")
    (tmp_path / "f").chmod(0o600)
    monkeypatch.setattr(os, "fchmod", Mock(side_effect=OSError(errno.EPERM, "not yet")))
    modes: set[int] = set()

    def moved(_: int) -> None:
        modes.update(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())

    await download(client_on(fake), "/f", tmp_path / "f", overwrite=True, progress=moved)
    assert modes == {0o600}


async def test_what_a_download_is_writing_is_no_file_of_the_directory(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `put -r` beside it sent the incomplete file."""
    monkeypatch.setattr("chelonia.core.bounds.CHUNK_BYTES", 1000)
    fake.add_file("/f", DATA[:9000])
    there: list[int] = []

    def moved(_: int) -> None:
        there.append(len(list(tmp_path.iterdir())))
        assert scan(tmp_path) == []

    await download(client_on(fake), "/f", tmp_path / "f", progress=moved)
    assert max(there) == 1


async def test_two_at_once_do_not_write_to_one_file(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    await interrupted(fake, tmp_path / "f")
    (part,) = tmp_path.iterdir()
    with part.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        got = await download(client_on(fake), "/f", tmp_path / "f")
    assert (got.had, (tmp_path / "f").read_bytes()) == (0, DATA)
    assert part.exists()


async def test_what_is_planted_in_its_place_is_left_alone(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    await interrupted(fake, tmp_path / "f")
    (part,) = tmp_path.iterdir()
    part.unlink()
    (tmp_path / "precious").write_bytes(b"mine")
    part.symlink_to("precious")
    await download(client_on(fake), "/f", tmp_path / "f")
    assert (tmp_path / "precious").read_bytes() == b"mine"
    assert (tmp_path / "f").read_bytes() == DATA


async def test_of_a_small_file_nothing_stays(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA[:9000])
    await interrupted(fake, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_who_is_to_wait_for_less_is_told(chelonia: Command, fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    asyncio.run(interrupted(fake, tmp_path / "f"))
    ran = chelonia("get", "/f", str(tmp_path / "f"))
    assert ran.code == 0
    assert "of 20.0 KiB had arrived before" in ran.err
