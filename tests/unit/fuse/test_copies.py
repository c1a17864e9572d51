"""The local copy of a file: in memory while it is small, in a file of the cache directory else."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from chelonia_fuse import copies
from chelonia_fuse.copies import CachedCopy
from chelonia_fuse.staging import Staged
from tests.support.files import MemoryFiles
from tests.unit.fuse.mounts import WHO, Trial, mounted

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
SMALL, LARGE = b"a few bytes", bytes(range(256)) * 256


@pytest.fixture
async def mount(tmp_path: Path) -> Trial:
    return await mounted(MemoryFiles(WHO), tmp_path)


async def test_a_small_file_needs_no_file_of_the_cache(mount: Trial, tmp_path: Path) -> None:
    await mount.write("f", SMALL, flags=NEW)
    assert await mount.read("f") == SMALL
    assert not list((tmp_path / "data").iterdir())
    await mount.write("f", LARGE, 3)
    assert await mount.read("f") == SMALL[:3] + LARGE
    (path,) = (tmp_path / "data").iterdir()
    assert path.read_bytes() == SMALL[:3] + LARGE


async def test_a_copy_has_its_bytes_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "HELD_BYTES_MAX", 64)
    chosen = random.Random(1)
    for number in range(200):
        copy, model = CachedCopy(tmp_path / f"{number}", Staged.of("", 0), held=bytearray()), bytearray()
        for _ in range(20):
            at, size = chosen.randrange(100), chosen.randrange(40)
            match chosen.choice(["write", "write", "resize", "spill", "close"]):
                case "write":
                    data = chosen.randbytes(size)
                    copy.write(at, data, append=False)
                    model += bytes(max(0, at + size - len(model)) if size else 0)
                    model[at : at + size] = data
                case "resize":
                    copy.resize(at)
                    model = (model + bytes(at))[:at]
                case "spill":
                    copy.spill()
                    assert copy.held is None
                case "close":
                    copy.close()
            assert copy.read(0, 1000) == model, number
            assert copy.read(at, size) == model[at : at + size], number
        copy.remove()
    assert not list(tmp_path.iterdir())


async def test_the_copies_last_used_are_in_memory(
    mount: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "FILES_OPEN_MAX", 3)
    for n in range(8):
        await mount.write(f"f{n}", SMALL, flags=NEW)
    await mount.committer.behind.drained()
    held = [inode for inode in mount.cache.inodes() if inode.copy is not None and inode.copy.held is not None]
    assert len(held) <= 3
    assert len(list((tmp_path / "data").iterdir())) == len(mount.cache) - len(held)
    assert [await mount.read(f"f{n}") for n in range(8)] == [SMALL] * 8


async def test_what_a_full_disk_does_not_take_stays_in_memory(mount: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "FILES_OPEN_MAX", 3)

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "it is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for n in range(8):
            await mount.write(f"f{n}", SMALL, flags=NEW)
        await mount.committer.behind.drained()
        assert [await mount.read(f"f{n}") for n in range(8)] == [SMALL] * 8
    await mount.write("g", SMALL, flags=NEW)
    assert sum(inode.copy.held is not None for inode in mount.cache.inodes() if inode.copy is not None) <= 3
