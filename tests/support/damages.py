"""Damage to the files of a stored replica: 23 kinds, of the bytes, their record, or both.

Each takes the path of the replica's bytes, and that of another whole replica of the same Shepherd.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, Path], None]
SWAPPED_WITH_EMPTY = "swap_with_empty"
"""The kind for which the other replica has no bytes."""


def record_of(path: Path) -> Path:
    """The record beside a replica, committed or not yet known to be."""
    found = [path.with_name(path.name + suffix) for suffix in (".record", ".uncommitted")]
    return next((record for record in found if record.exists()), found[0])


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def flip(path: Path, _: Path) -> None:
    _flip(path, path.stat().st_size // 2)


def flip_first(path: Path, _: Path) -> None:
    _flip(path, 0)


def flip_last(path: Path, _: Path) -> None:
    _flip(path, -1)


def truncate(path: Path, _: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path, _: Path) -> None:
    os.truncate(path, 0)


def other_bytes(path: Path, _: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def grow(path: Path, _: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(250_000))


def flip_and_grow(path: Path, other: Path) -> None:
    flip(path, other)
    grow(path, other)


def remove(path: Path, _: Path) -> None:
    path.unlink()


def remove_record(path: Path, _: Path) -> None:
    record_of(path).unlink()


def remove_both(path: Path, _: Path) -> None:
    record_of(path).unlink()
    path.unlink()


def spoil_record(path: Path, _: Path) -> None:
    record_of(path).write_bytes(b"CHLR" + bytes(60))


def truncate_record(path: Path, _: Path) -> None:
    os.truncate(record_of(path), 30)


def directory_as_record(path: Path, _: Path) -> None:
    record = record_of(path)
    record.unlink()
    record.mkdir()


def become_another(path: Path, other: Path) -> None:
    """Another replica takes its name, whole and with its own record."""
    path.write_bytes(other.read_bytes())
    record_of(path).write_bytes(record_of(other).read_bytes())


def swap_files(path: Path, other: Path) -> None:
    aside = path.with_suffix(".aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def swap_with_empty(path: Path, other: Path) -> None:
    swap_files(path, other)


def swap_records(path: Path, other: Path) -> None:
    swap_files(record_of(path), record_of(other))


def directory(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def full_directory(path: Path, other: Path) -> None:
    directory(path, other)
    (path / "somebody's").write_bytes(b"work")


def dangling_symlink(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nothing"))


def circular_symlink(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def mode_0(path: Path, _: Path) -> None:
    """Only root may read it."""
    path.chmod(0)


DAMAGES: tuple[Damage, ...] = (
    flip, flip_first, flip_last, truncate, empty, other_bytes, grow, flip_and_grow, remove, remove_record, remove_both,
    spoil_record, truncate_record, directory_as_record, become_another, swap_files, swap_with_empty, swap_records,
    directory, full_directory, dangling_symlink, circular_symlink, mode_0,
)  # fmt: skip
