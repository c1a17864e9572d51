"""Changes that were closed here and are not committed yet: a record beside the bytes of each, on this machine's disk.

A record is written whole or not at all. What has one survives the end of the mount and of the machine, and is committed
by the next mount of the same place.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from chelonia.core.ids import Guid
from chelonia.core.ports.files import Setting
from chelonia_fuse.ranges import Range, Ranges
from chelonia_fuse.staging import Staged

_LOG = logging.getLogger(__name__)


class JournalRecord(msgspec.Struct, frozen=True):
    """One change. `path`: where the file was; the rest as in `Staged`."""

    guid: str
    path: str
    etag: str
    base: int
    size: int
    kept: int
    appended: bool
    valid: tuple[Range, ...]
    dirty: tuple[Range, ...]
    attributes: dict[str, int]

    def staged(self) -> Staged:
        """What was staged."""
        return Staged(
            self.etag, self.base, self.size, self.kept, -1, self.appended, Ranges(self.valid), Ranges(self.dirty)
        )

    def setting(self) -> Setting:
        """The attributes to commit with it."""
        return Setting(**self.attributes)


def record_of(guid: Guid, path: str, staged: Staged, setting: Setting) -> JournalRecord:
    """The record of a change."""
    values = {name: getattr(setting, name) for name in Setting.__slots__}
    return JournalRecord(
        guid, path, staged.etag, staged.base, staged.size, staged.kept, staged.appended,
        tuple(staged.valid), tuple(staged.dirty), {name: value for name, value in values.items() if value is not None},
    )  # fmt: skip


class StagingJournal:
    """The records, one file each."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory

    def write(self, record: JournalRecord) -> None:
        """Keep a record, in place of what was kept of the same file."""
        path = self._path(record.guid)
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        self._sync()

    def remove(self, guid: str) -> None:
        """Let go of a record."""
        with contextlib.suppress(FileNotFoundError):
            self._path(guid).unlink()

    def records(self) -> list[JournalRecord]:
        """All that is kept. One that cannot be read is set aside, and told."""
        out = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                out.append(msgspec.json.decode(path.read_bytes(), type=JournalRecord))
            except (OSError, msgspec.DecodeError) as error:
                _LOG.error("journal %s: it cannot be read (%s); it stays there as .bad with its bytes", path, error)
                path.replace(path.with_suffix(".bad"))
        return out

    def _path(self, guid: str) -> Path:
        return self._directory / f"{guid}.json"

    def _sync(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
