"""The file that a download writes to, beside its target: hidden, and gone at the end unless it was given that name.

That of large bytes stays when their download breaks off, and the next download of the same bytes to the same place
begins with it. Nobody takes its bytes on trust: they are hashed again with the rest. Where another process has it, or
it is not this user's own, a new file is written, as for small bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Bytes from this size on stay when a download breaks off: less is fetched anew within a second or a few."""
_PREFIX: Final = ".chelonia."
_SUFFIX: Final = ".part"


class PartFile:
    """What has come of a file, to be given to its target; less than a chunk is in memory, unless it is to be kept.

    Use as a context manager; all of it blocks. Raises: OSError from the local disk.
    """

    def __init__(self, target: Path, whole: str = "") -> None:
        """Begin, or go on. `whole`: tells the bytes from all others; "": they are not kept."""
        self._target = target
        kept = _kept(target, whole) if whole else None
        self._file: BinaryIO | None
        self._file, self._path = kept or (None, target.with_name(f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"))
        self._is_kept = kept is not None
        if self._file is not None:
            _as_open_as(self._target, self._file)
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._file is not None:
            if not (self._is_kept and error is not None and _goes_on(error)):
                self._path.unlink(missing_ok=True)  # while it is held: who comes next makes a file of his own
            self._file.close()

    def left(self) -> Iterator[bytes]:
        """What an earlier download has left, after which goes what is written."""
        while self._is_kept and self._file is not None and (chunk := self._file.read(bounds.CHUNK_BYTES)):
            yield chunk

    def write(self, piece: bytes) -> None:
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._is_kept or self._held_bytes >= bounds.CHUNK_BYTES:
            self._written()

    def _written(self) -> BinaryIO:
        if self._file is None:
            self._file = open(self._path, "xb")  # noqa: SIM115 - closed by `__exit__` or `name`
            _as_open_as(self._target, self._file)
        file = self._file
        held, self._held, self._held_bytes = self._held, [], 0
        file.writelines(held)
        file.flush()
        return file

    def start_over(self) -> None:
        self._held, self._held_bytes = [], 0
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()

    def write_out(self, mtime_s: float | None) -> None:
        """Hand the last bytes to the system, with a modification time."""
        file = self._written()
        if mtime_s is not None:
            os.utime(file.fileno(), (mtime_s, mtime_s))

    def fileno(self) -> int:
        assert self._file is not None, "nothing has been written"
        return self._file.fileno()

    def sync(self) -> None:
        """Put what has been written on stable storage."""
        os.fsync(self.fileno())

    def name(self) -> None:
        """Give it to its target, once it is on stable storage."""
        self._path.replace(self._target)
        file, self._file = self._file, None
        assert file is not None, "a file is named once"
        file.close()


def is_kept(name: str) -> bool:
    """Whether a file of this name is what a download has left, or is writing."""
    return re.fullmatch(r"\.chelonia(\.[0-9a-f]{16}){1,2}\.part", name) is not None


def _as_open_as(target: Path, file: BinaryIO) -> None:
    """Before bytes are written: they are for those alone who may see what they replace."""
    with contextlib.suppress(OSError):
        os.fchmod(file.fileno(), target.stat().st_mode & 0o777)


def _goes_on(error: BaseException) -> bool:
    """Whether the next download may begin with what has come: not with wrong bytes, nor on a disk that is full."""
    if isinstance(error, CheloniaError):
        return error.kind not in (Kind.CHECKSUM, Kind.CONFLICT)
    return not isinstance(error, OSError)


def _kept(target: Path, whole: str) -> tuple[BinaryIO, Path] | None:
    """The file of these bytes, held; those of other bytes for the same target go. None: it cannot be had."""
    ours = f"{_PREFIX}{_digest(target.name)}."
    path = target.with_name(f"{ours}{_digest(whole)}{_SUFFIX}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(ours) and entry.name != path.name and (other := _locked(Path(entry.path))):
                with other:
                    os.unlink(entry.path)
    file = _locked(path, os.O_CREAT)
    return None if file is None else (file, path)


def _locked(path: Path, create: int = 0) -> BinaryIO | None:
    """A file of this user's own, locked; None where it is not, another process has it, or it has lost its name."""
    try:
        descriptor = os.open(path, create | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    file = cast(BinaryIO, os.fdopen(descriptor, "r+b"))
    try:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(found, os.lstat(path)):
                return file
    except OSError:
        pass
    file.close()
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
