"""The file that a download writes to, beside its target: hidden, and removed at the end unless it gets that name.

For large bytes it stays when the download breaks off, and the next download of the same bytes to the same place begins
with it. Its bytes are not trusted: they are hashed again with the rest. Where another process has it open, or it is not
this user's own, a new file is written, as for small bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Size from which bytes stay when a download breaks off: fewer are fetched anew within a second or a few."""
_PREFIX: Final = ".chelonia."
_SUFFIX: Final = ".part"


class PartFile:
    """The bytes of a file that have arrived; less than a chunk stays in memory, unless they are to be kept.

    Use as a context manager. All calls block and raise OSError from the local disk.
    """

    def __init__(self, target: Path, whole: str = "", *, replaces: bool = True) -> None:
        """Begin, or continue an earlier download. `whole`: text that identifies the bytes; "": they are not kept.
        `replaces`: they may take the place of a file."""
        self._target = target
        self._replaces = replaces
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
            if not (self._is_kept and error is not None and _is_resumable(error)):
                self._path.unlink(missing_ok=True)  # while it is locked: the next download makes a file of its own
            self._file.close()

    def left(self) -> Iterator[bytes]:
        """Yield the bytes that an earlier download has left; written ones go after them."""
        while self._is_kept and self._file is not None and (chunk := self._file.read(bounds.CHUNK_BYTES)):
            yield chunk

    def write(self, piece: bytes) -> None:
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._is_kept or self._held_bytes >= bounds.CHUNK_BYTES:
            self._written()

    def _written(self) -> BinaryIO:
        if self._file is None:
            opener = partial(os.open, mode=_mode(self._target))
            self._file = open(self._path, "xb", opener=opener)  # noqa: SIM115 - closed by `__exit__` or `name`
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
        """Hand the last bytes to the system, and set a modification time."""
        file = self._written()
        if mtime_s is not None:
            os.utime(file.fileno(), (mtime_s, mtime_s))

    def fileno(self) -> int:
        assert self._file is not None, "nothing has been written"
        return self._file.fileno()

    def sync(self) -> None:
        """Put the written bytes on stable storage."""
        os.fsync(self.fileno())

    def name(self) -> None:
        """Rename the file to its target; call it once the bytes are on stable storage. Raises: FileExistsError where
        there is one that it may not replace."""
        if self._replaces:
            self._path.replace(self._target)
        else:
            _rename(self._path, self._target)
        file, self._file = self._file, None
        assert file is not None, "a file is named once"
        file.close()


def is_kept(name: str) -> bool:
    """Whether a file of this name belongs to a download, under way or broken off."""
    return re.fullmatch(r"\.chelonia(\.[0-9a-f]{16}){1,2}\.part", name) is not None


def _rename(path: Path, target: Path) -> None:
    """Rename a file. Raises: FileExistsError."""
    try:
        os.link(path, target)  # unlike a renaming it replaces nothing
    except FileExistsError:
        raise
    except OSError as error:  # this file system has no hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        path.replace(target)
    else:
        path.unlink()


def _mode(target: Path) -> int:
    """Mode of a new file: only readers of the old one may read it, from its first moment on."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        return 0o666


def _as_open_as(target: Path, file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # before any byte is written
        os.fchmod(file.fileno(), target.stat().st_mode & 0o777)


def _is_resumable(error: BaseException) -> bool:
    """Whether the next download may begin with these bytes: not with wrong ones, nor on a disk that is full."""
    if isinstance(error, CheloniaError):
        return error.kind not in (Kind.CHECKSUM, Kind.CONFLICT)
    return not isinstance(error, OSError)


def _kept(target: Path, whole: str) -> tuple[BinaryIO, Path] | None:
    """The file of these bytes, locked; those of other bytes for the same target are removed. None: it is not free."""
    prefix = f"{_PREFIX}{_digest(target.name)}."
    path = target.with_name(f"{prefix}{_digest(whole)}{_SUFFIX}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name != path.name and (other := _locked(Path(entry.path))):
                with other:
                    os.unlink(entry.path)
    file = _locked(path, os.O_CREAT, _mode(target))
    return None if file is None else (file, path)


def _locked(path: Path, create: int = 0, mode: int = 0o666) -> BinaryIO | None:
    """A file of this user's own, locked; None where it is not, another process has it, or it has lost its name."""
    try:
        descriptor = os.open(path, create | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
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
